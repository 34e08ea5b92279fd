//! Which store a URL means. Credentials and endpoints come from the variables of an environment, as
//! `object_store` takes them: those of the caller, also where a daemon does the work.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
#[cfg(feature = "cloud")]
use std::time::Duration;

use object_store::path::Path;
use url::Url;

use crate::directory::Directory;
use crate::ended::Ended;
use crate::error::{Error, Result};
use crate::store::Store;

/// Whether the place is made if it is missing. Buckets never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A directory is made.
    Make,
    /// It must be there.
    Find,
}

/// Variables with names and values.
pub type Environment = [(String, String)];

/// What the names of variables begin with that concern stores.
const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// The variables of this process that concern stores.
pub fn environment() -> Vec<(String, String)> {
    let all = std::env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        Some((name, value))
    });
    all.filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .collect()
}

/// A URL without user, password and query, for logs and messages.
pub fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = match rest.split_once('/') {
        Some((host, path)) => (host, format!("/{path}")),
        None => (rest, String::new()),
    };
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// The same place for a process with another working directory.
///
/// # Errors
/// There is no working directory.
pub fn absolute(url: &str) -> Result<String> {
    if url.contains("://") {
        return Ok(url.to_owned());
    }
    if url.is_empty() {
        return Err(Error::Url("it is empty: give a directory or a URL".into()));
    }
    let path = std::path::absolute(url).map_err(Error::host("the directory of the backup"))?;
    let text = path.into_os_string().into_string();
    text.map_err(|_| Error::Url("not UTF-8".into()))
}

/// Opens the store at a URL, or in a directory that is given as a path. Once `ended` says so, neither
/// this nor the store waits any longer.
///
/// # Errors
/// The URL cannot be understood, or nothing is there.
pub fn open(url: &str, place: Place, environment: &Environment, ended: &Ended) -> Result<Store> {
    let store = match directory_of(url)? {
        Some(path) => {
            let opened = ended.wait_for(move || directory(&path, place))?;
            opened?
        }
        None => remote(&parsed(url)?, environment)?,
    };
    Ok(store.ended_by(ended.clone()))
}

/// Whether this program can use stores of this kind; asks no store.
///
/// # Errors
/// The URL cannot be understood, or means something that this program was built without.
pub fn usable(url: &str) -> Result<()> {
    match directory_of(url)? {
        Some(_) => Ok(()),
        None => remote(&parsed(url)?, &environment()).map(drop),
    }
}

/// The directory that a URL or a path means, if it means one; it need not exist.
///
/// # Errors
/// The URL cannot be understood.
pub fn directory_of(url: &str) -> Result<Option<PathBuf>> {
    if !url.contains("://") {
        return Ok(Some(url.into()));
    }
    let parsed = parsed(url)?;
    if parsed.scheme() != "file" {
        return Ok(None);
    }
    let path = parsed.to_file_path();
    let why = "a file URL has three slashes: file:///directory";
    path.map(Some).map_err(|()| Error::Url(why.into()))
}

fn parsed(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|why| Error::Url(why.to_string()))
}

fn directory(path: &FilePath, place: Place) -> Result<Store> {
    if place == Place::Make {
        std::fs::create_dir_all(path).map_err(|why| not_made(path, why))?;
    } else if !path.is_dir() {
        return Err(Error::NoBackup);
    }
    let dir: PathBuf = path
        .canonicalize()
        .map_err(Error::host("the directory of the backup"))?;
    let files = Directory::open(&dir);
    let files = files.map_err(|why| Error::store("cannot open", dir.display(), why))?;
    let store = Store::new(Arc::new(files), Path::default())?;
    Ok(store.in_dir(dir))
}

/// Why a directory cannot be made.
fn not_made(path: &FilePath, why: std::io::Error) -> Error {
    let above = path
        .ancestors()
        .find(|above| above.exists() && !above.is_dir());
    let why = match above {
        Some(file) => std::io::Error::other(format!(
            "{} is a file: give a directory, or one that can be made",
            file.display()
        )),
        None => why,
    };
    Error::host("cannot make the directory of the backup")(why)
}

#[cfg(feature = "cloud")]
fn remote(url: &Url, environment: &Environment) -> Result<Store> {
    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::{ObjectStore, ObjectStoreScheme};

    let shown = shown(url.as_str());
    let wrong = |why: &dyn std::fmt::Display| Error::Url(why.to_string());
    let (scheme, path) = ObjectStoreScheme::parse(url).map_err(|e| wrong(&e))?;
    let refused = |why| Error::store("cannot use", &shown, why);
    // The builders share no trait.
    macro_rules! built {
        ($builder:ty) => {{
            let builder = <$builder>::new()
                .with_client_options(client())
                .with_retry(retry())
                .with_url(url.as_str());
            let set = |builder: $builder, (key, value): (String, _)| match key.parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            };
            let builder = options(environment).fold(builder, set);
            Arc::new(builder.build().map_err(refused)?)
        }};
    }
    let store: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::AmazonS3 => built!(AmazonS3Builder),
        ObjectStoreScheme::GoogleCloudStorage => built!(GoogleCloudStorageBuilder),
        ObjectStoreScheme::MicrosoftAzure => built!(MicrosoftAzureBuilder),
        _ => return Err(wrong(&"use file:///directory, s3://, gs:// or az://")),
    };
    Store::new(store, path)
}

/// Time for a connection to a store.
#[cfg(feature = "cloud")]
const CONNECT: Duration = Duration::from_secs(10);

/// Time for a request with its answer. An object has up to 20 MiB, which a slow line takes a while for.
#[cfg(feature = "cloud")]
const REQUEST: Duration = Duration::from_secs(300);

/// Time after which no further attempt of a request is begun; [`Store`] repeats what has failed then.
#[cfg(feature = "cloud")]
const RETRY: Duration = Duration::from_secs(30);

/// How the connections of a store are, unless the environment says otherwise.
#[cfg(feature = "cloud")]
fn client() -> object_store::ClientOptions {
    object_store::ClientOptions::new()
        .with_connect_timeout(CONNECT)
        .with_timeout(REQUEST)
}

#[cfg(feature = "cloud")]
fn retry() -> object_store::RetryConfig {
    object_store::RetryConfig {
        max_retries: 3,
        retry_timeout: RETRY,
        ..object_store::RetryConfig::default()
    }
}

/// The variables as the builders of stores name their options.
#[cfg(feature = "cloud")]
fn options(environment: &Environment) -> impl Iterator<Item = (String, &str)> {
    let all = environment.iter();
    all.map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
}

#[cfg(not(feature = "cloud"))]
fn remote(_url: &Url, _environment: &Environment) -> Result<Store> {
    Err(Error::Url(
        "this program was built for directories only (file:///directory); build it with \
         `--features cloud` for s3://, gs:// and az://"
            .into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_urls_are_told() {
        for (url, told) in [
            ("file://dir", "three slashes"),
            ("ftp://host/x", "file:///directory"),
            ("://", "relative URL"),
            ("/dev/null/dir", "/dev/null is a file"),
        ] {
            let why = open(url, Place::Make, &[], &Ended::default())
                .err()
                .map(|e| e.to_string());
            assert!(
                why.as_ref().is_some_and(|why| why.contains(told)),
                "{why:?}"
            );
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        for (url, text) in [
            ("/plain/a@b?c", "/plain/a@b?c"),
            ("s3://bucket/disk", "s3://bucket/disk"),
            ("s3://key:secret@bucket/a@b", "s3://bucket/a@b"),
            ("az://key:se@cret@bucket?sig=x", "az://bucket"),
            ("ftp://user:secret@host/x?y#z", "ftp://host/x"),
        ] {
            assert_eq!(shown(url), text);
        }
        let why = open(
            "ftp://user:secret@host/x",
            Place::Find,
            &[],
            &Ended::default(),
        )
        .err();
        let why = why.unwrap().to_string();
        assert!(!why.contains("secret"), "{why}");
    }

    #[test]
    fn missing_directory_is_no_backup() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("x");
        let found = open(
            missing.to_str().unwrap(),
            Place::Find,
            &[],
            &Ended::default(),
        );
        assert!(matches!(found, Err(Error::NoBackup)));
    }
}

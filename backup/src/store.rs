//! Objects in a store, for threads that wait: what the rest of this crate does with `object_store`.
//!
//! A request that fails for a reason that may pass is repeated a few times. What was asked is counted.
//! Names are below the prefix of the URL. Uses the error type and names of the format.

use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
};
use tokio::runtime::{Handle, Runtime};

use crate::directory;
use crate::ended::{Ended, GLANCE};
use crate::error::{Error, Result};
use crate::in_flight::{InFlight, Waiting};

/// How often a request is made before its failure counts.
const ATTEMPTS: u32 = 4;
/// The pause before the second attempt; it doubles with each further one.
const PAUSE: Duration = Duration::from_millis(200);

/// A store, seen from the prefix of a backup.
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    prefix: Path,
    /// The directory, if the store is one.
    dir: Option<PathBuf>,
    /// There until the store is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
    pause: Duration,
    /// Whether answers are not waited for any longer.
    ended: Ended,
    counts: Counts,
    in_flight: InFlight,
}

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// What was asked of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Requests, repeated ones too.
    pub requests: u64,
    /// Bytes of objects that were stored.
    pub sent: u64,
    /// Bytes that were read.
    pub received: u64,
}

/// An object that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name, without the folder that was listed.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// When it was stored, by the clock of the store.
    pub stored: SystemTime,
}

/// What became of an object that must be new.
#[derive(Debug)]
pub enum Put {
    /// It is stored.
    Stored,
    /// One of this name was there.
    Exists,
    /// It is not known.
    Unclear(StoreError),
}

impl Store {
    /// A store that is there already; for tests and programs that bring their own.
    ///
    /// # Errors
    /// There are no threads left.
    pub fn new(inner: Arc<dyn ObjectStore>, prefix: Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("store")
            .enable_all()
            .build();
        let runtime = runtime.map_err(Error::host("threads"))?;
        Ok(Self {
            inner,
            prefix,
            dir: None,
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            pause: PAUSE,
            ended: Ended::default(),
            counts: Counts::default(),
            in_flight: InFlight::default(),
        })
    }

    /// Repeats failed requests at once.
    #[must_use]
    pub fn without_pauses(mut self) -> Self {
        self.pause = Duration::ZERO;
        self
    }

    /// Waits for no answer any longer once this is so: requests fail with [`Error::Interrupted`], and
    /// a head whose answer was not waited for with [`Error::Unclear`].
    #[must_use]
    pub fn ended_by(mut self, ended: Ended) -> Self {
        self.ended = ended;
        self
    }

    /// Whether answers are not waited for any longer.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.now()
    }

    /// Tells that the store is this directory.
    #[must_use]
    pub(crate) fn in_dir(mut self, dir: PathBuf) -> Self {
        self.dir = Some(dir);
        self
    }

    /// What was asked until now.
    pub fn asked(&self) -> Asked {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Asked {
            requests: of(&self.counts.requests),
            sent: of(&self.counts.sent),
            received: of(&self.counts.received),
        }
    }

    /// The oldest request that has no answer yet.
    pub fn waiting(&self) -> Option<Waiting> {
        self.in_flight.oldest()
    }

    fn path(&self, name: &str) -> Path {
        let parts = name.split('/');
        parts.fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Waits for a request.
    fn wait<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.handle.block_on(async {
            let mut request = std::pin::pin!(request);
            loop {
                match tokio::time::timeout(GLANCE, request.as_mut()).await {
                    Ok(answer) => return answer,
                    Err(_) if self.has_ended() => return Err(not_waited()),
                    Err(_) => {}
                }
            }
        })
    }

    /// Makes a request until it has an answer that counts.
    fn ask<T, F>(&self, what: &'static str, name: &str, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = self.pause;
        if self.has_ended() {
            return Err(Error::Interrupted);
        }
        let _request = self.in_flight.begin(what, name);
        for _ in 1..ATTEMPTS {
            match self.wait(request()) {
                Err(_) if self.has_ended() => return Err(Error::Interrupted),
                Err(why) if may_pass(&why) => self.ended.pause(pause),
                answer => return answer.map_err(|why| Error::store(what, name, why)),
            }
            pause *= 2;
        }
        self.wait(request()).map_err(|why| {
            if self.has_ended() {
                Error::Interrupted
            } else {
                Error::store(what, name, why)
            }
        })
    }

    /// Stores an object under a name that nobody else uses.
    ///
    /// # Errors
    /// The store refuses, or does not answer.
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = self.path(name);
        let put = || self.inner.put(&path, PutPayload::from_bytes(bytes.clone()));
        self.ask("cannot store", name, put)?;
        self.counts
            .sent
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Stores an object if there is none of that name. Failures that may pass are repeated, which is
    /// harmless: [`Put::Exists`] can then be the own object.
    pub fn put_new(&self, name: &str, bytes: &Bytes) -> Put {
        let path = self.path(name);
        let mut pause = self.pause;
        let mut attempt = 1;
        let _request = self.in_flight.begin("store", name);
        loop {
            let payload = PutPayload::from_bytes(bytes.clone());
            let put = self.inner.put_opts(&path, payload, PutMode::Create.into());
            match self.wait(put) {
                Ok(_) => {
                    self.counts
                        .sent
                        .fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Put::Stored;
                }
                Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                    return Put::Exists;
                }
                Err(why) if !may_pass(&why) || attempt == ATTEMPTS || self.has_ended() => {
                    return Put::Unclear(why);
                }
                Err(_) => self.ended.pause(pause),
            }
            attempt += 1;
            pause *= 2;
        }
    }

    /// The bytes of an object, if there is one.
    ///
    /// # Errors
    /// The store does not answer; the object has more than `most` bytes.
    pub fn get(&self, name: &str, most: u64) -> Result<Option<Bytes>> {
        let path = self.path(name);
        let get = || async {
            let found = match self.inner.get(&path).await {
                Err(StoreError::NotFound { .. }) => return Ok(None),
                found => found?,
            };
            match found.meta.size {
                size if size > most => Ok(Some(None)),
                _ => found.bytes().await.map(|bytes| Some(Some(bytes))),
            }
        };
        match self.ask("cannot read", name, get)? {
            None => Ok(None),
            Some(None) => Err(Error::damaged(name, "larger than it can be")),
            Some(Some(bytes)) => {
                self.received(bytes.len());
                Ok(Some(bytes))
            }
        }
    }

    fn received(&self, len: usize) {
        self.counts
            .received
            .fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Bytes of an object that must be there.
    ///
    /// # Errors
    /// The object is missing or shorter, or the store does not answer.
    pub fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let path = self.path(name);
        let get = || self.inner.get_range(&path, range.clone());
        let want = range.end.saturating_sub(range.start);
        match self.ask("cannot read", name, get) {
            Ok(bytes) if bytes.len() as u64 == want => {
                self.received(bytes.len());
                Ok(bytes)
            }
            Ok(_) => Err(Error::damaged(name, "shorter than it was")),
            Err(why) => Err(match self.size(name) {
                Ok(None) => Error::Missing(name.into()),
                Ok(Some(size)) if size < range.end => Error::damaged(name, "shorter than it was"),
                _ => why,
            }),
        }
    }

    /// The size of an object, if it is there.
    ///
    /// # Errors
    /// The store does not answer.
    pub fn size(&self, name: &str) -> Result<Option<u64>> {
        let path = self.path(name);
        let head = || async {
            let options = GetOptions::new().with_head(true);
            match self.inner.get_opts(&path, options).await {
                Err(StoreError::NotFound { .. }) => Ok(None),
                found => found.map(|found| Some(found.meta.size)),
            }
        };
        self.ask("cannot find", name, head)
    }

    /// The objects in a folder, in order; not more than `most`.
    ///
    /// # Errors
    /// The store does not answer; there are more objects.
    pub fn list(&self, folder: &str, most: usize) -> Result<Vec<Listed>> {
        let path = self.path(folder);
        let list = || async {
            let objects = self.inner.list(Some(&path)).take(most.saturating_add(1));
            let named = objects.try_filter_map(|found| async move {
                Ok(found.location.filename().map(|name| Listed {
                    name: name.to_owned(),
                    size: found.size,
                    stored: found.last_modified.into(),
                }))
            });
            named.try_collect::<Vec<_>>().await
        };
        let mut found = self.ask("cannot list", folder, list)?;
        if found.len() > most {
            let why = format!("more than {most} objects are there");
            return Err(Error::damaged(folder, why));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Deletes objects; those that are not there are deleted already.
    ///
    /// # Errors
    /// The store refuses, or does not answer; some may be deleted.
    pub fn delete(&self, names: &[String]) -> Result<()> {
        for some in names.chunks(1000) {
            let paths: Vec<_> = some.iter().map(|name| Ok(self.path(name))).collect();
            let first = some.first().map_or("", String::as_str);
            let delete = || async {
                let deleted = self
                    .inner
                    .delete_stream(stream::iter(paths_of(&paths)).boxed());
                let each = deleted.filter_map(|answer| async {
                    match answer {
                        Ok(_) | Err(StoreError::NotFound { .. }) => None,
                        Err(why) => Some(why),
                    }
                });
                let failed: Vec<_> = each.collect().await;
                failed.into_iter().next().map_or(Ok(()), Err)
            };
            self.ask("cannot delete", first, delete)?;
        }
        Ok(())
    }

    /// Removes what killed writers have left beside objects: a directory has files that were not
    /// renamed yet. Other stores remove it by themselves.
    pub(crate) fn sweep(&self, folder: &str) {
        if let Some(dir) = &self.dir {
            let folder = dir.join(folder);
            let _request = self
                .in_flight
                .begin("list", "what killed programs have left");
            // What is not waited for costs space only.
            let _ = self.ended.wait_for(move || directory::sweep(&folder));
        }
    }
}

impl Drop for Store {
    /// Does not wait for a file system that does not answer.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// In place of an answer.
fn not_waited() -> StoreError {
    StoreError::Generic {
        store: "store",
        source: "interrupted before it has answered".into(),
    }
}

fn paths_of(paths: &[Result<Path, StoreError>]) -> Vec<Result<Path, StoreError>> {
    paths.iter().flatten().cloned().map(Ok).collect()
}

/// Whether the same request may succeed later.
fn may_pass(why: &StoreError) -> bool {
    matches!(
        why,
        StoreError::Generic { .. } | StoreError::JoinError { .. }
    )
}

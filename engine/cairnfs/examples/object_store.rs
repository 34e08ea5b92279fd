//! A content-addressed store: files with the same bytes are one object, found by its hash.
//!
//! A name is a hard link to an object, so the link count tells which objects nothing needs any more.
//! An object becomes visible by a rename of a finished file: after a crash it is whole or missing,
//! without an fsync. Its type is kept in an extended attribute.
//!
//! Prints:
//!
//! ```text
//! 4 names, 2 objects
//! song.txt and copy.txt are one file: true
//! text/plain
//! removed 1 object, 1 left
//! ```

use std::error::Error;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use cairnfs::{RenameMode, Result, Volume};

/// Where the bytes belong. A store for bytes of strangers uses a cryptographic hash.
fn object_of(bytes: &[u8]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    let key = format!("{:016x}", hasher.finish());
    let (dir, rest) = key.split_at(2);
    Path::new("objects").join(dir).join(rest)
}

/// Stores bytes under a name.
fn put(store: &Volume, name: &str, kind: &str, bytes: &[u8]) -> Result<()> {
    let object = object_of(bytes);
    if !store.exists(&object)? {
        if let Some(dir) = object.parent() {
            store.create_dir_all(dir)?;
        }
        let unfinished = Path::new("unfinished").join(name);
        store.write(&unfinished, bytes)?;
        store.set_xattr(&unfinished, "user.mime_type", kind)?;
        store.rename_with(&unfinished, &object, RenameMode::NoReplace)?;
    }
    store.hard_link(&object, Path::new("names").join(name))
}

/// Removes the objects that no name leads to.
fn collect(store: &Volume) -> Result<usize> {
    let mut removed = 0;
    for entry in store.walk("objects")? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_file() && metadata.nlink() == 1 {
            store.remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn objects(store: &Volume) -> Result<usize> {
    let mut found = 0;
    for entry in store.walk("objects")? {
        found += usize::from(entry?.file_type()?.is_file());
    }
    Ok(found)
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let store = Volume::create(dir.path().join("store.cairn"), 64 << 20)?;
    for dir in ["objects", "names", "unfinished"] {
        store.create_dir(dir)?;
    }

    let (song, picture) = (b"la la la".as_slice(), [7; 100_000].as_slice());
    put(&store, "song.txt", "text/plain", song)?;
    put(&store, "copy.txt", "text/plain", song)?;
    put(&store, "picture", "image/x-raw", picture)?;
    put(&store, "thumbnail", "image/x-raw", picture)?;
    let names = store.read_dir("names")?.count();
    println!("{names} names, {} objects", objects(&store)?);

    let ino = |name: &str| {
        store
            .metadata(Path::new("names").join(name))
            .map(|m| m.ino())
    };
    let same = ino("song.txt")? == ino("copy.txt")?;
    println!("song.txt and copy.txt are one file: {same}");
    let kind = store.get_xattr("names/copy.txt", "user.mime_type")?;
    println!("{}", String::from_utf8(kind.unwrap_or_default())?);

    store.remove_file("names/song.txt")?;
    store.remove_file("names/picture")?;
    store.remove_file("names/thumbnail")?;
    let removed = collect(&store)?;
    println!("removed {removed} object, {} left", objects(&store)?);
    store.close()?;
    Ok(())
}

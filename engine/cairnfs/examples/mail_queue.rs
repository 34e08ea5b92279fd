//! A mail spool: two threads deliver messages, two take them, and none is lost or taken twice.
//!
//! A message is written in `tmp` and renamed to `new`, so a reader sees it whole or not at all. One
//! `sync_all` of the file makes it durable with its new name: the directory needs no fsync of its
//! own. A worker claims a message by a rename, which one worker alone can do.
//!
//! Prints:
//!
//! ```text
//! delivered: 200
//! taken: 200, each once
//! after opening again: 0 in new, 0 in cur
//! ```

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::thread;

use cairnfs::{RenameMode, Volume};

const PER_THREAD: usize = 100;

/// What needs both kinds of errors converts either by `?`.
fn deliver(spool: &Volume, id: &str, text: &str) -> io::Result<()> {
    let unfinished = Path::new("tmp").join(id);
    let mut message = spool.create_new_file(&unfinished)?;
    message.write_all(text.as_bytes())?;
    spool.rename(&unfinished, Path::new("new").join(id))?;
    message.sync_all()?;
    Ok(())
}

/// Claims a message that nobody else has claimed, and gives its name and text.
fn take(spool: &Volume) -> cairnfs::Result<Option<(String, String)>> {
    for entry in spool.read_dir("new")? {
        let entry = entry?;
        let claimed = Path::new("cur").join(entry.file_name());
        match spool.rename_with(entry.path(), &claimed, RenameMode::NoReplace) {
            Ok(()) => {
                let text = spool.read_to_string(&claimed)?;
                spool.remove_file(&claimed)?;
                return Ok(Some((entry.file_name().display().to_string(), text)));
            }
            // Another worker was quicker.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

fn deliver_all(spool: &Volume, sender: usize) -> io::Result<()> {
    for n in 0..PER_THREAD {
        deliver(spool, &format!("{sender}.{n}"), &format!("message {n}"))?;
    }
    Ok(())
}

fn take_all(spool: &Volume) -> cairnfs::Result<Vec<String>> {
    let mut taken = Vec::new();
    while let Some((id, text)) = take(spool)? {
        assert!(text.starts_with("message "), "{text:?}");
        taken.push(id);
    }
    Ok(taken)
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("spool.cairn");
    let spool = Volume::create(&image, 64 << 20)?;
    for dir in ["tmp", "new", "cur"] {
        spool.create_dir(dir)?;
    }

    let delivered = thread::scope(|s| {
        let spool = &spool;
        let senders = [1, 2].map(|sender| s.spawn(move || deliver_all(spool, sender)));
        senders.map(|thread| thread.join())
    });
    for delivered in delivered {
        delivered.map_err(|_| "a sender panicked")??;
    }
    println!("delivered: {}", spool.read_dir("new")?.count());

    let taken = thread::scope(|s| {
        let workers = [1, 2].map(|_| s.spawn(|| take_all(&spool)));
        workers.map(|thread| thread.join())
    });
    let mut all = Vec::new();
    for taken in taken {
        all.extend(taken.map_err(|_| "a worker panicked")??);
    }
    let once = all.iter().collect::<BTreeSet<_>>().len() == all.len();
    let how_often = if once { "each once" } else { "some twice" };
    println!("taken: {}, {how_often}", all.len());
    spool.close()?;

    let spool = Volume::open(&image)?;
    let left = |dir| spool.read_dir(dir).map(Iterator::count);
    println!(
        "after opening again: {} in new, {} in cur",
        left("new")?,
        left("cur")?
    );
    Ok(())
}

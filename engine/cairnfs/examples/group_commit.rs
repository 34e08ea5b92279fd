//! A server that acknowledges a request when it is durable, with one sync for many requests.
//!
//! Workers make changes and pass each request on with the sequence behind its changes. One thread
//! takes all requests that wait, makes everything up to the newest sequence durable, and
//! acknowledges them all. No worker waits for the device.
//!
//! Prints:
//!
//! ```text
//! acknowledged: 800
//! acknowledged before they were durable: 0
//! after opening again: 800 files, all whole
//! ```

use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use cairnfs::{Result, Sequence, Volume};

const WORKERS: usize = 4;
const REQUESTS: usize = 200;

/// What a request changes: here, a file and an entry in the directory of its worker.
fn serve(volume: &Volume, worker: usize, done: Sender<Sequence>) -> Result<()> {
    volume.create_dir(format!("{worker}"))?;
    for n in 0..REQUESTS {
        volume.write(format!("{worker}/{n}"), format!("request {n}"))?;
        // Nobody listens any more only after a failure, which the other thread returns.
        let _ = done.send(volume.sequence());
    }
    Ok(())
}

struct Acknowledged {
    requests: usize,
    too_early: usize,
    syncs: usize,
}

fn acknowledge(volume: &Volume, done: Receiver<Sequence>) -> Result<Acknowledged> {
    let mut acknowledged = Acknowledged {
        requests: 0,
        too_early: 0,
        syncs: 0,
    };
    while let Ok(first) = done.recv() {
        let mut waiting = vec![first];
        waiting.extend(done.try_iter());
        let newest = waiting.iter().copied().fold(first, Sequence::max);
        volume.sync_through(newest)?;
        acknowledged.syncs += 1;
        // Here the clients get their answers.
        acknowledged.requests += waiting.len();
        let lost = |sequence: &&Sequence| !volume.is_durable(**sequence);
        acknowledged.too_early += waiting.iter().filter(lost).count();
    }
    Ok(acknowledged)
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("requests.cairn");
    let volume = Volume::create(&image, 64 << 20)?;

    let acknowledged = thread::scope(|s| {
        let (done, finished) = channel();
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (volume, done) = (&volume, done.clone());
                s.spawn(move || serve(volume, worker, done))
            })
            .collect();
        // The channel ends with the last worker.
        drop(done);
        let acknowledged = acknowledge(&volume, finished)?;
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        std::result::Result::<_, Box<dyn Error>>::Ok(acknowledged)
    })?;
    println!("acknowledged: {}", acknowledged.requests);
    println!(
        "acknowledged before they were durable: {}",
        acknowledged.too_early
    );
    eprintln!("with {} syncs", acknowledged.syncs);
    volume.close()?;

    let volume = Volume::open(&image)?;
    let (mut files, mut whole) = (0, true);
    for entry in volume.walk("/")? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let expected = format!("request {}", entry.file_name().display());
            whole &= volume.read_to_string(entry.path())? == expected;
            files += 1;
        }
    }
    let how = if whole { "all whole" } else { "some torn" };
    println!("after opening again: {files} files, {how}");
    Ok(())
}

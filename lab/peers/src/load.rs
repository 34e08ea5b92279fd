//! What is done to one store, and the figures of it: blobs are put under names in random order,
//! made durable, read at random, listed, and deleted; then the store is closed.
//!
//! Runs in a process of its own, so that its memory is the store's. Every blob that is read is
//! compared with what was put, and every name must be listed.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use cairnfs_bench::parts::{Block, Random, Requests, Tally, process_cpu};
use cairnfs_bench::{Latency, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::store::{Peer, Session, Setup, Store};

/// When changes are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When each put or delete returns
    Each,
    /// When each call of 1,000 puts or deletes returns
    Batch,
    /// When the store is synced, after all puts or deletes, each of which is a call of its own
    None,
}

impl Durability {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Each => "each",
            Durability::Batch => "batch",
            Durability::None => "none",
        }
    }

    /// Number of changes in one call.
    pub fn together(self) -> usize {
        match self {
            Durability::Each | Durability::None => 1,
            Durability::Batch => 1000,
        }
    }
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// When changes are durable.
    pub durability: Durability,
    /// Bytes of a blob.
    pub size: u64,
    /// Number of blobs.
    pub blobs: u64,
    /// Number of threads that share the blobs.
    pub threads: u64,
    /// Bytes of the store's own cache.
    pub cache: u64,
}

impl Load {
    /// Number of calls of all threads that change blobs.
    pub fn calls(&self) -> u64 {
        let together = self.durability.together() as u64;
        (0..self.threads)
            .map(|thread| {
                let own = self.part(thread);
                (own.end - own.start).div_ceil(together)
            })
            .sum()
    }

    /// The numbers of a thread's blobs.
    fn part(&self, thread: u64) -> Range<u64> {
        let at = |thread| self.blobs * thread / self.threads;
        at(thread)..at(thread + 1)
    }
}

/// The figures of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Most bytes of memory that the process had resident, with files that it mapped.
    pub resident_peak: u64,
    /// Most bytes of anonymous memory that it had at the end of a step.
    pub anonymous: u64,
}

impl Figures {
    /// The step of that name.
    pub fn step(&self, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.name == name)
    }
}

/// The figures of one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Number of blobs.
    pub blobs: u64,
    /// Seconds from the first thread's start to the last one's end.
    pub seconds: f64,
    /// Median and 99th percentile of the calls, in nanoseconds, if they were timed.
    pub latency_ns: Option<(u64, u64)>,
    /// Processor time of the process, in seconds.
    pub cpu: f64,
    /// What reached the device; `None` if the directory's file system has no device of its own.
    pub device: Option<Device>,
}

/// Requests of a step that reached the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes of the device's cache.
    pub flushes: u64,
}

/// Does all of it to a new store in `dir`, which is removed.
///
/// # Errors
/// Errors of the store, and blobs or names that are not there or not as they were put.
pub fn run(peer: Peer, load: &Load, dir: &Path) -> Result<Figures> {
    let dir = dir.join(format!("peers-{}", std::process::id()));
    fs::create_dir(&dir)?;
    let figures = run_in(peer, load, &dir);
    let removed = fs::remove_dir_all(&dir);
    let figures = figures?;
    removed?;
    Ok(figures)
}

fn run_in(peer: Peer, load: &Load, dir: &Path) -> Result<Figures> {
    let blobs = Blobs::new(load);
    let store = peer.create(
        dir,
        Setup {
            durable: load.durability != Durability::None,
            cache: usize::try_from(load.cache)?,
            payload: load.blobs * load.size,
        },
    )?;
    let mut meter = Meter::new(dir)?;
    meter.threads("write", &*store, &blobs, put)?;
    meter.once("sync", || store.sync())?;
    meter.threads("read", &*store, &blobs, read)?;
    meter.list(&*store, &blobs)?;
    meter.threads("delete", &*store, &blobs, delete)?;
    meter.once("sync deleted", || store.sync())?;
    meter.once("close", || store.close())?;
    Ok(meter.figures)
}

/// The names and contents, computed from the number of a blob.
struct Blobs {
    load: Load,
    /// Random bytes; a blob is a part of them.
    bytes: Vec<u8>,
}

/// Number of different blobs.
const DIFFERENT: u64 = 1 << 16;

impl Blobs {
    fn new(load: &Load) -> Self {
        let bytes = Random::new(1, 0).bytes((load.size + DIFFERENT) as usize);
        Self { load: *load, bytes }
    }

    /// 16 hexadecimal digits; neighbouring numbers have names far apart.
    fn name(number: u64) -> String {
        format!("{:016x}", Random::new(2, number).any())
    }

    fn blob(&self, number: u64) -> Result<&[u8]> {
        let start = (Random::new(3, number).any() % DIFFERENT) as usize;
        let part = self.bytes.get(start..start + self.load.size as usize);
        part.ok_or_else(|| "no such blob".into())
    }

    /// The numbers of a thread's blobs, in the groups that are changed together.
    fn calls(&self, thread: u64) -> impl Iterator<Item = Range<u64>> {
        let all = self.load.part(thread);
        let together = self.load.durability.together();
        all.clone()
            .step_by(together)
            .map(move |first| first..(first + together as u64).min(all.end))
    }
}

fn put(session: &mut dyn Session, blobs: &Blobs, thread: u64, tally: &mut Tally) -> Result<()> {
    for call in blobs.calls(thread) {
        let names: Vec<String> = call.clone().map(Blobs::name).collect();
        let contents: Vec<&[u8]> = call.map(|n| blobs.blob(n)).collect::<Result<_>>()?;
        let together: Vec<(&str, &[u8])> = names.iter().map(String::as_str).zip(contents).collect();
        tally.timed(|| session.put(&together))?;
    }
    Ok(())
}

fn read(session: &mut dyn Session, blobs: &Blobs, thread: u64, tally: &mut Tally) -> Result<()> {
    let own = blobs.load.part(thread);
    let mut random = Random::new(4, thread);
    let mut found = Vec::new();
    for _ in own.clone() {
        let number = own.start + random.below(own.end - own.start);
        let name = Blobs::name(number);
        if !tally.timed(|| session.get(&name, &mut found))? {
            return Err(format!("{name} is not there").into());
        }
        if found != blobs.blob(number)? {
            return Err(format!("{name} is not what was put").into());
        }
    }
    Ok(())
}

fn delete(session: &mut dyn Session, blobs: &Blobs, thread: u64, tally: &mut Tally) -> Result<()> {
    for call in blobs.calls(thread) {
        let names: Vec<String> = call.map(Blobs::name).collect();
        let together: Vec<&str> = names.iter().map(String::as_str).collect();
        tally.timed(|| session.delete(&together))?;
    }
    Ok(())
}

/// One thread's part of a step.
type Part = fn(&mut dyn Session, &Blobs, u64, &mut Tally) -> Result<()>;

/// Measures steps, and collects their figures.
struct Meter {
    host: fs::File,
    device: Option<Block>,
    figures: Figures,
}

/// Counters at the start of a step.
struct Start {
    time: Instant,
    cpu: Duration,
    device: Option<Requests>,
}

impl Meter {
    /// Starts with nothing unwritten on the host.
    fn new(dir: &Path) -> Result<Self> {
        let host = fs::File::open(dir)?;
        rustix::fs::syncfs(&host)?;
        Ok(Self {
            host,
            device: Block::under(dir)?,
            figures: Figures {
                steps: Vec::new(),
                resident_peak: 0,
                anonymous: 0,
            },
        })
    }

    fn threads(&mut self, name: &str, store: &dyn Store, blobs: &Blobs, part: Part) -> Result<()> {
        let threads = blobs.load.threads;
        let gate = Barrier::new(usize::try_from(threads)? + 1);
        let (start, mut tally) = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|thread| {
                    let gate = &gate;
                    scope.spawn(move || {
                        let session = store.session();
                        // First all sessions are open, then all threads start.
                        gate.wait();
                        gate.wait();
                        let mut tally = Tally::default();
                        part(&mut *session?, blobs, thread, &mut tally)?;
                        Ok(tally)
                    })
                })
                .collect();
            gate.wait();
            let start = self.start();
            gate.wait();
            let done: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
            let mut all = Tally::default();
            for thread in done {
                let tally: Result<Tally> = thread.map_err(|_| "a thread panicked")?;
                all.add(tally?);
            }
            Result::Ok((start, all))
        })?;
        self.end(name, blobs.load.blobs, tally.latency(), &start)
    }

    fn list(&mut self, store: &dyn Store, blobs: &Blobs) -> Result<()> {
        let mut session = store.session()?;
        // The sum of all names, because they are listed in any order.
        let (mut count, mut sum) = (0, 0u64);
        let start = self.start();
        session.list(&mut |name| {
            let name = std::str::from_utf8(name).ok();
            let name = name.and_then(|name| u64::from_str_radix(name, 16).ok());
            sum = sum.wrapping_add(name.unwrap_or_default());
            count += 1;
        })?;
        self.end("list", blobs.load.blobs, None, &start)?;
        let put = (0..blobs.load.blobs).map(|n| Random::new(2, n).any());
        if (count, sum) == (blobs.load.blobs, put.fold(0, u64::wrapping_add)) {
            Ok(())
        } else {
            Err(format!("{count} names are listed, not those that were put").into())
        }
    }

    /// A step that ends with everything written back to the host's device.
    fn once(&mut self, name: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = self.start();
        step()?;
        rustix::fs::syncfs(&self.host)?;
        self.end(name, 0, None, &start)
    }

    fn start(&self) -> Start {
        Start {
            device: self.device.as_ref().map(Block::now),
            cpu: process_cpu(),
            time: Instant::now(),
        }
    }

    fn end(
        &mut self,
        name: &str,
        blobs: u64,
        latency: Option<Latency>,
        start: &Start,
    ) -> Result<()> {
        let seconds = start.time.elapsed().as_secs_f64();
        let cpu = process_cpu().saturating_sub(start.cpu).as_secs_f64();
        let now = self.device.as_ref().map(Block::now);
        let device = now.zip(start.device).map(|(now, then)| Device {
            writes: now.writes.saturating_sub(then.writes),
            write_bytes: now.write_bytes.saturating_sub(then.write_bytes),
            flushes: now.flushes.saturating_sub(then.flushes),
        });
        self.figures.steps.push(Step {
            name: name.to_owned(),
            blobs,
            seconds,
            latency_ns: latency.map(|latency| (latency.p50, latency.p99)),
            cpu,
            device,
        });
        let status = fs::read_to_string("/proc/self/status")?;
        let anonymous = kibibytes(&status, "RssAnon:");
        self.figures.anonymous = self.figures.anonymous.max(anonymous);
        self.figures.resident_peak = kibibytes(&status, "VmHWM:");
        Ok(())
    }
}

/// A field of `/proc/PID/status`, in bytes.
fn kibibytes(status: &str, field: &str) -> u64 {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(field));
    let kibibytes = value.and_then(|value| value.trim().trim_end_matches(" kB").parse().ok());
    kibibytes.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(durability: Durability, blobs: u64, threads: u64) -> Load {
        Load {
            durability,
            size: 3000,
            blobs,
            threads,
            cache: 64 << 20,
        }
    }

    #[test]
    fn calls_of_all_threads_contain_each_blob_once() {
        let blobs = Blobs::new(&load(Durability::Batch, 4500, 4));
        let calls: Vec<_> = (0..4).flat_map(|thread| blobs.calls(thread)).collect();
        assert!(calls.iter().all(|call| call.end - call.start <= 1000));
        assert_eq!(blobs.load.calls(), calls.len() as u64);
        assert!(calls.into_iter().flatten().eq(0..4500));
        assert_ne!(Blobs::name(1), Blobs::name(2));
        assert_ne!(blobs.blob(1).unwrap(), blobs.blob(2).unwrap());
    }

    #[test]
    fn each_store_returns_what_was_put() {
        let dir = tempfile::tempdir().unwrap();
        for peer in Peer::built() {
            for durability in Durability::value_variants() {
                for threads in [1, 3] {
                    let load = load(*durability, 2100, threads);
                    let load = match durability {
                        Durability::Each => Load { blobs: 60, ..load },
                        _ => load,
                    };
                    let figures = run(peer, &load, dir.path());
                    let figures = figures.unwrap_or_else(|e| panic!("{peer:?} {load:?}: {e}"));
                    let names: Vec<_> = figures.steps.iter().map(|s| s.name.as_str()).collect();
                    assert_eq!(names, STEPS, "{peer:?}");
                    assert!(figures.resident_peak >= figures.anonymous);
                }
            }
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    const STEPS: [&str; 7] = [
        "write",
        "sync",
        "read",
        "list",
        "delete",
        "sync deleted",
        "close",
    ];

    /// A store that loses one blob, changes one, or does not list one.
    struct Wrong(
        Fault,
        std::sync::Mutex<std::collections::BTreeMap<String, Vec<u8>>>,
    );

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        Loses,
        Changes,
        Hides,
    }

    impl Store for Wrong {
        fn session(&self) -> Result<Box<dyn Session + '_>> {
            Ok(Box::new(self))
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }

        fn close(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    impl Session for &Wrong {
        fn put(&mut self, blobs: &[(&str, &[u8])]) -> Result<()> {
            let mut kept = self.1.lock().unwrap();
            kept.extend(blobs.iter().map(|(n, b)| ((*n).to_owned(), b.to_vec())));
            Ok(())
        }

        fn get(&mut self, name: &str, blob: &mut Vec<u8>) -> Result<bool> {
            blob.clone_from(&self.1.lock().unwrap()[name]);
            blob[0] ^= u8::from(self.0 == Fault::Changes);
            Ok(self.0 != Fault::Loses)
        }

        fn list(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<()> {
            let kept = self.1.lock().unwrap();
            let hidden = usize::from(self.0 == Fault::Hides);
            kept.keys().skip(hidden).for_each(|n| each(n.as_bytes()));
            Ok(())
        }

        fn delete(&mut self, _names: &[&str]) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn wrong_contents_and_names_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(&load(Durability::None, 20, 1));
        for (fault, said) in [
            (Fault::Loses, "is not there"),
            (Fault::Changes, "is not what was put"),
            (Fault::Hides, "19 names are listed"),
        ] {
            let store = Wrong(fault, std::sync::Mutex::default());
            let mut meter = Meter::new(dir.path()).unwrap();
            meter.threads("write", &store, &blobs, put).unwrap();
            let found = meter
                .threads("read", &store, &blobs, read)
                .and_then(|()| meter.list(&store, &blobs));
            assert!(found.unwrap_err().to_string().contains(said));
        }
    }
}

//! What a file costs that a program makes through shared memory, beside system calls of a kernel's file
//! system: the floor of programs that a preloaded library serves.
//!
//! Each client is a process of its own. It makes files as `tar x` does: create, write, owner, mode, times,
//! close. Through a channel these are six calls, or two if what follows the create is sent with the close.
//! The thread that answers stores nothing, or has an engine on a temporary volume.

mod answer;
mod client;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cairnfs_channel::{Handler, Server, channel};
use cairnfs_fuse::descriptors;
use serde::Serialize;

use crate::Result;
use crate::compare::table::{Form, Table, line};
use crate::processor::{allowed, pin, process_cpu};
use crate::settings::parse_size;

pub use client::ClientArgs;

/// Make files through shared memory, and by system calls, by several processes
#[derive(Debug, Clone, clap::Args)]
pub struct Channel {
    /// Numbers of client processes.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    clients: Vec<usize>,

    /// Files that all clients of a row make.
    #[arg(long, default_value_t = 20_000)]
    files: usize,

    /// Bytes of each file, at most 8K.
    #[arg(long, default_value = "3600", value_parser = parse_size)]
    bytes: u64,

    /// Directories of other file systems, in which the same files are made by system calls.
    #[arg(long, value_name = "DIR")]
    beside: Vec<PathBuf>,

    /// Where the volume is made; by default in the directory for temporary files.
    #[arg(long, value_name = "DIR")]
    at: Option<PathBuf>,

    /// Use one processor for everything.
    #[arg(long)]
    one_processor: bool,

    /// Threads that compute meanwhile; their processor time is counted, too.
    #[arg(long, default_value_t = 0)]
    busy: usize,

    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,

    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// A way to make the files.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// System calls in this directory.
    System(PathBuf),
    /// Calls through a channel, by a server that stores nothing or has an engine.
    Channel { engine: bool, at_close: bool },
}

impl Way {
    fn name(&self) -> String {
        match self {
            Way::System(dir) => format!("system calls, {}", dir.display()),
            Way::Channel { engine, at_close } => {
                let server = if *engine { "engine" } else { "nothing stored" };
                let calls = if *at_close { 2 } else { 6 };
                format!("channel, {server}, {calls} calls a file")
            }
        }
    }
}

/// Figures of a way with one number of clients.
#[derive(Debug, Clone, Serialize)]
struct Figure {
    way: String,
    clients: usize,
    /// Microseconds by the clock for each file: the median of the rounds, the least and the most.
    file_us: [f64; 3],
    /// Processor time of all processes for each file, in microseconds, in the median round.
    processor_us: f64,
}

impl Channel {
    /// Measures all ways in turn, round by round, and prints the figures to `out`.
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<()> {
        if self.one_processor {
            let first = allowed()?
                .first()
                .copied()
                .ok_or("no processor is allowed")?;
            pin(first)?;
        }
        let busy = Busy::start(self.busy)?;
        let mut ways: Vec<Way> = self.beside.iter().cloned().map(Way::System).collect();
        for engine in [false, true] {
            ways.extend([false, true].map(|at_close| Way::Channel { engine, at_close }));
        }
        let mut figures = Vec::new();
        for clients in &self.clients {
            let mut rounds: Vec<Vec<(f64, f64)>> = vec![Vec::new(); ways.len()];
            for _ in 0..self.rounds.max(1) {
                for (way, times) in ways.iter().zip(&mut rounds) {
                    times.push(self.measure(way, *clients)?);
                }
            }
            for (way, mut times) in ways.iter().zip(rounds) {
                times.sort_by(|a, b| a.0.total_cmp(&b.0));
                let at = |n: usize| times.get(n).copied().unwrap_or_default();
                let (median, last) = (at(times.len() / 2), at(times.len().saturating_sub(1)));
                figures.push(Figure {
                    way: way.name(),
                    clients: *clients,
                    file_us: [median.0, at(0).0, last.0],
                    processor_us: median.1,
                });
            }
        }
        drop(busy);
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &figures)?;
            writeln!(out)?;
            return Ok(());
        }
        self.print(&figures, out)
    }

    fn print(&self, figures: &[Figure], out: &mut dyn Write) -> Result<()> {
        let mut title =
            String::from("Microseconds a file: median (least..most), and processor time");
        let processors = allowed()?.len();
        write!(
            title,
            "; {} files of {} bytes, {processors} processors",
            self.files, self.bytes
        )?;
        if self.busy > 0 {
            write!(title, ", {} busy threads", self.busy)?;
        }
        // The figures are in groups of all ways, one for each number of clients.
        let ways = figures.len() / self.clients.len().max(1);
        let names = figures.iter().map(|figure| figure.way.as_str()).take(ways);
        let cell = |name: &str, clients: usize| {
            let found = figures
                .iter()
                .find(|f| f.way == name && f.clients == clients);
            found.map_or(String::new(), |figure| {
                let [median, least, most] = figure.file_us;
                format!(
                    "{median:.1} ({least:.1}..{most:.1}) {:.1}",
                    figure.processor_us
                )
            })
        };
        let row = |name: &str| {
            let cells = self.clients.iter().map(|clients| cell(name, *clients));
            line(&[name], cells)
        };
        let heads = self
            .clients
            .iter()
            .map(|clients| format!("{clients} clients"));
        let table = Table::new(title, &["Way"], heads, names.map(row).collect());
        Ok(table.print(Form::Text, out)?)
    }

    /// Microseconds by the clock, and of processors, for each file.
    fn measure(&self, way: &Way, clients: usize) -> Result<(f64, f64)> {
        match way {
            Way::System(dir) => {
                let dir = tempfile::tempdir_in(dir)?;
                let mut started = Vec::new();
                for number in 0..clients {
                    let own = dir.path().join(number.to_string());
                    std::fs::create_dir(&own)?;
                    started.push(self.start(clients, &["--dir".as_ref(), own.as_ref()])?);
                }
                self.race(started)
            }
            Way::Channel { engine, at_close } => {
                let (ends, sockets) = self.start_channels(clients, *at_close)?;
                let place = self.at.clone().unwrap_or_else(std::env::temp_dir);
                let dir = tempfile::tempdir_in(place)?;
                let mut handler: Box<dyn Handler + Send> = if *engine {
                    let volume = answer::Engine::make(&dir.path().join("volume"), clients)?;
                    Box::new(volume)
                } else {
                    Box::new(answer::Nothing)
                };
                let mut server = Server::new()?;
                let joiner = server.joiner();
                for end in ends {
                    joiner.join(end);
                }
                thread::scope(|scope| {
                    let serving = scope.spawn(move || server.run(&mut *handler));
                    let raced = self.race(sockets);
                    joiner.end();
                    serving.join().map_err(|_| "the server has panicked")??;
                    raced
                })
            }
        }
    }

    /// Starts clients with channels; returns the ends of the daemon.
    fn start_channels(
        &self,
        clients: usize,
        at_close: bool,
    ) -> Result<(Vec<Arc<cairnfs_channel::DaemonEnd>>, Vec<Started>)> {
        let mut ends = Vec::new();
        let mut started = Vec::new();
        for _ in 0..clients {
            let made = channel()?;
            let client = if at_close {
                self.start(clients, &["--at-close".as_ref()])?
            } else {
                self.start(clients, &[])?
            };
            let fds = [made.memory.as_fd(), made.doorbell.as_fd()];
            descriptors::send(&client.socket, b"c", &fds)?;
            ends.push(made.daemon);
            started.push(client);
        }
        Ok((ends, started))
    }

    fn start(&self, clients: usize, args: &[&std::ffi::OsStr]) -> Result<Started> {
        let (ours, theirs) = UnixStream::pair()?;
        let files = (self.files / clients.max(1)).to_string();
        let child = Command::new(std::env::current_exe()?)
            .args([
                "channel-client",
                "--files",
                &files,
                "--bytes",
                &self.bytes.to_string(),
            ])
            .args(args)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Started {
            child,
            socket: ours,
        })
    }

    /// Lets all clients begin when all are ready, and waits for the last.
    fn race(&self, mut clients: Vec<Started>) -> Result<(f64, f64)> {
        for client in &mut clients {
            client.socket.read_exact(&mut [0])?;
        }
        let (begin, before) = (Instant::now(), process_cpu());
        for client in &mut clients {
            client.socket.write_all(b"g")?;
        }
        let mut processors = Duration::ZERO;
        for client in &mut clients {
            let out = client
                .child
                .stdout
                .as_mut()
                .ok_or("a client without output")?;
            let mut line = String::new();
            BufReader::new(out).read_line(&mut line)?;
            let nanos = line.trim().parse().map_err(|_| "a client has failed")?;
            processors += Duration::from_nanos(nanos);
        }
        let (took, own) = (begin.elapsed(), process_cpu() - before);
        for client in &mut clients {
            client.child.wait()?;
        }
        let files = (self.files / clients.len().max(1) * clients.len()).max(1) as f64;
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / files;
        Ok((micros(took), micros(own + processors)))
    }
}

/// A client process, and the socket that is its standard input.
struct Started {
    child: Child,
    socket: UnixStream,
}

impl Drop for Started {
    fn drop(&mut self) {
        // One that has ended was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Threads that compute until this is dropped.
struct Busy {
    ends: std::sync::Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Busy {
    fn start(count: usize) -> Result<Self> {
        let ends = std::sync::Arc::new(AtomicBool::new(false));
        let compute = |ends: std::sync::Arc<AtomicBool>| {
            let mut sum = 1u64;
            while !ends.load(Ordering::Relaxed) {
                sum = std::hint::black_box(sum.wrapping_mul(3));
            }
        };
        let threads = (0..count).map(|_| {
            let ends = ends.clone();
            thread::spawn(move || compute(ends))
        });
        Ok(Self {
            threads: threads.collect(),
            ends,
        })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}

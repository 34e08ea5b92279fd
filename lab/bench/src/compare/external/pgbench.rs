//! PostgreSQL's pgbench on a cluster with default settings: its TPC-B-like transactions by four
//! clients.
//!
//! The server refuses to run as root, so it and its programs run as the user nobody. Its socket and
//! its log are beside the inputs.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::super::stats::{cpu_of_children, cpu_with_children};
use super::super::undo::Undo;
use super::{External, Site};
use crate::Result;
use crate::phase::{Meter, Outcome};
use crate::target::at;

/// The load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pgbench {
    /// Run time in seconds.
    pub seconds: u32,
}

/// User and group nobody.
const USER: u32 = 65_534;

/// Size of the database, 15 MiB each.
const SCALE: u32 = 4;

const CLIENTS: u32 = 4;

/// Maximum time for the server to start, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two checks whether the server is ready.
const PAUSE: Duration = Duration::from_millis(10);

/// Where the packages of Debian and Ubuntu put the programs, by version.
const INSTALLED: &str = "/usr/lib/postgresql";

const PROGRAMS: [&str; 5] = ["initdb", "postgres", "pg_isready", "psql", "pgbench"];

/// Returns the directory of the programs.
///
/// # Errors
/// They are not installed; the text names their package.
pub fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir(INSTALLED).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let newest_first = found.into_iter().rev().map(|(_, dir)| dir);
    newest_first
        .chain(std::env::split_paths(&path))
        .find(|dir| PROGRAMS.iter().all(|name| dir.join(name).is_file()))
        .ok_or_else(|| "pgbench is missing: install the package postgresql".into())
}

/// A cluster in the measured file system.
struct Cluster<'a> {
    programs: PathBuf,
    data: PathBuf,
    /// Directory of the socket and the log.
    beside: PathBuf,
    undo: &'a Undo,
}

impl<'a> Cluster<'a> {
    fn new(site: &Site<'a>) -> Result<Self> {
        let cluster = Self {
            programs: programs()?,
            data: site.path("data"),
            beside: site.inputs.path("postgresql"),
            undo: site.inputs.undo,
        };
        fs::create_dir_all(&cluster.beside)?;
        fs::create_dir(&cluster.data)?;
        for dir in [&cluster.beside, &cluster.data] {
            chown(dir, Some(USER), Some(USER)).map_err(|e| at(dir.display(), e))?;
        }
        let data = cluster.data.to_string_lossy();
        let words = [
            "--no-locale",
            "-E",
            "UTF8",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-D",
            &data,
        ];
        cluster.run("initdb", &words)?;
        Ok(cluster)
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = super::command(self.programs.join(program), words);
        command
            .uid(USER)
            .gid(USER)
            .current_dir("/")
            .env("PGHOST", &self.beside)
            .env("PGUSER", "postgres")
            .env("HOME", &self.beside)
            .env("LC_ALL", "C");
        command
    }

    fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        self.undo.run(&mut self.command(program, words))
    }

    /// Starts the server, and waits until it answers.
    fn serve(&self) -> Result<Server<'a>> {
        let log = self.beside.join("log");
        let (data, beside) = (self.data.to_string_lossy(), self.beside.to_string_lossy());
        let words = ["-D", &data, "-k", &beside, "-c", "listen_addresses="];
        let mut command = self.command("postgres", &words);
        let out = File::create(&log).map_err(|e| at(log.display(), e))?;
        command.stdout(out.try_clone()?).stderr(out);
        let mut server = Server {
            process: Some(self.undo.start(&mut command)?),
            undo: self.undo,
        };
        let start = Instant::now();
        while self.run("pg_isready", &["-q"]).is_err() {
            if server.has_ended() || start.elapsed() > PATIENCE {
                return Err(not_started(&log));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }
}

fn not_started(log: &Path) -> crate::Failure {
    let said = fs::read_to_string(log).unwrap_or_default();
    format!("PostgreSQL does not start: {}", said.trim()).into()
}

/// A running server. When dropped, it ends without a checkpoint.
struct Server<'a> {
    process: Option<Child>,
    undo: &'a Undo,
}

impl Server<'_> {
    fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    fn has_ended(&mut self) -> bool {
        let undo = self.undo;
        let ended = |child: &mut Child| undo.wait(child, Some(Duration::ZERO), |_| {}).is_ok();
        let ended = self.process.as_mut().is_none_or(ended);
        if ended {
            self.process = None;
        }
        ended
    }

    /// Stops it in an orderly way.
    fn stop(mut self) -> Result<()> {
        self.end(Signal::INT)
    }

    /// Sends a signal that ends it, and waits for its end.
    fn end(&mut self, signal: Signal) -> Result<()> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        kill_process(Pid::from_child(&process), signal)?;
        let ended = self.undo.wait(&mut process, Some(PATIENCE), |_| {});
        if ended.is_err() {
            self.undo.kill(&mut process);
        }
        match ended? {
            status if status.success() => Ok(()),
            status => Err(format!("PostgreSQL failed ({status})").into()),
        }
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // Only after a failure, which is returned; that of an immediate shutdown is expected.
        let _ = self.end(Signal::QUIT);
    }
}

impl External for Pgbench {
    fn title(&self) -> String {
        format!(
            "pgbench, scale {SCALE}, {CLIENTS} clients, {} s",
            self.seconds
        )
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("pgbench", "transactions")
    }

    fn measure(&self, site: &Site<'_>, meter: &mut Meter<'_>) -> Result<()> {
        let cluster = Cluster::new(site)?;
        let server = cluster.serve()?;
        let (scale, clients, seconds) = (
            SCALE.to_string(),
            CLIENTS.to_string(),
            self.seconds.to_string(),
        );
        cluster.run("pgbench", &["-i", "-q", "-s", &scale, "postgres"])?;
        cluster.run("psql", &["-q", "-c", "CHECKPOINT", "postgres"])?;
        meter.settle()?;
        meter.program("pgbench", || {
            let before = cpu_of_children() + server.id().map(cpu_with_children).unwrap_or_default();
            let words = ["-n", "-c", &clients, "-j", "2", "-T", &seconds, "postgres"];
            let printed = cluster.run("pgbench", &words)?;
            let outcome = parse(&printed);
            let outcome = outcome.ok_or_else(|| format!("pgbench printed no rate: {printed}"))?;
            // The time of the server's processes is known when they have ended.
            server.stop()?;
            Ok(Outcome {
                cpu: cpu_of_children().saturating_sub(before),
                ..outcome
            })
        })?;
        meter.sync()
    }
}

/// Parses `number of transactions actually processed: 1234` and the last `tps = 123.4 (...)`, which
/// is without the time to connect.
fn parse(printed: &str) -> Option<Outcome> {
    let after = |prefix: &str| {
        let mut lines = printed.lines().rev();
        lines.find_map(|line| line.strip_prefix(prefix)?.split([' ', '/']).next())
    };
    let operations: u64 = after("number of transactions actually processed: ")?
        .parse()
        .ok()?;
    let rate: f64 = after("tps = ")?.parse().ok()?;
    Some(Outcome {
        operations,
        time: Duration::try_from_secs_f64(operations as f64 / rate).ok()?,
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_and_rate_are_parsed() {
        let printed = "transaction type: <builtin: TPC-B (sort of)>\n\
                       number of transactions actually processed: 1500\n\
                       number of failed transactions: 0 (0.000%)\n\
                       latency average = 2.6 ms\n\
                       tps = 150.000000 (including connections establishing)\n\
                       tps = 151.500000 (excluding connections establishing)\n";
        let found = parse(printed).unwrap();
        assert_eq!(found.operations, 1500);
        let rate = found.operations as f64 / found.time.as_secs_f64();
        assert!((rate - 151.5).abs() < 0.01, "{rate}");
        let limited = "number of transactions actually processed: 40/40\ntps = 20.0 (without)\n";
        assert_eq!(parse(limited).unwrap().time, Duration::from_secs(2));
        assert!(parse("number of transactions actually processed: 0\ntps = 0.0").is_none());
        assert!(parse("connection failed").is_none());
    }

    #[test]
    fn server_that_has_ended_is_noticed() {
        let undo = Undo::default();
        let mut command = Command::new("false");
        let mut server = Server {
            process: Some(undo.start(&mut command).unwrap()),
            undo: &undo,
        };
        while !server.has_ended() {
            std::thread::yield_now();
        }
        assert_eq!(server.id(), None);
        assert!(server.stop().is_ok());
    }
}

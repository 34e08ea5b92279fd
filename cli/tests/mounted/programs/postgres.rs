//! PostgreSQL under pgbench, with kills of the postmaster and of the daemon: all transactions
//! that were reported as committed exist, and the balances are consistent.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal,
    waitid,
};

use crate::place::{Place, able, arg, succeed};
use crate::programs::{FOR_ALL, open_to_all};

/// The server does not run as root.
const USER: u32 = 65534;

/// Interval of checks whether the server accepts connections.
const POLL: Duration = Duration::from_millis(20);

/// A postmaster, a child of this process.
struct Server {
    postmaster: Child,
}

impl Server {
    /// Kills the postmaster and its processes, and waits until they have ended.
    fn kill(mut self) {
        // A stopped postmaster starts no further processes.
        let pid = Pid::from_child(&self.postmaster);
        kill_process(pid, Signal::STOP).unwrap();
        let state = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), state).unwrap();
        let pid = pid.as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let children = children
            .split_whitespace()
            .map(|pid| Pid::from_raw(pid.parse().unwrap()));
        let open = |pid: Option<Pid>| pidfd_open(pid?, PidfdFlags::empty()).ok();
        let children: Vec<OwnedFd> = children.filter_map(open).collect();
        self.postmaster.kill().unwrap();
        self.postmaster.wait().unwrap();
        for child in &children {
            // Fails if the process has already ended, which is harmless.
            let _ = pidfd_send_signal(child, Signal::KILL);
            let mut fds = [PollFd::new(child, PollFlags::IN)];
            while poll(&mut fds, None).is_err() {}
        }
    }
}

/// A command for a program of PostgreSQL, run as the server's user.
fn command(programs: &Path, place: &Place, program: &str) -> Command {
    let (id, socket) = (USER.to_string(), place.beside("socket"));
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        &id,
        "--regid",
        &id,
        "--clear-groups",
        arg(&programs.join(program)),
    ]);
    command
        .current_dir(&socket)
        .env("PGHOST", &socket)
        .env("PGUSER", "postgres")
        .env("HOME", &socket);
    command
}

/// A database cluster on a mount.
struct Cluster {
    place: Place,
    options: String,
    programs: PathBuf,
    /// The directory of a mount in which it is.
    dir: PathBuf,
    server: Option<Server>,
}

impl Cluster {
    fn new(programs: PathBuf, write: &str) -> Self {
        let options = format!("{FOR_ALL},{write}");
        let place = Place::mounted("4G", &options);
        open_to_all(&place);
        for dir in [place.at("data"), place.beside("socket")] {
            fs::create_dir(&dir).unwrap();
            chown(&dir, Some(USER), Some(USER)).unwrap();
        }
        let cluster = Self {
            dir: place.dir(),
            place,
            options,
            programs,
            server: None,
        };
        let data = cluster.data();
        succeed(cluster.command("initdb").args([
            "-k",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-D",
            arg(&data),
        ]));
        cluster
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn command(&self, program: &str) -> Command {
        command(&self.programs, &self.place, program)
    }

    fn start(&mut self) {
        let log = self.place.beside("log");
        let out = File::create(&log).unwrap();
        let mut start = self.command("postgres");
        start.args([
            "-D",
            arg(&self.data()),
            "-k",
            arg(&self.place.beside("socket")),
        ]);
        start.args(["-c", "listen_addresses="]).stdin(Stdio::null());
        start.stdout(out.try_clone().unwrap()).stderr(out);
        let postmaster = start.spawn().unwrap();
        let server = self.server.insert(Server { postmaster });
        loop {
            let ended = server.postmaster.try_wait().unwrap();
            assert!(ended.is_none(), "{}", fs::read_to_string(log).unwrap());
            let mut ready = command(&self.programs, &self.place, "pg_isready");
            if ready.arg("-q").status().unwrap().success() {
                break;
            }
            sleep(POLL);
        }
    }

    fn stop(&mut self) {
        let mut server = self.server.take().unwrap();
        let pid = Pid::from_child(&server.postmaster);
        kill_process(pid, Signal::INT).unwrap();
        assert!(server.postmaster.wait().unwrap().success());
    }

    fn ask(&self, sql: &str) -> String {
        succeed(self.command("psql").args(["-qtAX", "-c", sql]))
            .trim()
            .to_owned()
    }

    fn count(&self) -> u64 {
        self.ask("SELECT count(*) FROM pgbench_history")
            .parse()
            .unwrap()
    }

    /// Starts endless transactions of four clients. Returns when `count` are committed.
    fn load(&self, count: u64) -> Child {
        let end = self.count() + count;
        let mut load = self.command("pgbench");
        load.args(["-n", "-c4", "-j2", "-T100000"])
            .stdin(Stdio::null());
        let mut load = load
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while self.count() < end {
            let ended = load.try_wait().unwrap();
            assert!(ended.is_none(), "pgbench ended: {ended:?}");
        }
        load
    }

    /// Kills the server during transactions, or the daemon below it. All committed ones must
    /// exist afterwards.
    fn crash(&mut self, count: u64, daemon: bool) {
        let before = self.count();
        let load = self.load(count);
        if daemon {
            self.place.kill();
        }
        self.server.take().unwrap().kill();
        let out = load.wait_with_output().unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        let reported = said
            .lines()
            .find_map(|line| line.strip_prefix("number of transactions actually processed: "));
        let reported: u64 = reported
            .unwrap()
            .split('/')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        if daemon {
            self.place.mount(&self.options);
        }
        self.start();
        let kept = self.count() - before;
        println!("{reported} transactions were reported as committed, {kept} exist");
        assert!(
            reported >= count && kept >= reported && kept <= reported + 4,
            "{kept} of {reported}"
        );
        self.balanced();
    }

    fn check_indexes(&self) {
        let words = ["--install-missing", "--heapallindexed", "postgres"];
        succeed(self.command("pg_amcheck").args(words));
    }

    /// Checks the checksums of all pages; the server does not run.
    fn check_pages(&self) {
        let data = self.data();
        let words = ["--check", "-D", arg(&data)];
        succeed(self.command("pg_checksums").args(words));
    }

    fn balanced(&self) {
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
            (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history)";
        let sums = self.ask(sums);
        let mut parts = sums.split('|');
        let first = parts.next().unwrap();
        assert!(parts.all(|part| part == first), "{sums}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
    }
}

/// The directory of the newest PostgreSQL installed as on Debian and Ubuntu, where its server is
/// not in `PATH`.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions
        .map(|entry| entry.unwrap().path().join("bin"))
        .collect();
    found.sort();
    found.pop()
}

/// A new cluster, where PostgreSQL is installed.
fn begun(write: &str) -> Option<Cluster> {
    let programs = programs().unwrap_or_default();
    let needed = ["initdb", "pgbench", "pg_amcheck"].map(|name| programs.join(name));
    let needed = needed.each_ref().map(arg);
    able(&[&needed[..], &["setpriv"]].concat()).then(|| Cluster::new(programs, write))
}

fn postgres(write: &str, scale: &str, count: u64, rounds: usize) {
    let Some(mut cluster) = begun(write) else {
        return;
    };
    cluster.start();
    succeed(cluster.command("pgbench").args(["-i", "-q", "-s", scale]));
    for _ in 0..rounds {
        cluster.crash(count, false);
        cluster.crash(count, true);
    }
    cluster.check_indexes();
    cluster.stop();
    cluster.place.remount(&cluster.options);
    cluster.check_pages();
    cluster.start();
    cluster.balanced();
    cluster.stop();
    cluster.place.umount();
    cluster.place.check();
}

#[test]
#[ignore = "deep: programs of others"]
fn postgres_recovers_from_kills() {
    postgres("write=through", "1", 200, 1);
}

/// A database is filled in a fork, beside the one that it was forked from, and published.
#[test]
#[ignore = "deep: programs of others"]
fn postgres_in_a_fork_is_published() {
    for write in ["write=through", "write=back"] {
        let Some(mut cluster) = begun(write) else {
            return;
        };
        cluster.start();
        cluster
            .ask("CREATE TABLE before(n int); INSERT INTO before SELECT generate_series(1, 1000)");
        // What a fork has of a server that runs is what a crash of it would leave.
        cluster.place.ok(&["branch", "m", "fork"]);
        cluster
            .place
            .mount_beside(&format!("branch=fork,{FOR_ALL}"), "f");
        cluster.stop();
        cluster.dir = cluster.place.beside("f");
        fs::remove_file(cluster.data().join("postmaster.pid")).unwrap();
        cluster.start();
        succeed(cluster.command("pgbench").args(["-i", "-q", "-s", "1"]));
        let load = ["-n", "-c4", "-j2", "-t100"];
        succeed(cluster.command("pgbench").args(load));
        cluster.stop();
        cluster.place.umount_beside("f");
        cluster.place.ok(&["publish", "m", "fork", "--theirs", "/"]);
        cluster.dir = cluster.place.dir();
        cluster.check_pages();
        cluster.start();
        assert_eq!(cluster.count(), 400);
        assert_eq!(
            cluster.ask("SELECT count(*), sum(n) FROM before"),
            "1000|500500"
        );
        cluster.balanced();
        cluster.check_indexes();
        cluster.stop();
        let options = cluster.options.clone();
        cluster.place.remount(&options);
        cluster.check_pages();
        cluster.place.umount();
        cluster.place.check();
    }
}

/// A server that has gone on beside a restore wrote into the new state by name; the restore after its end
/// brings what was kept, with all that is committed from then on.
#[test]
#[ignore = "deep: programs of others"]
fn postgres_that_has_ended_is_restored() {
    for write in ["write=through", "write=back"] {
        let Some(mut cluster) = begun(write) else {
            return;
        };
        cluster.start();
        cluster.ask("CREATE TABLE t(n int); INSERT INTO t SELECT generate_series(1, 1000)");
        cluster.place.ok(&["snapshot", "m", "kept"]);
        cluster.ask("INSERT INTO t SELECT generate_series(1001, 3000)");
        cluster.place.ok(&["restore", "m", "kept"]);
        cluster.server.take().unwrap().kill();
        cluster.place.ok(&["restore", "m", "kept"]);
        fs::remove_file(cluster.data().join("postmaster.pid")).unwrap();
        cluster.start();
        let rows = "SELECT count(*), sum(n) FROM t";
        assert_eq!(cluster.ask(rows), "1000|500500");
        cluster.ask("INSERT INTO t VALUES (9500)");
        cluster.check_indexes();
        cluster.stop();
        cluster.check_pages();
        cluster.start();
        assert_eq!(cluster.ask(rows), "1001|510000");
        cluster.stop();
        cluster.place.umount();
        cluster.place.check();
    }
}

#[test]
#[ignore = "deep: takes minutes"]
fn postgres_recovers_from_many_kills() {
    for write in ["write=through", "write=back"] {
        postgres(write, "10", 2000, 5);
    }
}

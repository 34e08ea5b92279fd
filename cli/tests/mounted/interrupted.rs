//! `cairnfs try` that a signal interrupts, that is killed, or whose daemon is.
//!
//! `CAIRNFS_TRY_KILLS` is the number of times that it is killed while it ends (6), `CAIRNFS_TRY_SEED`
//! varies the moments.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use cairnfs_tier::size_from;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::place::{CAIRNFS, Place, Random, able, arg, nap};
use crate::tried::{Gate, attempt, begun, code, forks, mounted_on, text};
use crate::verbs::names;

/// `cairnfs try` on a terminal of its own.
struct Terminal {
    keys: File,
    child: Child,
    shown: String,
}

impl Terminal {
    /// Runs `cairnfs try` with words in the mount.
    fn run(place: &Place, words: &[&str]) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let path = std::ffi::OsStr::from_bytes(name.as_bytes());
        let screen = File::options().read(true).write(true).open(path).unwrap();
        let screen = || OwnedFd::from(screen.try_clone().unwrap());
        let child = with_signals(Command::new("env"))
            .args(["setsid", "--ctty", CAIRNFS, "try"])
            .args(words)
            .env("XDG_RUNTIME_DIR", place.runtime())
            .current_dir(place.dir())
            .stdin(screen())
            .stdout(screen())
            .stderr(screen())
            .spawn()
            .unwrap();
        Self {
            keys: File::from(keys),
            child,
            shown: String::new(),
        }
    }

    /// Reads the screen until it has shown the text; `None`: until it ends.
    fn read_until(&mut self, part: Option<&str>) {
        let mut buffer = [0; 4096];
        while part.is_none_or(|part| !self.shown.contains(part)) {
            // An error is the end: nobody has the terminal open any more.
            match self.keys.read(&mut buffer) {
                Ok(read @ 1..) => self.shown.push_str(&text(&buffer[..read])),
                _ => break,
            }
        }
        assert!(
            part.is_none_or(|part| self.shown.contains(part)),
            "{}",
            self.shown
        );
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit status, and what was shown.
    fn end(mut self) -> (ExitStatus, String) {
        self.read_until(None);
        (self.child.wait().unwrap(), self.shown)
    }
}

/// Waits until a process has become this program, and handles a signal. Before that it may be ignored,
/// and lost.
fn wait_for_handler(child: &Child, signal: Signal) {
    let process = PathBuf::from(format!("/proc/{}", child.id()));
    let program = Path::new(CAIRNFS).canonicalize().unwrap();
    let handles = || {
        let exe = fs::read_link(process.join("exe")).ok()?;
        let status = fs::read_to_string(process.join("status")).ok()?;
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))?;
        let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
        Some(exe == program && mask & (1 << (signal.as_raw() - 1)) != 0)
    };
    while handles() != Some(true) {
        thread::yield_now();
    }
}

/// Words of env(1) that undo what a background process inherits: signals that are ignored.
fn with_signals(mut env: Command) -> Command {
    env.arg("--default-signal=HUP,INT,QUIT,TERM");
    env
}

#[test]
fn signal_instead_of_an_answer_keeps_the_fork() {
    if !able(&["setsid"]) {
        return;
    }
    let place = begun();
    let question = Some("[p/k/d] ");
    let keys = [(b"k\n", "key", 0), (b"\x03\n", "int", 130)];
    for (keys, name, code) in keys {
        let mut terminal = Terminal::run(&place, &["--name", name, "sh", "-c", "echo x > new"]);
        terminal.read_until(question);
        std::io::Write::write_all(&mut terminal.keys, keys).unwrap();
        let (status, shown) = terminal.end();
        assert_eq!(status.code(), Some(code), "{shown}");
    }
    for (signal, name) in [(Signal::TERM, "term"), (Signal::HUP, "hup")] {
        let mut terminal = Terminal::run(&place, &["--name", name, "sh", "-c", "echo x > new"]);
        terminal.read_until(question);
        terminal.signal(signal);
        let (status, shown) = terminal.end();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{shown}");
        for part in [
            format!("the fork is kept as the branch {name}"),
            format!("cairnfs publish {} {name} --onto main", arg(&place.dir())),
            format!("cairnfs drop {} {name}", arg(&place.dir())),
        ] {
            assert!(shown.contains(&part), "{part}: {shown}");
        }
    }
    // The terminal goes away, and with it whoever could answer.
    let mut terminal = Terminal::run(&place, &["--name", "gone", "sh", "-c", "echo x > new"]);
    terminal.read_until(question);
    drop(terminal.keys);
    let status = terminal.child.wait().unwrap();
    assert_eq!(status.code(), Some(128 + Signal::HUP.as_raw()));
    assert_eq!(names(&place), ["gone", "hup", "int", "key", "main", "term"]);
    assert!(!place.at("new").exists());
    place.finish();
}

#[test]
fn signals_while_the_program_runs_are_the_programs() {
    if !able(&["setsid", "mkfifo"]) {
        return;
    }
    let place = begun();
    let gate = Gate::new(&place, "runs");
    // It is interrupted twice, and asked about as always. No other program waits in its place, so no
    // signal is lost.
    let script = "n=0; trap 'n=$((n + 1)); echo \"<$n>\"; test $n = 1 || exit 3' INT; echo x > new; \
                  while :; do read line || :; done";
    let mut terminal = Terminal::run(&place, &["--name", "twice", "sh", "-c", script]);
    let fork_has = |name: &str| {
        let dir = mounted_on(&place, "twice");
        dir.is_some_and(|dir| dir.join(name).exists())
    };
    while !fork_has("new") {
        nap(20);
    }
    for shown in ["<1>", "<2>"] {
        std::io::Write::write_all(&mut terminal.keys, b"\x03").unwrap();
        terminal.read_until(Some(shown));
    }
    terminal.read_until(Some("[p/k/d] "));
    std::io::Write::write_all(&mut terminal.keys, b"d\n").unwrap();
    let (status, shown) = terminal.end();
    assert_eq!(status.code(), Some(3), "{shown}");
    assert!(
        !shown.contains("interrupted") && !shown.contains("in use"),
        "{shown}"
    );
    // One that is for `try`, too: it is not asked, and what was done is kept.
    let script = format!("echo x > new; {}", gate.script());
    for (signal, name) in [(Signal::TERM, "term"), (Signal::HUP, "hup")] {
        let mut terminal = Terminal::run(&place, &["--name", name, "sh", "-c", &script]);
        gate.wait();
        terminal.signal(signal);
        terminal.read_until(Some("cairnfs publish"));
        let (status, shown) = terminal.end();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{shown}");
    }
    assert_eq!(names(&place), ["hup", "main", "term"]);
    place.finish();
}

/// The exit code of a process, as a shell has it.
fn shell_code(status: ExitStatus) -> i32 {
    let signalled = || status.signal().map(|signal| signal + 128);
    status.code().or_else(signalled).unwrap()
}

/// What an interrupted command says of a daemon that did not answer in time.
const LATE: &str = "the daemon has not answered";

#[test]
fn signal_before_the_program_leaves_nothing() {
    if !able(&[]) {
        return;
    }
    let place = begun();
    let flag = place.beside("was-run");
    let script = format!("echo > {}; exec sleep 1000", arg(&flag));
    let mut before = 0;
    for round in 0..12 {
        let signal = [Signal::TERM, Signal::HUP][round % 2];
        let child = with_signals(Command::new("env"))
            .args([CAIRNFS, "try", "--name", "early", "sh", "-c", &script])
            .env("XDG_RUNTIME_DIR", place.runtime())
            .current_dir(place.dir())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Each round sends it at another event on the way to the program.
        match round / 2 % 3 {
            0 => wait_for_handler(&child, signal),
            1 => while !names(&place).contains(&"early".to_owned()) {},
            _ => while mounted_on(&place, "early").is_none() {},
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(shell_code(output.status), 128 + signal.as_raw(), "{said}");
        if !flag.exists() {
            before += 1;
            // Or the signal came between its beginning and its first command.
            let texts = ["was not run", "Nothing was changed", LATE];
            assert!(texts.iter().any(|text| said.contains(text)), "{said}");
        }
        let _ = fs::remove_file(&flag);
        // A command does not wait for a daemon that has no processor; the daemon ends the rest.
        while said.contains(LATE) && names(&place) != ["main"] {}
        assert_eq!(names(&place), ["main"], "{said}");
        assert_eq!(mounted_on(&place, "early"), None);
    }
    assert!(before > 0);
    place.finish();
}

#[test]
fn killed_daemon_is_told_and_nothing_is_published() {
    if !able(&[]) {
        return;
    }
    for (how, words) in [
        ("inside", &["--yes"][..]),
        ("beside", &["--beside", "--yes"]),
    ] {
        let mut place = begun();
        place.ok(&["sync", "m"]);
        let script = format!("echo x > new; kill -9 {}; exit 0", place.daemon_pid());
        let words = [words, &["--name", how, "sh", "-c", &script]].concat();
        let output = attempt(&place, "d", &words);
        let said = text(&output.stderr);
        assert_eq!(code(&output), 125, "{said}");
        for part in [
            &format!("the fork {how} is kept: the daemon that served it has ended"),
            "is lost",
            &format!("cairnfs publish {} {how} --onto main", arg(&place.volume())),
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(mounted_on(&place, how), None);
        place.wait_for_end();
        place.ok(&["umount", "m"]);
        assert_eq!(names(&place), [how, "main"]);
        place.check();
        place.mount("");
        assert!(place.at("d/f").exists() && !place.at("d/new").exists());
        place.finish();
    }
}

/// Waits until the daemon performs no command. One that has begun goes on without its caller.
fn settle(place: &Place) {
    // Calls are accepted in their order: when this one is answered, each earlier one has a thread.
    names(place);
    while place.has_thread("cairnfs-call") {
        nap(20);
    }
}

#[test]
fn killed_try_has_published_or_not() {
    if !able(&["mkfifo"]) {
        return;
    }
    const FILES: usize = 60;
    let rounds = size_from("CAIRNFS_TRY_KILLS", 3, 6);
    let seed = size_from("CAIRNFS_TRY_SEED", 0x0074_7279, 0x0074_7279);
    let mut random = Random(seed | 1);
    let place = begun();
    let gate = Gate::new(&place, "ends");
    let (mut published, mut last) = (0, String::new());
    for round in 0..rounds {
        let name = format!("try-{round}");
        let script = format!(
            "for n in $(seq {FILES}); do echo {name} > $n; done; {}",
            gate.script()
        );
        let mut command = place.command(&["try", "--yes", "-q", "--name", &name]);
        command.current_dir(place.dir()).args(["sh", "-c", &script]);
        let mut child = command.spawn().unwrap();
        gate.wait();
        gate.open();
        // A random moment of its end, which takes some 60 ms.
        thread::sleep(Duration::from_micros(random.below(90_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        while mounted_on(&place, &name).is_some() {
            nap(5);
        }
        settle(&place);
        let is_kept = names(&place).contains(&name);
        if !is_kept {
            published += 1;
            last = format!("{name}\n");
        }
        let read = |n: usize| fs::read_to_string(place.at(n.to_string())).unwrap_or_default();
        let all: Vec<_> = (1..=FILES).map(read).collect();
        assert!(
            all.iter().all(|text| *text == last),
            "{name} kept {is_kept}: {all:?}"
        );
    }
    println!("{published} of {rounds} were published; seed {seed}");
    assert_eq!(forks(&place).len() as u64, rounds - published);
    place.finish();
}

//! The load while the daemon is killed. Each worker records what must be durable, and verifies
//! it.
//!
//! A worker records a guarantee only after the call that gives it has succeeded, and never
//! expects more than the contract guarantees.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;

use crate::place::{Random, pattern};

/// A worker.
pub trait Load: Send {
    /// Does one step. Fails once the daemon is gone.
    fn step(&mut self) -> io::Result<()>;
    /// Opens its files again, and takes for written what is in them: a publish or restore has replaced
    /// what it had open.
    fn reopen(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Closes the files that it has open, before an unmount. No step follows.
    fn close(&mut self) {}
    /// Asserts that everything recorded as durable exists.
    fn verify(&self, what: &str);
}

/// Runs `work` while each of the workers does steps, which must succeed unless `killed` was set before,
/// or what it has open was replaced.
pub fn beside<R>(loads: &mut [Box<dyn Load>], killed: &AtomicBool, work: impl FnOnce() -> R) -> R {
    /// Ends the workers also if `work` panics.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&ended);
        let ended = &ended;
        for load in loads {
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let done = match load.step() {
                        Err(error) if Errno::from_io_error(&error) == Some(Errno::STALE) => {
                            load.reopen()
                        }
                        done => done,
                    };
                    if let Err(error) = done {
                        assert!(killed.load(Ordering::Relaxed), "refused: {error}");
                        break;
                    }
                }
            });
        }
        work()
    })
}

/// Closes what workers have open.
pub fn close(loads: &mut [Box<dyn Load>]) {
    loads.iter_mut().for_each(|load| load.close());
}

/// One worker of each kind, in separate directories below `dir`.
pub fn workers(dir: &Path, random: &mut Random) -> Vec<Box<dyn Load>> {
    let mut place = |name: &str| {
        let dir = dir.join(name);
        fs::create_dir(&dir).unwrap();
        (dir, Random(random.next() | 1))
    };
    vec![
        Box::new(Append::new(place("append"))),
        Box::new(Replace::new(place("replace"), false)),
        Box::new(Replace::new(place("replace-fsync"), true)),
        Box::new(Storm::new(place("storm"))),
        Box::new(Moves::new(place("moves"))),
        Box::new(Overwrite::new(place("overwrite"))),
        Box::new(Database::new(place("wal"), "wal")),
        // Not "delete": SQLite reports a transaction as committed even if it cannot open the
        // directory that it wants to sync, which happens if the kill comes at that moment.
        Box::new(Database::new(place("rollback"), "truncate")),
    ]
}

/// What takes the place of a file that is closed.
fn closed() -> File {
    File::open("/dev/null").unwrap()
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Appends records to a file, with an fsync after some. A file that is long gives way to a new one, so
/// that a long run does not fill the volume.
struct Append {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    random: Random,
    written: Vec<u8>,
    promised: usize,
}

impl Append {
    const LONG: usize = 32 << 20;

    fn new((dir, random): (PathBuf, Random)) -> Self {
        let (path, file) = Self::begin(&dir, 0).unwrap();
        Self {
            dir,
            path,
            file,
            random,
            written: Vec::new(),
            promised: 0,
        }
    }

    fn begin(dir: &Path, number: u64) -> io::Result<(PathBuf, File)> {
        let path = dir.join(format!("log{number}"));
        let file = File::create_new(&path)?;
        file.sync_all()?;
        Ok((path, file))
    }
}

impl Load for Append {
    fn step(&mut self) -> io::Result<()> {
        if self.written.len() > Self::LONG {
            let new = Self::begin(&self.dir, self.random.next())?;
            let old = mem::replace(&mut self.path, new.0);
            self.file = new.1;
            (self.written, self.promised) = (Vec::new(), 0);
            fs::remove_file(old)?;
        }
        let len = 1 + self.random.below(20_000) as usize;
        let record = pattern(self.random.next(), len);
        self.written.extend_from_slice(&record);
        self.file.write_all(&record)?;
        if self.random.below(3) > 0 {
            self.file.sync_all()?;
            self.promised = self.written.len();
        }
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = File::options().append(true).open(&self.path)?;
        let found = fs::read(&self.path)?;
        assert!(found.len() >= self.promised && self.written.starts_with(&found));
        self.written = found;
        Ok(())
    }

    fn close(&mut self) {
        self.file = closed();
    }

    fn verify(&self, what: &str) {
        let found = fs::read(&self.path).unwrap();
        assert!(
            found.get(..self.promised) == Some(&self.written[..self.promised]),
            "{what}: {} bytes were fsynced, {} are there or some differ",
            self.promised,
            found.len()
        );
        // Records after the last fsync may be missing, but nothing else may be in the file.
        assert!(found.len() <= self.written.len(), "{what}");
        let sound = found
            .iter()
            .zip(&self.written)
            .all(|(f, w)| f == w || *f == 0);
        assert!(sound, "{what}: bytes that no worker wrote");
    }
}

/// Writes a new version of a file under another name and renames it over the file.
struct Replace {
    dir: PathBuf,
    random: Random,
    durable: bool,
    version: u64,
    promised: u64,
}

impl Replace {
    fn new((dir, random): (PathBuf, Random), durable: bool) -> Self {
        let mut new = Self {
            dir,
            random,
            durable: true,
            version: 0,
            promised: 0,
        };
        new.step().unwrap();
        new.durable = durable;
        new
    }

    fn contents(version: u64) -> Vec<u8> {
        let len = [10, 1000, 5000, 70_000, 300_000][version as usize % 5];
        let mut bytes = version.to_le_bytes().to_vec();
        bytes.extend(pattern(version, len));
        bytes
    }
}

impl Load for Replace {
    fn step(&mut self) -> io::Result<()> {
        self.version += 1;
        let tmp = self.dir.join(format!("tmp{}", self.random.below(3)));
        let mut file = File::create(&tmp)?;
        file.write_all(&Self::contents(self.version))?;
        if self.durable {
            file.sync_all()?;
        }
        drop(file);
        fs::rename(&tmp, self.dir.join("f"))?;
        if self.durable {
            sync_dir(&self.dir)?;
            self.promised = self.version;
        }
        Ok(())
    }

    fn verify(&self, what: &str) {
        let found = fs::read(self.dir.join("f")).unwrap();
        let head = found
            .first_chunk()
            .unwrap_or_else(|| panic!("{what}: {} bytes", found.len()));
        let version = u64::from_le_bytes(*head);
        assert!(
            (self.promised.max(1)..=self.version).contains(&version),
            "{what}: version {version} is not from {} to {}",
            self.promised,
            self.version
        );
        assert!(
            found == Self::contents(version),
            "{what}: half of version {version}"
        );
    }
}

/// Creates and unlinks files, some with an fsync of the file or the directory.
struct Storm {
    dir: PathBuf,
    random: Random,
    next: u64,
    there: Vec<u64>,
    removed: Vec<u64>,
}

impl Storm {
    fn new((dir, random): (PathBuf, Random)) -> Self {
        Self {
            dir,
            random,
            next: 0,
            there: Vec::new(),
            removed: Vec::new(),
        }
    }

    fn path(&self, n: u64) -> PathBuf {
        self.dir.join(format!("file-{n}"))
    }
}

impl Load for Storm {
    fn step(&mut self) -> io::Result<()> {
        let mut kept = Vec::new();
        for _ in 0..100 {
            let n = self.next;
            self.next += 1;
            let path = self.path(n);
            let mut file = File::create(&path)?;
            file.write_all(&pattern(n, n as usize % 4000))?;
            match self.random.below(40) {
                0 => {
                    file.sync_all()?;
                    self.there.push(n);
                }
                1 => kept.push(n),
                2 => fs::rename(&path, self.dir.join(format!("moved-{n}")))?,
                _ => fs::remove_file(&path)?,
            }
        }
        let leaving = match self.random.below(2) {
            0 if !self.there.is_empty() => self.there.pop(),
            _ => None,
        };
        if let Some(n) = leaving {
            fs::remove_file(self.path(n))?;
        }
        for &n in &kept {
            File::open(self.path(n))?.sync_all()?;
        }
        sync_dir(&self.dir)?;
        self.removed.extend(leaving);
        self.there.extend(kept);
        Ok(())
    }

    fn verify(&self, what: &str) {
        for &n in &self.there {
            let found = fs::read(self.path(n)).unwrap_or_else(|e| panic!("{what}: file {n}: {e}"));
            assert!(found == pattern(n, n as usize % 4000), "{what}: file {n}");
        }
        for &n in &self.removed {
            assert!(!self.path(n).exists(), "{what}: file {n} is back");
        }
    }
}

/// Moves directories that hold a file back and forth.
struct Moves {
    dir: PathBuf,
    random: Random,
    /// For each directory: whether it was last moved to the right, and whether that is durable.
    right: Vec<(bool, bool)>,
}

impl Moves {
    fn new((dir, random): (PathBuf, Random)) -> Self {
        let count = 20;
        for side in ["left", "right"] {
            fs::create_dir(dir.join(side)).unwrap();
        }
        for n in 0..count {
            let sub = dir.join(format!("left/{n}/deep"));
            fs::create_dir_all(&sub).unwrap();
            fs::write(sub.join("file"), pattern(n, 3000)).unwrap();
            File::open(sub.join("file")).unwrap().sync_all().unwrap();
        }
        Self {
            dir,
            random,
            right: vec![(false, true); count as usize],
        }
    }

    fn path(&self, n: usize, right: bool) -> PathBuf {
        let side = if right { "right" } else { "left" };
        self.dir.join(side).join(n.to_string())
    }
}

impl Load for Moves {
    fn step(&mut self) -> io::Result<()> {
        let n = self.random.below(self.right.len() as u64) as usize;
        let (right, _) = self.right[n];
        self.right[n] = (!right, false);
        fs::rename(self.path(n, right), self.path(n, !right))?;
        match self.random.below(4) {
            0 => File::open(self.path(n, !right).join("deep/file"))?.sync_all()?,
            1 => sync_dir(&self.path(n, !right))?,
            _ => {
                fs::create_dir(self.dir.join("passing"))?;
                return fs::remove_dir(self.dir.join("passing"));
            }
        }
        self.right[n].1 = true;
        Ok(())
    }

    fn verify(&self, what: &str) {
        for (n, &(right, promised)) in self.right.iter().enumerate() {
            let sides = [false, true].map(|side| self.path(n, side).exists());
            assert!(
                sides[0] != sides[1],
                "{what}: directory {n} is at {sides:?}"
            );
            if promised {
                assert!(
                    sides[usize::from(right)],
                    "{what}: directory {n} moved back"
                );
            }
            let file = self.path(n, sides[1]).join("deep/file");
            assert!(
                fs::read(file).unwrap() == pattern(n as u64, 3000),
                "{what}: directory {n}"
            );
        }
    }
}

/// Overwrites blocks of a file in place; each block holds its version in every eighth byte.
struct Overwrite {
    path: PathBuf,
    file: File,
    random: Random,
    written: Vec<u64>,
    promised: Vec<u64>,
}

const BLOCK: usize = 4096;

impl Overwrite {
    fn new((dir, random): (PathBuf, Random)) -> Self {
        let path = dir.join("blocks");
        let blocks = 256;
        fs::write(&path, vec![0; blocks * BLOCK]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        Self {
            path,
            file,
            random,
            written: vec![0; blocks],
            promised: vec![0; blocks],
        }
    }
}

impl Load for Overwrite {
    fn step(&mut self) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        for _ in 0..=self.random.below(30) {
            let n = self.random.below(self.written.len() as u64) as usize;
            self.written[n] += 1;
            let bytes = self.written[n].to_le_bytes().repeat(BLOCK / 8);
            self.file.write_all_at(&bytes, (n * BLOCK) as u64)?;
        }
        self.file.sync_data()?;
        self.promised.clone_from(&self.written);
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = File::options().write(true).open(&self.path)?;
        let found = fs::read(&self.path)?;
        for (n, block) in found.chunks(BLOCK).enumerate() {
            let version = u64::from_le_bytes(*block.first_chunk().unwrap());
            assert!((self.promised[n]..=self.written[n]).contains(&version));
            self.written[n] = version;
        }
        Ok(())
    }

    fn close(&mut self) {
        self.file = closed();
    }

    fn verify(&self, what: &str) {
        let found = fs::read(&self.path).unwrap();
        assert_eq!(found.len(), self.written.len() * BLOCK, "{what}");
        for (n, block) in found.chunks(BLOCK).enumerate() {
            let version = u64::from_le_bytes(*block.first_chunk().unwrap());
            let possible = self.promised[n]..=self.written[n];
            assert!(
                possible.contains(&version),
                "{what}: block {n}: {version}, not {possible:?}"
            );
            let whole = block.chunks(8).all(|word| word == version.to_le_bytes());
            assert!(whole, "{what}: block {n} is torn");
        }
    }
}

/// Runs consecutive transactions in SQLite, which prints each number when it is committed.
pub struct Database {
    path: PathBuf,
    process: Option<Child>,
    numbers: BufReader<std::process::ChildStdout>,
    promised: u64,
}

impl Database {
    /// Starts a process that inserts rows endlessly into the database in `dir`.
    pub fn new((dir, _): (PathBuf, Random), mode: &str) -> Self {
        let path = dir.join("db");
        let mut process = Command::new("sqlite3")
            .arg("-bail")
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = process.stdin.take().unwrap();
        let mut numbers = BufReader::new(process.stdout.take().unwrap());
        let begin = format!(
            "PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;\n\
             CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, x BLOB); SELECT 'ready';\n"
        );
        input.write_all(begin.as_bytes()).unwrap();
        let mut line = String::new();
        while line.trim_end() != "ready" {
            line.clear();
            assert!(numbers.read_line(&mut line).unwrap() > 0, "sqlite3 ended");
        }
        std::thread::spawn(move || {
            let insert = "INSERT INTO t(x) VALUES(randomblob(700)); SELECT max(n) FROM t;\n";
            while input.write_all(insert.as_bytes()).is_ok() {}
        });
        Self {
            path,
            process: Some(process),
            numbers,
            promised: 0,
        }
    }

    /// Kills the process at whatever point it is.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Reduces the number of rows that must be durable.
    pub fn forgive(&mut self, rows: u64) {
        self.promised = self.promised.saturating_sub(rows);
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Load for Database {
    fn step(&mut self) -> io::Result<()> {
        let mut line = String::new();
        self.numbers.read_line(&mut line)?;
        match line.trim_end().parse() {
            Ok(number) => self.promised = number,
            Err(_) => {
                self.kill();
                return Err(io::Error::other("sqlite3 ended"));
            }
        }
        Ok(())
    }

    fn verify(&self, what: &str) {
        let ask = "PRAGMA integrity_check; SELECT count(*), coalesce(max(n), 0) FROM t;";
        let output = crate::place::succeed(Command::new("sqlite3").arg(&self.path).arg(ask));
        let count = output
            .lines()
            .nth(1)
            .and_then(|line| line.split('|').next());
        let count: u64 = count.and_then(|n| n.parse().ok()).unwrap_or_default();
        let sound = output.starts_with("ok\n") && count >= self.promised;
        let path = self.path.display();
        assert!(
            sound,
            "{what}: {path}: {} promised: {output}",
            self.promised
        );
    }
}

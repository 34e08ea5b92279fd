//! Programs that have files open while the tree is replaced: what they know is of the tree before, and
//! nothing of it gets into the new one, whichever of their files differ.
//!
//! Contract: replace.mounted

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cairnfs::{PublishOptions, Volume};
use cairnfs_fuse::Transport;
use cairnfs_fuse::options::WriteMode;
use cairnfs_tier::size;

use crate::settled;
use crate::stand::{Mount, able, each_way, is_refused};

/// A program in Python that says a line at each of its steps, and waits for one before the next.
struct Python {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Python {
    fn new(dir: &Path, script: &str) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", script])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    fn says(&mut self) -> String {
        self.said.next().unwrap().unwrap()
    }

    fn goes_on(&mut self) -> String {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        self.says()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

const OLD_CONNECTION: &str = "
import sqlite3, sys
def step(*words):
    print(*words, flush=True)
    sys.stdin.readline()
db = sqlite3.connect('app.db', isolation_level=None)
db.execute('pragma journal_mode=wal')
db.execute('pragma synchronous=off')
db.execute('pragma wal_autocheckpoint=0')
db.execute('create table t(x)')
db.execute(\"insert into t values('kept')\")
db.execute('pragma wal_checkpoint(truncate)')
step('made')
for n in range(2000):
    db.execute('insert into t values(?)', ('discarded%d' % n,))
step('changed')
try:
    db.execute('pragma wal_checkpoint(full)')
    db.close()
except sqlite3.Error as error:
    pass
try:
    other = sqlite3.connect('app.db')
    rows = [row[0] for row in other.execute('select x from t order by rowid')]
    other.execute(\"insert into t values('other')\")
    other.commit()
    other.close()
    step(*rows)
except sqlite3.Error as error:
    step(repr(error))
";

const NEW_CONNECTION: &str = "
import sqlite3, sys
def step(*words):
    print(*words, flush=True)
    sys.stdin.readline()
db = sqlite3.connect('app.db')
db.execute(\"insert into t values('new')\")
db.commit()
step('done')
db.execute(\"insert into t values('again')\")
db.commit()
db.close()
step('closed')
";

const LOOK: &str = "
import sqlite3
db = sqlite3.connect('app.db')
print(db.execute('pragma integrity_check').fetchone()[0], *[r[0] for r in db.execute('select x from t')], flush=True)
";

/// The database is equal in both states, and only its log differs: `fork` keeps the one without rows in
/// the log, `replace` makes it that of the mount. Without syncs nothing fails before the old process
/// writes the log's rows into the database.
fn sqlite_of_before<S>(fork: impl Fn(&Mount) -> S, replace: impl Fn(&Mount, S)) {
    each_way(|write, transport| {
        let mount = Mount::new((write, transport), |main| main.create_dir("d").unwrap());
        let dir = mount.at("d");
        let mut old = Python::new(&dir, OLD_CONNECTION);
        assert_eq!(old.says(), "made");
        let forked = fork(&mount);
        assert_eq!(old.goes_on(), "changed");
        replace(&mount, forked);
        let mut new = Python::new(&dir, NEW_CONNECTION);
        assert_eq!(new.says(), "done");
        // It finds another database under the name, and works with that.
        assert_eq!(old.goes_on(), "kept new", "{write:?}, {transport:?}");
        drop(old);
        assert_eq!(new.goes_on(), "closed");
        let rows = Python::new(&dir, LOOK).says();
        assert_eq!(rows, "ok kept new other again", "{write:?}, {transport:?}");
    });
}

#[test]
fn sqlite_of_before_does_not_reach_the_restored_database() {
    let fork = |mount: &Mount| {
        mount.sessions.fetch("main").unwrap();
        mount.main().snapshot("s").unwrap();
    };
    sqlite_of_before(fork, |mount, ()| drop(mount.restore("s")));
}

/// A publish replaces the log of a database that is open as well as a restore does.
#[test]
fn sqlite_of_before_does_not_reach_the_published_database() {
    let replace = |mount: &Mount, work: Volume| {
        // The branch has it without the log.
        for file in ["d/app.db-wal", "d/app.db-shm"] {
            work.remove_file(file).unwrap();
        }
        drop(work);
        let options = PublishOptions {
            theirs: vec!["/".into()],
            ..PublishOptions::default()
        };
        let publish = || mount.volume.publish("work", &options).unwrap();
        assert!(mount.replacing(publish).conflicts.is_empty());
    };
    sqlite_of_before(|mount| mount.work("work"), replace);
}

const MAPPING: &str = "
import mmap, sys
def step(*words):
    print(*words, flush=True)
    sys.stdin.readline()
f = open('same', 'r+b')
m = mmap.mmap(f.fileno(), 0)
m[:4] = b'mine'
step('mapped')
try:
    m[4:8] = b'lost'
    m.flush()
    step('written')
except OSError as error:
    step('refused')
";

/// Pages of a mapping that became dirty before are part of the base, and later ones are refused.
#[test]
fn mapping_of_before_does_not_reach_the_new_tree() {
    each_way(|write, transport| {
        let mount = Mount::new((write, transport), |main| {
            main.write("same", vec![b's'; 8192]).unwrap();
            main.write("other", "1").unwrap();
        });
        let work = mount.work("work");
        work.write("other", "22").unwrap();
        let mut mapping = Python::new(&mount.at(""), MAPPING);
        assert_eq!(mapping.says(), "mapped");
        assert!(mount.publish(work).merged);
        assert_eq!(mapping.goes_on(), "refused", "{write:?}, {transport:?}");
        drop(mapping);
        let found = fs::read(mount.at("same")).unwrap();
        assert_eq!(found[..12], *b"minessssssss");
        assert_eq!(mount.main().read("same").unwrap(), found);
    });
}

/// Stores that keep a log open and name it in another file, mail that is being delivered, the swap file
/// of an editor, and a log to which a program appends.
#[test]
fn open_files_of_stores_and_editors_are_left_behind() {
    each_way(|write, transport| {
        let files = [
            "store/000001.log",
            "mail/tmp/1",
            "src/.code.c.swp",
            "app.log",
        ];
        let mount = Mount::new((write, transport), |main| {
            for dir in ["store", "mail", "mail/tmp", "mail/new", "src"] {
                main.create_dir(dir).unwrap();
            }
            for file in files {
                main.write(file, "begun\n").unwrap();
            }
            main.write("store/CURRENT", "000001\n").unwrap();
            main.snapshot("s").unwrap();
        });
        let append = |file: &str| {
            let mut options = File::options();
            options.append(true).open(mount.at(file)).unwrap()
        };
        let open = files.map(append);
        // Only the file that names the log differs.
        fs::write(mount.at("store/next"), "000002\n").unwrap();
        fs::rename(mount.at("store/next"), mount.at("store/CURRENT")).unwrap();
        mount.restore("s");
        for (mut file, name) in open.into_iter().zip(files) {
            let written = file
                .write_all(b"of before\n")
                .and_then(|()| file.sync_all());
            assert!(is_refused(written), "{name}");
            append(name).write_all(b"after\n").unwrap();
            assert_eq!(
                fs::read(mount.at(name)).unwrap(),
                b"begun\nafter\n",
                "{name}"
            );
        }
        // By name a delivery goes on in the new tree.
        fs::rename(mount.at("mail/tmp/1"), mount.at("mail/new/1")).unwrap();
        assert_eq!(fs::read(mount.at("mail/new/1")).unwrap(), b"begun\nafter\n");
    });
}

const FILES: usize = 6;
const SLOTS: u64 = 512;

fn slots(bytes: &[u8]) -> Vec<u64> {
    let slots = bytes.chunks_exact(8);
    slots
        .map(|slot| u64::from_le_bytes(slot.try_into().unwrap()))
        .collect()
}

/// Ends writers, also if what is asserted beside them fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Writers that keep files open as long as they can, and sign what they write with the number of the
/// replacement after which they opened them. What is signed with an earlier number than that of the
/// last replacement is what that brought, and no more.
fn discarded_bytes(write: WriteMode, rounds: u64, least: Duration) {
    let name = |at: usize| format!("f{at}");
    let mount = Mount::new((write, Transport::Dev), |main| {
        for at in 0..FILES {
            main.write(name(at), vec![0; SLOTS as usize * 8]).unwrap();
        }
        main.write("mapped", vec![b'm'; 8192]).unwrap();
        main.write("of the fork", "").unwrap();
        main.snapshot("s").unwrap();
    });
    let mapping = "
import mmap, sys, threading, time
f = open('mapped', 'r+b')
m = mmap.mmap(f.fileno(), 0)
print('mapped', flush=True)
threading.Thread(target=lambda: sys.stdin.readline() or sys.exit(), daemon=True).start()
n = 0
while threading.active_count() > 1:
    n = (n + 1) % 251
    m[:] = bytes([n]) * len(m)
    try: m.flush()
    except OSError: pass
    time.sleep(0.002)
";
    let mut mapping = Python::new(&mount.at(""), mapping);
    assert_eq!(mapping.says(), "mapped");
    // The numbers of the last replacements that have begun and ended.
    let (begun, ended) = (AtomicU64::new(1), AtomicU64::new(1));
    let (stop, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mount, begun, ended, stop, refused) = (&mount, &begun, &ended, &stop, &refused);
    thread::scope(|scope| {
        for writer in 0..3u64 {
            scope.spawn(move || {
                let mut open: Vec<(u64, File)> = Vec::new();
                let mut random = writer;
                while !stop.load(Ordering::SeqCst) {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
                    let dice = random >> 33;
                    let number = ended.load(Ordering::SeqCst);
                    if begun.load(Ordering::SeqCst) == number && dice % 4 == 0 {
                        let path = mount.at(&name(dice as usize / 4 % FILES));
                        let file = File::options().read(true).write(true).open(path);
                        // Otherwise it may be of either tree.
                        if begun.load(Ordering::SeqCst) == number {
                            open.push((number, file.unwrap()));
                        }
                    }
                    if open.len() > 40 {
                        open.remove(0);
                    }
                    for (number, file) in &open {
                        let at = (dice / 64 % SLOTS) * 8;
                        let mut written = file.write_all_at(&number.to_le_bytes(), at);
                        if dice % 32 == 1 {
                            written = written.and_then(|()| file.sync_data());
                        }
                        if written.is_err() {
                            refused.fetch_add(1, Ordering::SeqCst);
                            assert!(is_refused(written));
                        }
                    }
                    thread::sleep(Duration::from_micros(300));
                }
            });
        }
        let _stop = Stop(stop);
        let started = Instant::now();
        for round in (2u64..).take_while(|round| *round < rounds + 2 || started.elapsed() < least) {
            let work = (round % 3 != 0).then(|| mount.work("work"));
            begun.store(round, Ordering::SeqCst);
            let source = match work {
                Some(work) => {
                    work.write("of the fork", format!("{round}")).unwrap();
                    drop(work);
                    let options = PublishOptions::default();
                    let publish = || mount.volume.publish("work", &options);
                    let published = settled(|| mount.replacing(publish));
                    assert!(published.conflicts.is_empty());
                    published.kept.unwrap()
                }
                None => {
                    mount.restore("s");
                    "s".to_owned()
                }
            };
            ended.store(round, Ordering::SeqCst);
            let brought = mount.volume.open_branch(&source).unwrap();
            for _ in 0..2 {
                for at in 0..FILES {
                    let before = slots(&brought.read(name(at)).unwrap());
                    let now = slots(&fs::read(mount.at(&name(at))).unwrap());
                    for (slot, (before, now)) in before.iter().zip(&now).enumerate() {
                        let is_right = now == before || *now == round;
                        assert!(
                            is_right,
                            "{round}: f{at}, slot {slot}: {before} became {now}"
                        );
                    }
                }
                let mapped = fs::read(mount.at("mapped")).unwrap();
                assert_eq!(mapped, brought.read("mapped").unwrap(), "{round}");
                thread::sleep(Duration::from_millis(20));
            }
            keep_few(&mount.volume, &source);
        }
    });
    assert_ne!(
        refused.load(Ordering::SeqCst),
        0,
        "nobody had a file of before open"
    );
    drop(mapping);
    mount.forget_all();
}

/// Drops the states that were replaced, but for one.
fn keep_few(volume: &Volume, kept: &str) {
    let names = volume.roots().into_iter().filter_map(|root| root.name);
    for name in names.filter(|name| name.contains(".undo-") && name != kept) {
        // A file of it may be open.
        let _ = volume.drop_root(&name);
    }
}

/// The deep tier goes on for minutes.
#[test]
fn discarded_bytes_do_not_reach_the_new_state() {
    if !able(Transport::Dev) {
        return;
    }
    let least = Duration::from_secs(size(0, 300));
    for write in [WriteMode::Through, WriteMode::Back] {
        discarded_bytes(write, 12, least);
    }
}

//! Snapshots that go around among volumes, changed on the way.

use std::fmt::Write;

use cairnfs::Volume;
use cairnfs_tier::size;
use proptest::prelude::*;

use crate::streams::{same, sent};

const SIZE: u64 = 64 << 20;

fn volume() -> Volume {
    let options = Volume::options().size(SIZE).cache_budget(2 << 20);
    options.durability_interval(None).in_memory().unwrap()
}

/// A snapshot with its name on a volume.
#[derive(Clone)]
struct Snapshot {
    volume: usize,
    name: String,
    /// The volume that sent it, and its name there.
    from: Option<(usize, String)>,
}

/// What happens next; numbers choose among what there is.
#[derive(Debug, Clone)]
enum Step {
    /// Changes a branch made of a snapshot, or main, and makes a snapshot of it.
    Change {
        volume: usize,
        of: usize,
        what: u8,
    },
    /// Sends a snapshot, with a base if the receiver has one of that number.
    Send {
        snapshot: usize,
        to: usize,
        base: usize,
    },
    /// Sends a snapshot, of which a part arrives.
    Cut {
        snapshot: usize,
        to: usize,
        len: usize,
    },
    Drop {
        snapshot: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..1000usize;
    let step = prop_oneof![
        3 => (0..VOLUMES, number.clone(), any::<u8>())
            .prop_map(|(volume, of, what)| Step::Change { volume, of, what }),
        4 => (number.clone(), 0..VOLUMES, number.clone())
            .prop_map(|(snapshot, to, base)| Step::Send { snapshot, to, base }),
        1 => (number.clone(), 0..VOLUMES, number.clone())
            .prop_map(|(snapshot, to, len)| Step::Cut { snapshot, to, len }),
        1 => number.prop_map(|snapshot| Step::Drop { snapshot }),
    ];
    proptest::collection::vec(step, 4..24)
}

const VOLUMES: usize = 3;

struct World {
    volumes: Vec<Volume>,
    snapshots: Vec<Snapshot>,
    names: usize,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            volumes: (0..VOLUMES).map(|_| volume()).collect(),
            snapshots: Vec::new(),
            names: 0,
        };
        (0..VOLUMES).for_each(|volume| world.change(volume, 0, 0));
        world
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn change(&mut self, volume: usize, of: usize, what: u8) {
        let (name, branch) = (self.name(), self.name());
        let here: Vec<_> = self
            .snapshots
            .iter()
            .filter(|s| s.volume == volume)
            .collect();
        let on = match here.get(of % (here.len() + 1)) {
            Some(base) => {
                let base = self.volumes[volume].open_branch(&base.name).unwrap();
                base.branch(&branch).unwrap()
            }
            None => self.volumes[volume].open_branch("main").unwrap(),
        };
        let mut text = String::new();
        write!(text, "{name} of {volume}").unwrap();
        on.write(format!("file-{name}"), &text).unwrap();
        on.create_dir(format!("dir-{name}")).unwrap();
        on.write(format!("dir-{name}/inner"), vec![what; 5000])
            .unwrap();
        let old: Vec<_> = on
            .read_dir("/")
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        let old = &old[usize::from(what) % old.len()];
        match what % 3 {
            0 => on.rename(old, format!("moved-{name}")).unwrap(),
            1 if on.metadata(old).unwrap().is_file() => on.remove_file(old).unwrap(),
            _ => on.set_xattr(old, "user.changed", text).unwrap(),
        }
        on.snapshot(&name).unwrap();
        self.snapshots.push(Snapshot {
            volume,
            name,
            from: None,
        });
    }

    /// A snapshot of the sender that the receiver has, too.
    fn base(&self, of: &Snapshot, to: usize, number: usize) -> Option<String> {
        let is_there = |name: &str| {
            let mut all = self.snapshots.iter();
            all.any(|s| s.volume == of.volume && s.name == name)
        };
        let bases = self.snapshots.iter().filter_map(|s| match &s.from {
            Some((from, name)) if s.volume == to && *from == of.volume => Some(name.clone()),
            _ if s.volume == to && to == of.volume => Some(s.name.clone()),
            _ => None,
        });
        let bases: Vec<String> = bases.filter(|name| is_there(name)).collect();
        bases.get(number % (bases.len() + 1)).cloned()
    }

    fn send(&mut self, snapshot: usize, to: usize, base: usize) {
        let of = self.snapshots[snapshot % self.snapshots.len()].clone();
        let base = self.base(&of, to, base);
        let stream = sent(&self.volumes[of.volume], &of.name, base.as_deref());
        let name = self.name();
        self.volumes[to].receive(&stream[..], Some(&name)).unwrap();
        same(
            (&self.volumes[of.volume], &of.name),
            (&self.volumes[to], &name),
        );
        let from = Some((of.volume, of.name));
        self.snapshots.push(Snapshot {
            volume: to,
            name,
            from,
        });
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Change { volume, of, what } => self.change(volume, of, what),
            Step::Send { snapshot, to, base } => self.send(snapshot, to, base),
            Step::Cut { snapshot, to, len } => {
                let of = &self.snapshots[snapshot % self.snapshots.len()];
                let stream = sent(&self.volumes[of.volume], &of.name, None);
                let part = &stream[..len % stream.len()];
                self.volumes[to].receive(part, Some("cut")).unwrap_err();
            }
            Step::Drop { snapshot } => {
                let count = self.snapshots.len();
                if count > VOLUMES {
                    let gone = self.snapshots.remove(snapshot % count);
                    self.volumes[gone.volume].drop_root(&gone.name).unwrap();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: size(8, 24), ..ProptestConfig::default() })]

    /// Whatever volumes have sent each other, each can receive all snapshots of all others.
    #[test]
    fn snapshots_arrive_as_they_were_sent(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        let last = volume();
        for snapshot in &world.snapshots {
            let from = (&world.volumes[snapshot.volume], snapshot.name.as_str());
            let stream = sent(from.0, from.1, None);
            let name = last.receive(&stream[..], None).unwrap();
            same(from, (&last, &name));
        }
    }
}

/// Two trees may have equal entries at other places of their directory, and equal contents in other
/// blocks. Nothing of an inode changes by that.
#[test]
fn changes_between_trees_with_other_places_keep_times() {
    let (a, b) = (volume(), volume());
    a.create_dir("dir").unwrap();
    for name in ["dir/gone", "dir/one", "dir/two"] {
        a.write(name, vec![1; 5000]).unwrap();
    }
    a.remove_file("dir/gone").unwrap();
    a.snapshot("s").unwrap();
    b.receive(&sent(&a, "s", None)[..], Some("s")).unwrap();
    a.receive(&sent(&b, "s", None)[..], Some("again")).unwrap();
    let changes = sent(&a, "again", Some("s"));
    a.receive(&changes[..], Some("changed")).unwrap();
    same((&a, "s"), (&a, "changed"));
}

fn ino(volume: &Volume, snapshot: &str, path: &str) -> u64 {
    let snapshot = volume.open_branch(snapshot).unwrap();
    snapshot.metadata(path).unwrap().ino()
}

fn receive(to: &Volume, (from, snapshot, base): (&Volume, &str, Option<&str>), name: &str) {
    to.receive(&sent(from, snapshot, base)[..], Some(name))
        .unwrap();
}

/// A tree that goes to and fro keeps the numbers of its files, and takes none anew.
#[test]
fn files_that_come_back_have_their_numbers() {
    let (a, b) = (volume(), volume());
    a.write("of-a", "1").unwrap();
    a.snapshot("s0").unwrap();
    let mut seen = Vec::new();
    let mut at = "s0".to_owned();
    for round in 1..6 {
        let (there, back) = (format!("there{round}"), format!("back{round}"));
        let stream = sent(&a, &at, None);
        b.receive(&stream[..], Some(&there)).unwrap();
        let work = b.open_branch(&there).unwrap();
        let work = work.branch(&format!("work{round}")).unwrap();
        work.write(format!("of-b{round}"), "2").unwrap();
        work.snapshot(&back).unwrap();
        a.receive(&sent(&b, &back, None)[..], Some(&back)).unwrap();
        seen.push([
            ino(&a, &back, "of-a"),
            ino(&b, &back, "of-a"),
            ino(&b, &back, "of-b1"),
            ino(&a, &back, "of-b1"),
        ]);
        at = back;
    }
    assert_eq!(seen[0][0], ino(&a, "s0", "of-a"));
    assert!(seen.iter().all(|inos| *inos == seen[0]), "{seen:?}");
}

/// A merge brings files of volumes that the base had none of: they are known as theirs from then on.
#[test]
fn merged_files_come_back_with_their_numbers() {
    let (x, a, c) = (volume(), volume(), volume());
    x.write("of-x", "1").unwrap();
    x.snapshot("x").unwrap();
    receive(&a, (&x, "x", None), "x");
    let more = a.open_branch("x").unwrap().branch("more").unwrap();
    more.write("of-a", "2").unwrap();
    more.snapshot("a").unwrap();
    receive(&c, (&a, "x", None), "x");
    receive(&c, (&a, "a", Some("x")), "a");
    for (snapshot, branch) in [("x", "base"), ("a", "work")] {
        let branch = c.open_branch(snapshot).unwrap().branch(branch).unwrap();
        branch.write(format!("of-c-{snapshot}"), "3").unwrap();
    }
    let onto = cairnfs::PublishOptions {
        onto: Some("base".into()),
        ..Default::default()
    };
    assert!(c.publish("work", &onto).unwrap().merged);
    c.open_branch("base").unwrap().snapshot("merged").unwrap();
    receive(&a, (&c, "merged", None), "back");
    for path in ["of-a", "of-x"] {
        assert_eq!(ino(&a, "back", path), ino(&a, "a", path), "{path}");
    }
    receive(&x, (&c, "merged", None), "back");
    assert_eq!(ino(&x, "back", "of-x"), ino(&x, "x", "of-x"));
}

/// What was received may be left in a branch only, or in main.
#[test]
fn files_of_a_branch_are_known() {
    let (a, b) = (volume(), volume());
    a.write("f", "1").unwrap();
    a.snapshot("a").unwrap();
    receive(&b, (&a, "a", None), "first");
    b.open_branch("first").unwrap().branch("work").unwrap();
    b.drop_root("first").unwrap();
    receive(&b, (&a, "a", None), "again");
    b.open_branch("work").unwrap().snapshot("worked").unwrap();
    assert_eq!(ino(&b, "again", "f"), ino(&b, "worked", "f"));
    receive(&a, (&b, "again", None), "back");
    receive(&a, (&b, "worked", Some("again")), "changed");
    assert_eq!(ino(&a, "changed", "f"), ino(&a, "a", "f"));
}

/// A stream in which another one is received, before its first inode.
struct Around<'a> {
    outer: &'a [u8],
    inner: Option<&'a dyn Fn()>,
}

impl std::io::Read for Around<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        // The first record has the volume and the base.
        if self.outer.len() < 100_000
            && let Some(inner) = self.inner.take()
        {
            inner();
        }
        let len = buffer.len().min(50);
        self.outer.read(&mut buffer[..len])
    }
}

#[test]
fn streams_received_at_the_same_time_have_the_same_files() {
    let (a, b) = (volume(), volume());
    a.write("f", vec![7; 200_000]).unwrap();
    a.snapshot("a").unwrap();
    let stream = sent(&a, "a", None);
    let inner = || receive(&b, (&a, "a", None), "inner");
    let around = Around {
        outer: &stream,
        inner: Some(&inner),
    };
    b.receive(around, Some("outer")).unwrap();
    assert_eq!(ino(&b, "outer", "f"), ino(&b, "inner", "f"));
}

/// A receive looks at all snapshots, of which others go meanwhile.
#[test]
fn snapshots_may_be_dropped_during_a_receive() {
    let (a, b) = (volume(), volume());
    a.write("f", "1").unwrap();
    a.snapshot("a").unwrap();
    let stream = sent(&a, "a", None);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (b, ended) = (b.open_branch("main").unwrap(), &ended);
            scope.spawn(move || {
                for n in 0.. {
                    let name = format!("gone-{thread}-{n}");
                    b.snapshot(&name).unwrap();
                    // It is refused while the receive looks at it.
                    let _ = b.drop_root(&name);
                    if ended.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let received = (0..40).try_for_each(|n| {
            let name = format!("r{n}");
            b.receive(&stream[..], Some(&name)).map(drop)
        });
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        received.unwrap();
    });
}

//! A mounted volume on which snapshots and branches are made, renamed, changed by programs, published,
//! restored, sent, received and dropped, beside writers that sync, and whose daemon is killed.
//!
//! One directory, `t`, is a repository and a database that have the same version; each verb leaves
//! all of it at one version in each tree. [`Model`] has the version of each tree. After a verb the
//! volume is what the model says; after a kill, what it says before or after the verb. What the writers
//! were promised is there in either case.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::kill_load::{beside, close, workers};
use crate::place::{Place, Random, said, shell};
use crate::programs::GIT;
use crate::verbs::names;

/// Makes `t` in the working directory, at version 0.
const BEGIN: &str = "git init -q -b main t; cd t; echo db >> .git/info/exclude
    sqlite3 db 'CREATE TABLE versions(v INTEGER); INSERT INTO versions VALUES(0);'
    for n in $(seq 10); do echo 0 > f$n; done; git add -A; git commit -qm 0";

/// Brings `t` to the version `$V`: in place, by new files under old names, and by a transaction.
const CHANGE: &str = "cd t; for n in $(seq 5); do echo $V > f$n; done
    for n in $(seq 6 10); do echo $V > new; mv new f$n; done; git add -A; git commit -qm $V
    sqlite3 -bail db \"INSERT INTO versions VALUES($V);\"";

/// Prints the version of `t`, and fails if a part of it has another one.
const VERSION: &str = "export GIT_OPTIONAL_LOCKS=0; cd t; v=$(cat f1)
    for n in $(seq 10); do test $(cat f$n) = $v; done; test -z \"$(git status --porcelain)\"
    test $(git log -1 --format=%s) = $v; git fsck --strict --full > /dev/null
    last=$(sqlite3 -readonly db 'PRAGMA integrity_check; SELECT v FROM versions ORDER BY rowid DESC LIMIT 1;')
    test \"$last\" = $'ok\\n'$v; echo $v";

/// States with names beside `main` and `side`, at most, until one is dropped.
const MOST_NAMES: usize = 8;

/// Something that is done to whole trees of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Snapshot,
    Branch,
    Rename,
    /// The directory `t` of `main`.
    RestorePaths,
    /// The whole of the branch `side`, which is mounted, too.
    Restore,
    Publish,
    /// Forks, changes and publishes.
    Try,
    Drop,
    Send,
    Receive,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Snapshot,
        Self::Branch,
        Self::Rename,
        Self::RestorePaths,
        Self::Restore,
        Self::Publish,
        Self::Try,
        Self::Drop,
        Self::Send,
        Self::Receive,
    ];
}

/// The versions of `t` in the trees of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    main: u64,
    side: u64,
    /// Those of other snapshots and branches. Branches have names with a `b`.
    named: BTreeMap<String, u64>,
}

/// A verb that is prepared.
struct Plan {
    words: Vec<String>,
    after: Model,
    /// A branch that it makes and drops.
    between: Option<String>,
    /// A tree whose version is looked at afterwards, if it is there.
    looks_at: Option<String>,
}

/// The volume, and what is known about it.
pub struct Turmoil {
    place: Place,
    random: Random,
    model: Model,
    /// The last version or number of a name.
    last: u64,
    /// How many writes of the daemon a verb took.
    cost: BTreeMap<Verb, u64>,
    done: BTreeMap<Verb, [u64; 3]>,
    lives: u64,
}

fn versioned(dir: &Path, version: u64) {
    shell(dir, &format!("V={version}; {GIT}{CHANGE}"));
}

fn version(dir: &Path) -> u64 {
    let text = shell(dir, &format!("{GIT}{VERSION}"));
    text.trim().parse().unwrap_or_else(|_| panic!("{text}"))
}

impl Turmoil {
    /// A volume whose `main` and `side` have the version 0. It is large enough for as many whole copies
    /// as there are names, each with what the writers of one life leave: a received tree is a copy.
    pub fn new(seed: u64) -> Self {
        let mut place = Place::mounted("2G", "");
        shell(&place.dir(), &format!("{GIT}{BEGIN}"));
        place.ok(&["branch", "m", "side"]);
        place.umount();
        fs::create_dir(place.beside("tmp")).unwrap();
        let (main, side, named) = (0, 0, BTreeMap::new());
        Self {
            place,
            random: Random(seed | 1),
            model: Model { main, side, named },
            last: 0,
            cost: BTreeMap::new(),
            done: BTreeMap::new(),
            lives: 0,
        }
    }

    /// Mounts, and does what `next` says with writers beside it, until that says no more or to kill the
    /// daemon in the middle of a verb. Then checks the volume and what is in it.
    pub fn live(&mut self, next: &mut dyn FnMut(&mut Random) -> Option<(Verb, bool)>) {
        self.lives += 1;
        self.mount();
        let [dir, old] = [0, 2].map(|ago| {
            let life = self.lives.wrapping_sub(ago);
            self.place.at(format!("load{life}"))
        });
        fs::create_dir(&dir).unwrap();
        let mut loads = workers(&dir, &mut self.random);
        // Databases could not be closed; `t` has one.
        loads.truncate(6);
        let killed = AtomicBool::new(false);
        beside(&mut loads, &killed, || {
            // Fails only if a kill comes first.
            let removal = thread::spawn(move || drop(fs::remove_dir_all(old)));
            while let Some((verb, kills)) = next(&mut self.random) {
                if kills {
                    self.kill_in(verb, &killed);
                    break;
                }
                self.perform(verb);
            }
            removal.join().unwrap();
        });
        close(&mut loads);
        if !killed.load(Ordering::Relaxed) {
            self.end();
            self.place.check();
            self.mount();
        }
        for load in &loads {
            load.verify(&format!("life {}", self.lives));
        }
        self.assert_is(&self.model);
        self.end();
    }

    /// How often each verb was done, and how many kills found it done and not done.
    pub fn tally(&self) -> String {
        let each = self
            .done
            .iter()
            .map(|(verb, [alive, done, not])| format!("{verb:?} {alive} and {done}+{not} killed"));
        let each: Vec<String> = each.collect();
        format!("{} mounts, {}", self.lives, each.join(", "))
    }

    /// Compares all trees, then drops all but `main`, which gives their space back.
    pub fn finish(mut self) {
        self.mount();
        self.assert_is(&self.model);
        for name in self.model.named.keys() {
            self.look_at(Some(name));
        }
        shell(&self.place.dir(), "rm -rf load*");
        self.end();
        self.place.check();

        let all = names(&self.place);
        let others = all
            .iter()
            .map(String::as_str)
            .filter(|name| *name != "main");
        let words = ["drop", "--wait", "-q", "v.cairn"].into_iter();
        self.place.ok(&words.chain(others).collect::<Vec<_>>());
        self.place.mount("");
        let stat = rustix::fs::statvfs(self.place.dir()).unwrap();
        let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
        let needed = shell(&self.place.dir(), "du -sB1 . | cut -f1");
        let needed: u64 = needed.trim().parse().unwrap();
        assert!(
            used < 2 * needed + (4 << 20),
            "{used} bytes are used, and only {needed} needed"
        );
        self.place.umount();
    }

    fn mount(&mut self) {
        let write = ["write=through", "write=back"][self.random.below(2) as usize];
        self.place.mount(write);
        self.place.mount_beside("branch=side", "s");
    }

    fn end(&mut self) {
        self.place.umount_beside("s");
        self.place.umount();
    }

    /// Calls of the daemon that write, so far.
    fn writes(&self) -> u64 {
        let path = format!("/proc/{}/io", self.place.daemon_pid());
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("syscw: "));
        line.and_then(|n| n.parse().ok()).unwrap_or(u64::MAX)
    }

    fn command(&self, verb: Verb, words: &[String]) -> Command {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = self.place.command(&words);
        if verb == Verb::Try {
            command.current_dir(self.place.dir());
        }
        command.env("TMPDIR", self.place.beside("tmp"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Does a verb.
    fn perform(&mut self, verb: Verb) {
        let plan = self.plan(verb);
        let began = self.writes();
        let output = self.command(verb, &plan.words).output().unwrap();
        assert!(
            output.status.success(),
            "{:?}: {}",
            plan.words,
            said(&output)
        );
        self.cost.insert(verb, self.writes() - began);
        self.count(verb, 0);
        self.model = plan.after;
        self.assert_is(&self.model);
        self.look_at(plan.looks_at.as_deref());
    }

    /// Kills the daemon while it does a verb.
    fn kill_in(&mut self, verb: Verb, killed: &AtomicBool) {
        let plan = self.plan(verb);
        let cost = self.cost.get(&verb).copied().unwrap_or(100);
        let point = self.writes() + self.random.below(cost + 1);
        let mut child = self.command(verb, &plan.words).spawn().unwrap();
        while self.writes() < point && child.try_wait().unwrap().is_none() {
            thread::yield_now();
        }
        killed.store(true, Ordering::Relaxed);
        self.place.kill();
        let output = child.wait_with_output().unwrap();
        self.settle(verb, plan, &output);
    }

    /// Finds out how far a verb has come before a kill.
    fn settle(&mut self, verb: Verb, plan: Plan, output: &Output) {
        self.place.check();
        self.mount();
        let mut found = self.found();
        let what = format!("{:?}: {}", plan.words, said(output));
        let is = |model: &Model, found: &Model| {
            let names = model.named.keys().eq(found.named.keys());
            names && (model.main, model.side) == (found.main, found.side)
        };
        let done = is(&plan.after, &found);
        if output.status.success() {
            assert!(done, "{what}: told as done, but: {found:?}");
        }
        if done {
            self.model = plan.after;
        } else if let Some(fork) = plan.between.filter(|fork| found.named.contains_key(fork)) {
            // How far its program had come is not known.
            self.place.ok(&["drop", "-q", "m", &fork]);
            found.named.remove(&fork);
        }
        assert!(
            is(&self.model, &found),
            "{what}: {found:?}, not {:?}",
            self.model
        );
        self.count(verb, if done { 1 } else { 2 });
        self.look_at(plan.looks_at.as_deref());
    }

    fn count(&mut self, verb: Verb, how: usize) {
        self.done.entry(verb).or_default()[how] += 1;
    }

    /// The trees that there are; of those that are not mounted, the names only.
    fn found(&self) -> Model {
        let names = names(&self.place).into_iter();
        let others = |name: &String| !["main", "side"].contains(&name.as_str());
        let names = names.filter(|name| others(name) && !name.contains(".undo-"));
        Model {
            main: version(&self.place.dir()),
            side: version(&self.place.beside("s")),
            named: names.map(|name| (name, 0)).collect(),
        }
    }

    fn assert_is(&self, model: &Model) {
        let found = self.found();
        assert_eq!((model.main, model.side), (found.main, found.side));
        assert!(model.named.keys().eq(found.named.keys()), "{found:?}");
    }

    /// Mounts a tree that should have a known version.
    fn look_at(&self, name: Option<&str>) {
        let known = name.and_then(|name| Some((name, self.model.named.get(name)?)));
        if let Some((name, expected)) = known {
            self.place.mount_beside(&format!("branch={name}"), "look");
            let found = version(&self.place.beside("look"));
            assert_eq!(found, *expected, "the version of {name}");
            self.place.umount_beside("look");
        }
    }

    fn new_name(&mut self, kind: char) -> String {
        self.last += 1;
        format!("{kind}{}", self.last)
    }

    /// A snapshot; if there is none, one is made.
    fn some_snapshot(&mut self) -> String {
        let all = self.model.named.keys();
        let all: Vec<&String> = all.filter(|name| !name.contains('b')).collect();
        if let Some(name) = all.get(self.random.below(all.len().max(1) as u64) as usize) {
            return (*name).clone();
        }
        let name = self.new_name('s');
        self.place.ok(&["snapshot", "-q", "m", &name]);
        self.model.named.insert(name.clone(), self.model.main);
        name
    }

    /// Prepares a verb, with a daemon that runs.
    fn plan(&mut self, verb: Verb) -> Plan {
        self.drop_old();
        let mut after = self.model.clone();
        let (mut between, mut looks_at) = (None, None);
        let words: Vec<String> = match verb {
            Verb::Snapshot | Verb::Branch => {
                let (word, kind) = match verb {
                    Verb::Snapshot => ("snapshot", 's'),
                    _ => ("branch", 'b'),
                };
                let name = self.new_name(kind);
                after.named.insert(name.clone(), after.main);
                looks_at = Some(name.clone());
                vec![word.into(), "m".into(), name]
            }
            Verb::Rename => {
                let (old, new) = (self.some_snapshot(), self.new_name('r'));
                after = self.model.clone();
                let version = after.named.remove(&old).unwrap();
                after.named.insert(new.clone(), version);
                looks_at = Some(new.clone());
                vec!["rename".into(), "m".into(), old, new]
            }
            Verb::RestorePaths | Verb::Restore => {
                let from = self.some_snapshot();
                after = self.model.clone();
                let version = after.named[&from];
                let mut words = vec!["restore".into(), "m".into(), from];
                if verb == Verb::Restore {
                    after.side = version;
                    words.extend(["--branch".into(), "side".into()]);
                } else {
                    after.main = version;
                    words.push("t".into());
                }
                words
            }
            Verb::Publish => {
                let fork = self.new_name('b');
                self.place.ok(&["branch", "-q", "m", &fork]);
                self.place.mount_beside(&format!("branch={fork}"), "fork");
                versioned(&self.place.beside("fork"), self.last);
                self.place.umount_beside("fork");
                after.main = self.last;
                self.model.named.insert(fork.clone(), self.last);
                looks_at = Some(fork.clone());
                vec!["publish".into(), "m".into(), fork]
            }
            Verb::Try => {
                let fork = self.new_name('b');
                after.main = self.last;
                between = Some(fork.clone());
                let script = format!("set -eu; V={}; {GIT}{CHANGE}", self.last);
                let words = ["try", "--yes", "--name", &fork, "--", "bash", "-c", &script];
                words.map(str::to_owned).to_vec()
            }
            Verb::Drop => {
                let gone = self.some_snapshot();
                after = self.model.clone();
                after.named.remove(&gone);
                vec!["drop".into(), "m".into(), gone]
            }
            Verb::Send => {
                let from = self.some_snapshot();
                after = self.model.clone();
                ["send", "m", &from, "-qfo", "sent"]
                    .map(str::to_owned)
                    .to_vec()
            }
            Verb::Receive => {
                let (from, name) = (self.some_snapshot(), self.new_name('g'));
                after = self.model.clone();
                self.place.ok(&["send", "m", &from, "-qfo", "stream"]);
                after.named.insert(name.clone(), after.named[&from]);
                looks_at = Some(name.clone());
                ["receive", "m", "stream", "--name", &name]
                    .map(str::to_owned)
                    .to_vec()
            }
        };
        Plan {
            words,
            after,
            between,
            looks_at,
        }
    }

    /// Drops what makes the volume full.
    fn drop_old(&mut self) {
        let undo = names(&self.place).into_iter();
        let undo: Vec<String> = undo.filter(|name| name.contains(".undo-")).collect();
        if undo.len() > MOST_NAMES {
            let words = ["drop", "-q", "m"].into_iter();
            let words: Vec<&str> = words.chain(undo.iter().map(String::as_str)).collect();
            self.place.ok(&words);
        }
        while self.model.named.len() > MOST_NAMES {
            let gone = self.random.below(self.model.named.len() as u64) as usize;
            let gone = self.model.named.keys().nth(gone).unwrap().clone();
            self.place.ok(&["drop", "-q", "m", &gone]);
            self.model.named.remove(&gone);
        }
    }
}

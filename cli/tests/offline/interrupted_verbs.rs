//! Commands on snapshots and branches of a volume that is not mounted, ended by a signal at every
//! moment that can be told apart from outside: the volume is as before the command or as after it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cairnfs::Volume;
use rustix::process::Signal;

use crate::interrupted::{kill, start};
use crate::place::{Place, pattern};

/// Each root with a name: whether it is a branch, and its files.
type State = BTreeMap<String, (bool, BTreeMap<String, Vec<u8>>)>;

const FILES: usize = 40;
const LEN: usize = 20_000;

/// A volume with the snapshot `a`, the branch `trial`, after which `main` went on, and the branch
/// `flat`, after which it did not.
fn volume() -> Place {
    let p = Place::with_small_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    let name = |n: usize| format!("f{n}");
    (0..FILES).for_each(|n| volume.write(name(n), pattern(LEN + n)).unwrap());
    volume.snapshot("a").unwrap();
    let trial = volume.branch("trial").unwrap();
    (0..FILES / 2).for_each(|n| trial.write(name(n), pattern(LEN / 2)).unwrap());
    trial.remove_file(name(FILES - 1)).unwrap();
    drop(trial);
    volume.write("own", "of main").unwrap();
    volume.remove_file(name(FILES - 2)).unwrap();
    let flat = volume.branch("flat").unwrap();
    flat.write("new", pattern(LEN)).unwrap();
    drop(flat);
    volume.close().unwrap();
    p
}

/// The state of a volume, after an opening that frees what was dropped.
fn state(image: &Path) -> State {
    let volume = Volume::open(image).unwrap();
    volume.free_drops(|_| true).unwrap();
    let roots = volume.roots().into_iter();
    let named = roots.filter_map(|root| Some((root.name?, root.writable)));
    let states = named.map(|(name, writable)| {
        let root = volume.open_branch(&name).unwrap();
        let entries = root.read_dir("/").unwrap().map(|entry| entry.unwrap());
        let file = |name: String| (name.clone(), root.read(&name).unwrap());
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let files = names.map(file).collect();
        // The name of a state to go back to tells the time.
        let name = name.split_once("undo-").map_or(&*name, |(undo, _)| undo);
        (name.to_owned(), (writable, files))
    });
    let states = states.collect();
    volume.close().unwrap();
    states
}

/// What changes when the image is written.
fn written(image: &Path) -> (i64, i64) {
    let of = fs::metadata(image).unwrap();
    (of.mtime(), of.mtime_nsec())
}

/// Runs a command on a copy of the volume, and sends a signal when the image was seen to change for
/// the `nth` time. Returns whether the command did all of its work.
fn run_until(p: &Place, args: &[&str], nth: usize, signal: Signal) -> bool {
    let image = p.path("w.img");
    fs::copy(p.path("v.img"), &image).unwrap();
    let (mut seen, mut last) = (0, written(&image));
    let mut child = start(p, args);
    while seen < nth {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{args:?}: {status:?}");
            return true;
        }
        let now = written(&image);
        seen += usize::from(now != last);
        last = now;
    }
    kill(&child, signal);
    child.wait().unwrap().success()
}

/// The next command that writes drops what an interrupted one had prepared.
fn assert_nothing_unfinished(p: &Place, image: &Path) {
    fs::copy(image, p.path("next.img")).unwrap();
    p.ok(&["snapshot", "-q", "next.img", "next"]);
    let log = p.ok(&["log", "next.img"]);
    assert!(!log.contains("unfinished"), "{log}");
}

/// Ends a command at each moment. `args` have the volume as `w.img`.
fn at_every_moment(args: &[&str]) {
    let p = volume();
    let image = p.path("w.img");
    assert!(run_until(&p, args, usize::MAX, Signal::INT));
    let (before, after) = (state(&p.path("v.img")), state(&image));
    for (nth, signal) in (0..).zip([Signal::INT, Signal::TERM, Signal::KILL].iter().cycle()) {
        let done = run_until(&p, args, nth, *signal);
        let checked = p.ok(&["check", "w.img"]);
        assert!(checked.contains("clean"), "{args:?}, {nth}: {checked}");
        assert_nothing_unfinished(&p, &image);
        let found = state(&image);
        let is_one = found == after || found == before && !done;
        let names = |state: &State| state.keys().cloned().collect::<Vec<_>>();
        assert!(is_one, "{args:?}, {nth}, {done}: {:?}", names(&found));
        let checked = p.ok(&["check", "--data", "w.img"]);
        assert!(checked.contains("clean"), "{args:?}, {nth}: {checked}");
        if done {
            return;
        }
    }
}

#[test]
fn interrupted_forks_are_made_or_not() {
    at_every_moment(&["snapshot", "w.img", "s"]);
    at_every_moment(&["branch", "w.img", "b"]);
    at_every_moment(&["branch", "w.img", "b", "--from", "a"]);
}

#[test]
fn interrupted_rename_has_one_name() {
    at_every_moment(&["rename", "w.img", "a", "z"]);
    at_every_moment(&["rename", "w.img", "trial", "z"]);
}

#[test]
fn interrupted_publish_is_whole_or_nothing() {
    at_every_moment(&["publish", "w.img", "flat"]);
    at_every_moment(&["publish", "w.img", "trial"]);
}

#[test]
fn interrupted_restore_is_whole_or_nothing() {
    at_every_moment(&["restore", "w.img", "a"]);
    at_every_moment(&["restore", "w.img", "a", "f1", "f38"]);
}

#[test]
fn interrupted_drop_keeps_all_or_frees_all() {
    at_every_moment(&["drop", "w.img", "a"]);
    at_every_moment(&["drop", "--wait", "w.img", "a"]);
    at_every_moment(&["drop", "--wait", "w.img", "trial"]);
}

#[test]
fn interrupted_log_changes_nothing() {
    at_every_moment(&["log", "w.img"]);
}

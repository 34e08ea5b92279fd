//! The commands on snapshots and branches of a volume that is mounted: its daemon performs them, with
//! the streams of the command.
//!
//! Contract: branch.verbs

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::branches::forked;
use crate::place::{Place, able, arg, nap, said, umount};

/// What a command prints on both streams, and its exit code.
fn outcome(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

fn spawn(place: &Place, args: &[&str]) -> Child {
    let mut command = place.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    // Not SIGINT, which a shell ignores in what it runs in the background.
    kill_process(pid, Signal::TERM).unwrap();
}

/// The names of snapshots and branches.
pub fn names(place: &Place) -> Vec<String> {
    let log: serde_json::Value =
        serde_json::from_str(&place.ok(&["log", "--json", "v.cairn"])).unwrap();
    let roots = log["roots"].as_array().unwrap().iter();
    let names = roots.filter_map(|root| root["name"].as_str());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn commands_say_and_do_the_same_whether_mounted_or_not() {
    if !able(&[]) {
        return;
    }
    let mut mounted = forked();
    fs::copy(mounted.volume(), mounted.beside("twin")).unwrap();
    mounted.mount("");
    let commands: &[&[&str]] = &[
        &["log", "V"],
        &["snapshot", "V", "tuesday"],
        &["snapshot", "V", "tuesday"],
        &["snapshot", "V", "a/b"],
        &["snapshot", "V", "again", "--of", "tuesday"],
        &["snapshot", "V", "x", "--of", "nothing"],
        &["branch", "V", "other", "--from", "monday", "--json"],
        &["diff", "V", "monday"],
        &["diff", "V", "monday", "main", "g"],
        &["diff", "V", "monday", "trial", "-p"],
        &["diff", "V", "monday", "nothing"],
        &["diff", "V", "main@yesterday"],
        &["rename", "V", "other", "another"],
        &["rename", "V", "main", "x"],
        &["publish", "V", "another", "--onto", "trial", "--dry-run"],
        &["publish", "V", "another", "--onto", "trial", "-q"],
        &[
            "restore", "V", "monday", "--branch", "trial", "--json", "nothing",
        ],
        &["drop", "V", "tuesday", "nothing", "main"],
        &["drop", "V", "trial"],
        &["send", "V", "monday", "-o", "OUT"],
        &["send", "V", "main"],
        &["receive", "V", "OUT", "--name", "back"],
        &["receive", "V", "m/f"],
        &["receive", "V", "missing"],
    ];
    let told = |volume: &str| -> Vec<String> {
        let told = commands.iter().map(|command| {
            let args: Vec<&str> = command
                .iter()
                .map(|word| match *word {
                    "V" => volume,
                    "OUT" if volume == "twin" => "out2",
                    "OUT" => "out1",
                    other => other,
                })
                .collect();
            let output = mounted.command(&args).output().unwrap();
            let (out, err, code) = outcome(&output);
            let text = format!("{command:?}: {code:?}\n{out}{err}");
            let text = text.replace(volume, "V").replace("out2", "out1");
            // Times are different ones.
            let words = text.split_inclusive(['\n', ' ', '"']);
            words
                .filter(|word| !word.starts_with("20") && !word.contains("undo-20"))
                .collect()
        });
        told.collect()
    };
    let (here, there) = (told("twin"), told("v.cairn"));
    for (here, there) in here.iter().zip(&there) {
        assert_eq!(here, there);
    }
    let read = |name: &str| fs::read(mounted.beside(name)).unwrap();
    assert_eq!(read("out1").len(), read("out2").len());
    assert!(names(&mounted).contains(&"back".to_owned()));
    mounted.finish();
}

#[test]
fn fork_has_every_write_that_had_returned() {
    if !able(&[]) {
        return;
    }
    for options in ["write=through", "write=back"] {
        let place = Place::mounted("128M", options);
        let content = vec![7; 3 << 20];
        for round in 0..4 {
            let name = format!("f{round}");
            // Neither synced nor, in the last rounds, closed.
            let mut file = File::create(place.at(&name)).unwrap();
            file.write_all(&content).unwrap();
            let file = (round >= 2).then_some(file);
            place.ok(&["snapshot", "v.cairn", &format!("s{round}")]);
            place.ok(&["branch", "m", &format!("b{round}")]);
            drop(file);
            fs::write(place.at(&name), b"later").unwrap();
        }
        for round in 0..4 {
            for root in [format!("s{round}"), format!("b{round}")] {
                place.mount_beside(&format!("branch={root}"), "fork");
                let found = fs::read(place.beside(format!("fork/f{round}"))).unwrap();
                assert!(found == content, "{options}: {root} has {}", found.len());
                place.umount_beside("fork");
            }
        }
        place.finish();
    }
}

#[test]
fn directory_of_a_mount_stands_for_its_volume_and_branch() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    place.mount_beside("branch=trial", "t");
    place.mount_beside("branch=monday", "s");
    fs::create_dir(place.beside("t/d")).unwrap();
    fs::write(place.beside("t/f"), b"tried").unwrap();
    place.ok(&["snapshot", "t/d", "of-trial"]);
    let differences = "A d/\nM f  (contents, size 6 to 5)\n";
    place.fails(&["diff", "t", "monday"], 1, &[differences]);
    assert_eq!(place.ok(&["diff", "m", "monday"]), "");
    assert_eq!(place.ok(&["diff", "v.cairn", "monday"]), "");
    assert_eq!(place.ok(&["diff", "t", "of-trial"]), "");
    // Renamed while it is mounted: the table of mounts has the old name.
    place.ok(&["rename", "t", "trial", "effort"]);
    assert_eq!(place.ok(&["diff", "t", "of-trial"]), "");
    place.ok(&["branch", "s", "of-monday"]);
    place.mount_beside("branch=of-monday", "b");
    assert_eq!(fs::read(place.beside("b/f")).unwrap(), b"monday");
    place.fails(&["snapshot", "s", "x"], 1, &["is the same one"]);
    fs::create_dir(place.beside("plain")).unwrap();
    place.fails(
        &["log", "plain"],
        1,
        &["not a volume", "where it is mounted"],
    );
    for name in ["b", "s", "t"] {
        place.umount_beside(name);
    }
    place.finish();
}

#[test]
fn mounted_branches_are_not_taken_away() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    place.mount_beside("branch=trial", "t");
    let says = ["trial: is mounted on", "cairnfs umount"];
    place.fails(&["drop", "v.cairn", "trial"], 1, &says);
    place.fails(&["publish", "v.cairn", "trial"], 1, &says);
    place.umount_beside("t");
    place.ok(&["drop", "v.cairn", "trial"]);
    let text = place.fails(&["drop", "v.cairn", "trial", "--wait"], 1, &["trial"]);
    assert!(!text.contains("Freed"), "{text}");
    assert_eq!(names(&place), ["main", "monday"]);
    place.finish();
}

#[test]
fn read_only_mount_shows_and_refuses_changes() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("ro");
    assert_eq!(place.ok(&["diff", "m", "monday"]), "");
    assert_eq!(names(&place), ["main", "monday", "trial"]);
    place.ok(&["send", "m", "monday", "-o", "out"]);
    let says = ["mounted read-only", "unmount all"];
    place.fails(&["snapshot", "m", "x"], 1, &says);
    place.fails(&["drop", "m", "trial"], 1, &says);
    place.finish();
}

/// The stream of a new snapshot `large` with 8 MiB.
fn large_stream(place: &Place) -> Vec<u8> {
    let mut file = File::create(place.at("large")).unwrap();
    (0..8).for_each(|n| file.write_all(&vec![n; 1 << 20]).unwrap());
    drop(file);
    place.ok(&["snapshot", "m", "large"]);
    place.ok(&["send", "m", "large", "-o", "stream"]);
    fs::read(place.beside("stream")).unwrap()
}

#[test]
fn interrupted_command_ends_in_the_daemon_too() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    let stream = large_stream(&place);

    // The reader waits in the daemon for more.
    let mut child = spawn(&place, &["receive", "m", "--name", "half"]);
    let half = stream.get(..stream.len() / 2).unwrap();
    child.stdin.as_mut().unwrap().write_all(half).unwrap();
    while !place.ok(&["log", "m"]).contains("unfinished") {
        nap(50);
    }
    let input = child.stdin.take();
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), None, "ended by the signal");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("interrupted"), "{said}");
    assert!(!names(&place).contains(&"half".to_owned()));

    // Nothing reads what is sent; then the reader is gone.
    let mut child = spawn(&place, &["send", "m", "large"]);
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 100]).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));

    // Killed, with all of its streams.
    let mut child = spawn(&place, &["receive", "m", "--name", "half"]);
    child.stdin.as_mut().unwrap().write_all(half).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    place.ok(&["receive", "m", "stream", "--name", "whole"]);
    let names = names(&place);
    let is_there = |name: &str| names.iter().any(|n| n == name);
    assert!(is_there("whole") && !is_there("half"));
    place.finish();
}

#[test]
fn end_of_the_daemon_ends_commands_with_words() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    place.ok(&["send", "m", "monday", "-o", "stream"]);
    let stream = fs::read(place.beside("stream")).unwrap();
    let begin = |place: &Place| {
        let mut child = spawn(place, &["receive", "m", "--name", "half"]);
        let half = stream.get(..stream.len() / 2).unwrap();
        child.stdin.as_mut().unwrap().write_all(half).unwrap();
        child
    };
    let told = |mut child: Child| {
        let input = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(input);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let child = begin(&place);
    while !place.ok(&["log", "m"]).contains("unfinished") {
        nap(50);
    }
    place.umount();
    let said = told(child);
    assert!(
        said.contains("daemon ended") && said.contains("cairnfs log"),
        "{said}"
    );
    assert!(!names(&place).contains(&"half".to_owned()));

    place.mount("");
    let child = begin(&place);
    while !place.ok(&["log", "m"]).contains("unfinished") {
        nap(50);
    }
    place.kill();
    let said = told(child);
    assert!(said.contains("daemon ended"), "{said}");
    place.umount();
    assert!(!names(&place).contains(&"half".to_owned()));
    place.check();
}

#[test]
fn full_volume_is_compared_and_listed() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("64M", "");
    fs::write(place.at("before"), "x").unwrap();
    place.ok(&["snapshot", "m", "s"]);
    for (name, size) in [("large", 1 << 20), ("block", 4096), ("small", 100)] {
        let write = |n: &u32| fs::write(place.at(format!("{name}{n}")), vec![7; size]);
        (0..).take_while(|n| write(n).is_ok()).for_each(drop);
    }
    let refused = place.run(&["snapshot", "m", "t"]);
    assert!(
        said(&refused).contains("no space left"),
        "{}",
        said(&refused)
    );
    let looks = [
        (&["diff", "s", "main", "--name-only"][..], 1, "large0"),
        (&["diff", "s", "main", "--stat"], 1, "large0"),
        (&["diff", "s", "main", "-p"], 1, "large0"),
        (&["log"], 0, "main"),
    ];
    let look = |place: &Place, volume: &str| {
        for (words, code, says) in looks {
            let (verb, rest) = words.split_first().unwrap();
            let output = place.run(&[&[*verb, volume], rest].concat());
            let (printed, errors, ended) = outcome(&output);
            assert_eq!(ended, Some(code), "{words:?}: {errors}");
            assert!(printed.contains(says), "{words:?}: {printed}");
        }
    };
    look(&place, "m");
    assert!(place.sh("ls").contains("large0"));
    // After a kill the log has what was written last.
    place.ok(&["sync", "m"]);
    place.kill();
    place.run(&["umount", "m"]);
    assert!(place.ok(&["ls", "v.cairn"]).contains("large0"));
    look(&place, "v.cairn");
    place.check();
}

/// A volume is not closed under a command that goes on.
#[test]
fn command_ends_before_the_volume_is_closed() {
    if !able(&["umount"]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    let stream = large_stream(&place);
    let (first, rest) = stream.split_at(stream.len() / 2);
    let mut child = spawn(&place, &["receive", "m", "--name", "whole"]);
    let mut input = child.stdin.take().unwrap();
    input.write_all(first).unwrap();
    while !place.ok(&["log", "m"]).contains("unfinished") {
        nap(50);
    }
    umount(&place.dir());
    while place.has_thread("cairnfs-session") {
        nap(20);
    }
    // Who comes later is told to wait, and opens the volume when it is closed.
    let mut late = spawn(&place, &["log", "v.cairn"]);
    drop(late.stdin.take());
    input.write_all(rest).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let output = late.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    place.wait_for_end();
    assert!(names(&place).contains(&"whole".to_owned()));
    place.check();
}

#[test]
fn many_commands_at_once_and_long_ones_are_served() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    thread::scope(|scope| {
        for worker in 0..4 {
            let place = &place;
            scope.spawn(move || {
                for round in 0..4 {
                    let name = format!("w{worker}-{round}");
                    fs::write(place.at(&name), &name).unwrap();
                    place.ok(&["snapshot", "m", &name]);
                    assert_eq!(place.ok(&["diff", "m", &name, &name]), "");
                    place.ok(&["log", "m"]);
                    if round % 2 == 0 {
                        place.ok(&["drop", "m", &name]);
                    }
                }
            });
        }
    });
    assert_eq!(names(&place).len(), 3 + 4 * 2);
    // More words than one piece of a message holds.
    let nothing = vec!["n".repeat(200); 500];
    let mut args = vec!["drop", "m"];
    args.extend(nothing.iter().map(String::as_str));
    let output = place.command(&args).output().unwrap();
    let (_, err, code) = outcome(&output);
    assert_eq!((code, err.lines().count()), (Some(1), 1000));
    let nothing = vec!["n".repeat(100_000); 12];
    let mut args = vec!["drop", "m"];
    args.extend(nothing.iter().map(String::as_str));
    place.fails(&args, 1, &["too long"]);
    place.finish();
}

#[test]
fn references_are_read_in_the_time_zone_of_the_command() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    place.ok(&["snapshot", "m", "now"]);
    // It was this minute in this zone, and is not yet half a day to the west.
    let log = |zone: &str| {
        let log = place.command(&["log", "m"]).env("TZ", zone).output();
        let text = String::from_utf8(log.unwrap().stdout).unwrap();
        let words = text.lines().next().unwrap().split_whitespace();
        let words: Vec<String> = words.map(str::to_owned).collect();
        format!("{}T{}", words[2], words[3])
    };
    let finds = |zone: &str, time: &str| {
        let reference = format!("main@{time}:59");
        let mut command = place.command(&["diff", "m", &reference]);
        command.env("TZ", zone).output().unwrap().status.code()
    };
    let utc = log("UTC0");
    for zone in ["EAST-5", "Asia/Kolkata"] {
        let east = log(zone);
        assert_ne!(utc, east);
        assert_eq!(finds("UTC0", &utc), Some(0));
        assert_eq!(finds(zone, &east), Some(0));
        assert_eq!(finds(zone, &utc), Some(2));
    }
    assert_eq!(finds("Nowhere/Land", &utc), Some(2));
    place.finish();
}

#[test]
fn other_users_get_nothing_and_are_told_who_has_it() {
    if !able(&["setpriv"]) {
        return;
    }
    let place = Place::mounted("64M", "allow_other");
    place.copy_command();
    let program = place.beside("cairnfs");
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command
        .arg(program)
        .args(["snapshot", arg(&place.dir()), "x"]);
    let (_, err, code) = outcome(&command.output().unwrap());
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("cairnfs: "), "{err}");
    assert_eq!(names(&place), ["main"]);
    place.finish();
}

#[test]
fn publish_and_restore_go_on_under_a_mounted_base() {
    if !able(&[]) {
        return;
    }
    for options in ["write=through", "write=back"] {
        let mut place = forked();
        place.mount(options);
        fs::create_dir(place.at("d")).unwrap();
        fs::write(place.at("d/kept"), b"kept").unwrap();
        place.ok(&["branch", "m", "work"]);
        place.mount_beside("branch=work", "w");
        fs::write(place.beside("w/f"), b"worked").unwrap();
        fs::write(place.beside("w/d/new"), b"new").unwrap();
        place.umount_beside("w");
        // A shell in the directory, and a file that is open and does not differ.
        let mut shell = place.command(&["--version"]);
        shell.current_dir(place.at("d"));
        let mut kept = File::options()
            .append(true)
            .open(place.at("d/kept"))
            .unwrap();
        let mut old = File::open(place.at("f")).unwrap();
        assert!(!place.at("d/new").exists(), "cached as missing");
        // What has not arrived counts as a change of the base, so the publish merges.
        fs::write(place.at("own"), b"own").unwrap();
        let said = place.ok(&["publish", "m", "work"]);
        let undo = said
            .split_whitespace()
            .find(|word| word.starts_with("main.undo-"));
        assert_eq!(fs::read(place.at("f")).unwrap(), b"worked");
        assert_eq!(fs::read(place.at("d/new")).unwrap(), b"new");
        assert_eq!(fs::read(place.at("own")).unwrap(), b"own");
        let more = kept.write_all(b" lost").and_then(|()| kept.sync_all());
        let refused = Errno::from_io_error(&more.unwrap_err());
        assert!(
            matches!(refused, Some(Errno::STALE | Errno::IO)),
            "{refused:?}"
        );
        assert_eq!(fs::read(place.at("d/kept")).unwrap(), b"kept");
        let mut again = File::options();
        let mut again = again.append(true).open(place.at("d/kept")).unwrap();
        again.write_all(b" and more").unwrap();
        again.sync_all().unwrap();
        assert_eq!(fs::read(place.at("d/kept")).unwrap(), b"kept and more");
        assert!(shell.output().unwrap().status.success());
        let mut text = String::new();
        let read = old.read_to_string(&mut text);
        assert!(read.is_err() || text == "monday", "{text:?}");
        drop((kept, again, old));
        place.ok(&["restore", "m", undo.unwrap()]);
        assert_eq!(fs::read(place.at("f")).unwrap(), b"monday");
        assert!(!place.at("d/new").exists());
        assert_eq!(fs::read(place.at("own")).unwrap(), b"own");
        place.ok(&["restore", "m", "monday", "f"]);
        fs::write(place.at("f"), b"again").unwrap();
        // Nothing keeps the states of before open.
        let undos: Vec<String> = names(&place)
            .into_iter()
            .filter(|name| name.starts_with("main.undo-"))
            .collect();
        assert_eq!(undos.len(), 3);
        let words = ["drop", "m", "--wait"].into_iter();
        let words: Vec<&str> = words.chain(undos.iter().map(String::as_str)).collect();
        place.ok(&words);
        assert_eq!(names(&place), ["main", "monday", "trial"]);
        place.remount(options);
        assert_eq!(fs::read(place.at("f")).unwrap(), b"again");
        place.finish();
    }
}

/// A name that a restore brings back after a program was told that it is free is opened, not refused as
/// existing.
#[test]
fn file_is_made_or_opened_beside_restores() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("write=through");
    let ended = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            let (mut made, path) = (0_u64, place.at("f"));
            while !ended.load(Ordering::Acquire) {
                let mut file = File::options();
                match file.write(true).create(true).truncate(false).open(&path) {
                    Ok(_) => made += 1,
                    // Two restores, one after the other.
                    Err(e) if Errno::from_io_error(&e) == Some(Errno::STALE) => {}
                    Err(e) => return Err(e),
                }
                let _ = fs::remove_file(&path);
            }
            Ok(made)
        });
        for _ in 0..40 {
            place.ok(&["restore", "-q", "m", "monday"]);
        }
        ended.store(true, Ordering::Release);
        assert!(writer.join().unwrap().unwrap() > 40);
    });
    place.finish();
}

/// A shell stays in a directory that is restored; what it has open of a file in it is read further.
#[test]
fn restored_directory_goes_on_under_a_shell() {
    if !able(&[]) {
        return;
    }
    for options in ["write=through", "write=back"] {
        let mut place = forked();
        place.mount(options);
        let write = |path: &str, text: &str| fs::write(place.at(path), text).unwrap();
        fs::create_dir_all(place.at("d/below")).unwrap();
        write("d/unchanged", "un\n");
        write("d/below/x", "a");
        write("d/gone", "gone");
        place.ok(&["snapshot", "m", "s"]);
        write("d/below/x", "bb");
        write("d/added", "added");
        fs::remove_file(place.at("d/gone")).unwrap();
        let cairnfs = place.command(&[]);
        let mut shell = Command::new("sh");
        for (name, value) in cairnfs.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        shell.current_dir(place.at("d"));
        let script = "exec 5<unchanged; \"$0\" restore -q .. s d && cat <&5 && echo more >>unchanged \
                      && ls && cat unchanged below/x gone";
        shell.args(["-c", script]).arg(cairnfs.get_program());
        let output = shell.output().unwrap();
        let (out, err, code) = outcome(&output);
        assert_eq!(
            (out.as_str(), code),
            ("un\nbelow\ngone\nunchanged\nun\nmore\nagone", Some(0)),
            "{options}: {err}"
        );
        // Only what the shell wrote differs.
        let diff = place.command(&["diff", "m", "s", "--name-status"]);
        let diff = { diff }.output().unwrap();
        assert_eq!(outcome(&diff).0, "M\td/unchanged\n", "{options}");
        place.finish();
    }
}

#[test]
fn conflicts_are_listed_and_the_mounted_base_stays() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    place.mount_beside("branch=trial", "t");
    fs::write(place.beside("t/f"), b"theirs").unwrap();
    place.umount_beside("t");
    fs::write(place.at("f"), b"ours!").unwrap();
    place.fails(
        &["publish", "m", "trial"],
        1,
        &["f: both changed the contents"],
    );
    assert_eq!(fs::read(place.at("f")).unwrap(), b"ours!");
    place.ok(&["publish", "m", "trial", "--theirs", "f"]);
    assert_eq!(fs::read(place.at("f")).unwrap(), b"theirs");
    place.finish();
}

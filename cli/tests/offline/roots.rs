//! Snapshots and branches: their commands on a volume that is not mounted.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use cairnfs::{FileTimes, OpenOptions, Volume};

use crate::place::{Place, pattern};
use crate::{plant, same};

/// A volume with files, and the snapshot `a` of them.
pub fn with_snapshot() -> Place {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    plant(&p.path("in"));
    fs::create_dir(p.path("in/moved")).unwrap();
    fs::write(p.path("in/moved/below"), "below\n").unwrap();
    fs::write(p.path("in/two words"), "one\ntwo\n").unwrap();
    fs::write(p.path("in/gone"), "gone\n").unwrap();
    fs::write(p.path("in/edited"), "edited\n").unwrap();
    p.ok(&["import", "-q", "--same-owner", "in", "v.img"]);
    let said = p.ok(&["snapshot", "v.img", "a"]);
    assert_eq!(said, "Made the snapshot a\n");
    p
}

/// Changes of every kind that a patch can have.
pub fn change(p: &Place) {
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("dir/deeper/small", "larger\n").unwrap();
    volume.write("two words", "one\n2\n").unwrap();
    volume.rename("moved", "dir/elsewhere").unwrap();
    volume.remove_file("gone").unwrap();
    volume.write("fresh", "fresh\nwithout an end").unwrap();
    volume.write("nothing", "").unwrap();
    volume.remove_file("sym").unwrap();
    volume.symlink("fresh", "sym2").unwrap();
    volume.close().unwrap();
}

#[test]
fn log_shows_branches_and_snapshots() {
    let p = Place::with_volume();
    let log = p.ok(&["log", "v.img"]);
    assert!(log.starts_with("main  branch "), "{log}");
    p.ok(&["snapshot", "v.img", "monday"]);
    p.ok(&["snapshot", "-q", "v.img", "tuesday"]);
    let log = p.ok(&["log", "v.img"]);
    let words: Vec<Vec<&str>> = log.lines().map(|l| l.split(' ').collect()).collect();
    let names: Vec<&str> = words.iter().map(|w| w[0]).collect();
    assert_eq!(names, ["monday", "tuesday", "main"], "{log}");
    let json = p.json(&["log", "--json", "v.img"]);
    let roots = json["roots"].as_array().unwrap();
    let monday = roots.iter().find(|r| r["name"] == "monday").unwrap();
    let tuesday = roots.iter().find(|r| r["name"] == "tuesday").unwrap();
    assert_eq!(monday["kind"], "snapshot");
    assert_eq!(tuesday["parent"], monday["id"]);
    assert!(monday["created"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn snapshot_refuses_what_it_cannot_make() {
    let p = with_snapshot();
    p.fails(&["snapshot", "v.img", "a"], 1, "has this name already");
    p.fails(&["snapshot", "v.img", "a@b"], 1, "v.img: a@b: invalid");
    p.fails(
        &["snapshot", "v.img", ""],
        1,
        "a snapshot or branch has a name",
    );
    p.fails(&["snapshot", "v.img"], 2, "NAME");
    p.fails(&["snapshot", "absent.img", "b"], 1, "cairnfs mkfs");
    p.fails(&["snapshot", ".", "b"], 1, "is a directory");
    fs::write(p.path("text"), vec![b'x'; 1 << 20]).unwrap();
    for command in ["snapshot", "log", "send"] {
        let args = [command, "text", "b"];
        let args = &args[..if command == "log" { 2 } else { 3 }];
        let pipe = p.shell(&format!("\"$cairnfs\" {} | cat", args.join(" ")), |_| {});
        let text = String::from_utf8_lossy(&pipe.stderr).into_owned();
        assert!(text.contains("text: "), "{text}");
    }
}

#[test]
fn diff_has_the_exit_codes_of_diff() {
    let p = with_snapshot();
    assert_eq!(p.ok(&["diff", "v.img", "a"]), "");
    change(&p);
    let out = p.run(&["diff", "v.img", "a", "--name-status"]);
    assert_eq!(out.status.code(), Some(1));
    let expected = "\
M\tdir/deeper/small
R100\tmoved\tdir/elsewhere
A\tfresh
D\tgone
A\tnothing
D\tsym
A\tsym2
M\ttwo words
";
    assert_eq!(String::from_utf8(out.stdout).unwrap(), expected);
    // Nothing differs below these paths.
    p.ok(&["diff", "v.img", "a", "main", "large", "/dir/two"]);
    let some = p.run(&["diff", "v.img", "a", "main", "dir/", "--name-status"]);
    let some = String::from_utf8(some.stdout).unwrap();
    assert_eq!(some, "M\tdir/deeper/small\nR100\tmoved\tdir/elsewhere\n");
    assert_eq!(p.run(&["diff", "-q", "v.img", "a"]).status.code(), Some(1));
    p.fails(&["diff", "v.img", "b"], 2, "there are: a, main");
    p.fails(&["diff", "v.img", "main@-5y"], 2, "nor a time");
    p.fails(&["diff", "v.img", "main@-5w"], 2, "no snapshot as old as");
    p.fails(&["diff", "absent.img", "a"], 2, "cairnfs mkfs");
    p.fails(&["diff", "v.img", "a", "--stat", "--json"], 2, "--json");
    fs::write(p.path("text"), vec![b'x'; 1 << 20]).unwrap();
    p.fails(&["diff", "text", "a"], 2, "text: ");
}

#[test]
fn diff_tells_what_changed() {
    let p = with_snapshot();
    change(&p);
    let stat = String::from_utf8(p.run(&["diff", "v.img", "a", "--stat"]).stdout).unwrap();
    assert!(
        stat.contains(" R moved/ -> dir/elsewhere/ |  0 B\n"),
        "{stat}"
    );
    assert!(
        stat.ends_with("3 added, 2 removed, 1 renamed, 2 changed; 34 B written\n"),
        "{stat}"
    );
    let lines = String::from_utf8(p.run(&["diff", "v.img", "a"]).stdout).unwrap();
    assert!(
        lines.contains("M two words  (contents, size 8 to 6)\n"),
        "{lines}"
    );
    let json = p.run(&["diff", "v.img", "a", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["summary"]["added"], 3);
    assert_eq!((&json["old"], &json["new"]), (&"a".into(), &"main".into()));
    let files = json["files"].as_array().unwrap();
    assert_eq!(files[1]["old_paths"][0]["path"], "moved");
}

/// Programs save a file by writing another one and renaming it.
#[test]
fn diff_shows_a_replaced_file_as_one_change() {
    let p = with_snapshot();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("tmp", "changed\n").unwrap();
    volume
        .set_permissions("tmp", fs::Permissions::from_mode(0o755))
        .unwrap();
    volume.set_xattr("tmp", "user.note", b"x").unwrap();
    volume.rename("tmp", "edited").unwrap();
    let mtime = volume.metadata("gone").unwrap().modified().unwrap();
    volume.write("tmp", "gone\n").unwrap();
    let times = FileTimes::new().set_modified(mtime);
    volume.set_times("tmp", times).unwrap();
    let mode = volume.metadata("gone").unwrap().permissions();
    volume.set_permissions("tmp", mode).unwrap();
    volume.rename("tmp", "gone").unwrap();
    volume.close().unwrap();
    let shown = |form: &str| {
        let out = p.run(&["diff", "v.img", "a", "main", form]);
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(shown("--name-status"), "M\tedited\nM\tgone\n");
    let lines = p.run(&["diff", "v.img", "a"]).stdout;
    assert_eq!(
        String::from_utf8(lines).unwrap(),
        "M edited  (contents, mode 644 to 755, size 7 to 8, extended attributes)\n\
         M gone  (replaced)\n"
    );
    let patch = "\
diff --git a/edited b/edited
old mode 100644
new mode 100755
--- a/edited
+++ b/edited
@@ -1 +1 @@
-edited
+changed
";
    assert_eq!(shown("-p"), patch);
    let stat = shown("--stat");
    let sums = "0 added, 0 removed, 0 renamed, 2 changed; 8 B written\n";
    assert!(stat.ends_with(sums), "{stat}");
    let json: serde_json::Value = serde_json::from_str(&shown("--json")).unwrap();
    let edited = &json["files"][0];
    assert_eq!(
        (&edited["status"], &edited["written"]),
        (&"changed".into(), &8.into())
    );
    assert!(edited["old_ino"].as_u64().unwrap() < edited["ino"].as_u64().unwrap());
}

/// A hole that is made, or a file that is made shorter, is a change without bytes.
#[test]
fn stat_counts_bytes_that_were_written() {
    let p = with_snapshot();
    let volume = Volume::open(p.path("v.img")).unwrap();
    let options = OpenOptions::new().write(true).clone();
    let file = volume.open_with("large", &options).unwrap();
    file.set_len(4096).unwrap();
    drop(file);
    let file = volume.create_file("holes").unwrap();
    file.set_len(1 << 30).unwrap();
    drop(file);
    volume.close().unwrap();
    let stat = String::from_utf8(p.run(&["diff", "v.img", "a", "--stat"]).stdout).unwrap();
    let expected = "\
\x20A holes | 0 B
 M large | 0 B
1 added, 0 removed, 0 renamed, 1 changed; 0 B written
";
    assert_eq!(stat, expected);
}

/// The state that a killed process leaves is merged before it is compared.
#[test]
fn diff_after_a_kill_sees_what_the_log_has() {
    let p = with_snapshot();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("late", "late").unwrap();
    volume.sync().unwrap();
    fs::copy(p.path("v.img"), p.path("killed.img")).unwrap();
    drop(volume);
    let out = p.run(&["diff", "killed.img", "a", "--name-status"]);
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "A\tlate\n");
    p.ok(&["check", "--data", "killed.img"]);
}

#[test]
fn patch_makes_the_new_tree() {
    let p = with_snapshot();
    change(&p);
    let volume = Volume::open(p.path("v.img")).unwrap();
    // As editors save: the old file is gone, the new one has its name.
    volume.write("temporary", "replaced\n").unwrap();
    volume.rename("temporary", "edited").unwrap();
    volume.close().unwrap();
    let line = "\"$cairnfs\" diff v.img a -p | patch -s -p1 -d in";
    let out = p.shell(line, |_| {});
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    p.ok(&["export", "-q", "v.img", "out"]);
    let read = |dir: &str, file: &str| fs::read(p.path(dir).join(file)).unwrap();
    for file in [
        "dir/deeper/small",
        "two words",
        "dir/elsewhere/below",
        "fresh",
        "nothing",
        "edited",
    ] {
        assert_eq!(read("in", file), read("out", file), "{file}");
    }
    assert_eq!(
        fs::read_link(p.path("in/sym2")).unwrap().to_str(),
        Some("fresh")
    );
    for gone in ["gone", "sym", "moved/below"] {
        assert!(
            p.path("in").join(gone).symlink_metadata().is_err(),
            "{gone}"
        );
    }
    // The other way round, the file that is added again has the smaller inode number.
    p.shell(
        "\"$cairnfs\" diff v.img main a -p | patch -f -s -p1 -d out",
        |_| {},
    );
    assert_eq!(read("out", "edited"), b"edited\n");
}

#[test]
fn send_writes_files_and_pipes_and_no_terminals() {
    let p = with_snapshot();
    p.ok(&["send", "v.img", "a", "-o", "a.stream"]);
    let stream = fs::read(p.path("a.stream")).unwrap();
    assert!(stream.starts_with(b"CairnSnd"));
    assert!(stream.len() < 8 << 20, "holes are not sent");
    p.fails(&["send", "v.img", "a", "-o", "a.stream"], 1, "--force");
    p.ok(&["send", "-f", "v.img", "a", "-o", "a.stream"]);
    let to_itself = ["send", "-f", "v.img", "a", "-o", "v.img"];
    p.fails(&to_itself, 1, "is a CairnFS volume, and would be lost");
    let piped = p.shell("\"$cairnfs\" send v.img a | cat >piped", |_| {});
    assert!(piped.status.success());
    assert!(fs::read(p.path("piped")).unwrap() == stream);
    let changes = p.ok_bytes(&["send", "v.img", "a", "--from", "a"]);
    assert!(changes.len() < 200, "{}", changes.len());
    p.fails(&["send", "v.img", "main"], 1, "cairnfs snapshot v.img NAME");
    p.fails(&["send", "v.img", "b"], 1, "there are: a, main");
    p.fails(
        &["send", "v.img", "a", "--from", "main"],
        1,
        "make a snapshot",
    );
    p.fails(&["send", "v.img"], 2, "SNAPSHOT");
    let line = "script -qec \"$cairnfs send v.img a\" /dev/null";
    let terminal = p.shell(line, |_| {});
    let said = String::from_utf8_lossy(&terminal.stdout).into_owned();
    assert!(said.contains("is a terminal"), "{said}");
    let full = p.shell("\"$cairnfs\" send v.img a >/dev/full", |_| {});
    assert_eq!(full.status.code(), Some(1));
    let said = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(said.contains("standard output: no space left"), "{said}");
    let limited = p.limited("send v.img a -o big.stream");
    assert!(limited.status.success() || !p.path("big.stream").exists());
    let closed = p.shell("\"$cairnfs\" send v.img a | true", |_| {});
    assert!(closed.stderr.is_empty());
}

/// Adjacent parts differ, so a stream that leaves any out is found.
#[test]
fn interrupted_send_leaves_no_file() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    fs::File::create(p.path("in/f"))
        .and_then(|mut f| f.write_all(&pattern(20 << 20)))
        .unwrap();
    p.ok(&["import", "-q", "in", "v.img"]);
    p.ok(&["snapshot", "v.img", "a"]);
    let out = p.limited("send v.img a -o a.stream");
    assert_eq!(out.status.code(), Some(1));
    let names: Vec<String> = fs::read_dir(p.path(""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("stream") || name.starts_with('.'))
        .collect();
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn branches_are_made_changed_published_and_dropped() {
    let p = with_snapshot();
    p.ok(&["branch", "v.img", "trial"]);
    assert_eq!(
        p.ok(&["branch", "v.img", "old", "--from", "main@a"]),
        "Made the branch old\n"
    );
    p.fails(&["branch", "v.img", "old"], 1, "has this name already");
    p.fails(&["branch", "v.img", "x", "--from", "b"], 1, "there are:");
    let look = || p.json(&["publish", "-n", "--json", "v.img", "trial"]);
    assert_eq!(look()["merged"], false);
    let volume = Volume::open(p.path("v.img")).unwrap();
    let trial = volume.open_branch("trial").unwrap();
    trial.write("fresh", "of the trial").unwrap();
    drop(trial);
    volume.write("own", "of main").unwrap();
    volume.close().unwrap();
    let out = p.run(&["diff", "v.img", "a", "trial", "--name-status"]);
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "A\tfresh\n");
    assert_eq!(p.ok(&["publish", "-n", "v.img", "trial"]), "No conflicts\n");
    assert_eq!(look()["merged"], true);
    let said = p.ok(&["publish", "v.img", "trial"]);
    let back = said
        .lines()
        .last()
        .unwrap()
        .split("cairnfs ")
        .nth(1)
        .unwrap();
    assert_eq!(
        p.ok(&["cat", "v.img:/fresh", "v.img:/own"]),
        "of the trialof main"
    );
    p.fails(&["publish", "v.img", "trial"], 1, "no such branch");
    p.ok(&back.split(' ').collect::<Vec<_>>());
    p.fails(&["cat", "v.img:/fresh"], 1, "no such file");
    p.ok(&["snapshot", "v.img", "b", "--of", "old"]);
    p.ok(&["rename", "v.img", "b", "c"]);
    p.fails(&["rename", "v.img", "c", "a"], 1, "has this name already");
    p.fails(&["rename", "v.img", "main", "m"], 1, "main");
    assert_eq!(
        p.ok(&["drop", "v.img", "old", "c"]),
        "Dropped old\nDropped c\n"
    );
    p.fails(&["drop", "v.img", "old", "a"], 1, "no such branch");
    p.fails(&["drop", "v.img", "main"], 1, "main");
    p.fails(&["drop", "v.img"], 2, "cairnfs drop v.img NAME");
    let log = p.json(&["log", "--json", "v.img"]);
    let names = log["roots"].as_array().unwrap().iter();
    let names: Vec<&str> = names.filter_map(|r| r["name"].as_str()).collect();
    assert!(
        !names.contains(&"a") && names.contains(&"main"),
        "{names:?}"
    );
    assert!(p.ok(&["check", "--data", "v.img"]).contains("clean"));
}

#[test]
fn conflicts_are_listed_and_resolved_by_path() {
    let p = with_snapshot();
    p.ok(&["branch", "v.img", "trial"]);
    let volume = Volume::open(p.path("v.img")).unwrap();
    let trial = volume.open_branch("trial").unwrap();
    for (volume, text) in [(&volume, "ours\n"), (&trial, "theirs\n")] {
        volume.write("two words", text).unwrap();
        volume.write("dir/deeper/small", text).unwrap();
    }
    drop(trial);
    volume.close().unwrap();
    let out = p.run(&["publish", "v.img", "trial"]);
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stdout).unwrap();
    let expected = "\
dir/deeper/small: both changed the contents
two words: both changed the contents
";
    assert_eq!(said, expected);
    let hint = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        hint.contains("2 conflicts; nothing was changed") && hint.contains("--theirs"),
        "{hint}"
    );
    let command = "\n    cairnfs publish v.img trial --theirs=dir/deeper/small\n";
    assert!(hint.contains(command), "{hint}");
    let json = p.run(&["publish", "--json", "v.img", "trial", "--ours", "dir"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["conflicts"][0]["path"], "two words");
    assert_eq!(
        (&json["published"], &json["merged"]),
        (&false.into(), &false.into())
    );
    p.ok(&[
        "publish",
        "v.img",
        "trial",
        "--ours",
        "/dir/",
        "--theirs",
        "two words",
    ]);
    assert_eq!(
        p.ok(&["cat", "v.img:/two words", "v.img:/dir/deeper/small"]),
        "theirs\nours\n"
    );
    p.ok(&["check", "--data", "v.img"]);
}

#[test]
fn restore_brings_files_and_branches_back() {
    let p = with_snapshot();
    change(&p);
    p.fails(
        &["restore", "v.img", "a", "fresh"],
        1,
        "fresh: no such file or directory: a does not",
    );
    p.fails(&["restore", "v.img", "b"], 1, "there are: a, main");
    let said = p.ok(&["restore", "v.img", "a", "two words", "dir/deeper"]);
    assert!(said.contains("cairnfs restore v.img main.undo-"), "{said}");
    assert_eq!(p.ok(&["cat", "v.img:/two words"]), "one\ntwo\n");
    assert_eq!(p.ok(&["cat", "v.img:/fresh"]), "fresh\nwithout an end");
    p.ok(&["restore", "-q", "v.img", "a"]);
    p.ok(&["export", "-q", "v.img", "out"]);
    same(&p.path("in"), &p.path("out"));
    p.ok(&["check", "--data", "v.img"]);
}

#[test]
fn send_and_receive_keep_everything() {
    let p = with_snapshot();
    p.ok(&["mkfs", "-q", "--size", "64M", "w.img"]);
    let line = "\"$cairnfs\" send v.img a | \"$cairnfs\" receive w.img -n a";
    let out = p.shell(line, |_| {});
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        "Received the snapshot a\n"
    );
    change(&p);
    p.ok(&["snapshot", "v.img", "b"]);
    p.ok(&["send", "v.img", "b", "--from", "a", "-o", "b.stream"]);
    p.ok(&["receive", "w.img", "b.stream", "-n", "b"]);
    for (reference, volume) in [("b", "v.img"), ("b", "w.img")] {
        p.ok(&["restore", "-q", volume, reference]);
    }
    p.ok(&["export", "-q", "v.img", "sent"]);
    p.ok(&["export", "-q", "w.img", "received"]);
    same(&p.path("sent"), &p.path("received"));
    p.ok(&["check", "--data", "w.img"]);
    p.fails(
        &["receive", "w.img", "b.stream", "-n", "b"],
        1,
        "has this name already",
    );
    p.ok(&["mkfs", "-q", "--size", "64M", "x.img"]);
    p.fails(
        &["receive", "x.img", "b.stream"],
        1,
        "receive that one first",
    );
    p.fails(&["receive", "x.img", "absent"], 1, "absent: No such file");
    p.fails(&["receive", "absent.img", "b.stream"], 1, "cairnfs mkfs");
    p.fails(
        &["receive", "x.img", "in/large"],
        1,
        "in/large: this is not a stream",
    );
    fs::write(p.path("text"), vec![b'x'; 1 << 20]).unwrap();
    p.fails(&["receive", "text", "b.stream"], 1, "text: ");
    let whole = p.ok_bytes(&["send", "v.img", "a"]);
    fs::write(p.path("cut"), &whole[..whole.len() - 5]).unwrap();
    p.fails(
        &["receive", "x.img", "cut"],
        1,
        "cut: this is not a stream that can be received: it is cut off",
    );
    let log = p.json(&["log", "--json", "x.img"]);
    let mut roots = log["roots"].as_array().unwrap().iter();
    let is_left = |kind: &serde_json::Value| kind == "unfinished" || kind == "being dropped";
    assert!(
        roots.all(|r| r["name"] == "main" || is_left(&r["kind"])),
        "{log}"
    );
    p.ok(&["check", "--data", "x.img"]);
}

#[test]
fn full_volume_receives_nothing() {
    let p = Place::with_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("large", pattern(40 << 20)).unwrap();
    volume.snapshot("a").unwrap();
    volume.close().unwrap();
    p.ok(&["send", "v.img", "a", "-o", "a.stream"]);
    p.ok(&["mkfs", "-q", "--size", "16M", "small.img"]);
    fs::write(p.path("f"), "own").unwrap();
    p.ok(&["cp", "f", "small.img:/f"]);
    let sent = Volume::open(p.path("v.img")).unwrap();
    let ino = sent.metadata("large").unwrap().ino();
    drop(sent);
    let told = format!("small.img: no space left at inode {ino} of the stream");
    p.fails(&["receive", "small.img", "a.stream"], 1, &told);
    p.fails(&["receive", "small.img", "a.stream"], 1, "drop snapshots");
    assert_eq!(p.ok(&["cat", "small.img:/f"]), "own");
    assert!(p.ok(&["check", "--data", "small.img"]).contains("clean"));
    // What was received of it does not hold space.
    fs::write(p.path("g"), pattern(5 << 20)).unwrap();
    p.ok(&["cp", "g", "small.img:/g"]);
    assert!(p.ok(&["log", "small.img"]).starts_with("main  branch "));
}

/// A receive that is killed in the middle leaves nothing, and the next one succeeds.
/// Contract: roots.whole
#[test]
fn killed_receive_leaves_nothing() {
    let p = Place::with_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("large", pattern(30 << 20)).unwrap();
    volume.snapshot("a").unwrap();
    volume.close().unwrap();
    let stream = p.ok_bytes(&["send", "v.img", "a"]);
    p.ok(&["mkfs", "-q", "--size", "64M", "w.img"]);
    for signal in ["KILL", "TERM"] {
        for part in [1, 2, 3] {
            // The pipe holds the rest back until the command has taken this part.
            let line = format!(
                "exec 3<&0; \"$cairnfs\" receive w.img -n a <&3 & pid=$!; exec 3<&- 0<&-; \
                 read -r _ <go; kill -{signal} $pid; wait $pid"
            );
            let go = p.path("go");
            let _ = fs::remove_file(&go);
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &go,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_bits_truncate(0o600),
                0,
            )
            .unwrap();
            let out = p.shell(&line, |input| {
                input.write_all(&stream[..stream.len() / 4 * part]).unwrap();
                fs::write(&go, "now\n").unwrap();
            });
            assert!(!out.status.success());
            assert!(
                p.ok(&["check", "--data", "w.img"]).contains("clean"),
                "{signal} {part}"
            );
            let roots = p.json(&["log", "--json", "w.img"]);
            let names = roots["roots"].as_array().unwrap().iter();
            assert!(
                names
                    .filter_map(|r| r["name"].as_str())
                    .all(|n| n == "main")
            );
            p.ok(&["snapshot", "-q", "w.img", "next"]);
            let log = p.ok(&["log", "w.img"]);
            assert!(!log.contains("unfinished"), "{signal} {part}: {log}");
            p.ok(&["drop", "-q", "w.img", "next"]);
        }
    }
    fs::write(p.path("a.stream"), &stream).unwrap();
    p.ok(&["receive", "w.img", "a.stream", "-n", "a"]);
    p.ok(&["restore", "-q", "w.img", "a"]);
    assert!(p.ok_bytes(&["cat", "w.img:/large"]) == pattern(30 << 20));
}

/// A branch knows the state that it began with, although the snapshot of it was dropped since.
#[test]
fn branch_of_a_dropped_snapshot_is_published() {
    let p = with_snapshot();
    p.ok(&["branch", "v.img", "trial", "--from", "a"]);
    p.ok(&["drop", "--wait", "v.img", "a"]);
    let volume = Volume::open(p.path("v.img")).unwrap();
    let trial = volume.open_branch("trial").unwrap();
    volume.write("two words", "ours\n").unwrap();
    trial.write("edited", "theirs\n").unwrap();
    drop(trial);
    volume.close().unwrap();
    p.ok(&["publish", "v.img", "trial", "--theirs", "edited"]);
    assert_eq!(
        p.ok(&["cat", "v.img:/two words", "v.img:/edited"]),
        "ours\ntheirs\n"
    );
    assert!(p.ok(&["check", "--data", "v.img"]).contains("clean"));
}

//! Words of the commands on snapshots and branches: names, options, messages, JSON.

use std::fs;

use cairnfs::Volume;

use crate::place::Place;
use crate::roots::{change, with_snapshot};

#[test]
fn mistyped_paths_are_errors_that_name_them() {
    let p = with_snapshot();
    let said = "typo/x: neither a nor main has it";
    p.fails(&["diff", "v.img", "a", "main", "typo/x"], 2, said);
    change(&p);
    p.fails(&["diff", "v.img", "a", "main", "dir", "typo/x"], 2, said);
    p.fails(
        &["diff", "v.img", "a", "main", "dir/../gone"],
        2,
        "dir/../gone",
    );
    for form in ["-q", "-p", "--stat", "--json", "--name-only"] {
        p.fails(&["diff", "v.img", "a", "main", form, "typo/x"], 2, said);
    }
    // What one of the two has is known.
    for path in ["gone", "fresh", ".", "/dir/", "moved/below"] {
        let out = p.run(&["diff", "-q", "v.img", "a", "main", path]);
        assert_eq!(out.status.code(), Some(1), "{path}");
    }
    p.fails(
        &["diff", "v.img", "a", "dir"],
        2,
        "cairnfs diff VOLUME A main PATH",
    );
    p.ok(&["branch", "v.img", "trial"]);
    // The base is as it was, so that nothing would be merged.
    for side in ["--ours", "--theirs"] {
        for more in ["--dry-run", "--json"] {
            let args = ["publish", "v.img", "trial", side, "typo/x", more];
            p.fails(
                &args,
                1,
                "typo/x: no such file or directory: neither trial nor main",
            );
        }
    }
    p.fails(
        &["restore", "v.img", "a", "typo/x"],
        1,
        "typo/x: no such file",
    );
    let volume = Volume::open(p.path("v.img")).unwrap();
    let trial = volume.open_branch("trial").unwrap();
    volume.rename("two words", "ours").unwrap();
    trial.rename("two words", "theirs").unwrap();
    drop(trial);
    volume.close().unwrap();
    p.fails(
        &["publish", "v.img", "trial", "--ours", "typo"],
        1,
        "typo: no such file",
    );
    let out = p.run(&["publish", "v.img", "trial", "-n", "--ours", "dir"]);
    let said = String::from_utf8(out.stdout).unwrap();
    assert_eq!(
        said,
        "two words: both renamed it: main to ours, the branch to theirs\n"
    );
    let hint = String::from_utf8(out.stderr).unwrap();
    let lines: Vec<&str> = hint.lines().map(str::trim).collect();
    let command = "cairnfs publish v.img trial --dry-run --ours=dir";
    for side in ["--ours", "--theirs"] {
        let line = format!("{command} {side}='two words'");
        assert!(lines.contains(&&*line), "{hint}");
        let copied = line.replacen("cairnfs", "$cairnfs", 1);
        let out = p.shell(&copied, |_| {});
        assert_eq!(String::from_utf8(out.stdout).unwrap(), "No conflicts\n");
    }
    // Only the state in which they parted has this path.
    p.ok(&["publish", "v.img", "trial", "--theirs", "two words"]);
    assert_eq!(p.ok(&["cat", "v.img:/theirs"]), "one\n2\n");
}

#[test]
fn one_conflict_is_one_conflict() {
    let p = with_snapshot();
    p.ok(&["branch", "v.img", "trial"]);
    let volume = Volume::open(p.path("v.img")).unwrap();
    let trial = volume.open_branch("trial").unwrap();
    volume.write("odd \n", "ours").unwrap();
    trial.write("odd \n", "theirs").unwrap();
    drop(trial);
    volume.close().unwrap();
    p.fails(
        &["publish", "v.img", "trial"],
        1,
        "v.img: 1 conflict; nothing",
    );
    let out = p.run(&["publish", "--json", "v.img", "trial"]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["conflicts"][0]["path"], "odd \n");
    let p = Place::with_volume();
    assert!(p.ok(&["check", "v.img"]).contains("0 files, 1 directory\n"));
}

#[test]
fn names_that_would_be_mistaken_are_refused() {
    let p = Place::with_volume();
    for (name, says) in [
        (".", "names of directories"),
        ("..", "names of directories"),
        (" ", "not blanks only"),
        ("\u{a0}\u{3000}", "not blanks only"),
        (" x", "does not begin or end with a blank"),
        ("x ", "does not begin or end with a blank"),
        ("a\nb", "no control characters"),
        ("x.auto-20260131T101500Z", "choose another name"),
        ("x.undo-20260131T101500Z-2", "choose another name"),
        ("-5m", "does not begin with `-`"),
    ] {
        p.fails(&["snapshot", "v.img", name], 1, says);
        p.fails(&["branch", "v.img", name], 1, says);
        p.ok(&["snapshot", "-q", "v.img", "x"]);
        p.fails(&["rename", "v.img", "x", name], 1, says);
        p.ok(&["send", "v.img", "x", "-o", "x.stream"]);
        p.fails(&["receive", "v.img", "x.stream", "-n", name], 1, says);
        p.ok(&["drop", "-q", "v.img", "x"]);
        fs::remove_file(p.path("x.stream")).unwrap();
    }
    p.ok(&["snapshot", "v.img", "two words"]);
}

/// The commands that change roots tell what they did, and have the same options for that.
#[test]
fn commands_tell_alike() {
    let p = Place::with_volume();
    let file = p.path("f");
    fs::write(&file, "f").unwrap();
    let made = p.json(&["snapshot", "v.img", "a", "--json"]);
    assert_eq!(
        (&made["name"], &made["kind"]),
        (&"a".into(), &"snapshot".into())
    );
    let made = p.json(&["branch", "--json", "v.img", "b"]);
    assert_eq!(
        (&made["name"], &made["kind"]),
        (&"b".into(), &"branch".into())
    );
    let logged = p.json(&["log", "--json", "v.img"]);
    let roots = logged["roots"].as_array().unwrap();
    let same = roots.iter().find(|root| root["name"] == "b").unwrap();
    assert_eq!(
        (&same["id"], &same["created"]),
        (&made["id"], &made["created"])
    );
    assert_eq!(p.ok(&["rename", "v.img", "a", "c"]), "Renamed a to c\n");
    assert_eq!(p.ok(&["rename", "-q", "v.img", "c", "d"]), "");
    assert_eq!(
        p.json(&["rename", "--json", "v.img", "d", "e"])["name"],
        "e"
    );
    let kept = p.json(&["restore", "--json", "v.img", "e"]);
    assert_eq!(kept["branch"], "main");
    assert!(kept["kept"].as_str().unwrap().starts_with("main.undo-"));
    assert_eq!(p.ok(&["send", "-q", "v.img", "e", "-o", "e.stream"]), "");
    let received = p.json(&["receive", "--json", "v.img", "e.stream"]);
    assert_eq!(received["kind"], "snapshot");
    assert_eq!(p.ok(&["receive", "-q", "v.img", "e.stream", "-n", "f"]), "");
    assert_eq!(p.json(&["drop", "--json", "v.img", "f"])["dropped"][0], "f");
    assert_eq!(p.ok(&["publish", "-q", "v.img", "b"]), "");
    assert_eq!(p.ok(&["drop", "-q", "v.img", "e"]), "");
}

/// What is printed to be typed again survives a shell.
#[test]
fn commands_to_take_back_are_quoted() {
    let p = Place::new();
    p.ok(&["mkfs", "-q", "--size", "64M", "it's mine.img"]);
    p.ok(&["branch", "it's mine.img", "two words"]);
    let said = p.ok(&["restore", "it's mine.img", "main", "-b", "two words"]);
    let line = said.lines().last().unwrap();
    let line = line.split("cairnfs ").nth(1).unwrap();
    let out = p.shell(&format!("\"$cairnfs\" {line}"), |_| {});
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{line}: {said}");
}

#[test]
fn snapshots_in_place_of_branches_are_named() {
    let p = Place::with_volume();
    p.ok(&["snapshot", "v.img", "a"]);
    p.ok(&["branch", "v.img", "b"]);
    let says = "v.img: c: invalid argument: a snapshot of a snapshot is the same one";
    p.fails(&["snapshot", "v.img", "c", "--of", "a"], 1, says);
    let says = "v.img: a: invalid argument: a snapshot cannot be changed";
    p.fails(&["publish", "v.img", "b", "--onto", "a"], 1, says);
    p.fails(&["publish", "v.img", "a"], 1, says);
    p.ok(&["branch", "v.img", "c", "--from", "a"]);
}

/// Output that fails is no difference.
#[test]
fn full_output_is_named() {
    let p = with_snapshot();
    p.ok(&["branch", "v.img", "b"]);
    change(&p);
    for (line, code) in [
        ("diff v.img a", 2),
        ("diff --json v.img a", 2),
        ("diff --stat v.img a", 2),
        ("log v.img", 1),
        ("log --json v.img", 1),
        ("publish --dry-run v.img b", 1),
        // Not "errors were corrected".
        ("check v.img", 8),
        ("check --json v.img", 8),
    ] {
        let out = p.shell(&format!("\"$cairnfs\" {line} >/dev/full"), |_| {});
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(
            said, "cairnfs: standard output: No space left on device\n",
            "{line}"
        );
        assert_eq!(out.status.code(), Some(code), "{line}");
    }
}

/// What is done can be told from what is not, by the exit code, and is said.
#[test]
fn work_that_cannot_be_told_is_done() {
    let p = with_snapshot();
    p.ok(&["branch", "v.img", "empty"]);
    change(&p);
    let send = p.ok_bytes(&["send", "v.img", "a"]);
    fs::write(p.path("stream"), send).unwrap();
    fs::create_dir(p.path("tree")).unwrap();
    let roots = || {
        let log = p.json(&["log", "--json", "v.img"]);
        let roots = log["roots"].as_array().unwrap().iter();
        roots.filter(|root| !root["name"].is_null()).count()
    };
    let mut before = roots();
    for (line, more) in [
        ("mkfs --size 64M w.img", 0),
        ("mkfs --force --json --size 64M w.img", 0),
        ("trim w.img", 0),
        ("trim --json w.img", 0),
        ("import --json tree v.img:/", 0),
        ("export --json v.img out.tar", 0),
        ("snapshot v.img b", 1),
        ("branch --json v.img c", 1),
        ("rename v.img c d", 0),
        ("restore v.img b", 1),
        // The branch goes, and the state before is kept.
        ("publish v.img d --theirs /", 0),
        ("receive v.img stream --name e", 1),
        ("drop v.img e", -1),
        ("backup v.img backups", 0),
        ("backup prune backups --keep-last 1", 0),
        ("restore-from backups copy.img", 0),
    ] {
        let out = p.shell(&format!("\"$cairnfs\" {line} >/dev/full"), |_| {});
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let expected = "cairnfs: standard output: No space left on device\n  \
            only this could not be printed: what the command was asked for is done\n";
        assert_eq!(said, expected, "{line}");
        assert_eq!(out.status.code(), Some(74), "{line}");
        let now = roots();
        assert_eq!(now as i64 - before as i64, more, "{line}");
        before = now;
    }
    for made in ["w.img", "out.tar", "copy.img"] {
        assert!(p.path(made).exists(), "{made}");
    }
    // Quiet commands have nothing to tell.
    let quiet = p.shell("\"$cairnfs\" snapshot -q v.img f >/dev/full", |_| {});
    assert_eq!(quiet.status.code(), Some(0));
    // One that has also failed says that.
    let failed = p.shell("\"$cairnfs\" drop v.img f none >/dev/full", |_| {});
    assert_eq!(failed.status.code(), Some(1));
}

/// A reader that is gone ends a command quietly, and does not undo or hide what was done.
#[test]
fn closed_pipes_are_no_panics() {
    let p = with_snapshot();
    change(&p);
    for line in [
        "log v.img",
        "log --json v.img",
        "diff v.img a",
        "diff -p v.img a",
        "diff --stat v.img a",
        "diff --json v.img a",
        "diff --name-only -z v.img a",
        "snapshot v.img s",
        "branch v.img b --json",
        "rename v.img s t",
        "restore v.img t",
        "publish v.img b",
        "drop --wait v.img t",
        "drop --json v.img absent",
    ] {
        let line = format!("{{ {{ \"$cairnfs\" {line}; echo $? >&3; }} | :; }} 3>&1");
        let out = p.shell(&line, |_| {});
        let code = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!said.contains("panicked"), "{line}: {said}");
        // Whether the reader is gone before the command writes is not known.
        assert!(["0", "1", "141"].contains(&&*code), "{line}: {code}");
    }
    let names = p.json(&["log", "--json", "v.img"]);
    let names = names["roots"].as_array().unwrap().iter();
    let names: Vec<&str> = names.filter_map(|r| r["name"].as_str()).collect();
    assert!(!names.contains(&"b") && !names.contains(&"t"), "{names:?}");
}

#[test]
fn times_are_those_of_the_named_zone() {
    let p = Place::with_volume();
    p.ok(&["snapshot", "v.img", "s"]);
    let told = |zone: &str, line: &str| {
        let out = p.shell(&format!("TZ={zone} $cairnfs {line}"), |_| ());
        let words = [out.stdout, out.stderr].concat();
        (
            out.status.code(),
            String::from_utf8_lossy(&words).into_owned(),
        )
    };
    let made = |zone: &str| {
        let (_, log) = told(zone, "log v.img");
        let line = log.lines().find(|line| line.starts_with("s ")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{}T{}:59", words[2], words[3])
    };
    let (utc, east) = (made("UTC0"), made("Asia/Kolkata"));
    assert!(east > utc, "{east} {utc}");
    let diff = |zone: &str, time: &str| told(zone, &format!("diff v.img main@{time}"));
    assert_eq!(diff("Asia/Kolkata", &east).0, Some(0));
    // There it was half a day later.
    assert_eq!(diff("Asia/Kolkata", &utc).0, Some(2));
    let (code, words) = diff("Nowhere/Land", &utc);
    assert_eq!(code, Some(2), "{words}");
    assert!(words.contains("set TZ to one such as"), "{words}");
    assert_eq!(diff("Nowhere/Land", "-0s").0, Some(0));
}

/// The times that ls(1) shows of a file are those that this shows of its copy, whatever `TZ` says.
#[test]
fn times_are_those_of_other_programs_in_each_zone() {
    let p = Place::with_volume();
    fs::create_dir(p.path("in")).unwrap();
    for (name, secs) in [("summer", 1_782_907_200), ("winter", 1_767_268_800)] {
        let file = fs::File::create(p.path("in").join(name)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(secs);
        file.set_modified(time).unwrap();
    }
    p.ok(&["import", "-q", "in", "v.img"]);
    for zone in [
        "UTC",
        "UTC0",
        "CET",
        "CET-1CEST",
        ":CET-1",
        "CET-1CEST,M3.5.0,M10.5.0/3",
        "EST5EDT",
        "EST5",
        "EST5EDT4,J60/2,J300",
        "<+03>-3",
        "ABC3:30",
        "Europe/Berlin",
        ":Europe/Berlin",
        "Asia/Kolkata",
        "europe/berlin",
        "posix/Europe/Berlin",
        "/usr/share/zoneinfo/Europe/Berlin",
        "nonsense",
        "AB1",
        "No/Where",
        "",
        ":",
    ] {
        let line = format!(
            "export TZ='{zone}'; ls -l --time-style='+%Y-%m-%d %H:%M' in | awk 'NR > 1 {{print $6, $7}}'; \
             \"$cairnfs\" ls -l v.img | awk '{{print $6, $7}}'"
        );
        let out = p.shell(&line, |_| ());
        let text = String::from_utf8_lossy(&out.stdout);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{zone}: {text}");
        assert_eq!(lines[..2], lines[2..], "{zone}");
    }
}

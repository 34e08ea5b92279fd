//! The forms of `cairnfs diff`: for programs as git has them, for terminals with columns and colours.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use cairnfs::Volume;

use crate::place::{Place, pattern};
use crate::roots::{change, with_snapshot};

fn shown(p: &Place, form: &[&str]) -> String {
    let out = p.run(&[&["diff", "v.img", "a", "main"], form].concat());
    assert_eq!(
        out.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

/// Without renames and directories, the forms for programs are git's byte for byte.
#[test]
fn names_are_those_of_git() {
    let p = Place::with_volume();
    let odd: [&[u8]; 5] = [
        b"new\nline",
        b"quo\"te \\",
        b"\xff\x1b",
        "wört".as_bytes(),
        b"plain",
    ];
    fs::create_dir(p.path("in")).unwrap();
    let path = |name: &[u8]| p.path("in").join(OsStr::from_bytes(name));
    for name in odd {
        fs::write(path(&[name, b".gone"].concat()), "gone").unwrap();
        fs::write(path(&[name, b".kept"].concat()), "kept").unwrap();
    }
    let commit = "git -c user.name=a -c user.email=a@b commit -q -m m";
    let line = format!("cd in && git init -q . && git add -A && {commit}");
    assert!(p.shell(&line, |_| {}).status.success());
    p.ok(&["import", "-q", "in", "v.img"]);
    p.ok(&["rm", "-r", "v.img:/.git"]);
    p.ok(&["snapshot", "v.img", "a"]);
    let volume = Volume::open(p.path("v.img")).unwrap();
    for name in odd {
        let of = |end: &[u8]| OsStr::from_bytes(&[name, end].concat()).to_owned();
        fs::remove_file(path(&[name, b".gone"].concat())).unwrap();
        fs::write(path(&[name, b".kept"].concat()), "kept, changed").unwrap();
        fs::write(path(&[name, b".new"].concat()), "new").unwrap();
        volume.remove_file(of(b".gone")).unwrap();
        volume.write(of(b".kept"), "kept, changed").unwrap();
        volume.write(of(b".new"), "new").unwrap();
    }
    volume.close().unwrap();
    let line = format!("cd in && git add -A && {commit}");
    assert!(p.shell(&line, |_| {}).status.success());
    for form in [
        &["--name-only"][..],
        &["--name-status"],
        &["--name-only", "-z"],
        &["--name-status", "-z"],
    ] {
        let ours = p.run(&[&["diff", "v.img", "a"], form].concat());
        let line = format!(
            "cd in && git -c core.quotePath=true diff --no-renames {} HEAD~ HEAD",
            form.join(" ")
        );
        let theirs = p.shell(&line, |_| {});
        assert!(theirs.status.success() && !theirs.stdout.is_empty());
        assert_eq!(
            String::from_utf8_lossy(&ours.stdout),
            String::from_utf8_lossy(&theirs.stdout),
            "{form:?}"
        );
        assert!(ours.stdout == theirs.stdout, "{form:?}");
    }
    let line = "\"$cairnfs\" diff v.img a main --name-only -z \"$(printf '\\377\\033.new')\"";
    assert_eq!(p.shell(line, |_| {}).stdout, b"\xff\x1b.new\0");
    p.fails(&["diff", "v.img", "a", "-z"], 2, "--name-only");
    p.fails(&["diff", "v.img", "a", "-z", "--stat"], 2, "--name-only");
    p.fails(
        &["diff", "v.img", "a", "--name-only", "--name-status"],
        2,
        "--name-status",
    );
}

/// A file that changed under all of its names is told where it is looked for.
#[test]
fn change_under_several_names_is_told_below_each() {
    let p = Place::with_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.create_dir("p").unwrap();
    volume.create_dir("q").unwrap();
    volume.write("p/f", "old\n").unwrap();
    volume.hard_link("p/f", "q/g").unwrap();
    volume.snapshot("a").unwrap();
    volume.write("q/g", "new\n").unwrap();
    volume.close().unwrap();
    for (place, name) in [("p", "p/f"), ("q", "q/g"), ("p/f", "p/f"), ("q/g", "q/g")] {
        let names = shown(&p, &["--name-status", place]);
        assert_eq!(names, format!("M\t{name}\n"));
        let patch = shown(&p, &["-p", place]);
        assert!(patch.contains(&format!("+++ b/{name}\n")), "{patch}");
    }
}

/// Each name of a file with several is told, and of a renamed file how much was kept.
#[test]
fn names_of_links_and_renames_are_told() {
    let p = Place::with_volume();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("linked", "linked").unwrap();
    volume.write("large", pattern(64 << 10)).unwrap();
    volume.write("both", "both").unwrap();
    volume.hard_link("both", "half").unwrap();
    volume.snapshot("a").unwrap();
    volume.hard_link("linked", "more").unwrap();
    volume.write("one", "one").unwrap();
    volume.hard_link("one", "two").unwrap();
    volume.remove_file("half").unwrap();
    let file = volume
        .open_with("large", cairnfs::OpenOptions::new().write(true))
        .unwrap();
    file.write_at(b"changed", 4096).unwrap();
    drop(file);
    volume.rename("large", "moved").unwrap();
    volume.close().unwrap();
    let expected = "D\thalf\nR093\tlarge\tmoved\nA\tmore\nA\tone\nA\ttwo\n";
    let mut lines: Vec<String> = shown(&p, &["--name-status"])
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort_by_key(|line| line.rsplit('\t').next().unwrap().to_owned());
    let mut wanted: Vec<&str> = expected.lines().collect();
    wanted.sort_by_key(|line| line.rsplit('\t').next().unwrap());
    assert_eq!(lines, wanted);
    let volume = Volume::open(p.path("v.img")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    volume.set_permissions("/", mode).unwrap();
    volume.close().unwrap();
    assert!(shown(&p, &["--name-only"]).starts_with(".\n"));
    let names = shown(&p, &["--name-only", "-z"]);
    assert!(
        names.contains("moved\0") && !names.contains("large"),
        "{names:?}"
    );
    let lines = shown(&p, &[]);
    assert!(lines.contains("A one  (also two)\n"), "{lines}");
}

/// The bars take the width that is left, and 80 columns where the width is not known.
#[test]
fn stat_scales_to_the_width() {
    let p = with_snapshot();
    let volume = Volume::open(p.path("v.img")).unwrap();
    volume.write("much", pattern(1 << 20)).unwrap();
    volume.write("half", pattern(1 << 19)).unwrap();
    volume.write("little", "x").unwrap();
    volume
        .create_dir_all("a/directory/with/a/very/long/path")
        .unwrap();
    volume
        .write("a/directory/with/a/very/long/path/below", "x")
        .unwrap();
    volume.close().unwrap();
    let stat = |columns: &str| {
        let line = format!("{columns} \"$cairnfs\" diff v.img a main --stat much half little");
        String::from_utf8(p.shell(&line, |_| {}).stdout).unwrap()
    };
    let bar = |stat: &str, name: &str| {
        let line = stat.lines().find(|line| line.contains(name)).unwrap();
        (line.len(), line.matches('+').count())
    };
    let (wide, narrow) = (stat("COLUMNS=120"), stat("COLUMNS=60"));
    assert_eq!(bar(&wide, "much").0, 120, "{wide}");
    assert_eq!(bar(&narrow, "much").0, 60, "{narrow}");
    assert_eq!(bar(&stat("unset COLUMNS;"), "much").0, 80);
    let (much, half) = (bar(&wide, "much").1, bar(&wide, "half").1);
    assert_eq!(much / 2, half, "{wide}");
    assert_eq!(bar(&wide, "little").1, 1, "{wide}");
    let line = "COLUMNS=40 \"$cairnfs\" diff v.img a --stat";
    let cut = String::from_utf8(p.shell(line, |_| {}).stdout).unwrap();
    assert!(cut.contains(".../"), "{cut}");
    assert!(
        cut.lines()
            .all(|line| line.len() <= 40 || line.contains(" added, ")),
        "{cut}"
    );
}

/// Runs a line on a terminal.
fn on_terminal(p: &Place, environment: &str, line: &str) -> String {
    let line = format!(
        "unset NO_COLOR COLUMNS; export TERM=xterm {environment}; \
         script -qec 'stty cols 90; \"$cairnfs\" {line}' /dev/null"
    );
    let out = p.shell(&line, |_| {});
    String::from_utf8_lossy(&out.stdout).replace("\r\n", "\n")
}

#[test]
fn terminals_get_columns_and_colours() {
    let p = with_snapshot();
    change(&p);
    let lines = on_terminal(&p, "", "diff v.img a");
    assert!(lines.contains("\x1b[32mA\x1b[0m fresh\n"), "{lines:?}");
    assert!(lines.contains("\x1b[31mD\x1b[0m gone\n"), "{lines:?}");
    let at = |path: &str| {
        let line = lines.lines().find(|line| line.contains(path)).unwrap();
        line.find('(').unwrap()
    };
    assert_eq!(at("small"), at("two words"), "{lines}");
    let patch = on_terminal(&p, "", "diff v.img a -p");
    assert!(
        patch.contains("\x1b[31m-two\x1b[0m\n\x1b[32m+2\x1b[0m\n"),
        "{patch:?}"
    );
    assert!(patch.contains("\x1b[36m@@ "), "{patch:?}");
    assert!(patch.contains("\x1b[1mdiff --git "), "{patch:?}");
    let stat = on_terminal(&p, "", "diff v.img a --stat");
    assert!(stat.contains("\x1b[32m+"), "{stat:?}");
    let log = on_terminal(&p, "", "log v.img");
    assert!(
        log.contains("\x1b[33ma   \x1b[0m") && log.contains("\x1b[32mmain"),
        "{log:?}"
    );
    assert!(log.contains("KIND"), "{log}");
    for (environment, line) in [
        ("NO_COLOR=1", "diff v.img a -p"),
        ("NO_COLOR=1", "log v.img"),
        ("TERM=dumb", "diff v.img a"),
        ("", "diff v.img a | cat"),
        ("", "diff v.img a --json"),
    ] {
        let plain = on_terminal(&p, environment, line);
        assert!(!plain.is_empty() && !plain.contains('\x1b'), "{plain:?}");
    }
}

//! `cairnfs try`: a program runs in a fork of what is mounted, and what it did is published, kept or
//! dropped.
//!
//! Contract: branch.try

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::PoisonError;
use std::thread;

use cairnfs_fuse::mountinfo::{self, MountEntry};

use crate::life::private_user;
use crate::place::{FORKS, MOUNT_COPIES, Place, able, arg, nap, said, succeed};
use crate::together::wait_for_space;
use crate::verbs::names;

/// Runs `cairnfs try` with words in a directory of the mount.
pub fn attempt(place: &Place, dir: &str, words: &[&str]) -> Output {
    let _no_copies = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    let mut command = place.command(&["try"]);
    command
        .args(words)
        .current_dir(place.at(dir))
        .output()
        .unwrap()
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The forks that are left.
pub fn forks(place: &Place) -> Vec<String> {
    let mut names = names(place);
    names.retain(|name| name.starts_with("try-"));
    names
}

/// A mounted volume with the file `d/f`.
pub fn begun() -> Place {
    let place = Place::mounted("128M", "");
    fs::create_dir(place.at("d")).unwrap();
    fs::write(place.at("d/f"), b"before").unwrap();
    place
}

/// No directory of a fork is left mounted.
fn assert_unmounted() {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let pid = format!("cairnfs-try-{}", std::process::id());
    assert!(!table.contains(&pid), "{table}");
}

#[test]
fn program_works_in_a_fork_under_the_same_path() {
    if !able(&[]) {
        return;
    }
    let place = begun();
    let script = format!(
        "pwd; cat f; echo tried > {0}/d/f; echo new > g; rm -r {0}/d/none; test -n \"$CAIRNFS_BRANCH\"; exit 7",
        arg(&place.dir())
    );
    fs::create_dir(place.at("d/none")).unwrap();
    let output = attempt(&place, "d", &["--keep", "sh", "-c", &script]);
    assert_eq!(code(&output), 7, "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        format!("{}\nbefore", arg(&place.at("d")))
    );
    let said = text(&output.stderr);
    for line in ["M d/f", "A d/g", "D d/none/"] {
        assert!(said.contains(line), "{said}");
    }
    // The base is as it was.
    assert_eq!(fs::read(place.at("d/f")).unwrap(), b"before");
    assert!(place.at("d/none").exists() && !place.at("d/g").exists());
    let forks = forks(&place);
    let [fork] = &forks[..] else {
        panic!("{forks:?}")
    };
    place.mount_beside(&format!("branch={fork}"), "t");
    assert_eq!(fs::read(place.beside("t/d/f")).unwrap(), b"tried\n");
    place.umount_beside("t");
    assert_unmounted();
    place.finish();
}

#[test]
fn fork_is_dropped_if_nothing_changed_or_as_asked() {
    if !able(&[]) {
        return;
    }
    let place = begun();
    for words in [
        &["true"][..],
        &["--drop", "sh", "-c", "rm f"],
        &["--yes", "cat", "f"],
        &["--beside", "--drop", "sh", "-c", "rm f; pwd"],
    ] {
        let output = attempt(&place, "d", words);
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        assert!(place.at("d/f").exists());
    }
    let codes = [
        (&["nothing-of-this-name"][..], 127),
        (&["/etc/passwd"], 126),
        (&["sh", "-c", "kill -9 $$"], 137),
        (&["--name", "a/b", "true"], 125),
        (&["--volume", "/", "true"], 125),
        (&["--yes", "--drop", "true"], 2),
        (&["--keep"], 2),
    ];
    for (words, expected) in codes {
        let output = attempt(&place, "d", words);
        assert_eq!(
            code(&output),
            expected,
            "{words:?}: {}",
            text(&output.stderr)
        );
    }
    assert_eq!(forks(&place), [""; 0]);
    let output = attempt(&place, "", &["-q", "sh", "-c", "echo x > new"]);
    assert_eq!(code(&output), 0);
    assert_eq!(forks(&place).len(), 1, "kept without a terminal");
    assert!(text(&output.stderr).contains("cairnfs publish"));
    // What was asked for is not told.
    let output = attempt(&place, "", &["-q", "--keep", "sh", "-c", "echo x > new"]);
    assert_eq!((code(&output), text(&output.stderr)), (0, String::new()));
    assert_eq!(forks(&place).len(), 2);
    assert_unmounted();
    place.finish();
}

/// A fork that was published was a mount of its own, whose kernel has known its files.
#[test]
fn removed_files_of_published_forks_are_freed() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("128M", "");
    for _ in 0..5 {
        let words = ["--yes", "-q", "--", "dd", "if=/dev/zero", "of=big", "bs=1M"];
        let output = attempt(&place, "", &[&words[..], &["count=40"]].concat());
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        fs::remove_file(place.at("big")).unwrap();
    }
    wait_for_space(&place.dir(), 5 << 20);
    let replaced = |name: &String| name.starts_with("main.undo-");
    for name in names(&place).into_iter().filter(replaced) {
        place.ok(&["drop", "m", &name]);
    }
    for n in 0..27 {
        let script = format!("echo {n} > n; cat n > seen");
        let output = attempt(&place, "", &["--yes", "-q", "sh", "-c", &script]);
        assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        assert_eq!(
            fs::read(place.at("n")).unwrap(),
            format!("{n}\n").as_bytes()
        );
    }
    let kept = names(&place).into_iter().filter(replaced).count();
    assert_eq!(kept, 24);
    place.finish();
}

#[test]
fn forks_are_published_one_after_the_other_and_conflicts_kept() {
    if !able(&[]) {
        return;
    }
    let place = begun();
    let inside = std::env::current_dir().unwrap();
    let tries = |name: &str, script: &str, how: &str| {
        let output = attempt(&place, "d", &["--name", name, how, "sh", "-c", script]);
        (code(&output), text(&output.stderr))
    };
    for (name, script) in [
        ("a", "echo a > a; echo 1 >> both"),
        ("b", "mv f g; mkdir sub"),
        ("c", "echo changed > f"),
        ("e", "echo also > f"),
    ] {
        assert_eq!(tries(name, script, "--keep").0, 0);
    }
    assert_eq!(tries("failing", "echo x > x; false", "--yes").0, 1);
    assert!(!place.at("d/x").exists());
    for name in ["a", "b", "c"] {
        place.ok(&["publish", "m", name]);
    }
    assert_eq!(fs::read(place.at("d/g")).unwrap(), b"changed\n");
    assert!(place.at("d/sub").is_dir() && place.at("d/a").exists() && !place.at("d/f").exists());
    place.fails(&["publish", "m", "e"], 1, &["both changed the contents"]);
    // Published at once, while a shell is in the directory.
    let (code, said) = tries("now", "echo now > now", "--yes");
    assert!(code == 0 && said.contains("Published onto main"), "{said}");
    assert_eq!(fs::read(place.at("d/now")).unwrap(), b"now\n");
    let (code, said) = tries(
        "late",
        &format!("echo inner > a; echo outer > {}", arg(&place.beside("m-a"))),
        "--keep",
    );
    assert_eq!(code, 0, "{said}");
    fs::write(place.at("d/a"), b"outer").unwrap();
    place.fails(&["publish", "m", "late"], 1, &["d/a: both changed"]);
    let mut left = names(&place);
    left.retain(|name| !name.contains(".undo-"));
    assert_eq!(left, ["e", "failing", "late", "main"]);
    assert_eq!(std::env::current_dir().unwrap(), inside);
    place.finish();
}

#[test]
fn result_is_told_as_json() {
    if !able(&[]) {
        return;
    }
    let place = begun();
    let words = [
        "--json",
        "--name",
        "mine",
        "sh",
        "-c",
        "echo out; echo 12345 > d/f",
    ];
    let output = attempt(&place, "", &words);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["branch"], "mine");
    assert_eq!(told["end"], "kept");
    assert_eq!(told["exit_code"], 0);
    assert_eq!(told["changes"]["files"][0]["path"], "d/f");
    assert!(text(&output.stderr).contains("out\n"));
    place.finish();
}

#[test]
fn volume_that_is_not_mounted_is_published_onto() {
    if !able(&[]) {
        return;
    }
    let mut place = begun();
    place.umount();
    let words = [
        "try",
        "--volume",
        "v.cairn",
        "--yes",
        "sh",
        "-c",
        "cat d/f > d/g; rm d/f",
    ];
    let output = place.command(&words).output().unwrap();
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("Published onto main"));
    assert_eq!(place.ok(&["cat", "v.cairn:/d/g"]), "before");
    assert_eq!(forks(&place), [""; 0]);
    place.check();
}

/// Two pipes with names: a program says in one that it runs, and goes on when the other one is written.
pub struct Gate {
    runs: PathBuf,
    goes_on: PathBuf,
}

impl Gate {
    pub fn new(place: &Place, name: &str) -> Self {
        let pipe = |end: &str| place.beside(format!("{name}-{end}"));
        let (runs, goes_on) = (pipe("runs"), pipe("goes-on"));
        succeed(Command::new("mkfifo").args([&runs, &goes_on]));
        Self { runs, goes_on }
    }

    /// The part of a shell script that says it, and waits.
    pub fn script(&self) -> String {
        format!(
            "echo > {}; read line < {}",
            arg(&self.runs),
            arg(&self.goes_on)
        )
    }

    pub fn wait(&self) {
        fs::read(&self.runs).unwrap();
    }

    pub fn open(&self) {
        fs::write(&self.goes_on, "go\n").unwrap();
    }
}

/// The directory on which a fork is mounted.
pub fn mounted_on(place: &Place, fork: &str) -> Option<PathBuf> {
    let mut table = mountinfo::list(Path::new("/proc/self/mountinfo")).into_iter();
    let of_fork = |m: &MountEntry| mountinfo::branch_of(&m.source, &place.volume()) == Some(fork);
    let found = table.find(|m| m.is_ours() && of_fork(m))?;
    Some(found.mountpoint)
}

/// Publishes a fork as soon as nobody uses it.
fn publish_when_unused(place: &Place, volume: &str, fork: &str) {
    loop {
        let out = place.run(&["publish", volume, fork]);
        if out.status.success() {
            return;
        }
        let text = said(&out);
        assert!(
            text.contains("mounted") || text.contains("in use"),
            "{text}"
        );
        nap(20);
    }
}

#[test]
fn background_program_is_named_and_keeps_what_it_writes() {
    if !able(&["mkfifo"]) {
        return;
    }
    let place = begun();
    for how in ["beside", "inside"] {
        let gate = Gate::new(&place, how);
        let script = format!(
            "({}; echo late > {how}) > /dev/null 2>&1 & exit 0",
            gate.script()
        );
        let mut words = vec!["--name", how, "sh", "-c", &script];
        words.splice(0..0, (how == "beside").then_some("--beside"));
        let output = thread::scope(|scope| {
            scope.spawn(|| gate.wait());
            attempt(&place, "d", &words)
        });
        assert_eq!(code(&output), 125);
        let said = text(&output.stderr);
        for part in [
            &format!("note: the fork {how} is in use by"),
            "sh (pid",
            &format!("the fork {how} is kept"),
            "unmounted by itself",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // It is seen until they have ended, or by its programs only as soon as the daemon has
        // unmounted it.
        match how {
            "beside" => assert!(mounted_on(&place, how).is_some()),
            _ => {
                while mounted_on(&place, how).is_some() {
                    nap(20);
                }
            }
        }
        gate.open();
        publish_when_unused(&place, "m", how);
        assert_eq!(mounted_on(&place, how), None);
        assert_eq!(fs::read(place.at("d").join(how)).unwrap(), b"late\n");
    }
    place.finish();
}

#[test]
fn killed_try_leaves_the_fork_and_no_mount() {
    if !able(&["mkfifo"]) {
        return;
    }
    let mut place = begun();
    for (how, volume) in [("inside", "m"), ("beside", "m"), ("alone", "v.cairn")] {
        if how == "alone" {
            place.umount();
        }
        let gate = Gate::new(&place, how);
        let script = format!(
            "echo x > early-{how}; {}; echo y > late-{how}",
            gate.script()
        );
        let mut command = place.command(&["try", "--name", how]);
        match how {
            "alone" => command.args(["--volume", volume]),
            "beside" => command.current_dir(place.at("")).arg("--beside"),
            _ => command.current_dir(place.at("")),
        };
        let mut child = command.args(["sh", "-c", &script]).spawn().unwrap();
        gate.wait();
        let dir = mounted_on(&place, how).expect("it is mounted");
        child.kill().unwrap();
        child.wait().unwrap();
        // The program goes on, and what it does is kept, too.
        gate.open();
        publish_when_unused(&place, volume, how);
        assert_eq!(mounted_on(&place, how), None);
        // A daemon that ends with this mount may leave the directory, which is empty.
        while how != "alone" && dir.exists() {
            nap(20);
        }
        for when in ["early", "late"] {
            let path = format!("{when}-{how}");
            match how {
                "alone" => drop(place.ok(&["cat", &format!("v.cairn:/{path}")])),
                _ => assert!(place.at(&path).exists(), "{path}"),
            }
        }
    }
    place.check();
}

#[test]
fn try_ends_while_another_one_works() {
    if !able(&["mkfifo"]) {
        return;
    }
    let place = begun();
    let [first, second] = ["first", "second"].map(|name| Gate::new(&place, name));
    let run = |gate: &Gate, name: &str| {
        let script = format!("{}; echo x > {name}", gate.script());
        attempt(&place, "d", &["--yes", "--name", name, "sh", "-c", &script])
    };
    thread::scope(|scope| {
        let one = scope.spawn(|| run(&first, "one"));
        first.wait();
        let two = scope.spawn(|| run(&second, "two"));
        second.wait();
        first.open();
        let one = one.join().unwrap();
        second.open();
        for output in [one, two.join().unwrap()] {
            assert_eq!(code(&output), 0, "{}", text(&output.stderr));
        }
    });
    assert!(place.at("d/one").exists() && place.at("d/two").exists());
    place.finish();
}

#[test]
fn several_forks_at_once_see_only_their_own() {
    if !able(&[]) {
        return;
    }
    let place = begun();
    thread::scope(|scope| {
        for worker in 0..4 {
            let place = &place;
            scope.spawn(move || {
                let (name, script) = (format!("w{worker}"), "ls > all; test $(wc -l < all) = 2");
                let output = attempt(place, "d", &["--keep", "--name", &name, "sh", "-c", script]);
                assert_eq!(code(&output), 0, "{}", text(&output.stderr));
            });
        }
    });
    assert_eq!(names(&place), ["main", "w0", "w1", "w2", "w3"]);
    assert!(!place.at("d/all").exists());
    place.finish();
}

/// Where `/` is private, the kernel does not remove the copies of mounts in other namespaces.
#[test]
fn another_volume_is_unmounted_while_a_program_works() {
    if !able(&["mkfifo"]) {
        return;
    }
    let _copies = MOUNT_COPIES.write().unwrap_or_else(PoisonError::into_inner);
    let (place, mut unused, mut used, below) = (begun(), begun(), begun(), Place::new("16M"));
    fs::create_dir(place.at("below")).unwrap();
    let (volume, dir) = (below.volume(), place.at("below"));
    below.ok(&["mount", arg(&volume), arg(&dir)]);
    let gate = Gate::new(&place, "works");
    let file = arg(&used.at("d/f")).to_owned();
    let script = format!(
        "exec 3< {file}; {}; cat {} <&3; exec 3<&-; {}",
        gate.script(),
        arg(&unused.at("d/f")),
        gate.script()
    );
    let output = thread::scope(|scope| {
        let tried = scope.spawn(|| attempt(&place, "d", &["--drop", "sh", "-c", &script]));
        gate.wait();
        below.ok(&["umount", "--timeout", "590", arg(&dir)]);
        unused.umount();
        // What the program has open stays, and the message names the process. Where the system
        // propagates mounts, the kernel knows that it is in use.
        let words = ["umount", "--timeout", "3", "m"];
        let refused = said(&used.command(&words).output().unwrap());
        let is_busy = refused.contains("is busy");
        for part in ["is still open", "in the mount namespace of", "(pid "] {
            assert!(is_busy || refused.contains(part), "{refused}");
        }
        gate.open();
        gate.wait();
        if is_busy {
            used.umount()
        } else {
            used.wait_for_end()
        }
        gate.open();
        tried.join().unwrap()
    });
    // It does not see any more what is unmounted.
    assert_eq!(text(&output.stdout), "");
    assert!(text(&output.stderr).contains("No such file"), "{output:?}");
    for place in [&unused, &used, &below] {
        place.check();
    }
    place.finish();
}

#[test]
fn ordinary_user_tries_in_a_namespace_of_its_own() {
    if !able(&["unshare", "setpriv", "fusermount3"]) {
        return;
    }
    let place = Place::new("16M");
    fs::set_permissions(place.beside(""), Permissions::from_mode(0o777)).unwrap();
    place.copy_command();
    let script = r#"
        mkdir own/d; cd own/d; echo before > f
        $top/cairnfs try --keep --name it -- \
            sh -c 'pwd; id -u; cat f; echo x > f; cat $top/own/d/f' > $top/said
        test $(cat f) = before
        printf '%s\n' $top/own/d 65534 before x > $top/expected
        # Where the system has no namespaces for users, the fork has a directory of its own.
        if unshare --user true; then
            cmp $top/said $top/expected
        else
            grep /cairnfs-try- $top/said
        fi
        $top/cairnfs diff . main it > $top/differs || test $? = 1
        grep 'M d/f' $top/differs
"#;
    private_user(&place, script);
}

//! `cairnfs run`: programs do the same to the same files as through the kernel, in histories that a library
//! between them and libc could get wrong, and in random ones beside programs without it.
//!
//! Contract: posix

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::life::private_user;
use crate::place::{CAIRNFS, Place, able, arg, may_drop_caches, said, shell, succeed};

const HISTORIES: &str = include_str!("histories.py");
const REACHED: &str = include_str!("reached.py");
const LOOKED: &str = include_str!("looked.py");
const WORKER: &str = include_str!("worker.py");
const SEQUENCES: &str = include_str!("sequences.py");
const SIGNALS: &str = include_str!("signals.c");
const FORKS: &str = include_str!("forks.c");
const CROWD: &str = include_str!("crowd.py");

/// Builds the library, which is of another package, beside the command.
pub fn build() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "cairnfs-preload"]);
        if Path::new(CAIRNFS)
            .parent()
            .is_some_and(|dir| dir.ends_with("release"))
        {
            cargo.arg("--release");
        }
        succeed(cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
    });
}

/// A mounted volume with the scripts beside it.
fn begun(size: &str, options: &str) -> Place {
    build();
    let place = Place::mounted(size, options);
    for (name, text) in [
        ("histories.py", HISTORIES),
        ("reached.py", REACHED),
        ("looked.py", LOOKED),
        ("worker.py", WORKER),
        ("sequences.py", SEQUENCES),
        ("crowd.py", CROWD),
    ] {
        fs::write(place.beside(name), text).unwrap();
    }
    place
}

/// Prepares to run a program in the root of the mount.
fn run(place: &Place, words: &[&str]) -> Command {
    let mut command = place.command(&["run"]);
    command.args(words).current_dir(place.dir());
    command
}

/// Lets one of the histories happen.
fn history(place: &Place, name: &str, more: &[&str]) {
    history_of(place, "histories", name, more);
}

/// Lets one of those in a script happen.
fn history_of(place: &Place, script: &str, name: &str, more: &[&str]) {
    let script = place.beside(format!("{script}.py"));
    let words = [&["python3", arg(&script), name], more].concat();
    succeed(&mut run(place, &words));
}

macro_rules! histories {
    ($script:ident: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                if able(&["python3", "bash"]) {
                    let place = begun("128M", "allow_other");
                    history_of(&place, stringify!($script), stringify!($name), &[]);
                    place.finish();
                }
            }
        )*
    };
}

histories! {
    histories: tail offsets descends closes_on_exec moves working_directory threads full_table sizes closes
    umasks behind_the_back mounts_inside bound copies from_outside freed
    directories removed_trees
}

histories! {
    looked: looks absent opened_again mapped whole_pages whole_reads long_paths beside_the_kernel advised
}

histories! {
    reached: links_of_process by_process descriptor_paths executed streams
    closed_listing removed no_clone no_socket
}

#[test]
fn signals() {
    if !able(&["cc"]) {
        return;
    }
    let place = begun("128M", "");
    let said = run_compiled(&place, "signals", SIGNALS);
    let counts: Vec<usize> = said
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    let log = fs::read_to_string(place.at("log")).unwrap();
    let seen = |line| log.lines().filter(|l| *l == line).count();
    assert_eq!(counts, [0, seen("line"), seen("signal")]);
    assert_eq!(
        fs::read_dir(place.dir()).unwrap().count(),
        1 + counts[2] / 2
    );
    place.finish();
}

/// Compiles a program beside a volume, and runs it there; returns what it says.
fn run_compiled(place: &Place, name: &str, text: &str) -> String {
    let (source, program) = (place.beside(format!("{name}.c")), place.beside(name));
    fs::write(&source, text).unwrap();
    succeed(Command::new("cc").args(["-O1", "-o", arg(&program), arg(&source)]));
    succeed(&mut run(place, &[arg(&program)]))
}

#[test]
fn forks_in_handlers() {
    if able(&["cc"]) {
        let place = begun("128M", "");
        assert_eq!(run_compiled(&place, "forks", FORKS).trim(), "0");
        place.finish();
    }
}

#[test]
fn user() {
    if !able(&["python3", "bash"]) {
        return;
    }
    let place = begun("128M", "allow_other");
    // The other user has to reach the mount.
    succeed(Command::new("chmod").args(["755", arg(&place.beside(""))]));
    history(&place, "user", &[]);
    place.finish();
}

#[test]
fn read_only_and_busy() {
    if !able(&["python3", "bash"]) {
        return;
    }
    let place = begun("128M", "");
    history(&place, "read_only", &[arg(&place.dir())]);
    history(&place, "busy", &[arg(&place.dir())]);
    place.check();
}

#[test]
fn killed() {
    if !able(&["python3", "bash"]) {
        return;
    }
    let mut place = begun("128M", "");
    history(&place, "killed", &[&place.daemon_pid().to_string()]);
    place.wait_for_end();
    // The dead mount stays.
    place.umount();
    place.check();
    place.mount("");
    for n in 0..20 {
        let synced = fs::read(place.at(format!("synced{n}")));
        assert_eq!(synced.unwrap(), b"durable");
    }
    place.finish();
}

#[test]
fn stale() {
    if !able(&["python3", "bash"]) {
        return;
    }
    let place = begun("128M", "");
    history(&place, "stale", &[CAIRNFS, arg(&place.volume())]);
    place.finish();
}

#[test]
fn full() {
    if !able(&["python3", "bash"]) {
        return;
    }
    let place = begun("32M", "");
    history(&place, "full", &[]);
    place.finish();
}

/// A directory with a tree of many small files, links and directories.
fn sources(place: &Place) -> PathBuf {
    let dir = place.beside("sources");
    let script = "for d in a b c/d; do mkdir -p $d; for n in {1..60}; do \
                  head -c $((n * 90)) /dev/urandom > $d/$n; done; done; \
                  ln -s ../a c/link; ln a/1 c/hard; chmod 755 a/2; chmod 4711 a/3; touch -d @7 b/9; \
                  mkdir empty; chmod 700 empty; : > c/none";
    fs::create_dir(&dir).unwrap();
    shell(&dir, script);
    dir
}

/// Names, contents and attributes of a tree, without its root.
fn tree(dir: &Path) -> String {
    let script = "find . -mindepth 1 -printf '%p %y %m %n %U %G %T@ %l\\n' | sort; \
                  find . -type f -printf '%p %s ' -exec sha256sum {} ';' | sort";
    shell(dir, script)
}

#[test]
fn archives_and_copies_are_equal() {
    if !able(&["tar", "cp", "rm", "git"]) {
        return;
    }
    let place = begun("256M", "");
    let sources = sources(&place);
    let archive = place.beside("s.tar");
    let pack = [
        "-c",
        "--format=posix",
        "-f",
        arg(&archive),
        "-C",
        arg(&sources),
        ".",
    ];
    succeed(Command::new("tar").args(pack));
    fs::create_dir(place.at("t")).unwrap();
    let unpack = ["--stats", "--", "tar", "xf", arg(&archive), "-C", "t"];
    let unpacked = run(&place, &unpack).output().unwrap();
    let text = said(&unpacked);
    assert!(unpacked.status.success(), "{text}");
    // Nearly all of it was done without the kernel.
    let made = text
        .lines()
        .find(|line| line.ends_with("files made"))
        .unwrap();
    let made: u32 = made.split_whitespace().next().unwrap().parse().unwrap();
    assert!(made >= 180, "{text}");
    succeed(&mut run(&place, &["cp", "-a", arg(&sources), "c"]));
    let expected = tree(&sources);
    for dir in ["t", "c"] {
        assert_eq!(tree(&place.at(dir)), expected, "{dir}");
    }
    succeed(&mut run(&place, &["cp", "-a", "c", "d"]));
    assert_eq!(tree(&place.at("d")), expected);
    succeed(&mut run(&place, &["rm", "-r", "c", "t"]));
    let script = "git init -q r; cd r; git config user.email a@b; git config user.name a; \
                  cp -a ../d/b .; git add .; git commit -qm 1; git gc -q; git clone -q . ../s; \
                  git -C ../s fsck --strict; git -C ../s status --porcelain; rm -r b; git checkout -q .";
    assert_eq!(succeed(&mut run(&place, &["bash", "-euc", script])), "");
    assert_eq!(
        place.sh("diff -r r/b s/b; diff -r r/b d/b; ls"),
        "d\nr\ns\n"
    );
    place.finish();
}

/// Random calls of two programs with the library and two without it on the same names, each compared with
/// the same call in a directory of another file system.
#[test]
fn random_sequences_are_those_of_another_file_system() {
    if !able(&["python3"]) {
        return;
    }
    let place = begun("512M", "");
    let other = place.beside("other");
    fs::create_dir(&other).unwrap();
    mount(c"tmpfs", &other, c"tmpfs", MountFlags::empty(), None).unwrap();
    // The sequences drop what the machine has cached of names.
    let _caches = may_drop_caches();
    let done = (1..=cairnfs_tier::size(2, 100)).try_for_each(|seed| {
        let script = [place.beside("sequences.py"), place.beside("worker.py")];
        let (seed, dir) = (seed.to_string(), place.dir());
        let words = [
            arg(&script[0]),
            arg(&script[1]),
            &seed,
            "500",
            arg(&dir),
            arg(&other),
        ];
        let mut command = Command::new("python3");
        command.args(words).args([CAIRNFS, "run", "--"]);
        command.env("XDG_RUNTIME_DIR", place.runtime());
        let out = command.output().unwrap();
        if out.status.success() {
            Ok(())
        } else {
            Err(said(&out))
        }
    });
    unmount(&other, UnmountFlags::DETACH).unwrap();
    if let Err(difference) = done {
        panic!("{difference}");
    }
    place.finish();
}

#[test]
fn without_a_library_or_a_program_it_says_what_to_do() {
    if !able(&[]) {
        return;
    }
    let place = begun("64M", "");
    let alone = place.beside("alone");
    fs::create_dir(&alone).unwrap();
    let command = alone.join("cairnfs");
    succeed(Command::new("cp").args([CAIRNFS, arg(&command)]));
    let out = Command::new(&command)
        .args(["run", "true"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(said(&out).contains("cairnfs-preload"), "{}", said(&out));
    for (words, code) in [
        (&["no-such-program"][..], 127),
        (&["/"], 126),
        (&["sh", "-c", "exit 7"], 7),
        (&["--stats", "--", "sh", "-c", "kill -9 $$"], 137),
    ] {
        let out = run(&place, words).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{words:?}: {}", said(&out));
    }
    let variables = succeed(&mut run(&place, &["--env"]));
    let script = format!("{variables}mkdir d; : > d/f; ls d");
    let dir = place.dir();
    assert_eq!(shell(&dir, &script), "f\n");
    place.finish();
}

/// Programs with the library and without it change the same names at the same time. What the kernel has
/// cached afterwards is what the volume has.
#[test]
fn what_the_kernel_has_cached_is_what_a_crowd_of_programs_has_left() {
    if !able(&["python3"]) {
        return;
    }
    let mut place = begun("256M", "");
    let script = place.beside("crowd.py");
    for round in 0..cairnfs_tier::size(2, 30) {
        let programs: Vec<_> = (0..5)
            .map(|number| {
                let seed = (round * 10 + number).to_string();
                let words = ["python3", arg(&script), &seed, "2000"];
                let mut command = match number {
                    0..3 => run(&place, &words),
                    _ => Command::new("python3"),
                };
                if number >= 3 {
                    command.args(&words[1..]).current_dir(place.dir());
                }
                command.stdin(Stdio::null()).spawn().unwrap()
            })
            .collect();
        for mut program in programs {
            assert!(program.wait().unwrap().success());
        }
        let cached = tree(&place.dir());
        place.remount("");
        assert_eq!(tree(&place.dir()), cached, "round {round}");
        place.sh("find . -mindepth 1 -delete");
    }
    place.finish();
}

/// Makes a file, and prints what its descriptor is: a placeholder is one of the root of the mount.
const MADE: &str = "import os, sys
made = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(made, b'text')
print(os.readlink(f'/proc/self/fd/{made}'), flush=True)
os.close(made)
print(open(sys.argv[1]).read())";

#[test]
fn programs_in_forks_ask_the_daemon_too() {
    if !able(&["python3"]) {
        return;
    }
    let place = begun("128M", "");
    let dir = place.dir();
    let tried = |more: &[&str], name: &str| {
        let mut command = place.command(&["try", "--yes", "--quiet"]);
        let program = ["--", "python3", "-c", MADE, name];
        let said = succeed(command.args(more).args(program).current_dir(&dir));
        said.trim_end().to_owned()
    };
    assert_eq!(tried(&[], "served"), format!("{}\ntext", arg(&dir)));
    let by_kernel = tried(&["--no-preload"], "not-served");
    assert_eq!(by_kernel, format!("{}/not-served\ntext", arg(&dir)));
    for name in ["served", "not-served"] {
        assert_eq!(fs::read(dir.join(name)).unwrap(), b"text");
    }
    place.finish();
}

/// Such a program is in a user namespace of its own, in which it has its user.
#[test]
fn programs_of_ordinary_users_in_forks_ask_the_daemon_too() {
    if !able(&["python3", "unshare", "setpriv", "fusermount3"]) {
        return;
    }
    build();
    let place = Place::new("16M");
    fs::set_permissions(place.beside(""), Permissions::from_mode(0o777)).unwrap();
    place.copy_command();
    let library = Path::new(CAIRNFS).with_file_name("libcairnfs_preload.so");
    fs::copy(library, place.beside("libcairnfs_preload.so")).unwrap();
    fs::write(place.beside("made.py"), MADE).unwrap();
    let script = r#"
        cd own
        $top/cairnfs try --yes --quiet -- python3 $top/made.py served > $top/said
        # Where the system has no namespaces for users, the fork has a directory of its own.
        if unshare --user true; then
            printf '%s\n' $top/own text > $top/expected
            cmp $top/said $top/expected
        else
            grep /cairnfs-try- $top/said
        fi
        test $(cat served) = text
        test $(stat -c %u served) = 65534
"#;
    private_user(&place, script);
}

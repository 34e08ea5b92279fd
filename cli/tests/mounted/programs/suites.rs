//! The test suites of CPython's and Go's libraries, with their temporary directory on a mount and
//! on ext4: each test must end in the same way, except for those in the table of docs/testing.md.
//!
//! Contract: posix

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::modes::Ext4;
use crate::place::{Place, able, arg, said, succeed, tell};
use crate::programs::{FOR_ALL, open_to_all};

/// The result of each test, by its name.
type Results = BTreeMap<String, String>;

/// An ordinary user.
const USER: u32 = 65534;

/// How often a suite is run at most. Some of its tests measure time, and end differently now and
/// then wherever they run: a difference counts if it is there each time.
const RUNS: usize = 3;

/// Runs a suite as user `uid` in a directory on a mount and in one on ext4. `run` gets the
/// directory and a name for a file next to the volume.
fn compare(suite: &str, uid: u32, run: impl Fn(&Path, &Path) -> Results + Sync) {
    let place = Place::mounted("2G", FOR_ALL);
    open_to_all(&place);
    let ext4 = Ext4::mounted(&place);
    let documented = documented(suite);
    let mut wrong: Option<Differences> = None;
    for n in 0..RUNS {
        let name = format!("tmp{n}");
        let [mount, reference] = [place.at(&name), ext4.0.join(&name)];
        for dir in [&mount, &reference] {
            fs::create_dir(dir).unwrap();
            chown(dir, Some(uid), Some(uid)).unwrap();
        }
        let (found, expected) = thread::scope(|scope| {
            let beside = scope.spawn(|| run(&reference, &place.beside("ext4.results")));
            (run(&mount, &place.beside("mount.results")), beside.join())
        });
        let expected = expected.unwrap();
        println!("{suite}, user {uid}: {} tests", expected.len());
        let differences = differences(&found, &expected);
        let now: Differences = &differences ^ &documented;
        let still = wrong.map_or_else(|| now.clone(), |wrong| &wrong & &now);
        let over = still.is_empty();
        wrong = Some(still);
        if over {
            break;
        }
        tell(&format!("{suite}, user {uid}: differs in run {n}: {now:?}"));
    }
    assert_eq!(wrong, Some(Differences::new()), "{suite}");
    drop(ext4);
    place.finish();
}

/// Rows of the table of differences: test, result on a mount, result on ext4.
type Differences = BTreeSet<[String; 3]>;

fn differences(found: &Results, expected: &Results) -> Differences {
    let ended =
        |of: &Results, name: &str| of.get(name).map_or("not run", String::as_str).to_owned();
    let names = found.keys().chain(expected.keys());
    names
        .map(|name| [name.clone(), ended(found, name), ended(expected, name)])
        .filter(|[_, found, expected]| found != expected)
        .collect()
}

fn documented(suite: &str) -> Differences {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/testing.md");
    let text = fs::read_to_string(document).unwrap();
    let rows = text.lines().filter_map(|line| {
        let row = line.strip_prefix(&format!("| {suite} | "))?;
        let mut cells = row
            .split(" | ")
            .map(|cell| cell.trim_matches('`').to_owned());
        Some([cells.next()?, cells.next()?, cells.next()?])
    });
    rows.collect()
}

/// A command of user `uid` that runs in its own directory.
fn command(program: &str, uid: u32, dir: &Path) -> Command {
    let id = uid.to_string();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", program])
        .current_dir(dir)
        .env("TMPDIR", dir)
        .stdin(Stdio::null());
    command
}

/// Tests of CPython. Debian and Ubuntu leave `test_sqlite3` out of their packages.
const PYTHON: [&str; 7] = [
    "test_os",
    "test_posix",
    "test_shutil",
    "test_tarfile",
    "test_pathlib",
    "test_mailbox",
    "test_mmap",
];
const PYTHON_SQLITE: &str = "test_sqlite3";

/// Further tests of CPython that use files.
const PYTHON_LONG: &[&str] = &[
    "test_bufio",
    "test_bz2",
    "test_cmd_line_script",
    "test_dbm",
    "test_epoll",
    "test_fcntl",
    "test_file",
    "test_filecmp",
    "test_fileinput",
    "test_fileio",
    "test_genericpath",
    "test_glob",
    "test_gzip",
    "test_import",
    "test_io",
    "test_largefile",
    "test_logging",
    "test_lzma",
    "test_poll",
    "test_posixpath",
    "test_py_compile",
    "test_runpy",
    "test_select",
    "test_shelve",
    "test_stat",
    "test_tempfile",
    "test_unicode_file",
    "test_unicode_file_functions",
    "test_venv",
    "test_zipfile",
    "test_zipimport",
];

/// Whether an interpreter has a module.
fn has(python: &str, module: &str) -> bool {
    let ask = format!("import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)");
    let asked = Command::new(python).args(["-c", &ask]).output();
    asked.is_ok_and(|out| out.status.success())
}

fn python(python: &str, uid: u32, tests: &[&str], options: &[&str]) {
    assert!(
        has(python, "test.test_os"),
        "{python} lacks its own tests: libpython3-testsuite"
    );
    compare("CPython", uid, |dir, report| {
        fs::write(report, "").unwrap();
        chown(report, Some(uid), Some(uid)).unwrap();
        let mut command = command(python, uid, dir);
        command.args([
            "-m",
            "test",
            "--junit-xml",
            arg(&report),
            "--tempdir",
            arg(&dir),
        ]);
        let out = command.args(options).args(tests).output().unwrap();
        let results = junit(&fs::read_to_string(report).unwrap());
        for test in tests {
            let prefix = format!("test.{test}.");
            let some = results.keys().any(|name| name.starts_with(&prefix));
            assert!(some, "{test} did not run: {}", said(&out));
        }
        results
    });
}

/// Parses a report in the format of `regrtest --junit-xml`.
fn junit(report: &str) -> Results {
    let cases = report.split("<testcase ").skip(1).map(|case| {
        let name = case.split('"').nth(1).unwrap().to_owned();
        let ended = [
            ("<failure", "FAIL"),
            ("<error", "ERROR"),
            ("<skipped", "SKIP"),
        ];
        let ended = ended.iter().find(|(tag, _)| case.contains(tag));
        (name, ended.map_or("PASS", |(_, ended)| ended).to_owned())
    });
    cases.collect()
}

#[test]
#[ignore = "deep: programs of others"]
fn tests_of_cpython_end_as_on_ext4() {
    if !able(&["python3", "setpriv", "mkfs.ext4"]) {
        return;
    }
    let interpreter = ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(|p| has(p, "test.test_os"));
    let interpreter = interpreter.unwrap_or("python3");
    let mut tests = PYTHON.to_vec();
    if has(interpreter, &format!("test.{PYTHON_SQLITE}")) {
        tests.push(PYTHON_SQLITE);
    } else {
        tell(&format!(
            "SKIPPED {PYTHON_SQLITE}: {interpreter} does not have it"
        ));
    }
    python(interpreter, 0, &tests, &[]);
}

#[test]
#[ignore = "deep: programs of others"]
fn tests_of_cpython_by_a_user_end_as_on_ext4() {
    if able(&["/usr/bin/python3", "setpriv", "mkfs.ext4"]) {
        python("/usr/bin/python3", USER, &PYTHON, &[]);
    }
}

#[test]
#[ignore = "deep: takes minutes"]
fn more_tests_of_cpython_end_as_on_ext4() {
    if able(&["/usr/bin/python3", "setpriv", "mkfs.ext4"]) {
        python(
            "/usr/bin/python3",
            0,
            PYTHON_LONG,
            &["-u", "largefile,cpu,subprocess"],
        );
    }
}

const GO: [&str; 4] = ["os", "io/fs", "path/filepath", "archive/tar"];

/// Slow tests of the package `os` that use pipes only.
const GO_WITHOUT_FILES: &str = "TestVariousDeadlines";

#[test]
#[ignore = "deep: programs of others"]
fn tests_of_go_end_as_on_ext4() {
    if !able(&["go", "setpriv", "mkfs.ext4"]) {
        return;
    }
    let compiled = tempfile::tempdir().unwrap();
    succeed(Command::new("chmod").args(["755", arg(&compiled.path())]));
    let root = succeed(Command::new("go").args(["env", "GOROOT"]));
    let root = PathBuf::from(root.trim());
    let programs = GO.map(|package| {
        let program = compiled.path().join(package.replace('/', "."));
        succeed(Command::new("go").args(["test", "-c", "-o", arg(&program), package]));
        let source = root.join("src").join(package);
        let list = Command::new(&program)
            .args(["-test.list", "^Test"])
            .current_dir(&source)
            .output();
        let list = String::from_utf8(list.unwrap().stdout).unwrap();
        let tests: Vec<&str> = list
            .lines()
            .filter(|name| !name.starts_with(GO_WITHOUT_FILES))
            .collect();
        (package, program, source, format!("^({})$", tests.join("|")))
    });
    let run = |uid: u32| {
        compare("Go", uid, |dir, _| {
            let mut results = Results::new();
            for (package, program, source, tests) in &programs {
                let mut command = command(arg(program), uid, dir);
                let out = command
                    .args(["-test.v", "-test.run", tests])
                    .current_dir(source)
                    .output();
                let out = out.unwrap();
                let ended = verbose(&String::from_utf8_lossy(&out.stdout));
                assert!(!ended.is_empty(), "{package} did not run: {}", said(&out));
                results.extend(
                    ended
                        .into_iter()
                        .map(|(n, r)| (format!("{package}.{n}"), r)),
                );
            }
            results
        });
    };
    thread::scope(|scope| {
        scope.spawn(|| run(USER));
        run(0);
    });
}

/// Parses the output of `go test -v` for tests and subtests.
fn verbose(output: &str) -> Results {
    let results_by_name = output.split("--- ").skip(1).filter_map(|line| {
        let (ended, rest) = line.split_once(": ")?;
        let known = ["PASS", "FAIL", "SKIP"].contains(&ended);
        let name = rest.split_whitespace().next()?;
        known.then(|| (name.to_owned(), ended.to_owned()))
    });
    results_by_name.collect()
}

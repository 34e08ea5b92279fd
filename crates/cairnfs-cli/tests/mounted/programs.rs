//! Programs that people run, on a mounted volume: version control, compilers, databases, archives.
//!
//! Each test ends with the volume unmounted and checked, contents too. Sizes are the smallest that
//! show the behaviour.

use std::path::Path;
use std::process::Command;
use std::thread;

use crate::place::{Place, able, arg, pattern, shell, succeed};

/// Identity and settings of git that do not depend on who runs the test.
const GIT: &str = "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b \
                   GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; ";

#[test]
fn git_makes_clones_and_packs_a_repository() {
    if !able(&["git"]) {
        return;
    }
    let mut place = Place::mounted("1G", "");
    let make = "git init -q -b main own; cd own
        for c in 1 2 3 4 5 6 7 8 9 10; do
            mkdir -p d$c/e
            for f in $(seq 40); do seq $((c * f)) > d$c/e/f$f; done
            seq $c 2000 > changing
            git add -A; git commit -qm \"commit $c\"
        done
        git mv d1 moved; git rm -rq d2; git commit -qm moves
        git fsck --strict
        cd ..; git clone -q --no-local own clone; git clone -q own hardlinked
        git -C own gc -q --prune=now; git -C own fsck --strict --full
        git -C clone fsck --strict --full
        diff -r --exclude .git own clone; diff -r --exclude .git own hardlinked";
    place.sh(&format!("{GIT}{make}"));
    place.remount("");
    let again = "for r in own clone hardlinked; do
            git -C $r fsck --strict --full; test -z \"$(git -C $r status --porcelain)\"
            test $(git -C $r rev-list --count HEAD) = 11
        done";
    place.sh(&format!("{GIT}{again}"));
    place.finish();
}

#[test]
fn cargo_builds_and_rebuilds_a_crate() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    if !able(&["cc"]) {
        return;
    }
    let place = Place::mounted("2G", "");
    let root = place.at("small");
    std::fs::create_dir_all(root.join("src")).unwrap();
    let manifest =
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    std::fs::write(root.join("Cargo.toml"), manifest).unwrap();
    let main = "mod sum;\nfn main() { println!(\"{}\", sum::sum(&[40, 2])); }\n";
    std::fs::write(root.join("src/main.rs"), main).unwrap();
    let sum = "pub fn sum(n: &[u32]) -> u32 { n.iter().sum() }\n";
    std::fs::write(root.join("src/sum.rs"), sum).unwrap();
    let build = |verb: &str| {
        let mut command = Command::new(&cargo);
        command
            .args([verb, "-q", "--offline", "-j2"])
            .current_dir(&root);
        command
            .env("CARGO_TARGET_DIR", root.join("target"))
            .env_remove("RUSTFLAGS");
        succeed(&mut command)
    };
    assert_eq!(build("run"), "42\n");
    let program = root.join("target/debug/small");
    let first = std::fs::metadata(&program).unwrap().modified().unwrap();
    assert_eq!(build("run"), "42\n");
    assert_eq!(
        std::fs::metadata(&program).unwrap().modified().unwrap(),
        first,
        "built anew"
    );
    std::fs::write(root.join("src/sum.rs"), sum.replace("sum()", "product()")).unwrap();
    assert_eq!(build("run"), "80\n");
    place.finish();
}

/// Two thousand transactions, in journal mode `mode`, then two processes at once.
fn sqlite(mode: &str) {
    if !able(&["sqlite3"]) {
        return;
    }
    let mut place = Place::mounted("1G", "");
    let db = place.at("db");
    let run = |sql: &str| succeed(Command::new("sqlite3").arg("-bail").arg(&db).arg(sql));
    let begin = format!(
        "PRAGMA journal_mode={mode};
         CREATE TABLE t(n INTEGER PRIMARY KEY, who TEXT, x BLOB); CREATE INDEX i ON t(who, x);"
    );
    assert_eq!(run(&begin).trim(), mode);
    let insert = "INSERT INTO t(who, x) VALUES('a', randomblob(300));";
    let change = "UPDATE t SET x = randomblob(900) WHERE n = abs(random()) % 1000;";
    run(&format!(
        "PRAGMA synchronous=FULL;{}",
        format!("{insert}{change}").repeat(1000)
    ));
    thread::scope(|scope| {
        for who in ["b", "c"] {
            let insert = insert
                .replace('a', who)
                .replace(&format!("r{who}ndom"), "random");
            let sql = format!("PRAGMA busy_timeout=60000;{}", insert.repeat(200));
            scope.spawn(move || run(&sql));
        }
    });
    let ask = "PRAGMA integrity_check; SELECT who, count(*) FROM t GROUP BY who;";
    assert_eq!(run(ask), "ok\na|1000\nb|200\nc|200\n");
    place.remount("");
    assert_eq!(run(ask), "ok\na|1000\nb|200\nc|200\n");
    run("VACUUM;");
    assert_eq!(run(ask), "ok\na|1000\nb|200\nc|200\n");
    place.finish();
}

#[test]
fn sqlite_with_a_write_ahead_log() {
    sqlite("wal");
}

#[test]
fn sqlite_with_a_rollback_journal() {
    sqlite("delete");
}

/// Checksums of all files below `dir`, and all that is not a file, in order of names.
fn sums(dir: &Path) -> String {
    let script = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
                  find . -printf '%y %m %U %G %l %p\\n' | LC_ALL=C sort";
    shell(dir, script)
}

#[test]
fn tar_in_and_out_of_twenty_thousand_files() {
    if !able(&["tar"]) {
        return;
    }
    let mut place = Place::mounted("4G", "");
    let source = place.beside("source");
    for dir in 0..101 {
        let sub = source.join(format!("{}/dir{dir}", dir % 10));
        std::fs::create_dir_all(&sub).unwrap();
        for file in 0..200 {
            let len = [0, 13, 700, 2500, 4096, 9000][(dir * 7 + file) % 6];
            let bytes = pattern((dir * 1000 + file) as u64, len);
            std::fs::write(sub.join(format!("file {file}")), bytes).unwrap();
        }
        std::os::unix::fs::symlink(format!("dir{dir}"), source.join(format!("link{dir}"))).unwrap();
    }
    std::fs::write(source.join("large"), pattern(1, 50_000_000)).unwrap();
    let expected = sums(&source);
    assert!(
        expected
            .lines()
            .filter(|line| line.starts_with("f "))
            .count()
            > 20_000
    );
    let script = format!(
        "mkdir in; tar -C {} -cf - . | tar -C in -xpf -",
        arg(&source)
    );
    place.sh(&script);
    assert!(sums(&place.at("in")) == expected, "what tar wrote differs");
    place.remount("");
    assert!(sums(&place.at("in")) == expected, "differs after a remount");
    let out = place.beside("out");
    std::fs::create_dir(&out).unwrap();
    place.sh(&format!("tar -C in -cf - . | tar -C {} -xpf -", arg(&out)));
    assert!(sums(&out) == expected, "what tar read differs");
    place.sh("cp -a in copy && diff -r --no-dereference in copy && rm -rf in");
    assert!(sums(&place.at("copy")) == expected, "what cp wrote differs");
    place.finish();
}

/// Runs one job of fio that verifies all it wrote, in both write modes.
fn fio(name: &str, options: &[&str]) {
    if !able(&["fio"]) {
        return;
    }
    for mode in ["write=through", "write=back"] {
        let place = Place::mounted("1G", mode);
        let mut command = Command::new("fio");
        command.current_dir(place.beside("")).args(options).args([
            &format!("--directory={}", arg(&place.dir())),
            &format!("--name={name}"),
            "--size=32m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--randseed=7",
            "--output-format=terse",
        ]);
        succeed(&mut command);
        place.finish();
    }
}

#[test]
fn fio_verifies_random_buffered_writes() {
    fio(
        "buffered",
        &[
            "--rw=randwrite",
            "--bsrange=512-128k",
            "--bs_unaligned",
            "--numjobs=2",
        ],
    );
}

#[test]
fn fio_verifies_fsynced_overwrites() {
    fio(
        "fsync",
        &["--rw=randwrite", "--bs=4k", "--fsync=64", "--loops=2"],
    );
}

#[test]
fn fio_verifies_direct_writes() {
    let direct = [
        "--rw=randwrite",
        "--bs=16k",
        "--direct=1",
        "--ioengine=libaio",
        "--iodepth=8",
    ];
    fio("direct", &direct);
}

#[test]
fn fio_verifies_a_memory_mapping() {
    fio(
        "mapped",
        &[
            "--rw=randrw",
            "--bs=4k",
            "--ioengine=mmap",
            "--fsync=256",
            "--numjobs=2",
        ],
    );
}

#[test]
fn eight_processes_at_once() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("2G", "");
    let script = "mkdir own$ME shared 2>/dev/null || test -d shared
        for r in 1 2 3; do
            for f in $(seq 150); do echo $ME $f > own$ME/$f; done
            for f in $(seq 50); do echo $ME > shared/$ME-$f; mv shared/$ME-$f shared/last-$f; done
            head -c 2000000 /dev/urandom > own$ME/data; cp own$ME/data shared/data-$ME
            cmp own$ME/data shared/data-$ME
            mv own$ME/data own$ME/data$r; ln own$ME/data$r shared/link-$ME-$r
            for f in $(seq 1 2 150); do rm own$ME/$f; done
        done
        test $(ls own$ME | wc -l) = 78; sha256sum own$ME/* > sums$ME";
    thread::scope(|scope| {
        for me in 0..8 {
            let dir = place.dir();
            scope.spawn(move || shell(&dir, &format!("ME={me}; {script}")));
        }
    });
    place.remount("");
    place.sh("cat sums* | sha256sum -c --quiet; test $(ls shared | wc -l) = $((50 + 8 + 24))");
    place.finish();
}

//! Programs in forks of one mounted volume, all at once, while others write to what was forked; then
//! their work is published, one after the other, and used where it has come to.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::AtomicBool;
use std::thread;

use super::packages::WHEEL;
use crate::kill_load::{beside, close, workers};
use crate::place::{Place, Random, able, said};
use crate::verbs::names;

/// What the forks begin with: a repository, two databases, a virtual environment and a crate.
const BASE: &str = r#"
    git init -q -b main repo
    for f in $(seq 40); do seq $((f * 7)) > repo/f$f; done
    git -C repo add -A; git -C repo commit -qm first; git -C repo gc -q
    for db in one two; do
        sqlite3 -bail $db.db 'PRAGMA journal_mode=wal; CREATE TABLE t(n INTEGER PRIMARY KEY, x BLOB);
            CREATE INDEX i ON t(x); INSERT INTO t(x) VALUES(randomblob(300));'
    done
    python3 wheel.py; python3 -m venv environment
    mkdir -p small/src; cd small
    printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n' > Cargo.toml
    printf 'fn main() { println!("{}", [40, 2].iter().sum::<i32>()); }\n' > src/main.rs
    test $("$CARGO" run -q --offline) = 42"#;

/// What runs in a fork, by the name of the fork.
const FORKS: [(&str, &str); 4] = [
    (
        "commits",
        r#"cd repo; git checkout -q -b topic
        for c in $(seq 10); do seq $c 900 > moving; git add -A; git commit -qm "commit $c"; done
        git checkout -q main; git rm -q f1; git commit -qm side; git merge -q -m merged topic
        git gc -q --prune=now; git fsck --strict --full"#,
    ),
    (
        // The program is killed, and its log has to be read again.
        "rows",
        r#"insert='INSERT INTO t(x) VALUES(randomblob(700)); SELECT max(n) FROM t;'
        (echo 'PRAGMA synchronous=FULL;'; yes "$insert") | sqlite3 -bail two.db > $TOLD &
        until test $(wc -l < $TOLD) -ge 200; do :; done
        kill -9 $!; wait; test -s two.db-wal"#,
    ),
    (
        "package",
        r#"environment/bin/pip install -q ./small-1.0-py3-none-any.whl
        test $(environment/bin/small) = 42"#,
    ),
    (
        "build",
        r#"cd small; sed -i s/sum/product/ src/main.rs; test $("$CARGO" run -q --offline) = 80"#,
    ),
];

/// What is true when the work of all of them has been published.
const PUBLISHED: &str = r#"
    git -C repo fsck --strict --full; test -z "$(git -C repo status --porcelain)"
    test $(git -C repo rev-list --count HEAD) = 13
    told=$(grep -c . $TOLD); found=$(sqlite3 two.db 'PRAGMA integrity_check; SELECT count(*) FROM t;')
    set -- $found; test $1 = ok; test $2 -gt $told
    test $(environment/bin/small) = 42; environment/bin/pip check -q
    built=$(stat -c %y small/target/debug/small)
    test $(cd small; "$CARGO" run -q --offline) = 80
    test "$(stat -c %y small/target/debug/small)" = "$built""#;

/// Work in a branch that is mounted by itself. Others change the same files.
const MOUNTED: &str = r#"
    cd repo; git checkout -q -b theirs; seq 5 > moving; git add -A; git commit -qm theirs
    git fsck --strict --full; cd ..
    sqlite3 -bail one.db 'BEGIN; INSERT INTO t(x) VALUES(zeroblob(100)); COMMIT; DELETE FROM t WHERE n = 1;'
    sqlite3 one.db 'PRAGMA integrity_check;' | grep -qx ok"#;

/// A script with the environment of all of them.
fn shell(place: &Place, mut command: Command, dir: &Path, script: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    command.args(["bash", "-euo", "pipefail", "-c", script]);
    command.current_dir(dir).env("CARGO", cargo);
    command.env("TOLD", place.beside("told"));
    let user = [
        "AUTHOR_NAME",
        "AUTHOR_EMAIL",
        "COMMITTER_NAME",
        "COMMITTER_EMAIL",
    ];
    command.envs(user.map(|what| (format!("GIT_{what}"), "a")));
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.env("GIT_CONFIG_NOSYSTEM", "1");
    for setting in ["NO_INDEX", "NO_CACHE_DIR", "DISABLE_PIP_VERSION_CHECK"] {
        command.env(format!("PIP_{setting}"), "1");
    }
    for inherited in ["CARGO_TARGET_DIR", "RUSTFLAGS"] {
        command.env_remove(inherited);
    }
    command
}

fn runs(place: &Place, dir: &Path, script: &str) {
    let mut command = shell(place, Command::new("env"), dir, script);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{script}: {}", said(&output));
}

/// Runs a script with `cairnfs try --yes`.
fn tries(place: &Place, name: &str, script: &str) {
    let command = place.command(&["try", "--yes", "--name", name, "--"]);
    let output = shell(place, command, &place.dir(), script).output();
    let output = output.unwrap();
    assert!(
        output.status.success() && said(&output).contains("Published onto main"),
        "{name}: {}",
        said(&output)
    );
}

/// Publishes a branch.
fn publish(place: &Place, words: &[&str]) -> Output {
    place.run(&[&["publish", "m"], words].concat())
}

#[test]
#[ignore = "deep: programs of others"]
fn programs_in_forks_at_once_are_published_onto_a_tree_in_use() {
    if !able(&["git", "sqlite3", "python3", "cc"]) {
        return;
    }
    let mut place = Place::mounted("2G", "");
    fs::write(place.at("wheel.py"), WHEEL).unwrap();
    let here = place.dir();
    runs(&place, &here, BASE);
    place.ok(&["branch", "m", "mounted"]);
    fs::create_dir(place.at("load")).unwrap();
    let mut loads = workers(&place.at("load"), &mut Random(0x666f_726b));
    // Databases could not be closed; there are others here.
    loads.truncate(6);
    beside(&mut loads, &AtomicBool::new(false), || {
        thread::scope(|scope| {
            for (name, script) in FORKS {
                let place = &place;
                scope.spawn(move || tries(place, name, script));
            }
            let place = &place;
            scope.spawn(move || {
                place.mount_beside("branch=mounted", "t");
                runs(place, &place.beside("t"), MOUNTED);
                place.umount_beside("t");
            });
        });
        runs(&place, &here, PUBLISHED);
        conflicts(&place);
    });
    close(&mut loads);
    let all_is_there = |place: &Place| {
        for load in &loads {
            load.verify("after the last publish");
        }
        runs(place, &place.dir(), PUBLISHED);
        runs(
            place,
            &place.dir(),
            "test $(git -C repo rev-list --count theirs) = 2",
        );
    };
    all_is_there(&place);
    place.remount("");
    all_is_there(&place);
    place.finish();
}

/// Publishes the branch whose files others have changed, too.
fn conflicts(place: &Place) {
    let one = "PRAGMA integrity_check; SELECT count(*), min(n) FROM t;";
    let rows = |expected: &str| {
        let script = format!("test \"$(sqlite3 one.db '{one}')\" = $'{expected}'");
        runs(place, &place.dir(), &script);
    };
    runs(
        place,
        &place.dir(),
        "sqlite3 one.db 'INSERT INTO t(x) VALUES(1), (2);'",
    );
    let refused = publish(place, &["mounted"]);
    assert_eq!(refused.status.code(), Some(1));
    for says in ["repo/.git/index: both", "one.db: both changed the contents"] {
        assert!(said(&refused).contains(says), "{}", said(&refused));
    }
    rows(r"ok\n3|1");
    runs(place, &place.dir(), PUBLISHED);
    let words = ["mounted", "--ours", "repo", "--theirs", "one.db"];
    let done = publish(place, &words);
    assert!(done.status.success(), "{}", said(&done));
    rows(r"ok\n1|2");
    runs(place, &place.dir(), PUBLISHED);
    let mut left = names(place);
    left.retain(|name| !name.contains(".undo-"));
    assert_eq!(left, ["main"]);
}

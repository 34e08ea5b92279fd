//! SQLite in all journal modes; and its state after it, or the daemon, is killed.

use std::process::Command;
use std::thread;

use crate::kill_load::{Database, Load};
use crate::place::{Place, Random, able, succeed};

/// Two thousand transactions in journal mode `mode`, then two concurrent processes.
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
fn sqlite_with_a_deleted_journal() {
    sqlite("delete");
}

#[test]
fn sqlite_with_a_truncated_journal() {
    sqlite("truncate");
}

#[test]
fn sqlite_with_a_persistent_journal() {
    sqlite("persist");
}

#[test]
fn sqlite_with_its_journal_in_memory() {
    sqlite("memory");
}

#[test]
fn sqlite_without_a_journal() {
    sqlite("off");
}

/// SQLite, or the daemon below it, is killed at any moment. With a journal in memory nothing is
/// guaranteed.
#[test]
fn sqlite_recovers_from_kills() {
    if !able(&["sqlite3"]) {
        return;
    }
    let mut place = Place::mounted("256M", "");
    let mut random = Random(0x5371_6c69_7465);
    for (mode, may_lose) in [("wal", 0), ("truncate", 0), ("persist", 0), ("delete", 1)] {
        let dir = place.at(mode);
        std::fs::create_dir(&dir).unwrap();
        for round in 0..6 {
            let mut database = Database::new((dir.clone(), Random(1)), mode);
            for _ in 0..random.below(60) {
                database.step().unwrap();
            }
            let daemon = round % 3 == 2;
            if daemon {
                place.kill();
            }
            database.kill();
            if daemon {
                place.mount("");
                // Without `synchronous=EXTRA`, SQLite does not sync the removal of the journal.
                database.forgive(may_lose);
            }
            database.verify(&format!("{mode}, round {round}"));
        }
    }
    place.finish();
}

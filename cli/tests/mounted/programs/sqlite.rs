//! SQLite in all journal modes; and its state after it, or the daemon, is killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use cairnfs_tier::size;

use crate::kill_load::{Database, Load};
use crate::place::{Place, Random, able, succeed};

/// Two transactions for each of many rows in journal mode `mode`, then two concurrent processes.
fn sqlite(mode: &str) {
    if !able(&["sqlite3"]) {
        return;
    }
    let (rows, beside) = (size(200, 1000), size(50, 200));
    let mut place = Place::mounted("1G", "");
    let db = place.at("db");
    let run = |sql: &str| succeed(Command::new("sqlite3").arg("-bail").arg(&db).arg(sql));
    let begin = format!(
        "PRAGMA journal_mode={mode};
         CREATE TABLE t(n INTEGER PRIMARY KEY, who TEXT, x BLOB); CREATE INDEX i ON t(who, x);"
    );
    assert_eq!(run(&begin).trim(), mode);
    let insert = "INSERT INTO t(who, x) VALUES('a', randomblob(300));";
    let change = format!("UPDATE t SET x = randomblob(900) WHERE n = abs(random()) % {rows};");
    run(&format!(
        "PRAGMA synchronous=FULL;{}",
        format!("{insert}{change}").repeat(rows)
    ));
    thread::scope(|scope| {
        for who in ["b", "c"] {
            let insert = insert
                .replace('a', who)
                .replace(&format!("r{who}ndom"), "random");
            let sql = format!("PRAGMA busy_timeout=60000;{}", insert.repeat(beside));
            scope.spawn(move || run(&sql));
        }
    });
    let ask = "PRAGMA integrity_check; SELECT who, count(*) FROM t GROUP BY who;";
    let all = format!("ok\na|{rows}\nb|{beside}\nc|{beside}\n");
    assert_eq!(run(ask), all);
    place.remount("");
    assert_eq!(run(ask), all);
    run("VACUUM;");
    assert_eq!(run(ask), all);
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
        for round in 0..size(3, 6) {
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

/// A program has a database open and does nothing, while a publish, then a restore, puts another one in
/// its place. Its next transaction is refused and leaves no journal, which the next program would take
/// for one of the new database.
#[test]
fn idle_program_does_not_harm_the_database_in_place_of_its_own() {
    if !able(&["sqlite3"]) {
        return;
    }
    let place = Place::mounted("200M", "");
    let db = place.at("db");
    let sql = |db: &Path, sql: &str| succeed(Command::new("sqlite3").arg("-bail").arg(db).arg(sql));
    let rows = |n: usize| "INSERT INTO t(x) VALUES(randomblob(300));".repeat(n);
    let begin = "PRAGMA journal_mode=delete; CREATE TABLE t(n INTEGER PRIMARY KEY, x BLOB);
        CREATE INDEX i ON t(x);";
    sql(&db, &format!("{begin} BEGIN; {} COMMIT;", rows(200)));
    place.ok(&["snapshot", "m", "begin"]);
    let work = format!(
        "DELETE FROM t WHERE n % 2 = 0; BEGIN; {} COMMIT;",
        rows(2000)
    );
    let published = ["sqlite3", "-bail", "db", &work];
    let tried = [&["try", "--yes", "--volume", "m", "--"], &published[..]].concat();
    for (change, count) in [
        (tried, "2100"),
        (vec!["restore", "m", "begin", "db"], "200"),
    ] {
        let mut idle = Command::new("sqlite3")
            .arg(&db)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = idle.stdin.take().unwrap();
        input.write_all(b"SELECT count(*) > 100 FROM t;\n").unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(idle.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "1\n");
        place.ok(&change);
        input.write_all(rows(1).as_bytes()).unwrap();
        drop(input);
        let ended = idle.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(told.contains("readonly database"), "{told}");
        let left: Vec<_> = fs::read_dir(place.dir())
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(left.len(), 1, "{left:?}");
        let found = sql(&db, "PRAGMA integrity_check; SELECT count(*) FROM t;");
        assert_eq!(found, format!("ok\n{count}\n"));
    }
    place.finish();
}

//! SQLite with a write-ahead log, each transaction synced: transactions of one insert, and of 1,000.

use std::fmt::Write;
use std::fs;

use super::tree::{SEED, text, words};
use super::{External, Inputs, Site, command, expect, warm};
use crate::Result;
use crate::phase::Meter;
use crate::random::Random;

/// The load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sqlite {
    /// Transactions of one insert; of 1,000 there are a fiftieth as many.
    pub transactions: u64,
}

/// Inserts of a large transaction.
const MANY: u64 = 1000;

/// Bytes of a row.
const ROW: u64 = 100;

impl Sqlite {
    /// Returns the phases: name, transactions, inserts of a transaction.
    fn phases(&self) -> [(&'static str, u64, u64); 2] {
        [
            ("1 insert a transaction", self.transactions, 1),
            (
                "1000 inserts a transaction",
                self.transactions.div_ceil(50),
                MANY,
            ),
        ]
    }
}

fn input(transactions: u64, inserts: u64) -> String {
    format!("sqlite-{transactions}-{inserts}.sql")
}

/// Returns the statements; the last prints the number of rows.
fn script(transactions: u64, inserts: u64) -> Result<String> {
    let (words, mut random) = (words(), Random::new(SEED, inserts));
    let mut sql = "PRAGMA journal_mode=WAL;\nPRAGMA synchronous=FULL;\n\
                   CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);\n"
        .to_owned();
    for _ in 0..transactions {
        sql.push_str("BEGIN;\n");
        for _ in 0..inserts {
            let row = text(&words, &mut random, ROW).replace('\n', " ");
            writeln!(sql, "INSERT INTO t(b) VALUES('{row}');")?;
        }
        sql.push_str("COMMIT;\n");
    }
    sql.push_str("SELECT 'rows', count(*) FROM t;\n");
    Ok(sql)
}

impl External for Sqlite {
    fn title(&self) -> String {
        format!(
            "SQLite, write-ahead log: {} transactions",
            self.transactions
        )
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("sqlite3", "transactions")
    }

    fn prepare(&self, inputs: &Inputs<'_>) -> Result<()> {
        self.phases()
            .into_iter()
            .try_for_each(|(_, transactions, inserts)| {
                inputs.once(&input(transactions, inserts), |path| {
                    Ok(fs::write(path, script(transactions, inserts)?)?)
                })
            })
    }

    fn measure(&self, site: &Site<'_>, meter: &mut Meter<'_>) -> Result<()> {
        site.run(&mut command("sqlite3", ["-version"]))?;
        for (phase, transactions, inserts) in self.phases() {
            let script = site.inputs.path(&input(transactions, inserts));
            warm(&script)?;
            let mut sqlite = command("sqlite3", ["-batch", "-bail"]);
            sqlite.arg(site.path(&format!("database-{inserts}")));
            sqlite.arg(format!(".read \"{}\"", script.display()));
            let printed = site.timed_one(meter, phase, transactions, sqlite)?;
            let rows = format!("rows|{}", transactions * inserts);
            expect(
                printed.contains("wal"),
                "SQLite did not use a write-ahead log",
                &printed,
            )?;
            expect(
                printed.lines().any(|line| line == rows),
                &format!("no `{rows}`"),
                &printed,
            )?;
        }
        meter.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_has_its_transactions_and_inserts() {
        let sql = script(7, 3).unwrap();
        assert_eq!(sql.matches("COMMIT;").count(), 7);
        assert_eq!(sql.matches("INSERT INTO").count(), 21);
        assert_eq!(sql, script(7, 3).unwrap());
        assert!(sql.contains("synchronous=FULL") && !sql.contains("('')"));
        // A line break would end the row's literal.
        assert!(sql.lines().all(|line| line.ends_with(';')), "{sql}");
        let sqlite = Sqlite { transactions: 2000 };
        let counts = sqlite.phases().map(|(_, count, inserts)| (count, inserts));
        assert_eq!(counts, [(2000, 1), (40, 1000)]);
    }
}

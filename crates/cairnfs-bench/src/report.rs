//! The figures of a run, as a table for people and as JSON for programs.
//!
//! A column of the table stands for a counter that the target has; what it has none of is left
//! out. JSON holds every counter, as totals.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::phase::Phase;

/// What a workload found.
pub struct Report {
    /// The workload.
    pub workload: &'static str,
    /// What was measured.
    pub target: String,
    /// By which calls.
    pub interface: &'static str,
    /// How the workload was set.
    pub settings: Vec<(&'static str, u64)>,
    /// What the operations are counted in, in the plural.
    pub unit: &'static str,
    /// The figures.
    pub phases: Vec<Phase>,
}

/// How a counter is shown.
enum Shown {
    /// As it is.
    Total,
    /// Divided by the operations.
    PerOperation,
    /// In KiB.
    Kibibytes,
    /// In MiB.
    Mebibytes,
}

/// The counters that the table shows, if the target has them.
const COLUMNS: &[(&str, &str, Shown)] = &[
    ("log_bytes", "log B/op", Shown::PerOperation),
    ("log_bytes", "log KiB", Shown::Kibibytes),
    ("log_records", "log records", Shown::Total),
    ("device_write_bytes", "written MiB", Shown::Mebibytes),
    ("device_writes", "writes", Shown::Total),
    ("device_flushes", "flushes", Shown::Total),
    ("commits", "commits", Shown::Total),
    ("vectors_reused", "reused", Shown::Total),
    ("items_cancelled", "cancelled", Shown::Total),
];

impl Report {
    /// Prints a table.
    pub fn print_table(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}: {} ({})",
            self.workload, self.target, self.interface
        )?;
        let settings: Vec<String> = self
            .settings
            .iter()
            .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
            .collect();
        writeln!(out, "{}\n", settings.join(", "))?;
        let rows = self.rows();
        let width = |column: usize| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        for row in &rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = width(column);
                match column {
                    0 => line.push_str(&format!("{cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let columns: Vec<_> = COLUMNS
            .iter()
            .filter(|(name, ..)| self.phases.iter().any(|p| counter(p, name).is_some()))
            .collect();
        let mut head: Vec<String> = vec!["phase".into(), self.unit.into(), "seconds".into()];
        head.push(format!("{}/s", self.unit));
        head.extend(columns.iter().map(|(_, title, _)| (*title).to_owned()));
        let mut rows = vec![head];
        for phase in &self.phases {
            let mut row = vec![phase.name.to_owned()];
            row.push(or_dash(phase.operations > 0, phase.operations.to_string()));
            row.push(format!("{:.3}", phase.time.as_secs_f64()));
            row.push(or_dash(phase.operations > 0, format!("{:.0}", rate(phase))));
            row.extend(columns.iter().map(|(name, _, shown)| {
                counter(phase, name).map_or("-".into(), |value| show(value, shown, phase))
            }));
            rows.push(row);
        }
        rows
    }

    /// Prints one JSON object.
    pub fn print_json(&self, out: &mut dyn Write) -> io::Result<()> {
        let settings: Map<String, Value> = object(&self.settings);
        let phases: Vec<JsonPhase> = self
            .phases
            .iter()
            .map(|phase| JsonPhase {
                phase: phase.name,
                operations: phase.operations,
                seconds: phase.time.as_secs_f64(),
                per_second: rate(phase),
                counters: object(&phase.counters),
            })
            .collect();
        let report = json!({
            "workload": self.workload,
            "target": self.target,
            "interface": self.interface,
            "settings": settings,
            "phases": phases,
        });
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)
    }
}

#[derive(Serialize)]
struct JsonPhase {
    phase: &'static str,
    operations: u64,
    seconds: f64,
    per_second: f64,
    counters: Map<String, Value>,
}

fn object(pairs: &[(&'static str, u64)]) -> Map<String, Value> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect()
}

fn counter(phase: &Phase, name: &str) -> Option<u64> {
    let found = phase.counters.iter().find(|(n, _)| *n == name);
    found.map(|(_, value)| *value)
}

/// Operations per second; 0 if there were none, or no time.
fn rate(phase: &Phase) -> f64 {
    let seconds = phase.time.as_secs_f64();
    match seconds > 0.0 {
        true => phase.operations as f64 / seconds,
        false => 0.0,
    }
}

fn show(value: u64, shown: &Shown, phase: &Phase) -> String {
    match shown {
        Shown::Total => value.to_string(),
        Shown::Kibibytes => format!("{:.1}", value as f64 / 1024.0),
        Shown::Mebibytes => format!("{:.1}", value as f64 / (1 << 20) as f64),
        Shown::PerOperation => or_dash(
            phase.operations > 0,
            format!("{:.1}", value as f64 / phase.operations as f64),
        ),
    }
}

fn or_dash(known: bool, text: String) -> String {
    match known {
        true => text,
        false => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report() -> Report {
        Report {
            workload: "fsmark",
            target: "somewhere".into(),
            interface: "library, by path",
            settings: vec![("threads", 2), ("fsync_each", 0)],
            unit: "files",
            phases: vec![
                Phase {
                    name: "create",
                    operations: 1000,
                    time: Duration::from_millis(500),
                    counters: vec![("log_bytes", 123_400), ("device_write_bytes", 3 << 20)],
                },
                Phase {
                    name: "sync",
                    operations: 0,
                    time: Duration::from_millis(20),
                    counters: vec![("log_bytes", 10), ("device_write_bytes", 0)],
                },
            ],
        }
    }

    #[test]
    fn the_table_shows_the_counters_there_are() {
        let mut out = Vec::new();
        report().print_table(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "fsmark: somewhere (library, by path)\n\
             threads 2, fsync each 0\n\
             \n\
             phase   files  seconds  files/s  log B/op  log KiB  written MiB\n\
             create   1000    0.500     2000     123.4    120.5          3.0\n\
             sync        -    0.020        -         -      0.0          0.0\n"
        );
    }

    #[test]
    fn json_holds_totals() {
        let mut out = Vec::new();
        report().print_json(&mut out).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["settings"]["threads"], 2);
        assert_eq!(value["phases"][0]["per_second"], 2000.0);
        assert_eq!(value["phases"][1]["counters"]["log_bytes"], 10);
    }
}

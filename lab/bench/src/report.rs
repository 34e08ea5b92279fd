//! The figures of a run, as a table and as JSON.
//!
//! The table omits columns for which the target or the workload has no figures. JSON contains every
//! counter, as totals.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use crate::lines::{Form, line, none, print_lines};
use crate::phase::{Pairs, Phase};
use crate::tally::Latency;

/// The figures of a workload.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Name of the workload.
    pub workload: &'static str,
    /// Name of the target.
    pub target: String,
    /// The calls used: in-process, or system calls.
    pub interface: &'static str,
    /// Settings of the workload.
    #[serde(serialize_with = "pairs")]
    pub settings: Vec<(&'static str, u64)>,
    /// Unit of the operations, in the plural.
    pub unit: &'static str,
    /// The measured phases.
    pub phases: Vec<Phase>,
    /// Ratios of figures, if the workload computes any.
    #[serde(serialize_with = "pairs")]
    pub ratios: Vec<(&'static str, f64)>,
}

fn pairs<T: Serialize, S: Serializer>(
    of: &[(&'static str, T)],
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    Pairs(of).serialize(to)
}

/// The format of a counter.
enum Shown {
    /// The value itself.
    Total,
    /// Divided by the operations.
    PerOperation,
    /// In KiB.
    Kibibytes,
    /// In MiB.
    Mebibytes,
}

/// Columns of counters, shown if the target has the counter.
const COLUMNS: &[(&str, &str, Shown)] = &[
    ("log_bytes", "log B/op", Shown::PerOperation),
    ("log_bytes", "log KiB", Shown::Kibibytes),
    ("device_write_bytes", "written B/op", Shown::PerOperation),
    ("device_write_bytes", "written MiB", Shown::Mebibytes),
    ("device_writes", "writes", Shown::Total),
    ("device_flushes", "flushes", Shown::Total),
    ("device_flushes", "flushes/op", Shown::PerOperation),
    ("commits", "commits", Shown::Total),
    ("vectors_reused", "reused", Shown::Total),
    ("items_cancelled", "cancelled", Shown::Total),
];

/// Columns of latencies, shown if any operation was timed.
const LATENCIES: &[(&str, Figure)] = &[
    ("p50 us", |latency| latency.p50),
    ("p90 us", |latency| latency.p90),
    ("p99 us", |latency| latency.p99),
    ("p99.9 us", |latency| latency.p99_9),
    ("max us", |latency| latency.max),
];

/// Selects one figure of a latency.
type Figure = fn(&Latency) -> u64;

/// A column: its title, and its cell for a phase.
type Column = (String, Box<dyn Fn(&Phase) -> Option<String>>);

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
        print_lines(&self.rows(), 1, Form::Text, "", out)?;
        for (name, value) in &self.ratios {
            writeln!(out, "{}: {value:.2}", name.replace('_', " "))?;
        }
        Ok(())
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let columns = self.columns();
        let mut rows = vec![line(&["phase"], columns.iter().map(|c| c.0.clone()))];
        for phase in &self.phases {
            let cells = columns.iter().map(|(_, cell)| cell(phase));
            let cells = cells.map(|cell| cell.unwrap_or_else(none));
            rows.push(line(&[phase.name], cells));
        }
        rows
    }

    fn columns(&self) -> Vec<Column> {
        let unit = self.unit;
        let any = |has: &dyn Fn(&Phase) -> bool| self.phases.iter().any(has);
        let mut columns = vec![
            column(unit, |p| some(p.operations, p.operations.to_string())),
            column("seconds", |p| Some(format!("{:.3}", p.time.as_secs_f64()))),
            column(format!("{unit}/s"), |p| {
                some(p.operations, format!("{:.0}", p.rate()))
            }),
        ];
        if any(&|p| p.bytes > 0) {
            columns.push(column("MiB/s", |p| {
                some(p.bytes, format!("{:.1}", p.mebibytes_per_second()))
            }));
        }
        if any(&|p| p.latency.is_some()) {
            columns.extend(
                LATENCIES.iter().map(|(title, of)| {
                    column(*title, |p| p.latency.as_ref().map(|l| micros(of(l))))
                }),
            );
        }
        for (name, title, shown) in COLUMNS {
            if any(&|p| p.counter(name).is_some()) {
                columns.push(column(*title, |p| {
                    p.counter(name).and_then(|value| show(value, shown, p))
                }));
            }
        }
        columns
    }

    /// Prints one JSON object.
    pub fn print_json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }
}

fn column(title: impl Into<String>, cell: impl Fn(&Phase) -> Option<String> + 'static) -> Column {
    (title.into(), Box::new(cell))
}

fn some(count: u64, text: String) -> Option<String> {
    (count > 0).then_some(text)
}

fn micros(nanos: u64) -> String {
    format!("{:.1}", nanos as f64 / 1000.0)
}

fn show(value: u64, shown: &Shown, phase: &Phase) -> Option<String> {
    match shown {
        Shown::Total => Some(value.to_string()),
        Shown::Kibibytes => Some(format!("{:.1}", value as f64 / 1024.0)),
        Shown::Mebibytes => Some(format!("{:.1}", value as f64 / (1 << 20) as f64)),
        Shown::PerOperation => {
            let each = value as f64 / phase.operations as f64;
            some(phase.operations, format!("{each:.1}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    fn phase(name: &'static str, operations: u64, millis: u64) -> Phase {
        Phase {
            name,
            operations,
            bytes: 0,
            time: Duration::from_millis(millis),
            latency: None,
            counters: Vec::new(),
            sum: false,
        }
    }

    fn report() -> Report {
        Report {
            workload: "fsmark",
            target: "somewhere".into(),
            interface: "system calls",
            settings: vec![("threads", 2), ("fsync_each", 0)],
            unit: "files",
            phases: vec![phase("create", 1000, 500), phase("sync", 0, 20)],
            ratios: Vec::new(),
        }
    }

    fn table(report: &Report) -> String {
        let mut out = Vec::new();
        report.print_table(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn table_has_columns_for_present_counters() {
        let mut report = report();
        report.phases[0].counters = vec![("log_bytes", 123_400), ("commits", 1000)];
        report.phases[1].counters = vec![("log_bytes", 10), ("commits", 0)];
        assert_eq!(
            table(&report),
            "fsmark: somewhere (system calls)\n\
             threads 2, fsync each 0\n\
             \n\
             phase   files  seconds  files/s  log B/op  log KiB  commits\n\
             create   1000    0.500     2000     123.4    120.5     1000\n\
             sync        -    0.020        -         -      0.0        0\n"
        );
    }

    #[test]
    fn table_has_columns_for_present_latencies_and_bytes() {
        let mut report = report();
        report.phases[0].bytes = 5 << 20;
        report.phases[0].latency = Some(Latency {
            count: 1000,
            p50: 1500,
            p90: 20_000,
            p99: 300_000,
            p99_9: 400_000,
            max: 4_000_000,
        });
        report.ratios = vec![("p50_beside_load_to_alone", 3.456)];
        assert_eq!(
            table(&report),
            "fsmark: somewhere (system calls)\n\
             threads 2, fsync each 0\n\
             \n\
             phase   files  seconds  files/s  MiB/s  p50 us  p90 us  p99 us  p99.9 us  max us\n\
             create   1000    0.500     2000   10.0     1.5    20.0   300.0     400.0  4000.0\n\
             sync        -    0.020        -      -       -       -       -         -       -\n\
             p50 beside load to alone: 3.46\n"
        );
    }

    #[test]
    fn json_contains_counter_totals() {
        let mut report = report();
        report.phases[1].counters = vec![("log_bytes", 10)];
        let mut out = Vec::new();
        report.print_json(&mut out).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["settings"]["threads"], 2);
        assert_eq!(value["phases"][0]["per_second"], 2000.0);
        assert_eq!(value["phases"][0]["latency_ns"], Value::Null);
        assert_eq!(value["phases"][1]["counters"]["log_bytes"], 10);
    }
}

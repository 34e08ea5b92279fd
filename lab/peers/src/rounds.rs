//! Runs each load on all stores in turn, round by round, each in a process of its own, and combines
//! the figures of all rounds.

use std::process::{Command, Stdio};

use cairnfs_bench::Result;
use cairnfs_bench::parts::{Conditions, Spread};
use serde::Serialize;
use serde_json::json;

use crate::args::Args;
use crate::load::{Durability, Figures, Load, Step};
use crate::store::Peer;

/// All that was measured.
#[derive(Serialize)]
pub struct Found {
    /// The machine and the command.
    pub conditions: serde_json::Value,
    /// The same in a few lines.
    #[serde(skip)]
    pub said: Vec<String>,
    /// The stores, in the order of all cells.
    pub stores: Vec<Peer>,
    /// The loads.
    pub tables: Vec<Table>,
    /// The figures of every round.
    pub runs: Vec<Run>,
}

/// The figures of one load, of all stores.
#[derive(Serialize)]
pub struct Table {
    /// What was done.
    pub load: Load,
    /// The figures.
    pub rows: Vec<Row>,
}

/// One figure, of all stores.
#[derive(Serialize)]
pub struct Row {
    /// The step.
    pub step: &'static str,
    /// The figure, with its unit.
    pub figure: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
    /// Its values.
    pub cells: Vec<Option<Spread>>,
}

/// One run.
#[derive(Serialize)]
pub struct Run {
    /// The round, from 0.
    pub round: usize,
    /// The store.
    pub store: Peer,
    /// What was done.
    pub load: Load,
    /// The figures.
    pub figures: Figures,
}

/// Measures everything that `args` asks for.
///
/// # Errors
/// The first failure of a store.
pub fn measure(args: &Args) -> Result<Found> {
    let (stores, loads) = (args.stores(), args.loads());
    let mut runs = Vec::new();
    for round in 0..args.rounds {
        for load in &loads {
            // Each round starts with a different store.
            for place in 0..stores.len() {
                let turn = (place + round) % stores.len();
                let Some(&store) = stores.get(turn) else {
                    continue;
                };
                eprintln!(
                    "round {} of {}: {}, {} blobs of {} bytes, durable: {}",
                    round + 1,
                    args.rounds,
                    store.name(),
                    load.blobs,
                    load.size,
                    load.durability.name()
                );
                runs.push(Run {
                    round,
                    store,
                    load: *load,
                    figures: child(args, store, load)?,
                });
            }
        }
    }
    let place = args.dir.display().to_string();
    let conditions = Conditions::new(&place, args.rounds);
    let mut said = vec![format!("Command: `{}`", conditions.command)];
    said.extend(conditions.short());
    let tables = loads.into_iter().map(|load| Table {
        rows: rows(&runs, &stores, &load),
        load,
    });
    Ok(Found {
        conditions: json!({
            "command": conditions.command,
            "kernel": conditions.kernel,
            "cpus": conditions.cpus,
            "cpu": conditions.cpu,
            "memory_bytes": conditions.memory,
            "dir": place,
            "rounds": conditions.rounds,
        }),
        said,
        tables: tables.collect(),
        stores,
        runs,
    })
}

/// Runs one load in a process of its own.
fn child(args: &Args, store: Peer, load: &Load) -> Result<Figures> {
    let done = Command::new(std::env::current_exe()?)
        .arg("--dir")
        .arg(&args.dir)
        .arg("--child")
        .arg(serde_json::to_string(&(store, load))?)
        .stderr(Stdio::inherit())
        .output()?;
    if done.status.success() {
        Ok(serde_json::from_slice(&done.stdout)?)
    } else {
        Err(format!("{}: {}", store.name(), done.status).into())
    }
}

/// A figure of a run; `None` if it does not apply, or was not counted.
type Figure = fn(&Load, &Figures) -> Option<f64>;

/// Title of a step, the figure, whether more is better, and its value.
const FIGURES: &[(&str, &str, bool, Figure)] = &[
    ("write", "blobs/s", true, |_, f| rate(f, "write")),
    ("write", "MB/s", true, |l, f| {
        Some(rate(f, "write")? * l.size as f64 / 1e6)
    }),
    ("write", "p50 us of a call", false, |_, f| {
        Some(f.step("write")?.latency_ns?.0 as f64 / 1e3)
    }),
    ("write", "p99 us of a call", false, |_, f| {
        Some(f.step("write")?.latency_ns?.1 as f64 / 1e3)
    }),
    ("write", "CPU us each", false, |_, f| cpu(f, "write")),
    ("write", "flushes per call", false, |l, f| {
        flushes(l, f, "write")
    }),
    ("write, sync", "seconds", false, |_, f| {
        Some(f.step("write")?.seconds + f.step("sync")?.seconds)
    }),
    ("write, sync", "bytes written per byte", false, |l, f| {
        written(l, &[f.step("write")?, f.step("sync")?])
    }),
    ("read", "blobs/s", true, |_, f| rate(f, "read")),
    ("read", "p99 us of a call", false, |_, f| {
        Some(f.step("read")?.latency_ns?.1 as f64 / 1e3)
    }),
    ("list", "names/s", true, |_, f| rate(f, "list")),
    ("delete", "blobs/s", true, |_, f| rate(f, "delete")),
    ("delete", "flushes per call", false, |l, f| {
        flushes(l, f, "delete")
    }),
    ("close", "seconds", false, |_, f| {
        Some(f.step("close")?.seconds)
    }),
    ("all", "bytes written per byte", false, |l, f| {
        written(l, &f.steps.iter().collect::<Vec<_>>())
    }),
    ("all", "anonymous memory, MiB", false, |_, f| {
        Some(f.anonymous as f64 / f64::from(1 << 20))
    }),
    ("all", "resident memory, peak MiB", false, |_, f| {
        Some(f.resident_peak as f64 / f64::from(1 << 20))
    }),
];

fn rate(figures: &Figures, step: &str) -> Option<f64> {
    let step = figures.step(step)?;
    (step.seconds > 0.0).then(|| step.blobs as f64 / step.seconds)
}

fn cpu(figures: &Figures, step: &str) -> Option<f64> {
    let step = figures.step(step)?;
    Some(step.cpu * 1e6 / step.blobs as f64)
}

fn flushes(load: &Load, figures: &Figures, step: &str) -> Option<f64> {
    if load.durability == Durability::None {
        return None;
    }
    let flushes = figures.step(step)?.device?.flushes;
    Some(flushes as f64 / load.calls() as f64)
}

fn written(load: &Load, steps: &[&Step]) -> Option<f64> {
    let devices = steps.iter().map(|step| step.device);
    let bytes: Option<u64> = devices.map(|device| Some(device?.write_bytes)).sum();
    Some(bytes? as f64 / (load.blobs * load.size) as f64)
}

fn rows(runs: &[Run], stores: &[Peer], load: &Load) -> Vec<Row> {
    let row = |&(step, figure, more_is_better, value): &(_, _, _, Figure)| Row {
        step,
        figure,
        more_is_better,
        cells: stores
            .iter()
            .map(|store| {
                let of = runs
                    .iter()
                    .filter(|run| run.store == *store && run.load == *load);
                Spread::of(of.filter_map(|run| value(load, &run.figures)).collect())
            })
            .collect(),
    };
    let all = FIGURES.iter().map(row);
    all.filter(|row| row.cells.iter().any(Option::is_some))
        .collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::load::Device;

    /// Figures of two stores in two rounds, of which the second store's file system has no device.
    pub fn found() -> Found {
        let load = Load {
            durability: Durability::Batch,
            size: 100,
            blobs: 2500,
            threads: 1,
            cache: 1,
        };
        let step = |name: &str, seconds, device| Step {
            name: name.to_owned(),
            blobs: 2500,
            seconds,
            latency_ns: None,
            cpu: 0.25,
            device,
        };
        let stores = vec![Peer::Cairnfs, Peer::Files];
        let mut runs = Vec::new();
        for (round, store, seconds) in [
            (0, Peer::Cairnfs, 0.5),
            (0, Peer::Files, 5.0),
            (1, Peer::Cairnfs, 0.25),
            (1, Peer::Files, 2.5),
        ] {
            let device = (store == Peer::Cairnfs).then_some(Device {
                writes: 3,
                write_bytes: 125_000,
                flushes: 6,
            });
            let figures = Figures {
                steps: vec![
                    step("write", seconds, device),
                    step("sync", 0.0, device),
                    step("close", 1.0, device),
                ],
                resident_peak: 3 << 20,
                anonymous: 1 << 20,
            };
            runs.push(Run {
                round,
                store,
                load,
                figures,
            });
        }
        Found {
            conditions: json!({}),
            said: vec!["Command: `x`".into(), "Linux".into()],
            tables: vec![Table {
                rows: rows(&runs, &stores, &load),
                load,
            }],
            stores,
            runs,
        }
    }

    #[test]
    fn figures_are_computed_from_steps() {
        let found = found();
        let value = |step, figure, store: usize| {
            let mut rows = found.tables[0].rows.iter();
            let row = rows.find(|row| (row.step, row.figure) == (step, figure));
            row.unwrap().cells[store].as_ref().map(|cell| cell.median)
        };
        assert_eq!(value("write", "blobs/s", 0), Some(7500.0));
        assert_eq!(value("write", "blobs/s", 1), Some(750.0));
        assert_eq!(value("write", "CPU us each", 0), Some(100.0));
        // 2,500 blobs are three calls.
        assert_eq!(value("write", "flushes per call", 0), Some(2.0));
        assert_eq!(value("write, sync", "bytes written per byte", 0), Some(1.0));
        assert_eq!(value("all", "bytes written per byte", 0), Some(1.5));
        assert_eq!(value("all", "bytes written per byte", 1), None);
        assert_eq!(value("all", "anonymous memory, MiB", 1), Some(1.0));
        assert!(!found.tables[0].rows.iter().any(|row| row.step == "list"));
    }
}

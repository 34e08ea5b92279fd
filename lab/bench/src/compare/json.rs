//! All results as JSON: each run of each round, and the combined figures.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::found::Found;
use super::summary;

/// Writes one object.
pub fn write(found: &Found, out: &mut dyn Write) -> io::Result<()> {
    let runs: Vec<Value> = found
        .runs
        .iter()
        .map(|run| {
            json!({
                "round": run.round,
                "system": run.system.to_string(),
                "task": run.task,
                "report": run.report,
            })
        })
        .collect();
    let systems: Vec<Value> = found
        .systems
        .iter()
        .map(|system| {
            json!({
                "name": system.to_string(),
                "interface": system.interface(),
                "in_process": system.in_process(),
            })
        })
        .collect();
    let tasks: Vec<Value> = found
        .tasks
        .iter()
        .zip(&found.rows)
        .map(|(task, rows)| {
            let (sweep, threads) = task.sweep.clone().unzip();
            json!({"title": task.title, "sweep": sweep, "threads": threads, "figures": rows})
        })
        .collect();
    let missing: Vec<Value> = found
        .missing
        .iter()
        .map(|missing| json!({"title": missing.title, "why": missing.why}))
        .collect();
    let all = json!({
        "command": found.conditions.command,
        "kernel": found.conditions.kernel,
        "cpus": found.conditions.cpus,
        "cpu": found.conditions.cpu,
        "memory_bytes": found.conditions.memory,
        "device": found.conditions.device,
        "rounds": found.conditions.rounds,
        "systems": systems,
        "tasks": tasks,
        "missing": missing,
        "summary": summary::json(found),
        "runs": runs,
    });
    serde_json::to_writer_pretty(&mut *out, &all)?;
    writeln!(out)
}

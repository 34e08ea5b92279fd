//! `scripts/plot` draws the JSON of comparisons and of embedded stores. That it reads what a comparison
//! writes is tested where one runs, in `cli/tests/mounted/compare.rs`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Runs the script; the pictures by their names, in their order.
fn draw(found: &Value) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let (file, pictures) = (dir.path().join("figures.json"), dir.path().join("a/b"));
    fs::write(&file, found.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/plot");
    let mut python = Command::new("python3");
    let drawn = python.args(["-B".as_ref(), script.as_path(), &file, &pictures]);
    assert!(drawn.status().unwrap().success());
    let entries = fs::read_dir(pictures).unwrap().map(|entry| entry.unwrap());
    let mut all: Vec<_> = entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        })
        .collect();
    all.sort();
    all
}

/// Panics unless tags are closed in order, attributes quoted, and text escaped; all text.
fn well_formed(svg: &str) -> Vec<String> {
    let (mut open, mut texts) = (Vec::new(), Vec::new());
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap();
        assert!(!text.contains('>'), "{part}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        assert!(!tag.contains("nan") && !tag.contains("inf"), "{tag}");
        if !text.trim().is_empty() {
            texts.push(text.to_owned());
        }
        match (tag.strip_prefix('/'), tag.ends_with('/')) {
            (Some(name), _) => assert_eq!(open.pop(), Some(name), "{part}"),
            (None, true) => {}
            (None, false) => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    texts
}

fn cell(least: f64, median: f64, most: f64) -> Value {
    json!({"least": least, "median": median, "most": most, "rounds": [least, median, most]})
}

/// A task of a sweep, with figures of three systems.
fn task(threads: u64) -> Value {
    let row = |phase, figure, kind, cells: [Value; 3]| json!({"phase": phase, "figure": figure, "kind": kind, "cells": cells});
    let rate = || cell(2500.0, 5000.0, 10_000.0);
    let figures = [
        row(
            "create",
            "files/s",
            "rate",
            [rate(), cell(150.0, 625.0, 1250.0), rate()],
        ),
        row(
            "walk",
            "files/s",
            "rate",
            [cell(18_000.0, 20_000.0, 30_000.0), Value::Null, rate()],
        ),
        row("walk", "CPU us each", "cost", [rate(), rate(), rate()]),
        row("close", "seconds", "time", [rate(), rate(), rate()]),
        row(
            "close",
            "p50 us",
            "time",
            [cell(0.0, 0.0, 0.0), Value::Null, Value::Null],
        ),
    ];
    let title = format!("fsmark --files 9; {threads} threads");
    json!({"title": title, "sweep": "fsmark --files 9", "threads": threads, "figures": figures})
}

#[test]
fn comparison_is_drawn_as_bars_and_over_threads() {
    let systems = [("cairnfs", true), ("noop", false), ("xfs", false)];
    let systems = systems.map(|(name, inside)| json!({"name": name, "in_process": inside}));
    let pictures = draw(&json!({
        "kernel": "6.1", "cpus": 2, "cpu": "A CPU", "memory_bytes": 1 << 30, "device": "/dev/x <&>",
        "rounds": 3, "systems": systems, "tasks": [task(2), task(1)],
    }));
    let names: Vec<_> = pictures.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "fsmark-files-9-1-threads.svg",
        "fsmark-files-9-2-threads.svg",
        "fsmark-files-9-over-threads.svg",
    ];
    assert_eq!(names, expected);
    let texts = well_formed(&pictures[0].1);
    for text in [
        "files/s; longer is better",
        "cairnfs (in-process)",
        "xfs",
        "5000",
        "20.0k",
        "not measured",
        "Linux 6.1, 2 x A CPU, 1024 MiB of memory; 3 rounds, interleaved.",
        "Device: /dev/x &lt;&amp;&gt;.",
    ] {
        assert!(texts.iter().any(|t| t == text), "{text}: {texts:?}");
    }
    let hidden =
        |text: &String| text.contains("CPU us") || text.contains("seconds") || text.contains("p50");
    assert!(!texts.iter().any(hidden), "{texts:?}");
    // A bar for each value, and one for each system in the legend, of which one is hatched.
    assert_eq!(
        pictures[0].1.matches("stroke=").count() - pictures[0].1.matches("<line").count(),
        8
    );
    assert_eq!(pictures[0].1.matches("fill=\"url(#cairnfs)\"").count(), 3);
    let lines = &pictures[2].1;
    let texts = well_formed(lines);
    let threads: Vec<_> = texts
        .iter()
        .filter(|t| ["1", "2"].contains(&t.as_str()))
        .collect();
    assert!(threads[0] == "1" && threads[1] == "2", "{texts:?}");
    assert_eq!(lines.matches("<polyline").count(), 5);
    assert_eq!(lines.matches("stroke-dasharray").count(), 2);
    // One scale begins at zero; the other one, whose least value is less than a twelfth, does not.
    for scale in ["higher is better", "higher is better; logarithmic"] {
        assert!(texts.contains(&format!("files/s; {scale}")), "{texts:?}");
    }
}

#[test]
fn stores_are_drawn_as_bars() {
    let row = |step, figure, cells: [Value; 2]| json!({"step": step, "figure": figure, "more_is_better": true, "cells": cells});
    let load = |threads: u64| json!({"durability": "batch", "size": 100, "blobs": 2500, "threads": threads, "cache": 1});
    let rows = [
        row(
            "write",
            "blobs/s",
            [cell(5000.0, 7500.0, 10_000.0), Value::Null],
        ),
        row("close", "seconds", [cell(1.0, 1.0, 1.0), Value::Null]),
    ];
    let pictures = draw(&json!({
        "conditions": {"kernel": "6", "cpus": 2, "cpu": "A", "memory_bytes": 0, "dir": "/d", "rounds": 1},
        "stores": ["cairnfs", "files"],
        "tables": [{"load": load(1), "rows": rows}, {"load": load(16), "rows": rows}],
    }));
    assert_eq!(pictures[0].0, "peers-100-batch-16-threads.svg");
    assert_eq!(pictures[1].0, "peers-100-batch.svg");
    let texts = well_formed(&pictures[1].1);
    for text in [
        "2500 blobs of 100 B, durable by 1,000",
        "7500",
        "not measured",
    ] {
        assert!(texts.iter().any(|t| t == text), "{text}: {texts:?}");
    }
    assert!(!texts.iter().any(|text| text == "close"));
}

//! `cairnfs bench compare`: workloads and programs on several file systems, in turn on one device,
//! and how their figures compare.
//!
//! `task` defines the work, `system` the file systems; `place` creates the device, `make` file
//! systems on it, and `undo` removes all of it in every case. `run` measures, with the kernel's
//! counters from `stats`; `figures` combines the runs of all rounds, and `table`, `sweep`, `grid`,
//! `saved`, `json` and `plot` present them with their `conditions`. Needs root.

mod conditions;
mod external;
mod figures;
mod grid;
mod json;
mod make;
mod place;
mod plot;
mod progress;
mod run;
mod saved;
mod stats;
mod svg;
mod sweep;
mod system;
mod table;
mod task;
mod undo;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::args::parse_size;
use conditions::Conditions;
use external::Program;
use figures::Row;
use place::Device;
use progress::Progress;
use run::{Ground, Run, order};
use system::System;
use table::Form;
use task::Task;
use undo::{Undo, Watch};

/// Measure several file systems in turn on one device, and compare them.
#[derive(Debug, Clone, clap::Args)]
pub struct Compare {
    /// What to measure, each with its options as one word: 'fsmark --threads 4'.
    #[arg(value_name = "WORKLOAD")]
    pub workloads: Vec<String>,

    /// The same, as an option.
    #[arg(long = "workload", value_name = "WORKLOAD")]
    pub more: Vec<String>,

    /// An image file to create, which is removed at the end; or a block device, with --force.
    #[arg(long, value_name = "FILE")]
    pub device: PathBuf,

    /// Size of the image; suffixes M, G, T.
    #[arg(long, value_name = "BYTES", default_value = "8G", value_parser = parse_size)]
    pub size: u64,

    /// Overwrite FILE if it exists. An image is removed at the end even then.
    #[arg(long)]
    pub force: bool,

    /// The file systems.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "cairnfs,cairnfs-mount,noop,xfs,ext4,btrfs"
    )]
    pub with: Vec<System>,

    /// Instead of that, measure what each mechanism of CairnFS saves: in-process, with and without
    /// each, by workloads that show it.
    #[arg(long, conflicts_with_all = ["workloads", "more", "with", "threads", "external", "plot"])]
    pub mechanisms: bool,

    /// Number of rounds; fewer than 3 give no information about the spread.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,

    /// Run each fsmark and xattr with these numbers of threads: fsmark makes the same number of
    /// files in all, xattr as many for each thread.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub threads: Vec<usize>,

    /// Also run these programs on the mounted file systems.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub external: Vec<Program>,

    /// How long dbench runs.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub dbench_seconds: u32,

    /// Memory that CairnFS may use, in-process and mounted [default: an eighth of the machine's];
    /// the kernel's file systems have no such limit.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub cache: Option<u64>,

    /// Write all figures of all rounds to FILE; `-` is standard output, instead of tables.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Print tables as GitHub markdown.
    #[arg(long)]
    pub markdown: bool,

    /// Draw the figures, as SVG files in DIR.
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

/// All results of a comparison.
struct Found {
    conditions: Conditions,
    systems: Vec<System>,
    tasks: Vec<Task>,
    runs: Vec<Run>,
    /// The combined figures of each task.
    rows: Vec<Vec<Row>>,
}

/// Runs the comparison, and prints the figures.
///
/// # Errors
/// Invalid arguments, missing programs, or the first failure of a file system. All that was created
/// is removed in every case.
pub fn compare(args: &Compare, out: &mut dyn Write) -> Result<()> {
    let with = match args.mechanisms {
        true => saved::systems(),
        false => args.with.clone(),
    };
    let args = &Compare {
        with,
        ..args.clone()
    };
    let tasks = tasks(args)?;
    if !rustix::process::geteuid().is_root() {
        return Err("it makes and mounts file systems, which only root may: `sudo`".into());
    }
    let ours = std::env::current_exe()?;
    let undo = Undo::default();
    check(args, &ours, &undo)?;
    if let Some(dir) = &args.plot {
        std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let watch = Watch::new(&undo)?;
    let found = measure(args, tasks, &ours, &undo)?;
    drop(watch);
    show(args, &found, out)
}

/// Returns the tasks for each system.
fn tasks(args: &Compare) -> Result<Vec<Task>> {
    if args.rounds == 0 || args.with.is_empty() {
        return Err("--rounds and --with: at least one".into());
    }
    let mut once = Vec::new();
    for system in &args.with {
        if once.contains(system) {
            return Err(format!("--with: {system} is named twice").into());
        }
        once.push(*system);
    }
    if args.mechanisms {
        return saved::tasks();
    }
    let mut titles: Vec<&str> = Vec::new();
    titles.extend(args.workloads.iter().chain(&args.more).map(String::as_str));
    if titles.is_empty() && (args.external.is_empty() || !args.threads.is_empty()) {
        titles.push(task::DEFAULT);
    }
    let mut tasks = Vec::new();
    for title in titles {
        let task = Task::parse(title)?;
        match args.threads.is_empty() {
            true => tasks.push(task),
            false => tasks.extend(task.with_threads(&args.threads)?),
        }
    }
    for program in &args.external {
        let runs = program.runs(args.dbench_seconds);
        tasks.extend(runs.into_iter().map(Task::external));
    }
    Ok(tasks)
}

/// Checks for missing programs before anything is created.
fn check(args: &Compare, ours: &Path, undo: &Undo) -> Result<()> {
    system::needs("losetup", "util-linux")?;
    args.with.iter().try_for_each(|s| s.check(ours, undo))?;
    args.external.iter().try_for_each(|p| p.check())
}

fn measure(args: &Compare, tasks: Vec<Task>, ours: &Path, undo: &Undo) -> Result<Found> {
    let progress = Progress::writing(args.size);
    let device = Device::new(&args.device, args.size, args.force, undo, &|bytes| {
        progress.at(bytes);
    })?;
    drop(progress);
    let fits = |task: &Task| args.with.iter().filter(|s| task.fits(**s)).count();
    let steps = args.rounds * tasks.iter().map(fits).sum::<usize>();
    let progress = Progress::runs(steps);
    let ground = Ground::new(&device, ours, args.cache, undo)?;
    let mut runs = Vec::with_capacity(steps);
    for round in 0..args.rounds {
        for system in order(&args.with, round) {
            let of_it = tasks.iter().enumerate();
            for (number, task) in of_it.filter(|(_, task)| task.fits(system)) {
                let place = format!("round {} of {}: {system}", round + 1, args.rounds);
                progress.says(format!("{place}, {}", task.title));
                let report = ground.run(system, task)?;
                runs.push(Run {
                    round,
                    system,
                    task: number,
                    report,
                });
                progress.at(runs.len() as u64);
            }
        }
    }
    drop(progress);
    drop(ground);
    let conditions = Conditions::new(&device.description, args.rounds);
    device.finish()?;
    let systems = args.with.clone();
    let rows = (0..tasks.len())
        .map(|task| figures::rows(&runs, &systems, task))
        .collect();
    Ok(Found {
        conditions,
        systems,
        tasks,
        runs,
        rows,
    })
}

fn show(args: &Compare, found: &Found, out: &mut dyn Write) -> Result<()> {
    if let Some(dir) = &args.plot {
        for (name, drawing) in plot::all(found) {
            let path = dir.join(name);
            std::fs::write(&path, drawing).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    match &args.json {
        Some(path) if path.as_os_str() == "-" => return Ok(json::write(found, out)?),
        Some(path) => {
            let mut file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
            json::write(found, &mut file)?;
        }
        None => {}
    }
    let form = match args.markdown {
        true => Form::Markdown,
        false => Form::Text,
    };
    if args.mechanisms {
        let conditions = &found.conditions;
        conditions.print("mechanisms", &found.systems, form, out)?;
        return Ok(saved::table(found).print(form, out)?);
    }
    for (number, (task, rows)) in found.tasks.iter().zip(&found.rows).enumerate() {
        let measured = |system: &&System| {
            let mut runs = found.runs.iter();
            runs.any(|run| run.task == number && run.system == **system)
        };
        let present: Vec<System> = found.systems.iter().filter(measured).copied().collect();
        let conditions = &found.conditions;
        conditions.print(&task.title, &present, form, out)?;
        table::speed(rows, &found.systems).print(form, out)?;
        for ratios in table::ratios(rows, &found.systems) {
            ratios.print(form, out)?;
        }
        table::cost(rows, &found.systems).print(form, out)?;
        writeln!(out, "{COUNTED}\n")?;
    }
    for sweep in sweep::sweeps(found) {
        sweep.table(&found.systems).print(form, out)?;
    }
    for table in grid::Grid::of(found).iter().flat_map(grid::Grid::tables) {
        table.print(form, out)?;
    }
    Ok(())
}

/// Footnote below the tables.
const COUNTED: &str = "CPU is that of the program and, for what goes through FUSE, of the daemon; machine CPU is that of all \
that ran meanwhile, the kernel's own threads among it. The device's figures are the kernel's, for the block device.";

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Result<Vec<String>> {
        let args: Compare = crate::parse(&[&["--device", "x"], words].concat())?;
        Ok(tasks(&args)?.into_iter().map(|task| task.title).collect())
    }

    #[test]
    fn tasks_follow_arguments() {
        assert_eq!(asked(&[]).unwrap(), [task::DEFAULT]);
        let titles = asked(&["maildir", "--workload", "fsync --jobs 4"]).unwrap();
        assert_eq!(titles, ["maildir", "fsync --jobs 4"]);
        assert_eq!(asked(&["--threads", "1,2,4"]).unwrap().len(), 3);
        let programs = asked(&["--external", "dbench,fio,fs_mark"]).unwrap();
        assert_eq!(programs.len(), 8);
        assert!(asked(&["--threads", "1", "maildir"]).is_err());
        assert!(asked(&["--rounds", "0"]).is_err());
        assert!(asked(&["--with", "xfs,ext4,xfs"]).is_err());
        assert!(asked(&["--with", "zfs"]).is_err());
        let mechanisms = asked(&["--mechanisms"]).unwrap();
        assert!(mechanisms.iter().any(|t| t.starts_with("dirfsync")));
        assert!(asked(&["--mechanisms", "maildir"]).is_err());
        assert!(asked(&["--mechanisms", "--with", "xfs"]).is_err());
    }
}

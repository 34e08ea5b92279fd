//! `cairnfs-bench compare`: workloads and programs on several file systems, in turn on one device,
//! and how their figures compare.
//!
//! `task` and `external` define the work, `sets` which of it belongs together, `system` the file
//! systems; `place` creates the device, `make` file
//! systems on it, and `undo` removes all of it in every case. `run` measures, with the kernel's
//! counters from `stats`; `figures` combines the runs of all rounds, and `table`, `sweep`, `grid`,
//! `saved`, `summary` and `json` present them with their `conditions`. Needs root.

pub mod conditions;
mod external;
pub mod figures;
mod found;
mod grid;
mod json;
mod make;
mod measured;
pub mod options;
mod place;
mod programs;
mod progress;
mod run;
mod saved;
mod sets;
mod sizes;
pub mod stats;
mod summary;
mod sweep;
mod system;
pub mod table;
mod task;
mod undo;

use std::fs::File;
use std::io::Write;

use crate::Result;
use conditions::Conditions;
use external::Program;
use found::{Found, Missing};
use measured::Run;
use options::Compare;
use place::Device;
use programs::Programs;
use progress::Progress;
use run::{Ground, order};
use sets::Entry;
use system::System;
use table::Form;
use task::Task;
use undo::{Undo, Watch};

/// Runs the comparison, and prints the figures.
///
/// # Errors
/// Invalid arguments, missing programs, or the first failure of a file system. All that was created
/// is removed in every case.
pub fn compare(args: &Compare, out: &mut dyn Write) -> Result<()> {
    let args = &Compare {
        with: systems(args),
        ..args.clone()
    };
    let plan = plan(args, Program::check)?;
    if !rustix::process::geteuid().is_root() {
        return Err("it makes and mounts file systems, which only root may: `sudo`".into());
    }
    let programs = Programs::find()?;
    let undo = Undo::default();
    check(args, &programs)?;
    let watch = Watch::new(&undo)?;
    let found = measure(args, plan, &programs, &undo)?;
    drop(watch);
    show(args, &found, out)
}

/// Returns the file systems of a comparison.
fn systems(args: &Compare) -> Vec<System> {
    use System::{Btrfs, Cairnfs, CairnfsMount, CairnfsRun, Ext4, Noop, Xfs};
    if args.mechanisms {
        saved::systems()
    } else if !args.with.is_empty() {
        args.with.clone()
    } else if args.single_client {
        vec![CairnfsMount, Noop, Xfs, Ext4, Btrfs]
    } else if args.everyday {
        vec![CairnfsMount, CairnfsRun, Xfs, Ext4, Btrfs]
    } else {
        vec![Cairnfs, CairnfsMount, Noop, Xfs, Ext4, Btrfs]
    }
}

/// What is to be measured.
#[derive(Default)]
struct Plan {
    tasks: Vec<Task>,
    missing: Vec<Missing>,
}

/// Returns the tasks; those of sets only if `check` finds their program installed.
fn plan(args: &Compare, check: impl Fn(Program) -> Result<()>) -> Result<Plan> {
    let mut plan = Plan {
        tasks: tasks(args)?,
        ..Plan::default()
    };
    let mut entries = Vec::new();
    if args.single_client {
        entries.extend(sets::single_client(&args.sizes)?);
    }
    if args.everyday {
        entries.extend(sets::everyday(&args.sizes)?);
    }
    for Entry { task, program } in entries {
        match program.map_or(Ok(()), &check) {
            Ok(()) => plan.tasks.push(task),
            Err(why) if args.require_programs => return Err(why),
            Err(why) => plan.missing.push(Missing {
                title: task.title,
                why: why.to_string(),
            }),
        }
    }
    Ok(plan)
}

/// Returns the tasks that are named one by one.
fn tasks(args: &Compare) -> Result<Vec<Task>> {
    if args.rounds == 0 {
        return Err("--rounds: at least one".into());
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
    let mut titles: Vec<&str> = args.workloads.iter().map(String::as_str).collect();
    let sets = args.single_client || args.everyday;
    if titles.is_empty() && !sets && (args.external.is_empty() || !args.threads.is_empty()) {
        titles.push(task::DEFAULT);
    }
    let mut tasks = Vec::new();
    for title in titles {
        let task = Task::parse(title)?;
        if args.threads.is_empty() {
            tasks.push(task)
        } else {
            tasks.extend(task.with_threads(&args.threads)?)
        }
    }
    for program in &args.external {
        let loads = program.loads(&args.sizes).into_iter();
        tasks.extend(loads.map(Task::external));
    }
    Ok(tasks)
}

/// Checks for missing programs before anything is created.
fn check(args: &Compare, programs: &Programs) -> Result<()> {
    system::needs("losetup", "util-linux")?;
    args.with.iter().try_for_each(|s| s.check(programs))?;
    args.external.iter().try_for_each(|p| p.check())
}

fn measure(args: &Compare, plan: Plan, programs: &Programs, undo: &Undo) -> Result<Found> {
    let Plan { tasks, missing } = plan;
    let progress = Progress::writing(args.size);
    let device = Device::new(&args.device, args.size, args.force, undo, &|bytes| {
        progress.at(bytes);
    })?;
    drop(progress);
    let fits = |task: &Task| args.with.iter().filter(|s| task.fits(**s)).count();
    let steps = args.rounds * tasks.iter().map(fits).sum::<usize>();
    let progress = Progress::runs(steps);
    let ground = Ground::new(&device, programs, args, undo)?;
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
        missing,
        runs,
        rows,
    })
}

fn show(args: &Compare, found: &Found, out: &mut dyn Write) -> Result<()> {
    match &args.json {
        Some(path) if path.as_os_str() == "-" => return Ok(json::write(found, out)?),
        Some(path) => {
            let mut file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
            json::write(found, &mut file)?;
        }
        None => {}
    }
    let form = if args.markdown {
        Form::Markdown
    } else {
        Form::Text
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
    for table in summary::tables(found) {
        table.print(form, out)?;
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

    fn args(words: &[&str]) -> Result<Compare> {
        crate::parse(&[&["--device", "x"], words].concat())
    }

    fn asked(words: &[&str]) -> Result<Vec<String>> {
        let tasks = tasks(&args(words)?)?.into_iter();
        Ok(tasks.map(|task| task.title).collect())
    }

    #[test]
    fn missing_program_is_told_or_refused() {
        let check = |program| match program {
            Program::Npm => Err("npm is missing".into()),
            _ => Ok(()),
        };
        let everyday = args(&["--everyday"]).unwrap();
        let with = plan(&everyday, |_| Ok(())).unwrap();
        assert_eq!(with.missing, []);
        let without = plan(&everyday, check).unwrap();
        assert_eq!(without.tasks.len(), with.tasks.len() - 1);
        assert!(without.missing[0].title.starts_with("npm ci"));
        assert_eq!(without.missing[0].why, "npm is missing");
        let required = args(&["--everyday", "--require-programs"]).unwrap();
        let refused = plan(&required, check).err().unwrap();
        assert_eq!(refused.to_string(), "npm is missing");
    }

    #[test]
    fn sets_measure_mounted_file_systems() {
        let of = |words: &[&str]| systems(&args(words).unwrap());
        assert_eq!(of(&[]).len(), 6);
        let single = of(&["--single-client", "--everyday"]);
        assert!(single.contains(&System::Noop) && !single.contains(&System::Cairnfs));
        assert_eq!(of(&["--everyday"]).len(), 5);
        assert_eq!(of(&["--everyday", "--with", "xfs"]), [System::Xfs]);
        assert!(args(&["--everyday", "--threads", "2"]).is_err());
        assert_eq!(asked(&["--everyday"]).unwrap(), [""; 0]);
        assert_eq!(asked(&["--everyday", "maildir"]).unwrap(), ["maildir"]);
    }

    #[test]
    fn tasks_follow_arguments() {
        assert_eq!(asked(&[]).unwrap(), [task::DEFAULT]);
        let titles = asked(&["maildir", "fsync --jobs 4"]).unwrap();
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

//! Workers that try different things at once, each on a branch of one tree; the best result becomes
//! the main tree, in one step that no power cut can split. The others are dropped.
//!
//! Prints:
//!
//! ```text
//! worker 1: 31 lines
//! worker 2: 16 lines
//! worker 3: 11 lines
//! worker 4: 31 lines
//! main has the result of worker 3, and notes by all
//! main, main before
//! ```

use std::thread;

use cairnfs::{Result, Volume};

const WORKERS: usize = 4;

/// What a worker does on its branch, as if it were alone: it removes, writes, and may fail. Returns
/// how good the result is; less is better.
fn work(tree: &Volume, worker: usize) -> Result<usize> {
    for n in 0..30 {
        if worker < WORKERS && n % worker != 0 {
            tree.remove_file(format!("parts/{n}"))?;
        }
    }
    tree.write("parts/new", format!("by worker {worker}\n"))?;
    let mut lines = 0;
    for part in tree.read_dir("parts")? {
        lines += tree.read_to_string(part?.path())?.lines().count();
    }
    Ok(lines)
}

fn main() -> Result<()> {
    let main = Volume::in_memory(64 << 20)?;
    main.create_dir("parts")?;
    for n in 0..30 {
        main.write(format!("parts/{n}"), "one line\n")?;
    }

    // Each branch begins with all files of the main tree, and takes space for its changes only.
    let names: Vec<String> = (1..=WORKERS).map(|n| format!("trial-{n}")).collect();
    let branches: Vec<Volume> = names
        .iter()
        .map(|n| main.branch(n))
        .collect::<Result<_>>()?;
    let results: Vec<Result<usize>> = thread::scope(|scope| {
        let workers = branches.iter().zip(1..);
        let started: Vec<_> = workers
            .map(|(branch, n)| scope.spawn(move || work(branch, n)))
            .collect();
        let joined = started.into_iter().map(|worker| worker.join());
        joined
            .map(|result| result.unwrap_or(Ok(usize::MAX)))
            .collect()
    });

    let mut best = (usize::MAX, &main);
    for ((branch, result), n) in branches.iter().zip(results).zip(1..) {
        let lines = result?;
        println!("worker {n}: {lines} lines");
        if lines < best.0 {
            best = (lines, branch);
        }
    }

    // Small things are copied from branch to branch.
    let (_, best) = best;
    for (branch, n) in branches.iter().zip(1..) {
        best.write(format!("note-{n}"), branch.read("parts/new")?)?;
    }
    // The name `main` goes to the best branch; the tree before stays as a snapshot.
    main.file_system()
        .replace_by(best.file_system(), "main before", None)?;
    let main = best.clone();
    let by = main.read_to_string("parts/new")?;
    println!(
        "main has the result of {}, and notes by all",
        by.trim().trim_start_matches("by ")
    );

    drop(branches);
    for name in names {
        if main
            .roots()
            .iter()
            .any(|root| root.name.as_ref() == Some(&name))
        {
            main.file_system().drop_root(&name)?;
        }
    }
    let mut left: Vec<String> = main.roots().into_iter().filter_map(|r| r.name).collect();
    left.sort();
    println!("{}", left.join(", "));
    main.close()
}

//! Injects faults into the engine and checks that a test detects each of them.
//!
//! A test only shows that a promise holds if it would fail were the promise broken. So each trial
//! runs twice: with the correct engine, where nothing may be found, and with the injected fault,
//! where something must be found.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod trial;

use cairnfs_disk::fault::InjectedFault::{self, *};
use cairnfs_sim::spread::spread;
use cairnfs_sim::workload::{Step, after, random_names, random_steps, random_values, steps};
use cairnfs_tier::size;
use trial::During::{Both, Recovery, Run};
use trial::{
    During, Faults, Life, Outcome, Rot, base, cuts, failing, filled, full, grafted, key_by_key,
    lives, long_log, roots, rot, sampled, unread,
};

/// Injected faults: when each is active, and steps on the base volume after which some power
/// failure shows it.
const CUTS: &[(InjectedFault, During, &str)] = &[
    (LogBeforeData, Run, "write f 4096 4096; sync"),
    (FsyncWithoutFlush, Run, "chmod f 384; fsync f"),
    (FsyncWithoutPages, Run, "write f 4096 4096; fsync f"),
    (SyncWithoutPages, Run, "write f 4096 4096; sync"),
    (
        TimesNotSynced,
        Run,
        "write f 0 4096; fsync f; write f 0 4096; fsync f",
    ),
    (ItemsNotSynced, Run, "setxattr f b 100; fsync f"),
    (NamesNotSynced, Run, "link f n; fsync f"),
    (
        RenameWithoutData,
        Run,
        "create n; write n 0 5000; rename n g; fsync .",
    ),
    (
        LinkWithoutData,
        Run,
        "create n; write n 0 5000; link n e/m; fsync e",
    ),
    (
        SizeBeforeData,
        Run,
        "create n; append n 9000; chmod n 384; fsync .",
    ),
    (
        TruncationWithoutData,
        Run,
        "create n; write n 0 9000; truncate n 5000; chmod n 384; merge",
    ),
    (
        TailNotZeroed,
        Run,
        "truncate f 5000; sync; truncate f 20000; sync",
    ),
    (DataInPlace, Run, "write f 0 4096; fsync f"),
    (TombstoneLost, Run, "setxattr f a 20; removexattr f a; sync"),
    (
        RelogInPlace,
        Run,
        "chmod f 384; fsync f; chmod f 448; fsync f",
    ),
    (
        SuperblockUncopied,
        Run,
        "chmod f 384; merge; chmod f 448; merge; chmod f 384; merge",
    ),
    (UnlinkWithoutOrphan, Run, "unlink-open f; sync"),
    (
        UseNotGivenUp,
        Run,
        "setvalue f a 0; merge; removexattr f a; merge",
    ),
    (
        ValueGoneEarly,
        Run,
        "setvalue f a 0; setvalue g a 0; merge; removexattr f a; merge",
    ),
    (
        HashesNotCompared,
        Run,
        "setvalue f a 1000; merge; setvalue g a 1001; merge",
    ),
    (
        FreedBlocksReused,
        Run,
        "create n; write n 0 8192; fsync n; write n 4096 4096; rename n k; write k 4096 4096; fsync k",
    ),
    (SuperblockBeforeIndex, Run, "chmod f 384; merge"),
    (
        SuperblockUnflushed,
        Run,
        "chmod f 384; merge; chmod f 448; merge; chmod f 384; merge",
    ),
    (TailBeforeIndex, Run, "unlink f; sync; merge"),
    (TableInPlace, Run, "chmod f 384; merge"),
    (NextInodeForgotten, Run, "mkdir n; create n/a; merge"),
    (FreedUnitsReused, Run, "chmod f 384; merge"),
    (OldNameKept, Run, "rename f n; merge"),
    (GainsBeforeLosses, Run, "punch f 4096 4096; merge"),
    (PayloadUnchecked, Recovery, "setxattr f a 20000; sync"),
    (DeletionsNotReplayed, Recovery, "unlink d/h; sync"),
    (
        BlocksNotClaimed,
        Recovery,
        "create m; write m 0 5000; create n; write n 0 5000; sync",
    ),
    (DataUntold, Run, "write f 4096 4096; fsync f"),
    (DataNotCompared, Recovery, "write f 4096 4096; fsync f"),
    (StagedLeft, Run, "write f 4096 4096; fsync f"),
    (
        DirectoryDependencyLost,
        Run,
        "mkdir n; create n/a; fsync n/a",
    ),
    (PlaceDependencyLost, Run, "rename d n; fsync n/h"),
    (
        PartnerDependencyLost,
        Run,
        "link g n; sync; rename f g; fsync n",
    ),
    (NameDependencyLost, Run, "unlink f; create f; fsync f"),
    (
        RemovalDependencyLost,
        Run,
        "rename d/h e/h; rmdir d; mkdir d; fsync d",
    ),
    (EntriesNotSynced, Run, "create d/n; fsync d"),
    (CountsAhead, Run, "create d/n; create d/m; fsync d/n"),
    (
        FsyncRecordOverwritten,
        Run,
        "chmod f 384; fsync f; chmod f 448; fsync f",
    ),
    (
        FsyncRecordForgotten,
        Run,
        "mkdir n; create n/a; create n/b; fsync n/a; unlink n/a; unlink n/b; rmdir n; sync",
    ),
];

/// More steps that show such a fault: a directory that exists loses changes of its attributes.
const ALSO: &[(InjectedFault, During, &str)] = &[
    (
        DirectoryDependencyLost,
        Run,
        "chmod d 448; create d/n; fsync d/n",
    ),
    (
        DirectoryDependencyLost,
        Run,
        "setxattr d a 10; create d/n; fsync d/n",
    ),
];

/// Faults of snapshots, which the random steps do not make. A fault that frees too much shows in a
/// snapshot or in the check, one that frees too little in the check.
const SNAPSHOTS: &[(InjectedFault, During, &str)] = &[
    (
        InheritedAsOwn,
        Run,
        "write f 0 16384; snapshot s; merge; write f 0 16384; sync; merge; create n; write n 0 40000; sync",
    ),
    (
        JoinedAcrossBoundary,
        Run,
        "create n; append n 4096; snapshot s; append n 4096; fsync n; merge; truncate n 0; merge",
    ),
    (
        BoundaryNotInherited,
        Run,
        "write f 0 16384; snapshot s; merge; write f 0 16384; sync; merge",
    ),
    (
        LineageOfCommitters,
        Run,
        "write f 0 16384; sync; merge; write f 0 16384; snapshot s; merge",
    ),
    (
        WrongBirth,
        Run,
        "write f 0 16384; snapshot s; write f 4096 4096; sync; write f 0 16384; sync; merge;
         create n; write n 0 40000; sync",
    ),
    (SuperblockBeforeIndex, Run, "chmod f 384; branch b"),
    (
        SuperblockUnflushed,
        Run,
        "chmod f 384; branch b; chmod f 448; branch c; chmod f 384; branch d",
    ),
    (TailBeforeIndex, Run, "unlink f; branch b"),
    (FreedUnitsReused, Run, "chmod f 384; branch b"),
    (RootRecordUnflushed, Run, "merge; branch b"),
    (FsyncWithoutFlush, Run, "chmod f 384; snapshot s"),
    (SyncWithoutPages, Run, "write f 4096 4096; snapshot s"),
];

/// Faults of drops: a block that another root has is freed, or one stays in use that no root has.
const DROPS: &[(InjectedFault, During, &str)] = &[
    (
        ChildIgnored,
        Run,
        "write f 0 16384; snapshot s; merge; drop s; free 0; create n; write n 0 40000; sync",
    ),
    (
        ExtentsComparedWhole,
        Run,
        "write f 0 16384; snapshot s; write f 4096 4096; sync; merge; drop s; free 0; sync",
    ),
    (
        GivenUpForgotten,
        Run,
        "write f 0 16384; write g 0 9000; snapshot s; write g 0 4096; sync; merge; drop s; free 18;
         write f 4096 4096; sync; merge; free 0; sync",
    ),
    (
        FreedBeforeRoot,
        Run,
        "write f 0 16384; snapshot s; write f 0 16384; sync; merge; drop s; free 0; sync",
    ),
    (
        PausedExtentPassed,
        Run,
        "write f 0 16384; write g 0 9000; snapshot s; write f 4096 4096; write g 0 4096; sync; merge;
         drop s; free 0; create n; write n 0 40000; sync",
    ),
];

/// Faults of calls on whole roots, and a history that shows each.
const ROOTS: &[(InjectedFault, During, &str)] = &[
    (
        RootRecordUnflushed,
        Run,
        "create a; sync; branch b; on b; create c; sync; publish b",
    ),
    (
        RootRecordUnflushed,
        Run,
        "create a; sync; snapshot s; rename-root s t; drop t",
    ),
    (
        WrongBirth,
        Run,
        "create a; write a 0 16384; sync; snapshot s; write a 4096 4096; sync; write a 0 16384; sync;
         restore main s",
    ),
    (
        PublishedInTwoRecords,
        Run,
        "create a; write a 0 9000; sync; branch b; on b; write a 4096 4096; sync; publish b",
    ),
    // Each of the two records is a valid change, but the first one alone is half of a publish.
    (
        PublishedInTwoRecords,
        Run,
        "create a; write a 0 9000; sync; branch b; on b; write a 4096 4096; sync; on main; create c;
         sync; publish b",
    ),
    (
        PublishedUnderBase,
        Run,
        "create a; write a 0 9000; sync; branch b; on b; write a 4096 4096; sync; publish b; on main;
         write a 0 9000; sync",
    ),
    (
        PinnedReused,
        Run,
        "create a; write a 0 9000; sync; checkpoint; write a 0 9000; sync; merge; write a 0 9000;
         create b; write b 0 20000; sync; ship",
    ),
    (
        CheckpointUnrecorded,
        Run,
        "create a; write a 0 9000; sync; checkpoint; ship; write a 4096 4096; sync",
    ),
    (
        BornBeforeCheckpoint,
        Run,
        "create a; write a 0 9000; sync; snapshot s; write a 0 4096; sync; drop s; merge; checkpoint;
         ship; free; create b; sync",
    ),
    (
        OldBirthInPlace,
        Run,
        "create p; allocate p 0 40000; sync; checkpoint; ship; write p 4096 4096; sync",
    ),
];

/// Faults that random steps miss, which are therefore not tried with them: they need several steps
/// on one directory or file in one context.
const RARE: [InjectedFault; 4] = [
    PlaceDependencyLost,
    RemovalDependencyLost,
    FsyncRecordForgotten,
    TruncationWithoutData,
];

/// Faults that show in few runs, and how many runs the short tier tries last instead of first: those
/// that have not shown it, but one. Should the steps change, all runs are tried still.
const LATE: [(InjectedFault, usize); 5] = [
    (TimesNotSynced, 55),
    (SizeBeforeData, 51),
    (TailNotZeroed, 51),
    (HashesNotCompared, 101),
    (PartnerDependencyLost, 83),
];

/// Number of random runs that are tried until a fault shows.
const RUNS: u64 = 200;
const VALUE_RUNS: u64 = 6;

/// Steps that set `count` attributes of `f`, each of which fills a large part of a log record.
fn large(count: u8) -> Vec<Step> {
    let letters = (b'b'..b'b' + count).map(char::from);
    letters
        .map(|x| Step::SetXattr("f".into(), x.to_string(), 60_000))
        .collect()
}

/// Steps that set `count` large attributes between `before` and `behind`.
fn around(before: &str, count: u8, behind: &str) -> Vec<Step> {
    let mut all = steps(before).unwrap();
    all.extend(large(count));
    all.extend(steps(behind).unwrap());
    all
}

/// The results of the trials.
#[derive(Default)]
struct Table {
    rows: Vec<String>,
    wrong: Vec<String>,
}

impl Table {
    fn row(&mut self, faults: &[InjectedFault], tried: u64, what: Option<&str>) {
        let what: String = what.unwrap_or("NOT NOTICED").chars().take(130).collect();
        let faults = format!("{faults:?}");
        self.rows.push(format!("{faults:<36} {tried:>5}  {what}"));
    }

    /// Runs a trial with the correct engine, and with faults that must be detected.
    fn must_detect(
        &mut self,
        faults: &[InjectedFault],
        during: During,
        f: impl Fn(Faults<'_>) -> Outcome,
    ) {
        let sound = f(Faults(&[], during));
        if let Some(what) = &sound.caught {
            self.wrong.push(format!("without {faults:?}: {what}"));
        }
        let with = f(Faults(faults, during));
        if with.caught.is_none() || with.made == 0 {
            self.wrong.push(format!("{faults:?}: {with:?}"));
        }
        self.row(faults, with.tried, with.caught.as_deref());
    }

    /// Runs a trial with a fault whose effect another mechanism prevents.
    fn harmless(&mut self, fault: InjectedFault, why: &str, f: impl Fn(Faults<'_>) -> Outcome) {
        let with = f(Faults(&[fault], Both));
        if with.caught.is_some() || with.made == 0 {
            let wrong = format!("{fault:?} should do no harm, for {why}: {with:?}");
            self.wrong.push(wrong);
        }
        self.row(&[fault], with.tried, Some(&format!("harmless: {why}")));
    }

    /// Prints the table: faults, states tried until one was detected, what was detected.
    fn done(self) {
        println!("{}", self.rows.join("\n"));
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }
}

#[test]
fn power_cuts_detect_injected_faults() {
    let mut table = Table::default();
    for (fault, during, text) in CUTS.iter().chain(ALSO).chain(SNAPSHOTS) {
        let steps = steps(text).unwrap();
        table.must_detect(&[*fault], *during, |f| cuts(f, base(), &steps));
    }
    // The fsync depends on so many changes that the whole context is written for it.
    let many = (0..1025).map(|i| format!("create n/{i};"));
    let gone = (0..1025).map(|i| format!("unlink n/{i};"));
    let made: String = std::iter::once("mkdir n;".to_owned()).chain(many).collect();
    let text: String = std::iter::once(made + "sync;").chain(gone).collect();
    let whole = steps(&(text + "rmdir n; create n; write n 0 9000; fsync n")).unwrap();
    table.must_detect(&[StagedWithContext], Run, |f| {
        sampled(f, base(), &whole, 40)
    });
    table.done();
}

#[test]
fn drops_detect_injected_faults() {
    let mut table = Table::default();
    for (fault, during, text) in DROPS {
        let steps = steps(text).unwrap();
        table.must_detect(&[*fault], *during, |f| key_by_key(f, base(), &steps));
    }
    table.done();
}

#[test]
fn calls_on_roots_detect_injected_faults() {
    let mut table = Table::default();
    for (fault, during, text) in ROOTS {
        table.must_detect(&[*fault], *during, |f| roots(f, text));
    }
    table.done();
}

#[test]
fn failing_disk_and_full_volume_detect_injected_faults() {
    let mut table = Table::default();
    let synced = steps("write f 0 9000; fsync f; create n; sync; merge").unwrap();
    table.must_detect(&[FailureForgotten], Run, |f| failing(f, base(), &synced));
    // The smaller the files, the more of them fill the volume.
    for bytes in size(&[1500][..], &[0, 100, 1500]) {
        table.must_detect(&[DeletionsUnfunded], Run, |f| filled(f, base(), *bytes));
    }
    // The truncation of a file with so many extents frees some of them in later transactions.
    let extents = (0..1500).map(|i| format!("write n {} 10;", i * 8192));
    let text = "create n;".to_owned() + &extents.collect::<String>();
    let many = after(base(), &steps(&text).unwrap()).unwrap();
    let cut = Step::Truncate("n".into(), 100);
    table.must_detect(&[TruncationWithoutOrphan], Run, |f| unread(f, &many, &cut));
    table.done();
}

#[test]
fn power_cuts_in_multi_record_contexts_detect_injected_faults() {
    let mut table = Table::default();
    // The first part has the entry count of a directory, the second part one of the entries.
    let parts = around("chmod d 448", 24, "mkdir d/x; sync");
    table.must_detect(&[HalfContextCounts], Recovery, |f| {
        cuts(f, long_log(), &parts)
    });
    let two = around("", 20, "sync");
    table.must_detect(&[DurableLsnAhead], Run, |f| cuts(f, base(), &two));
    table.must_detect(&[MarkAhead], Run, |f| cuts(f, base(), &two));
    table.must_detect(&[ChainUnchecked], Recovery, |f| grafted(f, base(), &two));
    let merge = around("chmod e 448", 14, "sync; merge");
    table.must_detect(&[TailMovedEachStep], Run, |f| cuts(f, full(), &merge));
    let renamed = steps("rename f n; sync; merge").unwrap();
    table.must_detect(&[OldNamesLeft], Run, |f| key_by_key(f, base(), &renamed));
    table.done();
}

#[test]
fn bit_rot_detects_missing_verification() {
    let mut table = Table::default();
    let synced = "chmod f 384; fsync f; chmod g 384; fsync g; chmod d 448; fsync d";
    let (stated, steps) = (steps("chmod f 384; sync").unwrap(), steps(synced).unwrap());
    table.must_detect(&[DataUnchecked], Recovery, |f| {
        rot(f, base(), &steps, Rot::Data)
    });
    table.must_detect(&[NodeUnchecked], Recovery, |f| {
        rot(f, base(), &steps, Rot::Data)
    });
    table.must_detect(&[EndUnchecked], Recovery, |f| {
        rot(f, base(), &steps, Rot::Log)
    });
    table.must_detect(&[MarkMissing], Run, |f| {
        rot(f, base(), &stated, Rot::StatedLog)
    });
    table.must_detect(&[MarkUncopied], Run, |f| {
        rot(f, base(), &stated, Rot::LogWithoutFront)
    });
    table.done();
}

/// A process that is killed after its steps.
const fn killed(steps: &'static str) -> Life {
    Life {
        steps,
        killed_in_flush: false,
    }
}

#[test]
fn kill_before_power_cut_detects_injected_faults() {
    let mut table = Table::default();
    let two = [killed("create a; fsync a"), killed("create q; fsync q")];
    table.must_detect(&[MountRecordMissing], Both, |f| lives(f, base(), &two));
    let in_flush = Life {
        killed_in_flush: true,
        ..two[0]
    };
    let both = [in_flush, two[1]];
    table.must_detect(&[MountWithoutFlush], Both, |f| lives(f, base(), &both));
    // Each of the two prevents the effect of the other.
    let faults = [MountRecordUnflushed, SameNonce];
    table.must_detect(&faults, Both, |f| lives(f, base(), &two));
    table.done();
}

/// Faults whose effect another mechanism prevents: if they did harm, that mechanism would be
/// broken.
#[test]
fn redundant_mechanisms_mask_injected_faults() {
    let mut table = Table::default();
    let three = [
        killed("create a; write a 0 5000; fsync a; write f 0 9000; fsync f"),
        Life {
            steps: "create q; write q 0 9000; fsync q",
            killed_in_flush: true,
        },
        killed("unlink f; create r; write r 0 9000; fsync r; merge; create s; fsync s"),
    ];
    table.harmless(
        MountRecordUnflushed,
        "what follows a lost mount record names its checksum, which has the nonce of that mount",
        |f| lives(f, base(), &three),
    );
    table.harmless(
        SameNonce,
        "what could follow an equal mount record was only written when that one was durable",
        |f| lives(f, base(), &three),
    );
    let names = steps("exchange f d/h; rename g n; rename n g; unlink g; sync; merge").unwrap();
    table.harmless(
        NamesAddedFirst,
        "an entry has one name in the end, so no name item has it both to add and to remove",
        |f| cuts(f, base(), &names),
    );
    table.done();
}

/// Random steps detect each of the other faults too, although they do not aim at any.
#[test]
fn random_steps_detect_injected_faults() {
    // Alternately all kinds of steps and steps on names; then steps on shared values.
    let run = |seed: u64| match seed % 2 {
        0 => random_steps(seed, 120),
        _ => random_names(seed, 120),
    };
    let values = (0..VALUE_RUNS).map(|seed| random_values(seed, 120));
    let runs: Vec<Vec<Step>> = (0..RUNS).map(run).chain(values).collect();
    let volume = base();
    let mut table = Table::default();
    // The correct engine is tried with as many runs as the tier has: `crash` tries it with more.
    let sound = &runs[..size(runs.len() / 10, runs.len())];
    let sound = spread(|n| {
        let steps = sound.get(n)?;
        Some(sampled(Faults(&[], Run), volume.clone(), steps, 40))
    });
    table
        .wrong
        .extend(sound.into_iter().filter_map(|sound| sound.caught));
    let common = CUTS.iter().filter(|(fault, ..)| !RARE.contains(fault));
    let common: Vec<_> = common.collect();
    let found = spread(|n| {
        let (fault, during, _) = common.get(n)?;
        let mut tried = 0;
        let late = LATE.iter().find(|(late, _)| late == fault);
        let from = size(late.map_or(0, |(_, from)| *from), 0);
        let numbered = (1..).zip(&runs).collect::<Vec<_>>();
        let (earlier, first) = numbered.split_at(from);
        let caught = first.iter().chain(earlier).find_map(|(n, steps)| {
            let with = sampled(Faults(&[*fault], *during), volume.clone(), steps, 40);
            tried += with.tried;
            with.caught.map(|what| format!("run {n:>3}: {what}"))
        });
        Some((fault, tried, caught))
    });
    for (fault, tried, caught) in found {
        if caught.is_none() {
            table.wrong.push(format!("{fault:?} went unnoticed"));
        }
        table.row(&[*fault], tried, caught.as_deref());
    }
    table.done();
}

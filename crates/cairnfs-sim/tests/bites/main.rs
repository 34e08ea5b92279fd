//! Mistakes of the engine, each made on purpose, and what notices it.
//!
//! A promise is only shown to hold if a break of it would have been noticed. So each trial is done
//! twice: as the engine is, where nothing may be found, and with the mistake, where something must.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may panic"
)]

mod trial;

use std::time::Instant;

use cairnfs::deliberate::Deliberate::{self, *};
use cairnfs_sim::workload::{Step, steps};
use trial::During::{Both, Recovery, Run};
use trial::{During, Faults, Life, Outcome, base, cuts, grafted, lives, long_log, rot};

/// A mistake, when it is made, and steps on the base volume of which some power cut shows it.
const CUTS: &[(Deliberate, During, &str)] = &[
    (LogBeforeData, Run, "write f 4096 4096; fsync f"),
    (FsyncWithoutFlush, Run, "chmod f 384; fsync f"),
    (FsyncWithoutPages, Run, "write f 4096 4096; fsync f"),
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
    (SizeBeforeData, Run, "append f 9000; chmod f 384; fsync g"),
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
    (UnlinkWithoutOrphan, Run, "unlink-open f; sync"),
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
    (GainsBeforeLosses, Run, "punch f 4096 4096; merge"),
    (PayloadUnchecked, Recovery, "setxattr f a 20000; sync"),
    (DeletionsNotReplayed, Recovery, "unlink d/h; sync"),
    (
        BlocksNotClaimed,
        Recovery,
        "create m; write m 0 5000; create n; write n 0 5000; sync",
    ),
];

/// The same on volumes with a long log, in which contexts of many records have room.
const LONG: &[(Deliberate, During, u8)] = &[(HalfContextCounts, Recovery, 24)];

/// Attributes, `count` of them, so large that a few fill a record.
fn large(first: u8, count: u8) -> Vec<Step> {
    let letters = (first..first + count).map(char::from);
    let mut all = vec![Step::Create("f".into())];
    all.extend(letters.map(|x| Step::SetXattr("f".into(), x, 60_000)));
    all.push(Step::Sync);
    all
}

struct Table {
    rows: Vec<String>,
    wrong: Vec<String>,
}

impl Table {
    fn new() -> Self {
        Self {
            rows: Vec::new(),
            wrong: Vec::new(),
        }
    }

    /// Does a trial as the engine is, and with a mistake that must be noticed.
    fn bites(&mut self, faults: &[Deliberate], during: During, f: impl Fn(Faults<'_>) -> Outcome) {
        let clock = Instant::now();
        let sound = f(Faults(&[], during));
        if let Some(what) = &sound.caught {
            self.wrong.push(format!("without {faults:?}: {what}"));
        }
        let with = f(Faults(faults, during));
        let caught = with.caught.as_deref().unwrap_or("NOT NOTICED");
        if with.caught.is_none() || with.made == 0 {
            self.wrong.push(format!("{faults:?}: {with:?}"));
        }
        self.rows.push(format!(
            "{:<40} {:>4} of {:>4} {:>6.0?}  {}",
            format!("{faults:?}"),
            with.tried,
            sound.tried,
            clock.elapsed(),
            caught.chars().take(130).collect::<String>(),
        ));
    }

    fn done(self) {
        println!("{}", self.rows.join("\n"));
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
    }
}

#[test]
fn power_cuts_show_mistakes() {
    let mut table = Table::new();
    for (fault, during, text) in CUTS {
        let steps = steps(text).unwrap();
        table.bites(&[*fault], *during, |f| cuts(f, base(), &steps));
    }
    table.done();
}

#[test]
fn large_contexts() {
    let mut table = Table::new();
    for (fault, during, count) in LONG {
        table.bites(&[*fault], *during, |f| {
            cuts(f, long_log(), &large(b'a', *count))
        });
    }
    table.bites(&[DurableLsnAhead], Run, |f| {
        cuts(f, base(), &large(b'b', 20))
    });
    table.bites(&[ChainUnchecked], Recovery, |f| {
        grafted(f, base(), &large(b'b', 20))
    });
    table.bites(&[DataUnchecked], Recovery, |f| {
        rot(f, base(), &steps("sync").unwrap())
    });
    table.done();
}

const A: Life = Life {
    steps: "create a; fsync a",
    killed_in_flush: false,
};
const A_CUT: Life = Life {
    steps: "create a; fsync a",
    killed_in_flush: true,
};
const Q: Life = Life {
    steps: "create q; fsync q",
    killed_in_flush: false,
};

#[test]
fn kills() {
    let mut table = Table::new();
    table.bites(&[MountRecordMissing], Both, |f| lives(f, base(), &[A, Q]));
    table.bites(&[MountWithoutFlush], Both, |f| {
        lives(f, base(), &[A_CUT, Q])
    });
    table.bites(&[MountRecordUnflushed], Both, |f| lives(f, base(), &[A, Q]));
    table.bites(&[SameNonce], Both, |f| lives(f, base(), &[A, Q]));
    table.bites(&[MountRecordUnflushed, SameNonce], Both, |f| {
        lives(f, base(), &[A, Q])
    });
    table.bites(&[NamesAddedFirst], Both, |f| {
        cuts(
            f,
            base(),
            &steps("exchange f d/h; rename g n; rename n g; merge; sync").unwrap(),
        )
    });
    table.done();
}

//! Long random workloads, each a function of its seed.

use super::step::Step;
use crate::states::mix;

/// Pseudorandom numbers from a seed.
struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    fn new(seed: u64) -> Self {
        Self { seed, thrown: 0 }
    }

    fn throw(&mut self, sides: u64) -> u64 {
        self.thrown += 1;
        mix(self.seed, self.thrown) % sides.max(1)
    }

    fn directory(&mut self) -> &'static str {
        match self.throw(6) {
            0 | 1 => "",
            2 => "d/",
            3 => "e/",
            4 => "d/n1/",
            _ => "n2/",
        }
    }

    /// Half of all paths are the same one, because bugs tend to need several steps on one file.
    fn path(&mut self) -> String {
        if self.throw(2) == 0 {
            return "n0".into();
        }
        let name = self.throw(5);
        format!("{}n{name}", self.directory())
    }

    fn offset(&mut self) -> u64 {
        match self.throw(3) {
            0 => 0,
            1 => self.throw(6) * 4096,
            _ => self.throw(30_000),
        }
    }

    fn length(&mut self) -> u64 {
        match self.throw(4) {
            0 => 1 + self.throw(100),
            1 => 4096,
            2 => 1 + self.throw(6000),
            _ => 1 + self.throw(40_000),
        }
    }

    fn attribute(&mut self) -> String {
        if self.throw(2) == 0 { "a" } else { "b" }.into()
    }

    /// The number of a value that other files are likely to have too, or whose hash collides with
    /// another.
    fn value(&mut self) -> u32 {
        match self.throw(4) {
            0 => 1000 + self.throw(3) as u32,
            _ => self.throw(5) as u32,
        }
    }

    fn step(&mut self) -> Step {
        match self.throw(44) {
            0..4 => Step::Create(self.path()),
            4..6 => Step::Mkdir(self.path()),
            6 => Step::Symlink(self.path(), 1 + self.throw(3000) as u32),
            7 => Step::Fifo(self.path()),
            8 => Step::Tmpfile(self.path()),
            9..11 => Step::Link(self.path(), self.path()),
            11..13 => Step::Unlink(self.path()),
            13 => Step::UnlinkOpen(self.path()),
            14 => Step::Rmdir(self.path()),
            15..19 => Step::Rename(self.path(), self.path()),
            19 if self.throw(3) == 0 => Step::Whiteout(self.path(), self.path()),
            19 => Step::Exchange(self.path(), self.path()),
            20..24 => Step::Write(self.path(), self.offset(), self.length() as u32),
            24..26 => Step::Append(self.path(), self.length() as u32),
            26..28 => Step::Truncate(self.path(), self.offset()),
            28 => Step::Punch(self.path(), self.offset(), self.length()),
            29 => Step::Zero(self.path(), self.offset(), self.length()),
            30 => Step::Allocate(self.path(), self.offset(), self.length()),
            31 => Step::Reserve(self.path(), self.offset(), self.length()),
            32 if self.throw(2) == 0 => Step::Touch(self.path(), self.throw(1000) as u32),
            32 if self.throw(4) == 0 => Step::Chattr(self.path(), 64 * self.throw(2) as u32),
            32 => Step::Chmod(self.path(), 0o400 + self.throw(0o400) as u32),
            33 => Step::SetXattr(self.path(), self.attribute(), self.length() as u32 % 30_000),
            34 => Step::SetValue(self.path(), self.attribute(), self.value()),
            35 => Step::RemoveXattr(self.path(), self.attribute()),
            36..40 => Step::Fsync(self.path()),
            40 => Step::Fdatasync(self.path()),
            41 => Step::Fsync(self.directory().trim_end_matches('/').to_owned()),
            42 => Step::Sync,
            _ => Step::Merge,
        }
    }
}

impl Dice {
    /// A path of up to three components, each `a`, `b` or `c`, so that directories often coincide.
    fn crowded(&mut self) -> String {
        let depth = 1 + self.throw(3);
        let names: Vec<_> = (0..depth)
            .map(|_| match self.throw(3) {
                0 => "a",
                1 => "b",
                _ => "c",
            })
            .collect();
        names.join("/")
    }

    /// A step, in most cases one that changes names.
    fn naming(&mut self) -> Step {
        match self.throw(40) {
            0..7 => Step::Mkdir(self.crowded()),
            7..12 => Step::Create(self.crowded()),
            12 => Step::Tmpfile(self.crowded()),
            13 => Step::Link(self.crowded(), self.crowded()),
            14..16 => Step::Unlink(self.crowded()),
            16 => Step::UnlinkOpen(self.crowded()),
            17..19 => Step::Rmdir(self.crowded()),
            19..26 => Step::Rename(self.crowded(), self.crowded()),
            26 if self.throw(3) == 0 => Step::Whiteout(self.crowded(), self.crowded()),
            26 => Step::Exchange(self.crowded(), self.crowded()),
            27 => Step::Append(self.crowded(), self.length() as u32),
            28 => Step::SetXattr(self.crowded(), self.attribute(), 10),
            29..38 => Step::Fsync(self.crowded()),
            38 => Step::Sync,
            _ => Step::Merge,
        }
    }
}

/// `count` steps that change names in a few directories, with fsyncs between.
pub fn random_names(seed: u64, count: usize) -> Vec<Step> {
    let step = |i| Dice::new(mix(!seed, i)).naming();
    (0..count as u64).map(step).collect()
}

/// The step with this number; the steps of any numbers form a workload.
pub fn random_step(number: u64) -> Step {
    Dice::new(number).step()
}

/// `count` steps after the creation of two directories.
pub fn random_steps(seed: u64, count: usize) -> Vec<Step> {
    let mut steps = vec![Step::Mkdir("d".into()), Step::Mkdir("e".into())];
    steps.extend((0..count as u64).map(|i| random_step(mix(seed, i))));
    steps
}

/// `count` steps that set extended attributes on a few files; their values are often shared.
pub fn random_values(seed: u64, count: usize) -> Vec<Step> {
    let step = |i: u64| {
        let mut dice = Dice::new(mix(seed, !i));
        let file = |dice: &mut Dice| format!("f{}", dice.throw(4));
        match dice.throw(24) {
            0..2 => Step::Create(file(&mut dice)),
            2..4 => Step::CreateWith(file(&mut dice), dice.attribute(), dice.value()),
            4..13 => Step::SetValue(file(&mut dice), dice.attribute(), dice.value()),
            13..15 => Step::RemoveXattr(file(&mut dice), dice.attribute()),
            15..17 => Step::Unlink(file(&mut dice)),
            17 => Step::Rename(file(&mut dice), file(&mut dice)),
            18..20 => Step::Fsync(file(&mut dice)),
            20 => Step::Sync,
            _ => Step::Merge,
        }
    };
    (0..count as u64).map(step).collect()
}

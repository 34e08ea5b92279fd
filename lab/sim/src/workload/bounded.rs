//! All sequences of up to three steps over a few files and directories.
//!
//! After CrashMonkey's ACE (Mohan et al., OSDI 2018): most crash consistency bugs appear after few
//! operations on few files, so all such sequences are tried. Each sequence ends with a sync, so
//! that the states while its last steps become durable are tried too.

use super::step::{Step, steps};

/// The initial contents of the volume.
const BASE: &str = "
    create f; write f 0 10000; setxattr f a 10; create g; write g 0 100;
    mkdir d; create d/h; write d/h 0 5000; mkdir e; sync; merge";

/// The steps of which sequences are made.
const STEPS: &str = "
    create n; create d/n; create e/n; mkdir n; mkdir d/n; symlink n 20; fifo n; tmpfile n;
    link f n; link f e/n; link d/h n; link g d/n;
    unlink f; unlink g; unlink d/h; unlink-open f; rmdir e;
    rename f n; rename f g; rename g f; rename f e/n; rename d/h n; rename d/h f; rename n f;
    rename d e; rename d n; rename d e/n; rename e d/n; rename n d/n;
    exchange f g; exchange f d/h; exchange d e; exchange f d;
    whiteout f n; whiteout f g; whiteout d e/n; whiteout d/h f;
    write f 4096 4096; write f 2000 9000; write g 0 50; write n 0 5000; append f 3000; append g 100;
    append d/h 5000; append n 100;
    truncate f 0; truncate f 5000; truncate f 20000; truncate g 30; truncate g 300;
    punch f 4096 4096; punch f 1000 5000; punch g 10 20; zero f 0 16384; allocate f 8000 9000;
    reserve f 12288 8192;
    chmod f 384; chmod d 448; setxattr f b 100; setxattr f a 20000; setxattr d a 10;
    removexattr f a; setvalue f a 0; setvalue g a 0;
    fsync f; fsync g; fsync d/h; fsync n; fsync d; fsync e; fsync .; fdatasync f; sync; merge";

/// The steps that make the initial contents.
pub fn base_steps() -> Vec<Step> {
    steps(BASE).unwrap_or_default()
}

/// All sequences of a given length, in a fixed order.
pub struct Bounded {
    steps: Vec<Step>,
    length: u32,
}

impl Bounded {
    /// The sequences of `length` steps.
    pub fn new(length: u32) -> Self {
        Self {
            steps: steps(STEPS).unwrap_or_default(),
            length,
        }
    }

    /// Number of sequences; some of their steps are refused.
    pub fn count(&self) -> u64 {
        (self.steps.len() as u64).pow(self.length)
    }

    /// The sequence with this number, followed by a sync. Sequences with neighbouring numbers begin
    /// with the same steps.
    pub fn sequence(&self, number: u64) -> Vec<Step> {
        let base = self.steps.len().max(1) as u64;
        let mut rest = number;
        let mut sequence = Vec::new();
        for _ in 0..self.length {
            sequence.extend(self.steps.get((rest % base) as usize).cloned());
            rest /= base;
        }
        sequence.reverse();
        sequence.push(Step::Sync);
        sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_round_trip_as_text() {
        for step in base_steps().into_iter().chain(Bounded::new(1).steps) {
            assert_eq!(step.to_string().parse::<Step>(), Ok(step));
        }
        assert_eq!(Bounded::new(1).steps.len(), 74);
        assert_eq!(base_steps().len(), 11);
        assert!("creat f".parse::<Step>().is_err());
        assert!("write f 1".parse::<Step>().is_err());
    }

    #[test]
    fn sequences_are_distinct() {
        let two = Bounded::new(2);
        let all: std::collections::HashSet<_> = (0..two.count()).map(|n| two.sequence(n)).collect();
        assert_eq!(all.len() as u64, two.count());
    }
}

//! Lists of runs of blocks: joined, and subtracted from each other.

use crate::space::BlockRun;

/// Sorts runs and joins those that touch or overlap.
pub(super) fn join_runs(runs: Vec<BlockRun>) -> Vec<BlockRun> {
    join(runs, |run, end| run.start <= end)
}

/// Sorts runs and joins those that touch. Overlapping runs stay apart, so that a caller that
/// gets a block twice finds that.
pub(super) fn join_touching(runs: Vec<BlockRun>) -> Vec<BlockRun> {
    join(runs, |run, end| run.start == end)
}

/// Sorts runs and joins each for which `joins` is true with the end of the one before.
fn join(mut runs: Vec<BlockRun>, joins: impl Fn(&BlockRun, u64) -> bool) -> Vec<BlockRun> {
    runs.sort_unstable_by_key(|r| r.start);
    let mut joined: Vec<BlockRun> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            // What is read from the index may be at any number.
            Some(last) if joins(&run, last.start.saturating_add(last.len)) => {
                let end = run.start.saturating_add(run.len);
                last.len = last.len.max(end - last.start);
            }
            _ => joined.push(run),
        }
    }
    joined
}

/// The blocks of `runs` that are in none of `except`.
pub fn subtract_runs(runs: Vec<BlockRun>, except: &[BlockRun]) -> Vec<BlockRun> {
    let except = join_runs(except.to_vec());
    let mut left = Vec::new();
    for run in join_runs(runs) {
        let end = run.start + run.len;
        let mut start = run.start;
        let first = except.partition_point(|e| e.start + e.len <= start);
        for e in except.iter().skip(first) {
            if e.start >= end {
                break;
            }
            if e.start > start {
                left.push(BlockRun {
                    start,
                    len: e.start - start,
                });
            }
            start = start.max(e.start + e.len);
        }
        if start < end {
            left.push(BlockRun {
                start,
                len: end - start,
            });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u64) -> BlockRun {
        BlockRun { start, len }
    }

    #[test]
    fn runs_are_joined_and_subtracted() {
        assert_eq!(
            join_runs(vec![run(8, 2), run(1, 3), run(4, 1), run(9, 5)]),
            vec![run(1, 4), run(8, 6)]
        );
        assert_eq!(
            join_touching(vec![run(8, 2), run(1, 3), run(4, 1), run(9, 5)]),
            vec![run(1, 4), run(8, 2), run(9, 5)]
        );
        assert_eq!(
            join_touching(vec![run(4, 1), run(4, 1), run(5, 1)]),
            vec![run(4, 1), run(4, 2)]
        );
        assert_eq!(
            subtract_runs(vec![run(0, 10), run(20, 4)], &[run(2, 3), run(8, 14)]),
            vec![run(0, 2), run(5, 3), run(22, 2)]
        );
        assert_eq!(subtract_runs(vec![run(4, 4)], &[run(4, 4)]), vec![]);
    }
}

//! On which processor a loop waits for its client: found by trial.
//!
//! A reply that leaves the client where it is, and a loop that waits there, make the time from one
//! message to the next much shorter, but nothing says at once where a client runs: `/proc/TID/stat` may
//! block on a lock that the client holds in execve(2). So the loop waits on one processor after another
//! for a few messages each, and stays where they come sooner than while the loop is bound to none. Pure:
//! times come in as arguments.

use std::time::Duration;

/// Messages by which the time without a place is measured, and that on each processor, of which the
/// first few do not count: the client may have to move.
const BASE: usize = 16;
const TRY: usize = 8;
const SKIP: u32 = 4;

/// What a place must save of each message, and of its time: 1/`SHARE`.
const SAVED: Duration = Duration::from_micros(8);
const SHARE: u32 = 5;

/// Messages until the next search after one in vain, and after many.
const PATIENCE: u32 = 64;
const PATIENCE_MAX: u32 = 8192;

/// A loop that is not alone for long enough so many times does not measure for a while either.
const BROKEN: u32 = 4;

/// Messages, beyond those that were as usual, that came late before another search, and after many
/// searches that found the same.
const DOUBT: u32 = 3;
const DOUBT_MAX: u32 = 4096;

/// What to do with the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    /// Leave it as it is.
    None,
    /// Bind it to this processor.
    To(usize),
    /// Let it run everywhere.
    Away,
}

#[derive(Debug)]
enum Phase {
    /// The loop is not bound; so many messages do not count.
    Away { rests: u32, gaps: Vec<Duration> },
    /// It is bound to a processor for a trial.
    Trying {
        base: Duration,
        skips: u32,
        gaps: Vec<Duration>,
    },
    /// It has found its place.
    Settled {
        base: Duration,
        usual: Duration,
        late: u32,
    },
}

/// The search of one loop.
#[derive(Debug)]
pub(crate) struct Search {
    phase: Phase,
    /// Processors that are still to be tried.
    left: Vec<usize>,
    at: usize,
    /// Where the loop settled last.
    last: Option<usize>,
    patience: u32,
    doubt: u32,
    /// Measurements in succession that were broken off.
    broken: u32,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            phase: Phase::away(0),
            left: Vec::new(),
            at: 0,
            last: None,
            patience: PATIENCE,
            doubt: DOUBT,
            broken: 0,
        }
    }
}

impl Phase {
    fn away(rests: u32) -> Self {
        Self::Away {
            rests,
            gaps: Vec::with_capacity(BASE),
        }
    }
}

impl Search {
    /// A message came `gap` after the last one. `places` are the processors on which the loop may run.
    pub fn heard(&mut self, gap: Duration, places: impl FnOnce() -> Vec<usize>) -> Move {
        match &mut self.phase {
            Phase::Away { rests, .. } if *rests > 0 => {
                *rests -= 1;
                Move::None
            }
            Phase::Away { gaps, .. } => {
                gaps.push(gap);
                if gaps.len() < BASE {
                    return Move::None;
                }
                let base = typical(gaps);
                self.begin(base, places())
            }
            Phase::Trying { skips, .. } if *skips > 0 => {
                *skips -= 1;
                Move::None
            }
            Phase::Trying { base, gaps, .. } => {
                gaps.push(gap);
                if gaps.len() < TRY {
                    return Move::None;
                }
                let (base, here) = (*base, typical(gaps));
                if pays(base, here) {
                    self.settle(base, here)
                } else {
                    self.next(base)
                }
            }
            Phase::Settled { base, usual, late } => {
                if gap <= 2 * *usual + SAVED {
                    *usual = (*usual * 15 + gap) / 16;
                    if pays(*base, *usual) {
                        *late = late.saturating_sub(1);
                        return Move::None;
                    }
                }
                *late += 1;
                if *late < self.doubt {
                    return Move::None;
                }
                let (base, usual) = (*base, *usual);
                if pays(base, usual) {
                    self.begin(base, places())
                } else {
                    // It is slower, there or everywhere.

                    self.phase = Phase::away(0);
                    Move::Away
                }
            }
        }
    }

    /// Whether the loop was to be bound by the last move.
    pub fn is_placed(&self) -> bool {
        !matches!(self.phase, Phase::Away { .. })
    }

    /// Whether messages are being measured.
    pub fn measures(&self) -> bool {
        match self.phase {
            Phase::Away { rests, .. } => rests == 0,
            Phase::Trying { .. } => true,
            Phase::Settled { .. } => false,
        }
    }

    /// The loop is alone no more: what was measured does not count.
    pub fn lost(&mut self) {
        match &mut self.phase {
            Phase::Away { gaps, .. } if gaps.is_empty() => {}
            Phase::Away { gaps, .. } => {
                gaps.clear();
                self.broken += 1;
                if self.broken == BROKEN {
                    self.give_up();
                }
            }
            Phase::Trying { .. } | Phase::Settled { .. } => self.phase = Phase::away(0),
        }
    }

    /// The loop was bound and is not any more, because no message came. On a processor that is tried
    /// this may be its fault.
    pub fn released(&mut self) -> Move {
        match self.phase {
            Phase::Trying { base, .. } => self.next(base),
            Phase::Away { .. } | Phase::Settled { .. } => {
                self.phase = Phase::away(0);
                Move::None
            }
        }
    }

    fn begin(&mut self, base: Duration, mut places: Vec<usize>) -> Move {
        // Taken from the end, where the last place is.
        places.reverse();
        if let Some(at) = places.iter().position(|place| Some(*place) == self.last) {
            let last = places.remove(at);
            match self.phase {
                // It is not there, most likely.
                Phase::Settled { .. } => places.insert(0, last),
                _ => places.push(last),
            }
        }
        self.left = places;
        if base > SAVED {
            self.next(base)
        } else {
            self.give_up()
        }
    }

    fn next(&mut self, base: Duration) -> Move {
        let Some(place) = self.left.pop() else {
            return self.give_up();
        };
        self.at = place;
        self.phase = Phase::Trying {
            base,
            skips: SKIP,
            gaps: Vec::with_capacity(TRY),
        };
        Move::To(place)
    }

    fn settle(&mut self, base: Duration, usual: Duration) -> Move {
        self.doubt = if self.last == Some(self.at) {
            (2 * self.doubt).min(DOUBT_MAX)
        } else {
            DOUBT
        };
        self.last = Some(self.at);
        self.patience = PATIENCE;
        self.broken = 0;
        let late = 0;
        self.phase = Phase::Settled { base, usual, late };
        Move::None
    }

    fn give_up(&mut self) -> Move {
        self.broken = 0;
        self.phase = Phase::away(self.patience);
        self.patience = (2 * self.patience).min(PATIENCE_MAX);
        Move::Away
    }
}

/// Whether a message comes enough sooner.
fn pays(base: Duration, here: Duration) -> bool {
    here + SAVED <= base && here <= base - base / SHARE
}

/// The mean without the largest quarter: what delays a few messages does not count, what takes most of
/// a client's time does.
fn typical(gaps: &mut [Duration]) -> Duration {
    gaps.sort_unstable();
    let most = gaps.get(..gaps.len() - gaps.len() / 4).unwrap_or_default();
    most.iter().sum::<Duration>() / most.len().max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client on a processor, whose messages come sooner if the loop is there, and then by `saved`.
    struct Client {
        at: usize,
        computes: u64,
        saved: u64,
    }

    /// Where the loop is after so many messages, and the number of moves.
    fn follow(search: &mut Search, client: &Client, messages: u32) -> (Option<usize>, u32) {
        let mut place = match search.phase {
            Phase::Settled { .. } => search.last,
            _ => None,
        };
        let mut moves = 0;
        for _ in 0..messages {
            let gap = match place {
                Some(at) if at == client.at => client.computes,
                Some(_) => client.computes + 2 * client.saved,
                None => client.computes + client.saved,
            };
            let gap = Duration::from_micros(gap);
            match search.heard(gap, || (0..8).collect()) {
                Move::None => continue,
                Move::To(at) => place = Some(at),
                Move::Away => place = None,
            }
            moves += 1;
        }
        (place, moves)
    }

    #[test]
    fn client_is_found_wherever_it_is() {
        for at in 0..8 {
            let mut search = Search::default();
            let client = Client {
                at,
                computes: 5,
                saved: 30,
            };
            let (place, moves) = follow(&mut search, &client, 1000);
            assert_eq!((place, moves), (Some(at), at as u32 + 1));
        }
    }

    #[test]
    fn client_that_moves_is_found_again_and_then_first() {
        let mut search = Search::default();
        let mut client = Client {
            at: 6,
            computes: 5,
            saved: 30,
        };
        assert_eq!(follow(&mut search, &client, 200).0, Some(6));
        client.at = 2;
        assert_eq!(follow(&mut search, &client, 200).0, Some(2));
        search.lost();
        assert_eq!(follow(&mut search, &client, 200), (Some(2), 1));
    }

    #[test]
    fn slow_client_that_moves_is_found_again() {
        let mut search = Search::default();
        let mut client = Client {
            at: 1,
            computes: 60,
            saved: 30,
        };
        assert_eq!(follow(&mut search, &client, 200).0, Some(1));
        client.at = 4;
        assert_eq!(follow(&mut search, &client, 1000).0, Some(4));
    }

    #[test]
    fn loop_that_is_never_alone_for_long_measures_rarely() {
        let mut search = Search::default();
        let mut measured = 0;
        for _ in 0..10_000 {
            for _ in 0..BASE / 2 {
                measured += u32::from(search.measures());
                let none = search.heard(Duration::from_micros(50), || vec![0, 1]);
                assert!(matches!(none, Move::None | Move::Away), "{none:?}");
            }
            search.lost();
        }
        assert!(measured < 1000, "{measured}");
    }

    #[test]
    fn client_that_waits_for_the_disk_most_of_the_time_is_not_followed() {
        let mut search = Search::default();
        for n in 0..10_000 {
            // The device takes 400 us for every other message.
            let gap = Duration::from_micros(if n % 2 == 0 { 400 } else { 8 });
            let here = matches!(search.phase, Phase::Trying { .. });
            let gap = gap + Duration::from_micros(if here { 0 } else { 25 });
            search.heard(gap, || vec![0]);
            assert!(!matches!(search.phase, Phase::Settled { .. }), "{n}");
        }
    }

    #[test]
    fn processor_on_which_the_loop_does_not_run_is_passed_over() {
        let mut search = Search::default();
        let late = Duration::from_micros(50);
        let moves: Vec<_> = (0..BASE)
            .map(|_| search.heard(late, || vec![0, 1]))
            .collect();
        assert_eq!(moves.last(), Some(&Move::To(0)));
        assert_eq!(search.released(), Move::To(1));
        assert_eq!(search.released(), Move::Away);
        assert!(!search.measures());
        // A loop that is not alone for a moment does not begin anew.
        search.lost();
        assert!(!search.measures());
    }

    #[test]
    fn searches_in_vain_become_rare() {
        // Waking costs nothing here; the client runs where the loop may not; it computes for long.
        for (computes, saved, at) in [(5, 2, 0), (5, 30, 99), (300, 20, 1)] {
            let mut search = Search::default();
            let client = Client {
                at,
                computes,
                saved,
            };
            let (place, first) = follow(&mut search, &client, 1000);
            assert_eq!(place, None);
            let (_, all) = follow(&mut search, &client, 100_000);
            assert!(all < 20 * first.max(9), "{first} {all}");
        }
    }

    #[test]
    fn client_that_becomes_slow_is_left_less_and_less() {
        let mut search = Search::default();
        let mut client = Client {
            at: 1,
            computes: 5,
            saved: 30,
        };
        let mut moves = 0;
        for _ in 0..200 {
            client.computes = 5;
            moves += follow(&mut search, &client, 500).1;
            client.computes = 40;
            moves += follow(&mut search, &client, 500).1;
        }
        assert_eq!(follow(&mut search, &client, 500).0, Some(1));
        assert!(moves < 200, "{moves}");
    }
}

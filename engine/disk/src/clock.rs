//! A second-chance (CLOCK) table: a bounded map from numbers that evicts an entry which was not
//! used since the hand last passed it.
//!
//! Uses [`crate::hash`] only. The entries are in one vector, which the hand passes in
//! order; a map leads from the number to the place. The owner provides the lock, and drops what
//! an insertion evicts.

use std::collections::HashMap;

use crate::hash::IntHash;

struct Slot<V> {
    key: u64,
    /// It was used since the hand last passed it.
    recent: bool,
    value: V,
}

/// A bounded map with second-chance eviction.
pub struct Clock<V> {
    /// From the key to the index in `slots`.
    places: HashMap<u64, usize, IntHash>,
    slots: Vec<Slot<V>>,
    /// The slot at which eviction continues.
    hand: usize,
    /// Maximum number of entries.
    limit: usize,
}

impl<V> Clock<V> {
    /// An empty table of at most `limit` entries.
    pub fn new(limit: usize) -> Self {
        Self {
            places: HashMap::default(),
            slots: Vec::new(),
            hand: 0,
            limit,
        }
    }

    /// Number of entries.
    #[allow(clippy::len_without_is_empty, reason = "nothing asks for it")]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The entry of a key. Not a use.
    pub fn peek(&self, key: u64) -> Option<&V> {
        let slot = self.slots.get(*self.places.get(&key)?)?;
        Some(&slot.value)
    }

    /// Uses the entry of a key.
    pub fn get(&mut self, key: u64) -> Option<&mut V> {
        self.get_if(key, |_| true)
    }

    /// Uses the entry of a key, if it is the wanted one.
    pub fn get_if(&mut self, key: u64, wanted: impl FnOnce(&V) -> bool) -> Option<&mut V> {
        match self.slot(key) {
            Some(slot) if wanted(&slot.value) => {
                slot.recent = true;
                Some(&mut slot.value)
            }
            _ => None,
        }
    }

    /// Makes the entry of a key a candidate for the next eviction.
    pub fn cool(&mut self, key: u64) {
        if let Some(slot) = self.slot(key) {
            slot.recent = false;
        }
    }

    /// Inserts an entry, and returns the one that it replaces: that of the same key, in which case
    /// the new one counts as used, or a cold one if the table is full. A table of limit 0 returns
    /// the new entry.
    pub fn insert(&mut self, key: u64, value: V) -> Option<V> {
        if let Some(slot) = self.slot(key) {
            slot.recent = true;
            return Some(std::mem::replace(&mut slot.value, value));
        }
        if self.slots.len() < self.limit {
            self.places.insert(key, self.slots.len());
            self.slots.push(Slot::new(key, value));
            return None;
        }
        match self.cold() {
            Some(victim) => self.replace(victim, key, value),
            None => Some(value),
        }
    }

    /// Inserts an entry in place of that of the key `victim`, which is returned. The table must
    /// have `victim`, and not `key`.
    pub fn replace(&mut self, victim: u64, key: u64, value: V) -> Option<V> {
        let place = self.places.remove(&victim)?;
        let slot = self.slots.get_mut(place)?;
        let old = std::mem::replace(slot, Slot::new(key, value));
        self.places.insert(key, place);
        Some(old.value)
    }

    /// Sets the maximum number of entries, and returns those that are evicted for it.
    pub fn set_limit(&mut self, limit: usize) -> Vec<V> {
        self.limit = limit;
        let surplus = self.slots.len().saturating_sub(limit);
        let evicted = (0..surplus).filter_map(|_| {
            let victim = self.cold()?;
            self.remove(victim)
        });
        evicted.collect()
    }

    /// Removes the entry of a key.
    pub fn remove(&mut self, key: u64) -> Option<V> {
        let place = self.places.remove(&key)?;
        let removed = self.slots.swap_remove(place);
        if let Some(moved) = self.slots.get(place) {
            self.places.insert(moved.key, place);
        }
        Some(removed.value)
    }

    /// Takes all entries.
    pub fn take(&mut self) -> impl Iterator<Item = V> + use<V> {
        self.places.clear();
        std::mem::take(&mut self.slots).into_iter().map(|s| s.value)
    }

    fn slot(&mut self, key: u64) -> Option<&mut Slot<V>> {
        let place = *self.places.get(&key)?;
        self.slots.get_mut(place)
    }

    /// The key of the first entry from the hand on that was not used since the last pass.
    fn cold(&mut self) -> Option<u64> {
        loop {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let slot = self.slots.get_mut(self.hand)?;
            self.hand += 1;
            if !std::mem::take(&mut slot.recent) {
                return Some(slot.key);
            }
        }
    }
}

impl<V> Slot<V> {
    fn new(key: u64, value: V) -> Self {
        Self {
            key,
            recent: false,
            value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full table of the keys from 0, with ten times the key as the value.
    fn full(limit: u64) -> Clock<u64> {
        let mut clock = Clock::new(limit as usize);
        assert!((0..limit).all(|key| clock.insert(key, 10 * key).is_none()));
        clock
    }

    #[test]
    fn used_entries_stay_and_cold_ones_leave_in_order() {
        let mut clock = full(4);
        assert_eq!(clock.get(0), Some(&mut 0));
        assert_eq!(clock.get(2), Some(&mut 20));
        assert_eq!(clock.peek(1), Some(&10), "not a use");
        assert_eq!(clock.get_if(3, |value| *value == 31), None, "not a use");
        assert_eq!(clock.insert(4, 40), Some(10));
        assert_eq!(clock.insert(5, 50), Some(30));
        assert_eq!(clock.insert(6, 60), Some(0), "used once only");
        assert_eq!(clock.len(), 4);
        assert_eq!(clock.peek(2), Some(&20));
    }

    #[test]
    fn cooled_entry_leaves_before_used_ones() {
        let mut clock = full(3);
        assert!((0..3).all(|key| clock.get(key).is_some()));
        clock.cool(1);
        clock.cool(7);
        assert_eq!(clock.insert(4, 40), Some(10));
    }

    #[test]
    fn entry_of_same_key_is_replaced_and_counts_as_used() {
        let mut clock = full(2);
        assert_eq!(clock.insert(0, 1), Some(0));
        assert_eq!(clock.insert(5, 50), Some(10));
        assert_eq!(clock.peek(0), Some(&1));
        assert_eq!(clock.replace(0, 6, 60), Some(1));
        assert_eq!((clock.peek(0), clock.peek(6)), (None, Some(&60)));
        assert_eq!(clock.replace(0, 7, 70), None, "no such entry");
        let mut all: Vec<u64> = clock.take().collect();
        all.sort_unstable();
        assert_eq!(all, [50, 60]);
        assert_eq!((clock.len(), clock.peek(6)), (0, None));
    }

    #[test]
    fn table_finds_what_a_map_finds_while_entries_come_and_go() {
        let mut clock = Clock::new(16);
        let mut held = HashMap::new();
        let mut random = 1_u64;
        for step in 0..10_000 {
            random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) + 1;
            let key = random % 40;
            if random.is_multiple_of(3) {
                assert_eq!(
                    clock.remove(key).map(|(k, _)| k),
                    held.remove(&key).map(|_| key)
                );
                continue;
            }
            match clock.insert(key, (key, step)) {
                Some((left, at)) => assert_eq!(held.remove(&left), Some(at)),
                None => assert!(held.len() < 16),
            }
            held.insert(key, step);
            assert_eq!(clock.len(), held.len());
            for (key, at) in &held {
                assert_eq!(clock.peek(*key), Some(&(*key, *at)));
            }
        }
    }

    #[test]
    fn lower_limit_evicts_cold_entries_and_a_higher_one_makes_room() {
        let mut clock = full(6);
        assert_eq!(clock.get(1), Some(&mut 10));
        assert_eq!(clock.get(4), Some(&mut 40));
        let mut evicted = clock.set_limit(2);
        evicted.sort_unstable();
        assert_eq!(evicted, [0, 20, 30, 50]);
        assert_eq!((clock.peek(1), clock.peek(4)), (Some(&10), Some(&40)));
        assert!(clock.set_limit(3).is_empty());
        assert_eq!(clock.insert(7, 70), None);
        assert!(clock.insert(8, 80).is_some());
        assert_eq!((clock.set_limit(0).len(), clock.len()), (3, 0));
    }

    #[test]
    fn table_of_limit_zero_keeps_nothing() {
        let mut clock = Clock::new(0);
        assert_eq!(clock.insert(1, 5), Some(5));
        assert_eq!((clock.len(), clock.get(1)), (0, None));
    }
}

//! The same as in `kernel` for threads of a scheduler.

pub use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};

use std::collections::BTreeMap;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use self::atomic::{AtomicBool, AtomicU32, Ordering};

/// A word that a thread can sleep on.
#[derive(Default)]
pub struct Word {
    value: AtomicU32,
    /// Held from a sleeper's look at the value until it sleeps, as the kernel does.
    lock: Mutex<()>,
    woken: Condvar,
}

impl Deref for Word {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.value
    }
}

/// Sleeps while `word` is `value`, until it is woken.
pub fn sleep(word: &Word, value: u32, _limit: Duration) {
    if let Ok(held) = word.lock.lock()
        && word.value.load(Ordering::SeqCst) == value
    {
        drop(word.woken.wait(held));
    }
}

/// Wakes the thread that sleeps on `word`.
pub fn wake(word: &Word) {
    let held = word.lock.lock();
    word.woken.notify_one();
    drop(held);
}

/// What a thread that hears doorbells sleeps on.
#[derive(Default)]
struct Ear {
    lock: Mutex<()>,
    rung: Condvar,
}

#[derive(Default)]
struct Bell {
    rings: AtomicBool,
    heard: Mutex<Option<Arc<Ear>>>,
}

/// What wakes the daemon.
#[derive(Clone, Default)]
pub struct Doorbell(Arc<Bell>);

/// A connection whose daemon does not end.
pub struct Connection;

pub fn doorbell() -> io::Result<Doorbell> {
    Ok(Doorbell::default())
}

pub fn same(bell: &Doorbell) -> io::Result<Doorbell> {
    Ok(bell.clone())
}

pub fn ring(Doorbell(bell): &Doorbell) {
    bell.rings.store(true, Ordering::SeqCst);
    let ear = bell.heard.lock().ok().and_then(|ear| ear.clone());
    if let Some(ear) = ear {
        drop(ear.lock.lock());
        ear.rung.notify_all();
    }
}

pub fn empty(Doorbell(bell): &Doorbell) {
    bell.rings.store(false, Ordering::SeqCst);
}

pub fn has_ended(_daemon: &Connection) -> bool {
    false
}

/// Doorbells that one thread hears, each with a number.
#[derive(Default)]
pub struct Bells {
    ear: Arc<Ear>,
    bells: std::sync::Mutex<BTreeMap<u64, Doorbell>>,
}

impl Bells {
    pub fn new() -> io::Result<Self> {
        Ok(Self::default())
    }

    pub fn add(&self, bell: &Doorbell, number: u64) -> io::Result<()> {
        if let (Ok(mut bells), Ok(mut heard)) = (self.bells.lock(), bell.0.heard.lock()) {
            *heard = Some(Arc::clone(&self.ear));
            bells.insert(number, bell.clone());
        }
        Ok(())
    }

    pub fn remove(&self, _bell: &Doorbell, number: u64) -> io::Result<()> {
        if let Ok(mut bells) = self.bells.lock() {
            bells.remove(&number);
        }
        Ok(())
    }

    pub fn hear(&self, waits: bool) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let mut rung = Vec::new();
        let bells = self.bells.lock().map(|bells| bells.clone());
        let bells = bells.unwrap_or_default();
        while let Ok(held) = self.ear.lock.lock() {
            let rings = |(_, Doorbell(bell)): &(&u64, &Doorbell)| bell.rings.load(Ordering::SeqCst);
            rung.extend(bells.iter().filter(rings).map(|(number, _)| *number));
            if !waits || !rung.is_empty() {
                break;
            }
            drop(self.ear.rung.wait(held));
        }
        Ok(rung.into_iter())
    }
}

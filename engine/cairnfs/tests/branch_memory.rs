//! The memory that an open branch takes which nobody uses, counted by the allocator of this test.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use cairnfs::{Error, Volume};

/// Bytes that an idle open branch may take.
const LIMIT: usize = 64 << 10;
/// Branches that may be open besides the main one.
const MOST: usize = 999;

static LIVE: AtomicIsize = AtomicIsize::new(0);

/// The allocator of the system, with a sum of the bytes in use.
struct Counting;

#[allow(unsafe_code, reason = "an allocator is unsafe")]
// SAFETY: every call is passed on to the allocator of the system unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `GlobalAlloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Opens as many branches as can be open, each of which is looked into once.
#[test]
fn idle_open_branch_takes_little_memory() {
    let options = Volume::options().cache_budget(64 << 20);
    let main = options.durability_interval(None).size(64 << 20);
    let main = main.in_memory().unwrap();
    main.create_dir_all("a/b").unwrap();
    main.write("a/b/f", "seen by all").unwrap();
    for n in 0..=MOST {
        main.file_system().branch(&format!("b{n}")).unwrap();
    }
    let open = |n: usize| {
        let branch = main.open_branch(&format!("b{n}"))?;
        assert_eq!(branch.read("a/b/f")?, b"seen by all");
        Ok::<_, Error>(branch)
    };
    // What is allocated once for all of them.
    drop((open(0).unwrap(), open(1).unwrap()));
    let before = LIVE.load(Ordering::Relaxed);
    let mut branches: Vec<Volume> = (0..MOST).map(|n| open(n).unwrap()).collect();
    let taken = (LIVE.load(Ordering::Relaxed) - before) as usize / MOST;
    println!("{taken} bytes for each of {MOST} idle open branches");
    assert!(taken <= LIMIT, "{taken} bytes for each");
    let refused = open(MOST).unwrap_err();
    assert!(matches!(refused, Error::Busy(_)), "{refused}");
    assert!(refused.to_string().contains("close one"), "{refused}");
    // A branch that is dropped makes room at once.
    branches.pop();
    open(MOST).unwrap();
}

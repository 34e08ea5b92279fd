//! Reading what a full volume has: comparisons and lists must need no space of their own.

use cairnfs::{Error, Volume};

use super::seen::assert_sound;
use super::snapshots::{fresh, open, volume};

const MIB: usize = 1 << 20;

/// Fills a volume with data and then with small files, until nothing more fits.
fn fill(v: &Volume) -> usize {
    let is_full = |done: Result<(), Error>| match done {
        Ok(()) => false,
        Err(e) if matches!(e.cause(), Error::NoSpace | Error::HeldByRoots) => true,
        Err(e) => panic!("{e}"),
    };
    let mut files = 0;
    for (name, size) in [("large", MIB), ("block", 4096), ("small", 100)] {
        let write = |n: usize| is_full(v.write(format!("{name}{n}"), vec![7; size]));
        let first = (0..).find(|n| write(*n)).unwrap();
        files += first;
        // What did not fit may have left an empty file.
        let _ = v.remove_file(format!("{name}{first}"));
    }
    v.sync().unwrap();
    files
}

#[test]
fn states_of_a_full_volume_are_compared() {
    for with_branch in [false, true] {
        let device = fresh(64 << 20);
        let fs = open(&device);
        let v = volume(&fs);
        for n in 0..2000 {
            v.write(format!("before{n}"), [3; 50]).unwrap();
        }
        v.snapshot("s").unwrap();
        if with_branch {
            v.branch("b").unwrap();
        }
        let files = fill(&v);
        assert!(matches!(
            v.snapshot("t"),
            Err(Error::NoSpace | Error::HeldByRoots)
        ));
        for _ in 0..3 {
            let diff = v.diff("s", "main").unwrap();
            assert_eq!(diff.report().files.len(), files);
        }
        assert!(v.space_of(v.find_root("s").unwrap().id).is_ok());
        // What is compared stays as it is while it is read, so the space for removals may end.
        let diff = v.diff("s", "main").unwrap();
        let remove = |n: &usize| v.remove_file(format!("before{n}"));
        let removed = (0..2000).take_while(|n| remove(n).is_ok()).count();
        assert_eq!(diff.report().files.len(), files);
        assert!(diff.has_path("before0".as_ref()).unwrap());
        drop(diff);
        (removed..2000).for_each(|n| remove(&n).unwrap());
        let diff = v.diff("s", "main").unwrap();
        assert_eq!(diff.report().files.len(), files + 2000);
        drop(diff);
        drop(v);
        fs.close().unwrap();
        assert_sound(&*device, "full");
    }
}

/// A branch that shares nothing with what it is compared with.
#[test]
fn full_volume_is_compared_with_what_was_received() {
    let other = volume(&open(&fresh(64 << 20)));
    other.write("sent", "there").unwrap();
    other.snapshot("s").unwrap();
    let stream = other.send(Vec::new(), "s", None).unwrap();
    let device = fresh(64 << 20);
    let fs = open(&device);
    let v = volume(&fs);
    v.receive(&stream[..], Some("received")).unwrap();
    let files = fill(&v);
    let diff = v.diff("received", "main").unwrap();
    assert_eq!(diff.report().files.len(), files + 1);
    drop((diff, v));
    fs.close().unwrap();
    assert_sound(&*device, "full");
}

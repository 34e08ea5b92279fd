//! Schedules of the inode table: eviction against use.

use std::sync::Arc;

use crate::inode::Inode;
use crate::inode::attrs::Attrs;
use crate::inode::table::InodeTable;
use cairnfs_disk::sync::explore::{Cost, explore};
use cairnfs_disk::sync::{thread, wait_for_ever};
use cairnfs_disk::types::Time;

/// Inode numbers this far apart share a shard of the table.
const SAME_SHARD: u64 = 512;

fn born(ino: u64) -> Arc<Inode> {
    let mut attrs = Attrs::new(0o100_644, (0, 0), 0, 1, Time::default());
    attrs.nlink = 1;
    Arc::new(Inode::born(ino, attrs))
}

/// Adds enough inodes that every evictable one is evicted.
fn crowd(table: &InodeTable, from: u64) {
    for n in from..from + 3 {
        drop(table.get_or_new(5 + n * SAME_SHARD));
    }
    table.shrink();
}

#[test]
fn eviction_never_loses_changes() {
    explore("inode: eviction and changes", Cost::Small, || {
        wait_for_ever(true);
        let table = Arc::new(InodeTable::new(64));
        table.insert(born(5));
        let changes = [1u64, 2].map(|by| {
            let table = table.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let inode = table.get_or_new(5);
                    let mut state = inode.write();
                    state.uncommitted = true;
                    state.epoch += by;
                }
            })
        });
        crowd(&table, 1);
        crowd(&table, 4);
        for thread in changes {
            thread.join().unwrap();
        }
        let inode = table.get_or_new(5);
        assert!(inode.read().uncommitted);
        // While clean it may have been evicted before the first change, which loses nothing.
        assert_eq!(inode.read().epoch, 6);
    });
}

#[test]
fn uses_are_counted_across_eviction() {
    explore("inode: eviction and uses", Cost::Small, || {
        wait_for_ever(true);
        let table = Arc::new(InodeTable::new(64));
        table.insert(born(5));
        let takes = thread::spawn({
            let table = table.clone();
            move || {
                for _ in 0..3 {
                    let inode = table.get_or_new(5);
                    let _state = inode.read();
                    inode.take_use();
                }
            }
        });
        let gives = thread::spawn({
            let table = table.clone();
            move || {
                // The use that it was created with.
                table.forget(5, 1);
            }
        });
        crowd(&table, 1);
        crowd(&table, 4);
        takes.join().unwrap();
        gives.join().unwrap();
        assert_eq!(table.get_or_new(5).uses(), 3);
        assert!(table.forget(5, 3).is_some_and(|inode| inode.uses() == 0));
    });
}

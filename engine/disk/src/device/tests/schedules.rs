//! Schedule tests of [`Storage`]'s shared flush.

use std::sync::Arc;

use crate::device::disk::{Disk, Image};
use crate::device::{Device, Storage};
use crate::format::BLOCK_SIZE;
use crate::sync::explore::{Cost, explore};
use crate::sync::{thread, wait_for_ever};

const BLOCK: u64 = BLOCK_SIZE as u64;

fn storage() -> (Arc<Disk>, Arc<Storage>) {
    let disk = Disk::new(64 * BLOCK, &Image::new());
    let storage = Arc::new(Storage::new(disk.clone()));
    (disk, storage)
}

fn write(storage: &Storage, block: u64) {
    storage.write(block * BLOCK, &[7; BLOCK_SIZE]).unwrap();
}

#[test]
fn shared_flush_acknowledges_only_covered_writes() {
    explore("storage: shared flush", Cost::Small, || {
        wait_for_ever(true);
        let (disk, storage) = storage();
        let threads = [0, 2, 4].map(|first| {
            let (disk, storage) = (disk.clone(), storage.clone());
            thread::spawn(move || {
                for block in first..first + 2 {
                    write(&storage, block);
                    let stamp = storage.stamp();
                    storage.flush_through(stamp).unwrap();
                    assert!(storage.is_flushed(stamp));
                    assert!(disk.durable().contains_key(&block), "block {block} is lost");
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn is_flushed_implies_durable() {
    explore("storage: is_flushed", Cost::Small, || {
        wait_for_ever(true);
        let (disk, storage) = storage();
        let (to_look, to_flush) = (storage.clone(), storage.clone());
        let looks = thread::spawn(move || {
            for block in 0..3 {
                write(&to_look, block);
                if to_look.is_flushed(to_look.stamp()) {
                    assert!(disk.durable().contains_key(&block), "block {block} is lost");
                }
            }
        });
        let flushes = thread::spawn(move || {
            for block in 8..10 {
                write(&to_flush, block);
                to_flush.flush().unwrap();
            }
        });
        looks.join().unwrap();
        flushes.join().unwrap();
    });
}

//! Signals with handlers can arrive at any moment, also while a sync waits for the device.

use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairnfs::VolumeOptions;
use nix::sys::pthread::pthread_kill;
use nix::sys::signal::Signal;

#[test]
fn signal_during_fsync_does_not_fail_it() {
    let handled = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, handled.clone()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let volume = VolumeOptions::new()
        .create(true)
        .size(super::SIZE)
        .open(dir.path().join("volume"))
        .unwrap();
    let syncing = std::thread::spawn(move || {
        let file = volume.create_file("/f").unwrap();
        for i in 0..500 {
            file.write_all_at(&[i as u8; 9000], i * 1000).unwrap();
            file.sync_all().unwrap();
        }
        drop(file);
        volume.close().unwrap();
    });
    while !syncing.is_finished() {
        // Fails if the thread has ended meanwhile; nothing is left to interrupt then.
        let _ = pthread_kill(syncing.as_pthread_t(), Signal::SIGUSR1);
        std::thread::yield_now();
    }
    syncing.join().unwrap();
    assert!(handled.load(std::sync::atomic::Ordering::Relaxed));
}

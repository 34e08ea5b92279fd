//! Signals that a program handles come at any moment, also while a sync waits for the device.

use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairnfs::VolumeOptions;
use nix::sys::pthread::pthread_kill;
use nix::sys::signal::Signal;

#[test]
fn a_signal_during_a_sync_stops_nothing() {
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
        // It may have ended meanwhile: then there is nothing to interrupt.
        let _ = pthread_kill(syncing.as_pthread_t(), Signal::SIGUSR1);
        std::thread::yield_now();
    }
    syncing.join().unwrap();
    assert!(handled.load(std::sync::atomic::Ordering::Relaxed));
}

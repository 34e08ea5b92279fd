//! A kernel that refuses the registration of rings; how a loop waits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{SendFlags, send};

use super::*;
use crate::abi::{Attr, AttrOut};
use crate::init::Wanted;
use crate::reply::ReplyAttr;
use crate::request::Header;

/// A directory.
struct Root;

impl Server for Root {
    fn negotiate(&self, _: &Offer) -> Result<Wanted, String> {
        Ok(Wanted {
            features: Features::default(),
            max_request: 1 << 20,
            max_background: 12,
            time_granularity: 1,
        })
    }

    fn getattr(&self, from: &Header, _: bool, reply: ReplyAttr) {
        let attr = Attr {
            ino: from.ino,
            mode: libc::S_IFDIR | 0o755,
            nlink: 77,
            ..Attr::default()
        };
        reply.attr(&AttrOut {
            attr,
            ..AttrOut::default()
        });
    }
}

#[test]
fn rings_are_asked_for_only_if_wanted_and_offered() {
    let offer = |features| Offer {
        major: 7,
        minor: 45,
        max_readahead: 0,
        features,
    };
    let reply = InitOut {
        max_write: 65536,
        max_pages: 16,
        ..InitOut::default()
    };
    let prepared = |transport, features| prepare::<Root>(transport, &offer(features), &reply);
    for transport in [Transport::Auto, Transport::Dev, Transport::Ring] {
        assert!(prepared(transport, Features::default()).is_none());
    }
    assert!(prepared(Transport::Dev, Features::OVER_IO_URING).is_none());
    assert!(prepared(Transport::Auto, Features::OVER_IO_URING).is_some());
}

/// A session with rings whose file system is a directory.
fn over_rings(dir: &std::path::Path) -> Option<Session<Root>> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let permitted = std::fs::write("/sys/module/fuse/parameters/enable_uring", "Y");
    let (Ok(device), Ok(())) = (device, permitted) else {
        eprintln!("skipped: root, /dev/fuse or FUSE over io_uring is missing");
        return None;
    };
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let data = std::ffi::CString::new(data).unwrap();
    mount("root", dir, "fuse", MountFlags::empty(), &*data).unwrap();
    let config = Config {
        loops: 2,
        clone_device: true,
        transport: Transport::Ring,
    };
    let session = Session::new(Root, device.into(), config).unwrap();
    assert!(session.granted.features.contains(Features::OVER_IO_URING));
    Some(session)
}

#[test]
fn broken_ring_ends_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let Some(session) = over_rings(dir.path()) else {
        return;
    };
    assert!(session.rings.is_some());
    let by_rings = Arc::clone(&session.by_rings);
    let session = thread::spawn(move || session.run());
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(dir.path()).unwrap().nlink(), 77);
    by_rings.broken();
    assert!(session.join().unwrap().is_err());
    unmount(dir.path(), UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
}

#[test]
fn refused_registration_leaves_requests_to_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut session) = over_rings(dir.path()) else {
        return;
    };
    // Payloads that are too small for the requests that were granted.
    session.rings = Some(Prepared::new(8192).unwrap());
    let traffic = session.traffic();
    let session = thread::spawn(move || session.run());
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(dir.path()).unwrap().nlink(), 77);
    assert_eq!(traffic.transport(), "dev");
    unmount(dir.path(), UnmountFlags::empty()).unwrap();
    session.join().unwrap().unwrap();
}

/// However late the message comes: the loop may look for it for an hour.
#[test]
fn loop_that_polls_does_not_sleep() {
    let (kernel, channel) = Channel::pair();
    let mut event_loop = EventLoop {
        server: Arc::new(Root),
        direct: Arc::clone(&channel) as Arc<dyn Sink>,
        patient: Arc::clone(&channel) as Arc<dyn Sink>,
        channel,
        readers: Arc::new(Readers::new(1, 2)),
        by_rings: Arc::default(),
        buffer: Channel::buffer(4096),
        polls_for: Duration::from_secs(3600),
        answered: Some(1),
        arrived: Instant::now(),
        may_follow: false,
        beside: None,
        quiet: Arc::default(),
    };
    for round in 0..200 {
        let lone = round % 2 == 0;
        let turn = Turn {
            lone,
            look: false,
            watched: false,
        };
        thread::scope(|scope| {
            scope.spawn(|| send(&kernel, b"message", SendFlags::empty()).unwrap());
            let (received, arrival) = event_loop.wait(turn).unwrap();
            assert!(matches!(received, Received::Message(7)));
            let slept = matches!(arrival, Arrival::Slept(_));
            assert_eq!(slept, !lone, "round {round}: {arrival:?}");
        });
    }
}

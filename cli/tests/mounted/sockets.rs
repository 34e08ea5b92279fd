//! The socket of a volume's daemon: what is in its place, and callers that it does not serve.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use crate::branches::forked;
use crate::place::{Place, able, said};
use crate::together::{daemon_of, is_mounted, socket_of, sockets};

const STRANGER: u32 = 65534;

#[test]
fn squatted_directory_is_not_used() {
    if !able(&[]) {
        return;
    }
    let squat: [fn(&Place); 3] = [
        |place| {
            let elsewhere = place.beside("elsewhere");
            fs::create_dir(&elsewhere).unwrap();
            fs::set_permissions(&elsewhere, Permissions::from_mode(0o700)).unwrap();
            symlink(elsewhere, sockets(place)).unwrap();
        },
        |place| {
            fs::create_dir(sockets(place)).unwrap();
            std::os::unix::fs::chown(sockets(place), Some(STRANGER), None).unwrap();
        },
        |place| {
            fs::create_dir(sockets(place)).unwrap();
            fs::set_permissions(sockets(place), Permissions::from_mode(0o755)).unwrap();
        },
    ];
    for squat in squat {
        let mut place = forked();
        fs::remove_dir_all(sockets(&place)).unwrap();
        squat(&place);
        let listener = UnixListener::bind(socket_of(&place)).unwrap();
        listener.set_nonblocking(true).unwrap();
        place.mount_logged("");
        place.mount_beside("branch=trial", "t");
        assert_eq!(daemon_of(&place, "t"), place.daemon_pid() as u64);
        assert!(listener.accept().is_err(), "the squatter was called");
        let log = fs::read_to_string(place.beside("log")).unwrap();
        assert!(log.contains("not used for the daemon's socket"), "{log}");
        place.umount_beside("t");
        place.finish();
    }
}

/// Runs `call` in a thread of another user.
fn as_stranger<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let user = Uid::from_raw(STRANGER);
            set_thread_res_uid(user, user, user).unwrap();
            call()
        });
        thread.join().unwrap()
    })
}

#[test]
fn socket_of_another_user_gets_no_mount() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    let path = socket_of(&place);
    let squatter = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&squatter, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    // SO_PEERCRED names the user who called listen(2).
    as_stranger(|| listen(&squatter, 8).unwrap());
    let listener = UnixListener::from(squatter);
    let caller = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        heard
    });
    // The daemon that is started in its place replaces the socket.
    place.mount("");
    assert_eq!(caller.join().unwrap(), b"");
    place.mount_beside("branch=trial", "t");
    place.umount_beside("t");
    place.finish();
}

/// Also while the daemon has the volume, whose socket it took.
#[test]
fn squatter_beside_the_daemon_gets_nothing_and_is_told() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    let path = socket_of(&place);
    fs::remove_file(&path).unwrap();
    let squatter = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&squatter, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    as_stranger(|| listen(&squatter, 1000).unwrap());
    fs::create_dir(place.beside("t")).unwrap();
    let says = "belongs to a process of another user, and is not asked";
    let words = ["mount", "-o", "branch=trial", "v.cairn", "t"];
    place.fails(&words, 32, &[says, "is in use"]);
    assert!(!is_mounted(&place.beside("t")));
    place.fails(&["log", "m"], 1, &[says, "is in use"]);
    // The lock tells when the volume is closed.
    let out = place.run(&["umount", "m"]);
    assert!(
        out.status.success() && said(&out).contains(says),
        "{}",
        said(&out)
    );
    place.wait_for_end();
    let listener = UnixListener::from(squatter);
    listener.set_nonblocking(true).unwrap();
    while let Ok((mut stream, _)) = listener.accept() {
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"");
    }
    place.check();
}

/// A request that a daemon answers.
fn request() -> Vec<u8> {
    let body = br#"{"Mount":{"lists":[],"by_mount8":false,"sloppy":false}}"#;
    [b"crn\x01", &(body.len() as u32).to_le_bytes()[..], body].concat()
}

/// What the socket answers, up to 8 bytes.
fn answered(path: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).unwrap();
    // Fails if the other end has closed the connection already.
    let _ = stream.write_all(bytes);
    let mut answer = vec![0; 8];
    let len = stream.read(&mut answer).unwrap_or(0);
    answer.truncate(len);
    answer
}

#[test]
fn strangers_are_not_answered() {
    if !able(&[]) {
        return;
    }
    let place = Place::mounted("64M", "");
    let path = socket_of(&place);
    assert!(answered(&path, &request()).starts_with(b"crn"));
    // Somebody has opened the door.
    for (path, mode) in [
        (place.beside(""), 0o755),
        (place.runtime(), 0o755),
        (sockets(&place), 0o755),
        (path.clone(), 0o666),
    ] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    assert_eq!(as_stranger(|| answered(&path, &request())), b"");
    fs::set_permissions(sockets(&place), Permissions::from_mode(0o700)).unwrap();
    place.finish();
}

#[test]
fn garbage_and_silence_at_the_socket_harm_nobody() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("");
    let path = socket_of(&place);
    let silent: Vec<_> = (0..20)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    let frame = |length: u32, body: &[u8]| [b"crn\x01", &length.to_le_bytes()[..], body].concat();
    for bytes in [
        vec![0; 100_000],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"crn\x63\0\0\0\0".to_vec(),
        frame(u32::MAX, b"{}"),
        frame(2, b"{}"),
        frame(4, b"\xff\xff\xff\xff"),
        frame(1 << 16, &[b'['; 1 << 16]),
        frame(50, br#"{"Serve":{"device":"../../etc","dir":[47,109]}}   "#),
    ] {
        let answer = answered(&path, &bytes);
        assert!(
            answer.is_empty() || answer.starts_with(b"crn"),
            "{answer:?}"
        );
    }
    // A grant with a connection that is none.
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(&request()).unwrap();
    let null = File::open("/dev/null").unwrap();
    let serve = br#"{"Serve":{"device":"0:1","dir":[47,109]}}"#;
    let serve = frame(serve.len() as u32, serve);
    let sent = cairnfs_fuse::descriptors::send(&stream, &serve, &[null.as_fd()]).unwrap();
    assert_eq!(sent, serve.len());
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap_or(0);
    assert!(!answers.contains("Serving"), "{answers}");

    place.mount_beside("branch=trial", "t");
    place.umount_beside("t");
    drop(silent);
    place.finish();
}

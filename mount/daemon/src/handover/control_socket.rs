//! The daemon's end: a socket at which commands ask for further mounts of the volume, and for the end
//! of one.
//!
//! Only the daemon's user and root are answered. Each connection has a thread, which ends at the
//! first message that is wrong or late; a connection that waits for the end of a mount has none, and
//! one on whose end a mount waits has one as long as it lasts. One that was answered that the volume is
//! being closed stays open until this process ends, which the command waits for. What a command wants
//! is decided by a [`MountPolicy`].

use std::fs::Permissions;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cairnfs_channel::call::VERSION;
use cairnfs_fuse::sessions::{Ended, Watcher};
use rustix::process::geteuid;

use super::end_notice::EndNotice;
use super::folder::{Folder, SocketName};
use super::frames::{Answer, Request, Run, Wanted, receive, send};
use super::is_of;
use crate::commands::{Caller, Streams};

/// Time that a command has for its request.
const REQUEST: Duration = Duration::from_secs(10);

/// Time that a command has for the mount that it was permitted.
const MOUNTING: Duration = Duration::from_secs(60);

/// Maximum number of connections that are talked to at a time; further ones are closed.
const MOST: usize = 128;

/// Decides what commands get.
pub trait MountPolicy: Send + Sync + 'static {
    /// A mount that was permitted and not made yet.
    type MountGrant;

    /// Grants a mount, and tells how to make it.
    ///
    /// # Errors
    /// The answer that refuses it.
    fn grant(&self, wanted: &Wanted) -> Result<(Self::MountGrant, Answer), Answer>;

    /// Serves a mount that was made.
    ///
    /// # Errors
    /// The answer that refuses it.
    fn serve(&self, grant: Self::MountGrant, made: Made) -> Result<(), Answer>;

    /// Calls the watcher when the mount with this device number has ended; false if there is none.
    fn watch(&self, device: &str, watcher: Watcher) -> bool;

    /// Whether there is a mount with this device number.
    fn serves(&self, device: &str) -> bool;

    /// What is told, after its end, to those who have watched the last mount.
    fn end_notice(&self) -> Arc<EndNotice>;

    /// What ends the mount with this device number when it is not needed any more, which may take long;
    /// `None` if there is none, or somebody needs it already.
    fn lease(&self, device: &str) -> Option<Box<dyn FnOnce() + Send>>;

    /// Gives a program a channel to the mount with this device number.
    ///
    /// # Errors
    /// The answer that refuses it.
    fn channel(&self, device: &str, caller: &UnixStream) -> Result<Channel, Answer>;

    /// Performs a command for its caller; returns its exit code. Calls `begin` before it does anything.
    ///
    /// # Errors
    /// The answer that refuses it.
    fn run(&self, wanted: Run, caller: Caller, begin: &mut dyn FnMut()) -> Result<u8, Answer>;
}

/// A channel that a program gets.
pub struct Channel {
    /// The answer.
    pub answer: Answer,
    /// What comes with it.
    pub descriptors: [OwnedFd; 2],
    /// What is done when the program is gone.
    pub end: Box<dyn FnOnce() + Send>,
}

/// A mount that a command has made.
pub struct Made {
    /// Its device number.
    pub device: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Its connection.
    pub connection: OwnedFd,
}

/// A socket where commands can call. Its name is removed when this is dropped, which must be before
/// the volume's lock is released: the next holder of the lock puts its socket there.
pub struct ControlSocket {
    folder: Folder,
    name: SocketName,
    /// Device and inode number of the socket's name.
    id: (u64, u64),
}

impl ControlSocket {
    /// Opens the socket of a volume, which this process has locked. Callers wait until they are
    /// answered. What a killed daemon has left there is replaced. `alone` if the lock excludes others;
    /// otherwise another daemon may have the socket, and keeps it.
    ///
    /// # Errors
    /// There is no place for the socket, or another daemon has it.
    pub fn open(volume: &Path, alone: bool) -> io::Result<(Self, Callers)> {
        let folder = Folder::make(|why| tracing::warn!("not used for the daemon's socket: {why}"))?;
        let name = SocketName::of(&volume.metadata()?);
        let path = folder.reach(&name);
        if !alone && UnixStream::connect(&path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let made = path.symlink_metadata()?;
        tracing::debug!("further mounts: {}", folder.shown(&name).display());
        let socket = Self {
            folder,
            name,
            id: (made.dev(), made.ino()),
        };
        Ok((socket, Callers(listener)))
    }
}

/// Those who call at an open socket. If this is dropped, they find that there is no daemon.
pub struct Callers(UnixListener);

impl Callers {
    /// Answers callers from now on.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn answer(self, policy: Arc<impl MountPolicy>) -> io::Result<()> {
        thread::Builder::new()
            .name("cairnfs-control".into())
            .spawn(move || answer_callers(&self.0, &policy))?;
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let path = self.folder.reach(&self.name);
        let found = path.symlink_metadata();
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            // What stays is replaced by the next daemon.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn answer_callers(listener: &UnixListener, policy: &Arc<impl MountPolicy>) {
    let talks = Arc::new(());
    for caller in listener.incoming() {
        let Ok(caller) = caller else {
            // Without descriptors or memory; some are free again later.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if !is_of(&caller, geteuid()) || Arc::strong_count(&talks) > MOST {
            continue;
        }
        let (policy, talk) = (Arc::clone(policy), Arc::clone(&talks));
        let thread = thread::Builder::new().name("cairnfs-call".into());
        let spawned = thread.spawn(move || {
            let answered = answer(caller, &*policy);
            drop(talk);
            match answered {
                Ok(None) => {}
                Ok(Some(kept)) => kept.outlast(),
                Err(error) => tracing::debug!("a command's call was broken off: {error}"),
            }
        });
        if let Err(error) = spawned {
            tracing::warn!("no thread for a command's call: {error}");
        }
    }
}

/// A connection that lasts as long as its caller wants.
struct Kept {
    caller: UnixStream,
    /// What is done then.
    end: Box<dyn FnOnce() + Send>,
}

impl Kept {
    /// Waits until the caller is gone.
    fn outlast(mut self) {
        // Whatever it says, or if it cannot be heard, it needs the connection no more.
        let _ = self.caller.set_read_timeout(None);
        let _ = self.caller.read(&mut [0]);
        (self.end)();
    }
}

/// Answers a caller until it has no more requests, or needs a mount or the end of this process.
fn answer<C: MountPolicy>(caller: UnixStream, policy: &C) -> io::Result<Option<Kept>> {
    caller.set_write_timeout(Some(REQUEST))?;
    let mut permitted = None;
    let mut time = REQUEST;
    while let Some((request, descriptors)) = receive(&caller, Some(Instant::now() + time))? {
        let answer = match request {
            Request::Mount(wanted) => match policy.grant(&wanted) {
                Ok((grant, answer)) => {
                    permitted = Some(grant);
                    time = MOUNTING;
                    answer
                }
                Err(refused) => refused,
            },
            Request::Serve { device, dir } => {
                time = REQUEST;
                serve(policy, permitted.take(), (device, dir), descriptors)
            }
            Request::Serves { device } if policy.serves(&device) => Answer::Serving,
            Request::Serves { .. } => Answer::Unknown,
            Request::Watch { device } => return watch(caller, policy, &device).map(|()| None),
            Request::Lease { device } => match policy.lease(&device) {
                Some(end) => {
                    // One that is gone already is found by waiting for it.
                    let _ = send(&caller, &Answer::Leased, &[]);
                    return Ok(Some(Kept { caller, end }));
                }
                None => Answer::Unknown,
            },
            Request::Channel { device, version } if version == VERSION => {
                match policy.channel(&device, &caller) {
                    Ok(channel) => {
                        let with = channel.descriptors.each_ref().map(AsFd::as_fd);
                        // One that is gone already is found by waiting for it.
                        let _ = send(&caller, &channel.answer, &with);
                        let end = channel.end;
                        return Ok(Some(Kept { caller, end }));
                    }
                    Err(refused) => refused,
                }
            }
            Request::Channel { .. } => Answer::Unknown,
            Request::Run(run) => perform(&caller, policy, run, descriptors)?,
        };
        send(&caller, &answer, &[])?;
        if answer == Answer::Closing {
            let end = Box::new(|| ());
            return Ok(Some(Kept { caller, end }));
        }
    }
    Ok(None)
}

fn serve<C: MountPolicy>(
    policy: &C,
    grant: Option<C::MountGrant>,
    (device, dir): (String, PathBuf),
    connection: Vec<OwnedFd>,
) -> Answer {
    let connection = <[OwnedFd; 1]>::try_from(connection);
    let (Some(grant), Ok([connection])) = (grant, connection) else {
        return Answer::Refused("the mount was not asked for, or came without connection".into());
    };
    let made = Made {
        device,
        dir,
        connection,
    };
    match policy.serve(grant, made) {
        Ok(()) => Answer::Serving,
        Err(refused) => refused,
    }
}

fn perform(
    caller: &UnixStream,
    policy: &impl MountPolicy,
    run: Run,
    streams: Vec<OwnedFd>,
) -> io::Result<Answer> {
    let Ok(streams) = Streams::try_from(streams) else {
        return Ok(Answer::Refused(
            "the command came without its streams".into(),
        ));
    };
    let called = Caller {
        streams,
        connection: caller.try_clone()?,
    };
    // A caller that is gone is found by the command.
    let mut begin = || drop(send(caller, &Answer::Begun, &[]));
    let done = policy.run(run, called, &mut begin);
    Ok(done.map_or_else(|refused| refused, Answer::Done))
}

/// The connection is kept, without a thread, until the mount has ended.
fn watch(caller: UnixStream, policy: &impl MountPolicy, device: &str) -> io::Result<()> {
    let (told, end_notice) = (caller.try_clone()?, policy.end_notice());
    let watcher = move |ended: &Ended| {
        let answer = match ended {
            Ended::Apart(durable) => Answer::Ended(durable.clone()),
            Ended::Last => Answer::EndedLast,
        };
        // A caller that has gone, or does not read, learns nothing.
        let _ = told.set_nonblocking(true);
        let _ = send(&told, &answer, &[]);
        if answer == Answer::EndedLast {
            end_notice.keep(told);
        }
    };
    // A mount that ends at once is told before this is. The caller expects either.
    if policy.watch(device, Box::new(watcher)) {
        send(&caller, &Answer::Watching, &[])
    } else {
        send(&caller, &Answer::Unknown, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::sync::Mutex;

    use serde_json::Value;

    #[derive(Default)]
    struct Fake {
        served: Mutex<Vec<(String, PathBuf)>>,
        watchers: Mutex<Vec<Watcher>>,
        ended: Arc<Mutex<Vec<String>>>,
        end_notice: Arc<EndNotice>,
    }

    impl MountPolicy for Fake {
        type MountGrant = String;

        fn grant(&self, wanted: &Wanted) -> Result<(String, Answer), Answer> {
            let list = wanted.lists.concat();
            match list.as_str() {
                "no" => Err(Answer::Refused("no".into())),
                "late" => Err(Answer::Closing),
                _ => Ok((list, mountable())),
            }
        }

        fn serve(&self, grant: String, made: Made) -> Result<(), Answer> {
            self.served.lock().unwrap().push((grant, made.dir));
            Ok(())
        }

        fn serves(&self, device: &str) -> bool {
            device == "0:7"
        }

        fn watch(&self, device: &str, watcher: Watcher) -> bool {
            let known = device == "0:7";
            self.watchers
                .lock()
                .unwrap()
                .extend(known.then_some(watcher));
            known
        }

        fn end_notice(&self) -> Arc<EndNotice> {
            Arc::clone(&self.end_notice)
        }

        fn lease(&self, device: &str) -> Option<Box<dyn FnOnce() + Send>> {
            let (ended, device) = (Arc::clone(&self.ended), device.to_owned());
            (device == "0:7").then(|| Box::new(move || ended.lock().unwrap().push(device)) as _)
        }

        fn channel(&self, device: &str, _: &UnixStream) -> Result<Channel, Answer> {
            if device != "0:7" {
                return Err(Answer::Unknown);
            }
            let ended = Arc::clone(&self.ended);
            Ok(Channel {
                answer: Answer::Channel { door: "d".into() },
                descriptors: [(); 2].map(|()| tempfile::tempfile().unwrap().into()),
                end: Box::new(move || ended.lock().unwrap().push("channel".into())),
            })
        }

        fn run(&self, wanted: Run, caller: Caller, begin: &mut dyn FnMut()) -> Result<u8, Answer> {
            begin();
            let verb = wanted.verb;
            match verb.as_str() {
                Some("wait") => while !caller.has_left() {},
                _ => {
                    let [_, output, _] = caller.streams.map(File::from);
                    writeln!(&output, "{verb}").unwrap();
                }
            }
            Ok(7)
        }
    }

    fn mountable() -> Answer {
        Answer::Mountable {
            source: None,
            read_only: false,
        }
    }

    fn mount(list: &str) -> Request {
        Request::Mount(Wanted {
            lists: vec![list.into()],
            by_mount8: false,
            sloppy: false,
        })
    }

    fn serve_request() -> Request {
        Request::Serve {
            device: "0:7".into(),
            dir: "/m".into(),
        }
    }

    /// A connection to a control socket of `mount_service`.
    fn call(policy: &Arc<Fake>) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let policy = Arc::clone(policy);
        thread::spawn(move || answer(theirs, &*policy));
        ours
    }

    fn ask(stream: &UnixStream, request: &Request) -> Option<Answer> {
        send(stream, request, &[]).unwrap();
        heard(stream)
    }

    fn heard(stream: &UnixStream) -> Option<Answer> {
        receive(stream, None).unwrap().map(|(answer, _)| answer)
    }

    /// While the first mount is made there is an answer to wait for; without one, nobody is there.
    #[test]
    fn caller_before_the_first_mount_is_answered_after_it() {
        let volume = tempfile::NamedTempFile::new().unwrap();
        let called = |socket: &ControlSocket| {
            let stream = UnixStream::connect(socket.folder.reach(&socket.name)).unwrap();
            send(&stream, &mount("yes"), &[]).unwrap();
            stream
        };
        let (socket, callers) = ControlSocket::open(volume.path(), true).unwrap();
        let early = called(&socket);
        callers.answer(Arc::<Fake>::default()).unwrap();
        assert_eq!(heard(&early), Some(mountable()));
        drop(socket);
        let (socket, callers) = ControlSocket::open(volume.path(), true).unwrap();
        let early = called(&socket);
        drop(callers);
        assert!(matches!(receive::<Answer>(&early, None), Ok(None) | Err(_)));
    }

    #[test]
    fn mount_is_permitted_then_served() {
        let policy = Arc::<Fake>::default();
        let stream = call(&policy);
        assert_eq!(
            ask(&stream, &mount("no")),
            Some(Answer::Refused("no".into()))
        );
        assert_eq!(ask(&stream, &mount("yes")), Some(mountable()));
        let null = std::fs::File::open("/dev/null").unwrap();
        send(&stream, &serve_request(), &[null.as_fd()]).unwrap();
        assert_eq!(heard(&stream), Some(Answer::Serving));
        // A grant is for one mount.
        send(&stream, &serve_request(), &[null.as_fd()]).unwrap();
        assert!(matches!(heard(&stream), Some(Answer::Refused(_))));
        assert_eq!(ask(&stream, &mount("yes")), Some(mountable()));
        assert!(matches!(
            ask(&stream, &serve_request()),
            Some(Answer::Refused(_))
        ));
        let served = policy.served.lock().unwrap();
        assert_eq!(*served, [("yes".to_owned(), PathBuf::from("/m"))]);
    }

    #[test]
    fn command_is_performed_on_its_streams_until_it_is_interrupted() {
        let stream = call(&Arc::default());
        let run = |verb: &str| {
            Request::Run(Run {
                verb: verb.into(),
                manner: Value::Null,
                mount: None,
            })
        };
        assert!(matches!(
            ask(&stream, &run("say")),
            Some(Answer::Refused(_))
        ));
        let mut file = tempfile::tempfile().unwrap();
        send(&stream, &run("say"), &[file.as_fd(); 3]).unwrap();
        assert_eq!(heard(&stream), Some(Answer::Begun));
        assert_eq!(heard(&stream), Some(Answer::Done(7)));
        let mut said = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut said).unwrap();
        assert_eq!(said, "\"say\"\n");
        send(&stream, &run("wait"), &[file.as_fd(); 3]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(heard(&stream), Some(Answer::Begun));
        assert_eq!(heard(&stream), Some(Answer::Done(7)));
        assert_eq!(heard(&stream), None);
    }

    #[test]
    fn mount_ends_after_the_connection_that_needs_it() {
        let policy = Arc::<Fake>::default();
        let lease = |device: &str| Request::Lease {
            device: device.into(),
        };
        assert_eq!(ask(&call(&policy), &lease("0:8")), Some(Answer::Unknown));
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, &lease("0:7"), &[]).unwrap();
        let leased = answer(theirs, &*policy).unwrap().unwrap();
        assert_eq!(heard(&ours), Some(Answer::Leased));
        assert!(policy.ended.lock().unwrap().is_empty());
        drop(ours);
        leased.outlast();
        assert_eq!(*policy.ended.lock().unwrap(), ["0:7"]);
    }

    #[test]
    fn channel_is_given_to_the_same_version_and_ends_with_the_connection() {
        let policy = Arc::<Fake>::default();
        let channel = |device: &str, version| Request::Channel {
            device: device.into(),
            version,
        };
        for (device, version) in [("0:8", VERSION), ("0:7", VERSION + 1)] {
            let answer = ask(&call(&policy), &channel(device, version));
            assert_eq!(answer, Some(Answer::Unknown));
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, &channel("0:7", VERSION), &[]).unwrap();
        let given = answer(theirs, &*policy).unwrap().unwrap();
        let (told, descriptors) = receive::<Answer>(&ours, None).unwrap().unwrap();
        assert_eq!(told, Answer::Channel { door: "d".into() });
        assert_eq!(descriptors.len(), 2);
        drop(ours);
        given.outlast();
        assert_eq!(*policy.ended.lock().unwrap(), ["channel"]);
    }

    #[test]
    fn connection_stays_for_who_waits_for_the_end() {
        let policy = Arc::<Fake>::default();
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, &mount("late"), &[]).unwrap();
        let kept = answer(theirs, &*policy).unwrap().unwrap();
        assert_eq!(heard(&ours), Some(Answer::Closing));
        ours.set_nonblocking(true).unwrap();
        let open = (&ours).read(&mut [0]).unwrap_err();
        assert_eq!(open.kind(), io::ErrorKind::WouldBlock);
        drop(ours);
        kept.outlast();
    }

    #[test]
    fn garbage_ends_its_own_connection_only() {
        let policy = Arc::<Fake>::default();
        let good = call(&policy);
        let mut bad = call(&policy);
        bad.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!(bad.read(&mut [0; 8]).unwrap_or(0), 0);
        assert_eq!(ask(&good, &mount("yes")), Some(mountable()));
    }

    #[test]
    fn watcher_is_told_the_end_without_a_thread() {
        let policy = Arc::<Fake>::default();
        let watch = |device: &str| Request::Watch {
            device: device.into(),
        };
        assert_eq!(ask(&call(&policy), &watch("0:8")), Some(Answer::Unknown));
        let failed: Result<(), String> = Err("full".into());
        for (ended, told) in [
            (Ended::Last, Answer::EndedLast),
            (Ended::Apart(failed.clone()), Answer::Ended(failed)),
        ] {
            let stream = call(&policy);
            assert_eq!(ask(&stream, &watch("0:7")), Some(Answer::Watching));
            let watcher = policy.watchers.lock().unwrap().pop().unwrap();
            watcher(&ended);
            let is_last = told == Answer::EndedLast;
            assert_eq!(heard(&stream), Some(told));
            policy.end_notice.say("not stored");
            let said = is_last.then(|| Answer::Warning("not stored".into()));
            assert_eq!(heard(&stream), said);
        }
    }
}

//! Decides which mounts of the open volume a daemon serves, its first and those that commands hand
//! over, and serves them.
//!
//! Options that concern the volume as a whole are those of the first mount. A branch that can change
//! has one mount: the kernel's caches of two would differ.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs_fuse::adapter::Adapter;
use cairnfs_fuse::mounted::Mounted;
use cairnfs_fuse::ops::Ops;
use cairnfs_fuse::person::Person;
use cairnfs_fuse::sessions::{Held, NewMount, NotAdded, Watcher};
use cairnfs_fuse::{MountOptions, ServeError, Sessions, Transport, mountinfo, session};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

use crate::auto_snapshots::AutoSnapshots;
use crate::backup_worker::Orders;
use crate::commands::{Caller, Commands};
use crate::exit::{Failure, failed};
use crate::failure::{io_text, shown};
use crate::handover::control_socket::{Channel, Made, MountPolicy};
use crate::handover::end_notice::EndNotice;
use crate::handover::frames::{Answer, Run, Wanted};
use crate::opening::{self, OpenVolume, engine_options};
use crate::shell::word_of_path;
use crate::working::{self, Open};

/// Event loops of each further mount, unless `-o threads` says otherwise: many mounts are mostly
/// idle.
const LOOPS: usize = 2;

/// Number of mounts that use io_uring by themselves. Each takes a thread and memory for each
/// processor.
const MOST_RINGS: usize = 4;

/// Time that the kernel has for the first message of a connection.
const FIRST_MESSAGE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// The open volume and its mounts.
pub(crate) struct MountService {
    open: Arc<OpenVolume>,
    volume: PathBuf,
    /// The options of the first mount.
    first: MountOptions,
    sessions: Arc<Sessions>,
    /// The backup of the first mount's options.
    backup: Option<Arc<Orders>>,
    end_notice: Arc<EndNotice>,
    /// The commands that it performs.
    commands: Commands,
}

/// A tree that may be mounted.
pub(crate) struct MountGrant {
    root: Arc<FileSystem>,
    /// The name of the branch, if its files can change.
    branch: Option<String>,
    /// The options that were asked for, with the reference of the tree.
    asked: MountOptions,
    options: MountOptions,
    /// The tree's number if it may have one mount only.
    sole: Option<u64>,
}

impl MountService {
    /// Of a volume that was opened with the options of its first mount.
    pub fn new(
        open: Arc<OpenVolume>,
        volume: &Path,
        (first, commands): (&MountOptions, Commands),
        sessions: &Arc<Sessions>,
    ) -> Self {
        Self {
            open,
            volume: volume.to_path_buf(),
            first: first.clone(),
            sessions: Arc::clone(sessions),
            backup: None,
            end_notice: Arc::default(),
            commands,
        }
    }

    /// Reports a backup to commands, and lets them ask it for moments.
    pub fn with_backup(mut self, backup: Option<Arc<Orders>>) -> Self {
        self.backup = backup;
        self
    }

    /// Makes and serves the first mount.
    ///
    /// # Errors
    /// Nothing is mounted.
    pub fn mount_first(&self, dir: &Path) -> Result<(), Failure> {
        let (root, options) = opening::open_root(&self.open.get(), &self.volume, &self.first)?;
        let sole = sole(&root);
        let adapter = self.adapter(root, &options);
        session::begin(&self.sessions, adapter, &self.volume, dir, &options, sole)
            .map_err(|e: ServeError| failed(e))?;
        let entry = mountinfo::at(dir).map_err(failed)?;
        if let Some(entry) = entry {
            self.keep_snapshots(&entry.device, &options);
        }
        Ok(())
    }

    fn keep_snapshots(&self, device: &str, options: &MountOptions) {
        let begun =
            AutoSnapshots::begin(&self.open, &self.volume, (&self.sessions, device), options);
        if let Err(error) = begun {
            tracing::error!("no snapshots are made by themselves: no thread: {error}");
        }
    }

    fn adapter(&self, root: Arc<FileSystem>, options: &MountOptions) -> Adapter {
        let ops = Ops::new(root, &self.volume, options.write);
        let ops = ops.with_backup(self.backup.as_ref().map(Orders::ask));
        let ops = ops.with_syncs_by(self.backup.as_ref().and_then(Orders::await_backup));
        Adapter::new(Arc::new(ops), options)
    }

    /// The options of a further mount: words that are missing mean what the first mount has.
    fn options_of(&self, wanted: &Wanted) -> Result<MountOptions, String> {
        let first = &self.first;
        let mut options = MountOptions {
            sloppy: wanted.sloppy,
            dev: wanted.by_mount8,
            suid: wanted.by_mount8,
            recovery: first.recovery,
            discard: first.discard,
            write: first.write,
            cache: first.cache,
            durability: first.durability,
            ..MountOptions::default()
        };
        wanted
            .lists
            .iter()
            .try_for_each(|list| options.apply(list))?;
        let differing = differing(first, &options);
        if !differing.is_empty() {
            return Err(format!(
                "{} is mounted already, and {} would concern all of its mounts: leave that out, or \
                 unmount all of them first",
                shown(&self.volume),
                differing.join(", ")
            ));
        }
        let rings = self.sessions.count() < MOST_RINGS;
        if options.transport == Transport::Auto && !rings {
            options.transport = Transport::Dev;
        }
        options.threads = options.threads.or(Some(LOOPS));
        Ok(options)
    }

    fn permitted(&self, wanted: &Wanted) -> Result<MountGrant, NotPermitted> {
        let options = self.options_of(wanted).map_err(NotPermitted::Refused)?;
        let opened = opening::open_root(&self.open.get(), &self.volume, &options);
        let (root, opened) = opened.map_err(|Failure(_, text)| NotPermitted::Refused(text))?;
        let is_branch = root.root_info().is_some_and(|info| info.writable);
        if self.open.get().is_read_only() && is_branch && !options.read_only {
            return Err(NotPermitted::Refused(format!(
                "{} was mounted read-only, and its daemon cannot write: mount with -o ro, or unmount \
                 all of its mounts first",
                shown(&self.volume)
            )));
        }
        let sole = sole(&root);
        self.sessions.check(sole).map_err(|why| self.refusal(why))?;
        Ok(MountGrant {
            branch: branch_of(&root),
            root,
            asked: options,
            options: opened,
            sole,
        })
    }

    /// The tree that the reference of a grant means now, and means until the result is dropped. A
    /// publish or a restore may have moved its name since the grant was given.
    fn settled(&self, mut grant: MountGrant) -> Result<(MountGrant, Option<Held>), Failure> {
        loop {
            let held = grant.branch.as_ref().map(|name| self.sessions.hold(name));
            let opened = opening::open_root(&self.open.get(), &self.volume, &grant.asked)?;
            (grant.root, grant.options) = opened;
            grant.sole = sole(&grant.root);
            let branch = branch_of(&grant.root);
            if branch == grant.branch {
                return Ok((grant, held));
            }
            grant.branch = branch;
        }
    }

    /// What a command is told. Of a volume that is being closed anything may fail, so that is no reason.
    fn answer(&self, why: NotPermitted) -> Answer {
        match why {
            NotPermitted::Refused(text) if !self.sessions.is_closed() => Answer::Refused(text),
            _ => Answer::Closing,
        }
    }

    fn refusal(&self, why: NotAdded) -> NotPermitted {
        match why {
            NotAdded::Closed => NotPermitted::Closing,
            NotAdded::Mounted {
                dir,
                detached: true,
            } => NotPermitted::Refused(format!(
                "{}: this branch was mounted on {}, and files that are open there keep it in use, or a \
                 mount in another mount namespace: close them",
                shown(&self.volume),
                shown(&dir)
            )),
            NotAdded::Mounted { dir, .. } => NotPermitted::Refused(format!(
                "{} is in use: mounted on {} by cairnfs (pid {}); unmount it first: cairnfs umount {}; \
                 or make a branch of it, and mount that; to have the same files in another directory, \
                 make a symbolic link, or as root: mount --bind {} DIR",
                shown(&self.volume),
                shown(&dir),
                std::process::id(),
                word_of_path(&dir),
                word_of_path(&dir)
            )),
            NotAdded::Failed(error) => {
                NotPermitted::Refused(format!("cannot serve the mount: {}", io_text(&error)))
            }
        }
    }
}

/// Why a mount is not served.
enum NotPermitted {
    Closing,
    Refused(String),
}

impl MountPolicy for MountService {
    type MountGrant = MountGrant;

    fn grant(&self, wanted: &Wanted) -> Result<(MountGrant, Answer), Answer> {
        let grant = self.permitted(wanted).map_err(|why| self.answer(why))?;
        let answer = Answer::Mountable {
            source: grant.options.source.clone(),
            read_only: grant.options.read_only,
        };
        Ok((grant, answer))
    }

    fn serve(&self, grant: MountGrant, made: Made) -> Result<(), Answer> {
        let wrong = |e: std::io::Error| self.answer(self.refusal(NotAdded::Failed(e)));
        let mut asked = [PollFd::new(&made.connection, PollFlags::IN)];
        let arrived = poll(&mut asked, Some(&FIRST_MESSAGE));
        if arrived.map_err(|e| wrong(e.into()))? == 0 {
            return Err(wrong(std::io::ErrorKind::TimedOut.into()));
        }
        let settled = self.settled(grant);
        let refused = |Failure(_, text)| self.answer(NotPermitted::Refused(text));
        let (grant, held) = settled.map_err(refused)?;
        let new = NewMount {
            mounted: Mounted::by_another(&made.dir, &made.device, self.sessions.apart())
                .map_err(wrong)?,
            device: made.connection,
            sole: grant.sole,
        };
        let adapter = self.adapter(grant.root, &grant.options);
        let added = self.sessions.add(adapter, new, &grant.options);
        drop(held);
        added.map_err(|why| self.answer(self.refusal(why)))?;
        self.keep_snapshots(&made.device, &grant.options);
        let source = grant.options.source.map(PathBuf::from);
        let source = source.as_deref().unwrap_or(&self.volume);
        tracing::info!("mounted {} on {}", shown(source), shown(&made.dir));
        Ok(())
    }

    fn watch(&self, device: &str, watcher: Watcher) -> bool {
        self.sessions.watch(device, watcher)
    }

    fn serves(&self, device: &str) -> bool {
        self.sessions.programs_of(device).is_some()
    }

    fn end_notice(&self) -> Arc<EndNotice> {
        Arc::clone(&self.end_notice)
    }

    fn lease(&self, device: &str) -> Option<Box<dyn FnOnce() + Send>> {
        let mounted = self.sessions.lease(device)?;
        Some(Box::new(move || mounted.leave_when_unused()))
    }

    fn channel(&self, device: &str, caller: &UnixStream) -> Result<Channel, Answer> {
        let programs = self.sessions.programs_of(device).ok_or(Answer::Unknown)?;
        let refused = |why: &str| Answer::Refused(why.into());
        let peer = socket_peercred(caller).map_err(|e| refused(&e.to_string()))?;
        let person = Person::of_process(peer.pid.as_raw_nonzero().get().unsigned_abs());
        let person = person.filter(|person| person.uid == geteuid().as_raw());
        let person = person.ok_or_else(|| refused("only the user of the mount gets channels"))?;
        let connection = caller.try_clone();
        let joined = connection.and_then(|connection| programs.join(person, connection));
        let joined = joined.map_err(|error| refused(&io_text(&error)))?;
        let channel = joined.channel;
        Ok(Channel {
            answer: Answer::Channel { door: joined.door },
            descriptors: [joined.memory, joined.doorbell],
            end: Box::new(move || programs.leave(channel)),
        })
    }

    fn run(&self, wanted: Run, caller: Caller, begin: &mut dyn FnMut()) -> Result<u8, Answer> {
        let Some(_command) = self.sessions.begin_command() else {
            return Err(Answer::Closing);
        };
        let open = Open {
            handle: &self.open,
            volume: &self.volume,
            sessions: &self.sessions,
            backup: self.backup.as_deref(),
        };
        let command = (self.commands)(wanted.verb, wanted.manner);
        working::perform(&open, (command, wanted.mount), caller, begin)
    }
}

/// The name of a tree whose files can change.
fn branch_of(root: &FileSystem) -> Option<String> {
    let info = root.root_info().filter(|_| !root.is_read_only())?;
    info.name
}

/// The number of a tree whose files can change.
fn sole(root: &FileSystem) -> Option<u64> {
    (!root.is_read_only()).then(|| root.root_id().into())
}

/// The options that concern the volume as a whole and are not those of the first mount.
fn differing(first: &MountOptions, wanted: &MountOptions) -> Vec<&'static str> {
    let (has, wants) = (engine_options(first), engine_options(wanted));
    let cache = first.cache != wanted.cache && has.cache_budget != wants.cache_budget;
    [
        ("cache", cache),
        (
            "durability",
            has.durability_interval != wants.durability_interval,
        ),
        ("write", first.write != wanted.write),
        ("discard", has.discard != wants.discard),
        ("norecovery", has.recovery != wants.recovery),
        ("backup", is_other(&first.backup, &wanted.backup)),
        ("interval", is_other(&first.interval, &wanted.interval)),
        (
            "backup-wait",
            is_other(&first.backup_wait, &wanted.backup_wait),
        ),
        (
            "backup-recipient",
            is_other(&first.backup_recipient, &wanted.backup_recipient),
        ),
        (
            "backup-grace",
            is_other(&first.backup_grace, &wanted.backup_grace),
        ),
        (
            "backup-sync",
            is_other(&first.backup_sync, &wanted.backup_sync),
        ),
        (
            "backup-keep-",
            !wanted.backup_keep.is_empty() && wanted.backup_keep != first.backup_keep,
        ),
    ]
    .into_iter()
    .filter_map(|(word, differs)| differs.then_some(word))
    .collect()
}

/// Whether a word is given that means something else than the first mount has.
fn is_other<T: PartialEq>(first: &Option<T>, wanted: &Option<T>) -> bool {
    wanted.is_some() && wanted != first
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use cairnfs::fs::{MakeOptions, Options, make_device};
    use cairnfs_disk::device::MemoryDevice;
    use serde_json::Value;

    use super::*;

    fn options(list: &str) -> MountOptions {
        let mut options = MountOptions::default();
        options.apply(list).unwrap();
        options
    }

    /// What a closed volume refuses is no answer for a command: the next daemon may do it.
    #[test]
    fn after_the_last_mount_commands_are_told_to_wait() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(device, &Options::default()).unwrap();
        fs.branch("b").unwrap();
        let open = Arc::new(OpenVolume::new(Arc::clone(&fs)));
        let sessions = Arc::new(Sessions::default());
        let first = (&MountOptions::default(), (|_, _| None) as Commands);
        let service = MountService::new(open, Path::new("v"), first, &sessions);
        let grant = |list: &str| {
            let wanted = Wanted {
                lists: vec![list.into()],
                by_mount8: false,
                sloppy: false,
            };
            service.grant(&wanted).map(|_| ())
        };
        assert_eq!(grant("branch=b"), Ok(()));
        let refused = grant("branch=none");
        assert!(matches!(refused, Err(Answer::Refused(_))), "{refused:?}");
        sessions.wait().unwrap();
        for list in ["branch=b", "branch=b,ro", "branch=none"] {
            assert_eq!(grant(list), Err(Answer::Closing), "{list}");
        }
        fs.close().unwrap();
        for list in ["branch=b", "branch=b,ro"] {
            assert_eq!(grant(list), Err(Answer::Closing), "{list}");
        }
        let mut begun = false;
        let (_theirs, connection) = UnixStream::pair().unwrap();
        let caller = Caller {
            streams: [(); 3].map(|()| tempfile::tempfile().unwrap().into()),
            connection,
        };
        let run = Run {
            verb: Value::Null,
            manner: Value::Null,
            mount: None,
        };
        let ran = service.run(run, caller, &mut || begun = true);
        assert_eq!((ran, begun), (Err(Answer::Closing), false));
    }

    /// A restore between the answer to a command and its mount: the tree of the grant has lost its name.
    #[test]
    fn a_mount_is_of_the_tree_that_has_the_name_when_it_is_made() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        make_device(&*device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(device, &Options::default()).unwrap();
        let library = cairnfs::Volume::from(Arc::clone(&fs));
        library.snapshot("before").unwrap();
        fs.branch("b").unwrap();
        let open = Arc::new(OpenVolume::new(Arc::clone(&fs)));
        let sessions = Arc::new(Sessions::default());
        let first = (&MountOptions::default(), (|_, _| None) as Commands);
        let service = MountService::new(open, Path::new("v"), first, &sessions);
        for (list, branch) in [("branch=b", "b"), ("ro,branch=b", "b"), ("", "main")] {
            let wanted = Wanted {
                lists: vec![list.into()],
                by_mount8: false,
                sloppy: false,
            };
            let (grant, _) = service.grant(&wanted).unwrap();
            let (restored, _) =
                sessions.replacing(branch, &[], || library.restore("before", branch, &[]));
            restored.unwrap();
            let named = fs.open_named(branch).unwrap().root_id();
            assert_ne!(grant.root.root_id(), named, "{list}");
            let (grant, held) = service.settled(grant).map_err(|f| f.1).unwrap();
            assert_eq!(grant.root.root_id(), named, "{list}");
            assert_eq!(grant.sole, Some(named.into()), "{list}");
            // Nothing else gets the name before the mount is made.
            let again = Arc::clone(&sessions);
            let made = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&made);
            let name = branch.to_owned();
            let change = move || {
                again
                    .replacing(&name, &[], || seen.load(Ordering::SeqCst))
                    .0
            };
            let change = std::thread::spawn(change);
            made.store(true, Ordering::SeqCst);
            drop(held);
            assert!(change.join().unwrap(), "{list}");
        }
        drop(service);
        fs.close().unwrap();
    }

    #[test]
    fn options_of_whole_volume_are_named() {
        let first = options("cache=64M,durability=0,backup=/b,interval=9s");
        for (list, differ) in [
            ("cache=64M,durability=0,threads=3,allow_other", vec![]),
            ("cache=128M,durability=0", vec!["cache"]),
            (
                "cache=64M,write=back,nodiscard",
                vec!["durability", "write", "discard"],
            ),
            ("cache=64M,durability=0,norecovery", vec!["norecovery"]),
            ("cache=64M,durability=0,backup=/b,interval=9s", vec![]),
            (
                "cache=64M,durability=0,backup=/c,backup-wait=1",
                vec!["backup", "backup-wait"],
            ),
            (
                "cache=64M,durability=0,backup-sync,backup-grace=1h,backup-keep-daily=7",
                vec!["backup-grace", "backup-sync", "backup-keep-"],
            ),
        ] {
            assert_eq!(differing(&first, &options(list)), differ, "{list}");
        }
    }
}

//! What programs ask by a channel, tested without a kernel: the test looks names up in its place. What the
//! kernel knows, may have cached, or alone can decide is left to it, and nothing is done then.

use std::path::Path;
use std::sync::{Arc, Mutex};

use cairnfs::fs::{FileSystem, MakeOptions, Options, make_device};
use cairnfs_channel::call::{
    self, ANSWER, Location, NONE, NOW, OMIT, OPENED, Op, Request, Stat, Status, Why, parse_reply,
};
use cairnfs_disk::acl;
use cairnfs_disk::device::MemoryDevice;
use cairnfs_disk::types::{Flags, KillPrivileges, SetAttr};
use cairnfs_fuse::convert::Refusal;
use cairnfs_fuse::ops::programs::Program;
use cairnfs_fuse::ops::{Caller, Kernel, NewEntry, Ops};
use cairnfs_fuse::options::WriteMode;
use cairnfs_fuse::person::Person;
use cairnfs_fuse::status::Transport;
use cairnfs_transport::Asker;

pub(crate) const ROOT: u64 = 1;
const SUPER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

/// The kernel as far as it is told something: which nodes it has, and what it was told to drop.
#[derive(Default)]
struct Told {
    lacks: Vec<u64>,
    dropped: Vec<u64>,
}

struct Recorder(Arc<Mutex<Told>>);

impl Kernel for Recorder {
    fn forget_attributes(&self, ino: u64) {
        self.drops_attributes(ino);
    }
    fn drops_attributes(&self, ino: u64) -> bool {
        let mut told = self.0.lock().unwrap();
        told.dropped.push(ino);
        !told.lacks.contains(&ino)
    }
    fn forget_name(&self, _dir: u64, _name: &[u8]) {}
    fn fetch_dirty(&self, _ino: u64, _offset: u64) -> bool {
        true
    }
    fn is_quiet(&self, _asker: Asker) -> bool {
        true
    }
    fn transport(&self) -> Transport {
        Transport::default()
    }
}

pub(crate) struct Stand {
    pub(crate) ops: Ops,
    pub(crate) fs: Arc<FileSystem>,
    told: Arc<Mutex<Told>>,
    pub(crate) program: Program,
}

pub(crate) type Answer = Result<[u64; ANSWER], Why>;

impl Stand {
    pub(crate) fn new() -> Self {
        let device = MemoryDevice::new(64 << 20);
        make_device(&device, &MakeOptions::default(), &mut |_, _| {}).unwrap();
        let fs = FileSystem::open_device(Arc::new(device), &Options::default()).unwrap();
        let ops = Ops::new(fs.clone(), Path::new("test"), WriteMode::Through);
        let told = Arc::<Mutex<Told>>::default();
        ops.connect(Box::new(Recorder(told.clone())));
        Self {
            ops,
            fs,
            told,
            program: program("0 0 0 0", "0 0 0 0", "1f", 7),
        }
    }

    pub(crate) fn ask(&self, op: Op, args: [u64; 5], text: &[u8], other: &[u8]) -> Answer {
        self.ask_as(&self.program, op, args, text, other)
    }

    pub(crate) fn ask_as(
        &self,
        program: &Program,
        op: Op,
        args: [u64; 5],
        text: &[u8],
        other: &[u8],
    ) -> Answer {
        let reply = self.reply_to(program, op, args, (text, other));
        match parse_reply(&reply).unwrap() {
            (Status::Done, words) => Ok(words),
            (Status::NotMine, [why, ..]) => Err(Why::of(why).unwrap()),
            (Status::Failed, [errno, ..]) => panic!("{op:?} failed with {errno}"),
        }
    }

    pub(crate) fn reply_to(
        &self,
        program: &Program,
        op: Op,
        args: [u64; 5],
        (text, other): (&[u8], &[u8]),
    ) -> Vec<u8> {
        let request = Request {
            op,
            args,
            text,
            other,
        };
        let padding = vec![0; text.len().next_multiple_of(8) - text.len()];
        let bytes = [&request.head()[..], text, &padding, other].concat();
        let mut reply = Vec::new();
        self.ops
            .serve_program(program, (&bytes, false), &mut None, &mut reply);
        reply
    }

    pub(crate) fn open_dir(&self, base: u64, path: &str) -> Result<u64, Why> {
        Ok(self.ask(Op::OpenDir, [base, 0, 0, 0, 0], path.as_bytes(), &[])?[0])
    }

    /// The path of an open directory.
    pub(crate) fn path(&self, dir: u64) -> Vec<u8> {
        let located = self.reply_to(&self.program, Op::Locate, [dir, 0, 0, 0, 0], (&[], &[]));
        let Location { ino, path, .. } = Location::of(&located[8..]).unwrap();
        assert_eq!(ino, self.stat(dir).unwrap().ino);
        path.to_vec()
    }

    /// The names of a directory from its offset on, in replies of so many bytes.
    pub(crate) fn names(&self, dir: u64, bytes: u64) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            let args = [dir, NONE, bytes, 0, 0];
            let reply = self.reply_to(&self.program, Op::List, args, (&[], &[]));
            assert_eq!(parse_reply(&reply).unwrap().0, Status::Done);
            assert!(reply.len() as u64 <= bytes);
            let mut rest = &reply[8..];
            if rest.is_empty() {
                return names;
            }
            while let Some((entry, behind)) = call::entry(rest) {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                rest = behind;
            }
            assert!(rest.is_empty());
        }
    }

    pub(crate) fn create(&self, base: u64, path: &str) -> Result<u64, Why> {
        let args = [base, libc::O_RDWR as u64, 0o666, 0o022, 0];
        Ok(self.ask(Op::Create, args, path.as_bytes(), &[])?[0])
    }

    pub(crate) fn mkdir(&self, base: u64, path: &str) -> Result<(), Why> {
        let args = [base, 0o777, 0o022, 0, 0];
        self.ask(Op::Mkdir, args, path.as_bytes(), &[]).map(drop)
    }

    pub(crate) fn remove(&self, path: &str, is_dir: bool) -> Result<(), Why> {
        let args = [ROOT, is_dir.into(), 0, 0, 0];
        self.ask(Op::Remove, args, path.as_bytes(), &[]).map(drop)
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Why> {
        let args = [ROOT, ROOT, 0, 0, 0];
        self.ask(Op::Rename, args, from.as_bytes(), to.as_bytes())
            .map(drop)
    }

    pub(crate) fn write(&self, file: u64, at: u64, bytes: &[u8]) -> Result<u64, Why> {
        Ok(self.ask(Op::Write, [file, at, 0, 0, 0], bytes, &[])?[0])
    }

    pub(crate) fn stat(&self, file: u64) -> Result<Stat, Why> {
        Ok(Stat::of(&self.ask(
            Op::Stat,
            [file, 0, 0, 0, 0],
            &[],
            &[],
        )?))
    }

    /// As the kernel does for a name.
    pub(crate) fn look_up(&self, dir: u64, name: &str) -> Option<u64> {
        let found = self.ops.lookup(dir, name.as_bytes()).unwrap();
        found.map(|found| found.node)
    }

    pub(crate) fn dropped(&self) -> Vec<u64> {
        std::mem::take(&mut self.told.lock().unwrap().dropped)
    }

    pub(crate) fn contents(&self, path: &str) -> Vec<u8> {
        let ino = path
            .split('/')
            .fold(ROOT, |dir, name| self.look_up(dir, name).unwrap());
        let mut bytes = vec![0; 100_000];
        let len = self.ops.read(ino, 0, &mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }
}

pub(crate) fn program(uid: &str, gid: &str, capabilities: &str, channel: u64) -> Program {
    let text = format!("Uid:\t{uid}\nGid:\t{gid}\nGroups:\t50\nCapEff:\t{capabilities}\n");
    let person = Person::of_status(1, &text).unwrap();
    Program {
        person,
        channel,
        birth_times: false,
    }
}

fn new(dir: u64, name: &str, mode: u32) -> NewEntry<'_> {
    NewEntry {
        caller: SUPER,
        dir,
        name: name.as_bytes(),
        mode,
        umask: 0,
    }
}

#[test]
fn a_tree_that_the_kernel_never_heard_of_is_made_and_changed() {
    let stand = Stand::new();
    stand.mkdir(ROOT, "a").unwrap();
    stand.mkdir(ROOT, "a/b/").unwrap();
    let file = stand.create(ROOT, "a/./b//f").unwrap();
    assert_eq!(stand.write(file, NONE, b"hello "), Ok(6));
    assert_eq!(stand.write(file, NONE, b"world"), Ok(5));
    assert_eq!(stand.write(file, 0, b"J"), Ok(1));
    let seek = |offset: i64, whence: i32| {
        let args = [file, offset.cast_unsigned(), whence as u64, 0, 0];
        Ok::<_, Why>(stand.ask(Op::Seek, args, &[], &[])?[0])
    };
    assert_eq!(seek(0, libc::SEEK_CUR), Ok(11));
    assert_eq!(seek(-1, libc::SEEK_END), Ok(10));
    assert_eq!(stand.write(file, NONE, b"D!"), Ok(2));
    let stat = stand.stat(file).unwrap();
    assert_eq!((stat.size, stat.mode, stat.nlink), (12, 0o100_644, 1));
    let args = [file, 0o600, 0, 0, 0];
    stand.ask(Op::FileChmod, args, &[], &[]).unwrap();
    let args = [file, 3, 4, 0, 0];
    stand.ask(Op::FileChown, args, &[], &[]).unwrap();
    let args = [file, 10, 20, 0, OMIT];
    stand.ask(Op::FileUtimens, args, &[], &[]).unwrap();
    let stat = stand.stat(file).unwrap();
    assert_eq!((stat.mode, stat.uid, stat.gid), (0o100_600, 3, 4));
    assert_eq!(stat.times[..2], [10, 20]);
    stand.rename("a/b", "c").unwrap();
    let link = [ROOT, 0, 0, 0, 0];
    stand.ask(Op::Symlink, link, b"c/link", b"../a").unwrap();
    stand.remove("a", true).unwrap();
    let args = [file, 5, 0, 0, 0];
    stand.ask(Op::Truncate, args, &[], &[]).unwrap();
    stand.ask(Op::Close, [file, 0, 0, 0, 0], &[], &[]).unwrap();
    assert_eq!(stand.stat(file), Err(Why::Call));
    assert_eq!(stand.contents("c/f"), b"Jello");
    let link = stand.look_up(stand.look_up(ROOT, "c").unwrap(), "link");
    assert_eq!(stand.ops.readlink(link.unwrap()).unwrap(), b"../a");
}

#[test]
fn a_tree_is_listed_and_removed_without_the_kernel() {
    let stand = Stand::new();
    stand.mkdir(ROOT, "d").unwrap();
    stand.mkdir(ROOT, "d/e").unwrap();
    for n in 0..40 {
        let file = stand.create(ROOT, &format!("d/e/{n}")).unwrap();
        stand.ask(Op::Close, [file, 0, 0, 0, 0], &[], &[]).unwrap();
    }
    let begin_again = |dir| {
        let args = [dir, 0, libc::SEEK_SET as u64, 0, 0];
        assert_eq!(stand.ask(Op::Seek, args, &[], &[]).unwrap()[0], 0);
    };
    let d = stand.open_dir(ROOT, "d").unwrap();
    assert_eq!(stand.names(d, 8192), [".", "..", "e"]);
    stand.mkdir(OPENED | d, "later").unwrap();
    let later = stand.open_dir(ROOT, "d/later").unwrap();
    assert_eq!(stand.path(later), b"/d/later");
    let e = stand.open_dir(OPENED | d, "e").unwrap();
    for bytes in [48, 100, 8192] {
        assert_eq!(stand.names(e, bytes).len(), 42, "{bytes}");
        assert!(stand.names(e, bytes).is_empty());
        begin_again(e);
    }
    let stat_at = |base, path: &str| {
        let found = stand.ask(Op::StatAt, [base, 0, 0, 0, 0], path.as_bytes(), &[]);
        found.map(|words| Stat::of(&words))
    };
    assert_eq!(stand.stat(e), stat_at(OPENED | d, "e"));
    assert_eq!(stat_at(OPENED | e, "7").unwrap().mode, 0o100_644);
    assert_eq!(stand.path(e), b"/d/e");
    let remove = |base, path: &str, is_dir: bool| {
        let args = [base, is_dir.into(), 0, 0, 0];
        stand.ask(Op::Remove, args, path.as_bytes(), &[]).map(drop)
    };
    for name in &stand.names(e, 8192)[2..] {
        remove(OPENED | e, name, false).unwrap();
    }
    remove(OPENED | d, "e", true).unwrap();
    remove(OPENED | d, "later", true).unwrap();
    // It is open still, and has no entries.
    begin_again(e);
    assert!(stand.names(e, 8192).is_empty());
    assert_eq!(stand.create(OPENED | e, "f"), Err(Why::Trouble));
    // The kernel has one of them.
    let node = stand.look_up(ROOT, "d").unwrap();
    assert_eq!(remove(ROOT, "d", true), Err(Why::Known));
    assert!(stand.stat(d).is_ok() && stand.open_dir(ROOT, "d").is_ok());
    stand.ops.readdir(node, 0, &mut |_| true).unwrap();
    assert_eq!(stand.open_dir(ROOT, "d"), Err(Why::Cached));
    // Numbers that are no open directories of this program.
    let file = stand.create(ROOT, "f").unwrap();
    for number in [0, file, d + 1000, OPENED - 1] {
        assert_eq!(stand.open_dir(OPENED | number, "d"), Err(Why::Known));
    }
    assert_eq!(stand.open_dir(ROOT, "f"), Err(Why::Path));
    stand.ask(Op::Close, [d, 0, 0, 0, 0], &[], &[]).unwrap();
    assert_eq!(stat_at(OPENED | d, "e"), Err(Why::Known));
}

#[test]
pub(crate) fn what_the_kernel_knows_is_its_own() {
    let stand = Stand::new();
    stand.mkdir(ROOT, "d").unwrap();
    let file = stand.create(ROOT, "d/f").unwrap();
    stand.write(file, NONE, b"1234").unwrap();
    let other = stand.create(ROOT, "d/g").unwrap();
    let d = stand.look_up(ROOT, "d").unwrap();
    let f = stand.look_up(d, "f").unwrap();
    assert_eq!(stand.write(file, NONE, b"5"), Err(Why::Known));
    assert_eq!(stand.stat(file), Err(Why::Known));
    let chmod = |path: &[u8]| stand.ask(Op::Chmod, [ROOT, 0o600, 0, 0, 0], path, &[]);
    assert_eq!(chmod(b"d/f"), Err(Why::Known));
    assert_eq!(chmod(b"d"), Err(Why::Known));
    let times = [ROOT, 0, NOW, 0, NOW];
    let set = stand.ask(Op::Utimens, times, b"d/f", &[]);
    assert_eq!(set, Err(Why::Known));
    for refused in [
        stand.remove("d/f", false),
        stand.rename("d/f", "d/h"),
        stand.rename("d/g", "d/f"),
        stand.rename("d", "e"),
    ] {
        assert_eq!(refused, Err(Why::Known));
    }
    // The others are not, and what the kernel has forgotten is not any more.
    stand.write(other, NONE, b"x").unwrap();
    stand.ops.forget(f, 1);
    assert_eq!(stand.write(file, NONE, b"5"), Ok(1));
    stand.rename("d/g", "d/f").unwrap();
    assert_eq!(stand.contents("d/f"), b"x");
}

/// The kernel is told that a directory which it knows has changed before the program is answered.
#[test]
pub(crate) fn directories_that_the_kernel_knows_are_announced() {
    let stand = Stand::new();
    stand.mkdir(ROOT, "d").unwrap();
    assert_eq!(stand.dropped(), [ROOT]);
    stand.create(ROOT, "d/f").unwrap();
    assert!(stand.dropped().is_empty());
    let d = stand.look_up(ROOT, "d").unwrap();
    // The first time it is found out before whether the kernel has it already.
    stand.create(ROOT, "d/g").unwrap();
    assert_eq!(stand.dropped(), [d, d]);
    // It has none of the attributes until it asks for them again, in whatever way.
    stand.remove("d/g", false).unwrap();
    stand.rename("d/f", "f").unwrap();
    assert!(stand.dropped().is_empty());
    let asks: [&dyn Fn(); 4] = [
        &|| assert!(stand.ops.getattr(d, false).is_ok()),
        &|| assert!(stand.ops.setattr(SUPER, d, SetAttr::default()).is_ok()),
        &|| assert_eq!(stand.look_up(ROOT, "d"), Some(d)),
        &|| assert_eq!(stand.look_up(d, "."), Some(d)),
    ];
    for ask in asks {
        ask();
        stand.rename("f", "d/f").unwrap();
        assert_eq!(stand.dropped(), [d]);
        stand.rename("d/f", "f").unwrap();
        assert!(stand.dropped().is_empty());
    }
    stand.ops.forget(d, 2);
    stand.ops.forget(d, 1);
    stand.create(ROOT, "d/h").unwrap();
    assert!(stand.dropped().is_empty());
    // A reply that brings it is on its way: its attributes would be those of before.
    let d = stand.look_up(ROOT, "d").unwrap();
    stand.told.lock().unwrap().lacks.push(d);
    assert_eq!(stand.create(ROOT, "d/i"), Err(Why::Cached));
    assert_eq!(stand.look_up(d, "i"), None);
}

#[test]
pub(crate) fn names_and_listings_that_the_kernel_has_cached_are_changed_by_it() {
    let stand = Stand::new();
    stand.mkdir(ROOT, "d").unwrap();
    let d = stand.look_up(ROOT, "d").unwrap();
    assert_eq!(stand.look_up(d, "f"), None);
    assert_eq!(stand.create(ROOT, "d/f"), Err(Why::Cached));
    stand.create(ROOT, "d/g").unwrap();
    assert_eq!(stand.rename("d/g", "d/f"), Err(Why::Cached));
    let made = stand.ops.mknod(new(d, "f", 0o100_644), 0).unwrap();
    stand.ops.unlink(d, b"f").unwrap();
    stand.ops.forget(made.node, 1);
    stand.create(ROOT, "d/f").unwrap();
    let list = || stand.ops.readdir(d, 0, &mut |_| true).unwrap();
    list();
    assert_eq!(stand.create(ROOT, "d/x"), Err(Why::Cached));
    assert_eq!(stand.remove("d/f", false), Err(Why::Cached));
    // The kernel drops it behind the reply to a change, which is over when it sends the next one.
    let changes = [b"1", b"2"].map(|name| {
        stand.ops.symlink(SUPER, d, name, b"t").unwrap();
        stand.create(ROOT, "d/x")
    });
    assert!(changes[0] == Err(Why::Cached) && changes[1].is_ok());
    list();
    stand.ops.rename(SUPER, (d, b"1"), (d, b"3"), 0).unwrap();
    assert_eq!(stand.remove("d/x", false), Err(Why::Cached));
    stand.ops.unlink(d, b"3").unwrap();
    stand.remove("d/x", false).unwrap();
}

#[test]
fn paths_that_only_the_kernel_resolves_are_left_to_it() {
    let stand = Stand::new();
    stand.mkdir(ROOT, "d").unwrap();
    let link = [ROOT, 0, 0, 0, 0];
    stand.ask(Op::Symlink, link, b"l", b"d").unwrap();
    for path in [
        "", "/", ".", "..", "../f", "d/..", "d/../f", "d/.", "f/", "/f", "l/f", "f\0",
    ] {
        assert_eq!(stand.create(ROOT, path), Err(Why::Path), "{path:?}");
    }
    let chmod = stand.ask(Op::Chmod, [ROOT, 0o600, 0, 0, 0], b"l", &[]);
    assert_eq!(chmod, Err(Why::Path));
    // A directory is opened by the kernel.
    assert_eq!(stand.create(ROOT, "d"), Err(Why::Path));
    let long = "n".repeat(256);
    assert_eq!(stand.create(ROOT, &long), Err(Why::Trouble));
    // A directory that the kernel does not know cannot be the program's, whatever it says.
    let d = stand.look_up(ROOT, "d").unwrap();
    stand.create(d, "f").unwrap();
    stand.ops.forget(d, 1);
    assert_eq!(stand.create(d, "g"), Err(Why::Path));
    assert_eq!(stand.create(u64::MAX, "g"), Err(Why::Trouble));
}

#[test]
pub(crate) fn only_what_is_certainly_permitted_is_done() {
    let stand = Stand::new();
    let user = program("5 5 5 5", "50 50 50 50", "0", 8);
    let set = |name: &str, mode: u32, uid: u32, gid: u32| {
        let ino = stand.look_up(ROOT, name).unwrap();
        let set = SetAttr {
            mode: Some(mode),
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        stand.fs.setattr(ino, &set).unwrap();
        stand.ops.forget(ino, 1);
        ino
    };
    let create = |path: &str| {
        let args = [ROOT, libc::O_RDWR as u64, 0o666, 0, 0];
        let made = stand.ask_as(&user, Op::Create, args, path.as_bytes(), &[]);
        made.map(drop)
    };
    stand.mkdir(ROOT, "d").unwrap();
    for (mode, uid, gid, permitted) in [
        (0o300, 5, 0, true),
        (0o277, 5, 0, false),
        (0o030, 0, 50, true),
        (0o703, 0, 50, false),
        (0o003, 0, 0, true),
        (0o770, 0, 0, false),
    ] {
        set("d", mode, uid, gid);
        let name = format!("d/{mode:o}");
        let expected = permitted.then_some(()).ok_or(Why::Permission);
        assert_eq!(create(&name), expected, "{mode:o}");
    }
    // Each directory of the path has to permit the search.
    set("d", 0o700, 0, 0);
    stand.mkdir(ROOT, "d/open").unwrap();
    let chmod = [ROOT, 0o777, 0, 0, 0];
    stand.ask(Op::Chmod, chmod, b"d/open", &[]).unwrap();
    assert_eq!(create("d/open/f"), Err(Why::Permission));
    // A list may refuse what the mode grants.
    let d = set("d", 0o777, 0, 0);
    let list = acl::Acl::parse(&stand.fs.access_list(d).unwrap()).unwrap();
    assert!(list.is_minimal());
    let entries: Vec<u8> = [
        (1u16, 7u16, u32::MAX),
        (2, 0, 5),
        (4, 7, u32::MAX),
        (16, 7, u32::MAX),
        (32, 7, u32::MAX),
    ]
    .into_iter()
    .flat_map(|(tag, bits, id)| {
        [
            &tag.to_le_bytes()[..],
            &bits.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    })
    .collect();
    let value = [&2u32.to_le_bytes()[..], &entries].concat();
    stand
        .fs
        .set_access_list(d, &value, KillPrivileges::No)
        .unwrap();
    assert_eq!(create("d/listed"), Err(Why::Permission));
    // In a directory with the sticky bit everyone removes only what is his.
    stand.mkdir(ROOT, "t").unwrap();
    set("t", 0o1777, 0, 0);
    stand.create(ROOT, "t/theirs").unwrap();
    create("t/mine").unwrap();
    let remove = |path: &[u8]| {
        stand
            .ask_as(&user, Op::Remove, [ROOT, 0, 0, 0, 0], path, &[])
            .map(drop)
    };
    assert_eq!(remove(b"t/theirs"), Err(Why::Permission));
    let chmod =
        |path: &[u8], mode| stand.ask_as(&user, Op::Chmod, [ROOT, mode, 0, 0, 0], path, &[]);
    assert_eq!(chmod(b"t/theirs", 0o600), Err(Why::Permission));
    assert_eq!(chmod(b"t/mine", 0o4755), Err(Why::Permission));
    chmod(b"t/mine", 0o600).unwrap();
    let chown = stand.ask_as(&user, Op::Chown, [ROOT, 5, 50, 0, 0], b"t/mine", &[]);
    assert_eq!(chown, Err(Why::Permission));
    remove(b"t/mine").unwrap();
    // A file's flags are obeyed.
    let theirs = stand
        .look_up(stand.look_up(ROOT, "t").unwrap(), "theirs")
        .unwrap();
    let set = SetAttr {
        flags: Some(Flags::IMMUTABLE),
        ..SetAttr::default()
    };
    stand.fs.setattr(theirs, &set).unwrap();
    stand.ops.forget(theirs, 1);
    assert_eq!(stand.remove("t/theirs", false), Err(Why::Trouble));
}

/// A descriptor of the kernel needs neither a name of the file nor a permission of it.
#[test]
fn a_file_that_was_left_goes_through_the_door_and_nothing_else_does() {
    let stand = Stand::new();
    let file = stand.create(ROOT, "f").unwrap();
    stand.write(file, NONE, b"12345").unwrap();
    let args = [file, 0, 0, 0, 0];
    stand.ask(Op::FileChmod, args, &[], &[]).unwrap();
    stand.remove("f", false).unwrap();
    let door = stand.look_up(ROOT, stand.ops.door()).unwrap();
    let open = |name: &str| stand.ops.mknod(new(door, name, 0o100_600), 0);
    let none = Refusal(libc::ENOENT);
    assert_eq!(open(&file.to_string()).unwrap_err(), none);
    let offset = stand.ask(Op::Leave, args, &[], &[]).unwrap()[0];
    assert_eq!(offset, 5);
    assert_eq!(stand.write(file, NONE, b"6"), Err(Why::Call));
    assert_eq!(open("x").unwrap_err(), none);
    assert_eq!(open(&(file + 1).to_string()).unwrap_err(), none);
    let found = open(&file.to_string()).unwrap();
    assert_eq!((found.nlink, found.size, found.mode), (0, 5, 0o100_000));
    stand.ask(Op::Close, args, &[], &[]).unwrap();
    assert_eq!(open(&file.to_string()).unwrap_err(), none);
    assert_eq!(stand.ops.getattr(found.node, false).unwrap().size, 5);
    stand.ops.forget(found.node, 1);
    assert!(stand.ops.getattr(found.node, false).is_err());
    // The door itself is a directory of the mount's user, and empty.
    let attr = stand.ops.getattr(door, false).unwrap();
    assert_eq!(attr.mode & 0o7777, 0o700);
    assert_eq!(stand.ops.lookup(door, b"1").unwrap_err(), none);
    assert!(stand.ops.mkdir(new(door, "d", 0o755)).is_err());
    assert!(stand.ops.forget(door, 1).is_none());
    let mut names = Vec::new();
    let each = &mut |entry: cairnfs_disk::types::EntryRef<'_>| {
        names.push(entry.name.to_vec());
        true
    };
    stand.ops.readdir(ROOT, 0, each).unwrap();
    assert_eq!(names, [&b"."[..], b".."]);
}

#[test]
pub(crate) fn files_are_of_their_program_and_end_with_it() {
    let stand = Stand::new();
    let file = stand.create(ROOT, "f").unwrap();
    let other = program("0 0 0 0", "0 0 0 0", "1f", 9);
    let ask = |op: Op| stand.ask_as(&other, op, [file, 0, 0, 0, 0], b"x", &[]);
    for op in [Op::Write, Op::Stat, Op::Truncate, Op::Seek, Op::FileChmod] {
        assert_eq!(ask(op), Err(Why::Call), "{op:?}");
    }
    ask(Op::Close).unwrap();
    assert_eq!(stand.stat(file).unwrap().size, 0);
    stand.remove("f", false).unwrap();
    let ino = stand.stat(file).unwrap().ino;
    assert!(stand.fs.getattr(ino).is_ok());
    stand.ops.program_ended(9);
    assert!(stand.fs.getattr(ino).is_ok());
    stand.ops.program_ended(7);
    assert!(stand.fs.getattr(ino).is_err());
    // One program cannot have all.
    let opened = (0..2000).filter(|n| stand.create(ROOT, &n.to_string()).is_ok());
    assert_eq!(opened.count(), 1024);
    // After the end of the mount nothing is done, and nothing is in use.
    stand.ops.end();
    assert_eq!(stand.mkdir(ROOT, "late"), Err(Why::Trouble));
    assert!(stand.fs.inodes_in_use().is_empty());
}

#[test]
fn requests_that_are_none_are_answered() {
    let stand = Stand::new();
    let mut random = 1u64;
    for round in 0..20_000 {
        let mut bytes = Vec::new();
        for word in 0..8 + round % 5 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let word = match word {
                0 => random >> 33 & 31,
                6 | 7 => random >> 33 & 15,
                _ if random >> 60 > 8 => random,
                _ => random >> 62,
            };
            bytes.extend(word.to_le_bytes());
        }
        let mut reply = Vec::new();
        stand
            .ops
            .serve_program(&stand.program, (&bytes, false), &mut None, &mut reply);
        assert!(parse_reply(&reply).is_some());
    }
}

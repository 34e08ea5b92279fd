//! What a program asks by a channel, and how it is answered: the words of requests and replies.
//!
//! A request is [`WORDS`] words and up to two texts behind them, each from a multiple of eight bytes on. A
//! reply is a [`Status`] word and up to [`ANSWER`] words, or those of a listing. Both ends build and read
//! them here. A request that is not understood is answered by [`Status::NotMine`]: the program makes its call
//! to the kernel.
//! Whatever is changed here, or means something else, needs another [`VERSION`].

use crate::PAYLOAD;

/// The version of requests and replies; both ends must have the same.
pub const VERSION: u64 = 4;
/// Words of a request.
pub const WORDS: usize = 8;
/// Words of a reply behind its status.
pub const ANSWER: usize = 16;
/// The largest number of bytes that one write can have.
pub const WRITE_MAX: usize = PAYLOAD - WORDS * 8;
/// The largest number of bytes that one read answers: its status and how many there are come before them.
pub const READ_MAX: usize = PAYLOAD - 16;
/// Counters of `cairnfs run --stats`: those of [`Op`] by their numbers, from [`LEFT`] on those of [`Why`].
pub const COUNTERS: usize = 64;
/// The first counter of calls that were left to the kernel.
pub const LEFT: usize = 32;
/// In place of an offset: that of the open file. In place of a user or group: as it is.
pub const NONE: u64 = u64::MAX;
/// In place of nanoseconds: the time is left as it is, or not shown.
pub const OMIT: u64 = u64::MAX;
/// In place of nanoseconds: the time of the call.
pub const NOW: u64 = u64::MAX - 1;

/// In a base: the rest is the number of an open directory ([`Op::OpenDir`]). No inode has it.
pub const OPENED: u64 = 1 << 62;

/// The number of the open directory that is a base, if it is one.
pub fn opened(base: u64) -> Option<u64> {
    (base & !(OPENED - 1) == OPENED).then_some(base & (OPENED - 1))
}

/// What is asked for. `base` is where the path begins: the number of an inode, or [`OPENED`]. `file` is
/// what [`Op::Create`], [`Op::Open`] or [`Op::OpenDir`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Op {
    /// base, flags of open(2), mode, umask; path. Answer: file, a [`Lease`]. Without `O_EXCL` it may be one that
    /// is there.
    Create = 1,
    /// base, mode, umask; path.
    Mkdir,
    /// base; path, target.
    Symlink,
    /// base, whether a directory; path.
    Remove,
    /// base, the other base, flags; path, the other path.
    Rename,
    /// base, mode; path.
    Chmod,
    /// base, user, group; path.
    Chown,
    /// base, seconds, nanoseconds, seconds, nanoseconds (of access, of change); path.
    Utimens,
    /// file, offset or [`NONE`]; bytes. Answer: how many were written.
    Write,
    /// file, size.
    Truncate,
    /// file, offset, whence. Answer: offset.
    Seek,
    /// file. Answer: [`Stat`].
    Stat,
    /// file, mode.
    FileChmod,
    /// file, user, group.
    FileChown,
    /// file, and times as [`Op::Utimens`].
    FileUtimens,
    /// file: a descriptor of the kernel shall take its place. Answer: offset. From then on it can be
    /// opened by its number in the door, and [`Op::Close`] is still to come. [`NONE`]: its lease has just
    /// ended, and the program asks again, behind what it has deferred.
    Leave,
    /// file.
    Close,
    /// base; path. Answer: file.
    OpenDir,
    /// file, cookie or [`NONE`], bytes of the reply. Answer: each [`entry`] behind the cookie, none at the end;
    /// the offset is behind them then.
    List,
    /// file of a directory. Answer: where it [is](Location).
    Locate,
    /// base, whether a link at the end is followed, permissions that the user must have (bits of a mode); path.
    /// Answer: [`Stat`].
    StatAt,
    /// base, flags of open(2); path. Answer: file. It is a file of moderate size.
    Open,
    /// file, offset or [`NONE`], bytes, at most [`READ_MAX`]. Answer: how many were read, then the bytes.
    Read,
    /// file, whether its contents only: makes it durable. The answer may take long.
    Sync,
}

impl Op {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 24] = [
        Self::Create,
        Self::Mkdir,
        Self::Symlink,
        Self::Remove,
        Self::Rename,
        Self::Chmod,
        Self::Chown,
        Self::Utimens,
        Self::Write,
        Self::Truncate,
        Self::Seek,
        Self::Stat,
        Self::FileChmod,
        Self::FileChown,
        Self::FileUtimens,
        Self::Leave,
        Self::Close,
        Self::OpenDir,
        Self::List,
        Self::Locate,
        Self::StatAt,
        Self::Open,
        Self::Read,
        Self::Sync,
    ];

    /// The one with this number.
    pub fn of(number: u64) -> Option<Self> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(at).copied()
    }

    /// Whether programs do not wait for it, if they have a lease. A close needs none.
    pub fn may_be_deferred(self) -> bool {
        matches!(
            self,
            Self::Write | Self::FileChmod | Self::FileChown | Self::FileUtimens | Self::Close
        )
    }

    /// Its name in counts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Mkdir => "mkdir",
            Self::Symlink => "symlink",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Chmod | Self::FileChmod => "chmod",
            Self::Chown | Self::FileChown => "chown",
            Self::Utimens | Self::FileUtimens => "utimens",
            Self::Write => "write",
            Self::Truncate => "truncate",
            Self::Seek => "seek",
            Self::Stat | Self::StatAt => "stat",
            Self::Leave | Self::Locate => "leave",
            Self::OpenDir => "opendir",
            Self::List => "list",
            Self::Close => "close",
            Self::Open => "open",
            Self::Read => "read",
            Self::Sync => "sync",
        }
    }
}

/// What a program may defer on a file that it has made: [`Op::Write`], [`Op::FileChmod`] and
/// [`Op::FileUtimens`] that cannot fail, and perhaps [`Op::FileChown`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The epoch of the channel for which it holds.
    pub epoch: u64,
    /// Whether the owner may be changed, too.
    pub owner: bool,
}

impl Lease {
    /// As a word; 0: none.
    pub fn word(lease: Option<Self>) -> u64 {
        lease.map_or(0, |Self { epoch, owner }| epoch << 1 | u64::from(owner))
    }

    /// From a word.
    pub fn of(word: u64) -> Option<Self> {
        (word != 0).then_some(Self {
            epoch: word >> 1,
            owner: word & 1 != 0,
        })
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Status {
    /// It is done.
    Done = 0,
    /// Nothing was done: the kernel is to be asked.
    NotMine = 1,
    /// It fails with the error number in the first word.
    Failed = 2,
}

/// Why a request is the kernel's, in the first word behind [`Status::NotMine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Why {
    /// The kernel knows the inode.
    Known = 0,
    /// The kernel may have cached that the name does not exist, or the listing of its directory.
    Cached,
    /// Permission was not certain, or an access control list or a special bit is involved.
    Permission,
    /// The path has a symbolic link, "..", or another form that only the kernel resolves.
    Path,
    /// The operation would fail in a way that only the kernel tells, or the device had to be waited for.
    Trouble,
    /// The call is one that is always left to the kernel.
    Call,
}

/// Number of reasons.
pub const REASONS: usize = 6;

impl Why {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; REASONS] = [
        Self::Known,
        Self::Cached,
        Self::Permission,
        Self::Path,
        Self::Trouble,
        Self::Call,
    ];

    /// The one with this number.
    pub fn of(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Its name in counts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Cached => "cached",
            Self::Permission => "permission",
            Self::Path => "path",
            Self::Trouble => "trouble",
            Self::Call => "call",
        }
    }
}

/// The attributes in the answer to [`Op::Stat`], in this order of words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u64,
    /// Number of names.
    pub nlink: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred size of reads and writes.
    pub blksize: u64,
    /// Times of access, of change of contents, of change, and of birth: seconds and nanoseconds. The last ones
    /// are [`OMIT`] if the mount does not show it.
    pub times: [u64; 8],
}

impl Stat {
    /// As words.
    pub fn words(&self) -> [u64; ANSWER] {
        let [a, an, m, mn, c, cn, b, bn] = self.times;
        [
            self.ino,
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            self.size,
            self.blocks,
            self.blksize,
            a,
            an,
            m,
            mn,
            c,
            cn,
            b,
            bn,
        ]
    }

    /// From words.
    pub fn of(words: &[u64; ANSWER]) -> Self {
        let [
            ino,
            mode,
            nlink,
            uid,
            gid,
            size,
            blocks,
            blksize,
            a,
            an,
            m,
            mn,
            c,
            cn,
            b,
            bn,
        ] = *words;
        Self {
            ino,
            mode,
            nlink,
            uid,
            gid,
            size,
            blocks,
            blksize,
            times: [a, an, m, mn, c, cn, b, bn],
        }
    }
}

/// A request as the daemon reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// What is asked for.
    pub op: Op,
    /// Its words, in the order of [`Op`].
    pub args: [u64; 5],
    /// The path, or the bytes of a write.
    pub text: &'a [u8],
    /// The second text.
    pub other: &'a [u8],
}

impl<'a> Request<'a> {
    /// One with at most one text.
    pub fn of(op: Op, args: [u64; 5], text: &'a [u8]) -> Self {
        Self {
            op,
            args,
            text,
            other: &[],
        }
    }

    /// The words of the head.
    pub fn head(&self) -> [u8; WORDS * 8] {
        let [a, b, c, d, e] = self.args;
        let lens = [self.text.len() as u64, self.other.len() as u64];
        let words = [self.op as u64, a, b, c, d, e, lens[0], lens[1]];
        let mut bytes = [0; WORDS * 8];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a request; `None` if it is none.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let ([op, a, b, c, d, e, len, other_len], rest) = split::<WORDS>(bytes)?;
        let (len, other_len) = (usize::try_from(len).ok()?, usize::try_from(other_len).ok()?);
        let text = rest.get(..len)?;
        let other = match other_len {
            0 => &[],
            len => rest.get(text.len().next_multiple_of(8)..)?.get(..len)?,
        };
        Some(Self {
            op: Op::of(op)?,
            args: [a, b, c, d, e],
            text,
            other,
        })
    }
}

/// Reads a reply: its status and its words.
pub fn parse_reply(bytes: &[u8]) -> Option<(Status, [u64; ANSWER])> {
    let mut all = bytes
        .chunks_exact(8)
        .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    let status = match all.next()? {
        0 => Status::Done,
        1 => Status::NotMine,
        2 => Status::Failed,
        _ => return None,
    };
    let mut words = [0; ANSWER];
    for (to, word) in words.iter_mut().zip(all) {
        *to = word;
    }
    Some((status, words))
}

/// An entry of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Inode number.
    pub ino: u64,
    /// The listing goes on behind it from there.
    pub cookie: u64,
    /// Its type, as in a dirent.
    pub kind: u8,
    /// Its name.
    pub name: &'a [u8],
}

/// Words of an entry before its name: inode, cookie, and the length of the name above its type.
const ENTRY: usize = 3;

impl Entry<'_> {
    /// Bytes that it takes in a reply.
    pub fn bytes(&self) -> usize {
        (ENTRY + self.name.len().div_ceil(8)) * 8
    }

    /// Appends it to the words of a reply.
    pub fn put(&self, words: &mut Vec<u64>) {
        let len = self.name.len() as u64;
        words.extend([self.ino, self.cookie, len << 8 | u64::from(self.kind)]);
        put_text(self.name, words);
    }
}

/// Appends a text to the words of a reply, filled up with zeros.
fn put_text(text: &[u8], words: &mut Vec<u64>) {
    words.extend(text.chunks(8).map(|part| {
        let mut word = [0; 8];
        word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(word)
    }));
}

/// Splits the words off that a reply or an entry begins with.
fn split<const N: usize>(bytes: &[u8]) -> Option<([u64; N], &[u8])> {
    let (head, rest) = bytes.split_at_checked(N * 8)?;
    let mut words = [0; N];
    for (word, from) in words.iter_mut().zip(head.chunks_exact(8)) {
        *word = u64::from_le_bytes(from.try_into().ok()?);
    }
    Some((words, rest))
}

/// The first entry of a listing, and what follows it; `None` behind the last one.
pub fn entry(listing: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let ([ino, cookie, shape], rest) = split::<ENTRY>(listing)?;
    let len = usize::try_from(shape >> 8).ok()?;
    let name = rest.get(..len)?;
    let kind = shape as u8;
    let rest = rest.get(len.next_multiple_of(8)..)?;
    Some((
        Entry {
            ino,
            cookie,
            kind,
            name,
        },
        rest,
    ))
}

/// The answer to [`Op::Locate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location<'a> {
    /// The inode.
    pub ino: u64,
    /// The offset of the open directory.
    pub offset: u64,
    /// The path from the root of the mount, which begins with a slash.
    pub path: &'a [u8],
}

impl<'a> Location<'a> {
    /// As the words of a reply.
    pub fn words(&self) -> Vec<u64> {
        let mut words = vec![self.ino, self.offset, self.path.len() as u64];
        put_text(self.path, &mut words);
        words
    }

    /// From the words behind the status, as bytes.
    pub fn of(answer: &'a [u8]) -> Option<Self> {
        let ([ino, offset, len], rest) = split::<3>(answer)?;
        let path = rest.get(..usize::try_from(len).ok()?)?;
        Some(Self { ino, offset, path })
    }
}

/// Writes the reply to [`Op::Read`].
pub fn put_bytes(reply: &mut Vec<u8>, bytes: &[u8]) {
    put_reply(reply, Status::Done, &[bytes.len() as u64]);
    reply.extend(bytes);
}

/// Writes a reply.
pub fn put_reply(reply: &mut Vec<u8>, status: Status, words: &[u64]) {
    reply.extend((status as u64).to_le_bytes());
    for word in words {
        reply.extend(word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_lists() {
        for (number, op) in (1..).zip(Op::ALL) {
            assert_eq!((op as u64, Op::of(number)), (number, Some(op)));
        }
        assert_eq!((Op::of(0), Op::of(25)), (None, None));
        for (number, why) in (0..).zip(Why::ALL) {
            assert_eq!((why as u64, Why::of(number)), (number, Some(why)));
        }
    }

    #[test]
    fn requests_are_read_as_they_were_made_and_lengths_are_not_believed() {
        let request = Request {
            op: Op::Rename,
            args: [1, 2, 3, 4, NONE],
            text: b"a/b",
            other: b"longer than a word",
        };
        let padded = [request.text, &[0; 5]].concat();
        let bytes = [&request.head()[..], &padded, request.other].concat();
        assert_eq!(Request::parse(&bytes), Some(request));
        assert_eq!(Request::parse(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Request::parse(&[]), None);
        for word in 0..WORDS {
            let mut wrong = bytes.clone();
            wrong[word * 8..][..8].fill(0xff);
            // Only an operation or a length that is none can be refused here.
            let refused = [0, 6, 7].contains(&word);
            assert_eq!(Request::parse(&wrong).is_none(), refused, "{word}");
        }
    }

    #[test]
    fn entries_are_read_as_they_were_made_and_lengths_are_not_believed() {
        let name = [b'n'; 255];
        let lens = [1, 7, 8, 9, 255];
        let entry_of = |n: usize| Entry {
            ino: n as u64,
            cookie: 1 << n.min(9),
            kind: 4,
            name: &name[..n],
        };
        let mut words = Vec::new();
        lens.iter().for_each(|n| entry_of(*n).put(&mut words));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(bytes.len(), lens.map(|n| entry_of(n).bytes()).iter().sum());
        let mut rest = &bytes[..];
        for n in lens {
            let (found, behind) = entry(rest).unwrap();
            assert_eq!(found, entry_of(n));
            assert_eq!(entry(&rest[..found.bytes() - 1]), None);
            rest = behind;
        }
        assert_eq!(entry(rest), None);
        let mut wrong = bytes.clone();
        wrong[17..24].fill(0xff);
        assert_eq!(entry(&wrong), None);
        let location = Location {
            ino: 5,
            offset: 6,
            path: b"/a/long/path",
        };
        let bytes: Vec<u8> = location
            .words()
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        assert_eq!(Location::of(&bytes), Some(location));
        assert_eq!(Location::of(&bytes[..32]), None);
        assert_eq!((opened(7), opened(OPENED | 7)), (None, Some(7)));
        assert_eq!((opened(1 << 63 | 7), opened(u64::MAX)), (None, None));
    }

    #[test]
    fn replies_are_read_as_they_were_made() {
        let stat = Stat {
            ino: 1,
            size: 2,
            times: [3, 4, 5, 6, 7, 8, 9, 10],
            ..Stat::default()
        };
        let mut reply = Vec::new();
        put_reply(&mut reply, Status::Done, &stat.words());
        let (status, words) = parse_reply(&reply).unwrap();
        assert_eq!((status, Stat::of(&words)), (Status::Done, stat));
        assert_eq!(parse_reply(&9u64.to_le_bytes()), None);
        assert_eq!(parse_reply(&[]), None);
    }
}

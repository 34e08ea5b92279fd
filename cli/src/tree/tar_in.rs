//! Reads tar archives from any origin: ustar, GNU and pax, with sparse members.
//!
//! The whole archive may be hostile: numbers are checked, records kept in memory are bounded
//! ([`Records`]), and names that lead out of the tree (absolute, or with "..") end the import.
//! The `tar` crate decodes the headers; extended records are parsed here, because the crate ends
//! each at a newline. A member that the sink refuses is reported, and the import continues with
//! the next one.

use std::io::{ErrorKind, Read};

use cairnfs_daemon::failure::{Explain, Failure, show_bytes};
use cairnfs_disk::acl::{self, Acl};
use cairnfs_disk::types::{FileKind, Time};
use tar::{GnuExtSparseHeader, Header};

use super::acl_text::Names;
use super::tar_member::{
    Kind, LONG_LINK, LONG_NAME, LostList, MAX_MEMBER, Member, Records, check_segments, clean, id,
    kind, pairs,
};
use super::{CHUNK, Copier, Meta, Segment, Sink, mode_without, pax};
use crate::interrupt;

const BLOCK: u64 = 512;
/// Maximum number of ranges of a sparse member.
const MAX_SEGMENTS: u64 = 1 << 20;
/// Maximum number of bytes of headers between two members, including those that later ones
/// replace.
const MAX_BETWEEN: u64 = 2 * MAX_MEMBER as u64;

/// An archive read from `R`.
pub struct TarReader<R: Read> {
    input: R,
    name: String,
    global: Records,
    names: Names,
    /// Bytes until the next header block.
    padding: u64,
    /// Bytes of headers since the last member.
    between: u64,
    any: bool,
    /// The first header, if it was read already.
    first: Option<Header>,
    /// Whether there is no further header.
    ended: bool,
    /// Whether to read on after the end of the archive.
    whole: bool,
}

impl<R: Read> TarReader<R> {
    /// Reads the archive in `input`, called `name` in messages.
    pub fn new(input: R, name: String) -> Self {
        Self {
            input,
            name,
            global: Records::global(),
            names: Names::of_host(),
            padding: 0,
            between: 0,
            any: false,
            first: None,
            ended: false,
            whole: false,
        }
    }

    /// Also reads the data after the end of the archive: a compressed archive has its checksum
    /// there.
    #[must_use]
    pub fn reading_all(mut self, whole: bool) -> Self {
        self.whole = whole;
        self
    }

    /// Reads the first header, so that nothing is made for what is no archive.
    ///
    /// # Errors
    /// It is none, or cannot be read.
    pub fn begun(mut self) -> Result<Self, Failure> {
        self.first = self.header()?;
        self.ended = self.first.is_none();
        Ok(self)
    }

    fn bad(&self, why: impl std::fmt::Display) -> Failure {
        Failure::new(&self.name, why)
    }

    fn cut_off(&self) -> Failure {
        self.bad("archive ends too early")
            .hint("it was cut off or damaged on its way: fetch or make it again")
    }

    fn no_archive(&self) -> Failure {
        self.bad("is neither a directory nor a tar archive")
            .hint("to copy a single file: cairnfs cp FILE VOLUME:/")
    }

    /// The failure of a read. A truncated compressed archive ends in the middle of its stream.
    fn unread(&self, error: std::io::Error) -> Failure {
        match error.kind() {
            ErrorKind::UnexpectedEof => self.cut_off(),
            _ => {
                let failed: Result<(), _> = Err(error).explain(&self.name);
                failed.err().unwrap_or_else(|| self.cut_off())
            }
        }
    }

    fn too_much(&self, why: &str) -> Failure {
        self.bad(why)
            .hint("it is damaged, or made to exhaust memory: make it again, or do not trust it")
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<(), Failure> {
        let read = self.input.read_exact(buf);
        read.map_err(|e| self.unread(e))
    }

    fn skip(&mut self, count: u64) -> Result<(), Failure> {
        let skipped = std::io::copy(&mut self.input.by_ref().take(count), &mut std::io::sink())
            .map_err(|e| self.unread(e))?;
        if skipped < count {
            return Err(self.cut_off());
        }
        Ok(())
    }

    fn records(&mut self, size: u64) -> Result<Vec<u8>, Failure> {
        if size > MAX_MEMBER as u64 {
            return Err(self.too_much("an extended header is larger than 16 MiB"));
        }
        self.between += BLOCK + size.next_multiple_of(BLOCK);
        if self.between > MAX_BETWEEN {
            return Err(self.too_much("more than 32 MiB of extended headers precede a member"));
        }
        let mut bytes = vec![0; size as usize];
        self.fill(&mut bytes)?;
        self.skip(size.next_multiple_of(BLOCK) - size)?;
        Ok(bytes)
    }

    /// The next header block; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<Header>, Failure> {
        let padding = std::mem::take(&mut self.padding);
        self.skip(padding)?;
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        let mut have = 0;
        while have < bytes.len() {
            match self.input.read(bytes.get_mut(have..).unwrap_or_default()) {
                Ok(0) if have == 0 && self.any => return Ok(None),
                Ok(0) if self.any => return Err(self.cut_off()),
                Ok(0) => return Err(self.no_archive()),
                Ok(n) => have += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.unread(e)),
            }
        }
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum: u32 = bytes
            .iter()
            .enumerate()
            .map(|(i, b)| {
                if (148..156).contains(&i) {
                    32
                } else {
                    u32::from(*b)
                }
            })
            .sum();
        if header.cksum().ok() != Some(sum) {
            return Err(if self.any {
                self.bad("a header is damaged")
            } else {
                self.no_archive()
            });
        }
        self.any = true;
        Ok(Some(header))
    }

    fn next(&mut self) -> Result<Option<Member>, Failure> {
        let mut records = Records::member();
        self.between = 0;
        loop {
            let header = match self.first.take() {
                None if self.ended => None,
                None => self.header()?,
                first => first,
            };
            let Some(header) = header else {
                return Ok(None);
            };
            let flag = header.entry_type().as_byte();
            let size = header
                .entry_size()
                .map_err(|_| self.bad("a header has an impossible size"))?;
            match flag {
                b'x' | b'X' => {
                    let bytes = self.records(size)?;
                    records.merge(&bytes).map_err(|why| self.too_much(why))?;
                }
                b'g' => {
                    let bytes = self.records(size)?;
                    let merged = self.global.merge(&bytes);
                    merged.map_err(|why| self.too_much(why))?;
                }
                b'L' | b'K' => {
                    let key = if flag == b'L' { LONG_NAME } else { LONG_LINK };
                    let bytes = self.records(size)?;
                    let name = bytes.split(|b| *b == 0).next().unwrap_or_default();
                    records.set(key, name).map_err(|why| self.too_much(why))?;
                }
                _ => return self.member(&header, size, &records).map(Some),
            }
        }
    }

    fn member(&mut self, header: &Header, size: u64, own: &Records) -> Result<Member, Failure> {
        // A record with an empty value removes an earlier one.
        let find = |key: &[u8]| {
            let record = own.get(key).or_else(|| self.global.get(key));
            record.filter(|value| !value.is_empty())
        };
        let count = |key: &[u8]| find(key).and_then(pax::number);
        let path = find(b"GNU.sparse.name").or(find(b"path"));
        let path = path.or(find(LONG_NAME));
        let raw_path = path.map_or_else(|| header.path_bytes().into_owned(), <[u8]>::to_vec);
        let link = find(b"linkpath").or(find(LONG_LINK));
        let link = link.map_or_else(
            || {
                header
                    .link_name_bytes()
                    .map(|l| l.into_owned())
                    .unwrap_or_default()
            },
            <[u8]>::to_vec,
        );
        let impossible = || self.bad("a header has an impossible size");
        let stored = match find(b"size") {
            Some(text) => pax::number(text).ok_or_else(impossible)?,
            None => size,
        };
        let kind = kind(header.entry_type().as_byte(), &raw_path);
        let rdev = rustix::fs::makedev(
            header.device_major().ok().flatten().unwrap_or(0),
            header.device_minor().ok().flatten().unwrap_or(0),
        );
        let mut lost = Vec::new();
        let mut time = |key: &'static str, otherwise: Time| {
            let Some(text) = find(key.as_bytes()) else {
                return otherwise;
            };
            pax::parse_time(text).unwrap_or_else(|| {
                lost.push(key);
                otherwise
            })
        };
        let of_header = Time {
            // GNU tar writes times before 1970 as two's complement.
            secs: header.mtime().map_or(0, u64::cast_signed),
            nanos: 0,
        };
        let mtime = time("mtime", of_header);
        let atime = time("atime", mtime);
        let (uid, uid_lost) = id(find(b"uid"), header.uid());
        let (gid, gid_lost) = id(find(b"gid"), header.gid());
        let ids = [("uid", uid_lost), ("gid", gid_lost)];
        lost.extend(ids.iter().filter(|(_, lost)| *lost).map(|(key, _)| *key));
        let mut lost: Vec<String> = lost
            .iter()
            .map(|key| format!("{key} cannot be kept: out of range, or no number"))
            .collect();
        let mut lists = Vec::new();
        let mut xattrs = self.global.xattrs(&self.names, &mut lists);
        xattrs.extend(own.xattrs(&self.names, &mut lists));
        let mut mode = header.mode().unwrap_or(0o644) & 0o7777;
        // Some programs write the owning group's rights into the header, not the mask.
        let list = xattrs.iter().rfind(|(name, _)| name == acl::ACCESS);
        if let Some(list) = list.and_then(|(_, value)| Acl::parse(value)) {
            mode = mode & !0o777 | list.permissions();
        }
        for LostList { name, why } in lists {
            if name == acl::ACCESS {
                mode = mode_without(name, &[], mode);
                lost.push(format!(
                    "the access list cannot be kept, and the owning group gets no rights: {why}"
                ));
            } else {
                lost.push(format!("the default access list cannot be kept: {why}"));
            }
        }
        let meta = Meta {
            kind: match kind {
                Kind::Node(kind) => kind,
                _ => FileKind::File,
            },
            mode,
            uid,
            gid,
            rdev,
            size: stored,
            nlink: 1,
            id: (0, 0),
            atime,
            mtime,
            xattrs,
        };
        let map = find(b"GNU.sparse.map").map(<[u8]>::to_vec);
        let real = count(b"GNU.sparse.realsize").or(count(b"GNU.sparse.size"));
        let version_1 = find(b"GNU.sparse.major") == Some(b"1");
        let version_0 = find(b"GNU.sparse.numblocks").is_some();
        let mut member = Member {
            path: clean(&raw_path).map_err(|why| self.refusal(&raw_path, why))?,
            link,
            kind,
            meta,
            segments: Vec::new(),
            stored,
            lost,
        };
        if !matches!(kind, Kind::Node(FileKind::File)) {
            // The size of a member without data is meaningless, except for members that are
            // skipped.
            if matches!(kind, Kind::Node(k) if k != FileKind::Directory) || kind == Kind::HardLink {
                member.stored = 0;
            }
            member.meta.size = 0;
            return Ok(member);
        }
        member.segments = vec![Segment {
            start: 0,
            end: stored,
        }];
        if header.entry_type().as_byte() == b'S' {
            self.old_sparse(header, &mut member)?;
        } else if version_1 {
            self.sparse_1(real, &mut member)?;
        } else if let Some(map) = map {
            if map.iter().filter(|b| **b == b',').count() as u64 > 2 * MAX_SEGMENTS {
                return Err(self.bad("sparse map too long"));
            }
            let numbers = map.split(|b| *b == b',').map(pax::number);
            let numbers: Option<Vec<u64>> = numbers.collect();
            let numbers = numbers.ok_or_else(|| self.bad("malformed sparse map"))?;
            member.segments = pairs(&numbers).map_err(|why| self.bad(why))?;
            member.meta.size = real.unwrap_or(stored);
        } else if version_0 {
            return Err(self
                .bad(format!(
                    "{}: sparse format 0.0 is not supported",
                    show_bytes(&member.path)
                ))
                .hint("make the archive again with: tar --format=pax -S"));
        }
        check_segments(&member).map_err(|why| self.bad(why))?;
        Ok(member)
    }

    fn refusal(&self, path: &[u8], why: &str) -> Failure {
        self.bad(format!("refusing '{}': {why}", show_bytes(path)))
            .hint("such an entry would land outside of the tree; make the archive with relative names")
    }

    /// Old GNU sparse members: ranges in the header and in the blocks that follow it.
    fn old_sparse(&mut self, header: &Header, member: &mut Member) -> Result<(), Failure> {
        let Some(gnu) = header.as_gnu() else {
            return Err(self.bad("sparse member without a GNU header"));
        };
        let mut numbers = Vec::new();
        let mut take = |ranges: &[tar::GnuSparseHeader]| {
            for range in ranges.iter().filter(|r| !r.is_empty()) {
                match (range.offset(), range.length()) {
                    (Ok(offset), Ok(length)) => numbers.extend([offset, length]),
                    _ => return Err("malformed sparse map"),
                }
            }
            if numbers.len() as u64 > 2 * MAX_SEGMENTS {
                return Err("sparse map too long");
            }
            Ok(())
        };
        let mut first = take(&gnu.sparse);
        let mut more = gnu.is_extended();
        while more && first.is_ok() {
            let mut block = GnuExtSparseHeader::new();
            self.input
                .read_exact(block.as_mut_bytes())
                .explain(&self.name)?;
            first = take(block.sparse());
            more = block.is_extended();
        }
        first.map_err(|why| self.bad(why))?;
        member.segments = pairs(&numbers).map_err(|why| self.bad(why))?;
        member.meta.size = gnu
            .real_size()
            .map_err(|_| self.bad("a header has an impossible size"))?;
        Ok(())
    }

    /// Pax format 1.0: the map is in front of the data.
    fn sparse_1(&mut self, real: Option<u64>, member: &mut Member) -> Result<(), Failure> {
        let mut numbers: Vec<u64> = Vec::new();
        let mut number: Option<u64> = None;
        let mut wanted = 1;
        while (numbers.len() as u64) < wanted {
            if member.stored < BLOCK {
                return Err(self.bad("malformed sparse map"));
            }
            let mut block = [0; BLOCK as usize];
            self.fill(&mut block)?;
            member.stored -= BLOCK;
            for byte in block {
                if (numbers.len() as u64) >= wanted {
                    break;
                }
                let digit = u64::from(byte.wrapping_sub(b'0'));
                match (byte, number) {
                    (b'\n', Some(n)) => {
                        if numbers.is_empty() && n > MAX_SEGMENTS {
                            return Err(self.bad("sparse map too long"));
                        }
                        wanted = if numbers.is_empty() {
                            1 + 2 * n
                        } else {
                            wanted
                        };
                        numbers.push(n);
                        number = None;
                    }
                    (b'0'..=b'9', n) => {
                        let n = n.unwrap_or(0).checked_mul(10);
                        number = n.and_then(|n| n.checked_add(digit));
                        if number.is_none() {
                            return Err(self.bad("malformed sparse map"));
                        }
                    }
                    _ => return Err(self.bad("malformed sparse map")),
                }
            }
        }
        let ranges = numbers.get(1..).unwrap_or_default();
        member.segments = pairs(ranges).map_err(|why| self.bad(why))?;
        member.meta.size = real.ok_or_else(|| self.bad("sparse member without a size"))?;
        Ok(())
    }

    /// Imports all members into `sink`.
    ///
    /// # Errors
    /// A malformed or hostile archive, the reader's failure or a fatal failure of the sink.
    pub fn import(mut self, copier: &mut Copier<'_>, sink: &mut dyn Sink) -> Result<(), Failure> {
        while let Some(mut member) = self.next()? {
            interrupt::check()?;
            self.one(copier, sink, &mut member)?;
            self.padding = member.stored.next_multiple_of(BLOCK);
        }
        if self.whole {
            let skipped = std::io::copy(&mut self.input, &mut std::io::sink());
            skipped.map_err(|e| self.unread(e))?;
        }
        copier.done(sink.finish()).map(drop)
    }

    fn one(
        &mut self,
        copier: &mut Copier<'_>,
        sink: &mut dyn Sink,
        member: &mut Member,
    ) -> Result<(), Failure> {
        let (path, meta) = (&member.path, &member.meta);
        if path.is_empty() && member.kind != Kind::Node(FileKind::Directory) {
            return Err(self.bad("a member other than a directory has no name"));
        }
        let made = match member.kind {
            Kind::Node(FileKind::Directory) => {
                let begun = sink.begin_directory(path, meta);
                begun.and_then(|()| sink.keep_directory(path, meta))
            }
            Kind::Node(FileKind::File) => self.file(copier, sink, member)?,
            Kind::Node(FileKind::Symlink) => sink.symlink(path, &member.link, meta),
            Kind::Node(_) => sink.special(path, meta),
            Kind::HardLink => {
                let original =
                    clean(&member.link).map_err(|why| self.refusal(&member.link, why))?;
                sink.hard_link(path, &original)
            }
            Kind::Unknown(flag) => Err(self.bad(format!(
                "'{}' is of unknown type '{}'; skipped",
                show_bytes(path),
                show_bytes(&[flag])
            ))),
            Kind::Label => return Ok(()),
        };
        let made = u64::from(copier.done(made)?.is_some());
        if made > 0 && !member.lost.is_empty() && matches!(member.kind, Kind::Node(_)) {
            copier.tell(&self.bad(format!(
                "{}: {}",
                show_bytes(&member.path),
                member.lost.join("; ")
            )));
        }
        let summary = &mut copier.summary;
        match member.kind {
            Kind::Node(FileKind::Directory) => summary.directories += made,
            Kind::Node(FileKind::File) => summary.files += made,
            Kind::Node(FileKind::Symlink) => summary.symlinks += made,
            Kind::Node(_) => summary.special += made,
            Kind::HardLink => summary.hard_links += made,
            Kind::Unknown(_) | Kind::Label => {}
        }
        Ok(())
    }

    /// Makes a regular file and returns the sink's result. An error is a failure of the archive;
    /// no part of the file is left then.
    fn file(
        &mut self,
        copier: &mut Copier<'_>,
        sink: &mut dyn Sink,
        member: &mut Member,
    ) -> Result<Result<(), Failure>, Failure> {
        if let Err(failure) = sink.begin_file(&member.path, &member.meta, &member.segments) {
            return Ok(Err(failure));
        }
        match self.data(copier, sink, member) {
            Ok(Ok(())) => Ok(sink.end_file(&member.path, &member.meta)),
            failed => {
                sink.abandon_file();
                failed
            }
        }
    }

    /// Copies a file's data. If the sink fails, the rest of the data in the archive is skipped.
    fn data(
        &mut self,
        copier: &mut Copier<'_>,
        sink: &mut dyn Sink,
        member: &mut Member,
    ) -> Result<Result<(), Failure>, Failure> {
        let mut left = member.stored.next_multiple_of(BLOCK);
        // From here on this function skips the rest of the member, not the caller.
        member.stored = 0;
        let mut buffer = vec![0; CHUNK];
        let mut written = Ok(());
        'data: for segment in &member.segments {
            let mut at = segment.start;
            while at < segment.end {
                interrupt::check()?;
                let want = (segment.end - at).min(CHUNK as u64) as usize;
                let part = buffer.get_mut(..want).unwrap_or_default();
                self.fill(part)?;
                left = left.saturating_sub(want as u64);
                written = sink.write(at, part);
                if written.is_err() {
                    break 'data;
                }
                at += want as u64;
                copier.summary.bytes += want as u64;
            }
        }
        self.skip(left)?;
        Ok(written)
    }
}

#[cfg(test)]
#[path = "tests/tar.rs"]
mod tests;

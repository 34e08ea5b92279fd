//! A tar archive as a sink: POSIX pax format, readable by GNU tar, bsdtar and Python.
//!
//! Extended headers hold times to the nanosecond, attributes (`SCHILY.xattr.*`), long names and
//! large numbers. Access lists are written twice: as attributes, and as the text (`SCHILY.acl.*`)
//! that other programs restore. Sparse files are written as GNU's pax format 1.0. Tar has no
//! representation of sockets; they are left out. Unreadable data of a file is replaced by zeros, so
//! that the archive stays valid. A failed write is fatal: a reader could not find any member behind
//! it.

use std::io::{self, Read, Write};

use cairnfs_daemon::failure::{Explain, Failure};
use cairnfs_disk::types::FileKind;
use tar::{EntryType, Header};

use super::{Meta, Segment, Sink, acl_text, pax};

const BLOCK: u64 = 512;
/// Maximum value of a seven-digit octal field.
const MAX_ID: u32 = 0o7_777_777;
/// Maximum value of an eleven-digit octal field.
const MAX_SIZE: u64 = 0o77_777_777_777;

/// An archive written to `W`.
pub struct TarSink<W: Write> {
    out: W,
    name: String,
    left_out: u64,
    /// Ranges of the current file that are still to be written.
    expected: Vec<Segment>,
    /// Bytes of its data already written, for padding.
    written: u64,
}

impl<W: Write> TarSink<W> {
    /// Begins an archive in `out`, called `name` in messages.
    pub fn new(out: W, name: String) -> Self {
        Self {
            out,
            name,
            left_out: 0,
            expected: Vec::new(),
            written: 0,
        }
    }

    /// Writes the end of the archive.
    pub fn finish(mut self) -> Result<W, Failure> {
        self.put(&[0; 2 * BLOCK as usize])?;
        self.out.flush().explain(&self.name)?;
        Ok(self.out)
    }

    /// Number of sockets left out.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let put = self.out.write_all(bytes).explain(&self.name);
        put.map_err(Failure::fatal)
    }

    fn zeros(&mut self, count: u64) -> Result<(), Failure> {
        io::copy(&mut io::repeat(0).take(count), &mut self.out)
            .map(drop)
            .explain(&self.name)
            .map_err(Failure::fatal)
    }

    fn pad(&mut self, written: u64) -> Result<(), Failure> {
        self.zeros(written.next_multiple_of(BLOCK) - written)
    }

    fn entry(&mut self, path: &[u8], entry: &TarEntry<'_>, meta: &Meta) -> Result<(), Failure> {
        let (header, records) = encode(path, entry, meta);
        if !records.is_empty() {
            let mut extended = Header::new_ustar();
            extended.set_entry_type(EntryType::XHeader);
            extended.set_size(records.len() as u64);
            extended.set_mode(0o644);
            set_name(&mut extended, b"PaxHeaders/x");
            extended.set_cksum();
            self.put(extended.as_bytes())?;
            self.put(&records)?;
            self.pad(records.len() as u64)?;
        }
        self.put(header.as_bytes())
    }

    fn plain(
        &mut self,
        path: &[u8],
        kind: EntryType,
        link: &[u8],
        meta: &Meta,
    ) -> Result<(), Failure> {
        let entry = TarEntry {
            kind,
            link,
            size: 0,
            sparse: false,
        };
        self.entry(path, &entry, meta)
    }
}

/// The content of a header besides the attributes.
struct TarEntry<'a> {
    kind: EntryType,
    link: &'a [u8],
    size: u64,
    sparse: bool,
}

/// The header and the extended records of an entry.
fn encode(path: &[u8], entry: &TarEntry<'_>, meta: &Meta) -> (Header, Vec<u8>) {
    let mut header = Header::new_ustar();
    let mut records = Vec::new();
    header.set_entry_type(entry.kind);
    header.set_mode(meta.mode);
    header.set_uid(meta.uid.min(MAX_ID).into());
    header.set_gid(meta.gid.min(MAX_ID).into());
    header.set_size(entry.size.min(MAX_SIZE));
    header.set_mtime(u64::try_from(meta.mtime.secs).unwrap_or(0).min(MAX_SIZE));
    if entry.sparse {
        pax::push(&mut records, b"GNU.sparse.major", b"1");
        pax::push(&mut records, b"GNU.sparse.minor", b"0");
        pax::push(&mut records, b"GNU.sparse.name", path);
        pax::push(
            &mut records,
            b"GNU.sparse.realsize",
            meta.size.to_string().as_bytes(),
        );
        set_name(&mut header, b"GNUSparseFile.0/file");
    } else if !set_name(&mut header, path) {
        pax::push(&mut records, b"path", path);
    }
    if header.set_link_name_literal(entry.link).is_err() {
        pax::push(&mut records, b"linkpath", entry.link);
    }
    if matches!(entry.kind, EntryType::Char | EntryType::Block) {
        // Cannot fail: seven octal digits hold every device number of Linux.
        let _ = header.set_device_major(rustix::fs::major(meta.rdev));
        let _ = header.set_device_minor(rustix::fs::minor(meta.rdev));
    }
    for (key, value, most) in [
        (&b"uid"[..], u64::from(meta.uid), u64::from(MAX_ID)),
        (b"gid", u64::from(meta.gid), u64::from(MAX_ID)),
        (b"size", entry.size, MAX_SIZE),
    ] {
        if value > most {
            pax::push(&mut records, key, value.to_string().as_bytes());
        }
    }
    if entry.kind != EntryType::Link {
        pax::push(
            &mut records,
            b"mtime",
            pax::time_text(meta.mtime).as_bytes(),
        );
        pax::push(
            &mut records,
            b"atime",
            pax::time_text(meta.atime).as_bytes(),
        );
        for (name, value) in &meta.xattrs {
            pax::push(&mut records, &pax::xattr_key(name), value);
            let list = acl_text::LISTS.iter().find(|(_, list)| list == name);
            if let (Some((key, _)), Some(text)) = (list, acl_text::format(value)) {
                pax::push(&mut records, key.as_bytes(), text.as_bytes());
            }
        }
    }
    header.set_cksum();
    (header, records)
}

/// Stores `name`, truncated to the header's field. Returns whether it fits.
fn set_name(header: &mut Header, name: &[u8]) -> bool {
    let field = &mut header.as_old_mut().name;
    for (to, from) in field.iter_mut().zip(name) {
        *to = *from;
    }
    name.len() <= field.len()
}

/// Extends ranges to whole blocks, as sparse members require, and joins adjacent ones.
fn aligned(segments: &[Segment], size: u64) -> Vec<Segment> {
    let mut found: Vec<Segment> = Vec::new();
    for segment in segments {
        let start = segment.start / BLOCK * BLOCK;
        let end = segment.end.next_multiple_of(BLOCK).min(size);
        match found.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => found.push(Segment { start, end }),
        }
    }
    found
}

/// The map in front of the data of a sparse member.
fn sparse_map(segments: &[Segment], size: u64) -> Vec<u8> {
    let ends_in_hole = segments.last().is_none_or(|last| last.end < size);
    let count = segments.len() + usize::from(ends_in_hole);
    let mut map = format!("{count}\n");
    for s in segments {
        map.push_str(&format!("{}\n{}\n", s.start, s.end - s.start));
    }
    if ends_in_hole {
        map.push_str(&format!("{size}\n0\n"));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK as usize), 0);
    map
}

impl<W: Write> Sink for TarSink<W> {
    fn begin_directory(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let path = if path.is_empty() { b"." } else { path };
        self.plain(&[path, b"/"].concat(), EntryType::Directory, b"", meta)
    }

    fn end_directory(&mut self, _path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        Ok(())
    }

    fn begin_file(&mut self, path: &[u8], meta: &Meta, data: &[Segment]) -> Result<(), Failure> {
        let segments = aligned(data, meta.size);
        let held: u64 = segments.iter().map(|s| s.end - s.start).sum();
        let sparse = held < meta.size;
        let map = if sparse {
            sparse_map(&segments, meta.size)
        } else {
            Vec::new()
        };
        let entry = TarEntry {
            kind: EntryType::Regular,
            link: b"",
            size: held + map.len() as u64,
            sparse,
        };
        self.entry(path, &entry, meta)?;
        self.put(&map)?;
        self.expected = segments;
        self.expected.reverse();
        self.written = 0;
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let end = offset + bytes.len() as u64;
        self.fill_to(offset)?;
        self.put(bytes)?;
        self.written += bytes.len() as u64;
        if let Some(current) = self.expected.last_mut() {
            current.start = end;
        }
        Ok(())
    }

    fn end_file(&mut self, _path: &[u8], _meta: &Meta) -> Result<(), Failure> {
        self.fill_to(u64::MAX)?;
        self.pad(self.written)
    }

    /// Only a failed write abandons a file, and it ends the archive.
    fn abandon_file(&mut self) {}

    fn symlink(&mut self, path: &[u8], target: &[u8], meta: &Meta) -> Result<(), Failure> {
        self.plain(path, EntryType::Symlink, target, meta)
    }

    fn special(&mut self, path: &[u8], meta: &Meta) -> Result<(), Failure> {
        let kind = match meta.kind {
            FileKind::CharDevice => EntryType::Char,
            FileKind::BlockDevice => EntryType::Block,
            FileKind::Fifo => EntryType::Fifo,
            _ => {
                self.left_out += 1;
                return Ok(());
            }
        };
        self.plain(path, kind, b"", meta)
    }

    fn hard_link(&mut self, path: &[u8], original: &[u8]) -> Result<(), Failure> {
        let meta = Meta {
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            nlink: 1,
            id: (0, 0),
            atime: Default::default(),
            mtime: Default::default(),
            xattrs: Vec::new(),
        };
        self.plain(path, EntryType::Link, original, &meta)
    }
}

impl<W: Write> TarSink<W> {
    /// Writes zeros for the ranges before `offset` that the header promises and that were not
    /// written.
    fn fill_to(&mut self, offset: u64) -> Result<(), Failure> {
        while let Some(current) = self.expected.last_mut() {
            let end = current.end.min(offset);
            let missing = end.saturating_sub(current.start);
            current.start += missing;
            let complete = current.start >= current.end;
            if missing > 0 {
                self.zeros(missing)?;
                self.written += missing;
            }
            if !complete {
                break;
            }
            self.expected.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seg(start: u64, end: u64) -> Segment {
        Segment { start, end }
    }

    #[test]
    fn sparse_ranges_are_aligned_to_blocks() {
        assert_eq!(
            aligned(&[seg(1, 2), seg(600, 700)], 5000),
            vec![seg(0, 1024)]
        );
        assert_eq!(
            aligned(&[seg(4096, 4097), seg(8192, 9000)], 9000),
            vec![seg(4096, 4608), seg(8192, 9000)]
        );
    }

    #[test]
    fn sparse_map_ends_at_file_size() {
        let map = sparse_map(&[seg(0, 512)], 2048);
        assert!(map.starts_with(b"2\n0\n512\n2048\n0\n\0"));
        assert_eq!(map.len(), 512);
        assert!(sparse_map(&[], 10).starts_with(b"1\n10\n0\n"));
    }
}

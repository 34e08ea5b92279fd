//! Copies a tree: walks a source and fills a sink.
//!
//! The failure of one entry is reported with its path and counted, and the copy continues; only a
//! fatal failure of the sink ends it. A file that can be read only in part is salvaged block by
//! block: an unreadable range is a hole in the copy, and is reported. What such a copy would replace is
//! kept instead: it may be the last whole one.

use std::collections::{HashMap, HashSet};

use cairnfs_daemon::failure::{Failure, show_bytes};
use cairnfs_disk::format::BLOCK_SIZE;
use cairnfs_disk::types::FileKind;

use super::{CHUNK, Keep, Meta, Segment, Sink, Source, Summary, Unreadable, count, push_name};
use crate::interrupt;
use crate::output::Progress;

/// Maximum number of unreadable ranges in a summary; messages report all of them.
const MAX_LISTED: usize = 10_000;

/// What a message about an unreadable range says of the copy.
const ZEROS: &str = " and are zeros in the copy";

/// A directory being walked.
struct Frame {
    meta: Meta,
    /// Length of its path in the sink.
    end: usize,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// An unreadable range, and the reason.
struct Lost {
    path: String,
    range: Segment,
    why: String,
    /// What a message says of the copy.
    instead: &'static str,
}

/// One copy: what to keep, and the state of the walk.
pub struct Copier<'a> {
    keep: Keep,
    progress: &'a Progress,
    /// What a message about an unreadable range says of the copy, if nothing is replaced by it.
    instead: &'static str,
    links: HashMap<(u64, u64), Vec<u8>>,
    buffer: Vec<u8>,
    /// The last unreadable range of the current file; it may still grow.
    lost: Option<Lost>,
    /// What the current file would replace, as in messages.
    replaced: Option<String>,
    /// Hints already shown: each is shown once.
    hints: HashSet<String>,
    /// The result up to the current entry.
    pub summary: Summary,
}

impl<'a> Copier<'a> {
    /// A copy that keeps `keep`.
    pub fn new(keep: Keep, progress: &'a Progress) -> Self {
        Self {
            keep,
            progress,
            instead: ZEROS,
            links: HashMap::new(),
            buffer: vec![0; CHUNK],
            lost: None,
            replaced: None,
            hints: HashSet::new(),
            summary: Summary::default(),
        }
    }

    /// One of which nothing is kept: it only reads.
    pub fn reading(progress: &'a Progress) -> Self {
        Self {
            instead: "",
            ..Self::new(Keep::ALL, progress)
        }
    }

    /// Copies the entry at which `source` starts, and everything in it, to `path`.
    ///
    /// # Errors
    /// A fatal failure of the sink, or a signal, ends the copy.
    pub fn copy<S: Source>(
        &mut self,
        source: &mut S,
        sink: &mut dyn Sink,
        mut path: Vec<u8>,
    ) -> Result<(), Failure> {
        let Some(meta) = self.done(source.start())? else {
            return Ok(());
        };
        let mut open = HashSet::new();
        let mut met = HashSet::new();
        let mut stack: Vec<Frame> = Vec::new();
        stack.extend(self.one(source, sink, &path, meta)?);
        open.extend(stack.first().map(|frame| frame.meta.id));
        while let Some(frame) = stack.last_mut() {
            interrupt::check()?;
            path.truncate(frame.end);
            let Some(name) = frame.names.next() else {
                let ended = sink.end_directory(&path, &frame.meta);
                open.remove(&frame.meta.id);
                stack.pop();
                source.leave();
                self.done(ended)?;
                continue;
            };
            let found = checked_name(&name).and_then(|()| source.find(&name));
            let Some(meta) = self.done(found)? else {
                continue;
            };
            push_name(&mut path, &name);
            if meta.kind == FileKind::Directory && !open.insert(meta.id) {
                let why = "the directory contains itself; it was skipped";
                self.tell(&Failure::new(source.shown(), why));
                continue;
            }
            if S::TREE && meta.kind == FileKind::Directory && !met.insert(meta.id) {
                let why = "another entry leads to the same directory; it was skipped";
                self.tell(&Failure::new(source.shown(), why));
                open.remove(&meta.id);
                continue;
            }
            let id = meta.id;
            let directory = meta.kind == FileKind::Directory;
            match self.one(source, sink, &path, meta)? {
                Some(below) => stack.push(below),
                None if directory => {
                    open.remove(&id);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// As [`Copier::copy`], but first adds the source's size to the total of the progress.
    pub fn copy_counted<S: Source>(
        &mut self,
        source: &mut S,
        sink: &mut dyn Sink,
        path: Vec<u8>,
    ) -> Result<(), Failure> {
        if self.progress.is_shown() {
            self.progress.expect_more(count::bytes(source));
        }
        self.copy(source, sink, path)
    }

    /// Copies the current entry of the source; enters it if it is a directory.
    fn one<S: Source>(
        &mut self,
        source: &mut S,
        sink: &mut dyn Sink,
        path: &[u8],
        mut meta: Meta,
    ) -> Result<Option<Frame>, Failure> {
        if let Some(linked) = self.known_link(&meta, sink, path) {
            if self.done(linked)?.is_some() {
                self.summary.hard_links += 1;
            }
            return Ok(None);
        }
        if self.keep.xattrs {
            meta.xattrs = self.done(source.xattrs())?.unwrap_or_default();
        }
        let made = match meta.kind {
            FileKind::Directory => return self.directory(source, sink, path, meta),
            FileKind::File => self.file(source, sink, path, &meta)?,
            FileKind::Symlink => {
                let made = source.target();
                let made = made.and_then(|target| sink.symlink(path, &target, &meta));
                let made = self.done(made)?.is_some();
                self.summary.symlinks += u64::from(made);
                made
            }
            _ => {
                let made = self.done(sink.special(path, &meta))?.is_some();
                self.summary.special += u64::from(made);
                made
            }
        };
        if made && self.keep.links && meta.nlink > 1 {
            self.links.insert(meta.id, path.to_vec());
        }
        Ok(None)
    }

    /// Makes a hard link if the file was already copied under another name.
    fn known_link(
        &self,
        meta: &Meta,
        sink: &mut dyn Sink,
        path: &[u8],
    ) -> Option<Result<(), Failure>> {
        if !self.keep.links || meta.nlink < 2 || meta.kind == FileKind::Directory {
            return None;
        }
        let original = self.links.get(&meta.id)?;
        Some(sink.hard_link(path, original))
    }

    fn directory<S: Source>(
        &mut self,
        source: &mut S,
        sink: &mut dyn Sink,
        path: &[u8],
        meta: Meta,
    ) -> Result<Option<Frame>, Failure> {
        let Some(listing) = self.done(source.enter())? else {
            return Ok(None);
        };
        if let Some(lost) = listing.lost {
            self.tell(&lost);
        }
        let begun = sink.begin_directory(path, &meta);
        if self.done(begun)?.is_none() {
            source.leave();
            return Ok(None);
        }
        self.summary.directories += 1;
        Ok(Some(Frame {
            meta,
            end: path.len(),
            names: listing.names.into_iter(),
        }))
    }

    /// Copies a regular file. Returns whether it exists in the sink, complete or not.
    fn file<S: Source>(
        &mut self,
        source: &mut S,
        sink: &mut dyn Sink,
        path: &[u8],
        meta: &Meta,
    ) -> Result<bool, Failure> {
        let Some(segments) = self.done(source.segments(meta.size))? else {
            return Ok(false);
        };
        let begun = sink.begin_file(path, meta, &segments.found);
        if self.done(begun)?.is_none() {
            return Ok(false);
        }
        self.replaced = sink.replaced();
        if let Err(failure) = self.contents(source, sink, &segments.found) {
            self.lost = None;
            sink.abandon_file();
            return self.done(Err::<(), _>(failure)).map(|_| false);
        }
        if let Some((start, failure)) = segments.unknown {
            let end = meta.size;
            self.lose(source, Segment { start, end }, &failure);
        }
        let complete = self.lost.is_none();
        self.tell_lost();
        if let Some(replaced) = self.replaced.take().filter(|_| !complete) {
            sink.abandon_file();
            self.tell(&kept(&replaced));
            return Ok(false);
        }
        let ended = self.done(sink.end_file(path, meta))?.is_some();
        if complete {
            self.summary.files += u64::from(ended)
        } else {
            self.summary.failed += u64::from(ended)
        }
        Ok(ended)
    }

    /// Copies the data of the current file; an error is the sink's.
    fn contents<S: Source>(
        &mut self,
        source: &mut S,
        sink: &mut dyn Sink,
        segments: &[Segment],
    ) -> Result<(), Failure> {
        for segment in segments {
            let mut at = segment.start;
            while at < segment.end {
                let end = segment.end.min(at + CHUNK as u64);
                at = match self.range(source, sink, at, end)? {
                    Ok(behind) => behind,
                    Err(_) => self.blocks(source, sink, Segment { start: at, end })?,
                };
            }
        }
        Ok(())
    }

    /// Copies the readable blocks of a range one by one.
    fn blocks<S: Source>(
        &mut self,
        source: &mut S,
        sink: &mut dyn Sink,
        range: Segment,
    ) -> Result<u64, Failure> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at + 1).next_multiple_of(BLOCK_SIZE as u64));
            at = match self.range(source, sink, at, end)? {
                Ok(behind) => behind,
                Err(failure) => {
                    self.lose(source, Segment { start: at, end }, &failure);
                    end
                }
            };
        }
        Ok(range.end)
    }

    /// Copies the data of one read from a range. Returns where it ended, or the reason that
    /// nothing could be read.
    fn range<S: Source>(
        &mut self,
        source: &mut S,
        sink: &mut dyn Sink,
        at: u64,
        end: u64,
    ) -> Result<Result<u64, Failure>, Failure> {
        interrupt::check()?;
        let buffer = self
            .buffer
            .get_mut(..(end - at) as usize)
            .unwrap_or_default();
        let got = match source.read(at, buffer) {
            Ok(0) => {
                let why = "the file became shorter while it was read";
                return Ok(Err(Failure::new(source.shown(), why)));
            }
            Ok(got) => got,
            Err(failure) => return Ok(Err(failure)),
        };
        sink.write(at, self.buffer.get(..got).unwrap_or_default())?;
        self.progress.add(got as u64);
        self.summary.bytes += got as u64;
        Ok(Ok(at + got as u64))
    }

    /// Records an unreadable range.
    fn lose<S: Source>(&mut self, source: &S, range: Segment, failure: &Failure) {
        if let Some(last) = &mut self.lost
            && last.range.end == range.start
        {
            last.range.end = range.end;
            return;
        }
        self.tell_lost();
        self.lost = Some(Lost {
            path: source.shown(),
            range,
            why: failure.why().to_owned(),
            instead: if self.replaced.is_none() {
                self.instead
            } else {
                ""
            },
        });
    }

    fn tell_lost(&mut self) {
        let Some(lost) = self.lost.take() else {
            return;
        };
        let Lost {
            path,
            range,
            why,
            instead,
        } = lost;
        let (first, last) = (range.start, range.end.saturating_sub(1));
        self.progress.note(&format!(
            "{path}: bytes {first} to {last} could not be read{instead}: {why}"
        ));
        if self.summary.unreadable.len() < MAX_LISTED {
            self.summary.unreadable.push(Unreadable {
                path,
                offset: first,
                length: range.end - first,
                why,
            });
        }
    }

    /// Unwraps a result; a failure is reported and counted.
    ///
    /// # Errors
    /// A fatal failure, which ends the copy.
    pub fn done<T>(&mut self, result: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(failure) if failure.is_fatal() => Err(failure),
            Err(failure) => {
                self.tell(&failure);
                Ok(None)
            }
        }
    }

    /// Reports and counts a failure.
    pub fn tell(&mut self, failure: &Failure) {
        self.summary.failed += 1;
        self.progress.note(&failure.to_string());
        if let Some(hint) = failure.next_step()
            && self.hints.insert(hint.to_owned())
        {
            self.progress.hint(hint);
        }
    }
}

/// A file that an incomplete copy does not replace.
fn kept(replaced: &str) -> Failure {
    Failure::new(replaced, "was kept, because its copy would have holes").hint(
        "to get what can be read, with zeros for the rest, copy to where nothing has the name",
    )
}

fn checked_name(name: &[u8]) -> Result<(), Failure> {
    let bad = name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| *b == b'/' || *b == 0);
    if bad {
        return Err(Failure::new(
            show_bytes(name),
            "a directory holds this impossible name; skipped",
        ));
    }
    Ok(())
}

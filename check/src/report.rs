//! The result of a check, and the ledger that collects it.

use std::fmt;

use cairnfs_disk::error::Corruption;

use crate::{Progress, codes};

/// Maximum number of findings in a report, not counting the final [`codes::TOO_MANY`].
pub const MAX_FINDINGS: usize = 10_000;

/// A problem of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its kind: one of the constants in [`crate::codes`].
    pub code: &'static str,
    /// What was expected and what was found, as text.
    pub message: String,
    /// The device block (4 KiB units) that the finding is about.
    pub block: Option<u64>,
    /// The inode that the finding is about.
    pub ino: Option<u64>,
    /// A path of that inode from the root, or "..." and the end of a long one; none if no entry
    /// leads to it.
    pub path: Option<Vec<u8>>,
    /// The name of the snapshot that the finding is about; empty for a state without a name that
    /// branches have in common. None if it is about the files of a branch, or about the volume.
    pub frozen: Option<String>,
}

impl Finding {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            block: None,
            ino: None,
            path: None,
            frozen: None,
        }
    }

    pub(crate) fn at(mut self, block: impl Into<Option<u64>>) -> Self {
        self.block = block.into();
        self
    }

    pub(crate) fn of(mut self, ino: u64) -> Self {
        self.ino = Some(ino);
        self
    }

    pub(crate) fn corruption(code: &'static str, corruption: &Corruption) -> Self {
        let Corruption {
            block,
            what,
            expected,
            found,
        } = corruption;
        Self::new(code, format!("{what}: expected {expected}, found {found}")).at(*block)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code)?;
        match (self.ino, self.block) {
            (Some(ino), Some(block)) => write!(f, " (inode {ino}, block {block})")?,
            (Some(ino), None) => write!(f, " (inode {ino})")?,
            (None, Some(block)) => write!(f, " (block {block})")?,
            (None, None) => {}
        }
        if let Some(path) = &self.path {
            write!(f, " {:?}", String::from_utf8_lossy(path))?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Counts of what a check has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Valid superblock slots: 2, or 1 after a crash during a superblock write.
    pub superblocks: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// FIFOs, sockets, devices.
    pub other: u64,
    /// Directory entries.
    pub entries: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Values shared by attributes.
    pub shared_values: u64,
    /// Inodes that remain to be removed or truncated.
    pub orphans: u64,
    /// Extents.
    pub extents: u64,
    /// Data blocks (4 KiB) in extents, including unwritten ones.
    pub data_blocks: u64,
    /// Data blocks whose contents were verified.
    pub verified_blocks: u64,
    /// Index nodes.
    pub index_nodes: u64,
    /// Units (16 KiB) of values too large for a node.
    pub overflow_units: u64,
    /// Log records that a mount would replay.
    pub log_records: u64,
    /// Entries in those records.
    pub log_entries: u64,
    /// Free blocks according to the bitmaps.
    pub free_blocks: u64,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The problems; at most [`MAX_FINDINGS`], then one of [`codes::TOO_MANY`].
    pub findings: Vec<Finding>,
    /// What may be damage and harms nothing: a power cut can leave the same, and the next change of the
    /// volume mends it.
    pub notes: Vec<Finding>,
    /// Descriptions of what could not be checked because of the findings.
    pub unchecked: Vec<String>,
    /// Counts of what was read.
    pub stats: Stats,
}

impl Report {
    /// Whether there is no finding. There may be notes.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Collects a report during the check.
pub(crate) struct Ledger<'p> {
    report: Report,
    dropped: u64,
    /// The snapshot that the findings are about.
    snapshot: Option<String>,
    /// Its name, if it is frozen.
    frozen: Option<String>,
    progress: &'p mut dyn FnMut(Progress),
}

impl<'p> Ledger<'p> {
    pub(crate) fn new(progress: &'p mut dyn FnMut(Progress)) -> Self {
        Self {
            report: Report::default(),
            dropped: 0,
            snapshot: None,
            frozen: None,
            progress,
        }
    }

    pub(crate) fn add(&mut self, mut finding: Finding) {
        if let Some(snapshot) = &self.snapshot {
            finding.message = format!("{snapshot}: {}", finding.message);
        }
        finding.frozen = self.frozen.clone();
        if self.report.findings.len() < MAX_FINDINGS {
            self.report.findings.push(finding);
        } else {
            self.dropped += 1;
        }
    }

    pub(crate) fn note(&mut self, note: Finding) {
        self.report.notes.push(note);
    }

    /// The findings from now on are about a snapshot, or about a branch other than main.
    pub(crate) fn begin_root(&mut self, id: u32, name: &str, is_frozen: bool) {
        let what = if is_frozen { "snapshot" } else { "branch" };
        self.snapshot = Some(match name {
            "" => format!("{what} {id}"),
            name => format!("{what} {name:?}"),
        });
        self.frozen = is_frozen.then(|| name.to_owned());
    }

    /// The findings from now on are about the files again, or about the volume.
    pub(crate) fn end_root(&mut self) {
        self.snapshot = None;
        self.frozen = None;
    }

    pub(crate) fn findings(&self) -> &[Finding] {
        &self.report.findings
    }

    pub(crate) fn findings_mut(&mut self) -> &mut [Finding] {
        &mut self.report.findings
    }

    pub(crate) fn unchecked(&mut self, what: impl Into<String>) {
        self.report.unchecked.push(what.into());
    }

    pub(crate) fn stats(&mut self) -> &mut Stats {
        &mut self.report.stats
    }

    pub(crate) fn progress(&mut self, phase: &'static str, done: u64, total: u64) {
        (self.progress)(Progress { phase, done, total });
    }

    pub(crate) fn into_report(mut self) -> Report {
        if self.dropped > 0 {
            let message = format!("{} more findings are not shown", self.dropped);
            self.report
                .findings
                .push(Finding::new(codes::TOO_MANY, message));
        }
        self.report
    }
}

//! Comparison of two trees of files of one volume: what was added, removed, renamed and changed.
//!
//! Uses the index, the format, the data blocks, and the values of attributes in the index.
//! Only frozen trees can be compared, and nothing is written. [`Changes`] yields what differs in
//! the order of the index and in bounded memory, for streams; [`TreeDelta`] collects it by inode,
//! for merge plans; [`Report`] adds paths, for users. An inode number is the identity of a file:
//! numbers are never used again, so a file with the same number and other names was renamed. The
//! report adds one rule: another file of the same path and type, directories excepted, is a change
//! of it.

mod changes;
mod delta;
mod file;
mod moves;
mod patch;
mod paths;
mod replaced;
mod report;
mod same;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod tree;

pub use cairnfs_core::index::{Difference, Differences, OldOnly};
pub use changes::{Change, Changes};
pub use delta::{InodeDelta, Item, Name, TreeDelta, Values};
pub use patch::Patches;
pub use paths::{Paths, name_at};
pub use report::{AttributeChange, FileChange, FilePath, Report, Status, Summary, XattrChange};
pub use same::same_contents;
pub use text::{MOST_TEXT, is_text, unified};
pub use tree::{Blocks, Entry, FileTree};

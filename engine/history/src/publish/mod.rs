//! Publishing a branch: the plan that brings the changes of one tree into another.
//!
//! Uses the comparison of trees, the format and errors. Pure: it reads three frozen trees
//! (base, ours, theirs) and returns operations or conflicts; it changes nothing. `ours` is the tree
//! that receives, `theirs` the one that is published, `base` the state from which both came. The
//! rules are a table in docs/internals/roots.md. A restore of paths is the same with a tree that has
//! not changed: theirs is what the restore makes of it.
//!
//! Invariants:
//! - A plan has operations or conflicts, never both.
//! - With the roles of the sides exchanged, the conflicts are the same and so is the result.
//! - Cost and memory grow with the number of changes of both sides, not with the size of the trees.

mod decided;
mod merged;
mod outcome;
mod plan;
#[cfg(test)]
mod tests;
mod trees;
mod twins;

pub use outcome::{Attribute, Conflict, ConflictKind, Operation, Plan, Side};
pub use plan::plan;
pub use trees::{FrozenTrees, Trees, Version};

//! All that a comparison has found.

use super::conditions::Conditions;
use super::figures::Row;
use super::measured::Run;
use super::system::System;
use super::task::Task;

/// A task that was not measured because a program is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The task's title.
    pub title: String,
    /// What is missing.
    pub why: String,
}

/// All results of a comparison.
pub struct Found {
    /// How it was measured.
    pub conditions: Conditions,
    /// The file systems.
    pub systems: Vec<System>,
    /// What was to be done.
    pub tasks: Vec<Task>,
    /// Tasks that were left out.
    pub missing: Vec<Missing>,
    /// All runs.
    pub runs: Vec<Run>,
    /// The combined figures of each task.
    pub rows: Vec<Vec<Row>>,
}

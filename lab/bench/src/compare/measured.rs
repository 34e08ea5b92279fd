//! One run of a task on a file system, with its figures.

use super::system::System;
use crate::report::Report;

/// One run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The round, from 0.
    pub round: usize,
    /// The file system.
    pub system: System,
    /// Index of the task.
    pub task: usize,
    /// The figures.
    pub report: Report,
}

//! What the commands that copy trees tell of a copy.

use std::process::ExitCode;

use cairnfs_daemon::failure::{AnyError, told};

use crate::output::{self, Progress};
use crate::tree::Summary;

/// Reports attributes that could not be set.
pub fn tell_lost(progress: &Progress, lost: u64) {
    if lost > 0 {
        progress.note(&format!(
            "{lost} extended attributes were not kept: the destination does not take them"
        ));
    }
}

/// Prints the summary of a copy: text on standard error; JSON on standard output, or on standard
/// error if standard output holds an archive.
pub fn finish(
    summary: &Summary,
    what: &str,
    quiet: bool,
    json: bool,
    stdout_taken: bool,
) -> Result<ExitCode, AnyError> {
    match (json, stdout_taken) {
        (true, true) => say!("{}", serde_json::to_string(summary)?),
        (true, false) if summary.failed > 0 => output::json(summary)?,
        (true, false) => told(output::json(summary))?,
        (false, _) if !quiet => say!("{what} {}", summary.text()),
        _ => {}
    }
    Ok(ExitCode::from(u8::from(summary.failed > 0)))
}

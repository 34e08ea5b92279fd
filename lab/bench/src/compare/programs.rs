//! Where the programs of CairnFS are that a comparison runs.

use std::path::PathBuf;

use crate::Result;

const CAIRNFS: &str = "cairnfs";

/// The programs of CairnFS.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The `cairnfs` program: the one beside this, else the one in `PATH`.
    pub cairnfs: PathBuf,
    /// This program.
    pub own: PathBuf,
}

impl Programs {
    /// Finds them.
    pub fn find() -> Result<Self> {
        let own = std::env::current_exe()?;
        let beside = own.with_file_name(CAIRNFS);
        let cairnfs = if beside.is_file() {
            beside
        } else {
            CAIRNFS.into()
        };
        Ok(Self { cairnfs, own })
    }

    /// Fails if there is no `cairnfs`.
    pub fn check(&self) -> Result<()> {
        if self.cairnfs.is_file() || is_in_path(CAIRNFS) {
            Ok(())
        } else {
            Err("cairnfs is missing: install it beside this program, or in PATH".into())
        }
    }
}

/// Whether a program is installed.
pub fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

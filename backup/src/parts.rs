//! The optional parts of this crate, which are its features.

/// An optional part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The feature that a build names to have it.
    pub feature: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Whether this program has it.
    pub is_in: bool,
}

/// All of them.
pub fn parts() -> [Part; 2] {
    [
        Part {
            feature: "cloud",
            about: "backups in s3://, gs:// and az://",
            is_in: cfg!(feature = "cloud"),
        },
        Part {
            feature: "encryption",
            about: "encrypted backups",
            is_in: cfg!(feature = "encryption"),
        },
    ]
}

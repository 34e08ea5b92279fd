//! The error for bytes of the kernel that are no message of the protocol.

/// A message that does not have the form of its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

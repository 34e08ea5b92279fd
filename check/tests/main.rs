//! The check on made images, the engine compared with the check, and the document of the format, in one
//! program: it links the library once.

#[path = "check/main.rs"]
mod check;
#[path = "engine/main.rs"]
mod engine;
mod format_document;

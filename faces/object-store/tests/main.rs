//! The object store, in one program: it links the library once.

mod killed;
mod rules;
mod suite;

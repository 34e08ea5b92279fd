//! Plans against an oracle that merges whole models, and each rule by itself.

mod oracle;
mod random;
mod rules;
mod support;
mod twins;

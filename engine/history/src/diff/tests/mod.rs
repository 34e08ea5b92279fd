//! Tests of comparisons: model trees written as index trees, and naive comparisons of the models.

pub mod compare;
pub mod model;
mod paths;
mod replaced;
mod report;
mod text;
pub mod volume;

//! Tests of the index as a whole, on a device and a space of their own.

mod damage;
mod model;
mod shape;
mod support;

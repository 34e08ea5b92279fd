//! Tests of the whole index, on a device in memory and a simple block allocator.

mod damage;
mod model;
mod shape;
mod support;

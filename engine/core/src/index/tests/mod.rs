//! Tests of the whole index, on a device in memory and a simple block allocator.

mod damage;
mod differences;
mod model;
mod parts;
mod shape;

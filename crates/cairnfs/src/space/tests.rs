//! Allocation, release and image against a plain set of blocks.

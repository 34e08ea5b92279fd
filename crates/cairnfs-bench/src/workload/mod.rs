//! What is done to a target: a module for each workload, each with `run(args, target)`.

pub mod fsmark;

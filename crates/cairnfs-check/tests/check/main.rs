//! The check on volumes made by hand: sound ones, and ones with exactly one damage, for which it
//! must find exactly that one. The engine has no part in it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests"
)]

mod clean;
mod device;
mod hostile;
mod image;
mod index;
mod links;
mod log;
mod objects;
mod plan;
mod space;

use image::{Image, codes};
use plan::Plan;

/// What is found in the base volume whose plan was damaged.
fn with_plan(damage: impl FnOnce(&mut Plan)) -> Vec<&'static str> {
    let mut plan = Plan::base();
    damage(&mut plan);
    codes(&plan.build())
}

/// What is found in the base volume whose image was damaged.
fn with_image(damage: impl FnOnce(&mut Image)) -> Vec<&'static str> {
    let mut image = Plan::base().build();
    damage(&mut image);
    codes(&image)
}

#[test]
fn each_kind_of_finding_has_a_test() {
    let tests = [
        include_str!("device.rs"),
        include_str!("hostile.rs"),
        include_str!("index.rs"),
        include_str!("links.rs"),
        include_str!("log.rs"),
        include_str!("objects.rs"),
        include_str!("space.rs"),
    ]
    .concat();
    let codes = include_str!("../../src/codes.rs");
    let quoted: Vec<_> = codes.split('"').skip(1).step_by(2).collect();
    assert!(quoted.len() > 40);
    for code in quoted {
        assert!(tests.contains(&format!("\"{code}\"")), "{code}");
    }
}

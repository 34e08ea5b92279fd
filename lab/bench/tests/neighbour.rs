//! The neighbour workload, with small settings.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails where it stands"
)]

use crate::common::{everywhere, files_in, kept_in, phases};

const SMALL: [&str; 5] = ["neighbour", "--files", "300", "--alone", "5"];

#[test]
fn neighbour_and_client_are_counted_alone_and_together() {
    for figures in everywhere(&SMALL) {
        let found = phases(&figures);
        let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
        let expected = [
            "neighbour alone",
            "create alone",
            "create beside neighbour",
            "neighbour beside create",
            "sync",
        ];
        assert_eq!(names, expected);
        assert!(found[0].1 > 0 && found[3].1 > 0, "{found:?}");
        assert_eq!((found[1].1, found[2].1), (300, 300));
        assert_eq!(
            figures["phases"][2]["seconds"],
            figures["phases"][3]["seconds"]
        );
        let rate = |phase: usize| figures["phases"][phase]["per_second"].as_f64().unwrap();
        let kept = figures["ratios"]["neighbour_beside_to_alone"].as_f64();
        // A number may lose its last bit in JSON.
        let error = kept.unwrap() / (rate(3) / rate(0)) - 1.0;
        assert!(error.abs() < 1e-12, "{kept:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let client = kept_in(dir.path(), &SMALL).join("t0");
    assert_eq!(files_in(&client.join("alone")).len(), 300);
    assert_eq!(files_in(&client.join("beside")).len(), 300);
}

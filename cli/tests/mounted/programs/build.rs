//! cargo: builds a crate, and rebuilds it only after a change.

use std::process::Command;

use crate::place::{Place, able, succeed};

#[test]
#[ignore = "deep: programs of others"]
fn cargo_builds_and_rebuilds_a_crate() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    if !able(&["cc"]) {
        return;
    }
    let place = Place::mounted("2G", "");
    let root = place.at("small");
    std::fs::create_dir_all(root.join("src")).unwrap();
    let manifest =
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    std::fs::write(root.join("Cargo.toml"), manifest).unwrap();
    let main = "mod sum;\nfn main() { println!(\"{}\", sum::sum(&[40, 2])); }\n";
    std::fs::write(root.join("src/main.rs"), main).unwrap();
    let sum = "pub fn sum(n: &[u32]) -> u32 { n.iter().sum() }\n";
    std::fs::write(root.join("src/sum.rs"), sum).unwrap();
    let build = |verb: &str| {
        let mut command = Command::new(&cargo);
        command
            .args([verb, "-q", "--offline", "-j2"])
            .current_dir(&root);
        command
            .env("CARGO_TARGET_DIR", root.join("target"))
            .env_remove("RUSTFLAGS");
        succeed(&mut command)
    };
    assert_eq!(build("run"), "42\n");
    let program = root.join("target/debug/small");
    let first = std::fs::metadata(&program).unwrap().modified().unwrap();
    assert_eq!(build("run"), "42\n");
    assert_eq!(
        std::fs::metadata(&program).unwrap().modified().unwrap(),
        first,
        "built anew"
    );
    std::fs::write(root.join("src/sum.rs"), sum.replace("sum()", "product()")).unwrap();
    assert_eq!(build("run"), "80\n");
    place.finish();
}

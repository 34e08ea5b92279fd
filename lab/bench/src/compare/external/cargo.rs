//! cargo: a build of a generated workspace without dependencies from outside, and the same again
//! when nothing changed.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::tree::{SEED, write_all};
use super::{External, Site, command};
use crate::Result;
use crate::phase::Meter;
use crate::random::Random;

/// The load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cargo {
    /// Number of crates in the workspace; the last is a program.
    pub crates: u64,
}

/// Modules of a crate, and functions of a module.
const MODULES: u64 = 4;
const FUNCTIONS: u64 = 12;

impl Cargo {
    /// Returns the sources, by path.
    fn sources(&self) -> Vec<(String, String)> {
        let members: Vec<_> = (0..self.crates).map(|n| format!("\"c{n}\"")).collect();
        let members = members.join(", ");
        let workspace = format!("[workspace]\nresolver = \"2\"\nmembers = [{members}]\n");
        let mut files = vec![("Cargo.toml".to_owned(), workspace)];
        for number in 0..self.crates {
            files.push((format!("c{number}/Cargo.toml"), manifest(number)));
            for module in 0..MODULES {
                let path = format!("c{number}/src/m{module}.rs");
                files.push((path, source(number, module)));
            }
            let program = number + 1 == self.crates;
            let name = if program { "main" } else { "lib" };
            files.push((format!("c{number}/src/{name}.rs"), top(number, program)));
        }
        files
    }
}

/// A crate uses the one with half its number, so that several can be built at a time.
fn used_by(number: u64) -> Option<u64> {
    (number > 0).then_some(number / 2)
}

fn manifest(number: u64) -> String {
    let package =
        format!("[package]\nname = \"c{number}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    match used_by(number) {
        Some(used) => format!("{package}[dependencies]\nc{used} = {{ path = \"../c{used}\" }}\n"),
        None => package,
    }
}

fn top(number: u64, program: bool) -> String {
    let modules: String = (0..MODULES).map(|m| format!("pub mod m{m};\n")).collect();
    let used = used_by(number).map_or_else(|| "n".to_owned(), |used| format!("c{used}::all(n)"));
    let calls: String = (0..MODULES)
        .map(|m| format!(" + m{m}::f0(n, \"m{m}\").len() as u64"))
        .collect();
    let main = if program {
        "fn main() { println!(\"{}\", all(7)); }\n"
    } else {
        ""
    };
    format!("{modules}pub fn all(n: u64) -> u64 {{ {used}{calls} }}\n{main}")
}

fn source(number: u64, module: u64) -> String {
    let mut random = Random::new(SEED, number * MODULES + module);
    let function = |n| {
        let (factor, modulus) = (random.any() | 1, 8 + random.below(56));
        format!(
            "pub fn f{n}(a: u64, name: &str) -> String {{\n    \
             let mut all: Vec<u64> = (0..a % {modulus}).map(|i| i.wrapping_mul({factor})).collect();\n    \
             all.sort_unstable_by(|x, y| y.cmp(x));\n    \
             let sum = all.iter().fold(0u64, |x, y| x.rotate_left(5) ^ y);\n    \
             format!(\"{{name}} {{sum}} {{all:?}}\")\n}}\n"
        )
    };
    (0..FUNCTIONS).map(function).collect()
}

/// Creates a command that builds in a directory, with the default settings of a user.
fn build(dir: &Path) -> Command {
    let mut cargo = command("cargo", ["build", "--quiet", "--offline"]);
    for (name, _) in std::env::vars_os() {
        let of_cargo = name.to_string_lossy().starts_with("CARGO_") && name != "CARGO_HOME";
        if of_cargo || name == "RUSTFLAGS" || name == "RUSTC_WRAPPER" {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(dir);
    cargo
}

impl External for Cargo {
    fn title(&self) -> String {
        format!("cargo build: {} crates", self.crates)
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("cargo", "builds")
    }

    fn measure(&self, site: &Site<'_>, meter: &mut Meter<'_>) -> Result<()> {
        // A build elsewhere reads the compiler and the standard library.
        let elsewhere = tempfile::tempdir_in(site.inputs.dir)?;
        write_all(elsewhere.path(), &Cargo { crates: 1 }.sources())?;
        site.run(&mut build(elsewhere.path()))?;
        let dir = site.path("workspace");
        write_all(&dir, &self.sources())?;
        meter.settle()?;
        site.timed_one(meter, "cargo build", 1, build(&dir))?;
        meter.sync_last("sync built", "cargo build synced")?;
        let program = dir.join(format!("target/debug/c{}", self.crates - 1));
        fs::metadata(&program).map_err(|e| format!("{}: {e}", program.display()))?;
        site.timed_one(meter, "cargo build, no change", 1, build(&dir))?;
        meter.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_names_each_crate_and_module() {
        let sources = Cargo { crates: 3 }.sources();
        let of = |path: &str| &sources.iter().find(|(p, _)| p == path).unwrap().1;
        assert!(of("Cargo.toml").contains("[\"c0\", \"c1\", \"c2\"]"));
        assert!(of("c2/Cargo.toml").contains("c1 = { path = \"../c1\" }"));
        assert!(!of("c0/Cargo.toml").contains("dependencies"));
        assert!(of("c2/src/main.rs").contains("c1::all(n)"));
        assert!(of("c1/src/lib.rs").contains("pub mod m3;"));
        assert_eq!(of("c1/src/m3.rs").matches("pub fn").count(), 12);
        assert_ne!(of("c1/src/m3.rs"), of("c2/src/m3.rs"));
        assert_eq!(sources, Cargo { crates: 3 }.sources());
    }
}

//! npm: `npm ci` of generated packages, each an archive beside the project, without a network.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

use super::tree::{SEED, append, text, words};
use super::{External, Site, command};
use crate::Result;
use crate::phase::Meter;
use crate::random::Random;
use crate::target::at;

/// The load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Npm {
    /// Number of files of all packages together.
    pub files: u64,
}

/// Files of a package.
const FILES: u64 = 25;

/// Bytes of a file, at most.
const SIZE: u64 = 6000;

impl Npm {
    fn packages(&self) -> u64 {
        self.files.div_ceil(FILES)
    }

    /// Returns `package.json` and `package-lock.json`.
    fn manifests(&self) -> (Value, Value) {
        let (mut used, mut locked) = (Map::new(), Map::new());
        for number in 0..self.packages() {
            let (name, archive) = (name(number), format!("file:packages/{number}.tar"));
            let place = format!("node_modules/{name}");
            locked.insert(place, json!({"version": "1.0.0", "resolved": archive}));
            used.insert(name, archive.into());
        }
        let project = json!({"name": "project", "version": "1.0.0", "dependencies": used});
        locked.insert(String::new(), project.clone());
        let lock = json!({
            "name": "project",
            "version": "1.0.0",
            "lockfileVersion": 3,
            "requires": true,
            "packages": locked,
        });
        (project, lock)
    }

    /// Writes the project and the archives of its packages.
    fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir(dir)?;
        fs::create_dir(dir.join("packages"))?;
        let (project, lock) = self.manifests();
        fs::write(dir.join("package.json"), project.to_string())?;
        fs::write(dir.join("package-lock.json"), lock.to_string())?;
        let words = words();
        (0..self.packages()).try_for_each(|number| {
            let path = dir.join(format!("packages/{number}.tar"));
            let archive = archive(&words, number).map_err(|e| at(path.display(), e))?;
            fs::write(&path, archive).map_err(|e| at(path.display(), e))
        })
    }
}

fn name(number: u64) -> String {
    format!("package-{number:04}")
}

fn archive(words: &[String], number: u64) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let package = json!({"name": name(number), "version": "1.0.0", "main": "lib/f1.js"});
    append(
        &mut archive,
        "package/package.json",
        Some(package.to_string().as_bytes()),
    )?;
    let mut random = Random::new(SEED, number);
    for file in 1..FILES {
        let size = random.below(SIZE);
        let text = format!(
            "/*\n{}*/\nmodule.exports = {file};\n",
            text(words, &mut random, size)
        );
        append(
            &mut archive,
            &format!("package/lib/f{file}.js"),
            Some(text.as_bytes()),
        )?;
    }
    archive.into_inner()
}

/// Creates a command that installs a project, with its cache beside the project.
fn install(dir: &Path) -> Command {
    let mut npm = command("npm", ["ci", "--silent", "--offline", "--ignore-scripts"]);
    npm.args(["--no-audit", "--no-fund", "--no-update-notifier"])
        .arg(format!("--cache={}.cache", dir.display()))
        .env("HOME", dir)
        .current_dir(dir);
    npm
}

impl External for Npm {
    fn title(&self) -> String {
        format!(
            "npm ci, offline: {} packages, {} files",
            self.packages(),
            self.packages() * FILES
        )
    }

    fn program(&self) -> (&'static str, &'static str) {
        ("npm", "files")
    }

    fn measure(&self, site: &Site<'_>, meter: &mut Meter<'_>) -> Result<()> {
        // An installation elsewhere reads the program.
        let elsewhere = tempfile::tempdir_in(site.inputs.dir)?;
        let small = elsewhere.path().join("project");
        Npm { files: FILES }.write(&small)?;
        site.run(&mut install(&small))?;
        let dir = site.path("project");
        self.write(&dir)?;
        meter.settle()?;
        site.timed_one(meter, "npm ci", self.packages() * FILES, install(&dir))?;
        meter.sync_last("sync installed", "npm ci synced")?;
        for number in 0..self.packages() {
            let last = dir.join(format!(
                "node_modules/{}/lib/f{}.js",
                name(number),
                FILES - 1
            ));
            fs::metadata(&last).map_err(|e| at(last.display(), e))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_names_each_package_and_its_archive() {
        let npm = Npm { files: 60 };
        assert_eq!(npm.title(), "npm ci, offline: 3 packages, 75 files");
        let (project, lock) = npm.manifests();
        assert_eq!(
            project["dependencies"]["package-0002"],
            "file:packages/2.tar"
        );
        let packages = lock["packages"].as_object().unwrap();
        assert_eq!(packages.len(), 4);
        assert_eq!(packages[""]["dependencies"], project["dependencies"]);
        let second = &packages["node_modules/package-0001"];
        assert_eq!(second["resolved"], "file:packages/1.tar");
    }

    #[test]
    fn archive_holds_the_files_of_a_package() {
        let bytes = archive(&words(), 3).unwrap();
        assert_eq!(bytes, archive(&words(), 3).unwrap());
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().unwrap().map(|entry| entry.unwrap());
        let names: Vec<_> = entries
            .map(|entry| entry.path().unwrap().display().to_string())
            .collect();
        assert_eq!(names.len() as u64, FILES);
        assert_eq!(names[0], "package/package.json");
        assert_eq!(names[24], "package/lib/f24.js");
    }
}

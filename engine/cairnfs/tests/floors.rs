//! The floors of the library: a module imports only from floors below its own.
//!
//! Reads the sources as text: comments, strings and test modules are left out, paths that begin
//! with `crate` or `super` are resolved, names that `lib.rs` re-exports lead to their module. The
//! table here and the one in docs/internals/layers.md must be the same.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "floors/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use source::{paths_from, without_tests};

/// A module's floor, and what it may use of its own floor.
const FLOORS: &[(&str, u8, &[&str])] = &[
    ("error", 0, &[]),
    ("sync", 0, &[]),
    ("prefetch", 0, &[]),
    ("hash", 0, &[]),
    ("clock", 0, &["hash"]),
    ("shard", 0, &["sync"]),
    ("group_commit", 0, &["sync"]),
    ("metrics", 0, &["sync"]),
    ("fault", 0, &[]),
    ("mechanism", 0, &[]),
    (
        "device",
        0,
        &["metrics", "fault", "error", "group_commit", "sync"],
    ),
    ("acl", 1, &[]),
    ("format", 1, &[]),
    ("types", 1, &["format::item"]),
    ("values", 1, &["format::xattr"]),
    ("space", 2, &[]),
    ("index", 2, &[]),
    ("journal", 2, &["space::BlockRun"]),
    ("data", 2, &[]),
    ("source", 2, &[]),
    ("refs", 2, &[]),
    ("inode", 3, &[]),
    ("txn", 4, &[]),
    ("diff", 5, &[]),
    ("publish", 5, &["diff"]),
    ("stream", 5, &["diff"]),
    ("fs", 5, &[]),
    ("history", 6, &[]),
    ("api", 7, &[]),
];

/// What of the library the offline check may use.
const CHECK_USES: [&str; 4] = ["device", "error", "format", "types"];

/// Most lines of a file.
const LINES: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust files below a directory, in order.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The module that a file of `src` is, as the names that lead to it.
fn module_of(src: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(src).unwrap().with_extension("");
    let mut names: Vec<String> = inside
        .iter()
        .map(|n| n.to_str().unwrap().to_owned())
        .collect();
    if names.last().is_some_and(|n| n == "mod" || n == "lib") {
        names.pop();
    }
    names
}

/// What `lib.rs` re-exports: name and module.
fn exports() -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join("crates/cairnfs/src/lib.rs")).unwrap();
    let mut names = BTreeMap::new();
    for (module, _, _) in FLOORS {
        for path in paths_from(&text, module) {
            if let Some(name) = path.get(1) {
                names.insert(name.clone(), (*module).to_owned());
            }
        }
    }
    names
}

/// What paths that begin at the crate's root reach: modules, not the names they are exported by.
fn through_exports(mut path: Vec<String>, exports: &BTreeMap<String, String>) -> Vec<String> {
    if let Some(module) = path.first().and_then(|name| exports.get(name)) {
        path.insert(0, module.clone());
    }
    path
}

/// Imports of a file, as paths from the crate's root, its own module's left out.
fn imports(module: &[String], text: &str, exports: &BTreeMap<String, String>) -> Vec<Vec<String>> {
    let all = paths_from_root(module, text).into_iter();
    all.map(|path| through_exports(path, exports))
        .filter(|path| path.first() != module.first())
        .collect()
}

/// All paths of a file that begin with `crate` or `super`, from the crate's root.
fn paths_from_root(module: &[String], text: &str) -> Vec<Vec<String>> {
    let code = without_tests(text);
    let mut found = paths_from(&code, "crate");
    for path in paths_from(&code, "super") {
        let ups = path.iter().take_while(|n| *n == "super").count();
        let mut from_root = module
            .get(..module.len().saturating_sub(ups))
            .unwrap_or_default()
            .to_vec();
        from_root.extend(path.into_iter().skip(ups));
        let mut with_crate = vec!["crate".to_owned()];
        with_crate.extend(from_root);
        found.push(with_crate);
    }
    let rest = |path: Vec<String>| path.into_iter().skip(1).collect();
    found.into_iter().map(rest).collect()
}

/// A file of the library as the names that lead to it, and the files that it uses. A file may name
/// the types of the modules it is in, so those uses do not count.
type Uses = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

fn uses_between_files(files: &BTreeMap<Vec<String>, String>) -> Uses {
    let file_of = |path: &[String]| {
        let prefixes = (1..=path.len()).rev().map(|len| path[..len].to_vec());
        prefixes.into_iter().find(|p| files.contains_key(p))
    };
    let used = |module: &Vec<String>, text: &String| {
        let paths = paths_from_root(module, text).into_iter();
        let files = paths.filter_map(|path| file_of(&path));
        let others = files.filter(|file| !module.starts_with(file));
        (module.clone(), others.collect())
    };
    files.iter().map(|(m, t)| used(m, t)).collect()
}

/// Files that use each other in a circle, if there are any: no file of it can be understood, or
/// tested, before the others.
fn circle(uses: &Uses) -> Vec<Vec<String>> {
    let mut left: Uses = uses.clone();
    loop {
        let ends = |used: &BTreeSet<Vec<String>>| !used.iter().any(|u| left.contains_key(u));
        let leaves: Vec<_> = left.iter().filter(|(_, used)| ends(used)).collect();
        let leaves: Vec<_> = leaves.into_iter().map(|(m, _)| m.clone()).collect();
        if leaves.is_empty() {
            return left.into_keys().collect();
        }
        left.retain(|module, _| !leaves.contains(module));
    }
}

/// The rule that an import breaks.
fn broken(module: &str, path: &[String]) -> Option<String> {
    let floor = |name: &str| FLOORS.iter().find(|(m, _, _)| *m == name);
    let Some((_, own, beside)) = floor(module) else {
        return Some("a module without a floor".into());
    };
    let to = path.first().map_or("", String::as_str);
    let Some((_, other, _)) = floor(to) else {
        return Some(format!("{to:?} is no module with a floor"));
    };
    let text = path.join("::");
    let declared = |b: &&str| text == **b || text.starts_with(&format!("{b}::"));
    if other < own || other == own && beside.iter().any(declared) {
        return None;
    }
    Some(format!("floor {own} uses floor {other}"))
}

#[test]
fn modules_import_from_floors_below() {
    let src = root().join("crates/cairnfs/src");
    let exports = exports();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in rust_files(&src) {
        let module = module_of(&src, &file);
        let Some(top) = module.first() else { continue };
        if module.iter().any(|n| n == "tests") {
            continue;
        }
        for path in imports(&module, &fs::read_to_string(&file).unwrap(), &exports) {
            seen += 1;
            if let Some(why) = broken(top, &path) {
                wrong.push(format!("{}: {}: {why}", file.display(), path.join("::")));
            }
        }
    }
    assert!(seen > 200, "only {seen} imports: were they not found?");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_do_not_import_in_circles() {
    let src = root().join("crates/cairnfs/src");
    let inside = |file: &Path| {
        let module = module_of(&src, file);
        let tests = module.iter().any(|n| n == "tests") || module.is_empty();
        (!tests).then(|| (module, fs::read_to_string(file).unwrap()))
    };
    let files = rust_files(&src);
    let files = files.iter().filter_map(|f| inside(f)).collect();
    let uses = uses_between_files(&files);
    let seen: usize = uses.values().map(BTreeSet::len).sum();
    assert!(seen > 300, "only {seen} uses: were they not found?");
    let circle = circle(&uses);
    assert!(circle.is_empty(), "in a circle, or using one: {circle:#?}");
}

/// The fields of a struct as they are written, each with its visibility; `None` if the text has no
/// such struct.
fn fields_of<'a>(text: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let (_, behind) = text.split_once(&format!("struct {name} {{\n"))?;
    let (fields, _) = behind.split_once("\n}")?;
    let lines = fields.lines().map(str::trim);
    Some(lines.filter(|line| !line.starts_with(['/', '#'])).collect())
}

/// Fields of a struct in `texts` that hold state themselves instead of an owner of `texts`, or whose
/// owner has a public field. `below` are types of lower layers.
fn loose_state<'a>(texts: &[&'a str], name: &str, below: &[&str]) -> Vec<&'a str> {
    let fields = |name: &str| texts.iter().find_map(|text| fields_of(text, name));
    let owned = |field: &&str| {
        let owner = field.split_once(": ").map_or("", |(_, ty)| ty);
        let owner = owner
            .trim_start_matches("Option<")
            .trim_start_matches("Arc<")
            .trim_end_matches([',', '>']);
        let private = |fields: Vec<&str>| !fields.iter().any(|f| f.starts_with("pub"));
        below.contains(&owner) || fields(owner).is_some_and(private)
    };
    let all = fields(name).unwrap();
    all.into_iter().filter(|field| !owned(field)).collect()
}

#[test]
fn file_system_is_composed_of_owners_with_private_state() {
    let files = rust_files(&root().join("crates/cairnfs/src/fs"));
    let texts: Vec<_> = files
        .iter()
        .map(|f| fs::read_to_string(f).unwrap())
        .collect();
    let texts: Vec<_> = texts.iter().map(String::as_str).collect();
    for whole in ["FileSystem", "Engine", "OpenRoot"] {
        let loose = loose_state(&texts, whole, &["Core", "ItemStore"]);
        assert!(loose.is_empty(), "state without an owner: {loose:#?}");
    }
}

#[test]
fn state_without_an_owner_is_found() {
    let whole =
        "pub struct Whole {\n    core: Core,\n    /// Doc.\n    a: A,\n    b: Option<B>,\n}\n";
    let owners = "struct A {\n    files: Mutex<()>,\n}\nstruct B {\n    x: u8,\n}\n";
    assert!(loose_state(&[whole, owners], "Whole", &["Core"]).is_empty());
    let open = owners.replace("    x", "    pub x");
    let loose = loose_state(&[whole, &open], "Whole", &["Core"]);
    assert_eq!(loose, ["b: Option<B>,"]);
    let state = whole.replace("a: A", "a: Mutex<()>");
    let loose = loose_state(&[&state, owners], "Whole", &["Core"]);
    assert_eq!(loose, ["a: Mutex<()>,"]);
}

#[test]
fn circles_of_files_are_found() {
    let file = |path: &str, text: &str| {
        let module = path.split("::").map(str::to_owned).collect::<Vec<_>>();
        (module, text.to_owned())
    };
    let of = |files: &[(Vec<String>, String)]| {
        circle(&uses_between_files(&files.iter().cloned().collect())).len()
    };
    let fine = [
        file("fs", "use self::read::Reader;"),
        file(
            "fs::read",
            "use crate::fs::FileSystem; use super::room::Room;",
        ),
        file("fs::room", "use crate::fs::FileSystem;"),
    ];
    assert_eq!(of(&fine), 0);
    let mut wrong = fine.clone();
    wrong[2].1 = "use crate::fs::read::{Reader, Other};".to_owned();
    assert_eq!(of(&wrong), 2);
}

#[test]
fn every_module_has_a_floor() {
    let text = fs::read_to_string(root().join("crates/cairnfs/src/lib.rs")).unwrap();
    let mut declared: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "))
        .map(|name| name.trim_end_matches(';'))
        .collect();
    let mut known: Vec<&str> = FLOORS.iter().map(|(m, _, _)| *m).collect();
    declared.sort_unstable();
    known.sort_unstable();
    assert_eq!(declared, known);
}

#[test]
fn the_document_has_the_same_table() {
    let text = fs::read_to_string(root().join("docs/internals/layers.md")).unwrap();
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("| Floor | Module |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let told: Vec<(String, String, String)> = rows
        .map(|row| {
            let cells: Vec<String> = row.split('|').map(|c| c.trim().replace('`', "")).collect();
            (cells[2].clone(), cells[1].clone(), cells[4].clone())
        })
        .collect();
    let known: Vec<(String, String, String)> = FLOORS
        .iter()
        .map(|(m, f, b)| ((*m).to_owned(), f.to_string(), b.join(", ")))
        .collect();
    assert_eq!(told, known);
}

/// The owners that the document names for a module: type and source.
fn owners(module: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("docs/internals/layers.md")).unwrap();
    let dir = format!("crates/cairnfs/src/{module}");
    let head = format!("| Owner | File in `{dir}` |");
    let rows = text.lines().skip_while(|line| !line.starts_with(&head));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let owner = |row: &str| {
        let cells: Vec<String> = row.split('|').map(|c| c.trim().replace('`', "")).collect();
        let source = fs::read_to_string(root().join(&dir).join(&cells[2])).unwrap();
        (cells[1].clone(), source)
    };
    rows.map(owner).collect()
}

#[test]
fn owners_in_the_document_have_private_fields() {
    for module in ["fs", "txn"] {
        let owners = owners(module);
        assert!(owners.len() > 5, "owners of {module} were not found");
        for (name, source) in owners {
            let fields = fields_of(&source, &name).unwrap_or_else(|| panic!("no {name}"));
            let reached = fields.iter().find(|field| field.starts_with("pub"));
            assert_eq!(reached, None, "a field of {name}");
        }
    }
}

#[test]
fn the_check_uses_the_format_and_not_the_engine() {
    let exports = exports();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for file in rust_files(&root().join("crates/cairnfs-check/src")) {
        let code = without_tests(&fs::read_to_string(&file).unwrap());
        for path in paths_from(&code, "cairnfs") {
            seen += 1;
            let path = through_exports(path.into_iter().skip(1).collect(), &exports);
            let allowed = path
                .first()
                .is_some_and(|m| CHECK_USES.contains(&m.as_str()));
            if !allowed {
                wrong.push(format!("{}: cairnfs::{}", file.display(), path.join("::")));
            }
        }
    }
    assert!(seen > 20, "only {seen} paths: were they not found?");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_are_short() {
    let long: Vec<String> = rust_files(&root().join("crates"))
        .into_iter()
        .filter_map(|file| {
            let lines = fs::read_to_string(&file).unwrap().lines().count();
            (lines > LINES).then(|| format!("{}: {lines} lines", file.display()))
        })
        .collect();
    assert!(long.is_empty(), "more than {LINES} lines: {long:#?}");
}

#[test]
fn forbidden_imports_are_found() {
    let exports = exports();
    let breaks = |module: &[&str], text: &str| {
        let module: Vec<String> = module.iter().map(|n| (*n).to_owned()).collect();
        imports(&module, text, &exports)
            .iter()
            .filter(|path| broken(&module[0], path).is_some())
            .count()
    };
    assert_eq!(breaks(&["journal"], "use crate::fs::FileSystem;"), 1);
    assert_eq!(
        breaks(
            &["journal"],
            "use crate::{error::Result, txn::{Core, Need}};"
        ),
        2
    );
    assert_eq!(
        breaks(&["space", "group"], "use super::super::index::Tree;"),
        1
    );
    assert_eq!(breaks(&["space", "group"], "use super::BlockRun;"), 0);
    assert_eq!(
        breaks(&["journal", "cil"], "use crate::space::BlockRun;"),
        0
    );
    assert_eq!(
        breaks(&["journal", "cil"], "use crate::space::{BlockRun, Space};"),
        1
    );
    assert_eq!(
        breaks(&["device"], "fn f() -> crate::Volume { loop {} }"),
        1
    );
    assert_eq!(breaks(&["device"], "fn f() -> crate::Error { loop {} }"), 0);
    let hidden = r#"
        // use crate::fs::FileSystem;
        /* crate::fs::FileSystem */
        const TEXT: &str = "crate::fs::FileSystem \" crate::fs::X";
        #[cfg(test)]
        mod tests { use crate::fs::FileSystem; fn f() { if true {} } }
        #[cfg(test)]
        mod more;
    "#;
    assert_eq!(breaks(&["format"], hidden), 0);
    let behind = format!("{hidden} use crate::fs::FileSystem;");
    assert_eq!(breaks(&["format"], &behind), 1);
}

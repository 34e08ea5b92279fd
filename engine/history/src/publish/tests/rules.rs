//! Each row of the table in docs/internals/roots.md.

use super::support::{Models, plain};
use crate::diff::tests::model::{Counters, Model, node};
use crate::publish::{ConflictKind, Side};
use cairnfs_disk::format::ROOT_INO;
use cairnfs_disk::format::item::{S_IFDIR, S_IFREG};

const DIR: u64 = 20;
const FILE: u64 = 21;
const OTHER: u64 = 22;
const EMPTY: u64 = 23;
const NEW: u64 = 30;

/// `dir/file`, `dir/other`, `empty/`.
fn base() -> Model {
    let mut model = Model::default();
    for (ino, mode, dir, name) in [
        (DIR, S_IFDIR | 0o755, ROOT_INO, "dir"),
        (FILE, S_IFREG | 0o644, DIR, "file"),
        (OTHER, S_IFREG | 0o644, DIR, "other"),
        (EMPTY, S_IFDIR | 0o755, ROOT_INO, "empty"),
    ] {
        add(&mut model, ino, mode, dir, name);
    }
    model.write(&mut Counters::default(), FILE, 0, &[1; 20_000]);
    model
}

fn add(model: &mut Model, ino: u64, mode: u32, dir: u64, name: &str) {
    model.nodes.insert(ino, node(mode, dir));
    model.link(dir, name.into(), ino);
}

fn write(model: &mut Model, ino: u64, offset: u64) {
    let mut counters = Counters {
        next_ino: 0,
        next_block: (1 << 20) + ino * 1000 + offset,
    };
    model.write(&mut counters, ino, offset, &[2; 100]);
}

fn remove(model: &mut Model, dir: u64, name: &str) {
    model.unlink(dir, name.as_bytes(), false);
}

fn rename(model: &mut Model, from: (u64, &str), to: (u64, &str)) {
    let (_, ino) = model.names.remove(&(from.0, from.1.into())).unwrap();
    model.link(to.0, to.1.into(), ino);
}

type Edit<'a> = &'a dyn Fn(&mut Model);

struct Case {
    base: Model,
    ours: Model,
    theirs: Model,
}

fn case(ours: Edit<'_>, theirs: Edit<'_>) -> Case {
    let base = base();
    let edited = |edit: Edit<'_>| {
        let mut model = base.clone();
        edit(&mut model);
        model
    };
    Case {
        ours: edited(ours),
        theirs: edited(theirs),
        base,
    }
}

impl Case {
    fn models(&self) -> Models<'_> {
        Models {
            base: &self.base,
            ours: &self.ours,
            theirs: &self.theirs,
        }
    }

    fn conflicts(&self) -> Vec<(String, ConflictKind)> {
        let plan = self.models().plan(&|_| None);
        assert!(plan.operations.is_empty() || plan.conflicts.is_empty());
        let found = plan.conflicts.into_iter();
        found
            .map(|c| (String::from_utf8(c.path).unwrap(), c.kind))
            .collect()
    }

    fn merged(&self) -> Model {
        let mut models = self.models();
        let plan = models.plan(&|_| None);
        assert_eq!(plan.conflicts, []);
        models.apply(&plan)
    }

    /// The result if one side is taken for all paths.
    fn taken(&self, side: Side) -> Model {
        let mut models = self.models();
        let plan = models.plan(&|_| Some(side));
        assert_eq!(plan.conflicts, []);
        models.apply(&plan)
    }

    fn conflict(&self, path: &str, kind: ConflictKind) {
        assert_eq!(self.conflicts(), [(path.to_owned(), kind)]);
        assert_eq!(plain(&self.taken(Side::Ours)), plain(&self.ours));
        assert_eq!(plain(&self.taken(Side::Theirs)), plain(&self.theirs));
    }
}

#[test]
fn edits_of_the_same_contents_conflict_even_in_different_ranges() {
    let case = case(&|m| write(m, FILE, 0), &|m| write(m, FILE, 8192));
    case.conflict("dir/file", ConflictKind::Contents);
}

#[test]
fn edit_of_one_side_copies_its_ranges() {
    let case = case(&|m| write(m, OTHER, 0), &|m| write(m, FILE, 8192));
    let merged = case.merged();
    assert_eq!(merged.nodes[&FILE], case.theirs.nodes[&FILE]);
    assert_eq!(
        merged.nodes[&OTHER].contents,
        case.ours.nodes[&OTHER].contents
    );
    let plan = case.models().plan(&|_| None);
    let written = 8192..12288;
    assert_eq!(
        plan.operations,
        [crate::publish::Operation::Contents {
            ino: FILE,
            ranges: vec![written],
            size: 20_000,
        }]
    );
}

#[test]
fn removal_of_an_edited_file_conflicts() {
    let case = case(&|m| write(m, FILE, 0), &|m| remove(m, DIR, "file"));
    case.conflict("dir/file", ConflictKind::Removed(Side::Theirs));
}

#[test]
fn removal_of_a_renamed_file_conflicts() {
    let case = case(&|m| remove(m, DIR, "file"), &|m| {
        rename(m, (DIR, "file"), (EMPTY, "moved"))
    });
    case.conflict("dir/file", ConflictKind::Removed(Side::Ours));
}

#[test]
fn replacement_of_a_removed_file_conflicts() {
    let case = case(&|m| remove(m, DIR, "file"), &|m| {
        remove(m, DIR, "file");
        add(m, NEW, S_IFREG | 0o644, DIR, "file");
    });
    case.conflict("dir/file", ConflictKind::Removed(Side::Ours));
}

#[test]
fn renames_to_different_names_conflict() {
    let case = case(&|m| rename(m, (DIR, "file"), (DIR, "a")), &|m| {
        rename(m, (DIR, "file"), (DIR, "b"))
    });
    let kind = ConflictKind::Renamed {
        ours: b"dir/a".to_vec(),
        theirs: b"dir/b".to_vec(),
    };
    case.conflict("dir/file", kind);
}

#[test]
fn renames_to_the_same_name_agree() {
    let to = |m: &mut Model| rename(m, (DIR, "file"), (EMPTY, "a"));
    let case = case(&to, &to);
    assert_eq!(plain(&case.merged()), plain(&case.ours));
}

#[test]
fn edit_of_a_renamed_file_follows_it() {
    let case = case(&|m| rename(m, (DIR, "file"), (EMPTY, "a")), &|m| {
        write(m, FILE, 0)
    });
    let merged = case.merged();
    assert_eq!(merged.names[&(EMPTY, b"a".to_vec())].1, FILE);
    assert_eq!(
        merged.nodes[&FILE].contents,
        case.theirs.nodes[&FILE].contents
    );
}

#[test]
fn different_files_under_one_name_conflict() {
    let case = case(&|m| add(m, NEW, S_IFREG | 0o644, DIR, "new"), &|m| {
        add(m, NEW + 1, S_IFREG | 0o600, DIR, "new")
    });
    case.conflict("dir/new", ConflictKind::NameTaken);
}

/// A directory `made` with files `same` and, of this side alone, its number.
fn made(m: &mut Model, ino: u64) {
    add(m, ino, S_IFDIR | 0o755, EMPTY, "made");
    add(m, ino + 1, S_IFREG | 0o644, ino, "same");
    m.write(&mut Counters::default(), ino + 1, 0, &[3; 9000]);
    m.nodes.get_mut(&(ino + 1)).unwrap().mtime = ino as i64;
    add(m, ino + 2, S_IFREG | 0o644, ino, &ino.to_string());
}

const TWIN: u64 = NEW + 10;

#[test]
fn directories_that_both_made_are_one() {
    let case = case(&|m| made(m, NEW), &|m| made(m, TWIN));
    let merged = case.merged();
    assert_eq!(merged.names[&(EMPTY, b"made".to_vec())].1, NEW);
    let names: Vec<_> = merged
        .names
        .range((NEW, Vec::new())..(NEW + 1, Vec::new()))
        .collect();
    let found: Vec<_> = names
        .iter()
        .map(|((_, n), (_, ino))| (&n[..], *ino))
        .collect();
    let expected = [(&b"30"[..], NEW + 2), (b"40", TWIN + 2), (b"same", NEW + 1)];
    assert_eq!(found, expected);
    // Times of files are ours, as everything else of them.
    assert_eq!(merged.nodes[&(NEW + 1)], case.ours.nodes[&(NEW + 1)]);
    assert!(!merged.nodes.contains_key(&TWIN) && !merged.nodes.contains_key(&(TWIN + 1)));
    let back = Case {
        base: case.base.clone(),
        ours: case.theirs.clone(),
        theirs: case.ours.clone(),
    };
    assert_eq!(back.merged().nodes.len(), merged.nodes.len());
}

#[test]
fn attributes_of_directories_that_both_made_merge() {
    let with = |ino: u64, name: &'static str, mtime: i64| {
        move |m: &mut Model| {
            made(m, ino);
            let node = m.nodes.get_mut(&ino).unwrap();
            node.xattrs.insert(name.into(), b"1".to_vec());
            node.mtime = mtime;
        }
    };
    let case = case(&with(NEW, "user.a", 50), &with(TWIN, "user.b", 60));
    let node = &case.merged().nodes[&NEW];
    assert_eq!((node.xattrs.len(), node.mtime), (2, 60));
    let mode = |ino: u64, mode: u32| {
        move |m: &mut Model| {
            made(m, ino);
            m.nodes.get_mut(&ino).unwrap().mode = S_IFDIR | mode;
        }
    };
    let case = self::case(&mode(NEW, 0o700), &mode(TWIN, 0o755));
    let kind = ConflictKind::Attribute("mode");
    assert_eq!(case.conflicts(), [("empty/made".to_owned(), kind)]);
    assert_eq!(case.taken(Side::Ours).nodes[&NEW].mode, S_IFDIR | 0o700);
    assert_eq!(case.taken(Side::Theirs).nodes[&NEW].mode, S_IFDIR | 0o755);
}

#[test]
fn conflict_in_a_directory_that_both_made_is_shown_there() {
    let differing = |ino: u64| {
        move |m: &mut Model| {
            made(m, ino);
            add(m, ino + 3, S_IFDIR | 0o755, ino, "deep");
            add(m, ino + 4, S_IFREG | 0o644, ino + 3, "f");
            m.write(&mut Counters::default(), ino + 4, 0, &[ino as u8; 9]);
        }
    };
    let case = case(&differing(NEW), &differing(TWIN));
    let kind = ConflictKind::NameTaken;
    assert_eq!(case.conflicts(), [("empty/made/deep/f".to_owned(), kind)]);
    let taken = case.taken(Side::Theirs);
    assert_eq!(taken.names[&(NEW + 3, b"f".to_vec())].1, TWIN + 4);
}

#[test]
fn file_replaced_by_equal_ones_is_one() {
    let replace = |ino: u64| {
        move |m: &mut Model| {
            remove(m, DIR, "file");
            add(m, ino, S_IFREG | 0o644, DIR, "file");
        }
    };
    let case = case(&replace(NEW), &replace(TWIN));
    assert_eq!(plain(&case.merged()), plain(&case.ours));
}

/// Equal files with several names are one if they have the same names.
#[test]
fn linked_files_that_both_made_need_the_same_names() {
    let linked = |ino: u64, names: &'static [&'static str]| {
        move |m: &mut Model| {
            add(m, ino, S_IFREG | 0o644, EMPTY, names[0]);
            for name in &names[1..] {
                m.link(EMPTY, name.as_bytes().to_vec(), ino);
            }
        }
    };
    let case = case(&linked(NEW, &["a", "b"]), &linked(TWIN, &["a", "b"]));
    assert_eq!(plain(&case.merged()), plain(&case.ours));
    for theirs in [&["a"][..], &["a", "c"], &["a", "b", "c"]] {
        let case = self::case(&linked(NEW, &["a", "b"]), &linked(TWIN, theirs));
        let (path, kind) = case.conflicts().remove(0);
        assert_eq!((path.as_str(), kind), ("empty/a", ConflictKind::NameTaken));
    }
}

#[test]
fn file_moved_into_a_directory_that_both_made_is_there() {
    let case = case(&|m| made(m, NEW), &|m| {
        made(m, TWIN);
        rename(m, (DIR, "file"), (TWIN, "moved"));
        rename(m, (ROOT_INO, "dir"), (TWIN, "dir"));
    });
    let merged = case.merged();
    assert_eq!(merged.names[&(NEW, b"moved".to_vec())].1, FILE);
    assert_eq!(merged.names[&(NEW, b"dir".to_vec())].1, DIR);
}

#[test]
fn circle_through_a_directory_that_both_made_conflicts() {
    let case = case(
        &|m| {
            made(m, NEW);
            rename(m, (ROOT_INO, "dir"), (NEW, "dir"));
        },
        &|m| {
            made(m, TWIN);
            rename(m, (ROOT_INO, "empty"), (DIR, "empty"));
        },
    );
    assert_eq!(case.conflicts(), [("dir".to_owned(), ConflictKind::Circle)]);
    case.taken(Side::Ours);
    case.taken(Side::Theirs);
}

#[test]
fn child_in_a_removed_directory_conflicts() {
    let case = case(&|m| add(m, NEW, S_IFREG | 0o644, EMPTY, "new"), &|m| {
        remove(m, ROOT_INO, "empty")
    });
    case.conflict("empty", ConflictKind::DirectoryRemoved(Side::Theirs));
    let back = self::case(&|m| remove(m, ROOT_INO, "empty"), &|m| {
        add(m, NEW, S_IFDIR | 0o755, EMPTY, "new");
        add(m, NEW + 1, S_IFREG | 0o644, NEW, "deep");
    });
    back.conflict("empty", ConflictKind::DirectoryRemoved(Side::Ours));
}

#[test]
fn moves_that_make_a_circle_conflict() {
    let case = case(&|m| rename(m, (ROOT_INO, "dir"), (EMPTY, "dir")), &|m| {
        rename(m, (ROOT_INO, "empty"), (DIR, "empty"))
    });
    case.conflict("dir", ConflictKind::Circle);
}

#[test]
fn hard_links_of_both_sides_add_up() {
    let case = case(&|m| m.link(EMPTY, b"one".to_vec(), FILE), &|m| {
        m.link(EMPTY, b"two".to_vec(), FILE)
    });
    assert_eq!(case.merged().names_of(FILE).len(), 3);
}

#[test]
fn last_names_removed_by_different_sides_conflict() {
    let mut case = case(&|_| {}, &|_| {});
    case.base.link(EMPTY, b"link".to_vec(), FILE);
    (case.ours, case.theirs) = (case.base.clone(), case.base.clone());
    remove(&mut case.ours, DIR, "file");
    remove(&mut case.theirs, EMPTY, "link");
    case.conflict("dir/file", ConflictKind::Nameless);
}

#[test]
fn attributes_merge_one_by_one() {
    let case = case(
        &|m| {
            let node = m.nodes.get_mut(&FILE).unwrap();
            (node.mode, node.mtime) = (S_IFREG | 0o600, 50);
            node.xattrs.insert(b"user.a".to_vec(), b"1".to_vec());
        },
        &|m| {
            let node = m.nodes.get_mut(&FILE).unwrap();
            (node.uid, node.mtime) = (7, 40);
            node.xattrs.insert(b"user.b".to_vec(), b"2".to_vec());
        },
    );
    let node = &case.merged().nodes[&FILE];
    assert_eq!((node.mode, node.uid, node.mtime), (S_IFREG | 0o600, 7, 50));
    assert_eq!(node.xattrs.len(), 2);
}

#[test]
fn one_attribute_set_by_both_sides_conflicts() {
    let mode =
        |mode: u32| move |m: &mut Model| m.nodes.get_mut(&DIR).unwrap().mode = S_IFDIR | mode;
    case(&mode(0o700), &mode(0o777)).conflict("dir", ConflictKind::Attribute("mode"));
    let xattr = |value: u8| {
        move |m: &mut Model| {
            let xattrs = &mut m.nodes.get_mut(&FILE).unwrap().xattrs;
            xattrs.insert(b"user.a".to_vec(), vec![value]);
        }
    };
    let kind = ConflictKind::Xattr(b"user.a".to_vec());
    case(&xattr(1), &xattr(2)).conflict("dir/file", kind);
}

/// A side is chosen for what is in conflict: everything else that the other side did stays.
#[test]
fn only_what_is_in_conflict_is_taken_from_a_side() {
    let mode = |m: &mut Model, mode: u32| m.nodes.get_mut(&FILE).unwrap().mode = S_IFREG | mode;
    let xattr = |m: &mut Model, name: &[u8], value: u8| {
        let xattrs = &mut m.nodes.get_mut(&FILE).unwrap().xattrs;
        xattrs.insert(name.to_vec(), vec![value]);
    };
    let case = case(
        &|m| {
            mode(m, 0o600);
            xattr(m, b"user.both", 1);
            xattr(m, b"user.ours", 1);
        },
        &|m| {
            mode(m, 0o640);
            xattr(m, b"user.both", 2);
            xattr(m, b"user.theirs", 2);
            write(m, FILE, 8192);
            m.nodes.get_mut(&FILE).unwrap().mtime = 77;
            rename(m, (DIR, "file"), (EMPTY, "moved"));
        },
    );
    for (side, bits, value) in [(Side::Ours, 0o600, 1), (Side::Theirs, 0o640, 2)] {
        let taken = case.taken(side);
        let (file, theirs) = (&taken.nodes[&FILE], &case.theirs.nodes[&FILE]);
        assert_eq!(file.mode & 0o7777, bits);
        assert_eq!(file.contents, theirs.contents);
        assert_eq!(file.mtime, 77);
        let expected = [
            (b"user.both".to_vec(), vec![value]),
            (b"user.ours".to_vec(), vec![1]),
            (b"user.theirs".to_vec(), vec![2]),
        ];
        assert_eq!(file.xattrs, expected.into());
        assert_eq!(taken.names_of(FILE), [(EMPTY, b"moved".to_vec())].into());
    }
}

/// A side is chosen by path, and what no choice covers stays a conflict.
#[test]
fn sides_are_chosen_by_path() {
    let case = case(
        &|m| {
            write(m, FILE, 0);
            write(m, OTHER, 0);
        },
        &|m| {
            write(m, FILE, 8192);
            remove(m, DIR, "other");
        },
    );
    let choose = |path: &[u8]| match path {
        b"dir/file" => Some(Side::Theirs),
        b"dir/other" => Some(Side::Ours),
        _ => None,
    };
    let mut models = case.models();
    let plan = models.plan(&choose);
    assert_eq!(plan.conflicts, []);
    let merged = models.apply(&plan);
    assert_eq!(
        merged.nodes[&FILE].contents,
        case.theirs.nodes[&FILE].contents
    );
    assert_eq!(
        merged.nodes[&OTHER].contents,
        case.ours.nodes[&OTHER].contents
    );
    let one = models.plan(&|path| (path == b"dir/file").then_some(Side::Ours));
    assert_eq!(one.operations, []);
    assert_eq!(one.conflicts.len(), 1);
    assert_eq!(one.conflicts[0].path, b"dir/other");
}

//! File handles (`name_to_handle_at`, `open_by_handle_at`), as used by NFS servers, overlayfs and
//! backup programs: one sequence of operations on a mount and on ext4, with equal results
//! required.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::modes::Ext4;
use crate::place::{Place, able, arg, may_drop_caches, succeed, umount};
use crate::writes::compile;

/// A handle as the helper program prints it: type and bytes.
type Handle = (String, String);

struct Handles {
    program: PathBuf,
    mount: PathBuf,
    taken: BTreeMap<String, Handle>,
    output: Vec<String>,
}

impl Handles {
    fn new(program: &Path, mount: &Path) -> Self {
        Self {
            program: program.to_path_buf(),
            mount: mount.to_path_buf(),
            taken: BTreeMap::new(),
            output: Vec::new(),
        }
    }

    fn take(&mut self, name: &str, connectable: bool) {
        let mut command = Command::new(&self.program);
        command.args(["get", arg(&self.mount.join(name))]);
        let output = succeed(command.args(connectable.then_some("connectable")));
        let (kind, bytes) = output.trim().split_once(' ').expect(&output);
        let name = format!("{name}{}", if connectable { ", connectable" } else { "" });
        let handle = (kind.to_owned(), bytes.to_owned());
        self.taken.insert(name, handle);
    }

    fn open(&self, (kind, bytes): &Handle) -> String {
        let mount = arg(&self.mount);
        let output = succeed(Command::new(&self.program).args(["open", mount, kind, bytes]));
        output.trim().to_owned()
    }

    /// Opens every handle, and records the result under the name of this step.
    fn tell(&mut self, when: &str) {
        for (name, handle) in &self.taken {
            let output = self.open(handle);
            self.output.push(format!("{when}: {name}: {output}"));
        }
    }
}

/// Makes the kernel evict unused inodes of all file systems, while [`may_drop_caches`]. What was used
/// since the last time is only marked at first, names as well as inodes.
pub fn drop_caches() {
    rustix::fs::sync();
    for _ in 0..4 {
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    }
}

/// Runs the sequence of operations. Returns the result of every handle after each step.
fn history(program: &Path, dir: &Path, remount: &mut dyn FnMut()) -> Vec<String> {
    let at = |name: &str| dir.join(name);
    fs::create_dir_all(at("d/e/f")).unwrap();
    fs::create_dir_all(at("d/gone/below")).unwrap();
    let files = [
        "d/file",
        "d/moving",
        "d/e/f/deep",
        "removed",
        "replaced",
        "open",
        "linked",
    ];
    for name in files {
        fs::write(at(name), name).unwrap();
    }
    fs::hard_link(at("linked"), at("d/second")).unwrap();
    symlink("d/file", at("symlink")).unwrap();
    succeed(Command::new("mkfifo").arg(at("fifo")));
    let mut handles = Handles::new(program, dir);
    let others = [".", "d", "d/e/f", "d/gone/below", "symlink", "fifo"];
    let all = files.iter().chain(&others);
    all.for_each(|name| handles.take(name, false));
    for name in ["d/e/f/deep", "d/file"] {
        handles.take(name, true);
    }
    handles.tell("at once");
    drop_caches();
    handles.tell("after the kernel forgot");
    remount();
    handles.tell("mounted again");
    remount();
    fs::rename(at("d/e"), at("moved")).unwrap();
    fs::rename(at("d/file"), at("d/renamed")).unwrap();
    fs::rename(at("d/moving"), at("moved-file")).unwrap();
    fs::rename(at("d/second"), at("replaced")).unwrap();
    fs::remove_file(at("linked")).unwrap();
    fs::remove_file(at("removed")).unwrap();
    fs::remove_dir_all(at("d/gone")).unwrap();
    let open = File::open(at("open")).unwrap();
    fs::remove_file(at("open")).unwrap();
    handles.tell("changed");
    drop_caches();
    handles.tell("changed, after the kernel forgot");
    drop(open);
    fs::write(at("removed"), "another").unwrap();
    remount();
    handles.tell("changed, mounted again");
    handles.output
}

fn on_ext4(program: &Path, place: &Place) -> Vec<String> {
    let ext4 = Ext4::mounted(place);
    fs::remove_dir(ext4.0.join("lost+found")).unwrap();
    let mut remount = || {
        umount(&ext4.0);
        let image = place.beside("ext4");
        succeed(Command::new("mount").args(["-o", "loop", arg(&image), arg(&ext4.0)]));
    };
    history(program, &ext4.0, &mut remount)
}

/// Contract: posix.handles
#[test]
fn file_handles_resolve_as_on_ext4() {
    if !able(&["cc", "mkfs.ext4", "mount", "umount", "mkfifo"]) {
        return;
    }
    let _caches = may_drop_caches();
    let mut place = Place::mounted("64M", "");
    let program = compile(&place, "handle.c");
    let expected = on_ext4(&program, &place);
    let dir = place.dir();
    let found = history(&program, &dir, &mut || place.remount(""));
    assert_eq!(found, expected);
    let led = |output: &&String| !output.contains("ESTALE");
    assert!(found.iter().filter(led).count() > 50, "{found:#?}");
    place.finish();
}

/// A forged handle of a mount: the inode number in two halves, and the generation.
fn forged(ino: u64, generation: u32) -> Handle {
    let words = [(ino >> 32) as u32, ino as u32, generation];
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    let hex = bytes.map(|byte| format!("{byte:02x}")).collect();
    ("129".to_owned(), hex)
}

/// The generation in a handle of a mount.
fn generation_of((_, hex): &Handle) -> u32 {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    u32::from_ne_bytes([16, 18, 20, 22].map(byte))
}

/// Contract: posix.handles
#[test]
fn handle_is_stale_when_number_is_assigned_again_after_kill() {
    if !able(&["cc"]) {
        return;
    }
    let mut place = Place::mounted("64M", "durability=0");
    let mut handles = Handles::new(&compile(&place, "handle.c"), &place.dir());
    fs::write(place.at("old"), "old").unwrap();
    handles.take("old", false);
    place.kill();
    place.mount("durability=0");
    assert!(!place.at("old").exists());
    fs::write(place.at("new"), "new").unwrap();
    handles.take("new", false);
    let number = |name: &str| handles.taken[name].1[..16].to_owned();
    assert_eq!(number("old"), number("new"), "the case to be tested");
    assert_eq!(handles.open(&handles.taken["old"]), "ESTALE");
    let new = "100644 links 1 holds new";
    assert_eq!(handles.open(&handles.taken["new"]), new);
    place.remount("");
    assert_eq!(handles.open(&handles.taken["new"]), new);
    assert_eq!(handles.open(&handles.taken["old"]), "ESTALE");
    place.finish();
}

/// Contract: posix.handles
#[test]
fn forged_file_handles_are_stale() {
    if !able(&["cc"]) {
        return;
    }
    let _caches = may_drop_caches();
    let place = Place::mounted("64M", "");
    let mut handles = Handles::new(&compile(&place, "handle.c"), &place.dir());
    fs::write(place.at("file"), "here").unwrap();
    let ino = rustix::fs::stat(place.at("file")).unwrap().st_ino;
    handles.take("file", false);
    let generation = generation_of(&handles.taken["file"]);
    drop_caches();
    let real = handles.open(&forged(ino, generation));
    assert_eq!(real, "100644 links 1 holds here");
    assert_eq!(handles.open(&forged(ino, generation ^ 1)), "ESTALE");
    for never in [0, 2, 3, 4, 15, ino + 1, ino + 100_000, 1 << 63, u64::MAX] {
        assert_eq!(handles.open(&forged(never, 0)), "ESTALE", "{never}");
    }
    // An inode number is usable although its handle was requested before it was allocated.
    for n in 0..100 {
        fs::write(place.at(n.to_string()), n.to_string()).unwrap();
    }
    for n in 0..100 {
        assert_eq!(
            fs::read_to_string(place.at(n.to_string())).unwrap(),
            n.to_string()
        );
    }
    assert_eq!(handles.open(&forged(1, 0)), "40755 links 2 at");
    place.finish();
}

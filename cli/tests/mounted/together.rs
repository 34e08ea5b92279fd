//! Several branches and snapshots of one volume, mounted at once by one daemon: what each mount has for
//! itself, how mounts are handed over, and how they end.
//!
//! Contract: durable.unmount

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cairnfs_fuse::mountinfo;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::branches::forked;
use crate::life::private;
use crate::place::{Place, able, arg, nap, no_fork_is_tried, said, succeed};

pub fn is_mounted(dir: &Path) -> bool {
    mountinfo::at(dir).unwrap().is_some()
}

/// The process id of the daemon behind a directory.
pub fn daemon_of(place: &Place, dir: &str) -> u64 {
    let report = place.ok(&["stats", "--json", dir]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    report["pid"].as_u64().unwrap()
}

/// The directory of the daemon's socket, if nothing else is in its place.
pub fn sockets(place: &Place) -> PathBuf {
    place.runtime().join("cairnfs")
}

/// The socket of the volume's daemon.
pub fn socket_of(place: &Place) -> PathBuf {
    let file = place.volume().metadata().unwrap();
    sockets(place).join(format!("{:x}-{:x}", file.dev(), file.ino()))
}

/// A volume with `main` mounted on `m`, the branch `trial` on `t`, the snapshot `monday` on `s`.
fn three(options: &str) -> Place {
    let mut place = forked();
    place.mount(options);
    fs::write(place.at("f"), b"tuesday").unwrap();
    place.mount_beside("branch=trial", "t");
    place.mount_beside("branch=monday", "s");
    place
}

/// Unmounts all three and checks the volume.
fn finish_three(mut place: Place) {
    place.umount_beside("s");
    place.umount_beside("t");
    place.umount_beside("m");
    place.wait_for_end();
    place.check();
}

#[test]
fn branches_mounted_at_once_have_own_files_and_one_daemon() {
    if !able(&[]) {
        return;
    }
    let place = three("");
    let [t, s] = ["t", "s"].map(|name| place.beside(name));
    assert_eq!(fs::read(place.at("f")).unwrap(), b"tuesday");
    assert_eq!(fs::read(t.join("f")).unwrap(), b"monday");
    assert_eq!(fs::read(s.join("f")).unwrap(), b"monday");
    fs::write(t.join("f"), b"tried").unwrap();
    fs::write(t.join("new"), b"only here").unwrap();
    assert_eq!(fs::read(place.at("f")).unwrap(), b"tuesday");
    assert!(!place.at("new").exists() && !s.join("new").exists());
    let refused = fs::write(s.join("f"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));

    let mounts = [place.dir(), t.clone(), s.clone()];
    let mut devices = mounts.each_ref().map(|dir| dir.metadata().unwrap().dev());
    devices.sort_unstable();
    assert!(devices[0] < devices[1] && devices[1] < devices[2]);
    for dir in &mounts {
        let stat = rustix::fs::statvfs(dir).unwrap();
        assert!(stat.f_blocks > 0 && stat.f_bavail > 0);
        place.ok(&["sync", arg(dir)]);
    }
    let daemon = daemon_of(&place, "m");
    assert_eq!(daemon, place.daemon_pid() as u64);
    assert_eq!(
        [daemon_of(&place, "t"), daemon_of(&place, "s")],
        [daemon; 2]
    );
    let sources = ["m", "t", "s"].map(|name| {
        let entry = mountinfo::at(&place.beside(name)).unwrap().unwrap();
        arg(&entry.source).rsplit_once('/').unwrap().1.to_owned()
    });
    assert_eq!(sources, ["v.cairn", "v.cairn@trial", "v.cairn@monday"]);
    finish_three(place);
}

#[test]
fn locks_names_and_links_stay_in_their_mount() {
    if !able(&[]) {
        return;
    }
    let place = three("");
    let [here, there] = [place.at("f"), place.beside("t/f")];
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let open = |path: &Path| File::options().read(true).write(true).open(path).unwrap();
    let held = [&here, &there].map(|path| {
        let file = open(path);
        flock(&file, exclusive).unwrap();
        // Of the same file it is refused.
        assert_eq!(flock(open(path), exclusive), Err(Errno::WOULDBLOCK));
        rustix::fs::fcntl_lock(&file, exclusive).unwrap();
        file
    });
    drop(held);
    let across = [
        fs::rename(&here, place.beside("t/g")),
        fs::hard_link(&there, place.at("g")),
    ];
    for refused in across {
        let errno = refused.unwrap_err().raw_os_error();
        assert_eq!(errno, Some(Errno::XDEV.raw_os_error()));
    }
    finish_three(place);
}

/// Contract: durable.unmount
#[test]
fn umount_of_one_leaves_others_and_its_data_is_durable() {
    if !able(&[]) {
        return;
    }
    let mut place = three("durability=0");
    fs::write(place.beside("t/f"), b"tried").unwrap();
    fs::write(place.beside("t/large"), vec![7; 8 << 20]).unwrap();
    place.umount_beside("t");
    assert!(!is_mounted(&place.beside("t")) && is_mounted(&place.beside("s")));
    fs::write(place.at("still"), b"here").unwrap();
    place.kill();
    place.mount("branch=trial");
    assert_eq!(fs::read(place.at("f")).unwrap(), b"tried");
    assert!(fs::read(place.at("large")).unwrap() == vec![7; 8 << 20]);
    place.umount();
    place.check();
}

#[test]
fn unmounted_branch_can_be_mounted_again_beside_others() {
    if !able(&[]) {
        return;
    }
    let place = three("");
    for n in 0..5 {
        fs::write(place.beside("t/f"), format!("round {n}")).unwrap();
        // Does not wait for the daemon, so the next mount has to.
        let flags = rustix::mount::UnmountFlags::DETACH;
        rustix::mount::unmount(place.beside("t"), flags).unwrap();
        place.mount_beside("branch=trial", "t");
        let read = fs::read_to_string(place.beside("t/f")).unwrap();
        assert_eq!(read, format!("round {n}"));
    }
    finish_three(place);
}

/// Bytes in use of the volume behind a mount.
fn used(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).unwrap();
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

/// Waits until less than so much of the volume is in use.
pub fn wait_for_space(dir: &Path, most: u64) {
    let until = Instant::now() + Duration::from_secs(20);
    while used(dir) >= most {
        assert!(Instant::now() < until, "{} bytes are in use", used(dir));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Aborts the connection of a mount, which is detached then.
fn abort(place: &Place, dir: &Path) {
    let connections = place.beside("connections");
    fs::create_dir(&connections).unwrap();
    succeed(Command::new("mount").args(["-t", "fusectl", "none", arg(&connections)]));
    let device = rustix::fs::minor(dir.metadata().unwrap().dev());
    fs::write(connections.join(format!("{device}/abort")), "1").unwrap();
    detach(&connections);
    fs::remove_dir(connections).unwrap();
    // The daemon may have done so.
    let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
}

fn detach(dir: &Path) {
    rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// What the kernel has looked up through a mount is not in use any more when that has ended, however it
/// has, and whatever other mounts there are.
#[test]
fn ended_mount_keeps_no_file_in_use() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("128M", "");
    place.ok(&["branch", "m", "fork"]);
    let (other, fork) = (place.dir(), place.beside("t"));
    let umount = |_: &Path| place.umount_beside("t");
    let abort = |dir: &Path| abort(&place, dir);
    let ends: [&dyn Fn(&Path); 3] = [&umount, &|dir| detach(dir), &abort];
    for (n, end) in ends.into_iter().enumerate() {
        place.mount_beside("branch=fork", "t");
        fs::write(fork.join("large"), vec![7; 30 << 20]).unwrap();
        place.ok(&["sync", "t"]);
        end(&fork);
        place.mount_beside("branch=fork", "t");
        fs::remove_file(fork.join("large")).unwrap();
        place.ok(&["sync", "t"]);
        wait_for_space(&other, 5 << 20);
        // Without a name, and open when the mount is detached.
        let open = File::create(fork.join("open")).unwrap();
        (&open).write_all(&vec![n as u8; 30 << 20]).unwrap();
        open.sync_all().unwrap();
        fs::remove_file(fork.join("open")).unwrap();
        detach(&fork);
        assert!(used(&other) > 30 << 20);
        drop(open);
        wait_for_space(&other, 5 << 20);
    }
    place.umount();
    let report = place.ok(&["check", "v.cairn"]);
    assert!(report.contains("; 0 files, "), "{report}");
    place.check();
}

#[test]
fn last_umount_closes_the_volume() {
    if !able(&[]) {
        return;
    }
    let mut place = three("durability=0");
    // The first mount is not special.
    fs::write(place.at("kept"), b"x").unwrap();
    place.umount_beside("m");
    place.umount_beside("t");
    place.fails(&["mkdir", "v.cairn:/new"], 1, &["in use"]);
    place.mount_beside("branch=trial", "t");
    let dirs = ["s", "t"].map(|name| place.beside(name));
    let says = [arg(&dirs[0]), arg(&dirs[1]), "unmount each"];
    place.fails(&["mkdir", "v.cairn:/new"], 1, &says);
    place.umount_beside("t");
    assert!(socket_of(&place).exists());
    place.umount_beside("s");
    place.ok(&["mkdir", "v.cairn:/new"]);
    assert!(!socket_of(&place).exists());
    place.wait_for_end();
    place.check();
    place.mount("");
    assert!(place.at("kept").exists() && place.at("new").exists());
    place.finish();
}

#[test]
fn branch_is_mounted_once_and_snapshot_several_times() {
    if !able(&[]) {
        return;
    }
    let mut place = three("");
    fs::create_dir(place.beside("other")).unwrap();
    for (branch, at) in [("main", "m"), ("trial", "t")] {
        let at = place.beside(at);
        let says = [&format!("mounted on {}", arg(&at)), "cairnfs umount"];
        for options in [format!("branch={branch}"), format!("ro,branch={branch}")] {
            let args = ["mount", "-o", &options, "v.cairn", "other"];
            place.fails(&args, 32, &says.map(|text: &str| text));
        }
    }
    place.fails(
        &["mount", "v.cairn", "other"],
        32,
        &["mounted on", "umount"],
    );
    assert!(!is_mounted(&place.beside("other")));
    place.mount_beside("branch=monday", "s2");
    assert_eq!(fs::read(place.beside("s2/f")).unwrap(), b"monday");
    let unknown = ["mount", "-o", "branch=nothing", "v.cairn", "other"];
    place.fails(&unknown, 32, &["nothing", "main", "monday", "trial"]);
    assert!(!is_mounted(&place.beside("other")));
    place.fails(&["umount", "v.cairn"], 32, &["name one", arg(&place.dir())]);
    for name in ["s2", "s", "t"] {
        place.umount_beside(name);
    }
    // One is left, so the volume names it.
    place.ok(&["umount", "v.cairn"]);
    place.wait_for_end();
    place.check();
}

#[test]
fn options_of_the_whole_volume_are_those_of_the_first_mount() {
    if !able(&[]) {
        return;
    }
    let mut place = forked();
    place.mount("durability=0,cache=64M");
    fs::create_dir(place.beside("t")).unwrap();
    for (given, named) in [
        ("cache=128M", "cache"),
        ("durability=1", "durability"),
        ("write=back", "write"),
        ("nodiscard", "discard"),
        ("ro,norecovery", "norecovery"),
    ] {
        let options = format!("branch=trial,{given}");
        let args = ["mount", "-o", &options, "v.cairn", "t"];
        place.fails(&args, 32, &[named, "all of its mounts"]);
        assert!(!is_mounted(&place.beside("t")));
    }
    // The same, or none, and those of one mount.
    place.mount_beside(
        "ro,branch=trial,cache=64M,threads=1,btime,noexec,grace=0",
        "t",
    );
    let entry = mountinfo::at(&place.beside("t")).unwrap().unwrap();
    assert!(entry.has("ro") && entry.has("noexec"));
    let refused = fs::write(place.beside("t/f"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    fs::write(place.at("f"), b"x").unwrap();
    place.umount_beside("t");
    place.umount();

    place.mount("ro");
    let args = ["mount", "-o", "branch=trial", "v.cairn", "t"];
    place.fails(&args, 32, &["read-only", "-o ro", "unmount"]);
    place.mount_beside("ro,branch=trial", "t");
    place.mount_beside("branch=monday", "s");
    assert_eq!(daemon_of(&place, "t"), place.daemon_pid() as u64);
    finish_three(place);
}

#[test]
fn commands_started_at_once_share_one_daemon() {
    if !able(&[]) {
        return;
    }
    for _ in 0..3 {
        let place = forked();
        let dirs = [
            ("m", "main"),
            ("t", "trial"),
            ("s", "monday"),
            ("r", "monday"),
        ];
        let commands = dirs.map(|(dir, branch)| {
            fs::create_dir_all(place.beside(dir)).unwrap();
            let options = format!("branch={branch}");
            let mut command = place.command(&["mount", "-o", &options, "v.cairn", dir]);
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            command.spawn().unwrap()
        });
        for command in commands {
            let out = command.wait_with_output().unwrap();
            assert!(out.status.success(), "{}", said(&out));
        }
        let daemons = dirs.map(|(dir, _)| daemon_of(&place, dir));
        assert_eq!(daemons, [daemons[0]; 4]);
        for (dir, _) in dirs {
            place.umount_beside(dir);
        }
        place.check();
    }
}

#[test]
fn killed_daemon_is_replaced_for_all_its_mounts() {
    if !able(&[]) {
        return;
    }
    let mut place = three("durability=0");
    fs::write(place.beside("t/f"), b"tried").unwrap();
    place.ok(&["sync", "t"]);
    place.kill();
    assert!(socket_of(&place).exists());
    for name in ["m", "t", "s"] {
        assert!(is_mounted(&place.beside(name)));
    }
    place.mount("");
    place.mount_beside("branch=trial", "t");
    assert_eq!(fs::read(place.beside("t/f")).unwrap(), b"tried");
    assert_eq!(daemon_of(&place, "t"), place.daemon_pid() as u64);
    // The dead mount on the third is only taken away.
    place.umount_beside("s");
    place.mount_beside("branch=monday", "s");
    finish_three(place);
}

#[test]
fn signal_ends_all_mounts() {
    if !able(&[]) {
        return;
    }
    for busy in [false, true] {
        let mut place = three("durability=0,grace=0");
        fs::write(place.beside("t/f"), b"tried").unwrap();
        fs::write(place.at("f"), b"here").unwrap();
        let open = busy.then(|| File::open(place.beside("s/f")).unwrap());
        place.signal(Signal::TERM);
        if busy {
            // The snapshot's grace is the default, which a second signal ends.
            while is_mounted(&place.beside("s")) {
                nap(20);
            }
            place.signal(Signal::TERM);
        }
        place.wait_for_end();
        drop(open);
        for name in ["m", "t", "s"] {
            assert!(!is_mounted(&place.beside(name)), "{name}");
        }
        place.check();
        place.mount("branch=trial");
        assert_eq!(fs::read(place.at("f")).unwrap(), b"tried");
        place.remount("");
        assert_eq!(fs::read(place.at("f")).unwrap(), b"here");
        place.finish();
    }
}

#[test]
fn lazy_and_forced_umount_of_one_leave_others() {
    if !able(&[]) {
        return;
    }
    let place = three("durability=0");
    let mut open = File::create(place.beside("t/open")).unwrap();
    place.ok(&["umount", "--lazy", "t"]);
    open.write_all(b"still served").unwrap();
    // The tree is in use, though it is mounted nowhere.
    let again = ["mount", "-o", "branch=trial", "v.cairn", "t"];
    place.fails(
        &again,
        32,
        &[arg(&place.beside("t")), "files that are open"],
    );
    drop(open);
    place.mount_beside("branch=trial", "t");
    assert_eq!(fs::read(place.beside("t/open")).unwrap(), b"still served");
    place.ok(&["umount", "--force", "s"]);
    place.mount_beside("branch=monday", "s");
    fs::write(place.at("f"), b"x").unwrap();
    finish_three(place);
}

/// Branches that are mounted at once.
const MANY: usize = 100;

#[test]
fn hundred_branches_are_mounted_at_once() {
    if !able(&[]) {
        return;
    }
    let mut place = Place::mounted("256M", "");
    fs::write(place.at("f"), b"main").unwrap();
    place.umount();
    let names: Vec<_> = (0..MANY).map(|n| format!("b{n}")).collect();
    for name in &names {
        place.ok(&["branch", "v.cairn", name]);
    }
    place.mount("transport=dev");
    for name in &names {
        place.mount_beside(&format!("branch={name},transport=dev"), name);
        fs::write(place.beside(name).join("f"), name).unwrap();
    }
    for name in &names {
        let read = fs::read_to_string(place.beside(name).join("f")).unwrap();
        assert_eq!(&read, name);
    }
    // Each mount has a session and two event loops. A thread that has just been started has the name
    // of the one that started it, so the least of many counts is the right one.
    let counts = (0..100).map(|_| threads(place.daemon_pid()));
    assert_eq!(counts.min(), Some(3 * (1 + MANY)));
    assert_eq!(fs::read(place.at("f")).unwrap(), b"main");
    for name in &names {
        place.umount_beside(name);
    }
    place.finish();
}

/// Number of threads that a process has as long as its mounts last.
fn threads(pid: i32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let lasting =
        |name: &String| name.starts_with("cairnfs-session") || name.starts_with("cairnfs-fuse");
    names.filter(lasting).count()
}

#[test]
fn ordinary_user_mounts_several_branches() {
    if !able(&["unshare", "setpriv", "fusermount3", "flock"]) {
        return;
    }
    let _copies = no_fork_is_tried();
    let place = Place::new("16M");
    fs::set_permissions(place.beside(""), Permissions::from_mode(0o777)).unwrap();
    place.copy_command();
    // The device may be accessible to root only, so the namespace has another one.
    let script = "
        mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        mkdir tmp; chmod 1777 tmp; export TMPDIR=$PWD/tmp; unset XDG_RUNTIME_DIR
        cat > user.sh <<'END'
        set -eux
        ./cairnfs mount --create --size 64M own.cairn own
        echo monday > own/f; ./cairnfs umount own
        ./cairnfs branch own.cairn trial; ./cairnfs branch own.cairn other
        mkdir t o
        ./cairnfs mount own.cairn own; ./cairnfs mount -o branch=trial own.cairn t
        echo tried > t/f; grep monday own/f
        grep \" $PWD/t .*nosuid,nodev,noatime.* fuse.cairnfs $PWD/own.cairn@trial .*user_id=65534\" \\
            /proc/self/mountinfo
        pid() { ./cairnfs stats --json $1 | grep -o '\"pid\": *[0-9]*'; }
        test \"$(pid own)\" = \"$(pid t)\"
        ! ./cairnfs mount own.cairn o; ! ./cairnfs mount -o branch=none own.cairn o
        ./cairnfs umount own; grep tried t/f
        ./cairnfs mount -o branch=other own.cairn o
END
        setpriv --reuid=65534 --regid=65534 --clear-groups bash user.sh
        # Root ends a mount of the user, and is told that it is durable.
        ./cairnfs umount o 2>said; test ! -s said; ./cairnfs umount t
        flock -n own.cairn true; ./cairnfs check --data own.cairn";
    private(&place, script);
}

#[test]
fn remounting_in_a_loop_while_others_end_never_fails() {
    if !able(&[]) {
        return;
    }
    let place = forked();
    fs::create_dir(place.beside("t")).unwrap();
    // Each mount may find a daemon that is about to end.
    thread::scope(|scope| {
        for (branch, dir) in [("main", "m"), ("trial", "t")] {
            let place = &place;
            scope.spawn(move || {
                for n in 0..10 {
                    let options = format!("branch={branch}");
                    place.ok(&["mount", "-o", &options, "v.cairn", dir]);
                    let file = place.beside(dir).join("round");
                    fs::write(&file, format!("{branch} {n}")).unwrap();
                    place.umount_beside(dir);
                }
            });
        }
    });
    place.check();
    for (branch, text) in [("main", "main 9"), ("trial", "trial 9")] {
        let options = format!("ro,branch={branch}");
        place.ok(&["mount", "-o", &options, "v.cairn", "m"]);
        assert_eq!(fs::read_to_string(place.at("round")).unwrap(), text);
        place.umount_beside("m");
    }
}

//! Trees copied by tar, cp and rsync: the copy equals the original.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use cairnfs_tier::size;

use crate::modes::Ext4;
use crate::place::{Place, able, arg, pattern, shell, succeed};

/// Checksums of all files below `dir`, and type, mode, owner and link target of every entry,
/// sorted by name.
fn sums(dir: &Path) -> String {
    let script = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
                  find . -printf '%y %m %U %G %l %p\\n' | LC_ALL=C sort";
    shell(dir, script)
}

#[test]
fn tar_round_trip_of_many_files() {
    if !able(&["tar"]) {
        return;
    }
    let mut place = Place::mounted("4G", "");
    let source = place.beside("source");
    let dirs = size(7, 101);
    for dir in 0..dirs {
        let sub = source.join(format!("{}/dir{dir}", dir % 10));
        std::fs::create_dir_all(&sub).unwrap();
        for file in 0..200 {
            let len = [0, 13, 700, 2500, 4096, 9000][(dir * 7 + file) % 6];
            let bytes = pattern((dir * 1000 + file) as u64, len);
            std::fs::write(sub.join(format!("file {file}")), bytes).unwrap();
        }
        std::os::unix::fs::symlink(format!("dir{dir}"), source.join(format!("link{dir}"))).unwrap();
    }
    std::fs::write(
        source.join("large"),
        pattern(1, size(10_000_000, 50_000_000)),
    )
    .unwrap();
    let expected = sums(&source);
    assert!(
        expected
            .lines()
            .filter(|line| line.starts_with("f "))
            .count()
            > dirs * 198
    );
    let script = format!(
        "mkdir in; tar -C {} -cf - . | tar -C in -xpf -",
        arg(&source)
    );
    place.sh(&script);
    assert!(sums(&place.at("in")) == expected, "what tar wrote differs");
    place.remount("");
    assert!(sums(&place.at("in")) == expected, "differs after a remount");
    let out = place.beside("out");
    std::fs::create_dir(&out).unwrap();
    place.sh(&format!("tar -C in -cf - . | tar -C {} -xpf -", arg(&out)));
    assert!(sums(&out) == expected, "what tar read differs");
    place.sh("cp -a in copy && diff -r --no-dereference in copy && rm -rf in");
    assert!(sums(&place.at("copy")) == expected, "what cp wrote differs");
    place.finish();
}

/// Everything that rsync -aHAX copies, and a hole. Times are old, because rsync does not set
/// times that are within a second of the current time.
const OF_ALL_KINDS: &str = "
    mkdir -p dir/sub with/default; seq 100000 > dir/file; ln dir/file dir/sub/linked; ln dir/file linked
    ln -s dir/file symlink; ln -s nowhere dangling; mkfifo fifo; mknod null c 1 3; mknod block b 7 9
    for name in $(seq 300); do echo $name > dir/sub/$name; done
    chown 1001:2000 dir/sub/1 symlink -h; chmod 4751 dir/sub/2; chmod 1777 dir; chmod 000 dir/sub/3
    setfattr -n user.text -v value dir/file; setfattr -n user.binary -v 0x00ff00 dir
    setfattr -n trusted.text -v value dir/sub/4; setfattr -n user.long -v $(head -c 2000 /dev/zero | tr '\\0' x) dir/sub/5
    setfacl -m u:1001:rw,g:2000:r,m::rw dir/sub/6; setfacl -d -m u:1001:rwx with/default
    truncate -s 10M sparse; echo end >> sparse; find . -print0 | xargs -0 touch -h -d '2020-01-02 03:04:05.678901234 UTC'
    touch -d '1969-12-31 23:59:58.5 UTC' dir/sub/7; touch -d '2020-01-02 03:04:05.678901234 UTC' dir/sub
    touch -h -d '2040-01-01 00:00:00.123456789 UTC' symlink";

/// The output of [`sums`], with times, link counts, ACLs and attributes.
fn all_of(dir: &Path) -> String {
    let script =
        "LC_ALL=C; find . -printf '%P %T@\n' | sort; find . ! -type d -printf '%P %n %s\n' | sort
                  find . -print0 | sort -z | xargs -0 getfattr -hdm-
                  find . ! -type l -print0 | sort -z | xargs -0 getfacl -pn";
    sums(dir) + &shell(dir, script)
}

/// The lines that are in only one of two texts.
fn differing<'a>(one: &'a str, other: &'a str) -> Vec<&'a str> {
    let [one, other] = [one, other].map(|text| text.lines().collect::<BTreeSet<_>>());
    one.symmetric_difference(&other).copied().collect()
}

#[test]
fn rsync_copies_all_metadata_and_holes() {
    if !able(&[
        "rsync",
        "setfacl",
        "getfacl",
        "setfattr",
        "getfattr",
        "mkfs.ext4",
    ]) {
        return;
    }
    let mut place = Place::mounted("256M", "dev,suid");
    let ext4 = Ext4::mounted(&place);
    let reference = ext4.0.join("tree");
    std::fs::create_dir(&reference).unwrap();
    shell(&reference, OF_ALL_KINDS);
    let copy = |from: &Path, to: &Path| {
        let (from, to) = (format!("{}/", arg(&from)), format!("{}/", arg(&to)));
        succeed(Command::new("rsync").args(["-aHAXS", "--delete", &from, &to]));
        let again = ["-aHAXSni", "--checksum", "--delete", &from, &to];
        assert_eq!(
            succeed(Command::new("rsync").args(again)),
            "",
            "from {from} to {to}"
        );
    };
    let (first, second) = (place.at("first"), place.at("second"));
    copy(&reference, &first);
    copy(&first, &second);
    place.remount("dev,suid");
    let expected = all_of(&reference);
    for dir in [&first, &second] {
        assert_eq!(differing(&all_of(dir), &expected), [""; 0], "{dir:?}");
    }
    place.sh("rm -r second/dir/sub/1*; echo more >> second/dir/file; mv second/linked second/on");
    copy(&first, &second);
    let back = ext4.0.join("back");
    copy(&second, &back);
    assert_eq!(differing(&all_of(&back), &expected), [""; 0]);
    let blocks = place.at("second/sparse").metadata().unwrap().blocks();
    assert!(blocks < 64, "the hole takes {blocks} blocks");
    drop(ext4);
    place.finish();
}

//! Backup programs: the repository and the data are on one mount.

use crate::place::{Place, able};

/// Makes a tree with large, many, equal, linked and sparse files.
const SOURCE: &str = "
    mkdir -p source/many; head -c 20000000 /dev/urandom > source/large; cp source/large source/equal
    for name in $(seq 500); do seq $name > source/many/$name; done
    ln source/large source/linked; ln -s large source/symlink; truncate -s 30M source/sparse
    setfattr -n user.text -v value source/many/1; chmod 640 source/many/2; touch -d 2001-02-03 source/many/3";

/// Changes between two backups.
const CHANGE: &str = "echo more >> source/large; rm -r source/many/1*; seq 300 > source/many/new";

/// Compares a restored tree.
const SAME: &str = "
    cd restored; diff -r --no-dereference . ../source
    for tree in . ../source; do
        (cd $tree; find . -printf '%P %y %m %U %G %n %l %T@\\n' | LC_ALL=C sort; getfattr -Rhd .)
    done | awk '{ seen[$0]++ } END { for (line in seen) if (seen[line] % 2) { print line; exit 1 } }'
    cd ..; rm -r restored";

/// Runs two backups, restores both, removes the first one and checks; repeats the restore after a
/// remount.
fn backups(programs: &[&str], settings: &str, first: &str, second: &str, again: &str) {
    if !able(programs) {
        return;
    }
    let mut place = Place::mounted("1G", "");
    place.sh(&format!(
        "{SOURCE}\n{settings}\n{first}\n({SAME})\n{CHANGE}\n{second}\n({SAME})"
    ));
    place.remount("");
    place.sh(&format!("{settings}\n{again}\n({SAME})"));
    place.finish();
}

#[test]
#[ignore = "deep: programs of others"]
fn borg_restores_its_backups() {
    backups(
        &["borg", "setfattr", "getfattr"],
        "export HOME=$PWD BORG_BASE_DIR=$PWD/base BORG_REPO=$PWD/repository BORG_RELOCATED_REPO_ACCESS_IS_OK=yes \
         BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
         restore() { mkdir restored; (cd restored; borg extract ::$1; shopt -s dotglob; mv source/* .; \
                     touch -r ../source .; chmod --reference=../source .; rmdir source; touch -r ../source .); }",
        "borg init -e none; borg create --sparse ::first source; borg check --verify-data; restore first",
        "borg create ::second source; borg check; restore second",
        "borg delete ::first; borg compact; borg check --verify-data; restore second",
    );
}

#[test]
#[ignore = "deep: programs of others"]
fn restic_restores_its_backups() {
    backups(
        &["restic", "setfattr", "getfattr"],
        "export HOME=$PWD RESTIC_REPOSITORY=$PWD/repository RESTIC_PASSWORD=word RESTIC_CACHE_DIR=$PWD/cache
         restore() { rm -rf target; restic restore -q latest --target target; mv target/source restored; }",
        "restic init -q; restic backup -q source; restic check -q --read-data; restore",
        "restic backup -q source; restic check -q --read-data; restore",
        "restic forget -q --keep-last 1 --prune; restic check -q --read-data; restore",
    );
}

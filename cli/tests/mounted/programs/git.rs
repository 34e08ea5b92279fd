//! git: repositories, clones, work trees, packing, and fsck.

use crate::place::{Place, able};

/// Identity and settings of git that do not depend on the user who runs the test.
pub const GIT: &str = "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b \
                   GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; ";

#[test]
fn git_creates_clones_and_packs_repository() {
    if !able(&["git"]) {
        return;
    }
    let mut place = Place::mounted("1G", "");
    let make = "git init -q -b main own; cd own
        for c in 1 2 3 4 5 6 7 8 9 10; do
            mkdir -p d$c/e
            for f in $(seq 40); do seq $((c * f)) > d$c/e/f$f; done
            seq $c 2000 > changing
            git add -A; git commit -qm \"commit $c\"
        done
        git mv d1 moved; git rm -rq d2; git commit -qm moves
        git fsck --strict
        cd ..; git clone -q --no-local own clone; git clone -q own hardlinked
        git -C own worktree add -q ../tree HEAD~3; git -C tree checkout -q -b side
        git -C tree rm -rq d5; git -C tree commit -qm side; git -C own worktree list | grep -q side
        git -C own gc -q --prune=now; git -C own fsck --strict --full
        git -C clone fsck --strict --full
        git -C own worktree remove ../tree; git -C own branch -qD side; test ! -e tree
        diff -r --exclude .git own clone; diff -r --exclude .git own hardlinked";
    place.sh(&format!("{GIT}{make}"));
    place.remount("");
    let again = "for r in own clone hardlinked; do
            git -C $r fsck --strict --full; test -z \"$(git -C $r status --porcelain)\"
            test $(git -C $r rev-list --count HEAD) = 11
        done";
    place.sh(&format!("{GIT}{again}"));
    place.finish();
}

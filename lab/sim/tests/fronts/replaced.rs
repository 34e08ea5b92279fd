//! The mounted tree is replaced, and the power fails at every write: all named roots are as before or
//! as after the call, and what the mount was asked before and after is kept.
//!
//! Contract: atomic.request

use std::path::PathBuf;
use std::sync::Arc;

use cairnfs::fs::FileSystem;
use cairnfs::{PublishOptions, Volume};
use cairnfs_sim::whole::{Mounted, check};
use cairnfs_tier::size;

use super::front::Front;

/// A mount of the main branch, made at the first step.
#[derive(Default)]
struct Mount(Option<Front>);

impl Mounted for Mount {
    fn run(&mut self, fs: &Arc<FileSystem>, text: &str) -> Result<bool, String> {
        let front = self.0.get_or_insert_with(|| Front::new(fs));
        let volume = Volume::from(Arc::clone(fs));
        let words: Vec<&str> = text.split_whitespace().collect();
        let done = match words.as_slice() {
            ["publish", branch] => {
                let options = PublishOptions {
                    theirs: vec!["/".into()],
                    ..PublishOptions::default()
                };
                front.replacing(|| volume.publish(branch, &options).map(drop))
            }
            ["restore", from, paths @ ..] => {
                let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
                front.replacing(|| volume.restore(from, "main", &paths).map(drop))
            }
            _ => {
                let done = front.run(text, None);
                done.map_err(|refusal| format!("{text}: {refusal:?}"))?;
                return Ok(matches!(words.first(), Some(&("fsync" | "sync"))));
            }
        };
        done.map(|()| true).map_err(|e| format!("{text}: {e}"))
    }
}

fn tried(text: &str) {
    check::<Mount>(text, size(150, 400)).unwrap();
}

#[test]
fn fork_is_published_onto_the_unchanged_mount() {
    tried(
        "mounted create a; mounted write a 0 9000; mounted create c; mounted sync; branch b; on b;
         write a 4096 4096; sync; create d; sync; mounted publish b; mounted write a 0 4096;
         mounted fsync a; mounted write d 0 5000; mounted fsync d; mounted unlink c; mounted sync",
    );
}

#[test]
fn fork_is_merged_with_what_the_mount_was_asked_meanwhile() {
    tried(
        "mounted mkdir e; mounted create e/a; mounted write e/a 0 9000; mounted create c;
         mounted sync; branch b; on b; write e/a 4096 4096; sync; mounted rename c e/c;
         mounted write e/c 0 100; mounted sync; mounted publish b; mounted rename e/a a;
         mounted sync; mounted write e/c 100 5000; mounted fsync e/c",
    );
}

#[test]
fn mounted_branch_is_restored_and_goes_on() {
    tried(
        "mounted create a; mounted write a 0 9000; mounted setfacl a 1; mounted sync; snapshot s;
         mounted write a 4096 4096; mounted setxattr a x 5000; mounted fsync a; mounted restore s;
         mounted write a 0 4096; mounted fsync a; mounted restore s; mounted unlink a; mounted sync",
    );
}

#[test]
fn paths_of_the_mounted_branch_are_restored() {
    tried(
        "mounted mkdir d; mounted create d/a; mounted write d/a 0 9000; mounted create b;
         mounted sync; snapshot s; mounted unlink d/a; mounted sync; mounted write b 0 4096;
         mounted fsync b; mounted restore s d/a; mounted write d/a 0 4096; mounted fsync d/a;
         mounted restore s /d b; mounted chmod b 0o600; mounted fsync b",
    );
}

/// What the mount is asked between forks and drops of others.
#[test]
fn others_are_forked_and_dropped_beside_the_mount() {
    tried(
        "mounted create a; mounted write a 0 9000; mounted sync; branch b; mounted write a 0 4096;
         mounted fsync a; snapshot s; on b; write a 4096 4096; sync; branch c; mounted create n;
         mounted sync; drop s; mounted publish b; mounted rename n a; mounted sync; drop c;
         mounted write a 0 100; mounted fsync a",
    );
}

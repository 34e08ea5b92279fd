//! Merges in parts by several threads, beside threads that change the volume.

use cairnfs::fs::{Options, Pressure};
use cairnfs::{Result, Volume};

use super::seen::{assert_sound, options, tree};
use super::snapshots::{Numbers, fresh, open_with, volume};

const THREADS: u64 = 3;

/// Many changes of the files of one thread.
fn change(volume: &Volume, thread: u64, numbers: &mut Numbers) -> Result<()> {
    let dir = format!("{thread}-{}", numbers.below(4));
    if !volume.exists(&dir)? {
        volume.create_dir(&dir)?;
    }
    for _ in 0..400 {
        let path = format!("{dir}/{}", numbers.below(500));
        match numbers.below(8) {
            0 if volume.exists(&path)? => volume.remove_file(&path)?,
            1 if volume.exists(&path)? => {
                volume.rename(&path, format!("{dir}/{}", numbers.below(500)))?;
            }
            2 => volume.write(&path, vec![thread as u8; numbers.below(20_000) as usize])?,
            3 | 4 => {
                volume.write(&path, b"small")?;
                let value = [numbers.below(6) as u8; 700];
                volume.set_xattr(&path, "user.value", value)?;
            }
            _ => volume.write(&path, [])?,
        }
    }
    Ok(())
}

#[test]
fn merges_in_parts_beside_writers_keep_everything() {
    let device = fresh(512 << 20);
    let options = Options {
        pressure: Some(Pressure::parts(i64::MAX, 100)),
        ..options(true)
    };
    let mut fs = open_with(&device, &options);
    for round in 0..6 {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let volume = volume(&fs);
                let mut numbers = Numbers(round * THREADS + thread + 1);
                scope.spawn(move || {
                    for _ in 0..5 {
                        change(&volume, thread, &mut numbers).unwrap();
                    }
                });
            }
            for _ in 0..3 {
                fs.merge().unwrap();
            }
        });
        let seen = tree(&fs);
        fs.sync().unwrap();
        fs.merge().unwrap();
        assert!(tree(&fs) == seen, "round {round}: a merge changed files");
        fs.close().unwrap();
        assert_sound(&*device, "after a round");
        fs = open_with(&device, &options);
        assert!(tree(&fs) == seen, "round {round}: an opening changed files");
    }
}

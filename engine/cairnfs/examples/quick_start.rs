//! Makes a volume, writes, renames and syncs files, and reads them after it was opened again.
//!
//! Prints:
//!
//! ```text
//! /2024       dir
//! /2024/march dir
//! /2024/todo  17 bytes: water the plants
//! /journal    15 bytes: planted a tree
//! ```

use std::error::Error;
use std::io::Write;

use cairnfs::Volume;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("notes.cairn");

    // 64 MiB, as a sparse file.
    let volume = Volume::create(&image, 64 << 20)?;
    volume.create_dir_all("2024/march")?;
    volume.write("2024/march/todo", "water the plants\n")?;

    let mut journal = volume.create_file("journal")?;
    writeln!(journal, "planted a tree")?;
    // From here on a power cut takes away neither the line nor the name of the file.
    journal.sync_all()?;

    volume.rename("2024/march/todo", "2024/todo")?;
    // Makes everything durable. Dropping the volume does the same, but cannot report a failure.
    volume.close()?;

    let volume = Volume::open(&image)?;
    let mut lines = Vec::new();
    for entry in volume.walk("/")? {
        let entry = entry?;
        let (path, metadata) = (entry.path(), entry.metadata()?);
        let what = if metadata.is_dir() {
            "dir\n".to_owned()
        } else {
            let text = volume.read_to_string(&path)?;
            format!("{} bytes: {text}", metadata.len())
        };
        lines.push(format!("{:11} {what}", path.display()));
    }
    lines.sort();
    print!("{}", lines.concat());
    Ok(())
}

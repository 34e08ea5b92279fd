//! The table of mount options in `docs/mounting.md` is the one that the options make.

use std::path::Path;

use cairnfs_fuse::options::document;

/// The lines around the table.
const BEGIN: &str = "<!-- made from the table of mount options: begin -->\n";
const END: &str = "<!-- end -->\n";

/// Compares them; with `UPDATE_OPTIONS=1` in the environment, writes the table instead.
#[test]
fn document_has_the_table_of_mount_options() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mounting.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    let made = document();
    if std::env::var_os("UPDATE_OPTIONS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
        return;
    }
    let first = table.lines().zip(made.lines()).find(|(a, b)| a != b);
    assert!(
        table == made,
        "docs/mounting.md differs from the table of mount options, first in {first:?}; write it \
         again with `UPDATE_OPTIONS=1 cargo test -p cairnfs-fuse --test front option_table`"
    );
}

//! What users are told of damage with which a volume can still be read.

/// What is said of a volume of which so many items of the log are not shown.
pub fn left_out(items: u64) -> String {
    format!(
        "the log has items for damaged parts of the index, which are not shown ({items}); \
         more memory for the log may show them (cache=SIZE), and `cairnfs rm --damaged` keeps them"
    )
}

/// What is said of a volume that is read without its record of free space.
pub fn unknown_space(damage: &str) -> String {
    format!(
        "the record of free space is damaged ({damage}): all files can be read, and changes are \
         refused; save the files with `cairnfs export`, then make a new volume"
    )
}

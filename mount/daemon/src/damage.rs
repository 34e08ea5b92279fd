//! What users are told of damage with which a volume can still be read.

/// What is said of a volume that is read without its record of free space.
pub fn unknown_space(damage: &str) -> String {
    format!(
        "the record of free space is damaged ({damage}): all files can be read, and changes are \
         refused; save the files with `cairnfs export`, then make a new volume"
    )
}

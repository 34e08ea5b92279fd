//! Sizes of the loads of programs and of the sets, as options.

use clap::builder::RangedU64ValueParser;

/// The sizes.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sizes")]
pub struct Sizes {
    /// How long dbench runs.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub dbench_seconds: u32,

    /// How long pgbench runs.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub pgbench_seconds: u32,

    /// Files that tar unpacks, grep searches and rm removes.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = positive())]
    pub tree_files: u64,

    /// Files that git clones; those that npm installs.
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = positive())]
    pub source_files: u64,

    /// Crates that cargo builds.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = positive())]
    pub crates: u64,

    /// SQLite's transactions of one insert; of those of 1,000, a fiftieth as many.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = positive())]
    pub transactions: u64,

    /// Mails that one job delivers; each of 16 delivers a fifth as many.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = positive())]
    pub messages: u64,

    /// Files of each row of --single-client; rows that also write them have half as many, git an
    /// eighth.
    #[arg(long, value_name = "N", default_value_t = 8_000, value_parser = positive())]
    pub client_files: u64,
}

/// Returns a parser of numbers of at least 1.
fn positive() -> RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn sizes_are_at_least_one() {
        let sizes: Sizes = parse(&[]).unwrap();
        assert_eq!((sizes.tree_files, sizes.dbench_seconds), (100_000, 20));
        for option in [
            "--crates",
            "--tree-files",
            "--pgbench-seconds",
            "--messages",
        ] {
            let refused = parse::<Sizes>(&[option, "0"]).unwrap_err().to_string();
            assert!(refused.contains(option), "{refused}");
        }
    }
}

//! Where a workload runs, and how settings are read from words.
//!
//! Plain values; nothing here opens files.

use cairnfs::Mechanism;

use crate::Result;

/// Where a workload runs.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    /// The target: `lib:VOLUME` is the library on a volume (created if it does not exist), `lib:`
    /// the library on a temporary volume, anything else a directory of any file system.
    #[arg(long, value_name = "TARGET", default_value = "lib:")]
    pub target: String,

    /// Size of a created volume; suffixes K, M, G, T.
    #[arg(long, value_name = "BYTES", default_value = "4G", value_parser = parse_size)]
    pub volume_size: u64,

    /// Memory that the library may use [default: an eighth of what the process may use]; suffixes K,
    /// M, G, T.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub cache: Option<u64>,

    /// Run the library without a mechanism, to see what it saves: one-flush, fsync-closure,
    /// entries-once, attributes-known, relogging, values-once, changes-only or reservation-caches.
    #[arg(long, value_name = "MECHANISM", value_parser = parse_mechanism)]
    pub without: Option<Mechanism>,

    /// Keep the files; only remove those whose removal the workload measures.
    #[arg(long)]
    pub keep: bool,
}

impl Place {
    /// Refuses options that do not apply to the target.
    pub(crate) fn check(&self) -> Result<()> {
        if self.cache.is_some() && !self.target.starts_with(LIBRARY) {
            return Err("--cache is for the library; a mount has its option cache=SIZE".into());
        }
        if self.without.is_some() && !self.target.starts_with(LIBRARY) {
            return Err("--without is for the library: --target lib:...".into());
        }
        Ok(())
    }

    /// Returns the volume's path if the target is the library; an empty path means a temporary
    /// volume.
    pub(crate) fn volume(&self) -> Option<&str> {
        self.target.strip_prefix(LIBRARY)
    }
}

/// Parses settings from words as on the command line, with its defaults for the rest. Programs
/// create a workload or a place by this.
///
/// # Errors
/// Words that are not options of the type.
pub fn parse<T: clap::Args>(words: &[&str]) -> Result<T> {
    let command = T::augment_args(clap::Command::new("cairnfs-bench").no_binary_name(true));
    let matches = command.try_get_matches_from(words)?;
    Ok(T::from_arg_matches(&matches)?)
}

const LIBRARY: &str = "lib:";

fn parse_mechanism(name: &str) -> std::result::Result<Mechanism, String> {
    let known = || Mechanism::ALL.map(Mechanism::name).join(", ");
    Mechanism::named(name).ok_or_else(|| format!("`{name}` is none of {}", known()))
}

/// Parses a number of bytes with an optional suffix for a power of 1024.
///
/// # Errors
/// A text that says what was wrong.
pub fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (text.get(..at), 10),
        Some((at, 'm' | 'M')) => (text.get(..at), 20),
        Some((at, 'g' | 'G')) => (text.get(..at), 30),
        Some((at, 't' | 'T')) => (text.get(..at), 40),
        _ => (Some(text), 0),
    };
    digits
        .and_then(|digits| digits.parse::<u64>().ok())
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| format!("`{text}` is no size such as 4096, 64K or 2G"))
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_are_parsed_with_suffixes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("3m"), Ok(3 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("1T"), Ok(1 << 40));
        for bad in ["", "K", "-1", "1.5G", "1KB", "99999999999T", "é"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}

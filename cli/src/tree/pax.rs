//! The records of pax extended headers: `LENGTH KEY=VALUE\n`, with values of any bytes.
//!
//! Pure functions for both directions. Values may contain newlines.

use cairnfs_disk::types::Time;

/// Prefix of the key of an extended attribute.
const XATTR: &[u8] = b"SCHILY.xattr.";

/// The key of the extended attribute `name`. A key ends at the first `=`, so that character is
/// encoded as GNU tar does.
pub fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = XATTR.to_vec();
    for byte in name {
        match byte {
            b'%' => key.extend_from_slice(b"%25"),
            b'=' => key.extend_from_slice(b"%3D"),
            other => key.push(*other),
        }
    }
    key
}

/// The name of the extended attribute with this key; `None` for any other key.
pub fn xattr_name(key: &[u8]) -> Option<Vec<u8>> {
    let mut rest = key.strip_prefix(XATTR)?;
    let mut name = Vec::with_capacity(rest.len());
    while let Some((first, behind)) = rest.split_first() {
        let (byte, behind) = match behind {
            [b'2', b'5', behind @ ..] if *first == b'%' => (b'%', behind),
            [b'3', b'D', behind @ ..] if *first == b'%' => (b'=', behind),
            behind => (*first, behind),
        };
        name.push(byte);
        rest = behind;
    }
    Some(name)
}

/// Appends a record.
pub fn push(to: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    // The length includes its own digits.
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    to.extend_from_slice(format!("{len} ").as_bytes());
    to.extend_from_slice(key);
    to.push(b'=');
    to.extend_from_slice(value);
    to.push(b'\n');
}

/// Calls `each` with the key and the value of every record in a header.
///
/// # Errors
/// A malformed header, or the error of `each`.
pub fn parse(
    mut bytes: &[u8],
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    const BAD: &str = "malformed extended header";
    while !bytes.is_empty() {
        let space = bytes.iter().take(20).position(|b| *b == b' ').ok_or(BAD)?;
        let len = number(bytes.get(..space).ok_or(BAD)?).ok_or(BAD)?;
        let len = usize::try_from(len).map_err(|_| BAD)?;
        let record = bytes.get(space + 1..len).ok_or(BAD)?;
        let record = record.strip_suffix(b"\n").ok_or(BAD)?;
        let equals = record.iter().position(|b| *b == b'=').ok_or(BAD)?;
        let (key, value) = record.split_at_checked(equals).ok_or(BAD)?;
        each(key, value.get(1..).unwrap_or_default())?;
        bytes = bytes.get(len..).ok_or(BAD)?;
    }
    Ok(())
}

/// Parses a decimal number.
pub fn number(text: &[u8]) -> Option<u64> {
    if !text.first()?.is_ascii_digit() {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Formats a time as seconds with a decimal fraction.
pub fn time_text(time: Time) -> String {
    let (sign, secs, nanos) = if time.secs < 0 && time.nanos > 0 {
        (
            "-",
            (time.secs + 1).unsigned_abs(),
            1_000_000_000 - time.nanos,
        )
    } else if time.secs < 0 {
        ("-", time.secs.unsigned_abs(), 0)
    } else {
        ("", time.secs.unsigned_abs(), time.nanos)
    };
    if nanos == 0 {
        return format!("{sign}{secs}");
    }
    let text = format!("{sign}{secs}.{nanos:09}");
    text.trim_end_matches('0').to_owned()
}

/// Parses a time in the format of [`time_text`]; digits beyond nanoseconds are dropped.
pub fn parse_time(text: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(text).ok()?;
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (secs, fraction) = text.split_once('.').unwrap_or((text, ""));
    let secs = i64::try_from(number(secs.as_bytes())?).ok()?;
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let nanos: u32 = digits.parse().ok()?;
    Some(match (negative, nanos) {
        (false, _) => Time { secs, nanos },
        (true, 0) => Time {
            secs: -secs,
            nanos: 0,
        },
        (true, _) => Time {
            secs: -secs - 1,
            nanos: 1_000_000_000 - nanos,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Owned = Vec<(Vec<u8>, Vec<u8>)>;

    fn parsed(bytes: &[u8]) -> Result<Owned, &'static str> {
        let mut records = Vec::new();
        parse(bytes, |key, value| {
            records.push((key.to_vec(), value.to_vec()));
            Ok(())
        })?;
        Ok(records)
    }

    #[test]
    fn pax_records_with_any_bytes_round_trip() {
        let long = vec![b'x'; 5000];
        let records: Vec<(&[u8], &[u8])> = vec![
            (b"path", b"a"),
            (b"SCHILY.xattr.user.x", b"two\nlines=\0"),
            (b"empty", b""),
            (b"k", &long),
        ];
        for n in 0..120 {
            let value = vec![b'v'; n];
            let mut bytes = Vec::new();
            push(&mut bytes, b"key", &value);
            assert_eq!(parsed(&bytes), Ok(vec![(b"key".to_vec(), value)]));
        }
        let mut bytes = Vec::new();
        for (key, value) in &records {
            push(&mut bytes, key, value);
        }
        let owned = records.iter().map(|(k, v)| (k.to_vec(), v.to_vec()));
        assert_eq!(parsed(&bytes), Ok(owned.collect()));
    }

    #[test]
    fn attribute_names_round_trip_in_keys() {
        for (name, key) in [
            (&b"user.a"[..], &b"SCHILY.xattr.user.a"[..]),
            (b"a=b%", b"SCHILY.xattr.a%3Db%25"),
            (b"%3D", b"SCHILY.xattr.%253D"),
        ] {
            assert_eq!(xattr_key(name), key);
            assert_eq!(xattr_name(key).as_deref(), Some(name));
        }
        // Other encodings are not decoded.
        assert_eq!(
            xattr_name(b"SCHILY.xattr.%3d%2%41%").as_deref(),
            Some(&b"%3d%2%41%"[..])
        );
        assert_eq!(xattr_name(b"path"), None);
    }

    #[test]
    fn hostile_pax_records_are_refused() {
        for bad in [
            &b"5 a=b"[..],
            b"0 a=b\n",
            b"1 a=b\n",
            b"6 ab\n",
            b"99 a=b\n",
            b"-6 a=b\n",
            b"99999999999999999999 a=b\n",
            b"nonsense",
            b"7 abcd\n",
        ] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn pax_times_round_trip_to_the_nanosecond() {
        for (secs, nanos, text) in [
            (0, 0, "0"),
            (12, 5, "12.000000005"),
            (-1, 500_000_000, "-0.5"),
            (-2, 0, "-2"),
            (-3, 250_000_000, "-2.75"),
        ] {
            let time = Time { secs, nanos };
            assert_eq!(time_text(time), text);
            assert_eq!(parse_time(text.as_bytes()), Some(time));
        }
        assert_eq!(parse_time(b"1.0000000019").map(|t| t.nanos), Some(1));
        for bad in ["", "x", "1.x", "--1", "99999999999999999999", "+1"] {
            assert_eq!(parse_time(bad.as_bytes()), None, "{bad}");
        }
    }
}

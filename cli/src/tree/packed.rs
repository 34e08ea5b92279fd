//! Compressed archives, gzip and zstd. Reading recognises the method by the first bytes, writing
//! by the archive's name.
//!
//! The input may be hostile. Everything is streamed, so memory is bounded even if a few bytes
//! unpack to very many: gzip has a window of 32 KiB, and a zstd frame that asks for more than
//! [`WINDOW_LOG`] allows is refused.

use std::io::{self, BufReader, Cursor, Read, Write};

use cairnfs_daemon::failure::{Explain, Failure};
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

/// Binary logarithm of the largest window of a zstd frame: 128 MiB, the default limit of zstd(1).
const WINDOW_LOG: u32 = 27;

/// Compression method of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// No compression.
    Plain,
    /// As gzip(1).
    Gzip,
    /// As zstd(1).
    Zstd,
}

/// File name suffixes and their methods.
const ENDINGS: [(&str, Method); 7] = [
    (".tar", Method::Plain),
    (".tar.gz", Method::Gzip),
    (".tgz", Method::Gzip),
    (".tar.zst", Method::Zstd),
    (".tar.zstd", Method::Zstd),
    (".tzst", Method::Zstd),
    (".tzstd", Method::Zstd),
];

impl Method {
    /// The method for an archive's name; `None` if it is not an archive's name.
    pub fn of_name(name: &str) -> Option<Self> {
        let found = ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
        found.map(|(_, method)| *method)
    }
}

/// Decompresses the archive in `input`, called `name` in messages. The second result is whether
/// it was compressed.
///
/// # Errors
/// The reader's error, or an unsupported compression.
pub fn unpacked<'a>(
    mut input: impl Read + 'a,
    name: &str,
) -> Result<(Box<dyn Read + 'a>, bool), Failure> {
    let mut start = Vec::new();
    let taken = input.by_ref().take(6).read_to_end(&mut start);
    taken.explain(name)?;
    let is = |magic: &[u8]| start.starts_with(magic);
    let (gzip, zstd) = (is(b"\x1f\x8b"), is(b"\x28\xb5\x2f\xfd"));
    let foreign = match () {
        () if is(b"BZh") => Some("bzip2"),
        () if is(b"\xfd7zXZ\0") => Some("xz"),
        () => None,
    };
    if let Some(tool) = foreign {
        return Err(
            Failure::new(name, format!("is compressed with {tool}")).hint(format!(
                "unpack it on the way: {tool} -dc FILE | cairnfs import - VOLUME"
            )),
        );
    }
    let whole = BufReader::with_capacity(super::CHUNK, Cursor::new(start).chain(input));
    if gzip {
        return Ok((Box::new(MultiGzDecoder::new(whole)), true));
    }
    if zstd {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(whole).explain(name)?;
        decoder.window_log_max(WINDOW_LOG).explain(name)?;
        return Ok((Box::new(decoder), true));
    }
    Ok((Box::new(whole), false))
}

/// A writer that compresses.
pub enum Packer<W: Write> {
    /// No compression.
    Plain(W),
    /// As gzip(1).
    Gzip(GzEncoder<W>),
    /// As zstd(1), with a checksum.
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> Packer<W> {
    /// Compresses into `out`.
    ///
    /// # Errors
    /// The encoder cannot allocate memory.
    pub fn new(out: W, method: Method) -> io::Result<Self> {
        Ok(match method {
            Method::Plain => Packer::Plain(out),
            Method::Gzip => Packer::Gzip(GzEncoder::new(out, Compression::default())),
            Method::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(out, 0)?;
                encoder.include_checksum(true)?;
                Packer::Zstd(encoder)
            }
        })
    }

    /// Writes the end of the stream.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Packer::Plain(out) => Ok(out),
            Packer::Gzip(encoder) => encoder.finish(),
            Packer::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Packer::Plain(out) => out.write(buf),
            Packer::Gzip(encoder) => encoder.write(buf),
            Packer::Zstd(encoder) => encoder.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Packer::Plain(out) => out.flush(),
            Packer::Gzip(encoder) => encoder.flush(),
            Packer::Zstd(encoder) => encoder.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(method: Method, bytes: &[u8]) -> Vec<u8> {
        let mut packer = Packer::new(Vec::new(), method).unwrap();
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    fn read(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut read = Vec::new();
        let (mut input, _) = unpacked(Cursor::new(bytes), "a.tar").unwrap();
        input.read_to_end(&mut read).map(|_| read)
    }

    #[test]
    fn packed_data_is_read_back() {
        let bytes: Vec<u8> = (0..300_000u32)
            .flat_map(|n| (n / 3).to_le_bytes())
            .collect();
        for method in [Method::Plain, Method::Gzip, Method::Zstd] {
            let packed = packed(method, &bytes);
            assert!(method == Method::Plain || packed.len() < bytes.len());
            // Archives may be concatenated.
            let twice = [&packed[..], &packed[..]].concat();
            assert!(read(twice).unwrap() == [&bytes[..], &bytes[..]].concat());
            if method != Method::Plain {
                assert!(read(packed[..packed.len() - 1].to_vec()).is_err());
                let mut rotten = packed;
                let middle = rotten.len() / 2;
                rotten[middle] ^= 0x10;
                assert!(read(rotten).is_err());
            }
        }
        assert_eq!(read(b"ab".to_vec()).unwrap(), b"ab");
        assert_eq!(read(Vec::new()).unwrap(), b"");
    }

    #[test]
    fn zstd_windows_are_bounded() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(WINDOW_LOG + 1).unwrap();
        encoder.write_all(&vec![0; 1 << 20]).unwrap();
        let frame = encoder.finish().unwrap();
        assert!(read(frame).unwrap_err().to_string().contains("memory"));
    }

    #[test]
    fn unsupported_compressions_are_named() {
        for (start, tool) in [(&b"BZh9"[..], "bzip2"), (b"\xfd7zXZ\0", "xz")] {
            let refused = unpacked(start, "a.tar");
            let failure = refused.err().unwrap();
            assert!(failure.to_string().contains(tool));
            assert!(failure.next_step().unwrap().contains(tool));
        }
    }

    #[test]
    fn archive_name_selects_compression() {
        assert_eq!(Method::of_name("a.tar"), Some(Method::Plain));
        assert_eq!(Method::of_name("a.tar.gz"), Some(Method::Gzip));
        assert_eq!(Method::of_name("a.tzst"), Some(Method::Zstd));
        assert_eq!(Method::of_name("a.tar.xz"), None);
        assert_eq!(Method::of_name("a"), None);
    }
}

//! The frames of a stream: checksums over all of it, around its records.
//!
//! Pure. A frame is checked before its payload is decoded: its checksum covers the checksum of the frame
//! before, so a frame that is damaged, missing, repeated or moved is found at once. The last frame has
//! the number of frames and a hash of all bytes before it.

use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::U64;

use crate::format::checksum::{crc, crc_append};
use crate::format::stream::{
    MAX_PAYLOAD, RawEnd, Record, STREAM_MAGIC, STREAM_VERSION, STREAM_VERSION_ORIGINS,
};

/// Size of what precedes the first frame, in bytes: magic, version, CRC of both.
pub const PREAMBLE: usize = 16;
/// Size of a frame's header in bytes.
pub const FRAME_HEADER: usize = 12;

/// The header of a frame, with its length within the limit.
#[derive(Debug, Clone, Copy)]
pub struct FrameHeader {
    bytes: [u8; FRAME_HEADER],
    kind: u8,
    len: usize,
}

impl FrameHeader {
    /// Decodes a header. Its checksum is that of the whole frame, so nothing but the length may be
    /// used before [`Chain::verify`].
    ///
    /// # Errors
    /// The length is over the limit.
    pub fn decode(bytes: [u8; FRAME_HEADER]) -> Result<Self, String> {
        let [l0, l1, l2, l3, kind, ..] = bytes;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if len <= MAX_PAYLOAD {
            Ok(Self { bytes, kind, len })
        } else {
            Err(format!("frame of {len} bytes"))
        }
    }

    /// Length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.len
    }
}

/// The checksums over a stream, up to a frame.
pub struct Chain {
    version: u32,
    crc: u32,
    hash: Xxh3,
    frames: u64,
}

impl Chain {
    /// The preamble of a stream of this version, and the checksums behind it.
    pub fn begin(version: u32) -> ([u8; PREAMBLE], Self) {
        let mut preamble = [0; PREAMBLE];
        let [.., c0, c1, c2, c3] = &mut preamble;
        let head = [&STREAM_MAGIC[..], &version.to_le_bytes()[..]].concat();
        let crc = crc(&head);
        for (to, byte) in [c0, c1, c2, c3].into_iter().zip(crc.to_le_bytes()) {
            *to = byte;
        }
        preamble
            .iter_mut()
            .zip(&head)
            .for_each(|(to, byte)| *to = *byte);
        (preamble, Self::behind(&preamble, (version, crc)))
    }

    fn behind(preamble: &[u8], (version, crc): (u32, u32)) -> Self {
        let mut hash = Xxh3::new();
        hash.update(preamble);
        Self {
            version,
            crc,
            hash,
            frames: 0,
        }
    }

    /// Checks a preamble.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(preamble: &[u8; PREAMBLE]) -> Result<Self, String> {
        let (head, stored) = preamble.split_at(PREAMBLE - 4);
        let found = crc(head);
        if !head.starts_with(&STREAM_MAGIC) {
            return Err("it does not begin like one".into());
        }
        if stored != found.to_le_bytes() {
            return Err("its first bytes are damaged".into());
        }
        let version = [STREAM_VERSION, STREAM_VERSION_ORIGINS]
            .into_iter()
            .find(|version| head.ends_with(&version.to_le_bytes()));
        match version {
            Some(version) => Ok(Self::behind(preamble, (version, found))),
            None => Err("it was sent by a newer version of CairnFS: receive it with that".into()),
        }
    }

    /// Appends the frame of a record to `out`.
    ///
    /// # Errors
    /// The record breaks a limit of the format.
    pub fn frame(&mut self, record: &Record<'_>, out: &mut Vec<u8>) -> Result<(), String> {
        record.check()?;
        let mut payload = Vec::new();
        record.encode(&mut payload);
        self.seal(record.kind(), &payload, out);
        Ok(())
    }

    /// Appends the frame of any payload to `out`: its length and its checksum.
    pub fn seal(&mut self, kind: u8, payload: &[u8], out: &mut Vec<u8>) {
        let [l0, l1, l2, l3] = (payload.len() as u32).to_le_bytes();
        let mut header = [l0, l1, l2, l3, kind, 0, 0, 0, 0, 0, 0, 0];
        let [c0, c1, c2, c3] = self.crc_of(&header, payload).to_le_bytes();
        header = [l0, l1, l2, l3, kind, 0, 0, 0, c0, c1, c2, c3];
        self.advance(&header, payload);
        out.extend_from_slice(&header);
        out.extend_from_slice(payload);
    }

    /// The last record.
    pub fn end(&self) -> Record<'static> {
        Record::End(RawEnd {
            frames: U64::new(self.frames),
            hash: U64::new(self.hash.digest()),
        })
    }

    /// Checks a frame, and decodes its record.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify<'p>(
        &mut self,
        header: &FrameHeader,
        payload: &'p [u8],
    ) -> Result<Record<'p>, String> {
        let crc = self.crc_of(&header.bytes, payload);
        let [.., r0, r1, r2, c0, c1, c2, c3] = header.bytes;
        if u32::from_le_bytes([c0, c1, c2, c3]) != crc {
            return Err(format!("frame {} is damaged", self.frames));
        }
        if [r0, r1, r2] != [0; 3] {
            return Err(format!("frame {} has unknown flags", self.frames));
        }
        let record = Record::decode(header.kind, payload)?;
        if matches!(record, Record::Origin(_)) && self.version < STREAM_VERSION_ORIGINS {
            return Err("it has a record of a later version".into());
        }
        if let Record::End(_) = record
            && record != self.end()
        {
            return Err("its end does not fit".into());
        }
        self.advance(&header.bytes, payload);
        Ok(record)
    }

    fn crc_of(&self, header: &[u8; FRAME_HEADER], payload: &[u8]) -> u32 {
        let before = crc(&self.crc.to_le_bytes());
        let head = header.get(..FRAME_HEADER - 4).unwrap_or_default();
        crc_append(crc_append(before, head), payload)
    }

    fn advance(&mut self, header: &[u8; FRAME_HEADER], payload: &[u8]) {
        self.crc = self.crc_of(header, payload);
        self.hash.update(header);
        self.hash.update(payload);
        self.frames += 1;
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::little_endian::U32;

    use super::*;
    use crate::format::stream::{RawBegin, RawStreamInode};

    /// The bytes of a stream, field by field as docs/stream-format.md has them.
    #[test]
    fn stream_bytes_are_those_of_the_document() {
        let begin = RawBegin {
            uuid: [7; 16],
            base_root: U32::new(2),
            root: U32::new(3),
            base_mark: U64::new(4),
            mark: U64::new(5),
        };
        let (preamble, mut chain) = Chain::begin(STREAM_VERSION);
        let mut bytes = preamble.to_vec();
        let records = [
            Record::Begin(begin),
            Record::Xattr {
                ino: 20,
                name: b"user.a",
                value: Some(b"v"),
            },
            Record::Link {
                dir: 1,
                ino: 20,
                name: b"f",
            },
        ];
        for record in &records {
            chain.frame(record, &mut bytes).unwrap();
        }
        let end = chain.end();
        chain.frame(&end, &mut bytes).unwrap();

        let n = |n: u64| n.to_le_bytes().to_vec();
        let mut expected = [&b"CairnSnd"[..], &[1, 0, 0, 0]].concat();
        let mut sum = crc(&expected);
        expected.extend_from_slice(&sum.to_le_bytes());
        let payloads = [
            (
                1,
                [vec![7; 16], vec![2, 0, 0, 0, 3, 0, 0, 0], n(4), n(5)].concat(),
            ),
            (4, [n(20), vec![6], b"user.av".to_vec()].concat()),
            (9, [n(1), n(20), b"f".to_vec()].concat()),
        ];
        let mut frame = |kind: u8, payload: &[u8], out: &mut Vec<u8>| {
            let head = [&(payload.len() as u32).to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
            sum = crc(&[&sum.to_le_bytes()[..], &head, payload].concat());
            out.extend_from_slice(&[&head, &sum.to_le_bytes()[..], payload].concat());
        };
        for (kind, payload) in &payloads {
            frame(*kind, payload, &mut expected);
        }
        let hash = crate::format::checksum::hash64(&expected);
        frame(11, &[n(3), n(hash)].concat(), &mut expected);
        assert_eq!(bytes, expected);
        assert_eq!(size_of::<RawStreamInode>(), 88);
        assert_eq!(MAX_PAYLOAD, 65800);
    }
}

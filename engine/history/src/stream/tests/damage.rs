//! Streams with other bytes than were sent.

use std::io::{self, Read};

use proptest::prelude::*;

use super::round_trip::sent;
use super::target::{MemoryTree, sound};
use crate::diff::tests::compare::history;
use crate::stream::{StreamReader, StreamWriter};
use cairnfs_core::index::Tree;
use cairnfs_disk::error::Error;
use cairnfs_disk::format::frames::Chain;
use cairnfs_disk::format::stream::{MAX_PAYLOAD, RawBegin, STREAM_VERSION, STREAM_VERSION_ORIGINS};

fn small() -> Vec<u8> {
    let mut writer = StreamWriter::new(Vec::new(), RawBegin::default(), &[]).unwrap();
    sound()
        .iter()
        .for_each(|record| writer.put(record).unwrap());
    writer.finish().unwrap()
}

fn refused(bytes: &[u8]) -> bool {
    let received = MemoryTree::received(bytes, &MemoryTree::default());
    matches!(received, Err(Error::Stream(_)))
}

#[test]
fn flipped_byte_anywhere_is_refused() {
    let stream = small();
    assert!(!refused(&stream));
    for at in 0..stream.len() {
        for bit in 0..8 {
            let mut damaged = stream.clone();
            damaged[at] ^= 1 << bit;
            assert!(refused(&damaged), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn stream_cut_off_or_extended_anywhere_is_refused() {
    let stream = small();
    for len in 0..stream.len() {
        assert!(refused(&stream[..len]), "cut off after {len} bytes");
        let mut longer = stream.clone();
        longer.insert(len, 0);
        assert!(refused(&longer), "a byte more at {len}");
    }
    assert!(refused(&[&stream[..], &[0]].concat()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn mutated_stream_is_refused(
        seed in any::<u64>(),
        at in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        byte in 1u8..,
        how in 0..4,
    ) {
        let (volume, states) = history(seed, 2, 80);
        let stream = sent(volume.tree(Tree::default()), volume.tree(states[1].1));
        let (at, to) = (at.index(stream.len()), to.index(stream.len()));
        let (from, to) = (at.min(to), at.max(to));
        let mut damaged = stream.clone();
        match how {
            0 => damaged[at] ^= byte,
            1 => damaged.truncate(at),
            2 => drop(damaged.drain(from..to)),
            _ => {
                let part = damaged[from..to].to_vec();
                damaged.splice(to..to, part);
            }
        }
        prop_assert!(damaged == stream || refused(&damaged));
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(refused(&bytes));
        let (preamble, _) = Chain::begin(STREAM_VERSION);
        prop_assert!(refused(&[&preamble[..], &bytes].concat()));
    }
}

/// Frames that are whole, and yet not those that were sent.
#[test]
fn missing_repeated_and_exchanged_frames_are_refused() {
    let stream = small();
    let mut frames = Vec::new();
    let mut at = 16;
    while at < stream.len() {
        let len = u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) as usize;
        frames.push(stream[at..at + 12 + len].to_vec());
        at += 12 + len;
    }
    let put_together = |frames: &[Vec<u8>]| [&stream[..16], &frames.concat()].concat();
    assert_eq!(put_together(&frames), stream);
    for i in 0..frames.len() {
        let mut less = frames.clone();
        less.remove(i);
        let mut more = frames.clone();
        more.insert(i, frames[i].clone());
        let mut exchanged = frames.clone();
        exchanged.swap(i, (i + 1) % frames.len());
        for other in [less, more, exchanged] {
            assert!(refused(&put_together(&other)), "frame {i}");
        }
    }
}

#[test]
fn unknown_version_is_refused_and_named() {
    let mut stream = small();
    stream[8..12].copy_from_slice(&(STREAM_VERSION_ORIGINS + 1).to_le_bytes());
    let crc = cairnfs_disk::format::checksum::crc(&stream[..12]);
    stream[12..16].copy_from_slice(&crc.to_le_bytes());
    let error = StreamReader::new(&stream[..]).err().unwrap().to_string();
    assert!(error.contains("newer version"), "{error}");
}

/// Gives the bytes of a stream, and counts what is asked for.
struct Endless<'a> {
    head: &'a [u8],
    given: u64,
}

impl Read for Endless<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = if self.head.is_empty() {
            buf.len()
        } else {
            self.head.read(buf)?
        };
        self.given += len as u64;
        Ok(len)
    }
}

/// A length over the limit ends the stream; one within it is the most that is read.
#[test]
fn frames_are_bounded() {
    let (preamble, _) = Chain::begin(STREAM_VERSION);
    for (claimed, most) in [
        (u32::MAX, 64),
        (MAX_PAYLOAD as u32 + 1, 64),
        (MAX_PAYLOAD as u32, MAX_PAYLOAD),
    ] {
        let header = [&claimed.to_le_bytes()[..], &[1, 0, 0, 0, 9, 9, 9, 9]].concat();
        let head = [&preamble[..], &header].concat();
        let mut endless = Endless {
            head: &head,
            given: 0,
        };
        assert!(matches!(
            StreamReader::new(&mut endless).err(),
            Some(Error::Stream(_))
        ));
        assert!(endless.given <= most as u64 + 64, "{} bytes", endless.given);
    }
}

//! What else a device may begin with: file systems, partition tables, volume managers.
//!
//! A device on which one of these was made over a volume may be in use as that now, so the volume's
//! superblocks are not put back over it. The signatures are those by which `blkid` and `wipefs`
//! know them.

/// Bytes at the front that are looked at.
pub const FRONT: u64 = 72 << 10;

/// Names of what is known, with the offset in bytes and the value of a signature.
const SIGNATURES: &[(&str, usize, &[u8])] = &[
    ("ext2, ext3 or ext4", 0x438, b"\x53\xef"),
    ("XFS", 0, b"XFSB"),
    ("Btrfs", 0x1_0040, b"_BHRfS_M"),
    ("F2FS", 0x400, b"\x10\x20\xf5\xf2"),
    ("EROFS", 0x400, b"\xe2\xe1\xf5\xe0"),
    (
        "bcache or bcachefs",
        0x1018,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca",
    ),
    ("bcachefs", 0x1018, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    ("JFS", 0x8000, b"JFS1"),
    ("NILFS2", 0x406, b"\x34\x34"),
    ("ReiserFS", 0x1_0034, b"ReIsEr"),
    ("GFS2", 0x1_0000, b"\x01\x16\x19\x70"),
    ("squashfs", 0, b"hsqs"),
    ("ISO 9660", 0x8001, b"CD001"),
    ("UDF", 0x8001, b"BEA01"),
    ("HFS+", 0x400, b"H+\x00\x04"),
    ("APFS", 0x20, b"NXSB"),
    ("a GUID partition table", 0x200, b"EFI PART"),
    ("NTFS", 3, b"NTFS    "),
    ("exFAT", 3, b"EXFAT   "),
    ("FAT", 0x36, b"FAT"),
    ("FAT", 0x52, b"FAT32"),
    ("swap space", 0xff6, b"SWAPSPACE2"),
    ("swap space", 0xff6, b"SWAP-SPACE"),
    ("LUKS encryption", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 0x218, b"LVM2 001"),
    ("an LVM physical volume", 0x018, b"LVM2 001"),
    ("a member of an array of disks", 0, b"\xfc\x4e\x2b\xa9"),
    ("a member of an array of disks", 0x1000, b"\xfc\x4e\x2b\xa9"),
    ("a QCOW image", 0, b"QFI\xfb"),
    // Last: boot sectors of file systems end like this, too.
    ("a partition table", 0x1fe, b"\x55\xaa"),
];

/// What the first bytes of a device are known to belong to.
pub fn known(front: &[u8]) -> Option<&'static str> {
    let begins = |at: usize, value: &[u8]| front.get(at..).is_some_and(|b| b.starts_with(value));
    let mut all = SIGNATURES.iter();
    all.find(|(_, at, value)| begins(*at, value))
        .map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_found_in_their_places_only() {
        let mut front = vec![0; FRONT as usize];
        assert_eq!(known(&front), None);
        assert_eq!(known(b""), None);
        for (name, at, value) in SIGNATURES {
            front.fill(0);
            front[*at..*at + value.len()].copy_from_slice(value);
            assert_eq!(known(&front), Some(*name));
            front.fill(0);
            front[*at + 1..*at + 1 + value.len()].copy_from_slice(value);
            assert_eq!(known(&front), None, "{name}");
        }
    }
}

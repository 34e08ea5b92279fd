//! Decodes and encodes the ioctls for inode flags: `FS_IOC_GETFLAGS`, `FS_IOC_FSGETXATTR` and their
//! setters.
//!
//! The kernel sends these for its own `fileattr` operations after it has checked whether the caller
//! may set the flag ([`crate::negotiate`] refuses kernels that do not check). It passes all other
//! ioctls through unchecked, including the 32-bit compat forms of the same ioctls, which have other
//! numbers. None of those is supported here.

use cairnfs_disk::types::Flags;
use rustix::ioctl::{Opcode, opcode};

use crate::convert::Refusal;

const GET_FLAGS: Opcode = opcode::read::<libc::c_long>(b'f', 1);
const SET_FLAGS: Opcode = opcode::write::<libc::c_long>(b'f', 2);
const GET_XATTR: Opcode = opcode::read::<[u8; FSXATTR]>(b'X', 31);
const SET_XATTR: Opcode = opcode::write::<[u8; FSXATTR]>(b'X', 32);

/// Size of `struct fsxattr` in bytes: flags, extent size, extent count, project, copy-on-write
/// extent size, padding.
const FSXATTR: usize = 28;

/// Each flag and its bit in `fsx_xflags`. [`Flags`] itself has the bits of `FS_IOC_GETFLAGS`.
const BITS: [(Flags, u32); 3] = [
    (Flags::IMMUTABLE, 0x08),
    (Flags::APPEND, 0x10),
    (Flags::NODUMP, 0x80),
];

/// The encoding of flags in an ioctl's argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A word with the bits of `FS_IOC_GETFLAGS`.
    Word,
    /// A `struct fsxattr`.
    Fsxattr,
}

/// A supported ioctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ioctl {
    /// Read the flags and return them in this form.
    Get(Form),
    /// Set the flags.
    Set(Flags),
}

impl Form {
    /// Encodes flags as the reply's bytes, in native byte order.
    pub fn bytes(self, flags: Flags) -> Vec<u8> {
        match self {
            Form::Word => flags.bits().to_ne_bytes().to_vec(),
            Form::Fsxattr => {
                let set = BITS.iter().filter(|(flag, _)| flags.contains(*flag));
                let word = set.fold(0, |word, (_, bit)| word | bit);
                let mut bytes = u32::to_ne_bytes(word).to_vec();
                bytes.resize(FSXATTR, 0);
                bytes
            }
        }
    }
}

/// Decodes an ioctl's number and argument.
///
/// # Errors
/// `ENOTTY` for an unsupported ioctl, `EOPNOTSUPP` for an unsupported flag or other attribute,
/// `EINVAL` for an argument that is too short.
pub fn parse(cmd: u32, arg: &[u8]) -> Result<Ioctl, Refusal> {
    match Opcode::from(cmd) {
        GET_FLAGS => Ok(Ioctl::Get(Form::Word)),
        GET_XATTR => Ok(Ioctl::Get(Form::Fsxattr)),
        SET_FLAGS => {
            let (word, _) = first(arg)?;
            Ok(Ioctl::Set(supported(Flags::from_bits(word))?))
        }
        SET_XATTR => {
            let (word, mut rest) = first(arg)?;
            // The extent count is output only: a program that writes back what it read leaves it
            // nonzero.
            let mut given = 0;
            for field in ["extent size", "extents", "project", "extent size of copies"] {
                let (value, behind) = first(rest)?;
                if field != "extents" {
                    given |= value;
                }
                rest = behind;
            }
            let flags = (given == 0).then(|| from_fsxattr(word)).flatten();
            Ok(Ioctl::Set(supported(flags)?))
        }
        _ => Err(Refusal(libc::ENOTTY)),
    }
}

fn supported(flags: Option<Flags>) -> Result<Flags, Refusal> {
    flags.ok_or(Refusal(libc::EOPNOTSUPP))
}

fn first(bytes: &[u8]) -> Result<(u32, &[u8]), Refusal> {
    let (word, rest) = bytes.split_first_chunk().ok_or(Refusal(libc::EINVAL))?;
    Ok((u32::from_ne_bytes(*word), rest))
}

fn from_fsxattr(word: u32) -> Option<Flags> {
    let set = BITS.iter().filter(|(_, bit)| word & bit != 0);
    let (flags, known) = set.fold((Flags::NONE, 0), |(flags, known), (flag, bit)| {
        (flags.with(*flag), known | bit)
    });
    (known == word).then_some(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Flags> {
        (0..8).map(|n| Flags::from_bits(n << 4).unwrap())
    }

    #[test]
    fn both_flag_forms_parse_what_they_encode() {
        for flags in all() {
            let word = Form::Word.bytes(flags);
            assert_eq!(parse(SET_FLAGS, &word), Ok(Ioctl::Set(flags)));
            let mut fsxattr = Form::Fsxattr.bytes(flags);
            assert_eq!(fsxattr.len(), FSXATTR);
            assert_eq!(parse(SET_XATTR, &fsxattr), Ok(Ioctl::Set(flags)));
            fsxattr[8] = 7;
            assert_eq!(parse(SET_XATTR, &fsxattr), Ok(Ioctl::Set(flags)));
        }
        assert_eq!(parse(GET_FLAGS, &[]), Ok(Ioctl::Get(Form::Word)));
        assert_eq!(parse(GET_XATTR, &[]), Ok(Ioctl::Get(Form::Fsxattr)));
    }

    #[test]
    fn unsupported_flags_and_ioctls_are_refused() {
        let unsupported = Err(Refusal(libc::EOPNOTSUPP));
        for bit in (0..32).map(|n| 1_u32 << n) {
            let is_flag = Flags::from_bits(bit).is_some();
            assert_eq!(
                parse(SET_FLAGS, &bit.to_ne_bytes()) == unsupported,
                !is_flag
            );
            let is_flag = BITS.iter().any(|(_, known)| *known == bit);
            let mut fsxattr = bit.to_ne_bytes().to_vec();
            fsxattr.resize(FSXATTR, 0);
            assert_eq!(parse(SET_XATTR, &fsxattr) == unsupported, !is_flag);
        }
        for field in [4, 12, 16] {
            let mut fsxattr = [0; FSXATTR];
            fsxattr[field] = 1;
            assert_eq!(parse(SET_XATTR, &fsxattr), unsupported);
        }
        assert_eq!(parse(SET_FLAGS, &[0; 3]), Err(Refusal(libc::EINVAL)));
        assert_eq!(parse(SET_XATTR, &[0; 4]), Err(Refusal(libc::EINVAL)));
        let terminal = Err(Refusal(libc::ENOTTY));
        assert_eq!(parse(libc::TCGETS as u32, &[]), terminal);
        assert_eq!(parse(0x4004_6602, &[0; 4]), terminal);
    }
}

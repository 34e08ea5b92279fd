//! Numbers of variable length, and reading them from bytes that may be hostile.
//!
//! Seven bits a byte, the lowest first; the highest bit says that another byte follows. Uses only the
//! error type.

use crate::error::{Error, Result};

/// Appends a number.
pub fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads what [`put`] wrote.
pub struct Input<'a> {
    object: &'a str,
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Reads from `bytes` of the object of that name.
    pub fn new(object: &'a str, bytes: &'a [u8]) -> Self {
        Self {
            object,
            rest: bytes,
        }
    }

    /// A number.
    pub fn number(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Error::damaged(self.object, "a number that is too long"))
    }

    /// A number below or at `most`.
    pub fn up_to(&mut self, most: u64, what: &'static str) -> Result<u64> {
        let number = self.number()?;
        if number > most {
            return Err(Error::damaged(
                self.object,
                format!("{what} is {number}, and {most} at most is possible"),
            ));
        }
        Ok(number)
    }

    /// Some bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((first, rest)) = self.rest.split_first_chunk() else {
            return Err(Error::damaged(self.object, "it ends too early"));
        };
        self.rest = rest;
        Ok(*first)
    }

    /// Nothing may follow.
    pub fn end(self) -> Result<()> {
        match self.rest {
            [] => Ok(()),
            _ => Err(Error::damaged(
                self.object,
                "more bytes than it should have",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            let mut input = Input::new("x", &bytes);
            assert_eq!(input.number().unwrap(), number);
            input.end().unwrap();
        }
    }

    #[test]
    fn wrong_numbers_are_refused() {
        for bytes in [&[0x80_u8; 11][..], &[0xff; 10], &[0x80], &[]] {
            assert!(Input::new("x", bytes).number().is_err(), "{bytes:?}");
        }
    }
}

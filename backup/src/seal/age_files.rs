//! Each frame is an age file for the backup's recipient.
//!
//! So a range of an object can be read alone, and the age program can decrypt it with the identity.

use std::str::FromStr;

use age::secrecy::{ExposeSecret, SecretString};
use age::{scrypt, x25519};

use super::{Cipher, Key, NewKey};
use crate::error::{Error, Result};
use crate::format::root::Encryption;

/// The most work that a passphrase may ask for, as a power of two: about a minute and a gigabyte.
const MAX_WORK: u8 = 20;

/// A recipient, and its identity if that is known.
pub struct AgeFiles {
    recipient: x25519::Recipient,
    identity: Option<x25519::Identity>,
}

impl Cipher for AgeFiles {
    fn encryption(new_key: &NewKey) -> Result<Encryption> {
        match new_key {
            NewKey::Recipient(recipient) => Ok(Encryption {
                recipient: Self::recipient(recipient)?,
                identity: None,
            }),
            NewKey::Passphrase(passphrase) => {
                let identity = x25519::Identity::generate();
                let recipient = scrypt::Recipient::new(SecretString::from(passphrase.clone()));
                let text = identity.to_string();
                let sealed = age::encrypt(&recipient, text.expose_secret().as_bytes());
                let sealed = sealed.map_err(|e| Error::Unsealing(e.to_string()))?;
                Ok(Encryption {
                    recipient: identity.to_public().to_string(),
                    identity: Some(sealed.iter().map(|byte| format!("{byte:02x}")).collect()),
                })
            }
        }
    }

    fn recipient(text: &str) -> Result<String> {
        parse_recipient(text.trim()).map(|recipient| recipient.to_string())
    }

    fn of(encryption: &Encryption, key: Option<&Key>) -> Result<Self> {
        let recipient = parse_recipient(&encryption.recipient)?;
        let identity = key.map(|key| identity(encryption, key)).transpose()?;
        if identity
            .as_ref()
            .is_some_and(|identity| identity.to_public().to_string() != encryption.recipient)
        {
            return Err(Error::Unsealing(
                "this identity is not the one of the backup".into(),
            ));
        }
        Ok(Self {
            recipient,
            identity,
        })
    }

    fn opens(&self) -> bool {
        self.identity.is_some()
    }

    fn close(&self, frame: &[u8]) -> Result<Vec<u8>> {
        age::encrypt(&self.recipient, frame).map_err(|e| Error::Unsealing(e.to_string()))
    }

    fn open(&self, name: &str, frame: &[u8]) -> Result<Vec<u8>> {
        let identity = self.identity.as_ref().ok_or(Error::Sealed)?;
        age::decrypt(identity, frame).map_err(|why| Error::damaged(name, why))
    }
}

fn parse_recipient(text: &str) -> Result<x25519::Recipient> {
    x25519::Recipient::from_str(text)
        .map_err(|why| Error::Unsealing(format!("{text} is no age recipient (age1...): {why}")))
}

fn identity(encryption: &Encryption, key: &Key) -> Result<x25519::Identity> {
    let wrong = |why: &str| Error::Unsealing(why.to_owned());
    let text = match key {
        Key::Identity(text) => text.clone(),
        Key::Passphrase(passphrase) => {
            let Some(sealed) = &encryption.identity else {
                return Err(wrong(
                    "this backup has no passphrase: its owner has the identity (--identity FILE)",
                ));
            };
            let sealed = digits(sealed).ok_or_else(|| wrong("the root object is damaged"))?;
            let mut opener = scrypt::Identity::new(SecretString::from(passphrase.clone()));
            opener.set_max_work_factor(MAX_WORK);
            let opened = age::decrypt(&opener, &sealed);
            let opened = opened.map_err(|_| wrong("the passphrase is wrong"))?;
            String::from_utf8(opened).map_err(|_| wrong("the root object is damaged"))?
        }
    };
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with("AGE-SECRET-KEY-1"));
    let line = line.ok_or_else(|| wrong("there is no AGE-SECRET-KEY-1... in it"))?;
    x25519::Identity::from_str(line).map_err(wrong)
}

fn digits(text: &str) -> Option<Vec<u8>> {
    let byte = |i: usize| u8::from_str_radix(text.get(i..i + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Seal;
    use super::*;

    #[test]
    fn passphrase_opens_what_was_closed() {
        let encryption = NewKey::Passphrase("stone".into()).encryption().unwrap();
        let writer = Seal::of(Some(&encryption), None).unwrap();
        let closed = writer.close(b"contents".to_vec()).unwrap();
        assert!(matches!(writer.open("x", &closed), Err(Error::Sealed)));

        let reader = |key| Seal::of(Some(&encryption), Some(&key));
        let open = reader(Key::Passphrase("stone".into())).unwrap();
        assert_eq!(open.open("x", &closed).unwrap().as_ref(), b"contents");
        assert!(reader(Key::Passphrase("pebble".into())).is_err());

        let other = x25519::Identity::generate().to_string();
        let other = reader(Key::Identity(other.expose_secret().to_owned()));
        assert!(other.is_err(), "an identity of something else");
    }
}

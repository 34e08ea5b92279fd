//! Encryption of frames, in the format of age: each frame is an age file for the backup's recipient.
//!
//! So a range of an object can be read alone, and the age program can decrypt it with the identity.
//! A writer needs the recipient only. The identity is in the root object under a passphrase, or with its
//! owner alone. Uses the error type and the root object.

use std::str::FromStr;

use age::secrecy::{ExposeSecret, SecretString};
use age::{scrypt, x25519};

use crate::error::{Error, Result};
use crate::format::root::Encryption;

/// The most work that a passphrase may ask for, as a power of two: about a minute and a gigabyte.
const MAX_WORK: u8 = 20;

/// What opens an encrypted backup.
#[derive(Clone)]
pub enum Key {
    /// The passphrase of the identity in the root object.
    Passphrase(String),
    /// The identity itself: the text of an age identity file.
    Identity(String),
}

/// How a new backup is encrypted.
#[derive(Clone)]
pub enum NewKey {
    /// A new identity, in the root object under this passphrase.
    Passphrase(String),
    /// For this recipient; its owner keeps the identity.
    Recipient(String),
}

impl NewKey {
    /// Checks that a backup can be encrypted for it.
    ///
    /// # Errors
    /// The recipient is none.
    pub fn check_recipient(&self) -> Result<()> {
        match self {
            Self::Recipient(recipient) => parse_recipient(recipient.trim()).map(drop),
            Self::Passphrase(_) => Ok(()),
        }
    }

    /// What the root object says of it.
    ///
    /// # Errors
    /// The recipient is none.
    pub fn encryption(&self) -> Result<Encryption> {
        match self {
            Self::Recipient(recipient) => Ok(Encryption {
                recipient: parse_recipient(recipient.trim())?.to_string(),
                identity: None,
            }),
            Self::Passphrase(passphrase) => {
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
}

impl NewKey {
    /// Whether a backup that is there already is encrypted so. A program that can write to the
    /// store can have put another root object there; it cannot change what the caller asks for.
    ///
    /// # Errors
    /// It is not encrypted, or for somebody else.
    pub(crate) fn check(&self, encryption: Option<&Encryption>) -> Result<()> {
        let Some(encryption) = encryption else {
            return Err(Error::Unsealing(
                "this backup exists and is not encrypted: give another prefix for an encrypted one"
                    .into(),
            ));
        };
        match self {
            Self::Passphrase(passphrase) => {
                let key = Key::Passphrase(passphrase.clone());
                Seal::of(Some(encryption), Some(&key)).map(drop)
            }
            Self::Recipient(recipient) => {
                let wanted = parse_recipient(recipient.trim())?.to_string();
                if wanted == encryption.recipient {
                    Ok(())
                } else {
                    Err(Error::Unsealing(format!(
                        "this backup is encrypted for {}, not for {wanted}: nothing was stored; give \
                         another prefix, or find out who has changed it",
                        encryption.recipient
                    )))
                }
            }
        }
    }
}

/// What frames are written and read with.
#[derive(Default)]
pub struct Seal {
    recipient: Option<x25519::Recipient>,
    identity: Option<x25519::Identity>,
}

impl Seal {
    /// That of a backup, with what is known of its identity.
    ///
    /// # Errors
    /// The key does not fit, or the backup is not encrypted.
    pub fn of(encryption: Option<&Encryption>, key: Option<&Key>) -> Result<Self> {
        let Some(encryption) = encryption else {
            return match key {
                Some(_) => Err(Error::Unsealing("the backup is not encrypted".into())),
                None => Ok(Self::default()),
            };
        };
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
            recipient: Some(recipient),
            identity,
        })
    }

    /// Whether contents can be read.
    pub fn opens(&self) -> bool {
        self.recipient.is_none() || self.identity.is_some()
    }

    /// A frame as it is stored.
    ///
    /// # Errors
    /// None that is known.
    pub fn close(&self, frame: Vec<u8>) -> Result<Vec<u8>> {
        match &self.recipient {
            None => Ok(frame),
            Some(recipient) => {
                age::encrypt(recipient, &frame).map_err(|e| Error::Unsealing(e.to_string()))
            }
        }
    }

    /// The reverse.
    ///
    /// # Errors
    /// The identity is not there, or the frame is not for it.
    pub fn open<'a>(&self, name: &str, frame: &'a [u8]) -> Result<std::borrow::Cow<'a, [u8]>> {
        match (&self.recipient, &self.identity) {
            (None, _) => Ok(frame.into()),
            (Some(_), None) => Err(Error::Sealed),
            (Some(_), Some(identity)) => {
                let opened = age::decrypt(identity, frame);
                Ok(opened.map_err(|why| Error::damaged(name, why))?.into())
            }
        }
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

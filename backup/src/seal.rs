//! Encryption of frames: who can write and read them. Without a key they are stored as they are.
//!
//! The format is that of age (`age_files`), in programs that were built with the feature `encryption`;
//! the others refuse each use of it (`without`). A writer needs the recipient only. The identity is in
//! the root object under a passphrase, or with its owner alone. Uses the error type and the root object.

#[cfg(feature = "encryption")]
mod age_files;
#[cfg(any(test, not(feature = "encryption")))]
mod without;

use std::borrow::Cow;

#[cfg(feature = "encryption")]
use self::age_files::AgeFiles as Lock;
#[cfg(not(feature = "encryption"))]
use self::without::Without as Lock;
use crate::error::{Error, Result};
use crate::format::root::Encryption;

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

/// What encryption has to offer. There is one implementation for each kind of build.
trait Cipher: Sized {
    /// What the root object says of a backup that is encrypted so.
    ///
    /// # Errors
    /// The recipient is none.
    fn encryption(new_key: &NewKey) -> Result<Encryption>;

    /// A recipient as the root object names it.
    ///
    /// # Errors
    /// It is none.
    fn recipient(text: &str) -> Result<String>;

    /// What frames of an encrypted backup are written with, and read if there is a key.
    ///
    /// # Errors
    /// The key does not fit.
    fn of(encryption: &Encryption, key: Option<&Key>) -> Result<Self>;

    /// Whether frames can be read.
    fn opens(&self) -> bool;

    /// A frame as it is stored.
    fn close(&self, frame: &[u8]) -> Result<Vec<u8>>;

    /// The reverse.
    ///
    /// # Errors
    /// The identity is not there, or the frame, of the object `name`, is not for it.
    fn open(&self, name: &str, frame: &[u8]) -> Result<Vec<u8>>;
}

/// Whether this program can write and read encrypted backups.
///
/// # Errors
/// It was built without: [`Error::NoEncryption`].
pub fn can_encrypt() -> Result<()> {
    if cfg!(feature = "encryption") {
        Ok(())
    } else {
        Err(Error::NoEncryption)
    }
}

impl NewKey {
    /// Checks that a backup can be encrypted for it.
    ///
    /// # Errors
    /// The recipient is none, or this program does not encrypt.
    pub fn check_recipient(&self) -> Result<()> {
        match self {
            Self::Recipient(recipient) => Lock::recipient(recipient).map(drop),
            Self::Passphrase(_) => can_encrypt(),
        }
    }

    /// What the root object says of it.
    ///
    /// # Errors
    /// The recipient is none, or this program does not encrypt.
    pub fn encryption(&self) -> Result<Encryption> {
        Lock::encryption(self)
    }

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
                let wanted = Lock::recipient(recipient)?;
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
    /// `None` if the backup is not encrypted.
    lock: Option<Lock>,
}

impl Seal {
    /// That of a backup, with what is known of its identity.
    ///
    /// # Errors
    /// The key does not fit, the backup is not encrypted, or it is, and this program does not decrypt.
    pub fn of(encryption: Option<&Encryption>, key: Option<&Key>) -> Result<Self> {
        if encryption.is_none() && key.is_some() {
            return Err(Error::Unsealing("the backup is not encrypted".into()));
        }
        let lock = encryption.map(|encryption| Lock::of(encryption, key));
        Ok(Self {
            lock: lock.transpose()?,
        })
    }

    /// Whether contents can be read.
    pub fn opens(&self) -> bool {
        self.lock.as_ref().is_none_or(Lock::opens)
    }

    /// A frame as it is stored.
    ///
    /// # Errors
    /// None that is known.
    pub fn close(&self, frame: Vec<u8>) -> Result<Vec<u8>> {
        match &self.lock {
            None => Ok(frame),
            Some(lock) => lock.close(&frame),
        }
    }

    /// The reverse.
    ///
    /// # Errors
    /// The identity is not there, or the frame is not for it.
    pub fn open<'a>(&self, name: &str, frame: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        match &self.lock {
            None => Ok(frame.into()),
            Some(lock) => lock.open(name, frame).map(Cow::Owned),
        }
    }
}

//! Programs that were built without encryption: each use of it is refused, and nothing is read or stored.

use super::{Cipher, Key, NewKey};
use crate::error::{Error, Result};
use crate::format::root::Encryption;

/// There is none.
pub enum Without {}

impl Cipher for Without {
    fn encryption(_new_key: &NewKey) -> Result<Encryption> {
        Err(Error::NoEncryption)
    }

    fn recipient(_text: &str) -> Result<String> {
        Err(Error::NoEncryption)
    }

    fn of(_encryption: &Encryption, _key: Option<&Key>) -> Result<Self> {
        Err(Error::NoEncryption)
    }

    fn opens(&self) -> bool {
        match *self {}
    }

    fn close(&self, _frame: &[u8]) -> Result<Vec<u8>> {
        match *self {}
    }

    fn open(&self, _name: &str, _frame: &[u8]) -> Result<Vec<u8>> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_of_encryption_is_refused_and_told_what_to_do() {
        let recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
        let encryption = Encryption {
            recipient: recipient.into(),
            identity: None,
        };
        let key = Key::Identity("AGE-SECRET-KEY-1".into());
        let refused = [
            Without::encryption(&NewKey::Passphrase("stone".into())).err(),
            Without::encryption(&NewKey::Recipient(recipient.into())).err(),
            Without::recipient(recipient).err(),
            Without::of(&encryption, None).err(),
            Without::of(&encryption, Some(&key)).err(),
        ];
        for why in refused {
            assert!(matches!(why, Some(Error::NoEncryption)), "{why:?}");
            let told = why.unwrap().to_string();
            assert!(told.contains("cargo install --path cli --features encryption"));
        }
    }
}

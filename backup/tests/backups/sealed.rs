//! Encrypted backups: written without the key, read with it, and readable by age itself.

use std::sync::Arc;

use cairnfs_backup::format::root::Root;
use cairnfs_backup::{
    Catalogue, Error, Image, Keep, Key, NewKey, PruneOptions, Seal, Shipper, Unwatched,
    WriterOptions, check, prune, restore,
};
use jiff::tz::TimeZone;

use crate::store::{Objects, Trouble};
use crate::volume::{Volume, contents};

/// Two who can read. That of a passphrase takes a second to make.
const OURS: &str = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";
const THEIRS: &str = "age1lggyhqrw2nlhcxprm67z43rta597azn8gknawjehu9d9dl0jq3yqqvfafg";

fn options() -> WriterOptions {
    WriterOptions {
        name: "here".into(),
        new_key: Some(NewKey::Passphrase("stone".into())),
        ..WriterOptions::default()
    }
}

fn seal(root: &Root, key: Option<&Key>) -> Result<Arc<Seal>, Error> {
    Seal::of(root.encryption.as_ref(), key).map(Arc::new)
}

#[test]
fn an_encrypted_backup_is_read_with_its_passphrase_only() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 300));
    volume.write(0, 100, 1);
    let store = objects.client(Trouble::None);
    for round in 0..3 {
        // A later run needs no key, and no words about encryption.
        let options = WriterOptions {
            new_key: options().new_key.filter(|_| round == 0),
            ..options()
        };
        let mut shipper = Shipper::open(Arc::clone(&store), &volume, options).unwrap();
        volume.write(10 * round, 5, round);
        volume.free(90 - round, 1);
        shipper.ship(&volume, &Unwatched).unwrap();
    }
    let catalogue = Catalogue::open(&store).unwrap();
    let key = Key::Passphrase("stone".into());
    let open = seal(catalogue.root(), Some(&key)).unwrap();
    assert_eq!(objects.verify_with(&volume, Arc::clone(&open)).len(), 3);

    // Without the key all but contents is checked, and nothing is restored.
    let shut = seal(catalogue.root(), None).unwrap();
    let report = check(&store, &catalogue, &shut, true, &Unwatched).unwrap();
    assert_eq!((report.problems.len(), report.moments), (0, 3));
    let moment = catalogue.moment_at(None).unwrap();
    let image = Image::open(Arc::clone(&store), shut, &catalogue, moment).unwrap();
    let file = tempfile::tempfile().unwrap();
    let refused = restore(&image, &file, &Unwatched).unwrap_err();
    assert!(matches!(refused, Error::Sealed), "{refused}");

    // Moments go without the key, layers are merged with it.
    let keep = Keep {
        last: 1,
        ..Keep::default()
    };
    let mut options = PruneOptions {
        keep,
        ..PruneOptions::default()
    };
    let pruned = prune(&store, &options, &TimeZone::UTC, &Unwatched).unwrap();
    assert_eq!((pruned.removed.len(), pruned.merged), (2, 0));
    options.key = Some(key);
    prune(&store, &options, &TimeZone::UTC, &Unwatched).unwrap();
    assert_eq!(objects.verify_with(&volume, open).len(), 1);
}

#[test]
fn no_contents_are_in_the_objects() {
    let (objects, volume) = (Objects::default(), Volume::new("v", 100));
    // Contents that are not compressed.
    volume.write(3, 1, 3);
    let seed = 3_u64 * 1000 + 3;
    assert_eq!(seed % 3, 0);
    let store = objects.client(Trouble::None);
    let mut shipper = Shipper::open(store, &volume, options()).unwrap();
    shipper.ship(&volume, &Unwatched).unwrap();
    let part = &contents(seed)[1000..1100];
    for name in objects.names() {
        let bytes = objects.bytes(&name);
        assert!(
            !bytes.windows(part.len()).any(|some| some == part),
            "{name}"
        );
    }
}

/// The root object that an attacker with the store would like.
fn exchange_root(objects: &Objects, change: impl FnOnce(&mut Root)) {
    let name = objects.root();
    let mut root = Root::decode(&objects.bytes(&name)).unwrap();
    change(&mut root);
    objects.set(&name, root.encode().unwrap().into());
}

#[test]
fn a_root_object_that_was_exchanged_is_refused() {
    let exchanges: [&dyn Fn(&mut Root); 2] = [&|root| root.encryption = None, &|root| {
        root.encryption
            .as_mut()
            .unwrap()
            .recipient
            .replace_range(.., THEIRS);
    }];
    for exchange in exchanges {
        let (objects, volume) = (Objects::default(), Volume::new("v", 100));
        volume.write(0, 10, 1);
        let store = objects.client(Trouble::None);
        let made = WriterOptions {
            new_key: Some(NewKey::Recipient(OURS.into())),
            ..options()
        };
        let mut shipper = Shipper::open(Arc::clone(&store), &volume, made).unwrap();
        shipper.ship(&volume, &Unwatched).unwrap();
        exchange_root(&objects, exchange);
        volume.write(0, 10, 2);
        let before = objects.names();
        let options = WriterOptions {
            new_key: None,
            ..options()
        };
        let refused = Shipper::open(Arc::clone(&store), &volume, options).err();
        assert!(
            matches!(refused, Some(Error::Damaged { .. })),
            "{refused:?}"
        );
        assert!(refused.unwrap().to_string().contains("exchanged"));
        assert!(Catalogue::open(&store).is_err());
        assert_eq!(objects.names(), before);
    }
}

/// All heads can be made anew by whoever can write; then only the caller's word helps.
#[test]
fn a_backup_for_another_recipient_than_the_one_that_is_named_is_refused() {
    let open = |objects: &Objects, new_key: Option<NewKey>| {
        let options = WriterOptions {
            new_key,
            ..options()
        };
        let volume = Volume::new("v", 100);
        volume.write(0, 10, 1);
        let mut shipper = Shipper::open(objects.client(Trouble::None), &volume, options)?;
        shipper.ship(&volume, &Unwatched).map(drop)
    };
    let named = |name: &str| Some(NewKey::Recipient(name.into()));
    let phrase = |words: &str| Some(NewKey::Passphrase(words.into()));
    for made in [named(THEIRS), phrase("theirs"), None] {
        let objects = Objects::default();
        open(&objects, made.clone()).unwrap();
        let before = objects.names();
        for key in [named(OURS), phrase("ours")] {
            let refused = open(&objects, key).err();
            assert!(matches!(refused, Some(Error::Unsealing(_))), "{refused:?}");
        }
        assert_eq!(objects.names(), before);
        // The right one goes on.
        open(&objects, made).unwrap();
    }
}

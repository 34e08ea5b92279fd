//! The store's own rules: names, ETags, what listings show, what stays after failures.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::collections::HashSet;

use cairnfs::Volume;
use cairnfs_object_store::{CairnStore, Refused};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error, GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, Result, TagSet, UpdateVersion,
};

fn volume() -> Volume {
    Volume::in_memory(256 << 20).unwrap()
}

fn store() -> CairnStore {
    CairnStore::new(volume()).unwrap()
}

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

async fn names(store: &CairnStore, prefix: Option<&str>) -> Vec<String> {
    let prefix = prefix.map(path);
    let listed = store.list(prefix.as_ref()).map_ok(|m| m.location.into());
    listed.try_collect().await.unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, expected: &Refused) {
    let error = result.unwrap_err();
    let Error::Generic { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(source.downcast_ref::<Refused>(), Some(expected));
}

#[tokio::test]
async fn names_that_no_file_can_have_are_refused() {
    let store = store();
    let long = "x".repeat(256);
    let staging = ".cairnfs-staging/a";
    for (name, expected) in [
        ("", Refused::Root),
        (&*format!("a/{long}"), Refused::TooLong(format!("a/{long}"))),
        (staging, Refused::Reserved(staging.into())),
    ] {
        let name = path(name);
        refused(store.put(&name, "x".into()).await, &expected);
        refused(store.put_multipart(&name).await, &expected);
        assert!(matches!(
            store.get(&name).await,
            Err(Error::NotFound { .. })
        ));
        store.delete(&name).await.unwrap();
        assert!(names(&store, Some(name.as_ref())).await.is_empty());
    }
    store
        .put(&path(&"x".repeat(255)), "x".into())
        .await
        .unwrap();
    assert!(Path::parse("a/../b").is_err());
}

#[tokio::test]
async fn object_and_objects_below_it_exclude_each_other() {
    let store = store();
    store.put(&path("a"), "1".into()).await.unwrap();
    let below = Refused::Below("a/b/c".into());
    for mode in [PutMode::Overwrite, PutMode::Create] {
        let put = store
            .put_opts(&path("a/b/c"), "2".into(), mode.into())
            .await;
        refused(put, &below);
    }
    refused(store.rename(&path("a"), &path("a/b/c")).await, &below);
    store.delete(&path("a")).await.unwrap();
    store.put(&path("a/b/c"), "3".into()).await.unwrap();
    let above = Refused::Above("a/b".into());
    for mode in [PutMode::Overwrite, PutMode::Create] {
        let put = store.put_opts(&path("a/b"), "4".into(), mode.into()).await;
        refused(put, &above);
    }
    assert!(matches!(
        store.get(&path("a/b")).await,
        Err(Error::NotFound { .. })
    ));
    store.delete(&path("a/b")).await.unwrap();
    assert_eq!(names(&store, None).await, ["a/b/c"]);
}

#[tokio::test]
async fn directories_without_objects_do_not_exist() {
    let volume = volume();
    let store = CairnStore::new(volume.clone()).unwrap();
    volume.create_dir_all("empty/below/more").unwrap();
    let listed = store.list_with_delimiter(None).await.unwrap();
    assert!(listed.common_prefixes.is_empty());
    store.put(&path("empty/below"), "1".into()).await.unwrap();
    assert_eq!(names(&store, None).await, ["empty/below"]);
    store.delete(&path("empty/below")).await.unwrap();
    assert!(!volume.exists("empty").unwrap(), "a delete removes them");
    store.put(&path("a/b/c"), "1".into()).await.unwrap();
    store.rename(&path("a/b/c"), &path("d")).await.unwrap();
    assert!(!volume.exists("a").unwrap(), "a rename removes them");
}

#[tokio::test]
async fn only_files_with_names_of_locations_are_objects() {
    let volume = volume();
    let store = CairnStore::new(volume.clone()).unwrap();
    volume.write("file", "1").unwrap();
    volume.write("control\u{1}", "2").unwrap();
    volume.symlink("file", "link").unwrap();
    volume.mknod("pipe", fifo(), 0).unwrap();
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::ffi::OsStr::from_bytes(b"\xff");
    volume.write(bytes, "3").unwrap();
    assert_eq!(names(&store, None).await, ["file"]);
    for name in ["link", "pipe"] {
        let found = store.head(&path(name)).await;
        assert!(matches!(found, Err(Error::NotFound { .. })), "{found:?}");
    }
    store.put(&path("link"), "4".into()).await.unwrap();
    assert_eq!(
        volume.read("file").unwrap(),
        b"1",
        "a link is replaced, not followed"
    );
}

fn fifo() -> u32 {
    cairnfs::FileKind::Fifo.mode_bits() | 0o600
}

#[tokio::test]
async fn listing_is_in_order_and_begins_behind_the_offset() {
    let store = store();
    let all = [
        "a b", "a-", "a/1", "a/2/x", "a/2/y", "a/2-", "a0", "b/c", "\u{e9}",
    ];
    for name in all {
        store.put(&path(name), "x".into()).await.unwrap();
    }
    let mut sorted = all.map(str::to_owned).to_vec();
    sorted.sort_unstable();
    assert_eq!(names(&store, None).await, sorted);
    for offset in ["", "a", "a/2", "a/2/x", "a/2/", "a/3", "b", "b/c", "zz"] {
        // `a/2/` ends with a slash, which a location does not.
        let offset = path(offset);
        let listed = store.list_with_offset(None, &offset);
        let listed: Vec<String> = listed
            .map_ok(|m| m.location.into())
            .try_collect()
            .await
            .unwrap();
        let behind: Vec<String> = sorted
            .iter()
            .filter(|n| n.as_str() > offset.as_ref())
            .cloned()
            .collect();
        assert_eq!(listed, behind, "{offset}");
    }
}

#[tokio::test]
async fn every_put_has_an_e_tag_of_its_own() {
    let store = store().with_durable_calls(false);
    let mut seen = HashSet::new();
    for n in 0..500 {
        let put = store.put(&path("same"), "x".into()).await.unwrap();
        let tag = put.e_tag.unwrap();
        let head = store.head(&path("same")).await.unwrap();
        assert_eq!(head.e_tag.as_deref(), Some(&*tag));
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(listed, [head]);
        assert!(seen.insert(tag), "put {n}");
    }
}

/// Two stores of one volume, each with half of the threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditional_puts_of_two_stores_lose_no_update() {
    let volume = volume();
    let one = CairnStore::new(volume.clone())
        .unwrap()
        .with_durable_calls(false);
    let other = CairnStore::new(volume).unwrap().with_durable_calls(false);
    let counter = path("d/counter");
    one.put(&counter, "0".into()).await.unwrap();
    let count = |store: CairnStore| {
        let counter = counter.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                loop {
                    let read = store.get(&counter).await.unwrap();
                    let version = UpdateVersion {
                        e_tag: read.meta.e_tag.clone(),
                        version: None,
                    };
                    let text = read.bytes().await.unwrap();
                    let number: u32 = std::str::from_utf8(&text).unwrap().parse().unwrap();
                    let next = (number + 1).to_string().into();
                    let mode = PutMode::Update(version);
                    match store.put_opts(&counter, next, mode.into()).await {
                        Ok(_) => break,
                        Err(Error::Precondition { .. }) => {}
                        Err(e) => panic!("{e}"),
                    }
                }
            }
        })
    };
    let all = [
        count(one.clone()),
        count(other.clone()),
        count(one.clone()),
        count(other),
    ];
    for task in all {
        task.await.unwrap();
    }
    let sum = one.get(&counter).await.unwrap().bytes().await.unwrap();
    assert_eq!(sum, "200");
    assert_eq!(names(&one, None).await, ["d/counter"]);
}

/// Puts and deletes in directories that each of them creates and removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_succeed_while_deletes_remove_their_directories() {
    let store = store().with_durable_calls(false);
    let tasks = (0..4).map(|n| {
        let store = store.clone();
        tokio::spawn(async move {
            let location = path(&format!("a/b/c/{n}"));
            for round in 0..200 {
                let mode = match round % 2 {
                    0 => PutMode::Create,
                    _ => PutMode::Overwrite,
                };
                store
                    .put_opts(&location, "x".into(), mode.into())
                    .await
                    .unwrap();
                store.delete(&location).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(names(&store, None).await, [""; 0]);
    assert!(!store.volume().exists("a").unwrap());
}

#[tokio::test]
async fn reader_keeps_the_object_that_it_opened() {
    let store = store();
    let location = path("large");
    let old = vec![1; 5 << 20];
    store.put(&location, old.clone().into()).await.unwrap();
    let mut reading = store.get(&location).await.unwrap().into_stream();
    let mut read = reading.next().await.unwrap().unwrap().to_vec();
    store.put(&location, vec![2; 5 << 20].into()).await.unwrap();
    store.delete(&location).await.unwrap();
    while let Some(bytes) = reading.next().await {
        read.extend_from_slice(&bytes.unwrap());
    }
    assert!(read == old);
}

#[tokio::test]
async fn uploads_that_fail_leave_nothing() {
    let volume = volume();
    let store = CairnStore::new(volume.clone()).unwrap();
    let mut upload = store.put_multipart(&path("a/b")).await.unwrap();
    let unawaited = upload.put_part("x".into());
    upload.put_part("y".into()).await.unwrap();
    let failed = upload.complete().await.unwrap_err();
    assert!(failed.to_string().contains("not awaited"), "{failed}");
    drop(unawaited);
    upload.abort().await.unwrap();
    upload.put_part("z".into()).await.unwrap_err();
    upload.complete().await.unwrap_err();
    drop(upload);
    assert_eq!(names(&store, None).await, [""; 0]);
    assert!(volume.read_dir("/").unwrap().next().is_none());
}

#[tokio::test]
async fn attributes_are_extended_attributes_and_go_with_copies() {
    let store = store();
    let attributes = Attributes::from_iter([
        (Attribute::ContentType, "text/plain"),
        (Attribute::Metadata("who".into()), "me"),
    ]);
    let options: PutOptions = attributes.clone().into();
    store
        .put_opts(&path("a"), "1".into(), options)
        .await
        .unwrap();
    store.copy(&path("a"), &path("b")).await.unwrap();
    store.rename(&path("b"), &path("c")).await.unwrap();
    let read = store.get(&path("c")).await.unwrap();
    assert_eq!(read.attributes, attributes);
    let names = store.volume().list_xattrs("c").unwrap();
    assert_eq!(names.len(), 2);
    let kind = store.volume().get_xattr("c", "user.object.content-type");
    assert_eq!(kind.unwrap().as_deref(), Some(&b"text/plain"[..]));
    store.volume().set_xattr("c", "user.other", b"x").unwrap();
    assert_eq!(store.get(&path("c")).await.unwrap().attributes, attributes);
}

#[tokio::test]
async fn tags_and_versions_are_not_supported() {
    let store = store();
    let mut tags = TagSet::default();
    tags.push("a", "b");
    let put = store.put_opts(&path("a"), "1".into(), tags.into()).await;
    assert!(matches!(put, Err(Error::NotSupported { .. })), "{put:?}");
    store.put(&path("a"), "1".into()).await.unwrap();
    let options = GetOptions::new().with_version(Some("1"));
    let get = store.get_opts(&path("a"), options).await;
    assert!(matches!(get, Err(Error::NotSupported { .. })), "{get:?}");
}

#[tokio::test]
async fn ranges_at_and_beyond_the_end() {
    let store = store();
    store.put(&path("a"), "0123456789".into()).await.unwrap();
    let ranges = [0..1, 8..10, 9..20];
    let read = store.get_ranges(&path("a"), &ranges).await.unwrap();
    assert_eq!(read, ["0", "89", "9"]);
    store
        .get_ranges(&path("a"), &[0..1, 10..11])
        .await
        .unwrap_err();
    store.get_range(&path("a"), 5..5).await.unwrap_err();
    store
        .get_range(&path("a"), u64::MAX - 1..u64::MAX)
        .await
        .unwrap_err();
}

/// What a crash between link and rename leaves has the name of a process that ended.
#[tokio::test]
async fn leftovers_of_other_processes_are_removed_at_opening() {
    let volume = volume();
    volume.create_dir(".cairnfs-staging").unwrap();
    volume
        .write(".cairnfs-staging/0000000000000000-7", "left")
        .unwrap();
    let store = CairnStore::new(volume.clone()).unwrap();
    assert!(
        volume
            .read_dir(".cairnfs-staging")
            .unwrap()
            .next()
            .is_none()
    );
    assert!(names(&store, None).await.is_empty());
    let listed = store.list_with_delimiter(None).await.unwrap();
    assert!(listed.common_prefixes.is_empty() && listed.objects.is_empty());
}

#[tokio::test]
async fn delete_stream_answers_in_order() {
    let store = store();
    for n in 0..600 {
        let location = path(&format!("d/{n}"));
        store.put(&location, "x".into()).await.unwrap();
    }
    let locations: Vec<Path> = (0..600).rev().map(|n| path(&format!("d/{n}"))).collect();
    let given = stream::iter(locations.clone()).map(Ok).boxed();
    let deleted: Vec<Path> = store.delete_stream(given).try_collect().await.unwrap();
    assert_eq!(deleted, locations);
    assert!(names(&store, None).await.is_empty());
}

#[tokio::test]
async fn deletes_and_renames_return_when_they_are_durable() {
    let options = Volume::options().size(64 << 20).durability_interval(None);
    let volume = options.in_memory().unwrap();
    let store = CairnStore::new(volume.clone()).unwrap();
    store.put(&path("a"), "1".into()).await.unwrap();
    store.rename(&path("a"), &path("b")).await.unwrap();
    let renamed = volume.sequence();
    store.delete(&path("b")).await.unwrap();
    assert!(volume.is_durable(renamed));
    let lazy = store.with_durable_calls(false);
    lazy.put(&path("a"), "1".into()).await.unwrap();
    let put = volume.sequence();
    lazy.delete(&path("a")).await.unwrap();
    assert!(!volume.is_durable(put));
}

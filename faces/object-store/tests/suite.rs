//! The public tests of object stores, each that the memory store of `object_store` passes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use cairnfs::Volume;
use cairnfs_object_store::CairnStore;
use object_store::integration::*;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{Error, ObjectStore};

fn store() -> CairnStore {
    CairnStore::new(Volume::in_memory(256 << 20).unwrap()).unwrap()
}

/// What a store of any kind passes.
async fn passes(store: &dyn ObjectStore) {
    put_get_delete_list(store).await;
    list_with_offset_exclusivity(store).await;
    get_opts(store).await;
    list_uses_directories_correctly(store).await;
    list_with_delimiter(store).await;
    rename_and_copy(store).await;
    copy_if_not_exists(store).await;
    copy_rename_nonexistent_object(store).await;
    stream_get(store).await;
    put_opts(store, true).await;
    put_get_attributes(store).await;
    multipart_race_condition(store, true).await;
    multipart_out_of_order(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_passes_the_public_tests() {
    let store = store();
    passes(&store).await;
    multipart(&store, &store).await;
    multipart_with_opts(&store, &store).await;
    multipart_put_part_out_of_order(&store, &store).await;
}

#[tokio::test]
async fn boxed_and_shared_stores_pass_the_public_tests() {
    let boxed: Box<dyn ObjectStore> = Box::new(store());
    passes(&boxed).await;
    let shared: Arc<dyn ObjectStore> = Arc::new(store());
    passes(&shared).await;
}

#[tokio::test]
async fn directory_and_prefix_pass_the_public_tests_beside_other_files() {
    let volume = Volume::in_memory(256 << 20).unwrap();
    volume
        .write("beside", "not an object of the store")
        .unwrap();
    volume.create_dir("stores").unwrap();
    volume.symlink("stores", "link").unwrap();
    let below = CairnStore::in_directory(volume.clone(), "link/one").unwrap();
    assert_eq!(below.to_string(), "CairnFS(/stores/one)");
    passes(&below.clone().with_durable_calls(false)).await;
    passes(&PrefixStore::new(below, "pre/fix")).await;
    assert_eq!(volume.read_to_string("beside").unwrap().len(), 26);
}

#[tokio::test]
async fn missing_objects_are_not_found() {
    let error = get_nonexistent_object(&store(), Some(Path::from("a/missing"))).await;
    assert!(matches!(error, Err(Error::NotFound { .. })), "{error:?}");
}

/// Blocking calls run where they are called if there is no runtime of tokio.
#[test]
fn store_works_without_a_runtime() {
    let store = store();
    futures_util::future::FutureExt::now_or_never(passes_without_tokio(&store)).unwrap();
}

async fn passes_without_tokio(store: &CairnStore) {
    use object_store::ObjectStoreExt;
    let location = Path::from("a/b");
    store.put(&location, "bytes".into()).await.unwrap();
    let read = store.get(&location).await.unwrap().bytes().await.unwrap();
    assert_eq!(read, "bytes");
}

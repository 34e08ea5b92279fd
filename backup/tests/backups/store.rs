//! A store that fails as stores do, and the look at a backup through one that does not.
//!
//! A [`Client`] is one program's connection. By its [`Trouble`] requests fail before or after their
//! effect, are done later, twice or by half, and lists lack what is new; or the program ends at a request.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cairnfs_backup::format::root;
use cairnfs_backup::{
    Cache, Catalogue, Fetch, Image, MomentDevice, Seal, Store, Unwatched, check, restore,
};
use futures_util::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use parking_lot::Mutex;

use crate::volume::{BLOCK, Volume, contents};

/// What goes wrong at a client's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// The program ends at the request of this number; `true`: it has its effect still.
    EndsAt(u64, bool),
    /// No request gets an answer.
    Silence,
    /// Requests are refused.
    Refuses(Refusal),
    /// Each head that is not there is made up when it is read.
    Endless,
    /// All sorts, as the state of a generator of random numbers says.
    Random(u64),
}

/// Why a store refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Credentials have expired.
    Expired,
    /// They do not permit it.
    Denied,
    /// There is no such bucket.
    NoBucket,
    /// There is no space for what is put.
    Full,
}

impl Refusal {
    fn error(self, path: &Path) -> Error {
        let path = path.to_string();
        let source = "refused".into();
        match self {
            Self::Expired => Error::Unauthenticated { path, source },
            Self::Denied => Error::PermissionDenied { path, source },
            Self::NoBucket => Error::NotFound { path, source },
            Self::Full => Error::Generic {
                store: "simulated",
                source: std::io::Error::from(std::io::ErrorKind::StorageFull).into(),
            },
        }
    }
}

/// What goes wrong from now on.
pub struct Changeable(Arc<Client>);

impl Changeable {
    pub fn set(&self, trouble: Trouble) {
        self.0.own.lock().trouble = trouble;
    }
}

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct World {
    /// Puts that will be done when that many requests have been made.
    later: VecDeque<(u64, Path, Bytes, bool)>,
    /// Objects that lists may lack.
    new: VecDeque<Path>,
    requests: u64,
}

/// What all clients see.
#[derive(Clone, Default)]
pub struct Objects {
    pub memory: Arc<InMemory>,
    world: Arc<Mutex<World>>,
}

impl Objects {
    /// A store for a program whose requests fail so.
    pub fn client(&self, trouble: Trouble) -> Arc<Store> {
        self.watched(trouble, 0, None)
    }

    /// One that does something else before the request of this number.
    pub fn client_with(&self, at: u64, hook: impl FnOnce() + Send + 'static) -> Arc<Store> {
        self.watched(Trouble::None, at, Some(Box::new(hook)))
    }

    /// A store whose trouble begins and ends.
    pub fn changeable(&self) -> (Arc<Store>, Changeable) {
        let client = self.connect(Trouble::None, 0, None);
        let store = Store::new(client.clone(), Path::from("prefix")).unwrap();
        (Arc::new(store.without_pauses()), Changeable(client))
    }

    fn watched(&self, trouble: Trouble, at: u64, hook: Option<Hook>) -> Arc<Store> {
        let client = self.connect(trouble, at, hook);
        let store = Store::new(client, Path::from("prefix")).unwrap();
        Arc::new(store.without_pauses())
    }

    fn connect(&self, trouble: Trouble, at: u64, hook: Option<Hook>) -> Arc<Client> {
        Arc::new(Client {
            objects: self.clone(),
            own: Mutex::new(Own {
                trouble,
                requests: 0,
                hook_at: at,
                hook,
            }),
        })
    }

    /// Others with the same contents.
    pub fn copied(&self) -> Self {
        Self {
            memory: Arc::new(self.memory.fork()),
            world: Arc::default(),
        }
    }

    /// Everything that was delayed is done now.
    pub fn settle(&self) {
        let later = std::mem::take(&mut self.world.lock().later);
        for (_, path, bytes, create) in later {
            self.put_now(&path, &bytes, create).ok();
        }
        self.world.lock().new.clear();
    }

    fn put_now(&self, path: &Path, bytes: &Bytes, create: bool) -> Result<PutResult> {
        let mode = if create {
            PutMode::Create
        } else {
            PutMode::Overwrite
        };
        let payload = PutPayload::from_bytes(bytes.clone());
        now(self.memory.put_opts(path, payload, mode.into()))
    }

    pub fn names(&self) -> Vec<Path> {
        let listed = now(self.memory.list(None).collect::<Vec<_>>());
        listed
            .into_iter()
            .map(|meta| meta.unwrap().location)
            .collect()
    }

    /// The name of the root object.
    pub fn root(&self) -> Path {
        let mut names = self.names().into_iter();
        names
            .find(|name| name.as_ref().ends_with(root::NAME))
            .unwrap()
    }

    pub fn bytes(&self, path: &Path) -> Bytes {
        now(async { self.memory.get(path).await.unwrap().bytes().await.unwrap() })
    }

    pub fn set(&self, path: &Path, bytes: Bytes) {
        self.put_now(path, &bytes, false).unwrap();
    }

    pub fn remove(&self, path: &Path) {
        now(self.memory.delete(path)).unwrap();
    }

    /// Every moment that is kept is what it was made of, and the check finds nothing; returns the
    /// checkpoints.
    pub fn verify(&self, volume: &Volume) -> Vec<String> {
        self.verify_with(volume, Arc::default())
    }

    pub fn verify_with(&self, volume: &Volume, seal: Arc<Seal>) -> Vec<String> {
        let store = self.client(Trouble::None);
        let catalogue = match Catalogue::open(&store) {
            Err(cairnfs_backup::Error::NoBackup) => return Vec::new(),
            found => found.unwrap(),
        };
        let report = check(&store, &catalogue, &seal, true, &Unwatched).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        let moments = catalogue.moments().iter();
        let verified = moments.map(|moment| {
            let open =
                || Image::open(Arc::clone(&store), Arc::clone(&seal), &catalogue, moment).unwrap();
            let expected = volume.image(&moment.checkpoint);
            let file = tempfile::tempfile().unwrap();
            restore(&open(), &file, &Unwatched).unwrap();
            let mut restored = vec![0; moment.blocks as usize * BLOCK];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut restored, 0).unwrap();
            for (block, bytes) in (0..).zip(restored.chunks(BLOCK)) {
                let wanted = expected
                    .get(&block)
                    .map_or([0; BLOCK], |seed| contents(*seed));
                assert!(bytes == wanted, "block {block} of {}", moment.checkpoint);
            }
            for fetch in [Fetch::Frame, Fetch::Object] {
                let device = MomentDevice::new(open(), Cache::new(1 << 20, None).unwrap(), fetch);
                let mut read = vec![0; restored.len()];
                device.read_blocks(0, &mut read).unwrap();
                assert!(read == restored, "{fetch:?} of {}", moment.checkpoint);
            }
            moment.checkpoint.clone()
        });
        verified.collect()
    }
}

/// Runs a future that waits for nothing.
fn now<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).expect("memory answers at once")
}

struct Own {
    trouble: Trouble,
    requests: u64,
    hook_at: u64,
    hook: Option<Hook>,
}

/// A program's connection.
struct Client {
    objects: Objects,
    own: Mutex<Own>,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Refused,
    DoneWithoutAnswer,
    DoneLater,
    DoneTwice,
    Torn,
}

impl Client {
    fn fate(&self) -> Fate {
        let mut own = self.own.lock();
        own.requests += 1;
        if own.requests > own.hook_at
            && let Some(hook) = own.hook.take()
        {
            drop(own);
            // It waits for stores of its own, which this thread cannot do now.
            std::thread::spawn(hook).join().unwrap();
            own = self.own.lock();
        }
        self.late();
        let requests = own.requests;
        match &mut own.trouble {
            Trouble::None | Trouble::Silence | Trouble::Endless | Trouble::Refuses(_) => Fate::Done,
            Trouble::EndsAt(at, effect) if *at == requests && *effect => Fate::DoneWithoutAnswer,
            Trouble::EndsAt(at, _) if *at <= requests => Fate::Refused,
            Trouble::EndsAt(..) => Fate::Done,
            Trouble::Random(state) => match random(state) % 12 {
                0..4 => Fate::Refused,
                4 => Fate::DoneWithoutAnswer,
                5 => Fate::DoneLater,
                6 => Fate::DoneTwice,
                7 => Fate::Torn,
                _ => Fate::Done,
            },
        }
    }

    /// Does what was delayed until now.
    fn late(&self) {
        let mut world = self.objects.world.lock();
        world.requests += 1;
        let requests = world.requests;
        let all = std::mem::take(&mut world.later);
        let (due, later) = all.into_iter().partition(|(at, ..)| *at <= requests);
        world.later = later;
        drop(world);
        for (_, path, bytes, create) in due {
            self.objects.put_now(&path, &bytes, create).ok();
        }
    }

    /// Fails if the store refuses all requests.
    fn admit(&self, path: &Path) -> Result<()> {
        match self.own.lock().trouble {
            Trouble::Refuses(Refusal::Full) => Ok(()),
            Trouble::Refuses(refusal) => Err(refusal.error(path)),
            _ => Ok(()),
        }
    }

    fn is_troubled(&self) -> bool {
        matches!(self.own.lock().trouble, Trouble::Random(_))
    }

    fn draw(&self) -> u64 {
        match &mut self.own.lock().trouble {
            Trouble::Random(state) => random(state),
            _ => 0,
        }
    }

    fn later(&self, path: &Path, bytes: &Bytes, create: bool) {
        let due = self.draw() % 12;
        let mut world = self.objects.world.lock();
        let at = world.requests + due;
        world
            .later
            .push_back((at, path.clone(), bytes.clone(), create));
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

fn failed() -> Error {
    Error::Generic {
        store: "simulated",
        source: "no answer".into(),
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

#[async_trait]
impl ObjectStore for Client {
    async fn put_opts(
        &self,
        path: &Path,
        put: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if let Trouble::Refuses(refusal) = self.own.lock().trouble {
            return Err(refusal.error(path));
        }
        let bytes = Bytes::from(put);
        let create = options.mode == PutMode::Create;
        let fate = self.fate();
        if fate != Fate::Refused {
            let mut world = self.objects.world.lock();
            world.new.push_back(path.clone());
            if world.new.len() > 3 {
                world.new.pop_front();
            }
        }
        match fate {
            Fate::Done => self.objects.put_now(path, &bytes, create),
            Fate::Refused => Err(failed()),
            Fate::DoneWithoutAnswer => {
                self.objects.put_now(path, &bytes, create)?;
                Err(failed())
            }
            Fate::DoneLater => {
                self.later(path, &bytes, create);
                Err(failed())
            }
            Fate::DoneTwice => {
                let put = self.objects.put_now(path, &bytes, create)?;
                self.later(path, &bytes, create);
                Ok(put)
            }
            // What is put only if nothing is there appears whole.
            Fate::Torn if create => Err(failed()),
            Fate::Torn => {
                let half = bytes.slice(..bytes.len() / 2);
                self.objects.put_now(path, &half, false)?;
                Err(failed())
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.memory.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if self.own.lock().trouble == Trouble::Silence {
            return std::future::pending().await;
        }
        self.admit(path)?;
        if self.own.lock().trouble == Trouble::Endless && path.as_ref().contains("heads/") {
            let made_up = Bytes::from_static(b"made up");
            self.objects.put_now(path, &made_up, true).ok();
        }
        match self.fate() {
            Fate::Refused | Fate::DoneWithoutAnswer => Err(failed()),
            _ => self.objects.memory.get_opts(path, options).await,
        }
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects.memory.get_ranges(path, ranges).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let fate = self.fate();
        let memory = Arc::clone(&self.objects.memory);
        let deleted = paths.then(move |path| {
            let memory = Arc::clone(&memory);
            async move {
                let path = path?;
                if fate != Fate::Refused {
                    memory.delete(&path).await?;
                }
                match fate {
                    Fate::Refused | Fate::DoneWithoutAnswer => Err(failed()),
                    _ => Ok(path),
                }
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Err(why) = self.admit(&Path::default()) {
            return futures_util::stream::iter([Err(why)]).boxed();
        }
        match self.fate() {
            Fate::Refused | Fate::DoneWithoutAnswer => {
                return futures_util::stream::iter([Err(failed())]).boxed();
            }
            _ => {}
        }
        let lacks: Vec<Path> = if self.is_troubled() && self.draw().is_multiple_of(2) {
            self.objects.world.lock().new.iter().cloned().collect()
        } else {
            Vec::new()
        };
        let listed = self.objects.memory.list(prefix);
        let shown = move |meta: &Result<ObjectMeta>| match meta {
            Ok(meta) => !lacks.contains(&meta.location),
            Err(_) => true,
        };
        listed
            .filter(move |meta| futures_util::future::ready(shown(meta)))
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.memory.copy_opts(from, to, options).await
    }
}

//! The negotiation of a connection (INIT) as data: what the kernel offers, what the file system
//! wants, what both agree on.
//!
//! Pure; the session exchanges the messages.

use std::fmt;

use zerocopy::FromBytes;

use crate::abi::{self, InitIn, InitOut};
use crate::malformed::Malformed;

/// A set of features, as the bits of INIT (`flags2` are the upper 32).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Features(pub u64);

macro_rules! features {
    ($($name:ident = $bit:literal),* $(,)?) => {
        #[expect(missing_docs, reason = "the names are those of the protocol")]
        impl Features {
            $(pub const $name: Features = Features(1 << $bit);)*

            /// All known features with their names.
            const NAMES: &[(Features, &str)] = &[$((Features::$name, stringify!($name)),)*];
        }
    };
}

features! {
    ASYNC_READ = 0,
    EXPORT_SUPPORT = 4,
    BIG_WRITES = 5,
    DONT_MASK = 6,
    DO_READDIRPLUS = 13,
    READDIRPLUS_AUTO = 14,
    WRITEBACK_CACHE = 16,
    NO_OPEN_SUPPORT = 17,
    PARALLEL_DIROPS = 18,
    POSIX_ACL = 20,
    ABORT_ERROR = 21,
    MAX_PAGES = 22,
    CACHE_SYMLINKS = 23,
    NO_OPENDIR_SUPPORT = 24,
    EXPLICIT_INVAL_DATA = 25,
    HANDLE_KILLPRIV_V2 = 28,
    SETXATTR_EXT = 29,
    INIT_EXT = 30,
    HAS_EXPIRE_ONLY = 35,
    ALLOW_IDMAP = 40,
    OVER_IO_URING = 41,
    REQUEST_TIMEOUT = 42,
}

impl Features {
    /// The features of either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The features of both sets.
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The features of this set that the other lacks.
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether the set has all of these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Lists the names, as `POSIX_ACL | DONT_MASK`; unknown bits as a number.
impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        let mut separator = "";
        for (feature, name) in Self::NAMES {
            if self.contains(*feature) {
                write!(f, "{separator}{name}")?;
                separator = " | ";
                rest = rest.difference(*feature);
            }
        }
        if rest.is_empty() {
            Ok(())
        } else {
            write!(f, "{separator}{:#x}", rest.0)
        }
    }
}

/// What the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Major version of its protocol.
    pub major: u32,
    /// Minor version of its protocol.
    pub minor: u32,
    /// Largest readahead in bytes.
    pub max_readahead: u32,
    /// Its features.
    pub features: Features,
}

impl Offer {
    /// Bytes of INIT before protocol 7.36 added more flags.
    const OLD_SIZE: usize = 16;

    /// Decodes the body of INIT, in its present or earlier form.
    pub(crate) fn decode(op: &[u8]) -> Result<Self, Malformed> {
        let mut whole = [0; size_of::<InitIn>()];
        let given = op.get(..whole.len().min(op.len())).unwrap_or_default();
        if given.len() < Self::OLD_SIZE {
            return Err(Malformed("truncated"));
        }
        whole
            .iter_mut()
            .zip(given)
            .for_each(|(byte, from)| *byte = *from);
        let body = InitIn::read_from_bytes(&whole).map_err(|_| Malformed("truncated"))?;
        let low = Features(body.flags.into());
        let high = if low.contains(Features::INIT_EXT) {
            u64::from(body.flags2) << 32
        } else {
            0
        };
        Ok(Self {
            major: body.major,
            minor: body.minor,
            max_readahead: body.max_readahead,
            features: Features(low.0 | high),
        })
    }
}

/// What a file system wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Features; those that the kernel does not offer are left out.
    pub features: Features,
    /// Largest read or write of one request, in bytes.
    pub max_request: u32,
    /// Most requests in flight that no program waits for.
    pub max_background: u16,
    /// Granularity of times in nanoseconds.
    pub time_granularity: u32,
}

/// What is agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Minor version of the protocol that both sides use.
    pub minor: u32,
    /// The features.
    pub features: Features,
    /// Largest read or write of one request, in bytes.
    pub max_request: u32,
}

/// Bytes of a page, in which the protocol counts the size of requests.
pub(crate) const PAGE: u32 = 4096;

/// Features of every connection: the layout of messages that [`crate::request`] decodes depends on
/// them.
const LAYOUT: Features = Features::SETXATTR_EXT.union(Features::MAX_PAGES);

/// Agrees with an offer; returns the reply, and what it grants.
///
/// # Errors
/// The text names what the kernel lacks.
pub fn agree(offer: &Offer, wanted: &Wanted) -> Result<(InitOut, Granted), String> {
    let lacks = LAYOUT.difference(offer.features);
    if offer.major != abi::MAJOR || offer.minor < abi::MINOR_MIN || !lacks.is_empty() {
        let (major, minor) = (offer.major, offer.minor);
        return Err(format!(
            "the kernel is too old: its FUSE is {major}.{minor} and lacks {lacks:?}; 7.33 is needed"
        ));
    }
    let extended = Features::INIT_EXT.intersection(offer.features);
    let features = wanted.features.union(LAYOUT).intersection(offer.features);
    let features = features.union(extended);
    let granted = Granted {
        minor: offer.minor.min(abi::MINOR),
        features,
        max_request: wanted.max_request,
    };
    let pages = wanted.max_request.max(offer.max_readahead).div_ceil(PAGE);
    let reply = InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: offer.max_readahead,
        flags: features.0 as u32,
        max_background: wanted.max_background,
        congestion_threshold: wanted.max_background / 4 * 3,
        max_write: wanted.max_request,
        time_gran: wanted.time_granularity,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        flags2: (features.0 >> 32) as u32,
        ..InitOut::default()
    };
    Ok((reply, granted))
}

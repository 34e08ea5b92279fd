//! The functions of libc whose place is taken here, or those of another library that takes it, too.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the next library.
pub struct Next {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Next {
    /// Of this name.
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            at: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its address; null if there is none.
    pub fn address(&self) -> *mut c_void {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() { self.find() } else { at }
    }

    /// Looks it up. Done for all when the library is loaded: it is not for signal handlers.
    pub fn find(&self) -> *mut c_void {
        // SAFETY: the name ends with NUL.
        let at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(at, Ordering::Relaxed);
        at
    }
}

/// A name that ends with NUL, as a C string.
pub const fn name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Defines functions of libc. In each body, `next(...)` calls the next one; without one the call fails with
/// `ENOSYS`.
macro_rules! functions {
    ($(
        fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block
    )*) => {
        $(
            #[allow(missing_docs, reason = "a function of libc")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                let served: Option<$result> = $body;
                if let Some(result) = served {
                    return result;
                }
                let next = next::$name.address();
                if next.is_null() {
                    return $crate::raw::fail(libc::ENOSYS) as $result;
                }
                // SAFETY: the function of that name has these arguments.
                unsafe {
                    std::mem::transmute::<
                        *mut std::ffi::c_void,
                        unsafe extern "C" fn($($type),*) -> $result,
                    >(next)($($arg),*)
                }
            }
        )*

        #[allow(non_upper_case_globals, reason = "named as what they find")]
        mod next {
            $(
                pub static $name: $crate::next::Next =
                    $crate::next::Next::new($crate::next::name(concat!(stringify!($name), "\0")));
            )*
        }

        /// Looks up the next functions of these names.
        pub fn find() {
            $(next::$name.find();)*
        }
    };
}
pub(crate) use functions;

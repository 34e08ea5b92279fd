//! Where calls of the library run: they may wait for the device, and must not do that on a thread
//! of an asynchronous runtime.

use object_store::{Error, Result};
use tokio::runtime::Handle;

use crate::STORE;

/// Runs `work` on a thread for blocking calls; without a runtime of tokio, on this thread.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    match Handle::try_current() {
        Ok(runtime) => match runtime.spawn_blocking(work).await {
            Ok(done) => done,
            Err(e) => Err(Error::Generic {
                store: STORE,
                source: Box::new(e),
            }),
        },
        Err(_) => work(),
    }
}

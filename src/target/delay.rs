//! Makes every request take longer: a slow disk, for tests.

use std::time::Duration;

use super::{Io, IoResult, Serve};

/// Waits on the queue's ring before each request; other tags go on meanwhile.
pub struct Delay<S> {
    inner: S,
    time: Duration,
}

impl<S: Serve> Delay<S> {
    /// Delays every request of `inner` by `time`.
    #[must_use]
    pub fn new(inner: S, time: Duration) -> Self {
        Self { inner, time }
    }
}

impl<S: Serve> Serve for Delay<S> {
    async fn serve(&self, io: &mut Io) -> IoResult {
        if !self.time.is_zero() {
            io.sleep(self.time).await;
        }
        self.inner.serve(io).await
    }
}

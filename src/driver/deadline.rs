//! Bounds everything a driver is asked in time.
//!
//! ```text
//!   caller ── execute ──> Deadline ── execute ──> driver
//!          <── answer, or Wedged after the limit ──┘ (the command itself goes on)
//! ```
//!
//! Some kernels never answer a command (faults F19, F48). Nobody can take it back; what can be done
//! is to give up waiting, say so, and go on with everything else.
//!
//! Invariants: the time counts from the moment the command is sent; it is tokio's time, so that
//! tests can let it fly.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio::time::{Instant, timeout_at};

use super::{CharDevice, Command, Driver, Reply};
use crate::model::{DeviceId, Error, ErrorKind};

/// A driver whose every answer comes within a limit.
pub struct Deadline {
    inner: Rc<dyn Driver>,
    limit: Duration,
}

impl Deadline {
    /// Bounds `inner` to `limit` a command.
    #[must_use]
    pub fn new(inner: Rc<dyn Driver>, limit: Duration) -> Self {
        Self { inner, limit }
    }

    /// Waits for `work`, which began now, under the limit.
    fn bound<T: 'static>(
        &self,
        work: LocalBoxFuture<'static, Result<T, Error>>,
        late: impl FnOnce(Error) -> Error + 'static,
    ) -> impl Future<Output = Result<T, Error>> + 'static {
        let began = Instant::now();
        let end = began + self.limit;
        async move {
            match timeout_at(end, work).await {
                Ok(result) => result,
                Err(_) => {
                    let error = Error::new(ErrorKind::Timeout, "no answer in time");
                    Err(late(error.elapsed(began.elapsed())))
                }
            }
        }
    }
}

impl Driver for Deadline {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        let (name, id) = (command.name(), command.device());
        let late = move |error: Error| {
            let error = error
                .kind_of(ErrorKind::Wedged)
                .command(name)
                .hint("the kernel may still work on it or never answer: see dmesg");
            match id {
                Some(id) => error.id(id),
                None => error,
            }
        };
        self.bound(self.inner.execute(command), late).boxed_local()
    }

    fn open(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>> {
        let late = move |error: Error| error.command("open").id(id).hint("see who has it open");
        self.bound(self.inner.open(id), late).boxed_local()
    }

    fn list(&self) -> Result<Vec<DeviceId>, Error> {
        self.inner.list()
    }

    fn node_ready(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>> {
        let late = move |error: Error| error.id(id).hint("does anybody make nodes in /dev?");
        self.bound(self.inner.node_ready(id), late).boxed_local()
    }

    fn set_read_only(&self, id: DeviceId, on: bool) -> LocalBoxFuture<'static, Result<(), Error>> {
        let late = move |error: Error| error.command("BLKROSET").id(id).hint("see dmesg");
        self.bound(self.inner.set_read_only(id, on), late).boxed_local()
    }

    fn holders(&self, id: DeviceId) -> LocalBoxFuture<'static, Vec<String>> {
        self.inner.holders(id)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{pending, ready};

    use super::*;

    /// Answers at once, but for one command, which it never answers.
    struct Wedging(&'static str);

    impl Driver for Wedging {
        fn name(&self) -> &'static str {
            "wedging"
        }
        fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>> {
            match command.name() == self.0 {
                true => pending().boxed_local(),
                false => ready(Ok(Reply::Done)).boxed_local(),
            }
        }
        fn open(&self, _: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>> {
            pending().boxed_local()
        }
        fn list(&self) -> Result<Vec<DeviceId>, Error> {
            Ok(Vec::new())
        }
        fn node_ready(&self, _: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>> {
            pending().boxed_local()
        }
        fn set_read_only(
            &self,
            _: DeviceId,
            _: bool,
        ) -> LocalBoxFuture<'static, Result<(), Error>> {
            pending().boxed_local()
        }
        fn holders(&self, _: DeviceId) -> LocalBoxFuture<'static, Vec<String>> {
            ready(Vec::new()).boxed_local()
        }
    }

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn f19_a_command_that_never_ends_is_given_up_and_named() {
        let add = super::super::AddDevice {
            id: Some(DeviceId(4)),
            queues: crate::model::QueueSpec::default(),
            features: super::super::Features::NONE,
        };
        let driver = Deadline::new(Rc::new(Wedging("ADD_DEV")), LIMIT);
        let began = Instant::now();
        let error = driver.execute(Command::Add(add)).await.expect_err("an answer");
        assert_eq!(began.elapsed(), LIMIT);
        assert_eq!(error.kind(), ErrorKind::Wedged);
        let text = error.to_string();
        for part in ["ADD_DEV", "id 4", "30.0", "see dmesg"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn f48_a_stop_that_hangs_does_not_delay_the_others() {
        let driver = Deadline::new(Rc::new(Wedging("STOP_DEV")), LIMIT);
        let hanging = driver.execute(Command::Stop(DeviceId(2)));
        let began = Instant::now();
        for id in [1, 3, 4, 5] {
            let reply = driver.execute(Command::Delete(DeviceId(id))).await;
            assert_eq!(reply.ok(), Some(Reply::Done));
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        let error = hanging.await.expect_err("an answer");
        assert_eq!(error.kind(), ErrorKind::Wedged);
        assert!(error.to_string().contains("STOP_DEV"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_from_the_sending() {
        let driver = Deadline::new(Rc::new(Wedging("STOP_DEV")), LIMIT);
        let began = Instant::now();
        let sent = driver.execute(Command::Stop(DeviceId(2)));
        tokio::time::sleep(LIMIT / 2).await;
        assert!(sent.await.is_err());
        assert_eq!(began.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_command_is_bounded_too() {
        let driver = Deadline::new(Rc::new(Wedging("none")), LIMIT);
        let opened = driver.open(DeviceId(1)).await.map(|_| ());
        for result in [opened, driver.node_ready(DeviceId(1)).await] {
            let error = result.expect_err("it never ends");
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(error.to_string().contains("30.0"), "{error}");
        }
    }
}

//! What is done to a device in service: resize, read-only, quiesce, resume.
//!
//! Invariant: what has begun goes on when its caller stops waiting, and its place in the mailbox is
//! taken until it has ended.

use std::future::Future;
use std::rc::Rc;

use actix::{Context, Handler, ResponseFuture};
use futures::channel::oneshot;
use tokio::sync::OwnedSemaphorePermit;

use super::actor::{Entry, Supervisor};
use super::messages::{Quiesce, Resize, Resume, SetReadOnly};
use crate::device;
use crate::model::{DeviceName, Error, ErrorKind, ResizeOutcome};
use crate::sys::panic::catch_future;

type Answer<T> = ResponseFuture<Result<T, Error>>;

impl Supervisor {
    /// Runs what `work` makes of the device, as a task of its own.
    fn with<T: 'static, F: Future<Output = Result<T, Error>> + 'static>(
        &self,
        name: DeviceName,
        permit: OwnedSemaphorePermit,
        work: impl FnOnce(&Entry) -> F,
    ) -> Answer<T> {
        let Some(entry) = self.devices.get(&name) else {
            let error = Error::new(ErrorKind::NotFound, "there is no such device").device(&name);
            return Box::pin(async move { Err(error) });
        };
        let work = catch_future(work(entry));
        let task = actix_rt::spawn(async move {
            let _place = permit;
            work.await
        });
        Box::pin(async move {
            match task.await {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => Err(Error::new(ErrorKind::Panicked, panic.to_string())),
                Err(_) => Err(Error::new(ErrorKind::Stopping, "the supervisor has ended")),
            }
            .map_err(|error| error.device(&name))
        })
    }
}

impl Handler<Resize> for Supervisor {
    type Result = Answer<ResizeOutcome>;

    fn handle(&mut self, resize: Resize, _: &mut Context<Self>) -> Self::Result {
        let Resize { name, size, shrink, permit } = resize;
        let env = Rc::clone(&self.env);
        self.with(name, permit, |entry| {
            let body = Rc::clone(&entry.body);
            async move { device::resize(&body, &env, size, shrink).await }
        })
    }
}

impl Handler<SetReadOnly> for Supervisor {
    type Result = Answer<()>;

    fn handle(&mut self, set: SetReadOnly, _: &mut Context<Self>) -> Self::Result {
        let SetReadOnly { name, on, permit } = set;
        let env = Rc::clone(&self.env);
        self.with(name, permit, |entry| {
            let body = Rc::clone(&entry.body);
            async move { device::set_read_only(&body, &env, on).await }
        })
    }
}

impl Handler<Quiesce> for Supervisor {
    type Result = Answer<()>;

    fn handle(&mut self, quiesce: Quiesce, _: &mut Context<Self>) -> Self::Result {
        let Quiesce { name, within, permit } = quiesce;
        self.with(name, permit, |entry| {
            let (reply, ended) = oneshot::channel();
            entry.addr.do_send(device::Quiesce { within, reply });
            told(ended)
        })
    }
}

impl Handler<Resume> for Supervisor {
    type Result = Answer<()>;

    fn handle(&mut self, Resume { name, permit }: Resume, _: &mut Context<Self>) -> Self::Result {
        self.with(name, permit, |entry| {
            let (reply, ended) = oneshot::channel();
            entry.addr.do_send(device::Resume { reply });
            told(ended)
        })
    }
}

async fn told(ended: oneshot::Receiver<Result<(), Error>>) -> Result<(), Error> {
    let vanished = |_| Err(Error::new(ErrorKind::Panicked, "its actor panicked meanwhile"));
    ended.await.unwrap_or_else(vanished)
}

//! A decorator that writes down what is asked of a driver, in order: how a teardown went.

use std::cell::RefCell;
use std::rc::Rc;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use ublkd::driver::{CharDevice, Command, Driver, QueueSet, Reply, ServePlan};
use ublkd::model::{DeviceId, Error, IoStats, Processors, QueueExit};

thread_local!(static TAPE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });

fn note(what: impl Into<String>) {
    TAPE.with_borrow_mut(|tape| tape.push(what.into()));
}

/// What was asked since the last call; questions that change nothing are left out.
pub(crate) fn rewind() -> Vec<String> {
    TAPE.with_borrow_mut(std::mem::take)
}

/// Wraps `inner`.
pub(crate) fn record(inner: Rc<dyn Driver>) -> Rc<dyn Driver> {
    Rc::new(Recorder(inner))
}

struct Recorder(Rc<dyn Driver>);

impl Driver for Recorder {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        if !matches!(command, Command::Info(_)) {
            note(command.name());
        }
        self.0.execute(command)
    }

    fn open(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>> {
        note("open");
        let open = self.0.open(id);
        async move { Ok(Box::new(File(open.await?)) as Box<dyn CharDevice>) }.boxed_local()
    }

    fn list(&self) -> Result<Vec<DeviceId>, Error> {
        self.0.list()
    }

    fn node_ready(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>> {
        note("node");
        self.0.node_ready(id)
    }

    fn set_read_only(&self, id: DeviceId, on: bool) -> LocalBoxFuture<'static, Result<(), Error>> {
        note("read only");
        self.0.set_read_only(id, on)
    }

    fn holders(&self, id: DeviceId) -> LocalBoxFuture<'static, Vec<String>> {
        self.0.holders(id)
    }
}

struct File(Box<dyn CharDevice>);

impl CharDevice for File {
    fn serve(&self, plan: ServePlan) -> Result<Box<dyn QueueSet>, Error> {
        note("serve");
        Ok(Box::new(Queues(self.0.serve(plan)?)))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        note("close");
    }
}

struct Queues(Box<dyn QueueSet>);

impl QueueSet for Queues {
    fn ready(&mut self) -> LocalBoxFuture<'_, Result<(), Error>> {
        note("ready");
        self.0.ready()
    }

    fn stop(&self) {
        note("stop queues");
        self.0.stop();
    }

    fn join(&mut self) -> LocalBoxFuture<'_, Vec<QueueExit>> {
        note("join");
        self.0.join()
    }

    fn tids(&self) -> Vec<i32> {
        self.0.tids()
    }

    fn processors(&self) -> Vec<Option<Processors>> {
        self.0.processors()
    }

    fn stats(&self) -> IoStats {
        self.0.stats()
    }
}

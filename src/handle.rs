//! What a host calls: create, delete, list, describe, shutdown. Every future works on any executor
//! and from plain threads (`futures::executor::block_on`).

use actix::Addr;
use actix::dev::ToEnvelope;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};

use crate::model::{
    CreateOutcome, DeleteOutcome, DeviceInfo, DeviceName, DeviceSpec, Error, ErrorKind,
    ShutdownReport,
};
use crate::supervisor::{Admission, Create, Delete, Describe, Force, List, Shutdown, Supervisor};

/// A way to talk to a running supervisor.
#[derive(Clone)]
pub struct Handle {
    supervisor: Addr<Supervisor>,
    admission: Admission,
}

impl Handle {
    pub(crate) fn new(supervisor: Addr<Supervisor>, admission: Admission) -> Self {
        Self { supervisor, admission }
    }

    /// Brings a device up; comes back when it is in service.
    ///
    /// # Errors
    /// [`ErrorKind::Overloaded`] at once when too many operations wait, [`ErrorKind::Exists`] for a
    /// name in use, [`ErrorKind::Stopping`] during a shutdown, else whatever kept it from coming
    /// up; nothing is left of it then, or the error says what.
    pub async fn create(&self, spec: DeviceSpec) -> Result<CreateOutcome, Error> {
        let permit = self.admission.try_enter()?;
        self.ask(Create { spec, permit }).await?
    }

    /// Brings many devices up, as many at once as there are workers, waiting for places in the
    /// mailbox. Results come in the order in which devices are done.
    pub fn create_all(
        &self,
        specs: impl IntoIterator<Item = DeviceSpec>,
    ) -> impl Stream<Item = (DeviceName, Result<CreateOutcome, Error>)> {
        let handle = self.clone();
        stream::iter(specs)
            .map(move |spec| {
                let handle = handle.clone();
                async move {
                    let name = spec.name().clone();
                    let created = async {
                        let permit = handle.admission.enter().await?;
                        handle.ask(Create { spec, permit }).await?
                    };
                    (name, created.await)
                }
            })
            .buffer_unordered(usize::MAX)
    }

    /// Takes a device down; comes back when it is gone, or when it is known what is left.
    ///
    /// # Errors
    /// [`ErrorKind::Overloaded`] at once when too many operations wait.
    pub async fn delete(&self, name: &DeviceName) -> Result<DeleteOutcome, Error> {
        let permit = self.admission.try_enter()?;
        self.ask(Delete { name: name.clone(), permit }).await?
    }

    /// Every device, in the order of names.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn list(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.ask(List).await
    }

    /// One device, if it is known.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn describe(&self, name: &DeviceName) -> Result<Option<DeviceInfo>, Error> {
        self.ask(Describe(name.clone())).await
    }

    /// Operations that wait for a worker now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.admission.waiting()
    }

    /// Takes all devices down and accounts for each within `within`. Nothing starts any more;
    /// asking again gives the same report.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn shutdown(&self, within: Duration) -> Result<ShutdownReport, Error> {
        self.ask(Shutdown { within }).await
    }

    /// Ends a shutdown under way now; its report names what is abandoned. Without one it does
    /// nothing.
    pub fn force(&self) {
        self.supervisor.do_send(Force);
    }

    async fn ask<M>(&self, message: M) -> Result<M::Result, Error>
    where
        M: actix::Message + Send + 'static,
        M::Result: Send,
        Supervisor: actix::Handler<M>,
        <Supervisor as actix::Actor>::Context: ToEnvelope<Supervisor, M>,
    {
        self.supervisor
            .send(message)
            .await
            .map_err(|_| Error::new(ErrorKind::Stopping, "the supervisor has ended"))
    }
}

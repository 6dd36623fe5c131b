//! What a host calls. Every future works on any executor and from plain threads
//! (`futures::executor::block_on`).
//!
//! What a call has begun goes on when its future is dropped: nothing is left half done because
//! somebody stopped waiting.

use actix::Addr;
use actix::dev::ToEnvelope;
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt};

use crate::model::{
    Condition, CreateOutcome, DeleteOptions, DeleteOutcome, DeviceInfo, DeviceName, DeviceSpec,
    Ensured, Error, ErrorKind, GroupInfo, GroupName, GroupReport, KernelFeatures, ResizeOutcome,
    ShutdownReport, Snapshot, StreamEvent,
};
use crate::supervisor::{
    Admission, AskFeatures, Create, CreateGroup, Delete, DeleteGroup, Describe, Ensure,
    EventReader, Force, Groups, List, Measure, Ping, Quiesce, Resize, Resume, SetReadOnly,
    Shutdown, Supervisor, Wait,
};

/// Changes of state as they happen ([`Handle::events`]); works on any executor.
pub type EventStream = BoxStream<'static, StreamEvent>;

/// A way to talk to a running supervisor.
#[derive(Clone)]
pub struct Handle {
    supervisor: Addr<Supervisor>,
    admission: Admission,
    events: EventReader,
}

impl Handle {
    pub(crate) fn new(
        supervisor: Addr<Supervisor>,
        admission: Admission,
        events: EventReader,
    ) -> Self {
        Self { supervisor, admission, events }
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

    /// Brings a device up unless it is there as asked; one that is on its way is waited for. What is
    /// left to choose (the number) does not make a difference, nor who asked.
    ///
    /// # Errors
    /// As [`Handle::create`]; [`ErrorKind::Exists`] names the keys in which the device that is
    /// there differs.
    pub async fn ensure(&self, spec: DeviceSpec) -> Result<Ensured, Error> {
        let permit = self.admission.try_enter()?;
        self.ask(Ensure { spec, permit }).await?
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
    /// [`ErrorKind::Overloaded`] at once when too many operations wait, [`ErrorKind::Busy`] when
    /// somebody holds it and its spec says that this matters.
    pub async fn delete(&self, name: &DeviceName) -> Result<DeleteOutcome, Error> {
        self.delete_with(name, DeleteOptions::default()).await
    }

    /// As [`Handle::delete`], with another policy than the spec's for a device that somebody holds.
    ///
    /// # Errors
    /// As [`Handle::delete`]; [`ErrorKind::Busy`] names the holders, and the device stays in
    /// service.
    pub async fn delete_with(
        &self,
        name: &DeviceName,
        options: DeleteOptions,
    ) -> Result<DeleteOutcome, Error> {
        let permit = self.admission.try_enter()?;
        self.ask(Delete { name: name.clone(), options, failed_only: false, permit }).await?
    }

    /// Brings the devices of a group up, all of them or none: when one does not come up, those that
    /// were made are taken down again. Devices that are there as asked count as made, and stay.
    ///
    /// # Errors
    /// [`ErrorKind::Overloaded`] at once when too many operations wait, [`ErrorKind::Invalid`] for
    /// a spec of another group, else the kind of the first failure; the text names each, and what
    /// could not be undone.
    pub async fn create_group(
        &self,
        group: &GroupName,
        specs: Vec<DeviceSpec>,
    ) -> Result<Vec<Ensured>, Error> {
        let permit = self.admission.try_enter()?;
        self.ask(CreateGroup { group: group.clone(), specs, permit }).await?
    }

    /// Takes all devices of a group down, side by side, and waits for all of them. The report has
    /// each once, and names what is left.
    ///
    /// # Errors
    /// [`ErrorKind::Overloaded`] at once when too many operations wait.
    pub async fn delete_group(
        &self,
        group: &GroupName,
        options: DeleteOptions,
    ) -> Result<GroupReport, Error> {
        let permit = self.admission.try_enter()?;
        self.ask(DeleteGroup { group: group.clone(), options, permit }).await
    }

    /// Every group that has a device, in the order of names.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn groups(&self) -> Result<Vec<GroupInfo>, Error> {
        self.ask(Groups).await
    }

    /// Makes a device `size` bytes large while it is in use. What is on it has to follow by itself.
    /// Smaller only if `shrink` says so too: what is cut off is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a size that is no whole number of blocks, more than the backing
    /// holds, or smaller without `shrink`; [`ErrorKind::Unsupported`] where the kernel (before 6.16)
    /// or the target cannot; [`ErrorKind::Busy`] unless it is live.
    pub async fn resize(
        &self,
        name: &DeviceName,
        size: u64,
        shrink: bool,
    ) -> Result<ResizeOutcome, Error> {
        let permit = self.admission.try_enter()?;
        self.ask(Resize { name: name.clone(), size, shrink, permit }).await?
    }

    /// Has the block device refuse writes, or take them again. A file system that is mounted on it
    /// is not told.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a device that was made read-only; [`ErrorKind::Busy`] unless
    /// it is live.
    pub async fn set_read_only(&self, name: &DeviceName, on: bool) -> Result<(), Error> {
        let permit = self.admission.try_enter()?;
        self.ask(SetReadOnly { name: name.clone(), on, permit }).await?
    }

    /// Takes a device's server away while its users wait: the block device stays, and its I/O waits
    /// for [`Handle::resume`]. I/O in flight has `within` (half the command timeout at most) to end
    /// by itself; what has not ended then is issued again after the resume. Done already is done.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the kernel (before 6.16) cannot, or for a device that was
    /// made without `recovery`, nothing is changed then; else the device is stalled: its I/O waits, and
    /// it can be quiesced again or deleted.
    pub async fn quiesce(&self, name: &DeviceName, within: Duration) -> Result<(), Error> {
        let permit = self.admission.try_enter()?;
        self.ask(Quiesce { name: name.clone(), within, permit }).await?
    }

    /// Serves a quiesced device again, on new queue threads; I/O that waited goes on. Live already
    /// is done.
    ///
    /// # Errors
    /// Whatever kept it from being served; it stays quiesced and can be resumed again.
    pub async fn resume(&self, name: &DeviceName) -> Result<(), Error> {
        let permit = self.admission.try_enter()?;
        self.ask(Resume { name: name.clone(), permit }).await?
    }

    /// Every device, in the order of names.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn list(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.ask(List).await
    }

    /// One device, if it is known, with those who hold it: looking for them takes as long as there
    /// are processes, 2 s at most.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn describe(&self, name: &DeviceName) -> Result<Option<DeviceInfo>, Error> {
        self.ask(Describe(name.clone())).await
    }

    /// What the kernel's driver can do.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn features(&self) -> Result<KernelFeatures, Error> {
        self.ask(AskFeatures).await
    }

    /// Comes back when the device is so; at once if it is.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] after `within`, [`ErrorKind::Io`] with the reason when it rests in a
    /// state from which it does not get there.
    pub async fn wait(
        &self,
        name: &DeviceName,
        condition: Condition,
        within: Duration,
    ) -> Result<(), Error> {
        self.ask(Wait { name: name.clone(), condition, within }).await?
    }

    /// Every change of state of every device, in order, from the change numbered `from` on or from
    /// now on. A reader that is slower than the history is long is told what it has lost
    /// ([`StreamEvent::Lost`]); it never keeps anybody waiting. Ends with the supervisor.
    #[must_use]
    pub fn events(&self, from: Option<u64>) -> EventStream {
        self.events.stream(from)
    }

    /// Every device, what was done so far, and what is in use: what metrics are made of.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let mut snapshot = self.ask(Measure).await?;
        snapshot.mailbox = self.admission.occupancy();
        let overloaded = self.admission.refused();
        if overloaded > 0 {
            snapshot.tally.refusals.insert(ErrorKind::Overloaded, overloaded);
        }
        Ok(snapshot)
    }

    /// Comes back when the supervisor answers, which it does at once unless it hangs.
    ///
    /// # Errors
    /// When the supervisor has ended.
    pub async fn ping(&self) -> Result<(), Error> {
        self.ask(Ping).await
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

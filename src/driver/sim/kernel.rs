//! The simulated kernel: control commands in time.
//!
//! ```text
//!   ADD_DEV   [global mutex: node comes]
//!   STOP_DEV  [device mutex: drain ─ grace ─ grace ─ … ─ disk goes] ─ tags come back
//!   DEL_DEV   [global mutex: stop if nobody has ─ node goes ─ (last reference)] ─ wait for the id
//!   last reference ─ (SRCU) grace period ─ the id is free
//! ```
//!
//! Read from the driver of Linux 6.12 to 7.3. Invariants: mutexes are first come, first served;
//! a command that was sent is carried out whoever waits for it; nothing here panics or fails by
//! itself, faults are the business of [`super::fault`].

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use nix::libc;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::QueueMode;
use super::device::{Device, Holder, Refusal, check_add};
use super::disk::{Service, SimDisk, SimDisks};
use super::grace::GracePeriods;
use super::journal::Journal;
use super::profile::KernelProfile;
use super::work::{Work, pause};
use crate::driver::{AddDevice, Command, Features, KernelDevice, KernelState, Params, Reply};
use crate::model::{DeviceId, Error, ErrorKind, QueueSpec};

pub(super) struct Kernel {
    pub(super) profile: KernelProfile,
    pub(super) mode: QueueMode,
    pub(super) disks: SimDisks,
    pub(super) work: Work,
    pub(super) journal: Journal,
    /// Queue threads that are up.
    pub(super) threads: Cell<usize>,
    ids: RefCell<BTreeMap<u32, Rc<Device>>>,
    /// Every id below is taken.
    lowest_free: Cell<u32>,
    /// Devices that DEL_DEV has not removed yet.
    added: Cell<usize>,
    global: Mutex<()>,
    grace: RefCell<GracePeriods>,
    /// When the processor of control commands is free, since the origin.
    processor: Cell<Duration>,
    origin: OnceCell<Instant>,
}

/// A command's reference to a device.
struct Held {
    kernel: Rc<Kernel>,
    device: Rc<Device>,
    /// Whether it is still held.
    held: bool,
}

impl Kernel {
    pub(super) fn new(profile: KernelProfile, mode: QueueMode, disks: SimDisks) -> Self {
        Self {
            grace: RefCell::new(GracePeriods::new(profile.costs.grace)),
            profile,
            mode,
            disks,
            work: Work::new(),
            journal: Journal::default(),
            threads: Cell::new(0),
            ids: RefCell::default(),
            lowest_free: Cell::new(0),
            added: Cell::new(0),
            global: Mutex::new(()),
            processor: Cell::default(),
            origin: OnceCell::new(),
        }
    }

    /// Carries a command out.
    pub(super) async fn execute(self: Rc<Self>, command: Command) -> Result<Reply, Error> {
        let (name, id) = (command.name(), command.device());
        self.occupy_processor().await;
        let answer = self.carry_out(command.clone()).await;
        self.journal.note_command(&command, &answer);
        answer.map_err(|error| match id {
            Some(id) => error.command(name).id(id),
            None => error.command(name),
        })
    }

    async fn carry_out(self: &Rc<Self>, command: Command) -> Result<Reply, Error> {
        match command {
            Command::Features => return Ok(Reply::Features(self.profile.features)),
            Command::Add(add) => return self.add(add).await.map(Reply::Device),
            Command::Info(id) => return Ok(Reply::Device(self.find(id)?.describe())),
            Command::GetParams(id) => {
                let params = self.find(id)?.params.get();
                return refuse(params.ok_or((libc::EINVAL, "no parameters are set")))
                    .map(Reply::Params);
            }
            Command::QueueAffinity(id, queue) => {
                let processors = self.find(id)?.queue_affinity(queue, self.profile.processors);
                return refuse(processors).map(Reply::Processors);
            }
            Command::SetParams(id, params) => {
                let device = self.find(id)?;
                let _device_mutex = device.lock.lock().await;
                refuse(device.set_params(params))?;
            }
            Command::Start(id) => refuse(self.find(id)?.start().await)?,
            Command::Stop(id) => self.stop(&*self.find(id)?).await,
            Command::TryStop(id) => {
                let device = self.find(id)?;
                refuse(self.try_stop(&device).await)?;
            }
            Command::UpdateSize(id, size) => {
                refuse(self.update_size(&*self.find(id)?, size).await)?
            }
            Command::Quiesce(id, within) => refuse(self.find(id)?.quiesce(within).await)?,
            Command::StartRecovery(id) => refuse(self.find(id)?.start_recovery().await)?,
            Command::EndRecovery(id) => refuse(self.find(id)?.end_recovery().await)?,
            Command::Delete(id) => self.delete(self.find(id)?, true).await,
            Command::DeleteAsync(id) if self.profile.delete_async => {
                self.delete(self.find(id)?, false).await;
            }
            Command::DeleteAsync(_) => {
                refuse(Err((libc::EOPNOTSUPP, "this kernel does not know the command")))?;
            }
        }
        Ok(Reply::Done)
    }

    /// The ids that have a node, in order.
    pub(super) fn list(&self) -> Vec<DeviceId> {
        let ids = self.ids.borrow();
        ids.values().filter(|device| !device.deleted.get()).map(|device| device.id).collect()
    }

    /// Every device that somebody holds a reference to, in order.
    pub(super) fn devices(&self) -> Vec<Rc<Device>> {
        self.ids.borrow().values().filter(|device| !device.is_dying()).cloned().collect()
    }

    /// The device of an id that is not free.
    pub(super) fn device(&self, id: DeviceId) -> Option<Rc<Device>> {
        self.ids.borrow().get(&id.0).cloned()
    }

    /// Lets a reference go; the last one frees the device, on a kernel worker.
    pub(super) fn put(self: &Rc<Self>, device: &Rc<Device>, holder: Holder) {
        if device.let_go(holder) {
            let (kernel, device) = (Rc::clone(self), Rc::clone(device));
            self.work.spawn(async move {
                kernel.free(&device, kernel.profile.costs.last_reference).await;
            });
        }
    }

    /// The file of the char device is released: nothing holds it any more.
    pub(super) async fn release_file(self: &Rc<Self>, device: &Rc<Device>) {
        pause(self.profile.costs.deferred).await;
        if device.disk().is_some() {
            // Before the mutex: whoever holds it may be draining.
            device.lost_server();
            device.release_orphans();
            let _device_mutex = device.lock.lock().await;
            if device.dies_with_server() {
                self.remove_disk(device).await;
            } else if device.disk().is_some() {
                let waits = device.waits_for_server();
                device.state.set(if waits { KernelState::Quiesced } else { KernelState::FailIo });
            }
            device.forget_tags();
        }
        device.closed();
        self.journal.note(Some(device.id), "released", None);
        self.put(device, Holder::File);
    }

    async fn add(&self, add: AddDevice) -> Result<KernelDevice, Error> {
        refuse(check_add(&add, self.profile.features))?;
        let _global_mutex = self.global.lock().await;
        if self.added.get() >= self.profile.ublks_max {
            return Err(self.too_many());
        }
        pause(self.profile.costs.node).await;
        let id = refuse(self.allocate(add.id))?;
        let QueueSpec { count, depth, max_io } = add.queues;
        let queues =
            QueueSpec { count: count.min(self.profile.processors), depth, max_io: max_io & !4095 };
        // Whoever has the rights gets a privileged device, whatever was asked.
        let asked = Features(add.features.0 & !Features::UNPRIVILEGED_DEV.0);
        let device =
            Device::new(id, queues, asked.with(self.profile.always_on()), self.mode, &self.disks);
        let described = device.describe();
        self.ids.borrow_mut().insert(id.0, Rc::new(device));
        self.added.set(self.added.get() + 1);
        Ok(described)
    }

    fn too_many(&self) -> Error {
        let (used, most) = (self.added.get(), self.profile.ublks_max);
        Error::from_errno(libc::EACCES, format!("ublks_max is {most} and {used} devices are there"))
            .kind_of(ErrorKind::Limit)
            .hint("raise the ublks_max parameter of ublk_drv, or delete devices")
    }

    fn allocate(&self, asked: Option<DeviceId>) -> Result<DeviceId, Refusal> {
        let ids = self.ids.borrow();
        if let Some(id) = asked {
            let taken = ids.contains_key(&id.0);
            return if taken { Err((libc::EEXIST, "the id is taken")) } else { Ok(id) };
        }
        let mut id = self.lowest_free.get();
        while ids.contains_key(&id) {
            id += 1;
        }
        self.lowest_free.set(id);
        if id > DeviceId::MAX { Err((libc::ENOSPC, "every id is taken")) } else { Ok(DeviceId(id)) }
    }

    async fn stop(self: &Rc<Self>, device: &Rc<Device>) {
        let device_mutex = device.lock.lock().await;
        self.remove_disk(device).await;
        drop(device_mutex);
        device.cancel();
    }

    async fn update_size(&self, device: &Device, size: u64) -> Result<(), Refusal> {
        if !self.profile.features.has(Features::UPDATE_SIZE) {
            return Err((libc::EOPNOTSUPP, "this kernel does not know the command"));
        }
        let _device_mutex = device.lock.lock().await;
        let disk = device.disk().ok_or((libc::ENODEV, "it is not started"))?;
        disk.resize(size);
        device
            .params
            .update(|params| params.map(|params| Params { geometry: disk.geometry(), ..params }));
        Ok(())
    }

    async fn try_stop(self: &Rc<Self>, device: &Rc<Device>) -> Result<(), Refusal> {
        if !self.profile.features.has(Features::SAFE_STOP_DEV) {
            return Err((libc::EOPNOTSUPP, "this kernel does not know the command"));
        }
        let device_mutex = device.lock.lock().await;
        if device.disk().is_some_and(|disk| disk.openers() > 0) {
            return Err((libc::EBUSY, "somebody has the disk open"));
        }
        self.remove_disk(device).await;
        drop(device_mutex);
        device.cancel();
        Ok(())
    }

    /// Removes the disk, if there is one. The device's mutex is held.
    async fn remove_disk(self: &Rc<Self>, device: &Rc<Device>) {
        let Some(disk) = device.disk() else { return };
        if device.waits_for_server() {
            // What waits, or comes from now on, is aborted; what a queue has taken is drained.
            device.set_service(Service::Failing);
        }
        if self.profile.stop_probe && disk.probe().await.is_err() {
            std::future::pending::<()>().await;
        }
        disk.remove();
        disk.drained().await;
        for _ in 0..self.profile.costs.stop_graces {
            self.wait_grace_period().await;
        }
        device.detach_disk();
        self.free_disk_when_closed(device, disk);
    }

    fn free_disk_when_closed(self: &Rc<Self>, device: &Rc<Device>, disk: SimDisk) {
        let (kernel, device) = (Rc::clone(self), Rc::clone(device));
        let freed = move || {
            device.used.set(false);
            kernel.put(&device, Holder::Disk);
        };
        if disk.openers() == 0 {
            return freed();
        }
        self.work.spawn(async move {
            disk.closed().await;
            freed();
        });
    }

    async fn delete(self: &Rc<Self>, held: Held, wait: bool) {
        let device = Rc::clone(&held);
        let global_mutex = self.global.lock().await;
        if !device.deleted.get() {
            self.stop(&device).await;
            pause(self.profile.costs.node).await;
            device.deleted.set(true);
            self.added.set(self.added.get() - 1);
            // Not the last one: the command's own is left.
            device.let_go(Holder::Node);
        }
        let last = held.let_go();
        if self.profile.mutex_on_delete {
            if last {
                self.free(&device, self.profile.costs.last_reference_locked).await;
            }
            drop(global_mutex);
        } else {
            drop(global_mutex);
            if last {
                self.free(&device, self.profile.costs.last_reference).await;
            }
        }
        if wait {
            device.gone.wait().await;
        }
    }

    /// The last reference is gone: frees the tag set, then the id.
    async fn free(&self, device: &Rc<Device>, wait: Duration) {
        pause(wait).await;
        self.ids.borrow_mut().remove(&device.id.0);
        self.lowest_free.set(self.lowest_free.get().min(device.id.0));
        self.journal.note(Some(device.id), "freed", None);
        device.gone.raise();
    }

    fn find(self: &Rc<Self>, id: DeviceId) -> Result<Held, Error> {
        match self.device(id) {
            Some(device) if device.hold(Holder::Command) => {
                Ok(Held { kernel: Rc::clone(self), device, held: true })
            }
            _ => Err(Error::from_errno(libc::ENODEV, "the kernel knows no such device")),
        }
    }

    fn now(&self) -> (Instant, Duration) {
        let now = Instant::now();
        let origin = *self.origin.get_or_init(|| now);
        (origin, now - origin)
    }

    async fn wait_grace_period(&self) {
        let (origin, now) = self.now();
        let released = self.grace.borrow_mut().arrive(now);
        sleep_until(origin + released).await;
    }

    async fn occupy_processor(&self) {
        let cost = self.profile.costs.command;
        if cost.is_zero() {
            return;
        }
        let (origin, now) = self.now();
        let done = self.processor.get().max(now) + cost;
        self.processor.set(done);
        sleep_until(origin + done).await;
    }
}

impl Device {
    /// START_DEV.
    async fn start(&self) -> Result<(), Refusal> {
        let params = self.params.get().ok_or((libc::EINVAL, "no parameters are set"))?;
        self.ready.wait().await;
        let _device_mutex = self.lock.lock().await;
        if self.state.get() == KernelState::Live || self.used.get() {
            return Err((libc::EEXIST, "it is started already"));
        }
        self.hold(Holder::Disk);
        self.attach_disk(params);
        self.used.set(true);
        // A process id fits; the kernel's type is signed.
        self.pid.set(i32::try_from(std::process::id()).unwrap_or(i32::MAX));
        if let Some(disk) = self.disk() {
            disk.scan_partitions();
        }
        Ok(())
    }
}

impl Device {
    /// QUIESCE_DEV: stricter than the kernel, which waits for one tag of each queue only.
    async fn quiesce(&self, within: Duration) -> Result<(), Refusal> {
        if !self.features.has(Features::QUIESCE) {
            return Err((libc::EOPNOTSUPP, "the device was not added with the feature"));
        }
        let device_mutex = self.lock.lock().await;
        let disk = self.disk().ok_or((libc::ENODEV, "it is not started"))?;
        if self.state.get() != KernelState::Live {
            return Ok(());
        }
        self.set_service(Service::Silent);
        if timeout(within, disk.idle()).await.is_err() {
            return Err((libc::EBUSY, "I/O in flight has not ended in time"));
        }
        drop(device_mutex);
        self.cancel();
        Ok(())
    }

    /// START_USER_RECOVERY.
    async fn start_recovery(&self) -> Result<(), Refusal> {
        let _device_mutex = self.lock.lock().await;
        if self.dies_with_server() {
            return Err((libc::EINVAL, "the device was added without recovery"));
        }
        if self.is_open() || !self.is_recoverable() {
            return Err((libc::EBUSY, "the old server has it open, or it is not waiting for one"));
        }
        Ok(())
    }

    /// END_USER_RECOVERY.
    async fn end_recovery(&self) -> Result<(), Refusal> {
        self.ready.wait().await;
        let _device_mutex = self.lock.lock().await;
        if self.dies_with_server() {
            return Err((libc::EINVAL, "the device was added without recovery"));
        }
        if !self.is_recoverable() {
            return Err((libc::EBUSY, "it is not waiting for a server"));
        }
        self.pid.set(i32::try_from(std::process::id()).unwrap_or(i32::MAX));
        self.state.set(KernelState::Live);
        self.set_service(Service::Serving);
        Ok(())
    }

    fn is_recoverable(&self) -> bool {
        matches!(self.state.get(), KernelState::Quiesced | KernelState::FailIo)
    }
}

impl Held {
    /// Lets the reference go; true when it was the last one, which is then the caller's to free.
    fn let_go(mut self) -> bool {
        self.held = false;
        self.device.let_go(Holder::Command)
    }
}

impl Deref for Held {
    type Target = Rc<Device>;

    fn deref(&self) -> &Rc<Device> {
        &self.device
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.held {
            self.kernel.put(&self.device, Holder::Command);
        }
    }
}

/// Turns a refusal into an error.
pub(super) fn refuse<T>(result: Result<T, Refusal>) -> Result<T, Error> {
    result.map_err(|(errno, meaning)| Error::from_errno(errno, meaning))
}

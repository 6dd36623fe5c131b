//! One device of the simulated kernel: its state, its references, the rules that need no clock.
//!
//! ```text
//!   references to the device:   node (until DEL_DEV) + file + disk + commands under way
//!   references to the file:     fd + a mapping per queue + a ring registration per queue
//! ```
//!
//! Invariants: the file reference is held from open until the last file reference has been let go
//! *and* a kernel worker has released the file; the disk reference from START_DEV until the disk
//! is removed and nobody has it open; the id is free only when no reference is left.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use nix::libc;
use tokio::sync::Mutex;

use super::QueueMode;
use super::disk::{Service, SimDisk, SimDisks};
use super::wire::{Wire, Wires};
use super::work::Flag;
use crate::driver::{AddDevice, Features, KernelDevice, KernelState, Params};
use crate::model::{DeviceId, LIMITS, Processors, QueueId, QueueSpec};

/// A refusal: the errno, and what the kernel means by it.
pub(super) type Refusal = (i32, &'static str);

/// Who holds a reference to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// The char device's node, until DEL_DEV.
    Node,
    /// The open char device, until a worker has released it.
    File,
    /// The disk, until it is removed and closed.
    Disk,
    /// A command under way.
    Command,
}

/// What holds the file of the open char device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileHolder {
    /// The open file itself.
    Fd,
    /// The mapping of a queue's descriptors.
    Map,
    /// The registration in a queue's ring.
    Ring,
}

/// A simulated ublk device.
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) queues: QueueSpec,
    pub(super) features: Features,
    /// The driver's mutex of this device.
    pub(super) lock: Mutex<()>,
    pub(super) state: Cell<KernelState>,
    pub(super) pid: Cell<i32>,
    pub(super) params: Cell<Option<Params>>,
    /// DEL_DEV has removed the node.
    pub(super) deleted: Cell<bool>,
    /// Started, and the disk is not freed yet.
    pub(super) used: Cell<bool>,
    /// To queue threads, one a queue; none where queues are virtual.
    pub(super) wires: Wires,
    /// Every tag of every queue was fetched.
    pub(super) ready: Flag,
    /// Fetched tags have come back with ABORT.
    pub(super) cancelled: Flag,
    /// The id is free.
    pub(super) gone: Flag,
    /// The disk that START_DEV made; kept when it is removed, since users may have it open.
    disk: RefCell<Option<SimDisk>>,
    disks: SimDisks,
    attached: Cell<bool>,
    service: Cell<Service>,
    open: Cell<bool>,
    /// Tags of each queue that a server is to fetch.
    reserved: RefCell<Vec<u16>>,
    /// Tags that have been fetched, of all queues.
    tags: Cell<u32>,
    references: Cell<[u32; 4]>,
    file: Cell<[u32; 3]>,
}

impl Device {
    pub(super) fn new(
        id: DeviceId,
        queues: QueueSpec,
        features: Features,
        mode: QueueMode,
        disks: &SimDisks,
    ) -> Self {
        let wires = match mode {
            QueueMode::Virtual => 0,
            QueueMode::Threads => queues.count,
        };
        Self {
            id,
            queues,
            features,
            lock: Mutex::new(()),
            state: Cell::new(KernelState::Dead),
            pid: Cell::new(0),
            params: Cell::new(None),
            deleted: Cell::new(false),
            used: Cell::new(false),
            wires: (0..wires).map(|_| Wire::default()).collect(),
            ready: Flag::default(),
            cancelled: Flag::default(),
            gone: Flag::default(),
            disk: RefCell::default(),
            disks: disks.clone(),
            attached: Cell::new(false),
            service: Cell::new(Service::Serving),
            open: Cell::new(false),
            reserved: RefCell::new(vec![0; usize::from(queues.count)]),
            tags: Cell::new(0),
            references: Cell::new([1, 0, 0, 0]),
            file: Cell::new([0; 3]),
        }
    }

    pub(super) fn describe(&self) -> KernelDevice {
        KernelDevice {
            id: self.id,
            state: self.state.get(),
            queues: self.queues,
            features: self.features,
            pid: self.pid.get(),
        }
    }

    /// Takes a reference; false when the last one is gone already.
    pub(super) fn hold(&self, holder: Holder) -> bool {
        let mut count = self.references.get();
        if count.iter().sum::<u32>() == 0 {
            return false;
        }
        count[holder as usize] += 1;
        self.references.set(count);
        true
    }

    /// Lets a reference go; true when it was the last one.
    pub(super) fn let_go(&self, holder: Holder) -> bool {
        let mut count = self.references.get();
        count[holder as usize] -= 1;
        self.references.set(count);
        count.iter().sum::<u32>() == 0
    }

    /// Whether the last reference is gone, so that commands do not find it any more.
    pub(super) fn is_dying(&self) -> bool {
        self.references.get() == [0; 4]
    }

    /// Opens the char device, for one opener.
    pub(super) fn open(&self) -> Result<(), Refusal> {
        if self.deleted.get() || self.is_dying() {
            return Err((libc::ENOENT, "the char device is gone"));
        }
        if self.open.replace(true) {
            return Err((libc::EBUSY, "the char device has one opener, and somebody is it"));
        }
        self.hold(Holder::File);
        Ok(())
    }

    /// The file was released: it can be opened again.
    pub(super) fn closed(&self) {
        self.open.set(false);
    }

    /// Whether a server has the char device open, or has not let go of it yet.
    pub(super) fn is_open(&self) -> bool {
        self.open.get()
    }

    pub(super) fn hold_file(&self, holder: FileHolder) {
        let mut count = self.file.get();
        count[holder as usize] += 1;
        self.file.set(count);
    }

    /// Lets go of the file; true when nothing holds it any more.
    pub(super) fn let_go_file(&self, holder: FileHolder) -> bool {
        let mut count = self.file.get();
        count[holder as usize] -= 1;
        self.file.set(count);
        count == [0; 3]
    }

    /// References to the file, as open files, mappings and ring registrations.
    pub(super) fn file_references(&self) -> [u32; 3] {
        self.file.get()
    }

    /// A server is about to fetch `depth` tags of a queue.
    pub(super) fn reserve(&self, queue: u16, depth: u16) -> Result<(), Refusal> {
        let mut reserved = self.reserved.borrow_mut();
        let Some(reserved) = reserved.get_mut(usize::from(queue)) else {
            return Err((libc::EINVAL, "the device has no such queue"));
        };
        if self.ready.is_raised() {
            return Err((libc::EBUSY, "every tag has been fetched before"));
        }
        if *reserved + depth > self.queues.depth {
            return Err((libc::EINVAL, "the queue has no such tag, or it was fetched before"));
        }
        *reserved += depth;
        Ok(())
    }

    /// `depth` reserved tags have been fetched.
    pub(super) fn fetched(&self, depth: u16) {
        self.tags.set(self.tags.get() + u32::from(depth));
        if self.tags.get() == u32::from(self.queues.depth) * u32::from(self.queues.count) {
            self.ready.raise();
        }
    }

    /// Every fetched tag comes back with ABORT.
    pub(super) fn cancel(&self) {
        self.cancelled.raise();
        self.wires.iter().for_each(|wire| wire.cancel(true));
    }

    /// The file is released: forgets what was fetched, for the next server.
    pub(super) fn forget_tags(&self) {
        self.reserved.borrow_mut().fill(0);
        self.tags.set(0);
        self.ready.lower();
        self.cancelled.lower();
        self.wires.iter().for_each(|wire| wire.cancel(false));
    }

    /// A ring is gone: the kernel knows that its queue will not serve any more.
    pub(super) fn lost_server(&self) {
        self.set_service(if self.waits_for_server() { Service::Silent } else { Service::Failing });
    }

    /// The file is released: nobody will answer what queues had taken.
    pub(super) fn release_orphans(&self) {
        let reissue = self.features.has(Features::USER_RECOVERY_REISSUE);
        self.wires.iter().for_each(|wire| wire.release_orphans(reissue));
    }

    /// What becomes of requests from now on.
    pub(super) fn set_service(&self, service: Service) {
        self.service.set(service);
        if let Some(disk) = self.disk() {
            disk.set_service(service);
        }
    }

    /// The disk, while the device is started.
    pub(super) fn disk(&self) -> Option<SimDisk> {
        self.last_disk().filter(|_| self.attached.get())
    }

    /// The disk, even when it is removed.
    pub(super) fn last_disk(&self) -> Option<SimDisk> {
        self.disk.borrow().clone()
    }

    /// Makes the disk that START_DEV shows.
    pub(super) fn attach_disk(&self, params: Params) {
        let disk = SimDisk::new(self.id, params, Arc::clone(&self.wires));
        disk.set_service(self.service.get());
        self.disks.attach(self.id, disk.clone());
        *self.disk.borrow_mut() = Some(disk);
        self.attached.set(true);
        self.state.set(KernelState::Live);
    }

    /// Takes the disk away, as at the end of STOP_DEV.
    pub(super) fn detach_disk(&self) {
        self.attached.set(false);
        self.disks.detach(self.id);
        self.state.set(KernelState::Dead);
        self.pid.set(0);
    }

    /// GET_QUEUE_AFFINITY: of a host with so many processors, spread as blk-mq does where all are
    /// alike: neighbours share a queue, and the first queues have one more if it does not come out
    /// even.
    pub(super) fn queue_affinity(
        &self,
        queue: QueueId,
        processors: u16,
    ) -> Result<Processors, Refusal> {
        let (processors, queues) = (usize::from(processors), usize::from(self.queues.count));
        let queue = usize::from(queue.0);
        if processors > Processors::MOST {
            return Err((libc::EINVAL, "the mask has no room for every processor"));
        }
        if queue >= queues {
            return Err((libc::EINVAL, "the device has no such queue"));
        }
        let (each, more) = (processors / queues, processors % queues);
        let first = |queue: usize| queue * each + queue.min(more);
        Ok((first(queue)..first(queue + 1)).collect())
    }

    /// SET_PARAMS.
    pub(super) fn set_params(&self, params: Params) -> Result<(), Refusal> {
        if self.used.get() {
            return Err((libc::EACCES, "parameters cannot change once the device was started"));
        }
        let checked = self.check_params(params);
        self.params.set(checked.is_ok().then_some(params));
        checked
    }

    fn check_params(&self, params: Params) -> Result<(), Refusal> {
        let Params { geometry, max_io, memory_alignment } = params;
        let logical = geometry.logical_block;
        let blocks = LIMITS.block_min..=LIMITS.block_max;
        if !blocks.contains(&logical) || !logical.is_power_of_two() {
            return Err((libc::EINVAL, "the logical block is no power of two from 512 to 4096"));
        }
        if !geometry.physical_block.is_power_of_two() || geometry.physical_block < logical {
            return Err((libc::EINVAL, "the physical block is smaller than the logical one"));
        }
        if !(LIMITS.max_io_min..=self.queues.max_io).contains(&max_io) {
            return Err((libc::EINVAL, "the largest request exceeds what ADD_DEV was told"));
        }
        if geometry.discard.is_some_and(|discard| discard.granularity == 0) {
            return Err((libc::EINVAL, "the discard granularity is 0"));
        }
        if memory_alignment.is_some_and(|bytes| !bytes.is_power_of_two() || bytes > 4096) {
            return Err((libc::EINVAL, "the memory alignment is no power of two up to a page"));
        }
        Ok(())
    }

    /// Whether the loss of its server removes the disk.
    pub(super) fn dies_with_server(&self) -> bool {
        !self.features.has(Features::USER_RECOVERY)
    }

    /// Whether I/O waits when its server is lost.
    pub(super) fn waits_for_server(&self) -> bool {
        !self.dies_with_server() && !self.features.has(Features::USER_RECOVERY_FAIL_IO)
    }
}

/// What ADD_DEV checks before it takes the global mutex.
pub(super) fn check_add(add: &AddDevice, known: Features) -> Result<(), Refusal> {
    let QueueSpec { count, depth, max_io } = add.queues;
    if !(1..=LIMITS.queues).contains(&count) || !(1..=LIMITS.depth).contains(&depth) {
        return Err((libc::EINVAL, "the number of queues or their depth is out of range"));
    }
    if !(LIMITS.max_io_min..=LIMITS.max_io_max).contains(&max_io) {
        return Err((libc::EINVAL, "the largest request is out of range"));
    }
    if add.id.is_some_and(|id| id.0 > DeviceId::MAX) {
        return Err((libc::EINVAL, "the id is out of range"));
    }
    if !known.has(add.features) {
        return Err((libc::EINVAL, "the feature flags hold one that the kernel does not know"));
    }
    let recovery = Features::USER_RECOVERY;
    let modes = Features::USER_RECOVERY_REISSUE.with(Features::USER_RECOVERY_FAIL_IO);
    let needs_recovery = Features(add.features.0 & modes.with(Features::QUIESCE).0);
    if needs_recovery != Features::NONE && !add.features.has(recovery) {
        return Err((libc::EINVAL, "the feature flags need user_recovery beside them"));
    }
    if add.features.has(modes) {
        return Err((libc::EINVAL, "the feature flags both reissue and fail I/O"));
    }
    if add.features.has(Features::INTEGRITY) && !add.features.has(Features::USER_COPY) {
        return Err((libc::EINVAL, "integrity needs user_copy beside it"));
    }
    Ok(())
}

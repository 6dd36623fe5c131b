//! What a device shall be: validated once, immutable afterwards.
//!
//! ```text
//!   config file ─┐
//!   API request ─┼─> DeviceSpecBuilder ─ build() ─> DeviceSpec, or every Problem at once
//!   embedding   ─┘
//! ```

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::policy::{BUSY_TIMEOUT, problem_of as problem_of_labels};
use super::{
    BusyPolicy, DeviceId, DeviceName, Error, ErrorKind, GroupName, Labels, Origin, TargetSpec,
};

/// Allowed ranges, in one place for validation, documentation and error texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most queues a device: `UBLK_MAX_NR_QUEUES`, Linux 7.3.
    pub queues: u16,
    /// Most tags a queue: `UBLK_MAX_QUEUE_DEPTH`, Linux 6.0 on.
    pub depth: u16,
    /// Smallest largest-request size in bytes: one page.
    pub max_io_min: u32,
    /// Largest largest-request size in bytes: `UBLK_IO_BUF_BITS` is 25 (32 MiB).
    pub max_io_max: u32,
    /// Smallest logical block, bytes.
    pub block_min: u32,
    /// Largest logical block, bytes: a page; larger ones need a kernel with large block sizes.
    pub block_max: u32,
    /// Largest device, bytes: sectors are counted in 63 bits, loop files in signed 64-bit bytes.
    pub size_max: u64,
}

/// The ranges in force.
pub const LIMITS: Limits = Limits {
    queues: 4096,
    depth: 4096,
    max_io_min: 4096,
    max_io_max: 32 << 20,
    block_min: 512,
    block_max: 4096,
    size_max: i64::MAX as u64 & !4095,
};

/// How a device is cut into queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Number of queues, each with a thread of its own.
    pub count: u16,
    /// Tags a queue: requests in flight.
    pub depth: u16,
    /// Largest request in bytes; a multiple of 4096.
    pub max_io: u32,
}

impl Default for QueueSpec {
    /// One queue of depth 64 with requests of up to 512 KiB.
    fn default() -> Self {
        Self { count: 1, depth: 64, max_io: 512 << 10 }
    }
}

/// How the data of reads and writes gets from the kernel's requests to the target and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataMode {
    /// What is fastest for the target on this kernel.
    #[default]
    Auto,
    /// The kernel copies into and out of buffers of this process.
    Copy,
    /// This process copies, by reading and writing the char device (Linux 6.5 on).
    UserCopy,
    /// Nobody copies: requests' pages are registered with the queue's ring, and files are read
    /// and written with them (Linux 6.16 on).
    ZeroCopy,
}

impl DataMode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Copy, Self::UserCopy, Self::ZeroCopy];

    /// The mode as one word, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Copy => "copy",
            Self::UserCopy => "user_copy",
            Self::ZeroCopy => "zero_copy",
        }
    }
}

impl fmt::Display for DataMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Logical and physical block size in bytes; `None` lets the target choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockSize {
    /// Smallest unit of I/O.
    pub logical: Option<u32>,
    /// Unit that is written without reading first.
    pub physical: Option<u32>,
}

/// Trouble on purpose, for tests: the target is wrapped in decorators that make it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FaultSpec {
    /// Every request takes this much longer.
    pub delay: Option<Duration>,
    /// Requests that touch this sector (512 bytes) are answered with `EIO`.
    pub error_at: Option<u64>,
    /// A request that touches this sector (512 bytes) panics.
    pub panic_at: Option<u64>,
}

/// A device as it shall be. Made by [`DeviceSpec::builder`]; every value is in range.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceSpec {
    name: DeviceName,
    id: Option<DeviceId>,
    target: TargetSpec,
    queues: QueueSpec,
    block: BlockSize,
    read_only: bool,
    partitions: bool,
    data: DataMode,
    batch: bool,
    affinity: bool,
    group: Option<GroupName>,
    labels: Labels,
    busy: BusyPolicy,
    busy_timeout: Duration,
    recovery: bool,
    origin: Origin,
    faults: FaultSpec,
}

impl DeviceSpec {
    /// Starts a spec for a device called `name` that `target` serves.
    #[must_use]
    pub fn builder(name: DeviceName, target: TargetSpec) -> DeviceSpecBuilder {
        DeviceSpecBuilder {
            spec: Self {
                name,
                id: None,
                target,
                queues: QueueSpec::default(),
                block: BlockSize::default(),
                read_only: false,
                partitions: false,
                data: DataMode::default(),
                batch: false,
                affinity: true,
                group: None,
                labels: Labels::new(),
                busy: BusyPolicy::default(),
                busy_timeout: BUSY_TIMEOUT,
                recovery: false,
                origin: Origin::default(),
                faults: FaultSpec::default(),
            },
        }
    }

    /// The host's name for it.
    #[must_use]
    pub fn name(&self) -> &DeviceName {
        &self.name
    }

    /// The kernel's number that was asked for, if one was.
    #[must_use]
    pub fn id(&self) -> Option<DeviceId> {
        self.id
    }

    /// What serves it.
    #[must_use]
    pub fn target(&self) -> &TargetSpec {
        &self.target
    }

    /// Its queues.
    #[must_use]
    pub fn queues(&self) -> QueueSpec {
        self.queues
    }

    /// Block sizes that were asked for.
    #[must_use]
    pub fn block(&self) -> BlockSize {
        self.block
    }

    /// Whether it refuses writes.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Whether the kernel shall look for partitions when it starts.
    #[must_use]
    pub fn partitions(&self) -> bool {
        self.partitions
    }

    /// The group that it comes and goes with.
    #[must_use]
    pub fn group(&self) -> Option<&GroupName> {
        self.group.as_ref()
    }

    /// Words of the host's own about it.
    #[must_use]
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// What a delete does while somebody holds it.
    #[must_use]
    pub fn busy(&self) -> BusyPolicy {
        self.busy
    }

    /// How long [`BusyPolicy::Wait`] waits.
    #[must_use]
    pub fn busy_timeout(&self) -> Duration {
        self.busy_timeout
    }

    /// Whether the kernel keeps it, with I/O waiting, when it has no server: quiesce needs that.
    #[must_use]
    pub fn recovery(&self) -> bool {
        self.recovery
    }

    /// Who wanted it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The same device in `group`.
    #[must_use]
    pub fn in_group(mut self, group: GroupName) -> Self {
        self.group = Some(group);
        self
    }

    /// The same device with a target of `size` bytes, where the spec is what says the size.
    #[must_use]
    pub(crate) fn resized(mut self, to: u64) -> Self {
        if let TargetSpec::Null { size } | TargetSpec::Ram { size } = &mut self.target {
            *size = to;
        }
        self
    }

    /// The keys, as in the config, in which `self` differs from a device that is there; none when
    /// it is what `self` asks for. Who asked does not matter, nor does the number if none was.
    #[must_use]
    pub fn differences(&self, there: &Self) -> Vec<&'static str> {
        let Self { name, id, target, queues, block, read_only, partitions, .. } = self;
        let Self { data, batch, affinity, .. } = self;
        let Self { group, labels, busy, busy_timeout, recovery, origin: _, faults, .. } = self;
        let same = [
            ("name", *name == there.name),
            ("id", id.is_none() || *id == there.id),
            ("target", *target == there.target),
            ("queues", queues.count == there.queues.count),
            ("depth", queues.depth == there.queues.depth),
            ("max_io", queues.max_io == there.queues.max_io),
            ("logical_block", block.logical == there.block.logical),
            ("physical_block", block.physical == there.block.physical),
            ("read_only", *read_only == there.read_only),
            ("partitions", *partitions == there.partitions),
            ("data", *data == there.data),
            ("batch", *batch == there.batch),
            ("affinity", *affinity == there.affinity),
            ("group", *group == there.group),
            ("labels", *labels == there.labels),
            ("busy", *busy == there.busy),
            ("busy_timeout", *busy_timeout == there.busy_timeout),
            ("recovery", *recovery == there.recovery),
            ("delay", faults.delay == there.faults.delay),
            ("error_at", faults.error_at == there.faults.error_at),
            ("panic_at", faults.panic_at == there.faults.panic_at),
        ];
        let mut keys: Vec<_> = same.into_iter().filter(|key| !key.1).map(|key| key.0).collect();
        if let Some(target) = keys.iter_mut().find(|key| **key == "target") {
            *target = self.target.difference(&there.target);
        }
        keys
    }

    /// How data gets to the target.
    #[must_use]
    pub fn data(&self) -> DataMode {
        self.data
    }

    /// Whether one command to the kernel is for many requests.
    #[must_use]
    pub fn batch(&self) -> bool {
        self.batch
    }

    /// Whether the thread of each of several queues is bound to the queue's processors.
    #[must_use]
    pub fn affinity(&self) -> bool {
        self.affinity
    }

    /// Trouble on purpose.
    #[must_use]
    pub fn faults(&self) -> &FaultSpec {
        &self.faults
    }

    /// The file or block device behind it and whether it is held for writing alone.
    #[must_use]
    pub fn backing(&self) -> Option<Backing> {
        match &self.target {
            TargetSpec::Loop { path, .. } => {
                Some(Backing { path: path.clone(), writable: !self.read_only })
            }
            _ => None,
        }
    }
}

/// What a device holds of the host's file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Backing {
    /// Absolute path, as configured.
    pub path: PathBuf,
    /// A writable backing has one holder; read-only ones may be shared.
    pub writable: bool,
}

/// One value that is out of range or does not fit another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The key, as in the config.
    pub key: &'static str,
    /// What is wrong: the value, and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// Collects the values of a [`DeviceSpec`] and checks them all at once.
#[derive(Debug, Clone)]
pub struct DeviceSpecBuilder {
    spec: DeviceSpec,
}

impl DeviceSpecBuilder {
    /// Asks for this number instead of the first free one.
    #[must_use]
    pub fn id(mut self, id: DeviceId) -> Self {
        self.spec.id = Some(id);
        self
    }

    /// Number of queues, depth and largest request.
    #[must_use]
    pub fn queues(mut self, queues: QueueSpec) -> Self {
        self.spec.queues = queues;
        self
    }

    /// Block sizes.
    #[must_use]
    pub fn block(mut self, block: BlockSize) -> Self {
        self.spec.block = block;
        self
    }

    /// Refuse writes.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.spec.read_only = read_only;
        self
    }

    /// Have the kernel look for partitions when it starts, which is part of the time that a start
    /// takes. Older kernels, such as 6.12, always do.
    #[must_use]
    pub fn partitions(mut self, partitions: bool) -> Self {
        self.spec.partitions = partitions;
        self
    }

    /// Belongs to this group: they are deleted together.
    #[must_use]
    pub fn group(mut self, group: GroupName) -> Self {
        self.spec.group = Some(group);
        self
    }

    /// Words of the host's own about it.
    #[must_use]
    pub fn labels(mut self, labels: Labels) -> Self {
        self.spec.labels = labels;
        self
    }

    /// What a delete does while somebody holds it.
    #[must_use]
    pub fn busy(mut self, busy: BusyPolicy) -> Self {
        self.spec.busy = busy;
        self
    }

    /// How long [`BusyPolicy::Wait`] waits.
    #[must_use]
    pub fn busy_timeout(mut self, bound: Duration) -> Self {
        self.spec.busy_timeout = bound;
        self
    }

    /// Have the kernel keep the device, with its I/O waiting, while it has no server: what
    /// `quiesce` needs. Such a device outlives a supervisor that was killed; without, it goes with
    /// its server.
    #[must_use]
    pub fn recovery(mut self, recovery: bool) -> Self {
        self.spec.recovery = recovery;
        self
    }

    /// Who wants it.
    #[must_use]
    pub fn origin(mut self, origin: Origin) -> Self {
        self.spec.origin = origin;
        self
    }

    /// How data gets to the target. One that the kernel does not have, or that does not suit the
    /// target, fails the start; [`DataMode::Auto`] picks one that works.
    #[must_use]
    pub fn data(mut self, data: DataMode) -> Self {
        self.spec.data = data;
        self
    }

    /// Have one command to the kernel be for many requests (Linux 7.0 on): faster with many of them
    /// in flight, slower with one. Fails the start where the kernel cannot.
    #[must_use]
    pub fn batch(mut self, batch: bool) -> Self {
        self.spec.batch = batch;
        self
    }

    /// Bind the thread of each of several queues to the processors whose requests the kernel puts
    /// into that queue. So it is unless told otherwise.
    #[must_use]
    pub fn affinity(mut self, affinity: bool) -> Self {
        self.spec.affinity = affinity;
        self
    }

    /// Trouble on purpose.
    #[must_use]
    pub fn faults(mut self, faults: FaultSpec) -> Self {
        self.spec.faults = faults;
        self
    }

    /// Checks every value.
    ///
    /// # Errors
    /// All [`Problem`]s, in the order of the keys.
    pub fn try_build(self) -> Result<DeviceSpec, Vec<Problem>> {
        let problems = problems_of(&self.spec);
        if problems.is_empty() { Ok(self.spec) } else { Err(problems) }
    }

    /// Checks every value; the problems become one error.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Invalid`], naming every key, its value and the allowed range.
    pub fn build(self) -> Result<DeviceSpec, Error> {
        let name = self.spec.name.clone();
        self.try_build().map_err(|problems| {
            let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
            Error::new(ErrorKind::Invalid, text.join("; ")).device(&name)
        })
    }
}

fn problems_of(spec: &DeviceSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut refuse = |key, message: String| problems.push(Problem { key, message });

    if let Some(DeviceId(id)) = spec.id
        && id > DeviceId::MAX
    {
        refuse("id", format!("{id} is out of range: 0 to {}", DeviceId::MAX));
    }

    let QueueSpec { count, depth, max_io } = spec.queues;
    if !(1..=LIMITS.queues).contains(&count) {
        refuse("queues", format!("{count} is out of range: 1 to {}", LIMITS.queues));
    }
    if !(1..=LIMITS.depth).contains(&depth) {
        refuse("depth", format!("{depth} is out of range: 1 to {}", LIMITS.depth));
    }
    if !(LIMITS.max_io_min..=LIMITS.max_io_max).contains(&max_io) || !max_io.is_multiple_of(4096) {
        refuse(
            "max_io",
            format!(
                "{max_io} bytes is out of range: a multiple of 4096 from {} to {} (32 MiB)",
                LIMITS.max_io_min, LIMITS.max_io_max
            ),
        );
    }

    let logical = spec.block.logical.unwrap_or(LIMITS.block_min);
    let block_range = LIMITS.block_min..=LIMITS.block_max;
    if !block_range.contains(&logical) || !logical.is_power_of_two() {
        refuse("logical_block", format!("{logical} is not one of 512, 1024, 2048, 4096"));
    }
    if let Some(physical) = spec.block.physical
        && (!physical.is_power_of_two() || physical < logical || physical > 1 << 20)
    {
        refuse(
            "physical_block",
            format!(
                "{physical} must be a power of two from the logical block ({logical}) to 1048576"
            ),
        );
    }

    if let Some(message) = problem_of_labels(&spec.labels) {
        refuse("labels", message);
    }

    match &spec.target {
        TargetSpec::Null { size } | TargetSpec::Ram { size } => {
            if *size == 0 || *size > LIMITS.size_max {
                refuse(
                    "size",
                    format!("{size} bytes is out of range: {logical} to {}", LIMITS.size_max),
                );
            } else if logical.is_power_of_two() && size % u64::from(logical) != 0 {
                refuse(
                    "size",
                    format!("{size} bytes is no multiple of the logical block ({logical})"),
                );
            }
        }
        TargetSpec::Loop { path, .. } => {
            if !path.is_absolute() {
                refuse("path", format!("{} must be absolute here", path.display()));
            }
        }
        TargetSpec::Custom { name, .. } => {
            if matches!(name.as_str(), "" | "null" | "ram" | "loop") {
                refuse("target", format!("{name:?} cannot name a custom target"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests;

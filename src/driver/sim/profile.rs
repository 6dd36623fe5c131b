//! Which kernel is simulated: what it knows, where it waits, and what its steps cost.
//!
//! The costs of the presets are fitted to what a bare loop over io_uring took to tear 200 null devices
//! down in a virtual machine with four emulated processors: serial times come out to a few per cent,
//! the others within a factor of 2.5, for each order of steps and number of workers (a test holds
//! the table).

use std::time::Duration;

use super::super::Features;

/// A kernel to simulate. Start from a preset and change what a test is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelProfile {
    /// Name of the kernel, for logs.
    pub name: &'static str,
    /// What `GET_FEATURES` says, and all that `ADD_DEV` takes.
    pub features: Features,
    /// Whether `DEL_DEV_ASYNC` is known (Linux 6.9 on).
    pub delete_async: bool,
    /// Whether a delete that drops the last reference waits for it inside the driver's global
    /// mutex, so that all other deletes and adds queue up behind it (up to and including 7.3).
    pub mutex_on_delete: bool,
    /// Most devices (`ublks_max`; from 6.15 on only unprivileged ones are counted, so no limit).
    pub ublks_max: usize,
    /// Processors: a device never gets more queues than these, and they are spread over its queues.
    pub processors: u16,
    /// While `STOP_DEV` drains, an opener reads one block more, and `STOP_DEV` returns only when
    /// a queue has served it: whoever ends queues before `STOP_DEV` has returned waits for ever.
    pub stop_probe: bool,
    /// What steps cost.
    pub costs: Costs,
}

/// What steps cost. Timers have a resolution of one millisecond: use whole ones for exact figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Length of a grace period.
    pub grace: Duration,
    /// How many grace periods the removal of a disk waits for, one after the other.
    pub stop_graces: u32,
    /// The wait of the last reference, in which the tag set is freed.
    pub last_reference: Duration,
    /// The same wait when a delete command has it inside the global mutex.
    pub last_reference_locked: Duration,
    /// Making or removing a char node, inside the global mutex.
    pub node: Duration,
    /// Time of the one processor that every control command needs.
    pub command: Duration,
    /// How much later kernel workers let go of a closed file and a closed ring.
    pub deferred: Duration,
}

impl KernelProfile {
    /// Linux 6.12.
    #[must_use]
    pub fn linux_6_12() -> Self {
        let features = [
            Features::COMP_IN_TASK,
            Features::NEED_GET_DATA,
            Features::USER_RECOVERY,
            Features::USER_RECOVERY_REISSUE,
            Features::UNPRIVILEGED_DEV,
            Features::CMD_IOCTL_ENCODE,
            Features::USER_COPY,
            Features::ZONED,
        ];
        Self {
            name: "6.12",
            features: features.into_iter().fold(Features::NONE, Features::with),
            delete_async: true,
            mutex_on_delete: true,
            // The module's own default is 64; hosts with many devices load it with more.
            ublks_max: 65_536,
            processors: 64,
            stop_probe: false,
            costs: Costs {
                grace: Duration::from_millis(9),
                stop_graces: 5,
                last_reference: Duration::from_millis(1),
                last_reference_locked: Duration::ZERO,
                node: Duration::from_millis(1),
                command: Duration::from_micros(200),
                deferred: Duration::from_millis(1),
            },
        }
    }

    /// Linux 7.3: the last reference costs a grace period of its own, and a delete that drops it
    /// holds the global mutex meanwhile.
    #[must_use]
    pub fn linux_7_3() -> Self {
        let older = Self::linux_6_12();
        let known = Features::KNOWN.iter().map(|known| known.0);
        let costs = Costs {
            last_reference: Duration::from_millis(2),
            last_reference_locked: Duration::from_millis(17),
            ..older.costs
        };
        Self {
            name: "7.3",
            features: known.fold(Features::NONE, Features::with),
            ublks_max: usize::MAX,
            costs,
            ..older
        }
    }

    /// Linux 7.4: as 7.3, with the last reference dropped outside the global mutex.
    #[must_use]
    pub fn linux_7_4() -> Self {
        Self { name: "7.4", mutex_on_delete: false, ..Self::linux_7_3() }
    }

    /// The preset of this name: `6.12`, `7.3` or `7.4`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::linux_6_12(), Self::linux_7_3(), Self::linux_7_4()]
            .into_iter()
            .find(|preset| preset.name == name)
    }

    /// The same kernel with nothing that costs time but grace periods and the last reference, so
    /// that times follow from the law alone.
    #[must_use]
    pub fn grace_only(mut self) -> Self {
        self.costs.node = Duration::ZERO;
        self.costs.command = Duration::ZERO;
        self.costs.deferred = Duration::ZERO;
        self
    }

    /// What is on for every device, asked for or not.
    pub(super) fn always_on(&self) -> Features {
        let on = [
            Features::COMP_IN_TASK,
            Features::CMD_IOCTL_ENCODE,
            Features::PER_IO_DAEMON,
            Features::BUF_REG_OFF_DAEMON,
            Features::SAFE_STOP_DEV,
        ];
        let on = on.into_iter().fold(Features::NONE, Features::with);
        Features(on.0 & self.features.0)
    }
}

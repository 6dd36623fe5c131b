//! What can be asked of a running supervisor beyond create and delete, and the answers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{
    BusyPolicy, CreateOutcome, DeviceInfo, DeviceName, DeviceOutcome, DeviceState, Error, GroupName,
};

/// What an idempotent create gives back.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ensured {
    /// It was not there and has been made.
    Created(CreateOutcome),
    /// It is there, as asked.
    AlreadySo(Box<DeviceInfo>),
}

impl Ensured {
    /// The name of the device.
    #[must_use]
    pub fn name(&self) -> &DeviceName {
        match self {
            Self::Created(outcome) => &outcome.name,
            Self::AlreadySo(info) => &info.name,
        }
    }
}

/// How a delete shall go; what is left out is as the device's spec says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// What to do while somebody holds the device.
    pub busy: Option<BusyPolicy>,
    /// How long [`BusyPolicy::Wait`] waits.
    pub within: Option<Duration>,
}

/// What is known of a group now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct GroupInfo {
    /// Its name.
    pub name: GroupName,
    /// How many devices are in it.
    pub devices: usize,
    /// How many of them are in which state.
    pub states: BTreeMap<DeviceState, usize>,
}

/// What deleting a group gives back: each of its devices once.
#[derive(Debug, Clone, Serialize)]
pub struct GroupReport {
    /// The group.
    pub group: GroupName,
    /// How each device that was taken down ended, by name.
    pub devices: Vec<DeviceOutcome>,
    /// Devices that were not taken down, and why: somebody holds them.
    pub refused: BTreeMap<DeviceName, Error>,
    /// Whatever is still there, one line each.
    pub left: Vec<String>,
    /// Wall time, in seconds.
    #[serde(rename = "wall_s", serialize_with = "seconds")]
    pub wall: Duration,
}

impl GroupReport {
    /// Sums up how the devices of `group` ended.
    #[must_use]
    pub fn new(
        group: GroupName,
        mut devices: Vec<DeviceOutcome>,
        refused: BTreeMap<DeviceName, Error>,
        wall: Duration,
    ) -> Self {
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        let ended = devices.iter().flat_map(|device| {
            device.left.iter().map(move |what| format!("{}: {what}", device.name))
        });
        let kept = refused.iter().map(|(name, error)| format!("{name}: not deleted: {error}"));
        let left = ended.chain(kept).collect();
        Self { group, devices, refused, left, wall }
    }

    /// Whether there was no such group.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.devices.is_empty() && self.refused.is_empty()
    }

    /// Whether nothing is left of any device.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.left.is_empty()
    }
}

fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// What a resize gives back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResizeOutcome {
    /// The device.
    pub name: DeviceName,
    /// Its size before, in bytes.
    pub from: u64,
    /// Its size now, in bytes.
    pub to: u64,
}

/// What to wait for ([`crate::Handle::wait`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The device is in this state.
    State(DeviceState),
    /// There is no such device (any more).
    Absent,
}

impl Condition {
    /// Whether a device in `state`, or none, is what is waited for.
    #[must_use]
    pub fn is_met(self, state: Option<DeviceState>) -> bool {
        match self {
            Self::State(wanted) => state == Some(wanted),
            Self::Absent => matches!(state, None | Some(DeviceState::Gone)),
        }
    }

    /// Whether a device in `state` may rest there for ever without it.
    #[must_use]
    pub fn is_out_of_reach(self, state: Option<DeviceState>) -> bool {
        let rests = matches!(state, Some(DeviceState::Failed | DeviceState::Wedged));
        rests && !self.is_met(state)
    }
}

/// What the driver of the kernel can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct KernelFeatures {
    /// Which driver: `ublk` or `sim`.
    pub driver: &'static str,
    /// The feature flags as the kernel tells them; 0 before Linux 6.5, which cannot tell.
    pub bits: u64,
    /// The flags by name; one that is not known here as `bit_N`.
    pub names: Vec<String>,
    /// Whether a live device can change its size (Linux 6.16 on).
    pub resize: bool,
    /// Whether a live device can be quiesced (Linux 6.16 on).
    pub quiesce: bool,
    /// Whether a delete that refuses busy devices cannot be outrun by an opener (Linux 7.0 on).
    pub try_stop: bool,
}

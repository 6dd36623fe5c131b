//! What goes over the API beside the model's own types: requests, answers, problems.
//!
//! Times are text with a unit (`"30s"`), sizes bytes or text with a unit (`"2GiB"`), as in a config.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::model::{DeviceInfo, DeviceName, DeviceState, GroupInfo, GroupName};

/// Devices in the order of their names, a page of them.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Devices {
    /// The devices of this page.
    pub(super) items: Vec<DeviceInfo>,
    /// Ask with `after` set to this for the page after it; null on the last one.
    pub(super) next: Option<DeviceName>,
}

/// Devices to create, each with the keys of `[[device]]`; one with `count` makes a fleet.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateDevices {
    /// What to create.
    #[schema(value_type = Vec<super::schema::DeviceKeys>, max_items = 65536)]
    pub(super) devices: Vec<Value>,
    /// All of them or none: one that fails takes those down that were made.
    #[serde(default)]
    pub(super) atomic: bool,
}

/// What became of devices that were asked for together, in the order of their names.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Created {
    /// Each device.
    pub(super) items: Vec<CreatedItem>,
}

/// What became of one device among many.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct CreatedItem {
    /// Which.
    pub(super) name: DeviceName,
    /// As the status of a request for it alone: 201, 200 for one that was there already, or an
    /// error's.
    pub(super) status: u16,
    /// Why it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<Problem>,
}

/// How a device ended.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Deleted {
    /// Which.
    pub(super) name: DeviceName,
    /// `deleted`, `already_gone`, `failed` or `panicked` when nothing is left of it; `timed_out` or
    /// `wedged` when something is; `absent` when no device of the name was known.
    pub(super) outcome: String,
    /// What went wrong, in one line.
    pub(super) error: Option<String>,
    /// Who holds the block device.
    pub(super) holders: Vec<String>,
    /// What is still there.
    pub(super) left: Vec<String>,
    /// Seconds in each stage of the teardown.
    pub(super) stages: std::collections::BTreeMap<String, f64>,
}

/// Groups, in the order of their names.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Groups {
    /// Each group that has a device.
    pub(super) items: Vec<GroupInfo>,
}

/// Devices of one group, all or none; those that say no group are of this one.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateGroup {
    /// What to create, each with the keys of `[[device]]`; one with `count` makes a fleet.
    #[schema(value_type = Vec<super::schema::DeviceKeys>, max_items = 65536)]
    pub(super) devices: Vec<Value>,
}

/// What became of the devices of a group.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct GroupDeleted {
    /// The group.
    pub(super) name: GroupName,
    /// `deleted`, or `absent` when there was no device of the group.
    pub(super) outcome: String,
    /// Each device that was taken down.
    pub(super) devices: Vec<Deleted>,
    /// Wall time of the whole, in seconds.
    pub(super) wall_s: f64,
}

/// One change of state of one device.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Event {
    /// Its number: they count up from 1 without a gap.
    pub(super) id: u64,
    /// When, as RFC 3339 has it, in UTC.
    pub(super) at: String,
    /// Which device.
    pub(super) device: DeviceName,
    /// The kernel's number, once known.
    pub(super) number: Option<u32>,
    /// The group it belongs to.
    pub(super) group: Option<GroupName>,
    /// From which state.
    pub(super) from: DeviceState,
    /// Into which state.
    pub(super) to: DeviceState,
    /// Why, where there is an error.
    pub(super) error: Option<String>,
}

/// Events that are kept no longer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Lost {
    /// The number of the first one.
    pub(super) from: u64,
    /// The number of the last one.
    pub(super) to: u64,
}

/// Makes a device larger, or smaller.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResizeRequest {
    /// Bytes, or text with a unit.
    #[schema(value_type = super::schema::Size)]
    pub(super) size: Value,
    /// Smaller is meant: what is cut off is lost.
    #[serde(default)]
    pub(super) shrink: bool,
}

/// Takes a device's server away while its users wait.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QuiesceRequest {
    /// How long I/O in flight has to end by itself, as `"1s"`.
    #[serde(default)]
    pub(super) within: Option<String>,
}

/// Serves a quiesced device again. It has no keys.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResumeRequest {}

/// Has a device refuse writes, or take them again.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadOnlyRequest {
    /// Whether it refuses them.
    pub(super) read_only: bool,
}

/// Takes everything down.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ShutdownRequest {
    /// Bound of the whole, as `"30s"`; the config's if there is none.
    #[serde(default)]
    pub(super) within: Option<String>,
}

/// Reads the config again.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadRequest {
    /// Only say what would be done.
    #[serde(default)]
    pub(super) dry_run: bool,
}

/// Where in its life the daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::daemon) enum Phase {
    /// The config's devices come up.
    Starting,
    /// They are up, or have failed.
    Serving,
    /// Everything is taken down.
    Stopping,
    /// Everything is accounted for.
    Stopped,
}

/// How far the daemon's end is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Report {
    /// Where the daemon is.
    pub(super) phase: Phase,
    /// Devices that are not gone yet; null when nobody knows any more.
    pub(super) remaining: Option<usize>,
    /// The shutdown report, once there is one.
    #[schema(value_type = Option<Object>)]
    pub(super) report: Option<Value>,
}

/// Whether the daemon is alive, or ready.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Health {
    /// Where the daemon is.
    pub(super) phase: Phase,
    /// The version of this daemon.
    pub(super) version: String,
    /// Its process.
    pub(super) pid: u32,
}

/// Something that takes its time, whoever waits for it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Operation {
    /// Its number in this run of the daemon, as text.
    pub(super) id: String,
    /// What is done, as `create`.
    pub(super) action: String,
    /// To which device or group; null when to the daemon.
    pub(super) subject: Option<String>,
    /// How far it is.
    pub(super) state: OperationState,
    /// Seconds since it was asked for.
    pub(super) age_s: f64,
    /// The status that a request which waited for it would have had; null while it runs.
    pub(super) status: Option<u16>,
    /// The body that such a request would have had, when it went well.
    #[schema(value_type = Option<Object>)]
    pub(super) result: Option<Value>,
    /// Why it failed.
    pub(super) problem: Option<Problem>,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OperationState {
    /// It goes on.
    Running,
    /// It has ended well.
    Succeeded,
    /// It has failed; the problem says why.
    Failed,
}

/// Operations that are known still, oldest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Operations {
    /// Each of them.
    pub(super) items: Vec<Operation>,
}

/// Why a request failed: an RFC 9457 problem document.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Problem {
    /// `urn:ublkd:problem:` and the kind.
    #[serde(rename = "type")]
    pub(super) type_: String,
    /// The HTTP status in words.
    pub(super) title: String,
    /// The HTTP status.
    pub(super) status: u16,
    /// What went wrong, in one line.
    pub(super) detail: String,
    /// The path that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instance: Option<String>,
    /// The stable kind of the failure, one word.
    pub(super) kind: String,
    /// Which device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<String>,
    /// The stage of its life that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stage: Option<String>,
    /// What the operating system answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) errno: Option<i32>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
    /// Who holds the block device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) holders: Vec<String>,
    /// What is still there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) left: Vec<String>,
    /// Each key of the request that is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) errors: Vec<KeyProblem>,
    /// Seconds after which to ask again, where that may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after: Option<u64>,
}

/// One key of a request that is wrong.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct KeyProblem {
    /// Which, as `size` or `devices[3].depth`.
    pub(super) key: String,
    /// What is wrong, and what is allowed.
    pub(super) message: String,
}

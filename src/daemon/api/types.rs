//! What goes over the API beside the model's own types: requests, answers, problems.
//!
//! Times are text with a unit (`"30s"`), sizes bytes or text with a unit (`"2GiB"`), as in a config.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::model::{DeviceInfo, DeviceName, DeviceState, GroupInfo, GroupName};

/// Devices in the order of their names, a page of them.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Devices {
    /// The devices of this page.
    pub items: Vec<DeviceInfo>,
    /// Ask with `after` set to this for the page after it; null on the last one.
    pub next: Option<DeviceName>,
}

/// Devices to create, each with the keys of `[[device]]`; one with `count` makes a fleet.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateDevices {
    /// What to create.
    #[schema(value_type = Vec<super::schema::DeviceKeys>, max_items = 65536)]
    pub devices: Vec<Value>,
    /// All of them or none: one that fails takes those down that were made.
    #[serde(default)]
    pub atomic: bool,
}

/// What became of devices that were asked for together, in the order of their names.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Created {
    /// Each device.
    pub items: Vec<CreatedItem>,
}

/// What became of one device among many.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct CreatedItem {
    /// Which.
    pub name: DeviceName,
    /// As the status of a request for it alone: 201, 200 for one that was there already, or an
    /// error's.
    pub status: u16,
    /// Why it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// How a device ended.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Deleted {
    /// Which.
    pub name: DeviceName,
    /// `deleted`, `already_gone`, `failed` or `panicked` when nothing is left of it; `timed_out` or
    /// `wedged` when something is; `absent` when no device of the name was known.
    pub outcome: String,
    /// What went wrong, in one line.
    pub error: Option<String>,
    /// Who holds the block device.
    pub holders: Vec<String>,
    /// What is still there.
    pub left: Vec<String>,
    /// Seconds in each stage of the teardown.
    pub stages: std::collections::BTreeMap<String, f64>,
}

/// Groups, in the order of their names.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Groups {
    /// Each group that has a device.
    pub items: Vec<GroupInfo>,
}

/// Devices of one group, all or none; those that say no group are of this one.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateGroup {
    /// What to create, each with the keys of `[[device]]`; one with `count` makes a fleet.
    #[schema(value_type = Vec<super::schema::DeviceKeys>, max_items = 65536)]
    pub devices: Vec<Value>,
}

/// What became of the devices of a group.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct GroupDeleted {
    /// The group.
    pub name: GroupName,
    /// `deleted`, or `absent` when there was no device of the group.
    pub outcome: String,
    /// Each device that was taken down.
    pub devices: Vec<Deleted>,
    /// Wall time of the whole, in seconds.
    pub wall_s: f64,
}

/// One change of state of one device.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Event {
    /// Its number: they count up from 1 without a gap.
    pub id: u64,
    /// When, as RFC 3339 has it, in UTC.
    pub at: String,
    /// Which device.
    pub device: DeviceName,
    /// The kernel's number, once known.
    pub number: Option<u32>,
    /// The group it belongs to.
    pub group: Option<GroupName>,
    /// From which state.
    pub from: DeviceState,
    /// Into which state.
    pub to: DeviceState,
    /// Why, where there is an error.
    pub error: Option<String>,
}

/// Events that are kept no longer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Lost {
    /// The number of the first one.
    pub from: u64,
    /// The number of the last one.
    pub to: u64,
}

/// Takes everything down.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShutdownRequest {
    /// Bound of the whole, as `"30s"`; the config's if there is none.
    #[serde(default)]
    pub within: Option<String>,
}

/// Where in its life the daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
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
pub struct Report {
    /// Where the daemon is.
    pub phase: Phase,
    /// Devices that are not gone yet; null when nobody knows any more.
    pub remaining: Option<usize>,
    /// The shutdown report, once there is one.
    #[schema(value_type = Option<Object>)]
    pub report: Option<Value>,
}

/// Whether the daemon is alive, or ready.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Health {
    /// Where the daemon is.
    pub phase: Phase,
    /// The version of this daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
}

/// Something that takes its time, whoever waits for it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Operation {
    /// Its number in this run of the daemon, as text.
    pub id: String,
    /// What is done, as `create`.
    pub action: String,
    /// To which device or group; null when to the daemon.
    pub subject: Option<String>,
    /// How far it is.
    pub state: OperationState,
    /// Seconds since it was asked for.
    pub age_s: f64,
    /// The status that a request which waited for it would have had; null while it runs.
    pub status: Option<u16>,
    /// The body that such a request would have had, when it went well.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
    /// Why it failed.
    pub problem: Option<Problem>,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// It goes on.
    Running,
    /// It has ended well.
    Succeeded,
    /// It has failed; the problem says why.
    Failed,
}

/// Operations that are known still, oldest first.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Operations {
    /// Each of them.
    pub items: Vec<Operation>,
}

/// Why a request failed: an RFC 9457 problem document.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Problem {
    /// `urn:ublkd:problem:` and the kind.
    #[serde(rename = "type")]
    pub type_: String,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What went wrong, in one line.
    pub detail: String,
    /// The path that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The stable kind of the failure, one word.
    pub kind: String,
    /// Which device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The stage of its life that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// What the operating system answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Who holds the block device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<String>,
    /// What is still there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
    /// Each key of the request that is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<KeyProblem>,
    /// Seconds after which to ask again, where that may help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
}

/// One key of a request that is wrong.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct KeyProblem {
    /// Which, as `size` or `devices[3].depth`.
    pub key: String,
    /// What is wrong, and what is allowed.
    pub message: String,
}

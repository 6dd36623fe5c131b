//! Who wants to see devices change state.

use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

use super::{DeviceId, DeviceName, DeviceState, GroupName};

/// One change of state of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateChange {
    /// When.
    pub at: SystemTime,
    /// Which device.
    pub device: DeviceName,
    /// The kernel's number, once known.
    pub id: Option<DeviceId>,
    /// The group it belongs to.
    pub group: Option<GroupName>,
    /// From which state.
    pub from: DeviceState,
    /// Into which state.
    pub to: DeviceState,
    /// Why, where there is an error.
    pub error: Option<String>,
}

/// Told of every change of state, on the supervisor's thread: be quick, do not block.
pub trait Observer: Send + 'static {
    /// `change` has just happened.
    fn state_changed(&self, change: &StateChange);
}

/// One item of a stream of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEvent {
    /// A change of state, with its number: they count up from 1 without a gap.
    Change(u64, Arc<StateChange>),
    /// The changes of these numbers, both included, are kept no longer.
    Lost {
        /// The first one.
        from: u64,
        /// The last one.
        to: u64,
    },
}

//! Who wants to see devices change state.

use std::time::SystemTime;

use serde::Serialize;

use super::{DeviceId, DeviceName, DeviceState};

/// One change of state of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateChange {
    /// When.
    pub at: SystemTime,
    /// Which device.
    pub device: DeviceName,
    /// The kernel's number, once known.
    pub id: Option<DeviceId>,
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

//! Schemas of what has no Rust type: the keys of a device.

use utoipa::ToSchema;

/// A device as it shall be: the keys of `[[device]]` in a config.
#[derive(ToSchema)]
pub(super) struct DeviceKeys;

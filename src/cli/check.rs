//! `ublkd check`: every mistake of a config at once, or the devices it resolves to.

use super::args::Check;
use super::render::{self, Extent};
use super::{finish, load};
use crate::daemon::ExitStatus;

pub(super) fn check(args: &Check) -> ExitStatus {
    match load(&args.config) {
        Ok(config) if args.format.json => finish(render::json(&config)),
        Ok(config) => finish(Ok(render::resolved(&config, Extent::Short))),
        Err(status) => status,
    }
}

//! `ublkd check`: every mistake of a config at once, or the devices it resolves to.

use super::args::Check;
use super::render::{self, Extent};
use super::{finish, load};
use crate::daemon::ExitStatus;

pub(super) fn check(args: &Check) -> ExitStatus {
    match load(&args.config) {
        Ok(config) => finish(match args.format.form() {
            Some(form) => form.text(&config),
            None => Ok(render::resolved(&config, Extent::Short)),
        }),
        Err(status) => status,
    }
}

//! `ublkd check`: every mistake of a config at once, or the devices it resolves to.

use super::args::Check;
use super::{complain, load, render, say};
use crate::daemon::ExitStatus;

pub(super) fn check(args: &Check) -> ExitStatus {
    let config = match load(&args.config) {
        Ok(config) => config,
        Err(status) => return status,
    };
    if args.format.json {
        match config.to_json() {
            Ok(json) => say(&json),
            Err(error) => {
                complain(&error);
                return ExitStatus::RunFailed;
            }
        }
    } else {
        say(&render::config::table(&config));
    }
    ExitStatus::Clean
}

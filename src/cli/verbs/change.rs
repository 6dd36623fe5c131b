//! `resize`, `quiesce`, `resume`, `read-only`: changes of live devices.

use hyper::Method;
use serde_json::{Value, json};

use super::args::{Change, ReadOnly, Resize};
use super::devices::path;
use super::each::each;
use crate::cli::client::{Call, Failure};
use crate::config::size_text;

pub(super) fn resize(args: &Resize) -> Result<(), Failure> {
    let body = json!({ "size": args.size, "shrink": args.shrink });
    let call = |name: &str| {
        Call::change(Method::POST, path(name) + "/resize", args.ask.at.change()).body(body.clone())
    };
    let said = format!("resized to {}", size_text(args.size));
    each(&args.ask, &[&args.name], call, |_| Ok(said.clone()))
}

pub(super) fn quiesce(args: &Change) -> Result<(), Failure> {
    post(args, "quiesce", &json!({}), "quiesced")
}

pub(super) fn resume(args: &Change) -> Result<(), Failure> {
    post(args, "resume", &json!({}), "resumed")
}

pub(super) fn read_only(args: &ReadOnly) -> Result<(), Failure> {
    let said = if args.off { "writable" } else { "read-only" };
    post(&args.change, "read-only", &json!({ "read_only": !args.off }), said)
}

/// Asks for the same of each device.
fn post(args: &Change, action: &str, body: &Value, said: &str) -> Result<(), Failure> {
    let call = |name: &str| {
        let path = format!("{}/{action}", path(name));
        Call::change(Method::POST, path, args.ask.at.change()).body(body.clone())
    };
    let names: Vec<_> = args.devices.names.iter().collect();
    each(&args.ask, &names, call, |_| Ok(said.to_owned()))
}

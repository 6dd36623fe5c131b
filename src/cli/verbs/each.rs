//! The same request about each of several devices, many at once.

use serde_json::{Value, json};

use super::args::Ask;
use crate::cli::client::{Call, Failure};
use crate::cli::output::{Output, Shown, print};
use crate::daemon::ExitStatus;
use crate::model::DeviceName;

/// Sends `call` for each device. `said` makes of a good answer what people are told, as `deleted`.
///
/// People are told of each device when it is done; programs get one value when all are.
///
/// # Errors
/// All failures, with the status of the first.
pub(super) fn each(
    ask: &Ask,
    names: &[&DeviceName],
    call: impl Fn(&str) -> Call,
    said: impl Fn(&Value) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let client = ask.at.client()?;
    let calls: Vec<Call> = names.iter().map(|name| call(name.as_str())).collect();
    let mut answers = vec![Value::Null; names.len()];
    let mut failures = Vec::new();
    client.send_all(&calls, |at, answered| {
        match answered.and_then(|reply| Ok((said(&reply.json)?, reply.json))) {
            Ok((said, json)) => {
                answers[at] = json;
                if matches!(ask.output, None | Some(Output::Wide)) {
                    print(&format!("device/{} {said}\n", names[at]))?;
                }
            }
            // Nobody is there; the others would say the same.
            Err(failure) if failure.status == ExitStatus::NoDaemon => return Err(failure),
            Err(failure) => failures.push((at, failure)),
        }
        Ok(())
    })?;
    if !matches!(ask.output, None | Some(Output::Wide)) {
        let done: Vec<_> =
            answers.iter().zip(names).filter(|(answer, _)| !answer.is_null()).collect();
        let items: Vec<_> = done.iter().map(|(answer, _)| (*answer).clone()).collect();
        let value = match (items.as_slice(), names) {
            ([item], [_]) => item.clone(),
            (items, _) => json!({ "items": items }),
        };
        let named = done.iter().map(|(_, name)| format!("device/{name}"));
        // A single device that failed has no value.
        if !(names.len() == 1 && items.is_empty()) {
            let shown = Shown { value: &value, names: named, people: &|_| String::new() };
            Output::show(ask.output, &shown)?;
        }
    }
    failures.sort_by_key(|(at, _)| *at);
    Failure::all(failures.into_iter().map(|(_, failure)| failure))
}

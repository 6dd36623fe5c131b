//! `events`: every change of state, as it happens.

use std::cell::Cell;

use serde_json::Value;

use super::args::Events;
use crate::cli::client::{Call, Failure, Item};
use crate::cli::output::{Output, heard};
use crate::cli::{complain, render};
use crate::daemon::ExitStatus;

pub(super) fn events(args: &Events) -> Result<(), Failure> {
    let from = args.from.map(|id| format!("?from={id}")).unwrap_or_default();
    let call = Call::get(format!("/api/v1/events{from}"), args.ask.at.question());
    let (seen, last) = (Cell::new(0), Cell::new(None));
    if args.count == Some(0) {
        return Ok(());
    }
    let client = args.ask.at.client()?;
    let enough = client.events(&call, |item| {
        let data: Value = serde_json::from_str(&item.data)
            .map_err(|e| client.strange(&format!("an event that is no JSON: {e}")))?;
        if item.event == "lost" {
            complain(&format!("events were lost: {}", item.data));
        } else {
            seen.set(seen.get() + 1);
        }
        last.set(item.id.as_deref().and_then(|id| id.parse::<u64>().ok()).or(last.get()));
        let heard = heard(&shown(args.ask.output, &item, &data))?;
        Ok(!heard || args.count.is_some_and(|count| seen.get() >= count))
    })?;
    if enough {
        return Ok(());
    }
    let resume = last.get().map(|id| format!("; go on with --from {}", id + 1)).unwrap_or_default();
    Err(Failure::new(ExitStatus::NoDaemon, format!("the daemon has ended the events{resume}")))
}

/// An event in a line, or as a value of one line or one document.
fn shown(output: Option<Output>, item: &Item, data: &Value) -> String {
    let value = || {
        let mut value = data.clone();
        if let Value::Object(keys) = &mut value {
            keys.insert("event".to_owned(), item.event.as_str().into());
        }
        value
    };
    match output {
        Some(Output::Json) => format!("{}\n", value()),
        Some(Output::Yaml) => format!("---\n{}", render::yaml(&value())),
        _ if item.event == "lost" => String::new(),
        Some(Output::Name) => format!("device/{}\n", data["device"].as_str().unwrap_or_default()),
        None | Some(Output::Wide) => render::event(data),
    }
}

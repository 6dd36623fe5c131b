//! The life of a device: every pair of state and event, and the graph in the docs.

use std::path::Path;

use ublkd::model::{Action, DeviceState, Event, lifecycle_mermaid, next};

#[test]
fn every_pair_of_state_and_event_is_decided() {
    let mut table = String::new();
    for state in DeviceState::ALL {
        for event in Event::ALL {
            let cell = match next(state, event) {
                Ok((to, action)) => format!("{to:?} / {action:?}"),
                Err(_) => "illegal".to_owned(),
            };
            table.push_str(&format!("{state:?} + {event:?} -> {cell}\n"));
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn from_every_state_a_delete_leads_to_rest() {
    for start in DeviceState::ALL {
        let (state, action) = next(start, Event::Delete).unwrap();
        let running = matches!(action, Action::Teardown | Action::Await);
        assert!(state.is_final() || running, "{start} rests nowhere after a delete");
        if state == DeviceState::Stopping {
            for end in [Event::Cleared, Event::Remains, Event::Lost] {
                assert!(next(state, end).unwrap().0.is_final());
            }
        }
    }
}

#[test]
fn a_state_that_runs_ends_on_every_fault() {
    for state in [DeviceState::Starting, DeviceState::Cancelling] {
        let (after, action) = next(state, Event::StartFailed).unwrap();
        assert_eq!(action, Action::Teardown, "{state}");
        assert!(next(after, Event::Cleared).unwrap().0.is_final());
    }
    assert_eq!(next(DeviceState::Live, Event::Fault).unwrap().1, Action::Teardown);
}

#[test]
fn the_graph_in_the_docs_is_the_one_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/lifecycle.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let graph = format!("```mermaid\n{}```\n", lifecycle_mermaid());
    assert!(page.contains(&graph), "docs/lifecycle.md shall hold this graph:\n{graph}");
}

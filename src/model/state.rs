//! The life of a device as one total function: [`next`] maps every (state, event) to the state
//! after it and what to do, or says that the pair is illegal.
//!
//! ```text
//!   waiting ─> starting ─> live ─> stopping ─> gone
//!      │          │  └─> failing ──────┬──> failed
//!      └> gone    └> cancelling ┘      ├──> left      something is still there
//!                                      └──> wedged    a command never came back
//!   live ─> quiescing ─> quiesced ─> resuming ─> live
//!                └─> stalled        a queue did not end: quiesce again, or delete
//! ```
//!
//! Invariants: only the `Device` actor applies it; `gone`, `failed`, `left`, `wedged` are where a
//! life rests; from each state but these a path leads to one of them on every fault.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where in its life a device is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// Admitted; waits for a worker.
    Waiting,
    /// Being brought up.
    Starting,
    /// Being brought up, and to be stopped as soon as that has ended.
    Cancelling,
    /// In service.
    Live,
    /// On its way to be without a server; new I/O waits.
    Quiescing,
    /// Without a server: the block device is there and its I/O waits.
    Quiesced,
    /// Its I/O waits, and a queue of the old server has not ended.
    Stalled,
    /// Being served again.
    Resuming,
    /// Being torn down because somebody asked.
    Stopping,
    /// Being torn down because it failed.
    Failing,
    /// Nothing is left of it.
    Gone,
    /// It failed; nothing is left of it but the error, until somebody deletes the name.
    Failed,
    /// Teardown ended and something is still there (a holder, a queue thread).
    Left,
    /// A control command never came back; the name stays reserved.
    Wedged,
}

/// What happens to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A worker is free for its start.
    Granted,
    /// Every step of the start went well.
    Started,
    /// A step of the start failed.
    StartFailed,
    /// Somebody wants it gone.
    Delete,
    /// Somebody wants its I/O to wait, without a server.
    Quiesce,
    /// It is without a server.
    Quieted,
    /// Nothing was done to quiesce it: it cannot be.
    Declined,
    /// Its I/O waits, and a queue does not end.
    Stuck,
    /// Somebody wants it served again.
    Resume,
    /// It is served again.
    Resumed,
    /// It could not be served again; its I/O waits still.
    NotResumed,
    /// A queue thread or the target broke while it was in service.
    Fault,
    /// Teardown ended; nothing is left.
    Cleared,
    /// Teardown ended; something is left.
    Remains,
    /// Teardown ended because a control command never came back.
    Lost,
}

/// What the actor does on a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Run the start.
    Start,
    /// Tell the creator that it is in service.
    Announce,
    /// Take its server away.
    Quiesce,
    /// Serve it again.
    Resume,
    /// Tell the caller that this cannot be done in this state.
    Refuse,
    /// Run the teardown.
    Teardown,
    /// Tell everybody who waits how it ended.
    Report,
    /// Let the caller wait for the end that is under way.
    Await,
    /// Answer the caller with the end that is known.
    Answer,
    /// Nothing to do; the running work sees it by itself.
    Ignore,
}

/// A pair of state and event that must not meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event {event:?} cannot happen to a device that is {state}")]
pub struct IllegalTransition {
    /// The state it was in.
    pub state: DeviceState,
    /// The event that came.
    pub event: Event,
}

impl DeviceState {
    /// Every state.
    pub const ALL: [Self; 14] = [
        Self::Waiting,
        Self::Starting,
        Self::Cancelling,
        Self::Live,
        Self::Quiescing,
        Self::Quiesced,
        Self::Stalled,
        Self::Resuming,
        Self::Stopping,
        Self::Failing,
        Self::Gone,
        Self::Failed,
        Self::Left,
        Self::Wedged,
    ];

    /// The state as one word, as in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Starting => "starting",
            Self::Cancelling => "cancelling",
            Self::Live => "live",
            Self::Quiescing => "quiescing",
            Self::Quiesced => "quiesced",
            Self::Stalled => "stalled",
            Self::Resuming => "resuming",
            Self::Stopping => "stopping",
            Self::Failing => "failing",
            Self::Gone => "gone",
            Self::Failed => "failed",
            Self::Left => "left",
            Self::Wedged => "wedged",
        }
    }

    /// Whether it is being brought up and nobody has asked for its end.
    #[must_use]
    pub fn is_starting(self) -> bool {
        matches!(self, Self::Waiting | Self::Starting)
    }

    /// Whether it is in service or on its way there, and nobody has asked for its end.
    #[must_use]
    pub fn is_there(self) -> bool {
        self.is_starting() || self.is_in_service()
    }

    /// Whether the kernel has a block device for it that users may have open.
    #[must_use]
    pub fn is_in_service(self) -> bool {
        matches!(
            self,
            Self::Live | Self::Quiescing | Self::Quiesced | Self::Stalled | Self::Resuming
        )
    }

    /// Whether the life rests here until somebody asks for something.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Gone | Self::Failed | Self::Left | Self::Wedged)
    }
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 15] = [
        Self::Granted,
        Self::Started,
        Self::StartFailed,
        Self::Delete,
        Self::Quiesce,
        Self::Quieted,
        Self::Declined,
        Self::Stuck,
        Self::Resume,
        Self::Resumed,
        Self::NotResumed,
        Self::Fault,
        Self::Cleared,
        Self::Remains,
        Self::Lost,
    ];
}

/// The state after `event` happened in `state`, and what to do.
///
/// # Errors
/// [`IllegalTransition`] when the pair must not meet: a bug of the caller, not of the world.
pub fn next(state: DeviceState, event: Event) -> Result<(DeviceState, Action), IllegalTransition> {
    use Action as A;
    use DeviceState as S;
    use Event as E;
    Ok(match (state, event) {
        (S::Waiting, E::Granted) => (S::Starting, A::Start),
        (S::Waiting, E::Delete) => (S::Gone, A::Report),
        (S::Waiting, E::StartFailed) => (S::Failed, A::Report),

        (S::Starting, E::Started) => (S::Live, A::Announce),
        (S::Starting, E::StartFailed) => (S::Failing, A::Teardown),
        (S::Starting, E::Delete) => (S::Cancelling, A::Await),

        (S::Cancelling, E::Started | E::StartFailed) => (S::Stopping, A::Teardown),
        (S::Cancelling, E::Delete) => (S::Cancelling, A::Await),

        // The start races every step against the queue threads, so it sees the fault itself.
        (S::Starting | S::Cancelling, E::Fault) => (state, A::Ignore),

        // What is under way with it ends first: one lifecycle future runs at a time.
        (S::Live | S::Quiescing | S::Quiesced | S::Stalled | S::Resuming, E::Delete) => {
            (S::Stopping, A::Teardown)
        }
        (S::Live | S::Quiescing | S::Quiesced | S::Stalled, E::Fault) => (S::Failing, A::Teardown),
        // As a start, it sees the fault itself.
        (S::Resuming, E::Fault) => (state, A::Ignore),

        (S::Live | S::Stalled, E::Quiesce) => (S::Quiescing, A::Quiesce),
        (S::Quiescing, E::Quiesce) | (S::Resuming, E::Resume) => (state, A::Await),
        (S::Quiesced, E::Quiesce) | (S::Live, E::Resume) => (state, A::Answer),
        (S::Quiesced, E::Resume) => (S::Resuming, A::Resume),
        (_, E::Quiesce | E::Resume) => (state, A::Refuse),
        (S::Quiescing, E::Quieted) => (S::Quiesced, A::Answer),
        (S::Quiescing, E::Declined) => (S::Live, A::Answer),
        (S::Quiescing, E::Stuck) => (S::Stalled, A::Answer),
        (S::Resuming, E::Resumed) => (S::Live, A::Answer),
        (S::Resuming, E::NotResumed) => (S::Quiesced, A::Answer),
        // It was deleted, or broke, meanwhile.
        (
            S::Stopping | S::Failing | S::Gone | S::Failed | S::Left | S::Wedged,
            E::Quieted | E::Declined | E::Stuck | E::Resumed | E::NotResumed,
        ) => (state, A::Ignore),

        (S::Stopping | S::Failing, E::Delete) => (S::Stopping, A::Await),
        (S::Stopping | S::Failing, E::Fault) => (state, A::Ignore),
        (S::Stopping, E::Cleared) => (S::Gone, A::Report),
        (S::Failing, E::Cleared) => (S::Failed, A::Report),
        (S::Stopping | S::Failing, E::Remains) => (S::Left, A::Report),
        (S::Stopping | S::Failing, E::Lost) => (S::Wedged, A::Report),

        (S::Failed, E::Delete) => (S::Gone, A::Answer),
        (S::Left, E::Delete) => (S::Stopping, A::Teardown),
        (S::Gone | S::Wedged, E::Delete) => (state, A::Answer),
        (S::Gone | S::Failed | S::Left | S::Wedged, E::Fault) => (state, A::Ignore),

        _ => return Err(IllegalTransition { state, event }),
    })
}

/// The graph of [`next`] as a Mermaid state diagram; `docs/lifecycle.md` holds it and a test
/// compares the two.
#[must_use]
pub fn lifecycle_mermaid() -> String {
    let word = |value: &dyn fmt::Debug| {
        let mut out = String::new();
        for c in format!("{value:?}").chars() {
            if c.is_uppercase() && !out.is_empty() {
                out.push('_');
            }
            out.extend(c.to_lowercase());
        }
        out
    };
    let mut graph = String::from("stateDiagram-v2\n    [*] --> waiting\n");
    for state in DeviceState::ALL {
        for event in Event::ALL {
            match next(state, event) {
                Ok((to, action)) if to != state => {
                    let (event, action) = (word(&event), word(&action));
                    graph.push_str(&format!("    {state} --> {to}: {event} / {action}\n"));
                }
                _ => {}
            }
        }
    }
    graph.push_str("    gone --> [*]\n");
    graph
}

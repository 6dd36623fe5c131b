//! The supervisor actor: knows every device by name, admits operations, takes all down at the end.
//!
//! ```text
//!   Handle ── Admission (a permit, or Overloaded at once)
//!     │
//!     v                 Start, Stop
//!   Supervisor ──────────────────────────> Device actor   (one a name)
//!     │  ^                                       │
//!     │  └──── Died: its actor panicked ──── watch task
//!     └─ Shutdown: Stop to all, collect until the deadline ──> ShutdownReport
//! ```
//!
//! Invariants: a name is in the registry from its admission until nothing is left of it; the
//! report of a shutdown has each of them exactly once; after a shutdown has begun nothing starts.

mod actor;
mod admission;
mod ask;
mod groups;
mod live;
mod messages;
mod shutdown;

pub(crate) use actor::Supervisor;
pub(crate) use admission::Admission;
pub(crate) use messages::{
    AskFeatures, Create, CreateGroup, Delete, DeleteGroup, Describe, Ensure, Force, Groups, List,
    Measure, Ping, Quiesce, Resize, Resume, SetReadOnly, Shutdown, Wait,
};

pub(crate) use crate::device::EventReader;

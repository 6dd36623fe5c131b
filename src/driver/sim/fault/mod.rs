//! Faults on purpose: a plan with a text form, and a driver that makes it happen.
//!
//! ```text
//!   "stop@3: hang" ── FaultPlan ── Faulty(any Driver) ── strikes, counted call by call
//! ```

mod driver;
mod plan;
mod queues;
mod strike;
mod text;

pub use driver::{Faulty, OPEN_PATIENCE};
pub use plan::{Calls, Effect, Fault, FaultPlan, FaultPlanError, Point};
pub use strike::InFlight;

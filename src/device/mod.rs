//! One ublk device as an actor: it alone moves the device's state, and it owns the device's queue
//! threads and its char device fd.
//!
//! ```text
//!                     Start                        Stop / a queue broke
//!   Supervisor ──────────────> Device (actor) <────────────────────────── anybody
//!                                │  state = next(state, event)
//!                                │  one lifecycle future at a time
//!              ┌─────────────────┴──────────────┐
//!          startup::run                   teardown::run
//!      each step registers its       the registered undos, in schedule order
//!           Undo in the Body             (stop, join, delete, close, release)
//! ```
//!
//! What changes a device in service without moving its state ([`resize`], [`set_read_only`]) runs
//! beside its actor, under the lock that the lifecycle futures share.
//!
//! Invariants: whatever must be undone is written in the [`Body`] before the step that makes it
//! is awaited, so that a future which is dropped or panics loses nothing; the body outlives its
//! actor, and the supervisor gives the body of an actor that panicked to a new one, which tears
//! the device down.

mod actor;
mod body;
mod busy;
mod change;
mod events;
mod links;
mod messages;
mod recover;
mod startup;
mod teardown;
mod tuner;
mod undo;
mod workers;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::OnceCell;

use crate::driver::{Driver, Features};
use crate::model::{DeviceId, DeviceName, Observer, Tally};
use crate::target::Registry;

pub(crate) use actor::Device;
pub(crate) use body::Body;
pub(crate) use change::{resize, set_read_only};
pub(crate) use events::{EventReader, Events};
pub(crate) use links::Links;
pub(crate) use messages::{Quiesce, Resume, Start, Stop, StopUnheld};
pub(crate) use workers::Workers;

/// What all devices of a supervisor share.
pub(crate) struct Env {
    pub(crate) driver: Rc<dyn Driver>,
    pub(crate) targets: Registry,
    pub(crate) workers: Workers,
    pub(crate) links: Option<Links>,
    pub(crate) observer: Option<Box<dyn Observer>>,
    pub(crate) events: Events,
    /// Whether the kernel has `DEL_DEV_ASYNC`; found out by the first delete.
    pub(crate) delete_async: Cell<bool>,
    /// Whether the kernel has `TRY_STOP_DEV`; found out by the first delete that would use it.
    pub(crate) try_stop: Cell<bool>,
    /// What the kernel's driver can do; found out by the first create.
    pub(crate) features: OnceCell<Features>,
    /// Longest time of one stage: the bound of a command and of what waits beside commands.
    pub(crate) stage_bound: Duration,
    /// Whose an id is by now: the kernel gives an id again as soon as it is free, so an id that
    /// another device got is free of the one before.
    pub(crate) owners: RefCell<BTreeMap<DeviceId, DeviceName>>,
    /// What was done so far, for metrics.
    pub(crate) tally: RefCell<Tally>,
}

impl Env {
    /// What the kernel's driver can do. One that cannot tell (before 6.5) can nothing.
    pub(crate) async fn features(&self) -> Features {
        let ask = || async { self.driver.features().await.unwrap_or(Features::NONE) };
        *self.features.get_or_init(ask).await
    }

    fn took(&self, id: DeviceId, name: &DeviceName) {
        self.owners.borrow_mut().insert(id, name.clone());
    }

    fn is_owner(&self, id: DeviceId, name: &DeviceName) -> bool {
        self.owners.borrow().get(&id) == Some(name)
    }

    fn gave_back(&self, id: DeviceId, name: &DeviceName) {
        if self.is_owner(id, name) {
            self.owners.borrow_mut().remove(&id);
        }
    }
}

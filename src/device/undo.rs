//! What a device's start has to have undone, and in which order.
//!
//! Each step of a start registers its undos; a teardown runs those that are registered, always in
//! the same order. So a start that failed half way, a device that broke and one that is deleted
//! all go one way.

use std::collections::BTreeSet;

use crate::model::Stage;

/// One step of a teardown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Undo {
    Unlink,
    Stop,
    Join,
    Delete,
    Close,
    /// Drop the target.
    Shut,
    Release,
}

/// How many there are.
const UNDOS: usize = 7;

/// The order of a teardown on kernels with `DEL_DEV_ASYNC` (6.9 on): delete while the char device
/// is open, so that the last reference is dropped by the close, outside the driver's global mutex.
pub(crate) const DELETE_FIRST: [Undo; UNDOS] =
    [Undo::Unlink, Undo::Stop, Undo::Join, Undo::Delete, Undo::Close, Undo::Shut, Undo::Release];

/// The order on kernels without: `DEL_DEV` waits for the last reference, so close before it.
pub(crate) const CLOSE_FIRST: [Undo; UNDOS] =
    [Undo::Unlink, Undo::Stop, Undo::Join, Undo::Close, Undo::Delete, Undo::Shut, Undo::Release];

/// The undos that are due. One that did not go is skipped for the rest of a teardown, and due
/// again in the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Undos {
    due: BTreeSet<Undo>,
    skipped: BTreeSet<Undo>,
}

impl Undos {
    pub(crate) fn push(&mut self, undo: Undo) {
        self.due.insert(undo);
    }

    pub(crate) fn done(&mut self, undo: Undo) {
        self.due.remove(&undo);
    }

    pub(crate) fn skip(&mut self, undo: Undo) {
        self.skipped.insert(undo);
    }

    pub(crate) fn unskip(&mut self) {
        self.skipped.clear();
    }

    pub(crate) fn contains(&self, undo: Undo) -> bool {
        self.due.contains(&undo)
    }

    /// Whether something of the kernel's device is due.
    pub(crate) fn hold_device(&self) -> bool {
        self.due.iter().any(|undo| *undo != Undo::Shut)
    }

    /// The next one in `order` that is due and not skipped.
    pub(crate) fn next(&self, order: [Undo; UNDOS]) -> Option<Undo> {
        order.into_iter().find(|undo| self.due.contains(undo) && !self.skipped.contains(undo))
    }
}

impl Undo {
    /// The stage that runs it.
    pub(crate) fn stage(self) -> Stage {
        match self {
            Self::Unlink => Stage::Unlink,
            Self::Stop => Stage::Stop,
            Self::Join => Stage::Join,
            Self::Delete => Stage::Delete,
            Self::Close | Self::Shut => Stage::Close,
            Self::Release => Stage::Release,
        }
    }
}

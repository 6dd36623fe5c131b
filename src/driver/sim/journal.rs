//! What happened in the simulated kernel, in order: for tests that are about order.
//!
//! Invariants: nothing is kept unless somebody asked; a line is written when the thing is done, not
//! when it is asked for; queries that anybody asks at any time are left out.

use std::cell::RefCell;
use std::fmt;

use crate::driver::Command;
use crate::model::{DeviceId, Error, errno_name};

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// To which device; of an ADD_DEV without an id: unknown.
    pub id: Option<DeviceId>,
    /// A command's name, or `open`, `serve`, `queues ended`, `close`, `released`, `freed`.
    pub what: &'static str,
    /// The errno it was refused with.
    pub errno: Option<i32>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(id) = self.id {
            write!(f, "{id}: ")?;
        }
        f.write_str(self.what)?;
        match self.errno {
            Some(errno) => write!(f, " {}", errno_name(errno)),
            None => Ok(()),
        }
    }
}

/// Keeps records once it is switched on.
#[derive(Default)]
pub(super) struct Journal(RefCell<Option<Vec<Record>>>);

impl Journal {
    pub(super) fn switch_on(&self) {
        self.0.borrow_mut().get_or_insert_default();
    }

    pub(super) fn take(&self) -> Vec<Record> {
        self.0.borrow_mut().as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn note(&self, id: Option<DeviceId>, what: &'static str, errno: Option<i32>) {
        if let Some(records) = &mut *self.0.borrow_mut() {
            records.push(Record { id, what, errno });
        }
    }

    pub(super) fn note_command<T>(&self, command: &Command, answer: &Result<T, Error>) {
        let query = matches!(command, Command::Features | Command::Info(_) | Command::GetParams(_));
        if !query {
            let errno = answer.as_ref().err().and_then(Error::errno);
            self.note(command.device(), command.name(), errno);
        }
    }
}

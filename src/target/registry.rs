//! Opens a [`Target`] for a spec: the built-in kinds, and those that the host registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Target;
use crate::model::{DeviceSpec, Error, ErrorKind};

/// Opens targets of one custom kind. May block; it runs on a thread of its own.
pub trait OpenTarget: Send + Sync + 'static {
    /// Opens the target of `spec`.
    ///
    /// # Errors
    /// Whatever keeps it from being opened; the device's start fails with it.
    fn open(&self, spec: &DeviceSpec) -> Result<Arc<dyn Target>, Error>;
}

impl<F> OpenTarget for F
where
    F: Fn(&DeviceSpec) -> Result<Arc<dyn Target>, Error> + Send + Sync + 'static,
{
    fn open(&self, spec: &DeviceSpec) -> Result<Arc<dyn Target>, Error> {
        self(spec)
    }
}

/// The kinds of target that can be opened.
#[derive(Clone, Default)]
pub struct Registry {
    custom: BTreeMap<String, Arc<dyn OpenTarget>>,
}

impl Registry {
    /// Adds a kind, replacing one of the same name.
    pub fn register(&mut self, name: impl Into<String>, opener: Arc<dyn OpenTarget>) {
        self.custom.insert(name.into(), opener);
    }

    /// Opens the target of `spec`. May block.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Invalid`] when nobody registered the kind, else what the opener says.
    pub fn open(&self, spec: &DeviceSpec) -> Result<Arc<dyn Target>, Error> {
        match self.custom.get(spec.target().kind()) {
            Some(opener) => opener.open(spec),
            None => Err(Error::new(ErrorKind::Invalid, "no such target")),
        }
    }
}

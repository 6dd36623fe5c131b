//! Opens a [`Target`] for a spec: the built-in kinds, and those that the host registered.
//!
//! ```text
//!   DeviceSpec ── kind ──┬─ null, ram, loop ──> Shared, with the trouble that faults() asks for
//!                        └─ registered ───────> OpenTarget ──> Adapted, if the spec differs
//!                                  └─> geometry checked ──> Arc<dyn Target>
//! ```
//!
//! Invariants: whatever is opened has the block sizes and the read-only flag of the spec, and a
//! geometry that the kernel takes; every error names the device and the stage.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::r#loop::{self, Holders};
use super::null::{self, Null};
use super::ram::{self, Ram};
use super::{DataUse, Geometry, QueueContext, QueueTarget, Shared, Target};
use crate::model::{DeviceSpec, Error, ErrorKind, Stage, TargetSpec};

/// Opens targets of one custom kind. May block; it runs on a thread of its own.
pub trait OpenTarget: Send + Sync + 'static {
    /// Opens the target of `spec`. Its block sizes and read-only flag are applied by the
    /// [`Registry`]; [`DeviceSpec::faults`] only the target itself can apply, with
    /// [`super::with_faults`] or [`Shared::faults`].
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

/// The kinds of target that can be opened. Clones are the same registry, as far as they know which
/// device holds which backing.
#[derive(Clone, Default)]
pub struct Registry {
    custom: BTreeMap<String, Arc<dyn OpenTarget>>,
    holders: Arc<Holders>,
}

impl Registry {
    /// Adds a kind, replacing one of the same name. The names of the built-in kinds cannot be had:
    /// no [`TargetSpec::Custom`] has one.
    pub fn register(&mut self, name: impl Into<String>, opener: Arc<dyn OpenTarget>) {
        self.custom.insert(name.into(), opener);
    }

    /// Opens the target of `spec`. May block as long as the file system does.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Invalid`] when nobody registered the kind or the target does not fit the
    /// spec, else what the opener says.
    pub fn open(&self, spec: &DeviceSpec) -> Result<Arc<dyn Target>, Error> {
        let opened = self.open_kind(spec).and_then(|target| {
            target.geometry().check()?;
            Ok(target)
        });
        opened.map_err(|error| error.device(spec.name()).at(Stage::Open))
    }

    fn open_kind(&self, spec: &DeviceSpec) -> Result<Arc<dyn Target>, Error> {
        let fitted = |geometry: Geometry| fitted(geometry, spec);
        match spec.target() {
            TargetSpec::Null { size } => {
                let shared = Shared::new(fitted(null::geometry(*size))?, Null);
                let shared = shared.data_use(DataUse::Nothing);
                Ok(Arc::new(shared.faults(spec.faults())))
            }
            TargetSpec::Ram { size } => {
                let ram = Ram::new(*size, spec.read_only())?;
                let shared = Shared::new(fitted(ram::geometry(*size))?, ram);
                Ok(Arc::new(shared.faults(spec.faults())))
            }
            TargetSpec::Loop { path, direct } => {
                Ok(Arc::new(r#loop::open(spec, path, *direct, &self.holders)?))
            }
            TargetSpec::Custom { name, .. } => {
                let opener = self.custom.get(name).ok_or_else(|| self.unknown(name))?;
                let target = opener.open(spec)?;
                let (own, geometry) = (target.geometry(), fitted(target.geometry())?);
                if own == geometry {
                    Ok(target)
                } else {
                    Ok(Arc::new(Adapted { target, geometry }))
                }
            }
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let custom = self.custom.keys().map(String::as_str);
        let known: Vec<_> = ["null", "ram", "loop"].into_iter().chain(custom).collect();
        Error::new(ErrorKind::Invalid, format!("there is no target of kind {name:?}"))
            .hint(format!("use one of {}, or register it", known.join(", ")))
    }
}

/// The geometry of a target as the spec wants it.
fn fitted(geometry: Geometry, spec: &DeviceSpec) -> Result<Geometry, Error> {
    let mut geometry = geometry.with_blocks(spec.block())?;
    if spec.read_only() {
        // Nothing is written, so there is nothing to flush or to discard.
        geometry.read_only = true;
        geometry.discard = None;
        geometry.volatile_cache = false;
        geometry.fua = false;
    }
    Ok(geometry)
}

/// A custom target whose spec asks for other block sizes than its own, or for no writes: the
/// kernel enforces both.
struct Adapted {
    target: Arc<dyn Target>,
    geometry: Geometry,
}

impl Target for Adapted {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn notes(&self) -> &[String] {
        self.target.notes()
    }

    fn resize(&self, from: u64, to: u64) -> Result<(), Error> {
        self.target.resize(from, to)
    }

    fn data_use(&self) -> DataUse {
        self.target.data_use()
    }

    fn open_queue(self: Arc<Self>, queue: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        Arc::clone(&self.target).open_queue(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BlockSize, DeviceName};

    type TestResult = Result<(), Box<dyn std::error::Error>>;

    fn custom(size: u64) -> Registry {
        let mut registry = Registry::default();
        let opener = move |_: &DeviceSpec| -> Result<Arc<dyn Target>, Error> {
            let note = ["as well as it can".to_owned()];
            Ok(Arc::new(Shared::new(null::geometry(size), Null).note(note)))
        };
        registry.register("mine", Arc::new(opener));
        registry
    }

    fn spec(
        kind: &str,
        logical: Option<u32>,
        read_only: bool,
    ) -> Result<DeviceSpec, Box<dyn std::error::Error>> {
        let target = TargetSpec::Custom { name: kind.to_owned(), options: BTreeMap::new() };
        let block = BlockSize { logical, physical: None };
        let builder = DeviceSpec::builder(DeviceName::new("vol-1")?, target);
        Ok(builder.block(block).read_only(read_only).build()?)
    }

    #[test]
    fn a_kind_that_nobody_registered_is_told_with_those_that_are_there() -> TestResult {
        let error = custom(4096).open(&spec("other", None, false)?).err().ok_or("opened")?;
        assert_eq!(
            error.to_string(),
            "device vol-1: open: there is no target of kind \"other\"; use one of null, ram, loop, \
             mine, or register it"
        );
        Ok(())
    }

    #[test]
    fn f78_a_custom_target_without_size_is_refused_before_the_kernel_sees_it() -> TestResult {
        for size in [0, 511, 1000] {
            let error = custom(size).open(&spec("mine", None, false)?).err().ok_or("opened")?;
            assert_eq!((error.kind(), error.stage()), (ErrorKind::Invalid, Some(Stage::Open)));
        }
        Ok(())
    }

    #[test]
    fn a_custom_target_gets_the_block_size_and_the_read_only_flag_of_the_spec() -> TestResult {
        let own = custom(8192).open(&spec("mine", None, false)?)?;
        assert_eq!(own.geometry(), null::geometry(8192));
        let adapted = custom(8192).open(&spec("mine", Some(4096), true)?)?;
        let geometry = adapted.geometry();
        assert_eq!((geometry.logical_block, geometry.read_only), (4096, true));
        assert_eq!((geometry.discard, geometry.volatile_cache), (None, false));
        assert_eq!(adapted.notes(), ["as well as it can"]);
        Ok(())
    }

    #[test]
    fn memory_that_the_host_does_not_have_is_an_error_of_this_device() -> TestResult {
        let target = TargetSpec::Ram { size: 1 << 62 };
        let spec = DeviceSpec::builder(DeviceName::new("vol-1")?, target).build()?;
        let error = Registry::default().open(&spec).err().ok_or("opened")?;
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().contains("cannot map 4611686018427387904 bytes"), "{error}");
        Ok(())
    }
}

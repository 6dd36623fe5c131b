//! Which way data goes between the kernel's requests and a target: asked for, or picked.
//!
//! ```text
//!   DeviceSpec: data, batch ─┐
//!   Target: data_use ────────┼─> features for ADD_DEV ─> granted ─> queues
//!   kernel: GET_FEATURES ────┘
//! ```
//!
//! Invariant: what was asked for by name is given or refused with the reason; what is picked works.

use super::Features;
use crate::model::{DataMode, Error, ErrorKind};
use crate::target::DataUse;

/// Requests' pages are registered with the ring by the kernel itself.
const ZERO_COPY: Features = Features::ZERO_COPY.with(Features::AUTO_BUF_REG);

/// What a device needs to be given of `kernel` for `asked` and `batch`.
///
/// # Errors
/// Kind [`ErrorKind::Unsupported`] for what this kernel does not have, [`ErrorKind::Invalid`] for
/// what does not suit the target.
pub fn features(
    asked: DataMode,
    batch: bool,
    data_use: DataUse,
    kernel: Features,
) -> Result<Features, Error> {
    let data = match asked {
        DataMode::Auto => pick(data_use, kernel),
        DataMode::Copy => Features::NONE,
        DataMode::UserCopy if kernel.has(Features::USER_COPY) => Features::USER_COPY,
        DataMode::UserCopy => return Err(lacks("user copy", "6.5", "data = \"auto\"")),
        DataMode::ZeroCopy if data_use == DataUse::Memory => {
            let text = "zero copy does not suit this target, which needs data in memory";
            return Err(Error::new(ErrorKind::Invalid, text)
                .hint("set data to \"auto\", \"copy\" or \"user_copy\""));
        }
        DataMode::ZeroCopy if kernel.has(ZERO_COPY) => ZERO_COPY,
        DataMode::ZeroCopy => return Err(lacks("zero copy", "6.16", "data = \"auto\"")),
    };
    if batch && !kernel.has(Features::BATCH_IO) {
        return Err(lacks("batch I/O", "7.0", "batch = false"));
    }
    Ok(if batch { data.with(Features::BATCH_IO) } else { data })
}

/// The fastest way that this kernel has for such a target.
///
/// What moves between requests and files need not be copied. For what has to be in memory a copy
/// of the kernel's is one system call less than one of ours; and a target that touches no data
/// would show its readers whatever was in their pages before.
fn pick(data_use: DataUse, kernel: Features) -> Features {
    match data_use {
        DataUse::Files if kernel.has(ZERO_COPY) => ZERO_COPY,
        DataUse::Files | DataUse::Memory | DataUse::Nothing => Features::NONE,
    }
}

fn lacks(what: &str, since: &str, instead: &str) -> Error {
    let text = format!("this kernel has no {what} for ublk devices (Linux {since} on)");
    Error::new(ErrorKind::Unsupported, text).hint(format!("{instead} takes what there is"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::KernelProfile;

    const OLD: fn() -> Features = || KernelProfile::linux_6_12().features;
    const NEW: fn() -> Features = || KernelProfile::linux_7_3().features;

    #[test]
    fn each_target_gets_what_the_kernel_has_for_it() -> Result<(), Error> {
        use DataUse::{Files, Memory, Nothing};
        for (kernel, data_use, expected) in [
            (OLD(), Files, Features::NONE),
            (NEW(), Files, ZERO_COPY),
            (NEW(), Memory, Features::NONE),
            (NEW(), Nothing, Features::NONE),
            (Features::NONE, Files, Features::NONE),
        ] {
            assert_eq!(
                features(DataMode::Auto, false, data_use, kernel)?,
                expected,
                "{data_use:?}"
            );
        }
        Ok(())
    }

    #[test]
    fn what_was_asked_for_is_given_or_refused() {
        let given = |asked, batch, kernel| {
            features(asked, batch, DataUse::Files, kernel).map_err(|error| error.kind())
        };
        let refused = Err(ErrorKind::Unsupported);
        for (asked, new, old) in [
            (DataMode::Copy, Ok(Features::NONE), Ok(Features::NONE)),
            (DataMode::UserCopy, Ok(Features::USER_COPY), Ok(Features::USER_COPY)),
            (DataMode::ZeroCopy, Ok(ZERO_COPY), refused),
        ] {
            assert_eq!(given(asked, false, NEW()), new, "{asked:?}");
            assert_eq!(given(asked, false, OLD()), old, "{asked:?}");
            let batch = new.map(|features| features.with(Features::BATCH_IO));
            assert_eq!(given(asked, true, NEW()), batch, "{asked:?}");
            assert_eq!(given(asked, true, OLD()), refused, "{asked:?}");
        }
        assert_eq!(given(DataMode::UserCopy, false, Features::NONE), refused);
    }

    #[test]
    fn zero_copy_is_not_for_targets_that_need_data_in_memory() {
        let error = features(DataMode::ZeroCopy, false, DataUse::Memory, NEW());
        assert_eq!(error.map_err(|error| error.kind()), Err(ErrorKind::Invalid));
        let nothing = features(DataMode::ZeroCopy, false, DataUse::Nothing, NEW());
        assert_eq!(nothing.map_err(|error| error.kind()), Ok(ZERO_COPY));
    }

    #[test]
    fn a_refusal_says_since_when_and_what_to_do() {
        let error = features(DataMode::ZeroCopy, false, DataUse::Files, OLD());
        assert_eq!(
            error.map_err(|error| error.to_string()),
            Err("this kernel has no zero copy for ublk devices (Linux 6.16 on); data = \"auto\" \
                 takes what there is"
                .to_owned())
        );
    }
}

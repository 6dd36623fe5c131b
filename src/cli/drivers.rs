//! The drivers that a command line can name.

use std::rc::Rc;

use super::args::DriverName;
use crate::driver::sim::fault::Faulty;
use crate::driver::sim::{FaultPlan, KernelProfile};
use crate::driver::{MakeDriver, sim, ublk};
use crate::model::{Error, ErrorKind};

/// A maker of `driver` with the faults of `plan`; `sim_kernel` says which kernel a simulation is.
///
/// # Errors
/// Kind [`ErrorKind::Invalid`] for a kernel that is not simulated.
pub(super) fn maker(
    driver: DriverName,
    sim_kernel: &str,
    plan: FaultPlan,
) -> Result<MakeDriver, Error> {
    match driver {
        DriverName::Sim => {
            let profile = KernelProfile::named(sim_kernel).ok_or_else(|| {
                let text = format!("--sim-kernel {sim_kernel} is not one of 6.12, 7.3, 7.4");
                Error::new(ErrorKind::Invalid, text)
            })?;
            Ok(sim::driver(profile, plan).0)
        }
        DriverName::Ublk if plan == FaultPlan::none() => Ok(ublk::driver()),
        DriverName::Ublk => {
            let real = ublk::driver();
            Ok(Box::new(move |log| Ok(Rc::new(Faulty::new(real(log)?, plan)))))
        }
    }
}

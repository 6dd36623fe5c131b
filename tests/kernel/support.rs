//! What every test here needs: the driver, a runtime for its futures, a bound on the time.

use std::path::Path;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ublkd::driver::deadline::Deadline;
use ublkd::driver::ublk::UblkDriver;
use ublkd::driver::{Command, Driver};
use ublkd::model::{DeviceId, Error, ErrorKind};

/// No command of these tests takes longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// No test takes longer.
const WHOLE: Duration = Duration::from_secs(240);

/// Waits for the tests before: ids are the kernel's, and one that a test has given back may be
/// another's at once.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test alone, with the driver.
pub(crate) fn run<E: From<Error>>(
    test: impl AsyncFnOnce(&dyn Driver) -> Result<(), E>,
) -> Result<(), E> {
    let _alone = alone();
    with_driver(test)
}

/// Does something with the driver (every command has a deadline), on a runtime of its own, under a
/// bound.
pub(crate) fn with_driver<T, E: From<Error>>(
    work: impl AsyncFnOnce(&dyn Driver) -> Result<T, E>,
) -> Result<T, E> {
    assert!(
        Path::new("/dev/ublk-control").exists(),
        "these tests need the ublk driver: run them with `cargo ktest-73`"
    );
    let driver = Deadline::new(Rc::new(UblkDriver::open(64)?), LIMIT);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime");
    let ended = runtime.block_on(async { tokio::time::timeout(WHOLE, work(&driver)).await });
    ended.expect("it ends in time")
}

/// Waits until the kernel has freed the id.
pub(crate) async fn freed(driver: &dyn Driver, id: DeviceId) -> Result<(), Error> {
    loop {
        match driver.info(id).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

/// Deletes a device that nobody serves.
pub(crate) async fn delete(driver: &dyn Driver, id: DeviceId) -> Result<(), Error> {
    driver.execute(Command::Delete(id)).await.map(|_| ())
}

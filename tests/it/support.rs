//! A whole house on the simulated driver, in virtual time: hours pass in milliseconds, and every
//! time that is measured is exact.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::ProptestConfig;
use ublkd::driver::Driver;
use ublkd::driver::sim::{FaultPlan, KernelProfile, QueueMode, SimDriver};
use ublkd::model::{DeviceId, DeviceName, DeviceSpec, TargetSpec};
use ublkd::{Builder, Handle};

/// Longest stage in these tests.
pub(crate) const STAGE: Duration = Duration::from_secs(5);

/// What surrounds a test.
pub(crate) struct House {
    pub(crate) handle: Handle,
    pub(crate) sim: SimDriver,
}

/// How the house is built; change what the test is about.
pub(crate) struct Plan {
    pub(crate) kernel: KernelProfile,
    pub(crate) faults: String,
    pub(crate) shape: Box<dyn FnOnce(Builder) -> Builder>,
    pub(crate) wrap: fn(Rc<dyn Driver>) -> Rc<dyn Driver>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            kernel: KernelProfile::linux_7_3(),
            faults: String::new(),
            shape: Box::new(|builder| builder),
            wrap: |driver| driver,
        }
    }
}

impl Plan {
    pub(crate) fn faults(faults: impl Into<String>) -> Self {
        Self { faults: faults.into(), ..Self::default() }
    }

    pub(crate) fn kernel(mut self, kernel: KernelProfile) -> Self {
        self.kernel = kernel;
        self
    }

    pub(crate) fn shape(mut self, shape: impl FnOnce(Builder) -> Builder + 'static) -> Self {
        self.shape = Box::new(shape);
        self
    }

    /// Runs `test` in virtual time.
    pub(crate) fn run<T, F: Future<Output = T>>(self, test: impl FnOnce(House) -> F) -> T {
        let system = actix_rt::System::with_tokio_rt(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .unwrap()
        });
        system.block_on(async {
            let faults: FaultPlan = match self.faults.as_str() {
                "" => FaultPlan::none(),
                text => text.parse().unwrap_or_else(|e| panic!("{e}")),
            };
            let (kernel, wrap) = (self.kernel, self.wrap);
            // A driver is made on the supervisor's thread and is not `Send`; here that is this
            // thread, and the test looks at it from outside.
            thread_local!(static SIM: RefCell<Option<SimDriver>> = const { RefCell::new(None) });
            let builder = Builder::new(Box::new(move |_| {
                let sim = SimDriver::new(kernel, faults, QueueMode::Virtual);
                SIM.with_borrow_mut(|slot| *slot = Some(sim.clone()));
                Ok(wrap(Rc::new(sim)))
            }));
            let builder = (self.shape)(builder.command_timeout(STAGE));
            let handle = builder.start_here().unwrap();
            let sim = SIM.with_borrow_mut(Option::take).unwrap();
            test(House { handle, sim }).await
        })
    }
}

/// A null device.
pub(crate) fn null(name: &str) -> DeviceSpec {
    DeviceSpec::builder(self::name(name), TargetSpec::Null { size: 1 << 20 }).build().unwrap()
}

/// A null device that asks for a number.
pub(crate) fn null_with_id(name: &str, id: u32) -> DeviceSpec {
    DeviceSpec::builder(self::name(name), TargetSpec::Null { size: 1 << 20 })
        .id(DeviceId(id))
        .build()
        .unwrap()
}

pub(crate) fn name(name: &str) -> DeviceName {
    DeviceName::new(name).unwrap()
}

/// Null devices `d0`, `d1`, …
pub(crate) fn nulls(count: usize) -> Vec<DeviceSpec> {
    (0..count).map(|n| null(&format!("d{n}"))).collect()
}

/// Lets kernel workers finish what is on its way.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// How many random cases: `usual`, or more if `PROPTEST_CASES` says so.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    // The smallest input is in the failure's text, and becomes a test of its own.
    ProptestConfig { cases: config.cases.max(usual), failure_persistence: None, ..config }
}

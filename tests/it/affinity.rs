//! Where the threads of several queues are to run, and that a device serves wherever they do.

use std::time::Duration;

use tokio::time::Instant;
use ublkd::driver::sim::KernelProfile;
use ublkd::model::{DeviceSpec, DeviceSpecBuilder, DeviceState, ErrorKind, QueueSpec, TargetSpec};

use crate::support::{House, Plan, STAGE, name, settle};

const SOON: Duration = Duration::from_secs(1);
const ASKED: &str = "GET_QUEUE_AFFINITY";

fn device(queues: u16) -> DeviceSpecBuilder {
    let queues = QueueSpec { count: queues, ..QueueSpec::default() };
    DeviceSpec::builder(name("d0"), TargetSpec::Null { size: 1 << 20 }).queues(queues)
}

fn with_processors(processors: u16) -> KernelProfile {
    KernelProfile { processors, ..KernelProfile::linux_7_3().grace_only() }
}

/// Creates the device, which has to serve; gives what its threads are bound to, as JSON.
async fn created(house: &House, spec: DeviceSpecBuilder) -> serde_json::Value {
    house.handle.create(spec.build().unwrap()).await.unwrap();
    let info = house.handle.describe(&name("d0")).await.unwrap().unwrap();
    assert_eq!((info.state, info.error), (DeviceState::Live, None));
    serde_json::to_value(info.processors).unwrap()
}

/// What the kernel was asked since the last call.
fn told(house: &House) -> Vec<&'static str> {
    house.sim.recorded().iter().map(|record| record.what).collect()
}

#[test]
fn two_queues_on_four_processors_get_their_halves() {
    Plan::default().kernel(with_processors(4)).run(|house| async move {
        house.sim.record();
        assert_eq!(created(&house, device(2)).await, serde_json::json!(["0-1", "2-3"]));
        let expected = ["ADD_DEV", "SET_PARAMS", "open", ASKED, ASKED, "serve", "START_DEV"];
        assert_eq!(told(&house), expected);
    });
}

#[test]
fn where_one_queue_serves_all_or_nobody_wants_it_the_kernel_is_not_asked() {
    let lonely = with_processors(1);
    for (kernel, spec) in [
        (with_processors(4), device(1)),
        (with_processors(4), device(2).affinity(false)),
        // It makes one queue of the two.
        (lonely, device(2)),
    ] {
        Plan::default().kernel(kernel).run(|house| async move {
            house.sim.record();
            assert_eq!(created(&house, spec).await, serde_json::json!([]));
            let expected = ["ADD_DEV", "SET_PARAMS", "open", "serve", "START_DEV"];
            assert_eq!(told(&house), expected);
        });
    }
}

#[test]
fn a_kernel_that_does_not_say_fails_no_device() {
    for fault in ["affinity: EINVAL", "affinity@2: EIO", "affinity@3: hang"] {
        Plan::faults(fault).kernel(with_processors(4)).run(|house| async move {
            let began = Instant::now();
            assert_eq!(created(&house, device(4)).await, serde_json::json!([]), "{fault}");
            let hung = fault.contains("hang");
            assert_eq!(began.elapsed() >= STAGE, hung, "{fault}: {:?}", began.elapsed());
            let report = house.handle.shutdown(STAGE * 4).await.unwrap();
            assert!(report.is_clean(), "{fault}: {report:#?}");
            settle().await;
            assert!(house.sim.snapshot().devices.is_empty(), "{fault}");
        });
    }
}

#[test]
fn f76_a_panic_in_the_asking_leaves_nothing() {
    Plan::faults("affinity@2: panic").kernel(with_processors(4)).run(|house| async move {
        let refused = house.handle.create(device(4).build().unwrap()).await;
        assert_eq!(refused.map_err(|error| error.kind()).err(), Some(ErrorKind::Panicked));
        settle().await;
        assert!(house.sim.snapshot().devices.is_empty(), "{}", house.sim.snapshot());
    });
}

#[test]
fn all_queues_are_asked_for_at_once() {
    let plan = Plan::faults("affinity: delay 1s").kernel(with_processors(64));
    plan.run(|house| async move {
        let began = Instant::now();
        let bound = created(&house, device(64)).await;
        assert_eq!((&bound[0], &bound[63]), (&"0".into(), &"63".into()));
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    });
}

#[test]
fn a_resumed_device_asks_again() {
    Plan::default().kernel(with_processors(4)).run(|house| async move {
        created(&house, device(2).recovery(true)).await;
        house.handle.quiesce(&name("d0"), SOON).await.unwrap();
        house.sim.record();
        house.handle.resume(&name("d0")).await.unwrap();
        let expected = ["START_USER_RECOVERY", "open", ASKED, ASKED, "serve", "END_USER_RECOVERY"];
        assert_eq!(told(&house), expected);
        let info = house.handle.describe(&name("d0")).await.unwrap().unwrap();
        assert_eq!(
            serde_json::to_value(info.processors).unwrap(),
            serde_json::json!(["0-1", "2-3"])
        );
    });
}

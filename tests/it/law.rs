//! Shutdown on the simulated clock takes what the law of shared grace periods says, exactly.

use std::time::Duration;

use futures::StreamExt;
use ublkd::driver::sim::{GracePeriods, KernelProfile};

use crate::support::{Plan, nulls};

/// The law: waves of as many devices as there are workers; each waits for the disk's grace periods,
/// which the wave shares. A device is unknown from its last reference on.
fn expected(kernel: &KernelProfile, devices: usize, workers: usize) -> Duration {
    let mut graces = GracePeriods::new(kernel.costs.grace);
    let mut now = Duration::ZERO;
    for _ in 0..devices.div_ceil(workers) {
        for _ in 0..kernel.costs.stop_graces {
            now = graces.arrive(now);
        }
    }
    now
}

fn measured(kernel: &KernelProfile, devices: usize, workers: usize) -> Duration {
    let shape = Plan::default().kernel(kernel.clone()).shape(move |b| b.workers(workers));
    shape.run(|house| async move {
        let created: Vec<_> = house.handle.create_all(nulls(devices)).collect().await;
        assert!(created.iter().all(|(_, result)| result.is_ok()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let report = house.handle.shutdown(Duration::from_secs(3600)).await.unwrap();
        assert!(report.is_clean());
        assert_eq!(report.devices.len(), devices);
        report.wall
    })
}

#[test]
fn f08_the_wall_time_of_a_shutdown_follows_the_law_exactly() {
    for profile in [KernelProfile::linux_6_12(), KernelProfile::linux_7_3()] {
        let kernel = profile.grace_only();
        for (devices, workers) in
            [(1, 1), (7, 1), (64, 64), (200, 64), (1000, 16), (1000, 64), (1000, 1000)]
        {
            let (law, wall) =
                (expected(&kernel, devices, workers), measured(&kernel, devices, workers));
            assert_eq!(wall, law, "{}: {devices} devices, {workers} workers", kernel.name);
        }
    }
}

#[test]
fn f08_a_slow_device_delays_nobody_else() {
    Plan::faults("stop#7: delay 4s").shape(|b| b.workers(64)).run(|house| async move {
        let _: Vec<_> = house.handle.create_all(nulls(1000)).collect().await;
        let report = house.handle.shutdown(Duration::from_secs(60)).await.unwrap();
        assert!(report.is_clean());
        let slow = report
            .devices
            .iter()
            .filter(|d| d.stages.iter().any(|(_, time)| time >= Duration::from_secs(4)));
        assert_eq!(slow.count(), 1);
        assert!(report.wall < Duration::from_secs(5), "{:?}", report.wall);
    });
}

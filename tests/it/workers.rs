//! `workers = "auto"` against every fixed number, on the simulated clock: grace periods from short
//! to long, commands that cost a processor nothing, something, much.

use std::time::Duration;

use futures::StreamExt;
use ublkd::driver::sim::KernelProfile;
use ublkd::model::WorkerLimit;

use crate::support::{Plan, nulls};

const DEVICES: usize = 300;

/// How long it takes to take them down, with devices coming up before as on any host.
fn teardown(kernel: &KernelProfile, workers: WorkerLimit) -> Duration {
    let plan = Plan::default().kernel(kernel.clone()).shape(move |b| b.workers(workers));
    plan.run(|house| async move {
        let _: Vec<_> = house.handle.create_all(nulls(DEVICES)).collect().await;
        let report = house.handle.shutdown(Duration::from_secs(3600)).await.unwrap();
        assert!(report.is_clean());
        report.wall
    })
}

#[test]
fn auto_is_as_good_as_the_best_fixed_number_for_short_and_long_grace_periods() {
    let mut off = Vec::new();
    for grace in [2, 20, 100] {
        for command in [0, 1000] {
            // Nodes come and go under the driver's mutex, which would hide everything else.
            let mut kernel = KernelProfile::linux_7_3().grace_only();
            kernel.costs.grace = Duration::from_millis(grace);
            kernel.costs.command = Duration::from_micros(command);
            let fixed =
                [4, 8, 16, 32, 64, 128].map(|workers| (teardown(&kernel, workers.into()), workers));
            let best = fixed.into_iter().min().unwrap();
            let auto = teardown(&kernel, WorkerLimit::Auto);
            let ratio = auto.as_secs_f64() / best.0.as_secs_f64();
            println!(
                "grace {grace} ms, command {command} us: auto {auto:?}, best {best:?}, {ratio:.3}"
            );
            if ratio > 1.1 {
                off.push((grace, command, auto, best));
            }
        }
    }
    assert!(off.is_empty(), "{off:#?}");
}

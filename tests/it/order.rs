//! The order of steps: of a start, of a teardown, and of the undoing of a start that failed.

use std::time::Duration;

use ublkd::driver::sim::KernelProfile;

use crate::recorder::{record, rewind};
use crate::support::{Plan, null, settle};

fn recorded(faults: &str, kernel: KernelProfile) -> String {
    let plan = Plan { wrap: record, ..Plan::faults(faults) };
    plan.kernel(kernel).run(|house| async move {
        let created = house.handle.create(null("a")).await;
        let start = rewind().join(", ");
        let report = house.handle.shutdown(Duration::from_secs(60)).await.unwrap();
        settle().await;
        assert!(report.is_clean(), "{report:?}");
        assert!(house.sim.snapshot().is_empty(), "{}", house.sim.snapshot());
        let error = created.err().map(|e| format!("\n  {e}")).unwrap_or_default();
        let end = rewind().join(", ");
        format!("{faults}\n  {start}\n  {end}{error}\n").replace("\n  \n", "\n")
    })
}

#[test]
fn f01_a_life_in_order_on_each_kind_of_kernel() {
    let old = KernelProfile { delete_async: false, ..KernelProfile::linux_6_12() };
    insta::assert_snapshot!(recorded("", KernelProfile::linux_7_3()));
    insta::assert_snapshot!(recorded("", old));
}

#[test]
fn f38_a_start_that_fails_is_undone_in_order_at_every_step() {
    let steps = ["add", "set_params", "open", "serve", "ready", "start", "node"]
        .map(|step| format!("{step}: EIO"));
    let told: Vec<_> =
        steps.iter().map(|faults| recorded(faults, KernelProfile::linux_7_3())).collect();
    insta::assert_snapshot!(told.concat());
}

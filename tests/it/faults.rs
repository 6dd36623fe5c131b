//! Every stage × every kind of fault: whatever goes wrong with one device, the others come and go
//! as if nothing had happened, and nothing is left that the report does not name.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use nix::libc;
use ublkd::driver::sim::KernelProfile;
use ublkd::driver::sim::fault::{Effect, Point};
use ublkd::model::{OutcomeKind, ShutdownReport};

use crate::support::{Plan, STAGE, name, null, null_with_id, settle};

const WITHIN: Duration = Duration::from_secs(60);

/// What one run showed.
struct Seen {
    report: ShutdownReport,
    left_in_kernel: String,
    kernel_is_empty: bool,
    wall: Duration,
}

/// Three devices, a fault for the second, a shutdown.
fn run(kernel: KernelProfile, faults: &str) -> Seen {
    Plan::faults(faults).kernel(kernel).run(|house| async move {
        let start = tokio::time::Instant::now();
        // An id of its own for each: one that is free again would be the next device's.
        let specs = [("a", 0), ("b", 1), ("c", 2)].map(|(name, id)| null_with_id(name, id));
        // One after the other, so that the second call is the second device's.
        for spec in specs {
            let _ = house.handle.create(spec).await;
        }
        let created = start.elapsed();
        assert!(created <= STAGE * 8, "{faults}: starts took {created:?}");
        settle().await;
        let begin = tokio::time::Instant::now();
        let report = house.handle.shutdown(WITHIN).await.unwrap();
        let wall = begin.elapsed();
        settle().await;
        let snapshot = house.sim.snapshot();
        Seen {
            report,
            left_in_kernel: snapshot.to_string(),
            kernel_is_empty: snapshot.devices.is_empty() && snapshot.queue_threads == 0,
            wall,
        }
    })
}

fn effects() -> Vec<(Effect, &'static str)> {
    vec![
        (Effect::Errno(libc::EIO), "EIO"),
        (Effect::Errno(libc::EBUSY), "EBUSY"),
        (Effect::Errno(libc::EINTR), "EINTR"),
        (Effect::Errno(libc::ENODEV), "ENODEV"),
        (Effect::Errno(libc::ENOMEM), "ENOMEM"),
        (Effect::Panic, "panic"),
        (Effect::Hang, "hang"),
        (Effect::Short, "short"),
    ]
}

/// Texts of plans that strike the second device, in every stage that a life goes through.
fn plans(kernel: &KernelProfile) -> Vec<String> {
    // In a life without special wishes.
    let never_sent = [
        Point::Features,
        Point::GetParams,
        Point::TryStop,
        Point::Affinity,
        Point::UpdateSize,
        Point::Quiesce,
        Point::StartRecovery,
        Point::EndRecovery,
    ];
    let mut plans = Vec::new();
    for point in Point::ALL {
        let other_delete = match kernel.delete_async {
            true => point == Point::Delete,
            false => false,
        };
        if never_sent.contains(&point) || other_delete {
            continue;
        }
        // Ids are counted from 0: the second device is 1. An ADD has none yet.
        let which = match point {
            Point::Add | Point::Queue | Point::Join | Point::Serve => "@2",
            _ => "#1",
        };
        for (effect, word) in effects() {
            if point.can(effect) {
                plans.push(format!("{point}{which}: {word}"));
                if point.can_delay() && word != "hang" {
                    plans.push(format!("{point}{which}: delay 50ms {word}"));
                }
                if word == "EINTR" {
                    plans.push(format!("{point}{which}: EINTR x2"));
                }
            }
        }
        if point.can_delay() {
            plans.push(format!("{point}{which}: delay 1s"));
        }
    }
    plans
}

fn check(faults: &str, seen: &Seen) {
    let Seen { report, left_in_kernel, kernel_is_empty, wall } = seen;
    let names: Vec<_> = report.devices.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"], "{faults}: each device once");
    for device in &report.devices {
        if device.name.as_str() != "b" {
            assert_eq!(device.outcome, OutcomeKind::Deleted, "{faults}: {device:?}");
        }
    }
    let b = &report.devices[1];
    assert_eq!(report.left.is_empty(), b.left.is_empty(), "{faults}");
    assert!(*kernel_is_empty || !b.left.is_empty(), "{faults}: {b:?}\nleft: {left_in_kernel}");
    if matches!(b.outcome, OutcomeKind::TimedOut | OutcomeKind::Wedged) {
        assert!(!b.left.is_empty() && b.stage.is_some() && b.error.is_some(), "{faults}: {b:?}");
    } else if b.outcome != OutcomeKind::Panicked {
        assert!(b.left.is_empty(), "{faults}: {b:?}");
    }
    if faults.contains("panic") {
        assert_eq!(b.panics.len(), 1, "{faults}: {b:?}");
    }
    assert!(*wall <= WITHIN, "{faults}: shutdown took {wall:?}");
    assert_eq!(report.wall, *wall, "{faults}");
}

#[test]
fn f38_f48_every_stage_and_every_kind_of_fault_harms_one_device_only() {
    let mut runs = 0;
    let mut outcomes = BTreeSet::new();
    for kernel in [KernelProfile::linux_6_12(), KernelProfile::linux_7_3(), without_async()] {
        for faults in plans(&kernel) {
            let seen = run(kernel.clone(), &faults);
            check(&faults, &seen);
            outcomes.insert(seen.report.devices[1].outcome);
            runs += 1;
        }
    }
    assert!(runs >= 300, "only {runs} runs");
    // The faults are real: they lead to every end there is, but for being gone before.
    assert_eq!(outcomes.len(), OutcomeKind::ALL.len() - 1, "{outcomes:?}");
}

/// A kernel before 6.9.
fn without_async() -> KernelProfile {
    KernelProfile { delete_async: false, ..KernelProfile::linux_6_12() }
}

#[test]
fn a_device_that_hangs_in_any_stage_ends_at_the_deadline_and_is_named() {
    let stages = [
        ("stop#1: hang", "stop"),
        ("join@2: hang", "join"),
        ("del_async#1: hang", "delete"),
        ("close#1: hang", "release"),
        ("info#1: hang", "release"),
    ];
    for (faults, stage) in stages {
        Plan::faults(faults).run(|house| async move {
            for spec in ["a", "b", "c"].map(null) {
                house.handle.create(spec).await.unwrap();
            }
            let within = Duration::from_secs(2);
            let report = house.handle.shutdown(within).await.unwrap();
            assert!(report.wall <= within, "{faults}: {:?}", report.wall);
            let b = &report.devices[1];
            assert!(
                matches!(b.outcome, OutcomeKind::TimedOut | OutcomeKind::Wedged),
                "{faults}: {b:?}"
            );
            assert_eq!(b.stage.map(|s| s.as_str()), Some(stage), "{faults}: {b:?}");
            assert!(!report.left.is_empty());
            assert_eq!(report.outcomes[&OutcomeKind::Deleted], 2);
        });
    }
}

#[test]
fn f19_an_add_that_never_comes_back_is_bounded_and_takes_nothing_from_others() {
    Plan::faults("add@2: hang").shape(|b| b.workers(1)).run(|house| async move {
        let results: Vec<_> = house.handle.create_all(["a", "b", "c"].map(null)).collect().await;
        let failed: Vec<_> = results.iter().filter(|(_, r)| r.is_err()).collect();
        let [(failed_name, Err(error))] = &failed[..] else { panic!("{failed:?}") };
        assert_eq!(*failed_name, name("b"));
        let text = error.to_string();
        for part in ["b", "ADD_DEV", "5.000 s", "dmesg"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        // With one worker, the third could only come up because its slot was given back.
        assert!(results.iter().any(|(n, r)| *n == name("c") && r.is_ok()));
        let again = house.handle.create(null("b")).await.unwrap_err();
        assert_eq!(again.kind(), ublkd::model::ErrorKind::Exists, "the name stays reserved");
    });
}

//! Somebody else removes a device of ours: that is no failure, and whoever has its number next is
//! left alone.

use std::time::Duration;

use futures::join;
use ublkd::driver::sim::{KernelProfile, SimDriver};
use ublkd::driver::{Command, Driver};
use ublkd::model::{DeleteOutcome, DeviceId, DeviceState, ErrorKind, OutcomeKind};

use crate::support::{House, Plan, name, null, null_with_id, settle};

const ID: DeviceId = DeviceId(3);

/// Removes a device as another tool would.
async fn remove(sim: &SimDriver, id: DeviceId) {
    let delete = match sim.profile().delete_async {
        true => Command::DeleteAsync(id),
        false => Command::Delete(id),
    };
    let removed = sim.execute(delete).await;
    assert!(removed.is_ok(), "{removed:?}");
}

async fn is_free(sim: &SimDriver, id: DeviceId) -> bool {
    let info = sim.execute(Command::Info(id)).await;
    info.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn old() -> KernelProfile {
    KernelProfile { delete_async: false, ..KernelProfile::linux_6_12() }
}

#[test]
fn f14_a_device_that_is_removed_between_stop_and_delete_was_deleted() {
    // Our own delete takes a second to get to the kernel; somebody else's is faster.
    // While we have the char device open it is still there, and deleting it again is a success; the
    // old order closes first, and is told that there is none.
    for (kernel, slow, kind) in [
        (KernelProfile::linux_7_3(), "del_async@1: delay 1s", OutcomeKind::Deleted),
        (KernelProfile::linux_6_12(), "del_async@1: delay 1s", OutcomeKind::Deleted),
        (old(), "del@1: delay 1s", OutcomeKind::AlreadyGone),
    ] {
        Plan::faults(slow).kernel(kernel).run(|House { handle, sim }| async move {
            handle.create(null_with_id("a", ID.0)).await.unwrap();
            let a = name("a");
            let outside = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                remove(&sim, ID).await;
            };
            let (deleted, ()) = join!(handle.delete(&a), outside);
            let DeleteOutcome::Ended(outcome) = deleted.unwrap() else { panic!("it was there") };
            assert_eq!(outcome.outcome, kind, "{outcome:?}");
            assert!(outcome.error.is_none() && outcome.left.is_empty(), "{outcome:?}");
            settle().await;
            assert!(sim.snapshot().is_empty(), "{}", sim.snapshot());
            assert!(matches!(handle.delete(&a).await.unwrap(), DeleteOutcome::Absent));
        });
    }
}

#[test]
fn f14_two_deletes_at_once_are_one() {
    Plan::default().run(|House { handle, sim }| async move {
        handle.create(null("a")).await.unwrap();
        let a = name("a");
        sim.record();
        let (first, second) = join!(handle.delete(&a), handle.delete(&a));
        for deleted in [first, second] {
            let DeleteOutcome::Ended(outcome) = deleted.unwrap() else { panic!("it was there") };
            assert_eq!(outcome.outcome, OutcomeKind::Deleted);
        }
        let records = sim.recorded();
        let sent = records.iter().filter(|record| record.what == "DEL_DEV_ASYNC").count();
        assert_eq!(sent, 1, "{records:?}");
    });
}

#[test]
fn f14_the_next_device_of_that_number_is_not_deleted() {
    for kernel in [KernelProfile::linux_7_3(), old()] {
        Plan::default().kernel(kernel).run(|House { handle, sim }| async move {
            handle.create(null_with_id("a", ID.0)).await.unwrap();
            // A whole life's end from outside, while it is in service. On an old kernel the other
            // tool waits until we have let go.
            remove(&sim, ID).await;
            settle().await;
            assert!(is_free(&sim, ID).await, "{}", sim.snapshot());
            let a = handle.describe(&name("a")).await.unwrap().unwrap();
            assert_eq!(a.state, DeviceState::Failed, "{a:?}");

            handle.create(null_with_id("b", ID.0)).await.unwrap();
            let a = handle.describe(&name("a")).await.unwrap().unwrap();
            assert_eq!((a.id, a.path), (None, None), "they are of b now");
            let deleted = handle.delete(&name("a")).await.unwrap();
            assert!(matches!(deleted, DeleteOutcome::Ended(_)));
            settle().await;
            let b = handle.describe(&name("b")).await.unwrap().unwrap();
            assert_eq!((b.state, b.id), (DeviceState::Live, Some(ID)));
            assert!(sim.disk(ID).is_ok());
            let report = handle.shutdown(Duration::from_secs(60)).await.unwrap();
            assert_eq!(report.outcomes[&OutcomeKind::Deleted], 1);
        });
    }
}

#[test]
fn f14_a_number_that_another_device_got_while_we_wait_for_it_is_free_of_ours() {
    // Ours is asked for as soon as it is free, and it is another device's by then.
    Plan::default().shape(|b| b.workers(8)).run(|House { handle, sim }| async move {
        handle.create(null_with_id("a", ID.0)).await.unwrap();
        let a = name("a");
        let next = async {
            loop {
                match handle.create(null_with_id("b", ID.0)).await {
                    Ok(_) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Exists, "{error}"),
                }
            }
        };
        let (deleted, ()) = join!(handle.delete(&a), next);
        let DeleteOutcome::Ended(outcome) = deleted.unwrap() else { panic!("it was there") };
        assert_eq!((outcome.outcome, outcome.left.len()), (OutcomeKind::Deleted, 0));
        assert!(sim.disk(ID).is_ok(), "b was taken down");
        assert!(handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
    });
}

#[test]
fn f03_a_holder_keeps_its_own_device_and_no_other() {
    Plan::default().run(|House { handle, sim }| async move {
        for n in ["a", "b", "c"] {
            handle.create(null(n)).await.unwrap();
        }
        let hold = sim.disk(DeviceId(1)).unwrap().hold().unwrap();
        let report = handle.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 2);
        let b = &report.devices[1];
        assert_eq!(b.outcome, OutcomeKind::TimedOut, "{b:?}");
        assert!(b.holders[0].contains("/dev/ublkb1"), "{b:?}");
        assert!(report.wall < Duration::from_secs(10), "{:?}", report.wall);
        drop(hold);
        settle().await;
        assert!(sim.snapshot().is_empty(), "{}", sim.snapshot());
    });
}

//! Idempotent creates, events, waiting, features, and deletes that respect holders.

use std::time::Duration;

use futures::{StreamExt, join};
use tokio::time::{Instant, sleep};
use ublkd::driver::sim::KernelProfile;
use ublkd::model::{
    BusyPolicy, Condition, DeleteOptions, DeleteOutcome, DeviceSpec, DeviceState, Ensured, Error,
    ErrorKind, OutcomeKind, StreamEvent, TargetSpec,
};
use ublkd::target::{Op, Request};

use crate::support::{House, Plan, name, null};

const SOON: Duration = Duration::from_secs(10);

fn larger(name: &str) -> DeviceSpec {
    let target = TargetSpec::Null { size: 1 << 21 };
    DeviceSpec::builder(self::name(name), target).build().unwrap()
}

#[test]
fn an_ensure_makes_finds_waits_or_says_what_differs() {
    Plan::default().run(|House { handle, .. }| async move {
        let (first, second) = join!(handle.ensure(null("d0")), handle.ensure(null("d0")));
        assert!(matches!(first, Ok(Ensured::Created(_))), "{first:?}");
        let Ok(Ensured::AlreadySo(info)) = second else { panic!("{second:?}") };
        assert_eq!(info.state, DeviceState::Live, "it did not wait");
        let error = handle.ensure(larger("d0")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(error.to_string().contains("differs in size"), "{error}");
        assert_eq!(handle.create(null("d0")).await.unwrap_err().kind(), ErrorKind::Exists);
    });
}

#[test]
fn who_waits_for_a_start_that_fails_is_told_why() {
    Plan::faults("start@1: delay 20ms EIO").run(|House { handle, .. }| async move {
        let (first, second) = join!(handle.ensure(null("d0")), handle.ensure(null("d0")));
        assert_eq!(first.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(second.unwrap_err().kind(), ErrorKind::Io);
        assert!(matches!(handle.ensure(null("d0")).await, Ok(Ensured::Created(_))));
    });
}

#[test]
fn events_tell_a_life_once_and_in_order() {
    use DeviceState::{Gone, Live, Starting, Stopping, Waiting};
    Plan::default().run(|House { handle, .. }| async move {
        let mut all = handle.events(None);
        handle.create(null("d0")).await.unwrap();
        handle.delete(&name("d0")).await.unwrap();
        let mut told = Vec::new();
        for _ in 0..4 {
            let Some(StreamEvent::Change(n, change)) = all.next().await else { panic!("lost") };
            told.push((n, change.from, change.to));
        }
        let expected =
            [(1, Waiting, Starting), (2, Starting, Live), (3, Live, Stopping), (4, Stopping, Gone)];
        assert_eq!(told, expected);
        let mut resumed = handle.events(Some(4));
        assert!(matches!(resumed.next().await, Some(StreamEvent::Change(4, _))));
    });
}

#[test]
fn a_reader_that_sleeps_keeps_nobody_and_is_told_what_it_lost() {
    Plan::default().shape(|b| b.history(3)).run(|House { handle, .. }| async move {
        let mut slow = handle.events(Some(1));
        for _ in 0..5 {
            handle.create(null("d0")).await.unwrap();
            handle.delete(&name("d0")).await.unwrap();
        }
        assert_eq!(slow.next().await, Some(StreamEvent::Lost { from: 1, to: 17 }));
        assert!(matches!(slow.next().await, Some(StreamEvent::Change(18, _))));
    });
}

#[test]
fn waits_end_when_it_is_so_when_it_cannot_be_and_in_time() {
    Plan::faults("start@2: EIO").run(|House { handle, .. }| async move {
        let (live, absent) = (Condition::State(DeviceState::Live), Condition::Absent);
        let d0 = name("d0");
        let create = async {
            sleep(Duration::from_secs(1)).await;
            handle.create(null("d0")).await
        };
        let (waited, created) = join!(handle.wait(&d0, live, SOON), create);
        waited.and(created.map(drop)).unwrap();
        handle.wait(&d0, live, Duration::ZERO).await.unwrap();
        let error = handle.wait(&d0, absent, Duration::from_secs(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("it is live"), "{error}");
        let (gone, deleted) = join!(handle.wait(&d0, absent, SOON), handle.delete(&d0));
        gone.and(deleted.map(drop)).unwrap();
        let d1 = name("d1");
        let (failed, _) = join!(handle.wait(&d1, live, SOON), handle.create(null("d1")));
        assert!(failed.unwrap_err().to_string().contains("it is failed"));
    });
}

#[test]
fn features_tell_what_the_kernel_can() {
    for (kernel, new) in [(KernelProfile::linux_7_3(), true), (KernelProfile::linux_6_12(), false)]
    {
        Plan::default().kernel(kernel).run(|House { handle, .. }| async move {
            let told = handle.features().await.unwrap();
            assert_eq!((told.resize, told.quiesce, told.try_stop), (new, new, new));
            assert!(told.names.contains(&"user_recovery".to_owned()));
        });
    }
}

fn kernels() -> [KernelProfile; 2] {
    [KernelProfile::linux_7_3(), KernelProfile::linux_6_12()]
}

fn policy(busy: BusyPolicy, within: Duration) -> DeleteOptions {
    DeleteOptions { busy: Some(busy), within: Some(within) }
}

fn ended(deleted: Result<DeleteOutcome, Error>) -> OutcomeKind {
    match deleted {
        Ok(DeleteOutcome::Ended(outcome)) => outcome.outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn f03_a_delete_that_respects_holders_is_refused_with_their_names_and_changes_nothing() {
    for kernel in kernels() {
        Plan::default().kernel(kernel).run(|House { handle, sim }| async move {
            let id = handle.create(null("d0")).await.unwrap().id;
            let hold = sim.disk(id).unwrap().hold().unwrap();
            let described = handle.describe(&name("d0")).await.unwrap().unwrap();
            assert_eq!(described.holders.len(), 1);
            let refuse = policy(BusyPolicy::Refuse, SOON);
            let began = Instant::now();
            let error = handle.delete_with(&name("d0"), refuse).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(error.to_string().contains(&described.holders[0]), "{error}");
            assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
            // It serves on.
            assert_eq!(handle.list().await.unwrap()[0].state, DeviceState::Live);
            drop(hold);
            assert_eq!(ended(handle.delete_with(&name("d0"), refuse).await), OutcomeKind::Deleted);
        });
    }
}

#[test]
fn a_delete_waits_for_holders_as_long_as_it_may() {
    for kernel in kernels() {
        Plan::default().kernel(kernel).run(|House { handle, sim }| async move {
            let id = handle.create(null("d0")).await.unwrap().id;
            let hold = sim.disk(id).unwrap().hold().unwrap();
            let began = Instant::now();
            let wait = policy(BusyPolicy::Wait, Duration::from_secs(3));
            let error = handle.delete_with(&name("d0"), wait).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy);
            let took = began.elapsed();
            assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(5), "{took:?}");
            let let_go = async {
                sleep(Duration::from_secs(2)).await;
                drop(hold);
            };
            let d0 = name("d0");
            let (deleted, ()) = join!(handle.delete_with(&d0, wait), let_go);
            assert_eq!(ended(deleted), OutcomeKind::Deleted);
        });
    }
}

#[test]
fn another_delete_that_insists_ends_the_wait_of_the_first() {
    Plan::default().run(|House { handle, sim }| async move {
        let id = handle.create(null("d0")).await.unwrap().id;
        let hold = sim.disk(id).unwrap().hold().unwrap();
        let d0 = name("d0");
        let insist = async {
            sleep(Duration::from_secs(1)).await;
            let deleted = handle.delete(&d0);
            let let_go = async {
                sleep(Duration::from_secs(1)).await;
                drop(hold);
            };
            join!(deleted, let_go).0
        };
        let wait = policy(BusyPolicy::Wait, Duration::from_secs(60));
        let (waited, insisted) = join!(handle.delete_with(&d0, wait), insist);
        assert_eq!((ended(waited), ended(insisted)), (OutcomeKind::Deleted, OutcomeKind::Deleted));
    });
}

#[test]
fn the_policy_of_the_spec_holds_unless_the_caller_says_otherwise() {
    Plan::default().run(|House { handle, sim }| async move {
        let spec = DeviceSpec::builder(name("d0"), TargetSpec::Null { size: 1 << 20 });
        let id = handle.create(spec.busy(BusyPolicy::Refuse).build().unwrap()).await.unwrap().id;
        let hold = sim.disk(id).unwrap().hold().unwrap();
        let d0 = name("d0");
        assert_eq!(handle.delete(&d0).await.unwrap_err().kind(), ErrorKind::Busy);
        let let_go = async {
            sleep(Duration::from_secs(1)).await;
            drop(hold);
        };
        let stop = policy(BusyPolicy::Stop, Duration::ZERO);
        let (deleted, ()) = join!(handle.delete_with(&d0, stop), let_go);
        assert_eq!(ended(deleted), OutcomeKind::Deleted);
    });
}

#[test]
fn f48_a_try_stop_that_never_answers_ends_as_wedged() {
    Plan::faults("try_stop: hang; stop: hang").run(|House { handle, .. }| async move {
        handle.create(null("d0")).await.unwrap();
        let refuse = policy(BusyPolicy::Refuse, SOON);
        assert_eq!(ended(handle.delete_with(&name("d0"), refuse).await), OutcomeKind::Wedged);
    });
}

#[test]
fn a_shutdown_gives_holders_time_to_let_go_and_then_stops_all_the_same() {
    for (held_for, patient) in [(2, true), (3600, false)] {
        Plan::default().run(|House { handle, sim }| async move {
            let target = || TargetSpec::Null { size: 1 << 20 };
            let waits = DeviceSpec::builder(name("d0"), target()).busy(BusyPolicy::Wait);
            let waits = waits.busy_timeout(SOON).build().unwrap();
            let id = handle.create(waits).await.unwrap().id;
            let refuses = DeviceSpec::builder(name("d1"), target()).busy(BusyPolicy::Refuse);
            handle.create(refuses.build().unwrap()).await.unwrap();
            let disk = sim.disk(id).unwrap();
            let hold = disk.hold().unwrap();
            let user = async {
                sleep(Duration::from_secs(1)).await;
                let read = Request::new(Op::Read, 0, 512);
                let served = disk.submit(read, vec![0; 512]).await.is_ok();
                sleep(Duration::from_secs(held_for - 1)).await;
                drop(hold);
                served
            };
            let began = Instant::now();
            let (report, served) = join!(handle.shutdown(Duration::from_secs(60)), user);
            let report = report.unwrap();
            assert!(served, "it was stopped under its user");
            let took = if patient { report.wall } else { began.elapsed() };
            assert!(took >= Duration::from_secs(2), "{took:?}");
            assert_eq!(report.is_clean(), patient, "{report:?}");
            assert!(report.wall < Duration::from_secs(20), "{:?}", report.wall);
            assert_eq!(report.devices[1].outcome, OutcomeKind::Deleted);
            assert_eq!(report.devices[0].holders.is_empty(), patient, "{report:?}");
        });
    }
}

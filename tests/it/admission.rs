//! Load: the mailbox is really bounded, deletes go first, and a stop never waits in line.

use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use tokio::time::Instant;
use ublkd::model::{DeleteOutcome, ErrorKind, OutcomeKind};

use crate::support::{House, Plan, name, null, nulls, settle};

#[test]
fn a_full_mailbox_says_so_at_once_whoever_asks() {
    // Every ADD takes a second, and there is one worker: what comes now waits.
    let plan = Plan::faults("add: delay 1s").shape(|b| b.workers(1).mailbox(4));
    plan.run(|house| async move {
        let creates = nulls(20).into_iter().map(|spec| {
            // A clone each: the bound is not one of a clone.
            let handle = house.handle.clone();
            async move {
                let began = Instant::now();
                (handle.create(spec).await, began.elapsed())
            }
        });
        let results = join_all(creates).await;
        let (up, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(|(r, _)| r.is_ok());
        assert_eq!((up.len(), refused.len()), (4, 16));
        for (result, took) in refused {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Overloaded, "{error}");
            assert_eq!(took, Duration::ZERO, "it is said at once");
            assert!(error.to_string().contains("supervisor.mailbox"), "{error}");
        }
        assert_eq!(house.handle.waiting(), 0);
        house.handle.create(null("later")).await.unwrap();
        let report = house.handle.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 5);
    });
}

#[test]
fn a_delete_that_waits_has_a_place_as_well_and_callers_that_give_up_keep_theirs() {
    let plan = Plan::faults("add: delay 1s").shape(|b| b.workers(1).mailbox(3));
    plan.run(|House { handle, .. }| async move {
        let (old, other) = (name("old"), name("other"));
        handle.create(null("old")).await.unwrap();
        let work = join_all(["first", "second"].map(|name| handle.create(null(name))));
        let others = async {
            settle().await;
            // The first one is at work and gave its place back.
            assert_eq!(handle.waiting(), 1);
            let impatient = handle.create(null("third"));
            let waited = tokio::time::timeout(Duration::from_millis(10), impatient).await;
            assert!(waited.is_err());
            // Nobody waits for the answer any more, but it will be done.
            assert_eq!(handle.waiting(), 2);
            let refused = async {
                settle().await;
                assert_eq!(handle.waiting(), 3);
                let refused = handle.create(null("x")).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Overloaded);
                let refused = handle.delete(&other).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Overloaded);
                assert_eq!(handle.list().await.unwrap().len(), 4, "questions need no place");
            };
            futures::join!(handle.delete(&old), refused).0
        };
        let (created, deleted) = futures::join!(work, others);
        assert!(created.iter().all(Result::is_ok));
        assert!(matches!(deleted.unwrap(), DeleteOutcome::Ended(_)));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(handle.waiting(), 0);
        let names: Vec<_> = handle.list().await.unwrap().into_iter().map(|d| d.name).collect();
        assert_eq!(names, ["first", "second", "third"].map(name));
        assert!(handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
    });
}

#[test]
fn a_list_of_devices_waits_for_places_instead() {
    let plan = Plan::default().shape(|b| b.workers(2).mailbox(2));
    plan.run(|house| async move {
        let created: Vec<_> = house.handle.create_all(nulls(50)).collect().await;
        assert!(created.iter().all(|(_, result)| result.is_ok()));
        assert!(house.handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
    });
}

#[test]
fn a_delete_goes_before_creates_that_wait_for_the_only_worker() {
    let plan = Plan::faults("add: delay 1s").shape(|b| b.workers(1));
    plan.run(|House { handle, .. }| async move {
        handle.create(null("old")).await.unwrap();
        let began = Instant::now();
        let creates = async {
            let created = join_all(nulls(10).into_iter().map(|spec| handle.create(spec))).await;
            assert!(created.iter().all(Result::is_ok));
            began.elapsed()
        };
        let delete = async {
            // All ten are in line by now, and the first one is at work.
            settle().await;
            handle.delete(&name("old")).await.unwrap();
            began.elapsed()
        };
        let (created, deleted) = futures::join!(creates, delete);
        assert!(created >= Duration::from_secs(10), "{created:?}");
        // It waited for the create at work, and for no other.
        assert!(deleted < Duration::from_secs(2), "{deleted:?}");
        assert!(handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
    });
}

#[test]
fn f89_a_stop_does_not_wait_behind_ten_thousand_questions() {
    Plan::default().run(|House { handle, .. }| async move {
        let created: Vec<_> = handle.create_all(nulls(100)).collect().await;
        assert!(created.iter().all(|(_, result)| result.is_ok()));
        let device = name("d7");
        let questions = join_all((0..10_000).map(|_| handle.describe(&device)));
        let stop = async {
            let (began, real) = (Instant::now(), std::time::Instant::now());
            let deleted = handle.delete(&device);
            let shutdown = handle.shutdown(Duration::from_secs(60));
            let (deleted, report) = futures::join!(deleted, shutdown);
            (deleted, report.unwrap(), began.elapsed(), real.elapsed())
        };
        let (answers, (deleted, report, took, real)) = futures::join!(questions, stop);
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 10_000);
        assert!(matches!(deleted.unwrap(), DeleteOutcome::Ended(_)));
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 100);
        // Virtual time: a teardown and no more. Real time: the questions are cheap.
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(real < Duration::from_secs(10), "{real:?}");
    });
}

#[test]
fn f89_nothing_starts_once_a_stop_has_begun_and_everybody_is_told() {
    let plan = Plan::faults("add: delay 100ms").shape(|b| b.workers(4).mailbox(1000));
    plan.run(|House { handle, sim }| async move {
        let creates = join_all(nulls(200).into_iter().map(|spec| handle.create(spec)));
        let stop = async {
            tokio::time::sleep(Duration::from_millis(450)).await;
            let report = handle.shutdown(Duration::from_secs(60));
            let late = async {
                tokio::task::yield_now().await;
                handle.create(null("late")).await
            };
            futures::join!(report, late)
        };
        let (created, (report, late)) = futures::join!(creates, stop);
        let (report, late) = (report.unwrap(), late.unwrap_err());
        assert_eq!(late.kind(), ErrorKind::Stopping, "{late}");
        let up = created.iter().filter(|result| result.is_ok()).count();
        assert!((4..40).contains(&up), "{up}");
        for error in created.iter().filter_map(|result| result.as_ref().err()) {
            assert_eq!(error.kind(), ErrorKind::Stopping, "{error}");
        }
        assert!(report.is_clean() && report.devices.len() == 200, "{:?}", report.outcomes);
        // What waited is not started first: less than two rounds of ADD and a teardown.
        assert!(report.wall < Duration::from_secs(1), "{:?}", report.wall);
        settle().await;
        assert!(sim.snapshot().is_empty(), "{}", sim.snapshot());
    });
}

#[test]
fn f10_a_force_ends_the_shutdown_under_way_and_not_one_to_come() {
    Plan::faults("stop#1: delay 4s").run(|House { handle, sim }| async move {
        let created: Vec<_> = handle.create_all(nulls(3)).collect().await;
        assert!(created.iter().all(|(_, result)| result.is_ok()));
        handle.force();
        settle().await;
        assert_eq!(sim.snapshot().devices.len(), 3, "nothing was under way");
        let end = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            handle.force();
        };
        let (report, ()) = futures::join!(handle.shutdown(Duration::from_secs(60)), end);
        let report = report.unwrap();
        assert!(report.forced && report.wall >= Duration::from_secs(2), "{report:?}");
        assert!(report.wall < Duration::from_secs(3), "{report:?}");
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 2, "{report:?}");
        assert_eq!(report.outcomes[&OutcomeKind::TimedOut], 1);
        assert!(report.left[0].contains("id 1"), "{report:?}");
    });
}

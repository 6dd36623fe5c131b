//! A handler of a device's actor panics, at any change of state: whoever waits is told which device
//! and that its actor panicked, the device is taken down, and the supervisor goes on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use ublkd::Handle;
use ublkd::model::{
    DeleteOutcome, DeviceName, DeviceState as S, Error, ErrorKind, Observer, OutcomeKind,
    StateChange,
};

use crate::support::{Plan, STAGE, name, null, settle};

/// Panics when device `b` goes from one state to another.
struct Clumsy {
    at: (S, S),
    panicked: Arc<Mutex<u32>>,
}

impl Observer for Clumsy {
    fn state_changed(&self, change: &StateChange) {
        if change.device == name("b") && (change.from, change.to) == self.at {
            *self.panicked.lock().unwrap() += 1;
            panic!("the observer stumbles");
        }
    }
}

/// An answer, which comes within what two lives may take.
async fn answered<T>(
    what: &str,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answer = tokio::time::timeout(STAGE * 12, answer).await;
    let answer = answer.unwrap_or_else(|_| panic!("{what} is never answered"));
    if let Err(error) = &answer {
        assert_ne!(error.kind(), ErrorKind::Stopping, "{what}: {error}");
    }
    answer
}

/// Lets `b` live; says what its creator and its deleter were told.
async fn live(handle: &Handle, b: &DeviceName) -> (Option<Error>, Option<DeleteOutcome>) {
    let created = answered("create", handle.create(null("b"))).await;
    settle().await;
    let deleted = answered("delete", handle.delete(b)).await;
    (created.err(), deleted.ok())
}

fn check(at: (S, S), faults: &str, delete_at_once: bool) {
    let panicked = Arc::new(Mutex::new(0));
    let observer = Clumsy { at, panicked: Arc::clone(&panicked) };
    let plan = Plan::faults(faults).shape(|b| b.workers(1).observer(observer));
    plan.run(|house| async move {
        let (handle, b) = (house.handle, name("b"));
        handle.create(null("a")).await.unwrap();
        let (error, outcome) = if delete_at_once {
            let (create, delete) = (handle.create(null("b")), async {
                tokio::time::sleep(Duration::from_micros(300)).await;
                handle.delete(&b).await
            });
            let (created, deleted) =
                futures::join!(answered("create", create), answered("delete", delete));
            (created.err(), deleted.ok())
        } else {
            live(&handle, &b).await
        };
        assert_eq!(*panicked.lock().unwrap(), 1, "{at:?}: the observer panics once a device");
        let Some(DeleteOutcome::Ended(outcome)) = outcome else { panic!("{at:?}: {outcome:?}") };
        assert_eq!(outcome.panics.len(), 1, "{at:?}: {outcome:?}");
        assert!(outcome.panics[0].message.contains("the observer stumbles"));
        assert!(outcome.left.is_empty() || !faults.is_empty(), "{at:?}: {outcome:?}");
        // The first error counts: if a fault came before, it is that.
        let told = [error, outcome.error.clone()].into_iter().flatten();
        let told: Vec<_> = told.map(|e| e.to_string()).collect();
        assert!(told.iter().all(|text| text.contains("device b")), "{at:?}: {told:?}");
        let words = "its actor panicked: the observer stumbles";
        let blamed = told.iter().any(|text| text.contains(words));
        assert!(blamed || !faults.is_empty() && !told.is_empty(), "{at:?}: {told:?}");

        // Others live, also one of the same name when nothing is left of the first.
        assert_eq!(handle.list().await.unwrap()[0].state, S::Live);
        answered("create", handle.create(null("c"))).await.unwrap();
        if outcome.left.is_empty() {
            answered("create", handle.create(null("b"))).await.unwrap_err_or_live(at);
        }
        let report = handle.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(report.devices[0].outcome, OutcomeKind::Deleted);
        settle().await;
        let left = house.sim.snapshot();
        assert!(left.is_empty() || !report.left.is_empty(), "{at:?}: {left}");
    });
}

/// The next device of that name meets the same observer.
trait UnwrapErrOrLive {
    fn unwrap_err_or_live(self, at: (S, S));
}

impl<T> UnwrapErrOrLive for Result<T, Error> {
    fn unwrap_err_or_live(self, at: (S, S)) {
        if let Err(error) = self {
            assert_eq!(error.kind(), ErrorKind::Panicked, "{at:?}: {error}");
        }
    }
}

#[test]
fn f86_an_actor_that_panics_at_any_change_of_state_is_told_and_taken_down() {
    for (at, faults) in [
        ((S::Waiting, S::Starting), ""),
        ((S::Starting, S::Live), ""),
        ((S::Live, S::Stopping), ""),
        ((S::Stopping, S::Gone), ""),
        ((S::Starting, S::Failing), "start@2: EIO"),
        ((S::Failing, S::Failed), "start@2: EIO"),
        ((S::Live, S::Failing), "queue@2: delay 10ms EIO"),
        ((S::Stopping, S::Left), "close@1: hang"),
        ((S::Stopping, S::Wedged), "stop@1: hang"),
    ] {
        check(at, faults, false);
    }
    for at in [(S::Starting, S::Cancelling), (S::Cancelling, S::Stopping)] {
        check(at, "", true);
    }
}

#[test]
fn f86_a_device_that_waits_can_panic_too() {
    let panicked = Arc::new(Mutex::new(0));
    let observer = Clumsy { at: (S::Waiting, S::Gone), panicked: Arc::clone(&panicked) };
    let plan = Plan::faults("add@1: delay 1s").shape(|b| b.workers(1).observer(observer));
    plan.run(|house| async move {
        let (handle, b) = (house.handle, name("b"));
        // The only worker is at `a` for a second; `b` waits behind it.
        let a = handle.create(null("a"));
        let create = answered("create", handle.create(null("b")));
        let delete = answered("delete", async {
            settle().await;
            handle.delete(&b).await
        });
        let (a, created, deleted) = futures::join!(a, create, delete);
        a.unwrap();
        assert_eq!(*panicked.lock().unwrap(), 1);
        let error = created.unwrap_err();
        assert!(error.to_string().contains("device b: wait: its actor panicked"), "{error}");
        let DeleteOutcome::Ended(outcome) = deleted.unwrap() else { panic!("it was there") };
        assert_eq!((outcome.outcome, outcome.left.len()), (OutcomeKind::Panicked, 0));
        assert!(handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
    });
}

#[test]
fn f88_nothing_is_restarted_and_one_that_fails_costs_the_others_nothing() {
    // Five devices fail once each; another one of the same name is another device.
    let plan = Plan::faults("queue@1-5: delay 10ms panic");
    plan.run(|house| async move {
        let names: Vec<_> = (0..5).map(|n| format!("d{n}")).collect();
        let create = || house.handle.create_all(names.iter().map(|n| null(n)));
        let created: Vec<_> = create().collect().await;
        assert!(created.iter().all(|(_, result)| result.is_ok()));
        settle().await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        for device in house.handle.list().await.unwrap() {
            assert_eq!(device.state, S::Failed, "it was restarted");
            assert!(device.error.unwrap().contains("panic"), "it does not say why");
        }
        assert!(house.sim.snapshot().is_empty());
        // The host decides.
        let created: Vec<_> = create().collect().await;
        assert!(created.iter().all(|(_, result)| result.is_ok()));
        settle().await;
        let report = house.handle.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 5);
    });
}

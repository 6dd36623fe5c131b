//! Starts: busy files, limits of the kernel, many at once, failures round after round.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::LocalBoxFuture;
use nix::libc;
use tokio::time::Instant;
use ublkd::driver::sim::KernelProfile;
use ublkd::driver::{CharDevice, Command, Driver, Reply};
use ublkd::model::{DeviceId, Error, ErrorKind, OutcomeKind};

use crate::support::{House, Plan, STAGE, name, null, nulls, settle};

#[test]
fn f23_a_char_device_that_is_busy_for_a_moment_is_opened_again() {
    Plan::faults("open@*: EBUSY x3").run(|house| async move {
        house.handle.create(null("a")).await.unwrap();
        assert!(house.handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
    });
}

#[test]
fn f23_one_that_stays_busy_fails_and_leaves_no_half_made_device() {
    Plan::faults("open#0: EBUSY").run(|house| async move {
        let began = Instant::now();
        let error = house.handle.create(null("a")).await.unwrap_err();
        assert!(began.elapsed() <= STAGE, "{:?}", began.elapsed());
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Busy, Some(libc::EBUSY)));
        let text = error.to_string();
        assert!(text.contains("device a (id 0): attach: open") && text.contains("EBUSY"), "{text}");
        settle().await;
        assert!(house.sim.snapshot().is_empty(), "{}", house.sim.snapshot());
    });
}

#[test]
fn f25_devices_beyond_ublks_max_fail_with_the_limit_and_the_rest_runs() {
    let kernel = KernelProfile { ublks_max: 64, ..KernelProfile::linux_6_12() };
    Plan::default().kernel(kernel).run(|house| async move {
        let created: Vec<_> = house.handle.create_all(nulls(70)).collect().await;
        let errors: Vec<_> = created.iter().filter_map(|(_, r)| r.as_ref().err()).collect();
        assert_eq!(errors.len(), 6);
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
            let text = error.to_string();
            for part in ["add: ADD_DEV", "ublks_max is 64", "64 devices are there", "raise"] {
                assert!(text.contains(part), "no {part:?} in {text}");
            }
        }
        // It does not try again by itself.
        let before = house.sim.snapshot().commands;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(house.sim.snapshot().commands, before);
        // A place that is free again is one for the next.
        house.handle.delete(&name("d0")).await.unwrap();
        house.handle.create(null("late")).await.unwrap();
        let report = house.handle.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 64);
        assert_eq!(report.outcomes[&OutcomeKind::Failed], 6);
        settle().await;
        assert!(house.sim.snapshot().is_empty());
    });
}

#[test]
fn f25_a_plain_refusal_does_not_talk_of_a_limit() {
    Plan::faults("add@3: EACCES").run(|house| async move {
        house.handle.create(null("a")).await.unwrap();
        house.handle.create(null("b")).await.unwrap();
        let error = house.handle.create(null("c")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(!error.to_string().contains("ublks_max"), "{error}");
        assert!(house.handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
    });
}

thread_local!(static MOST: Cell<usize> = const { Cell::new(0) });

/// Counts commands in flight, but for the query that waits for an id: that holds no worker.
struct Counting(Rc<dyn Driver>, Rc<Cell<usize>>);

fn counting(inner: Rc<dyn Driver>) -> Rc<dyn Driver> {
    MOST.set(0);
    Rc::new(Counting(inner, Rc::default()))
}

impl Driver for Counting {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        if matches!(command, Command::Info(_)) {
            return self.0.execute(command);
        }
        let now = Rc::clone(&self.1);
        now.set(now.get() + 1);
        MOST.set(MOST.get().max(now.get()));
        let answer = self.0.execute(command);
        Box::pin(async move {
            let answer = answer.await;
            now.set(now.get() - 1);
            answer
        })
    }
    fn open(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>> {
        self.0.open(id)
    }
    fn list(&self) -> Result<Vec<DeviceId>, Error> {
        self.0.list()
    }
    fn node_ready(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.0.node_ready(id)
    }
    fn set_read_only(&self, id: DeviceId, on: bool) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.0.set_read_only(id, on)
    }
    fn holders(&self, id: DeviceId) -> LocalBoxFuture<'static, Vec<String>> {
        self.0.holders(id)
    }
}

#[test]
fn f27_all_of_five_hundred_come_up_whatever_runs_at_once_and_never_more_than_that() {
    let took = [1, 8, 64].map(|workers| {
        // The simulated commands do not wait in a create, so a start is made to take its time.
        let plan = Plan { wrap: counting, ..Plan::faults("start: delay 10ms") };
        plan.shape(move |b| b.workers(workers)).run(|House { handle, sim }| async move {
            let began = Instant::now();
            let created: Vec<_> = handle.create_all(nulls(500)).collect().await;
            let took = began.elapsed();
            assert!(created.iter().all(|(_, result)| result.is_ok()));
            assert_eq!(MOST.replace(0), workers, "in flight while starting");
            assert_eq!(sim.snapshot().devices.len(), 500);
            let report = handle.shutdown(Duration::from_secs(600)).await.unwrap();
            assert!(report.is_clean());
            assert_eq!(MOST.get(), workers, "in flight while stopping");
            took
        })
    });
    assert!(took[1] * 4 < took[0], "{took:?}");
    assert!(took[2] <= took[1], "{took:?}");
}

#[test]
fn f32_a_command_that_was_interrupted_is_sent_again_where_that_is_safe() {
    // STOP and DEL may be repeated; an ADD or START that was interrupted is undone.
    Plan::faults("stop@1: EINTR x2; del_async@1: EINTR x2").run(|house| async move {
        house.handle.create(null("a")).await.unwrap();
        let report = house.handle.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 1, "{report:?}");
    });
    for (point, command) in [("add", "ADD_DEV"), ("start", "START_DEV")] {
        Plan::faults(format!("{point}@1: EINTR")).run(|house| async move {
            let error = house.handle.create(null("a")).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(command) && text.contains("EINTR"), "{text}");
            settle().await;
            assert!(house.sim.snapshot().is_empty(), "{}", house.sim.snapshot());
            house.handle.create(null("a")).await.unwrap();
            assert!(house.handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
        });
    }
}

#[test]
fn f30_what_was_refused_for_lack_of_memory_leaves_nothing_and_works_later() {
    // As after much churn: the kernel gives the memory of closed rings back a little later.
    for point in ["add", "serve", "ready"] {
        Plan::faults(format!("{point}: ENOMEM x3")).run(|house| async move {
            for _ in 0..3 {
                let error = house.handle.create(null("a")).await.unwrap_err();
                assert_eq!((error.kind(), error.errno()), (ErrorKind::Limit, Some(libc::ENOMEM)));
            }
            house.handle.create(null("a")).await.unwrap();
            assert!(house.handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
        });
    }
}

#[test]
fn f38_twenty_rounds_of_failure_at_every_step_leave_nothing() {
    let steps = ["add", "set_params", "open", "serve", "ready", "start", "node"];
    let named = ["ADD_DEV", "SET_PARAMS", "open", "serve", "FETCH", "START_DEV", "node"];
    for (step, named) in steps.into_iter().zip(named) {
        Plan::faults(format!("{step}: EIO x20")).run(|house| async move {
            for round in 0..20 {
                let error = house.handle.create(null("a")).await.unwrap_err().to_string();
                assert!(error.contains("EIO"), "{step}: {error}");
                let said = error.contains(named) || error.contains(step);
                assert!(said || step == "ready" && error.contains("serve"), "{step}: {error}");
                settle().await;
                let left = house.sim.snapshot();
                assert!(left.is_empty(), "{step}, round {round}: {left}");
            }
            house.handle.create(null("a")).await.unwrap();
            assert!(house.handle.shutdown(Duration::from_secs(60)).await.unwrap().is_clean());
        });
    }
}

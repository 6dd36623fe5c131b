//! What a fault plan makes of the steps of a device's life.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Mutex;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use nix::libc;
use tokio::time::{sleep, timeout};

use super::super::fault::{Effect, Fault, Faulty, Point};
use super::*;
use crate::driver::QueueEvent;
use crate::model::QueueId;

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn f23_three_times_busy_succeeds_and_for_ever_busy_fails() -> Outcome {
    on_virtual_time(async {
        let server = Server::served(&sim_with_faults("open: EBUSY x3")).await?;
        server.torn_down().await?;

        let driver = sim_with_faults("open@*: EBUSY");
        let (refused, took) = timed(Server::served(&driver)).await;
        assert_eq!(refused.err().and_then(|error| error.errno()), Some(libc::EBUSY));
        assert!(took < Duration::from_secs(3), "{took:?}");
        Ok(())
    })
}

#[test]
fn f19_a_hanging_command_never_answers_and_others_do() -> Outcome {
    on_virtual_time(async {
        let driver = sim_with_faults("add@2: hang");
        let first = Server::live(&driver).await?;
        assert!(timeout(LONG, Server::live(&driver)).await.is_err());
        let third = Server::live(&driver).await?;
        assert_eq!((first.id, third.id), (DeviceId(0), DeviceId(1)));
        assert_eq!(driver.snapshot().commands.now, 1, "it is in flight, whoever gave it up");
        Ok(())
    })
}

#[test]
fn f48_a_stop_that_hangs_leaves_its_device_alone() -> Outcome {
    on_virtual_time(async {
        let driver = sim_with_faults("stop#1: hang");
        let servers = [
            Server::live(&driver).await?,
            Server::live(&driver).await?,
            Server::live(&driver).await?,
        ];
        let ends = join_all(servers.map(|server| timeout(LONG, server.torn_down()))).await;
        let hung: Vec<_> = ends.iter().map(|end| end.is_err()).collect();
        assert_eq!(hung, [false, true, false]);
        assert_eq!(driver.list()?, [DeviceId(1)]);
        Ok(())
    })
}

#[test]
fn f92_every_command_fails_with_the_errno_of_the_plan() -> Outcome {
    on_virtual_time(async {
        let errnos = ["EPERM", "EBUSY", "ENOSPC", "EIO", "EINVAL", "ENODEV", "EOPNOTSUPP", "EINTR"];
        for name in errnos {
            for point in Point::ALL.into_iter().filter(|point| point.can(Effect::Errno(1))) {
                let driver = sim_with_faults(&format!("{point}@*: {name}"));
                let events = Rc::new(RefCell::new(Vec::new()));
                let refused = whole_life(&driver, &events).await;
                let told = events.borrow().join(" ");
                let text = refused.err().map(|error| error.to_string()).unwrap_or(told);
                assert!(text.contains(name), "{point}: {name} is not in {text:?}");
            }
        }
        Ok(())
    })
}

/// Every command and every point once; what queues tell is put into `told`.
async fn whole_life(driver: &SimDriver, told: &Rc<RefCell<Vec<String>>>) -> Result<(), Error> {
    driver.execute(Command::Features).await?;
    let mut server = Server::recoverable(driver).await?;
    let id = server.id;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&heard);
    server
        .serve_with(Arc::new(move |event| {
            events.lock().expect("no panic").push(format!("{event:?}"));
        }))
        .await?;
    driver.execute(Command::GetParams(id)).await?;
    driver.execute(Command::QueueAffinity(id, QueueId(0))).await?;
    driver.execute(Command::Start(id)).await?;
    driver.node_ready(id).await?;
    driver.execute(Command::Info(id)).await?;
    sleep(Duration::from_millis(1)).await;
    told.borrow_mut().append(&mut heard.lock().expect("no panic"));
    driver.execute(Command::UpdateSize(id, 1 << 21)).await?;
    server.quiesced().await?;
    server.resumed(Arc::new(|_| {})).await?;
    driver.execute(Command::TryStop(id)).await?;
    server.stop().await?;
    server.join().await;
    driver.execute(Command::DeleteAsync(id)).await?;
    server.close();
    let other = Server::added(driver).await?;
    driver.execute(Command::Delete(other.id)).await?;
    Ok(())
}

#[test]
fn every_command_and_point_can_panic_in_the_callers_hands() {
    on_virtual_time(async {
        for point in Point::ALL.into_iter().filter(|point| point.can(Effect::Panic)) {
            let driver = sim_with_faults(&format!("{point}: panic"));
            let told = Rc::default();
            let life = std::panic::AssertUnwindSafe(whole_life(&driver, &told)).catch_unwind();
            let panicked = life.await.is_err();
            let queue = told.borrow().iter().any(|event| event.contains("Panicked"));
            assert_eq!(
                (panicked, queue),
                (point != Point::Queue, point == Point::Queue),
                "{point}"
            );
        }
    });
}

#[test]
fn a_delay_goes_on_when_its_caller_gives_up() -> Outcome {
    on_virtual_time(async {
        let driver = sim_with_faults("add: delay 10s");
        let second = Duration::from_secs(1);
        assert!(timeout(second, driver.execute(add(None))).await.is_err());
        assert_eq!(driver.list()?, []);
        sleep(10 * second).await;
        assert_eq!(driver.list()?, [DeviceId(0)]);
        Ok(())
    })
}

#[test]
fn f21_a_lost_fetch_leaves_start_waiting() -> Outcome {
    on_virtual_time(async {
        let driver = sim_with_faults("ready: short");
        let server = Server::served(&driver).await?;
        let start = driver.execute(Command::Start(server.id));
        assert!(timeout(LONG, start).await.is_err());
        Ok(())
    })
}

#[test]
fn a_short_add_settles_for_less() -> Outcome {
    on_virtual_time(async {
        let driver = sim_with_faults("add: short");
        let Reply::Device(device) = driver.execute(add(None)).await? else {
            return Err("no device came back".into());
        };
        assert_eq!((device.queues.count, device.queues.depth), (1, 2));
        Ok(())
    })
}

#[test]
fn a_queue_breaks_once_it_is_live_and_its_exit_says_why() -> Outcome {
    on_virtual_time(async {
        // Queues are counted as they are made: two a device.
        let driver = sim_with_faults("queue@2: EIO; queue@3: delay 1s panic");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let mut servers = Vec::new();
        for _ in 0..2 {
            let mut server = Server::added(&driver).await?;
            let events = Arc::clone(&heard);
            let tell = move |event| events.lock().expect("no panic").push(event);
            server.serve_with(Arc::new(tell)).await?;
            servers.push(server);
        }
        sleep(LONG).await;
        assert!(heard.lock().expect("no panic").is_empty(), "not live yet");
        for server in &servers {
            driver.execute(Command::Start(server.id)).await?;
        }
        sleep(Duration::from_secs(2)).await;
        let events = std::mem::take(&mut *heard.lock().expect("no panic"));
        let [QueueEvent::Failed(one, why), QueueEvent::Panicked(two, report)] = &events[..] else {
            return Err(format!("{events:?}").into());
        };
        assert_eq!((*one, *two), (QueueId(1), QueueId(0)));
        let expected = [
            [QueueExitCause::Stopped, QueueExitCause::Failed(why.clone())],
            [QueueExitCause::Panicked(report.clone()), QueueExitCause::Stopped],
        ];
        for (mut server, expected) in servers.into_iter().zip(expected) {
            server.stop().await?;
            assert_eq!(server.join().await, expected);
        }
        Ok(())
    })
}

#[test]
fn threads_that_never_end_keep_the_device_and_are_seen() -> Outcome {
    on_virtual_time(async {
        let driver = sim_with_faults("join@1: hang; join@2: delay 3s");
        let (mut stuck, mut slow) = (Server::live(&driver).await?, Server::live(&driver).await?);
        stuck.stop().await?;
        let Some(mut queues) = stuck.queues.take() else { return Err("no queues".into()) };
        queues.stop();
        assert!(timeout(LONG, queues.join()).await.is_err());
        assert_eq!(queues.tids().len(), 2, "they are named");
        drop(queues);
        slow.stop().await?;
        let (exits, took) = timed(slow.join()).await;
        assert_eq!(exits, [QueueExitCause::Stopped, QueueExitCause::Stopped]);
        assert_eq!(took, Duration::from_secs(3));
        slow.torn_down().await?;
        driver.execute(Command::DeleteAsync(stuck.id)).await?;
        stuck.close();
        drop(stuck);
        sleep(LONG).await;
        let snapshot = driver.snapshot();
        assert_eq!((snapshot.devices.len(), snapshot.queue_threads), (1, 2), "{snapshot}");
        assert_eq!(snapshot.devices[0].fds, 1, "{snapshot}");
        Ok(())
    })
}

#[test]
fn a_close_that_does_not_happen_keeps_the_id() -> Outcome {
    on_virtual_time(async {
        let driver = sim_with_faults("close#0: hang; close#1: delay 5s");
        let (kept, late) = (Server::live(&driver).await?, Server::live(&driver).await?);
        let (done, took) = timed(late.torn_down()).await;
        done?;
        assert!(took >= Duration::from_secs(5), "{took:?}");
        assert!(timeout(LONG, kept.torn_down()).await.is_err());
        let snapshot = driver.snapshot();
        assert_eq!((snapshot.devices.len(), snapshot.devices[0].fds), (1, 1), "{snapshot}");
        Ok(())
    })
}

#[test]
fn calls_are_counted_by_fault_and_the_first_that_fits_strikes() -> Outcome {
    on_virtual_time(async {
        let driver = sim_with_faults("info@2-3: EIO; info@3+: EPERM x1; info#0@6: EBUSY");
        driver.execute(add(None)).await?;
        let mut seen = Vec::new();
        for _ in 0..7 {
            let answer = driver.execute(Command::Info(DeviceId(0))).await;
            seen.push(answer.err().and_then(|error| error.errno()));
        }
        let (eio, eperm, ebusy) = (Some(libc::EIO), Some(libc::EPERM), Some(libc::EBUSY));
        assert_eq!(seen, [None, eio, eio, eperm, None, ebusy, None]);
        Ok(())
    })
}

#[test]
fn the_decorator_fits_any_driver() -> Outcome {
    on_virtual_time(async {
        let hang = Fault {
            point: Point::Stop,
            device: None,
            calls: super::super::fault::Calls::ALL,
            delay: Duration::ZERO,
            effect: Some(Effect::Hang),
            times: None,
        };
        let inner: Rc<dyn Driver> = Rc::new(sim_with_faults(""));
        let outer = Faulty::new(inner, FaultPlan(vec![hang]));
        outer.execute(add(None)).await?;
        let stop = outer.execute(Command::Stop(DeviceId(0)));
        assert!(timeout(LONG, stop).await.is_err());
        assert_eq!(outer.in_flight().now, 1);
        Ok(())
    })
}

//! What the kernel allows, refuses and waits for.

use std::sync::Mutex;
use std::time::Duration;

use nix::libc;
use tokio::time::{sleep, timeout};

use super::*;
use crate::driver::{KernelState, QueueEvent};
use crate::model::{ErrorKind, QueueId};
use crate::target::{Errno, Op, Request};

const READ: Request = Request { op: Op::Read, offset: 0, len: 512, fua: false, no_unmap: false };
const LONG: Duration = Duration::from_secs(3600);

fn kernel() -> SimDriver {
    sim(KernelProfile::linux_7_3())
}

#[test]
fn ids_are_the_first_free_ones_and_a_taken_one_is_refused() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        for id in 0..3 {
            assert_eq!(Server::added(&driver).await?.id, DeviceId(id));
        }
        assert_eq!(errno(driver.execute(add(Some(1))).await), Some(libc::EEXIST));
        driver.execute(Command::Delete(DeviceId(1))).await?;
        driver.execute(add(Some(7))).await?;
        assert_eq!(driver.list()?, [0, 2, 7].map(DeviceId));
        assert_eq!(Server::added(&driver).await?.id, DeviceId(1));
        assert_eq!(Server::added(&driver).await?.id, DeviceId(3));
        assert_eq!(errno(driver.execute(add(Some(1 << 20))).await), Some(libc::EINVAL));
        driver.execute(add(Some(DeviceId::MAX))).await?;
        Ok(())
    })
}

#[test]
fn add_settles_queues_and_features() -> Outcome {
    on_virtual_time(async {
        let driver = sim(KernelProfile { processors: 4, ..KernelProfile::linux_6_12() });
        let queues = QueueSpec { count: 9, depth: 128, max_io: 5000 };
        let asked = AddDevice { id: None, queues, features: Features::USER_RECOVERY };
        let Reply::Device(device) = driver.execute(Command::Add(asked)).await? else {
            return Err("no device came back".into());
        };
        assert_eq!(device.queues, QueueSpec { count: 4, depth: 128, max_io: 4096 });
        assert!(device.features.has(Features::USER_RECOVERY.with(Features::CMD_IOCTL_ENCODE)));
        assert_eq!((device.state, device.pid), (KernelState::Dead, 0));
        Ok(())
    })
}

#[test]
fn processors_are_spread_over_the_queues_and_what_is_not_there_is_refused() -> Outcome {
    on_virtual_time(async {
        for (processors, expected) in [
            (2, ["0", "1"]),
            (4, ["0-1", "2-3"]),
            (5, ["0-2", "3-4"]),
            (1024, ["0-511", "512-1023"]),
        ] {
            let driver = sim(KernelProfile { processors, ..KernelProfile::linux_6_12() });
            driver.execute(add(None)).await?;
            for (queue, expected) in (0..).map(QueueId).zip(expected) {
                let told = asked(&driver).queue_affinity(DeviceId(0), queue).await?;
                assert_eq!(told.to_string(), expected);
            }
            let beyond = asked(&driver).queue_affinity(DeviceId(0), QueueId(2)).await;
            assert_eq!(errno(beyond), Some(libc::EINVAL));
            let nowhere = asked(&driver).queue_affinity(DeviceId(1), QueueId(0)).await;
            assert_eq!(errno(nowhere), Some(libc::ENODEV));
        }
        let driver = sim(KernelProfile { processors: 1025, ..KernelProfile::linux_6_12() });
        driver.execute(add(None)).await?;
        let too_many = asked(&driver).queue_affinity(DeviceId(0), QueueId(0)).await;
        assert_eq!(errno(too_many), Some(libc::EINVAL));
        Ok(())
    })
}

#[test]
fn f34_flags_and_values_that_the_kernel_does_not_know_are_refused() {
    on_virtual_time(async {
        let driver = sim(KernelProfile::linux_6_12());
        let too_deep = QueueSpec { depth: 4097, ..QUEUES };
        let no_queue = QueueSpec { count: 0, ..QUEUES };
        for (queues, features) in [
            (QUEUES, Features(1 << 63)),
            (QUEUES, Features::BATCH_IO),
            (QUEUES, Features::USER_RECOVERY_REISSUE),
            (too_deep, Features::NONE),
            (no_queue, Features::NONE),
        ] {
            let add = Command::Add(AddDevice { id: None, queues, features });
            assert_eq!(errno(driver.execute(add).await), Some(libc::EINVAL), "{features:?}");
        }
        let old = KernelProfile { delete_async: false, ..KernelProfile::linux_6_12() };
        let refused = sim(old).execute(Command::DeleteAsync(DeviceId(0))).await;
        assert_eq!(errno(refused), Some(libc::EOPNOTSUPP));
    });
}

#[test]
fn f25_the_limit_of_devices_is_named_and_a_delete_makes_room() -> Outcome {
    on_virtual_time(async {
        let driver = sim(KernelProfile { ublks_max: 64, ..KernelProfile::linux_6_12() });
        for _ in 0..64 {
            driver.execute(add(None)).await?;
        }
        let error = driver.execute(add(None)).await.expect_err("it is full");
        assert_eq!((error.errno(), error.kind()), (Some(libc::EACCES), ErrorKind::Limit));
        assert!(error.to_string().contains("ublks_max is 64 and 64 devices"), "{error}");
        driver.execute(Command::DeleteAsync(DeviceId(9))).await?;
        driver.execute(add(None)).await?;
        Ok(())
    })
}

#[test]
fn what_is_not_there_is_enodev() {
    on_virtual_time(async {
        let (driver, none) = (kernel(), DeviceId(5));
        for command in [
            Command::SetParams(none, params()),
            Command::GetParams(none),
            Command::Start(none),
            Command::Stop(none),
            Command::Delete(none),
            Command::DeleteAsync(none),
            Command::Info(none),
        ] {
            let name = command.name();
            assert_eq!(errno(driver.execute(command).await), Some(libc::ENODEV), "{name}");
        }
        assert_eq!(driver.open(none).await.err().and_then(|e| e.errno()), Some(libc::ENOENT));
        assert_eq!(errno(driver.node_ready(none).await), Some(libc::ENOENT));
    });
}

#[test]
fn parameters_are_checked_and_cannot_change_once_started() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        driver.execute(add(None)).await?;
        let id = DeviceId(0);
        let broken = |change: fn(&mut Params)| {
            let mut params = params();
            change(&mut params);
            Command::SetParams(id, params)
        };
        for command in [
            broken(|params| params.geometry.logical_block = 8192),
            broken(|params| params.geometry.logical_block = 513),
            broken(|params| params.geometry.physical_block = 256),
            broken(|params| params.max_io *= 2),
        ] {
            assert_eq!(errno(driver.execute(command).await), Some(libc::EINVAL));
            assert_eq!(errno(driver.execute(Command::Start(id)).await), Some(libc::EINVAL));
        }
        let server = Server::live(&driver).await?;
        let again = Command::SetParams(server.id, params());
        assert_eq!(errno(driver.execute(again.clone()).await), Some(libc::EACCES));
        assert_eq!(driver.execute(Command::GetParams(server.id)).await?, Reply::Params(params()));
        server.stop().await?;
        driver.execute(again).await?;
        Ok(())
    })
}

#[test]
fn start_waits_for_every_tag_of_every_queue() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::added(&driver).await?;
        let char = driver.open(server.id).await?;
        let mut fewer = plan(server.id, Arc::new(|_| {}));
        fewer.queues.count = 1;
        let first = char.serve(fewer)?;
        let start = driver.execute(Command::Start(server.id));
        assert!(timeout(LONG, start).await.is_err(), "a queue is missing");

        // Another set fetches what is missing and, of what is not, hears EINVAL.
        let mut second = char.serve(plan(server.id, Arc::new(|_| {})))?;
        assert_eq!(errno(second.ready().await), Some(libc::EINVAL));
        sleep(Duration::from_millis(5)).await;
        let Reply::Device(device) = driver.execute(Command::Info(server.id)).await? else {
            return Err("no device came back".into());
        };
        assert_eq!(device.state, KernelState::Live, "the start that was given up still happened");
        assert_ne!(device.pid, 0);
        let again = driver.execute(Command::Start(server.id)).await;
        assert_eq!(errno(again), Some(libc::EEXIST));
        let mut late = char.serve(plan(server.id, Arc::new(|_| {})))?;
        assert_eq!(errno(late.ready().await), Some(libc::EBUSY));
        drop((first, second, late));
        server.char = Some(char);
        server.torn_down().await?;
        assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        Ok(())
    })
}

#[test]
fn f23_the_char_device_has_one_opener_and_a_busy_one_is_tried_again_for_a_while() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let server = Server::added(&driver).await?;
        let char = driver.open(server.id).await?;
        let (second, took) = timed(driver.open(server.id)).await;
        assert_eq!(second.err().and_then(|error| error.errno()), Some(libc::EBUSY));
        let patience = super::super::fault::OPEN_PATIENCE;
        assert!(took <= patience && took > patience / 2, "{took:?}");

        let (again, ()) = futures::join!(driver.open(server.id), async {
            sleep(Duration::from_millis(30)).await;
            drop(char);
        });
        drop(again?);
        Ok(())
    })
}

#[test]
fn stop_is_idempotent_and_brings_the_tags_back() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::live(&driver).await?;
        server.stop().await?;
        server.stop().await?;
        let (exits, took) = timed(server.join()).await;
        assert_eq!(exits, [QueueExitCause::Stopped, QueueExitCause::Stopped]);
        assert!(took < Duration::from_millis(2), "{took:?}");
        assert_eq!(errno(driver.node_ready(server.id).await), Some(libc::ENOENT));
        server.torn_down().await?;
        Ok(())
    })
}

#[test]
fn queues_that_end_before_stop_drain_and_are_abandoned() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::live(&driver).await?;
        let disk = driver.disk(server.id)?;
        let before = disk.submit(READ, vec![1; 512]).await;
        assert_eq!(before, Ok(vec![1; 512]));
        let (exits, took) = timed(server.join()).await;
        assert_eq!(exits, [QueueExitCause::Abandoned(4), QueueExitCause::Abandoned(4)]);
        assert!(took >= DRAIN && took < DRAIN + Duration::from_millis(2), "{took:?}");
        assert_eq!(disk.submit(READ, vec![0; 512]).await, Err(Errno(libc::EIO)));
        server.torn_down().await?;
        Ok(())
    })
}

#[test]
fn f01_delete_waits_for_every_reference_to_the_char_device() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::live(&driver).await?;
        let snapshot = driver.snapshot();
        let seen = &snapshot.devices[0];
        assert_eq!((seen.fds, seen.maps, seen.rings), (1, 2, 2));
        assert_eq!(snapshot.queue_threads, 2);
        server.stop().await?;
        let id = server.id;
        let mut delete = driver.execute(Command::Delete(id));
        assert!(timeout(LONG, &mut delete).await.is_err(), "fd, maps and rings are there");
        assert_eq!(driver.list()?, [], "the node has gone");
        assert!(driver.execute(Command::Info(id)).await.is_ok(), "the id has not");
        server.join().await;
        assert!(timeout(LONG, &mut delete).await.is_err(), "the fd is there");
        assert_eq!(driver.snapshot().queue_threads, 0);
        server.close();
        let (deleted, took) = timed(timeout(LONG, delete)).await;
        deleted??;
        assert!(took < Duration::from_millis(10), "{took:?}");
        assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        Ok(())
    })
}

#[test]
fn f01_delete_without_waiting_frees_the_id_a_little_after_the_close() -> Outcome {
    on_virtual_time(async {
        let driver = sim(KernelProfile::linux_7_3().grace_only());
        let mut server = Server::live(&driver).await?;
        let id = server.id;
        server.stop().await?;
        server.join().await;
        driver.execute(Command::DeleteAsync(id)).await?;
        driver.execute(Command::DeleteAsync(id)).await?;
        sleep(LONG).await;
        assert_eq!(errno(driver.execute(add(Some(id.0))).await), Some(libc::EEXIST));
        server.close();
        server.id_free().await?;
        // It is unknown as soon as the last reference is gone, and free a moment later.
        assert_eq!(errno(driver.execute(add(Some(id.0))).await), Some(libc::EEXIST));
        sleep(Duration::from_millis(5)).await;
        driver.execute(add(Some(id.0))).await?;
        Ok(())
    })
}

#[test]
fn f01_the_journal_tells_the_order_of_a_life() -> Outcome {
    on_virtual_time(async {
        let driver = sim(KernelProfile::linux_7_3().grace_only());
        let silent = Server::live(&driver).await?;
        assert_eq!(driver.recorded(), []);
        driver.record();
        Server::live(&driver).await?.torn_down().await?;
        silent.torn_down_close_first().await?;
        assert_eq!(errno(driver.execute(Command::Stop(DeviceId(0))).await), Some(libc::ENODEV));
        sleep(Duration::from_millis(5)).await;
        let told: Vec<_> = driver.recorded().iter().map(ToString::to_string).collect();
        let expected = [
            "ADD_DEV",
            "1: SET_PARAMS",
            "1: open",
            "1: serve",
            "1: START_DEV",
            "1: STOP_DEV",
            "1: queues ended",
            "1: DEL_DEV_ASYNC",
            "1: close",
            "1: released",
            "0: STOP_DEV",
            "0: queues ended",
            "0: close",
            "0: released",
            "1: freed",
            "0: freed",
            "0: DEL_DEV",
            "0: STOP_DEV ENODEV",
        ];
        let sorted = |told: &[&str]| {
            let one = |id| told.iter().filter(move |line| line.starts_with(id)).copied();
            one("1").chain(one("0")).map(str::to_owned).collect::<Vec<_>>()
        };
        let told: Vec<_> = told.iter().map(String::as_str).collect();
        assert_eq!(sorted(&told), sorted(&expected), "{told:?}");
        assert_eq!(told[0], "ADD_DEV");
        Ok(())
    })
}

#[test]
fn f03_an_open_block_device_keeps_the_id_and_holds_up_nobody_else() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let (held, other) = (Server::live(&driver).await?, Server::live(&driver).await?);
        let id = held.id;
        let hold = driver.disk(id)?.hold()?;
        let teardown = tokio::task::spawn_local(held.torn_down());
        let (done, took) = timed(other.torn_down()).await;
        done?;
        assert!(took < Duration::from_millis(200), "{took:?}");
        sleep(LONG).await;
        assert!(!teardown.is_finished());
        assert_eq!(driver.snapshot().devices[0].openers, 1);
        assert_eq!(driver.holders(id).await, ["simulated user 1 of /dev/ublkb0"]);
        drop(hold);
        teardown.await??;
        sleep(Duration::from_millis(5)).await;
        assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        Ok(())
    })
}

#[test]
fn f04_stop_returns_only_when_the_queues_have_served_what_is_in_flight() -> Outcome {
    on_virtual_time(async {
        let driver = sim(KernelProfile { stop_probe: true, ..KernelProfile::linux_7_3() });
        let right = Server::live(&driver).await?;
        timeout(LONG, right.torn_down()).await??;

        let mut wrong = Server::live(&driver).await?;
        if let Some(queues) = &wrong.queues {
            queues.stop();
        }
        assert!(timeout(LONG, wrong.stop()).await.is_err(), "nobody serves the last read");
        wrong.join().await;
        Ok(())
    })
}

#[test]
fn f04_without_a_server_the_kernel_fails_what_is_in_flight_at_last() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::live(&driver).await?;
        let disk = driver.disk(server.id)?;
        let Some(queues) = &server.queues else { return Err("no queues".into()) };
        queues.stop();
        sleep(Duration::from_millis(1)).await;
        let read = disk.submit(READ, vec![0; 512]);
        assert_eq!(driver.snapshot().devices[0].io_in_flight, 1);
        let (stopped, took) = timed(server.stop()).await;
        stopped?;
        assert!(took > DRAIN - Duration::from_millis(2), "{took:?}");
        assert_eq!(read.await, Err(Errno(libc::EIO)));
        server.join().await;
        server.torn_down().await?;
        Ok(())
    })
}

#[test]
fn users_of_the_disk_hear_what_the_block_layer_would_say() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let server = Server::live(&driver).await?;
        let disk = driver.disk(server.id)?;
        assert_eq!(disk.geometry(), params().geometry);
        let end = params().geometry.size;
        let too_long = QUEUES.max_io + 512;
        for (request, len, errno) in [
            (Request::new(Op::Read, 0, 513), 513, libc::EINVAL),
            (Request::new(Op::Write, 8, 512), 512, libc::EINVAL),
            (Request::new(Op::Write, 0, 512), 0, libc::EINVAL),
            (Request::new(Op::Write, 0, too_long), too_long as usize, libc::EINVAL),
            (Request::new(Op::Discard, end, 512), 0, libc::EIO),
            (Request::new(Op::Read, u64::MAX - 511, 512), 512, libc::EIO),
        ] {
            let answer = disk.submit(request, vec![0; len]).await;
            assert_eq!(answer, Err(Errno(errno)), "{request:?}");
        }
        assert_eq!(disk.submit(Request::new(Op::Flush, 0, 0), Vec::new()).await, Ok(Vec::new()));
        server.stop().await?;
        assert!(disk.hold().is_err());
        assert_eq!(disk.submit(READ, vec![0; 512]).await, Err(Errno(libc::EIO)));
        Ok(())
    })
}

#[test]
fn a_stop_that_others_send_is_told_by_every_queue() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::added(&driver).await?;
        let told = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&told);
        let tell = move |event| events.lock().expect("no panic").push(event);
        server.serve_with(Arc::new(tell)).await?;
        driver.execute(Command::Start(server.id)).await?;
        driver.execute(Command::Stop(server.id)).await?;
        sleep(Duration::from_millis(1)).await;
        let told = std::mem::take(&mut *told.lock().expect("no panic"));
        assert_eq!(told, [0, 1].map(|queue| QueueEvent::TakenAway(QueueId(queue))));
        assert_eq!(server.join().await, [QueueExitCause::Stopped, QueueExitCause::Stopped]);
        Ok(())
    })
}

#[test]
fn a_close_stops_a_live_disk_and_with_recovery_leaves_it_waiting() -> Outcome {
    on_virtual_time(async {
        let fail_io = Features::USER_RECOVERY.with(Features::USER_RECOVERY_FAIL_IO);
        for (features, state) in [
            (Features::NONE, KernelState::Dead),
            (Features::USER_RECOVERY, KernelState::Quiesced),
            (fail_io, KernelState::FailIo),
        ] {
            let driver = kernel();
            let asked = AddDevice { id: None, queues: QUEUES, features };
            driver.execute(Command::Add(asked)).await?;
            let id = DeviceId(0);
            driver.execute(Command::SetParams(id, params())).await?;
            let mut server = Server { driver: driver.clone(), id, char: None, queues: None };
            server.serve_with(Arc::new(|_| {})).await?;
            driver.execute(Command::Start(id)).await?;
            server.join().await;
            server.close();
            sleep(Duration::from_secs(1)).await;
            let snapshot = driver.snapshot();
            assert_eq!(snapshot.devices[0].state, state);
            assert_eq!(snapshot.devices[0].fds, 0);
            timeout(LONG, driver.execute(Command::Delete(id))).await??;
            assert!(driver.snapshot().is_empty(), "{}", driver.snapshot());
        }
        Ok(())
    })
}

#[test]
fn a_quiesced_device_keeps_its_disk_and_its_io_until_it_is_served_again() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::recoverable(&driver).await?;
        server.serve_with(Arc::new(|_| {})).await?;
        driver.execute(Command::Start(server.id)).await?;
        let disk = driver.disk(server.id)?;
        server.quiesced().await?;
        assert_eq!(asked(&driver).info(server.id).await?.state, KernelState::Quiesced);
        let mut waiting = disk.submit(READ, vec![0; 512]);
        assert!(timeout(LONG, &mut waiting).await.is_err(), "nobody serves it");
        server.resumed(Arc::new(|_| {})).await?;
        assert_eq!(waiting.await, Ok(vec![0; 512]));
        assert_eq!(asked(&driver).info(server.id).await?.state, KernelState::Live);
        server.torn_down().await?;
        Ok(())
    })
}

#[test]
fn f43_recovery_is_busy_until_the_old_server_has_let_go() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::recoverable(&driver).await?;
        server.serve_with(Arc::new(|_| {})).await?;
        let start = Command::StartRecovery(server.id);
        assert_eq!(errno(driver.execute(start.clone()).await), Some(libc::EBUSY));
        driver.execute(Command::Start(server.id)).await?;
        driver.execute(Command::Quiesce(server.id, DRAIN)).await?;
        server.join().await;
        assert_eq!(errno(driver.execute(start.clone()).await), Some(libc::EBUSY));
        server.close();
        sleep(Duration::from_millis(10)).await;
        driver.execute(start).await?;
        let plain = Server::live(&driver).await?;
        let refused = driver.execute(Command::StartRecovery(plain.id)).await;
        assert_eq!(errno(refused), Some(libc::EINVAL));
        let refused = driver.execute(Command::Quiesce(plain.id, DRAIN)).await;
        assert_eq!(errno(refused), Some(libc::EOPNOTSUPP));
        Ok(())
    })
}

#[test]
fn f44_parameters_are_refused_during_recovery() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let mut server = Server::recoverable(&driver).await?;
        server.serve_with(Arc::new(|_| {})).await?;
        driver.execute(Command::Start(server.id)).await?;
        server.quiesced().await?;
        driver.execute(Command::StartRecovery(server.id)).await?;
        let set = driver.execute(Command::SetParams(server.id, params())).await;
        assert_eq!(errno(set), Some(libc::EACCES));
        assert_eq!(asked(&driver).params(server.id).await?, params());
        Ok(())
    })
}

#[test]
fn f49_the_size_of_a_started_device_changes_and_only_of_that() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let server = Server::served(&driver).await?;
        let grow = Command::UpdateSize(server.id, 1 << 21);
        assert_eq!(errno(driver.execute(grow.clone()).await), Some(libc::ENODEV));
        driver.execute(Command::Start(server.id)).await?;
        driver.execute(grow.clone()).await?;
        assert_eq!(driver.disk(server.id)?.geometry().size, 1 << 21);
        assert_eq!(asked(&driver).params(server.id).await?.geometry.size, 1 << 21);
        server.stop().await?;
        assert_eq!(errno(driver.execute(grow.clone()).await), Some(libc::ENODEV));
        let old = sim(KernelProfile::linux_6_12());
        let server = Server::live(&old).await?;
        for unknown in [grow, Command::TryStop(server.id)] {
            assert_eq!(errno(old.execute(unknown).await), Some(libc::EOPNOTSUPP));
        }
        Ok(())
    })
}

#[test]
fn a_try_stop_is_refused_while_somebody_has_the_disk_open() -> Outcome {
    on_virtual_time(async {
        let driver = kernel();
        let server = Server::live(&driver).await?;
        let hold = driver.disk(server.id)?.hold()?;
        let try_stop = Command::TryStop(server.id);
        assert_eq!(errno(driver.execute(try_stop.clone()).await), Some(libc::EBUSY));
        assert_eq!(asked(&driver).info(server.id).await?.state, KernelState::Live);
        drop(hold);
        driver.execute(try_stop).await?;
        assert_eq!(asked(&driver).info(server.id).await?.state, KernelState::Dead);
        Ok(())
    })
}

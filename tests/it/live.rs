//! What is done to a device in service: resize, read-only, quiesce, resume.

use std::time::Duration;

use futures::join;
use tokio::time::{Instant, sleep, timeout};
use ublkd::driver::Driver;
use ublkd::driver::sim::{KernelProfile, SimDisk};
use ublkd::model::{
    BlockSize, DeleteOutcome, DeviceId, DeviceSpec, DeviceState, Error, ErrorKind, OutcomeKind,
    TargetSpec,
};
use ublkd::target::{Op, Request};

use crate::support::{House, Plan, STAGE, name, null, settle};

const SOON: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

fn sized(name: &str, size: u64, block: u32) -> DeviceSpec {
    let block = BlockSize { logical: Some(block), physical: None };
    let builder = DeviceSpec::builder(self::name(name), TargetSpec::Null { size });
    builder.block(block).build().unwrap()
}

fn recoverable(name: &str, id: u32) -> DeviceSpec {
    let builder = DeviceSpec::builder(self::name(name), TargetSpec::Null { size: MIB });
    builder.id(DeviceId(id)).recovery(true).build().unwrap()
}

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

async fn state(house: &House) -> DeviceState {
    house.handle.list().await.unwrap()[0].state
}

fn read(disk: &SimDisk) -> ublkd::driver::sim::Ticket {
    disk.submit(Request::new(Op::Read, 0, 4096), vec![0; 4096])
}

#[test]
fn f49_sizes_are_checked_before_any_command_and_shrinking_is_asked_for_twice() {
    Plan::default().run(|house| async move {
        let (handle, sim) = (&house.handle, &house.sim);
        let d0 = name("d0");
        let id = handle.create(sized("d0", 64 * MIB, 4096)).await.unwrap().id;
        sim.record();
        for (size, shrink) in [
            (0, true),
            (64 * MIB + 512, false),
            (1 << 63, false),
            (u64::MAX, false),
            (32 * MIB, false),
        ] {
            let refused = handle.resize(&d0, size, shrink).await;
            assert_eq!(kind(refused), Some(ErrorKind::Invalid), "{size}");
        }
        assert_eq!(sim.recorded(), []);
        let grown = handle.resize(&d0, 128 * MIB, false).await.unwrap();
        assert_eq!((grown.from, grown.to), (64 * MIB, 128 * MIB));
        assert_eq!(sim.disk(id).unwrap().geometry().size, 128 * MIB);
        let info = handle.describe(&d0).await.unwrap().unwrap();
        assert_eq!(info.size, Some(128 * MIB));
        // What is asked for is what is there.
        handle.ensure(sized("d0", 128 * MIB, 4096)).await.unwrap();
        assert_eq!(kind(handle.ensure(sized("d0", 64 * MIB, 4096)).await), Some(ErrorKind::Exists));
        handle.resize(&d0, 32 * MIB, true).await.unwrap();
        assert_eq!(sim.disk(id).unwrap().geometry().size, 32 * MIB);
        assert_eq!(kind(handle.resize(&name("no"), MIB, false).await), Some(ErrorKind::NotFound));
        handle.delete(&d0).await.unwrap();
    });
}

#[test]
fn f49_a_kernel_without_resize_refuses_before_the_target_is_asked() {
    let plan = Plan::default().kernel(KernelProfile::linux_6_12());
    plan.run(|house| async move {
        house.handle.create(null("d0")).await.unwrap();
        house.sim.record();
        let refused = house.handle.resize(&name("d0"), 2 * MIB, false).await;
        assert_eq!(kind(refused), Some(ErrorKind::Unsupported));
        assert_eq!(house.sim.recorded(), []);
    });
}

#[test]
fn f49_a_device_that_is_not_live_is_not_resized() {
    Plan::faults("del_async: EIO").run(|house| async move {
        let d0 = name("d0");
        house.handle.create(null("d0")).await.unwrap();
        house.handle.delete(&d0).await.unwrap();
        assert_eq!(state(&house).await, DeviceState::Left);
        let refused = house.handle.resize(&d0, 2 * MIB, false).await.unwrap_err();
        assert!(refused.to_string().contains("it is left"), "{refused}");
        assert_eq!(kind(house.handle.quiesce(&d0, SOON).await), Some(ErrorKind::Busy));
        assert_eq!(kind(house.handle.set_read_only(&d0, true).await), Some(ErrorKind::Busy));
    });
}

#[test]
fn a_loop_device_grows_into_its_file_and_not_beyond() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let target = TargetSpec::Loop { path: path.clone(), direct: false };
    // Opening it takes a thread, and time does not wait for threads.
    let system = actix_rt::System::new();
    system.block_on(async {
        let (make, _disks) = ublkd::driver::sim::driver(
            KernelProfile::linux_7_3(),
            ublkd::driver::sim::FaultPlan::none(),
        );
        let handle = ublkd::Builder::new(make).start_here().unwrap();
        let d0 = name("d0");
        handle.create(DeviceSpec::builder(d0.clone(), target).build().unwrap()).await.unwrap();
        let error = handle.resize(&d0, 2 * MIB, false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("truncate"), "{error}");
        std::fs::File::options().write(true).open(&path).unwrap().set_len(2 * MIB).unwrap();
        handle.resize(&d0, 2 * MIB, false).await.unwrap();
        handle.shutdown(STAGE).await.unwrap();
    });
}

#[test]
fn a_resize_that_fails_leaves_the_size_as_it_is() {
    Plan::faults("update_size: EIO x1").run(|house| async move {
        let d0 = name("d0");
        house.handle.create(sized("d0", MIB, 512)).await.unwrap();
        assert_eq!(kind(house.handle.resize(&d0, 2 * MIB, false).await), Some(ErrorKind::Io));
        assert_eq!(house.handle.list().await.unwrap()[0].size, Some(MIB));
        house.handle.resize(&d0, 2 * MIB, false).await.unwrap();
    });
}

#[test]
fn read_only_goes_on_and_off_but_not_off_a_device_that_was_made_so() {
    Plan::default().run(|house| async move {
        let (handle, d0, d1) = (&house.handle, name("d0"), name("d1"));
        let id = handle.create(null("d0")).await.unwrap().id;
        let disk = house.sim.disk(id).unwrap();
        for on in [true, false] {
            handle.set_read_only(&d0, on).await.unwrap();
            assert_eq!(disk.geometry().read_only, on);
            assert_eq!(handle.list().await.unwrap()[0].read_only, on);
        }
        let spec = DeviceSpec::builder(d1.clone(), TargetSpec::Null { size: MIB });
        handle.create(spec.read_only(true).build().unwrap()).await.unwrap();
        handle.set_read_only(&d1, true).await.unwrap();
        let refused = handle.set_read_only(&d1, false).await;
        assert_eq!(kind(refused), Some(ErrorKind::Unsupported));
    });
}

#[test]
fn io_of_a_quiesced_device_waits_for_the_resume() {
    Plan::default().run(|house| async move {
        let (handle, d0) = (&house.handle, name("d0"));
        handle.create(recoverable("d0", 0)).await.unwrap();
        let disk = house.sim.disk(DeviceId(0)).unwrap();
        for _ in 0..3 {
            handle.quiesce(&d0, SOON).await.unwrap();
            handle.quiesce(&d0, SOON).await.unwrap();
            assert_eq!(state(&house).await, DeviceState::Quiesced);
            let snapshot = house.sim.snapshot();
            assert_eq!((snapshot.devices[0].fds, snapshot.queue_threads), (0, 0), "{snapshot}");
            let mut waiting = read(&disk);
            assert!(timeout(Duration::from_secs(3600), &mut waiting).await.is_err());
            handle.resume(&d0).await.unwrap();
            handle.resume(&d0).await.unwrap();
            assert_eq!(waiting.await.map(|data| data.len()), Ok(4096));
            assert_eq!(state(&house).await, DeviceState::Live);
        }
        let DeleteOutcome::Ended(end) = handle.delete(&d0).await.unwrap() else { panic!("gone") };
        assert_eq!(end.outcome, OutcomeKind::Deleted);
        settle().await;
        assert!(house.sim.snapshot().is_empty());
    });
}

#[test]
fn what_cannot_be_quiesced_serves_on() {
    for (kernel, recovery) in
        [(KernelProfile::linux_7_3(), false), (KernelProfile::linux_6_12(), true)]
    {
        Plan::default().kernel(kernel).run(|house| async move {
            let d0 = name("d0");
            let spec = if recovery { recoverable("d0", 0) } else { null("d0") };
            let id = house.handle.create(spec).await.unwrap().id;
            let refused = house.handle.quiesce(&d0, SOON).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            let why = if recovery { "6.16" } else { "recovery = true" };
            assert!(refused.to_string().contains(why), "{refused}");
            assert_eq!(state(&house).await, DeviceState::Live);
            assert!(read(&house.sim.disk(id).unwrap()).await.is_ok());
        });
    }
}

#[test]
fn a_batch_device_is_not_quiesced_since_the_kernel_would_fail_its_io() {
    Plan::default().run(|house| async move {
        let builder = DeviceSpec::builder(name("d0"), TargetSpec::Null { size: MIB });
        let spec = builder.recovery(true).batch(true).build().unwrap();
        let id = house.handle.create(spec).await.unwrap().id;
        let refused = house.handle.quiesce(&name("d0"), SOON).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("batch = false"), "{refused}");
        assert_eq!(state(&house).await, DeviceState::Live);
        assert!(read(&house.sim.disk(id).unwrap()).await.is_ok());
    });
}

#[test]
fn f43_a_busy_recovery_is_tried_again_and_one_that_stays_so_leaves_it_quiesced() {
    Plan::faults("start_recovery#0@1-20: EBUSY; start_recovery#1: EBUSY").run(|house| async move {
        let (handle, d1) = (&house.handle, name("d1"));
        for (n, name) in [(0, "d0"), (1, "d1")] {
            handle.create(recoverable(name, n)).await.unwrap();
            handle.quiesce(&self::name(name), SOON).await.unwrap();
        }
        handle.resume(&name("d0")).await.unwrap();
        let began = Instant::now();
        let error = handle.resume(&d1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(began.elapsed() < STAGE + SOON, "{:?}", began.elapsed());
        let listed = handle.list().await.unwrap();
        assert_eq!(listed[1].state, DeviceState::Quiesced);
        assert!(listed[1].error.as_ref().is_some_and(|told| told.contains("EBUSY")), "{listed:?}");
        let DeleteOutcome::Ended(end) = handle.delete(&d1).await.unwrap() else { panic!("gone") };
        assert_eq!(end.outcome, OutcomeKind::Deleted, "{end:?}");
    });
}

#[test]
fn f44_a_resume_sets_no_parameters_and_refuses_what_somebody_else_has_resized() {
    Plan::default().run(|house| async move {
        let (handle, sim, d0) = (&house.handle, &house.sim, name("d0"));
        handle.create(recoverable("d0", 0)).await.unwrap();
        handle.quiesce(&d0, SOON).await.unwrap();
        sim.record();
        handle.resume(&d0).await.unwrap();
        let told: Vec<_> = sim.recorded().iter().map(|record| record.what).collect();
        assert_eq!(told, ["START_USER_RECOVERY", "open", "serve", "END_USER_RECOVERY"]);
        handle.quiesce(&d0, SOON).await.unwrap();
        let resize = ublkd::driver::Command::UpdateSize(DeviceId(0), 2 * MIB);
        sim.execute(resize).await.unwrap();
        assert_eq!(kind(handle.resume(&d0).await), Some(ErrorKind::Invalid));
        assert_eq!(state(&house).await, DeviceState::Quiesced);
    });
}

#[test]
fn every_step_of_a_resume_that_fails_leaves_it_quiesced_and_a_later_one_succeeds() {
    for fault in [
        "get_params: EIO x1",
        "start_recovery: EINVAL x1",
        "open@2: EIO",
        "serve@2: EIO",
        "ready@2: EIO",
        "end_recovery: EIO x1",
        "end_recovery: hang x1",
        "end_recovery: panic x1",
    ] {
        Plan::faults(fault).run(|house| async move {
            let (handle, d0) = (&house.handle, name("d0"));
            handle.create(recoverable("d0", 0)).await.unwrap();
            handle.quiesce(&d0, SOON).await.unwrap();
            assert!(handle.resume(&d0).await.is_err(), "{fault}");
            assert_eq!(state(&house).await, DeviceState::Quiesced, "{fault}");
            settle().await;
            handle.resume(&d0).await.unwrap_or_else(|error| panic!("{fault}: {error}"));
            assert_eq!(house.handle.list().await.unwrap()[0].error, None, "{fault}");
            assert!(read(&house.sim.disk(DeviceId(0)).unwrap()).await.is_ok(), "{fault}");
            handle.delete(&d0).await.unwrap();
            settle().await;
            assert!(house.sim.snapshot().devices.is_empty(), "{fault}");
        });
    }
}

#[test]
fn a_quiesce_that_is_late_cuts_off_what_is_left_and_ends() {
    Plan::faults("quiesce: EBUSY x1").run(|house| async move {
        let (handle, d0) = (&house.handle, name("d0"));
        handle.create(recoverable("d0", 0)).await.unwrap();
        handle.quiesce(&d0, SOON).await.unwrap();
        assert_eq!(state(&house).await, DeviceState::Quiesced);
        handle.resume(&d0).await.unwrap();
    });
}

#[test]
fn f48_a_quiesce_that_does_not_end_is_bounded_named_and_can_be_deleted() {
    for fault in ["quiesce#0: hang", "join@1: hang", "info#0@1+: hang"] {
        Plan::faults(fault).run(|house| async move {
            let (handle, d0) = (&house.handle, name("d0"));
            handle.create(recoverable("d0", 0)).await.unwrap();
            handle.create(recoverable("d1", 1)).await.unwrap();
            let began = Instant::now();
            assert!(handle.quiesce(&d0, SOON).await.is_err(), "{fault}");
            assert!(began.elapsed() < STAGE * 3, "{fault}: {:?}", began.elapsed());
            assert_eq!(state(&house).await, DeviceState::Stalled, "{fault}");
            // The other one does not notice.
            handle.quiesce(&name("d1"), SOON).await.unwrap();
            let report = handle.shutdown(STAGE * 10).await.unwrap();
            let ends: Vec<_> = report.devices.iter().map(|device| device.outcome).collect();
            assert_ne!(ends[0], OutcomeKind::Panicked, "{fault}");
            assert_eq!(ends[1], OutcomeKind::Deleted, "{fault}: {report:?}");
        });
    }
}

#[test]
fn a_delete_in_the_middle_of_a_quiesce_or_a_resume_wins() {
    for (fault, resume) in [("quiesce: delay 100ms", false), ("end_recovery: delay 100ms", true)] {
        Plan::faults(fault).run(|house| async move {
            let (handle, d0) = (&house.handle, name("d0"));
            handle.create(recoverable("d0", 0)).await.unwrap();
            let change = async {
                if resume {
                    handle.quiesce(&d0, SOON).await.unwrap();
                    handle.resume(&d0).await
                } else {
                    handle.quiesce(&d0, SOON).await
                }
            };
            let delete = async {
                sleep(Duration::from_millis(50)).await;
                handle.delete(&d0).await.unwrap()
            };
            let (changed, deleted) = join!(change, delete);
            assert_eq!(kind(changed), Some(ErrorKind::Stopping), "{fault}");
            let DeleteOutcome::Ended(end) = deleted else { panic!("absent") };
            assert_eq!(end.outcome, OutcomeKind::Deleted, "{fault}: {end:?}");
            settle().await;
            assert!(house.sim.snapshot().is_empty(), "{fault}");
        });
    }
}

#[test]
fn f46_a_normal_end_deletes_quiesced_devices_too() {
    Plan::default().run(|house| async move {
        let handle = &house.handle;
        for (n, name) in ["d0", "d1", "d2"].into_iter().enumerate() {
            handle.create(recoverable(name, n as u32)).await.unwrap();
        }
        handle.quiesce(&name("d1"), SOON).await.unwrap();
        let report = handle.shutdown(STAGE * 4).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 3);
        settle().await;
        assert!(house.sim.snapshot().is_empty());
    });
}

#[test]
fn a_device_that_somebody_removed_while_it_was_quiesced_is_told_as_such() {
    Plan::default().run(|house| async move {
        let (handle, d0) = (&house.handle, name("d0"));
        handle.create(recoverable("d0", 0)).await.unwrap();
        handle.quiesce(&d0, SOON).await.unwrap();
        house.sim.execute(ublkd::driver::Command::Delete(DeviceId(0))).await.unwrap();
        assert_eq!(kind(handle.resume(&d0).await), Some(ErrorKind::NotFound));
        settle().await;
        assert_eq!(state(&house).await, DeviceState::Failed);
    });
}

#[test]
fn a_failed_start_of_a_recoverable_device_leaves_nothing() {
    for fault in ["ready: EIO", "start: EIO", "node: EIO", "queue@1: delay 20ms panic"] {
        Plan::faults(fault).run(|house| async move {
            let _ = house.handle.create(recoverable("d0", 0)).await;
            settle().await;
            settle().await;
            assert!(house.sim.snapshot().is_empty(), "{fault}: {}", house.sim.snapshot());
        });
    }
}

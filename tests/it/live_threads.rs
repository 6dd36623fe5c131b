//! Devices that change while threads really serve them and others really read and write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::executor::block_on;
use ublkd::driver::sim::{self, FaultPlan, KernelProfile, SimDisk};
use ublkd::model::{DeleteOutcome, DeviceSpec, OutcomeKind, QueueSpec, TargetSpec};
use ublkd::{Builder, Running};

use crate::support::name;

const SOON: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn house() -> (Running, sim::SimDisks) {
    let (driver, disks) = sim::driver(KernelProfile::linux_7_3(), FaultPlan::none());
    (Builder::new(driver).command_timeout(Duration::from_secs(20)).start().unwrap(), disks)
}

fn ram(size: u64) -> DeviceSpec {
    let queues = QueueSpec { count: 2, depth: 8, max_io: 65_536 };
    let builder = DeviceSpec::builder(name("d0"), TargetSpec::Ram { size });
    builder.queues(queues).recovery(true).build().unwrap()
}

/// Writes blocks that tell who wrote them and when, and reads each back, until told to end.
fn write_and_compare(disk: &SimDisk, writer: u64, end: &AtomicBool) -> u64 {
    let place = writer * 16;
    let mut round = 0_u64;
    while !end.load(Ordering::Relaxed) {
        let block = place + round % 16;
        let mut written = vec![writer as u8; BLOCK];
        written[..8].copy_from_slice(&round.to_le_bytes());
        disk.write_at(block * BLOCK as u64, &written).expect("a write");
        let mut read = vec![0; BLOCK];
        disk.read_at(block * BLOCK as u64, &mut read).expect("a read");
        assert_eq!(read, written, "block {block} in round {round}");
        round += 1;
    }
    round
}

#[test]
fn io_goes_on_over_quiesces_resumes_and_resizes_without_an_error_or_a_lost_write() {
    let (running, disks) = house();
    let handle = running.handle();
    let id = block_on(handle.create(ram(MIB))).unwrap().id;
    let disk = disks.get(id).unwrap();
    let end = AtomicBool::new(false);
    let rounds: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let (disk, end) = (&disk, &end);
                scope.spawn(move || write_and_compare(disk, writer, end))
            })
            .collect();
        for round in 1..=5 {
            std::thread::sleep(Duration::from_millis(50));
            block_on(handle.quiesce(&name("d0"), SOON)).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            block_on(handle.resume(&name("d0"))).unwrap();
            block_on(handle.resize(&name("d0"), (1 + round) * MIB, false)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(50));
        end.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    let deleted = block_on(handle.delete(&name("d0"))).unwrap();
    let DeleteOutcome::Ended(outcome) = deleted else { panic!("it is gone") };
    assert_eq!(outcome.outcome, OutcomeKind::Deleted, "{outcome:?}");
    assert!(block_on(running.shutdown(SOON)).unwrap().is_clean());
}

#[test]
fn what_a_ram_device_cut_off_does_not_come_back() {
    let (running, disks) = house();
    let handle = running.handle();
    let d0 = name("d0");
    let id = block_on(handle.create(ram(MIB))).unwrap().id;
    let disk = disks.get(id).unwrap();
    let old = vec![0xA5; BLOCK];
    for at in [0, MIB - BLOCK as u64] {
        disk.write_at(at, &old).unwrap();
    }
    block_on(handle.resize(&d0, MIB / 2, true)).unwrap();
    assert!(disk.read_at(MIB / 2, &mut [0; BLOCK]).is_err(), "it is as large as ever");
    block_on(handle.resize(&d0, 64 * MIB, false)).unwrap();
    let mut read = vec![1; BLOCK];
    disk.read_at(MIB - BLOCK as u64, &mut read).unwrap();
    assert_eq!(read, vec![0; BLOCK]);
    disk.read_at(0, &mut read).unwrap();
    assert_eq!(read, old);
    disk.write_at(64 * MIB - BLOCK as u64, &old).unwrap();
    disk.read_at(64 * MIB - BLOCK as u64, &mut read).unwrap();
    assert_eq!(read, old);
    assert!(block_on(running.shutdown(SOON)).unwrap().is_clean());
}

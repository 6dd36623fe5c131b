//! Devices that serve: data, requests, many of them at a time, in both orders of taking them down.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use nix::libc;
use ublkd::model::{QueueSpec, TargetSpec};
use ublkd::target::{Geometry, Io, IoResult, QueueContext, QueueTarget, Serve, Target, per_tag};

use crate::served::{Order, QUEUES, Served, target};
use crate::support::run;

type Outcome = Result<(), Box<dyn Error>>;

const MIB: u64 = 1 << 20;

/// Blocks that a disk may read and write directly.
#[repr(align(4096))]
struct Blocks([u8; 64 << 10]);

impl Blocks {
    /// Content that is another one for each seed and place.
    fn pattern(seed: u64) -> Box<Self> {
        let mut blocks = Box::new(Self([0; 64 << 10]));
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for byte in &mut blocks.0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        blocks
    }
}

fn open(path: &str, flags: i32) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

#[test]
fn what_is_written_is_read_back() -> Outcome {
    run(async |driver| {
        let ram = target(TargetSpec::Ram { size: 16 * MIB })?;
        let queues = QueueSpec { count: 2, depth: 8, max_io: 32 << 10 };
        let device = Served::start(driver, ram, queues).await?;
        let disk = open(&device.path(), libc::O_DIRECT)?;
        let places = || (0..16 * MIB).step_by(64 << 10);
        for place in places() {
            disk.write_all_at(&Blocks::pattern(place).0, place)?;
        }
        for place in places() {
            let mut read = Blocks::pattern(1);
            disk.read_exact_at(&mut read.0, place)?;
            assert!(read.0 == Blocks::pattern(place).0, "other data at {place}");
        }
        // And through the page cache, in odd pieces.
        let cached = open(&device.path(), 0)?;
        let mut piece = [0; 1000];
        cached.read_exact_at(&mut piece, 333)?;
        assert_eq!(piece, Blocks::pattern(0).0[333..1333]);
        drop((disk, cached));
        let stats = device.queues.stats();
        println!("{stats:?}");
        assert_eq!(stats.write.bytes, 16 * MIB);
        assert_eq!(stats.errors(), 0);
        device.end(driver, Order::DeleteFirst).await?;
        Ok(())
    })
}

#[test]
fn f58_flush_and_fua_reach_the_target_and_its_geometry_the_disk() -> Outcome {
    struct Cached;
    impl Target for Cached {
        fn geometry(&self) -> Geometry {
            let geometry = Geometry::new(8 * MIB, 4096);
            Geometry { volatile_cache: true, fua: true, io_opt: 65_536, ..geometry }
        }
        fn open_queue(
            self: Arc<Self>,
            _: QueueContext,
        ) -> Result<Box<dyn QueueTarget>, ublkd::model::Error> {
            Ok(per_tag(Answer))
        }
    }
    struct Answer;
    impl Serve for Answer {
        async fn serve(&self, io: &mut Io) -> IoResult {
            io.buf_mut().fill(0xa5);
            Ok(())
        }
    }
    run(async |driver| {
        let device = Served::start(driver, Arc::new(Cached), QUEUES).await?;
        let limit =
            |name: &str| fs::read_to_string(format!("/sys/block/ublkb{}/queue/{name}", device.id));
        for (name, value) in [
            ("logical_block_size", "4096"),
            ("physical_block_size", "4096"),
            ("optimal_io_size", "65536"),
            ("max_hw_sectors_kb", "128"),
            ("write_cache", "write back"),
            ("fua", "1"),
        ] {
            assert_eq!(limit(name)?.trim(), value, "{name}");
        }
        let before = device.queues.stats();
        assert_eq!((before.flush.requests, before.fua), (0, 0));
        let disk = open(&device.path(), libc::O_DIRECT)?;
        disk.write_all_at(&Blocks::pattern(1).0, 0)?;
        disk.sync_all()?;
        assert_eq!(device.queues.stats().flush.requests, 1);
        let durable = open(&device.path(), libc::O_DIRECT | libc::O_DSYNC)?;
        durable.write_all_at(&Blocks::pattern(2).0, 0)?;
        assert_eq!(device.queues.stats().fua, 1);
        drop((disk, durable));
        device.end(driver, Order::DeleteFirst).await?;
        Ok(())
    })
}

#[test]
fn f79_a_read_only_device_refuses_writes() -> Outcome {
    struct Stone;
    impl Target for Stone {
        fn geometry(&self) -> Geometry {
            Geometry { read_only: true, ..Geometry::new(8 * MIB, 512) }
        }
        fn open_queue(
            self: Arc<Self>,
            _: QueueContext,
        ) -> Result<Box<dyn QueueTarget>, ublkd::model::Error> {
            Ok(per_tag(Carved))
        }
    }
    struct Carved;
    impl Serve for Carved {
        async fn serve(&self, io: &mut Io) -> IoResult {
            io.buf_mut().fill(7);
            Ok(())
        }
    }
    run(async |driver| {
        let device = Served::start(driver, Arc::new(Stone), QUEUES).await?;
        assert_eq!(fs::read_to_string(format!("/sys/block/ublkb{}/ro", device.id))?.trim(), "1");
        let disk = open(&device.path(), libc::O_DIRECT);
        if let Ok(disk) = disk {
            disk.write_all_at(&Blocks::pattern(1).0, 0).expect_err("a write");
        }
        let mut read = [0; 512];
        File::open(device.path())?.read_exact_at(&mut read, 0)?;
        assert_eq!(read, [7; 512]);
        assert_eq!(device.queues.stats().write.requests, 0);
        device.end(driver, Order::DeleteFirst).await?;
        Ok(())
    })
}

#[test]
fn f21_shallow_and_deep_queues_start() -> Outcome {
    run(async |driver| {
        for (count, depth) in [(1, 1), (1, 128), (1, 1024), (2, 4096), (4, 64)] {
            let queues = QueueSpec { count, depth, max_io: 4096 };
            let null = target(TargetSpec::Null { size: 64 * MIB })?;
            let device = Served::start(driver, null, queues).await?;
            let mut read = [0; 4096];
            File::open(device.path())?.read_exact_at(&mut read, 0)?;
            device.end(driver, Order::DeleteFirst).await?;
        }
        Ok(())
    })
}

#[test]
fn f04_a_reader_in_the_middle_does_not_block_the_stop() -> Outcome {
    run(async |driver| {
        for _ in 0..20 {
            let null = target(TargetSpec::Null { size: 64 * MIB })?;
            let device = Served::start(driver, null, QUEUES).await?;
            let mut dd = Process::new("dd")
                .args([&format!("if={}", device.path()), "of=/dev/null", "bs=64k", "iflag=direct"])
                .stderr(Stdio::null())
                .spawn()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
            device.end(driver, Order::DeleteFirst).await?;
            dd.wait()?;
        }
        Ok(())
    })
}

#[test]
fn f03_holders_are_named_also_after_the_stop() -> Outcome {
    run(async |driver| {
        let null = target(TargetSpec::Null { size: 64 * MIB })?;
        let mut device = Served::start(driver, null, QUEUES).await?;
        let id = device.id;
        assert_eq!(driver.holders(id).await, [""; 0]);
        let held = File::open(device.path())?;
        let mut sleeper = Process::new("sleep").arg("600").stdin(Stdio::from(held)).spawn()?;
        let line = format!("pid {} (sleep) has it open", sleeper.id());
        assert_eq!(driver.holders(id).await, std::slice::from_ref(&line));
        device.stop(driver).await?;
        assert_eq!(driver.holders(id).await, [line]);
        sleeper.kill()?;
        sleeper.wait()?;
        assert_eq!(driver.holders(id).await, [""; 0]);
        device.remove(driver, Order::DeleteFirst).await?;
        Ok(())
    })
}

#[test]
fn f03_mounts_and_swap_are_named() -> Outcome {
    let call = |program: &str, arguments: &[&str]| -> Outcome {
        let done = Process::new(program).args(arguments).output()?;
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        if done.status.success() { Ok(()) } else { Err(format!("{program}: {told}").into()) }
    };
    run(async |driver| {
        let ram = target(TargetSpec::Ram { size: 64 * MIB })?;
        let device = Served::start(driver, ram, QUEUES).await?;
        let path = device.path();
        let folder = tempfile::tempdir()?;
        let place = folder.path().display().to_string();

        call("mkfs.ext4", &["-q", &path])?;
        call("mount", &[&path, &place])?;
        assert_eq!(driver.holders(device.id).await, [format!("mounted at {place}")]);
        fs::write(folder.path().join("file"), "text")?;
        call("umount", &[&place])?;
        assert_eq!(driver.holders(device.id).await, [""; 0]);

        call("mkswap", &["-q", &path])?;
        call("swapon", &[&path])?;
        assert_eq!(driver.holders(device.id).await, ["used as swap"]);
        call("swapoff", &[&path])?;
        device.end(driver, Order::DeleteFirst).await?;
        Ok(())
    })
}

#[test]
fn many_devices_come_and_go_together() -> Outcome {
    run(async |driver| {
        for order in [Order::DeleteFirst, Order::CloseFirst] {
            let began = Instant::now();
            let starts = (0..64).map(|_| async {
                let null = target(TargetSpec::Null { size: 64 * MIB })?;
                Served::start(driver, null, QUEUES).await
            });
            let mut devices = try_join_all(starts).await?;
            let up = began.elapsed();
            let ids: Vec<_> = devices.iter().map(|device| device.id).collect();
            let began = Instant::now();
            try_join_all(devices.iter_mut().map(|device| device.stop(driver))).await?;
            let stopped = began.elapsed();
            let ends = devices.into_iter().map(|device| device.remove(driver, order));
            try_join_all(ends).await?;
            let down = began.elapsed();
            println!("64 devices, {order:?}: up {up:?}, stopped {stopped:?}, gone {down:?}");
            let left = driver.list()?;
            assert!(ids.iter().all(|id| !left.contains(id)), "{left:?}");
        }
        Ok(())
    })
}

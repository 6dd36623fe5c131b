//! What is done to devices in use, with real data: quiesce, resume, resize, read-only, deletes that
//! respect holders, groups. Where a kernel cannot, it must say so and change nothing.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use nix::sys::signal::Signal;
use ublkd::driver::KernelState;
use ublkd::model::{
    BusyPolicy, DeleteOptions, DeleteOutcome, DeviceId, DeviceName, DeviceSpec, DeviceState,
    ErrorKind, GroupName, QueueSpec, TargetSpec,
};
use ublkd::{Handle, Running};

use crate::guest::{Guest, Outcome, delete_from_outside, devices, left, until};
use crate::house::{builder, shut_down, spec};
use crate::support::with_driver;

type Fallible<T> = Result<T, Box<dyn Error>>;

const SOON: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;

fn name(name: &str) -> Fallible<DeviceName> {
    Ok(DeviceName::new(name)?)
}

fn recoverable(device: &str, target: TargetSpec) -> Fallible<DeviceSpec> {
    let queues = QueueSpec { count: 2, depth: 16, max_io: 64 << 10 };
    let builder = DeviceSpec::builder(name(device)?, target);
    Ok(builder.queues(queues).recovery(true).build()?)
}

fn house() -> Fallible<(Running, Handle)> {
    let running = builder().command_timeout(Duration::from_secs(60)).start()?;
    let handle = running.handle();
    Ok((running, handle))
}

fn node(handle: &Handle, device: &DeviceName) -> Fallible<PathBuf> {
    let info = block_on(handle.describe(device))?.ok_or("no such device")?;
    Ok(PathBuf::from(info.path.ok_or("no node")?))
}

fn size_of(guest: &Guest, node: &Path) -> Fallible<u64> {
    Ok(guest.sh(&format!("blockdev --getsize64 {}", node.display()))?.trim().parse()?)
}

/// Writes random blocks, and reads each back and compares it in the end.
fn load(node: &Path) -> Fallible<Child> {
    let file = format!("--filename={}", node.display());
    let job = "--name=load --rw=randrw --bs=4k --iodepth=8 --ioengine=libaio --direct=1 \
               --verify=crc32c --verify_fatal=1 --verify_state_save=0 --size=8M --loops=4 --rate_iops=1500 --output=/dev/null";
    Ok(Process::new("timeout").args(["120", "fio", &file]).args(job.split_whitespace()).spawn()?)
}

#[test]
fn io_goes_on_over_quiesces_and_resumes_and_every_block_is_right() -> Outcome {
    let guest = Guest::new()?;
    guest.sh("truncate -s 16M disk.img")?;
    let (running, handle) = house()?;
    let can = block_on(handle.features())?.quiesce;
    let path = guest.path("disk.img");
    for (device, target) in [
        ("ram", TargetSpec::Ram { size: 16 * MIB }),
        ("loop", TargetSpec::Loop { path, direct: false }),
    ] {
        let device = name(device)?;
        block_on(handle.create(recoverable(device.as_str(), target)?))?;
        let mut fio = load(&node(&handle, &device)?)?;
        std::thread::sleep(Duration::from_millis(1500));
        for _ in 0..4 {
            let told = Instant::now();
            let quiesced = block_on(handle.quiesce(&device, SOON));
            if !can {
                assert_eq!(quiesced.map_err(|e| e.kind()), Err(ErrorKind::Unsupported));
                break;
            }
            quiesced?;
            let quiesced = told.elapsed();
            std::thread::sleep(Duration::from_millis(300));
            assert!(fio.try_wait()?.is_none(), "fio has ended before it was to");
            block_on(handle.resume(&device))?;
            println!("{device}: quiesced in {quiesced:?}, whole {:?}", told.elapsed());
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(fio.wait()?.success(), "{device}: a block was lost or a request failed");
        let info = block_on(handle.describe(&device))?.ok_or("gone")?;
        assert_eq!((info.state, info.error), (DeviceState::Live, None));
    }
    shut_down(running)?;
    Ok(())
}

#[test]
fn f46_a_quiesced_device_keeps_its_node_and_is_deleted_in_the_end() -> Outcome {
    let guest = Guest::new()?;
    let (running, handle) = house()?;
    let ram = name("ram")?;
    block_on(handle.create(recoverable("ram", TargetSpec::Ram { size: 16 * MIB })?))?;
    let node = node(&handle, &ram)?;
    if block_on(handle.features())?.quiesce {
        block_on(handle.quiesce(&ram, SOON))?;
        assert!(node.exists());
        // Somebody waits for it, and is let go by the end.
        let read = format!("dd if={} of=/dev/null bs=4k count=1 iflag=direct", node.display());
        let mut reader = Process::new("timeout").args(["60", "sh", "-c", &read]).spawn()?;
        std::thread::sleep(Duration::from_millis(500));
        assert!(reader.try_wait()?.is_none(), "nobody serves it");
        let DeleteOutcome::Ended(end) = block_on(handle.delete(&ram))? else {
            return Err("absent".into());
        };
        assert_eq!(end.left, [""; 0], "{end:?}");
        assert!(!reader.wait()?.success());
    }
    drop(guest);
    shut_down(running)?;
    Ok(())
}

#[test]
fn a_killed_server_leaves_only_what_was_to_be_recovered() -> Outcome {
    let guest = Guest::new()?;
    let daemon = guest.start(
        r#"
        [[device]]
        name = "plain"
        target = "null"
        size = "1G"
        [[device]]
        name = "kept"
        target = "null"
        size = "1G"
        recovery = true
        "#,
    )?;
    let (plain, kept) = (daemon.id("plain")?, daemon.id("kept")?);
    daemon.signal(Signal::SIGKILL)?;
    let there = |id: DeviceId| Path::new(&id.block_path()).exists();
    assert!(until(SOON * 2, || !there(plain)), "{:?}", left());
    let quiesced = || {
        let state = with_driver(async |driver| driver.info(kept).await);
        state.is_ok_and(|device| device.state == KernelState::Quiesced)
    };
    assert!(until(SOON * 2, quiesced));
    assert!(there(kept));
    delete_from_outside(plain)?;
    delete_from_outside(kept)?;
    assert!(until(SOON * 2, || left().is_empty()), "{:?}", left());
    Ok(())
}

#[test]
fn f49_a_device_grows_under_a_file_system() -> Outcome {
    let guest = Guest::new()?;
    let (running, handle) = house()?;
    let ram = name("ram")?;
    block_on(handle.create(spec("ram", TargetSpec::Ram { size: 32 * MIB })?))?;
    let node = node(&handle, &ram)?;
    guest.sh(&format!("mkfs.ext4 -q {0}; mkdir mnt; mount {0} mnt", node.display()))?;
    guest.sh("dd if=/dev/urandom of=mnt/a bs=1M count=8 status=none; md5sum mnt/a > sum; sync")?;
    for (size, shrink) in [(0, true), (64 * MIB + 100, false), (16 * MIB, false)] {
        let refused = block_on(handle.resize(&ram, size, shrink)).map_err(|e| e.kind());
        assert_eq!(refused, Err(ErrorKind::Invalid), "{size}");
    }
    let grown = block_on(handle.resize(&ram, 128 * MIB, false));
    if block_on(handle.features())?.resize {
        grown?;
        assert_eq!(size_of(&guest, &node)?, 128 * MIB);
        guest.sh(&format!("resize2fs {} 2>/dev/null", node.display()))?;
        guest.sh("dd if=/dev/urandom of=mnt/b bs=1M count=64 status=none; sync")?;
    } else {
        assert_eq!(grown.map_err(|e| e.kind()), Err(ErrorKind::Unsupported));
        assert_eq!(size_of(&guest, &node)?, 32 * MIB);
    }
    guest.sh(&format!(
        "md5sum -c --quiet sum; umount mnt; e2fsck -fn {} >/dev/null 2>&1",
        node.display()
    ))?;
    if block_on(handle.features())?.resize {
        block_on(handle.resize(&ram, 8 * MIB, true))?;
        assert_eq!(size_of(&guest, &node)?, 8 * MIB);
    }
    shut_down(running)?;
    Ok(())
}

#[test]
fn a_loop_device_grows_into_its_file_and_not_beyond() -> Outcome {
    let guest = Guest::new()?;
    guest.sh("truncate -s 16M disk.img")?;
    let (running, handle) = house()?;
    let disk = name("disk")?;
    let target = TargetSpec::Loop { path: guest.path("disk.img"), direct: false };
    block_on(handle.create(spec("disk", target)?))?;
    if block_on(handle.features())?.resize {
        let beyond = block_on(handle.resize(&disk, 32 * MIB, false)).map_err(|e| e.kind());
        assert_eq!(beyond, Err(ErrorKind::Invalid));
        guest.sh("truncate -s 32M disk.img")?;
        block_on(handle.resize(&disk, 32 * MIB, false))?;
        let node = node(&handle, &disk)?;
        assert_eq!(size_of(&guest, &node)?, 32 * MIB);
        let end = format!(
            "printf end | dd of={} bs=4k seek=8191 conv=sync oflag=direct status=none",
            node.display()
        );
        guest.sh(&end)?;
        assert_eq!(guest.sh("tail -c 4096 disk.img | head -c 3")?, "end");
    }
    shut_down(running)?;
    Ok(())
}

#[test]
fn read_only_stops_writers_until_it_is_taken_back() -> Outcome {
    let guest = Guest::new()?;
    let (running, handle) = house()?;
    let ram = name("ram")?;
    block_on(handle.create(spec("ram", TargetSpec::Ram { size: 16 * MIB })?))?;
    let node = node(&handle, &ram)?.display().to_string();
    let write = format!("dd if=/dev/zero of={node} bs=4k count=1 oflag=direct status=none 2>&1");
    guest.sh(&write)?;
    block_on(handle.set_read_only(&ram, true))?;
    assert_eq!(guest.sh(&format!("blockdev --getro {node}"))?.trim(), "1");
    let refused = guest.sh(&write).map_err(|error| error.to_string());
    println!("a writer of a read-only device: {refused:?}");
    assert!(refused.is_err(), "it was written to");
    assert!(guest.sh(&format!("mkfs.ext4 -q -F {node} 2>&1")).is_err());
    block_on(handle.set_read_only(&ram, false))?;
    guest.sh(&write)?;
    shut_down(running)?;
    Ok(())
}

#[test]
fn f03_a_mount_in_another_namespace_is_named_and_the_device_stays() -> Outcome {
    let guest = Guest::new()?;
    let (running, handle) = house()?;
    let ram = name("ram")?;
    block_on(handle.create(spec("ram", TargetSpec::Ram { size: 16 * MIB })?))?;
    let node = node(&handle, &ram)?.display().to_string();
    guest.sh(&format!("mkfs.ext4 -q {node}; mkdir mnt"))?;
    let inside = format!("mount {node} mnt && touch mounted && exec sleep 600");
    let mut holder = Process::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", &inside])
        .current_dir(guest.folder())
        .spawn()?;
    assert!(until(SOON * 2, || guest.path("mounted").exists()));
    let place = format!(
        "mounted at {} (in the namespace of pid {})",
        guest.path("mnt").display(),
        holder.id()
    );
    let described = block_on(handle.describe(&ram))?.ok_or("gone")?;
    assert!(described.holders.contains(&place), "{:?}", described.holders);
    let refuse = DeleteOptions { busy: Some(BusyPolicy::Refuse), within: None };
    let error = block_on(handle.delete_with(&ram, refuse)).err().ok_or("it was deleted")?;
    println!("{error}");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains(&place), "{error}");
    // It serves on, and the mount works.
    guest.sh(&format!(
        "nsenter -t {} -m sh -c 'echo x > {}/mnt/x; sync'",
        holder.id(),
        guest.folder().display()
    ))?;
    let wait = DeleteOptions { busy: Some(BusyPolicy::Wait), within: Some(SOON * 6) };
    let waiting = {
        let (handle, ram) = (handle.clone(), ram.clone());
        std::thread::spawn(move || block_on(handle.delete_with(&ram, wait)))
    };
    std::thread::sleep(Duration::from_millis(500));
    holder.kill()?;
    holder.wait()?;
    let ended = waiting.join().map_err(|_| "it panicked")??;
    let DeleteOutcome::Ended(end) = ended else { return Err("absent".into()) };
    assert_eq!(end.left, [""; 0], "{end:?}");
    shut_down(running)?;
    Ok(())
}

#[test]
fn a_group_goes_together_and_faster_than_one_by_one() -> Outcome {
    let guest = Guest::new()?;
    let (running, handle) = house()?;
    let group = GroupName::new("vm-1")?;
    for count in [8, 32, 64] {
        let specs = || -> Fallible<Vec<DeviceSpec>> {
            (0..count)
                .map(|n| spec(&format!("d{n:02}"), TargetSpec::Null { size: 1 << 30 }))
                .collect()
        };
        block_on(handle.create_group(&group, specs()?))?;
        assert_eq!(devices(), count);
        let report = block_on(handle.delete_group(&group, DeleteOptions::default()))?;
        assert_eq!((report.devices.len(), report.is_clean()), (count, true), "{report:#?}");
        assert_eq!(left(), [""; 0]);
        block_on(handle.create_group(&group, specs()?))?;
        let began = Instant::now();
        for spec in specs()? {
            block_on(handle.delete(spec.name()))?;
        }
        println!("{count} devices: {:?} as a group, {:?} one by one", report.wall, began.elapsed());
    }
    drop(guest);
    shut_down(running)?;
    Ok(())
}

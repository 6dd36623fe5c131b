//! Backends that fail and panic, and lives without end: what stays of them.

use std::fs;
use std::io::Write;
use std::process::{Command as Process, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use ublkd::model::{DeleteOutcome, DeviceName, DeviceSpec, OutcomeKind, QueueSpec, TargetSpec};
use ublkd::sys::census::Census;
use ublkd::sys::thread::is_io_flusher;
use ublkd::target::{Geometry, Io, IoResult, QueueContext, QueueTarget, Serve, Target, per_tag};

use crate::daemon::text;
use crate::guest::{Guest, Outcome, until};
use crate::house::{builder, shut_down, spec};

#[test]
fn f76_errors_and_panics_of_a_target_harm_no_other_device() -> Outcome {
    let guest = Guest::new()?;
    let daemon = guest.start(
        r#"
        [defaults]
        target = "ram"
        size = "8M"
        [[device]]
        name = "sound"
        [[device]]
        name = "scratched"
        error_at = 42
        [[device]]
        name = "cursed"
        panic_at = 42
        queues = 2
        "#,
    )?;
    let touch = |device: &str| {
        format!(
            "dd if=/dev/zero of=run/by-name/{device} bs=4k seek=5 count=1 oflag=direct conv=notrunc status=none"
        )
    };
    let pass = |device: &str| {
        format!(
            "dd if=/dev/zero of=run/by-name/{device} bs=4k seek=6 count=1 oflag=direct conv=notrunc status=none"
        )
    };
    // An error is an error of the request alone.
    let told = guest.sh(&touch("scratched")).err().ok_or("no error")?.to_string();
    assert!(told.contains("Input/output error"), "{told}");
    guest.sh(&pass("scratched"))?;
    // A panic is the end of the device alone.
    guest.sh(&pass("cursed"))?;
    let began = Instant::now();
    let told = guest.sh(&touch("cursed")).err().ok_or("no error")?.to_string();
    assert!(told.contains("Input/output error"), "{told}");
    let unlinked = || !fs::exists(daemon.link("cursed")).unwrap_or(true);
    assert!(until(Duration::from_secs(10), unlinked), "{}", daemon.log_text());
    println!("taken down {:?} after the panic", began.elapsed());
    guest.sh(&format!("{}; {}; {}", touch("sound"), pass("sound"), pass("scratched")))?;

    let ended = daemon.stop()?;
    assert_eq!((ended.count("deleted"), ended.count("panicked")), (2, 1), "{:#}", ended.report);
    let cursed = ended.device("cursed");
    assert_eq!(text(cursed, "outcome"), "panicked");
    let panics = cursed["panics"].as_array().ok_or("no panics")?;
    assert_eq!(panics.len(), 1, "{cursed:#}");
    assert!(text(&panics[0], "location").contains("faulty.rs:"), "{cursed:#}");

    let critical = |l: &&serde_json::Value| text(l, "level") == "critical";
    let lines: Vec<_> = ended.log.iter().filter(critical).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_eq!(lines[0]["device"], "cursed");
    assert!(lines[0]["queue"].is_u64() && lines[0]["id"].is_u64(), "{lines:#?}");
    let told = lines[0].to_string();
    assert!(told.contains("touched sector 42") && told.contains("faulty.rs:"), "{told}");
    Ok(())
}

#[test]
fn f60_every_queue_thread_is_an_io_flusher() -> Outcome {
    struct Asking(Arc<Mutex<Vec<bool>>>);
    impl Target for Asking {
        fn geometry(&self) -> Geometry {
            Geometry::new(1 << 20, 512)
        }
        fn open_queue(
            self: Arc<Self>,
            _: QueueContext,
        ) -> Result<Box<dyn QueueTarget>, ublkd::model::Error> {
            self.0.lock().expect("no panic").push(is_io_flusher());
            Ok(per_tag(Answer))
        }
    }
    struct Answer;
    impl Serve for Answer {
        async fn serve(&self, _: &mut Io) -> IoResult {
            // While it serves, too.
            if is_io_flusher() { Ok(()) } else { Err(ublkd::target::Errno(nix::libc::EPERM)) }
        }
    }
    let _guest = Guest::new()?;
    let told = Arc::new(Mutex::new(Vec::new()));
    let answers = Arc::clone(&told);
    let open = move |_: &DeviceSpec| -> Result<Arc<dyn Target>, ublkd::model::Error> {
        Ok(Arc::new(Asking(Arc::clone(&answers))))
    };
    let running = builder().target("asking", Arc::new(open)).start()?;
    let target = TargetSpec::Custom { name: "asking".to_owned(), options: Default::default() };
    let queues = QueueSpec { count: 2, depth: 4, max_io: 4096 };
    let spec = DeviceSpec::builder(DeviceName::new("vol")?, target).queues(queues).build()?;
    let device = block_on(running.handle().create(spec))?;
    let made = block_on(running.handle().describe(&device.name))?.ok_or("no device")?.queues;
    assert_eq!(*told.lock().expect("no panic"), vec![true; usize::from(made)]);
    let mut block = [0; 4096];
    use std::os::unix::fs::FileExt;
    fs::File::open(device.id.block_path())?.read_exact_at(&mut block, 0)?;
    shut_down(running)?;
    Ok(())
}

#[test]
fn f04_two_hundred_devices_are_deleted_while_somebody_reads_them() -> Outcome {
    let _guest = Guest::new()?;
    let running = builder().start()?;
    let handle = running.handle();
    let began = Instant::now();
    for n in 0..200 {
        let spec = spec(&format!("vol-{n}"), TargetSpec::Null { size: 64 << 20 })?;
        let device = block_on(handle.create(spec))?;
        let mut dd = Process::new("dd")
            .arg(format!("if={}", device.id.block_path()))
            .args(["of=/dev/null", "count=8", "iflag=direct"])
            .stderr(Stdio::null())
            .spawn()?;
        let DeleteOutcome::Ended(outcome) = block_on(handle.delete(&device.name))? else {
            return Err("it was there".into());
        };
        assert_eq!(outcome.outcome, OutcomeKind::Deleted, "{n}: {outcome:#?}");
        // It found the device, or not; it read it, or not; but it ends.
        assert!(until(Duration::from_secs(10), || !matches!(dd.try_wait(), Ok(None))), "{n}");
    }
    println!("200 lives in {:?}", began.elapsed());
    shut_down(running)?;
    Ok(())
}

/// Resident memory that is this process's own, in KiB.
fn resident() -> Result<u64, Box<dyn std::error::Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).ok_or("no RssAnon")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}

#[test]
fn f90_memory_files_and_threads_are_flat_over_hundreds_of_lives() -> Outcome {
    const AT_ONCE: usize = 16;
    const ROUNDS: usize = 24;
    const WARM: usize = 8;
    let _guest = Guest::new()?;
    // The first runtime of a process makes two sockets for signals, which stay.
    shut_down(builder().start()?)?;
    let baseline = Census::take();
    let running = builder().start()?;
    let handle = running.handle();
    let data = vec![0x5a; 512 << 10];
    let mut seen = Vec::new();
    for round in 0..ROUNDS {
        let queues = QueueSpec { count: 1, depth: 64, max_io: 512 << 10 };
        let specs: Result<Vec<_>, _> = (0..AT_ONCE)
            .map(|n| {
                let name = DeviceName::new(format!("vol-{n}")).expect("a name");
                DeviceSpec::builder(name, TargetSpec::Ram { size: 8 << 20 }).queues(queues).build()
            })
            .collect();
        let created =
            block_on(futures::future::join_all(specs?.into_iter().map(|spec| handle.create(spec))));
        let devices: Result<Vec<_>, _> = created.into_iter().collect();
        let devices = devices?;
        for device in &devices {
            let mut disk = fs::OpenOptions::new().write(true).open(device.id.block_path())?;
            disk.write_all(&data)?;
            disk.sync_all()?;
        }
        let deletes = devices.iter().map(|device| handle.delete(&device.name));
        for outcome in block_on(futures::future::join_all(deletes)) {
            let DeleteOutcome::Ended(outcome) = outcome? else { return Err("not there".into()) };
            assert_eq!(outcome.outcome, OutcomeKind::Deleted, "{outcome:#?}");
        }
        if round + 1 == WARM || round + 1 == ROUNDS {
            // The kernel ends its workers and closes files a moment later.
            let surplus = baseline.surplus(Duration::from_secs(2));
            seen.push((
                resident()?,
                Census::take().fds,
                fs::read_to_string("/proc/self/maps")?.lines().count(),
            ));
            println!(
                "round {}: RssAnon, fds, maps {:?}; beyond the start {surplus:?}",
                round + 1,
                seen[seen.len() - 1]
            );
        }
    }
    let [(memory, fds, maps), (memory_after, fds_after, maps_after)] = seen[..] else {
        return Err("not measured twice".into());
    };
    // 256 lives between the two.
    assert!(memory_after <= memory + memory / 10 + 256, "{memory} {memory_after}");
    assert_eq!(fds_after, fds);
    assert!(maps_after <= maps + 8, "{maps} {maps_after}");
    shut_down(running)?;
    // Its way to the supervisor keeps two files of the runtime.
    drop(handle);
    assert_eq!(baseline.surplus(Duration::from_secs(2)), [""; 0]);
    Ok(())
}

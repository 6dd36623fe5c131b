//! The end in the middle of work: I/O on every device, creates in flight.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::thread;
use std::time::Duration;

use nix::libc;
use nix::sys::signal::Signal;

use crate::guest::{Guest, Outcome, devices, end_of, until};

const EIGHT: &str = r#"
    [[device]]
    name = "null-{n}"
    target = "null"
    size = "64M"
    count = 3
    [[device]]
    name = "ram-{n}"
    target = "ram"
    size = "16M"
    count = 3
    queues = 2
    [[device]]
    name = "loop-{n}"
    target = "loop"
    path = "disk-{n}.img"
    count = 2
"#;

/// Reads until it fails; says what the kernel answered then (a disk that is gone has no bytes), and
/// whether the device could still be opened.
fn read_until_the_end(node: &Path) -> std::io::Result<(String, bool)> {
    #[repr(align(4096))]
    struct Block([u8; 4096]);
    let disk = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(node)?;
    let mut block = Block([0; 4096]);
    loop {
        if let Err(error) = disk.read_exact_at(&mut block.0, 0) {
            return Ok((error.to_string(), File::open(node).is_ok()));
        }
    }
}

#[test]
fn sigterm_under_load_lets_io_fail_only_when_its_device_is_gone() -> Outcome {
    let guest = Guest::new()?;
    guest.sh("truncate -s 16M disk-0.img disk-1.img")?;
    let daemon = guest.start(EIGHT)?;
    let names: Vec<_> = fs::read_dir(guest.path("run/by-name"))?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<_>>()?;
    assert_eq!(names.len(), 8);

    let mut load = Vec::new();
    let mut readers = Vec::new();
    let mut disks = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let node = daemon.node(name)?;
        disks.push(format!("/sys/block/ublkb{}/stat", daemon.id(name)?));
        let fio = Process::new("fio")
            .args(["--name=load", "--rw=randrw", "--bs=4k", "--iodepth=32", "--direct=1"])
            .args(["--time_based", "--runtime=120", "--size=16M"])
            .arg(format!("--ioengine={}", if n % 2 == 0 { "io_uring" } else { "libaio" }))
            .arg(format!("--filename={}", node.display()))
            .stdout(File::create(guest.path(&format!("fio-{name}")))?)
            .stderr(Stdio::null())
            .spawn()?;
        load.push(fio);
        readers.push(thread::spawn(move || read_until_the_end(&node)));
    }
    let written = |stat: &String| -> u64 {
        let stat = fs::read_to_string(stat).unwrap_or_default();
        stat.split_whitespace().nth(4).and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let busy = until(Duration::from_secs(60), || disks.iter().all(|stat| written(stat) > 100));
    assert!(busy, "fio does not get going");
    for fio in &mut load {
        assert!(fio.try_wait()?.is_none(), "fio ended before the daemon was told to");
    }
    assert!(readers.iter().all(|reader| !reader.is_finished()));

    let ended = daemon.stop()?;
    println!("shut down under load in {} s", ended.report["wall_s"]);
    assert_eq!(ended.count("deleted"), 8, "{:#}", ended.report["outcomes"]);
    for (reader, name) in readers.into_iter().zip(&names) {
        let (told, could_open) = reader.join().expect("no panic")?;
        println!("{name}: the last read: {told}");
        assert!(!could_open, "{name}: a read failed while the device was still there");
    }
    for (mut fio, name) in load.into_iter().zip(&names) {
        let status = end_of(&mut fio, &format!("fio on {name}"))?;
        assert!(!status.success(), "{name}: fio saw no error");
    }
    Ok(())
}

#[test]
fn sigterm_with_50_creates_in_flight_leaves_nothing() -> Outcome {
    let guest = Guest::new()?;
    let config = r#"
        [supervisor]
        workers = 50
        [[device]]
        name = "vol-{n}"
        target = "null"
        size = "1G"
        depth = 16
        count = 80
    "#;
    // All 50 are known to the kernel, none is in service, and 30 wait for their turn.
    let daemon = guest.launch(&[], config, &["--fault", "start@*: delay 5s"])?;
    assert!(until(Duration::from_secs(60), || devices() == 50), "{}", daemon.log_text());
    daemon.signal(Signal::SIGTERM)?;
    let ended = daemon.wait()?;
    ended.is_clean(guest.folder())?;
    let known = ended.report["devices"].as_array().map_or(0, Vec::len);
    assert_eq!(known, 80, "{:#}", ended.report["outcomes"]);
    println!("{}, {:?}", ended.report["outcomes"], ended.took);
    assert!(ended.errors().len() <= 80, "{:#?}", ended.errors());
    Ok(())
}

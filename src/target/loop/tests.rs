//! Opening backings of every kind, through the registry as a device does.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::model::{BlockSize, DeviceName, DeviceSpec, Error, ErrorKind, Stage, TargetSpec};
use crate::sys::file_lock;
use crate::target::{Registry, Target};

type TestResult = Result<(), Box<dyn std::error::Error>>;

fn spec(name: &str, path: &Path, read_only: bool) -> Result<DeviceSpec, Error> {
    let name = DeviceName::new(name).expect("a name");
    let target = TargetSpec::Loop { path: path.to_owned(), direct: false };
    DeviceSpec::builder(name, target).read_only(read_only).build()
}

fn open(path: &Path) -> Result<Arc<dyn Target>, Error> {
    Registry::default().open(&spec("vol-1", path, false)?)
}

fn file(dir: &TempDir, name: &str, size: u64) -> std::io::Result<PathBuf> {
    let path = dir.path().join(name);
    File::create(&path)?.set_len(size)?;
    Ok(path)
}

#[test]
fn f78_what_is_no_disk_is_one_line_that_names_it_and_says_what_to_do() -> TestResult {
    let dir = tempfile::tempdir()?;
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket)?;
    let cases = [
        (dir.path().join("missing"), ErrorKind::NotFound, "cannot find"),
        (dir.path().join("new\nline"), ErrorKind::NotFound, "new\\nline"),
        (file(&dir, "plain", 4096)?.join("below"), ErrorKind::Io, "ENOTDIR"),
        (dir.path().to_owned(), ErrorKind::Invalid, "is a directory"),
        (fifo, ErrorKind::Invalid, "is a fifo"),
        (socket, ErrorKind::Invalid, "is a socket"),
        ("/dev/null".into(), ErrorKind::Invalid, "is a character device"),
        (file(&dir, "empty", 0)?, ErrorKind::Invalid, "holds 0 bytes"),
        (file(&dir, "tiny", 511)?, ErrorKind::Invalid, "holds 511 bytes"),
    ];
    let started = Instant::now();
    for (path, kind, says) in cases {
        let error = open(&path).err().ok_or_else(|| format!("{path:?} was opened"))?;
        let text = error.to_string();
        assert_eq!((error.kind(), error.stage()), (kind, Some(Stage::Open)), "{text}");
        assert!(text.starts_with("device vol-1: open: "), "{text}");
        assert!(text.contains(&format!("{path:?}")) && text.contains(says), "{text}");
        assert!(error.remedy().is_some() && !text.contains('\n'), "{text}");
    }
    assert!(started.elapsed() < Duration::from_secs(20), "a fifo was waited for");
    Ok(())
}

#[test]
fn f78_small_and_odd_files_open_and_the_rest_is_noted() -> TestResult {
    let dir = tempfile::tempdir()?;
    for (size, device, notes) in [(512, 512, 0), (1000, 512, 1), (4096, 4096, 0)] {
        let target = open(&file(&dir, &size.to_string(), size)?)?;
        assert_eq!(target.geometry().size, device);
        assert_eq!(target.notes().len(), notes, "{:?}", target.notes());
    }
    Ok(())
}

#[test]
fn f74_a_backing_has_one_writer_or_only_readers_under_any_name() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = file(&dir, "disk", 4096)?;
    let (soft, hard) = (dir.path().join("soft"), dir.path().join("hard"));
    symlink(&path, &soft)?;
    fs::hard_link(&path, &hard)?;
    let registry = Registry::default();
    let refused = |name: &str, path: &Path, read_only, holder: &str| -> TestResult {
        let error = registry.open(&spec(name, path, read_only)?).err().ok_or("it was opened")?;
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Exists, "{text}");
        assert!(text.starts_with(&format!("device {name}: open: {path:?} is in use")), "{text}");
        assert!(text.contains(&format!("device {holder} holds it")), "{text}");
        Ok(())
    };

    let writer = registry.open(&spec("one", &path, false)?)?;
    for name in [&path, &soft, &hard] {
        refused("two", name, false, "one")?;
        refused("three", name, true, "one")?;
    }
    drop(writer);
    let readers =
        [registry.open(&spec("four", &soft, true)?)?, registry.open(&spec("five", &hard, true)?)?];
    refused("six", &path, false, "four")?;
    drop(readers);
    registry.open(&spec("seven", &hard, false)?)?;
    Ok(())
}

#[test]
fn f74_another_process_is_named_and_its_death_frees_the_backing() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = file(&dir, "disk", 4096)?;
    // A lock belongs to the open file, so a child that has it as its input holds the lock.
    let locked = File::options().read(true).write(true).open(&path)?;
    file_lock::try_lock(&locked, true)?;
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::from(locked)).spawn()?;
    let refusal = open(&path).err().map(|error| error.to_string()).unwrap_or_default();
    child.kill()?;
    child.wait()?;
    let holder = format!("process {} (sleep) holds it", child.id());
    assert!(refusal.contains(&holder), "{refusal:?}");
    open(&path)?;
    Ok(())
}

#[test]
fn f79_a_read_only_device_offers_nothing_that_writes() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = file(&dir, "disk", 8192)?;
    let mut mode = fs::metadata(&path)?.permissions();
    mode.set_readonly(true);
    fs::set_permissions(&path, mode)?;
    let geometry = Registry::default().open(&spec("ro", &path, true)?)?.geometry();
    assert!(geometry.read_only && geometry.discard.is_none());
    assert!(!geometry.volatile_cache && !geometry.fua);
    Ok(())
}

#[test]
fn f58_a_writable_file_has_a_cache_fua_and_holes() -> TestResult {
    let dir = tempfile::tempdir()?;
    let geometry = open(&file(&dir, "disk", 8192)?)?.geometry();
    assert!(geometry.volatile_cache && geometry.fua && !geometry.read_only);
    assert!(geometry.physical_block >= geometry.logical_block);
    Ok(())
}

#[test]
fn f56_direct_or_buffered_the_geometry_is_one_that_the_kernel_takes() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = file(&dir, "disk", 1 << 20)?;
    let name = DeviceName::new("direct")?;
    let target = TargetSpec::Loop { path, direct: true };
    let block = BlockSize { logical: Some(4096), physical: Some(16384) };
    let spec = DeviceSpec::builder(name, target).block(block).build()?;
    let geometry = Registry::default().open(&spec)?.geometry();
    assert_eq!((geometry.logical_block, geometry.physical_block), (4096, 16384));
    Ok(())
}

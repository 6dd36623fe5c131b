//! What happens to the file behind a loop device.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::libc;
use tempfile::TempDir;

use super::*;

const EIO: IoResult = Err(Errno(libc::EIO));
const EROFS: IoResult = Err(Errno(libc::EROFS));

fn file(dir: &TempDir, content: &[u8]) -> std::io::Result<PathBuf> {
    let path = dir.path().join("disk");
    fs::write(&path, content)?;
    File::open(&path)?.sync_all()?;
    Ok(path)
}

fn used(path: &Path) -> std::io::Result<u64> {
    File::open(path)?.sync_all()?;
    Ok(fs::metadata(path)?.blocks() * 512)
}

#[test]
fn discard_and_write_zeroes_free_blocks_unless_they_are_to_be_kept() -> TestResult {
    let dir = tempfile::tempdir()?;
    for direct in [false, true] {
        let path = file(&dir, &[0xA5; 1 << 20])?;
        let disk = Disk::open(spec(file_spec(&path, direct)).build()?)?;
        let full = used(&path)?;

        let keep = Request { no_unmap: true, ..Request::new(Op::WriteZeroes, 0, 256 << 10) };
        assert_eq!(settled(disk.submit(keep, Vec::new())).0, Ok(()));
        assert_eq!(used(&path)?, full, "blocks that were to be kept are gone");
        assert_eq!(disk.read(0, 4096), Ok(vec![0; 4096]));

        assert_eq!(disk.ask(Op::Discard, 256 << 10, 256 << 10), Ok(()));
        assert_eq!(used(&path)?, full - (256 << 10));
        assert_eq!(disk.ask(Op::WriteZeroes, 512 << 10, 256 << 10), Ok(()));
        assert_eq!(used(&path)?, full - (512 << 10));
        assert_eq!(disk.read(256 << 10, MAX_IO), Ok(vec![0; MAX_IO as usize]));
        assert_eq!(disk.read(768 << 10, 4096), Ok(vec![0xA5; 4096]));
        assert_eq!(fs::metadata(&path)?.len(), 1 << 20, "the size has changed");
        disk.stop();
    }
    Ok(())
}

#[test]
fn f69_a_file_that_became_shorter_fails_where_it_is_missing_and_only_there() -> TestResult {
    for (direct, cut) in [(false, 1), (false, 511), (false, 4096), (true, 4096)] {
        let dir = tempfile::tempdir()?;
        let path = file(&dir, &[7; 64 << 10])?;
        let disk = Disk::open(spec(file_spec(&path, direct)).build()?)?;
        File::options().write(true).open(&path)?.set_len((64 << 10) - cut)?;

        assert_eq!(disk.ask(Op::Read, 60 << 10, 4096), EIO, "cut by {cut}");
        assert_eq!(disk.ask(Op::Read, 0, 64 << 10), EIO, "cut by {cut}");
        assert_eq!(disk.read(0, 60 << 10), Ok(vec![7; 60 << 10]), "cut by {cut}");
        assert_eq!(disk.write(60 << 10, &[8; 4096]), Ok(()));
        assert_eq!(disk.read(60 << 10, 4096), Ok(vec![8; 4096]));
        disk.stop();
    }
    Ok(())
}

#[test]
fn f79_nothing_is_written_through_a_read_only_device() -> TestResult {
    let dir = tempfile::tempdir()?;
    for direct in [false, true] {
        let path = file(&dir, &[7; 8192])?;
        let before = fs::metadata(&path)?;
        let disk = Disk::open(spec(file_spec(&path, direct)).read_only(true).build()?)?;
        assert!(disk.target.geometry().read_only);
        assert_eq!(disk.write(0, &[8; 4096]), EROFS);
        assert_eq!(disk.ask(Op::Discard, 0, 4096), EROFS);
        assert_eq!(disk.ask(Op::WriteZeroes, 0, 4096), EROFS);
        assert_eq!(disk.ask(Op::Flush, 0, 0), Ok(()));
        assert_eq!(disk.read(0, 8192), Ok(vec![7; 8192]));
        disk.stop();
        let after = fs::metadata(&path)?;
        let times = |meta: &fs::Metadata| (meta.mtime(), meta.mtime_nsec(), meta.ctime_nsec());
        assert_eq!(times(&after), times(&before));
        assert_eq!(fs::read(&path)?, [7; 8192]);
    }
    Ok(())
}

#[test]
fn f79_read_only_memory_refuses_writes_and_flushes_with_success() -> TestResult {
    let disk = Disk::open(spec(TargetSpec::Ram { size: 8192 }).read_only(true).build()?)?;
    assert_eq!(disk.write(0, &[8; 4096]), EROFS);
    assert_eq!(disk.ask(Op::Discard, 0, 4096), EROFS);
    assert_eq!(disk.ask(Op::WriteZeroes, 0, 4096), EROFS);
    assert_eq!(disk.ask(Op::Flush, 0, 0), Ok(()));
    assert_eq!(disk.read(0, 8192), Ok(vec![0; 8192]));
    disk.stop();
    Ok(())
}

#[test]
fn f78_the_smallest_disks_serve_their_only_block() -> TestResult {
    let dir = tempfile::tempdir()?;
    let odd = file(&dir, &[1; 1000])?;
    for target in [TargetSpec::Ram { size: 512 }, file_spec(&odd, false)] {
        let disk = Disk::open(spec(target).build()?)?;
        assert_eq!(disk.target.geometry().size, 512);
        assert_eq!(disk.write(0, &[9; 512]), Ok(()));
        assert_eq!(disk.read(0, 512), Ok(vec![9; 512]));
        disk.stop();
    }
    assert_eq!(fs::read(&odd)?, [[9; 512].as_slice(), &[1; 488]].concat());
    Ok(())
}

#[test]
fn f74_the_backing_is_free_when_the_queue_and_the_target_are_gone() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = file(&dir, &[0; 4096])?;
    for _ in 0..20 {
        let disk = Disk::open(spec(file_spec(&path, false)).build()?)?;
        assert_eq!(disk.write(0, &[1; 4096]), Ok(()));
        disk.stop();
    }
    Ok(())
}

#[test]
fn null_answers_everything() -> TestResult {
    let disk = Disk::open(spec(TargetSpec::Null { size: 1 << 40 }).build()?)?;
    for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
        assert_eq!(disk.ask(op, (1 << 40) - 4096, 4096), Ok(()), "{op:?}");
    }
    assert_eq!(disk.ask(Op::Flush, 0, 0), Ok(()));
    disk.stop();
    Ok(())
}

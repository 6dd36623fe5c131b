//! FLUSH and FUA on their way from a client's call to the target, counted there.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use futures::executor::block_on;
use nix::libc;
use ublkd::model::TargetSpec;

use crate::guest::{Guest, Outcome};
use crate::house::{builder, counted, shut_down, spec};

#[repr(align(4096))]
struct Block([u8; 4096]);

#[test]
fn f58_fsync_o_sync_and_fua_each_reach_the_target() -> Outcome {
    let guest = Guest::new()?;
    guest.disk("real", "48M")?;
    guest.sh("truncate -s 32M real/buffered.img real/direct.img; mkdir mnt")?;
    let running = builder().start()?;
    let handle = running.handle();
    for direct in [false, true] {
        let name = if direct { "direct" } else { "buffered" };
        let path = guest.path(&format!("real/{name}.img"));
        let device = block_on(handle.create(spec(name, TargetSpec::Loop { path, direct })?))?;
        let node = device.id.block_path();
        let open =
            |flags: i32| OpenOptions::new().read(true).write(true).custom_flags(flags).open(&node);
        let io = || counted(&handle, &device.name);
        let block = Block([0x5a; 4096]);

        // A write and an fsync: one FLUSH after it.
        let before = io()?;
        let plain = open(libc::O_DIRECT)?;
        plain.write_all_at(&block.0, 0)?;
        assert_eq!((io()?.flush.requests, io()?.fua), (before.flush.requests, before.fua));
        plain.sync_all()?;
        assert_eq!((io()?.flush.requests, io()?.fua), (before.flush.requests + 1, before.fua));
        plain.sync_data()?;
        assert_eq!((io()?.flush.requests, io()?.fua), (before.flush.requests + 2, before.fua));

        // The same through the page cache.
        let cached = open(0)?;
        cached.write_all_at(&block.0, 8192)?;
        cached.sync_all()?;
        assert_eq!(io()?.flush.requests, before.flush.requests + 3);
        drop((plain, cached));

        // O_SYNC and O_DSYNC, directly and through the page cache.
        for flags in [libc::O_SYNC, libc::O_DSYNC] {
            let before = io()?;
            open(flags | libc::O_DIRECT)?.write_all_at(&block.0, 4096)?;
            let after = io()?;
            assert_eq!(after.fua, before.fua + 1, "flags {flags:o}: {before:?} {after:?}");
            open(flags)?.write_all_at(&block.0, 12288)?;
            let cached = io()?;
            let durable = |io: ublkd::model::IoStats| io.fua + io.flush.requests;
            assert!(durable(cached) > durable(after), "flags {flags:o}: {after:?} {cached:?}");
        }

        // RWF_DSYNC on a file that was opened without any of it: FUA of a single write.
        let before = io()?;
        guest.sh(&format!("xfs_io -d -c 'pwrite -q -V 1 -D 0 4096' {node}"))?;
        let after = io()?;
        assert_eq!(after.fua, before.fua + 1, "{before:?} {after:?}");

        // A file system's fsync.
        guest.sh(&format!("mkfs.ext4 -q {node}; mount {node} mnt; echo text > mnt/file"))?;
        let before = io()?;
        guest.sh("sync mnt/file")?;
        let after = io()?;
        assert!(
            after.flush.requests + after.fua > before.flush.requests + before.fua,
            "{before:?} {after:?}"
        );
        guest.sh("umount mnt")?;
        println!("{name}: {:?}", io()?);
        assert_eq!(io()?.errors(), 0);
    }
    shut_down(running)?;
    Ok(())
}

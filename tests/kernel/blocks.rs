//! What a device says of itself and keeps to: block sizes, discard, read-only.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use nix::libc;

use crate::guest::{Guest, Outcome};

const MIB: u64 = 1 << 20;

#[test]
fn discard_frees_blocks_of_the_file() -> Outcome {
    let guest = Guest::new()?;
    guest.disk("real", "24M")?;
    let image = guest.path("real/disk.img");
    guest.sh("truncate -s 8M real/disk.img; head -c 8M /dev/urandom > data")?;
    let daemon = guest.start(
        r#"
        [[device]]
        name = "disk"
        target = "loop"
        path = "real/disk.img"
        "#,
    )?;
    let bytes = || -> std::io::Result<u64> {
        guest.sh("sync real/disk.img").map_err(|e| std::io::Error::other(e.to_string()))?;
        Ok(fs::metadata(&image)?.blocks() * 512)
    };
    guest.sh("dd if=data of=run/by-name/disk bs=1M oflag=direct status=none")?;
    let before = bytes()?;
    assert!(before >= 8 * MIB, "{before}");
    guest.sh("blkdiscard --offset 2M --length 4M run/by-name/disk")?;
    let after = bytes()?;
    println!("st_blocks: {before} bytes before, {after} after 4 MiB were discarded");
    assert!(after <= before - 4 * MIB, "{before} {after}");
    // Zeroes where it was discarded, the rest as it was.
    guest.sh("dd if=/dev/zero of=data bs=1M seek=2 count=4 conv=notrunc status=none
        dd if=run/by-name/disk bs=1M iflag=direct status=none | cmp - data
        blkdiscard --zeroout run/by-name/disk")?;
    let zeroed = bytes()?;
    println!("and {zeroed} after all of it was zeroed");
    guest.sh("cmp --bytes=8M run/by-name/disk /dev/zero")?;
    daemon.stop()?;
    Ok(())
}

#[test]
fn a_device_of_4096_byte_blocks_is_one_to_everybody() -> Outcome {
    let guest = Guest::new()?;
    guest.sh("truncate -s 16M disk.img; mkdir mnt")?;
    let daemon = guest.start(
        r#"
        [defaults]
        logical_block = "4K"
        [[device]]
        name = "ram"
        target = "ram"
        size = "16M"
        [[device]]
        name = "file"
        target = "loop"
        path = "disk.img"
        "#,
    )?;
    for device in ["ram", "file"] {
        let sizes = guest.sh(&format!("blockdev --getss --getpbsz run/by-name/{device}"))?;
        assert_eq!(sizes, "4096\n4096\n");
        guest.sh(&format!(
            "mkfs.ext4 -q run/by-name/{device}
            mount run/by-name/{device} mnt
            head -c 2M /dev/urandom > data
            cp data mnt/data
            umount mnt
            mount run/by-name/{device} mnt
            cmp data mnt/data
            umount mnt
            fsck.ext4 -fn run/by-name/{device}"
        ))?;
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(daemon.node(device)?)?;
        let small = direct.write_at(&Aligned([0; 4096]).0[..512], 0).expect_err("half a block");
        assert_eq!(small.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(direct.write_at(&Aligned([0; 4096]).0, 4096)?, 4096);
    }
    daemon.stop()?;
    Ok(())
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

#[test]
fn f56_a_backing_of_4096_byte_blocks_is_used_in_such_blocks() -> Outcome {
    let guest = Guest::new()?;
    crate::guest::load_module("loop")?;
    let config = |disk: &str| {
        format!(
            r#"
            [[device]]
            name = "disk"
            target = "loop"
            path = "{disk}"
            direct = true
            "#
        )
    };
    // mkfs.xfs makes nothing smaller than 300 MB.
    let disk = guest.sh("truncate -s 320M disk.raw
        mkdir mnt
        losetup --find --show --sector-size 4096 disk.raw")?;
    let disk = disk.trim();
    let detached = || guest.sh(&format!("losetup --detach {disk}"));
    let tried = (|| -> Outcome {
        let daemon = guest.start(&config(disk))?;
        let sizes = guest.sh("blockdev --getss --getpbsz run/by-name/disk")?;
        assert_eq!(sizes, "4096\n4096\n");
        guest.sh("mkfs.xfs -q run/by-name/disk
            mount run/by-name/disk mnt
            head -c 3M /dev/urandom > data
            cp data mnt/data
            sync mnt/data
            umount mnt
            mount run/by-name/disk mnt
            cmp data mnt/data
            umount mnt
            xfs_repair -n run/by-name/disk 2>&1")?;
        let ended = daemon.stop()?;
        assert!(ended.errors().is_empty(), "{:#?}", ended.errors());
        // Less than the backing takes is refused, with what it takes.
        let mut daemon = guest.launch(&[], &(config(disk) + "logical_block = 512\n"), &[])?;
        daemon.in_service()?;
        assert!(daemon.log_text().contains("logical_block 512 is too small"));
        assert_eq!(daemon.wait()?.status.code(), Some(1));
        Ok(())
    })();
    detached()?;
    tried
}

#[test]
fn f79_a_read_only_device_refuses_everything_that_writes() -> Outcome {
    let guest = Guest::new()?;
    guest.disk("real", "32M")?;
    guest.sh("mkfs.ext4 -q real/disk.img 8M
        mkdir mnt
        mount real/disk.img mnt
        echo here > mnt/file
        umount mnt
        cp real/disk.img before")?;
    let image = guest.path("real/disk.img");
    let before = fs::metadata(&image)?;
    let daemon = guest.start(
        r#"
        [defaults]
        read_only = true
        [[device]]
        name = "file"
        target = "loop"
        path = "real/disk.img"
        [[device]]
        name = "ram"
        target = "ram"
        size = "8M"
        [[device]]
        name = "nothing"
        target = "null"
        size = "8M"
        "#,
    )?;
    for device in ["file", "ram", "nothing"] {
        assert_eq!(guest.sh(&format!("blockdev --getro run/by-name/{device}"))?, "1\n");
        guest.sh(&format!(
            "node=run/by-name/{device}
            refused() {{ if \"$@\" 2>/dev/null; then echo \"{device} took: $*\"; exit 1; fi; }}
            refused dd if=/dev/zero of=$node bs=4k count=1 oflag=direct conv=notrunc
            refused dd if=/dev/zero of=$node bs=4k count=1 conv=notrunc,fsync
            refused blkdiscard -f $node
            refused blkdiscard -f --zeroout $node
            refused mkfs.ext4 -q -F $node"
        ))?;
        // A flush writes nothing, so it is no failure.
        File::open(daemon.node(device)?)?.sync_all()?;
    }
    let told = guest.sh("mount -o ro run/by-name/file mnt; cat mnt/file; umount mnt")?;
    assert_eq!(told, "here\n");
    let ended = daemon.stop()?;
    assert!(ended.errors().is_empty(), "{:#?}", ended.errors());
    let after = fs::metadata(&image)?;
    assert_eq!(after.modified()?, before.modified()?);
    assert_eq!((after.ctime(), after.ctime_nsec()), (before.ctime(), before.ctime_nsec()));
    guest.sh("cmp real/disk.img before")?;
    Ok(())
}

#[test]
fn f78_tiny_and_odd_backings_work_or_are_refused_each_in_one_line() -> Outcome {
    let guest = Guest::new()?;
    guest.sh("truncate -s 0 empty; truncate -s 1000 odd; mkdir folder; mkfifo pipe")?;
    let mut config = String::from("[defaults]\ntarget = \"loop\"\n");
    for path in ["empty", "odd", "folder", "pipe", "nowhere"] {
        config += &format!("[[device]]\nname = \"{path}\"\npath = \"{path}\"\n");
    }
    for size in [512, 4096] {
        config += &format!("[[device]]\nname = \"ram-{size}\"\ntarget = \"ram\"\nsize = {size}\n");
    }
    let mut daemon = guest.launch(&[], &config, &[])?;
    assert_eq!(daemon.in_service()?, (3, 4), "{}", daemon.log_text());
    for (device, size) in [("odd", 512), ("ram-512", 512), ("ram-4096", 4096)] {
        let told = guest.sh(&format!("blockdev --getsize64 run/by-name/{device}"))?;
        assert_eq!(told.trim(), size.to_string());
    }
    for device in ["empty", "folder", "pipe", "nowhere"] {
        let log = daemon.log();
        let lines = log.iter().filter(|line| line["device"] == device && line["level"] == "error");
        assert_eq!(lines.count(), 1, "{device}: {}", daemon.log_text());
    }
    let ended = daemon.stop()?;
    assert_eq!((ended.count("deleted"), ended.count("failed")), (3, 4), "{:#}", ended.report);
    Ok(())
}

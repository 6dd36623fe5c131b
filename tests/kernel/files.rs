//! File systems and fio on devices of the real binary: what was written is what is read.

use std::fs::{self, File};
use std::io::Write;

use crate::guest::{Guest, Outcome};

/// Fills `src` with 2,000 files in 20 folders and `sums` with their checksums.
fn plant(guest: &Guest) -> Outcome {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for folder in 0..20 {
        let folder = guest.path("src").join(folder.to_string());
        fs::create_dir_all(&folder)?;
        for file in 0..100 {
            // Empty ones, some within a block and some of several.
            let words = file * file / 8;
            let mut file = File::create(folder.join(file.to_string()))?;
            let mut content = Vec::with_capacity(8 * words);
            for _ in 0..words {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                content.extend(state.to_le_bytes());
            }
            file.write_all(&content)?;
        }
    }
    let count =
        guest.sh("cd src; find . -type f -exec sha256sum {} + > ../sums; wc -l < ../sums")?;
    assert_eq!(count.trim(), "2000");
    Ok(())
}

#[test]
fn a_tree_of_2000_files_is_the_same_after_a_remount() -> Outcome {
    let guest = Guest::new()?;
    guest.disk("real", "96M")?;
    guest.sh("truncate -s 64M real/disk.img; mkdir mnt")?;
    plant(&guest)?;
    let daemon = guest.start(
        r#"
        [[device]]
        name = "nothing"
        target = "null"
        size = "1G"
        [[device]]
        name = "ram"
        target = "ram"
        size = "64M"
        [[device]]
        name = "file"
        target = "loop"
        path = "real/disk.img"
        queues = 2
        "#,
    )?;
    for device in ["ram", "file"] {
        guest.sh(&format!(
            "node=run/by-name/{device}
            mkfs.ext4 -q $node
            mount $node mnt
            cp -r src mnt/
            sync mnt/src/*/{{1,50,99}}  # fsync of each
            sync --file-system mnt
            umount mnt
            mount $node mnt
            (cd mnt/src; sha256sum --quiet --check ../../sums)
            test $(find mnt/src -type f | wc -l) = 2000
            umount mnt
            fsck.ext4 -fn $node"
        ))?;
    }
    guest.sh("dd if=run/by-name/nothing of=/dev/null bs=256k count=64 iflag=direct status=none")?;
    daemon.stop()?;
    Ok(())
}

#[test]
fn fio_verifies_what_it_wrote_at_random() -> Outcome {
    let guest = Guest::new()?;
    guest.disk("real", "48M")?;
    guest.sh("truncate -s 12M real/buffered.img real/direct.img")?;
    let daemon = guest.start(
        r#"
        [[device]]
        name = "ram"
        target = "ram"
        size = "12M"
        queues = 2
        [[device]]
        name = "buffered"
        target = "loop"
        path = "real/buffered.img"
        [[device]]
        name = "direct"
        target = "loop"
        path = "real/direct.img"
        direct = true
        queues = 2
        "#,
    )?;
    for (device, engine, direct) in [
        ("ram", "io_uring", true),
        ("ram", "libaio", false),
        ("buffered", "libaio", true),
        ("buffered", "io_uring", false),
        ("direct", "io_uring", true),
        ("direct", "libaio", false),
    ] {
        // Written by one run and read by the next, which drops the page cache before.
        let direct = u8::from(direct);
        guest.sh(&format!(
            "job='--name=verify --filename=run/by-name/{device} --rw=randwrite --bs=4k --size=12M
                --io_size=4M --iodepth=32 --ioengine={engine} --direct={direct} --verify=crc32c
                --verify_fatal=1'
            fio $job --do_verify=0 --end_fsync=1
            fio $job --verify_only=1 | grep -q 'err= 0'"
        ))?;
    }
    daemon.stop()?;
    Ok(())
}

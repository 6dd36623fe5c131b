//! Every way that data can go between a request and a target, on the kernel that there is: what is
//! written is read back, and nothing is left of what breaks in the middle.

use std::error::Error;
use std::fmt::Write;
use std::fs::{self, File};
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use ublkd::driver::Features;

use crate::daemon::{Daemon, text};
use crate::guest::{Guest, Outcome, load_module, until};
use crate::support::with_driver;

const ZERO_COPY: Features = Features::ZERO_COPY.with(Features::AUTO_BUF_REG);

/// A way, in the words of the config.
#[derive(Clone, Copy)]
struct Way {
    data: &'static str,
    batch: bool,
}

impl Way {
    fn name(self, target: &str) -> String {
        format!("{target}-{}{}", self.data, if self.batch { "-batch" } else { "" })
    }
}

/// What this kernel has, and what it lacks.
fn ways() -> Result<(Vec<Way>, Vec<Way>), ublkd::model::Error> {
    let kernel = with_driver(async |driver| driver.features().await)?;
    let needs = |way: &Way| {
        let data = match way.data {
            "user_copy" => Features::USER_COPY,
            "zero_copy" => ZERO_COPY,
            _ => Features::NONE,
        };
        if way.batch { data.with(Features::BATCH_IO) } else { data }
    };
    let all = ["copy", "user_copy", "zero_copy"]
        .into_iter()
        .flat_map(|data| [false, true].map(|batch| Way { data, batch }));
    Ok(all.partition(|way| kernel.has(needs(way))))
}

/// A device a target and way: memory, a file in the page cache, a disk past it.
fn config(ways: &[Way], more: &str) -> (String, Vec<String>) {
    let (mut out, mut names) = (String::new(), Vec::new());
    for way in ways {
        let Way { data, batch } = *way;
        let targets = [
            ("ram", "target = \"ram\"\nsize = \"24M\"".to_owned()),
            ("file", format!("target = \"loop\"\npath = \"{}.img\"", way.name("file"))),
            (
                "disk",
                format!("target = \"loop\"\ndirect = true\npath = \"{}.img\"", way.name("disk")),
            ),
        ];
        for (target, lines) in targets {
            if target == "ram" && data == "zero_copy" {
                continue;
            }
            let name = way.name(target);
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "[[device]]\nname = \"{name}\"\n{lines}\ndata = \"{data}\"\nbatch = {batch}\n{more}"
            );
            names.push(name);
        }
    }
    (out, names)
}

/// The files behind the devices: in memory, and on a file system with direct I/O.
fn images(guest: &Guest, ways: &[Way]) -> Outcome {
    let disks = guest.disk("real", &format!("{}M", 32 * ways.len() + 32))?;
    for way in ways {
        let (file, disk) = (way.name("file"), way.name("disk"));
        guest.sh(&format!(
            "truncate -s 24M {file}.img {}/{disk}.img; ln -s {}/{disk}.img {disk}.img",
            disks.display(),
            disks.display()
        ))?;
    }
    Ok(())
}

#[test]
fn what_is_written_is_read_back_in_every_mode() -> Outcome {
    let guest = Guest::new()?;
    let (ways, _) = ways()?;
    images(&guest, &ways)?;
    guest.sh("mkdir mnt; head -c 4M /dev/urandom > data")?;
    let (config, names) = config(&ways, "queues = 2\nmax_io = \"64K\"");
    let daemon = guest.start(&config)?;
    for name in &names {
        let node = format!("run/by-name/{name}");
        // Requests of all sizes, more than fit into the queue, cut and merged; past the page cache.
        guest.sh(&format!(
            "fio --name=verify --filename={node} --rw=randwrite --bsrange=512-128k --blockalign=512 \
               --size=4M --iodepth=32 --ioengine=io_uring --direct=1 --verify=crc32c \
               --verify_fatal=1 --do_verify=1 --randseed=7 --output=fio.log || {{ cat fio.log; exit 1; }}"
        ))?;
        // A file system: flushes, FUA, the page cache.
        guest.sh(&format!(
            "mkfs.ext4 -q {node}
            mount {node} mnt
            cp data mnt/data; sync mnt/data
            umount mnt
            mount {node} mnt
            cmp data mnt/data
            umount mnt
            fsck.ext4 -fn {node}"
        ))?;
        // What is discarded or zeroed, to the sector, and what is beside it.
        guest
            .sh(&format!(
                "dd if=data of={node} bs=1M oflag=direct status=none
            blkdiscard --offset 1M --length 1M {node}
            blkdiscard --zeroout --offset 2621440 --length 512 {node}
            cp data want
            dd if=/dev/zero of=want bs=1M seek=1 count=1 conv=notrunc status=none
            dd if=/dev/zero of=want bs=512 seek=5120 count=1 conv=notrunc status=none
            dd if={node} bs=1M count=4 iflag=direct status=none | cmp - want
            dd if={node} bs=512 count=8192 status=none | cmp - want"
            ))
            .map_err(|error| format!("{name}: {error}"))?;
    }
    daemon.stop()?;
    Ok(())
}

#[test]
fn a_mode_that_the_kernel_lacks_is_refused_by_name_and_not_picked() -> Outcome {
    let guest = Guest::new()?;
    let (_, lacking) = ways()?;
    guest.sh("truncate -s 24M auto.img file.img")?;
    let mut config =
        String::from("[[device]]\nname = \"auto\"\ntarget = \"loop\"\npath = \"auto.img\"\n");
    for way in &lacking {
        let (name, Way { data, batch }) = (way.name("asked"), *way);
        let lines = "target = \"loop\"\npath = \"file.img\"\nread_only = true";
        // Writing to a string cannot fail.
        let _ = writeln!(
            config,
            "[[device]]\nname = \"{name}\"\n{lines}\ndata = \"{data}\"\nbatch = {batch}"
        );
    }
    let mut daemon = guest.launch(&[], &config, &[])?;
    assert_eq!(daemon.in_service()?, (1, lacking.len() as u64));
    guest.sh("dd if=/dev/zero of=run/by-name/auto bs=64k count=8 oflag=direct status=none")?;
    let ended = daemon.stop()?;
    println!("{} of the modes are not there", lacking.len());
    let refused: Vec<_> =
        ended.log.iter().filter(|l| text(l, "msg").contains("start failed")).collect();
    assert_eq!(refused.len(), lacking.len(), "{refused:#?}");
    for line in refused {
        assert!(text(line, "msg").contains("this kernel has no"), "{line:#}");
        assert!(line["device"].as_str().is_some_and(|name| name.starts_with("asked")), "{line:#}");
    }
    Ok(())
}

/// Keeps devices busy until they are gone; comes back when each of them is.
fn load(guest: &Guest, daemon: &Daemon, names: &[String]) -> Result<Vec<Child>, Box<dyn Error>> {
    let mut loads = Vec::new();
    for name in names {
        let node = daemon.node(name)?;
        let fio = Process::new("fio")
            .args(["--name=load", "--rw=randrw", "--bsrange=4k-32k", "--iodepth=16", "--direct=1"])
            .args(["--time_based", "--runtime=600", "--size=16M", "--ioengine=io_uring"])
            .args(["--allow_file_create=0", &format!("--filename={}", node.display())])
            .stdout(File::create(guest.path(&format!("fio-{name}")))?)
            .stderr(Stdio::null())
            .spawn()?;
        loads.push(fio);
    }
    for name in names {
        let stat = format!("/sys/block/ublkb{}/stat", daemon.id(name)?);
        let written = || -> u64 {
            let stat = fs::read_to_string(&stat).unwrap_or_default();
            stat.split_whitespace().nth(4).and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        assert!(until(Duration::from_secs(100), || written() > 50), "fio does not get going");
    }
    Ok(loads)
}

/// Waits until the loads have failed, which they have to.
fn failed(loads: Vec<Child>) -> Outcome {
    for mut load in loads {
        if !until(Duration::from_secs(60), || load.try_wait().is_ok_and(|status| status.is_some()))
        {
            load.kill()?;
            return Err("a load hangs".into());
        }
        assert!(!load.wait()?.success(), "a load saw no error");
    }
    Ok(())
}

#[test]
fn f04_sigterm_under_load_leaves_nothing_in_every_mode() -> Outcome {
    let guest = Guest::new()?;
    let (ways, _) = ways()?;
    images(&guest, &ways)?;
    let (config, names) = config(&ways, "");
    let daemon = guest.start(&config)?;
    let loads = load(&guest, &daemon, &names)?;
    let ended = daemon.stop()?;
    assert_eq!(ended.count("deleted"), names.len() as u64, "{:#}", ended.report["outcomes"]);
    failed(loads)
}

#[test]
fn f76_a_panic_under_load_leaves_nothing_in_every_mode() -> Outcome {
    let guest = Guest::new()?;
    let (ways, _) = ways()?;
    images(&guest, &ways)?;
    // Beyond what the load touches.
    let (config, names) = config(&ways, "panic_at = 40960");
    let daemon = guest.start(&config)?;
    let loads = load(&guest, &daemon, &names)?;
    for name in &names {
        let touch = format!(
            "dd if=/dev/zero of=run/by-name/{name} bs=4k seek=5120 count=1 oflag=direct conv=notrunc"
        );
        let told = guest.sh(&touch).err().ok_or("no error")?.to_string();
        assert!(told.contains("Input/output error"), "{name}: {told}");
    }
    failed(loads)?;
    let ended = daemon.stop()?;
    assert_eq!(ended.count("panicked"), names.len() as u64, "{:#}", ended.report["outcomes"]);
    Ok(())
}

#[test]
fn a_request_whose_memory_does_not_suit_the_backing_is_refused_where_it_would_be_seen() -> Outcome {
    let guest = Guest::new()?;
    load_module("brd")?;
    let daemon = guest.start(
        "[[device]]\nname = \"disk\"\ntarget = \"loop\"\npath = \"/dev/ram0\"\ndirect = true\n",
    )?;
    let kernel = with_driver(async |driver| driver.features().await)?;
    let id = daemon.id("disk")?;
    let told = guest.sh(&format!("cat /sys/block/ublkb{id}/queue/dma_alignment"))?;
    let expected = if kernel.has(ZERO_COPY) { "511" } else { "3" };
    assert_eq!(told.trim(), expected);
    daemon.stop()?;
    Ok(())
}

//! Where queue threads run: on the processors whose requests the kernel puts into their queue.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;

use serde_json::Value;
use ublkd::driver::Features;

use crate::daemon::{Daemon, UBLKD, text};
use crate::guest::{Guest, Outcome};
use crate::support::with_driver;

type Set = BTreeSet<usize>;
type Fallible<T> = Result<T, Box<dyn Error>>;

/// Two queues each: one device whose threads are bound, one whose threads are not.
const CONFIG: &str = r#"
    [defaults]
    target = "ram"
    size = "16M"
    queues = 2
    recovery = true
    [[device]]
    name = "bound"
    [[device]]
    name = "free"
    affinity = false
"#;

/// A list of processors as the kernel writes them: `0-3,8` or `0, 1`.
fn set(list: &str) -> Fallible<Set> {
    let mut set = Set::new();
    for part in list.trim().split(',') {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        set.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(set)
}

/// The processors that a task may use.
fn allowed(task: &str) -> Fallible<Set> {
    let status = fs::read_to_string(format!("{task}/status"))?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    set(list.ok_or("no list")?)
}

/// Where the threads of a device may run, by queue.
fn threads(daemon: &Daemon, device: &str) -> Fallible<Vec<Set>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", daemon.pid()))? {
        let task = task?.path().display().to_string();
        // Others come and go.
        let name = fs::read_to_string(format!("{task}/comm")).unwrap_or_default();
        if let Some(queue) = name.trim().strip_prefix(&format!("{device}.q")) {
            found.push((queue.parse::<usize>()?, allowed(&task)?));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, set)| set).collect())
}

/// The processors of a device's queues, as the block layer has them.
fn queues(daemon: &Daemon, device: &str) -> Fallible<Vec<Set>> {
    let id = daemon.id(device)?;
    let list = |queue| fs::read_to_string(format!("/sys/block/ublkb{id}/mq/{queue}/cpu_list"));
    [0, 1].into_iter().map(|queue| set(&list(queue)?)).collect()
}

/// What ublkd says that the threads are bound to.
fn told(guest: &Guest, device: &str) -> Fallible<Value> {
    let json = guest.sh(&format!("{UBLKD} describe {device} --socket run/ublkd.sock -o json"))?;
    Ok(serde_json::from_str::<Value>(&json)?["processors"].take())
}

/// Writes from each processor, and reads it back from all the others.
fn serves(guest: &Guest, device: &str, processors: &Set) -> Outcome {
    for writer in processors {
        guest.sh(&format!(
            "head -c 4M /dev/urandom > data
            taskset -c {writer} dd if=data of=run/by-name/{device} bs=64k oflag=direct status=none"
        ))?;
        for reader in processors {
            guest.sh(&format!(
                "taskset -c {reader} dd if=run/by-name/{device} bs=64k count=64 iflag=direct \
                   status=none | cmp - data"
            ))?;
        }
    }
    Ok(())
}

#[test]
fn each_queue_thread_runs_on_its_queues_processors_and_nowhere_else() -> Outcome {
    let guest = Guest::new()?;
    let daemon = guest.start(CONFIG)?;
    let all = allowed(&format!("/proc/{}", daemon.pid()))?;
    assert!(all.len() > 1, "this needs two processors: {all:?}");

    let bound = threads(&daemon, "bound")?;
    println!("bound: {bound:?}");
    assert_eq!(bound, queues(&daemon, "bound")?);
    assert_eq!(bound.len(), 2);
    assert!(bound[0].is_disjoint(&bound[1]), "{bound:?}");
    assert_eq!(&bound[0] | &bound[1], all);
    let says = told(&guest, "bound")?;
    for (says, bound) in says.as_array().ok_or("no list")?.iter().zip(&bound) {
        assert_eq!(set(says.as_str().ok_or("no set")?)?, *bound);
    }

    assert_eq!(threads(&daemon, "free")?, [all.clone(), all.clone()]);
    assert_eq!(told(&guest, "free")?, serde_json::json!([]));
    for device in ["bound", "free"] {
        serves(&guest, device, &all)?;
    }

    // Its next threads are bound too, where the kernel can do without the first.
    if with_driver(async |driver| driver.features().await)?.has(Features::QUIESCE) {
        guest.sh(&format!("{UBLKD} quiesce bound --socket run/ublkd.sock"))?;
        assert_eq!(threads(&daemon, "bound")?, []);
        guest.sh(&format!("{UBLKD} resume bound --socket run/ublkd.sock"))?;
        assert_eq!(threads(&daemon, "bound")?, bound);
        serves(&guest, "bound", &all)?;
    }
    let ended = daemon.stop()?;
    let warned: Vec<_> =
        ended.log.iter().filter(|line| text(line, "msg").contains("not bound")).collect();
    assert!(warned.is_empty(), "{warned:#?}");
    Ok(())
}

#[test]
fn a_process_that_may_not_use_every_processor_serves_with_those_it_may() -> Outcome {
    let guest = Guest::new()?;
    let mut daemon = guest.launch(&["taskset", "-c", "0"], CONFIG, &[])?;
    assert_eq!(daemon.in_service()?, (2, 0));
    let (first, all) =
        (Set::from([0]), set(&fs::read_to_string("/sys/devices/system/cpu/online")?)?);
    assert!(all.len() > 1, "this needs two processors: {all:?}");
    assert_eq!(threads(&daemon, "bound")?, [first.clone(), first]);
    // Only the queue that has the first processor is bound to anything.
    let mine = queues(&daemon, "bound")?.iter().position(|queue| queue.contains(&0));
    let says = told(&guest, "bound")?;
    let is_bound = |queue: usize| says[queue].as_str().is_some();
    assert_eq!([is_bound(0), is_bound(1)], [mine == Some(0), mine == Some(1)], "{says}");
    serves(&guest, "bound", &all)?;
    let ended = daemon.stop()?;
    let warned = ended.log.iter().filter(|line| text(line, "msg").contains("not bound"));
    assert_eq!(warned.count(), 1);
    Ok(())
}

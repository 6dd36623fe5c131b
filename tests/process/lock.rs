//! One daemon a run directory, and what a killed one leaves.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};

use crate::support::{Daemon, Scene, eventually};

/// A second daemon on the run directory of `scene`, for devices of other names.
fn second(scene: &Scene) -> Daemon {
    scene.write(
        "other.toml",
        "[[device]]\nname = \"other-{n}\"\ncount = 2\ntarget = \"null\"\nsize = \"1MiB\"\n",
    );
    Daemon::spawn(scene.command(&["run", "-c", "other.toml"]).args(scene.sim()))
}

#[test]
fn f07_the_next_daemon_waits_for_the_one_that_is_on_its_way_out() {
    let scene = Scene::nulls(3);
    let first = scene.up(&["--fault", "stop: delay 2s"]);
    let pid = first.pid();
    first.signal(SIGTERM);
    first.says("SIGTERM: orderly shutdown");
    let second = second(&scene);
    let line = second.says("waiting for the daemon before");
    assert!(line.contains(&format!("(pid {pid})")) && line.contains("ublkd.lock"), "{line}");
    let inode = fs::metadata(scene.path("run/ublkd.lock")).unwrap().ino();
    first.ends().with_status(0);
    second.says("2 of 2 devices in service");
    // The first one has taken away nothing that is the second one's.
    assert_eq!(scene.links(), ["other-0", "other-1"]);
    let lock = scene.path("run/ublkd.lock");
    assert_eq!(fs::metadata(&lock).unwrap().ino(), inode);
    assert_eq!(fs::read_to_string(&lock).unwrap(), second.pid().to_string());
    second.terminate().with_status(0);
}

#[test]
fn f54_a_lock_that_another_process_holds_for_a_while_is_waited_for() {
    let scene = Scene::nulls(2);
    fs::create_dir(scene.path("run")).unwrap();
    // No daemon, and no pid in the file: as that of another pid namespace, or half-written.
    let file = fs::File::create(scene.path("run/ublkd.lock")).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| e).unwrap();
    let daemon = scene.start(&[]);
    let line = daemon.says("waiting for the daemon before to end");
    assert!(line.contains("WARN"), "{line}");
    std::thread::sleep(Duration::from_millis(300));
    assert!(daemon.lines("in service").is_empty());
    drop(lock);
    daemon.says("2 of 2 devices in service");
    daemon.terminate().with_status(0);
}

#[test]
fn f54_a_daemon_that_is_alive_but_stopped_keeps_its_directory() {
    let scene = Scene::nulls(3);
    let first = scene.up(&[]);
    first.signal(SIGSTOP);
    let second = second(&scene);
    let ended = second.ends_within(Duration::from_secs(60)).with_status(1);
    assert!(ended.took >= Duration::from_secs(29), "{:?}", ended.took);
    let ended = ended.saying(&["is held by another ublkd", "supervisor.run_dir"]);
    let pid = format!("(pid {})", first.pid());
    assert!(ended.lines(&pid).len() >= 3, "progress, and the refusal:\n{}", ended.stderr);
    assert!(scene.path("run/ublkd.lock").exists());
    assert_eq!(scene.links(), ["d0", "d1", "d2"]);
    first.signal(SIGCONT);
    first.terminate().with_status(0);
}

#[test]
fn f54_a_term_ends_the_waiting() {
    let scene = Scene::nulls(3);
    let first = scene.up(&[]);
    let second = second(&scene);
    second.says("waiting for the daemon before");
    let ended = second.terminate().with_status(0);
    ended.saying(&["SIGTERM"]);
    assert_eq!(scene.links(), ["d0", "d1", "d2"]);
    first.terminate().with_status(0);
}

#[test]
fn f50_what_a_killed_daemon_leaves_is_no_obstacle() {
    let scene = Scene::nulls(3);
    let first = scene.up(&[]);
    first.signal(SIGKILL);
    assert_eq!(first.ends().code, None);
    assert_eq!(scene.links(), ["d0", "d1", "d2"]);
    let second = second(&scene);
    eventually("only links of the second", || scene.links() == ["other-0", "other-1"]);
    second.says("2 of 2 devices in service");
    assert!(second.lines("waiting for the daemon before").is_empty());
    second.terminate().with_status(0);
    assert_eq!(scene.links(), Vec::<String>::new());
}

//! Each exit status of `ublkd run`, as `docs/operations.md` tells it.

use nix::sys::signal::Signal::SIGTERM;

use crate::support::{Scene, output};

#[test]
fn status_0_when_everything_is_gone() {
    let scene = Scene::nulls(3);
    let daemon = scene.up(&[]);
    assert_eq!(scene.links(), ["d0", "d1", "d2"]);
    daemon.terminate().with_status(0);
    assert_eq!(scene.links(), Vec::<String>::new());
    let report = scene.report();
    assert_eq!(report["outcomes"]["deleted"], 3);
    assert_eq!(report["left"].as_array().unwrap().len(), 0);
}

#[test]
fn status_0_when_some_failed_and_nothing_is_left() {
    let scene = Scene::nulls(3);
    let daemon = scene.start(&["--fault", "start@2: EIO"]);
    let line = daemon.says("2 of 3 devices in service, 1 failed to start");
    assert!(line.contains("INFO"), "{line}");
    daemon.terminate().with_status(0).saying(&["start failed", "START_DEV", "EIO"]);
    let outcomes = &scene.report()["outcomes"];
    assert_eq!((&outcomes["deleted"], &outcomes["failed"]), (&2.into(), &1.into()));
}

#[test]
fn status_1_when_one_fails_and_on_failure_is_abort() {
    let scene = Scene::nulls(5);
    let abort = ["--set", "supervisor.on_failure=abort", "--fault", "start@2: EIO"];
    let ended = scene.start(&abort).ends().with_status(1);
    let ended = ended.saying(&["failed to start and on_failure is abort", "START_DEV", "EIO"]);
    assert!(ended.lines(crate::support::IN_SERVICE).is_empty(), "{}", ended.stderr);
    let report = scene.report();
    assert_eq!(report["outcomes"]["timed_out"], 0);
    assert_eq!(report["left"].as_array().unwrap().len(), 0);
    assert_eq!(scene.links(), Vec::<String>::new());
}

#[test]
fn status_1_when_no_device_comes_up() {
    let scene = Scene::nulls(5);
    let ended = scene.start(&["--fault", "add: EIO"]).ends().with_status(1);
    ended.saying(&["0 of 5 devices in service, 5 failed to start", "no device came up"]);
    assert_eq!(scene.report()["outcomes"]["failed"], 5);
}

#[test]
fn status_1_when_it_cannot_start() {
    let scene = Scene::nulls(1);
    scene.write("run", "a file where a directory should be");
    let ended = scene.start(&[]).ends().with_status(1);
    ended.saying(&["run/ublkd.lock", "run is no directory", "supervisor.run_dir"]);
    assert!(!scene.path("report.json").exists());
    assert!(!scene.path("report.json.new").exists(), "an empty report was left behind");
}

#[test]
fn status_2_for_bad_usage_and_nothing_is_started() {
    let scene = Scene::nulls(1);
    let sim = scene.sim();
    let run = |more: &[&str]| {
        let mut command = scene.command(&["run"]);
        command.args(&sim).args(more);
        output(&mut command)
    };
    for (args, said) in [
        (&[][..], "--config <PATH>"),
        (&["-c", "ublkd.toml", "--sooner"][..], "--sooner"),
        (&["-c", "ublkd.toml", "--set", "workers"][..], "KEY=VALUE"),
        (&["-c", "ublkd.toml", "--sim-kernel", "2.6"][..], "6.12, 7.3, 7.4"),
        (&["-c", "ublkd.toml", "--fault", "stop: maybe"][..], "--fault"),
        (&["-c", "none.toml"][..], "none.toml"),
    ] {
        let ended = run(args);
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(said), "{args:?}: {text}");
        assert!(ended.stdout.is_empty(), "{args:?}");
    }
    assert_eq!(output(&mut scene.command(&[])).status.code(), Some(2));
    assert_eq!(output(&mut scene.command(&["sing"])).status.code(), Some(2));
    assert!(!scene.path("run").exists(), "something was started");
}

#[test]
fn status_3_when_something_is_left() {
    let scene = Scene::nulls(3);
    let fault = ["--fault", "stop@2: hang", "--set", "supervisor.command_timeout=3s"];
    let ended = scene.up(&fault).terminate().with_status(3);
    ended.saying(&["STOP_DEV", "dmesg"]);
    let report = scene.report();
    let left = report["left"].as_array().unwrap();
    let left: Vec<_> = left.iter().map(|line| line.as_str().unwrap()).collect();
    assert!(left.len() == 2, "{left:?}");
    assert!(left[0].contains(": id ") && left[1].contains(": queue threads "), "{left:?}");
    assert_eq!(report["outcomes"]["wedged"], 1);
    assert_eq!(report["outcomes"]["deleted"], 2);
}

#[test]
fn status_4_when_the_end_is_forced() {
    let scene = Scene::nulls(3);
    let daemon = scene.up(&["--fault", "stop@2: hang"]);
    daemon.signal(SIGTERM);
    daemon.says("SIGTERM: orderly shutdown");
    // Stop signals that come within 250 ms are one.
    std::thread::sleep(std::time::Duration::from_millis(300));
    daemon.terminate().with_status(4);
    assert_eq!(scene.report()["forced"], true);
}

#[test]
fn asking_for_help_or_the_version_is_no_failure() {
    let scene = Scene::new();
    for args in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let ended = output(&mut scene.command(args));
        assert_eq!(ended.status.code(), Some(0), "{args:?}");
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(text.contains("ublkd"), "{args:?}: {text}");
        assert!(ended.stderr.is_empty());
    }
}

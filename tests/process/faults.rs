//! Trouble on purpose: one device has it, the others do not notice, and the end is bounded.

use std::time::Duration;

use serde_json::Value;

use crate::support::{Scene, nulls};

fn devices(report: &Value) -> &Vec<Value> {
    report["devices"].as_array().unwrap()
}

/// The devices that were not just deleted.
fn troubled(report: &Value) -> Vec<&Value> {
    devices(report).iter().filter(|device| device["outcome"] != "deleted").collect()
}

#[test]
fn f03_one_busy_device_does_not_stop_the_shutdown() {
    let scene = Scene::nulls(20);
    let slow = ["--fault", "del_async#7: hang", "--set", "supervisor.command_timeout=3s"];
    let ended = scene.up(&slow).terminate().with_status(3);
    let report = scene.report();
    let bad = troubled(&report);
    assert_eq!(bad.len(), 1, "{report}");
    assert_eq!((&bad[0]["id"], &bad[0]["stage"]), (&7.into(), &"delete".into()));
    assert_eq!(bad[0]["outcome"], "wedged");
    let text = bad[0]["error"].as_str().unwrap();
    assert!(text.contains("DEL_DEV_ASYNC") && text.contains("dmesg"), "{text}");
    assert_eq!(report["outcomes"]["deleted"], 19);
    let name = bad[0]["name"].as_str().unwrap();
    assert!(!ended.lines(&format!("device: {name}, id: 7")).is_empty(), "{}", ended.stderr);
    assert!(ended.lines("is still there").len() == 1, "{}", ended.stderr);
}

#[test]
fn f08_shutdown_does_not_cost_devices_times_the_wait() {
    let scene = Scene::nulls(320);
    // 64 workers: five waves of 200 ms, and not 64 seconds.
    let slow = ["--fault", "stop: delay 200ms; stop@9: delay 4s"];
    scene.up(&slow).terminate().with_status(0);
    let report = scene.report();
    assert_eq!(report["outcomes"]["deleted"], 320);
    let wall = report["wall_s"].as_f64().unwrap();
    assert!((1.0..10.0).contains(&wall), "{wall}");
}

#[test]
fn f08_one_slow_device_delays_nobody_else() {
    let scene = Scene::nulls(200);
    scene.up(&["--fault", "stop@9: delay 3s"]).terminate().with_status(0);
    let report = scene.report();
    let stop = |device: &Value| device["stages"]["stop"].as_f64().unwrap();
    let slow = devices(&report).iter().filter(|device| stop(device) >= 3.0).count();
    assert_eq!(slow, 1);
    let p99 = report["stages"]["stop"]["p50"].as_f64().unwrap();
    assert!(p99 < 2.0, "{p99}");
}

#[test]
fn f19_an_add_that_never_comes_back_is_bounded() {
    let scene = Scene::nulls(3);
    let hang = ["--fault", "add@2: hang", "--set", "supervisor.command_timeout=3s"];
    let daemon = scene.up(&hang);
    let said = daemon.says("start failed");
    for part in ["ADD_DEV", " after 3.", "dmesg", "wedged"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert_eq!(daemon.lines("INFO in service").len(), 2);
    daemon.terminate().with_status(3);
    let report = scene.report();
    let bad = troubled(&report);
    assert_eq!(bad.len(), 1, "{report}");
    assert_eq!((&bad[0]["outcome"], &bad[0]["stage"]), (&"wedged".into(), &"add".into()));
    assert_eq!(bad[0]["id"], Value::Null);
    assert!(bad[0]["left"][0].as_str().unwrap().contains("ADD_DEV"), "{report}");
}

#[test]
fn f48_a_stop_that_never_comes_back_is_bounded_and_named() {
    let scene = Scene::nulls(5);
    let hang = ["--fault", "stop#2: hang", "--set", "supervisor.command_timeout=3s"];
    scene.up(&hang).terminate().with_status(3);
    let report = scene.report();
    let bad = troubled(&report);
    assert_eq!(bad.len(), 1, "{report}");
    assert_eq!((&bad[0]["id"], &bad[0]["stage"]), (&2.into(), &"stop".into()));
    assert!(bad[0]["error"].as_str().unwrap().contains("STOP_DEV"), "{report}");
    assert!(report["wall_s"].as_f64().unwrap() < 10.0);
}

#[test]
fn a_shutdown_in_which_everything_hangs_ends_at_its_deadline() {
    let scene = Scene::nulls(30);
    let ended = scene.up(&["--fault", "stop: hang", "--set", "supervisor.shutdown_timeout=1s"]);
    let ended = ended.terminate().with_status(3);
    let report = scene.report();
    assert_eq!(troubled(&report).len(), 30);
    let wall = report["wall_s"].as_f64().unwrap();
    assert!((0.8..5.0).contains(&wall), "{wall}");
    assert!(ended.took < Duration::from_secs(20));
}

#[test]
fn every_stage_of_a_start_can_fail_and_the_others_come_up() {
    for (fault, said) in [
        ("add@2: ENOSPC", "ADD_DEV"),
        ("set_params@2: EINVAL", "SET_PARAMS"),
        ("open@2: ENXIO", "open"),
        ("serve@2: EAGAIN", "serve"),
        ("ready@2: EIO", "serve"),
        ("start@2: EPERM", "START_DEV"),
        ("node@2: ENOENT", "node"),
    ] {
        let scene = Scene::nulls(3);
        let daemon = scene.start(&["--fault", fault]);
        daemon.says("2 of 3 devices in service, 1 failed");
        let failed = daemon.says("start failed");
        let errno = fault.rsplit(' ').next().unwrap();
        assert!(failed.contains(said) && failed.contains(errno), "{fault}: {failed}");
        assert_eq!(scene.links().len(), 2, "{fault}");
        daemon.terminate().with_status(0);
        let report = scene.report();
        let bad = troubled(&report);
        assert!(bad.len() == 1 && bad[0]["outcome"] == "failed", "{fault}: {report}");
    }
}

#[test]
fn on_failure_decides_what_one_failure_means_for_the_others() {
    let continue_ = Scene::with(&format!("[supervisor]\non_failure = \"continue\"\n{}", nulls(4)));
    let daemon = continue_.start(&["--fault", "start@1: EIO"]);
    daemon.says("3 of 4 devices in service");
    daemon.terminate().with_status(0);

    let abort = Scene::with(&format!("[supervisor]\non_failure = \"abort\"\n{}", nulls(4)));
    let ended = abort.start(&["--fault", "start@4: EIO"]).ends().with_status(1);
    ended.saying(&["on_failure is abort", "stopping 4 devices"]);
    let report = abort.report();
    assert_eq!(troubled(&report).len(), 1, "{report}");
    assert_eq!(abort.links(), Vec::<String>::new());
}

#[test]
fn f38_twenty_failures_in_one_run_leave_nothing_in_the_process() {
    let scene = Scene::nulls(30);
    // The daemon counts its threads and files at its end: what failed has given everything back.
    let faults = ["--fault", "open: EIO x5; ready: EIO x5; start: EIO x5; node: EIO x5"];
    let daemon = scene.start(&faults);
    daemon.says("10 of 30 devices in service, 20 failed");
    let ended = daemon.terminate().with_status(0);
    assert!(ended.lines("left behind").is_empty(), "{}", ended.stderr);
}

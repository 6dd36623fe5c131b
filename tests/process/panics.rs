//! Panics: caught, told once at critical level with everything that is known, in the report, and
//! nobody else's business.

use serde_json::Value;

use crate::support::{Daemon, Ended, Scene, eventually};

/// Three devices; the middle one's target does `trouble` at its first sector, which the kernel
/// reads when it looks for partitions.
fn scene(trouble: &str) -> Scene {
    let device = |name: &str, more: &str| {
        format!("[[device]]\nname = \"{name}\"\ntarget = \"ram\"\nsize = \"1MiB\"\n{more}\n")
    };
    Scene::with(&(device("a", "") + &device("b", &format!("{trouble} = 0")) + &device("c", "")))
}

fn device<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["devices"].as_array().unwrap().iter().find(|d| d["name"] == name).unwrap()
}

/// Each line of a log in JSON.
fn lines(ended: &Ended) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    ended.stderr.lines().map(parse).collect()
}

fn critical(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["level"] == "critical").collect()
}

fn in_json(scene: &Scene, fault: &str) -> Daemon {
    let json = ["--set", "log.format=json", "--set", "supervisor.command_timeout=3s"];
    let fault = ["--fault", fault];
    scene.start(&[&json[..], if fault[1].is_empty() { &[] } else { &fault }].concat())
}

#[test]
fn f76_a_target_that_panics_is_told_once_and_harms_nobody_else() {
    let scene = scene("panic_at");
    let daemon = in_json(&scene, "");
    daemon.says(crate::support::IN_SERVICE);
    daemon.says("panic_at: a request touched sector 0");
    eventually("b is gone", || scene.links() == ["a", "c"]);
    let ended = daemon.terminate().with_status(0);

    let lines = lines(&ended);
    let critical = critical(&lines);
    assert_eq!(critical.len(), 1, "{critical:#?}");
    let text = critical[0].to_string();
    assert_eq!((&critical[0]["device"], &critical[0]["queue"]), (&"b".into(), &0.into()), "{text}");
    assert!(critical[0]["id"].is_u64(), "{text}");
    for part in ["panic_at: a request touched sector 0", "src/target/faulty.rs:", "b.q0"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }

    let report = scene.report();
    let b = device(&report, "b");
    assert_eq!(b["outcome"], "panicked", "{b}");
    let panic = &b["panics"].as_array().unwrap()[..];
    assert_eq!(panic.len(), 1, "{b}");
    assert!(panic[0]["location"].as_str().unwrap().starts_with("src/target/faulty.rs:"), "{b}");
    assert_eq!(
        (&report["outcomes"]["deleted"], b["left"].as_array().unwrap().len()),
        (&2.into(), 0)
    );
}

#[test]
fn f76_a_target_that_fails_is_no_panic_and_the_device_lives() {
    let scene = scene("error_at");
    let daemon = in_json(&scene, "");
    daemon.says(crate::support::IN_SERVICE);
    eventually("an error was counted", || {
        daemon.signal(nix::sys::signal::Signal::SIGUSR1);
        let of_b = daemon.lines("\"device\":\"b\"");
        of_b.iter().any(|line| line.contains("\"errors\":1") && line.contains("\"live\""))
    });
    assert_eq!(scene.links(), ["a", "b", "c"]);
    let ended = daemon.terminate().with_status(0);
    assert!(critical(&lines(&ended)).is_empty());
    assert_eq!(scene.report()["outcomes"]["deleted"], 3);
}

#[test]
fn f76_a_panic_in_a_command_is_told_once_with_the_device() {
    for (fault, part) in [
        ("add@2: panic", "ADD_DEV"),
        ("open@2: panic", "open"),
        ("start@2: panic", "START_DEV"),
        ("stop@2: panic", "STOP_DEV"),
        ("del_async@2: panic", "DEL_DEV_ASYNC"),
        ("info@2: panic", "GET_DEV_INFO"),
    ] {
        let scene = Scene::nulls(3);
        let daemon = in_json(&scene, fault);
        daemon.says(crate::support::IN_SERVICE);
        let ended = daemon.terminate();
        let report = scene.report();
        let left = report["left"].as_array().unwrap().len();
        assert_eq!(ended.code, Some(if left == 0 { 0 } else { 3 }), "{fault}: {report}");
        assert_eq!(report["outcomes"]["panicked"], 1, "{fault}: {report}");
        assert_eq!(report["outcomes"]["deleted"], 2, "{fault}: {report}");
        let lines = lines(&ended);
        let critical = critical(&lines);
        assert_eq!(critical.len(), 1, "{fault}: {critical:#?}");
        let text = critical[0].to_string();
        assert!(critical[0]["device"].is_string(), "{fault}: {text}");
        assert!(text.contains(part) && text.contains("src/driver/sim/fault/"), "{fault}: {text}");
    }
}

#[test]
fn a_log_in_json_is_json_in_every_line() {
    let scene = Scene::nulls(5);
    let trouble = "start@2: EIO; stop@3: EIO; del_async@4: hang";
    let daemon = in_json(&scene, trouble);
    daemon.says(crate::support::IN_SERVICE);
    daemon.signal(nix::sys::signal::Signal::SIGUSR1);
    daemon.says("SIGUSR1");
    let ended = daemon.terminate().with_status(3);
    for line in lines(&ended) {
        for key in ["ts", "level", "msg"] {
            assert!(line[key].is_string(), "no {key} in {line}");
        }
    }
}

//! The client's commands against a daemon on the simulated driver: what they do, what they print in
//! each form, how they end.

use serde_json::Value;

use crate::support::{Daemon, Ended, Scene, eventually};

const LEFT: i32 = 3;
const NOT_FOUND: i32 = 5;
const REFUSED: i32 = 6;
const TIMEOUT: i32 = 7;
const NO_DAEMON: i32 = 8;

fn spawn(scene: &Scene, args: &[&str]) -> Daemon {
    let mut command = scene.command(args);
    Daemon::spawn(command.env("UBLKD_SOCKET", scene.path("run/ublkd.sock")))
}

fn ublkd(scene: &Scene, args: &[&str]) -> Ended {
    spawn(scene, args).ends()
}

/// What a command prints that has to go well, and to say nothing else.
#[track_caller]
fn said(scene: &Scene, args: &[&str]) -> String {
    let ended = ublkd(scene, args).with_status(0);
    assert_eq!(ended.stderr, "", "{args:?}");
    ended.stdout
}

#[track_caller]
fn json(scene: &Scene, args: &[&str]) -> Value {
    serde_json::from_str(&said(scene, &[args, &["-o", "json"]].concat())).unwrap()
}

const NULL: [&str; 4] = ["--target", "null", "--size", "1MiB"];

#[test]
fn a_device_comes_and_goes() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let create =
        [&["create", "vol-1"][..], &NULL, &["--label", "app=db", "--label", "x=y"]].concat();
    assert_eq!(said(&scene, &create), "device/vol-1 created\n");
    assert_eq!(said(&scene, &create), "device/vol-1 unchanged\n");
    let other = ["create", "vol-1", "--target", "ram", "--size", "1MiB"];
    ublkd(&scene, &other).with_status(REFUSED).saying(&["vol-1"]);
    assert_eq!(scene.links(), ["d0", "vol-1"]);
    assert_eq!(
        said(&scene, &["wait", "vol-1", "device/d0"]),
        "device/vol-1 live\ndevice/d0 live\n"
    );

    let one = json(&scene, &["describe", "vol-1"]);
    assert_eq!((&one["name"], &one["labels"]["app"]), (&"vol-1".into(), &"db".into()));
    assert_eq!(json(&scene, &["describe", "d0", "vol-1"])["items"][1]["name"], "vol-1");
    let told = said(&scene, &["describe", "vol-1"]);
    assert!(
        told.starts_with("name:           vol-1\n") && told.contains("state:          live\n"),
        "{told}"
    );
    ublkd(&scene, &["describe", "nobody"]).with_status(NOT_FOUND).saying(&["nobody"]);

    assert_eq!(said(&scene, &["delete", "vol-1"]), "device/vol-1 deleted\n");
    assert_eq!(said(&scene, &["delete", "vol-1"]), "device/vol-1 absent\n");
    assert_eq!(json(&scene, &["delete", "vol-1"])["outcome"], "absent");
    assert_eq!(said(&scene, &["wait", "vol-1", "--for", "deleted"]), "device/vol-1 absent\n");
    assert_eq!(scene.links(), ["d0"]);
    daemon.terminate().with_status(0);
}

#[test]
fn a_list_has_a_form_for_everybody() {
    let scene = Scene::nulls(60);
    let daemon = scene.up(&[]);
    for name in ["a", "b"] {
        let label = format!("vm={name}");
        said(&scene, &[&["create", name, "--label", &label, "--group", "g"][..], &NULL].concat());
    }
    let table = said(&scene, &["list", "--group", "g"]);
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("2 devices: 2 live"));
    let head: Vec<_> = lines.nth(1).unwrap().split_whitespace().collect();
    assert_eq!(
        head,
        ["NAME", "NODE", "STATE", "TARGET", "SIZE", "GROUP", "SINCE", "LAST", "ERROR"]
    );
    assert!(lines.next().unwrap().starts_with("a  "), "{table}");
    assert!(said(&scene, &["list", "--group", "g", "-o", "wide"]).contains("vm=a"));
    assert_eq!(said(&scene, &["list", "--label", "vm=b", "-o", "name"]), "device/b\n");
    assert_eq!(said(&scene, &["list", "--state", "failed"]), "0 devices\n");
    assert_eq!(said(&scene, &["list", "--target", "ram", "-o", "name"]), "");
    // All of a long list, since this is no terminal; and all of its pages.
    assert_eq!(said(&scene, &["list"]).lines().count(), 62 + 3);
    assert_eq!(json(&scene, &["list"])["items"].as_array().unwrap().len(), 62);
    let yaml = said(&scene, &["list", "--label", "vm=a", "-o", "yaml"]);
    assert!(yaml.starts_with("items:\n  - ") && yaml.contains("\n    name: a\n"), "{yaml}");
    // What one command names another one takes.
    let names = said(&scene, &["list", "-o", "name"]);
    let names: Vec<_> = names.lines().collect();
    let deleted = said(&scene, &[&["delete"][..], &names].concat());
    assert_eq!(deleted.lines().count(), 62);
    assert!(deleted.lines().all(|line| line.ends_with(" deleted")), "{deleted}");
    daemon.terminate().with_status(0);
}

#[test]
fn files_make_many_devices_and_each_is_told() {
    let scene = Scene::nulls(1);
    // The first start is of the config's device.
    let daemon = scene.up(&["--fault", "start@3: EIO"]);
    scene.write(
        "more.toml",
        "[[device]]\nname = \"m{n}\"\ncount = 3\ntarget = \"null\"\nsize = \"1M\"\n",
    );
    let ended = ublkd(&scene, &["create", "-f", "more.toml", "--group", "g"]).with_status(1);
    assert_eq!(ended.stdout.lines().filter(|line| line.ends_with(" created")).count(), 2);
    ended.saying(&["START_DEV", "EIO"]);
    assert_eq!(scene.links().len(), 3);
    // Now all of them; those that are there stay.
    let told = said(&scene, &["create", "-f", "more.toml", "--group", "g"]);
    let count = |what: &str| told.lines().filter(|line| line.ends_with(what)).count();
    assert_eq!((count(" created"), count(" unchanged")), (1, 2), "{told}");

    scene.write(
        "two.json",
        r#"{"devices": [{"name": "j1", "target": "null", "size": "1M"},
        {"name": "j2", "target": "ram", "size": 1048576, "labels": {"a": "b"}}]}"#,
    );
    let items = json(&scene, &["create", "-f", "two.json", "--label", "c=d"]);
    assert_eq!(items["items"].as_array().unwrap().len(), 2);
    let labels = &json(&scene, &["describe", "j2"])["labels"];
    assert_eq!((&labels["a"], &labels["c"]), (&"b".into(), &"d".into()));
    scene.write("wrong.json", r#"[{"name": "w", "target": "nil", "size": "1M"}]"#);
    ublkd(&scene, &["create", "-f", "wrong.json"]).with_status(2).saying(&["nil"]);
    daemon.terminate().with_status(0);
}

#[test]
fn all_or_none_leaves_none() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--fault", "start@4: EIO"]);
    let devices = "[[device]]\nname = \"m{n}\"\ncount = 5\ntarget = \"null\"\nsize = \"1M\"\n";
    scene.write("more.toml", devices);
    let ended = ublkd(&scene, &["create", "-f", "more.toml", "--group", "g", "--atomic"]);
    assert_ne!(ended.code, Some(0), "{}", ended.stdout);
    ended.saying(&["EIO"]);
    assert_eq!(scene.links(), ["d0"]);
    let told =
        said(&scene, &["create", "-f", "more.toml", "--group", "g", "--atomic", "-o", "name"]);
    assert_eq!(told.lines().count(), 5);
    daemon.terminate().with_status(0);
}

#[test]
fn a_group_goes_at_once() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    let devices = "[[device]]\nname = \"m{n}\"\ncount = 8\ntarget = \"null\"\nsize = \"1M\"\n";
    scene.write("more.toml", devices);
    said(&scene, &["create", "-f", "more.toml", "--group", "vm-7"]);
    assert_eq!(said(&scene, &["groups"]), "GROUP  DEVICES  STATES\nvm-7         8  8 live\n");
    assert_eq!(said(&scene, &["groups", "-o", "name"]), "group/vm-7\n");
    let told = said(&scene, &["delete", "--group", "vm-7"]);
    let expected: String = (0..8).map(|n| format!("device/m{n} deleted\n")).collect();
    assert_eq!(told, expected);
    assert_eq!(said(&scene, &["delete", "--group", "vm-7"]), "group/vm-7 absent\n");
    assert_eq!(scene.links(), ["d0", "d1"]);
    daemon.terminate().with_status(0);
}

#[test]
fn what_is_left_is_named_and_has_a_status() {
    let scene = Scene::nulls(1);
    let fault = ["--fault", "stop@1-2: hang", "--set", "supervisor.command_timeout=2s"];
    let daemon = scene.up(&fault);
    for name in ["a", "b", "c"] {
        said(&scene, &[&["create", name, "--group", "g"][..], &NULL].concat());
    }
    let ended = ublkd(&scene, &["delete", "d0"]).with_status(LEFT);
    assert_eq!(ended.stdout, "");
    ended.saying(&["d0", "STOP_DEV"]);
    let ended = ublkd(&scene, &["delete", "--group", "g"]).with_status(LEFT);
    assert_eq!(ended.stdout, "");
    ended.saying(&["left of group g", "queue threads"]);
    assert_eq!(said(&scene, &["list", "--group", "g", "--state", "live"]), "0 devices\n");
    daemon.terminate().with_status(LEFT);
}

#[test]
fn a_change_that_takes_longer_than_asked_goes_on() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--fault", "stop@1: delay 5s"]);
    let ended = ublkd(&scene, &["delete", "d0", "--within", "1s"]).with_status(TIMEOUT);
    ended.saying(&["goes on"]);
    let ended = ublkd(&scene, &["wait", "d0", "--for", "deleted", "--within", "500ms"]);
    ended.with_status(TIMEOUT).saying(&["d0", "stopping"]);
    assert_eq!(said(&scene, &["wait", "d0", "--for", "deleted"]), "device/d0 absent\n");
    daemon.terminate().with_status(0);
}

#[test]
fn waiting_for_what_cannot_come_ends_at_once() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&["--fault", "start@1: EIO"]);
    let failed = said(&scene, &["list", "--state", "failed", "-o", "name"]);
    let ended = ublkd(&scene, &["wait", failed.trim(), "--within", "60s"]).with_status(1);
    assert!(ended.took.as_secs() < 20, "{:?}", ended.took);
    ended.saying(&["failed", "EIO"]);
    daemon.terminate().with_status(0);
}

#[test]
fn of_several_devices_each_is_looked_at_whatever_the_first_is() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let ended = ublkd(&scene, &["describe", "none", "d0", "-o", "name"]).with_status(NOT_FOUND);
    assert_eq!(ended.stdout, "device/d0\n");
    let wait = ["wait", "none", "d0", "--within", "300ms"];
    let ended = ublkd(&scene, &wait).with_status(TIMEOUT).saying(&["none is absent"]);
    assert_eq!(ended.stdout, "device/d0 live\n");
    daemon.terminate().with_status(0);
}

#[test]
fn events_tell_every_change_once_and_in_order_and_go_on_where_they_stopped() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    said(&scene, &[&["create", "a"][..], &NULL].concat());
    said(&scene, &["delete", "a"]);
    // Two lives: d0 until it is live, a until it is gone.
    let lines = said(&scene, &["events", "--from", "1", "--count", "6", "-o", "json"]);
    let events: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<_> = events.iter().map(|event| event["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    let states = |name: &str| -> Vec<_> {
        let of = events.iter().filter(|event| event["device"] == name);
        of.map(|data| {
            format!("{}>{}", data["from"].as_str().unwrap(), data["to"].as_str().unwrap())
        })
        .collect()
    };
    assert_eq!(states("d0"), ["waiting>starting", "starting>live"]);
    assert_eq!(
        states("a"),
        ["waiting>starting", "starting>live", "live>stopping", "stopping>gone"]
    );

    let rest = said(&scene, &["events", "--from", "5", "--count", "2"]);
    let words: Vec<Vec<_>> = rest.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((words[0][0], words[1][0], words[1][2]), ("5", "6", "a"), "{rest}");
    assert!(rest.ends_with("  stopping -> gone\n"), "{rest}");

    // One that follows sees the end of the daemon, and says where to go on.
    let follower = spawn(&scene, &["events", "--from", "6"]);
    let mut head = scene.command(&["events", "--from", "1"]);
    let (mut reader, stdout) = std::io::pipe().unwrap();
    let head = Daemon::spawn(head.env("UBLKD_SOCKET", scene.path("run/ublkd.sock")).stdout(stdout));
    let mut first = [0; 1];
    std::io::Read::read_exact(&mut reader, &mut first).unwrap();
    drop(reader);
    said(&scene, &[&["create", "b"][..], &NULL].concat());
    // A reader that has gone is no error.
    assert_eq!(head.ends().with_status(0).stderr, "");
    daemon.terminate().with_status(0);
    let ended = follower.ends().with_status(NO_DAEMON);
    ended.saying(&["has ended the events", "--from"]);
}

#[test]
fn a_reload_is_told_before_it_is_done() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    scene.write("ublkd.toml", &crate::support::nulls(3));
    let plan = said(&scene, &["reload", "--dry-run"]);
    assert_eq!(plan, "device/d2 created (dry run)\n2 devices unchanged\n");
    assert_eq!(scene.links(), ["d0", "d1"]);
    assert_eq!(said(&scene, &["reload"]), "device/d2 created\n2 devices unchanged\n");
    assert_eq!(scene.links(), ["d0", "d1", "d2"]);
    scene.write("ublkd.toml", "[[device]]\nname = \"d0\"\nsize = 12\n");
    ublkd(&scene, &["reload"]).with_status(2).saying(&["ublkd.toml"]);
    assert_eq!(scene.links(), ["d0", "d1", "d2"]);
    daemon.terminate().with_status(0);
}

#[test]
fn a_shutdown_that_runs_out_of_its_time_still_gives_its_report() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--fault", "stop: hang"]);
    ublkd(&scene, &["shutdown", "--within", "1s"]).with_status(LEFT).saying(&["left: d0"]);
    daemon.ends().with_status(LEFT);
}

#[test]
fn a_shutdown_tells_what_became_of_the_devices() {
    let scene = Scene::nulls(3);
    let daemon = scene.up(&[]);
    let told = said(&scene, &["shutdown"]);
    assert!(
        told.starts_with("shut down 3 devices in ") && told.ends_with(": 3 deleted\n"),
        "{told}"
    );
    daemon.ends().with_status(0);
    eventually("the socket is gone", || ublkd(&scene, &["list"]).code == Some(NO_DAEMON));

    let fault = ["--fault", "stop@2: hang", "--set", "supervisor.command_timeout=2s"];
    let daemon = scene.up(&fault);
    let ended = ublkd(&scene, &["shutdown", "--within", "30s", "-o", "json"]).with_status(LEFT);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        (&report["outcomes"]["deleted"], &report["outcomes"]["wedged"]),
        (&2.into(), &1.into())
    );
    ended.saying(&["left: "]);
    daemon.ends().with_status(LEFT);
}

#[test]
fn names_of_devices_and_groups_are_completed() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    said(&scene, &[&["create", "vol-1", "--group", "vm-7"][..], &NULL].concat());
    let offered = |words: &[&str]| {
        let mut command = scene.command(&["--"]);
        command.env("UBLKD_COMPLETE", "bash").args(words);
        command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("UBLKD_SOCKET", scene.path("run/ublkd.sock"));
        Daemon::spawn(&mut command).ends().stdout
    };
    assert_eq!(offered(&["ublkd", "describe", "v"]), "vol-1");
    assert_eq!(offered(&["ublkd", "delete", "d"]), "d0\nd1");
    assert_eq!(offered(&["ublkd", "delete", "--group", "v"]), "vm-7");
    daemon.terminate().with_status(0);
}

#[test]
fn how_data_gets_to_a_target_is_chosen_by_flags_too() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let create = |data| [&["create", "a"][..], &NULL, &["--batch", "--data", data]].concat();
    assert_eq!(said(&scene, &create("user_copy")), "device/a created\n");
    assert_eq!(said(&scene, &create("user_copy")), "device/a unchanged\n");
    ublkd(&scene, &create("copy")).with_status(REFUSED).saying(&["data"]);
    let plain = [&["create", "a"][..], &NULL, &["--data", "user_copy"]].concat();
    ublkd(&scene, &plain).with_status(REFUSED).saying(&["batch"]);
    ublkd(&scene, &create("by_hand")).with_status(2).saying(&["zero_copy"]);
    daemon.terminate().with_status(0);
}

#[test]
fn queue_threads_are_left_unbound_where_that_is_asked_for() {
    let scene = Scene::with(
        "[[device]]\nname = \"free\"\ntarget = \"null\"\nsize = \"1M\"\nqueues = 2\n\
         affinity = false\n",
    );
    let daemon = scene.up(&[]);
    let create = [&["create", "a"][..], &NULL, &["--queues", "2"]].concat();
    let unbound = [&create[..], &["--no-affinity"]].concat();
    assert_eq!(said(&scene, &unbound), "device/a created\n");
    assert_eq!(said(&scene, &unbound), "device/a unchanged\n");
    ublkd(&scene, &create).with_status(REFUSED).saying(&["affinity"]);
    for name in ["a", "free"] {
        assert_eq!(json(&scene, &["describe", name])["processors"], serde_json::json!([]));
    }
    let bound = [&["create", "b"][..], &create[2..]].concat();
    assert_eq!(said(&scene, &bound), "device/b created\n");
    // The simulated kernel has more processors than may be here; the first ones are.
    let processors = json(&scene, &["describe", "b"])["processors"].clone();
    assert_eq!(processors.as_array().map(Vec::len), Some(2), "{processors}");
    assert!(processors[0].is_string(), "{processors}");
    daemon.terminate().with_status(0);
}

#[test]
fn live_devices_change_where_the_kernel_can() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    said(&scene, &[&["create", "a", "--recovery"][..], &NULL].concat());
    assert_eq!(said(&scene, &["resize", "a", "2MiB"]), "device/a resized to 2 MiB\n");
    assert_eq!(json(&scene, &["describe", "a"])["size"], 2 << 20);
    ublkd(&scene, &["resize", "a", "1MiB"]).saying(&["shrink"]);
    assert_eq!(said(&scene, &["resize", "a", "1MiB", "--shrink"]), "device/a resized to 1 MiB\n");
    assert_eq!(said(&scene, &["quiesce", "a"]), "device/a quiesced\n");
    assert_eq!(said(&scene, &["wait", "a", "--for", "quiesced"]), "device/a quiesced\n");
    assert_eq!(said(&scene, &["resume", "a"]), "device/a resumed\n");
    // What cannot be quiesced was never held back.
    for verb in ["quiesce", "resume"] {
        ublkd(&scene, &[verb, "d0"]).with_status(REFUSED).saying(&["without recovery", verb]);
    }
    let features = json(&scene, &["features"]);
    assert_eq!((&features["driver"], &features["resize"]), (&"sim".into(), &true.into()));
    assert!(said(&scene, &["features"]).contains("quiesce"));
    daemon.terminate().with_status(0);

    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--sim-kernel", "6.12"]);
    ublkd(&scene, &["resize", "d0", "2MiB"]).with_status(REFUSED).saying(&["6.16"]);
    ublkd(&scene, &["quiesce", "d0"]).with_status(REFUSED).saying(&["d0"]);
    daemon.terminate().with_status(0);
}

#[test]
fn a_config_without_devices_serves_those_of_the_api_and_a_reload_leaves_them() {
    let scene = Scene::nulls(0);
    scene.write("ublkd.toml", "[api]\nenabled = true\n");
    let daemon = scene.up(&[]);
    said(&scene, &[&["create", "a"][..], &NULL].concat());
    said(&scene, &["reload"]);
    assert_eq!(scene.links(), ["a"]);
    daemon.terminate().with_status(0);
}

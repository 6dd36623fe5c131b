//! HUP: the config's devices become what it says now, or nothing changes.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use nix::sys::signal::Signal::{SIGHUP, SIGTERM};
use serde_json::json;

use crate::support::{Daemon, IN_SERVICE, SOON, Scene, eventually, nulls};

fn device(name: &str, size: &str, more: &str) -> String {
    format!(
        "[[device]]\nname = \"{name}\"\ntarget = \"null\"\nsize = \"{size}\"\ndepth = 4\n\
         max_io = \"4KiB\"\n{more}\n"
    )
}

fn reloads(daemon: &Daemon, times: usize) -> String {
    daemon.signal(SIGHUP);
    eventually("a reload", || daemon.lines("reloaded: ").len() == times);
    daemon.lines("reloaded: ").remove(times - 1)
}

#[test]
fn f11_hup_makes_the_devices_what_the_config_says_now() {
    let scene = Scene::nulls(4);
    let daemon = scene.up(&[]);
    let same = reloads(&daemon, 1);
    assert!(
        same.contains("0 created, 0 deleted, 0 replaced, 0 resized, 4 kept; 0 failed"),
        "{same}"
    );

    // d0 as it is, d1 with another depth, no d2 and d3, a new one.
    let config =
        [device("d0", "1MiB", ""), device("d1", "1MiB", "queues = 2"), device("new", "1MiB", "")];
    scene.write("ublkd.toml", &config.concat());
    let line = reloads(&daemon, 2);
    assert!(
        line.contains("1 created, 2 deleted, 1 replaced, 0 resized, 1 kept; 0 failed"),
        "{line}"
    );
    assert_eq!(scene.links(), ["d0", "d1", "new"]);

    // What the config makes later is the config's too.
    scene.write("ublkd.toml", &nulls(1));
    let line = reloads(&daemon, 3);
    assert!(
        line.contains("0 created, 2 deleted, 0 replaced, 0 resized, 1 kept; 0 failed"),
        "{line}"
    );
    assert_eq!(scene.links(), ["d0"]);
    daemon.terminate().with_status(0);
    assert_eq!(scene.report()["outcomes"]["deleted"], 1);
}

#[test]
fn f81_a_bad_config_changes_nothing_and_every_problem_is_told() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    let bad = [device("d0", "12Q", ""), device("d1", "1MiB", "qeues = 2")].concat();
    scene.write("ublkd.toml", &bad);
    daemon.signal(SIGHUP);
    let line = daemon.says("reload refused, nothing was changed");
    assert!(line.contains("12Q"), "{line}");
    daemon.says("qeues");
    assert_eq!(scene.links(), ["d0", "d1"]);

    std::fs::remove_file(scene.path("ublkd.toml")).unwrap();
    daemon.signal(SIGHUP);
    eventually("a second refusal", || daemon.lines("reload refused").len() == 2);
    assert_eq!(scene.links(), ["d0", "d1"]);
    daemon.terminate().with_status(0);
}

#[test]
fn what_fails_is_named_the_rest_is_done_and_the_next_reload_tries_again() {
    let scene = Scene::nulls(1);
    // The first device is ADD number 1; the reload adds two.
    let daemon = scene.up(&["--fault", "add@2: EIO"]);
    scene.write("ublkd.toml", &nulls(3));
    let line = reloads(&daemon, 1);
    assert!(line.contains("2 created, 0 deleted") && line.contains("1 failed"), "{line}");
    assert_eq!(daemon.lines("ERRO reload: ").len(), 1);
    assert_eq!(scene.links().len(), 2);
    let line = reloads(&daemon, 2);
    assert!(line.contains("1 created") && line.contains("2 kept; 0 failed"), "{line}");
    assert_eq!(scene.links(), ["d0", "d1", "d2"]);
    daemon.terminate().with_status(0);
}

#[test]
fn settings_that_need_a_restart_are_named() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    scene.write("ublkd.toml", &format!("[supervisor]\nworkers = 3\n{}", nulls(1)));
    reloads(&daemon, 1);
    daemon.says("reload: supervisor.workers takes effect after a restart");
    assert_eq!(daemon.lines("after a restart").len(), 1);
    daemon.terminate().with_status(0);
}

#[test]
fn f89_a_stop_cuts_a_reload_short_and_takes_down_what_it_began() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&["--fault", "start@3+: delay 2s"]);
    scene.write("ublkd.toml", &nulls(40));
    daemon.signal(SIGHUP);
    daemon.says("the config is read again");
    std::thread::sleep(Duration::from_millis(300));
    daemon.signal(SIGHUP);
    daemon.signal(SIGTERM);
    let ended = daemon.ends().with_status(0);
    assert!(ended.lines("reloaded: ").is_empty(), "{}", ended.stderr);
    assert!(scene.links().is_empty());
    assert!(scene.report()["left"].as_array().unwrap().is_empty());
}

/// What the service manager was told, until `last` was.
fn told(socket: &UnixDatagram, last: &str) -> Vec<String> {
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut told: Vec<String> = Vec::new();
    while !told.last().is_some_and(|text| text.contains(last)) {
        let mut message = [0; 4096];
        let len = socket.recv(&mut message).unwrap();
        told.push(String::from_utf8(message[..len].to_vec()).unwrap());
    }
    told
}

#[test]
fn the_service_manager_is_told_of_a_reload_and_fed_by_a_supervisor_that_answers() {
    let scene = Scene::nulls(2);
    let path = scene.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut command = scene.run(&[]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "300000");
    let daemon = Daemon::spawn(&mut command);
    daemon.says(IN_SERVICE);
    told(&socket, "READY=1");
    told(&socket, "WATCHDOG=1");

    daemon.signal(SIGHUP);
    let reload = told(&socket, "RELOADING=1");
    let usec = reload.last().unwrap().split("MONOTONIC_USEC=").nth(1).unwrap();
    assert!(usec.lines().next().unwrap().parse::<u64>().unwrap() > 0);
    let ready = told(&socket, "READY=1");
    assert!(ready.last().unwrap().contains("STATUS=reloaded: "), "{ready:?}");
    told(&socket, "WATCHDOG=1");
    daemon.terminate().with_status(0);
}

#[test]
fn a_dry_run_says_what_a_reload_then_does_and_devices_of_the_api_are_left_alone() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    let api = scene.api();
    let mine = json!({"name": "mine", "target": "null", "size": "1MiB"});
    api.post("/api/v1/devices", &mine).is(201);
    scene.write("ublkd.toml", &[device("d0", "2MiB", ""), device("d7", "1MiB", "")].concat());

    let planned = |report: &serde_json::Value| {
        let lists = ["create", "delete", "replace", "keep"].map(|key| report[key].clone());
        let grown = report["resize"][0].clone();
        (lists, grown)
    };
    let dry = api.post("/api/v1/reload", &json!({"dry_run": true})).is(200);
    let none = json!([]);
    let plan = (
        [json!(["d7"]), json!(["d1"]), none.clone(), none],
        json!({"name": "d0", "from": 1 << 20, "to": 2 << 20}),
    );
    assert_eq!((planned(&dry), &dry["dry_run"]), (plan.clone(), &json!(true)));
    assert_eq!(scene.links(), ["d0", "d1", "mine"]);

    let done = api.ask("POST", "/api/v1/reload", &[], None).is(200);
    assert_eq!((planned(&done), &done["failed"]), (plan, &json!({})));
    assert_eq!(scene.links(), ["d0", "d7", "mine"]);
    assert_eq!(api.get("/api/v1/devices/d0").is(200)["size"], 2 << 20);
    let again = api.post("/api/v1/reload", &json!({})).is(200);
    assert_eq!(planned(&again).0[3], json!(["d0", "d7"]));

    // A name that is the API's cannot become the config's.
    scene.write("ublkd.toml", &[device("mine", "1MiB", ""), device("d8", "1MiB", "")].concat());
    let clash = api.post("/api/v1/reload", &json!({})).problem(409, "exists");
    assert!(clash["detail"].as_str().unwrap().contains("mine"), "{clash}");
    scene.write("ublkd.toml", "[[device]]\nname = \"x\"\n");
    let bad = api.post("/api/v1/reload", &json!({})).problem(422, "invalid");
    assert!(bad["detail"].as_str().unwrap().contains("target"), "{bad}");
    assert_eq!(scene.links(), ["d0", "d7", "mine"]);
    daemon.terminate().with_status(0);
}

#[test]
fn reloads_at_once_follow_one_another() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--fault", "start@2+: delay 200ms"]);
    scene.write("ublkd.toml", &nulls(8));
    let reload = || scene.api().post("/api/v1/reload", &json!({})).is(200);
    let reports: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(reload)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let created = |report: &&serde_json::Value| report["create"] != json!([]);
    assert_eq!(reports.iter().filter(created).count(), 1, "{reports:?}");
    assert!(reports.iter().all(|report| report["failed"] == json!({})), "{reports:?}");
    assert_eq!(scene.links().len(), 8);
    daemon.terminate().with_status(0);
}

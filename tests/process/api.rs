//! The HTTP API: devices, refusals, the daemon's own life, its socket.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::signal::Signal::SIGTERM;
use serde_json::json;

use crate::http::{Answer, Api};
use crate::support::{Daemon, IN_SERVICE, Scene, bare};

#[test]
fn devices_come_are_described_and_go() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    let api = scene.api();
    let spec = json!({"name": "vol-1", "target": "ram", "size": "2MiB", "queues": 2, "depth": 8});
    let made = api.post("/api/v1/devices", &spec).is(201);
    assert_eq!(made["state"], "live");
    assert_eq!(made["size"], 2 << 20);
    assert_eq!((made["queues"].as_u64(), made["depth"].as_u64()), (Some(2), Some(8)));
    let described = api.get("/api/v1/devices/vol-1").is(200);
    assert_eq!((&described["id"], &described["path"]), (&made["id"], &made["path"]));
    assert_eq!(scene.links(), ["d0", "d1", "vol-1"]);

    let deleted = api.delete("/api/v1/devices/vol-1").is(200);
    assert_eq!((&deleted["outcome"], &deleted["left"]), (&json!("deleted"), &json!([])));
    assert_eq!(api.delete("/api/v1/devices/vol-1").is(200)["outcome"], "absent");
    api.get("/api/v1/devices/vol-1").problem(404, "not_found");
    assert_eq!(scene.links(), ["d0", "d1"]);
    daemon.terminate().with_status(0);
}

#[test]
fn lists_are_filtered_and_paged() {
    let scene = Scene::nulls(5);
    let daemon = scene.up(&[]);
    let api = scene.api();
    api.post("/api/v1/devices", &json!({"name": "r", "target": "ram", "size": 4096})).is(201);
    let names = |path: &str| {
        let page = api.get(path).is(200);
        let items = page["items"].as_array().unwrap().clone();
        let names: Vec<_> = items.iter().map(|d| d["name"].as_str().unwrap().to_owned()).collect();
        (names, page["next"].clone())
    };
    assert_eq!(names("/api/v1/devices").0, ["d0", "d1", "d2", "d3", "d4", "r"]);
    assert_eq!(names("/api/v1/devices?target=ram").0, ["r"]);
    assert_eq!(names("/api/v1/devices?state=wedged").0, [""; 0]);
    let (first, next) = names("/api/v1/devices?limit=4");
    assert_eq!((first.len(), &next), (4, &json!("d3")));
    assert_eq!(
        names("/api/v1/devices?limit=4&after=d3"),
        (vec!["d4".into(), "r".into()], json!(null))
    );
    for query in ["state=up", "limit=0", "limit=x", "after=-"] {
        let key = query.split('=').next().unwrap();
        let problem = api.get(&format!("/api/v1/devices?{query}")).problem(422, "invalid");
        assert_eq!(problem["errors"][0]["key"], key);
    }
    for query in ["colour=red", "limit=1&limit=2"] {
        api.get(&format!("/api/v1/devices?{query}")).problem(400, "malformed");
    }
    daemon.terminate().with_status(0);
}

#[test]
fn head_has_the_headers_of_get_and_no_content() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let api = scene.api();
    let head = |path: &str| api.ask("HEAD", path, &[], None);
    let lasting = |answer: Answer| {
        let headers = answer.headers.into_iter().filter(|(name, _)| name != "date");
        (answer.status, headers.collect::<Vec<_>>())
    };
    for path in ["/openapi.json", "/api/v1/groups", "/api/v1/devices/none", "/nowhere"] {
        let head = head(path);
        assert_eq!(head.body, "", "{path}");
        assert_eq!(lasting(head), lasting(api.get(path)), "{path}");
    }
    // Without an end of its own: the answer is the head alone.
    let events = head("/api/v1/events");
    assert_eq!((events.status, events.header("content-type")), (200, Some("text/event-stream")));
    head("/api/v1/shutdown").is(405);
    daemon.terminate().with_status(0);
}

#[test]
fn whatever_is_refused_is_a_problem_document() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let api = scene.api();
    api.get("/nowhere").problem(404, "not_found");
    let answer = api.ask("PATCH", "/api/v1/devices/d0", &[], None);
    answer.problem(405, "method");
    assert_eq!(answer.header("allow"), Some("GET, HEAD, DELETE"));
    let text = [("content-type", "text/plain"), ("content-length", "2")];
    // The body follows the head; the server answers without it.
    api.ask("POST", "/api/v1/devices", &text, None).problem(415, "media_type");
    api.ask("POST", "/api/v1/devices", &[], None).problem(400, "malformed");
    api.post("/api/v1/devices", &json!([])).problem(422, "invalid");
    let unknown_key = json!({"size": "1MiB", "grow": true});
    let problem = api.post("/api/v1/devices/d0/resize", &unknown_key).problem(422, "invalid");
    assert_eq!(problem["type"], "urn:ublkd:problem:invalid");
    assert_eq!(problem["title"], "Unprocessable Entity");
    api.get("/api/v1/devices/.hidden").problem(422, "invalid");
    api.get("/api/v1/operations/77").problem(404, "not_found");
    let large = json!({ "name": "x".repeat(5 << 20) });
    api.post("/api/v1/devices", &large).problem(413, "too_large");
    let wrong = json!({"name": "a", "target": "ram", "sise": 4096, "size": 513, "depth": 0});
    let problem = api.post("/api/v1/devices", &wrong).problem(422, "invalid");
    let keys: Vec<_> = problem["errors"].as_array().unwrap().iter().map(|e| &e["key"]).collect();
    assert_eq!(keys, ["depth", "sise", "size"]);
    assert!(problem["detail"].as_str().unwrap().contains("depth: 0 is out of range: 1 to 4096"));
    let relative = json!({"name": "a", "target": "loop", "path": "disk.img"});
    let problem = api.post("/api/v1/devices", &relative).problem(422, "invalid");
    assert!(problem["detail"].as_str().unwrap().contains("write an absolute path"));
    let fleet = json!({"name": "a{n}", "target": "ram", "size": 4096, "count": 3});
    api.post("/api/v1/devices", &fleet).problem(422, "invalid");
    daemon.terminate().with_status(0);
}

#[test]
fn f92_an_error_of_the_driver_keeps_device_stage_and_errno() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--fault", "start@2: EBUSY"]);
    let api = scene.api();
    let spec = json!({"name": "vol", "target": "ram", "size": 4096});
    let problem = api.post("/api/v1/devices", &spec).problem(409, "busy");
    assert_eq!(problem["device"], "vol");
    assert_eq!(problem["stage"], "start");
    assert_eq!(problem["errno"], nix::libc::EBUSY);
    daemon.terminate().with_status(0);
}

#[test]
fn a_call_that_takes_long_goes_on_without_the_client() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--fault", "add@2: delay 1s"]);
    let api = scene.api();
    let spec = json!({"name": "slow", "target": "ram", "size": 4096});
    let answer = api.ask("POST", "/api/v1/devices", &[("prefer", "respond-async")], Some(&spec));
    let operation = answer.is(202);
    assert_eq!((&operation["state"], &operation["action"]), (&json!("running"), &json!("create")));
    let place = answer.header("location").unwrap().to_owned();
    assert_eq!(api.get(&place).is(200)["state"], "running");
    let ended = api.get(&format!("{place}?wait=20s")).is(200);
    assert_eq!((&ended["state"], &ended["status"]), (&json!("succeeded"), &json!(201)));
    assert_eq!(ended["result"]["name"], "slow");
    // The client's own deadline: the delete goes on.
    let answer = api.ask("DELETE", "/api/v1/devices/slow", &[("prefer", "wait=0")], None);
    let place = answer.is(202)["id"].as_str().unwrap().to_owned();
    let ended = api.get(&format!("/api/v1/operations/{place}?wait=20s")).is(200);
    assert_eq!(ended["result"]["outcome"], "deleted");
    daemon.terminate().with_status(0);
}

#[test]
fn overload_is_told_with_when_to_come_back() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[
        "--set",
        "supervisor.mailbox=1",
        "--set",
        "supervisor.workers=1",
        "--fault",
        "add@2+: delay 2s",
    ]);
    let api = scene.api();
    let make = |n: u32| {
        let spec = json!({"name": format!("x{n}"), "target": "ram", "size": 4096});
        api.ask("POST", "/api/v1/devices?wait=200ms", &[], Some(&spec))
    };
    let answers: Vec<_> = (0..3).map(make).collect();
    assert_eq!((answers[0].status, answers[1].status), (202, 202));
    answers[2].problem(503, "overloaded");
    assert_eq!(answers[2].header("retry-after"), Some("1"));
    daemon.terminate().with_status(0);
}

#[test]
fn ready_only_when_the_devices_are_up_and_no_more_when_they_go() {
    let scene = Scene::nulls(2);
    let daemon = scene.start(&["--fault", "add@2: delay 1s; stop: delay 1s"]);
    daemon.says("the API is served");
    let api = scene.api();
    let answer = api.get("/healthz");
    answer.problem(503, "starting");
    assert_eq!(api.get("/healthz/live").is(200)["phase"], "starting");
    daemon.says(IN_SERVICE);
    assert_eq!(api.get("/healthz/ready").is(200)["pid"], daemon.pid().as_raw());
    assert_eq!(api.get("/api/v1/report").is(200)["report"], json!(null));
    daemon.signal(SIGTERM);
    daemon.says("stopping 2 devices");
    let report = api.get("/api/v1/report").is(200);
    assert_eq!((&report["phase"], &report["remaining"]), (&json!("stopping"), &json!(2)));
    api.get("/healthz/ready").problem(503, "stopping");
    let spec = json!({"name": "late", "target": "ram", "size": 4096});
    api.post("/api/v1/devices", &spec).problem(503, "stopping");
    daemon.ends().with_status(0);
    assert!(!scene.path("run/ublkd.sock").exists());
}

#[test]
fn a_shutdown_that_is_asked_for_is_answered_with_its_report() {
    let scene = Scene::nulls(3);
    let daemon = scene.up(&[]);
    let api = scene.api();
    api.post("/api/v1/shutdown", &json!({"within": "1ms"})).problem(422, "invalid");
    api.post("/api/v1/shutdown", &json!({"within": 3})).problem(422, "invalid");
    let report = api.post("/api/v1/shutdown", &json!({"within": "20s"})).is(200);
    assert_eq!(report["outcomes"]["deleted"], 3);
    assert_eq!(report["left"], json!([]));
    daemon.ends().with_status(0).saying(&["the API: orderly shutdown", "within_s: 20"]);
}

#[test]
fn asking_for_the_end_twice_forces_nothing() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&["--fault", "stop: delay 1s"]);
    let api = scene.api();
    let asks: Vec<_> = (0..3)
        .map(|_| {
            let api = api.clone();
            std::thread::spawn(move || api.post("/api/v1/shutdown", &json!({})).is(200))
        })
        .collect();
    for ask in asks {
        let report = ask.join().unwrap();
        assert_eq!((&report["forced"], &report["outcomes"]["deleted"]), (&json!(false), &json!(2)));
    }
    daemon.ends().with_status(0);
}

#[test]
fn the_socket_is_its_owners_alone_unless_the_config_says_otherwise() {
    let scene = Scene::nulls(1);
    let mode = |expected: u32| {
        let meta = fs::symlink_metadata(scene.path("run/ublkd.sock")).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o7777, expected);
        meta
    };
    let daemon = scene.up(&[]);
    mode(0o600);
    daemon.terminate().with_status(0);
    let group = nix::unistd::getgid().to_string();
    let group = format!("api.group={group}");
    let daemon = scene.up(&["--set", "api.mode=0660", "--set", &group]);
    assert_eq!(mode(0o660).gid(), nix::unistd::getgid().as_raw());
    daemon.terminate().with_status(0);
    let ended = scene.start(&["--set", "api.owner=nobody-of-this-name"]).ends().with_status(1);
    ended.saying(&["there is no user", "see owner and group of [api]"]);
    let daemon = scene.up(&["--set", "api.enabled=false"]);
    assert!(!scene.path("run/ublkd.sock").exists());
    daemon.terminate().with_status(0);
}

#[test]
fn f54_a_socket_that_a_killed_daemon_left_is_replaced() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    daemon.signal(nix::sys::signal::Signal::SIGKILL);
    daemon.ends();
    assert!(scene.path("run/ublkd.sock").exists());
    let daemon = scene.up(&[]);
    assert_eq!(scene.api().get("/healthz").is(200)["pid"], daemon.pid().as_raw());
    daemon.terminate().with_status(0);
}

#[test]
fn what_is_not_ours_is_left_alone_and_the_daemon_does_not_start() {
    let scene = Scene::nulls(1);
    let path = scene.write("run/ublkd.sock", "mine");
    let refused = |what: &str| {
        let ended = scene.start(&[]).ends().with_status(1);
        ended.saying(&[what, "it is left alone", "supervisor.run_dir"]);
    };
    refused("is no socket");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/null", &path).unwrap();
    refused("is a symbolic link");
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    refused("another process listens on");
    drop(other);
    let daemon = scene.up(&[]);
    // Somebody puts another one there: that one is not removed.
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    daemon.terminate().with_status(0);
    assert!(path.exists());
}

#[test]
fn f07_the_next_daemons_socket_survives_the_end_of_the_one_before() {
    let scene = Scene::nulls(2);
    let first = scene.up(&["--fault", "stop: delay 1s"]);
    first.signal(SIGTERM);
    first.says("SIGTERM: orderly shutdown");
    let second = Daemon::spawn(scene.command(&["run", "-c", "ublkd.toml"]).args(scene.sim()));
    second.says("waiting for the daemon before");
    first.ends().with_status(0);
    second.says(IN_SERVICE);
    assert_eq!(scene.api().get("/healthz").is(200)["pid"], second.pid().as_raw());
    second.terminate().with_status(0);
}

#[test]
fn slow_and_silent_clients_block_nobody_and_are_cut() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--set", "api.connections=8"]);
    let api = scene.api();
    // Seven of eight places are held by clients that say nothing, or half of it.
    let mut silent: Vec<_> = (0..7).map(|_| api.connect()).collect();
    silent[0].write_all(b"GET /healthz HTTP/1.1\r\nhost:").unwrap();
    for _ in 0..20 {
        api.get("/healthz").is(200);
    }
    // All of them: others wait until the silent ones are cut, and are served then.
    silent.push(api.connect());
    api.get("/healthz").is(200);
    for mut stream in silent {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{rest:?}");
    }
    daemon.terminate().with_status(0);
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let json = [("content-type", "application/json"), ("content-length", "100")];
    scene.api().ask("POST", "/api/v1/devices", &json, None).problem(408, "timeout");
    daemon.terminate().with_status(0);
}

#[test]
fn f89_the_end_does_not_wait_for_clients_that_do_nothing() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    let api = scene.api();
    let mut half = api.connect();
    half.write_all(b"POST /api/v1/devices HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n").unwrap();
    let _silent: Vec<_> = (0..20).map(|_| api.connect()).collect();
    let began = std::time::Instant::now();
    daemon.terminate().with_status(0);
    assert!(began.elapsed() < std::time::Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn a_socket_that_systemd_hands_over_is_used_and_left_there() {
    let scene = Scene::nulls(1);
    let path = scene.path("activated.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // The shell is the process that the daemon becomes, so its number is the right one.
    let mut command = bare("sh".as_ref());
    let run = scene.run(&[]);
    command.current_dir(scene.path("")).stdin(std::os::fd::OwnedFd::from(listener));
    let script = "exec 3<&0; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(run.get_program()).args(run.get_args());
    let daemon = Daemon::spawn(&mut command);
    daemon.says(IN_SERVICE);
    assert_eq!(Api::at(&path).get("/healthz").is(200)["pid"], daemon.pid().as_raw());
    assert!(!scene.path("run/ublkd.sock").exists());
    daemon.terminate().with_status(0);
    assert!(path.exists());

    let mut command = bare("sh".as_ref());
    command.current_dir(scene.path(""));
    command.args(["-c", script, "sh"]).arg(run.get_program()).args(run.get_args());
    Daemon::spawn(&mut command).ends().with_status(1).saying(&["no Unix stream socket"]);
}

/// Needs root, which alone can be somebody else.
#[test]
fn who_is_not_allowed_is_refused_whatever_the_mode_and_told_in_the_log() {
    const NOBODY: &str = "65534";
    let open = "[api]\nmode = \"0666\"\n";
    for (allow, status) in [("", "403"), ("allow = \"65534\"\n", "200")] {
        let scene = Scene::nulls(1);
        let devices = fs::read_to_string(scene.path("ublkd.toml")).unwrap();
        scene.write("ublkd.toml", &format!("{open}{allow}{devices}"));
        let daemon = scene.up(&[]);
        for folder in ["", "run"] {
            fs::set_permissions(scene.path(folder), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut asking = bare(Path::new("setpriv"));
        asking.args(["--reuid", NOBODY, "--clear-groups", "curl", "--silent", "--max-time", "10"]);
        asking.args(["--output", "/dev/null", "--write-out", "%{http_code}", "--unix-socket"]);
        asking.arg(scene.path("run/ublkd.sock")).arg("http://ublkd/api/v1/devices");
        assert_eq!(String::from_utf8_lossy(&asking.output().unwrap().stdout), status);
        let ended = daemon.terminate().with_status(0);
        assert_eq!(ended.lines(NOBODY).is_empty(), status == "200", "{allow:?}");
    }
}

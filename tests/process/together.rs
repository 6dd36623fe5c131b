//! The HTTP API with many devices at once: batches, groups, events.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::time::Instant;

use serde_json::{Value, json};

use crate::http::{Api, head};
use crate::support::{SOON, Scene};

fn ram(name: &str) -> Value {
    json!({"name": name, "target": "ram", "size": "64KiB", "depth": 4, "max_io": 4096})
}

#[test]
fn a_create_that_is_repeated_is_already_so_and_another_is_a_conflict() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let api = scene.api();
    let first = api.post("/api/v1/devices", &ram("a")).is(201);
    let again = api.post("/api/v1/devices", &ram("a")).is(200);
    assert_eq!((&again["name"], &again["id"]), (&first["name"], &first["id"]));
    assert_eq!(first["origin"], "api");
    let mut other = ram("a");
    other["depth"] = json!(8);
    let problem = api.post("/api/v1/devices", &other).problem(409, "exists");
    assert!(problem["detail"].as_str().unwrap().contains("depth"), "{problem}");
    daemon.terminate().with_status(0);
}

#[test]
fn a_batch_tells_what_became_of_each() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--fault", "start#2: EIO"]);
    let api = scene.api();
    api.post("/api/v1/devices", &ram("b0")).is(201);
    let mut fleet = ram("b{n}");
    fleet["count"] = json!(3);
    let made = api.post("/api/v1/devices:batch", &json!({"devices": [fleet]})).is(207);
    let statuses: Vec<_> = made["items"].as_array().unwrap().iter().map(|i| &i["status"]).collect();
    assert_eq!(statuses.iter().filter(|s| **s == &json!(500)).count(), 1, "{made}");
    assert_eq!(statuses[0], 200, "{made}");
    let twice = json!({"devices": [ram("c"), ram("c")]});
    let problem = api.post("/api/v1/devices:batch", &twice).problem(422, "invalid");
    assert_eq!(problem["errors"][0]["key"], "devices[1].name");
    let apart = json!({"devices": [ram("c")], "atomic": true});
    api.post("/api/v1/devices:batch", &apart).problem(422, "invalid");
    daemon.terminate().with_status(0);
}

#[test]
fn a_group_comes_as_a_whole_or_not_at_all_and_goes_as_a_whole() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--fault", "start#9: EIO"]);
    let api = scene.api();
    let put = |group: &str, count: u32| {
        let mut fleet = ram(&format!("{group}-{{n}}"));
        (fleet["count"], fleet["labels"]) = (json!(count), json!({"tenant": group}));
        api.ask("PUT", &format!("/api/v1/groups/{group}"), &[], Some(&json!({"devices": [fleet]})))
    };
    assert_eq!(put("vm1", 4).is(201)["items"].as_array().unwrap().len(), 4);
    put("vm1", 4).is(200);
    assert_eq!(api.get("/api/v1/groups/vm1").is(200)["devices"], 4);
    // The tenth device of this run does not start: none of its group stays, nor is one listed.
    let failed = put("vm2", 8);
    assert_eq!(failed.status, 500, "{failed:?}");
    api.get("/api/v1/groups/vm2").problem(404, "not_found");
    let count = |query: &str| {
        let page = api.get(&format!("/api/v1/devices?{query}")).is(200);
        page["items"].as_array().unwrap().len()
    };
    assert_eq!((count(""), count("group=vm1"), count("group=vm2")), (5, 4, 0));
    assert_eq!((count("label=tenant%3Dvm1"), count("label=tenant"), count("label=x")), (4, 4, 0));
    let groups = api.get("/api/v1/groups").is(200);
    assert_eq!(groups["items"][0]["states"]["live"], 4);
    let foreign = json!({"devices": [{"name": "f", "target": "ram", "size": 4096, "group": "x"}]});
    api.ask("PUT", "/api/v1/groups/vm1", &[], Some(&foreign)).problem(422, "invalid");
    let gone = api.delete("/api/v1/groups/vm1").is(200);
    assert_eq!(
        (&gone["outcome"], gone["devices"].as_array().unwrap().len()),
        (&json!("deleted"), 4)
    );
    assert_eq!(api.delete("/api/v1/groups/vm1").is(200)["outcome"], "absent");
    daemon.terminate().with_status(0);
}

#[test]
fn what_the_driver_can_do_is_told() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let features = scene.api().get("/api/v1/features").is(200);
    assert_eq!((&features["driver"], &features["resize"]), (&json!("sim"), &json!(true)));
    daemon.terminate().with_status(0);
}

/// Reads `count` events, in the order in which they come: id, kind, data.
fn events(
    api: &Api,
    path: &str,
    headers: &[(&str, &str)],
    count: usize,
) -> Vec<(u64, String, Value)> {
    let mut stream = api.connect();
    stream.write_all(head("GET", path, headers, None).as_bytes()).unwrap();
    let mut events = Vec::new();
    let (mut id, mut kind) = (0, String::new());
    let end = Instant::now() + SOON;
    for line in BufReader::new(stream).lines() {
        assert!(Instant::now() < end, "{count} events did not come, but {events:?}");
        // Each is a chunk of its own; sizes of chunks are no fields.
        let line = line.unwrap();
        match line.split_once(": ") {
            Some(("id", number)) => id = number.parse().unwrap(),
            Some(("event", name)) => kind = name.to_owned(),
            Some(("data", data)) => {
                events.push((id, kind.clone(), serde_json::from_str(data).unwrap()));
            }
            _ => {}
        }
        if events.len() == count {
            break;
        }
    }
    events
}

#[test]
fn events_tell_each_change_once_in_order_and_resume() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&[]);
    let api = scene.api();
    let seen = std::thread::scope(|scope| {
        let watch = scope.spawn(|| events(&api, "/api/v1/events?from=1", &[], 10));
        for name in ["e0", "e1"] {
            api.post("/api/v1/devices", &ram(name)).is(201);
            api.delete(&format!("/api/v1/devices/{name}")).is(200);
        }
        watch.join().unwrap()
    });
    let ids: Vec<_> = seen.iter().map(|(id, ..)| *id).collect();
    assert_eq!(ids, (1..=10).collect::<Vec<_>>(), "{seen:?}");
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, kind, data) in &seen {
        assert_eq!((kind.as_str(), &data["id"]), ("state", &json!(id)));
        let (from, to) = (data["from"].as_str().unwrap(), data["to"].as_str().unwrap());
        let before = last.insert(data["device"].as_str().unwrap(), to);
        assert!(before.is_none_or(|before| before == from), "{data} after {before:?}");
        assert!(data["at"].as_str().unwrap().ends_with('Z'), "{data}");
    }
    assert_eq!((last["e0"], last["e1"]), ("gone", "gone"));
    let resumed = events(&api, "/api/v1/events", &[("last-event-id", "6")], 4);
    assert_eq!(resumed, seen[6..]);
    for path in ["/api/v1/events?from=x", "/api/v1/events?from=-1"] {
        api.get(path).problem(422, "invalid");
    }
    daemon.terminate().with_status(0);
}

#[test]
fn a_watcher_sees_the_shutdown_to_its_end() {
    let scene = Scene::nulls(2);
    let daemon = scene.up(&[]);
    let api = scene.api();
    let mut stream = api.connect();
    stream.write_all(head("GET", "/api/v1/events", &[], None).as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == ": ublkd events"));
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    let gone = lines.filter(|line| line.contains("\"to\":\"gone\"")).count();
    assert_eq!(gone, 2);
    let ended = daemon.ends().with_status(0);
    assert!(ended.took < SOON);
}

#[test]
fn as_many_watch_as_may_and_others_are_told() {
    let scene = Scene::nulls(1);
    let daemon = scene.up(&["--set", "api.connections=8"]);
    let api = scene.api();
    let watch = || {
        let mut stream = api.connect();
        stream.write_all(head("GET", "/api/v1/events", &[], None).as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains("200"), "{line}");
        reader
    };
    let watchers = [watch(), watch()];
    api.get("/api/v1/events").problem(503, "overloaded");
    api.get("/healthz").is(200);
    drop(watchers);
    crate::support::eventually("a place", || api.get("/api/v1/devices").status == 200);
    daemon.terminate().with_status(0);
}

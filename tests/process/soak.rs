//! 200 clients at once, polite and rude: every request that is one is served, and nothing grows.
//!
//! `UBLKD_SOAK_S=60 cargo test --test process soak -- --nocapture` takes as long as it says, and
//! prints what was done.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Read, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::http::{Answer, Api, head};
use crate::support::{Scene, eventually};

/// How many clients of each kind.
const CLIENTS: [(&str, usize); 8] = [
    ("devices", 60),
    ("lists", 40),
    ("groups", 20),
    ("watchers", 20),
    ("slow readers", 15),
    ("half requests", 15),
    ("half bodies", 15),
    ("garbage", 15),
];

/// What the process has: threads, descriptors, resident memory in KiB.
#[derive(Debug, Clone, Copy)]
struct Census {
    threads: usize,
    fds: usize,
    resident: u64,
}

impl Census {
    fn of(pid: Pid) -> Self {
        let entries = |dir: &str| fs::read_dir(format!("/proc/{pid}/{dir}")).unwrap().count();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident = line.trim().trim_end_matches(" kB").parse().unwrap();
        Self { threads: entries("task"), fds: entries("fd"), resident }
    }
}

struct Soak {
    api: Api,
    end: Instant,
    done: Mutex<BTreeMap<&'static str, u64>>,
}

#[test]
fn two_hundred_clients_at_once_harm_nobody_and_leave_nothing() {
    let seconds = std::env::var("UBLKD_SOAK_S").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let scene = Scene::nulls(20);
    let daemon = scene.up(&[]);
    let api = scene.api();
    // One life of everything, so that what is made once is there.
    api.post("/api/v1/devices", &spec("warm")).is(201);
    api.delete("/api/v1/devices/warm").is(200);
    let before = Census::of(daemon.pid());
    let length = Duration::from_secs(seconds);
    let soak = Soak { api, end: Instant::now() + length, done: Mutex::default() };
    let (early, late) = std::thread::scope(|scope| {
        let soak = &soak;
        for (kind, count) in CLIENTS {
            for n in 0..count {
                scope.spawn(move || soak.client(kind, n));
            }
        }
        std::thread::sleep(length / 3);
        let early = Census::of(daemon.pid());
        std::thread::sleep(length / 2);
        (early, Census::of(daemon.pid()))
    });
    let mut after = late;
    eventually("what clients had is given back", || {
        after = Census::of(daemon.pid());
        after.fds <= before.fds && after.threads <= before.threads
    });
    let done = soak.done.lock().unwrap();
    eprintln!("{done:?}\nbefore {before:?}\nearly {early:?}\nlate {late:?}\nafter {after:?}");
    for (kind, _) in CLIENTS {
        assert!(done.get(kind).is_some_and(|count| *count > 0), "no {kind} in {done:?}");
    }
    // Half of the time costs no more memory than the first third has.
    let most = early.resident + early.resident / 10 + 8192;
    assert!(late.resident <= most, "{} KiB early, {} late", early.resident, late.resident);
    let page = soak.api.get("/api/v1/devices").is(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 20);
    daemon.terminate().with_status(0);
}

fn spec(name: &str) -> Value {
    json!({"name": name, "target": "ram", "size": "64KiB", "depth": 2, "max_io": 4096})
}

impl Soak {
    fn client(&self, kind: &'static str, n: usize) {
        let mut count = 0;
        while Instant::now() < self.end {
            match kind {
                "devices" => self.device(n),
                "lists" => drop(self.api.get("/api/v1/devices?limit=50").is(200)),
                "groups" => self.group(n),
                "watchers" => self.watch(),
                "slow readers" => self.read_slowly(),
                "half requests" => self.abandon(b"GET /api/v1/devices HTTP/1.1\r\nhost: x\r\nacc"),
                "half bodies" => self.abandon(
                    b"POST /api/v1/devices HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                      content-length: 500\r\n\r\n{\"name\": ",
                ),
                _ => self.garbage(n),
            }
            count += 1;
        }
        *self.done.lock().unwrap().entry(kind).or_default() += count;
    }

    fn device(&self, n: usize) {
        let path = format!("/api/v1/devices/s{n}");
        let made = self.api.post("/api/v1/devices", &spec(&format!("s{n}"))).is(201);
        assert_eq!(made["state"], "live");
        assert_eq!(self.api.get(&path).is(200)["id"], made["id"]);
        assert_eq!(self.api.delete(&path).is(200)["outcome"], "deleted");
    }

    fn group(&self, n: usize) {
        let path = format!("/api/v1/groups/g{n}");
        let mut fleet = spec(&format!("g{n}-{{n}}"));
        fleet["count"] = json!(3);
        self.api.ask("PUT", &path, &[], Some(&json!({"devices": [fleet]}))).is(201);
        assert_eq!(self.api.delete(&path).is(200)["devices"].as_array().unwrap().len(), 3);
    }

    fn watch(&self) {
        let mut stream = self.api.connect();
        stream.write_all(head("GET", "/api/v1/events", &[], None).as_bytes()).unwrap();
        let mut bytes = [0; 4096];
        let first = stream.read(&mut bytes).unwrap();
        assert!(bytes[..first].starts_with(b"HTTP/1.1 200"));
        for _ in 0..20 {
            if Instant::now() < self.end {
                assert!(stream.read(&mut bytes).unwrap() > 0, "the stream ended");
            }
        }
    }

    fn read_slowly(&self) {
        let mut stream = self.api.connect();
        stream.write_all(head("GET", "/api/v1/devices", &[], None).as_bytes()).unwrap();
        let mut bytes = [0; 64];
        let mut seen = Vec::new();
        for _ in 0..20 {
            let count = stream.read(&mut bytes).unwrap();
            seen.extend_from_slice(&bytes[..count]);
            std::thread::sleep(Duration::from_millis(20));
        }
        stream.read_to_end(&mut seen).unwrap();
        Answer::read(&mut BufReader::new(&*seen)).expect("an answer").is(200);
    }

    fn abandon(&self, begun: &[u8]) {
        self.api.connect().write_all(begun).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }

    fn garbage(&self, n: usize) {
        let mut stream = self.api.connect();
        let bytes: Vec<u8> = (0..2000).map(|i: usize| (i * 31 + n * 7 + 128) as u8).collect();
        // It may be told off before it has said it all.
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        std::thread::sleep(Duration::from_millis(20));
    }
}

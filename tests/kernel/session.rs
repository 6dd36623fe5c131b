//! The command line on a real kernel: a session as a new user has it, and groups against one by one.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::daemon::UBLKD;
use crate::guest::{Guest, Outcome, left, until};

/// Nothing of a config: devices come over the command line. One is needed for there to be a config.
const CONFIG: &str = "[[device]]\nname = \"base\"\ntarget = \"null\"\nsize = \"1M\"\n";

/// Exit statuses of docs/cli.md.
const REFUSED: i32 = 6;
const NO_DAEMON: i32 = 8;

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Guest {
    /// A command of the client, however it ends.
    fn ask(&self, args: &[&str]) -> Result<Said, Box<dyn Error>> {
        let mut command = Process::new("timeout");
        command.args(["120", UBLKD]).args(args).current_dir(self.folder());
        let done = command.env("UBLKD_SOCKET", self.path("run/ublkd.sock")).output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Said { code: done.status.code(), out: text(&done.stdout), err: text(&done.stderr) })
    }

    /// What a command prints that has to go well.
    fn said(&self, args: &[&str]) -> Result<String, Box<dyn Error>> {
        let said = self.ask(args)?;
        match said.code {
            Some(0) => Ok(said.out),
            code => Err(format!("{args:?}: {code:?}: {}{}", said.out, said.err).into()),
        }
    }
}

/// Changes of state of the devices of `events`, `from>to`, by device in the order of names.
fn changes(events: &[Value], name: &str) -> Vec<String> {
    let of = events.iter().filter(|event| event["device"] == name);
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of.map(|event| format!("{}>{}", word(&event["from"]), word(&event["to"]))).collect()
}

#[test]
fn a_session_as_a_new_user_has_it() -> Outcome {
    let guest = Guest::new()?;
    let daemon = guest.start(CONFIG)?;
    let socket = guest.path("run/ublkd.sock");
    let mut follower = Process::new(UBLKD)
        .args(["events", "--from", "1", "-o", "json", "--socket"])
        .arg(&socket)
        .stdout(fs::File::create(guest.path("events"))?)
        .spawn()?;

    for (name, busy) in [("vol-1", "refuse"), ("vol-2", "stop"), ("vol-3", "wait")] {
        let create = ["create", name, "--target", "ram", "--size", "64MiB", "--busy", busy];
        assert_eq!(guest.said(&create)?, format!("device/{name} created\n"));
        assert_eq!(guest.said(&create)?, format!("device/{name} unchanged\n"));
    }
    println!("{}", guest.said(&["list"])?);
    guest.sh("mkfs.ext4 -q run/by-name/vol-1; mkdir mnt; mount run/by-name/vol-1 mnt; echo hello > mnt/file; sync -f mnt")?;

    let told = guest.said(&["describe", "vol-1"])?;
    println!("{told}");
    let mounted = format!("mounted at {}", guest.path("mnt").display());
    assert!(told.contains(&mounted), "{told}");
    let device: Value = serde_json::from_str(&guest.said(&["describe", "vol-1", "-o", "json"])?)?;
    assert_eq!(device["holders"], serde_json::json!([mounted]));
    assert!(device["io"]["write"]["requests"].as_u64() > Some(0), "{device}");

    // By the device's own policy; and by that of the command.
    for args in [&["delete", "vol-1"][..], &["delete", "vol-1", "--busy", "refuse"]] {
        let refused = guest.ask(args)?;
        println!("$ ublkd {}\n{}exit status {:?}", args.join(" "), refused.err, refused.code);
        assert_eq!((refused.code, refused.out.as_str()), (Some(REFUSED), ""), "{}", refused.err);
        assert!(refused.err.contains(&mounted), "{}", refused.err);
    }
    let began = Instant::now();
    let late = guest.ask(&["delete", "vol-1", "--busy", "wait", "--busy-timeout", "1s"])?;
    assert_eq!(late.code, Some(REFUSED), "{}", late.err);
    assert!(
        late.err.contains(&mounted) && began.elapsed() >= Duration::from_secs(1),
        "{}",
        late.err
    );
    assert_eq!(guest.sh("cat mnt/file")?, "hello\n");

    guest.sh("umount mnt")?;
    assert_eq!(guest.said(&["delete", "vol-1"])?, "device/vol-1 deleted\n");
    let both = guest.said(&["delete", "vol-2", "vol-3"])?;
    assert!(
        both.lines().count() == 2 && both.lines().all(|line| line.ends_with(" deleted")),
        "{both}"
    );
    assert_eq!(guest.said(&["list", "-o", "name"])?, "device/base\n");

    println!("{}", guest.said(&["shutdown"])?);
    let ended = daemon.wait()?;
    ended.is_clean(guest.folder())?;
    assert_eq!(guest.ask(&["list"])?.code, Some(NO_DAEMON));

    // The one that followed has seen each change once, in order, to the end.
    assert!(until(Duration::from_secs(10), || matches!(follower.try_wait(), Ok(Some(_)))));
    let text = fs::read_to_string(guest.path("events"))?;
    let events: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let ids: Vec<_> = events.iter().filter_map(|event| event["id"].as_u64()).collect();
    assert_eq!(ids, (1..=events.len() as u64).collect::<Vec<_>>());
    for name in ["base", "vol-1", "vol-2", "vol-3"] {
        let life = ["waiting>starting", "starting>live", "live>stopping", "stopping>gone"];
        assert_eq!(changes(&events, name), life, "{name}");
    }
    assert_eq!(events.len(), 16);
    assert_eq!(left(), [""; 0]);
    Ok(())
}

#[test]
fn a_group_is_deleted_at_once_and_how_long_that_takes_is_printed() -> Outcome {
    let guest = Guest::new()?;
    let daemon = guest.start(CONFIG)?;
    let mut table =
        String::from("devices  group    several  one by one  (wall time of delete, seconds)\n");
    for count in [8, 32, 64] {
        let devices = format!(
            "[[device]]\nname = \"m{{n}}\"\ncount = {count}\ntarget = \"null\"\nsize = \"1G\"\n"
        );
        fs::write(guest.path("group.toml"), devices)?;
        let names: Vec<_> = (0..count).map(|n| format!("m{n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let create = || guest.said(&["create", "-f", "group.toml", "--group", "vm", "--atomic"]);
        let timed = |delete: &dyn Fn() -> Result<usize, Box<dyn Error>>| {
            let began = Instant::now();
            let deleted = delete()?;
            assert_eq!(deleted, count, "each is told as deleted");
            assert_eq!(guest.said(&["list", "--group", "vm", "-o", "name"])?, "");
            Ok::<_, Box<dyn Error>>(began.elapsed().as_secs_f64())
        };
        let lines = |text: String| text.lines().filter(|line| line.ends_with(" deleted")).count();

        create()?;
        let group = timed(&|| Ok(lines(guest.said(&["delete", "--group", "vm"])?)))?;
        create()?;
        let several = timed(&|| Ok(lines(guest.said(&[&["delete"][..], &names].concat())?)))?;
        create()?;
        let one_by_one = timed(&|| {
            names.iter().try_fold(0, |sum, name| Ok(sum + lines(guest.said(&["delete", name])?)))
        })?;
        writeln!(table, "{count:>7}  {group:>5.3}  {several:>9.3}  {one_by_one:>10.3}")?;
    }
    println!("{table}");
    daemon.stop()?;
    Ok(())
}

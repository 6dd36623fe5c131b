//! Files, environment, flags over each other.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use insta::assert_snapshot;

use super::Fixture;
use crate::config::{LogFormat, LogLevel, OnFailure, Sources};
use crate::model::WorkerLimit;

const DEVICE: &str = "[[device]]\nname='a'\ntarget='null'\nsize='1M'\n";

fn with(sources: Sources, variables: &[(&str, &str)]) -> Sources {
    sources.environment(variables.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))))
}

#[test]
fn later_files_win_key_by_key_then_environment_then_flags() {
    let fixture = Fixture::new(&[
        (
            "1.toml",
            &format!(
                "[supervisor]\nworkers=1\nmailbox=1\nrun_dir='/a'\non_failure='abort'\n[defaults]\ndepth=1\nqueues=2\n{DEVICE}"
            ),
        ),
        (
            "2.toml",
            "[supervisor]\nworkers=2\nmailbox=2\n[log]\nformat='json'\n[defaults]\ndepth=2\n",
        ),
    ]);
    let sources = with(
        fixture.sources(&["1.toml", "2.toml"]),
        &[
            ("UBLKD__SUPERVISOR__WORKERS", "3"),
            ("UBLKD__SUPERVISOR__COMMAND_TIMEOUT", "3s"),
            ("UBLKD__DEFAULTS__DEPTH", "3"),
            ("UBLKD__DEFAULTS__READ_ONLY", "true"),
            ("UBLKD__LOG__LEVEL", "debug"),
            ("PATH", "/bin"),
            ("UBLKD_SOCKET", "/x"),
            ("UBLKD_LOG", "x"),
        ],
    )
    .flag("supervisor.workers", "4");
    let config = sources.load().expect("a config");
    let supervisor = &config.supervisor;
    assert_eq!((supervisor.workers, supervisor.mailbox), (WorkerLimit::Fixed(4), 2));
    assert_eq!(supervisor.command_timeout, Duration::from_secs(3));
    assert_eq!(supervisor.run_dir, Path::new("/a"));
    assert_eq!(supervisor.on_failure, OnFailure::Abort);
    assert_eq!((config.log.level, config.log.format), (LogLevel::Debug, LogFormat::Json));
    let spec = &config.devices[0].spec;
    assert_eq!((spec.queues().depth, spec.queues().count, spec.read_only()), (3, 2, true));
}

#[test]
fn f80_variables_that_name_nothing_are_refused() {
    let fixture = Fixture::new(&[("x.toml", DEVICE)]);
    let sources = with(
        fixture.sources(&["x.toml"]),
        &[
            ("UBLKD__SUPERVISOR__WORKERZ", "3"),
            ("UBLKD__supervisor__workers", "3"),
            ("UBLKD_SUPERVISOR_WORKERS", "3"),
            ("UBLKD__DEVICE__0__SIZE", "128M"),
            ("UBLKD__COLOUR", "red"),
            ("UBLKD__SUPERVISOR__MAILBOX", "many"),
            ("UBLKD__SUPERVISOR__RUN_DIR", "run"),
            ("UBLKD__LOG__LEVEL", ""),
        ],
    )
    .environment([("UBLKD__LOG__FORMAT".into(), OsString::from_vec(vec![0xff]))]);
    assert_snapshot!(fixture.refused(&sources), @r#"
    environment: UBLKD_SUPERVISOR_WORKERS: names no key; did you mean UBLKD__SUPERVISOR__WORKERS?
    environment: UBLKD__COLOUR: names no key: expected UBLKD__SECTION__KEY, as UBLKD__SUPERVISOR__WORKERS
    environment: UBLKD__DEVICE__0__SIZE: names no key: devices are set in files only, their defaults here too
    environment: UBLKD__LOG__FORMAT: is not UTF-8
    environment: UBLKD__LOG__LEVEL: "" is not one of critical, error, warning, info, debug, trace
    environment: UBLKD__SUPERVISOR__MAILBOX: expected an integer from 1 to 65536, found the string "many"
    environment: UBLKD__SUPERVISOR__RUN_DIR: "run" is relative: write an absolute path here
    environment: UBLKD__SUPERVISOR__WORKERZ: names no key; did you mean UBLKD__SUPERVISOR__WORKERS?
    environment: UBLKD__supervisor__workers: names no key; did you mean UBLKD__SUPERVISOR__WORKERS?
    "#);
}

#[test]
fn flags_that_name_nothing_are_refused() {
    let fixture = Fixture::new(&[("x.toml", DEVICE)]);
    let sources = fixture
        .sources(&["x.toml"])
        .flag("supervisor.worker", "3")
        .flag("workers", "3")
        .flag("device.size", "3")
        .flag("supervisor.shutdown_timeout", "60")
        .flag("defaults.direct", "maybe");
    assert_snapshot!(fixture.refused(&sources), @r#"
    flags: supervisor.worker: names no key; did you mean supervisor.workers?
    flags: workers: names no key; did you mean supervisor.workers?
    flags: device.size: names no key: devices are set in files only, their defaults here too
    flags: supervisor.shutdown_timeout: "60" is no duration: write numbers with a unit, as "500ms", "10s", "2m"
    flags: defaults.direct: expected true or false, found the string "maybe"
    "#);
}

#[test]
fn a_value_that_is_wrong_is_told_even_where_a_later_layer_replaces_it() {
    let fixture = Fixture::new(&[("x.toml", &format!("[supervisor]\nworkers='x'\n{DEVICE}"))]);
    let sources = fixture.sources(&["x.toml"]).flag("supervisor.workers", "3");
    assert_snapshot!(fixture.refused(&sources), @r#"
    DIR/x.toml:2:9: supervisor.workers: expected an integer from 1 to 1024, or "auto", found the string "x"
      |
    2 | workers='x'
      |         ^^^
    "#);
}

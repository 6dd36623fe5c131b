//! The service's unit against what the daemon needs: a slip there shows only on somebody's host.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ublkd::config::SupervisorConfig;

/// The settings of a unit file; a later line of a key replaces an earlier one.
fn unit(name: &str) -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    let text = fs::read_to_string(path).unwrap();
    let settings = text.lines().filter(|line| !line.starts_with('#'));
    let settings = settings.filter_map(|line| line.split_once('='));
    settings.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn f18_the_service_is_stopped_alone_in_time_and_after_its_file_systems() {
    let unit = unit("ublkd.service");
    assert_eq!(unit["KillMode"], "mixed");
    let stop = Duration::from_secs(unit["TimeoutStopSec"].parse().unwrap());
    // The report of a shutdown may come 5 s late, a forced end takes 2 s.
    assert!(stop > SupervisorConfig::default().shutdown_timeout + Duration::from_secs(10));
    assert!(unit["After"].contains("local-fs.target"));
    assert!(unit["Before"].contains("remote-fs-pre.target"));
    assert_eq!(
        (unit["TasksMax"].as_str(), unit["RestartPreventExitStatus"].as_str()),
        ("infinity", "2")
    );
    assert!(unit["LimitNOFILE"].parse::<u64>().unwrap() >= 3 * 65_536);
    let docs = include_str!("../../docs/operations.md");
    assert!(
        docs.contains("Stop with a mounted device") && docs.contains("goes down unmounts them")
    );
}

#[test]
fn f15_the_service_has_a_mount_namespace_of_its_own() {
    let unit = unit("ublkd.service");
    assert_eq!(unit["PrivateMounts"], "yes");
    // Without rights to make namespaces it can share one only by its start.
    assert_eq!(unit["RestrictNamespaces"], "yes");
}

#[test]
fn f07_the_socket_is_where_the_daemon_makes_its_own_and_survives_the_service() {
    let socket = unit("ublkd.socket");
    let path = ublkd::daemon::api::socket_path(&SupervisorConfig::default().run_dir);
    assert_eq!(Path::new(&socket["ListenStream"]), path);
    assert_eq!(socket["SocketMode"], "0600");
    assert_eq!(unit("ublkd.service")["RuntimeDirectoryPreserve"], "yes");
}

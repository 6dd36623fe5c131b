//! systemd's notify protocol.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;

use crate::support::{Daemon, SOON, Scene, bare};

/// Everything that was told until the stop.
fn told(socket: &UnixDatagram) -> Vec<String> {
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut told = Vec::new();
    while !told.last().is_some_and(|text: &String| text.contains("STOPPING=1")) {
        let mut message = [0; 4096];
        let len = socket.recv(&mut message).unwrap();
        told.push(String::from_utf8(message[..len].to_vec()).unwrap());
    }
    told
}

fn with_socket(scene: &Scene, name: &str) -> Command {
    let mut command = scene.run(&["--fault", "start@2: EIO"]);
    command.env("NOTIFY_SOCKET", name);
    command
}

#[test]
fn the_service_manager_is_told_ready_status_and_stopping() {
    let scene = Scene::nulls(3);
    let path = scene.path("notify");
    let abstract_name = format!("ublkd-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
    for (socket, name) in [
        (UnixDatagram::bind(&path).unwrap(), path.display().to_string()),
        (UnixDatagram::bind_addr(&address).unwrap(), format!("@{abstract_name}")),
    ] {
        let daemon = Daemon::spawn(&mut with_socket(&scene, &name));
        daemon.says(crate::support::IN_SERVICE);
        daemon.terminate().with_status(0);
        let told = told(&socket);
        let ready: Vec<_> = told.iter().filter(|text| text.contains("READY=1")).collect();
        assert_eq!(ready.len(), 1, "{told:?}");
        assert!(
            ready[0].contains("STATUS=2 of 3 devices in service, 1 failed to start"),
            "{told:?}"
        );
        let last = told.last().unwrap();
        assert!(last.contains("STATUS=stopping") && !last.contains("READY"), "{told:?}");
    }
}

#[test]
fn a_run_that_failed_is_never_ready() {
    let scene = Scene::nulls(3);
    let path = scene.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let mut command = scene.run(&["--fault", "add: EIO"]);
    Daemon::spawn(command.env("NOTIFY_SOCKET", &path)).ends().with_status(1);
    let told = told(&socket);
    assert!(!told.iter().any(|text| text.contains("READY=1")), "{told:?}");
}

#[test]
fn a_service_manager_that_is_not_there_or_does_not_listen_changes_nothing() {
    let scene = Scene::nulls(3);
    let missing = scene.path("nobody").display().to_string();
    let ended = Daemon::spawn(&mut with_socket(&scene, &missing));
    ended.says(crate::support::IN_SERVICE);
    let ended = ended.terminate().with_status(0);
    assert!(ended.lines("nobody").is_empty(), "{}", ended.stderr);

    // One that is there, and takes nothing any more.
    let path = scene.path("deaf");
    let deaf = UnixDatagram::bind(&path).unwrap();
    let filler = UnixDatagram::unbound().unwrap();
    filler.set_nonblocking(true).unwrap();
    while filler.send_to(b"STATUS=full", &path).is_ok() {}
    let daemon = Daemon::spawn(&mut with_socket(&scene, path.to_str().unwrap()));
    daemon.says(crate::support::IN_SERVICE);
    daemon.terminate().with_status(0);
    drop(deaf);
}

#[test]
fn without_a_socket_nothing_is_said() {
    let scene = Scene::nulls(1);
    let run = scene.run(&[]);
    let mut command = bare(std::path::Path::new(run.get_program()));
    command.args(run.get_args()).current_dir(scene.path("")).env_remove("NOTIFY_SOCKET");
    let daemon = Daemon::spawn(&mut command);
    daemon.says(crate::support::IN_SERVICE);
    let ended = daemon.terminate().with_status(0);
    assert!(ended.lines("notify").is_empty(), "{}", ended.stderr);
}

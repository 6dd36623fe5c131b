//! The client against daemons that are not there, not daemons, or do not answer: each told at once,
//! in time, and with an exit status of its own.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Daemon, Ended, Scene, bare, output};

const USAGE: i32 = 2;
const REFUSED: i32 = 6;
const TIMEOUT: i32 = 7;
const NO_DAEMON: i32 = 8;
const OVERLOADED: i32 = 9;

/// Serves `sock` with what `answer` does to each connection; gives the number of connections.
fn fake(scene: &Scene, answer: impl Fn(UnixStream) + Send + 'static) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(scene.path("sock")).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    // It ends with the test process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            seen.fetch_add(1, Ordering::Relaxed);
            answer(stream.unwrap());
        }
    });
    count
}

/// A server that reads a request's head and says `text`.
fn saying(text: impl Into<String>) -> impl Fn(UnixStream) + Send {
    let text = text.into();
    move |mut stream| {
        let mut head = [0; 4096];
        let _ = stream.read(&mut head);
        let _ = stream.write_all(text.as_bytes());
    }
}

/// An answer with a body.
fn http(head: &str, body: &str) -> String {
    format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn client(scene: &Scene, args: &[&str]) -> Ended {
    let mut command = scene.command(args);
    command.env("UBLKD_SOCKET", scene.path("sock"));
    Daemon::spawn(&mut command).ends()
}

#[test]
fn without_a_daemon_it_says_which_socket_and_what_to_do() {
    let scene = Scene::new();
    let commands: [&[&str]; 12] = [
        &["list"],
        &["list", "-o", "json"],
        &["describe", "a"],
        &["create", "a", "--target", "null", "--size", "1M"],
        &["delete", "a", "b"],
        &["delete", "--group", "g"],
        &["wait", "a"],
        &["events"],
        &["groups"],
        &["features"],
        &["reload", "--dry-run"],
        &["shutdown"],
    ];
    for args in commands {
        let ended = client(&scene, args).with_status(NO_DAEMON);
        assert_eq!(ended.stdout, "", "{args:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{args:?}: {}", ended.stderr);
        let socket = scene.path("sock");
        ended.saying(&[socket.to_str().unwrap(), "ublkd run", "--socket"]);
    }
    // A socket that nobody listens on any more.
    drop(UnixListener::bind(scene.path("sock")).unwrap());
    client(&scene, &["list"]).with_status(NO_DAEMON).saying(&["nobody listens"]);
}

#[test]
fn the_flag_wins_over_the_environment() {
    let scene = Scene::new();
    let ended = client(&scene, &["list", "--socket", "/nowhere/else.sock"]).with_status(NO_DAEMON);
    ended.saying(&["/nowhere/else.sock"]);
}

#[test]
fn a_socket_that_may_not_be_used_is_told_apart() {
    let scene = Scene::new();
    fake(&scene, drop);
    let mode = |mode| std::fs::set_permissions(scene.path("sock"), PermissionsExt::from_mode(mode));
    mode(0o000).unwrap();
    let mut command = scene.command(&["list", "--socket", "sock"]);
    if nix::unistd::geteuid().is_root() {
        // Root may use any socket.
        std::fs::set_permissions(scene.path(""), PermissionsExt::from_mode(0o755)).unwrap();
        let binary = scene.path("ublkd");
        std::fs::copy(env!("CARGO_BIN_EXE_ublkd"), &binary).unwrap();
        let mut nobody = bare(Path::new("setpriv"));
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary);
        nobody.args(command.get_args()).current_dir(scene.path(""));
        command = nobody;
    }
    let ended = Daemon::spawn(&mut command).ends().with_status(NO_DAEMON);
    ended.saying(&["may not be used", "EACCES", "sock"]);
}

#[test]
fn what_is_no_ublkd_is_said_to_be_none() {
    for text in [
        String::new(),
        "SSH-2.0-OpenSSH_9.9\r\n".to_owned(),
        http("200 OK", "hello"),
        http("200 OK", "{\"items\": [{\"name\": 7}]}"),
        http("404 Not Found", "<html>"),
        http("999", ""),
        "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"items\":".to_owned(),
        "\0".repeat(100) + "\r\n\r\n",
    ] {
        let scene = Scene::new();
        fake(&scene, saying(text.clone()));
        let ended = client(&scene, &["list"]).with_status(NO_DAEMON);
        assert_eq!(ended.stdout, "", "{text:?}");
        let ended = ended.saying(&["sock"]);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_given_up_in_time() {
    let scene = Scene::new();
    // Keeps connections and says nothing.
    let kept = std::sync::Mutex::new(Vec::new());
    fake(&scene, move |stream| kept.lock().unwrap().push(stream));
    for args in [&["list"][..], &["describe", "a"], &["events"], &["groups"]] {
        let began = Instant::now();
        let ended = client(&scene, &[args, &["--within", "300ms"]].concat()).with_status(TIMEOUT);
        ended.saying(&["no answer", "300ms"]);
        assert!(began.elapsed() < Duration::from_secs(5), "{args:?}");
    }
}

#[test]
fn an_answer_that_comes_byte_by_byte_does_not_extend_the_time() {
    let scene = Scene::new();
    fake(&scene, |mut stream| {
        std::thread::spawn(move || {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n");
            while stream.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    });
    client(&scene, &["list", "--within", "500ms"]).with_status(TIMEOUT);
}

#[test]
fn problems_of_the_daemon_are_told_and_have_statuses_of_their_own() {
    let problem = |head: &str, more: &str| {
        let usual = r#""type": "urn:x", "title": "Conflict", "status": 409"#;
        http(head, &format!("{{{usual}, {more}}}"))
    };
    let busy = r#""kind": "busy", "detail": "device a is held", "remedy": "unmount it",
        "holders": ["mounted at /mnt"]"#;
    let full = r#""kind": "overloaded", "detail": "too much""#;
    let goes_on = http("202 Accepted\r\nlocation: /api/v1/operations/17", "{\"id\": \"17\"}");
    for (answer, status, said) in [
        (
            problem("409 Conflict", busy),
            REFUSED,
            &["device a is held", "unmount it", "mounted at /mnt"][..],
        ),
        (
            problem("503 Service Unavailable\r\nretry-after: 1", full),
            OVERLOADED,
            &["too much", "retry after 1 s"],
        ),
        (goes_on, TIMEOUT, &["not done within 1m", "17"]),
    ] {
        let scene = Scene::new();
        fake(&scene, saying(answer));
        let ended = client(&scene, &["delete", "a"]).with_status(status).saying(said);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn usage_is_checked_before_anybody_is_asked() {
    let scene = Scene::new();
    let asked = fake(&scene, drop);
    scene.write("bad.toml", "[[device]]\nname = \"a\"\ntarget = \"null\"\nsize = \"12Q\"\n");
    for (args, said) in [
        (&["create"][..], "DEVICE"),
        (&["create", "a"], "--target"),
        (&["create", "a", "--target", "null", "--size", "12Q"], "12Q"),
        (&["create", "a", "-f", "x.toml"], "--file"),
        (&["create", "a/b", "--target", "null", "--size", "1M"], "a/b"),
        (&["create", "-f", "none.toml"], "none.toml"),
        (&["create", "-f", "bad.toml"], "bad.toml:4"),
        (&["delete"], "DEVICE"),
        (&["delete", "a", "--group", "g"], "--group"),
        (&["delete", "a", "--busy", "perhaps"], "refuse"),
        (&["wait", "a", "--for", "happiness"], "happiness"),
        (&["list", "--label", "vm"], "KEY=VALUE"),
        (&["list", "--within", "soon"], "soon"),
        (&["list", "-o", "xml"], "json"),
        (&["list", "--kernel", "--group", "g"], "--kernel"),
        (&["top"], "terminal"),
    ] {
        let ended = client(&scene, args).with_status(USAGE).saying(&[said]);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
}

#[test]
fn completion_scripts_call_back_and_offer_commands_and_options_without_a_daemon() {
    let scene = Scene::new();
    for (shell, said) in [("bash", "complete"), ("zsh", "compdef"), ("fish", "complete")] {
        let ended = client(&scene, &["completions", shell]).with_status(0);
        assert!(ended.stdout.contains(said) && ended.stdout.contains("UBLKD_COMPLETE"));
    }
    let offered = |words: &[&str]| {
        let mut command: Command = scene.command(&["--"]);
        command
            .env("UBLKD_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("UBLKD_SOCKET", scene.path("sock")).args(words);
        String::from_utf8(output(&mut command).stdout).unwrap()
    };
    let commands = offered(&["ublkd", "des"]);
    assert_eq!(commands.trim(), "describe");
    assert!(offered(&["ublkd", "delete", "--bu"]).contains("--busy"));
    assert!(offered(&["ublkd", "delete", "--busy", ""]).contains("refuse"));
    assert_eq!(offered(&["ublkd", "describe", "v"]), "");
}

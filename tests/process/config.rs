//! Bad configs through the binary: every mistake of every source at once, status 2, nothing started.
//! Good ones: layers and paths as documented.

use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::support::{Scene, output};

/// Runs `ublkd run` and `ublkd check` on `args`; both must say the same and start nothing.
#[track_caller]
fn refused(scene: &Scene, args: &[&str], environment: &[(&str, &str)]) -> String {
    let mut texts = Vec::new();
    for name in ["run", "check"] {
        let mut command = scene.command(&[name]);
        command.args(args).envs(environment.iter().copied());
        if name == "run" {
            command.args(["--driver", "sim"]);
        }
        let ended = output(&mut command);
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{name}: {text}");
        assert!(ended.stdout.is_empty(), "{name}");
        texts.push(text);
    }
    assert!(!scene.path("run").exists(), "something was started");
    assert_eq!(texts[0], texts[1], "run and check differ");
    texts.swap_remove(0)
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

/// What `check --json` resolves a config to.
#[track_caller]
fn resolved(scene: &Scene, args: &[&str], environment: &[(&str, &str)]) -> Value {
    let mut command = scene.command(&["check", "--json"]);
    let ended = output(command.args(args).envs(environment.iter().copied()));
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{text}");
    serde_json::from_slice(&ended.stdout).unwrap()
}

#[test]
fn every_mistake_of_every_source_is_told_at_once() {
    let scene = Scene::new();
    scene.write(
        "conf/10-base.toml",
        "[supervisor]\nworkers = 0\nrun_dir = \"run\"\n\n[[device]]\nname = \"a\"\n\
         target = \"null\"\nsize = \"1M\"\ndepth = 5000\nqueueDepth = 4\n",
    );
    scene.write(
        "conf/20-site.toml",
        "[[device]]\nname = \"a\"\ntarget = \"ram\"\nsize = \"12Q\"\n\n\
         [[device]]\nname = \"b\"\ntarget = \"loop\"\n",
    );
    scene.write("conf/30-broken.toml", "[log]\nlevel = \"info\"\n[[device]\n");
    let text = refused(
        &scene,
        &["-c", "conf", "--set", "supervisor.mailbox=none"],
        &[("UBLKD__SUPERVISOR__WORKERS", "many")],
    );
    has(
        &text,
        &[
            "10-base.toml:2:11: supervisor.workers: 0 is out of range: 1 to 1024",
            "10-base.toml:9:9: device \"a\": depth: 5000 is out of range: 1 to 4096",
            "10-base.toml:10:1: device \"a\": queueDepth",
            "20-site.toml:4:8: device \"a\": size",
            "12Q",
            "20-site.toml:6:1: device \"b\": path",
            "30-broken.toml:3:",
            "UBLKD__SUPERVISOR__WORKERS",
            "supervisor.mailbox",
        ],
    );
}

#[test]
fn f80_nothing_is_passed_over_in_silence() {
    let scene = Scene::new();
    scene.write(
        "c.toml",
        "[[device]]\nname = \"DB-Main\"\ntarget = \"null\"\nsize = \"1M\"\nQUEUE_DEPTH = 1\n",
    );
    let environment = [
        ("UBLKD__DEVICES__0__SIZE", "128M"),
        ("UBLKD__SUPERVISOR__workers", "8"),
        ("UBLKD_SUPERVISOR_WORKERS", "8"),
        ("NOT_UBLKD__SUPERVISOR__WORKERS", "8"),
    ];
    let text = refused(&scene, &["-c", "c.toml"], &environment);
    has(&text, &["QUEUE_DEPTH", "did you mean UBLKD__SUPERVISOR__WORKERS"]);
    has(&text, &environment[..3].iter().map(|(name, _)| *name).collect::<Vec<_>>());
    assert!(!text.contains("NOT_UBLKD"), "{text}");
}

#[test]
fn f80_names_keep_their_case_and_later_layers_win() {
    let scene = Scene::new();
    let device = "[[device]]\nname = \"DB-Main\"\ntarget = \"null\"\nsize = \"1M\"\n";
    scene.write("c.toml", &format!("[supervisor]\nworkers = 2\nmailbox = 3\n\n{device}"));
    let files = ["-c", "c.toml"];
    let value = resolved(&scene, &files, &[]);
    assert_eq!(value["devices"][0]["name"], "DB-Main");
    let workers = |value: &Value| value["supervisor"]["workers"].as_u64();
    assert_eq!(workers(&value), Some(2));
    let environment = [("UBLKD__SUPERVISOR__WORKERS", "5"), ("UBLKD__DEFAULTS__DEPTH", "7")];
    let value = resolved(&scene, &files, &environment);
    assert_eq!((workers(&value), &value["supervisor"]["mailbox"]), (Some(5), &3.into()));
    assert_eq!(value["devices"][0]["depth"], 7);
    let flags = [&files[..], &["--set", "supervisor.workers=9", "--set", "log.level=debug"]];
    let value = resolved(&scene, &flags.concat(), &environment);
    assert_eq!((workers(&value), &value["log"]["level"]), (Some(9), &"debug".into()));
}

#[test]
fn f81_each_error_says_which_file_which_device_and_what_was_expected() {
    let scene = Scene::new();
    scene.write("empty.toml", "");
    scene.write("wrong.json", "{}");
    std::fs::create_dir(scene.path("hollow")).unwrap();
    symlink("loop.toml", scene.path("loop.toml")).unwrap();
    scene.write("syntax.toml", "\n\n\n\n\n\n[[device]\nname = \"a\"\n");
    let fourth = |rest: &str| {
        let first = "[[device]]\nname = \"ok-{n}\"\ncount = 3\ntarget = \"null\"\nsize = 4096\n";
        format!("{first}[[device]]\nname = \"the-fourth\"\n{rest}")
    };
    scene.write("no-path.toml", &fourth("target = \"loop\"\n"));
    scene.write("size.toml", &fourth("target = \"ram\"\nsize = \"12Q\"\n"));
    for (path, parts) in [
        ("none.toml", &["none.toml: cannot open it", "No such file", "looked for /"][..]),
        ("empty.toml", &["empty.toml: is empty", "[[device]]"]),
        ("wrong.json", &["wrong.json", "expected a file called *.toml"]),
        ("hollow", &["hollow", "holds no config", "*.toml"]),
        ("loop.toml", &["loop.toml: cannot open it", "symbolic links"]),
        ("syntax.toml", &["syntax.toml:7:"]),
        ("no-path.toml", &["no-path.toml:6:1: device \"the-fourth\": path"]),
        ("size.toml", &["size.toml:9:8: device \"the-fourth\": size", "12Q"]),
    ] {
        has(&refused(&scene, &["-c", path], &[]), parts);
    }
}

#[test]
fn f84_relative_paths_start_at_the_config_and_not_at_the_working_directory() {
    let scene = Scene::new();
    let device =
        |path: &str| format!("[[device]]\nname = \"v\"\ntarget = \"loop\"\npath = {path:?}\n");
    let real = scene.write("etc/agent/x.toml", &device("disks/a.img"));
    std::fs::create_dir_all(scene.path("link")).unwrap();
    symlink(&real, scene.path("link/y.toml")).unwrap();
    let path_of = |config: &std::path::Path| {
        let mut command = scene.command(&["check", "--json", "-c"]);
        let ended = output(command.arg(config).current_dir("/"));
        let value: Value = serde_json::from_slice(&ended.stdout).unwrap();
        value["devices"][0]["path"].as_str().unwrap().to_owned()
    };
    assert_eq!(path_of(&real), scene.path("etc/agent/disks/a.img").to_str().unwrap());
    let link = scene.path("link/y.toml");
    assert_eq!(path_of(&link), scene.path("link/disks/a.img").to_str().unwrap());

    for odd in ["a b.img", "ümläut.img", "line\nbreak.img"] {
        let config = scene.write("etc/odd.toml", &device(odd));
        assert_eq!(path_of(&config), scene.path("etc").join(odd).to_str().unwrap());
    }
    for refuse in ["~/a.img", "${HOME}/a.img"] {
        scene.write("z.toml", &device(refuse));
        has(&refused(&scene, &["-c", "z.toml"], &[]), &["z.toml:4:8: device \"v\": path"]);
    }
}

#[test]
fn f84_a_backing_that_is_missing_is_told_with_the_absolute_path() {
    let scene = Scene::new();
    scene.write("etc/x.toml", "[[device]]\nname = \"v\"\ntarget = \"loop\"\npath = \"a.img\"\n");
    let mut command = scene.command(&["run", "-c", "etc/x.toml"]);
    let ended = output(command.args(scene.sim()));
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{text}");
    has(&text, &["device v: open", scene.path("etc/a.img").to_str().unwrap(), "ENOENT"]);
}

#[test]
fn a_backing_that_is_there_is_served_from_a_relative_path() {
    let scene = Scene::new();
    scene
        .write("etc/ublkd.toml", "[[device]]\nname = \"v\"\ntarget = \"loop\"\npath = \"a.img\"\n");
    std::fs::File::create(scene.path("etc/a.img")).unwrap().set_len(1 << 20).unwrap();
    let mut command = scene.command(&["run", "-c", "etc/ublkd.toml"]);
    let daemon = crate::support::Daemon::spawn(command.args(scene.sim()));
    daemon.says("1 of 1 devices in service");
    daemon.terminate().with_status(0);
}

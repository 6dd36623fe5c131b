//! Files, directories, paths.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use insta::assert_snapshot;

use super::{Fixture, names, refused};
use crate::config::{MAX_BYTES, Sources};
use crate::model::TargetSpec;

const NULL: &str = "target='null'\nsize='1M'\n";

fn device(name: &str) -> String {
    format!("[[device]]\nname='{name}'\n{NULL}")
}

#[test]
fn f81_what_cannot_be_a_config_is_told_with_what_was_expected() {
    let fixture = Fixture::new(&[
        ("empty.toml", ""),
        ("blank.toml", " \n\n"),
        ("x.yaml", "device: 1"),
        ("good.toml", &device("a")),
        ("dir/readme.txt", "no config"),
        ("dir/.hidden.toml", "no config"),
    ]);
    fixture.write("latin.toml", b"# ok\nname = '\xe4'\n");
    fixture.write("large.toml", vec![b'#'; MAX_BYTES as usize + 1]);
    let path = |name: &str| fixture.dir().join(name);
    symlink(path("good.toml"), path("again.toml")).expect("a link");
    symlink(path("loop.toml"), path("loop.toml")).expect("a link");
    nix::unistd::mkfifo(&path("fifo.toml"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    std::fs::create_dir_all(path("nested/sub.toml")).expect("a directory");

    let sources = fixture.sources(&[
        "missing.toml",
        "empty.toml",
        "blank.toml",
        "x.yaml",
        "dir",
        "missing",
        "latin.toml",
        "large.toml",
        "good.toml",
        "again.toml",
        "loop.toml",
        "fifo.toml",
        "nested",
    ]);
    assert_snapshot!(fixture.refused(&sources), @r"
    DIR/missing.toml: cannot open it: No such file or directory (os error 2)
    DIR/empty.toml: is empty: expected [[device]], [defaults], [supervisor], [log], [metrics] or [api]
    DIR/blank.toml: is empty: expected [[device]], [defaults], [supervisor], [log], [metrics] or [api]
    DIR/x.yaml: is no config: expected a file called *.toml or a directory of them
    DIR/dir: holds no config: expected at least one file called *.toml in it
    DIR/missing: cannot find it: No such file or directory (os error 2)
    DIR/latin.toml: is not UTF-8 in line 2: expected TOML, which is always UTF-8
    DIR/large.toml: is too large: a config file may have up to 10 MiB
    DIR/again.toml: is the same file as DIR/good.toml: name it once
    DIR/loop.toml: cannot open it: Too many levels of symbolic links (os error 40)
    DIR/fifo.toml: is not a regular file: expected a TOML file
    DIR/nested/sub.toml: is not a regular file: expected a TOML file
    ");
}

#[test]
fn f81_an_unreadable_file_is_told() {
    let fixture = Fixture::new(&[("x.toml", &device("a"))]);
    let mode = |path: &Path, bits| std::fs::set_permissions(path, PermissionsExt::from_mode(bits));
    mode(fixture.dir(), 0o755).expect("mode");
    mode(&fixture.dir().join("x.toml"), 0o000).expect("mode");
    let sources = fixture.sources(&["x.toml"]);
    // Root may read everything, so the reading thread (and no other) becomes somebody else.
    let said = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
            fixture.refused(&sources)
        });
        reader.join().expect("what was said")
    });
    assert_snapshot!(said, @"DIR/x.toml: cannot open it: Permission denied (os error 13)");
}

#[test]
fn f81_no_config_and_no_device_are_told() {
    let fixture = Fixture::new(&[("x.toml", "# nothing here yet\n[log]\n")]);
    assert_snapshot!(fixture.refused(&Sources::new()), @"no config was given: expected a file called *.toml or a directory of them");
    assert_snapshot!(fixture.refused(&fixture.sources(&["x.toml"])), @"no device is configured: expected at least one [[device]], or under [api] enabled = true if all come over the API");
}

#[test]
fn no_device_is_fine_where_the_config_says_that_all_come_over_the_api() {
    let fixture = Fixture::new(&[
        ("on.toml", "[api]\nenabled = true\n"),
        ("off.toml", "[api]\nenabled = false\n"),
        ("silent.toml", "[api]\nconnections = 64\n"),
    ]);
    assert!(fixture.sources(&["on.toml"]).load().expect("a config").devices.is_empty());
    for refused in ["off.toml", "silent.toml"] {
        assert!(
            fixture.refused(&fixture.sources(&[refused])).starts_with("no device"),
            "{refused}"
        );
    }
}

#[test]
fn fragments_are_read_in_the_order_of_their_names() {
    let fixture = Fixture::new(&[
        ("d/20-b.toml", &device("b")),
        ("d/10-a.toml", &device("a")),
        ("d/30-c.toml.bak", "no config"),
        ("d/30-comment.toml", "# switched off\n"),
        ("first.toml", &device("z")),
    ]);
    let config = fixture.load(&["first.toml", "d"]);
    assert_eq!(names(&config), ["z", "a", "b"]);
    let origin = config.devices[1].origin.to_string();
    assert_eq!(origin, format!("{}:1:1", fixture.path("d/10-a.toml")));
}

#[test]
fn f84_relative_paths_start_at_the_file_that_names_them() {
    let text =
        "[supervisor]\nrun_dir='run'\n[[device]]\nname='a'\ntarget='loop'\npath='disks/a b.img'\n";
    let fixture = Fixture::new(&[("etc/x.toml", text)]);
    std::fs::create_dir(fixture.dir().join("link")).expect("a directory");
    symlink(fixture.path("etc/x.toml"), fixture.path("link/y.toml")).expect("a link");
    // A linked config is relative to where the link is.
    for (file, dir) in [("etc/x.toml", "etc"), ("link/y.toml", "link")] {
        let config = fixture.load(&[file]);
        assert_eq!(config.supervisor.run_dir, fixture.dir().join(dir).join("run"));
        let TargetSpec::Loop { path, .. } = config.devices[0].spec.target() else {
            panic!("not a loop device");
        };
        assert_eq!(*path, fixture.dir().join(dir).join("disks/a b.img"));
    }
}

#[test]
fn f84_tilde_and_variables_are_refused() {
    let text = "\
[supervisor]
run_dir = \"~/run\"
[[device]]
name = \"a\"
target = \"loop\"
path = \"${HOME}/a.img\"
[[device]]
name = \"b\"
target = \"loop\"
path = \"\"
";
    assert_snapshot!(refused(text), @r#"
    DIR/x.toml:2:11: supervisor.run_dir: "~/run" holds ~, which is not expanded: write the whole path (or ./~ for a file of that name)
      |
    2 | run_dir = "~/run"
      |           ^^^^^^^
    DIR/x.toml:6:8: device "a": path: "${HOME}/a.img" holds $, which is not expanded: write the whole path
      |
    6 | path = "${HOME}/a.img"
      |        ^^^^^^^^^^^^^^^
    DIR/x.toml:10:8: device "b": path: is empty: expected a path
       |
    10 | path = ""
       |        ^^
    "#);
}

#[test]
fn f74_one_backing_written_under_several_spellings_is_refused() {
    let entry = |name: &str, path: &str, more: &str| {
        format!("[[device]]\nname='{name}'\ntarget='loop'\npath='{path}'\n{more}")
    };
    let text = [
        entry("plain", "a.img", ""),
        entry("dots", "./sub/../a.img", ""),
        entry("symbolic", "sym.img", "read_only=true\n"),
        entry("hard", "hard.img", ""),
        entry("other", "b.img", ""),
        entry("reader-1", "c.img", "read_only=true\n"),
        entry("reader-2", "c.img", "read_only=true\n"),
        entry("writer", "c.img", ""),
        entry("missing-1", "none.img", ""),
        entry("missing-2", "sub/../none.img", ""),
    ];
    let fixture =
        Fixture::new(&[("x.toml", &text.concat()), ("a.img", ""), ("b.img", ""), ("c.img", "")]);
    std::fs::create_dir(fixture.dir().join("sub")).expect("a directory");
    symlink("a.img", fixture.path("sym.img")).expect("a link");
    std::fs::hard_link(fixture.path("a.img"), fixture.path("hard.img")).expect("a link");
    let said = fixture.refused(&fixture.sources(&["x.toml"]));
    let heads: Vec<&str> = said.lines().filter(|line| line.starts_with("DIR")).collect();
    assert_snapshot!(heads.join("\n"), @r#"
    DIR/x.toml:8:6: device "dots": path: DIR/sub/../a.img is also the backing of device "plain" at DIR/x.toml:1:1 as DIR/a.img; only devices that are all read_only may share one
    DIR/x.toml:12:6: device "symbolic": path: DIR/sym.img is also the backing of device "plain" at DIR/x.toml:1:1 as DIR/a.img; only devices that are all read_only may share one
    DIR/x.toml:17:6: device "hard": path: DIR/hard.img is also the backing of device "plain" at DIR/x.toml:1:1 as DIR/a.img; only devices that are all read_only may share one
    DIR/x.toml:35:6: device "writer": path: DIR/c.img is also the backing of device "reader-1" at DIR/x.toml:22:1; only devices that are all read_only may share one
    DIR/x.toml:43:6: device "missing-2": path: DIR/sub/../none.img is also the backing of device "missing-1" at DIR/x.toml:36:1 as DIR/none.img; only devices that are all read_only may share one
    "#);
}

#[test]
fn f74_one_backing_may_be_read_by_many() {
    let entry = |name: &str| {
        format!("[[device]]\nname='{name}'\ntarget='loop'\npath='a.img'\nread_only=true\n")
    };
    let fixture = Fixture::new(&[("x.toml", &[entry("a"), entry("b")].concat()), ("a.img", "")]);
    assert_eq!(names(&fixture.load(&["x.toml"])), ["a", "b"]);
}

//! What is wrong inside one file.

use insta::assert_snapshot;
use proptest::prelude::*;

use super::{Fixture, load, refused};

#[test]
fn f81_all_problems_of_a_file_are_told_at_once_with_their_places() {
    let text = "\
[supervisor]
workers = 0
maibox = 5
command_timeout = 10
on_failure = \"ignore\"

[log]
level = 'warn'

[defaults]
depth = \"64\"
name = \"x\"

[[device]]
name = \"a\"
target = \"ram\"
size = \"12Q\"
queueDepth = 5

[[device]]
target = \"loop\"
size = \"1G\"
queues = 1.5

[[device]]
name = \"vol-3\"
target = \"lop\"
depth = 5000
max_io = 5000
";
    assert_snapshot!(refused(text), @r#"
    DIR/x.toml:2:11: supervisor.workers: 0 is out of range: 1 to 1024
      |
    2 | workers = 0
      |           ^
    DIR/x.toml:3:1: supervisor.maibox: unknown key; did you mean mailbox?
      |
    3 | maibox = 5
      | ^^^^^^
    DIR/x.toml:4:19: supervisor.command_timeout: expected a duration from 100ms to 1h, as "10s", found the integer 10
      |
    4 | command_timeout = 10
      |                   ^^
    DIR/x.toml:5:14: supervisor.on_failure: "ignore" is not one of continue, abort
      |
    5 | on_failure = "ignore"
      |              ^^^^^^^^
    DIR/x.toml:8:9: log.level: "warn" is not one of critical, error, warning, info, debug, trace
      |
    8 | level = 'warn'
      |         ^^^^^^
    DIR/x.toml:11:9: defaults.depth: expected an integer from 1 to 4096, found the string "64"
       |
    11 | depth = "64"
       |         ^^^^
    DIR/x.toml:12:1: defaults.name: tells one device from another: it belongs in [[device]], not in [defaults]
       |
    12 | name = "x"
       | ^^^^
    DIR/x.toml:17:8: device "a": size: "12Q" is no size: write a whole number of bytes, or one with K, M, G, T or KiB, MiB, GiB, TiB (powers of 1024), or KB, MB, GB, TB (powers of 1000)
       |
    17 | size = "12Q"
       |        ^^^^^
    DIR/x.toml:18:1: device "a": queueDepth: unknown key; did you mean depth?
       |
    18 | queueDepth = 5
       | ^^^^^^^^^^
    DIR/x.toml:20:1: device[1].name: is missing: expected the host's name for the device
       |
    20 | [[device]]
       | ^^^^^^^^^^
    DIR/x.toml:20:1: device[1].path: is missing: expected the path of a file or block device
       |
    20 | [[device]]
       | ^^^^^^^^^^
    DIR/x.toml:22:8: device[1].size: does not belong to a loop target: it is for null and ram targets; others know their size
       |
    22 | size = "1G"
       |        ^^^^
    DIR/x.toml:23:10: device[1].queues: expected an integer from 1 to 4096, found a number with a fraction
       |
    23 | queues = 1.5
       |          ^^^
    DIR/x.toml:27:10: device "vol-3": target: "lop" is no target: expected one of null, ram, loop; did you mean loop?
       |
    27 | target = "lop"
       |          ^^^^^
    DIR/x.toml:28:9: device "vol-3": depth: 5000 is out of range: 1 to 4096
       |
    28 | depth = 5000
       |         ^^^^
    DIR/x.toml:29:10: device "vol-3": max_io: 5000 bytes is out of range: a multiple of 4096 from 4096 to 33554432 (32 MiB)
       |
    29 | max_io = 5000
       |          ^^^^
    "#);
}

#[test]
fn f81_missing_keys_are_told_at_the_entry() {
    let text = "\
[[device]]
[[device]]
name = \"n\"
target = \"null\"
[[device]]
name = \"l\"
target = \"loop\"
";
    assert_snapshot!(refused(text), @r#"
    DIR/x.toml:1:1: device[0].name: is missing: expected the host's name for the device
      |
    1 | [[device]]
      | ^^^^^^^^^^
    DIR/x.toml:1:1: device[0].target: is missing: expected one of null, ram, loop
      |
    1 | [[device]]
      | ^^^^^^^^^^
    DIR/x.toml:2:1: device "n": size: is missing: expected how large it shall be, as "64M"
      |
    2 | [[device]]
      | ^^^^^^^^^^
    DIR/x.toml:5:1: device "l": path: is missing: expected the path of a file or block device
      |
    5 | [[device]]
      | ^^^^^^^^^^
    "#);
}

#[test]
fn f81_syntax_errors_are_told_with_line_and_column() {
    let text = "[[device]]\nname = \"a\"\ntarget = \"null\"\n\n\n\nsize == 3\nname = \"b\"\n";
    assert_snapshot!(refused(text), @r#"
    DIR/x.toml:7:7: extra `=`, expected nothing
      |
    7 | size == 3
      |       ^
    DIR/x.toml:7:9: unexpected key or value, expected newline, `#`
      |
    7 | size == 3
      |         ^
    DIR/x.toml:8:1: duplicate key
      |
    8 | name = "b"
      | ^^^^
    "#);
}

#[test]
fn f35_numbers_out_of_range_are_refused_with_what_is_allowed() {
    let device = |line: &str| format!("[[device]]\nname='d'\ntarget='null'\nsize='1M'\n{line}\n");
    let said = |line: &str| refused(&device(line)).lines().next().map(str::to_owned);
    let mut all = String::new();
    for line in [
        "queues = 0",
        "queues = 65536",
        "depth = 0",
        "depth = 4097",
        "depth = -1",
        "id = -2",
        "id = 4294967295",
        "id = 99999999999999999999999999999999999999999",
        "max_io = 0",
        "max_io = 513",
        "max_io = 2147483648",
        "max_io = 6000",
        "logical_block = 1000",
        "physical_block = 600",
        "delay = '2h'",
        "error_at = -1",
        "count = 0",
        "count = 100000",
        "start = 1",
    ] {
        all.push_str(&said(line).unwrap_or_default());
        all.push('\n');
    }
    assert_snapshot!(all, @r#"
    DIR/x.toml:5:10: device "d": queues: 0 is out of range: 1 to 4096
    DIR/x.toml:5:10: device "d": queues: 65536 is out of range: 1 to 4096
    DIR/x.toml:5:9: device "d": depth: 0 is out of range: 1 to 4096
    DIR/x.toml:5:9: device "d": depth: 4097 is out of range: 1 to 4096
    DIR/x.toml:5:9: device "d": depth: -1 is out of range: 1 to 4096
    DIR/x.toml:5:6: device "d": id: -2 is out of range: 0 to 1048575
    DIR/x.toml:5:6: device "d": id: 4294967295 is out of range: 0 to 1048575
    DIR/x.toml:5:6: device "d": id: expected an integer from 0 to 1048575, found an integer that is too large
    DIR/x.toml:5:10: device "d": max_io: 0 is out of range: 4 KiB to 32 MiB
    DIR/x.toml:5:10: device "d": max_io: 513 is out of range: 4 KiB to 32 MiB
    DIR/x.toml:5:10: device "d": max_io: 2147483648 is out of range: 4 KiB to 32 MiB
    DIR/x.toml:5:10: device "d": max_io: 6000 bytes is out of range: a multiple of 4096 from 4096 to 33554432 (32 MiB)
    DIR/x.toml:5:17: device "d": logical_block: 1000 is not one of 512, 1024, 2048, 4096
    DIR/x.toml:5:18: device "d": physical_block: 600 must be a power of two from the logical block (512) to 1048576
    DIR/x.toml:5:9: device "d": delay: 2h is out of range: 0s to 1h
    DIR/x.toml:5:12: device "d": error_at: -1 is out of range: 0 to 18014398509481976
    DIR/x.toml:5:9: device "d": count: 0 is out of range: 1 to 65536
    DIR/x.toml:5:9: device "d": count: 100000 is out of range: 1 to 65536
    DIR/x.toml:5:9: device "d": start: is for fleets: it needs count
    "#);
    for line in
        ["queues = 16\ndepth = 2048", "depth = 3", "depth = 4096", "queues = 4096", "id = 0"]
    {
        load(&device(line));
    }
}

#[test]
fn f78_sizes_that_are_no_blocks_are_refused() {
    let ram = |size: &str| format!("[[device]]\nname='d'\ntarget='ram'\nsize={size}\n");
    let mut all = String::new();
    for size in
        ["0", "1", "511", "513", "'1000B'", "'9E'", "-1", "true", "'4K'\nlogical_block=8192"]
    {
        all.push_str(refused(&ram(size)).lines().next().unwrap_or_default());
        all.push('\n');
    }
    assert_snapshot!(all, @r#"
    DIR/x.toml:4:6: device "d": size: 0 is out of range: 512 B to 8 EiB - 4 KiB
    DIR/x.toml:4:6: device "d": size: 1 is out of range: 512 B to 8 EiB - 4 KiB
    DIR/x.toml:4:6: device "d": size: 511 is out of range: 512 B to 8 EiB - 4 KiB
    DIR/x.toml:4:6: device "d": size: 513 bytes is no multiple of the logical block (512)
    DIR/x.toml:4:6: device "d": size: 1000 bytes is no multiple of the logical block (512)
    DIR/x.toml:4:6: device "d": size: 9E is out of range: 512 B to 8 EiB - 4 KiB
    DIR/x.toml:4:6: device "d": size: -1 is out of range: 512 B to 8 EiB - 4 KiB
    DIR/x.toml:4:6: device "d": size: expected a size from 512 B to 8 EiB - 4 KiB, as 4096 or "64M", found true
    DIR/x.toml:5:15: device "d": logical_block: 8192 is out of range: 512 B to 4 KiB
    "#);
    for size in ["512", "4096", "'4K'\nlogical_block=4096"] {
        load(&ram(size));
    }
}

#[test]
fn f80_keys_in_another_spelling_are_refused_and_the_right_one_is_named() {
    let text = "\
workers = 5
[Supervisor]
[[devices]]
[[device]]
Name = \"DB-Main\"
queueDepth = 5
QUEUE_DEPTH = 5
colour = \"red\"
";
    assert_snapshot!(refused(text), @r#"
    DIR/x.toml:1:1: workers: belongs in a section; did you mean supervisor.workers?
      |
    1 | workers = 5
      | ^^^^^^^
    DIR/x.toml:2:2: Supervisor: unknown section; did you mean [supervisor]?
      |
    2 | [Supervisor]
      |  ^^^^^^^^^^
    DIR/x.toml:3:3: devices: unknown section; did you mean [[device]]?
      |
    3 | [[devices]]
      |   ^^^^^^^
    DIR/x.toml:4:1: device[0].name: is missing: expected the host's name for the device
      |
    4 | [[device]]
      | ^^^^^^^^^^
    DIR/x.toml:4:1: device[0].target: is missing: expected one of null, ram, loop
      |
    4 | [[device]]
      | ^^^^^^^^^^
    DIR/x.toml:5:1: device[0].Name: unknown key; did you mean name?
      |
    5 | Name = "DB-Main"
      | ^^^^
    DIR/x.toml:6:1: device[0].queueDepth: unknown key; did you mean depth?
      |
    6 | queueDepth = 5
      | ^^^^^^^^^^
    DIR/x.toml:7:1: device[0].QUEUE_DEPTH: unknown key; did you mean depth?
      |
    7 | QUEUE_DEPTH = 5
      | ^^^^^^^^^^^
    DIR/x.toml:8:1: device[0].colour: unknown key; expected name, target, size, path, direct, options, count, start, id, queues, depth, max_io, logical_block, physical_block, read_only, partitions, data, batch, affinity, group, labels, busy, busy_timeout, recovery, delay, error_at, panic_at
      |
    8 | colour = "red"
      | ^^^^^^
    "#);
}

#[test]
fn f80_names_keep_their_case() {
    let config = load(
        "[[device]]\nname='DB-Main'\ntarget='null'\nsize='1M'\n[[device]]\nname='db-main'\ntarget='null'\nsize='1M'\n",
    );
    assert_eq!(super::names(&config), ["DB-Main", "db-main"]);
}

#[test]
fn sections_of_the_wrong_shape_are_refused() {
    assert_snapshot!(refused("device = 3\nlog = []\n[supervisor]\nworkers = {}\n"), @r#"
    DIR/x.toml:1:10: device: expected [[device]], found an integer
      |
    1 | device = 3
      |          ^
    DIR/x.toml:2:7: log: expected a table [log], found an array
      |
    2 | log = []
      |       ^^
    DIR/x.toml:4:11: supervisor.workers: expected an integer from 1 to 1024, or "auto", found a table
      |
    4 | workers = {}
      |           ^^
    "#);
    assert_snapshot!(refused("[device]\nname = 'x'\n"), @r"
    DIR/x.toml:1:1: device: expected [[device]], found a table
      |
    1 | [device]
      | ^^^^^^^^
    ");
    assert_snapshot!(refused("device = [3, { name = 'x' }]\n"), @r#"
    DIR/x.toml:1:11: device[0]: expected a table, found an integer
      |
    1 | device = [3, { name = 'x' }]
      |           ^
    DIR/x.toml:1:14: device "x": target: is missing: expected one of null, ram, loop
      |
    1 | device = [3, { name = 'x' }]
      |              ^^^^^^^^^^^^^^
    "#);
}

#[test]
fn keys_of_another_target_are_refused_but_defaults_are_passed_over() {
    let text = "\
[[device]]
name = \"l\"
target = \"loop\"
path = \"a.img\"
size = \"1G\"
options = { a = 1 }

[[device]]
name = \"r\"
target = \"ram\"
size = \"1G\"
path = \"b.img\"
direct = false
";
    assert_snapshot!(refused(text), @r#"
    DIR/x.toml:5:8: device "l": size: does not belong to a loop target: it is for null and ram targets; others know their size
      |
    5 | size = "1G"
      |        ^^^^
    DIR/x.toml:6:11: device "l": options: does not belong to a loop target: it is for custom targets
      |
    6 | options = { a = 1 }
      |           ^^^^^^^^^
    DIR/x.toml:12:8: device "r": path: does not belong to a ram target: it is for loop targets
       |
    12 | path = "b.img"
       |        ^^^^^^^
    DIR/x.toml:13:10: device "r": direct: does not belong to a ram target: it is for loop targets
       |
    13 | direct = false
       |          ^^^^^
    "#);
    let config = load(
        "[defaults]\ntarget='ram'\nsize='1M'\ndirect=true\n[[device]]\nname='a'\n[[device]]\nname='b'\ntarget='loop'\npath='/x'\n",
    );
    assert_eq!(config.devices.len(), 2);
}

#[test]
fn a_bad_default_is_told_once_and_one_that_does_not_fit_says_where_it_is() {
    let text = "\
[defaults]
target = \"ram\"
size = \"10MB\"
logical_block = 4096

[[device]]
name = \"a\"

[[device]]
name = \"b\"
size = \"12M\"

[[device]]
name = \"c\"
";
    assert_snapshot!(refused(text), @r#"
    DIR/x.toml:6:1: device "a": size: 10000000 bytes is no multiple of the logical block (4096) (the default of DIR/x.toml:3:8)
      |
    6 | [[device]]
      | ^^^^^^^^^^
    DIR/x.toml:13:1: device "c": size: 10000000 bytes is no multiple of the logical block (4096) (the default of DIR/x.toml:3:8)
       |
    13 | [[device]]
       | ^^^^^^^^^^
    "#);
    let text = "[defaults]\ndepth = 0\ntarget='null'\nsize='1M'\n[[device]]\nname='a-{n}'\ncount=1000\n[[device]]\nname='b'\n";
    assert_snapshot!(refused(text), @r"
    DIR/x.toml:2:9: defaults.depth: 0 is out of range: 1 to 4096
      |
    2 | depth = 0
      |         ^
    ");
}

#[test]
fn long_lines_and_control_characters_do_not_spoil_the_excerpt() {
    let long = format!(
        "device = [{{ name = \"{}\",\tdepth = 0, target='null', size=512 }}]",
        "x".repeat(300)
    );
    assert_snapshot!(refused(&long), @r#"
    DIR/x.toml:1:20: device "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…": name: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" is no device name: use 1 to 64 characters of A-Z a-z 0-9 . _ -, the first one not . or -
      |
    1 | device = [{ name = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
      |                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    DIR/x.toml:1:332: device "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…": depth: 0 is out of range: 1 to 4096
      |
    1 | xxxxxxxxx", depth = 0, target='null', size=512 }]
      |                     ^
    "#);
}

#[test]
fn f92_the_error_of_the_model_keeps_every_problem() {
    let fixture = Fixture::new(&[("x.toml", "[log]\nlevel=1\nformat=2\n")]);
    let error = fixture.sources(&["x.toml"]).load().expect_err("it was taken");
    assert_eq!(error.problems.len(), 2);
    let json = serde_json::to_value(&error.problems[0]).expect("JSON");
    assert_eq!(json["line"], 2);
    assert_eq!(json["key"], "log.level");
    let error = crate::model::Error::from(error);
    assert_eq!(error.kind(), crate::model::ErrorKind::Invalid);
    assert!(error.to_string().contains("log.format"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever happens to a config, it loads or is refused with places that exist.
    #[test]
    fn f81_a_mangled_config_never_panics(
        cuts in prop::collection::vec((0..1000usize, 0..20usize, "[\\[\\]{}=\"'\u{e4}n0.#\r\n\t a]{0,4}"), 0..4),
    ) {
        let example = include_str!("../../../config/ublkd.toml").lines();
        let keys: Vec<&str> = example.filter(|line| !line.starts_with('#')).collect();
        let mut text: Vec<char> = keys.join("\n").chars().collect();
        for (at, len, insert) in cuts {
            let at = at * text.len() / 1000;
            let end = (at + len).min(text.len());
            text.splice(at..end, insert.chars());
        }
        let text: String = text.into_iter().collect();
        let fixture = Fixture::new(&[("x.toml", &text)]);
        if let Err(error) = fixture.sources(&["x.toml"]).load() {
            prop_assert!(!error.problems.is_empty());
            for problem in error.problems {
                prop_assert!(problem.line.is_none_or(|line| line <= text.split('\n').count()));
                prop_assert!(!problem.to_string().is_empty());
            }
        }
    }
}

//! Fleets, and devices that are there twice.

use insta::assert_snapshot;

use super::{Fixture, load, names, refused};
use crate::model::{DeviceId, TargetSpec};

#[test]
fn four_thousand_devices_take_four_lines() {
    let config = load("[[device]]\nname='vol-{n:04}'\ntarget='null'\nsize='1G'\ncount=4000\n");
    assert_eq!(config.devices.len(), 4000);
    assert_eq!(config.devices[0].spec.name().as_str(), "vol-0000");
    assert_eq!(config.devices[3999].spec.name().as_str(), "vol-3999");
}

#[test]
fn numbers_go_into_names_paths_and_ids() {
    let text = "[[device]]\nname='v{n}'\ntarget='loop'\npath='/srv/{n:03}/v{n}.img'\ncount=2\nstart=9\nid=100\n";
    let config = load(text);
    assert_eq!(names(&config), ["v9", "v10"]);
    let second = &config.devices[1].spec;
    assert_eq!(second.id(), Some(DeviceId(101)));
    let path = "/srv/010/v10.img".into();
    assert_eq!(*second.target(), TargetSpec::Loop { path, direct: false });
}

#[test]
fn braces_in_paths_mean_nothing_without_count() {
    let config = load("[[device]]\nname='a'\ntarget='loop'\npath='/srv/{x}.img'\n");
    assert_eq!(names(&config), ["a"]);
}

#[test]
fn fleets_that_cannot_be_are_refused() {
    let text = "\
[[device]]
name = \"same\"
target = \"null\"
size = \"1M\"
count = 3

[[device]]
name = \"b-{n}\"
target = \"loop\"
path = \"/srv/b.img\"
count = 3

[[device]]
name = \"c-{n}\"
target = \"null\"
size = \"1M\"

[[device]]
name = \"d-{m}\"
target = \"null\"
size = \"1M\"
count = 3

[[device]]
name = \"e/{n}\"
target = \"null\"
size = \"1M\"
count = 3

[[device]]
name = \"f{n}\"
target = \"null\"
size = \"1M\"
count = 3
id = 1048574
";
    assert_snapshot!(refused(text), @r#"
    DIR/x.toml:2:8: device "same": name: "same" would name all 3 devices: put {n} in it
      |
    2 | name = "same"
      |        ^^^^^^
    DIR/x.toml:10:8: device "b-{n}": path: all 3 devices would write to "/srv/b.img": put {n} in it, or set read_only
       |
    10 | path = "/srv/b.img"
       |        ^^^^^^^^^^^^
    DIR/x.toml:14:8: device "c-{n}": name: "c-{n}" holds a number, as for a fleet: it needs count
       |
    14 | name = "c-{n}"
       |        ^^^^^^^
    DIR/x.toml:19:8: device "d-{m}": name: "d-{m}" holds "{m}": expected {n}, or {n:04} for four digits
       |
    19 | name = "d-{m}"
       |        ^^^^^^^
    DIR/x.toml:25:8: device "e/{n}": name: "e/0" is no device name: use 1 to 64 characters of A-Z a-z 0-9 . _ -, the first one not . or -
       |
    25 | name = "e/{n}"
       |        ^^^^^^^
    DIR/x.toml:35:6: device "f{n}": id: 1048576 is out of range: 0 to 1048575
       |
    35 | id = 1048574
       |      ^^^^^^^
    "#);
}

#[test]
fn f35_a_config_has_a_bounded_number_of_devices() {
    let fleet = |name: &str| {
        format!("[[device]]\nname='{name}{{n}}'\ntarget='null'\nsize='1M'\ncount=65536\n")
    };
    assert_snapshot!(refused(&[fleet("a"), fleet("b")].concat()), @r#"
    DIR/x.toml:10:7: device "b{n}": count: 65536 more devices are too many: 65536 in all
       |
    10 | count=65536
       |       ^^^^^
    "#);
}

#[test]
fn duplicate_names_and_ids_are_told_with_both_places() {
    let fixture = Fixture::new(&[
        ("a.toml", "[[device]]\nname='v-{n}'\ntarget='null'\nsize='1M'\ncount=100\nid=5\n"),
        (
            "b.toml",
            "[[device]]\nname = 'v-7'\ntarget='null'\nsize='1M'\nid = 5\n[[device]]\nname='v-{n}'\ncount=50\ntarget='ram'\nsize='1M'\n",
        ),
    ]);
    assert_snapshot!(fixture.refused(&fixture.sources(&["a.toml", "b.toml"])), @r#"
    DIR/b.toml:2:8: device "v-7": name: "v-7" is also the name of a device at DIR/a.toml:1:1
      |
    2 | name = 'v-7'
      |        ^^^^^
    DIR/b.toml:5:6: device "v-7": id: 5 is also asked for by device "v-0" at DIR/a.toml:1:1
      |
    5 | id = 5
      |      ^
    DIR/b.toml:7:6: device "v-0": name: "v-0" is also the name of a device at DIR/a.toml:1:1
      |
    7 | name='v-{n}'
      |      ^^^^^^^
    "#);
}

#[test]
fn a_fleet_whose_count_is_wrong_is_told_that_and_nothing_else() {
    let text = "[[device]]\nname='v{n}'\ntarget='null'\nsize='1M'\ncount=0\nstart=1\n";
    let said = refused(text);
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.contains("count: 0 is out of range: 1 to 65536"), "{said}");
}

//! The resolved config, the example configs, the documentation.

use std::path::Path;

use super::Fixture;
use crate::config::schema::Section;
use crate::config::{Config, Sources, reference_markdown};

const EVERYTHING: &str = "\
[supervisor]
workers = 3
command_timeout = '1m 30s'
[log]
level = 'debug'
[[device]]
name = 'n{n}'
target = 'null'
size = '1G'
count = 2
id = 7
logical_block = 4096
physical_block = 8192
delay = '5ms'
error_at = 1
panic_at = 2
[[device]]
name = 'l'
target = 'loop'
path = '/srv/a b.img'
direct = true
read_only = true
group = 'vm-1'
labels = { tenant = 'blue', 'app/role' = 'db' }
busy = 'wait'
busy_timeout = '5s'
recovery = true
[[device]]
name = 'c'
target = 'mine'
options = { url = 'x', list = [1, 2.5, true, { a = 2020-01-01 }] }
";

fn without_origins(mut config: Config) -> Config {
    let origin = config.devices[0].origin.clone();
    config.devices.iter_mut().for_each(|device| device.origin = origin.clone());
    config
}

#[test]
fn the_resolved_config_loads_as_itself() {
    let fixture = Fixture::new(&[("x.toml", EVERYTHING)]);
    let config = fixture.sources(&["x.toml"]).target("mine").load().expect("a config");
    let text = config.to_toml().expect("TOML");
    fixture.write("y.toml", &text);
    let mut again = fixture.sources(&["y.toml"]).target("mine").load().expect("a config");
    again.devices[0].origin = config.devices[0].origin.clone();
    assert_eq!(without_origins(again), without_origins(config));
}

#[test]
fn the_resolved_config_as_json() {
    let fixture = Fixture::new(&[("x.toml", EVERYTHING)]);
    let config = fixture.sources(&["x.toml"]).target("mine").load().expect("a config");
    let text =
        serde_json::to_string_pretty(&config).expect("JSON").replace(&fixture.path(""), "DIR/");
    insta::assert_snapshot!(text, @r#"
    {
      "supervisor": {
        "workers": 3,
        "mailbox": 1024,
        "command_timeout": "1m 30s",
        "shutdown_timeout": "1m",
        "run_dir": "/run/ublkd",
        "on_failure": "continue"
      },
      "log": {
        "level": "debug",
        "format": "terminal"
      },
      "metrics": {
        "per_device_max": 1000
      },
      "api": {
        "enabled": true,
        "mode": "0600",
        "connections": 256
      },
      "devices": [
        {
          "name": "n0",
          "target": "null",
          "size": 1073741824,
          "id": 7,
          "queues": 1,
          "depth": 64,
          "max_io": 524288,
          "logical_block": 4096,
          "physical_block": 8192,
          "read_only": false,
          "partitions": false,
          "data": "auto",
          "batch": false,
          "affinity": true,
          "busy": "stop",
          "busy_timeout": "30s",
          "recovery": false,
          "delay": "5ms",
          "error_at": 1,
          "panic_at": 2,
          "origin": "DIR/x.toml:6:1"
        },
        {
          "name": "n1",
          "target": "null",
          "size": 1073741824,
          "id": 8,
          "queues": 1,
          "depth": 64,
          "max_io": 524288,
          "logical_block": 4096,
          "physical_block": 8192,
          "read_only": false,
          "partitions": false,
          "data": "auto",
          "batch": false,
          "affinity": true,
          "busy": "stop",
          "busy_timeout": "30s",
          "recovery": false,
          "delay": "5ms",
          "error_at": 1,
          "panic_at": 2,
          "origin": "DIR/x.toml:6:1"
        },
        {
          "name": "l",
          "target": "loop",
          "path": "/srv/a b.img",
          "direct": true,
          "queues": 1,
          "depth": 64,
          "max_io": 524288,
          "read_only": true,
          "partitions": false,
          "data": "auto",
          "batch": false,
          "affinity": true,
          "group": "vm-1",
          "labels": {
            "app/role": "db",
            "tenant": "blue"
          },
          "busy": "wait",
          "busy_timeout": "5s",
          "recovery": true,
          "origin": "DIR/x.toml:17:1"
        },
        {
          "name": "c",
          "target": "mine",
          "options": {
            "list": [
              1,
              2.5,
              true,
              {
                "a": "2020-01-01"
              }
            ],
            "url": "x"
          },
          "queues": 1,
          "depth": 64,
          "max_io": 524288,
          "read_only": false,
          "partitions": false,
          "data": "auto",
          "batch": false,
          "affinity": true,
          "busy": "stop",
          "busy_timeout": "30s",
          "recovery": false,
          "origin": "DIR/x.toml:28:1"
        }
      ]
    }
    "#);
}

#[test]
fn the_documented_defaults_are_the_real_ones() {
    let fixture = Fixture::new(&[("x.toml", "[[device]]\nname='a'\ntarget='null'\nsize='1M'\n")]);
    let plain = fixture.load(&["x.toml"]);
    for section in [Section::Supervisor, Section::Log, Section::Metrics] {
        for key in section.keys() {
            let name = format!("{}.{}", section.name(), key.name);
            let same = fixture.sources(&["x.toml"]).flag(&name, key.default).load();
            assert_eq!(same.as_ref(), Ok(&plain), "{name}");
        }
    }
    for (key, default) in [
        ("direct", "false"),
        ("queues", "1"),
        ("depth", "64"),
        ("max_io", "512 KiB"),
        ("read_only", "false"),
        ("partitions", "false"),
        ("data", "auto"),
        ("batch", "false"),
        ("affinity", "true"),
    ] {
        assert_eq!(Section::Defaults.key(key).map(|k| k.default), Some(default));
        let same = fixture.sources(&["x.toml"]).flag(format!("defaults.{key}"), default).load();
        assert_eq!(same.as_ref(), Ok(&plain), "{key}");
    }
}

#[test]
fn the_documentation_has_every_key() {
    let docs = include_str!("../../../docs/configuration.md");
    for line in reference_markdown().lines() {
        assert!(docs.lines().any(|l| l == line), "docs/configuration.md lacks this line:\n{line}");
    }
}

#[test]
fn the_example_configs_load() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let load =
        |name: &str| Sources::new().path(dir.join(name)).load().unwrap_or_else(|e| panic!("{e}"));
    let config = load("ublkd.toml");
    assert_eq!(config.supervisor, crate::config::SupervisorConfig::default());
    assert_eq!(config.log, crate::config::LogConfig::default());
    assert_eq!(config.metrics, crate::config::MetricsConfig::default());
    assert_eq!(config.api, crate::config::ApiConfig::default());
    assert_eq!(load("fleet.toml").devices.len(), 4000);
}

#[test]
fn the_example_config_names_every_key() {
    let text = include_str!("../../../config/ublkd.toml");
    for section in Section::ALL {
        for key in section.keys() {
            let (plain, comment) = (format!("{} = ", key.name), format!("# {} = ", key.name));
            let named = text.lines().any(|l| l.starts_with(&plain) || l.starts_with(&comment));
            assert!(named, "config/ublkd.toml has no {}", key.name);
        }
    }
}

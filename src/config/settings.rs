//! The settings that are not devices, typed: `[supervisor]`, `[log]`, `[metrics]` and `[api]`.
//!
//! Invariant: the values of a loaded config are in the ranges that are told here; the table in
//! `schema` has the same defaults (a test compares them).

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::WorkerLimit;

/// How the supervisor works: the section `[supervisor]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SupervisorConfig {
    /// Lifecycle operations (starts and teardowns) that run at once, 1 to 1024 or `auto`.
    pub workers: WorkerLimit,
    /// Requests that may wait for the supervisor, 1 to 65536; more are refused as busy.
    pub mailbox: usize,
    /// Longest time that one control command may take, 100 ms to 1 h.
    #[serde(with = "super::units::duration")]
    pub command_timeout: Duration,
    /// Longest time that a whole shutdown may take, 1 s to 1 h. The default is below the 90 s
    /// after which systemd kills what it stops.
    #[serde(with = "super::units::duration")]
    pub shutdown_timeout: Duration,
    /// Absolute directory of the daemon's links, locks and sockets.
    pub run_dir: PathBuf,
    /// What a device that fails to start means for the others.
    pub on_failure: OnFailure,
}

impl Default for SupervisorConfig {
    fn default() -> Self {
        Self {
            workers: WorkerLimit::Auto,
            mailbox: 1024,
            command_timeout: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(60),
            run_dir: PathBuf::from("/run/ublkd"),
            on_failure: OnFailure::default(),
        }
    }
}

/// What a device that fails to start means for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// It is reported and the others run.
    #[default]
    Continue,
    /// Everything is shut down again.
    Abort,
}

/// What is measured: the section `[metrics]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricsConfig {
    /// Most devices that have series of their own, 0 to 65536.
    pub per_device_max: usize,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { per_device_max: 1000 }
    }
}

/// What is logged and how: the section `[log]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogConfig {
    /// Least important level that is logged.
    pub level: LogLevel,
    /// For people or for programs.
    pub format: LogFormat,
}

/// Who may use the HTTP API, and how: the section `[api]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// Permissions of its socket.
    #[serde(with = "super::units::mode")]
    pub mode: u32,
    /// User who owns the socket, by name or number; the daemon's if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group of the socket, by name or number; the daemon's if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Users who may use it beside root and the daemon's own, with commas between.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<String>,
    /// Connections at once, 8 to 4096.
    pub connections: usize,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self { enabled: true, mode: 0o600, owner: None, group: None, allow: None, connections: 256 }
    }
}

/// How important a log line is, most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Code panicked, or data may be lost.
    Critical,
    /// Something failed.
    Error,
    /// Something is not as it should be; work goes on.
    Warning,
    /// What happens to devices.
    #[default]
    Info,
    /// Each step and command.
    Debug,
    /// Everything; release builds do not have it.
    Trace,
}

/// Form of the log lines, which go to stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Terminal,
    /// One JSON object a line.
    Json,
}

//! What the command line takes.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use super::bench::args::Bench;
use super::complete::Shell;
use super::output::Form;
use super::verbs::args::Verb;
use crate::model::DataMode;

/// Owns Linux ublk block devices: brings them up, serves them, takes them all down.
#[derive(Debug, Parser)]
#[command(name = "ublkd", version, arg_required_else_help = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Bring the devices of a config up and serve them until SIGTERM.
    Run(Box<Run>),
    /// Check a config without starting anything, and print the resolved devices.
    Check(Check),
    /// Say what this host can do, and what is missing.
    Doctor(Format),
    #[command(flatten)]
    Verb(Verb),
    /// Measure this host: how fast devices come and go, and what they cost.
    Bench(Bench),
    /// Print the script that makes a shell complete commands, options and names of devices.
    Completions {
        #[arg(value_enum)]
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) config: ConfigArgs,

    /// Write the shutdown report to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,

    /// The kernel's driver, or a simulation of it that needs no rights.
    #[arg(long, value_enum, default_value_t = DriverName::Ublk)]
    pub(super) driver: DriverName,

    /// Which kernel the simulation is: 6.12, 7.3 or 7.4.
    #[arg(long, value_name = "RELEASE", default_value = "7.3")]
    pub(super) sim_kernel: String,

    /// Trouble on purpose, such as 'stop@3: hang' (docs/testing.md). May be repeated.
    #[arg(long, value_name = "PLAN")]
    pub(super) fault: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    pub(super) format: Format,
}

#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Format {
    /// Print something else than text for people.
    #[arg(short = 'o', long, value_enum, value_name = "FORM")]
    output: Option<Form>,

    /// The same as --output json.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl Format {
    /// What programs are to be told in, `None` for people.
    pub(super) fn form(self) -> Option<Form> {
        if self.json { Some(Form::Json) } else { self.output }
    }
}

#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    /// A config file, or a directory of *.toml files. May be repeated; later ones win.
    #[arg(short = 'c', long = "config", value_name = "PATH", required = true)]
    pub(super) paths: Vec<PathBuf>,

    /// Set a key over files and environment, such as supervisor.workers=16. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    pub(super) set: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DriverName {
    /// /dev/ublk-control
    Ublk,
    /// The simulated kernel.
    Sim,
}

/// A mode in the words of the config.
pub(super) fn data_mode() -> impl TypedValueParser<Value = DataMode> {
    PossibleValuesParser::new(DataMode::ALL.map(DataMode::as_str))
        .try_map(|word| serde_json::from_value::<DataMode>(word.into()))
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as supervisor.workers=16".to_owned()),
    }
}

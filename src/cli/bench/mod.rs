//! `ublkd bench`: measures the host it runs on, with the library as a user has it.
//!
//! ```text
//!   args ─> teardown, create, churn, density, io
//!              │ rounds: all cases in turn, so that noise meets all alike
//!              ├─ fleet   devices in a supervisor: what users have
//!              ├─ floor   the same commands from a bare loop: what the kernel costs
//!              └─ load    the users of a block device, in a process of their own
//!           ─> Findings ─> table or JSON
//! ```
//!
//! Invariants: every device that was made is gone when it ends, also after an error or an
//! interrupt; a number is the median of rounds and says where it was measured.

pub(super) mod args;
mod churn;
mod create;
mod density;
mod fleet;
mod floor;
mod histogram;
mod io;
mod lab;
mod load;
mod rounds;
mod teardown;

use self::args::{Bench, Common, What};
use super::finish;
use super::render::{self, measured::Findings};
use crate::daemon::ExitStatus;
use crate::model::Error;

pub(super) fn bench(args: &Bench) -> ExitStatus {
    let told = |common: &Common, findings: Result<Findings, Error>| {
        finish(findings.and_then(|findings| match common.format.form() {
            Some(form) => form.text(&findings),
            None => Ok(render::measured::findings(&findings)),
        }))
    };
    match &args.what {
        What::Teardown(args) => told(&args.common, teardown::teardown(args)),
        What::Create(args) => told(&args.common, create::create(args)),
        What::Churn(args) => told(&args.common, churn::churn(args)),
        What::Density(args) => told(&args.common, density::density(args)),
        What::Io(args) => told(&args.common, io::io(args)),
        What::Load(args) => finish(load::load(args).and_then(|loaded| render::json(&loaded))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: Bench,
    }

    /// Runs a benchmark on the simulated driver.
    fn run(line: &str) -> Result<Findings, Box<dyn std::error::Error>> {
        let words = "bench ".to_owned() + line + " --driver sim --rounds 1";
        Ok(match Line::try_parse_from(words.split(' '))?.bench.what {
            What::Teardown(args) => teardown::teardown(&args)?,
            What::Create(args) => create::create(&args)?,
            What::Churn(args) => churn::churn(&args)?,
            What::Density(args) => density::density(&args)?,
            What::Io(args) => io::io(&args)?,
            What::Load(_) => return Err("a load has no findings".into()),
        })
    }

    fn cases(findings: &Findings, measure: &str) -> Vec<String> {
        let results = findings.results.iter().filter(|r| r.measure == measure);
        results
            .map(|r| {
                assert!(r.min > 0.0 && r.min <= r.median && r.median <= r.max, "{r:?}");
                let words: Vec<_> = r.case.iter().map(|(_, value)| value.to_string()).collect();
                words.join(" ").replace('"', "")
            })
            .collect()
    }

    #[test]
    fn each_order_is_measured_with_each_number_of_workers_and_serial_with_one()
    -> Result<(), Box<dyn std::error::Error>> {
        let line = "teardown --devices 3 --workers 2,4 --stages \
                    --order serial,close-first,delete-first,floor";
        let found = run(line)?;
        let expected = [
            "3 serial 1",
            "3 close-first 2",
            "3 close-first 4",
            "3 delete-first 2",
            "3 delete-first 4",
            "3 floor 2",
            "3 floor 4",
        ];
        assert_eq!(cases(&found, "teardown"), expected);
        assert_eq!(cases(&found, "stop p50"), expected[..5], "a bare loop tells no stages");
        Ok(())
    }

    #[test]
    fn creating_and_churning_are_measured_against_the_floor()
    -> Result<(), Box<dyn std::error::Error>> {
        let found = run("create --devices 20 --workers 4")?;
        for measure in ["create", "first tenth", "last tenth"] {
            assert_eq!(cases(&found, measure), ["20 floor 4", "20 ublkd 4"]);
        }
        let found = run("churn --devices 2 --cycles 2 --workers 4")?;
        for measure in ["lives", "one create", "one delete"] {
            assert_eq!(cases(&found, measure), ["floor 4", "ublkd 4"]);
        }
        Ok(())
    }

    #[test]
    fn what_needs_block_devices_says_so() {
        for line in ["io", "density --devices 1 --touch"] {
            let error = run(line).map(|_| ()).expect_err("a simulated disk");
            assert!(error.to_string().contains("leave out --driver sim"), "{error}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "teardown --devices 0",
            "teardown --workers 0",
            "create --workers many",
            "io --target loop",
        ] {
            assert!(run(line).is_err(), "{line}");
        }
    }
}

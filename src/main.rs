//! The `ublkd` binary: hands over to the command line.

fn main() -> std::process::ExitCode {
    ublkd::cli::main()
}

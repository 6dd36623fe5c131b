//! The `ublkd` binary: hands over to the command line.

fn main() {}

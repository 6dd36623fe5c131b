//! Rounds: every case once a round, so that what the host does meanwhile meets all cases alike.
//!
//! ```text
//!   round 1: a b c     round 2: b c a     round 3: c a b     ──> the samples of each case
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

use crate::model::{Error, ErrorKind};

/// Whether somebody wants the measuring to end; what is up is taken down first.
#[derive(Clone)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens to SIGINT and SIGTERM from now on.
    ///
    /// # Errors
    /// When the kernel takes no handler.
    pub(super) fn listen() -> Result<Self, Error> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .map_err(|e| Error::from_io(&e, format!("cannot listen to signal {signal}")))?;
        }
        Ok(Self(flag))
    }

    /// # Errors
    /// Kind [`ErrorKind::Stopping`] after an interrupt.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(Error::new(ErrorKind::Stopping, "interrupted: nothing was measured whole")),
            false => Ok(()),
        }
    }
}

/// Measures each of `cases` `rounds` times, each round beginning with another case. Gives the
/// samples in the order of the cases.
///
/// # Errors
/// The first of `measure`, or an interrupt between two measurements.
pub(super) fn interleaved<C, S>(
    rounds: usize,
    interrupt: &Interrupt,
    cases: &[C],
    mut measure: impl FnMut(&C) -> Result<S, Error>,
) -> Result<Vec<Vec<S>>, Error> {
    let mut samples: Vec<Vec<S>> = cases.iter().map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..rounds {
        for step in 0..cases.len() {
            interrupt.check()?;
            let case = (round + step) % cases.len();
            samples[case].push(measure(&cases[case])?);
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_measured_once_a_round_and_each_is_first_in_turn() -> Result<(), Error> {
        let interrupt = Interrupt(Arc::default());
        let mut order = String::new();
        let samples = interleaved(3, &interrupt, &['a', 'b', 'c'], |case| {
            order.push(*case);
            Ok(order.len())
        })?;
        assert_eq!(order, "abcbcacab");
        assert_eq!(samples, [[1, 6, 8], [2, 4, 9], [3, 5, 7]]);
        Ok(())
    }

    #[test]
    fn an_interrupt_ends_it_before_the_next_measurement() {
        let interrupt = Interrupt(Arc::default());
        let mut calls = 0;
        let ended = interleaved(3, &interrupt, &[(), ()], |()| {
            calls += 1;
            interrupt.0.store(calls == 3, Ordering::Relaxed);
            Ok(())
        });
        assert_eq!(calls, 3);
        assert_eq!(ended.err().map(|error| error.kind()), Some(ErrorKind::Stopping));
    }
}

//! Counts the I/O of a queue on its thread, for the few instructions that this may cost.
//!
//! ```text
//!   a round:  arrived, answered … ──> round_over ──> enter
//!             tallies                  counters, which other threads read
//! ```
//!
//! What comes in one round has come at one time, the first time somebody asks for; what is
//! answered in the round in which it came goes back with all the others, at its end. So the
//! clock is read at most twice a round, however many requests it has, and not at all in one
//! without requests. A queue that answers everything at once has the clock read in one of
//! [`PERIOD`] rounds only: the others count as if they had taken as long as that one.
//!
//! Invariants: only this thread writes the counters, so they need no locked instructions; nothing
//! is allocated a request; a request is counted before its answer can be seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::time::ClockId;

use super::control::QueueControl;
use crate::model::{IoStats, Latency, OpStats, Tag};
use crate::target::{Op, Request};

/// Kinds of requests; the counters are in the order of [`Op`].
const OPS: usize = 5;

/// Of so many rounds one is timed while every request is answered in the round that it came in.
const PERIOD: u32 = 8;

/// [`IoStats`] that one thread counts and any thread reads.
#[derive(Default)]
pub(super) struct Counters {
    ops: [OpCounters; OPS],
    fua: AtomicU64,
    in_flight: AtomicU64,
}

#[derive(Default)]
struct OpCounters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    total_ns: AtomicU64,
    buckets: [AtomicU64; Latency::BUCKETS],
}

/// Requests of one kind that came and were answered in this round.
#[derive(Clone, Copy, Default)]
struct Tally {
    requests: u64,
    bytes: u64,
}

/// What stands for a round's time: nobody has asked for it yet.
const QUIET: u64 = 0;
/// It is not read in this one.
const UNTIMED: u64 = 1;

/// What one queue counts with.
pub(super) struct Meter {
    control: Arc<QueueControl>,
    /// When the request of each tag came: the time of that round.
    came: Vec<u64>,
    /// The time of this round in nanoseconds.
    round: u64,
    at_once: [Tally; OPS],
    in_flight: u64,
    /// Rounds on end that left nothing in flight.
    calm: u32,
    /// Nanoseconds that the last timed round took.
    took: u64,
}

fn add(counter: &AtomicU64, amount: u64) {
    // One writer: a load and a store do, without the cost of a locked addition.
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}

/// Bytes that a request has moved or changed.
#[inline]
fn bytes(request: Request, result: i32) -> u64 {
    match (u64::try_from(result), request.op) {
        (Ok(moved), Op::Read | Op::Write) => moved,
        (Ok(_), _) => u64::from(request.len),
        (Err(_), _) => 0,
    }
}

/// Nanoseconds on the clock that never goes back. It exists on every Linux.
fn now() -> u64 {
    let now = ClockId::CLOCK_MONOTONIC.now();
    now.map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

impl Meter {
    pub(super) fn new(control: &Arc<QueueControl>, depth: usize) -> Self {
        Self {
            control: Arc::clone(control),
            came: vec![QUIET; depth],
            round: QUIET,
            at_once: [Tally::default(); OPS],
            in_flight: 0,
            calm: 0,
            took: 0,
        }
    }

    /// A request has come for `tag`.
    #[inline]
    pub(super) fn arrived(&mut self, tag: Tag) {
        if self.round == QUIET {
            self.begin();
        }
        self.came[tag.index()] = self.round;
        self.in_flight += 1;
    }

    /// The request of `tag` was answered with `result`.
    #[inline]
    pub(super) fn answered(&mut self, tag: Tag, request: Request, result: i32) {
        self.in_flight -= 1;
        if self.came[tag.index()] == self.round {
            self.tally(request, result);
        } else {
            self.answered_late(tag, request, result);
        }
    }

    /// A request has come and was answered with `result` without waiting.
    #[inline]
    pub(super) fn at_once(&mut self, request: Request, result: i32) {
        if self.round == QUIET {
            self.begin();
        }
        self.tally(request, result);
    }

    /// A request came and was answered in this round.
    #[inline]
    fn tally(&mut self, request: Request, result: i32) {
        self.mark(request, result);
        let tally = &mut self.at_once[request.op as usize];
        tally.requests += 1;
        tally.bytes += bytes(request, result);
    }

    /// The answers of this round go back now.
    #[inline]
    pub(super) fn round_over(&mut self) {
        if self.round != QUIET {
            self.end();
        }
    }

    /// What is counted of few requests only: errors, and those that must be durable.
    #[inline]
    fn mark(&self, request: Request, result: i32) {
        let counters = &self.control.counters;
        if request.fua {
            add(&counters.fua, 1);
        }
        if result < 0 {
            add(&counters.ops[request.op as usize].errors, 1);
        }
    }

    /// A request of an earlier round was answered.
    fn answered_late(&mut self, tag: Tag, request: Request, result: i32) {
        if self.round == QUIET {
            self.begin();
        }
        self.mark(request, result);
        let of_kind = &self.control.counters.ops[request.op as usize];
        add(&of_kind.requests, 1);
        add(&of_kind.bytes, bytes(request, result));
        of_kind.took(self.round - self.came[tag.index()], 1);
    }

    fn begin(&mut self) {
        // With anything in flight the last round was none of the calm ones.
        let timed = self.calm < PERIOD || self.calm.is_multiple_of(PERIOD);
        self.round = if timed { now() } else { UNTIMED };
    }

    fn end(&mut self) {
        let counters = &self.control.counters;
        counters.in_flight.store(self.in_flight, Ordering::Relaxed);
        if self.round != UNTIMED {
            self.took = now() - self.round;
        }
        for (op, tally) in counters.ops.iter().zip(&mut self.at_once) {
            if tally.requests > 0 {
                let Tally { requests, bytes } = std::mem::take(tally);
                add(&op.requests, requests);
                add(&op.bytes, bytes);
                op.took(self.took, requests);
            }
        }
        if self.in_flight == 0 {
            self.calm = self.calm.wrapping_add(1);
        } else {
            self.calm = 0;
            if self.round == UNTIMED {
                self.time_untimed();
            }
        }
        self.round = QUIET;
    }

    /// Requests of an untimed round stay: they have come now.
    #[cold]
    fn time_untimed(&mut self) {
        let now = now();
        for came in self.came.iter_mut().filter(|came| **came == UNTIMED) {
            *came = now;
        }
    }
}

impl OpCounters {
    /// `count` requests took `ns` nanoseconds each.
    fn took(&self, ns: u64, count: u64) {
        add(&self.total_ns, ns * count);
        add(&self.buckets[Latency::bucket(ns)], count);
    }

    fn read(&self) -> OpStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OpStats {
            requests: get(&self.requests),
            bytes: get(&self.bytes),
            errors: get(&self.errors),
            latency: Latency {
                total_ns: get(&self.total_ns),
                buckets: std::array::from_fn(|bucket| get(&self.buckets[bucket])),
            },
        }
    }
}

impl Counters {
    pub(super) fn read(&self) -> IoStats {
        let op = |op| self.ops[op as usize].read();
        IoStats {
            read: op(Op::Read),
            write: op(Op::Write),
            flush: op(Op::Flush),
            discard: op(Op::Discard),
            write_zeroes: op(Op::WriteZeroes),
            fua: self.fua.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_request_is_counted_once_by_kind_and_time() -> Result<(), crate::model::Error> {
        let control = QueueControl::new(4)?;
        let mut meter = Meter::new(&control, 4);
        let request = |op| Request::new(op, 0, 4096);

        // Two that come and go in one round, one that stays.
        for tag in 0..3 {
            meter.arrived(Tag(tag));
        }
        meter.answered(Tag(0), request(Op::Read), 4096);
        meter.answered(Tag(1), request(Op::Discard).fua(), 0);
        meter.round_over();
        let stats = control.stats();
        assert_eq!((stats.read.requests, stats.read.bytes), (1, 4096));
        assert_eq!((stats.discard.requests, stats.discard.bytes, stats.fua), (1, 4096, 1));
        assert_eq!((stats.in_flight, stats.errors()), (1, 0));

        let pause = Duration::from_millis(3);
        std::thread::sleep(pause);
        meter.answered(Tag(2), request(Op::Write), -5);
        meter.round_over();
        let stats = control.stats();
        assert_eq!((stats.write.requests, stats.write.errors, stats.write.bytes), (1, 1, 0));
        assert!(stats.write.latency.total_ns >= pause.as_nanos() as u64);
        assert_eq!((stats.in_flight, stats.errors()), (0, 1));
        for (name, op) in stats.ops() {
            assert_eq!(op.latency.buckets.iter().sum::<u64>(), op.requests, "{name}");
        }
        Ok(())
    }

    #[test]
    fn a_calm_queue_has_few_rounds_timed_and_still_times_what_stays()
    -> Result<(), crate::model::Error> {
        let control = QueueControl::new(2)?;
        let mut meter = Meter::new(&control, 2);
        let request = Request::new(Op::Read, 0, 512);
        let mut untimed = 0;
        for _ in 0..10 * PERIOD {
            meter.arrived(Tag(0));
            untimed += u32::from(meter.round == UNTIMED);
            meter.answered(Tag(0), request, 512);
            meter.round_over();
        }
        assert_eq!(untimed, 9 * (PERIOD - 1));
        let read = control.stats().read;
        assert_eq!((read.requests, read.bytes), (80, 80 * 512));
        assert_eq!(read.latency.buckets.iter().sum::<u64>(), 80);

        // One that stays, from a round that nobody timed.
        meter.arrived(Tag(0));
        meter.answered(Tag(0), request, 512);
        meter.round_over();
        meter.arrived(Tag(1));
        assert_eq!(meter.round, UNTIMED);
        meter.round_over();
        let before = control.stats().read.latency.total_ns;
        let pause = Duration::from_millis(3);
        std::thread::sleep(pause);
        meter.answered(Tag(1), request, 512);
        meter.round_over();
        let took = control.stats().read.latency.total_ns - before;
        assert!((3_000_000..1_000_000_000).contains(&took), "{took} ns");
        Ok(())
    }
}

//! Counts the I/O of a queue on its thread, for the few instructions that this may cost.
//!
//! ```text
//!   a round:  arrived, answered … ──> round_over ──> enter
//!             one clock reading          one more, if a request came and was answered in it
//! ```
//!
//! What comes in one round has come at one time, the first time somebody asks for; what is
//! answered in the round in which it came goes back with all the others, at its end. So the
//! clock is read at most twice a round, however many requests it has, and not at all in one
//! without requests.
//!
//! Invariants: only this thread writes the counters, so they need no locked instructions; nothing
//! is allocated a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::control::QueueControl;
use crate::model::{IoStats, Latency, OpStats, Tag};
use crate::target::{Op, Request};

/// Kinds of requests; the counters are in the order of [`Op`].
const OPS: usize = 5;

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

/// What one queue counts with.
pub(super) struct Meter {
    control: Arc<QueueControl>,
    /// When the request of each tag came.
    came: Vec<Instant>,
    /// The time of this round, once somebody has asked.
    now: Option<Instant>,
    /// Requests that came in this round and were answered in it, by kind.
    at_once: [u64; OPS],
    in_flight: u64,
}

fn add(counter: &AtomicU64, amount: u64) {
    // One writer: a load and a store do, without the cost of a locked addition.
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}

impl Meter {
    pub(super) fn new(control: &Arc<QueueControl>, depth: usize) -> Self {
        Self {
            control: Arc::clone(control),
            came: vec![Instant::now(); depth],
            now: None,
            at_once: [0; OPS],
            in_flight: 0,
        }
    }

    /// A request has come for `tag`.
    pub(super) fn arrived(&mut self, tag: Tag) {
        self.came[tag.index()] = self.now();
        self.in_flight += 1;
    }

    /// The request of `tag` was answered with `result`.
    pub(super) fn answered(&mut self, tag: Tag, request: &Request, result: i32) {
        let (now, came, op) = (self.now(), self.came[tag.index()], request.op as usize);
        let counters = &self.control.counters;
        let of_kind = &counters.ops[op];
        add(&of_kind.requests, 1);
        match (u64::try_from(result), request.op) {
            (Ok(bytes), Op::Read | Op::Write) => add(&of_kind.bytes, bytes),
            (Ok(_), _) => add(&of_kind.bytes, u64::from(request.len)),
            (Err(_), _) => add(&of_kind.errors, 1),
        }
        if came == now {
            self.at_once[op] += 1;
        } else {
            of_kind.took(now - came, 1);
        }
        if request.fua {
            add(&counters.fua, 1);
        }
        self.in_flight -= 1;
    }

    /// The answers of this round go back now.
    pub(super) fn round_over(&mut self) {
        let Some(began) = self.now.take() else { return };
        let counters = &self.control.counters;
        counters.in_flight.store(self.in_flight, Ordering::Relaxed);
        if self.at_once == [0; OPS] {
            return;
        }
        let took = began.elapsed();
        for (op, count) in counters.ops.iter().zip(&mut self.at_once) {
            if *count > 0 {
                op.took(took, std::mem::take(count));
            }
        }
    }

    fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }
}

impl OpCounters {
    /// `count` requests took `time` each.
    fn took(&self, time: Duration, count: u64) {
        let ns = time.as_nanos() as u64;
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
        meter.answered(Tag(0), &request(Op::Read), 4096);
        meter.answered(Tag(1), &request(Op::Discard).fua(), 0);
        meter.round_over();
        let stats = control.stats();
        assert_eq!((stats.read.requests, stats.read.bytes), (1, 4096));
        assert_eq!((stats.discard.requests, stats.discard.bytes, stats.fua), (1, 4096, 1));
        assert_eq!((stats.in_flight, stats.errors()), (1, 0));

        let pause = Duration::from_millis(3);
        std::thread::sleep(pause);
        meter.answered(Tag(2), &request(Op::Write), -5);
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
}

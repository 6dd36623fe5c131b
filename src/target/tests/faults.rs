//! Trouble on purpose, and what a target of a host's own sees.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::libc;

use super::super::{Geometry, Io, Serve, Shared};
use super::*;
use crate::model::QueueExitCause;

fn ram(faults: FaultSpec) -> Result<Disk, Box<dyn std::error::Error>> {
    Disk::open(spec(TargetSpec::Ram { size: 1 << 20 }).faults(faults).build()?)
}

#[test]
fn f76_an_error_at_a_sector_hits_the_requests_that_touch_it_and_no_other() -> TestResult {
    let disk = ram(FaultSpec { error_at: Some(42), ..FaultSpec::default() })?;
    let eio = Err(Errno(libc::EIO));
    for (offset, len) in [(42 * 512, 512), (40 * 512, 4096), (0, 64 << 10)] {
        assert_eq!(disk.ask(Op::Read, offset, len), eio, "{offset}");
    }
    assert_eq!(disk.write(42 * 512, &[1; 512]), eio);
    assert_eq!(disk.write(41 * 512, &[1; 512]), Ok(()));
    assert_eq!(disk.write(43 * 512, &[1; 512]), Ok(()));
    assert_eq!(disk.ask(Op::Flush, 0, 0), Ok(()));
    assert_eq!(disk.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn f76_a_panic_at_a_sector_answers_the_request_and_ends_as_a_panic() -> TestResult {
    let disk = ram(FaultSpec { panic_at: Some(42), ..FaultSpec::default() })?;
    assert_eq!(disk.write(0, &[1; 512]), Ok(()));
    assert_eq!(disk.write(42 * 512, &[1; 512]), Err(Errno(libc::EIO)));
    assert_eq!(disk.ask(Op::Read, 0, 512), Err(Errno(libc::EIO)), "the queue is broken");
    match disk.stop().cause {
        QueueExitCause::Panicked(report) => {
            assert_eq!(report.message, "panic_at: a request touched sector 42");
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[test]
fn a_delay_holds_every_request_and_none_behind_another() -> TestResult {
    let time = Duration::from_millis(50);
    let disk = ram(FaultSpec { delay: Some(time), ..FaultSpec::default() })?;
    let started = Instant::now();
    let answers: Vec<_> = (0..u64::from(DEPTH))
        .map(|n| disk.submit(Request::new(Op::Write, n * 512, 512), vec![1; 512]))
        .collect();
    for answer in answers {
        assert_eq!(settled(answer).0, Ok(()));
    }
    let took = started.elapsed();
    assert!(took >= time && took < time * u32::from(DEPTH), "{took:?}");
    disk.stop();
    Ok(())
}

/// Counts what reaches a backend.
#[derive(Default)]
struct Counts {
    flushes: AtomicU32,
    durable_writes: AtomicU32,
    writes: AtomicU32,
}

struct Counting(Arc<Counts>);

impl Serve for Counting {
    async fn serve(&self, io: &mut Io) -> IoResult {
        let counter = match io.op() {
            Op::Flush => &self.0.flushes,
            Op::Write if io.fua() => &self.0.durable_writes,
            Op::Write => &self.0.writes,
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        counter.fetch_add(1, Relaxed);
        Ok(())
    }
}

#[test]
fn f58_flush_and_fua_reach_a_backend_through_the_decorators() -> TestResult {
    let counts = Arc::new(Counts::default());
    let target = Shared::new(Geometry::new(1 << 20, 512), Counting(Arc::clone(&counts)));
    let faults = FaultSpec { error_at: Some(2000), ..FaultSpec::default() };
    let disk = Disk::of(Arc::new(target.faults(&faults)))?;
    for request in [
        Request::new(Op::Write, 0, 512),
        Request::new(Op::Write, 512, 512).fua(),
        Request::new(Op::Flush, 0, 0),
        Request::new(Op::Flush, 0, 0),
    ] {
        let data = vec![0; request.data_len()];
        assert_eq!(settled(disk.submit(request, data)).0, Ok(()));
    }
    assert_eq!(disk.ask(Op::Discard, 0, 512), Err(Errno(libc::EOPNOTSUPP)));
    disk.stop();
    let counted =
        [&counts.writes, &counts.durable_writes, &counts.flushes].map(|n| n.load(Relaxed));
    assert_eq!(counted, [1, 1, 2]);
    Ok(())
}

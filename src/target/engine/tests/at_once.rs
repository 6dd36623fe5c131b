//! A target that answers some requests without a future.

use super::*;

/// Even blocks at once, odd ones after a while, 43 after a long one; a panic at block 42, at once.
struct Mixed;

impl Serve for Mixed {
    async fn serve(&self, io: &mut Io) -> IoResult {
        let slow = io.offset() == 43 * 512;
        io.sleep(Duration::from_millis(if slow { 5000 } else { 1 })).await;
        io.buf_mut().fill(1);
        Ok(())
    }

    const AT_ONCE: bool = true;

    fn at_once(&self, request: &Request, data: &mut [u8]) -> Option<IoResult> {
        let block = request.offset / 512;
        assert!(block != 42, "block 42");
        if block == 8 {
            return Some(Err(Errno(libc::ENOSPC)));
        }
        block.is_multiple_of(2).then(|| {
            data.fill(2);
            Ok(())
        })
    }
}

fn mixed() -> Result<LocalQueue, Error> {
    LocalQueue::start(Arc::new(Shared::new(Geometry::new(1 << 30, 512), Mixed)), 4, 4096)
}

#[test]
fn what_is_answered_at_once_and_what_is_not_mix() -> TestResult {
    let queue = mixed()?;
    let reads: Vec<_> =
        (0..64).map(|block| queue.submit(read(block % 8 * 512, 512), Vec::new())).collect();
    for (block, read) in reads.iter().enumerate() {
        let expected = if block % 2 == 0 { 2 } else { 1 };
        assert_eq!(answer(read), (Ok(()), vec![expected; 512]), "block {block}");
    }
    let full = queue.submit(Request::new(Op::Write, 8 * 512, 512).fua(), vec![7; 512]);
    assert_eq!(answer(&full).0, Err(Errno(libc::ENOSPC)));
    let stats = queue.stats();
    assert_eq!((stats.read.requests, stats.read.bytes), (64, 64 * 512));
    assert_eq!((stats.write.requests, stats.write.errors, stats.fua), (1, 1, 1));
    assert_eq!((stats.write.bytes, stats.in_flight), (0, 0));
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn f76_a_panic_at_once_is_eio_for_everything_until_the_queue_is_stopped() -> TestResult {
    let queue = mixed()?;
    let waiting = queue.submit(read(43 * 512, 512), Vec::new());
    let bad = queue.submit(read(42 * 512, 512), Vec::new());
    for receiver in [bad, waiting, queue.submit(read(0, 512), Vec::new())] {
        assert_eq!(answer(&receiver).0, Err(Errno(libc::EIO)));
    }
    let QueueExitCause::Panicked(report) = queue.stop().cause else { panic!("no panic told") };
    assert_eq!(report.message, "block 42");
    Ok(())
}

//! Operations, requests and futures that are dropped, and what the queue makes of it.

use std::io::PipeReader;
use std::pin::pin;
use std::sync::Mutex;

use futures::FutureExt;
use futures::future::{LocalBoxFuture, join_all, select};

use super::*;
use crate::target::TagSlot;

/// Reads that never end, each given up after ten milliseconds.
async fn give_up(io: &mut Io, pipe: &PipeReader) {
    let (sender, timeout) = futures::channel::oneshot::channel::<()>();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        drop(sender);
    });
    let len = io.len();
    let read = pin!(io.read_file_at(0..len, pipe.as_fd(), 0));
    select(read, timeout).await;
}

#[test]
fn a_read_that_is_given_up_does_not_touch_the_next_request() -> TestResult {
    let (reader, mut writer) = std::io::pipe()?;
    let reader = Arc::new(reader);
    let queue = queue(2, move || {
        let reader = Arc::clone(&reader);
        async move |io: &mut Io| {
            give_up(io, &reader).await;
            if io.offset() == 0 {
                io.settled().await;
                io.buf_mut().fill(1);
            }
            Ok(())
        }
    })?;
    for round in 0..20u64 {
        // Answered with the buffer settled, or with the read still being cancelled.
        let receiver = queue.submit(read(round % 2, 4096), vec![3; 4096]);
        let (result, data) = answer(&receiver);
        assert_eq!(result, Ok(()));
        let expected = if round % 2 == 0 { 1 } else { 3 };
        assert_eq!(data, vec![expected; 4096], "round {round}");
    }
    std::io::Write::write_all(&mut writer, &[9; 4096])?;
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn a_queue_that_is_dropped_with_operations_in_flight_takes_them_back() -> TestResult {
    let (reader, _writer) = std::io::pipe()?;
    let reader = Arc::new(reader);
    let held = Arc::clone(&reader);
    let make = move || {
        let reader = Arc::clone(&reader);
        async move |io: &mut Io| match io.op() {
            Op::Read => io.read_file(reader.as_fd(), 0).await,
            _ => {
                io.sleep(Duration::from_secs(3600)).await;
                Ok(())
            }
        }
    };
    let log = slog::Logger::root(slog::Discard, slog::o!());
    let drain = Duration::from_millis(100);
    let queue = LocalQueue::start_logged(Arc::new(Of(make)), 64, 64 << 10, drain, &log)?;
    let receivers: Vec<_> = (0..64)
        .map(|i| {
            let op = if i % 2 == 0 { Op::Read } else { Op::Flush };
            queue.submit(Request::new(op, 0, 4096), Vec::new())
        })
        .collect();
    abandon(queue, &receivers, &held);
    Ok(())
}

#[test]
fn combinators_that_wake_their_own_wakers_work() -> TestResult {
    // More than 30, so that join_all polls only what was woken.
    let queue = queue(4, || {
        async |io: &mut Io| {
            let sleeps = (0..50).map(|i| io.sleep(Duration::from_millis(i % 7)));
            join_all(sleeps).await;
            Ok(())
        }
    })?;
    let receivers: Vec<_> = (0..16).map(|i| queue.submit(read(i, 512), Vec::new())).collect();
    for receiver in &receivers {
        assert_eq!(answer(receiver).0, Ok(()));
    }
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

/// A backend with a future of its own a tag.
struct Custom<F>(F);

impl<F> Target for Custom<F>
where
    F: Fn(TagSlot) -> LocalBoxFuture<'static, ()> + Copy + Send + Sync + 'static,
{
    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 20, 512)
    }
    fn open_queue(self: Arc<Self>, _: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        struct Half<F>(F);
        impl<F: Fn(TagSlot) -> LocalBoxFuture<'static, ()>> QueueTarget for Half<F> {
            fn run_tag(&self, slot: TagSlot) -> LocalBoxFuture<'static, ()> {
                (self.0)(slot)
            }
        }
        Ok(Box::new(Half(self.0)))
    }
}

#[test]
fn a_request_that_is_dropped_and_a_tag_that_ends_early_are_answered_with_eio() -> TestResult {
    fn run(mut slot: TagSlot) -> LocalBoxFuture<'static, ()> {
        async move {
            if let Some(io) = slot.next().await {
                slot.complete(io, Ok(()));
            }
            drop(slot.next().await);
        }
        .boxed_local()
    }
    let queue = LocalQueue::start(Arc::new(Custom(run)), 1, 4096)?;
    let results: Vec<_> =
        (0..4).map(|_| answer(&queue.submit(read(0, 512), Vec::new())).0).collect();
    let eio = Err(Errno(libc::EIO));
    assert_eq!(results, [Ok(()), eio, eio, eio]);
    assert_eq!(queue.stats().errors(), 3);
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn f76_a_panic_at_a_tags_end_is_caught_like_any_other() -> TestResult {
    static ENDED: Mutex<u32> = Mutex::new(0);
    fn run(mut slot: TagSlot) -> LocalBoxFuture<'static, ()> {
        async move {
            while let Some(io) = slot.next().await {
                slot.complete(io, Ok(()));
            }
            let mut ended = ENDED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *ended += 1;
            assert!(*ended != 2, "while holding a mutex");
        }
        .boxed_local()
    }
    let queue = LocalQueue::start(Arc::new(Custom(run)), 3, 4096)?;
    assert_eq!(answer(&queue.submit(read(0, 512), Vec::new())).0, Ok(()));
    let QueueExitCause::Panicked(report) = queue.stop().cause else { panic!("it was lost") };
    assert!(report.message.contains("while holding a mutex"), "{report}");
    Ok(())
}

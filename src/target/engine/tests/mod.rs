//! The engine as a target sees it, on a queue without a driver.

mod at_once;
mod dropped;
mod lives;
mod load;
mod transfers;

use std::future::Future;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nix::libc;

use crate::model::{Error, ErrorKind, QueueExitCause};
use crate::target::testing::LocalQueue;
use crate::target::{
    Errno, Geometry, Io, IoResult, Op, QueueContext, QueueTarget, Request, Serve, Shared, Target,
    per_tag,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// A target from an async closure, one a queue.
struct Of<F>(F);

impl<F, S> Target for Of<F>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: AsyncFn(&mut Io) -> IoResult + 'static,
{
    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 30, 512)
    }
    fn open_queue(self: Arc<Self>, _: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        Ok(per_tag(Each((self.0)())))
    }
}

struct Each<S>(S);

impl<S: AsyncFn(&mut Io) -> IoResult + 'static> Serve for Each<S> {
    fn serve(&self, io: &mut Io) -> impl Future<Output = IoResult> {
        (self.0)(io)
    }
}

fn queue<F, S>(depth: u16, make: F) -> Result<LocalQueue, Error>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: AsyncFn(&mut Io) -> IoResult + 'static,
{
    LocalQueue::start(Arc::new(Of(make)), depth, 64 << 10)
}

fn answer(receiver: &Receiver<(IoResult, Vec<u8>)>) -> (IoResult, Vec<u8>) {
    receiver.recv_timeout(Duration::from_secs(20)).expect("an answer in time")
}

/// Stops a queue that has every tag in flight: all are answered, and nothing is left of what the
/// target held.
fn abandon<T>(queue: LocalQueue, receivers: &[Receiver<(IoResult, Vec<u8>)>], held: &Arc<T>) {
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    assert_eq!(queue.stop().cause, QueueExitCause::Abandoned(receivers.len() as u16));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    for receiver in receivers {
        assert_eq!(answer(receiver).0, Err(Errno(libc::EIO)), "answered all the same");
    }
    assert_eq!(Arc::strong_count(held), 1, "nothing of the target is left");
}

fn read(offset: u64, len: u32) -> Request {
    Request::new(Op::Read, offset, len)
}

#[test]
fn data_goes_to_a_file_and_back() -> TestResult {
    let file = Arc::new(tempfile::tempfile()?);
    let queue = queue(4, move || {
        let file = Arc::clone(&file);
        async move |io: &mut Io| match io.op() {
            Op::Read => io.read_file(file.as_fd(), io.offset()).await,
            Op::Write => io.write_file(file.as_fd(), io.offset(), io.fua()).await,
            Op::Flush => io.datasync(file.as_fd()).await,
            _ => io.fallocate(file.as_fd(), 0, io.offset(), io.len() as u64).await,
        }
    })?;
    let data: Vec<u8> = (0..32 << 10).map(|i| (i % 251) as u8).collect();
    let writes: Vec<_> = (0..16u64)
        .map(|i| queue.submit(Request::new(Op::Write, i << 15, 32 << 10).fua(), data.clone()))
        .collect();
    for write in writes {
        assert_eq!(answer(&write).0, Ok(()));
    }
    assert_eq!(answer(&queue.submit(Request::new(Op::Flush, 0, 0), Vec::new())).0, Ok(()));
    for i in 0..16u64 {
        assert_eq!(
            answer(&queue.submit(read(i << 15, 32 << 10), Vec::new())),
            (Ok(()), data.clone())
        );
    }
    let beyond = queue.submit(read((16 << 15) - 512, 1024), Vec::new());
    assert_eq!(answer(&beyond).0, Err(Errno(libc::EIO)), "the file ends in the middle");
    assert_eq!(
        answer(&queue.submit(Request::new(Op::Discard, 1 << 20, 4096), Vec::new())).0,
        Ok(())
    );
    assert_eq!(answer(&queue.submit(read(0, 128 << 10), Vec::new())).0, Err(Errno(libc::EINVAL)));

    let stats = queue.stats();
    assert_eq!(
        (stats.read.requests, stats.write.requests, stats.flush.requests, stats.discard.requests),
        (17, 16, 1, 1)
    );
    assert_eq!((stats.fua, stats.write.bytes, stats.errors()), (16, 512 << 10, 1));
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn f76_a_panic_on_a_sector_is_eio_for_everything_until_the_queue_is_stopped() -> TestResult {
    let queue = queue(8, || {
        async |io: &mut Io| {
            io.sleep(Duration::from_millis(if io.offset() == 42 * 512 { 20 } else { 500 })).await;
            assert!(io.offset() != 42 * 512, "sector 42");
            Ok(())
        }
    })?;
    assert_eq!(answer(&queue.submit(read(0, 512), Vec::new())).0, Ok(()));
    let waiting: Vec<_> = (0..4).map(|i| queue.submit(read(i * 512, 512), Vec::new())).collect();
    let bad = queue.submit(read(42 * 512, 512), Vec::new());
    assert_eq!(answer(&bad).0, Err(Errno(libc::EIO)));
    for other in &waiting {
        assert_eq!(answer(other).0, Err(Errno(libc::EIO)), "in service when it broke");
    }
    let later = queue.submit(read(0, 512), Vec::new());
    assert_eq!(answer(&later).0, Err(Errno(libc::EIO)), "the queue still answers");
    match queue.stop().cause {
        QueueExitCause::Panicked(report) => {
            assert!(report.message.contains("sector 42"), "{report}");
            assert_eq!(report.thread, "local.q0");
        }
        other => panic!("{other:?}"),
    }
    Ok(())
}

#[test]
fn futures_completed_from_other_threads_wake_the_queue() -> TestResult {
    let queue = queue(16, || {
        async |io: &mut Io| {
            let (sender, receiver) = futures::channel::oneshot::channel();
            let wait = io.offset() % 3;
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(wait));
                sender.send(wait)
            });
            let got = receiver.await.map_err(|_| Errno(libc::EIO))?;
            io.buf_mut().fill(got as u8);
            Ok(())
        }
    })?;
    let reads: Vec<_> = (0..200).map(|i| queue.submit(read(i, 512), Vec::new())).collect();
    for (i, receiver) in reads.iter().enumerate() {
        assert_eq!(answer(receiver), (Ok(()), vec![(i % 3) as u8; 512]));
    }
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn f22_a_target_that_does_not_open_is_told_at_once() {
    struct Bad(bool);
    impl Target for Bad {
        fn geometry(&self) -> Geometry {
            Geometry::new(512, 512)
        }
        fn open_queue(self: Arc<Self>, _: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
            assert!(!self.0, "no buffer of size 0");
            Err(Error::new(ErrorKind::Io, "the image is broken"))
        }
    }
    for (panics, kind, text) in [
        (true, ErrorKind::Panicked, "no buffer of size 0"),
        (false, ErrorKind::Io, "the image is broken"),
    ] {
        let start = Instant::now();
        let error = LocalQueue::start(Arc::new(Bad(panics)), 4, 4096).err().expect("it fails");
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(text), "{error}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

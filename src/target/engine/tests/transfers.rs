//! A target whose reads and writes are one operation on the ring, without a future.

use std::fs::File;
use std::io::{PipeReader, Write as _};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use super::*;
use crate::target::Transfer;

/// Moves data by transfers; notes what its future is asked for, answers it with `ENOSPC`, and a
/// panic at block 42.
struct Mover<F> {
    file: Arc<F>,
    asked: Arc<Mutex<Vec<(Op, u64)>>>,
}

impl<F: AsFd + Send + Sync + 'static> Serve for Mover<F> {
    async fn serve(&self, io: &mut Io) -> IoResult {
        self.asked.lock().expect("no panic").push((io.op(), io.offset()));
        Err(Errno(libc::ENOSPC))
    }

    const TRANSFERS: bool = true;

    fn transfer(&self, request: &Request) -> Option<Transfer<'_>> {
        assert!(request.offset != 42 * 512, "block 42");
        let file: BorrowedFd<'_> = self.file.as_fd();
        let even = request.offset.is_multiple_of(1024);
        even.then_some(Transfer { file, offset: request.offset, durable: request.fua })
    }
}

struct Moving<F> {
    queue: LocalQueue,
    file: Arc<F>,
    asked: Arc<Mutex<Vec<(Op, u64)>>>,
}

fn moving<F: AsFd + Send + Sync + 'static>(file: F, depth: u16) -> Result<Moving<F>, Error> {
    let (file, asked) = (Arc::new(file), Arc::default());
    let mover = Mover { file: Arc::clone(&file), asked: Arc::clone(&asked) };
    let target = Arc::new(Shared::new(Geometry::new(1 << 30, 512), mover));
    let log = slog::Logger::root(slog::Discard, slog::o!());
    let queue = LocalQueue::start_logged(target, depth, 64 << 10, DRAIN, &log)?;
    Ok(Moving { queue, file, asked })
}

const DRAIN: Duration = Duration::from_millis(100);

fn write(offset: u64, data: Vec<u8>) -> (Request, Vec<u8>) {
    (Request::new(Op::Write, offset, data.len() as u32), data)
}

#[test]
fn all_data_of_a_request_is_moved_without_the_future() -> TestResult {
    let Moving { queue, file, asked } = moving(tempfile::tempfile()?, 4)?;
    let data = |i: u64| (0..8192u64).map(|byte| (byte * 7 + i) as u8).collect::<Vec<_>>();
    let writes: Vec<_> = (0..32)
        .map(|i| {
            let (request, data) = write(i * 8192, data(i));
            queue.submit(if i % 2 == 0 { request.fua() } else { request }, data)
        })
        .collect();
    for write in writes {
        assert_eq!(answer(&write).0, Ok(()));
    }
    let mut there = vec![0; 8192];
    for i in 0..32 {
        file.read_exact_at(&mut there, i * 8192)?;
        assert!(there == data(i), "block {i} is in the file");
        let receiver = queue.submit(read(i * 8192, 8192), Vec::new());
        assert!(answer(&receiver) == (Ok(()), data(i)), "block {i} comes back");
    }
    assert_eq!(*asked.lock().expect("no panic"), []);
    let stats = queue.stats();
    assert_eq!((stats.read.requests, stats.read.bytes), (32, 32 * 8192));
    assert_eq!((stats.write.requests, stats.write.bytes, stats.fua), (32, 32 * 8192, 16));
    assert_eq!((stats.errors(), stats.in_flight), (0, 0));
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn what_moves_less_or_is_no_transfer_is_the_futures_and_what_fails_is_not_done_again() -> TestResult
{
    let path = tempfile::NamedTempFile::new()?;
    path.as_file().set_len(1024 + 512)?;
    // For reading only: every write fails.
    let Moving { queue, asked, .. } = moving(File::open(path.path())?, 4)?;
    let whole = queue.submit(read(0, 1024), Vec::new());
    assert_eq!(answer(&whole).0, Ok(()));
    // The kernel may have told its errno for good: a second try could come out well.
    let (request, data) = write(4096, vec![1; 512]);
    assert_eq!(answer(&queue.submit(request.fua(), data)).0, Err(Errno(libc::EBADF)));
    for request in [read(1024, 1024), read(512, 512), Request::new(Op::Flush, 0, 0)] {
        let receiver = queue.submit(request, Vec::new());
        assert_eq!(answer(&receiver).0, Err(Errno(libc::ENOSPC)), "{request:?}");
    }
    let expected = [(Op::Read, 1024), (Op::Read, 512), (Op::Flush, 0)];
    assert_eq!(*asked.lock().expect("no panic"), expected);
    assert_eq!(queue.stats().errors(), 4);
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn a_queue_that_stops_with_transfers_in_flight_takes_them_back() -> TestResult {
    let (reader, _writer) = std::io::pipe()?;
    let Moving { queue, file, .. } = moving::<PipeReader>(reader, 64)?;
    let reads: Vec<_> = (0..64).map(|_| queue.submit(read(0, 4096), Vec::new())).collect();
    abandon(queue, &reads, &file);
    Ok(())
}

#[test]
fn f76_a_panic_beside_a_transfer_is_eio_for_all_but_what_is_on_its_way() -> TestResult {
    let (reader, mut writer) = std::io::pipe()?;
    let Moving { queue, file, .. } = moving::<PipeReader>(reader, 4)?;
    let on_its_way = queue.submit(read(0, 4096), Vec::new());
    let bad = queue.submit(read(42 * 512, 512), Vec::new());
    assert_eq!(answer(&bad).0, Err(Errno(libc::EIO)));
    let later = queue.submit(read(0, 512), Vec::new());
    assert_eq!(answer(&later).0, Err(Errno(libc::EIO)));
    writer.write_all(&[5; 4096])?;
    assert!(answer(&on_its_way) == (Ok(()), vec![5; 4096]), "the kernel had it");
    let QueueExitCause::Panicked(report) = queue.stop().cause else { panic!("no panic told") };
    assert_eq!(report.message, "block 42");
    assert_eq!(Arc::strong_count(&file), 1, "nothing of the target is left");
    Ok(())
}

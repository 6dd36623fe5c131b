//! Many requests at once, and the promises that hold under load.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A small generator of numbers, the same every time.
fn random(state: &Cell<u64>) -> u64 {
    state.set(state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    state.get() >> 33
}

#[test]
fn f62_timeouts_polls_and_reads_on_one_ring_reach_those_who_wait_for_them() -> TestResult {
    const DEPTH: u16 = 64;
    const TIME: Duration = Duration::from_secs(3);
    let pattern: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 512) as u8).collect();
    let file = tempfile::tempfile()?;
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern, 0)?;
    let (reader, writer) = std::io::pipe()?;
    let shared = Arc::new((file, reader));
    let queue = queue(DEPTH, move || {
        let shared = Arc::clone(&shared);
        let state = Rc::new(Cell::new(1));
        async move |io: &mut Io| {
            let (file, pipe) = &*shared;
            match random(&state) % 4 {
                0 => io.sleep(Duration::from_micros(random(&state) % 2000)).await,
                1 => {
                    // Never ready: given up, so that its completion comes late.
                    let poll = std::pin::pin!(io.poll_file(pipe.as_fd(), libc::POLLIN as u32));
                    let sleep = std::pin::pin!(io.sleep(Duration::from_micros(500)));
                    futures::future::select(poll, sleep).await;
                }
                2 => {
                    let ready = io.poll_file(file.as_fd(), libc::POLLIN as u32).await?;
                    assert!(ready & libc::POLLIN as u32 != 0);
                }
                _ => {}
            }
            io.read_file(file.as_fd(), io.offset()).await
        }
    })?;
    let end = Instant::now() + TIME;
    let (mut sent, mut flight) = (0u64, std::collections::VecDeque::new());
    while Instant::now() < end || !flight.is_empty() {
        if Instant::now() < end && flight.len() < 2 * usize::from(DEPTH) {
            let sector = sent * 7 % 2040;
            flight.push_back((sector, queue.submit(read(sector * 512, 4096), Vec::new())));
            sent += 1;
        } else if let Some((sector, receiver)) = flight.pop_front() {
            let (result, data) = answer(&receiver);
            assert_eq!(result, Ok(()));
            assert_eq!(data, pattern[sector as usize * 512..][..4096], "sector {sector}");
            assert!(receiver.recv().is_err(), "it was answered once");
        }
    }
    assert!(sent > 1000, "{sent} requests in {TIME:?}");
    assert_eq!(queue.stats().read.requests, sent);
    drop(writer);
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn f21_as_many_requests_as_tags_are_in_service_at_once_at_any_depth() -> TestResult {
    for depth in [1u16, 128, 1024] {
        let inside = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&inside);
        let queue = queue(depth, move || {
            let inside = Arc::clone(&inside);
            async move |io: &mut Io| {
                // Ends only when all have come: nothing may wait for the others to be through.
                inside.fetch_add(1, Ordering::Relaxed);
                while inside.load(Ordering::Relaxed) < usize::from(depth) {
                    io.sleep(Duration::from_millis(5)).await;
                }
                Ok(())
            }
        })?;
        let receivers: Vec<_> =
            (0..depth).map(|i| queue.submit(read(i.into(), 512), Vec::new())).collect();
        for receiver in &receivers {
            assert_eq!(answer(receiver).0, Ok(()), "depth {depth}");
        }
        assert_eq!(count.load(Ordering::Relaxed), usize::from(depth));
        assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    }
    Ok(())
}

#[test]
fn f90_an_idle_queue_gives_its_buffers_memory_back_and_serves_on() -> TestResult {
    let queue = queue(2, || async |_: &mut Io| Ok(()))?;
    let written = Request::new(Op::Write, 0, 4096);
    assert_eq!(answer(&queue.submit(written, vec![5; 4096])).0, Ok(()));
    let leftover = answer(&queue.submit(read(0, 4096), Vec::new())).1;
    assert_eq!(leftover, [5; 4096], "busy, it keeps them");
    for _ in 0..2 {
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(answer(&queue.submit(read(0, 4096), Vec::new())).1, [0; 4096]);
        assert_eq!(answer(&queue.submit(written, vec![6; 4096])).0, Ok(()));
    }
    assert_eq!(queue.stop().cause, QueueExitCause::Stopped);
    Ok(())
}

//! The ring on the kernel at hand: every test makes a real one.

use std::future::Future;
use std::io::Write;
use std::os::fd::AsFd;
use std::pin::pin;
use std::task::{Context, Poll};

use slog::{Discard, o};

use super::*;
use crate::sys::arena;
use std::sync::Mutex;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Counts log lines of level warning and worse.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl slog::Drain for Warnings {
    type Ok = ();
    type Err = slog::Never;
    fn log(&self, record: &slog::Record<'_>, _: &slog::OwnedKVList) -> Result<(), slog::Never> {
        if record.level().is_at_least(slog::Level::Warning) {
            self.0.lock().expect("no panic").push(record.msg().to_string());
        }
        Ok(())
    }
}

fn ring(depth: u16, log: &Logger) -> Result<(Ring, Arc<Doorbell>), Error> {
    let doorbell = Doorbell::new(usize::from(depth))?;
    let wakers = (0..usize::from(depth)).map(|task| doorbell.waker(task)).collect();
    Ok((Ring::new(RingConfig { depth, registered: 0 }, &doorbell, &wakers, log)?, doorbell))
}

fn quiet() -> Logger {
    Logger::root(Discard, o!())
}

/// Drives one future of task 0 to its end, for at most ten seconds.
fn block_on<F: Future>(ring: &Ring, future: F) -> F::Output {
    let mut future = pin!(future);
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&ring.wakers[0]))
        {
            return output;
        }
        assert!(Instant::now() < end, "it did not end in time");
        ring.enter(Wait::AtMost(Duration::from_secs(1))).expect("enter");
        while ring.reap().is_some() {}
    }
}

#[test]
fn what_is_written_is_read_back_and_the_buffer_is_free_afterwards() -> TestResult {
    let (ring, _) = ring(1, &quiet())?;
    let mut buffers = arena::map(1, 8192)?;
    let buffer = &mut buffers[0];
    let file = tempfile::tempfile()?;
    buffer.bytes_mut().fill(7);
    assert_eq!(block_on(&ring, ring.write(0, file.as_fd(), buffer, 0..4096, 512, true)), 4096);
    assert_eq!(block_on(&ring, ring.datasync(0, file.as_fd())), 0);
    buffer.bytes_mut().fill(0);
    let read = ring.read(0, file.as_fd(), buffer, 100..8192, 4000);
    assert_eq!(block_on(&ring, read), 608, "up to the end of the file");
    assert!(!buffer.is_busy());
    assert_eq!(buffer.bytes().iter().filter(|byte| **byte == 7).count(), 608);
    assert_eq!((buffer.bytes()[99], buffer.bytes()[100]), (0, 7));
    assert_eq!(block_on(&ring, ring.fallocate(0, file.as_fd(), 0, 0, 65536)), 0);
    assert_eq!(file.metadata()?.len(), 65536);
    assert_eq!(block_on(&ring, ring.sleep(0, Duration::from_millis(1))), -libc::ETIME);
    Ok(())
}

#[test]
fn f62_strangers_and_latecomers_are_logged_and_dropped() -> TestResult {
    let warnings = Warnings::default();
    let log = Logger::root(warnings.clone(), o!());
    let (ring, _) = ring(1, &log)?;
    block_on(&ring, ring.sleep(0, Duration::from_millis(1)));
    for data in [
        user_data(0xee, 0, 0),             // no such kind
        user_data(OPERATION, 0, 0),        // ended already
        user_data(OPERATION, 77, 0),       // another generation
        user_data(OPERATION, 0, 0xff_fff), // no such slot
        user_data(CANCEL, 0, 0),           // ours, of no interest
    ] {
        ring.push(&opcode::Nop::new().build().user_data(data));
    }
    ring.enter(Wait::AtMost(Duration::from_secs(1)))?;
    assert!(ring.reap().is_none());
    assert_eq!(warnings.0.lock().expect("no panic").len(), 4);
    // It works as before.
    assert_eq!(block_on(&ring, ring.sleep(0, Duration::from_millis(1))), -libc::ETIME);
    Ok(())
}

#[test]
fn f21_more_commands_than_the_ring_has_room_for_go_through_in_order() -> TestResult {
    for depth in [1, 128, 1024] {
        let (ring, _) = ring(8, &quiet())?;
        for tag in 0..depth {
            let nop = opcode::Nop::new().build().user_data(Ring::command_data(Tag(tag)));
            // SAFETY: a no-op points to no memory.
            unsafe { ring.push_command(&nop) };
        }
        let mut came = Vec::new();
        while came.len() < usize::from(depth) {
            ring.enter(Wait::AtMost(Duration::from_secs(5)))?;
            let before = came.len();
            while let Some(completion) = ring.reap() {
                let Completion::Command(Tag(tag), 0) = completion else {
                    panic!("{completion:?}");
                };
                came.push(tag);
            }
            assert!(came.len() > before, "{} of {depth} came", came.len());
        }
        assert_eq!(came, (0..depth).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn a_dropped_read_keeps_its_buffer_until_the_kernel_lets_go() -> TestResult {
    let (ring, _) = ring(1, &quiet())?;
    let mut buffers = arena::map(1, 4096)?;
    let buffer = &mut buffers[0];
    let (reader, mut writer) = std::io::pipe()?;
    {
        let mut read = pin!(ring.read(0, reader.as_fd(), buffer, 0..4096, 0));
        let cx = &mut Context::from_waker(&ring.wakers[0]);
        assert!(read.as_mut().poll(cx).is_pending());
        ring.enter(Wait::No)?;
    }
    assert!(buffer.is_busy());
    block_on(&ring, ring.sleep(0, Duration::from_millis(1)));
    assert!(!buffer.is_busy(), "the cancelled read has come back");
    writer.write_all(b"late")?;
    assert_eq!(buffer.bytes(), [0; 4096], "nothing was read afterwards");
    Ok(())
}

#[test]
#[should_panic(expected = "the kernel still uses this buffer")]
fn a_forgotten_read_cannot_race_with_the_buffers_owner() {
    let (ring, _) = ring(1, &quiet()).expect("a ring");
    let mut buffers = arena::map(1, 4096).expect("memory");
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    std::mem::forget(ring.read(0, reader.as_fd(), &mut buffers[0], 0..4096, 0));
    let _ = buffers[0].bytes_mut();
}

#[test]
fn memory_of_operations_that_never_end_is_given_up_and_the_rest_goes() -> TestResult {
    let warnings = Warnings::default();
    let log = Logger::root(warnings.clone(), o!());
    let (reader, _writer) = std::io::pipe()?;
    let (mut held, mut free) = (arena::map(1, 4096)?, arena::map(1, 4096)?);
    let (ring, doorbell) = ring(2, &log)?;
    // Never entered, so the kernel cannot have let go of it.
    std::mem::forget(ring.read(0, reader.as_fd(), &mut held[0], 0..4096, 0));
    drop(ring);
    assert_eq!(warnings.0.lock().expect("no panic").len(), 1);
    assert!(held[0].is_busy(), "for good");
    assert!(!free[0].is_busy());
    free[0].bytes_mut().fill(1);
    assert_eq!(Arc::strong_count(&doorbell), 1, "the ring and its wakers are gone");
    Ok(())
}

#[test]
fn cancelling_all_brings_everything_back_in_time() -> TestResult {
    let (ring, _) = ring(4, &quiet())?;
    let mut buffers = arena::map(1, 4096)?;
    let (reader, _writer) = std::io::pipe()?;
    let _sleep = ring.sleep(0, Duration::from_secs(3600));
    let _poll = ring.poll(1, reader.as_fd(), libc::POLLIN as u32);
    let _read = ring.read(2, reader.as_fd(), &mut buffers[0], 0..4096, 0);
    let start = Instant::now();
    assert_eq!(ring.cancel_all(Duration::from_secs(60)), 0);
    assert!(start.elapsed() < Duration::from_secs(20));
    Ok(())
}

#[test]
fn the_doorbell_wakes_a_ring_that_sleeps_every_time() -> TestResult {
    let (ring, doorbell) = ring(2, &quiet())?;
    ring.enter(Wait::No)?;
    let (send, receive) = std::sync::mpsc::channel::<()>();
    let ringer = std::thread::spawn({
        let waker = doorbell.waker(1);
        move || {
            while receive.recv().is_ok() {
                waker.wake_by_ref();
            }
        }
    });
    for _ in 0..2000 {
        send.send(())?;
        let mut woken = false;
        let end = Instant::now() + Duration::from_secs(10);
        while !woken {
            assert!(Instant::now() < end, "a wakeup was lost");
            if doorbell.fall_asleep() {
                ring.enter(Wait::AtMost(Duration::from_secs(20)))?;
                doorbell.awake();
                while ring.reap().is_some() {}
            }
            doorbell.take(|task| woken |= task == 1);
        }
    }
    drop(send);
    ringer.join().expect("no panic");
    Ok(())
}

#[test]
fn f32_signals_neither_lose_nor_double_a_completion() -> TestResult {
    use nix::sys::signal::{SigHandler, Signal, signal};
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing may run at any moment; nobody else uses this signal.
    unsafe { signal(Signal::SIGUSR2, SigHandler::Handler(nothing)) }?;
    let (ring, _) = ring(1, &quiet())?;
    // SAFETY: pthread_self has no preconditions.
    let victim = unsafe { libc::pthread_self() };
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: the scope ends before the thread does.
                unsafe { libc::pthread_kill(victim, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        for _ in 0..300 {
            let slept = block_on(&ring, ring.sleep(0, Duration::from_millis(1)));
            assert_eq!(slept, -libc::ETIME);
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(ring.operations.borrow().in_flight().is_empty());
    ring.enter(Wait::No)?;
    assert!(ring.reap().is_none(), "nothing came twice");
    Ok(())
}

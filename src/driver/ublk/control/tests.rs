//! On `/dev/null`, which takes every command and says 0.

use std::fs::OpenOptions;
use std::time::Instant;

use futures::executor::block_on;
use futures::future::join_all;
use nix::libc;

use super::super::abi;
use super::ring::ENTRIES;
use super::*;
use crate::driver::Command;
use crate::model::DeviceId;

/// A control thread on `/dev/null`, which takes every command and says 0.
fn on_null() -> Result<Control, Box<dyn std::error::Error>> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    Ok(Control::start(null, 4)?)
}

#[test]
fn many_commands_are_answered_each_by_its_own() -> Result<(), Box<dyn std::error::Error>> {
    let control = on_null()?;
    // More than there are slots in the queue.
    let wires: Result<Vec<_>, _> =
        (0..3 * ENTRIES).map(|id| abi::encode(&Command::Stop(DeviceId(id)), 1)).collect();
    let answers = wires?.into_iter().map(|wire| control.send(wire));
    let answers = block_on(join_all(answers));
    assert_eq!(answers.len(), 3 * ENTRIES as usize);
    for answer in answers {
        assert_eq!(answer?.0, 0);
    }
    Ok(())
}

#[test]
fn the_payload_comes_back() -> Result<(), Box<dyn std::error::Error>> {
    let control = on_null()?;
    let answer = block_on(control.send(abi::encode(&Command::Features, 1)?))?;
    assert!(matches!(answer, (0, Payload::Features(bits)) if *bits == 0));
    Ok(())
}

#[test]
fn f32_signals_break_no_command() -> Result<(), Box<dyn std::error::Error>> {
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    let delivered = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGUSR2, Arc::clone(&delivered))?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    // A thread that is not deaf to signals, as ours would be.
    let control = Control::start_with(null, 4, |run| Ok(std::thread::spawn(run)))?;
    let thread = control.thread.as_ref().map(JoinHandleExt::as_pthread_t);
    let thread = thread.ok_or("no thread")?;
    for id in 0..200 {
        let wires: Result<Vec<_>, _> =
            (0..16).map(|_| abi::encode(&Command::Stop(DeviceId(id)), 1)).collect();
        let answers: Vec<_> = wires?.into_iter().map(|wire| control.send(wire)).collect();
        for _ in 0..8 {
            // SAFETY: the thread runs as long as `control` is there, and the signal has a
            // handler that may run anywhere.
            assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR2) }, 0);
        }
        for answer in block_on(join_all(answers)) {
            assert_eq!(answer?.0, 0);
        }
    }
    assert!(delivered.load(Ordering::Relaxed));
    Ok(())
}

#[test]
fn dropping_it_ends_the_thread_and_answers_what_is_left() -> Result<(), Box<dyn std::error::Error>>
{
    let control = on_null()?;
    let wire = abi::encode(&Command::Stop(DeviceId(1)), 1)?;
    block_on(control.send(wire))?;
    let began = Instant::now();
    let late = {
        let wire = abi::encode(&Command::Stop(DeviceId(1)), 1)?;
        let late = control.send(wire);
        drop(control);
        late
    };
    assert!(began.elapsed() < GOODBYE, "{:?}", began.elapsed());
    match block_on(late) {
        Ok((result, _)) => assert_eq!(result, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Stopping),
    }
    Ok(())
}

//! How queues end, on ports made for it.

use std::sync::mpsc::channel;

use super::*;
use crate::model::{DeviceId, DeviceName, QueueExit, QueueId, Tag};
use crate::sys::arena::Buffer;
use crate::sys::ring::Ring;
use crate::sys::thread;
use crate::target::engine::{
    Arrival, Port, PortSetup, QueueControl, QueueNotice, QueuePlan, run_queue,
};

/// What a tag of a [`Scripted`] port brings, for ever.
#[derive(Clone, Copy)]
enum Script {
    /// One more request, whatever happens.
    Endless,
    /// Nothing at all.
    Silent,
    /// The end of the device.
    Gone,
    /// An error of the driver.
    Fails(i32),
}

struct Scripted {
    script: Script,
    free: Vec<Tag>,
}

impl Port for Scripted {
    fn fetch_all(&mut self, _: &Ring) -> Result<(), Error> {
        Ok(())
    }
    fn take(&mut self) -> Option<(Tag, i32)> {
        if let Script::Silent = self.script { None } else { Some((self.free.pop()?, 0)) }
    }
    fn arrived(&mut self, _: Tag, _: i32, _: &mut Buffer) -> Arrival {
        match self.script {
            Script::Endless | Script::Silent => Arrival::Request(read(0, 4096)),
            Script::Gone => Arrival::Gone,
            Script::Fails(errno) => Arrival::Failed(errno),
        }
    }
    fn commit(&mut self, _: &Ring, tag: Tag, _: i32, _: &mut Buffer) {
        self.free.push(tag);
    }
}

/// A queue on a scripted port: its handle, what it told (as text), and its thread.
struct Running {
    control: Arc<QueueControl>,
    told: Receiver<String>,
    thread: std::thread::JoinHandle<QueueExit>,
}

fn run(script: Script, drain: Duration) -> Result<Running, Box<dyn std::error::Error>> {
    let depth = 8;
    let device = DeviceName::new("script")?;
    let context = QueueContext { device, id: DeviceId(3), queue: QueueId(1), depth };
    let log = slog::Logger::root(slog::Discard, slog::o!());
    let target = Arc::new(Of(|| async |_: &mut Io| Ok(())));
    let plan = QueuePlan {
        context,
        processors: None,
        max_io: 4096,
        registered: false,
        target,
        drain,
        log,
    };
    let control = QueueControl::new(depth)?;
    let (tell, told) = channel();
    let thread = thread::spawn("script", {
        let control = Arc::clone(&control);
        move || {
            let make = |setup: PortSetup<'_>| {
                let free = (0..setup.queue.depth).map(Tag).collect();
                setup.waker.wake();
                Ok(Scripted { script, free })
            };
            run_queue(&plan, &control, make, |notice| {
                let text = match notice {
                    QueueNotice::Ready => "ready".to_owned(),
                    other => format!("{other:?}"),
                };
                tell.send(text).expect("the test listens");
            })
        }
    })?;
    Ok(Running { control, told, thread })
}

impl Running {
    fn next(&self) -> String {
        self.told.recv_timeout(Duration::from_secs(5)).expect("a word in time")
    }
    fn join(self) -> (QueueExitCause, Duration) {
        let start = Instant::now();
        let exit = self.thread.join().expect("no panic leaves the thread");
        assert_eq!(exit.queue, QueueId(1));
        assert_eq!(self.control.tid(), None);
        (exit.cause, start.elapsed())
    }
}

#[test]
fn f05_a_queue_that_always_has_one_more_request_ends_when_it_is_told() -> TestResult {
    let queue = run(Script::Endless, Duration::from_millis(100))?;
    assert_eq!(queue.next(), "ready");
    std::thread::sleep(Duration::from_millis(50));
    assert!(queue.control.stats().read.requests > 100, "{:?}", queue.control.stats());
    queue.control.stop();
    let (cause, time) = queue.join();
    assert_eq!(cause, QueueExitCause::Abandoned(8));
    assert!(time < Duration::from_secs(10), "{time:?}");
    Ok(())
}

#[test]
fn a_queue_that_never_had_a_request_does_not_wait_for_its_drain_time() -> TestResult {
    let queue = run(Script::Silent, Duration::from_secs(60))?;
    assert_eq!(queue.next(), "ready");
    queue.control.stop();
    let (cause, time) = queue.join();
    assert_eq!(cause, QueueExitCause::Abandoned(8));
    assert!(time < Duration::from_secs(1), "{time:?}");
    Ok(())
}

#[test]
fn a_stop_that_comes_before_the_queue_is_up_is_not_forgotten() -> TestResult {
    let queue = run(Script::Silent, Duration::from_secs(60))?;
    queue.control.stop();
    assert_eq!(queue.join().0, QueueExitCause::Abandoned(8));
    Ok(())
}

#[test]
fn a_queue_whose_tags_all_come_back_ends_and_says_so() -> TestResult {
    let queue = run(Script::Gone, Duration::from_secs(60))?;
    let mut word = queue.next();
    if word == "ready" {
        word = queue.next();
    }
    assert!(word == "TakenAway", "{word}");
    assert_eq!(queue.join().0, QueueExitCause::Stopped);
    Ok(())
}

#[test]
fn a_driver_that_fails_before_the_queue_is_up_keeps_it_from_being_ready() -> TestResult {
    let queue = run(Script::Fails(libc::EINVAL), Duration::from_secs(60))?;
    let word = queue.next();
    assert!(word.starts_with("NotReady"), "{word}");
    let QueueExitCause::Failed(text) = queue.join().0 else { panic!("it failed") };
    assert!(text.contains("EINVAL"), "{text}");
    Ok(())
}

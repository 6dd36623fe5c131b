//! Sets of queue threads: coming up, breaking, ending.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::{FutureExt, poll};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use slog::{Discard, Logger, o};

use super::*;
use crate::driver::{Features, QueueSet, ServePlan};
use crate::model::{DeviceId, DeviceName, Error, ErrorKind, QueueExitCause, QueueSpec, Tag};
use crate::sys::arena::Buffer;
use crate::sys::census::Census;
use crate::sys::ring::Ring;
use crate::sys::thread::{self, shortage};
use crate::target::{
    Geometry, Io, IoResult, Op, QueueContext, QueueTarget, Request, Serve, Target, per_tag,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Where a queue fails, or where its target does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    OpenFails,
    OpenPanics,
    OpenIsSlow,
    MakeFails,
    MakePanics,
    FetchFails,
    ServePanics,
}

/// A target and a port with the same trouble on queue 1; the port brings one read a tag.
#[derive(Clone)]
struct Bad {
    trouble: Trouble,
    fetched: Arc<AtomicUsize>,
}

struct OneEach {
    bad: Bad,
    tags: VecDeque<Tag>,
}

impl Target for Bad {
    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 20, 512)
    }
    fn open_queue(self: Arc<Self>, queue: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        struct Half(bool);
        impl Serve for Half {
            async fn serve(&self, _: &mut Io) -> IoResult {
                assert!(!self.0, "it does not serve");
                Ok(())
            }
        }
        match self.here(queue.queue) {
            Trouble::OpenFails => Err(Error::new(ErrorKind::Io, "it does not open")),
            Trouble::OpenPanics => panic!("it does not open"),
            Trouble::OpenIsSlow => {
                std::thread::sleep(Duration::from_secs(2));
                Err(Error::new(ErrorKind::Io, "too late"))
            }
            trouble => Ok(per_tag(Half(trouble == Trouble::ServePanics))),
        }
    }
}

impl Bad {
    fn new(trouble: Trouble) -> Self {
        Self { trouble, fetched: Arc::default() }
    }

    fn here(&self, queue: QueueId) -> Trouble {
        if queue == QueueId(1) { self.trouble } else { Trouble::None }
    }

    fn port(&self, setup: &PortSetup<'_>) -> Result<OneEach, Error> {
        match self.here(setup.queue.queue) {
            Trouble::MakeFails => return Err(Error::from_errno(libc::EBUSY, "it does not map")),
            Trouble::MakePanics => panic!("it does not map"),
            _ => setup.waker.wake_by_ref(),
        }
        let bad = Self { trouble: self.here(setup.queue.queue), ..self.clone() };
        Ok(OneEach { bad, tags: (0..setup.buffers.len() as u16).map(Tag).collect() })
    }

    fn start(&self, queues: u16, depth: u16) -> (ThreadSet, Arc<Mutex<Vec<QueueEvent>>>) {
        self.start_sized(QueueSpec { count: queues, depth, max_io: 4096 })
    }

    fn start_sized(&self, queues: QueueSpec) -> (ThreadSet, Arc<Mutex<Vec<QueueEvent>>>) {
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        let plan = ServePlan {
            device: DeviceName::new("vol-1").expect("a name"),
            id: DeviceId(9),
            features: Features::NONE,
            queues,
            affinity: Vec::new(),
            target: Arc::new(self.clone()),
            events: Arc::new(move |event| heard.lock().expect("no panic").push(event)),
            drain: Duration::from_millis(20),
            log: Logger::root(Discard, o!()),
        };
        let bad = self.clone();
        (ThreadSet::start(&plan, Buffers::Memory, move |setup| bad.port(&setup)), events)
    }
}

impl Port for OneEach {
    fn fetch_all(&mut self, _: &Ring) -> Result<(), Error> {
        if self.bad.trouble == Trouble::FetchFails {
            return Err(Error::from_errno(libc::EINVAL, "it does not fetch"));
        }
        self.bad.fetched.fetch_add(self.tags.len(), Ordering::Relaxed);
        Ok(())
    }
    fn take(&mut self) -> Option<(Tag, i32)> {
        Some((self.tags.pop_front()?, 0))
    }
    fn arrived(&mut self, _: Tag, _: i32, _: &mut Buffer) -> Arrival {
        Arrival::Request(Request::new(Op::Read, 0, 4096))
    }
    fn commit(&mut self, _: &Ring, _: Tag, _: i32, _: &mut Buffer) {}
}

fn end(set: &mut ThreadSet) -> Vec<QueueExitCause> {
    set.stop();
    block_on(set.join()).into_iter().map(|exit| exit.cause).collect()
}

fn within<T>(limit: Duration, what: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let got = what();
    assert!(start.elapsed() < limit, "{:?}", start.elapsed());
    got
}

#[test]
fn f21_every_tag_of_every_queue_is_fetched_before_the_set_is_ready() {
    for (queues, depth) in [(1, 1), (1, 128), (1, 1024), (4, 1), (4, 128), (4, 1024)] {
        let bad = Bad::new(Trouble::None);
        let (mut set, _) = bad.start(queues, depth);
        within(Duration::from_secs(20), || block_on(set.ready())).expect("ready");
        let all = usize::from(queues) * usize::from(depth);
        assert_eq!(bad.fetched.load(Ordering::Relaxed), all);
        assert_eq!(set.tids().len(), usize::from(queues));
        let end_by = Instant::now() + Duration::from_secs(20);
        while set.stats().read.requests < all as u64 {
            assert!(Instant::now() < end_by, "{:?}", set.stats());
            std::thread::yield_now();
        }
        assert_eq!(end(&mut set), vec![QueueExitCause::Abandoned(depth); usize::from(queues)]);
        assert!(set.tids().is_empty());
    }
}

#[test]
fn f22_a_queue_that_dies_on_its_way_up_is_told_at_once_with_device_and_cause() {
    let healthy = Bad::new(Trouble::None);
    let (mut sibling, heard) = healthy.start(2, 4);
    for (trouble, kind, text) in [
        (Trouble::OpenFails, ErrorKind::Io, "it does not open"),
        (Trouble::OpenPanics, ErrorKind::Panicked, "it does not open"),
        (Trouble::MakeFails, ErrorKind::Busy, "it does not map"),
        (Trouble::MakePanics, ErrorKind::Panicked, "it does not map"),
        (Trouble::FetchFails, ErrorKind::Invalid, "it does not fetch"),
    ] {
        let (mut set, events) = Bad::new(trouble).start(3, 4);
        let ready = within(Duration::from_secs(20), || block_on(set.ready()));
        let error = ready.expect_err("queue 1 is not up");
        assert_eq!(error.kind(), kind, "{trouble:?}");
        assert!(error.to_string().starts_with("device vol-1 (id 9): "), "{error}");
        assert!(error.to_string().contains(text), "{error}");
        let again = block_on(set.ready()).expect_err("it does not heal");
        assert_eq!(again.to_string(), error.to_string());
        let exits = within(Duration::from_secs(20), || end(&mut set));
        let told = |cause: &QueueExitCause| {
            matches!(cause, QueueExitCause::Failed(_) | QueueExitCause::Panicked(_))
        };
        assert_eq!(exits.iter().map(told).collect::<Vec<_>>(), [false, true, false], "{exits:?}");
        assert_eq!(*events.lock().expect("no panic"), []);
    }
    block_on(sibling.ready()).expect("the sibling is well");
    assert_eq!(sibling.tids().len(), 2);
    assert_eq!(end(&mut sibling), vec![QueueExitCause::Abandoned(4); 2]);
    assert_eq!(*heard.lock().expect("no panic"), []);
}

#[test]
fn f22_a_queue_that_ends_while_others_come_up_is_told_at_once() {
    let (mut set, _) = Bad::new(Trouble::OpenIsSlow).start(2, 4);
    set.stop();
    let error = within(Duration::from_secs(20), || block_on(set.ready())).expect_err("one ended");
    assert!(error.to_string().contains("queue 0 has ended"), "{error}");
    let exits = end(&mut set);
    assert_eq!(exits[0], QueueExitCause::Abandoned(4));
    assert_eq!(exits[1], QueueExitCause::Failed("too late".to_owned()));
}

#[test]
fn f76_a_panic_breaks_its_queue_and_no_other() {
    let (mut set, events) = Bad::new(Trouble::ServePanics).start(3, 4);
    block_on(set.ready()).expect("ready");
    let end_by = Instant::now() + Duration::from_secs(20);
    while set.stats().read.requests < 12 {
        assert!(Instant::now() < end_by, "{:?}", set.stats());
        std::thread::yield_now();
    }
    assert_eq!(set.stats().errors(), 4, "every request of queue 1");
    assert_eq!(set.tids().len(), 3, "all go on");
    let exits = end(&mut set);
    let QueueExitCause::Panicked(report) = &exits[1] else { panic!("{exits:?}") };
    assert_eq!(
        (report.thread.as_str(), report.message.as_str()),
        ("vol-1.q1", "it does not serve")
    );
    assert_eq!([&exits[0], &exits[2]], [&QueueExitCause::Abandoned(4); 2]);
    let told = vec![QueueEvent::Panicked(QueueId(1), report.clone())];
    assert_eq!(*events.lock().expect("no panic"), told, "once");
}

#[test]
fn joining_can_be_dropped_and_asked_for_again() {
    let (mut set, _) = Bad::new(Trouble::None).start(2, 4);
    block_on(set.ready()).expect("ready");
    for _ in 0..3 {
        assert!(set.join().now_or_never().is_none(), "they run");
    }
    set.stop();
    block_on(async { assert!(poll!(set.join()).is_pending() || set.tids().is_empty()) });
    let exits = block_on(set.join());
    assert_eq!(exits.len(), 2);
    assert_eq!(block_on(set.join()), exits, "the same as often as one asks");
}

/// Runs an ignored test of this module in a process of its own, since it counts what the whole
/// process has.
fn alone(name: &str) -> TestResult {
    let test = format!("{}::{name}", module_path!().split_once("::").map_or("", |path| path.1));
    let output = Command::new(std::env::current_exe()?)
        .args(["--exact", &test, "--ignored", "--test-threads=1"])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    Ok(())
}

/// The limit on open files under which `room` more can be opened.
fn limit_with(room: usize) -> u64 {
    let probes: Vec<_> = (0..=room).map(|_| tempfile::tempfile().expect("a file")).collect();
    probes.iter().map(|file| file.as_raw_fd()).max().map_or(0, |fd| fd as u64)
}

#[test]
fn f38_whatever_fails_in_a_start_leaves_no_thread_and_no_fd() -> TestResult {
    alone("every_failure_twenty_times")
}

#[test]
#[ignore = "counts the threads and fds of its process: run by the test above"]
fn every_failure_twenty_times() -> TestResult {
    use Trouble::{FetchFails, MakeFails, MakePanics, OpenFails, OpenPanics, ServePanics};
    let spec = QueueSpec { count: 3, depth: 16, max_io: 4096 };
    let rounds = |name: &str, wanted: Option<&str>, start: &dyn Fn() -> ThreadSet| {
        let before = Census::take();
        for round in 0..20 {
            let mut set = start();
            match (block_on(set.ready()), wanted) {
                (Err(error), Some(text)) => {
                    assert!(error.to_string().contains(text), "{name}: {error}");
                }
                (Ok(()), None) => {}
                (ready, _) => panic!("{name}: {ready:?}"),
            }
            end(&mut set);
            drop(set);
            // The kernel lists a thread for a moment after it was joined.
            let surplus = before.surplus(Duration::from_secs(20));
            assert!(surplus.is_empty(), "{name}, round {round}: {surplus:?}");
        }
        Ok::<_, std::io::Error>(())
    };
    for trouble in [OpenFails, OpenPanics, MakeFails, MakePanics, FetchFails] {
        let start = || Bad::new(trouble).start_sized(spec).0;
        rounds(&format!("{trouble:?}"), Some("it does not"), &start)?;
    }
    for trouble in [Trouble::None, ServePanics] {
        rounds(&format!("{trouble:?}"), None, &|| Bad::new(trouble).start_sized(spec).0)?;
    }
    let huge = QueueSpec { count: 3, depth: u16::MAX, max_io: u32::MAX };
    rounds("buffers", Some("I/O buffers"), &|| Bad::new(Trouble::None).start_sized(huge).0)?;
    rounds("threads", Some("RLIMIT_NPROC"), &|| {
        shortage::set(Some(2));
        let set = Bad::new(Trouble::None).start_sized(spec).0;
        shortage::set(None);
        set
    })?;

    // F28: room for the eventfds of all queues and the rings of some, and for none at all.
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    for room in [4, 0] {
        rounds("open files", Some("RLIMIT_NOFILE"), &|| {
            setrlimit(Resource::RLIMIT_NOFILE, limit_with(room), hard).expect("lower");
            let mut set = Bad::new(Trouble::None).start_sized(spec).0;
            let error = block_on(set.ready()).expect_err("no room");
            assert_eq!(error.kind(), ErrorKind::Limit);
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("raise");
            set
        })?;
    }
    Ok(())
}

#[test]
fn a_set_that_is_dropped_ends_its_threads() -> TestResult {
    let (mut set, _) = Bad::new(Trouble::None).start(4, 4);
    block_on(set.ready())?;
    let tids = set.tids();
    assert_eq!(tids.len(), 4);
    drop(set);
    let end_by = Instant::now() + Duration::from_secs(20);
    for tid in tids {
        while std::path::Path::new(&format!("/proc/self/task/{tid}")).exists() {
            assert!(Instant::now() < end_by, "thread {tid} runs on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

#[test]
fn f60_every_queue_thread_is_an_io_flusher_or_the_right_is_missing() {
    /// Tells what it sees on the queue's thread.
    struct Spy(Mutex<Vec<bool>>);
    impl Target for Spy {
        fn geometry(&self) -> Geometry {
            Geometry::new(512, 512)
        }
        fn open_queue(self: Arc<Self>, _: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
            self.0.lock().expect("no panic").push(thread::is_io_flusher());
            Arc::new(Bad::new(Trouble::None)).open_queue(QueueContext {
                device: DeviceName::new("spy").expect("a name"),
                id: DeviceId(0),
                queue: QueueId(0),
                depth: 1,
            })
        }
    }
    let may = thread::spawn("may", || {
        thread::mark_io_flusher(&Logger::root(Discard, o!()));
        thread::is_io_flusher()
    });
    let may = may.expect("a thread").join().expect("no panic");
    let spy = Arc::new(Spy(Mutex::default()));
    let plan = ServePlan {
        device: DeviceName::new("spy").expect("a name"),
        id: DeviceId(1),
        features: Features::NONE,
        queues: QueueSpec { count: 3, depth: 2, max_io: 4096 },
        affinity: Vec::new(),
        target: Arc::clone(&spy) as Arc<dyn Target>,
        events: Arc::new(|_| ()),
        drain: Duration::from_millis(10),
        log: Logger::root(Discard, o!()),
    };
    let bad = Bad::new(Trouble::None);
    let mut set = ThreadSet::start(&plan, Buffers::Memory, move |setup| bad.port(&setup));
    block_on(set.ready()).expect("ready");
    end(&mut set);
    assert_eq!(*spy.0.lock().expect("no panic"), [may; 3]);
}

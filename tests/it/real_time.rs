//! With threads and a clock that runs: targets of the host's own that break in every way while they
//! are opened, and what is dropped before the end is told.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::executor::block_on;
use futures::future::LocalBoxFuture;
use ublkd::driver::sim::{self, FaultPlan, KernelProfile};
use ublkd::model::{
    DeleteOutcome, DeviceSpec, Error, ErrorKind, Observer, OutcomeKind, Stage, StateChange,
    TargetSpec,
};
use ublkd::target::{
    Geometry, Io, IoResult, OpenTarget, QueueContext, QueueTarget, Serve, TagSlot, Target, per_tag,
};
use ublkd::{Builder, Running};

use crate::support::{name, null};

const WITHIN: Duration = Duration::from_secs(20);

fn house(shape: impl FnOnce(Builder) -> Builder) -> Running {
    let (driver, _) = sim::driver(KernelProfile::linux_7_3(), FaultPlan::none());
    shape(Builder::new(driver).command_timeout(Duration::from_secs(5))).start().unwrap()
}

fn custom(device: &str, kind: &str) -> DeviceSpec {
    let target = TargetSpec::Custom { name: kind.to_owned(), options: Default::default() };
    DeviceSpec::builder(name(device), target).build().unwrap()
}

fn geometry() -> Geometry {
    Geometry::new(1 << 20, 512)
}

struct Nothing;

impl Serve for Nothing {
    async fn serve(&self, _: &mut Io) -> IoResult {
        Ok(())
    }
}

/// What a target does when a queue is opened.
struct Opens(fn() -> Result<Box<dyn QueueTarget>, Error>);

impl Target for Opens {
    fn geometry(&self) -> Geometry {
        geometry()
    }
    fn open_queue(self: Arc<Self>, _: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        (self.0)()
    }
}

type Opener = fn(&DeviceSpec) -> Result<Arc<dyn Target>, Error>;

/// Ways to break while a target is opened.
const BREAKS: [(&str, Opener); 5] = [
    ("opener-panics", |_| panic!("no such image")),
    ("opener-fails", |_| Err(Error::new(ErrorKind::Io, "no such image"))),
    ("queue-panics", |_| Ok(Arc::new(Opens(|| panic!("no such image"))))),
    ("queue-fails", |_| Ok(Arc::new(Opens(|| Err(Error::new(ErrorKind::Io, "no such image")))))),
    ("geometry-panics", |_| {
        struct Shapeless;
        impl Target for Shapeless {
            fn geometry(&self) -> Geometry {
                panic!("no such image")
            }
            fn open_queue(self: Arc<Self>, _: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
                Ok(per_tag(Nothing))
            }
        }
        Ok(Arc::new(Shapeless))
    }),
];

#[test]
fn f22_a_target_that_breaks_while_it_is_opened_fails_its_device_at_once_and_no_other() {
    let running = house(|builder| {
        BREAKS.into_iter().fold(builder, |builder, (kind, opener)| {
            builder.target(kind, Arc::new(opener) as Arc<dyn OpenTarget>)
        })
    });
    let handle = running.handle();
    block_on(async {
        handle.create(null("sibling")).await.unwrap();
        for (kind, _) in BREAKS {
            let began = Instant::now();
            let error = handle.create(custom(kind, kind)).await.unwrap_err();
            assert!(began.elapsed() < Duration::from_secs(3), "{kind}: {:?}", began.elapsed());
            let text = error.to_string();
            assert!(text.contains(kind) && text.contains("no such image"), "{kind}: {text}");
            let panics = kind.ends_with("panics");
            let expected = if panics { ErrorKind::Panicked } else { ErrorKind::Io };
            assert_eq!(error.kind(), expected, "{kind}: {text}");
        }
        let report = running.shutdown(WITHIN).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 1);
        assert_eq!(report.outcomes[&OutcomeKind::Panicked], 3);
        assert_eq!(report.outcomes[&OutcomeKind::Failed], 2);
    });
}

/// Lines of what was dropped.
type Lines = Arc<Mutex<Vec<String>>>;

/// Says when it is dropped, and takes its time for that.
struct Slow(String, Lines);

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(300));
        self.1.lock().unwrap().push(self.0.clone());
    }
}

struct Backend {
    lines: Lines,
    _slow: Slow,
}

impl Target for Backend {
    fn geometry(&self) -> Geometry {
        geometry()
    }
    fn open_queue(self: Arc<Self>, queue: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        let slow = Slow(format!("queue of {}", queue.device), Arc::clone(&self.lines));
        Ok(Box::new(OneQueue(per_tag(Nothing), slow)))
    }
}

struct OneQueue(Box<dyn QueueTarget>, #[expect(dead_code, reason = "held")] Slow);

impl QueueTarget for OneQueue {
    fn run_tag(&self, slot: TagSlot) -> LocalBoxFuture<'static, ()> {
        self.0.run_tag(slot)
    }
}

struct Watcher(#[expect(dead_code, reason = "held")] Slow);

impl Observer for Watcher {
    fn state_changed(&self, _: &StateChange) {}
}

#[test]
fn f13_everything_is_dropped_before_the_end_is_told_and_devices_do_not_wait_for_each_other() {
    const DEVICES: usize = 20;
    let lines = Lines::default();
    let running = house(|builder| {
        let of_targets = Arc::clone(&lines);
        let opener = move |spec: &DeviceSpec| -> Result<Arc<dyn Target>, Error> {
            let lines = Arc::clone(&of_targets);
            let slow = Slow(format!("target of {}", spec.name()), Arc::clone(&lines));
            Ok(Arc::new(Backend { lines, _slow: slow }))
        };
        let watcher = Watcher(Slow("observer".to_owned(), Arc::clone(&lines)));
        builder.target("mine", Arc::new(opener)).observer(watcher)
    });
    block_on(async {
        let names: Vec<_> = (0..DEVICES).map(|n| format!("d{n}")).collect();
        let specs = names.iter().map(|name| custom(name, "mine"));
        let created: Vec<_> = running.handle().create_all(specs).collect().await;
        assert!(created.iter().all(|(_, result)| result.is_ok()));
        let report = running.shutdown(WITHIN).await.unwrap();
        assert!(report.is_clean(), "{report:?}");

        let lines = lines.lock().unwrap();
        for name in &names {
            for part in ["target", "queue"] {
                let line = format!("{part} of {name}");
                assert_eq!(lines.iter().filter(|l| **l == line).count(), 1, "{line}: {lines:?}");
            }
        }
        assert_eq!(lines.last().map(String::as_str), Some("observer"), "{lines:?}");
        // One after the other, the targets alone would take six seconds.
        assert!(report.wall < Duration::from_secs(4), "{:?}", report.wall);
    });
}

/// A target whose drop does something.
struct Ends(fn());

impl Target for Ends {
    fn geometry(&self) -> Geometry {
        geometry()
    }
    fn open_queue(self: Arc<Self>, _: QueueContext) -> Result<Box<dyn QueueTarget>, Error> {
        Ok(per_tag(Nothing))
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn a_target_that_does_not_close_is_left_and_one_that_panics_in_it_is_told() {
    let ends = |f: fn()| -> Arc<dyn OpenTarget> {
        Arc::new(move |_: &DeviceSpec| -> Result<Arc<dyn Target>, Error> { Ok(Arc::new(Ends(f))) })
    };
    let running = house(|builder| {
        builder
            .command_timeout(Duration::from_millis(500))
            .target("slow", ends(|| std::thread::sleep(Duration::from_millis(1500))))
            .target("panics", ends(|| panic!("cannot unmap")))
    });
    let handle = running.handle();
    block_on(async {
        let (slow, panics) = (name("slow"), name("panics"));
        handle.create(custom("slow", "slow")).await.unwrap();
        handle.create(custom("panics", "panics")).await.unwrap();
        let DeleteOutcome::Ended(outcome) = handle.delete(&panics).await.unwrap() else {
            panic!("it was there")
        };
        assert_eq!((outcome.outcome, outcome.left.len()), (OutcomeKind::Panicked, 0));
        assert_eq!(outcome.panics[0].message, "cannot unmap");

        let DeleteOutcome::Ended(outcome) = handle.delete(&slow).await.unwrap() else {
            panic!("it was there")
        };
        assert_eq!(outcome.outcome, OutcomeKind::TimedOut, "{outcome:?}");
        assert_eq!(outcome.stage, Some(Stage::Close));
        assert_eq!(outcome.left, ["its slow target, which is still being closed"]);
        // The kernel has its number back meanwhile, and a later delete finds it closed.
        std::thread::sleep(Duration::from_millis(1200));
        let DeleteOutcome::Ended(outcome) = handle.delete(&slow).await.unwrap() else {
            panic!("it was there")
        };
        assert_eq!((outcome.outcome, outcome.left.len()), (OutcomeKind::Deleted, 0));
        assert!(running.shutdown(WITHIN).await.unwrap().is_clean());
    });
}

#[test]
fn f13_dropping_what_runs_ends_it_as_well() {
    let lines = Lines::default();
    let watcher = Watcher(Slow("observer".to_owned(), Arc::clone(&lines)));
    let running = house(|builder| builder.observer(watcher).shutdown_timeout(WITHIN));
    let handle = running.handle();
    block_on(handle.create(null("a"))).unwrap();
    drop(running);
    assert_eq!(*lines.lock().unwrap(), ["observer"]);
    let error = block_on(handle.list()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Stopping);
}

#[test]
fn it_starts_and_ends_inside_of_any_executor() {
    let once = || {
        let running = house(|builder| builder.shutdown_timeout(WITHIN));
        let handle = running.handle();
        // As when a host gives up on an error in the middle of its own future.
        drop(running);
        handle
    };
    let ended = [
        block_on(async { once() }),
        async_std::task::block_on(async { once() }),
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { once() }),
        actix_rt::System::new().block_on(async { once() }),
    ];
    for handle in ended {
        assert_eq!(block_on(handle.list()).unwrap_err().kind(), ErrorKind::Stopping);
    }
}

/// Blocks the supervisor's thread from the first change of state on, until it is let go.
struct Blocking(std::sync::mpsc::Receiver<()>);

impl Observer for Blocking {
    fn state_changed(&self, _: &StateChange) {
        // Nothing is ever sent.
        let _ = self.0.recv();
    }
}

#[test]
fn a_supervisor_that_an_observer_blocks_is_let_go_at_a_bound() {
    let (let_go, block) = std::sync::mpsc::channel::<()>();
    let running =
        house(|b| b.observer(Blocking(block)).shutdown_timeout(Duration::from_millis(500)));
    let handle = running.handle();
    let create = std::thread::spawn(move || block_on(handle.create(null("a"))));
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    drop(running);
    // Its own bound, that of the answer, and that of the thread's end.
    assert!(began.elapsed() < WITHIN, "{:?}", began.elapsed());
    drop(let_go);
    assert!(create.join().unwrap().is_err(), "it ends as soon as it can");
}

//! Many operations at once, troubles and panics among them, and an end at any moment: whatever the
//! order of events, each call is answered, a name is one device, and nothing is left that the report
//! does not name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use futures::{FutureExt, StreamExt};
use proptest::prelude::*;
use tokio::time::{sleep, timeout};
use ublkd::Handle;
use ublkd::driver::sim::Snapshot;
use ublkd::model::{
    BusyPolicy, Condition, DeleteOptions, DeviceId, DeviceName, DeviceSpec, DeviceState, Error,
    ErrorKind, GroupName, Observer, ShutdownReport, Stage, StateChange, StreamEvent, TargetSpec,
};

use crate::model::{Trouble, device};
use crate::support::{House, Plan, cases, settle};

const WITHIN: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(300);

#[derive(Debug, Clone)]
enum Op {
    Create(u8, Trouble),
    Delete(u8, BusyPolicy),
    Ensure(u8),
    Resize(u8, u8),
    Quiesce(u8),
    Resume(u8),
    ReadOnly(u8, bool),
    CreateGroup(u8),
    DeleteGroup(u8),
    Wait(u8),
    List,
    Describe(u8),
}

/// A history: when what is asked, and how it ends.
#[derive(Debug, Clone)]
struct History {
    /// Milliseconds from the start, and the operation.
    ops: Vec<(u64, Op)>,
    workers: usize,
    mailbox: usize,
    shutdown_at: u64,
    /// A forced end, this long after the shutdown began.
    forced_after: Option<u64>,
    /// The observer panics at this change of state of this device.
    clumsy: Option<(u8, usize)>,
}

fn history() -> impl Strategy<Value = History> {
    let device = || 0..4_u8;
    let trouble = prop_oneof![
        2 => Just(Trouble::None),
        1 => proptest::sample::select(&Trouble::ALL[..])
    ];
    let op = prop_oneof![
        4 => (device(), trouble).prop_map(|(d, t)| Op::Create(d, t)),
        4 => (device(), proptest::sample::select(&BusyPolicy::ALL[..]))
            .prop_map(|(d, busy)| Op::Delete(d, busy)),
        1 => device().prop_map(Op::Ensure),
        2 => (device(), 1..4_u8).prop_map(|(d, size)| Op::Resize(d, size)),
        3 => device().prop_map(Op::Quiesce),
        3 => device().prop_map(Op::Resume),
        1 => (device(), any::<bool>()).prop_map(|(d, on)| Op::ReadOnly(d, on)),
        1 => device().prop_map(Op::CreateGroup),
        1 => device().prop_map(Op::DeleteGroup),
        1 => device().prop_map(Op::Wait),
        1 => Just(Op::List),
        1 => device().prop_map(Op::Describe),
    ];
    let ops = proptest::collection::vec((0..150_u64, op), 1..40);
    let (workers, mailbox) = (1..5_usize, prop_oneof![1..6_usize, Just(1000)]);
    let end = (0..250_u64, proptest::option::of(0..200_u64));
    let clumsy = proptest::option::of((device(), 0..8_usize));
    (ops, workers, mailbox, end, clumsy).prop_map(|(ops, workers, mailbox, end, clumsy)| {
        let (shutdown_at, forced_after) = end;
        History { ops, workers, mailbox, shutdown_at, forced_after, clumsy }
    })
}

/// Writes down every change of state; panics once, if that is asked.
#[derive(Clone, Default)]
struct Watcher {
    changes: Arc<Mutex<Vec<StateChange>>>,
    clumsy: Option<(u8, usize)>,
}

impl Observer for Watcher {
    fn state_changed(&self, change: &StateChange) {
        let mut changes = self.changes.lock().unwrap();
        changes.push(change.clone());
        let of_device = changes.iter().filter(|c| c.device == change.device).count();
        drop(changes);
        if let Some((clumsy, nth)) = self.clumsy {
            assert!(device(clumsy) != change.device || of_device != nth + 1, "it stumbles");
        }
    }
}

/// How one call was answered: the error's kind, if it was one.
type Answer = Option<ErrorKind>;

fn ask(handle: &Handle, id: u32, op: &Op) -> LocalBoxFuture<'static, Answer> {
    let (handle, op) = (handle.clone(), op.clone());
    fn kind<T>(answer: Result<T, Error>) -> Answer {
        answer.err().map(|error| error.kind())
    }
    Box::pin(async move {
        match op {
            Op::Create(d, _) => kind(handle.create(recoverable(d, id)).await),
            Op::Delete(d, busy) => {
                let options = DeleteOptions { busy: Some(busy), within: Some(SOON) };
                kind(handle.delete_with(&device(d), options).await)
            }
            Op::Ensure(d) => kind(handle.ensure(recoverable(d, id)).await),
            Op::Resize(d, size) => {
                kind(handle.resize(&device(d), u64::from(size) << 20, size == 1).await)
            }
            Op::Quiesce(d) => kind(handle.quiesce(&device(d), SOON).await),
            Op::Resume(d) => kind(handle.resume(&device(d)).await),
            Op::ReadOnly(d, on) => kind(handle.set_read_only(&device(d), on).await),
            // The group of a device: itself, and one more.
            Op::CreateGroup(d) => {
                let (one, two) = (recoverable(d, id), recoverable(d + 4, 1000 + id));
                kind(handle.create_group(&group(d), vec![one, two]).await)
            }
            Op::DeleteGroup(d) => {
                kind(handle.delete_group(&group(d), DeleteOptions::default()).await)
            }
            Op::Wait(d) => kind(handle.wait(&device(d), Condition::Absent, SOON).await),
            Op::List => kind(handle.list().await),
            Op::Describe(d) => kind(handle.describe(&device(d)).await),
        }
    })
}

fn group(d: u8) -> GroupName {
    GroupName::new(format!("g{}", d % 4)).unwrap()
}

/// A device that can be quiesced, in the group of its number.
fn recoverable(d: u8, id: u32) -> DeviceSpec {
    DeviceSpec::builder(device(d), TargetSpec::Null { size: 1 << 20 })
        .id(DeviceId(id))
        .recovery(true)
        .group(group(d))
        .build()
        .unwrap()
}

/// A name is one device: each change follows the one before, and a new life begins where the one
/// before rests.
fn check_lives(changes: &[StateChange], clumsy: Option<(u8, usize)>) -> Result<(), TestCaseError> {
    use DeviceState::{Failed, Gone, Waiting};
    let mut last: BTreeMap<&DeviceName, DeviceState> = BTreeMap::new();
    for change in changes {
        // Of one that the observer stumbled over, no more is told.
        if clumsy.is_some_and(|(clumsy, _)| device(clumsy) == change.device) {
            continue;
        }
        // The last word of a life may come when the next one of its name has begun.
        if (change.from, change.to) == (Failed, Gone) {
            last.entry(&change.device).and_modify(|s| {
                if *s == Failed {
                    *s = Gone
                }
            });
            continue;
        }
        let before = last.insert(&change.device, change.to);
        let follows = match before {
            None => change.from == Waiting,
            Some(Gone | Failed) if change.from == Waiting => true,
            Some(before) => before == change.from,
        };
        prop_assert!(follows, "{before:?}, then {change:?}");
    }
    Ok(())
}

/// Whatever is left in the kernel is named.
fn check_left(report: &ShutdownReport, left: &Snapshot) -> Result<(), TestCaseError> {
    for kept in &left.devices {
        // One whose ADD was under way when it was abandoned got its number later.
        let named = report.devices.iter().any(|device| {
            let adding = device.id.is_none() && device.stage == Some(Stage::Add);
            (adding || device.id == Some(kept.id)) && !device.left.is_empty()
        });
        prop_assert!(named, "id {} is not named:\n{report:#?}\n{left}", kept.id);
    }
    prop_assert!(left.queue_threads == 0 || !report.is_clean(), "{report:#?}\n{left}");
    Ok(())
}

fn check_report(history: &History, report: &ShutdownReport) -> Result<(), TestCaseError> {
    let names: BTreeSet<_> = report.devices.iter().map(|device| &device.name).collect();
    prop_assert_eq!(names.len(), report.devices.len(), "a device is in it twice");
    let created = history.ops.iter().flat_map(|(_, op)| match op {
        Op::Create(d, _) | Op::Ensure(d) => vec![device(*d)],
        Op::CreateGroup(d) => vec![device(*d), device(*d + 4)],
        _ => Vec::new(),
    });
    let created: BTreeSet<_> = created.collect();
    prop_assert!(names.into_iter().all(|name| created.contains(name)));
    prop_assert_eq!(report.outcomes.values().sum::<usize>(), report.devices.len());
    prop_assert!(report.wall <= WITHIN);
    prop_assert!(!report.forced || history.forced_after.is_some());
    Ok(())
}

fn run(history: &History) -> Result<(), TestCaseError> {
    let faults = (0..).zip(&history.ops).filter_map(|(id, (_, op))| match op {
        Op::Create(_, trouble) => trouble.fault(id),
        _ => None,
    });
    let faults = faults.collect::<Vec<_>>().join("; ");
    let watcher = Watcher { clumsy: history.clumsy, ..Watcher::default() };
    let (observer, History { workers, mailbox, .. }) = (watcher.clone(), history.clone());
    let plan =
        Plan::faults(faults).shape(move |b| b.workers(workers).mailbox(mailbox).observer(observer));
    let history = history.clone();
    plan.run(|House { handle, sim }| async move {
        let mut events = handle.events(Some(1));
        let calls = (0..).zip(&history.ops).map(|(id, (at, op))| {
            let call = ask(&handle, id, op);
            async move {
                sleep(Duration::from_millis(*at)).await;
                call.await
            }
        });
        let end = async {
            sleep(Duration::from_millis(history.shutdown_at)).await;
            let force = async {
                if let Some(after) = history.forced_after {
                    sleep(Duration::from_millis(after)).await;
                    handle.force();
                }
            };
            futures::join!(handle.shutdown(WITHIN), force).0
        };
        let everything = async { futures::join!(join_all(calls), end) };
        let Ok((answers, report)) = timeout(WITHIN * 10, everything).await else {
            return Err(TestCaseError::fail("a call is never answered"));
        };
        let report = report.unwrap();

        for (answer, (_, op)) in answers.iter().zip(&history.ops) {
            let asked = matches!(op, Op::List | Op::Describe(_));
            prop_assert!(!asked || answer.is_none(), "{op:?}: {answer:?}");
            prop_assert_ne!(*answer, Some(ErrorKind::Internal), "{:?}", op);
            let full = *answer == Some(ErrorKind::Overloaded);
            prop_assert!(!full || mailbox < 1000, "{op:?}");
        }
        check_report(&history, &report)?;
        // What a forced end abandoned goes on by itself.
        tokio::time::sleep(WITHIN).await;
        settle().await;
        let told = watcher.changes.lock().unwrap().clone();
        check_lives(&told, history.clumsy)?;
        let mut streamed = Vec::new();
        while let Some(Some(StreamEvent::Change(number, change))) = events.next().now_or_never() {
            prop_assert_eq!(number, streamed.len() as u64 + 1);
            streamed.push((*change).clone());
        }
        if history.clumsy.is_none() {
            prop_assert_eq!(&streamed, &told, "not what the observer saw");
        }
        check_lives(&streamed, None)?;
        check_left(&report, &sim.snapshot())
    })
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn whatever_happens_at_once_each_call_is_answered_and_nothing_is_left_unnamed(
        history in history()
    ) {
        run(&history)?;
    }
}

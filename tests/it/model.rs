//! Random lives against a small model of what must become of each: one operation after the other,
//! each answer predicted; then many at once, where what must hold of every history is checked.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use ublkd::driver::sim::{Hold, KernelProfile};
use ublkd::model::{
    BusyPolicy, DeleteOptions, DeleteOutcome, DeviceId, DeviceName, DeviceSpec, DeviceState,
    ErrorKind, OutcomeKind, ShutdownReport, TargetSpec,
};

use crate::support::{House, Plan, cases, name, settle};

/// What goes wrong with one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    AddFails,
    AddHangs,
    ParamsFail,
    OpenFails,
    ReadyFails,
    StartFails,
    StartPanics,
    StartHangs,
    NodeFails,
    QueuePanics,
    QueueFails,
    StopFails,
    StopPanics,
    StopHangs,
    JoinHangs,
    DeleteFails,
    DeletePanics,
    DeleteHangs,
    CloseHangs,
    InfoHangs,
    QuiesceIsLate,
    QuiesceFails,
    RecoveryFails,
    ResumeFails,
}

use Trouble as T;

impl Trouble {
    pub(crate) const ALL: [Self; 25] = [
        T::None,
        T::AddFails,
        T::AddHangs,
        T::ParamsFail,
        T::OpenFails,
        T::ReadyFails,
        T::StartFails,
        T::StartPanics,
        T::StartHangs,
        T::NodeFails,
        T::QueuePanics,
        T::QueueFails,
        T::StopFails,
        T::StopPanics,
        T::StopHangs,
        T::JoinHangs,
        T::DeleteFails,
        T::DeletePanics,
        T::DeleteHangs,
        T::CloseHangs,
        T::InfoHangs,
        T::QuiesceIsLate,
        T::QuiesceFails,
        T::RecoveryFails,
        T::ResumeFails,
    ];

    /// The fault of device `id`, in a plan's words.
    pub(crate) fn fault(self, id: u32) -> Option<String> {
        let (point, effect) = match self {
            T::None => return None,
            T::AddFails => ("add", "EACCES"),
            T::AddHangs => ("add", "hang"),
            T::ParamsFail => ("set_params", "EINVAL"),
            T::OpenFails => ("open", "ENXIO"),
            T::ReadyFails => ("ready", "EIO"),
            T::StartFails => ("start", "EIO"),
            T::StartPanics => ("start", "panic"),
            T::StartHangs => ("start", "hang"),
            T::NodeFails => ("node", "EIO"),
            T::QueuePanics => ("queue", "delay 20ms panic"),
            T::QueueFails => ("queue", "delay 20ms EIO"),
            T::StopFails => ("stop", "EIO"),
            T::StopPanics => ("stop", "panic"),
            T::StopHangs => ("stop", "hang"),
            T::JoinHangs => ("join", "hang"),
            T::DeleteFails => ("del_async", "EIO"),
            T::DeletePanics => ("del_async", "panic"),
            T::DeleteHangs => ("del_async", "hang"),
            T::CloseHangs => ("close", "hang"),
            T::InfoHangs => ("info", "hang"),
            T::QuiesceIsLate => ("quiesce", "EBUSY"),
            T::QuiesceFails => ("quiesce", "EINVAL"),
            T::RecoveryFails => ("start_recovery", "EIO"),
            T::ResumeFails => ("end_recovery", "EIO"),
        };
        Some(format!("{point}#{id}: {effect}"))
    }

    /// What its creator is told: the error's kind.
    fn created(self) -> Option<ErrorKind> {
        match self {
            T::AddFails => Some(ErrorKind::Permission),
            T::ParamsFail => Some(ErrorKind::Invalid),
            T::OpenFails => Some(ErrorKind::NotFound),
            T::ReadyFails | T::StartFails | T::NodeFails => Some(ErrorKind::Io),
            T::StartPanics => Some(ErrorKind::Panicked),
            T::AddHangs | T::StartHangs => Some(ErrorKind::Wedged),
            _ => None,
        }
    }

    /// Where it rests once its start is over, and a queue of it has broken if it is to.
    fn rests(self) -> DeviceState {
        match self {
            T::AddHangs => DeviceState::Wedged,
            T::QueuePanics | T::QueueFails => DeviceState::Failed,
            _ if self.created().is_some() => DeviceState::Failed,
            _ => DeviceState::Live,
        }
    }

    /// How it ends when it is deleted, and where it rests then; `Gone` is forgotten.
    fn ends(self) -> (OutcomeKind, DeviceState) {
        match self {
            T::None | T::QuiesceIsLate | T::QuiesceFails | T::RecoveryFails | T::ResumeFails => {
                (OutcomeKind::Deleted, DeviceState::Gone)
            }
            T::AddHangs | T::StopHangs | T::DeleteHangs | T::InfoHangs => {
                (OutcomeKind::Wedged, DeviceState::Wedged)
            }
            T::JoinHangs | T::DeleteFails | T::CloseHangs => {
                (OutcomeKind::TimedOut, DeviceState::Left)
            }
            T::DeletePanics => (OutcomeKind::Panicked, DeviceState::Left),
            T::StartPanics | T::QueuePanics | T::StopPanics => {
                (OutcomeKind::Panicked, DeviceState::Gone)
            }
            _ => (OutcomeKind::Failed, DeviceState::Gone),
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Create(u8, Trouble),
    Delete(u8),
    List,
    Hold(u8),
    LetGo(u8),
    Wait,
    DeleteUnheld(u8),
    Quiesce(u8),
    Resume(u8),
    Resize(u8),
}

fn trouble() -> impl Strategy<Value = Trouble> {
    // Half of all devices are well.
    prop_oneof![Just(T::None), proptest::sample::select(&T::ALL[1..])]
}

fn op() -> impl Strategy<Value = Op> {
    let device = || 0..5_u8;
    prop_oneof![
        4 => (device(), trouble()).prop_map(|(d, t)| Op::Create(d, t)),
        3 => device().prop_map(Op::Delete),
        1 => Just(Op::List),
        1 => device().prop_map(Op::Hold),
        1 => device().prop_map(Op::LetGo),
        1 => Just(Op::Wait),
        2 => device().prop_map(Op::DeleteUnheld),
        2 => device().prop_map(Op::Quiesce),
        2 => device().prop_map(Op::Resume),
        1 => device().prop_map(Op::Resize),
    ]
}

pub(crate) fn device(n: u8) -> DeviceName {
    name(&format!("d{n}"))
}

/// One device as the model has it.
struct Modelled {
    trouble: Trouble,
    state: DeviceState,
    id: DeviceId,
    held: Option<Hold>,
}

impl Modelled {
    /// Where a quiesce leads, and what its caller is told.
    fn quiesced(&self, new: bool) -> (DeviceState, Option<ErrorKind>) {
        use DeviceState::{Live, Quiesced, Stalled};
        match (self.state, self.trouble) {
            (Quiesced, _) => (Quiesced, None),
            (Live, _) if !new => (Live, Some(ErrorKind::Unsupported)),
            (Live, T::QuiesceFails) => (Live, Some(ErrorKind::Invalid)),
            (Live | Stalled, T::JoinHangs) => (Stalled, Some(ErrorKind::Timeout)),
            (Live | Stalled, T::CloseHangs) => (Stalled, Some(ErrorKind::Timeout)),
            (Live | Stalled, T::InfoHangs) => (Stalled, Some(ErrorKind::Wedged)),
            (Live, _) => (Quiesced, None),
            (other, _) => (other, Some(ErrorKind::Busy)),
        }
    }

    /// Where a resume leads, and what its caller is told.
    fn resumed(&self) -> (DeviceState, Option<ErrorKind>) {
        use DeviceState::{Live, Quiesced};
        match (self.state, self.trouble) {
            (Live, _) => (Live, None),
            (Quiesced, T::RecoveryFails | T::ResumeFails) => (Quiesced, Some(ErrorKind::Io)),
            (Quiesced, _) => (Live, None),
            (other, _) => (other, Some(ErrorKind::Busy)),
        }
    }

    /// What a delete, or the shutdown, must make of it.
    fn end(&self) -> (OutcomeKind, DeviceState) {
        let (kind, state) = match self.trouble {
            // Its STOP is behind it; only the number was missing.
            T::StopFails if self.state == DeviceState::Left => T::None.ends(),
            trouble => trouble.ends(),
        };
        match kind {
            // A holder keeps the number, if it comes to that.
            OutcomeKind::Deleted | OutcomeKind::Failed if self.held.is_some() => {
                (OutcomeKind::TimedOut, DeviceState::Left)
            }
            OutcomeKind::Panicked if self.held.is_some() => (kind, DeviceState::Left),
            _ => (kind, state),
        }
    }
}

struct Model {
    devices: BTreeMap<DeviceName, Modelled>,
    /// Whether the kernel can quiesce and resize, and stop a device only if nobody has it open.
    new: bool,
}

fn recoverable(name: &DeviceName, id: u32) -> DeviceSpec {
    let target = TargetSpec::Null { size: 1 << 20 };
    let builder = DeviceSpec::builder(name.clone(), target);
    builder.id(DeviceId(id)).recovery(true).build().unwrap()
}

impl Model {
    async fn apply(&mut self, house: &House, n: usize, op: &Op) {
        let House { handle, sim } = house;
        match op {
            Op::Create(d, trouble) => {
                let (device, id) = (device(*d), u32::try_from(n).unwrap());
                let created = handle.create(recoverable(&device, id)).await;
                let there = self.devices.get(&device);
                if there.is_some_and(|there| there.state != DeviceState::Failed) {
                    assert_eq!(created.unwrap_err().kind(), ErrorKind::Exists);
                    return;
                }
                assert_eq!(created.err().map(|e| e.kind()), trouble.created(), "{trouble:?}");
                // Long enough for a queue to break and its device to be taken down.
                settle().await;
                settle().await;
                let (id, held) = (DeviceId(id), None);
                let state = trouble.rests();
                self.devices.insert(device, Modelled { trouble: *trouble, state, id, held });
            }
            Op::Delete(d) => {
                let device = device(*d);
                let deleted = handle.delete(&device).await.unwrap();
                let Some(there) = self.devices.get_mut(&device) else {
                    assert!(matches!(deleted, DeleteOutcome::Absent), "{deleted:?}");
                    return;
                };
                let DeleteOutcome::Ended(outcome) = deleted else { panic!("{device} is gone") };
                let (kind, state) = there.end();
                assert_eq!(outcome.outcome, kind, "{outcome:?}");
                assert_eq!(outcome.left.is_empty(), state == DeviceState::Gone, "{outcome:?}");
                there.state = state;
                if state == DeviceState::Gone {
                    self.devices.remove(&device);
                }
            }
            Op::List => {
                let listed = handle.list().await.unwrap();
                let listed = listed.iter().map(|info| (&info.name, info.state));
                let modelled = self.devices.iter().map(|(name, device)| (name, device.state));
                assert_eq!(listed.collect::<Vec<_>>(), modelled.collect::<Vec<_>>());
            }
            Op::Hold(d) => {
                if let Some(device) = self.devices.get_mut(&device(*d))
                    && device.state == DeviceState::Live
                {
                    device.held = Some(sim.disk(device.id).unwrap().hold().unwrap());
                }
            }
            Op::LetGo(d) => {
                if let Some(device) = self.devices.get_mut(&device(*d)) {
                    device.held = None;
                }
                settle().await;
            }
            Op::Wait => tokio::time::sleep(Duration::from_secs(30)).await,
            Op::DeleteUnheld(d) => {
                let device = device(*d);
                let in_use = self
                    .devices
                    .get(&device)
                    .is_some_and(|there| there.held.is_some() && there.state.is_in_service());
                if !in_use {
                    return Box::pin(self.apply(house, n, &Op::Delete(*d))).await;
                }
                let options = DeleteOptions { busy: Some(BusyPolicy::Refuse), within: None };
                let refused = handle.delete_with(&device, options).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Busy);
            }
            Op::Quiesce(d) => {
                let quiesced = handle.quiesce(&device(*d), Duration::from_secs(1)).await;
                let quiesced = quiesced.err().map(|e| e.kind());
                let Some(there) = self.devices.get_mut(&device(*d)) else {
                    return assert_eq!(quiesced, Some(ErrorKind::NotFound));
                };
                let (state, told) = there.quiesced(self.new);
                assert_eq!(quiesced, told, "{:?}", there.trouble);
                there.state = state;
            }
            Op::Resume(d) => {
                let resumed = handle.resume(&device(*d)).await.err().map(|e| e.kind());
                let Some(there) = self.devices.get_mut(&device(*d)) else {
                    return assert_eq!(resumed, Some(ErrorKind::NotFound));
                };
                let (state, told) = there.resumed();
                assert_eq!(resumed, told, "{:?}", there.trouble);
                there.state = state;
            }
            Op::Resize(d) => {
                let resized = handle.resize(&device(*d), 2 << 20, false).await;
                let told = match self.devices.get(&device(*d)) {
                    None => Some(ErrorKind::NotFound),
                    Some(there) if there.state != DeviceState::Live => Some(ErrorKind::Busy),
                    Some(_) => (!self.new).then_some(ErrorKind::Unsupported),
                };
                assert_eq!(resized.err().map(|e| e.kind()), told);
            }
        }
    }

    fn check(&self, report: &ShutdownReport) {
        let told = report.devices.iter().map(|device| (&device.name, device.outcome));
        let modelled = self.devices.iter().map(|(name, device)| (name, device.end().0));
        assert_eq!(told.collect::<Vec<_>>(), modelled.collect::<Vec<_>>());
        for (outcome, device) in report.devices.iter().zip(self.devices.values()) {
            assert_eq!(outcome.left.is_empty(), device.end().1 == DeviceState::Gone, "{outcome:?}");
        }
        let clean = self.devices.values().all(|device| device.end().1 == DeviceState::Gone);
        assert_eq!(report.is_clean(), clean);
    }
}

/// The fault plan of all creates.
fn plan(ops: &[Op]) -> String {
    let faults = (0..).zip(ops).filter_map(|(id, op)| match op {
        Op::Create(_, trouble) => trouble.fault(id),
        _ => None,
    });
    faults.collect::<Vec<_>>().join("; ")
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn every_answer_of_a_random_life_is_as_the_model_says(
        ops in proptest::collection::vec(op(), 1..25),
        workers in 1..5_usize,
        new in any::<bool>(),
    ) {
        let kernel = if new { KernelProfile::linux_7_3() } else { KernelProfile::linux_6_12() };
        let plan = Plan::faults(plan(&ops)).kernel(kernel).shape(move |b| b.workers(workers));
        plan.run(|house| async move {
            let mut model = Model { devices: BTreeMap::new(), new };
            for (n, op) in ops.iter().enumerate() {
                model.apply(&house, n, op).await;
            }
            let within = Duration::from_secs(120);
            let report = house.handle.shutdown(within).await.unwrap();
            prop_assert!(report.wall <= within);
            model.check(&report);
            model.devices.clear();
            settle().await;
            let left = house.sim.snapshot();
            let empty = left.devices.is_empty() && left.queue_threads == 0;
            prop_assert!(empty || !report.is_clean(), "{report:?}\n{left}");
            // Whoever asks again is told the same.
            let again = house.handle.shutdown(within).await.unwrap();
            prop_assert_eq!(format!("{again:?}"), format!("{report:?}"));
            Ok(())
        })?;
    }
}

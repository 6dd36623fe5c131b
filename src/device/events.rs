//! Every change of state, numbered and kept for a while, for any number of readers.
//!
//! ```text
//!   device actors ── push ──> ring of the last changes <── each reader looks, at its own pace
//! ```
//!
//! A reader keeps nothing but the number of what it wants next, so that one that is slow or silent
//! costs nothing and stops nobody: what has left the ring meanwhile is told as lost, by number.
//!
//! Invariants: numbers count up from 1 without a gap; a change is pushed in the same step in which
//! the state moves; nobody holds the lock while he waits or runs code of others.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;

use crate::model::{StateChange, StreamEvent};

/// The writer's end, of the supervisor's thread.
pub(crate) struct Events {
    reader: EventReader,
    /// The number of the next change; closed when the supervisor has ended.
    next: watch::Sender<u64>,
}

/// The readers' end.
#[derive(Clone)]
pub(crate) struct EventReader {
    kept: Arc<Mutex<VecDeque<Arc<StateChange>>>>,
    most: usize,
    next: watch::Receiver<u64>,
}

impl Events {
    /// Keeps the last `most` changes (at least 1).
    pub(crate) fn new(most: usize) -> Self {
        let (next, seen) = watch::channel(1);
        let reader = EventReader { kept: Arc::default(), most: most.max(1), next: seen };
        Self { reader, next }
    }

    pub(crate) fn push(&self, change: StateChange) {
        let mut kept = self.reader.lock();
        if kept.len() == self.reader.most {
            kept.pop_front();
        }
        kept.push_back(Arc::new(change));
        // Under the lock, so that number and ring always fit.
        self.next.send_modify(|next| *next += 1);
    }

    pub(crate) fn reader(&self) -> EventReader {
        self.reader.clone()
    }
}

impl EventReader {
    /// The changes from number `from` on, or from now on; ends when the supervisor has.
    ///
    /// A number that was not given out yet is one of another supervisor's: it is told as lost, and
    /// all that is kept follows.
    pub(crate) fn stream(&self, from: Option<u64>) -> BoxStream<'static, StreamEvent> {
        let (first, upcoming) = self.range(&self.lock());
        let (wanted, lost) = match from {
            None => (upcoming, None),
            Some(from) if from > upcoming => (first, Some(StreamEvent::Lost { from, to: from })),
            Some(from) => (from.max(1), None),
        };
        let reader = self.clone();
        let rest = stream::unfold((reader, wanted), |(mut reader, wanted)| async move {
            let event = reader.read(wanted).await?;
            let last = match &event {
                StreamEvent::Change(number, _) => *number,
                StreamEvent::Lost { to, .. } => *to,
            };
            Some((event, (reader, last + 1)))
        });
        stream::iter(lost).chain(rest).boxed()
    }

    /// The change of this number, or what of it and its successors is lost; none at the end.
    async fn read(&mut self, wanted: u64) -> Option<StreamEvent> {
        loop {
            // What comes after the look is seen by the wait.
            self.next.borrow_and_update();
            if let Some(event) = self.look(wanted) {
                return Some(event);
            }
            if self.next.changed().await.is_err() {
                return self.look(wanted);
            }
        }
    }

    fn look(&self, wanted: u64) -> Option<StreamEvent> {
        let kept = self.lock();
        let (first, _) = self.range(&kept);
        if wanted < first {
            return Some(StreamEvent::Lost { from: wanted, to: first - 1 });
        }
        let place = usize::try_from(wanted - first).ok()?;
        kept.get(place).map(|change| StreamEvent::Change(wanted, Arc::clone(change)))
    }

    /// The number of the first change that is kept, and of the next that comes.
    fn range(&self, kept: &VecDeque<Arc<StateChange>>) -> (u64, u64) {
        let next = *self.next.borrow();
        (next - kept.len() as u64, next)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<StateChange>>> {
        // Nothing that holds the lock can panic half way.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use crate::model::{DeviceId, DeviceName, DeviceState};

    /// A change that tells its own number.
    fn change(number: u32) -> StateChange {
        StateChange {
            at: SystemTime::UNIX_EPOCH,
            device: DeviceName::new("vol").expect("a name"),
            id: Some(DeviceId(number)),
            group: None,
            from: DeviceState::Live,
            to: DeviceState::Stopping,
            error: None,
        }
    }

    /// What is there to be read now: numbers, and how many were lost before each.
    fn drain(stream: &mut BoxStream<'static, StreamEvent>) -> (Vec<u64>, u64) {
        let (mut numbers, mut lost) = (Vec::new(), 0);
        while let Some(Some(event)) = stream.next().now_or_never() {
            match event {
                StreamEvent::Change(number, change) => {
                    assert_eq!(change.id, Some(DeviceId(number as u32)));
                    numbers.push(number);
                }
                StreamEvent::Lost { from, to } => lost += to - from + 1,
            }
        }
        (numbers, lost)
    }

    #[test]
    fn a_reader_resumes_where_it_left_and_ends_with_the_supervisor() {
        let events = Events::new(10);
        let reader = events.reader();
        let mut now = reader.stream(None);
        (1..=4).for_each(|n| events.push(change(n)));
        assert_eq!(drain(&mut now), (vec![1, 2, 3, 4], 0));
        assert_eq!(drain(&mut reader.stream(Some(3))), (vec![3, 4], 0));
        assert_eq!(drain(&mut reader.stream(Some(5))), (vec![], 0));
        events.push(change(5));
        drop(events);
        assert_eq!(
            now.next().now_or_never().flatten(),
            Some(StreamEvent::Change(5, Arc::new(change(5))))
        );
        assert_eq!(now.next().now_or_never(), Some(None), "it does not end");
    }

    #[test]
    fn a_number_of_another_supervisor_is_told_as_lost_and_all_follows() {
        let events = Events::new(2);
        (1..=3).for_each(|n| events.push(change(n)));
        let mut stream = events.reader().stream(Some(900));
        let first = stream.next().now_or_never().flatten();
        assert_eq!(first, Some(StreamEvent::Lost { from: 900, to: 900 }));
        assert_eq!(drain(&mut stream), (vec![2, 3], 0));
    }

    proptest! {
        #[test]
        fn each_change_is_told_once_and_in_order_or_told_as_lost(
            most in 1..8_usize,
            steps in proptest::collection::vec((0..12_u32, any::<bool>()), 0..30),
        ) {
            let events = Events::new(most);
            let mut stream = events.reader().stream(Some(1));
            let (mut pushed, mut told) = (0, 0);
            for (more, read) in steps {
                for _ in 0..more {
                    pushed += 1;
                    events.push(change(pushed));
                }
                if read {
                    let (numbers, lost) = drain(&mut stream);
                    let expected: Vec<u64> = (told + lost + 1..=u64::from(pushed)).collect();
                    prop_assert_eq!(&numbers, &expected);
                    let kept = u64::from(pushed) - told;
                    prop_assert_eq!(lost, kept.saturating_sub(most as u64));
                    told = u64::from(pushed);
                }
            }
        }
    }
}

//! What a supervisor has done since it started, in numbers, and how it is now: what metrics are
//! made of.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{
    DeviceInfo, DeviceOutcome, ErrorKind, IoStats, Latency, OutcomeKind, Stage, StageTimes,
};

/// Counts since the start; they only grow.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Operations that have ended, by kind and by how they ended.
    pub operations: BTreeMap<(Operation, &'static str), u64>,
    /// How long each stage of starts and teardowns took.
    pub stages: BTreeMap<Stage, Latency>,
    /// Operations that were refused before anything was done, by why.
    pub refusals: BTreeMap<ErrorKind, u64>,
    /// Control commands that the kernel never answered, by the stage that sent them.
    pub wedged: BTreeMap<Stage, u64>,
    /// I/O of devices that have ended.
    pub past_io: IoStats,
}

/// What is done to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A start, from its admission to service or failure.
    Create,
    /// A life that was in service, or was to be, has ended: asked for or not.
    End,
}

/// How much of something there is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// In use now.
    pub used: usize,
    /// There are.
    pub limit: usize,
}

/// A supervisor at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Every device, in the order of names.
    pub devices: Vec<DeviceInfo>,
    /// What was done so far.
    pub tally: Tally,
    /// Places for operations that wait.
    pub mailbox: Occupancy,
    /// Workers that run operations.
    pub workers: Occupancy,
}

impl Operation {
    /// The operation as one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::End => "end",
        }
    }
}

impl Tally {
    /// A start has gone well.
    pub fn created(&mut self, stages: &StageTimes) {
        self.count(Operation::Create, "ok");
        self.times(stages);
    }

    /// A start has failed. Its stages come with the end of the device.
    pub fn not_created(&mut self, kind: ErrorKind) {
        self.count(Operation::Create, kind.as_str());
    }

    /// A device has ended.
    pub fn ended(&mut self, outcome: &DeviceOutcome) {
        self.count(Operation::End, outcome.outcome.as_str());
        self.times(&outcome.stages);
        if outcome.outcome == OutcomeKind::Wedged
            && let Some(stage) = outcome.stage
        {
            *self.wedged.entry(stage).or_default() += 1;
        }
    }

    /// The queues of a device have ended, with this much I/O.
    pub fn past(&mut self, io: IoStats) {
        self.past_io = self.past_io.plus(io);
    }

    /// An operation was refused.
    pub fn refused(&mut self, kind: ErrorKind) {
        *self.refusals.entry(kind).or_default() += 1;
    }

    fn count(&mut self, operation: Operation, outcome: &'static str) {
        *self.operations.entry((operation, outcome)).or_default() += 1;
    }

    fn times(&mut self, stages: &StageTimes) {
        for (stage, time) in stages.iter() {
            self.stages.entry(stage).or_default().add(time);
        }
    }
}

impl Latency {
    /// Counts one time.
    pub fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.total_ns = self.total_ns.saturating_add(ns);
        self.buckets[Self::bucket(ns)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DeviceName, Error};

    #[test]
    fn a_life_is_counted_with_its_stages_and_its_end() -> Result<(), Error> {
        let mut stages = StageTimes::default();
        stages.push(Stage::Stop, Duration::from_millis(3));
        let mut tally = Tally::default();
        tally.created(&StageTimes::default());
        tally.not_created(ErrorKind::Io);
        tally.refused(ErrorKind::Exists);
        let name =
            DeviceName::new("a").map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
        for outcome in [OutcomeKind::Deleted, OutcomeKind::Wedged] {
            tally.ended(&DeviceOutcome {
                name: name.clone(),
                id: None,
                outcome,
                stage: Some(Stage::Stop),
                error: None,
                stages: stages.clone(),
                panics: Vec::new(),
                holders: Vec::new(),
                left: Vec::new(),
            });
        }
        let count = |operation, outcome| tally.operations.get(&(operation, outcome)).copied();
        assert_eq!(count(Operation::Create, "ok"), Some(1));
        assert_eq!(count(Operation::Create, "io"), Some(1));
        assert_eq!(count(Operation::End, "wedged"), Some(1));
        assert_eq!(tally.refusals.get(&ErrorKind::Exists), Some(&1));
        assert_eq!(tally.wedged, BTreeMap::from([(Stage::Stop, 1)]));
        let stop = tally.stages.get(&Stage::Stop).copied().unwrap_or_default();
        assert_eq!((stop.buckets.iter().sum::<u64>(), stop.total_ns), (2, 6_000_000));
        Ok(())
    }
}

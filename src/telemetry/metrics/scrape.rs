//! One scrape: what is known at the moment, and how it becomes series.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};

use super::definitions::ALL;
use crate::model::{DeviceInfo, DeviceState, IoStats, Latency, Occupancy, OpStats, Snapshot};
use crate::sys::census::Census;

/// Labels of one series.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

/// Every second bound of a [`Latency`] becomes a bucket: a factor of four apart, which keeps
/// thousands of histograms readable.
const THINNED: usize = 2;

/// What is known at the moment.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) snapshot: Snapshot,
    /// I/O of all devices, those that have ended too.
    pub(super) total: IoStats,
    pub(super) per_device_max: usize,
    pub(super) resident: u64,
    pub(super) census: Census,
    pub(super) panics: u64,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in ALL {
            let unit = metric.unit.as_ref();
            let described = encoder.encode_descriptor(metric.name, metric.help, unit, metric.kind);
            (metric.series)(self, &mut Out(described?))?;
        }
        Ok(())
    }
}

impl Scrape {
    /// Devices with series of their own.
    pub(super) fn shown(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.snapshot.devices.iter().take(self.per_device_max)
    }

    pub(super) fn states(&self, out: &mut Out<'_>) -> fmt::Result {
        let mut count: BTreeMap<_, u64> =
            DeviceState::ALL.iter().map(|state| (*state, 0)).collect();
        for device in &self.snapshot.devices {
            *count.entry(device.state).or_default() += 1;
        }
        count.iter().try_for_each(|(state, n)| out.gauge(&[("state", state.as_str())], *n))
    }

    pub(super) fn operations(&self, out: &mut Out<'_>) -> fmt::Result {
        self.snapshot.tally.operations.iter().try_for_each(|((operation, outcome), count)| {
            out.counter(&[("operation", operation.as_str()), ("outcome", outcome)], *count)
        })
    }

    /// One count of each kind of request, all devices together.
    pub(super) fn sum(&self, out: &mut Out<'_>, count: fn(&OpStats) -> u64) -> fmt::Result {
        self.total.ops().iter().try_for_each(|(op, stats)| out.counter(&[("op", op)], count(stats)))
    }

    /// Calls `write` for each kind of request that a device has had.
    pub(super) fn each(
        &self,
        mut write: impl FnMut(&Labels<'_>, &OpStats) -> fmt::Result,
    ) -> fmt::Result {
        for device in self.shown() {
            for (op, stats) in device.io.ops().into_iter().filter(|(_, op)| op.requests > 0) {
                write(&[("device", device.name.as_str()), ("op", op)], stats)?;
            }
        }
        Ok(())
    }
}

/// Where the series of one metric go.
pub(super) struct Out<'a>(MetricEncoder<'a>);

impl Out<'_> {
    pub(super) fn info(&mut self, labels: &Labels<'_>) -> fmt::Result {
        self.0.encode_info(&labels)
    }

    pub(super) fn gauge(&mut self, labels: &Labels<'_>, value: u64) -> fmt::Result {
        self.0.encode_family(&labels)?.encode_gauge(&value)
    }

    pub(super) fn counter(&mut self, labels: &Labels<'_>, value: u64) -> fmt::Result {
        self.0.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    pub(super) fn occupancy(&mut self, Occupancy { used, limit }: Occupancy) -> fmt::Result {
        self.gauge(&[("part", "used")], used as u64)?;
        self.gauge(&[("part", "limit")], limit as u64)
    }

    pub(super) fn histogram(&mut self, labels: &Labels<'_>, latency: &Latency) -> fmt::Result {
        let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(Latency::BUCKETS / THINNED + 1);
        let mut count = 0;
        let mut here = 0;
        for (bucket, n) in latency.buckets.iter().enumerate() {
            (count, here) = (count + n, here + n);
            let bound = Latency::bound(bucket).map_or(f64::INFINITY, |bound| bound.as_secs_f64());
            if bucket % THINNED == 0 || bound.is_infinite() {
                buckets.push((bound, std::mem::take(&mut here)));
            }
        }
        let sum = latency.total_ns as f64 / 1e9;
        let mut family = self.0.encode_family(&labels)?;
        family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

//! The end of all: stop is told to every device at once, the results are collected until the
//! deadline, and what has not ended then is reported with the stage it hangs in.

use std::rc::Rc;
use std::time::Duration;

use actix::{Context, Handler, ResponseFuture};
use futures::channel::oneshot;
use futures::future::{Either, select};
use futures::stream::{FuturesUnordered, StreamExt};
use slog::Logger;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::actor::{Supervisor, settled};
use super::messages::{Force, Shutdown};
use crate::device::{Body, Env, Stop};
use crate::model::{
    BusyPolicy, DeviceOutcome, DeviceState, Error, ErrorKind, OutcomeKind, ShutdownReport, Stage,
};

/// How long looking for holders may take when the deadline has passed.
const HOLDERS_BOUND: Duration = Duration::from_millis(500);

/// A device that was told to stop.
struct Stopping {
    body: Rc<Body>,
    ended: oneshot::Receiver<DeviceOutcome>,
}

impl Handler<Shutdown> for Supervisor {
    type Result = ResponseFuture<ShutdownReport>;

    fn handle(&mut self, Shutdown { within }: Shutdown, _: &mut Context<Self>) -> Self::Result {
        let report = match &self.shutdown {
            Some(report) => report.clone(),
            None => self.begin_shutdown(within),
        };
        Box::pin(reported(report))
    }
}

impl Handler<Force> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: Force, _: &mut Context<Self>) {
        // Without a shutdown under way it would be the next one's.
        if self.shutdown.is_some() {
            self.force.send_replace(true);
        }
    }
}

impl Supervisor {
    fn begin_shutdown(&mut self, within: Duration) -> watch::Receiver<Option<ShutdownReport>> {
        let start = Instant::now();
        slog::info!(self.log, "stopping {} devices", self.devices.len();
            "within_s" => within.as_secs_f64());
        // A device that runs out of time shall say so itself, with its holders, before the cut.
        let grace = (within / 10).min(Duration::from_secs(1));
        let stopping = self.devices.values().map(|entry| {
            let (reply, ended) = oneshot::channel();
            let deadline = Some(start + within - grace);
            let stop = Stop { permit: None, deadline, reply };
            // Nobody can refuse the end; holders are only given time to let go.
            match entry.body.spec() {
                spec if spec.busy() == BusyPolicy::Wait => {
                    entry.stop_at_last(stop, spec.busy_timeout().min(within / 2));
                }
                _ => entry.addr.do_send(stop),
            }
            Stopping { body: Rc::clone(&entry.body), ended }
        });
        let stopping: Vec<_> = stopping.collect();
        let (done, report) = watch::channel(None);
        let (env, force, log) = (Rc::clone(&self.env), self.force.subscribe(), self.log.clone());
        actix_rt::spawn(async move {
            let report = collect(stopping, start, within, force, &env, &log).await;
            done.send_replace(Some(report));
        });
        self.shutdown = Some(report.clone());
        report
    }
}

async fn reported(mut report: watch::Receiver<Option<ShutdownReport>>) -> ShutdownReport {
    match report.wait_for(Option::is_some).await.ok().and_then(|report| report.clone()) {
        Some(report) => report,
        // Only if the collector panicked; nothing is known of any device then.
        None => ShutdownReport::new(Vec::new(), Duration::ZERO, true),
    }
}

async fn collect(
    stopping: Vec<Stopping>,
    start: Instant,
    within: Duration,
    mut force: watch::Receiver<bool>,
    env: &Env,
    log: &Logger,
) -> ShutdownReport {
    let bodies: Vec<_> = stopping.iter().map(|s| Rc::clone(&s.body)).collect();
    let mut ends: FuturesUnordered<_> = stopping
        .into_iter()
        .map(|Stopping { body, ended }| async move { settled(&body, ended).await })
        .collect();
    let mut outcomes = Vec::with_capacity(bodies.len());
    let deadline = std::pin::pin!(sleep_until(start + within));
    let forced = std::pin::pin!(force.wait_for(|forced| *forced));
    let mut cut = select(deadline, forced);
    let forced = loop {
        match select(ends.next(), &mut cut).await {
            Either::Left((Some(outcome), _)) => outcomes.extend(outcome),
            Either::Left((None, _)) => break false,
            Either::Right((which, _)) => break matches!(which, Either::Right(_)),
        }
    };
    drop(ends);
    let known: std::collections::BTreeSet<_> =
        outcomes.iter().map(|o: &DeviceOutcome| o.name.clone()).collect();
    let late: Vec<_> = bodies.iter().filter(|b| !known.contains(b.name())).collect();
    let holders = if forced { Vec::new() } else { find_holders(&late, env).await };
    for (n, body) in late.into_iter().enumerate() {
        let mut outcome = unfinished(body, forced);
        outcome.holders = holders.get(n).cloned().unwrap_or_default();
        slog::error!(body.log.borrow(), "abandoned in stage {}", body.stage();
            "holders" => outcome.holders.join("; "));
        outcomes.push(outcome);
    }
    let report = ShutdownReport::new(outcomes, start.elapsed(), forced);
    slog::info!(log, "stopped"; "devices" => report.devices.len(),
        "left" => report.left.len(), "wall_s" => report.wall.as_secs_f64());
    report
}

/// The holders of each device in `late`, for those that hang where a holder can be the reason.
async fn find_holders(late: &[&Rc<Body>], env: &Env) -> Vec<Vec<String>> {
    let scans = late.iter().map(|body| async {
        match body.id() {
            Some(id) if matches!(body.stage(), Stage::Stop | Stage::Delete | Stage::Release) => {
                timeout(HOLDERS_BOUND, env.driver.holders(id)).await.unwrap_or_default()
            }
            _ => Vec::new(),
        }
    });
    futures::future::join_all(scans).await
}

fn unfinished(body: &Body, forced: bool) -> DeviceOutcome {
    let stage = body.stage();
    let why = if forced { "the shutdown was forced" } else { "the deadline has passed" };
    let text = format!("{why} and this stage has not ended");
    let error = Error::new(ErrorKind::Timeout, text).at(stage).device(body.name());
    let error = body.id().into_iter().fold(error, Error::id);
    let kind = match body.state() {
        DeviceState::Wedged => OutcomeKind::Wedged,
        _ => OutcomeKind::TimedOut,
    };
    let mut outcome = body.outcome_now(kind, Some(error));
    outcome.left = body.remains();
    if outcome.left.is_empty() {
        outcome.left.push(format!("stage {stage} has not ended"));
    }
    outcome
}

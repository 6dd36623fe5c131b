//! What changes nothing: lists, descriptions, what the kernel can do, waiting for a state.

use std::rc::Rc;

use actix::{Context, Handler, MessageResult, ResponseFuture};
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::timeout;

use super::actor::Supervisor;
use super::messages::{AskFeatures, Describe, List, Measure, Ping, Wait};
use crate::driver::Features;
use crate::model::{
    Condition, DeviceInfo, DeviceName, DeviceState, Error, ErrorKind, KernelFeatures, Occupancy,
    Snapshot, StreamEvent,
};

impl Handler<List> for Supervisor {
    type Result = MessageResult<List>;

    fn handle(&mut self, _: List, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.devices.values().map(|entry| entry.body.info()).collect())
    }
}

impl Handler<Ping> for Supervisor {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Context<Self>) -> Self::Result {}
}

impl Handler<Measure> for Supervisor {
    type Result = MessageResult<Measure>;

    fn handle(&mut self, _: Measure, _: &mut Context<Self>) -> Self::Result {
        MessageResult(Snapshot {
            devices: self.devices.values().map(|entry| entry.body.info()).collect(),
            tally: self.env.tally.borrow().clone(),
            // The mailbox is in front of this actor: the handle knows it.
            mailbox: Occupancy::default(),
            workers: self.env.workers.occupancy(),
        })
    }
}

impl Handler<Describe> for Supervisor {
    type Result = ResponseFuture<Option<DeviceInfo>>;

    fn handle(&mut self, Describe(name): Describe, _: &mut Context<Self>) -> Self::Result {
        let body = self.devices.get(&name).map(|entry| Rc::clone(&entry.body));
        let env = Rc::clone(&self.env);
        Box::pin(async move {
            let body = body?;
            let holders = match body.info().id {
                Some(id) => env.driver.holders(id).await,
                None => Vec::new(),
            };
            Some(DeviceInfo { holders, ..body.info() })
        })
    }
}

impl Handler<AskFeatures> for Supervisor {
    type Result = ResponseFuture<KernelFeatures>;

    fn handle(&mut self, _: AskFeatures, _: &mut Context<Self>) -> Self::Result {
        let env = Rc::clone(&self.env);
        Box::pin(async move {
            let features = env.features().await;
            KernelFeatures {
                driver: env.driver.name(),
                bits: features.0,
                names: features.words(),
                resize: features.has(Features::UPDATE_SIZE),
                quiesce: features.has(Features::QUIESCE),
                try_stop: features.has(Features::SAFE_STOP_DEV),
            }
        })
    }
}

impl Handler<Wait> for Supervisor {
    type Result = ResponseFuture<Result<(), Error>>;

    fn handle(&mut self, wait: Wait, _: &mut Context<Self>) -> Self::Result {
        let Wait { name, condition, within } = wait;
        let entry = self.devices.get(&name);
        let mut watch = Watch {
            state: entry.map(|entry| entry.body.state()),
            error: entry.and_then(|entry| entry.body.error()).map(|error| error.to_string()),
            changes: self.env.events.reader().stream(None),
            name,
        };
        Box::pin(async move {
            timeout(within, watch.until(condition)).await.unwrap_or_else(|_| {
                let text = format!("it is {} and not as was waited for", watch.words());
                Err(Error::new(ErrorKind::Timeout, text).device(&watch.name).elapsed(within))
            })
        })
    }
}

/// What is known of one name, kept up to date by its changes.
struct Watch {
    name: DeviceName,
    state: Option<DeviceState>,
    error: Option<String>,
    changes: BoxStream<'static, StreamEvent>,
}

impl Watch {
    async fn until(&mut self, condition: Condition) -> Result<(), Error> {
        while !condition.is_met(self.state) {
            if condition.is_out_of_reach(self.state) {
                let why = self.error.as_deref().unwrap_or("see the log");
                let text = format!("it is {}: {why}", self.words());
                return Err(Error::new(ErrorKind::Io, text).device(&self.name));
            }
            let change = match self.changes.next().await {
                Some(StreamEvent::Change(_, change)) => change,
                Some(StreamEvent::Lost { .. }) => {
                    return Err(Error::new(ErrorKind::Overloaded, "too many changes at once")
                        .hint("wait again, or keep a longer history"));
                }
                None => return Err(Error::new(ErrorKind::Stopping, "the supervisor has ended")),
            };
            // The last word of a life that failed may come when the next one has begun.
            let late = change.from == DeviceState::Failed && self.state != Some(change.from);
            if change.device == self.name && !late {
                self.state = Some(change.to);
                self.error.clone_from(&change.error);
            }
        }
        Ok(())
    }

    fn words(&self) -> &'static str {
        self.state.map_or("not there", DeviceState::as_str)
    }
}

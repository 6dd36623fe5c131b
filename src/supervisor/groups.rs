//! Devices that come and go together.
//!
//! ```text
//!   CreateGroup ─> Ensure, all at once ─ one failed? ─> Delete those that were made ─> one error
//!   DeleteGroup ─> Delete, all at once ─ all answered ─> GroupReport
//! ```
//!
//! Both run on the supervisor's side: a caller that goes away leaves no half of a group behind.
//!
//! Invariants: a group that is being deleted gets no new devices; what was there before a create
//! that failed is there after it.

use std::collections::BTreeMap;

use actix::dev::ContextFutureSpawner;
use actix::{
    ActorFutureExt, Addr, AsyncContext, Context, Handler, MessageResult, ResponseFuture, WrapFuture,
};
use futures::channel::oneshot;
use futures::future::join_all;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::actor::Supervisor;
use super::admission::Admission;
use super::messages::{CreateGroup, Delete, DeleteGroup, Ensure, Groups};
use crate::model::{
    BusyPolicy, DeleteOptions, DeleteOutcome, DeviceName, DeviceSpec, Ensured, Error, ErrorKind,
    GroupInfo, GroupName, GroupReport,
};

/// Longest part of an error that tells of single devices.
const TOLD: usize = 8;

/// What a task needs to have devices made and unmade.
struct Site {
    supervisor: Addr<Supervisor>,
    admission: Admission,
}

impl Site {
    /// The permit that is there already, or one as soon as there is room.
    async fn permit(
        &self,
        first: Option<OwnedSemaphorePermit>,
    ) -> Result<OwnedSemaphorePermit, Error> {
        match first {
            Some(permit) => Ok(permit),
            None => self.admission.enter().await,
        }
    }

    async fn ensure(
        &self,
        spec: DeviceSpec,
        first: Option<OwnedSemaphorePermit>,
    ) -> Result<Ensured, Error> {
        let permit = self.permit(first).await?;
        self.supervisor.send(Ensure { spec, permit }).await.map_err(ended)?
    }

    async fn delete(
        &self,
        name: DeviceName,
        options: DeleteOptions,
        failed_only: bool,
        first: Option<OwnedSemaphorePermit>,
    ) -> Result<DeleteOutcome, Error> {
        let permit = self.permit(first).await?;
        self.supervisor.send(Delete { name, options, failed_only, permit }).await.map_err(ended)?
    }

    async fn create_all(
        &self,
        group: &GroupName,
        specs: Vec<DeviceSpec>,
        first: OwnedSemaphorePermit,
    ) -> Result<Vec<Ensured>, Error> {
        let (asked, mut first) = (specs.len(), Some(first));
        let made = specs.into_iter().map(|spec| {
            let (name, first) = (spec.name().clone(), first.take());
            async move { (name, self.ensure(spec, first).await) }
        });
        let (mut there, mut failed) = (Vec::new(), Vec::new());
        for (name, result) in join_all(made).await {
            match result {
                Ok(ensured) => there.push(ensured),
                Err(error) => failed.push((name, error)),
            }
        }
        if failed.is_empty() {
            return Ok(there);
        }
        let kind = failed.first().map_or(ErrorKind::Internal, |(_, error)| error.kind());
        let text = format!(
            "{} of {asked} devices of group {group} did not come up, so none is kept: {}",
            failed.len(),
            told(failed.iter().map(|(name, error)| format!("{name}: {error}")))
        );
        let error = Error::new(kind, text);
        match self.undo(there, failed).await {
            Some(undoing) => Err(error.rollback(undoing)),
            None => Err(error),
        }
    }

    /// Takes down what was made, and what is listed as failed; says what is left, if anything is.
    async fn undo(&self, there: Vec<Ensured>, failed: Vec<(DeviceName, Error)>) -> Option<Error> {
        let made = there.into_iter().filter_map(|ensured| match ensured {
            Ensured::Created(outcome) => Some((outcome.name, false)),
            Ensured::AlreadySo(_) => None,
        });
        // A name that was refused, since it is another device's, is not ours to delete.
        let failed = failed.into_iter().map(|(name, _)| (name, true));
        let options = DeleteOptions { busy: Some(BusyPolicy::Stop), within: None };
        let undone = made.chain(failed).map(|(name, failed_only)| async move {
            let left = match self.delete(name.clone(), options, failed_only, None).await {
                Ok(DeleteOutcome::Ended(outcome)) => outcome.left,
                Ok(DeleteOutcome::Absent) => Vec::new(),
                Err(error) => vec![error.to_string()],
            };
            left.into_iter().map(move |what| format!("{name}: {what}")).collect::<Vec<_>>()
        });
        let left = join_all(undone).await.concat();
        let text = told(left.iter().cloned());
        (!left.is_empty()).then(|| Error::new(ErrorKind::Timeout, format!("left: {text}")))
    }
}

impl Handler<CreateGroup> for Supervisor {
    type Result = ResponseFuture<Result<Vec<Ensured>, Error>>;

    fn handle(&mut self, create: CreateGroup, ctx: &mut Context<Self>) -> Self::Result {
        let CreateGroup { group, specs, permit } = create;
        if let Some(other) = specs.iter().find(|spec| spec.group().is_some_and(|g| *g != group)) {
            let text = format!("it is to be in another group than {group}");
            let error = Error::new(ErrorKind::Invalid, text).device(other.name());
            return Box::pin(async move { Err(error) });
        }
        let specs = specs.into_iter().map(|spec| spec.in_group(group.clone())).collect();
        let site = self.site(ctx);
        let (answer, answered) = oneshot::channel();
        actix_rt::spawn(async move {
            // A caller that went away does not want to know.
            let _ = answer.send(site.create_all(&group, specs, permit).await);
        });
        Box::pin(async move { answered.await.unwrap_or_else(|gone| Err(ended(gone))) })
    }
}

impl Handler<DeleteGroup> for Supervisor {
    type Result = ResponseFuture<GroupReport>;

    fn handle(&mut self, delete: DeleteGroup, ctx: &mut Context<Self>) -> Self::Result {
        let DeleteGroup { group, options, permit } = delete;
        let began = Instant::now();
        let names: Vec<_> = self.members(&group).collect();
        // Only the first delete of a group opens it again.
        let opens = self.ending.insert(group.clone());
        let (site, mut first) = (self.site(ctx), Some(permit));
        let (answer, answered) = oneshot::channel();
        let (name, asked) = (group.clone(), group.clone());
        async move {
            let ends = names.into_iter().map(|name| {
                let (first, site) = (first.take(), &site);
                async move { (name.clone(), site.delete(name, options, false, first).await) }
            });
            let (mut devices, mut refused) = (Vec::new(), BTreeMap::new());
            for (name, end) in join_all(ends).await {
                match end {
                    Ok(DeleteOutcome::Ended(outcome)) => devices.push(*outcome),
                    Ok(DeleteOutcome::Absent) => {}
                    Err(error) => drop(refused.insert(name, error)),
                }
            }
            GroupReport::new(group, devices, refused, began.elapsed())
        }
        .into_actor(self)
        .map(move |report, supervisor, _| {
            if opens {
                supervisor.ending.remove(&name);
            }
            // A caller that went away does not want to know.
            let _ = answer.send(report);
        })
        .spawn(ctx);
        Box::pin(async move {
            let nothing = |_| GroupReport::new(asked, Vec::new(), BTreeMap::new(), began.elapsed());
            answered.await.unwrap_or_else(nothing)
        })
    }
}

impl Handler<Groups> for Supervisor {
    type Result = MessageResult<Groups>;

    fn handle(&mut self, _: Groups, _: &mut Context<Self>) -> Self::Result {
        let mut groups: BTreeMap<GroupName, GroupInfo> = BTreeMap::new();
        for entry in self.devices.values() {
            let Some(name) = entry.body.spec().group().cloned() else { continue };
            let states = BTreeMap::new();
            let info = groups.entry(name.clone()).or_insert(GroupInfo { name, devices: 0, states });
            info.devices += 1;
            *info.states.entry(entry.body.state()).or_default() += 1;
        }
        MessageResult(groups.into_values().collect())
    }
}

impl Supervisor {
    fn site(&self, ctx: &Context<Self>) -> Site {
        Site { supervisor: ctx.address(), admission: self.admission.clone() }
    }

    fn members(&self, group: &GroupName) -> impl Iterator<Item = DeviceName> {
        let of_group = |spec: &DeviceSpec| spec.group() == Some(group);
        let all = self.devices.values().filter(move |entry| of_group(&entry.body.spec()));
        all.map(|entry| entry.body.name().clone())
    }
}

/// The first few of many lines as one.
fn told(lines: impl ExactSizeIterator<Item = String>) -> String {
    let more = lines.len().saturating_sub(TOLD);
    let mut told: Vec<_> = lines.take(TOLD).collect();
    if more > 0 {
        told.push(format!("and {more} more"));
    }
    told.join("; ")
}

fn ended<E>(_: E) -> Error {
    Error::new(ErrorKind::Stopping, "the supervisor has ended")
}

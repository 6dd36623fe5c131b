//! Makes the faults of a plan happen around any driver, the real one included.
//!
//! ```text
//!   Faulty ── execute, open, node_ready ──> strike? delay, errno, panic, hang, short : inner
//!     └── FaultyChar ── serve ──> FaultyQueues: ready, join, and a blow while it is live
//! ```
//!
//! It also counts the commands in flight, since it sees those too that never reach the kernel.
//!
//! Invariants: without a fault it changes nothing but that it opens a busy char device again for
//! [`OPEN_PATIENCE`]; a command that is delayed goes on when its caller gives up; a char device
//! that a fault keeps open is kept until the driver itself is dropped.

use std::rc::Rc;
use std::time::Duration;

use futures::future::{LocalBoxFuture, pending};
use nix::libc;
use tokio::time::{Instant, sleep};

use super::plan::{Effect, FaultPlan, Point};
use super::queues::FaultyChar;
use super::strike::{Flight, InFlight, Strike, Strikes, shorten};
use crate::driver::sim::work::pause;
use crate::driver::{CharDevice, Command, Driver, Reply};
use crate::model::{DeviceId, Error};

/// How long a busy char device is opened again (udev has it open for moments, fault F23).
pub const OPEN_PATIENCE: Duration = Duration::from_secs(2);

/// A driver around another one that makes the faults of a plan happen.
pub struct Faulty {
    inner: Rc<dyn Driver>,
    plan: Rc<Strikes>,
}

impl Faulty {
    /// `inner` with the faults of `plan`.
    #[must_use]
    pub fn new(inner: Rc<dyn Driver>, plan: FaultPlan) -> Self {
        Self { inner, plan: Rc::new(Strikes::new(plan)) }
    }

    /// Control commands in flight, those that hang included.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        self.plan.in_flight()
    }

    /// Queue threads that never end because of the plan, once all else of them has ended.
    #[must_use]
    pub fn stuck_threads(&self) -> usize {
        self.plan.stuck.get()
    }
}

impl Driver for Faulty {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn execute(&self, command: Command) -> LocalBoxFuture<'static, Result<Reply, Error>> {
        let (plan, name, device) = (Rc::clone(&self.plan), command.name(), command.device());
        let Strike { delay, effect } = plan.strike(Point::of(&command), device);
        let flight = Flight::start(&plan);
        match effect {
            Some(Effect::Panic) => Box::pin(async move {
                let _flight = flight;
                pause(delay).await;
                panic!("the fault plan makes {name} panic")
            }),
            Some(Effect::Hang) => {
                // In flight for ever, whoever gives up on it.
                self.plan.work.run(async move {
                    let _flight = flight;
                    pending().await
                })
            }
            Some(Effect::Errno(errno)) => self.plan.work.run(async move {
                let _flight = flight;
                pause(delay).await;
                let error = Error::from_errno(errno, "the fault plan refuses it").command(name);
                Err(match device {
                    Some(id) => error.id(id),
                    None => error,
                })
            }),
            Some(Effect::Short) | None => {
                let started = match &command {
                    Command::Start(id) => Some(*id),
                    _ => None,
                };
                let command = if effect.is_some() { shorten(command) } else { command };
                let inner = Rc::clone(&self.inner);
                // At once if it can be: commands are sent in the order they are given.
                let sent = delay.is_zero().then(|| inner.execute(command.clone()));
                self.plan.work.run(async move {
                    let _flight = flight;
                    let answer = match sent {
                        Some(answer) => answer.await,
                        None => {
                            pause(delay).await;
                            inner.execute(command).await
                        }
                    };
                    if let (Some(id), Ok(_)) = (started, &answer) {
                        plan.live(id);
                    }
                    answer
                })
            }
        }
    }

    fn open(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<Box<dyn CharDevice>, Error>> {
        let (inner, plan) = (Rc::clone(&self.inner), Rc::clone(&self.plan));
        Box::pin(async move {
            let deadline = Instant::now() + OPEN_PATIENCE;
            let mut wait = Duration::from_millis(1);
            loop {
                let refused = match plan.strike(Point::Open, Some(id)).befall("open", id).await {
                    Ok(()) => match inner.open(id).await {
                        Ok(inner) => {
                            return Ok(Box::new(FaultyChar::new(inner, id, plan)) as Box<_>);
                        }
                        Err(error) => error,
                    },
                    Err(error) => error,
                };
                if refused.errno() != Some(libc::EBUSY) || Instant::now() + wait > deadline {
                    return Err(refused);
                }
                sleep(wait).await;
                wait = (wait * 2).min(Duration::from_millis(100));
            }
        })
    }

    fn list(&self) -> Result<Vec<DeviceId>, Error> {
        self.inner.list()
    }

    fn node_ready(&self, id: DeviceId) -> LocalBoxFuture<'static, Result<(), Error>> {
        let (inner, plan) = (Rc::clone(&self.inner), Rc::clone(&self.plan));
        Box::pin(async move {
            plan.strike(Point::Node, Some(id)).befall("node", id).await?;
            inner.node_ready(id).await
        })
    }

    fn set_read_only(&self, id: DeviceId, on: bool) -> LocalBoxFuture<'static, Result<(), Error>> {
        self.inner.set_read_only(id, on)
    }

    fn holders(&self, id: DeviceId) -> LocalBoxFuture<'static, Vec<String>> {
        self.inner.holders(id)
    }
}

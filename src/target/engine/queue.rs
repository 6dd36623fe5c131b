//! The loop of one queue: completions in, futures polled, answers committed, one system call a
//! round.
//!
//! ```text
//!      ┌─> enter ─> reap, at most ROUND ─> woken tasks, the port ─> stop asked? ─┐
//!      └─────────────────────────────────────────────────────────────────────────┘
//!   a tag:  fetched ── arrived ──> in service ── answered, buffer free ──> committed = fetched
//!                  └─ gone
//!   a queue: Serving ── stop ──> Draining ── all gone ──> Ending ── futures ended ──> Stopped
//!                                    └── drain time is over ──> Abandoned
//! ```
//!
//! Invariants: whatever happens to the target, each request is answered; a stop is seen after at
//! most ROUND completions (fault F05); nothing is allocated a request.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use nix::libc;
use slog::{Logger, debug, warn};

use super::control::QueueControl;
use super::core::{Core, Turn};
use super::host::QueuePlan;
use super::meter::Meter;
use super::port::{Arrival, Port};
use super::tasks::Tasks;
use crate::model::{Error, PanicReport, QueueExitCause, Tag};
use crate::sys::arena::Buffer;
use crate::sys::ring::{Completion, Wait};
use crate::target::io::finished;
use crate::target::{Op, Request};

/// Completions handled before the queue looks whether it shall stop.
const ROUND: usize = 256;

/// A queue that was not asked for anything in this time gives its buffers' memory back.
const IDLE: Duration =
    if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(10) };

/// Drain time of a queue that never had a request, as after a start that failed: nothing can be
/// in flight, so this is only for tags that are on their way back.
const UNUSED_DRAIN: Duration = Duration::from_millis(20);

enum Phase {
    Serving,
    /// Asked to stop; tags are out.
    Draining(Instant),
    /// All tags are back; the futures end.
    Ending(Instant),
}

/// What the loop tells the queue's owner while it runs.
pub(super) enum Notice {
    /// The target panicked; requests get `EIO` from now on.
    Panicked(PanicReport),
    /// Every tag has come back without anybody having asked this queue to stop.
    TakenAway,
}

/// One queue, on its thread.
pub(super) struct Queue<P> {
    core: Rc<Core>,
    control: Arc<QueueControl>,
    // Before the port: futures that are dropped enter the ring, and what is queued on it may point to
    // memory of the port's.
    tasks: Tasks,
    port: P,
    meter: Meter,
    drain: Duration,
    /// The buffers are memory that an idle queue can do without.
    gives_back: bool,
    log: Logger,
    phase: Phase,
    /// Tags that have come back for good.
    gone: usize,
    /// The target panicked.
    broken: Option<PanicReport>,
    /// The port has more than a round took.
    port_has_more: bool,
    /// There was a request, ever.
    used: bool,
    /// There was one since the clock was started.
    active: bool,
    clock_runs: bool,
}

impl<P: Port> Queue<P> {
    pub(super) fn new(
        core: Rc<Core>,
        control: Arc<QueueControl>,
        port: P,
        tasks: Tasks,
        plan: &QueuePlan,
        log: Logger,
    ) -> Self {
        let meter = Meter::new(&control, core.tags.len());
        // Without deferred work the kernel may fill a buffer at any moment, so that none can be
        // given back.
        let gives_back = core.ring.is_deferred() && !plan.registered;
        Self {
            core,
            control,
            port,
            tasks,
            meter,
            drain: plan.drain,
            gives_back,
            log,
            phase: Phase::Serving,
            gone: 0,
            broken: None,
            port_has_more: false,
            used: false,
            active: false,
            clock_runs: false,
        }
    }

    /// Starts the futures and asks for a request for every tag. What is wrong with the very first
    /// commands shows here.
    ///
    /// # Errors
    /// What the port or the ring says; kind `Panicked` when the target panics.
    pub(super) fn start(&mut self, tell: &mut dyn FnMut(Notice)) -> Result<(), Error> {
        for tag in 0..self.core.tags.len() as u16 {
            // What ends at once shows at the tag's first request.
            let _: Poll<()> = self.tasks.poll(Tag(tag)).map_err(super::panicked)?;
        }
        self.port.fetch_all(&self.core.ring)?;
        self.core.ring.enter(Wait::No)?;
        self.round(tell).map(|_| ())
    }

    /// Serves until the end; gives its cause.
    ///
    /// # Errors
    /// When the driver or the ring fails.
    pub(super) fn run(&mut self, tell: &mut dyn FnMut(Notice)) -> Result<QueueExitCause, Error> {
        loop {
            let more = self.round(tell)?;
            let limit = match self.advance(tell) {
                Next::Exit(cause) => return Ok(cause),
                Next::Wait(limit) => limit,
            };
            let doorbell = &self.control.doorbell;
            if more || self.port_has_more || !doorbell.fall_asleep() {
                self.core.ring.enter(Wait::No)?;
            } else {
                let entered = self.core.ring.enter(limit);
                doorbell.awake();
                entered?;
            }
        }
    }

    /// Ends what is in flight: what is in service is answered with `EIO`. Nothing of the target
    /// is left afterwards, and nothing on the ring but operations that the kernel does not let
    /// go of within `limit`.
    pub(super) fn close(&mut self, limit: Duration) {
        self.tasks.drop_all();
        let core = Rc::clone(&self.core);
        let left = core.ring.cancel_all(limit);
        if left > 0 {
            warn!(self.log, "operations of the target never ended"; "operations" => left);
        }
        for (tag, cell) in core.tags.iter().enumerate() {
            let tag = Tag(tag as u16);
            if cell.turn.get() == Turn::Transfer {
                cell.turn.set(Turn::Arrived);
            }
            self.refuse_untaken(tag);
            self.try_commit(tag);
        }
        self.meter.round_over();
        self.port.flush(&self.core.ring);
        if let Err(error) = self.core.ring.enter(Wait::No) {
            debug!(self.log, "the last answers were not sent"; "error" => %error);
        }
        if self.gone == self.core.tags.len() {
            self.core.ring.unregister_file();
        }
    }

    /// Handles what is there, up to a bound; gives whether completions are left.
    fn round(&mut self, tell: &mut dyn FnMut(Notice)) -> Result<bool, Error> {
        let mut more = true;
        for _ in 0..ROUND {
            match self.core.ring.reap() {
                None => {
                    more = false;
                    break;
                }
                Some(Completion::Command(tag, result)) => self.arrived(tag, result, tell)?,
                Some(Completion::Moved(tag, result)) => self.moved(tag, result, tell),
                Some(Completion::Ready(task, waker)) => self.ready(Tag(task as u16), waker, tell),
                Some(Completion::Message(number, result, flags)) => {
                    self.port.message(&self.core.ring, number, result, flags)?;
                    self.take(tell)?;
                }
                Some(Completion::Woken) => {}
                Some(Completion::Clock) => self.tick(),
            }
        }
        self.woken(tell);
        if self.port_has_more {
            self.take(tell)?;
        }
        self.meter.round_over();
        self.port_has_more |= self.port.flush(&self.core.ring);
        Ok(more)
    }

    /// Polls the tasks that were woken from elsewhere.
    fn woken(&mut self, tell: &mut dyn FnMut(Notice)) {
        if !self.control.doorbell.is_rung() {
            return;
        }
        let control = Arc::clone(&self.control);
        control.doorbell.take(|task| {
            if task < self.core.tags.len() {
                self.poll(Tag(task as u16), tell);
            } else {
                self.port_has_more = true;
            }
        });
    }

    /// Takes what the port has beside completions of tags, up to a bound.
    fn take(&mut self, tell: &mut dyn FnMut(Notice)) -> Result<(), Error> {
        for _ in 0..ROUND {
            let Some((tag, result)) = self.port.take() else {
                self.port_has_more = false;
                return Ok(());
            };
            self.arrived(tag, result, tell)?;
        }
        self.port_has_more = true;
        Ok(())
    }

    /// Something has come for a tag.
    #[inline]
    fn arrived(
        &mut self,
        tag: Tag,
        result: i32,
        tell: &mut dyn FnMut(Notice),
    ) -> Result<(), Error> {
        let cell = self.core.tags.get(tag.index()).filter(|cell| cell.turn.get() == Turn::Driver);
        let Some(mut buffer) = cell.and_then(|cell| cell.buffer.take()) else {
            warn!(self.log, "the driver gave a tag that is in service"; "tag" => tag.0);
            return Ok(());
        };
        match self.port.arrived(tag, result, &mut buffer) {
            Arrival::Request(request) if request.data_len() <= buffer.capacity() => {
                if !self.active {
                    self.become_active();
                }
                if self.tasks.answers_at_once() {
                    match self.tasks.at_once(&request, buffer.reach(request.data_len())) {
                        Ok(Some(result)) => {
                            let result = request.answered(result);
                            self.meter.at_once(request, result);
                            self.commit(tag, buffer, result);
                            return Ok(());
                        }
                        Ok(None) => {}
                        Err(report) => self.ended(tag, Err(report), tell),
                    }
                }
                if self.tasks.transfers() && request.data_len() > 0 {
                    self.transfer(tag, request, buffer, tell);
                } else {
                    self.future(tag, request, buffer, tell);
                }
                Ok(())
            }
            other => self.unserved(tag, buffer, other),
        }
    }

    /// Gives a request to its tag's future.
    fn future(&mut self, tag: Tag, request: Request, buffer: Buffer, tell: &mut dyn FnMut(Notice)) {
        self.hand_over(tag, request, buffer, Turn::Arrived);
        self.poll(tag, tell);
    }

    /// Notes a request that is not answered yet, and whose turn it is.
    #[inline]
    fn hand_over(&mut self, tag: Tag, request: Request, buffer: Buffer, turn: Turn) {
        let cell = &self.core.tags[tag.index()];
        cell.buffer.set(Some(buffer));
        cell.request.set(request);
        cell.turn.set(turn);
        self.meter.arrived(tag);
    }

    /// Has the ring move the data of a request, if that is all there is to it.
    fn transfer(
        &mut self,
        tag: Tag,
        request: Request,
        mut buffer: Buffer,
        tell: &mut dyn FnMut(Notice),
    ) {
        match self.tasks.transfer(&request) {
            Ok(Some(transfer)) => {
                let (writes, len) = (request.op == Op::Write, request.data_len());
                self.core.ring.transfer(tag, writes, transfer, &mut buffer, len);
                return self.hand_over(tag, request, buffer, Turn::Transfer);
            }
            Ok(None) => {}
            Err(report) => {
                self.tasks.drop_all();
                self.ended(tag, Err(report), tell);
            }
        }
        self.future(tag, request, buffer, tell);
    }

    /// A transfer has ended. All of the data is the answer, and so is an error: it may be told only
    /// once (of a failed write-back, by the first sync after it). What moved less, or is to be tried
    /// again, the target sees to.
    fn moved(&mut self, tag: Tag, result: i32, tell: &mut dyn FnMut(Notice)) {
        let cell = &self.core.tags[tag.index()];
        let request = cell.request.get();
        let answer = match finished(result) {
            Some(Ok(moved)) if moved == request.data_len() => Ok(()),
            Some(Err(errno)) => Err(errno),
            Some(Ok(_)) | None => {
                cell.turn.set(Turn::Arrived);
                return self.poll(tag, tell);
            }
        };
        if let Some(buffer) = cell.buffer.take() {
            self.served(tag, request, buffer, request.answered(answer));
        }
    }

    /// What has come for a tag is nothing that the target could serve.
    #[cold]
    fn unserved(&mut self, tag: Tag, buffer: Buffer, arrival: Arrival) -> Result<(), Error> {
        let cell = &self.core.tags[tag.index()];
        match arrival {
            Arrival::Request(_) => self.commit(tag, buffer, -libc::EINVAL),
            Arrival::Refused(errno) => self.commit(tag, buffer, -errno),
            Arrival::Gone => {
                cell.buffer.set(Some(buffer));
                self.gone += 1;
                // Thousands of tags may need longer than an unused queue is given; as long as they
                // keep coming it is patient.
                if let Phase::Draining(end) = &mut self.phase {
                    *end = (*end).max(Instant::now() + UNUSED_DRAIN);
                }
            }
            Arrival::Failed(errno) => {
                cell.buffer.set(Some(buffer));
                let message = format!("the driver failed the command of tag {}", tag.0);
                return Err(Error::from_errno(errno, message));
            }
        }
        Ok(())
    }

    /// An operation of a task has ended.
    fn ready(&mut self, tag: Tag, waker: Option<Waker>, tell: &mut dyn FnMut(Notice)) {
        if let Some(waker) = waker
            && let Err(report) = self.tasks.wake(waker)
        {
            self.ended(tag, Err(report), tell);
        }
        // Its buffer may have been what an answer waited for: polling commits that as well.
        self.poll(tag, tell);
    }

    /// Polls a tag's future and commits whatever was answered by it.
    #[inline]
    fn poll(&mut self, tag: Tag, tell: &mut dyn FnMut(Notice)) {
        self.core.polled.set(Some(tag));
        let polled = self.tasks.poll(tag);
        self.core.polled.set(None);
        if !matches!(polled, Ok(Poll::Pending)) {
            self.ended(tag, polled, tell);
        }
        self.try_commit(tag);
        loop {
            let answered = self.core.answered.borrow_mut().pop();
            let Some(other) = answered else { break };
            self.try_commit(other);
        }
    }

    /// The future of a tag is no more, or that of none.
    #[cold]
    fn ended(
        &mut self,
        tag: Tag,
        polled: Result<Poll<()>, PanicReport>,
        tell: &mut dyn FnMut(Notice),
    ) {
        let Err(report) = polled else { return self.refuse_untaken(tag) };
        tell(Notice::Panicked(report.clone()));
        self.broken = Some(report);
        for tag in 0..self.core.tags.len() as u16 {
            self.refuse_untaken(Tag(tag));
        }
    }

    /// Answers a request that no future will ever take.
    fn refuse_untaken(&self, tag: Tag) {
        let cell = &self.core.tags[tag.index()];
        if cell.turn.get() == Turn::Arrived {
            self.core.answer(tag, cell.buffer.take(), -libc::EIO);
        }
    }

    /// Commits the answer of a tag, if it has one and the kernel has let go of the buffer.
    #[inline]
    fn try_commit(&mut self, tag: Tag) {
        let Some(cell) = self.core.tags.get(tag.index()) else { return };
        if cell.turn.get() != Turn::Answered {
            return;
        }
        match cell.buffer.take() {
            Some(buffer) if !buffer.is_busy() => {
                let (request, result) = (cell.request.get(), cell.result.get());
                self.served(tag, request, buffer, result);
            }
            buffer => cell.buffer.set(buffer),
        }
    }

    /// A request that was handed over is answered: its tag goes back to the driver.
    #[inline]
    fn served(&mut self, tag: Tag, request: Request, buffer: Buffer, result: i32) {
        self.core.tags[tag.index()].turn.set(Turn::Driver);
        self.meter.answered(tag, request, result);
        self.commit(tag, buffer, result);
    }

    #[inline(always)]
    fn commit(&mut self, tag: Tag, mut buffer: Buffer, result: i32) {
        self.port.commit(&self.core.ring, tag, result, &mut buffer);
        self.core.tags[tag.index()].buffer.set(Some(buffer));
    }

    /// Moves the queue's life on.
    fn advance(&mut self, tell: &mut dyn FnMut(Notice)) -> Next {
        let all = self.core.tags.len();
        if let Phase::Serving = self.phase {
            let stopped = self.control.is_stopped();
            if !stopped && self.gone < all {
                return Next::Wait(Wait::Forever);
            }
            if !stopped {
                tell(Notice::TakenAway);
            }
            let drain = if self.used { self.drain } else { self.drain.min(UNUSED_DRAIN) };
            self.phase = Phase::Draining(Instant::now() + drain);
        }
        if let Phase::Draining(end) = self.phase
            && self.gone == all
        {
            self.phase = Phase::Ending(end);
            self.core.ending.set(true);
            for tag in 0..all as u16 {
                self.poll(Tag(tag), tell);
            }
        }
        let (Phase::Draining(end) | Phase::Ending(end)) = self.phase else {
            return Next::Wait(Wait::Forever);
        };
        let left = end.saturating_duration_since(Instant::now());
        match self.phase {
            Phase::Ending(_) if self.tasks.running() == 0 || left.is_zero() => {
                Next::Exit(self.cause())
            }
            _ if left.is_zero() => Next::Exit(self.cause()),
            _ => Next::Wait(Wait::AtMost(left)),
        }
    }

    fn cause(&self) -> QueueExitCause {
        match (&self.broken, self.core.tags.len() - self.gone) {
            (Some(report), _) => QueueExitCause::Panicked(report.clone()),
            (None, 0) => QueueExitCause::Stopped,
            (None, out) => QueueExitCause::Abandoned(out as u16),
        }
    }

    /// The first request in a while.
    #[cold]
    fn become_active(&mut self) {
        self.used = true;
        self.active = true;
        if !self.clock_runs && self.gives_back {
            self.clock_runs = true;
            self.core.ring.start_clock(IDLE);
        }
    }

    /// The clock has run: an idle queue gives its memory back, and the clock stays off until the
    /// next request.
    fn tick(&mut self) {
        // A request whose data is in its buffer may have come without having been looked at.
        let quiet = self.core.ring.is_quiet()
            && self.core.tags.iter().all(|cell| cell.turn.get() == Turn::Driver);
        if std::mem::take(&mut self.active) || !quiet {
            self.core.ring.start_clock(IDLE);
            return;
        }
        self.clock_runs = false;
        for cell in &self.core.tags {
            if let Some(mut buffer) = cell.buffer.take() {
                buffer.give_back();
                cell.buffer.set(Some(buffer));
            }
        }
        debug!(self.log, "idle: the buffers' memory is given back");
    }
}

enum Next {
    Wait(Wait),
    Exit(QueueExitCause),
}

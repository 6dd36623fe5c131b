//! The fault plan: which call goes wrong, how, how often. A value with a text form.
//!
//! ```text
//!   plan    = fault { ";" fault }
//!   fault   = point [ "#" id ] [ "@" calls ] ":" action [ "x" times ]
//!   calls   = "*" | n | n "+" | n "-" m          which calls, counted from 1; all if left out
//!   action  = [ "delay" time ] [ effect ]        one of the two, or both
//!   effect  = "hang" | "panic" | "short" | an errno's name
//!
//!   stop@3: hang                 the third STOP_DEV never returns
//!   add@7+: EACCES               ADD_DEV fails from the seventh on
//!   start#5: delay 250ms         START_DEV of device 5 takes a quarter of a second longer
//!   open@*: EBUSY x3             the first three opens fail
//!   queue@5: delay 1s panic      a second after its start the fifth queue panics
//! ```
//!
//! Invariant: what [`fmt::Display`] writes, [`FromStr`] reads back as the same plan.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::driver::Command;
use crate::model::{DeviceId, errno_name};

/// Where a fault can strike: every control command, and the points between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// `GET_FEATURES`.
    Features,
    /// `ADD_DEV`; `#id` means the id that was asked for. Short: half the queues, half the depth.
    Add,
    /// `SET_PARAMS`.
    SetParams,
    /// `GET_PARAMS`.
    GetParams,
    /// `START_DEV`.
    Start,
    /// `STOP_DEV`.
    Stop,
    /// `TRY_STOP_DEV`.
    TryStop,
    /// `DEL_DEV`.
    Delete,
    /// `DEL_DEV_ASYNC`.
    DeleteAsync,
    /// `GET_DEV_INFO`.
    Info,
    /// `GET_QUEUE_AFFINITY`.
    Affinity,
    /// `UPDATE_SIZE`.
    UpdateSize,
    /// `QUIESCE_DEV`.
    Quiesce,
    /// `START_USER_RECOVERY`.
    StartRecovery,
    /// `END_USER_RECOVERY`.
    EndRecovery,
    /// Opening the char device.
    Open,
    /// Waiting for the block device's node.
    Node,
    /// Starting the queue threads.
    Serve,
    /// Fetching the tags. Short: one tag of each queue is left out.
    Ready,
    /// A queue while it is live; queues are counted in the order they were made.
    Queue,
    /// The end of the queue threads, counted in the order the devices were served. Hang: they are
    /// never joined, and keep the char device open.
    Join,
    /// Closing the char device: its reference stays.
    Close,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It fails with this errno.
    Errno(i32),
    /// Code panics.
    Panic,
    /// It never ends.
    Hang,
    /// It does less than it should.
    Short,
}

/// Which calls of a point, counted from 1: `first..=last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Calls {
    /// The first one that is meant.
    pub first: u32,
    /// The last one that is meant.
    pub last: u32,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Where it strikes.
    pub point: Point,
    /// Which device alone is meant; all if `None`.
    pub device: Option<DeviceId>,
    /// Which calls (of that device, if one is named).
    pub calls: Calls,
    /// How much longer it takes.
    pub delay: Duration,
    /// What goes wrong after the delay; nothing if `None`.
    pub effect: Option<Effect>,
    /// How often it strikes; without end if `None`.
    pub times: Option<u32>,
}

/// A list of faults; where several could strike, the first one does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultPlan(pub Vec<Fault>);

/// Why a text is no fault plan. Three lines: the problem, the text, a mark under the place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\n  {text}\n  {:column$}^", "")]
pub struct FaultPlanError {
    /// The whole text.
    pub text: String,
    /// Where, in characters from 0.
    pub column: usize,
    /// What is wrong there, and what is allowed.
    pub problem: String,
}

impl Point {
    /// Every point.
    pub const ALL: [Self; 22] = [
        Self::Features,
        Self::Add,
        Self::SetParams,
        Self::GetParams,
        Self::Start,
        Self::Stop,
        Self::TryStop,
        Self::Delete,
        Self::DeleteAsync,
        Self::Info,
        Self::Affinity,
        Self::UpdateSize,
        Self::Quiesce,
        Self::StartRecovery,
        Self::EndRecovery,
        Self::Open,
        Self::Node,
        Self::Serve,
        Self::Ready,
        Self::Queue,
        Self::Join,
        Self::Close,
    ];

    /// The point as one word, as in a plan.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Features => "features",
            Self::Add => "add",
            Self::SetParams => "set_params",
            Self::GetParams => "get_params",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::TryStop => "try_stop",
            Self::Delete => "del",
            Self::DeleteAsync => "del_async",
            Self::Info => "info",
            Self::Affinity => "affinity",
            Self::UpdateSize => "update_size",
            Self::Quiesce => "quiesce",
            Self::StartRecovery => "start_recovery",
            Self::EndRecovery => "end_recovery",
            Self::Open => "open",
            Self::Node => "node",
            Self::Serve => "serve",
            Self::Ready => "ready",
            Self::Queue => "queue",
            Self::Join => "join",
            Self::Close => "close",
        }
    }

    /// The point of a control command.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        match command {
            Command::Features => Self::Features,
            Command::Add(_) => Self::Add,
            Command::SetParams(..) => Self::SetParams,
            Command::GetParams(_) => Self::GetParams,
            Command::Start(_) => Self::Start,
            Command::Stop(_) => Self::Stop,
            Command::TryStop(_) => Self::TryStop,
            Command::Delete(_) => Self::Delete,
            Command::DeleteAsync(_) => Self::DeleteAsync,
            Command::Info(_) => Self::Info,
            Command::QueueAffinity(..) => Self::Affinity,
            Command::UpdateSize(..) => Self::UpdateSize,
            Command::Quiesce(..) => Self::Quiesce,
            Command::StartRecovery(_) => Self::StartRecovery,
            Command::EndRecovery(_) => Self::EndRecovery,
        }
    }

    /// Whether a delay can be made there.
    #[must_use]
    pub fn can_delay(self) -> bool {
        // Starting threads is not asynchronous.
        self != Self::Serve
    }

    /// Whether that can go wrong there.
    #[must_use]
    pub fn can(self, effect: Effect) -> bool {
        match effect {
            Effect::Errno(_) | Effect::Panic => !matches!(self, Self::Join | Self::Close),
            Effect::Hang => !matches!(self, Self::Serve | Self::Queue),
            Effect::Short => matches!(self, Self::Add | Self::Ready),
        }
    }

    /// What a plan may say there, for error texts.
    #[must_use]
    pub fn allowed(self) -> String {
        let effects = [
            (self.can_delay(), "delay TIME"),
            (self.can(Effect::Hang), "hang"),
            (self.can(Effect::Panic), "panic"),
            (self.can(Effect::Short), "short"),
            (self.can(Effect::Errno(1)), "an errno such as EBUSY"),
        ];
        effects.iter().filter(|e| e.0).map(|e| e.1).collect::<Vec<_>>().join(", ")
    }
}

impl Calls {
    /// Every call.
    pub const ALL: Self = Self { first: 1, last: u32::MAX };

    /// Whether call number `n` is meant.
    #[must_use]
    pub fn has(self, n: u32) -> bool {
        (self.first..=self.last).contains(&n)
    }
}

impl FaultPlan {
    /// No fault at all.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// This plan and then another, as for repeated flags.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => f.write_str(&errno_name(*errno)),
            Self::Panic => f.write_str("panic"),
            Self::Hang => f.write_str("hang"),
            Self::Short => f.write_str("short"),
        }
    }
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => f.write_str("*"),
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last: u32::MAX } => write!(f, "{first}+"),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.point.fmt(f)?;
        if let Some(id) = self.device {
            write!(f, "#{id}")?;
        }
        if self.calls != Calls::ALL {
            write!(f, "@{}", self.calls)?;
        }
        f.write_str(":")?;
        if !self.delay.is_zero() || self.effect.is_none() {
            write!(f, " delay {}", humantime::format_duration(self.delay))?;
        }
        if let Some(effect) = self.effect {
            write!(f, " {effect}")?;
        }
        match self.times {
            Some(times) => write!(f, " x{times}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&faults.join("; "))
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        super::text::parse(text)
    }
}

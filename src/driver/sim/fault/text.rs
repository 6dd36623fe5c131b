//! Reads the text form of a fault plan; the grammar is told in [`super::plan`].
//!
//! Invariant: every error says where in the text and what is allowed there.

use std::time::Duration;

use super::plan::{Calls, Effect, Fault, FaultPlan, FaultPlanError, Point};
use crate::model::{DeviceId, errno_name};

/// Linux has no errno above.
const LAST_ERRNO: i32 = 133;

type Parsed<T> = Result<T, FaultPlanError>;

pub(super) fn parse(text: &str) -> Parsed<FaultPlan> {
    let mut cursor = Cursor { text, at: 0 };
    let mut faults = Vec::new();
    loop {
        cursor.skip_blanks();
        if cursor.rest().is_empty() {
            return Ok(FaultPlan(faults));
        }
        if !cursor.take(";") {
            faults.push(fault(&mut cursor)?);
        }
    }
}

fn fault(cursor: &mut Cursor<'_>) -> Parsed<Fault> {
    let point = point(cursor)?;
    let device = match cursor.take("#") {
        true => Some(DeviceId(cursor.number("a device id")?)),
        false => None,
    };
    let calls = if cursor.take("@") { calls(cursor)? } else { Calls::ALL };
    cursor.skip_blanks();
    if !cursor.take(":") {
        return cursor.refuse("a \":\" is missing before the action");
    }
    let (mut delay, mut effect, mut times) = (None, None, None);
    loop {
        cursor.skip_blanks();
        if cursor.rest().is_empty() || cursor.rest().starts_with(';') {
            break;
        }
        let start = *cursor;
        let word = cursor.word();
        match word {
            "delay" if delay.is_none() && effect.is_none() && point.can_delay() => {
                delay = Some(time(cursor)?);
            }
            _ if times.is_none() && (delay.is_some() || effect.is_some()) && is_times(word) => {
                times = Some(start.after("x").number("how often")?);
            }
            _ => match effect_of(word) {
                Some(meant) if effect.is_none() && times.is_none() && point.can(meant) => {
                    effect = Some(meant);
                }
                _ => {
                    let allowed = point.allowed();
                    return start.refuse(format!(
                        "{word:?} cannot stand here; at {point} there may be {allowed}, then xN"
                    ));
                }
            },
        }
    }
    if delay.is_none() && effect.is_none() {
        return cursor.refuse(format!("an action is missing: {}", point.allowed()));
    }
    Ok(Fault { point, device, calls, delay: delay.unwrap_or_default(), effect, times })
}

fn point(cursor: &mut Cursor<'_>) -> Parsed<Point> {
    let start = *cursor;
    let word = cursor.word();
    Point::ALL.into_iter().find(|point| point.as_str() == word).map_or_else(
        || {
            let known: Vec<_> = Point::ALL.iter().map(|point| point.as_str()).collect();
            start.refuse(format!("{word:?} is no point; there are {}", known.join(", ")))
        },
        Ok,
    )
}

fn calls(cursor: &mut Cursor<'_>) -> Parsed<Calls> {
    if cursor.take("*") {
        return Ok(Calls::ALL);
    }
    let start = *cursor;
    let first = cursor.number("which call: N, N+, N-M or *")?;
    let last = match () {
        () if cursor.take("+") => u32::MAX,
        () if cursor.take("-") => cursor.number("the last call")?,
        () => first,
    };
    if first == 0 || last < first {
        return start.refuse("calls are counted from 1 upwards");
    }
    Ok(Calls { first, last })
}

fn time(cursor: &mut Cursor<'_>) -> Parsed<Duration> {
    let mut time = None;
    let start = cursor.skipped_blanks();
    // A time may have several parts: 1s 500ms.
    loop {
        let before = *cursor;
        cursor.skip_blanks();
        match humantime::parse_duration(cursor.word()) {
            Ok(part) => time = Some(time.unwrap_or(Duration::ZERO) + part),
            Err(_) => {
                *cursor = before;
                return time.map_or_else(|| start.refuse("a time is missing: 250ms, 2s"), Ok);
            }
        }
    }
}

fn effect_of(word: &str) -> Option<Effect> {
    match word {
        "hang" => Some(Effect::Hang),
        "panic" => Some(Effect::Panic),
        "short" => Some(Effect::Short),
        name => (1..=LAST_ERRNO).find(|errno| errno_name(*errno) == name).map(Effect::Errno),
    }
}

fn is_times(word: &str) -> bool {
    word.strip_prefix('x').is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()))
}

/// A place in the text.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    text: &'a str,
    /// In bytes.
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn skipped_blanks(mut self) -> Self {
        self.skip_blanks();
        self
    }

    fn take(&mut self, what: &str) -> bool {
        let found = self.rest().starts_with(what);
        if found {
            self.at += what.len();
        }
        found
    }

    fn after(mut self, what: &str) -> Self {
        self.take(what);
        self
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn word(&mut self) -> &'a str {
        self.take_while(|c| c.is_alphanumeric() || c == '_' || c == '.')
    }

    fn number(&mut self, what: &str) -> Parsed<u32> {
        let start = *self;
        let digits = self.take_while(|c| c.is_ascii_digit());
        digits.parse().or_else(|_| start.refuse(format!("a number is missing: {what}")))
    }

    fn refuse<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(FaultPlanError {
            text: self.text.to_owned(),
            column: self.text[..self.at].chars().count(),
            problem: problem.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_fault() -> impl Strategy<Value = Fault> {
        let effect = prop_oneof![
            Just(None),
            Just(Some(Effect::Hang)),
            Just(Some(Effect::Panic)),
            Just(Some(Effect::Short)),
            (1_i32..=40).prop_map(|errno| Some(Effect::Errno(errno))),
        ];
        let calls = (1_u32..20, prop_oneof![Just(u32::MAX), 20_u32..30, Just(0)]);
        let times = prop::option::of(1_u32..9);
        let device = prop::option::of(0_u32..99).prop_map(|id| id.map(DeviceId));
        let fields =
            (prop::sample::select(&Point::ALL[..]), device, calls, 0_u64..99_999, effect, times);
        fields.prop_filter_map("not possible there", |(point, device, calls, ms, effect, times)| {
            let possible = effect.is_none_or(|effect| point.can(effect));
            let delay = if point.can_delay() { Duration::from_millis(ms) } else { Duration::ZERO };
            let calls = Calls { first: calls.0, last: calls.1.max(calls.0) };
            let empty = effect.is_none() && delay.is_zero();
            (possible && !empty).then_some(Fault { point, device, calls, delay, effect, times })
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(faults in prop::collection::vec(any_fault(), 0..6)) {
            let plan = FaultPlan(faults);
            prop_assert_eq!(parse(&plan.to_string()), Ok(plan.clone()), "{}", plan);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[a-z@#:;x0-9+* A-Z-]{0,40}|\\PC{0,12}") {
            if let Err(error) = parse(&text) {
                prop_assert!(error.column <= text.chars().count());
            }
        }
    }

    #[test]
    fn the_forms_of_the_documentation_are_understood() {
        let plain = Fault {
            point: Point::Stop,
            device: None,
            calls: Calls { first: 3, last: 3 },
            delay: Duration::ZERO,
            effect: Some(Effect::Hang),
            times: None,
        };
        let later = Calls { first: 2, last: u32::MAX };
        let delay = Duration::from_millis(250);
        let busy = Some(Effect::Errno(nix::libc::EBUSY));
        let cases = [
            ("stop@3: hang", plain),
            (
                "start@2+:delay 250ms",
                Fault { point: Point::Start, calls: later, delay, effect: None, ..plain },
            ),
            (
                "open@*: EBUSY x3",
                Fault {
                    point: Point::Open,
                    calls: Calls::ALL,
                    effect: busy,
                    times: Some(3),
                    ..plain
                },
            ),
            (
                "queue#7@5: delay 250ms panic",
                Fault {
                    point: Point::Queue,
                    device: Some(DeviceId(7)),
                    calls: Calls { first: 5, last: 5 },
                    delay,
                    effect: Some(Effect::Panic),
                    ..plain
                },
            ),
        ];
        for (text, fault) in cases {
            assert_eq!(parse(text), Ok(FaultPlan(vec![fault])), "{text}");
        }
        let both = parse(" add: EACCES ;; del_async@2-4: hang; ").map(|plan| plan.0.len());
        assert_eq!(both, Ok(2));
    }

    #[test]
    fn errors_point_at_the_place_and_say_what_is_allowed() {
        let told: Vec<_> = [
            "stop@3: hnag",
            "stpo: hang",
            "stop hang",
            "stop@0: hang",
            "stop:",
            "add: EACCES; serve: delay 1s",
            "stop: delay soon",
            "join: EBUSY",
            "stop: hang panic",
            "open@: EBUSY",
        ]
        .iter()
        .map(|text| parse(text).map_or_else(|error| error.to_string(), |plan| plan.to_string()))
        .collect();
        insta::assert_snapshot!(told.join("\n"));
    }
}

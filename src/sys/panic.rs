//! Panics caught as values.
//!
//! ```text
//!   panic hook (the binary's) ── set_location ──> thread-local ── catch ──> PanicReport
//! ```
//!
//! Invariants: the library installs no hook; without one a report has no location. A location is
//! taken out with the panic it belongs to, on the thread it happened on.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use crate::model::PanicReport;

thread_local! {
    static LOCATION: Cell<Option<String>> = const { Cell::new(None) };
    /// Calls of [`catch`] that this thread is inside of.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
}

/// Notes where this thread panics (`file:line:column`); for a panic hook. Gives back the place of
/// an earlier panic that nobody has taken: this one happened while that one unwinds.
pub fn set_location(location: String) -> Option<String> {
    LOCATION.replace(Some(location))
}

/// Whether a panic of this thread is going to be caught by [`catch`], whose caller tells it.
#[must_use]
pub fn is_caught() -> bool {
    CATCHING.get() > 0
}

/// Takes the location out that was noted last on this thread.
#[must_use]
pub fn take_location() -> Option<String> {
    LOCATION.take()
}

/// A report of a panic of this thread, with its location if a hook noted one.
#[must_use]
pub fn report(payload: &(dyn Any + Send)) -> PanicReport {
    PanicReport { location: take_location(), ..PanicReport::from_payload(payload) }
}

/// Calls `f` and catches its panic.
///
/// Whatever `f` leaves half done is the caller's business: use it where that is thrown away.
///
/// # Errors
/// The panic.
#[inline]
pub fn catch<T>(f: impl FnOnce() -> T) -> Result<T, PanicReport> {
    CATCHING.set(CATCHING.get() + 1);
    let caught = catch_unwind(AssertUnwindSafe(f));
    CATCHING.set(CATCHING.get() - 1);
    caught.map_err(caught_payload)
}

/// The report of a panic that was caught.
#[cold]
fn caught_payload(payload: Box<dyn Any + Send>) -> PanicReport {
    let report = report(&*payload);
    // The payload's own drop may panic; it is worth no more than its memory then.
    if let Err(worse) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(worse);
        // The hook has told that one; its place is not the next one's.
        drop(take_location());
    }
    report
}

/// Polls `future` to its end and catches its panic, as [`catch`] does for a function.
///
/// # Errors
/// The panic.
pub async fn catch_future<T>(future: impl Future<Output = T>) -> Result<T, PanicReport> {
    let mut future = Some(Box::pin(future));
    let polled = poll_fn(|cx| {
        let polled = catch(|| match &mut future {
            Some(future) => future.as_mut().poll(cx),
            None => Poll::Pending,
        });
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(report) => Poll::Ready(Err(report)),
        }
    });
    let ended = polled.await;
    // What it holds may panic when it goes, and is a part of it.
    match (catch(|| drop(future.take())), ended) {
        (Err(report), Ok(_)) => Err(report),
        (_, ended) => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_is_caught_wherever_it_panics_and_in_its_drop() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in its drop");
            }
        }
        let run = |steps: u32, panics: bool| {
            let bomb = (steps == 3).then(|| Bomb);
            let future = async move {
                let _kept = bomb;
                for _ in 0..steps {
                    tokio::task::yield_now().await;
                    assert!(is_caught());
                }
                assert!(!panics, "at step {steps}");
                steps
            };
            futures::executor::block_on(catch_future(future))
        };
        assert_eq!(run(2, false), Ok(2));
        assert_eq!(run(2, true).expect_err("it panics").message, "at step 2");
        assert_eq!(run(3, false).expect_err("it panics").message, "in its drop");
        assert!(!is_caught());
    }

    #[test]
    fn a_panic_becomes_a_report_with_message_thread_and_place() {
        let caught = catch(|| {
            assert!(is_caught() && catch(is_caught) == Ok(true));
            set_location("x.rs:1:2".to_owned());
            panic!("sector {}", 42);
        });
        let report = caught.expect_err("it panics");
        assert_eq!(report.message, "sector 42");
        assert_eq!(report.location.as_deref(), Some("x.rs:1:2"));
        assert_eq!(Some(report.thread.as_str()), std::thread::current().name());
        assert!(!is_caught());
        assert_eq!(take_location(), None, "the place went with its panic");
    }

    #[test]
    fn a_payload_that_panics_in_its_drop_is_caught_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("and again");
            }
        }
        let caught = catch(|| std::panic::panic_any(Bomb));
        assert_eq!(caught.expect_err("it panics").message, "a panic without a text message");
    }
}

//! What errors say: device, step, errno by name; and what kind they are, for programs.

use std::time::Duration;

use nix::libc;
use ublkd::driver::sim::KernelProfile;
use ublkd::model::{DeleteOutcome, Error, ErrorKind, OutcomeKind};

use crate::support::{Plan, name, null, settle};

/// Every errno that is tried, and its kind.
const ERRNOS: [(i32, &str, ErrorKind); 7] = [
    (libc::EPERM, "EPERM", ErrorKind::Permission),
    (libc::EBUSY, "EBUSY", ErrorKind::Busy),
    (libc::ENOSPC, "ENOSPC", ErrorKind::Limit),
    (libc::EIO, "EIO", ErrorKind::Io),
    (libc::EINVAL, "EINVAL", ErrorKind::Invalid),
    (libc::ENODEV, "ENODEV", ErrorKind::NotFound),
    (libc::EOPNOTSUPP, "EOPNOTSUPP", ErrorKind::Unsupported),
];

fn check(error: &Error, step: &str, errno: (i32, &str, ErrorKind)) {
    let text = error.to_string();
    let (number, word, kind) = errno;
    assert_eq!((error.errno(), error.kind()), (Some(number), kind), "{text}");
    assert!(error.stage().is_some(), "{text}");
    for part in ["device vol", step, word] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // The errno comes with its meaning.
    let meaning = nix::errno::Errno::from_raw(number).desc();
    assert!(text.contains(meaning), "no {meaning:?} in {text}");
}

#[test]
fn f91_f92_what_keeps_a_device_from_starting_is_told_with_device_step_and_errno() {
    for (point, step) in [
        ("add", "add: ADD_DEV"),
        ("set_params", "configure: SET_PARAMS"),
        ("open", "attach: open"),
        ("serve", "serve: serve"),
        ("ready", "serve: "),
        ("start", "start: START_DEV"),
        ("node", "start: node"),
    ] {
        for errno in ERRNOS {
            Plan::faults(format!("{point}: {}", errno.1)).run(|house| async move {
                let error = house.handle.create(null("vol")).await.unwrap_err();
                check(&error, step, errno);
                // The same is known to whoever asks later, and in the report.
                let known = house.handle.describe(&name("vol")).await.unwrap().unwrap();
                assert_eq!(known.error, Some(error.to_string()));
                assert_eq!(Some(known.stage), error.stage());
                let report = house.handle.shutdown(Duration::from_secs(60)).await.unwrap();
                let told = report.devices[0].error.as_ref().unwrap();
                assert_eq!(told.to_string(), error.to_string());
                assert_eq!(report.devices[0].outcome, OutcomeKind::Failed);
            });
        }
    }
}

#[test]
fn f91_f92_what_goes_wrong_in_a_teardown_is_told_the_same_way() {
    let old = KernelProfile { delete_async: false, ..KernelProfile::linux_6_12() };
    for (point, step, kernel) in [
        ("stop", "stop: STOP_DEV", KernelProfile::linux_7_3()),
        ("del_async", "delete: DEL_DEV_ASYNC", KernelProfile::linux_7_3()),
        ("del", "delete: DEL_DEV", old),
    ] {
        for errno in ERRNOS {
            // No failures: somebody else removed it (F14), or the kernel is too old for the command
            // and there is another way.
            if errno.1 == "ENODEV" || (point, errno.1) == ("del_async", "EOPNOTSUPP") {
                continue;
            }
            let plan = Plan::faults(format!("{point}: {}", errno.1)).kernel(kernel.clone());
            plan.run(|house| async move {
                house.handle.create(null("vol")).await.unwrap();
                let deleted = house.handle.delete(&name("vol")).await.unwrap();
                let DeleteOutcome::Ended(outcome) = deleted else { panic!("it was there") };
                let error = outcome.error.as_ref().unwrap();
                check(error, step, errno);
                if !outcome.left.is_empty() {
                    let known = house.handle.describe(&name("vol")).await.unwrap().unwrap();
                    assert_eq!(known.error, Some(error.to_string()));
                }
                settle().await;
                let left = house.sim.snapshot();
                assert_eq!(left.is_empty(), outcome.left.is_empty(), "{point}: {left}");
            });
        }
    }
}

#[test]
fn f92_a_link_that_cannot_be_made_is_told_with_its_path_and_the_start_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().to_owned();
    Plan::default().shape(move |b| b.run_dir(run_dir)).run(|house| async move {
        house.handle.create(null("a")).await.unwrap();
        let links = dir.path().join("by-name");
        assert!(links.join("a").is_symlink());
        std::fs::remove_dir_all(&links).unwrap();
        let error = house.handle.create(null("vol")).await.unwrap_err();
        let errno = (libc::ENOENT, "ENOENT", ErrorKind::NotFound);
        check(&error, "link: cannot link", errno);
        assert!(error.to_string().contains(links.join("vol").to_str().unwrap()), "{error}");
        assert!(error.to_string().contains("supervisor.run_dir"), "{error}");
        settle().await;
        assert_eq!(house.sim.snapshot().devices.len(), 1, "{}", house.sim.snapshot());
        // A link that somebody else removed is no trouble.
        let report = house.handle.shutdown(Duration::from_secs(60)).await.unwrap();
        assert_eq!(report.outcomes[&OutcomeKind::Deleted], 1);
        assert!(report.is_clean(), "{report:?}");
    });
}

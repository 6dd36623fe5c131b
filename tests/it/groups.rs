//! Devices that come and go together: all or none, and a report that has each once.

use std::time::Duration;

use futures::join;
use ublkd::model::{
    BusyPolicy, DeleteOptions, DeviceSpec, DeviceState, Ensured, ErrorKind, GroupName, OutcomeKind,
};

use crate::support::{House, Plan, name, null, null_with_id, nulls, settle};

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn stop() -> DeleteOptions {
    DeleteOptions::default()
}

#[test]
fn a_group_comes_and_goes_together_and_leaves_the_others_alone() {
    Plan::default().run(|House { handle, sim }| async move {
        handle.create(null("other")).await.unwrap();
        let made = handle.create_group(&group("vm"), nulls(64)).await.unwrap();
        assert_eq!(made.len(), 64);
        let groups = handle.groups().await.unwrap();
        assert_eq!((groups.len(), groups[0].devices), (1, 64));
        assert_eq!(groups[0].states.get(&DeviceState::Live), Some(&64));
        // Once more is the same group, whole.
        let again = handle.create_group(&group("vm"), nulls(64)).await.unwrap();
        assert!(again.iter().all(|device| matches!(device, Ensured::AlreadySo(_))));

        let report = handle.delete_group(&group("vm"), stop()).await.unwrap();
        assert_eq!(report.devices.len(), 64);
        assert!(report.devices.iter().all(|device| device.outcome == OutcomeKind::Deleted));
        assert!(report.is_clean() && !report.is_absent());
        assert_eq!(handle.list().await.unwrap().len(), 1);
        assert!(handle.groups().await.unwrap().is_empty());
        assert!(handle.delete_group(&group("vm"), stop()).await.unwrap().is_absent());
        settle().await;
        assert_eq!(sim.snapshot().devices.len(), 1);
    });
}

#[test]
fn one_that_fails_takes_all_that_were_made_with_it_but_not_what_was_there() {
    Plan::faults("start#7: EIO").run(|House { handle, sim }| async move {
        handle.create(null("d1").in_group(group("vm"))).await.unwrap();
        let mut specs = nulls(5);
        specs.push(null_with_id("bad", 7));
        let error = handle.create_group(&group("vm"), specs).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let told = error.to_string();
        assert!(told.contains("1 of 6 devices of group vm") && told.contains("bad: "), "{told}");
        let list = handle.list().await.unwrap();
        assert_eq!(list.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["d1"]);
        assert_eq!(list[0].state, DeviceState::Live);
        settle().await;
        assert_eq!(sim.snapshot().devices.len(), 1);
    });
}

#[test]
fn a_name_that_is_another_devices_is_left_to_it() {
    Plan::default().run(|House { handle, .. }| async move {
        handle.create(null("taken")).await.unwrap();
        let error = handle.create_group(&group("vm"), vec![null("d0"), null("taken")]).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Exists);
        let list = handle.list().await.unwrap();
        assert_eq!(list.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["taken"]);
        assert_eq!(list[0].state, DeviceState::Live);
    });
}

#[test]
fn what_could_not_be_undone_is_in_the_error() {
    Plan::faults("start#7: EIO; join#3: hang").run(|House { handle, .. }| async move {
        let specs = vec![null_with_id("sticky", 3), null_with_id("bad", 7)];
        let error = handle.create_group(&group("vm"), specs).await.unwrap_err();
        let undoing = error.rollback_error().expect("something is left").to_string();
        assert!(undoing.contains("sticky: "), "{undoing}");
    });
}

#[test]
fn a_caller_that_goes_away_leaves_no_half_group() {
    Plan::faults("start#7: delay 50ms EIO").run(|House { handle, sim }| async move {
        let mut specs = nulls(5);
        specs.push(null_with_id("bad", 7));
        let vm = group("vm");
        let create = handle.create_group(&vm, specs);
        assert!(tokio::time::timeout(Duration::from_millis(20), create).await.is_err());
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(sim.snapshot().is_empty(), "{}", sim.snapshot());
    });
}

#[test]
fn a_device_that_cannot_go_does_not_stop_the_others_and_is_named() {
    Plan::faults("del_async#3: EIO").run(|House { handle, .. }| async move {
        let mut specs = nulls(3);
        specs.push(null_with_id("stuck", 3));
        handle.create_group(&group("vm"), specs).await.unwrap();
        let report = handle.delete_group(&group("vm"), stop()).await.unwrap();
        assert_eq!(report.devices.len(), 4);
        assert_eq!(report.left, ["stuck: id 3 (/dev/ublkc3)"]);
    });
}

#[test]
fn a_group_whose_members_are_held_reports_who_refused() {
    Plan::default().run(|House { handle, sim }| async move {
        handle.create_group(&group("vm"), nulls(3)).await.unwrap();
        let info = handle.describe(&name("d1")).await.unwrap().unwrap();
        let _hold = sim.disk(info.id.unwrap()).unwrap().hold().unwrap();
        let options = DeleteOptions { busy: Some(BusyPolicy::Refuse), within: None };
        let report = handle.delete_group(&group("vm"), options).await.unwrap();
        assert_eq!(report.devices.len(), 2);
        assert_eq!(report.refused[&name("d1")].kind(), ErrorKind::Busy);
        assert_eq!(report.left.len(), 1);
        assert_eq!(handle.list().await.unwrap().len(), 1);
    });
}

#[test]
fn nothing_starts_in_a_group_that_is_being_deleted() {
    Plan::default().run(|House { handle, .. }| async move {
        let vm = group("vm");
        handle.create_group(&vm, nulls(2)).await.unwrap();
        let late = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            handle.create(null("late").in_group(vm.clone())).await
        };
        let (report, late) = join!(handle.delete_group(&vm, stop()), late);
        assert_eq!(report.unwrap().devices.len(), 2);
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Busy);
        handle.create(null("late").in_group(vm.clone())).await.unwrap();
    });
}

#[test]
fn a_group_larger_than_the_mailbox_comes_and_goes() {
    let plan = Plan::default().shape(|b| b.mailbox(2).workers(1));
    plan.run(|House { handle, .. }| async move {
        handle.create_group(&group("vm"), nulls(20)).await.unwrap();
        let report = handle.delete_group(&group("vm"), stop()).await.unwrap();
        assert_eq!((report.devices.len(), report.refused.len()), (20, 0));
        assert_eq!(handle.waiting(), 0);
    });
}

#[test]
fn a_spec_of_another_group_is_refused() {
    Plan::default().run(|House { handle, .. }| async move {
        let other: DeviceSpec = null("d0").in_group(group("other"));
        let error = handle.create_group(&group("vm"), vec![other]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(handle.list().await.unwrap().is_empty());
    });
}

//! What a reload has to do: the difference between the devices there are and those there shall be.
//! Pure.
//!
//! Invariants: a device that the config did not make is in no plan; carrying a plan out makes the
//! config's devices those that are wanted, and touches none that is as wanted already.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::model::{
    DeviceInfo, DeviceName, DeviceSpec, DeviceState, Error, ErrorKind, Origin, TargetSpec,
};

/// A device that is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) spec: &'a DeviceSpec,
    pub(super) state: DeviceState,
}

impl<'a> From<&'a DeviceInfo> for Known<'a> {
    fn from(info: &'a DeviceInfo) -> Self {
        Self { spec: &info.spec, state: info.state }
    }
}

/// What a reload does to the devices; each is in it at most once.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Plan {
    /// No longer wanted.
    pub delete: Vec<DeviceName>,
    /// To be made anew, with what differs.
    pub replace: Vec<Replace>,
    /// To grow while in use.
    pub resize: Vec<Resize>,
    /// Not there yet.
    #[serde(serialize_with = "names")]
    pub create: Vec<DeviceSpec>,
    /// As wanted already.
    pub keep: Vec<DeviceName>,
}

/// A device that can only become what is wanted by being made anew.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replace {
    /// As it shall be.
    #[serde(rename = "name", serialize_with = "name")]
    pub spec: DeviceSpec,
    /// The keys in which it differs, or the state it is in.
    pub why: Vec<String>,
}

/// A device that grows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resize {
    /// Which one.
    pub name: DeviceName,
    /// Size now, in bytes.
    pub from: u64,
    /// Size wanted, in bytes.
    pub to: u64,
}

fn name<S: Serializer>(spec: &DeviceSpec, serializer: S) -> Result<S::Ok, S::Error> {
    spec.name().serialize(serializer)
}

fn names<S: Serializer>(specs: &[DeviceSpec], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(specs.iter().map(DeviceSpec::name))
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { delete, replace, resize, create, keep: _ } = self;
        delete.is_empty() && replace.is_empty() && resize.is_empty() && create.is_empty()
    }
}

/// The plan that makes the config's devices among `known` those of `wanted`.
///
/// # Errors
/// Kind [`ErrorKind::Exists`] when a name that is wanted belongs to devices that the config did not
/// make; it names them.
pub(super) fn plan(known: &[Known<'_>], wanted: &[DeviceSpec]) -> Result<Plan, Error> {
    // Of these only an error is left, whoever wanted them.
    let there = known.iter().filter(|device| {
        !matches!(device.state, DeviceState::Gone | DeviceState::Failed)
            || device.spec.origin() == Origin::Config
    });
    let there: BTreeMap<&DeviceName, Known<'_>> =
        there.map(|device| (device.spec.name(), *device)).collect();
    let mut plan = Plan::default();
    let mut clashes = Vec::new();
    for spec in wanted {
        match there.get(spec.name()) {
            None => plan.create.push(spec.clone()),
            Some(device) if device.spec.origin() != Origin::Config => {
                clashes.push(spec.name().to_string());
            }
            Some(device) => plan.settle(*device, spec),
        }
    }
    if !clashes.is_empty() {
        let text = format!(
            "devices with these names were not made by the config: {}; nothing was changed",
            clashes.join(", ")
        );
        let error = Error::new(ErrorKind::Exists, text);
        return Err(error.hint("delete them, or choose other names in the config"));
    }
    let wanted: std::collections::BTreeSet<_> = wanted.iter().map(DeviceSpec::name).collect();
    let unwanted = there
        .iter()
        .filter(|(name, device)| device.spec.origin() == Origin::Config && !wanted.contains(*name));
    plan.delete = unwanted.map(|(name, _)| (*name).clone()).collect();
    Ok(plan)
}

impl Plan {
    /// Puts a device of the config where it belongs.
    fn settle(&mut self, device: Known<'_>, wanted: &DeviceSpec) {
        use DeviceState as S;
        let differs = wanted.differences(device.spec);
        let replace = |why: Vec<String>| Replace { spec: wanted.clone(), why };
        match device.state {
            S::Gone | S::Failed => self.create.push(wanted.clone()),
            S::Cancelling | S::Stopping | S::Failing | S::Left | S::Wedged => {
                self.replace.push(replace(vec![format!("it is {}", device.state)]));
            }
            _ if differs.is_empty() => self.keep.push(wanted.name().clone()),
            state => match (size(device.spec), size(wanted)) {
                (Some(from), Some(to)) if differs == ["size"] && from < to && state == S::Live => {
                    self.resize.push(Resize { name: wanted.name().clone(), from, to });
                }
                _ => self.replace.push(replace(differs.iter().map(ToString::to_string).collect())),
            },
        }
    }
}

/// The size that a spec asks for, where it does.
fn size(spec: &DeviceSpec) -> Option<u64> {
    match spec.target() {
        TargetSpec::Null { size } | TargetSpec::Ram { size } => Some(*size),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::QueueSpec;

    fn spec(name: u8, ram: bool, blocks: u64, depth: u16, origin: Origin) -> DeviceSpec {
        let size = blocks << 20;
        let target = if ram { TargetSpec::Ram { size } } else { TargetSpec::Null { size } };
        let name = DeviceName::new(format!("d{name}")).expect("a name");
        let queues = QueueSpec { depth, ..QueueSpec::default() };
        DeviceSpec::builder(name, target).queues(queues).origin(origin).build().expect("a spec")
    }

    fn specs(origins: &'static [Origin]) -> impl Strategy<Value = Vec<DeviceSpec>> {
        let one = (any::<bool>(), 1u64..4, 1u16..3, proptest::sample::select(origins));
        proptest::collection::btree_map(0u8..8, one, 0..8).prop_map(|devices| {
            let make =
                |(name, (ram, blocks, depth, origin))| spec(name, ram, blocks, depth, origin);
            devices.into_iter().map(make).collect()
        })
    }

    /// What is there when `plan` was carried out, on devices of the config.
    fn carried_out(plan: &Plan, there: &[Known<'_>]) -> Vec<DeviceSpec> {
        let mut after: BTreeMap<DeviceName, DeviceSpec> =
            there.iter().map(|k| (k.spec.name().clone(), k.spec.clone())).collect();
        for name in &plan.delete {
            assert!(after.remove(name).is_some(), "{name} is not there");
        }
        for Resize { name, from, to } in &plan.resize {
            let old = after.get(name).expect("it is there");
            let target = match old.target() {
                TargetSpec::Ram { size } if size == from => TargetSpec::Ram { size: *to },
                TargetSpec::Null { size } if size == from => TargetSpec::Null { size: *to },
                other => panic!("{other:?} is not {from} large"),
            };
            assert!(from < to);
            let queues = old.queues();
            let new = DeviceSpec::builder(name.clone(), target).queues(queues).origin(old.origin());
            after.insert(name.clone(), new.build().expect("a spec"));
        }
        let made = plan.create.iter().chain(plan.replace.iter().map(|replace| &replace.spec));
        after.extend(made.map(|spec| (spec.name().clone(), spec.clone())));
        after.into_values().collect()
    }

    const ANY: &[Origin] = &[Origin::Config, Origin::Api, Origin::Embedded];
    const CONFIG: &[Origin] = &[Origin::Config];

    proptest! {
        #[test]
        fn a_plan_leads_to_what_is_wanted_and_touches_nothing_else(
            there in specs(ANY),
            states in proptest::collection::vec(proptest::sample::select(&DeviceState::ALL[..]), 8),
            wanted in specs(CONFIG),
        ) {
            let known: Vec<_> = there
                .iter()
                .zip(&states)
                .map(|(spec, state)| Known { spec, state: *state })
                .collect();
            let rests = |k: &Known<'_>| matches!(k.state, DeviceState::Gone | DeviceState::Failed);
            let (ours, others): (Vec<_>, Vec<_>) =
                known.iter().copied().partition(|k| k.spec.origin() == Origin::Config);
            let others: Vec<_> = others.into_iter().filter(|k| !rests(k)).collect();
            let clash = |spec: &&DeviceSpec| others.iter().any(|k| k.spec.name() == spec.name());
            match plan(&known, &wanted) {
                Err(error) => {
                    prop_assert_eq!(error.kind(), ErrorKind::Exists);
                    for name in wanted.iter().filter(clash).map(DeviceSpec::name) {
                        prop_assert!(error.to_string().contains(name.as_str()), "{error}");
                    }
                    prop_assert!(wanted.iter().any(|spec| clash(&spec)));
                }
                Ok(plan) => {
                    prop_assert!(!wanted.iter().any(|spec| clash(&spec)));
                    let after = carried_out(&plan, &ours);
                    prop_assert_eq!(after.len(), wanted.len());
                    for (after, wanted) in after.iter().zip(&wanted) {
                        prop_assert_eq!(after.name(), wanted.name());
                        prop_assert_eq!(wanted.differences(after), Vec::<&str>::new());
                    }
                    for name in &plan.keep {
                        let old = ours.iter().find(|k| k.spec.name() == name).expect("it is there");
                        let new = wanted.iter().find(|spec| spec.name() == name).expect("wanted");
                        prop_assert!(new.differences(old.spec).is_empty() && !rests(old));
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_as_wanted_is_kept_and_what_cannot_change_is_replaced() -> Result<(), Error> {
        let live = |spec| Known { spec, state: DeviceState::Live };
        let old = spec(1, true, 1, 64, Origin::Config);
        let settle = |wanted: &DeviceSpec| plan(&[live(&old)], std::slice::from_ref(wanted));
        assert!(settle(&old)?.is_empty());
        let grown = settle(&spec(1, true, 2, 64, Origin::Config))?;
        assert_eq!((grown.resize.len(), grown.replace.len()), (1, 0));
        let deeper = settle(&spec(1, true, 2, 32, Origin::Config))?;
        assert_eq!(deeper.replace[0].why, ["size", "depth"]);
        let big = spec(1, true, 2, 64, Origin::Config);
        let smaller = plan(&[live(&big)], std::slice::from_ref(&old))?;
        assert_eq!(smaller.replace[0].why, ["size"], "what is cut off is lost either way");
        let left =
            plan(&[Known { spec: &old, state: DeviceState::Left }], std::slice::from_ref(&old))?;
        assert_eq!(left.replace[0].why, ["it is left"]);
        Ok(())
    }
}

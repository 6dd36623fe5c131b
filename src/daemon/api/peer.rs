//! Who is on the other end of a connection, and whether they may ask.

use std::collections::BTreeSet;

use nix::unistd::{Group, Uid, User};

use crate::model::{Error, ErrorKind};

/// The other end of a connection, as the kernel knows it (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) pid: Option<i32>,
    pub(super) allowed: bool,
}

/// Users who may use the API.
pub(super) struct Allowed(BTreeSet<u32>);

impl Allowed {
    /// Root, this process's user, and those in `list`, by name or number with commas between.
    pub(super) fn new(list: Option<&str>) -> Result<Self, Error> {
        let mut users = BTreeSet::from([0, Uid::effective().as_raw()]);
        for name in list.unwrap_or_default().split(',').map(str::trim).filter(|n| !n.is_empty()) {
            users.insert(user(name).map_err(|e| e.hint("see allow of [api]"))?);
        }
        Ok(Self(users))
    }

    pub(super) fn has(&self, uid: u32) -> bool {
        self.0.contains(&uid)
    }
}

/// The number of a user.
pub(super) fn user(name: &str) -> Result<u32, Error> {
    number_of("user", name, |name| Ok(User::from_name(name)?.map(|user| user.uid.as_raw())))
}

/// The number of a group.
pub(super) fn group(name: &str) -> Result<u32, Error> {
    number_of("group", name, |name| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw())))
}

fn number_of(
    what: &str,
    name: &str,
    look_up: impl FnOnce(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, Error> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    match look_up(name) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(Error::new(ErrorKind::Invalid, format!("there is no {what} {name:?}"))),
        Err(errno) => {
            Err(Error::from_errno(errno as i32, format!("cannot look up {what} {name:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_taken_and_unknown_names_are_refused() {
        let own = Uid::effective().as_raw();
        let allowed = Allowed::new(Some(" root, 4242 ,")).expect("a list");
        for uid in [0, own, 4242] {
            assert!(allowed.has(uid), "{uid}");
        }
        assert!(!allowed.has(4243) && !Allowed::new(None).expect("none").has(4242));
        let error = Allowed::new(Some("root,nobody-of-this-name")).err().expect("a refusal");
        assert!(error.to_string().contains("nobody-of-this-name"), "{error}");
        assert_eq!(group("root").ok(), Some(0));
    }
}

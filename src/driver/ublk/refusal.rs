//! What an errno means as the answer to one command, and what to do about it.
//!
//! Invariants: command, errno, meaning and remedy are all in the text (fault F92); a limit is named
//! only when it is the reason (F25); `EINVAL` comes with the kernel's release and everything the
//! kernel was told (F34).

use nix::libc as c;

use crate::driver::Command;
use crate::model::{Error, ErrorKind};
use crate::sys::host::Host;

/// `ENOTSUPP`, an errno for use inside the kernel only, which drivers up to Linux 6.14 let out for
/// commands that they do not know.
const ENOTSUPP: i32 = 524;

/// The error for `command`, which the kernel answered with `errno` (positive).
pub(super) fn refused(command: &Command, errno: i32, host: &Host) -> Error {
    let unknown = match command {
        // Before Linux 6.5 the query is taken for a command to a device that is not there.
        Command::Features => matches!(errno, ENOTSUPP | c::EOPNOTSUPP | c::ENODEV | c::EINVAL),
        _ => matches!(errno, ENOTSUPP | c::EOPNOTSUPP),
    };
    let error = if unknown {
        Error::from_errno(c::EOPNOTSUPP, "the driver does not know the command")
            .hint(format!("a newer kernel than {} has it", host.kernel_release()))
    } else if let Some(limit) = device_limit(command, errno, host) {
        Error::from_errno(errno, "no further device is allowed")
            .kind_of(ErrorKind::Limit)
            .hint(limit)
    } else if errno == c::EINVAL {
        Error::from_errno(errno, "the driver refused the values")
            .hint(format!("kernel {} was told {command:?}", host.kernel_release()))
    } else {
        let (meaning, remedy) = meaning(command, errno);
        let error = Error::from_errno(errno, meaning);
        if remedy.is_empty() { error } else { error.hint(remedy) }
    };
    let error = error.command(command.name());
    match command.device() {
        Some(id) => error.id(id),
        None => error,
    }
}

/// Meaning and remedy; the remedy is empty where there is nothing to say.
fn meaning(command: &Command, errno: i32) -> (&'static str, &'static str) {
    match (command, errno) {
        (_, c::EPERM) => ("CAP_SYS_ADMIN is missing", "run as root"),
        (_, c::ENODEV) => ("there is no such device", ""),
        (_, c::EINTR) => ("the command was interrupted again and again", "try again"),
        (_, c::ECANCELED) => ("the control thread ended before the command began", ""),
        (Command::Add(_), c::EEXIST) => {
            ("the id is taken", "ask for another id or for none, or delete the device that has it")
        }
        (Command::Add(_), c::ENOSPC) => ("no id is free", "delete devices that are not needed"),
        (Command::Add(_) | Command::Start(_), c::ENOMEM) => {
            ("the kernel has no memory for the device", "fewer or shallower queues need less")
        }
        (Command::SetParams(..), c::EACCES) => {
            ("the device was started before", "parameters can be set before the first start only")
        }
        (Command::Start(_), c::EEXIST) => {
            ("the device is started already, or its last disk is still in use", "see who holds it")
        }
        (Command::StartRecovery(_), c::EBUSY) => {
            ("its last server has not let go of it", "see who has the char device open")
        }
        (Command::Quiesce(..), c::EBUSY) => {
            ("I/O in flight has not ended in time; new I/O waits", "quiesce again, or delete it")
        }
        (_, c::EBUSY) => ("the device is in use", "see who holds it"),
        _ => ("the driver refused", ""),
    }
}

fn device_limit(command: &Command, errno: i32, host: &Host) -> Option<String> {
    if !matches!(command, Command::Add(_)) || errno != c::EACCES {
        return None;
    }
    let limit = host.ublks_max()?;
    let used = host.ublk_devices().ok()?.len() as u64;
    (used >= limit).then(|| {
        format!(
            "ublks_max is {limit} and {used} devices exist: \
             raise /sys/module/ublk_drv/parameters/ublks_max"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;

    use super::*;
    use crate::driver::{AddDevice, Features};
    use crate::model::{DeviceId, QueueSpec};

    fn add() -> Command {
        let features = Features::USER_RECOVERY;
        Command::Add(AddDevice { id: None, queues: QueueSpec::default(), features })
    }

    fn host_with(devices: u32, limit: &str) -> io::Result<tempfile::TempDir> {
        let root = tempfile::tempdir()?;
        let parameters = root.path().join("sys/module/ublk_drv/parameters");
        fs::create_dir_all(&parameters)?;
        fs::write(parameters.join("ublks_max"), limit)?;
        fs::create_dir_all(root.path().join("proc/sys/kernel"))?;
        fs::write(root.path().join("proc/sys/kernel/osrelease"), "7.3.4-test\n")?;
        for id in 0..devices {
            fs::create_dir_all(root.path().join(format!("sys/class/ublk-char/ublkc{id}")))?;
        }
        Ok(root)
    }

    #[test]
    fn f25_the_device_limit_is_named_when_it_is_reached() -> io::Result<()> {
        let root = host_with(64, "64\n")?;
        let error = refused(&add(), c::EACCES, &Host::at(root.path()));
        assert_eq!(error.kind(), ErrorKind::Limit);
        let text = error.to_string();
        assert!(text.contains("ublks_max is 64 and 64 devices exist"), "{text}");
        assert!(text.contains("EACCES"), "{text}");
        Ok(())
    }

    #[test]
    fn f25_a_plain_eacces_does_not_mention_the_limit() -> io::Result<()> {
        let root = host_with(3, "64\n")?;
        let error = refused(&add(), c::EACCES, &Host::at(root.path()));
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(!error.to_string().contains("ublks_max"), "{error}");
        Ok(())
    }

    #[test]
    fn f34_einval_prints_release_command_and_flags() -> io::Result<()> {
        let root = host_with(0, "64\n")?;
        let text = refused(&add(), c::EINVAL, &Host::at(root.path())).to_string();
        for part in ["ADD_DEV", "EINVAL", "7.3.4-test", "0x8 (user_recovery)"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        Ok(())
    }

    #[test]
    fn f34_commands_that_are_not_known_are_unsupported() -> io::Result<()> {
        let root = host_with(0, "64\n")?;
        let host = Host::at(root.path());
        let id = DeviceId(1);
        let answers = [
            (Command::DeleteAsync(id), ENOTSUPP),
            (Command::DeleteAsync(id), c::EOPNOTSUPP),
            (Command::Features, c::ENODEV),
        ];
        for (command, errno) in answers {
            let error = refused(&command, errno, &host);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(error.errno(), Some(c::EOPNOTSUPP));
        }
        Ok(())
    }

    #[test]
    fn f92_every_errno_keeps_command_device_and_name() -> io::Result<()> {
        let root = host_with(0, "64\n")?;
        let host = Host::at(root.path());
        let id = DeviceId(7);
        let commands = [Command::Start(id), Command::Stop(id), Command::Delete(id), add()];
        let errnos = [c::EPERM, c::EBUSY, c::ENOSPC, c::EIO, c::EINVAL, c::ENODEV, c::EOPNOTSUPP];
        for command in &commands {
            for errno in errnos {
                let error = refused(command, errno, &host);
                assert_eq!(error.errno(), Some(errno));
                assert_eq!(error.kind(), ErrorKind::of_errno(errno));
                assert!(error.to_string().contains(command.name()), "{error}");
                let told = error.to_string().contains("device id 7");
                assert_eq!(told, command.device().is_some(), "{error}");
            }
        }
        Ok(())
    }
}

//! The kernel's side of the control commands: how a [`Command`] is laid out, how a reply is read.
//!
//! ```text
//!   Command ── encode ──> Wire { op, header, payload } ──> SQE + memory it points to
//!   Reply  <── decode ─── payload, as the kernel left it
//! ```
//!
//! Layouts and numbers come from libublk's bindings of the kernel's `ublk_cmd.h`.
//!
//! Invariants: only ioctl-encoded opcodes (the bare ones may be compiled out, fault F34);
//! `queue_id` is all ones since no command here has its queue there; an automatic id is all ones in the
//! header and in the device's description; no flag is set that nobody asked for.

use libublk::sys::{self, ublksrv_ctrl_cmd, ublksrv_ctrl_dev_info};

use super::params::{self, KernelParams};
use crate::driver::{AddDevice, Command, Features, KernelDevice, KernelState, Reply};
use crate::model::{DeviceId, Error, ErrorKind, Processors, QueueSpec};

/// "Choose one" as a device id, "none" as the id of a command without a device.
const NO_ID: u32 = u32::MAX;
/// "Not for a queue".
const NO_QUEUE: u16 = u16::MAX;

/// Memory that the kernel reads or fills in while it works on a command.
#[derive(Debug)]
pub(super) enum Payload {
    Nothing,
    Features(Box<u64>),
    Device(Box<ublksrv_ctrl_dev_info>),
    Params(Box<KernelParams>),
    Mask(Box<Mask>),
}

/// A mask of processors: whole words, as the kernel wants it.
pub(super) type Mask = [u64; Processors::MOST / u64::BITS as usize];

/// A command, laid out for the kernel; only the payload's address is still to be filled in.
#[derive(Debug)]
pub(super) struct Wire {
    /// `UBLK_U_CMD_*`.
    pub(super) op: u32,
    /// `addr` and `len` are 0 here.
    pub(super) header: ublksrv_ctrl_cmd,
    pub(super) payload: Payload,
}

/// Lays out `command`; `pid` is the server's process.
///
/// # Errors
/// Kind [`ErrorKind::Invalid`] when parameters do not fit the kernel's units.
pub(super) fn encode(command: &Command, pid: u32) -> Result<Wire, Error> {
    let (op, payload) = match command {
        Command::Features => (sys::UBLK_U_CMD_GET_FEATURES, Payload::Features(Box::default())),
        Command::Add(add) => (sys::UBLK_U_CMD_ADD_DEV, Payload::Device(Box::new(describe(add)))),
        Command::SetParams(_, wanted) => {
            (sys::UBLK_U_CMD_SET_PARAMS, Payload::Params(Box::new(params::to_kernel(wanted)?)))
        }
        Command::GetParams(_) => {
            (sys::UBLK_U_CMD_GET_PARAMS, Payload::Params(Box::new(KernelParams::room())))
        }
        Command::Start(_) => (sys::UBLK_U_CMD_START_DEV, Payload::Nothing),
        Command::Stop(_) => (sys::UBLK_U_CMD_STOP_DEV, Payload::Nothing),
        Command::TryStop(_) => (sys::UBLK_U_CMD_TRY_STOP_DEV, Payload::Nothing),
        Command::Delete(_) => (sys::UBLK_U_CMD_DEL_DEV, Payload::Nothing),
        Command::DeleteAsync(_) => (sys::UBLK_U_CMD_DEL_DEV_ASYNC, Payload::Nothing),
        Command::Info(_) => (sys::UBLK_U_CMD_GET_DEV_INFO, Payload::Device(Box::default())),
        Command::QueueAffinity(..) => {
            (sys::UBLK_U_CMD_GET_QUEUE_AFFINITY, Payload::Mask(Box::default()))
        }
        Command::UpdateSize(..) => (sys::UBLK_U_CMD_UPDATE_SIZE, Payload::Nothing),
        Command::Quiesce(..) => (sys::UBLK_U_CMD_QUIESCE_DEV, Payload::Nothing),
        Command::StartRecovery(_) => (sys::UBLK_U_CMD_START_USER_RECOVERY, Payload::Nothing),
        Command::EndRecovery(_) => (sys::UBLK_U_CMD_END_USER_RECOVERY, Payload::Nothing),
    };
    let mut header = ublksrv_ctrl_cmd {
        dev_id: command.device().map_or(NO_ID, |id| id.0),
        queue_id: NO_QUEUE,
        ..Default::default()
    };
    header.data[0] = match command {
        Command::Start(_) | Command::EndRecovery(_) => u64::from(pid),
        Command::QueueAffinity(_, queue) => u64::from(queue.0),
        Command::UpdateSize(_, bytes) => params::device_sectors(*bytes)?,
        // Zero would mean without end.
        Command::Quiesce(_, within) => u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1),
        _ => 0,
    };
    Ok(Wire { op, header, payload })
}

/// Reads the answer to `command` out of its payload.
///
/// # Errors
/// Kind [`ErrorKind::Unsupported`] when the kernel says what this program does not know.
pub(super) fn decode(command: &Command, payload: Payload) -> Result<Reply, Error> {
    match (command, payload) {
        (Command::Features, Payload::Features(bits)) => Ok(Reply::Features(Features(*bits))),
        (Command::Add(_) | Command::Info(_), Payload::Device(info)) => {
            Ok(Reply::Device(device(&info)?))
        }
        (Command::GetParams(_), Payload::Params(told)) => {
            Ok(Reply::Params(params::from_kernel(&told)?))
        }
        (Command::QueueAffinity(..), Payload::Mask(mask)) => {
            Ok(Reply::Processors(Processors::from_mask(*mask)))
        }
        (_, _) => Ok(Reply::Done),
    }
}

/// The header as the bytes of an SQE.
pub(super) fn bytes(header: &ublksrv_ctrl_cmd) -> [u8; size_of::<ublksrv_ctrl_cmd>()] {
    // SAFETY: a `repr(C)` structure of integers without padding, as long as the array.
    unsafe { std::mem::transmute(*header) }
}

/// Whether the command may wait inside the kernel. The others are queries that take no lock.
pub(super) fn may_wait(op: u32) -> bool {
    !matches!(
        op,
        sys::UBLK_U_CMD_GET_FEATURES
            | sys::UBLK_U_CMD_GET_DEV_INFO
            | sys::UBLK_U_CMD_GET_QUEUE_AFFINITY
    )
}

/// Whether the command may be sent again after the driver itself said `EINTR`.
///
/// The driver interrupts only its waits, and what was done before such a wait is found done by the
/// next try. An `ADD_DEV` is never sent twice: whoever wants it starts the device anew.
pub(super) fn may_resend(op: u32) -> bool {
    op != sys::UBLK_U_CMD_ADD_DEV
}

/// Whether the command takes the device away, so that `ENODEV` on a later try means success.
pub(super) fn removes(op: u32) -> bool {
    matches!(op, sys::UBLK_U_CMD_DEL_DEV | sys::UBLK_U_CMD_DEL_DEV_ASYNC)
}

fn describe(add: &AddDevice) -> ublksrv_ctrl_dev_info {
    ublksrv_ctrl_dev_info {
        nr_hw_queues: add.queues.count,
        queue_depth: add.queues.depth,
        max_io_buf_bytes: add.queues.max_io,
        dev_id: add.id.map_or(NO_ID, |id| id.0),
        flags: add.features.0,
        ..Default::default()
    }
}

fn device(info: &ublksrv_ctrl_dev_info) -> Result<KernelDevice, Error> {
    let state = match u32::from(info.state) {
        sys::UBLK_S_DEV_DEAD => KernelState::Dead,
        sys::UBLK_S_DEV_LIVE => KernelState::Live,
        sys::UBLK_S_DEV_QUIESCED => KernelState::Quiesced,
        sys::UBLK_S_DEV_FAIL_IO => KernelState::FailIo,
        other => {
            let text = format!("the kernel says a device state that is not known here: {other}");
            return Err(Error::new(ErrorKind::Unsupported, text).id(DeviceId(info.dev_id)));
        }
    };
    Ok(KernelDevice {
        id: DeviceId(info.dev_id),
        state,
        queues: QueueSpec {
            count: info.nr_hw_queues,
            depth: info.queue_depth,
            max_io: info.max_io_buf_bytes,
        },
        features: Features(info.flags),
        // -1 after a stop.
        pid: info.ublksrv_pid.max(0),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{LIMITS, QueueId};

    fn add(id: Option<DeviceId>, features: Features) -> Command {
        let queues = QueueSpec { count: 3, depth: 17, max_io: 8192 };
        Command::Add(AddDevice { id, queues, features })
    }

    #[test]
    fn our_flags_are_the_kernels() {
        let kernel = [
            (Features::ZERO_COPY, sys::UBLK_F_SUPPORT_ZERO_COPY),
            (Features::COMP_IN_TASK, sys::UBLK_F_URING_CMD_COMP_IN_TASK),
            (Features::NEED_GET_DATA, sys::UBLK_F_NEED_GET_DATA),
            (Features::USER_RECOVERY, sys::UBLK_F_USER_RECOVERY),
            (Features::USER_RECOVERY_REISSUE, sys::UBLK_F_USER_RECOVERY_REISSUE),
            (Features::UNPRIVILEGED_DEV, sys::UBLK_F_UNPRIVILEGED_DEV),
            (Features::CMD_IOCTL_ENCODE, sys::UBLK_F_CMD_IOCTL_ENCODE),
            (Features::USER_COPY, sys::UBLK_F_USER_COPY),
            (Features::ZONED, sys::UBLK_F_ZONED),
            (Features::USER_RECOVERY_FAIL_IO, sys::UBLK_F_USER_RECOVERY_FAIL_IO),
            (Features::UPDATE_SIZE, sys::UBLK_F_UPDATE_SIZE),
            (Features::AUTO_BUF_REG, sys::UBLK_F_AUTO_BUF_REG),
            (Features::QUIESCE, sys::UBLK_F_QUIESCE),
            (Features::PER_IO_DAEMON, sys::UBLK_F_PER_IO_DAEMON),
            (Features::BUF_REG_OFF_DAEMON, sys::UBLK_F_BUF_REG_OFF_DAEMON),
            (Features::BATCH_IO, sys::UBLK_F_BATCH_IO),
            (Features::INTEGRITY, sys::UBLK_F_INTEGRITY),
            (Features::SAFE_STOP_DEV, sys::UBLK_F_SAFE_STOP_DEV),
            (Features::NO_AUTO_PART_SCAN, sys::UBLK_F_NO_AUTO_PART_SCAN),
            (Features::SHMEM_ZC, sys::UBLK_F_SHMEM_ZC),
        ];
        assert_eq!(kernel.len(), Features::KNOWN.len());
        for (ours, theirs) in kernel {
            assert_eq!(ours.0, u64::from(theirs), "{ours:?}");
        }
    }

    #[test]
    fn our_limits_are_the_kernels() {
        assert_eq!(u32::from(LIMITS.queues), sys::UBLK_MAX_NR_QUEUES);
        assert_eq!(u32::from(LIMITS.depth), sys::UBLK_MAX_QUEUE_DEPTH);
        assert_eq!(LIMITS.max_io_max, 1 << sys::UBLK_IO_BUF_BITS);
    }

    #[test]
    fn f34_ids_match_in_header_and_description() -> Result<(), Error> {
        for (id, raw) in
            [(None, u32::MAX), (Some(DeviceId(0)), 0), (Some(DeviceId(70_000)), 70_000)]
        {
            let wire = encode(&add(id, Features::NONE), 1)?;
            let Payload::Device(info) = &wire.payload else { panic!("{wire:?}") };
            assert_eq!((wire.header.dev_id, info.dev_id), (raw, raw));
            assert_eq!(wire.header.queue_id, u16::MAX);
            assert_eq!((info.nr_hw_queues, info.queue_depth), (3, 17));
            assert_eq!(info.max_io_buf_bytes, 8192);
        }
        Ok(())
    }

    #[test]
    fn f34_no_flag_is_set_unasked() -> Result<(), Error> {
        for features in [Features::NONE, Features::USER_RECOVERY.with(Features::QUIESCE)] {
            let wire = encode(&add(None, features), 1)?;
            let Payload::Device(info) = &wire.payload else { panic!("{wire:?}") };
            assert_eq!(info.flags, features.0);
        }
        Ok(())
    }

    #[test]
    fn f34_every_opcode_is_ioctl_encoded_and_for_no_queue() -> Result<(), Error> {
        let id = DeviceId(7);
        let commands = [
            Command::Features,
            Command::GetParams(id),
            Command::Start(id),
            Command::Stop(id),
            Command::TryStop(id),
            Command::Delete(id),
            Command::DeleteAsync(id),
            Command::Info(id),
            Command::QueueAffinity(id, QueueId(3)),
            Command::UpdateSize(id, 1 << 20),
            Command::Quiesce(id, Duration::from_secs(3)),
            Command::StartRecovery(id),
            Command::EndRecovery(id),
        ];
        for command in commands {
            let wire = encode(&command, 4711)?;
            assert_eq!((wire.op >> 8) & 0xff, u32::from(b'u'), "{command:?}");
            assert_eq!(wire.header.queue_id, u16::MAX, "{command:?}");
            let data = match command {
                Command::Start(_) | Command::EndRecovery(_) => 4711,
                Command::QueueAffinity(..) => 3,
                Command::UpdateSize(..) => 2048,
                Command::Quiesce(..) => 3000,
                _ => 0,
            };
            assert_eq!(wire.header.data[0], data, "{command:?}");
        }
        Ok(())
    }

    #[test]
    fn a_mask_has_room_as_the_kernel_wants_it_and_is_read_as_the_kernel_left_it()
    -> Result<(), Error> {
        let command = Command::QueueAffinity(DeviceId(7), QueueId(1));
        let wire = encode(&command, 1)?;
        assert!(!may_wait(wire.op) && may_resend(wire.op) && !removes(wire.op));
        let Payload::Mask(mut mask) = wire.payload else { panic!("{wire:?}") };
        assert_eq!((size_of_val(&*mask) % 8, size_of_val(&*mask) * 8), (0, Processors::MOST));
        assert_eq!(*mask, [0; 16]);
        (mask[0], mask[2]) = (0b1100, 1);
        let reply = decode(&command, Payload::Mask(mask))?;
        assert_eq!(reply, Reply::Processors([2, 3, 128].into_iter().collect()));
        Ok(())
    }

    #[test]
    fn f49_a_size_that_is_no_sectors_is_not_sent() {
        for bytes in [0, 1, 511, (64 << 20) + 500] {
            let told = encode(&Command::UpdateSize(DeviceId(1), bytes), 1).map(|_| ());
            assert_eq!(told.map_err(|error| error.kind()), Err(ErrorKind::Invalid), "{bytes}");
        }
    }

    #[test]
    fn f32_a_delete_may_be_sent_again_and_an_add_may_not() -> Result<(), Error> {
        let delete = encode(&Command::Delete(DeviceId(1)), 1)?.op;
        let start = encode(&Command::Start(DeviceId(1)), 1)?.op;
        assert!(may_resend(delete) && removes(delete));
        assert!(may_resend(start) && !removes(start));
        assert!(!may_resend(encode(&add(None, Features::NONE), 1)?.op));
        Ok(())
    }

    #[test]
    fn a_state_from_the_future_is_an_error_not_a_guess() {
        let info = ublksrv_ctrl_dev_info { state: 9, dev_id: 3, ..Default::default() };
        let error = decode(&Command::Info(DeviceId(3)), Payload::Device(Box::new(info)));
        assert_eq!(error.map_err(|e| e.kind()), Err(ErrorKind::Unsupported));
    }

    #[test]
    fn a_stopped_device_has_no_process() -> Result<(), Error> {
        let info = ublksrv_ctrl_dev_info { ublksrv_pid: -1, dev_id: 3, ..Default::default() };
        let reply = decode(&Command::Info(DeviceId(3)), Payload::Device(Box::new(info)))?;
        let Reply::Device(told) = reply else { panic!("{reply:?}") };
        assert_eq!((told.state, told.pid), (KernelState::Dead, 0));
        Ok(())
    }
}

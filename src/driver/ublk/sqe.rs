//! Commands of a queue as entries of the submission queue.
//!
//! The ring library's builder does not know the address of such a command, which carries a buffer's
//! place or a list, nor that it may take provided buffers; so the entry is laid out here.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::squeue;
use libublk::sys::{ublk_batch_io, ublksrv_io_cmd};

/// `IORING_OP_URING_CMD`.
const URING_CMD: u8 = 46;
/// `IOSQE_BUFFER_SELECT`.
const BUFFER_SELECT: u8 = 1 << 5;
/// `IORING_URING_CMD_MULTISHOT`.
const MULTISHOT: u32 = 1 << 1;

/// `struct io_uring_sqe` of such a command.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    command: u32,
    pad: u32,
    addr: u64,
    len: u32,
    command_flags: u32,
    user_data: u64,
    buffer_group: u16,
    personality: u16,
    file_index: u32,
    payload: [u8; 16],
}

impl Sqe {
    fn new(file: &File, command: u32, payload: [u8; 16]) -> Self {
        Self {
            opcode: URING_CMD,
            flags: 0,
            ioprio: 0,
            fd: file.as_raw_fd(),
            command,
            pad: 0,
            addr: 0,
            len: 0,
            command_flags: 0,
            user_data: 0,
            buffer_group: 0,
            personality: 0,
            file_index: 0,
            payload,
        }
    }

    /// A command for one tag.
    pub(super) fn of_tag(file: &File, command: u32, payload: ublksrv_io_cmd) -> Self {
        // SAFETY: a `repr(C)` structure of integers without padding, as long as the array.
        Self::new(file, command, unsafe {
            std::mem::transmute::<ublksrv_io_cmd, [u8; 16]>(payload)
        })
    }

    /// A command for many tags.
    pub(super) fn of_queue(file: &File, command: u32, payload: ublk_batch_io) -> Self {
        // SAFETY: as above.
        Self::new(file, command, unsafe { std::mem::transmute::<ublk_batch_io, [u8; 16]>(payload) })
    }

    /// With an address, or what stands for one.
    pub(super) fn addr(mut self, addr: u64) -> Self {
        self.addr = addr;
        self
    }

    /// With a list of `len` bytes at `addr`.
    pub(super) fn list(mut self, addr: u64, len: u32) -> Self {
        (self.addr, self.len) = (addr, len);
        self
    }

    /// Completes again and again, each time with a buffer of `group`.
    pub(super) fn multishot(mut self, group: u16) -> Self {
        self.flags |= BUFFER_SELECT;
        self.command_flags |= MULTISHOT;
        self.buffer_group = group;
        self
    }

    pub(super) fn entry(self) -> squeue::Entry {
        // SAFETY: both are `struct io_uring_sqe`, laid out as C does: an entry is a `repr(C)`
        // wrapper of it, and the sizes are equal or this does not compile.
        unsafe { std::mem::transmute::<Self, squeue::Entry>(self) }
    }
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    use super::*;

    /// The bytes of an entry.
    fn bytes(entry: squeue::Entry) -> [u8; 64] {
        // SAFETY: 64 initialised bytes: integers without padding.
        unsafe { std::mem::transmute(entry) }
    }

    #[test]
    fn an_entry_is_what_the_library_builds_and_more() {
        let file = tempfile::tempfile().expect("a file");
        let payload = ublksrv_io_cmd { q_id: 3, tag: 7, result: -5, addr: 0x1234_5678_9abc };
        // SAFETY: as in `of_tag`.
        let raw: [u8; 16] = unsafe { std::mem::transmute(payload) };
        let built = opcode::UringCmd16::new(types::Fd(file.as_raw_fd()), 0xc010_7521).cmd(raw);
        let ours = Sqe::of_tag(&file, 0xc010_7521, payload);
        assert_eq!(bytes(built.build()), bytes(ours.entry()));

        let listed = bytes(ours.list(0x0102_0304_0506_0708, 0x0a0b_0c0d).entry());
        assert_eq!(listed[16..28], [8, 7, 6, 5, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa]);
        let many = bytes(ours.multishot(0x0201).entry());
        assert_eq!((many[1], many[28], &many[40..42]), (1 << 5, 1 << 1, &[1, 2][..]));
    }
}

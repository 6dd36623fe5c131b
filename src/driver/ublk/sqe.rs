//! Commands of a queue as entries of the submission queue.
//!
//! The ring library's builder does not know the address of such a command, which carries a buffer's
//! place or a list, nor that it may take provided buffers; so the entry is laid out here.

use io_uring::squeue;
use libublk::sys::{ublk_batch_io, ublksrv_io_cmd};

use crate::model::Tag;
use crate::sys::ring::Ring;

/// `IORING_OP_URING_CMD`.
const URING_CMD: u8 = 46;
/// `IOSQE_FIXED_FILE`.
const FIXED_FILE: u8 = 1 << 0;
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
    /// On the file that the ring has.
    fn new(command: u32, payload: [u8; 16]) -> Self {
        Self {
            opcode: URING_CMD,
            flags: FIXED_FILE,
            ioprio: 0,
            fd: 0,
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
    pub(super) fn of_tag(command: u32, payload: ublksrv_io_cmd) -> Self {
        // SAFETY: a `repr(C)` structure of integers without padding, as long as the array.
        Self::new(command, unsafe { std::mem::transmute::<ublksrv_io_cmd, [u8; 16]>(payload) })
    }

    /// A command for many tags.
    pub(super) fn of_queue(command: u32, payload: ublk_batch_io) -> Self {
        // SAFETY: as above.
        Self::new(command, unsafe { std::mem::transmute::<ublk_batch_io, [u8; 16]>(payload) })
    }

    /// The same with another command.
    pub(super) fn command(&self, command: u32) -> Self {
        Self { command, ..*self }
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

    /// Comes back as the completion of a command of `tag`.
    pub(super) fn for_tag(mut self, tag: Tag) -> Self {
        self.user_data = Ring::command_data(tag);
        self
    }

    /// Changes the result in a command for one tag.
    pub(super) fn set_result(&mut self, result: i32) {
        const AT: usize = std::mem::offset_of!(ublksrv_io_cmd, result);
        self.payload[AT..AT + 4].copy_from_slice(&result.to_ne_bytes());
    }

    pub(super) fn entry(&self) -> &squeue::Entry {
        const { assert!(size_of::<Self>() == size_of::<squeue::Entry>()) }
        // SAFETY: both are `struct io_uring_sqe`, laid out as C does: an entry is a `repr(C)`
        // wrapper of it, and they are equally long and aligned.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}

#[cfg(test)]
mod tests {
    use io_uring::{opcode, types};

    use super::*;

    /// The bytes of an entry.
    fn bytes(entry: &squeue::Entry) -> [u8; 64] {
        // SAFETY: 64 initialised bytes: integers without padding.
        unsafe { *std::ptr::from_ref(entry).cast() }
    }

    #[test]
    fn an_entry_is_what_the_library_builds_and_more() {
        let payload = ublksrv_io_cmd { q_id: 3, tag: 7, result: -5, addr: 0x1234_5678_9abc };
        // SAFETY: as in `of_tag`.
        let raw: [u8; 16] = unsafe { std::mem::transmute(payload) };
        let built = opcode::UringCmd16::new(types::Fixed(0), 0xc010_7521).cmd(raw);
        let ours = Sqe::of_tag(0xc010_7521, payload);
        assert_eq!(bytes(&built.build()), bytes(ours.entry()));

        let user_data = Ring::command_data(Tag(7));
        let changed = ublksrv_io_cmd { result: 4096, ..payload };
        // SAFETY: as in `of_tag`.
        let raw: [u8; 16] = unsafe { std::mem::transmute(changed) };
        let built = opcode::UringCmd16::new(types::Fixed(0), 0xc010_7521).cmd(raw);
        let mut ours = ours.for_tag(Tag(7));
        ours.set_result(4096);
        assert_eq!(bytes(&built.build().user_data(user_data)), bytes(ours.entry()));

        let listed = bytes(ours.list(0x0102_0304_0506_0708, 0x0a0b_0c0d).entry());
        assert_eq!(listed[16..28], [8, 7, 6, 5, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa]);
        let many = bytes(ours.multishot(0x0201).entry());
        assert_eq!((many[1], many[28], &many[40..42]), (1 << 5 | 1, 1 << 1, &[1, 2][..]));
    }
}

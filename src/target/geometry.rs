//! What a target says of itself: size, block sizes, abilities.

use serde::Serialize;

/// Size, block sizes and abilities of a target. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Size; a multiple of the logical block.
    pub size: u64,
    /// Smallest unit of I/O: a power of two, 512 to 4096.
    pub logical_block: u32,
    /// Unit that is written without reading first.
    pub physical_block: u32,
    /// Preferred smallest request.
    pub io_min: u32,
    /// Preferred request.
    pub io_opt: u32,
    /// DISCARD and WRITE_ZEROES, when the target can.
    pub discard: Option<Discard>,
    /// Written data may be lost in a power cut until a FLUSH: the kernel sends FLUSH.
    pub volatile_cache: bool,
    /// FUA writes are understood; else the kernel sends a FLUSH after the write.
    pub fua: bool,
    /// Writes are refused.
    pub read_only: bool,
}

/// How a target discards. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Discard {
    /// Unit that is really freed.
    pub granularity: u32,
    /// Largest DISCARD.
    pub max_discard: u32,
    /// Largest WRITE_ZEROES; 0 when it cannot.
    pub max_write_zeroes: u32,
}

impl Geometry {
    /// A plain writable device of `size` bytes with blocks of `logical_block` bytes, without a
    /// volatile cache and without discard.
    #[must_use]
    pub fn new(size: u64, logical_block: u32) -> Self {
        Self {
            size,
            logical_block,
            physical_block: logical_block.max(4096),
            io_min: logical_block.max(4096),
            io_opt: 0,
            discard: None,
            volatile_cache: false,
            fua: false,
            read_only: false,
        }
    }
}

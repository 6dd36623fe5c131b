//! What a target says of itself: size, block sizes, abilities.

use serde::Serialize;

use crate::model::{BlockSize, Error, ErrorKind, LIMITS};

/// Size, block sizes and abilities of a target. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Size; a multiple of the logical block.
    pub size: u64,
    /// Smallest unit of I/O: a power of two, 512 to 4096.
    pub logical_block: u32,
    /// Unit that is written without reading first.
    pub physical_block: u32,
    /// Preferred smallest request, a power of two.
    pub io_min: u32,
    /// Preferred request, a power of two; 0 for none.
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
    /// Unit that is really freed, a power of two.
    pub granularity: u32,
    /// Largest DISCARD; 0 when it cannot.
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

    /// With the block sizes that a spec asks for. Raising the logical block is always possible,
    /// lowering it is not.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Invalid`] for a logical block smaller than the target's own.
    pub fn with_blocks(mut self, asked: BlockSize) -> Result<Self, Error> {
        let own = self.logical_block;
        if let Some(logical) = asked.logical {
            if logical < own {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("logical_block {logical} is smaller than the target's, {own}"),
                )
                .hint(format!("use {own} or more, or leave logical_block out")));
            }
            self.logical_block = logical;
        }
        self.physical_block = asked.physical.unwrap_or(self.physical_block).max(self.logical_block);
        self.io_min = self.io_min.max(self.physical_block);
        if self.io_opt != 0 {
            self.io_opt = self.io_opt.max(self.io_min);
        }
        if let Some(discard) = &mut self.discard {
            discard.granularity = discard.granularity.max(self.logical_block);
        }
        Ok(self)
    }

    /// Checks what the kernel would refuse without a word.
    ///
    /// # Errors
    /// Kind [`ErrorKind::Invalid`], naming the value and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        let Self { size, logical_block: logical, .. } = *self;
        let fits = |bytes: u32| bytes.is_power_of_two() && bytes >= logical;
        let io_opt = Some(self.io_opt).filter(|bytes| *bytes != 0);
        let units = [
            ("physical block", Some(self.physical_block)),
            ("io_min", Some(self.io_min)),
            ("io_opt", io_opt),
            ("discard granularity", self.discard.map(|discard| discard.granularity)),
        ];
        let mut told = units.into_iter().filter_map(|(name, unit)| Some((name, unit?)));
        let odd = told.find(|(_, bytes)| !fits(*bytes));
        let blocks = LIMITS.block_min..=LIMITS.block_max;
        let wrong = if !blocks.contains(&logical) || !logical.is_power_of_two() {
            format!("logical block {logical} is not one of 512, 1024, 2048, 4096")
        } else if let Some((name, bytes)) = odd {
            format!("{name} {bytes} is no power of two from {logical} on")
        } else if size == 0 || size > LIMITS.size_max || !size.is_multiple_of(logical.into()) {
            let max = LIMITS.size_max;
            format!("size {size} is no multiple of the logical block {logical}, up to {max}")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, format!("the target's geometry is wrong: {wrong}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_can_be_raised_and_not_lowered() -> Result<(), Error> {
        let asked = |logical, physical| BlockSize { logical, physical };
        let own = Geometry::new(1 << 20, 1024);
        assert_eq!(own.with_blocks(BlockSize::default())?, own);
        let raised = own.with_blocks(asked(Some(4096), None))?;
        assert_eq!((raised.logical_block, raised.physical_block), (4096, 4096));
        let wide = Geometry { io_opt: 8192, ..own }.with_blocks(asked(None, Some(16384)))?;
        assert_eq!((wide.io_min, wide.io_opt), (16384, 16384));
        assert!(own.with_blocks(asked(Some(512), None)).is_err());
        Ok(())
    }

    #[test]
    fn f78_sizes_that_the_kernel_would_refuse_are_refused_first() {
        for size in [512, 4096] {
            assert!(Geometry::new(size, 512).check().is_ok(), "{size}");
        }
        for (size, block) in [(0, 512), (1, 512), (511, 512), (512, 4096), (512, 256), (1, 1)] {
            let error = Geometry::new(size, block).check().err().map(|e| e.kind());
            assert_eq!(error, Some(ErrorKind::Invalid), "{size} {block}");
        }
        let good = Geometry::new(4096, 4096);
        let discard = Discard { granularity: 0, max_discard: 4096, max_write_zeroes: 0 };
        for (odd, name) in [
            (Geometry { physical_block: 512, ..good }, "physical block 512"),
            (Geometry { io_min: 5000, ..good }, "io_min 5000"),
            (Geometry { io_opt: 3 << 19, ..good }, "io_opt 1572864"),
            (Geometry { discard: Some(discard), ..good }, "discard granularity 0"),
        ] {
            let text = odd.check().expect_err("an odd unit").to_string();
            assert!(text.contains(name), "{text}");
        }
    }
}

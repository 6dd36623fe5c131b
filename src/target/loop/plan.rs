//! From what is true of a backing and what was asked for to the geometry of the device. Pure.

use std::path::Path;

use super::facts::Facts;
use crate::model::{BlockSize, Error, ErrorKind, LIMITS};
use crate::target::{Discard, Geometry};

/// Largest DISCARD and WRITE_ZEROES in bytes. A request of this size keeps a thread of the kernel
/// busy, not the queue.
const MAX_DISCARD: u32 = 1 << 30;

/// How the backing is going to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// What the device says of itself.
    pub(super) geometry: Geometry,
    /// Whether the page cache is bypassed.
    pub(super) direct: bool,
    /// Where it is less than was asked for, for the operator.
    pub(super) notes: Vec<String>,
}

/// Decides. `path` is for texts only.
///
/// # Errors
/// Kind [`ErrorKind::Invalid`]: the backing is smaller than one block, or a smaller block was asked
/// for than it takes.
pub(super) fn plan(
    facts: &Facts,
    path: &Path,
    direct: bool,
    asked: BlockSize,
) -> Result<Plan, Error> {
    let mut notes = Vec::new();
    let mut buffered_because = |reason: &str| {
        notes.push(format!(
            "{path:?} is used with buffered I/O, direct I/O is impossible: {reason}"
        ));
        None
    };
    let direct_block = match &facts.direct {
        _ if !direct => None,
        Ok(block) if *block <= LIMITS.block_max => Some(*block),
        Ok(block) => buffered_because(&format!("it takes blocks of {block} bytes")),
        Err(reason) => buffered_because(reason),
    };
    let least = facts.block.min(LIMITS.block_max).max(direct_block.unwrap_or(0));
    let logical = asked.logical.unwrap_or(least);
    if logical < least {
        let message = format!("logical_block {logical} is too small: {path:?} takes {least} bytes");
        let less = if least > facts.block { ", or set direct = false" } else { "" };
        return Err(Error::new(ErrorKind::Invalid, message)
            .hint(format!("leave logical_block out or set it to {least} or more{less}")));
    }

    let rest = facts.size % u64::from(logical);
    let size = facts.size - rest;
    if size == 0 {
        let message =
            format!("{path:?} holds {} bytes, less than one block of {logical}", facts.size);
        return Err(Error::new(ErrorKind::Invalid, message)
            .hint("give it the size of the device (truncate -s SIZE PATH)"));
    }
    if rest != 0 {
        notes.push(format!(
            "the last {rest} bytes of {path:?} are no whole block of {logical} and not part of the \
             device"
        ));
    }

    let geometry = Geometry {
        size,
        logical_block: logical,
        physical_block: facts.physical_block,
        io_min: facts.io_min,
        io_opt: facts.io_opt,
        discard: facts.hole.filter(|_| facts.block <= logical).map(|unit| Discard {
            granularity: unit,
            max_discard: MAX_DISCARD,
            max_write_zeroes: MAX_DISCARD,
        }),
        volatile_cache: facts.writable,
        fua: facts.writable,
        read_only: !facts.writable,
    };
    Ok(Plan { geometry: geometry.with_blocks(asked)?, direct: direct_block.is_some(), notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: u64) -> Facts {
        Facts {
            size,
            block: 512,
            direct: Ok(512),
            physical_block: 4096,
            io_min: 4096,
            io_opt: 0,
            hole: Some(4096),
            writable: true,
        }
    }

    fn planned(facts: &Facts, direct: bool, logical: Option<u32>) -> Result<Plan, Error> {
        plan(facts, Path::new("/x"), direct, BlockSize { logical, physical: None })
    }

    #[test]
    fn f56_direct_io_advertises_what_the_backing_takes() -> Result<(), Error> {
        let four_k = Facts { direct: Ok(4096), ..file(1 << 20) };
        let direct = planned(&four_k, true, None)?;
        assert!(direct.direct && direct.notes.is_empty());
        assert_eq!(direct.geometry.logical_block, 4096);
        assert_eq!(planned(&four_k, false, None)?.geometry.logical_block, 512);
        assert_eq!(planned(&file(1 << 20), true, None)?.geometry.logical_block, 512);
        assert_eq!(planned(&file(1 << 20), true, Some(4096))?.geometry.logical_block, 4096);

        let error = planned(&four_k, true, Some(512)).expect_err("512 on 4096");
        assert_eq!(
            error.to_string(),
            "logical_block 512 is too small: \"/x\" takes 4096 bytes; leave logical_block out or \
             set it to 4096 or more, or set direct = false"
        );
        Ok(())
    }

    #[test]
    fn f56_a_disk_keeps_its_own_block_even_if_buffered() -> Result<(), Error> {
        let disk = Facts { block: 4096, direct: Ok(4096), ..file(1 << 20) };
        assert_eq!(planned(&disk, false, None)?.geometry.logical_block, 4096);
        assert!(planned(&disk, false, Some(512)).is_err());
        Ok(())
    }

    #[test]
    fn f56_direct_io_that_cannot_be_done_becomes_buffered_with_a_note() -> Result<(), Error> {
        let cannot = Facts { direct: Err("no".to_owned()), ..file(1 << 20) };
        let plan = planned(&cannot, true, None)?;
        assert!(!plan.direct);
        assert_eq!(plan.geometry.logical_block, 512);
        assert_eq!(plan.notes, ["\"/x\" is used with buffered I/O, direct I/O is impossible: no"]);

        let large = Facts { block: 16384, direct: Ok(16384), ..file(1 << 20) };
        let plan = planned(&large, true, None)?;
        assert!(!plan.direct && plan.notes.len() == 1);
        assert_eq!((plan.geometry.logical_block, plan.geometry.discard), (4096, None));
        Ok(())
    }

    #[test]
    fn f78_sizes_are_rounded_down_with_a_note_and_never_to_nothing() -> Result<(), Error> {
        for size in [512, 4096] {
            assert_eq!(planned(&file(size), false, None)?.geometry.size, size);
        }
        let odd = planned(&file(1000), false, None)?;
        assert_eq!(odd.geometry.size, 512);
        assert_eq!(
            odd.notes,
            ["the last 488 bytes of \"/x\" are no whole block of 512 and not part of the device"]
        );
        for (size, logical) in [(0, None), (1, None), (511, None), (1000, Some(4096))] {
            let error = planned(&file(size), false, logical).map(|plan| plan.geometry.size);
            assert_eq!(error.map_err(|e| e.kind()), Err(ErrorKind::Invalid), "{size}");
        }
        Ok(())
    }

    #[test]
    fn f58_only_a_writable_device_has_a_cache_to_flush() -> Result<(), Error> {
        let rw = planned(&file(4096), false, None)?.geometry;
        assert!(rw.volatile_cache && rw.fua && !rw.read_only);
        let ro = Facts { writable: false, hole: None, ..file(4096) };
        let ro = planned(&ro, false, None)?.geometry;
        assert!(!ro.volatile_cache && !ro.fua && ro.read_only && ro.discard.is_none());
        Ok(())
    }
}

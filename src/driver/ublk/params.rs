//! [`Params`] in the kernel's units: sectors of 512 bytes, powers of two as shifts, attributes as
//! bits.
//!
//! ```text
//!   Geometry (bytes) ── to_kernel ──> KernelParams (sectors, shifts) ── from_kernel ──> Geometry
//! ```
//!
//! Invariants: nothing is rounded, what does not fit is refused; the types word names only what is
//! set; what [`to_kernel`] makes [`from_kernel`] reads back unchanged.

use libublk::sys::{
    self, ublk_param_basic, ublk_param_devt, ublk_param_discard, ublk_param_dma_align,
    ublk_param_zoned,
};

use crate::driver::Params;
use crate::model::{Error, ErrorKind, LIMITS};
use crate::target::{Discard, Geometry};

/// `struct ublk_params` as far as it is used here: the bindings end before `dma`. Older kernels know
/// a prefix of it, newer ones a longer one, and each takes what it knows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KernelParams {
    len: u32,
    types: u32,
    basic: ublk_param_basic,
    discard: ublk_param_discard,
    devt: ublk_param_devt,
    zoned: ublk_param_zoned,
    dma: ublk_param_dma_align,
    /// Makes the length a multiple of eight.
    end: u32,
}

const LEN: u32 = size_of::<KernelParams>() as u32;

impl KernelParams {
    /// Room for what `GET_PARAMS` tells.
    pub(super) fn room() -> Self {
        Self { len: LEN, ..Self::default() }
    }
}

const SECTOR_SHIFT: u32 = 9;

/// Lays `params` out for `SET_PARAMS`.
///
/// # Errors
/// Kind [`ErrorKind::Invalid`], naming the value and what is allowed.
pub(super) fn to_kernel(params: &Params) -> Result<KernelParams, Error> {
    let Params { geometry: g, max_io, memory_alignment } = params;
    let logical_shift = shift("logical_block", g.logical_block, LIMITS.block_min)?;
    let physical_shift = shift("physical_block", g.physical_block, g.logical_block)?;
    let io_min_shift = shift("io_min", g.io_min, g.logical_block)?;
    // The kernel cannot be told "none": it reads every shift as a size. It rounds down to whole
    // physical blocks, so that the logical block means none, or the smallest there is.
    let io_opt_shift = match g.io_opt {
        0 => logical_shift,
        size => shift("io_opt", size, g.logical_block)?,
    };
    if g.size == 0 || !g.size.is_multiple_of(u64::from(g.logical_block)) {
        return Err(refused("size", g.size, "a multiple of the logical block, not 0"));
    }
    let mut types = sys::UBLK_PARAM_TYPE_BASIC;
    let mut discard = ublk_param_discard::default();
    if let Some(wanted) = &g.discard {
        types |= sys::UBLK_PARAM_TYPE_DISCARD;
        discard = discard_to_kernel(wanted, g.logical_block)?;
    }
    let mut dma = ublk_param_dma_align::default();
    if let Some(bytes) = memory_alignment {
        types |= sys::UBLK_PARAM_TYPE_DMA_ALIGN;
        shift("memory alignment", *bytes, 1)?;
        // The kernel wants the bits that have to be 0.
        dma.alignment = bytes - 1;
    }
    let attribute = |on: bool, bit: u32| if on { bit } else { 0 };
    let basic = ublk_param_basic {
        attrs: attribute(g.read_only, sys::UBLK_ATTR_READ_ONLY)
            | attribute(g.volatile_cache, sys::UBLK_ATTR_VOLATILE_CACHE)
            | attribute(g.fua, sys::UBLK_ATTR_FUA),
        logical_bs_shift: logical_shift,
        physical_bs_shift: physical_shift,
        io_opt_shift,
        io_min_shift,
        max_sectors: sectors("max_io", *max_io)?,
        dev_sectors: g.size >> SECTOR_SHIFT,
        ..Default::default()
    };
    Ok(KernelParams { len: LEN, types, basic, discard, dma, ..Default::default() })
}

/// A size for `UPDATE_SIZE`.
///
/// # Errors
/// Kind [`ErrorKind::Invalid`] for what is no whole number of sectors.
pub(super) fn device_sectors(bytes: u64) -> Result<u64, Error> {
    if bytes == 0 || !bytes.is_multiple_of(1 << SECTOR_SHIFT) {
        return Err(refused("size", bytes, "a multiple of 512, not 0"));
    }
    Ok(bytes >> SECTOR_SHIFT)
}

/// Reads what `GET_PARAMS` told.
///
/// # Errors
/// Kind [`ErrorKind::Invalid`] when the device has no parameters yet, [`ErrorKind::Unsupported`]
/// when a value cannot be.
pub(super) fn from_kernel(told: &KernelParams) -> Result<Params, Error> {
    if told.types & sys::UBLK_PARAM_TYPE_BASIC == 0 {
        return Err(Error::new(ErrorKind::Invalid, "the device has no parameters yet")
            .hint("SET_PARAMS comes first"));
    }
    let basic = &told.basic;
    let size_of_shift = |key: &str, shift: u8| {
        1_u32.checked_shl(u32::from(shift)).ok_or_else(|| nonsense(key, u64::from(shift)))
    };
    let bytes = |key: &str, sectors: u32| {
        sectors.checked_mul(1 << SECTOR_SHIFT).ok_or_else(|| nonsense(key, u64::from(sectors)))
    };
    let has = |bit: u32| basic.attrs & bit != 0;
    let logical_block = size_of_shift("logical_bs_shift", basic.logical_bs_shift)?;
    let io_opt = size_of_shift("io_opt_shift", basic.io_opt_shift)?;
    let discard = if told.types & sys::UBLK_PARAM_TYPE_DISCARD == 0 {
        None
    } else {
        Some(Discard {
            granularity: told.discard.discard_granularity,
            max_discard: bytes("max_discard_sectors", told.discard.max_discard_sectors)?,
            max_write_zeroes: bytes("max_write_zeroes", told.discard.max_write_zeroes_sectors)?,
        })
    };
    let geometry = Geometry {
        size: basic
            .dev_sectors
            .checked_mul(1 << SECTOR_SHIFT)
            .ok_or_else(|| nonsense("dev_sectors", basic.dev_sectors))?,
        logical_block,
        physical_block: size_of_shift("physical_bs_shift", basic.physical_bs_shift)?,
        io_min: size_of_shift("io_min_shift", basic.io_min_shift)?,
        io_opt: if io_opt <= logical_block { 0 } else { io_opt },
        discard,
        volatile_cache: has(sys::UBLK_ATTR_VOLATILE_CACHE),
        fua: has(sys::UBLK_ATTR_FUA),
        read_only: has(sys::UBLK_ATTR_READ_ONLY),
    };
    let memory_alignment = match told.types & sys::UBLK_PARAM_TYPE_DMA_ALIGN {
        0 => None,
        _ => Some(told.dma.alignment.saturating_add(1)),
    };
    Ok(Params { geometry, max_io: bytes("max_sectors", basic.max_sectors)?, memory_alignment })
}

fn discard_to_kernel(wanted: &Discard, logical_block: u32) -> Result<ublk_param_discard, Error> {
    shift("discard granularity", wanted.granularity, logical_block)?;
    Ok(ublk_param_discard {
        discard_granularity: wanted.granularity,
        max_discard_sectors: sectors("max_discard", wanted.max_discard)?,
        max_write_zeroes_sectors: sectors("max_write_zeroes", wanted.max_write_zeroes)?,
        // The driver takes no other number.
        max_discard_segments: 1,
        ..Default::default()
    })
}

fn shift(key: &str, bytes: u32, at_least: u32) -> Result<u8, Error> {
    if !bytes.is_power_of_two() || bytes < at_least {
        let allowed = format!("a power of two, at least {at_least}");
        return Err(refused(key, u64::from(bytes), &allowed));
    }
    Ok(bytes.trailing_zeros() as u8)
}

fn sectors(key: &str, bytes: u32) -> Result<u32, Error> {
    if !bytes.is_multiple_of(1 << SECTOR_SHIFT) {
        return Err(refused(key, u64::from(bytes), "a multiple of 512"));
    }
    Ok(bytes >> SECTOR_SHIFT)
}

fn refused(key: &str, value: u64, allowed: &str) -> Error {
    let text = format!("the target says {key} {value} bytes; allowed: {allowed}");
    Error::new(ErrorKind::Invalid, text).hint("the target's geometry has to be mended")
}

fn nonsense(key: &str, value: u64) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the kernel says {key} {value}, which cannot be"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn power(low: u32, high: u32) -> impl Strategy<Value = u32> {
        (low..=high).prop_map(|shift| 1 << shift)
    }

    prop_compose! {
        fn any_discard(logical_shift: u32)(
            granularity in power(logical_shift, 20),
            max_discard in 0_u32..1 << 23,
            max_write_zeroes in 0_u32..1 << 23,
        ) -> Discard {
            let (max_discard, max_write_zeroes) = (max_discard << 9, max_write_zeroes << 9);
            Discard { granularity, max_discard, max_write_zeroes }
        }
    }

    fn any_params() -> impl Strategy<Value = Params> {
        (9_u32..=12).prop_flat_map(|logical| {
            let size = (1_u64..1 << 50).prop_map(move |blocks| blocks << logical);
            let io_opt = prop_oneof![Just(0), power(logical + 1, 25)];
            let sizes = (size, power(logical, 20), power(logical, 20), io_opt);
            let discard = proptest::option::of(any_discard(logical));
            let flags = (any::<bool>(), any::<bool>(), any::<bool>());
            let alignment = proptest::option::of(power(2, 12));
            (sizes, discard, flags, 8_u32..=65_536, alignment).prop_map(
                move |(sizes, discard, flags, max_sectors, memory_alignment)| {
                    let (size, physical_block, io_min, io_opt) = sizes;
                    let (volatile_cache, fua, read_only) = flags;
                    let geometry = Geometry {
                        size,
                        logical_block: 1 << logical,
                        physical_block,
                        io_min,
                        io_opt,
                        discard,
                        volatile_cache,
                        fua,
                        read_only,
                    };
                    Params { geometry, max_io: max_sectors << 9, memory_alignment }
                },
            )
        })
    }

    proptest! {
        #[test]
        fn what_is_set_is_read_back(params in any_params()) {
            let kernel = to_kernel(&params)?;
            prop_assert_eq!(from_kernel(&kernel)?, params);
        }

        #[test]
        fn f49_the_kernel_counts_in_sectors(params in any_params()) {
            let kernel = to_kernel(&params)?;
            prop_assert_eq!(kernel.basic.dev_sectors * 512, params.geometry.size);
            prop_assert_eq!(kernel.basic.max_sectors * 512, params.max_io);
        }

        #[test]
        fn the_types_word_names_what_is_set(params in any_params()) {
            let types = to_kernel(&params)?.types;
            prop_assert_eq!(types & sys::UBLK_PARAM_TYPE_BASIC, sys::UBLK_PARAM_TYPE_BASIC);
            let discard = types & sys::UBLK_PARAM_TYPE_DISCARD != 0;
            prop_assert_eq!(discard, params.geometry.discard.is_some());
            let aligned = types & sys::UBLK_PARAM_TYPE_DMA_ALIGN != 0;
            prop_assert_eq!(aligned, params.memory_alignment.is_some());
            let all = sys::UBLK_PARAM_TYPE_BASIC
                | sys::UBLK_PARAM_TYPE_DISCARD
                | sys::UBLK_PARAM_TYPE_DMA_ALIGN;
            prop_assert_eq!(types & !all, 0);
        }

        /// Whatever a kernel (or a fault) puts there, reading it must not panic.
        #[test]
        fn any_numbers_are_read_or_refused(shifts: [u8; 4], sectors: (u64, u32), types: u32) {
            let basic = ublk_param_basic {
                logical_bs_shift: shifts[0],
                physical_bs_shift: shifts[1],
                io_opt_shift: shifts[2],
                io_min_shift: shifts[3],
                dev_sectors: sectors.0,
                max_sectors: sectors.1,
                ..Default::default()
            };
            let told = KernelParams { len: LEN, types, basic, ..Default::default() };
            if let Ok(params) = from_kernel(&told) {
                prop_assert_eq!(params.geometry.size / 512, sectors.0);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let good = Geometry::new(1 << 20, 512);
        let bad = [
            ("size", Geometry { size: 513, ..good }),
            ("size", Geometry { size: 0, ..good }),
            ("logical_block", Geometry { logical_block: 256, ..good }),
            ("physical_block", Geometry { physical_block: 3000, ..good }),
            ("io_min", Geometry { io_min: 0, ..good }),
            ("io_opt", Geometry { io_opt: 513, ..good }),
        ];
        for (key, geometry) in bad {
            let error = to_kernel(&Params { geometry, max_io: 4096, memory_alignment: None })
                .expect_err(key);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(key), "{error}");
        }
        let error = to_kernel(&Params { geometry: good, max_io: 513, memory_alignment: None })
            .expect_err("max_io");
        assert!(error.to_string().contains("max_io"), "{error}");
    }
}

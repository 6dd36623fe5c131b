//! The driver's feature flags (`UBLK_F_*`): what the kernel can do, what a device has switched on.

use std::fmt;

use serde::{Serialize, Serializer};

/// A set of `UBLK_F_*` bits, as in the kernel's `ublk_cmd.h`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Features(pub u64);

macro_rules! features {
    ($($bit:literal $name:ident $word:literal $doc:literal),* $(,)?) => {
        impl Features {
            $(#[doc = $doc] pub const $name: Self = Self(1 << $bit);)*

            /// Every flag known here: bit, word, meaning.
            pub const KNOWN: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$name, $word, $doc)),*];
        }
    };
}

features! {
    0 ZERO_COPY "zero_copy" "Requests' pages can be registered as ring buffers (Linux 6.15 on).",
    1 COMP_IN_TASK "comp_in_task" "Completion in task work (internal to the kernel).",
    2 NEED_GET_DATA "need_get_data" "Write data is fetched in a step of its own.",
    3 USER_RECOVERY "user_recovery" "A device outlives its server.",
    4 USER_RECOVERY_REISSUE "user_recovery_reissue" "Requests of a dead server are issued again.",
    5 UNPRIVILEGED_DEV "unprivileged_dev" "Devices for users without rights.",
    6 CMD_IOCTL_ENCODE "cmd_ioctl_encode" "Commands are encoded as ioctls (always, for us).",
    7 USER_COPY "user_copy" "Data moves by pread and pwrite on the char device (Linux 6.5 on).",
    8 ZONED "zoned" "Zoned devices (Linux 6.6 on).",
    9 USER_RECOVERY_FAIL_IO "user_recovery_fail_io" "I/O fails while a server is missing.",
    10 UPDATE_SIZE "update_size" "A live device can change its size (Linux 6.16 on).",
    11 AUTO_BUF_REG "auto_buf_reg" "Requests' pages are registered by the kernel (Linux 6.16 on).",
    12 QUIESCE "quiesce" "A live device can be quiesced (Linux 6.16 on).",
    13 PER_IO_DAEMON "per_io_daemon" "Each tag can have a thread of its own (Linux 6.16 on).",
    14 BUF_REG_OFF_DAEMON "buf_reg_off_daemon" "Buffers can be registered by other threads.",
    15 BATCH_IO "batch_io" "One command for many requests (Linux 7.0 on).",
    16 INTEGRITY "integrity" "Integrity metadata.",
    17 SAFE_STOP_DEV "safe_stop_dev" "TRY_STOP_DEV refuses a device that is open.",
    18 NO_AUTO_PART_SCAN "no_auto_part_scan" "No partition scan at start.",
    19 SHMEM_ZC "shmem_zc" "Zero copy by shared memory.",
}

impl Features {
    /// No flag.
    pub const NONE: Self = Self(0);

    /// Whether every flag of `other` is in this set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The words of the flags in this set; unknown bits as `bit_N`.
    #[must_use]
    pub fn words(self) -> Vec<String> {
        (0..64)
            .map(|bit| Self(1 << bit))
            .filter(|flag| self.has(*flag))
            .map(|flag| match Self::KNOWN.iter().find(|known| known.0 == flag) {
                Some((_, word, _)) => (*word).to_owned(),
                None => format!("bit_{}", flag.0.trailing_zeros()),
            })
            .collect()
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} ({})", self.0, self.words().join(" "))
    }
}

impl Serialize for Features {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.words().serialize(serializer)
    }
}

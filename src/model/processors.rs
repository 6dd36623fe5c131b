//! Sets of processors, as the kernel counts and writes them.

use std::fmt;

use serde::{Serialize, Serializer};
use utoipa::ToSchema;

const WORD: usize = u64::BITS as usize;

/// A set of processors, by the kernel's numbers from 0 on. Written as the kernel does: `0-3,8`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, ToSchema)]
#[schema(value_type = String, examples("0-3,8"))]
pub struct Processors([u64; Self::MOST / WORD]);

impl Processors {
    /// Processors that a set has room for: those of the C library's `cpu_set_t`.
    pub const MOST: usize = 1024;

    /// The set whose mask is `words`: bit `n % 64` of word `n / 64` stands for processor `n`.
    #[must_use]
    pub const fn from_mask(words: [u64; Self::MOST / WORD]) -> Self {
        Self(words)
    }

    /// Whether `number` is in the set.
    #[must_use]
    pub fn has(&self, number: usize) -> bool {
        self.0.get(number / WORD).is_some_and(|word| word >> (number % WORD) & 1 == 1)
    }

    /// The numbers in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..Self::MOST).filter(|number| self.has(*number))
    }

    /// Whether none is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The processors that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.iter().filter(|number| other.has(*number)).collect()
    }
}

impl FromIterator<usize> for Processors {
    /// Numbers that a set has no room for are left out.
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::default();
        for number in numbers {
            if let Some(word) = set.0.get_mut(number / WORD) {
                *word |= 1 << (number % WORD);
            }
        }
        set
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for first in self.iter().filter(|number| *number == 0 || !self.has(number - 1)) {
            let last = (first..Self::MOST).take_while(|number| self.has(*number)).last();
            write!(f, "{comma}{first}")?;
            if let Some(last) = last.filter(|last| *last > first) {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl Serialize for Processors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_read_bit_by_bit_and_written_as_the_kernel_does() {
        let mut mask = [0; Processors::MOST / WORD];
        assert_eq!(Processors::from_mask(mask).to_string(), "");
        mask[0] = 0b1_0000_1111 | 1 << 63;
        mask[1] = 1;
        mask[15] = 1 << 63;
        let set = Processors::from_mask(mask);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 8, 63, 64, 1023]);
        assert_eq!(set.to_string(), "0-3,8,63-64,1023");
        assert_eq!(set.iter().collect::<Processors>(), set);
        assert_eq!(serde_json::to_value(set).ok(), Some("0-3,8,63-64,1023".into()));
    }

    #[test]
    fn sets_are_cut_and_know_what_they_have_no_room_for() {
        let set = |numbers: &[usize]| numbers.iter().copied().collect::<Processors>();
        assert_eq!(set(&[0, 1, 70]).and(&set(&[1, 2, 70, 71])), set(&[1, 70]));
        assert!(set(&[0]).and(&set(&[1])).is_empty());
        assert!(!set(&[1023]).is_empty() && set(&[1024]).is_empty());
        assert!(!set(&[1023]).has(1024));
    }
}

//! The traffic of a launch: wavefronts of shared memory, sectors of global memory, and bytes of copies.

use super::lanes_of;
use crate::lanes::LANES;

/// The banks of shared memory, each of words of four bytes.
const BANKS: usize = 32;
/// The bytes of a sector, in which L2 is read and written.
const SECTOR: u64 = 32;

/// Counts of a launch with [`Options::traffic`](crate::Options::traffic).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Wavefronts of shared memory: passes in which each bank reads or writes one word.
    pub wavefronts: u64,
    /// The wavefronts that the same words would take without bank conflicts.
    pub ideal_wavefronts: u64,
    /// The sectors that loads of warps read from global memory.
    pub load_sectors: u64,
    /// The sectors that stores of warps write to global memory.
    pub store_sectors: u64,
    /// The sectors that asynchronous copies of warps (`cp.async`) read.
    pub copy_sectors: u64,
    /// The bytes of bulk copies from global memory; those of a multicast count once.
    pub bulk_bytes: u64,
    /// The bytes of bulk copies to global memory.
    pub bulk_stored_bytes: u64,
}

impl Traffic {
    /// Adds the counts of other blocks.
    pub(crate) fn add(&mut self, other: &Traffic) {
        self.wavefronts += other.wavefronts;
        self.ideal_wavefronts += other.ideal_wavefronts;
        self.load_sectors += other.load_sectors;
        self.store_sectors += other.store_sectors;
        self.copy_sectors += other.copy_sectors;
        self.bulk_bytes += other.bulk_bytes;
        self.bulk_stored_bytes += other.bulk_stored_bytes;
    }

    /// Counts an access of a warp to shared memory. Of 8 bytes a lane, half a warp is served at a time, of 16 bytes a
    /// quarter.
    pub(crate) fn shared(&mut self, addresses: &[u64; LANES], mask: u32, len: usize) {
        let words = len.div_ceil(4);
        let lanes = LANES / words.next_power_of_two();
        for start in (0..LANES).step_by(lanes) {
            let active = lanes_of(mask).filter(|l| (start..start + lanes).contains(l));
            let mut touched = [0; BANKS];
            let mut count = 0;
            for word in active.flat_map(|l| (0..words).map(move |w| addresses[l] / 4 + w as u64)) {
                touched[count] = word;
                count += 1;
            }
            self.phase(&mut touched[..count]);
        }
    }

    /// Counts the words that are served at a time.
    fn phase(&mut self, words: &mut [u64]) {
        words.sort_unstable();
        let mut banks = [0; BANKS];
        let mut distinct = 0;
        for (i, word) in words.iter().enumerate() {
            if i == 0 || words[i - 1] != *word {
                banks[*word as usize % BANKS] += 1;
                distinct += 1;
            }
        }
        self.wavefronts += banks.into_iter().max().unwrap_or(0);
        self.ideal_wavefronts += u64::from(distinct > 0);
    }
}

/// The sectors of global memory that an access of a warp touches.
pub(crate) fn sectors(addresses: &[u64; LANES], mask: u32, len: usize) -> u64 {
    let mut touched = [(0, 0); LANES];
    let mut count = 0;
    for l in lanes_of(mask) {
        touched[count] = (
            addresses[l] / SECTOR,
            (addresses[l] + len as u64 - 1) / SECTOR,
        );
        count += 1;
    }
    touched[..count].sort_unstable();
    let (mut sectors, mut next) = (0, 0);
    for (first_sector, last) in &touched[..count] {
        let first_sector = next.max(*first_sector);
        sectors += (last + 1).saturating_sub(first_sector);
        next = next.max(last + 1);
    }
    sectors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wavefronts, without conflicts in the second place, of lanes at these addresses.
    fn wavefronts(len: usize, mask: u32, at: impl Fn(u64) -> u64) -> [u64; 2] {
        let mut traffic = Traffic::default();
        let at = std::array::from_fn(|l| at(l as u64));
        traffic.shared(&at, mask, len);
        [traffic.wavefronts, traffic.ideal_wavefronts]
    }

    #[test]
    fn words_of_one_bank_take_turns() {
        assert_eq!(wavefronts(4, !0, |l| 4 * l), [1, 1]);
        assert_eq!(wavefronts(4, !0, |l| 4 * (l ^ 21)), [1, 1]);
        assert_eq!(wavefronts(4, !0, |_| 64), [1, 1]);
        assert_eq!(wavefronts(4, !0, |l| 8 * l), [2, 1]);
        assert_eq!(wavefronts(4, !0, |l| 128 * l), [32, 1]);
        assert_eq!(wavefronts(4, 0x11, |l| 128 * l), [2, 1]);
        assert_eq!(wavefronts(4, 0, |l| 4 * l), [0, 0]);
        // Two elements of a word are one.
        assert_eq!(wavefronts(2, !0, |l| 2 * l), [1, 1]);
        assert_eq!(wavefronts(1, !0, |l| 128 * (l / 4) + l % 4), [8, 1]);
        // By halves and quarters of a warp.
        assert_eq!(wavefronts(8, !0, |l| 8 * l), [2, 2]);
        assert_eq!(wavefronts(16, !0, |l| 16 * l), [4, 4]);
        assert_eq!(wavefronts(16, 0xff, |l| 16 * l), [1, 1]);
        // Rows of 64 bytes, as their chunks lie, and permuted.
        assert_eq!(wavefronts(16, !0, |l| 80 * (l / 4) + 16 * (l % 4)), [8, 4]);
        let permuted = |l: u64| 64 * l + 16 * (l / 2 % 4);
        assert_eq!(wavefronts(16, 0xff, permuted), [1, 1]);
        assert_eq!(wavefronts(16, 0xff, |l| 64 * l), [4, 1]);
    }

    #[test]
    fn sectors_count_once() {
        let of = |len, mask, at: fn(u64) -> u64| {
            sectors(&std::array::from_fn(|l| at(l as u64)), mask, len)
        };
        assert_eq!(of(4, !0, |l| 4 * l), 4);
        assert_eq!(of(4, !0, |l| 4 * l + 16), 5);
        assert_eq!(of(16, !0, |l| 16 * (31 - l)), 16);
        assert_eq!(of(2, !0, |l| 64 * l), 32);
        assert_eq!(of(4, !0, |_| 100), 1);
        assert_eq!(of(8, 3, |l| 28 + 64 * l), 4);
        assert_eq!(of(4, 0, |l| l), 0);
    }
}

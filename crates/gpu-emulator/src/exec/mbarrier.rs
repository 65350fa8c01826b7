//! mbarriers: a word of shared memory that counts the arrivals and bytes of the current phase.

use super::core::Core;
use super::warp::Warp;
use super::{addresses, lanes_of};
use crate::code::Mbarrier;
use crate::fault::{FaultKind, Outcome, Raised};

/// The unpacked word: bit 63 is the phase, 62..40 the expected bytes (signed), 39..20 the arrivals of a phase, 19..0
/// the arrivals still to come.
#[derive(Copy, Clone)]
struct MbarrierState {
    phase: u64,
    bytes: i64,
    count: u64,
    pending: u64,
}

impl MbarrierState {
    fn unpack(word: u64) -> MbarrierState {
        MbarrierState {
            phase: word >> 63,
            bytes: (word << 1) as i64 >> 41,
            count: word >> 20 & 0xf_ffff,
            pending: word & 0xf_ffff,
        }
    }

    fn pack(self) -> u64 {
        self.phase << 63 | (self.bytes as u64 & 0x7f_ffff) << 40 | self.count << 20 | self.pending
    }
}

impl Core<'_> {
    pub(super) fn mbarrier_at(&self, address: u64) -> Outcome<usize> {
        let address = Self::to_shared(address);
        Self::aligned(address, 8, "mbarrier")?;
        self.shared_bounds(address, 8, "mbarrier")
    }

    fn mbarrier_word(&mut self, offset: usize) -> &mut u64 {
        // SAFETY: `offset` was checked by `mbarrier_at`, and is aligned because shared memory is.
        unsafe { &mut *self.shared_pointer(offset).cast() }
    }

    /// Counts `arrivals` and adds `bytes` to the expected bytes; ends the phase when nothing is left.
    pub fn mbarrier_update(&mut self, address: u64, arrivals: u64, bytes: i64) -> Outcome<()> {
        let offset = self.mbarrier_at(address)?;
        let word = self.mbarrier_word(offset);
        let mut state = MbarrierState::unpack(*word);
        if state.count == 0 {
            return Err(Raised::new(
                FaultKind::Misuse,
                "an mbarrier that was not initialised",
            ));
        }
        if arrivals > state.pending {
            let why = format!(
                "{arrivals} arrivals at an mbarrier that awaits {}",
                state.pending
            );
            return Err(Raised::new(FaultKind::Misuse, why));
        }
        state.pending -= arrivals;
        state.bytes += bytes;
        if state.pending == 0 && state.bytes == 0 {
            state.phase ^= 1;
            state.pending = state.count;
        }
        *word = state.pack();
        Ok(())
    }

    /// Executes an operation; `false` if it was a test that failed on some lane.
    pub fn mbarrier(&mut self, warp: &mut Warp, op: &Mbarrier, mask: u32) -> Outcome<bool> {
        let (Mbarrier::Init { at, .. }
        | Mbarrier::Invalidate { at }
        | Mbarrier::Expect { at, .. }
        | Mbarrier::Arrive { at, .. }
        | Mbarrier::Test { at, .. }) = *op;
        let addresses = addresses(&warp.registers, at);
        let mut over = 0;
        for l in lanes_of(mask) {
            let is_over = self.mbarrier_of_lane(warp, op, addresses[l], l);
            over |= u32::from(is_over.map_err(|e| e.of_lane(l))?) << l;
        }
        if let Mbarrier::Test { done, .. } = *op {
            warp.registers.set_predicate(done, over, mask);
        }
        Ok(over == mask)
    }

    /// Executes an operation for a lane; `false` if it is a test that fails.
    fn mbarrier_of_lane(
        &mut self,
        warp: &mut Warp,
        op: &Mbarrier,
        address: u64,
        l: usize,
    ) -> Outcome<bool> {
        let offset = self.mbarrier_at(address)?;
        match *op {
            Mbarrier::Init { count, .. } => {
                let count = warp.registers.word(count)[l] as u64;
                let state = MbarrierState {
                    phase: 0,
                    bytes: 0,
                    count,
                    pending: count,
                };
                *self.mbarrier_word(offset) = state.pack();
                if let Some(races) = &mut self.races {
                    races.mbarrier_init(warp.id, offset)?;
                }
                self.unfenced.push((offset, warp.id));
            }
            Mbarrier::Invalidate { .. } => *self.mbarrier_word(offset) = 0,
            Mbarrier::Expect { bytes, .. } => {
                let bytes = warp.registers.word(bytes)[l] as i64;
                self.mbarrier_update(address, 0, bytes)?;
            }
            Mbarrier::Arrive {
                state,
                count,
                bytes,
                ..
            } => {
                warp.registers.wide_mut(state)[l] = *self.mbarrier_word(offset);
                self.note_remote(warp.id, offset);
                if let Some(races) = &mut self.races {
                    races.mbarrier_use(warp.id, offset)?;
                    races.release(warp.id, offset);
                }
                let number = |slot: Option<u32>, otherwise: u32| {
                    slot.map_or(otherwise, |slot| warp.registers.word(slot)[l])
                };
                // The bytes count before the arrival, so that it can't end the phase first.
                self.mbarrier_update(address, 0, number(bytes, 0) as i64)?;
                self.mbarrier_update(address, number(count, 1) as u64, 0)?;
            }
            Mbarrier::Test { phase, parity, .. } => {
                if let Some(races) = &mut self.races {
                    races.mbarrier_use(warp.id, offset)?;
                }
                let awaited = match parity {
                    true => warp.registers.word(phase)[l] as u64 & 1,
                    false => warp.registers.wide(phase)[l] >> 63,
                };
                if MbarrierState::unpack(*self.mbarrier_word(offset)).phase == awaited {
                    return Ok(false);
                }
                if let Some(races) = &mut self.races {
                    races.acquire(warp.id, offset);
                }
            }
        }
        Ok(true)
    }
}

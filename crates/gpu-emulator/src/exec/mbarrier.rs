//! mbarriers: a word of shared memory that counts the arrivals and bytes of the current phase.

use super::access::addresses;
use super::core::Core;
use super::lanes_of;
use super::warp::Warp;
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

    fn mbarrier_word(&mut self, at: usize) -> &mut u64 {
        // SAFETY: `at` was checked by `mbarrier_at`, and is aligned because shared memory is.
        unsafe { &mut *self.shared_pointer(at).cast() }
    }

    /// Counts `arrivals` and adds `bytes` to the expected bytes; ends the phase when nothing is left.
    pub fn mbarrier_update(&mut self, address: u64, arrivals: u64, bytes: i64) -> Outcome<()> {
        let at = self.mbarrier_at(address)?;
        let word = self.mbarrier_word(at);
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
        match *op {
            Mbarrier::Init { at, count } => {
                let at = addresses(&warp.registers, at);
                for l in lanes_of(mask) {
                    let count = warp.registers.word(count)[l] as u64;
                    let at = self.mbarrier_at(at[l]).map_err(|e| e.of_lane(l))?;
                    let state = MbarrierState {
                        phase: 0,
                        bytes: 0,
                        count,
                        pending: count,
                    };
                    *self.mbarrier_word(at) = state.pack();
                    if let Some(races) = &mut self.races {
                        races.mbarrier_init(warp.id, at);
                    }
                    self.unfenced.push((at, warp.id));
                }
            }
            Mbarrier::Invalidate { at } => {
                let at = addresses(&warp.registers, at);
                for l in lanes_of(mask) {
                    let at = self.mbarrier_at(at[l]).map_err(|e| e.of_lane(l))?;
                    *self.mbarrier_word(at) = 0;
                }
            }
            Mbarrier::Expect { at, bytes } => {
                let at = addresses(&warp.registers, at);
                for l in lanes_of(mask) {
                    let bytes = warp.registers.word(bytes)[l] as i64;
                    self.mbarrier_update(at[l], 0, bytes)
                        .map_err(|e| e.of_lane(l))?;
                }
            }
            Mbarrier::Arrive {
                at,
                state,
                count,
                bytes,
            } => {
                let at = addresses(&warp.registers, at);
                for l in lanes_of(mask) {
                    let start = self.mbarrier_at(at[l]).map_err(|e| e.of_lane(l))?;
                    warp.registers.wide_mut(state)[l] = *self.mbarrier_word(start);
                    self.note_remote(warp.id, start);
                    if let Some(races) = &mut self.races {
                        races
                            .mbarrier_use(warp.id, start)
                            .map_err(|e| e.of_lane(l))?;
                        races.release(warp.id, start);
                    }
                    let number = |slot: Option<u32>, otherwise: u32| {
                        slot.map_or(otherwise, |slot| warp.registers.word(slot)[l])
                    };
                    let (arrivals, bytes) = (number(count, 1) as u64, number(bytes, 0) as i64);
                    // The bytes count before the arrival, so that it can't end the phase first.
                    self.mbarrier_update(at[l], 0, bytes)
                        .map_err(|e| e.of_lane(l))?;
                    self.mbarrier_update(at[l], arrivals, 0)
                        .map_err(|e| e.of_lane(l))?;
                }
            }
            Mbarrier::Test {
                at,
                done,
                phase,
                parity,
            } => {
                let at = addresses(&warp.registers, at);
                let mut over = 0;
                for l in lanes_of(mask) {
                    let start = self.mbarrier_at(at[l]).map_err(|e| e.of_lane(l))?;
                    if let Some(races) = &mut self.races {
                        races
                            .mbarrier_use(warp.id, start)
                            .map_err(|e| e.of_lane(l))?;
                    }
                    let awaited = match parity {
                        true => warp.registers.word(phase)[l] as u64 & 1,
                        false => warp.registers.wide(phase)[l] >> 63,
                    };
                    if MbarrierState::unpack(*self.mbarrier_word(start)).phase != awaited {
                        over |= 1 << l;
                        if let Some(races) = &mut self.races {
                            races.acquire(warp.id, start);
                        }
                    }
                }
                warp.registers.set_predicate(done, over, mask);
                return Ok(over == mask);
            }
        }
        Ok(true)
    }
}

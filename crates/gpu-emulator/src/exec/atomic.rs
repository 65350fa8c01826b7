//! Atomics, on host atomics so that blocks may run in parallel.

use super::access::addresses;
use super::core::Core;
use super::lanes_of;
use super::races::Kind;
use super::warp::Warp;
use crate::code::{Atomic, AtomicOp};
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::ptx::{Space, Type};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// True if PTX has this atomic of this type.
pub(crate) fn is_atomic(op: AtomicOp, ty: Type) -> bool {
    use AtomicOp::*;
    match ty {
        Type::U32 => true,
        Type::S32 => matches!(op, Add | Min | Max),
        Type::U64 => !matches!(op, Increment | Decrement),
        Type::S64 => matches!(op, Add | Min | Max),
        Type::F32 | Type::F64 | Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => op == Add,
        Type::U16 => matches!(op, CompareExchange | Exchange),
        _ => false,
    }
}

/// The new value of 64 bits.
fn combine64(op: AtomicOp, ty: Type, old: u64, a: u64, b: u64) -> u64 {
    let signed = ty == Type::S64;
    match op {
        AtomicOp::Add if ty == Type::F64 => (f64::from_bits(old) + f64::from_bits(a)).to_bits(),
        AtomicOp::Add => old.wrapping_add(a),
        AtomicOp::Min if signed => (old as i64).min(a as i64) as u64,
        AtomicOp::Max if signed => (old as i64).max(a as i64) as u64,
        AtomicOp::Min => old.min(a),
        AtomicOp::Max => old.max(a),
        AtomicOp::And => old & a,
        AtomicOp::Or => old | a,
        AtomicOp::Xor => old ^ a,
        AtomicOp::Exchange => a,
        AtomicOp::CompareExchange if old == a => b,
        _ => old,
    }
}

/// The new value of 32 bits, and the result of a `redux`.
pub(super) fn combine32(op: AtomicOp, ty: Type, old: u32, a: u32, b: u32) -> u32 {
    let signed = ty == Type::S32;
    match op {
        AtomicOp::Add => add32(ty, old, a),
        AtomicOp::Min if signed => (old as i32).min(a as i32) as u32,
        AtomicOp::Max if signed => (old as i32).max(a as i32) as u32,
        AtomicOp::Min => old.min(a),
        AtomicOp::Max => old.max(a),
        AtomicOp::And => old & a,
        AtomicOp::Or => old | a,
        AtomicOp::Xor => old ^ a,
        AtomicOp::Exchange => a,
        AtomicOp::CompareExchange => {
            if old == a {
                b
            } else {
                old
            }
        }
        AtomicOp::Increment => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
    }
}

fn add32(ty: Type, x: u32, y: u32) -> u32 {
    match ty {
        Type::F32 => (f32::from_bits(x) + f32::from_bits(y)).to_bits(),
        Type::F16 => f32_to_f16(f16_to_f32(x) + f16_to_f32(y)),
        Type::Bf16 => f32_to_bf16(bf16_to_f32(x) + bf16_to_f32(y)),
        Type::F16x2 => add32(Type::F16, x, y) | add32(Type::F16, x >> 16, y >> 16) << 16,
        Type::Bf16x2 => {
            add32(Type::Bf16, x & 0xffff, y & 0xffff) | add32(Type::Bf16, x >> 16, y >> 16) << 16
        }
        _ => x.wrapping_add(y),
    }
}

impl Core<'_> {
    /// Executes an atomic, lane after lane.
    pub fn atomic(&mut self, warp: &mut Warp, atomic: &Atomic, mask: u32) -> Outcome<()> {
        let at = addresses(&warp.registers, atomic.address);
        for l in lanes_of(mask) {
            let pointer = self
                .atomic_pointer(warp.id, atomic, at[l])
                .map_err(|e| e.of_lane(l))?;
            // SAFETY: the pointer is valid for the type's size and aligned to it.
            unsafe { apply(warp, atomic, pointer, l) };
        }
        Ok(())
    }

    fn atomic_pointer(&mut self, warp: usize, atomic: &Atomic, at: u64) -> Outcome<*mut u8> {
        let len = atomic.ty.size();
        let (space, at) = match atomic.space {
            Space::Generic => Self::narrow(at),
            space => (space, at),
        };
        Self::aligned(at, len, "atomic")?;
        match space {
            Space::Global => self.global_atomic(at, len),
            Space::Shared => {
                let start = self.shared_bounds(at, len, "atomic")?;
                self.note_remote(warp, start);
                if let Some(races) = &mut self.races {
                    races.access(warp, start, len, Kind::Atomic)?;
                }
                Ok(self.shared_pointer(start))
            }
            _ => Err(Raised::new(FaultKind::Misuse, "an atomic on local memory")),
        }
    }
}

/// Applies the atomic for one lane.
///
/// # Safety
/// `pointer` is valid and aligned.
unsafe fn apply(warp: &mut Warp, atomic: &Atomic, pointer: *mut u8, lane: usize) {
    let (op, ty) = (atomic.op, atomic.ty);
    const ORDER: Ordering = Ordering::AcqRel;
    if ty.is_wide() {
        let (a, b) = (
            warp.registers.wide(atomic.a)[lane],
            warp.registers.wide(atomic.b)[lane],
        );
        // SAFETY: as the caller promises.
        let cell = unsafe { AtomicU64::from_ptr(pointer.cast()) };
        let update = |old| Some(combine64(op, ty, old, a, b));
        let old = cell
            .fetch_update(ORDER, Ordering::Acquire, update)
            .unwrap_or_else(|old| old);
        warp.registers.wide_mut(atomic.d)[lane] = old;
        return;
    }
    let (a, b) = (
        warp.registers.word(atomic.a)[lane],
        warp.registers.word(atomic.b)[lane],
    );
    let old = if ty.size() == 4 {
        // SAFETY: as the caller promises.
        let cell = unsafe { AtomicU32::from_ptr(pointer.cast()) };
        let update = |old| Some(combine32(op, ty, old, a, b));
        cell.fetch_update(ORDER, Ordering::Acquire, update)
            .unwrap_or_else(|old| old)
    } else {
        // Half of an aligned word; storage is made of whole words.
        let shift = 8 * (pointer as usize & 2);
        // SAFETY: as above.
        let cell = unsafe { AtomicU32::from_ptr(pointer.sub(pointer as usize & 2).cast()) };
        let update = |word: u32| {
            let new = combine32(op, ty, word >> shift & 0xffff, a & 0xffff, b & 0xffff);
            Some(word & !(0xffff << shift) | (new & 0xffff) << shift)
        };
        let word = cell
            .fetch_update(ORDER, Ordering::Acquire, update)
            .unwrap_or_else(|old| old);
        word >> shift & 0xffff
    };
    warp.registers.word_mut(atomic.d)[lane] = old;
}

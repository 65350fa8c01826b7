//! Atomics, on host atomics so that blocks may run in parallel.

use super::core::Core;
use super::warp::Warp;
use super::{AccessKind, addresses, lanes_of};
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

macro_rules! combine {
    ($name:ident, $unsigned:ty, $signed:ty, $signed_type:pat, $add:ident) => {
        pub(super) fn $name(
            op: AtomicOp,
            ty: Type,
            old: $unsigned,
            a: $unsigned,
            b: $unsigned,
        ) -> $unsigned {
            let signed = matches!(ty, $signed_type);
            match op {
                AtomicOp::Add => $add(ty, old, a),
                AtomicOp::Min if signed => (old as $signed).min(a as $signed) as $unsigned,
                AtomicOp::Max if signed => (old as $signed).max(a as $signed) as $unsigned,
                AtomicOp::Min => old.min(a),
                AtomicOp::Max => old.max(a),
                AtomicOp::And => old & a,
                AtomicOp::Or => old | a,
                AtomicOp::Xor => old ^ a,
                AtomicOp::Exchange => a,
                AtomicOp::CompareExchange if old == a => b,
                AtomicOp::CompareExchange => old,
                AtomicOp::Increment if old >= a => 0,
                AtomicOp::Increment => old + 1,
                AtomicOp::Decrement if old == 0 || old > a => a,
                AtomicOp::Decrement => old - 1,
            }
        }
    };
}
// The new value of a word, which is the result of a `redux` too, and of a double word.
combine!(combine32, u32, i32, Type::S32, add32);
combine!(combine64, u64, i64, Type::S64, add64);

fn add64(ty: Type, x: u64, y: u64) -> u64 {
    match ty {
        Type::F64 => (f64::from_bits(x) + f64::from_bits(y)).to_bits(),
        _ => x.wrapping_add(y),
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
        let addresses = addresses(&warp.registers, atomic.address);
        for l in lanes_of(mask) {
            let pointer = self
                .atomic_pointer(warp.id, atomic, addresses[l])
                .map_err(|e| e.of_lane(l))?;
            // SAFETY: the pointer is valid for the type's size and aligned to it.
            unsafe { apply(warp, atomic, pointer, l) };
        }
        Ok(())
    }

    fn atomic_pointer(&mut self, warp: usize, atomic: &Atomic, address: u64) -> Outcome<*mut u8> {
        let len = atomic.ty.size();
        let (space, address) = match atomic.space {
            Space::Generic => Self::narrow(address),
            space => (space, address),
        };
        Self::aligned(address, len, "atomic")?;
        match space {
            Space::Global => self.global_access(address, len, "atomic", AccessKind::Atomic),
            Space::Shared => self.shared_access(warp, address, len, "atomic", AccessKind::Atomic),
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
    if ty.is_wide() {
        let [a, b] = [atomic.a, atomic.b].map(|slot| warp.registers.wide(slot)[lane]);
        // SAFETY: as the caller promises.
        let cell = unsafe { AtomicU64::from_ptr(pointer.cast()) };
        let update = |old| Some(combine64(op, ty, old, a, b));
        let old = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        warp.registers.wide_mut(atomic.d)[lane] = old.unwrap_or_else(|old| old);
        return;
    }
    let [a, b] = [atomic.a, atomic.b].map(|slot| warp.registers.word(slot)[lane]);
    // Values of 16 bits are half of an aligned word; storage is made of whole words.
    let (half, mask) = match ty.size() {
        4 => (0, !0),
        _ => (pointer as usize & 2, 0xffff),
    };
    let shift = 8 * half;
    // SAFETY: as above.
    let cell = unsafe { AtomicU32::from_ptr(pointer.sub(half).cast()) };
    let update = |word: u32| {
        let new = combine32(op, ty, word >> shift & mask, a & mask, b & mask);
        Some(word & !(mask << shift) | (new & mask) << shift)
    };
    let old = cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
    warp.registers.word_mut(atomic.d)[lane] = old.unwrap_or_else(|old| old) >> shift & mask;
}

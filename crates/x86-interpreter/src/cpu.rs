//! Registers and the operands of instructions.

use crate::fault::{FaultKind, Outcome, raise};
use crate::memory::Memory;
use crate::step::{Address, Index, OperandLocation, Step};
use crate::tile::Tile;
use crate::vector::{Lane, Vector};

/// The number of the stack pointer.
pub(crate) const RSP: usize = 4;

/// The registers of the first six arguments: `RDI`, `RSI`, `RDX`, `RCX`, `R8`, `R9`.
pub(crate) const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];

/// The contents of a register that no code may rely on: no mapped address.
fn unspecified(register: usize) -> u64 {
    0xDEAD_BEEF_0000_0000 + register as u64
}

const UNSPECIFIED_VECTORS: [Vector; 32] = [Vector([0xFF; 64]); 32];
const UNSPECIFIED_MASKS: [u64; 8] = [0xA5A5_A5A5_A5A5_A5A5; 8];

/// The flags that conditions test; `None` where an instruction leaves one undefined.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Flags {
    pub carry: Option<bool>,
    pub parity: Option<bool>,
    pub zero: Option<bool>,
    pub sign: Option<bool>,
    pub overflow: Option<bool>,
}

impl Flags {
    pub const CLEARED: Flags = Flags {
        carry: Some(false),
        parity: Some(false),
        zero: Some(false),
        sign: Some(false),
        overflow: Some(false),
    };
}

pub(crate) struct Cpu<'m, 'a> {
    pub gprs: [u64; 16],
    pub vectors: [Vector; 32],
    pub masks: [u64; 8],
    /// The tiles while they are configured.
    pub tiles: Option<[Option<Tile>; 8]>,
    pub flags: Flags,
    /// The address of the next instruction.
    pub next: u64,
    pub memory: &'m mut Memory<'a>,
    /// The functions that the code may call.
    pub functions: &'m [Function],
}

/// The effect of an instruction.
pub(crate) type Action = fn(&mut Cpu, &Step) -> Outcome<()>;

/// A function with up to six integers or addresses as arguments.
pub type Function = unsafe extern "sysv64" fn(u64, u64, u64, u64, u64, u64) -> u64;

impl<'m, 'a> Cpu<'m, 'a> {
    /// A processor whose registers hold values that no code should rely on.
    pub fn new(memory: &'m mut Memory<'a>, functions: &'m [Function]) -> Cpu<'m, 'a> {
        Cpu {
            gprs: std::array::from_fn(unspecified),
            vectors: UNSPECIFIED_VECTORS,
            masks: UNSPECIFIED_MASKS,
            tiles: None,
            flags: Flags::default(),
            next: 0,
            memory,
            functions,
        }
    }

    /// Calls a function of this process. Afterwards the caller-saved registers are unspecified.
    pub fn call(&mut self, to: u64) -> Outcome<()> {
        if !self.gprs[RSP].is_multiple_of(16) {
            let message = format!(
                "rsp is {:#x} at a call, not a multiple of 16",
                self.gprs[RSP]
            );
            return raise(FaultKind::Misaligned, message);
        }
        let Some(f) = self.functions.iter().find(|f| **f as usize as u64 == to) else {
            let message = format!("a call of {to:#x}, which is no registered function");
            return raise(FaultKind::NotCode, message);
        };
        // The call pushes the return address: a fault if the stack ends there.
        self.push(self.next)?;
        self.gprs[RSP] += 8;
        let [a, b, c, d, e, g] = ARGUMENTS.map(|r| self.gprs[r]);
        // SAFETY: whoever registered the function guarantees that the code may call it with these arguments.
        let result = unsafe { f(a, b, c, d, e, g) };
        for r in [1, 2, 6, 7, 8, 9, 10, 11] {
            self.gprs[r] = unspecified(r);
        }
        self.gprs[0] = result;
        (self.vectors, self.masks) = (UNSPECIFIED_VECTORS, UNSPECIFIED_MASKS);
        self.flags = Flags::default();
        Ok(())
    }

    pub fn push(&mut self, x: u64) -> Outcome<()> {
        let at = self.gprs[RSP].wrapping_sub(8);
        self.memory.write(at, &x.to_le_bytes())?;
        self.gprs[RSP] = at;
        Ok(())
    }

    pub fn pop(&mut self) -> Outcome<u64> {
        let mut bytes = [0; 8];
        self.memory.read(self.gprs[RSP], &mut bytes)?;
        self.gprs[RSP] = self.gprs[RSP].wrapping_add(8);
        Ok(u64::from_le_bytes(bytes))
    }

    /// The address of an operand in memory.
    pub fn address(&self, m: &Address) -> u64 {
        let index = match m.index {
            Index::Gpr(r) => self.gprs[r].wrapping_mul(m.scale),
            _ => 0,
        };
        let base = m.base.map_or(0, |r| self.gprs[r]);
        base.wrapping_add(index).wrapping_add(m.displacement)
    }

    /// Faults unless the address of an operand in memory is a multiple of its size.
    pub fn check_aligned(&self, step: &Step, i: usize) -> Outcome<()> {
        if let OperandLocation::Memory(m) = &step.operands[i] {
            let address = self.address(m);
            if !address.is_multiple_of(m.bytes as u64) {
                let message = format!("{address:#x} is not a multiple of {}", m.bytes);
                return raise(FaultKind::Misaligned, message);
            }
        }
        Ok(())
    }

    /// An operand of up to 64 bits.
    pub fn value(&self, step: &Step, i: usize) -> Outcome<u64> {
        Ok(match &step.operands[i] {
            OperandLocation::Gpr(r, bytes) => self.gprs[*r] & ones(8 * bytes),
            OperandLocation::Vector(r, _) => self.vectors[*r].get(0),
            OperandLocation::Mask(k) => self.masks[*k],
            OperandLocation::Memory(m) => {
                let mut bytes = [0; 8];
                self.memory
                    .read(self.address(m), &mut bytes[..m.bytes.min(8)])?;
                u64::from_le_bytes(bytes)
            }
            OperandLocation::Immediate(n) | OperandLocation::Branch(n) => *n,
            OperandLocation::None | OperandLocation::Tile(_) => 0,
        })
    }

    /// Writes an operand of up to 64 bits; writing 32 bits of a register clears its upper half.
    pub fn set_value(&mut self, step: &Step, i: usize, x: u64) -> Outcome<()> {
        match step.operands[i] {
            OperandLocation::Gpr(r, bytes) => {
                let kept = if bytes < 4 { !ones(8 * bytes) } else { 0 };
                self.gprs[r] = self.gprs[r] & kept | x & ones(8 * bytes);
            }
            OperandLocation::Vector(r, _) => self.vectors[r] = Vector::from(1, |_| x),
            OperandLocation::Mask(k) => self.masks[k] = x,
            OperandLocation::Memory(m) => {
                let address = self.address(&m);
                self.memory
                    .write(address, &x.to_le_bytes()[..m.bytes.min(8)])?;
            }
            _ => {}
        }
        Ok(())
    }

    /// `operand 0 = f(operand i)`, for operands of up to 64 bits.
    pub fn apply(&mut self, step: &Step, i: usize, f: impl Fn(u64) -> u64) -> Outcome<()> {
        let x = f(self.value(step, i)?);
        self.set_value(step, 0, x)
    }

    /// The active lanes of an instruction, one bit each.
    pub fn active(&self, step: &Step) -> u64 {
        step.mask.map_or(!0, |k| self.masks[k])
    }

    /// A whole vector operand.
    pub fn vector(&self, step: &Step, i: usize) -> Outcome<Vector> {
        self.lanes::<u8>(step, i, !0)
    }

    /// The active lanes of a vector operand: only these are read from memory.
    pub fn lanes<T: Lane>(&self, step: &Step, i: usize, active: u64) -> Outcome<Vector> {
        match &step.operands[i] {
            OperandLocation::Memory(m) => self.load::<T>(m, active),
            OperandLocation::Vector(r, _) => Ok(self.vectors[*r]),
            _ => self.value(step, i).map(|x| Vector::from(1, |_| x)),
        }
    }

    fn load<T: Lane>(&self, m: &Address, active: u64) -> Outcome<Vector> {
        let address = self.address(m);
        let mut v = Vector::ZERO;
        if let Some(bytes) = m.spread {
            let lanes = bytes / m.bytes;
            if active & ones(lanes) != 0 {
                let (one, rest) = v.0.split_at_mut(m.bytes);
                self.memory.read(address, one)?;
                let rest = rest[..bytes - m.bytes].chunks_exact_mut(m.bytes);
                rest.for_each(|lane| lane.copy_from_slice(one));
            }
            return Ok(v);
        }
        let count = m.bytes / T::SIZE;
        if count == 0 || active & ones(count) == ones(count) {
            self.memory.read(address, &mut v.0[..m.bytes])?;
            return Ok(v);
        }
        for i in (0..count).filter(|i| active >> i & 1 == 1) {
            let at = address.wrapping_add((i * T::SIZE) as u64);
            self.memory.read(at, &mut v.0[i * T::SIZE..][..T::SIZE])?;
        }
        Ok(v)
    }

    /// Writes the first `count` lanes of a vector as the result. In memory, only the active lanes are written. In a
    /// register, inactive lanes are masked by zeros or merged, and everything after `count` lanes becomes 0.
    pub fn set_lanes<T: Lane>(&mut self, step: &Step, v: &Vector, count: usize) -> Outcome<()> {
        self.set_lanes_masked::<T>(step, v, count, self.active(step))
    }

    /// Writes lanes as [`Self::set_lanes`] does, with an explicit mask.
    pub fn set_lanes_masked<T: Lane>(
        &mut self,
        step: &Step,
        v: &Vector,
        count: usize,
        active: u64,
    ) -> Outcome<()> {
        match step.operands[0] {
            OperandLocation::Vector(r, _) => {
                let before = self.vectors[r];
                self.vectors[r] = Vector::from(count, |i| match active >> i & 1 {
                    1 => v.get::<T>(i),
                    _ if step.clears => T::all(false),
                    _ => before.get(i),
                });
            }
            OperandLocation::Memory(m) => {
                let address = self.address(&m);
                if active & ones(count) == ones(count) {
                    return self.memory.write(address, &v.0[..count * T::SIZE]);
                }
                for i in (0..count).filter(|i| active >> i & 1 == 1) {
                    let at = address.wrapping_add((i * T::SIZE) as u64);
                    self.memory.write(at, &v.0[i * T::SIZE..][..T::SIZE])?;
                }
            }
            _ => return raise(FaultKind::Unknown, "the result is not a vector"),
        }
        Ok(())
    }
}

/// The `bits` low bits, all set.
pub(crate) fn ones(bits: usize) -> u64 {
    u64::MAX
        .checked_shr(64u32.saturating_sub(bits as u32))
        .unwrap_or(0)
}

//! Loads, stores and atomics.

use super::{Decoder, Result};
use crate::code::{Access, Atomic, AtomicOp, Constant, Op};
use crate::exec::BLOCK_SHIFT;
use crate::lanes::{Slot, integer, moves};
use crate::ptx::{Operand, Space, Type};

impl Decoder<'_> {
    /// Decodes a load, a store or an atomic operation.
    pub(super) fn memory(&mut self) -> Result<()> {
        self.opcode.ignore_hints();
        match self.opcode.name {
            "ld" | "ldu" => self.load(),
            "st" => self.store(),
            _ => self.atomic(),
        }
    }

    /// Decodes `mapa`: the address of the same place in the shared memory of a block of the cluster.
    pub(super) fn map_shared(&mut self) -> Result<()> {
        if (self.opcode.space(), self.opcode.ty()?) != (Space::Shared, Type::U32) {
            return Err("generic addresses of a cluster".into());
        }
        let a = self.source(1, Type::U32)?;
        let rank = self.source(2, Type::U32)?;
        let d = self.destination(0, Type::U32)?;
        let block = self.constant(Constant::Value(1 << BLOCK_SHIFT), false);
        let low = self.fresh(false);
        let add = integer::pick_binary("add", Type::U32, false).ok_or("no sums")?;
        let mad = integer::pick_ternary("mad.lo", Type::U32).ok_or("no products")?;
        self.lanes(add, low, [a, block, a], 0);
        self.lanes(mad, d, [rank, block, low], 0);
        Ok(())
    }

    /// Records the size of an access that may be to shared memory.
    fn note_shared(&mut self, space: Space, bytes: usize) {
        if matches!(space, Space::Shared | Space::Generic) {
            self.kernel.shared_granule = self.kernel.shared_granule.min(bytes);
        }
    }

    /// Space, count and type of a load or store.
    fn shape(&mut self) -> Result<(Space, usize, Type)> {
        let space = self.opcode.space();
        let count = self.opcode.choose(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
        let ty = self.opcode.ty()?;
        self.note_shared(space, count * ty.size());
        Ok((space, count, ty))
    }

    fn load(&mut self) -> Result<()> {
        let (space, count, ty) = self.shape()?;
        let slots = self.destinations(0, ty)?;
        if slots.len() != count {
            return Err("the number of registers is not that of the opcode".into());
        }
        if let (Space::Param, Some(start)) = (space, self.kernel_parameter(self.operand(1)?)) {
            for (i, d) in slots.into_iter().enumerate() {
                let parameter = Constant::Parameter {
                    offset: start + (i * ty.size()) as u32,
                    size: ty.size() as u8,
                    signed: ty.is_signed(),
                };
                let a = self.constant(parameter, ty.is_wide());
                self.lanes(moves::copy(ty.is_wide()), d, [a; 3], 0);
            }
            return Ok(());
        }
        let access = self.access(1, space, ty, slots)?;
        self.push(Op::Load(access));
        Ok(())
    }

    fn store(&mut self) -> Result<()> {
        let (space, count, ty) = self.shape()?;
        let slots = self.sources(1, ty)?;
        if slots.len() != count {
            return Err("the number of registers is not that of the opcode".into());
        }
        let access = self.access(0, space, ty, slots)?;
        self.push(Op::Store(access));
        Ok(())
    }

    /// The offset of `[parameter + 4]`, if it is a parameter of the kernel.
    fn kernel_parameter(&self, o: &Operand) -> Option<u32> {
        let Operand::Address(base, offset) = o else {
            return None;
        };
        let Operand::Symbol(name, _) = &**base else {
            return None;
        };
        if self.frame.locals.contains_key(name) {
            return None;
        }
        let base = *self.parameters.get(name.as_str())?;
        Some((base as i64 + offset) as u32)
    }

    fn access(&mut self, index: usize, space: Space, ty: Type, slots: Vec<Slot>) -> Result<Access> {
        let mut registers = [0; 4];
        registers[..slots.len()].copy_from_slice(&slots);
        // Arguments of a call are in local memory.
        let is_argument = match self.operand(index)? {
            Operand::Address(base, _) => {
                matches!(&**base, Operand::Symbol(name, _) if self.frame.locals.contains_key(name))
            }
            _ => false,
        };
        Ok(Access {
            space: match space {
                Space::Param if is_argument => Space::Local,
                space => space,
            },
            address: self.address(index)?,
            size: ty.size() as u8,
            count: slots.len() as u8,
            signed: ty.is_signed(),
            registers,
        })
    }

    fn atomic(&mut self) -> Result<()> {
        let space = self.opcode.space();
        let op = self
            .opcode
            .choose(&ATOMIC_OPS)
            .ok_or("unsupported operation")?;
        self.opcode.skip(&["noftz"]);
        let ty = self.opcode.ty()?;
        if !crate::exec::is_atomic(op, ty) {
            return Err("unsupported form".into());
        }
        self.note_shared(space, ty.size());
        self.kernel.has_global_atomics |= matches!(space, Space::Global | Space::Generic);
        // `red` has no destination.
        let (d, address_index) = match self.opcode.name {
            "red" => (self.fresh(ty.is_wide()), 0),
            _ => (self.destination(0, ty)?, 1),
        };
        let a = self.source(address_index + 1, ty)?;
        let atomic = Atomic {
            op,
            ty,
            space,
            address: self.address(address_index)?,
            d,
            a,
            b: match op {
                AtomicOp::CompareExchange => self.source(address_index + 2, ty)?,
                _ => a,
            },
        };
        self.push(Op::Atomic(Box::new(atomic)));
        Ok(())
    }
}

/// The operations of atomics and of `redux`.
pub(super) const ATOMIC_OPS: [(&str, AtomicOp); 10] = [
    ("add", AtomicOp::Add),
    ("min", AtomicOp::Min),
    ("max", AtomicOp::Max),
    ("and", AtomicOp::And),
    ("or", AtomicOp::Or),
    ("xor", AtomicOp::Xor),
    ("exch", AtomicOp::Exchange),
    ("cas", AtomicOp::CompareExchange),
    ("inc", AtomicOp::Increment),
    ("dec", AtomicOp::Decrement),
];

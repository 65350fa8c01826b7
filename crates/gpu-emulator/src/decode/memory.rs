//! Loads, stores and atomics.

use super::opcode::Opcode;
use super::operand::operand;
use super::{Decoder, Frame, Result};
use crate::code::{Access, Atomic, AtomicOp, Constant, Op};
use crate::exec::BLOCK_SHIFT;
use crate::lanes::{Operands, integer, moves};
use crate::ptx::{Operand, Space, Type};

impl<'m> Decoder<'m> {
    /// Decodes a load, a store or an atomic operation.
    pub(super) fn memory(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
    ) -> Result<()> {
        opcode.ignore_hints();
        match opcode.name {
            "ld" | "ldu" => self.load(frame, opcode, o),
            "st" => self.store(frame, opcode, o),
            _ => self.atomic(frame, opcode, o),
        }
    }

    /// The space that an opcode names.
    pub(super) fn space(&mut self, opcode: &Opcode) -> Space {
        opcode
            .take(|part| {
                Some(match part {
                    "global" | "const" => Space::Global,
                    "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
                    "local" => Space::Local,
                    "param" | "param::entry" | "param::func" => Space::Param,
                    _ => return None,
                })
            })
            .unwrap_or(Space::Generic)
    }

    /// Decodes `mapa`: the address of the same place in the shared memory of a block of the cluster.
    pub(super) fn map_shared(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
    ) -> Result<()> {
        if (self.space(opcode), opcode.ty()?) != (Space::Shared, Type::U32) {
            return Err("generic addresses of a cluster".into());
        }
        let a = self.source(frame, operand(o, 1)?, Type::U32)?;
        let rank = self.source(frame, operand(o, 2)?, Type::U32)?;
        let d = self.destination(frame, operand(o, 0)?, Type::U32)?;
        let block = self.constant(Constant::Value(1 << BLOCK_SHIFT), false);
        let first = self.fresh(false);
        let (add, mad) = (
            integer::pick_binary("add", Type::U32, false),
            integer::pick_ternary("mad.lo", Type::U32),
        );
        let (add, mad) = (add.ok_or("no sums")?, mad.ok_or("no products")?);
        let sum = Operands {
            d: first,
            a,
            b: block,
            c: a,
            x: 0,
        };
        self.lanes(add, sum);
        let place = Operands {
            d,
            a: rank,
            b: block,
            c: first,
            x: 0,
        };
        self.lanes(mad, place);
        Ok(())
    }

    /// Records the size of an access that may be to shared memory.
    fn note_shared(&mut self, space: Space, bytes: usize) {
        if matches!(space, Space::Shared | Space::Generic) {
            self.shared_granule = self.shared_granule.min(bytes);
        }
    }

    /// Space, count and type of a load or store.
    fn shape(&mut self, opcode: &Opcode) -> Result<(Space, usize, Type)> {
        let space = self.space(opcode);
        let count = opcode.take(|part| match part {
            "v2" => Some(2),
            "v4" => Some(4),
            _ => None,
        });
        let (count, ty) = (count.unwrap_or(1), opcode.ty()?);
        self.note_shared(space, count * ty.size());
        Ok((space, count, ty))
    }

    fn load(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let (space, count, ty) = self.shape(opcode)?;
        let slots = self.destinations(frame, operand(o, 0)?, ty)?;
        if slots.len() != count {
            return Err("the number of registers is not that of the opcode".into());
        }
        if let (Space::Param, Some(start)) = (space, self.kernel_parameter(frame, operand(o, 1)?)) {
            for (i, d) in slots.into_iter().enumerate() {
                let offset = start + (i * ty.size()) as u32;
                let (size, signed) = (ty.size() as u8, ty.is_signed());
                let a = self.constant(
                    Constant::Parameter {
                        offset,
                        size,
                        signed,
                    },
                    ty.is_wide(),
                );
                self.lanes(
                    moves::copy(ty.is_wide()),
                    Operands {
                        d,
                        a,
                        b: a,
                        c: a,
                        x: 0,
                    },
                );
            }
            return Ok(());
        }
        let access = self.access(frame, operand(o, 1)?, space, ty, slots)?;
        self.push(Op::Load(access));
        Ok(())
    }

    fn store(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let (space, count, ty) = self.shape(opcode)?;
        let slots = self.sources(frame, operand(o, 1)?, ty)?;
        if slots.len() != count {
            return Err("the number of registers is not that of the opcode".into());
        }
        let access = self.access(frame, operand(o, 0)?, space, ty, slots)?;
        self.push(Op::Store(access));
        Ok(())
    }

    /// The offset of `[parameter + 4]`, if it is a parameter of the kernel.
    fn kernel_parameter(&self, frame: &Frame, o: &Operand) -> Option<u32> {
        let Operand::Address(base, offset) = o else {
            return None;
        };
        let Operand::Symbol(name, _) = &**base else {
            return None;
        };
        if frame.locals.contains_key(name) {
            return None;
        }
        let at = *self.parameters.get(name.as_str())?;
        Some((at as i64 + offset) as u32)
    }

    fn access(
        &mut self,
        frame: &mut Frame,
        o: &Operand,
        space: Space,
        ty: Type,
        slots: Vec<u32>,
    ) -> Result<Access> {
        let mut registers = [0; 4];
        registers[..slots.len()].copy_from_slice(&slots);
        // Arguments of a call are in local memory.
        let is_argument = match o {
            Operand::Address(base, _) => {
                matches!(&**base, Operand::Symbol(name, _) if frame.locals.contains_key(name))
            }
            _ => false,
        };
        let space = if space == Space::Param && is_argument {
            Space::Local
        } else {
            space
        };
        Ok(Access {
            space,
            address: self.address(frame, o)?,
            size: ty.size() as u8,
            count: slots.len() as u8,
            signed: ty.is_signed(),
            registers,
        })
    }

    fn atomic(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let space = self.space(opcode);
        let op = opcode.take(atomic_op).ok_or("unsupported operation")?;
        let _ = opcode.accept("noftz");
        let ty = opcode.ty()?;
        self.note_shared(space, ty.size());
        self.has_global_atomics |= matches!(space, Space::Global | Space::Generic);
        // `red` has no destination.
        let (d, o) = match opcode.name {
            "red" => (self.fresh(ty.is_wide()), o),
            _ => (
                self.destination(frame, operand(o, 0)?, ty)?,
                o.get(1..).unwrap_or(&[]),
            ),
        };
        let address = self.address(frame, operand(o, 0)?)?;
        let a = self.source(frame, operand(o, 1)?, ty)?;
        let b = match op {
            AtomicOp::CompareExchange => self.source(frame, operand(o, 2)?, ty)?,
            _ => a,
        };
        if !crate::exec::is_atomic(op, ty) {
            return Err("unsupported form".into());
        }
        self.push(Op::Atomic(Box::new(Atomic {
            op,
            ty,
            space,
            address,
            d,
            a,
            b,
        })));
        Ok(())
    }
}

/// The operation of an atomic or a reduction.
pub(super) fn atomic_op(part: &str) -> Option<AtomicOp> {
    Some(match part {
        "add" => AtomicOp::Add,
        "min" => AtomicOp::Min,
        "max" => AtomicOp::Max,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        "xor" => AtomicOp::Xor,
        "exch" => AtomicOp::Exchange,
        "cas" => AtomicOp::CompareExchange,
        "inc" => AtomicOp::Increment,
        "dec" => AtomicOp::Decrement,
        _ => return None,
    })
}

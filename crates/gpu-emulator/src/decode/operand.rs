//! Operands → slots, predicates and addresses.

use super::{Decoder, Result};
use crate::code::{Address, Constant, Op, Special};
use crate::lanes::{ALWAYS, NEVER, Operands, Predicate, Slot, UNUSED, convert, moves};
use crate::ptx::{Operand, Space, Type};

impl<'m> Decoder<'m> {
    /// The operand at `index`.
    pub(super) fn operand(&self, index: usize) -> Result<&'m Operand> {
        let operand = self.operands.get(index);
        operand.ok_or_else(|| "too few operands".into())
    }

    /// The value of an operand that must be a literal number.
    pub(super) fn immediate(&self, index: usize) -> Result<u64> {
        match self.operand(index)? {
            Operand::Integer(value) => Ok(*value),
            _ => Err("an operand that must be a number is none".into()),
        }
    }

    /// The slot of the source operand at `index`, of type `ty`.
    pub(super) fn source(&mut self, index: usize, ty: Type) -> Result<Slot> {
        self.source_of(self.operand(index)?, ty)
    }

    /// The same of an operand that may be left out.
    pub(super) fn optional_source(&mut self, index: usize, ty: Type) -> Result<Option<Slot>> {
        let operand = self.operands.get(index);
        operand.map(|o| self.source_of(o, ty)).transpose()
    }

    /// The slot of the destination at `index`, of type `ty`.
    pub(super) fn destination(&mut self, index: usize, ty: Type) -> Result<Slot> {
        self.destination_of(self.operand(index)?, ty)
    }

    /// The slot of a source operand of type `ty`.
    pub(super) fn source_of(&mut self, o: &Operand, ty: Type) -> Result<Slot> {
        let wide = ty.is_wide();
        let value = match o {
            Operand::Register(register) => {
                let (slot, is_wide) = self.register_slot(*register)?;
                return match (is_wide, wide) {
                    (true, false) => Ok(self.low_word(slot)),
                    (false, true) => Err("a 32-bit register for a 64-bit operand".into()),
                    _ => Ok(slot),
                };
            }
            Operand::Integer(value) => match ty {
                Type::F32 => (*value as i64 as f32).to_bits() as u64,
                Type::F64 => (*value as i64 as f64).to_bits(),
                _ => *value,
            },
            Operand::Single(bits) if ty == Type::F64 => (f32::from_bits(*bits) as f64).to_bits(),
            Operand::Single(bits) => *bits as u64,
            Operand::Double(bits) if ty == Type::F32 => {
                (f64::from_bits(*bits) as f32).to_bits() as u64
            }
            Operand::Double(bits) => *bits,
            Operand::Special(name) => {
                let special =
                    Special::parse(name).ok_or_else(|| format!("special register `%{name}`"))?;
                return Ok(self.constant(Constant::Special(special), wide));
            }
            Operand::Symbol(name, offset) => {
                let constant = self.symbol(name, *offset)?;
                return Ok(self.constant(constant, wide));
            }
            other => return Err(format!("unsupported operand {other:?}")),
        };
        let value = if wide { value } else { value & 0xffff_ffff };
        Ok(self.constant(Constant::Value(value), wide))
    }

    /// The low word of a 64-bit register, in a register of its own.
    fn low_word(&mut self, slot: Slot) -> Slot {
        let d = self.fresh(false);
        let run = moves::extract_part(true, 32).expect("the low word is a part");
        self.lanes(run, d, [slot; 3], 0);
        d
    }

    /// The slot of a destination of type `ty`. A wider register is filled after the instruction.
    pub(super) fn destination_of(&mut self, o: &Operand, ty: Type) -> Result<Slot> {
        let wide = ty.is_wide();
        match o {
            Operand::Discard => Ok(self.fresh(wide)),
            Operand::Register(register) => {
                let (slot, is_wide) = self.register_slot(*register)?;
                match (is_wide, wide) {
                    (true, false) => {
                        let a = self.fresh(false);
                        let run = convert::widening(ty);
                        let operands = Operands::new(slot, [a; 3], 0);
                        self.after.push(Op::Lanes { run, operands });
                        Ok(a)
                    }
                    (false, true) => Err("a 32-bit register for a 64-bit result".into()),
                    _ => Ok(slot),
                }
            }
            other => Err(format!("unsupported destination {other:?}")),
        }
    }

    /// The predicate at `index`, which is read, and true if it is negated.
    pub(super) fn predicate(&mut self, index: usize) -> Result<(Predicate, bool)> {
        Ok(match self.operand(index)? {
            Operand::Register(register) => (self.predicate_slot(*register)?, false),
            Operand::Not(register) => (self.predicate_slot(*register)?, true),
            Operand::Integer(0) => (NEVER, false),
            Operand::Integer(_) => (ALWAYS, false),
            other => return Err(format!("unsupported predicate {other:?}")),
        })
    }

    /// The predicate at `index`, which is written.
    pub(super) fn predicate_destination(&mut self, index: usize) -> Result<Predicate> {
        self.predicate_destination_of(self.operand(index)?)
    }

    pub(super) fn predicate_destination_of(&mut self, o: &Operand) -> Result<Predicate> {
        match o {
            Operand::Register(register) => self.predicate_slot(*register),
            Operand::Discard => Ok(UNUSED),
            other => Err(format!("unsupported predicate {other:?}")),
        }
    }

    /// `a` or `a|b`.
    pub(super) fn pair(&self, index: usize) -> Result<(&'m Operand, &'m Operand)> {
        Ok(match self.operand(index)? {
            Operand::Pair(first, second) => (first, second),
            single => (single, &Operand::Discard),
        })
    }

    /// The elements of `{a, b}`, or the operand itself.
    fn elements(&self, index: usize) -> Result<&'m [Operand]> {
        Ok(match self.operand(index)? {
            Operand::Vector(items) => items,
            single => std::slice::from_ref(single),
        })
    }

    /// The slots of the elements of a source.
    pub(super) fn sources(&mut self, index: usize, ty: Type) -> Result<Vec<Slot>> {
        let elements = self.elements(index)?.iter();
        elements.map(|item| self.source_of(item, ty)).collect()
    }

    /// The slots of the elements of a destination.
    pub(super) fn destinations(&mut self, index: usize, ty: Type) -> Result<Vec<Slot>> {
        let elements = self.elements(index)?.iter();
        elements.map(|item| self.destination_of(item, ty)).collect()
    }

    /// The constant for the address of variable `name` plus `offset`.
    fn symbol(&mut self, name: &str, offset: i64) -> Result<Constant> {
        let add = |base: u32| (base as i64 + offset) as u32;
        if let Some(&local_offset) = self.frame.locals.get(name) {
            return Ok(Constant::Local(add(local_offset)));
        }
        if let Some(global) = self.globals.get(name) {
            let address = global.address.wrapping_add_signed(offset);
            return Ok(Constant::Value(address));
        }
        if let Some(&parameter_offset) = self.parameters.get(name) {
            return Ok(Constant::ParameterAddress(add(parameter_offset)));
        }
        let function = self.frame.function;
        let mut variables = function.variables.iter().chain(&self.module.variables);
        let variable = variables
            .find(|v| v.name == name && v.space == Space::Shared)
            .ok_or_else(|| format!("unknown name `{name}`"))?;
        if variable.is_extern {
            self.kernel.dynamic_align = self.kernel.dynamic_align.max(variable.align);
            return match offset {
                0 => Ok(Constant::SharedDynamic),
                _ => Err("an offset to dynamic shared memory".into()),
            };
        }
        if !self.shared.contains_key(name) {
            let address = self
                .kernel
                .shared_end
                .next_multiple_of(variable.align.max(1));
            self.kernel.shared_end = address + variable.size;
            self.shared.insert(name.to_string(), address as u32);
        }
        Ok(Constant::Shared(add(self.shared[name])))
    }

    /// The address operand at `index`.
    pub(super) fn address(&mut self, index: usize) -> Result<Address> {
        self.address_of(self.operand(index)?)
    }

    pub(super) fn address_of(&mut self, o: &Operand) -> Result<Address> {
        let (base, offset) = match o {
            Operand::Address(base, offset) => (&**base, *offset),
            other => (other, 0),
        };
        let (constant, offset) = match base {
            Operand::Register(register) => {
                let (base, wide) = self.register_slot(*register)?;
                return Ok(Address { base, wide, offset });
            }
            Operand::Symbol(name, _) => match self.symbol(name, offset) {
                // The offset of dynamic shared memory is not known here.
                Err(_) if offset != 0 => (self.symbol(name, 0)?, offset),
                found => (found?, 0),
            },
            Operand::Integer(value) => (Constant::Value(*value), offset),
            other => return Err(format!("unsupported address {other:?}")),
        };
        Ok(Address {
            base: self.constant(constant, true),
            wide: true,
            offset,
        })
    }
}

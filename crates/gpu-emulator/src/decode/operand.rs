//! Operands → slots, predicates and addresses.

use super::{Decoder, Frame, Result};
use crate::code::{Address, Constant, Op, Special};
use crate::lanes::{ALWAYS, NEVER, Operands, Predicate, Slot, UNUSED, convert, moves};
use crate::ptx::{Operand, Space, Type};

/// The operand at `index`.
pub(super) fn operand(operands: &[Operand], index: usize) -> Result<&Operand> {
    operands
        .get(index)
        .ok_or_else(|| "too few operands".to_string())
}

/// The value of an operand that must be a literal number.
pub(super) fn immediate(operand: &Operand) -> Result<u64> {
    match operand {
        Operand::Integer(value) => Ok(*value),
        _ => Err("an operand that must be a number is none".into()),
    }
}

impl<'m> Decoder<'m> {
    /// The slot of a source operand of type `ty`.
    pub(super) fn source(&mut self, frame: &mut Frame, o: &Operand, ty: Type) -> Result<Slot> {
        let wide = ty.is_wide();
        let value = match o {
            Operand::Register(register) => {
                let (slot, is_wide) = self.register_slot(frame, *register)?;
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
                let (constant, _) = self.symbol(frame, name, *offset)?;
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
        let run = moves::part(true, 32).expect("the low word is a part");
        self.lanes(
            run,
            Operands {
                d,
                a: slot,
                b: slot,
                c: slot,
                x: 0,
            },
        );
        d
    }

    /// The slot of a destination of type `ty`. A wider register is filled after the instruction.
    pub(super) fn destination(&mut self, frame: &mut Frame, o: &Operand, ty: Type) -> Result<Slot> {
        let wide = ty.is_wide();
        match o {
            Operand::Discard => Ok(self.fresh(wide)),
            Operand::Register(register) => {
                let (slot, is_wide) = self.register_slot(frame, *register)?;
                match (is_wide, wide) {
                    (true, false) => {
                        let a = self.fresh(false);
                        let run = convert::widening(ty);
                        let operands = Operands {
                            d: slot,
                            a,
                            b: a,
                            c: a,
                            x: 0,
                        };
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

    /// A predicate that is read.
    pub(super) fn predicate(
        &mut self,
        frame: &mut Frame,
        o: &Operand,
    ) -> Result<(Predicate, bool)> {
        Ok(match o {
            Operand::Register(register) => (self.predicate_slot(frame, *register)?, false),
            Operand::Not(register) => (self.predicate_slot(frame, *register)?, true),
            Operand::Integer(0) => (NEVER, false),
            Operand::Integer(_) => (ALWAYS, false),
            other => return Err(format!("unsupported predicate {other:?}")),
        })
    }

    /// A predicate that is written.
    pub(super) fn predicate_destination(
        &mut self,
        frame: &mut Frame,
        o: &Operand,
    ) -> Result<Predicate> {
        match o {
            Operand::Register(register) => self.predicate_slot(frame, *register),
            Operand::Discard => Ok(UNUSED),
            other => Err(format!("unsupported predicate {other:?}")),
        }
    }

    /// `a` or `a|b`.
    pub(super) fn pair(o: &Operand) -> (&Operand, &Operand) {
        match o {
            Operand::Pair(first, second) => (first, second),
            single => (single, &Operand::Discard),
        }
    }

    /// The elements of `{a, b}`, or the operand itself.
    pub(super) fn elements(o: &Operand) -> &[Operand] {
        match o {
            Operand::Vector(items) => items,
            single => std::slice::from_ref(single),
        }
    }

    /// The slots of the elements of a source.
    pub(super) fn sources(
        &mut self,
        frame: &mut Frame,
        o: &Operand,
        ty: Type,
    ) -> Result<Vec<Slot>> {
        Self::elements(o)
            .iter()
            .map(|item| self.source(frame, item, ty))
            .collect()
    }

    /// The slots of the elements of a destination.
    pub(super) fn destinations(
        &mut self,
        frame: &mut Frame,
        o: &Operand,
        ty: Type,
    ) -> Result<Vec<Slot>> {
        Self::elements(o)
            .iter()
            .map(|item| self.destination(frame, item, ty))
            .collect()
    }

    /// The constant for the address of variable `name` plus `offset`, and the space that it lies in.
    pub(super) fn symbol(
        &mut self,
        frame: &Frame,
        name: &str,
        offset: i64,
    ) -> Result<(Constant, Space)> {
        let add = |base: u32| (base as i64 + offset) as u32;
        if let Some(&at) = frame.locals.get(name) {
            return Ok((Constant::Local(add(at)), Space::Local));
        }
        if let Some(global) = self.globals.get(name) {
            let address = global.address.wrapping_add_signed(offset);
            return Ok((Constant::Value(address), Space::Global));
        }
        if let Some(&at) = self.parameters.get(name) {
            return Ok((Constant::ParameterAddress(add(at)), Space::Param));
        }
        let function = frame.function;
        let mut variables = function.variables.iter().chain(&self.module.variables);
        let variable = variables
            .find(|v| v.name == name && v.space == Space::Shared)
            .ok_or_else(|| format!("unknown name `{name}`"))?;
        if variable.is_extern {
            self.dynamic_align = self.dynamic_align.max(variable.align);
            return match offset {
                0 => Ok((Constant::SharedDynamic, Space::Shared)),
                _ => Err("an offset to dynamic shared memory".into()),
            };
        }
        if !self.shared.contains_key(name) {
            let at = self.shared_end.next_multiple_of(variable.align.max(1));
            self.shared_end = at + variable.size;
            self.shared.insert(name.to_string(), at as u32);
        }
        Ok((Constant::Shared(add(self.shared[name])), Space::Shared))
    }

    /// An address operand.
    pub(super) fn address(&mut self, frame: &mut Frame, o: &Operand) -> Result<Address> {
        let (base, offset) = match o {
            Operand::Address(base, offset) => (&**base, *offset),
            other => (other, 0),
        };
        match base {
            Operand::Register(register) => {
                let (base, wide) = self.register_slot(frame, *register)?;
                Ok(Address { base, wide, offset })
            }
            Operand::Symbol(name, _) => {
                let (constant, _) = match self.symbol(frame, name, offset) {
                    // The offset of dynamic shared memory is not known here.
                    Err(_) if offset != 0 => {
                        let (constant, _) = self.symbol(frame, name, 0)?;
                        let base = self.constant(constant, true);
                        return Ok(Address {
                            base,
                            wide: true,
                            offset,
                        });
                    }
                    found => found?,
                };
                Ok(Address {
                    base: self.constant(constant, true),
                    wide: true,
                    offset: 0,
                })
            }
            Operand::Integer(value) => {
                let base = self.constant(Constant::Value(*value), true);
                Ok(Address {
                    base,
                    wide: true,
                    offset,
                })
            }
            other => Err(format!("unsupported address {other:?}")),
        }
    }
}

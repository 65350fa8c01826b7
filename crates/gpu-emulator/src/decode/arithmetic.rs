//! Arithmetic: every instruction that is a loop over lanes with register operands.

use super::opcode::Opcode;
use super::operand::{immediate, operand};
use super::{Decoder, Frame, Result};
use crate::lanes::{Operands, Run, Slot, bits, carry, float, integer, moves, packed};
use crate::ptx::{Operand, Type};

/// The types of a loop's operands.
struct Types {
    d: Type,
    a: Type,
    b: Type,
    c: Type,
}

impl Types {
    fn all(ty: Type) -> Types {
        Types {
            d: ty,
            a: ty,
            b: ty,
            c: ty,
        }
    }
}

impl<'m> Decoder<'m> {
    /// Decodes an arithmetic instruction.
    pub(super) fn arithmetic(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
    ) -> Result<()> {
        let (takes, sets) = (
            matches!(opcode.name, "addc" | "subc" | "madc"),
            opcode.accept("cc"),
        );
        if takes || sets {
            return self.with_carry(frame, opcode, o, carry::number(takes, sets));
        }
        match opcode.name {
            "add" | "sub" | "mul" | "mul24" | "div" | "rem" | "min" | "max" | "and" | "or"
            | "xor" | "shl" | "shr" | "copysign" => self.binary(frame, opcode, o),
            "mad" | "fma" | "sad" | "dp4a" | "dp2a" | "bfe" | "shf" | "prmt" | "lop3" | "bfi" => {
                self.ternary(frame, opcode, o)
            }
            "abs" | "neg" | "not" | "cnot" | "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin"
            | "cos" | "tanh" | "popc" | "clz" | "brev" | "bfind" => self.unary(frame, opcode, o),
            name => Err(format!("unsupported instruction `{name}`")),
        }
    }

    /// `add.cc`, `addc`, `mad.lo.cc` and the other instructions with the carry flag.
    fn with_carry(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
        number: u32,
    ) -> Result<()> {
        let part = opcode.take(|p| ["lo", "hi"].into_iter().find(|&w| w == p));
        let base = opcode.name.get(..3).unwrap_or(opcode.name);
        let name = part.map_or(base.to_string(), |part| format!("{base}.{part}"));
        let ty = opcode.ty()?;
        self.emit(frame, carry::pick(&name, ty), o, Types::all(ty), number)
    }

    /// Emits a loop with the operands in `o`, destination first.
    fn emit(
        &mut self,
        frame: &mut Frame,
        run: Option<Run>,
        o: &[Operand],
        types: Types,
        x: u32,
    ) -> Result<()> {
        let run = run.ok_or("unsupported form")?;
        let a = self.source(frame, operand(o, 1)?, types.a)?;
        let mut optional = |index: usize, ty| -> Result<Slot> {
            match o.get(index) {
                Some(o) => self.source(frame, o, ty),
                None => Ok(a),
            }
        };
        let b = optional(2, types.b)?;
        let c = optional(3, types.c)?;
        let d = self.destination(frame, operand(o, 0)?, types.d)?;
        self.lanes(run, Operands { d, a, b, c, x });
        Ok(())
    }

    fn binary(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let part = opcode.take(|p| ["lo", "hi", "wide"].into_iter().find(|&w| w == p));
        let mode = opcode.mode();
        let ty = opcode.ty()?;
        if ty == Type::Pred {
            return self.predicate_logic(frame, opcode.name, o);
        }
        let name = match part {
            Some(part) => format!("{}.{part}", opcode.name),
            None if opcode.name == "mul" && !ty.is_float() => "mul.lo".into(),
            None => opcode.name.into(),
        };
        let run = match ty {
            Type::F32 | Type::F64 => float::pick_binary(&name, ty, &mode),
            _ if ty.is_float() => packed::pick_binary(&name, ty, &mode),
            _ => integer::pick_binary(&name, ty, mode.saturate),
        };
        let mut types = Types::all(ty);
        if part == Some("wide") {
            types.d = double(ty);
        }
        if matches!(opcode.name, "shl" | "shr") {
            types.b = Type::U32;
        }
        self.emit(frame, run, o, types, 0)
    }

    fn unary(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let name = if opcode.accept("shiftamt") {
            "bfind.shiftamt"
        } else {
            opcode.name
        };
        let mode = opcode.mode();
        let ty = opcode.ty()?;
        if ty == Type::Pred {
            return self.predicate_logic(frame, opcode.name, o);
        }
        let counts = matches!(opcode.name, "popc" | "clz" | "bfind");
        let run = match ty {
            Type::F32 | Type::F64 => float::pick_unary(name, ty, &mode),
            _ if ty.is_float() => packed::pick_unary(name, ty, &mode),
            _ if counts || name == "brev" => bits::pick_unary(name, ty),
            _ => integer::pick_unary(name, ty),
        };
        let mut types = Types::all(ty);
        if counts {
            types.d = Type::U32;
        }
        self.emit(frame, run, o, types, 0)
    }

    fn ternary(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let name = opcode.name;
        let part = opcode.take(|p| ["lo", "hi", "wide"].into_iter().find(|&w| w == p));
        let relu = opcode.accept("relu");
        let mode = opcode.mode();
        match name {
            "shf" => {
                let direction = if opcode.accept("l") { "l" } else { "r" };
                let _ = opcode.accept("r");
                let wraps = opcode.take(|p| ["wrap", "clamp"].into_iter().find(|&w| w == p));
                let ty = opcode.ty()?;
                let name = format!("shf.{direction}.{}", wraps.unwrap_or("clamp"));
                return self.emit(frame, bits::pick_ternary(&name, ty), o, Types::all(ty), 0);
            }
            "dp4a" => {
                let (x, y) = (opcode.ty()?, opcode.ty()?);
                return self.emit(frame, bits::pick_dp4a(x, y), o, Types::all(Type::U32), 0);
            }
            "dp2a" => {
                let upper = part == Some("hi");
                let (x, y) = (opcode.ty()?, opcode.ty()?);
                let run = bits::pick_dp2a(x, y, upper);
                return self.emit(frame, run, o, Types::all(Type::U32), 0);
            }
            "lop3" => {
                let ty = opcode.ty()?;
                let table = immediate(operand(o, 4)?)? as u32;
                let run = (ty == Type::U32).then(bits::pick_lop3);
                return self.emit(frame, run, &o[..4], Types::all(ty), table);
            }
            "bfi" => return self.insert(frame, opcode.ty()?, o),
            _ => {}
        }
        let ty = opcode.ty()?;
        let mut types = Types::all(ty);
        let run = match (name, part) {
            ("mad" | "fma", _) if ty.is_float() => match ty {
                Type::F32 | Type::F64 => float::pick_fma(ty, &mode).filter(|_| !relu),
                _ => packed::pick_fma(ty, &mode, relu),
            },
            ("mad", Some("wide")) => {
                (types.d, types.c) = (double(ty), double(ty));
                integer::pick_ternary("mad.wide", ty)
            }
            ("mad", Some("hi")) => integer::pick_ternary("mad.hi", ty),
            ("mad", _) => integer::pick_ternary("mad.lo", ty),
            ("bfe", _) => {
                (types.b, types.c) = (Type::U32, Type::U32);
                bits::pick_ternary("bfe", ty)
            }
            ("prmt", _) => bits::pick_ternary("prmt", ty),
            _ => integer::pick_ternary(name, ty),
        };
        self.emit(frame, run, o, types, 0)
    }

    /// `bfi d, a, b, position, length`
    fn insert(&mut self, frame: &mut Frame, ty: Type, o: &[Operand]) -> Result<()> {
        let run = bits::pick_insert(ty).ok_or("unsupported form")?;
        let a = self.source(frame, operand(o, 1)?, ty)?;
        let b = self.source(frame, operand(o, 2)?, ty)?;
        let c = self.source(frame, operand(o, 3)?, Type::U32)?;
        let x = self.source(frame, operand(o, 4)?, Type::U32)?;
        let d = self.destination(frame, operand(o, 0)?, ty)?;
        self.lanes(run, Operands { d, a, b, c, x });
        Ok(())
    }

    /// `and`, `or`, `xor` and `not` of predicates.
    fn predicate_logic(&mut self, frame: &mut Frame, name: &str, o: &[Operand]) -> Result<()> {
        // Bit 2a + b of the table is the result.
        let table: u32 = match name {
            "and" => 0b1000,
            "or" => 0b1110,
            "xor" => 0b0110,
            "not" => 0b0011,
            _ => return Err(format!("`{name}` of predicates")),
        };
        let (a, not_a) = self.predicate(frame, operand(o, 1)?)?;
        let (b, not_b) = match o.get(2) {
            Some(o) => self.predicate(frame, o)?,
            None => (a, not_a),
        };
        let d = self.predicate_destination(frame, operand(o, 0)?)?;
        let row = |i: u32| i ^ (not_a as u32) << 1 ^ not_b as u32;
        let x = (0..4).map(|i| (table >> row(i) & 1) << i).sum();
        self.lanes(moves::predicate_logic(), Operands { d, a, b, c: 0, x });
        Ok(())
    }
}

/// The integer type of twice the width.
fn double(ty: Type) -> Type {
    match ty {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        _ => Type::S64,
    }
}

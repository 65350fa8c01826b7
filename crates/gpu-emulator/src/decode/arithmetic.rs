//! Arithmetic: every instruction that is a loop over lanes with register operands.

use super::{Decoder, Result};
use crate::lanes::{Run, bits, carry, float, integer, moves, packed};
use crate::ptx::Type;

impl Decoder<'_> {
    /// Decodes an arithmetic instruction.
    pub(super) fn arithmetic(&mut self) -> Result<()> {
        let takes = matches!(self.opcode.name, "addc" | "subc" | "madc");
        let sets = self.opcode.accept("cc");
        if takes || sets {
            return self.with_carry(carry::number(takes, sets));
        }
        match self.opcode.name {
            "add" | "sub" | "mul" | "mul24" | "div" | "rem" | "min" | "max" | "and" | "or"
            | "xor" | "shl" | "shr" | "copysign" => self.binary(),
            "mad" | "fma" | "sad" | "dp4a" | "dp2a" | "bfe" | "shf" | "prmt" | "lop3" | "bfi" => {
                self.ternary()
            }
            "abs" | "neg" | "not" | "cnot" | "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin"
            | "cos" | "tanh" | "popc" | "clz" | "brev" | "bfind" => self.unary(),
            name => Err(format!("unsupported instruction `{name}`")),
        }
    }

    /// `add.cc`, `addc`, `mad.lo.cc` and the other instructions with the carry flag.
    fn with_carry(&mut self, number: u32) -> Result<()> {
        let name = self.opcode.name;
        let base = name.get(..3).unwrap_or(name);
        let half = self.opcode.one_of(&["lo", "hi"]);
        let name = half.map_or(base.to_string(), |half| format!("{base}.{half}"));
        let ty = self.opcode.ty()?;
        self.emit(carry::pick(&name, ty), [ty; 4], number)
    }

    /// Emits a loop over the operands, which have these types; the destination is the first.
    fn emit(&mut self, run: Option<Run>, types: [Type; 4], x: u32) -> Result<()> {
        let run = run.ok_or("unsupported form")?;
        let a = self.source(1, types[1])?;
        let b = self.optional_source(2, types[2])?.unwrap_or(a);
        let c = self.optional_source(3, types[3])?.unwrap_or(a);
        let d = self.destination(0, types[0])?;
        self.lanes(run, d, [a, b, c], x);
        Ok(())
    }

    fn binary(&mut self) -> Result<()> {
        let opcode = self.opcode.name;
        let half = self.opcode.one_of(&["lo", "hi", "wide"]);
        let (mode, ty) = (self.opcode.mode(), self.opcode.ty()?);
        if ty == Type::Pred {
            return self.predicate_logic();
        }
        let name = match half {
            Some(half) => format!("{opcode}.{half}"),
            None if opcode == "mul" && !ty.is_float() => "mul.lo".into(),
            None => opcode.into(),
        };
        let run = match ty {
            Type::F32 | Type::F64 => float::pick_binary(&name, ty, &mode),
            _ if ty.is_float() => packed::pick_binary(&name, ty, &mode),
            _ => integer::pick_binary(&name, ty, mode.saturate),
        };
        let mut types = [ty; 4];
        if half == Some("wide") {
            types[0] = double(ty);
        }
        if matches!(opcode, "shl" | "shr") {
            types[2] = Type::U32;
        }
        self.emit(run, types, 0)
    }

    fn unary(&mut self) -> Result<()> {
        let opcode = self.opcode.name;
        let name = match self.opcode.accept("shiftamt") {
            true => "bfind.shiftamt",
            false => opcode,
        };
        let (mode, ty) = (self.opcode.mode(), self.opcode.ty()?);
        if ty == Type::Pred {
            return self.predicate_logic();
        }
        let counts = matches!(opcode, "popc" | "clz" | "bfind");
        let run = match ty {
            Type::F32 | Type::F64 => float::pick_unary(name, ty, &mode),
            _ if ty.is_float() => packed::pick_unary(name, ty, &mode),
            _ if counts || name == "brev" => bits::pick_unary(name, ty),
            _ => integer::pick_unary(name, ty),
        };
        let to = if counts { Type::U32 } else { ty };
        self.emit(run, [to, ty, ty, ty], 0)
    }

    fn ternary(&mut self) -> Result<()> {
        let name = self.opcode.name;
        let half = self.opcode.one_of(&["lo", "hi", "wide"]);
        let relu = self.opcode.accept("relu");
        let mode = self.opcode.mode();
        if matches!(name, "dp4a" | "dp2a") {
            let (x, y) = (self.opcode.ty()?, self.opcode.ty()?);
            let number = bits::dot_number(x, y, half == Some("hi")).ok_or("unsupported form")?;
            let run = if name == "dp4a" {
                bits::dp4a()
            } else {
                bits::dp2a()
            };
            return self.emit(Some(run), [Type::U32; 4], number);
        }
        let direction = self.opcode.one_of(&["l", "r"]).unwrap_or("r");
        let wraps = self.opcode.one_of(&["wrap", "clamp"]).unwrap_or("clamp");
        let ty = self.opcode.ty()?;
        let mut types = [ty; 4];
        let run = match (name, half) {
            ("shf", _) => bits::pick_ternary(&format!("shf.{direction}.{wraps}"), ty),
            ("lop3", _) => {
                let table = self.immediate(4)? as u32;
                let run = (ty == Type::U32).then(bits::pick_lop3);
                return self.emit(run, types, table);
            }
            ("bfi", _) => {
                let len = self.source(4, Type::U32)?;
                return self.emit(bits::pick_insert(ty), [ty, ty, ty, Type::U32], len);
            }
            ("mad" | "fma", _) if ty.is_float() => match ty {
                Type::F32 | Type::F64 => float::pick_fma(ty, &mode).filter(|_| !relu),
                _ => packed::pick_fma(ty, &mode, relu),
            },
            ("mad", Some("wide")) => {
                (types[0], types[3]) = (double(ty), double(ty));
                integer::pick_ternary("mad.wide", ty)
            }
            ("mad", Some("hi")) => integer::pick_ternary("mad.hi", ty),
            ("mad", _) => integer::pick_ternary("mad.lo", ty),
            ("bfe", _) => {
                (types[2], types[3]) = (Type::U32, Type::U32);
                bits::pick_ternary("bfe", ty)
            }
            ("prmt", _) => bits::pick_ternary("prmt", ty),
            _ => integer::pick_ternary(name, ty),
        };
        self.emit(run, types, 0)
    }

    /// `and`, `or`, `xor` and `not` of predicates.
    fn predicate_logic(&mut self) -> Result<()> {
        // Bit 2a + b of the table is the result.
        let table: u32 = match self.opcode.name {
            "and" => 0b1000,
            "or" => 0b1110,
            "xor" => 0b0110,
            "not" => 0b0011,
            name => return Err(format!("`{name}` of predicates")),
        };
        let (a, not_a) = self.predicate(1)?;
        let (b, not_b) = match self.operands.get(2) {
            Some(_) => self.predicate(2)?,
            None => (a, not_a),
        };
        let d = self.predicate_destination(0)?;
        let row = |i: u32| i ^ (not_a as u32) << 1 ^ not_b as u32;
        let x = (0..4).map(|i| (table >> row(i) & 1) << i).sum();
        self.lanes(moves::predicate_logic(), d, [a, b, 0], x);
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

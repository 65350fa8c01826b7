//! Moves, selections, comparisons and conversions.

use super::{Decoder, Result};
use crate::code::{Constant, Op};
use crate::lanes::compare::{self, Combine};
use crate::lanes::convert::{self, Conversion};
use crate::lanes::rounding::Rounding;
use crate::lanes::{ALWAYS, NEVER, Run, UNUSED, fp8, integer, moves};
use crate::ptx::{Operand, Space, Type};

impl Decoder<'_> {
    /// Decodes a move, a selection, a comparison or a conversion.
    pub(super) fn moves(&mut self) -> Result<()> {
        match self.opcode.name {
            "mov" => self.mov(),
            "selp" => {
                let ty = self.opcode.ty()?;
                let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
                let (c, negated) = self.predicate(3)?;
                let d = self.destination(0, ty)?;
                let (a, b) = if negated { (b, a) } else { (a, b) };
                self.lanes(moves::select(ty.is_wide()), d, [a, b, c], 0);
                Ok(())
            }
            "setp" => self.setp(),
            "set" => self.set(),
            "cvta" => self.cvta(),
            "cvt" => self.cvt(),
            name => Err(format!("unsupported instruction `{name}`")),
        }
    }

    fn mov(&mut self) -> Result<()> {
        let ty = self.opcode.ty()?;
        let wide = ty.is_wide();
        if ty == Type::Pred {
            let (a, negated) = self.predicate(1)?;
            let d = self.predicate_destination(0)?;
            let x = if negated { 0b0011 } else { 0b1100 };
            self.lanes(moves::predicate_logic(), d, [a, a, 0], x);
            return Ok(());
        }
        match (self.operand(0)?, self.operand(1)?) {
            (_, Operand::Special(name))
                if matches!(&name[..], "clock" | "clock64" | "globaltimer" | "clock_hi") =>
            {
                let d = self.destination(0, ty)?;
                self.push(Op::Clock { d, wide });
                Ok(())
            }
            (Operand::Vector(parts), _) => self.unpack(ty, parts),
            (_, Operand::Vector(parts)) => self.pack(ty, parts),
            _ => {
                let a = self.source(1, ty)?;
                let d = self.destination(0, ty)?;
                self.lanes(moves::copy(wide), d, [a; 3], 0);
                Ok(())
            }
        }
    }

    fn unpack(&mut self, ty: Type, elements: &[Operand]) -> Result<()> {
        let bits = (8 * ty.size() / elements.len().max(1)) as u32;
        let run = moves::extract_part(ty.is_wide(), bits).ok_or("unsupported unpacking")?;
        let mut a = self.source(1, ty)?;
        if elements.len() > 1 {
            // A part may be written to the register that is unpacked, so a copy is unpacked.
            let copy = self.fresh(ty.is_wide());
            self.lanes(moves::copy(ty.is_wide()), copy, [a; 3], 0);
            a = copy;
        }
        for (bit, element) in (0..).step_by(bits as usize).zip(elements) {
            if *element != Operand::Discard {
                let d = self.destination_of(element, Type::U32)?;
                self.lanes(run, d, [a, 0, 0], bit);
            }
        }
        Ok(())
    }

    fn pack(&mut self, ty: Type, elements: &[Operand]) -> Result<()> {
        let bits = (8 * ty.size() / elements.len().max(1)) as u32;
        let run = moves::join(ty.is_wide(), bits).ok_or("unsupported packing")?;
        let target = self.destination(0, ty)?;
        // The parts may lie in the register that is written, so it is written last.
        let mut packed = self.constant(Constant::Value(0), ty.is_wide());
        for (i, element) in elements.iter().enumerate() {
            let b = self.source_of(element, Type::U32)?;
            let d = match i + 1 == elements.len() {
                true => target,
                false => self.fresh(ty.is_wide()),
            };
            self.lanes(run, d, [packed, b, 0], bits * i as u32);
            packed = d;
        }
        Ok(())
    }

    /// The loop of a comparison, and the type of what it compares. `set` has the type of its result first.
    fn comparison(&mut self, relation: &str) -> Result<(Run, Type)> {
        let flushing = self.opcode.accept("ftz");
        let ty = self.opcode.ty()?;
        let run = compare::pick(relation, ty, flushing).ok_or("unsupported form")?;
        Ok((run, ty))
    }

    fn relation(&mut self) -> Result<&'static str> {
        let relation = self.opcode.one_of(&[
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu",
            "gtu", "geu", "num", "nan",
        ]);
        relation.ok_or_else(|| "a comparison without a relation".into())
    }

    fn setp(&mut self) -> Result<()> {
        let relation = self.relation()?;
        let combine = self.opcode.choose(&[
            ("and", Combine::And),
            ("or", Combine::Or),
            ("xor", Combine::Xor),
        ]);
        let (run, ty) = self.comparison(relation)?;
        let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
        let (c, negated) = match combine {
            Some(_) => self.predicate(3)?,
            None => (NEVER, false),
        };
        let (holds, opposite) = self.pair(0)?;
        let d = self.predicate_destination_of(holds)?;
        let opposite = self.predicate_destination_of(opposite)?;
        let x = compare::number(combine.unwrap_or(Combine::None), negated, opposite);
        self.lanes(run, d, [a, b, c], x);
        Ok(())
    }

    /// `set.relation.dtype.ty`: all ones, or 1.0, where the relation holds.
    fn set(&mut self) -> Result<()> {
        let relation = self.relation()?;
        let to = self.opcode.ty()?;
        let (run, ty) = self.comparison(relation)?;
        let truth = match to {
            Type::U32 | Type::S32 => 0xffff_ffff,
            Type::F32 => 1f32.to_bits() as u64,
            Type::F16 => 0x3c00,
            Type::Bf16 => 0x3f80,
            _ => return Err("unsupported form".into()),
        };
        let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
        let holds = self.kernel.predicates;
        self.kernel.predicates += 1;
        let x = compare::number(Combine::None, false, UNUSED);
        self.lanes(run, holds, [a, b, ALWAYS], x);
        let a = self.constant(Constant::Value(truth), false);
        let b = self.constant(Constant::Value(0), false);
        let d = self.destination(0, to)?;
        self.lanes(moves::select(false), d, [a, b, holds], 0);
        Ok(())
    }

    /// Converts between addresses of a space and generic ones.
    fn cvta(&mut self) -> Result<()> {
        let to_space = self.opcode.accept("to");
        let (space, ty) = (self.opcode.space(), self.opcode.ty()?);
        if !ty.is_wide() {
            return Err("32-bit generic addresses".into());
        }
        let window = match space {
            Space::Shared => crate::exec::SHARED_WINDOW,
            Space::Local => crate::exec::LOCAL_WINDOW,
            Space::Param => crate::exec::PARAMETER_WINDOW,
            Space::Global | Space::Generic => 0,
        };
        let window = match to_space {
            true => window.wrapping_neg(),
            false => window,
        };
        let a = self.source(1, ty)?;
        let d = self.destination(0, ty)?;
        let b = self.constant(Constant::Value(window), true);
        let add = integer::pick_binary("add", Type::U64, false);
        self.lanes(add.expect("64-bit sums are there"), d, [a, b, a], 0);
        Ok(())
    }

    fn cvt(&mut self) -> Result<()> {
        let order = self.opcode.order(&["e4m3x2", "e5m2x2"], &["f32", "f16x2"]);
        if let Some(narrows) = order {
            return self.cvt_fp8(narrows);
        }
        let relu = self.opcode.accept("relu");
        let to_integer = self.opcode.rounds_to_integer();
        let to_tf32 = self.opcode.accept("rna");
        let mode = self.opcode.mode();
        let (to, from) = (self.opcode.ty()?, self.opcode.ty()?);
        let (rounding, saturate, flush) = (mode.rounding, mode.saturate, mode.flush);
        let conversion = if self.operands.len() == 3 {
            let plain = rounding == Rounding::Nearest && !saturate && !flush;
            let run = convert::pick_pair(to, relu).filter(|_| plain && from == Type::F32);
            run.map(|run| (run, 0))
        } else if to_tf32 || relu {
            let is_tf32 = to_tf32 && (to, from) == (Type::Tf32, Type::F32);
            is_tf32.then(|| (convert::pick_tf32(), 0))
        } else {
            Conversion {
                from,
                to,
                rounding,
                whole: to_integer,
                saturate,
                flush,
            }
            .pick()
        };
        let (run, x) = conversion.ok_or("unsupported form")?;
        self.convert(run, from, to, x)
    }

    /// Emits a conversion of one operand or two.
    fn convert(&mut self, run: Run, from: Type, to: Type, x: u32) -> Result<()> {
        let a = self.source(1, from)?;
        let b = self.optional_source(2, from)?.unwrap_or(a);
        let d = self.destination(0, to)?;
        self.lanes(run, d, [a, b, a], x);
        Ok(())
    }

    /// `cvt.rn.satfinite.e4m3x2.f32 d, a, b`, `….e4m3x2.f16x2 d, a` and `cvt.rn.f16x2.e4m3x2 d, a`.
    fn cvt_fp8(&mut self, narrows: bool) -> Result<()> {
        self.opcode.skip(&["rn", "satfinite", "e4m3x2"]);
        let e5m2 = self.opcode.accept("e5m2x2");
        let (run, from, to) = match (self.opcode.ty()?, narrows) {
            (Type::F32, true) => (fp8::narrow_pair(e5m2), Type::F32, Type::U16),
            (Type::F16x2, true) => (fp8::narrow_f16x2(e5m2), Type::F16x2, Type::U16),
            (Type::F16x2, false) => (fp8::widen_pair(e5m2), Type::U16, Type::F16x2),
            _ => return Err("unsupported form".into()),
        };
        self.convert(run, from, to, 0)
    }
}

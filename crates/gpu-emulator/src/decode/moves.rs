//! Moves, selections, comparisons and conversions.

use super::opcode::Opcode;
use super::operand::operand;
use super::{Decoder, Frame, Result};
use crate::code::{Constant, Op};
use crate::lanes::compare::{self, Combine};
use crate::lanes::convert::{self, Conversion};
use crate::lanes::rounding::Rounding;
use crate::lanes::{ALWAYS, NEVER, Operands, UNUSED, fp8, moves};
use crate::ptx::{Operand, Space, Type};

impl<'m> Decoder<'m> {
    /// Decodes a move, a selection, a comparison or a conversion.
    pub(super) fn moves(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
    ) -> Result<()> {
        match opcode.name {
            "mov" => self.mov(frame, opcode, o),
            "selp" => {
                let ty = opcode.ty()?;
                let a = self.source(frame, operand(o, 1)?, ty)?;
                let b = self.source(frame, operand(o, 2)?, ty)?;
                let (c, negated) = self.predicate(frame, operand(o, 3)?)?;
                let d = self.destination(frame, operand(o, 0)?, ty)?;
                let (a, b) = if negated { (b, a) } else { (a, b) };
                self.lanes(moves::select(ty.is_wide()), Operands { d, a, b, c, x: 0 });
                Ok(())
            }
            "setp" => self.setp(frame, opcode, o),
            "set" => self.set(frame, opcode, o),
            "cvta" => self.cvta(frame, opcode, o),
            "cvt" => self.cvt(frame, opcode, o),
            name => Err(format!("unsupported instruction `{name}`")),
        }
    }

    fn mov(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let ty = opcode.ty()?;
        let (to, from) = (operand(o, 0)?, operand(o, 1)?);
        if ty == Type::Pred {
            let (a, negated) = self.predicate(frame, from)?;
            let d = self.predicate_destination(frame, to)?;
            let x = if negated { 0b0011 } else { 0b1100 };
            self.lanes(
                moves::predicate_logic(),
                Operands {
                    d,
                    a,
                    b: a,
                    c: 0,
                    x,
                },
            );
            return Ok(());
        }
        match (to, from) {
            (_, Operand::Special(name))
                if matches!(
                    name.as_str(),
                    "clock" | "clock64" | "globaltimer" | "clock_hi"
                ) =>
            {
                let d = self.destination(frame, to, ty)?;
                self.push(Op::Clock {
                    d,
                    wide: ty.is_wide(),
                });
                Ok(())
            }
            (Operand::Vector(parts), _) => self.unpack(frame, ty, parts, from),
            (_, Operand::Vector(parts)) => self.pack(frame, ty, to, parts),
            _ => {
                let a = self.source(frame, from, ty)?;
                let d = self.destination(frame, to, ty)?;
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
                Ok(())
            }
        }
    }

    fn unpack(
        &mut self,
        frame: &mut Frame,
        ty: Type,
        parts: &[Operand],
        from: &Operand,
    ) -> Result<()> {
        let bits = (8 * ty.size() / parts.len().max(1)) as u32;
        let run = moves::part(ty.is_wide(), bits).ok_or("unsupported unpacking")?;
        let mut a = self.source(frame, from, ty)?;
        if parts.len() > 1 {
            // A part may be written to the register that is unpacked, so a copy is unpacked.
            let copy = self.fresh(ty.is_wide());
            self.lanes(
                moves::copy(ty.is_wide()),
                Operands {
                    d: copy,
                    a,
                    b: a,
                    c: a,
                    x: 0,
                },
            );
            a = copy;
        }
        for (i, part) in parts
            .iter()
            .enumerate()
            .filter(|(_, p)| **p != Operand::Discard)
        {
            let d = self.destination(frame, part, Type::U32)?;
            self.lanes(
                run,
                Operands {
                    d,
                    a,
                    b: 0,
                    c: 0,
                    x: bits * i as u32,
                },
            );
        }
        Ok(())
    }

    fn pack(&mut self, frame: &mut Frame, ty: Type, to: &Operand, parts: &[Operand]) -> Result<()> {
        let bits = (8 * ty.size() / parts.len().max(1)) as u32;
        let run = moves::join(ty.is_wide(), bits).ok_or("unsupported packing")?;
        let target = self.destination(frame, to, ty)?;
        // The parts may lie in the register that is written, so it is written last.
        let mut whole = self.constant(Constant::Value(0), ty.is_wide());
        for (i, part) in parts.iter().enumerate() {
            let b = self.source(frame, part, Type::U32)?;
            let last = i + 1 == parts.len();
            let d = if last {
                target
            } else {
                self.fresh(ty.is_wide())
            };
            self.lanes(
                run,
                Operands {
                    d,
                    a: whole,
                    b,
                    c: 0,
                    x: bits * i as u32,
                },
            );
            whole = d;
        }
        Ok(())
    }

    fn relation(opcode: &Opcode) -> Result<&'static str> {
        const RELATIONS: [&str; 18] = [
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu",
            "gtu", "geu", "num", "nan",
        ];
        opcode
            .take(|p| RELATIONS.into_iter().find(|&r| r == p))
            .ok_or_else(|| "a comparison without a relation".to_string())
    }

    fn setp(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let relation = Self::relation(opcode)?;
        let combine = opcode.take(|p| {
            Some(match p {
                "and" => Combine::And,
                "or" => Combine::Or,
                "xor" => Combine::Xor,
                _ => return None,
            })
        });
        let flushing = opcode.accept("ftz");
        let ty = opcode.ty()?;
        let run = compare::pick(relation, ty, flushing).ok_or("unsupported form")?;
        let a = self.source(frame, operand(o, 1)?, ty)?;
        let b = self.source(frame, operand(o, 2)?, ty)?;
        let (c, negated) = match combine {
            Some(_) => self.predicate(frame, operand(o, 3)?)?,
            None => (NEVER, false),
        };
        let (holds, opposite) = Self::pair(operand(o, 0)?);
        let d = self.predicate_destination(frame, holds)?;
        let opposite = self.predicate_destination(frame, opposite)?;
        let x = compare::number(combine.unwrap_or(Combine::None), negated, opposite);
        self.lanes(run, Operands { d, a, b, c, x });
        Ok(())
    }

    /// `set.relation.dtype.ty`: all ones, or 1.0, where the relation holds.
    fn set(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let relation = Self::relation(opcode)?;
        let flushing = opcode.accept("ftz");
        let (to, ty) = (opcode.ty()?, opcode.ty()?);
        let run = compare::pick(relation, ty, flushing).ok_or("unsupported form")?;
        let truth = match to {
            Type::U32 | Type::S32 => 0xffff_ffff,
            Type::F32 => 1f32.to_bits() as u64,
            Type::F16 => 0x3c00,
            Type::Bf16 => 0x3f80,
            _ => return Err("unsupported form".into()),
        };
        let a = self.source(frame, operand(o, 1)?, ty)?;
        let b = self.source(frame, operand(o, 2)?, ty)?;
        let holds = self.predicates;
        self.predicates += 1;
        let x = compare::number(Combine::None, false, UNUSED);
        self.lanes(
            run,
            Operands {
                d: holds,
                a,
                b,
                c: ALWAYS,
                x,
            },
        );
        let a = self.constant(Constant::Value(truth), false);
        let b = self.constant(Constant::Value(0), false);
        let d = self.destination(frame, operand(o, 0)?, to)?;
        self.lanes(
            moves::select(false),
            Operands {
                d,
                a,
                b,
                c: holds,
                x: 0,
            },
        );
        Ok(())
    }

    /// Converts between addresses of a space and generic ones.
    fn cvta(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let to_space = opcode.accept("to");
        let space = self.space(opcode);
        let ty = opcode.ty()?;
        if !ty.is_wide() {
            return Err("32-bit generic addresses".into());
        }
        let window = match space {
            Space::Shared => crate::exec::SHARED_WINDOW,
            Space::Local => crate::exec::LOCAL_WINDOW,
            Space::Param => crate::exec::PARAMETER_WINDOW,
            Space::Global | Space::Generic => 0,
        };
        let window = if to_space {
            window.wrapping_neg()
        } else {
            window
        };
        let a = self.source(frame, operand(o, 1)?, ty)?;
        let d = self.destination(frame, operand(o, 0)?, ty)?;
        let b = self.constant(Constant::Value(window), true);
        let run = crate::lanes::integer::pick_binary("add", Type::U64, false);
        self.lanes(
            run.expect("64-bit sums are there"),
            Operands {
                d,
                a,
                b,
                c: a,
                x: 0,
            },
        );
        Ok(())
    }

    fn cvt(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        if let Some(narrows) = opcode.order(&["e4m3x2", "e5m2x2"], &["f32", "f16x2"]) {
            return self.cvt_fp8(frame, opcode, o, narrows);
        }
        let relu = opcode.accept("relu");
        let whole = opcode.rounds_to_integer();
        let to_tf32 = opcode.accept("rna");
        let mode = opcode.mode();
        let (to, from) = (opcode.ty()?, opcode.ty()?);
        if o.len() == 3 {
            let plain = mode.rounding == Rounding::Nearest && !mode.saturate && !mode.flush;
            let run = convert::pick_pair(to, relu).filter(|_| plain && from == Type::F32);
            let run = run.ok_or("unsupported form")?;
            let a = self.source(frame, operand(o, 1)?, from)?;
            let b = self.source(frame, operand(o, 2)?, from)?;
            let d = self.destination(frame, operand(o, 0)?, to)?;
            self.lanes(
                run,
                Operands {
                    d,
                    a,
                    b,
                    c: a,
                    x: 0,
                },
            );
            return Ok(());
        }
        let (run, x) = match (to, from) {
            (Type::Tf32, Type::F32) if to_tf32 => (convert::pick_tf32(), 0),
            _ if to_tf32 || relu => return Err("unsupported form".into()),
            _ => {
                let (rounding, saturate, flush) = (mode.rounding, mode.saturate, mode.flush);
                Conversion {
                    from,
                    to,
                    rounding,
                    whole,
                    saturate,
                    flush,
                }
                .pick()
                .ok_or("unsupported form")?
            }
        };
        let a = self.source(frame, operand(o, 1)?, from)?;
        let d = self.destination(frame, operand(o, 0)?, to)?;
        self.lanes(
            run,
            Operands {
                d,
                a,
                b: a,
                c: a,
                x,
            },
        );
        Ok(())
    }

    /// `cvt.rn.satfinite.e4m3x2.f32 d, a, b`, `….e4m3x2.f16x2 d, a` and `cvt.rn.f16x2.e4m3x2 d, a`.
    fn cvt_fp8(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
        narrows: bool,
    ) -> Result<()> {
        let _ = (
            opcode.accept("rn"),
            opcode.accept("satfinite"),
            opcode.accept("e4m3x2"),
        );
        let e5m2 = opcode.accept("e5m2x2");
        let (run, from, to) = match (opcode.ty()?, narrows) {
            (Type::F32, true) => (fp8::narrow_pair(e5m2), Type::F32, Type::U16),
            (Type::F16x2, true) => (fp8::narrow_f16x2(e5m2), Type::F16x2, Type::U16),
            (Type::F16x2, false) => (fp8::widen_pair(e5m2), Type::U16, Type::F16x2),
            _ => return Err("unsupported form".into()),
        };
        let a = self.source(frame, operand(o, 1)?, from)?;
        let b = match o.get(2) {
            Some(o) => self.source(frame, o, from)?,
            None => a,
        };
        let d = self.destination(frame, operand(o, 0)?, to)?;
        self.lanes(
            run,
            Operands {
                d,
                a,
                b,
                c: a,
                x: 0,
            },
        );
        Ok(())
    }
}

//! Matrix instructions: of a warp (`mma`) and of a warpgroup (`wgmma`).

use super::opcode::Opcode;
use super::operand::{immediate, operand};
use super::{Decoder, Frame, Result};
use crate::code::{MatrixAccess, MatrixType, Mma, Op, WarpgroupMma};
use crate::lanes::{ALWAYS, NEVER};
use crate::ptx::{Operand, Type};

fn matrix_type(ty: Type) -> Result<MatrixType> {
    match ty {
        Type::F16 => Ok(MatrixType::F16),
        Type::Bf16 => Ok(MatrixType::Bf16),
        Type::Tf32 => Ok(MatrixType::Tf32),
        Type::S8 => Ok(MatrixType::S8),
        Type::U8 => Ok(MatrixType::U8),
        other => Err(format!("matrices of {other:?}")),
    }
}

/// Returns the types of A and B, if they can be multiplied.
fn matrix_types(a: Type, b: Type) -> Result<[MatrixType; 2]> {
    let [a, b] = [matrix_type(a)?, matrix_type(b)?];
    match a == b || a.is_integer() && b.is_integer() {
        true => Ok([a, b]),
        false => Err(format!("matrices of {a:?} and {b:?}")),
    }
}

impl<'m> Decoder<'m> {
    /// Decodes a matrix instruction.
    pub(super) fn matrix(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
    ) -> Result<()> {
        let _ = (opcode.accept("sync"), opcode.accept("aligned"));
        match opcode.name {
            "mma" => self.mma(frame, opcode, o),
            "wgmma" => self.warpgroup(frame, opcode, o),
            name => {
                let loads = name == "ldmatrix";
                let count = opcode.take(|p| p.strip_prefix('x').and_then(|n| n.parse().ok()));
                let transposed = opcode.accept("trans");
                let _ = (self.space(opcode), opcode.accept("m8n8"), opcode.ty()?);
                let (list, address) = if loads { (0, 1) } else { (1, 0) };
                let registers = match loads {
                    true => self.destinations(frame, operand(o, list)?, Type::U32)?,
                    false => self.sources(frame, operand(o, list)?, Type::U32)?,
                };
                if count != Some(registers.len()) {
                    return Err("the number of registers is not that of the opcode".into());
                }
                let address = self.address(frame, operand(o, address)?)?;
                let access = Box::new(MatrixAccess {
                    registers,
                    address,
                    transposed,
                });
                self.push(if loads {
                    Op::LoadMatrix(access)
                } else {
                    Op::StoreMatrix(access)
                });
                Ok(())
            }
        }
    }

    fn mma(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let k = opcode.take(|p| p.strip_prefix("m16n8k").and_then(|k| k.parse::<u8>().ok()));
        let k = k.ok_or("unsupported shape")?;
        if !(opcode.accept("row") && opcode.accept("col")) {
            return Err("unsupported layout".into());
        }
        let (sum, a, b, c) = (opcode.ty()?, opcode.ty()?, opcode.ty()?, opcode.ty()?);
        let types = matrix_types(a, b)?;
        let most = 32 / types[0].size() as u8;
        let sums: &[Type] = match types[0] {
            MatrixType::S8 | MatrixType::U8 => &[Type::S32],
            MatrixType::F16 => &[Type::F32, Type::F16],
            _ => &[Type::F32],
        };
        if sum != c || !sums.contains(&sum) || ![most / 2, most].contains(&k) {
            return Err("unsupported form".into());
        }
        let wide_sum = sum != Type::F16;
        let mma = Mma {
            k,
            types,
            wide_sum,
            d: self.destinations(frame, operand(o, 0)?, Type::U32)?,
            a: self.sources(frame, operand(o, 1)?, Type::U32)?,
            b: self.sources(frame, operand(o, 2)?, Type::U32)?,
            c: self.sources(
                frame,
                operand(o, 3)?,
                if wide_sum { sum } else { Type::U32 },
            )?,
        };
        let words = (most / k) as usize;
        let sums = if wide_sum { 4 } else { 2 };
        let counts = [mma.d.len(), mma.a.len(), mma.b.len(), mma.c.len()];
        if counts != [sums, 4 / words, 2 / words, sums] {
            return Err("the number of registers is not that of the shape".into());
        }
        self.push(Op::Mma(Box::new(mma)));
        Ok(())
    }

    fn warpgroup(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        if opcode.accept("fence") {
            self.push(Op::WarpgroupFence);
            return Ok(());
        }
        if opcode.accept("commit_group") {
            self.push(Op::WarpgroupCommit);
            return Ok(());
        }
        if opcode.accept("wait_group") {
            let pending = immediate(operand(o, 0)?)? as u32;
            self.push(Op::WarpgroupWait { pending });
            return Ok(());
        }
        if !opcode.accept("mma_async") {
            return Err("unsupported form".into());
        }
        let shape = opcode.take(|p| {
            let (n, k) = p.strip_prefix("m64n")?.split_once('k')?;
            Some((n.parse::<u16>().ok()?, k.parse::<usize>().ok()?))
        });
        let (n, k) = shape.ok_or("unsupported shape")?;
        let (sum, a_ty, b_ty) = (opcode.ty()?, opcode.ty()?, opcode.ty()?);
        let types = matrix_types(a_ty, b_ty)?;
        let wanted = match types[0].is_integer() {
            true => Type::S32,
            false => Type::F32,
        };
        if sum != wanted || k != 32 / types[0].size() {
            return Err("unsupported form".into());
        }
        let d = self.destinations(frame, operand(o, 0)?, sum)?;
        if d.len() != n as usize / 2 {
            return Err("the number of registers is not that of the shape".into());
        }
        let b_descriptor = self.source(frame, operand(o, 2)?, Type::U64)?;
        let (a, a_descriptor) = match operand(o, 1)? {
            registers @ Operand::Vector(_) => {
                (self.sources(frame, registers, Type::U32)?, b_descriptor)
            }
            descriptor => (Vec::new(), self.source(frame, descriptor, Type::U64)?),
        };
        let accumulate = match self.predicate(frame, operand(o, 3)?)? {
            (ALWAYS, _) => ALWAYS,
            (NEVER, _) => NEVER,
            (_, true) => return Err("a negated scale".into()),
            (predicate, false) => predicate,
        };
        let flag = |index: usize| match o.get(index) {
            Some(o) => immediate(o).map(|v| v as i64),
            None => Ok(0),
        };
        if types[0].size() != 2 && !a.is_empty() {
            return Err(format!("{a_ty:?} in registers"));
        }
        // A in registers has no transposition.
        let first = if a.is_empty() { 6 } else { 5 };
        let mma = WarpgroupMma {
            n,
            types,
            d,
            negate_a: flag(4)? < 0,
            negate_b: flag(5)? < 0,
            transpose_a: a.is_empty() && flag(first)? != 0,
            transpose_b: flag(first + 1)? != 0,
            a,
            a_descriptor,
            b_descriptor,
            accumulate,
        };
        self.push(Op::WarpgroupMma(Box::new(mma)));
        Ok(())
    }
}

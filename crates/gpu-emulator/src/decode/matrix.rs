//! Matrix instructions: of a warp (`mma`) and of a warpgroup (`wgmma`).

use super::{Decoder, Result};
use crate::code::{MatrixAccess, Mma, Op, WarpgroupMma};
use crate::lanes::{ALWAYS, NEVER};
use crate::ptx::{Operand, Type};

impl Decoder<'_> {
    /// Decodes a matrix instruction.
    pub(super) fn matrix(&mut self) -> Result<()> {
        self.opcode.skip(&["sync", "aligned"]);
        let op = match self.opcode.name {
            "mma" => Op::Mma(Box::new(self.mma()?)),
            "wgmma" => self.warpgroup()?,
            "ldmatrix" => Op::LoadMatrix(Box::new(self.matrix_access(0, 1)?)),
            _ => Op::StoreMatrix(Box::new(self.matrix_access(1, 0)?)),
        };
        self.push(op);
        Ok(())
    }

    /// `ldmatrix` and `stmatrix`, given the operands that are the registers and the address.
    fn matrix_access(&mut self, list: usize, address: usize) -> Result<MatrixAccess> {
        let count = |p: &str| p.strip_prefix('x').and_then(|n| n.parse().ok());
        let count = self.opcode.take(count);
        let transposed = self.opcode.accept("trans");
        self.opcode.skip(&["m8n8"]);
        let _ = (self.opcode.space(), self.opcode.ty()?);
        let registers = match list {
            0 => self.destinations(list, Type::U32)?,
            _ => self.sources(list, Type::U32)?,
        };
        if count != Some(registers.len()) {
            return Err("the number of registers is not that of the opcode".into());
        }
        Ok(MatrixAccess {
            registers,
            address: self.address(address)?,
            transposed,
        })
    }

    /// Takes the types of A and B, which can be multiplied.
    fn matrix_types(&mut self) -> Result<[Type; 2]> {
        let [a, b] = [self.opcode.ty()?, self.opcode.ty()?];
        let is_matrix = |ty| {
            use Type::*;
            matches!(ty, F16 | Bf16 | Tf32 | S8 | U8)
        };
        match is_matrix(a) && is_matrix(b) && (a == b || (a.size(), b.size()) == (1, 1)) {
            true => Ok([a, b]),
            false => Err(format!("matrices of {a:?} and {b:?}")),
        }
    }

    fn mma(&mut self) -> Result<Mma> {
        let k = |p: &str| p.strip_prefix("m16n8k").and_then(|k| k.parse::<u8>().ok());
        let k = self.opcode.take(k).ok_or("unsupported shape")?;
        if !(self.opcode.accept("row") && self.opcode.accept("col")) {
            return Err("unsupported layout".into());
        }
        let sum = self.opcode.ty()?;
        let types = self.matrix_types()?;
        let max_k = 32 / types[0].size() as u8;
        let accumulators: &[Type] = match types[0] {
            Type::S8 | Type::U8 => &[Type::S32],
            Type::F16 => &[Type::F32, Type::F16],
            _ => &[Type::F32],
        };
        let is_known = accumulators.contains(&sum) && [max_k / 2, max_k].contains(&k);
        if self.opcode.ty()? != sum || !is_known {
            return Err("unsupported form".into());
        }
        let wide_sum = sum != Type::F16;
        let mma = Mma {
            k,
            types,
            wide_sum,
            d: self.destinations(0, Type::U32)?,
            a: self.sources(1, Type::U32)?,
            b: self.sources(2, Type::U32)?,
            c: self.sources(3, if wide_sum { sum } else { Type::U32 })?,
        };
        let words = (max_k / k) as usize;
        let accumulators = if wide_sum { 4 } else { 2 };
        let counts = [mma.d.len(), mma.a.len(), mma.b.len(), mma.c.len()];
        if counts != [accumulators, 4 / words, 2 / words, accumulators] {
            return Err("the number of registers is not that of the shape".into());
        }
        Ok(mma)
    }

    fn warpgroup(&mut self) -> Result<Op> {
        if self.opcode.accept("fence") {
            return Ok(Op::WarpgroupFence);
        }
        if self.opcode.accept("commit_group") {
            return Ok(Op::WarpgroupCommit);
        }
        if self.opcode.accept("wait_group") {
            let pending = self.immediate(0)? as u32;
            return Ok(Op::WarpgroupWait { pending });
        }
        if !self.opcode.accept("mma_async") {
            return Err("unsupported form".into());
        }
        let shape = self.opcode.take(|p| {
            let (n, k) = p.strip_prefix("m64n")?.split_once('k')?;
            Some((n.parse::<u16>().ok()?, k.parse::<usize>().ok()?))
        });
        let (n, k) = shape.ok_or("unsupported shape")?;
        let sum = self.opcode.ty()?;
        let types = self.matrix_types()?;
        let size = types[0].size();
        let accumulator = if size == 1 { Type::S32 } else { Type::F32 };
        if sum != accumulator || k != 32 / size {
            return Err("unsupported form".into());
        }
        let d = self.destinations(0, sum)?;
        if d.len() != n as usize / 2 {
            return Err("the number of registers is not that of the shape".into());
        }
        let b_descriptor = self.source(2, Type::U64)?;
        let (a, a_descriptor) = match self.operand(1)? {
            Operand::Vector(_) => (self.sources(1, Type::U32)?, b_descriptor),
            _ => (Vec::new(), self.source(1, Type::U64)?),
        };
        let accumulate = match self.predicate(3)? {
            (ALWAYS, _) => ALWAYS,
            (NEVER, _) => NEVER,
            (_, true) => return Err("a negated scale".into()),
            (predicate, false) => predicate,
        };
        let flag = |index: usize| match self.operands.get(index) {
            Some(_) => self.immediate(index).map(|v| v as i64),
            None => Ok(0),
        };
        // A in registers has no transposition.
        let first_flag = if a.is_empty() { 6 } else { 5 };
        Ok(Op::WarpgroupMma(Box::new(WarpgroupMma {
            n,
            types,
            d,
            negate_a: flag(4)? < 0,
            negate_b: flag(5)? < 0,
            transpose_a: a.is_empty() && flag(first_flag)? != 0,
            transpose_b: flag(first_flag + 1)? != 0,
            a,
            a_descriptor,
            b_descriptor,
            accumulate,
        })))
    }
}

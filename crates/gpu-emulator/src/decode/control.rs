//! Branches, barriers, and instructions without effect in the emulator.

use super::{Decoder, Result};
use crate::code::{Barrier, BarrierReduction, Constant, Op};
use crate::ptx::{Operand, Type};

impl Decoder<'_> {
    /// Decodes a branch, a barrier, or an instruction without effect in the emulator.
    pub(super) fn control(&mut self) -> Result<()> {
        let name = self.opcode.name;
        match name {
            "bra" => {
                self.opcode.skip(&["uni"]);
                let Operand::Symbol(label, 0) = self.operand(0)? else {
                    return Err("a branch without a label".into());
                };
                let to = self.frame.function.label(self.scope, label);
                self.jump(to.ok_or_else(|| format!("unknown label `{label}`"))?);
            }
            "brx" => {
                self.opcode.skip(&["idx", "uni"]);
                self.branch_table()?;
            }
            "ret" if self.frame.depth > 0 => {
                self.opcode.skip(&["uni"]);
                self.jump(self.frame.function.instructions.len());
            }
            "ret" | "exit" => {
                self.opcode.skip(&["uni"]);
                self.push(Op::Exit);
            }
            "trap" => self.push(Op::Trap),
            "barrier" if self.opcode.accept("cluster") => {
                self.opcode.ignore_hints();
                match self.opcode.one_of(&["arrive", "wait"]) {
                    Some("arrive") => self.push(Op::ClusterArrive),
                    Some(_) => self.push(Op::ClusterWait),
                    None => return Err("unsupported form".into()),
                }
            }
            "bar" | "barrier" => self.barrier()?,
            "fence" if self.opcode.accept("mbarrier_init") => {
                self.opcode.ignore_rest();
                self.push(Op::AsyncFence { is_proxy: false });
            }
            "fence" if self.opcode.accept("proxy") && self.opcode.accept("async") => {
                self.opcode.ignore_rest();
                self.push(Op::AsyncFence { is_proxy: true });
            }
            // No effect: memory is sequentially consistent here, and time and caches are not modelled.
            _ => self.opcode.ignore_rest(),
        }
        Ok(())
    }

    fn jump(&mut self, to: usize) {
        self.frame.jumps.push((self.kernel.code.len(), to));
        self.push(Op::Branch(0));
    }

    fn branch_table(&mut self) -> Result<()> {
        let index = self.source(0, Type::U32)?;
        let Operand::Symbol(name, 0) = self.operand(1)? else {
            return Err("`brx` without a table of targets".into());
        };
        let (function, scope) = (self.frame.function, self.scope);
        let labels = function
            .table(scope, name)
            .ok_or("`brx` with an unknown table of targets")?;
        let target = |name: &String| -> Result<u32> {
            let to = function.label(scope, name);
            Ok(to.ok_or("`brx` to an unknown label")? as u32)
        };
        let targets = labels.iter().map(target).collect::<Result<_>>()?;
        // `usize::MAX`: the targets themselves are indices of instructions.
        self.frame.jumps.push((self.kernel.code.len(), usize::MAX));
        self.push(Op::BranchTable { index, targets });
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.opcode.skip(&["cta", "aligned"]);
        if self.opcode.accept("warp") {
            self.opcode.skip(&["sync"]);
            let members = self.source(0, Type::U32)?;
            self.push(Op::WarpBarrier { members });
            return Ok(());
        }
        let reduces = self.opcode.accept("red");
        let kind = self.opcode.choose(&[
            ("popc", BarrierReduction::Count),
            ("and", BarrierReduction::And),
            ("or", BarrierReduction::Or),
        ]);
        let waits = !self.opcode.accept("arrive");
        self.opcode.skip(&["sync"]);
        let _ = self.opcode.take(Type::parse);
        let (reduction, ids) = match (reduces, kind) {
            (true, Some(kind)) => {
                let d = match kind {
                    BarrierReduction::Count => self.destination(0, Type::U32)?,
                    _ => self.predicate_destination(0)?,
                };
                let last = self.operands.len() - 1;
                let (source, negated) = self.predicate(last)?;
                (Some((kind, d, source, negated)), 1..last.max(1))
            }
            (false, None) => (None, 0..self.operands.len()),
            _ => return Err("an unsupported form of `bar.red`".into()),
        };
        self.operands = &self.operands[ids];
        let id = match self.optional_source(0, Type::U32)? {
            Some(id) => id,
            None => self.constant(Constant::Value(0), false),
        };
        let threads = self.optional_source(1, Type::U32)?;
        self.push(Op::Barrier(Box::new(Barrier {
            id,
            threads,
            waits,
            reduction,
        })));
        Ok(())
    }
}

//! Branches, barriers, and instructions without an effect here.

use super::opcode::Opcode;
use super::operand::operand;
use super::{Decoder, Frame, Result};
use crate::code::{Barrier, BarrierReduction, Constant, Op};
use crate::ptx::{Instruction, Operand, Type};

impl<'m> Decoder<'m> {
    /// Decodes an instruction of this family.
    pub(super) fn control(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        instruction: &Instruction,
    ) -> Result<()> {
        let o = instruction.operands.as_slice();
        match opcode.name {
            "bra" => {
                let _ = opcode.has("uni");
                let to = label(frame, instruction, operand(o, 0)?)?;
                self.jump(frame, to);
            }
            "brx" => {
                let _ = (opcode.has("idx"), opcode.has("uni"));
                self.branch_table(frame, instruction)?;
            }
            "ret" if frame.depth > 0 => {
                let _ = opcode.has("uni");
                let end = frame.function.instructions.len();
                self.jump(frame, end);
            }
            "ret" | "exit" => {
                let _ = opcode.has("uni");
                self.push(Op::Exit);
            }
            "trap" => self.push(Op::Trap),
            "bar" | "barrier" => self.barrier(frame, opcode, o)?,
            "fence" if opcode.has("mbarrier_init") || opcode.has("proxy") => {
                while opcode.take(|_| Some(())).is_some() {}
                self.push(Op::MbarrierFence);
            }
            // No effect: memory is sequentially consistent here, and time and caches are not modelled.
            _ => while opcode.take(|_| Some(())).is_some() {},
        }
        Ok(())
    }

    fn jump(&mut self, frame: &mut Frame, to: usize) {
        frame.jumps.push((self.code.len(), to));
        self.push(Op::Branch(0));
    }

    fn branch_table(&mut self, frame: &mut Frame, instruction: &Instruction) -> Result<()> {
        let o = instruction.operands.as_slice();
        let index = self.source(frame, operand(o, 0)?, Type::U32)?;
        let Operand::Symbol(name, 0) = operand(o, 1)? else {
            return Err("a branch without a table".into());
        };
        let function = frame.function;
        let labels = function
            .table(instruction.scope, name)
            .ok_or("an unknown table")?;
        let mut targets = Vec::new();
        for name in labels {
            let to = function
                .label(instruction.scope, name)
                .ok_or("an unknown label")?;
            targets.push(to as u32);
        }
        // `usize::MAX`: the targets themselves are indices of instructions.
        frame.jumps.push((self.code.len(), usize::MAX));
        self.push(Op::BranchTable {
            index,
            targets: targets.into(),
        });
        Ok(())
    }

    fn barrier(&mut self, frame: &mut Frame, opcode: &Opcode, o: &[Operand]) -> Result<()> {
        let _ = (opcode.has("cta"), opcode.has("aligned"));
        if opcode.has("warp") {
            let _ = opcode.has("sync");
            let members = self.source(frame, operand(o, 0)?, Type::U32)?;
            self.push(Op::WarpBarrier { members });
            return Ok(());
        }
        let reduces = opcode.has("red");
        let kind = opcode.take(|part| {
            Some(match part {
                "popc" => BarrierReduction::Count,
                "and" => BarrierReduction::And,
                "or" => BarrierReduction::Or,
                _ => return None,
            })
        });
        let waits = !opcode.has("arrive");
        let _ = opcode.has("sync");
        let _ = opcode.take(Type::parse);
        let (reduction, o) = match (reduces, kind) {
            (true, Some(kind)) => {
                let d = match kind {
                    BarrierReduction::Count => {
                        self.destination(frame, operand(o, 0)?, Type::U32)?
                    }
                    _ => self.predicate_destination(frame, operand(o, 0)?)?,
                };
                let (source, negated) =
                    self.predicate(frame, o.last().expect("there is a destination"))?;
                (Some((kind, d, source, negated)), &o[1..o.len() - 1])
            }
            (false, None) => (None, o),
            _ => return Err("unsupported form".into()),
        };
        let id = match o.first() {
            Some(id) => self.source(frame, id, Type::U32)?,
            None => self.constant(Constant::Value(0), false),
        };
        let threads = match o.get(1) {
            Some(threads) => Some(self.source(frame, threads, Type::U32)?),
            None => None,
        };
        self.push(Op::Barrier(Box::new(Barrier {
            id,
            threads,
            waits,
            reduction,
        })));
        Ok(())
    }
}

/// The index of the instruction after a label.
fn label(frame: &Frame, instruction: &Instruction, o: &Operand) -> Result<usize> {
    match o {
        Operand::Symbol(name, 0) => frame
            .function
            .label(instruction.scope, name)
            .ok_or_else(|| format!("unknown label `{name}`")),
        _ => Err("a branch without a label".into()),
    }
}

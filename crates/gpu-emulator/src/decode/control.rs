//! Branches, barriers, and instructions without effect in the emulator.

use super::opcode::Opcode;
use super::operand::operand;
use super::{Decoder, Frame, Result};
use crate::code::{Barrier, BarrierReduction, Constant, Op};
use crate::ptx::{Instruction, Operand, Type};

impl<'m> Decoder<'m> {
    /// Decodes a branch, a barrier, or an instruction without effect in the emulator.
    pub(super) fn control(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        instruction: &Instruction,
    ) -> Result<()> {
        let o = instruction.operands.as_slice();
        match opcode.name {
            "bra" => {
                let _ = opcode.accept("uni");
                let to = label(frame, instruction, operand(o, 0)?)?;
                self.jump(frame, to);
            }
            "brx" => {
                let _ = (opcode.accept("idx"), opcode.accept("uni"));
                self.branch_table(frame, instruction)?;
            }
            "ret" if frame.depth > 0 => {
                let _ = opcode.accept("uni");
                let end = frame.function.instructions.len();
                self.jump(frame, end);
            }
            "ret" | "exit" => {
                let _ = opcode.accept("uni");
                self.push(Op::Exit);
            }
            "trap" => self.push(Op::Trap),
            "barrier" if opcode.accept("cluster") => {
                opcode.ignore_hints();
                let arrives = opcode.accept("arrive");
                if !arrives && !opcode.accept("wait") {
                    return Err("unsupported form".into());
                }
                self.push(if arrives {
                    Op::ClusterArrive
                } else {
                    Op::ClusterWait
                });
            }
            "bar" | "barrier" => self.barrier(frame, opcode, o)?,
            "fence" if opcode.accept("mbarrier_init") || opcode.accept("proxy") => {
                opcode.ignore_rest();
                self.push(Op::MbarrierFence);
            }
            // No effect: memory is sequentially consistent here, and time and caches are not modelled.
            _ => opcode.ignore_rest(),
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
            return Err("`brx` without a table of targets".into());
        };
        let function = frame.function;
        let labels = function
            .table(instruction.scope, name)
            .ok_or("`brx` with an unknown table of targets")?;
        let mut targets = Vec::new();
        for name in labels {
            let to = function
                .label(instruction.scope, name)
                .ok_or("`brx` to an unknown label")?;
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
        let _ = (opcode.accept("cta"), opcode.accept("aligned"));
        if opcode.accept("warp") {
            let _ = opcode.accept("sync");
            let members = self.source(frame, operand(o, 0)?, Type::U32)?;
            self.push(Op::WarpBarrier { members });
            return Ok(());
        }
        let reduces = opcode.accept("red");
        let kind = opcode.take(|part| {
            Some(match part {
                "popc" => BarrierReduction::Count,
                "and" => BarrierReduction::And,
                "or" => BarrierReduction::Or,
                _ => return None,
            })
        });
        let waits = !opcode.accept("arrive");
        let _ = opcode.accept("sync");
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
            _ => return Err("an unsupported form of `bar.red`".into()),
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

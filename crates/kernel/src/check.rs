//! Checks of a tile program without values of symbols: names, types, and order of definition.

use crate::error::{Result, damaged};
use kiln_base::Compute;
use kiln_base::prim::{Binary, RandomKind, Reduction, Unary};
use kiln_plan::tile::{Inst, Reg, Schedule, SerialPoints, Stage, TileProgram};

struct Checker<'a> {
    program: &'a TileProgram,
    /// The points at which each register holds a value.
    written: Vec<Since>,
    /// The points at which each row slot holds a value.
    kept: Vec<Since>,
    /// The points at which the current stage runs.
    serial_points: SerialPoints,
    /// The accumulators of the current stage, which are readable after it.
    pending: Vec<Reg>,
}

/// The serial points at which a register or slot holds a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Since {
    Never,
    /// Only at the last serial point.
    AtLast,
    Always,
}

/// Checks names, types, and that registers are written before they are read.
pub fn check_types(program: &TileProgram) -> Result<()> {
    let mut c = Checker {
        program,
        written: vec![Since::Never; program.registers.len()],
        kept: vec![Since::Never; program.slots.len()],
        serial_points: SerialPoints::Every,
        pending: vec![],
    };
    let serial = usize::from(program.serial);
    if serial > program.axes.len() || serial > 0 && program.schedule != Schedule::Rows {
        return Err(damaged!(
            "{} steps in order through other axes",
            program.name
        ));
    }
    for (reg, _) in &program.constants {
        c.ty(*reg)?;
        c.written[reg.0 as usize] = Since::Always;
    }
    let constants: Vec<Reg> = program.constants.iter().map(|(r, _)| *r).collect();
    for stage in &program.stages {
        // Without serial axes, each point is the first and the last.
        c.serial_points = match stage.serial_points {
            SerialPoints::Last if serial == 0 => SerialPoints::Every,
            points => points,
        };
        for inst in &stage.code {
            c.check_inst(stage, inst, &constants)
                .map_err(|e| damaged!("{} in {}: {inst:?}", detail(e), program.name))?;
        }
        for acc in std::mem::take(&mut c.pending) {
            c.written[acc.0 as usize] = c.written_here(Since::Never);
        }
    }
    Ok(())
}

/// Returns the text of an error without the prefix of plan errors.
fn detail(e: crate::error::Error) -> String {
    match e {
        crate::error::Error::Plan(why) => why,
        other => other.to_string(),
    }
}

impl Checker<'_> {
    /// Returns the availability of a value after this stage wrote it.
    fn written_here(&self, earlier: Since) -> Since {
        match self.serial_points {
            SerialPoints::Last => earlier.max(Since::AtLast),
            _ => Since::Always,
        }
    }

    /// True if a value is available in this stage.
    fn is_available(&self, since: Since) -> bool {
        since == Since::Always || since == Since::AtLast && self.serial_points == SerialPoints::Last
    }

    fn ty(&self, reg: Reg) -> Result<Compute> {
        let ty = self.program.registers.get(reg.0 as usize).copied();
        ty.ok_or_else(|| damaged!("no register {}", reg.0))
    }

    fn read(&self, reg: Reg) -> Result<Compute> {
        let ty = self.ty(reg)?;
        if !self.is_available(self.written[reg.0 as usize]) {
            return Err(damaged!("register {} is read before it is written", reg.0));
        }
        Ok(ty)
    }

    /// Checks that a register can be read, and has a type.
    fn expect(&self, reg: Reg, ty: Compute) -> Result<()> {
        match self.read(reg)? {
            actual if actual == ty => Ok(()),
            actual => Err(damaged!(
                "register {} is {}, not {}",
                reg.0,
                actual.name(),
                ty.name()
            )),
        }
    }

    fn arg_type(&self, access: u16) -> Result<Compute> {
        let access = self.program.accesses.get(access as usize);
        let access = access.ok_or_else(|| damaged!("no such access"))?;
        let arg = self.program.args.get(access.arg as usize);
        Ok(arg
            .ok_or_else(|| damaged!("no such argument"))?
            .dtype
            .compute())
    }

    fn slot(&self, stage: &Stage, slot: u16) -> Result<Compute> {
        if !stage.over_inner {
            return Err(damaged!("row slots exist only over inner"));
        }
        let slot = self.program.slots.get(slot as usize).copied();
        slot.ok_or_else(|| damaged!("no such slot"))
    }

    fn site(&self, site: u32) -> Result<()> {
        if site >= self.program.sites {
            return Err(damaged!("no site {site}"));
        }
        Ok(())
    }

    /// Checks one instruction and records its result.
    fn check_inst(&mut self, stage: &Stage, inst: &Inst, constants: &[Reg]) -> Result<()> {
        let Some((dst, ty)) = self.check_operands(stage, inst)? else {
            if let Inst::Keep { slot, .. } = inst {
                let slot = *slot as usize;
                self.kept[slot] = self.written_here(self.kept[slot]);
            }
            return Ok(());
        };
        if self.ty(dst)? != ty {
            return Err(damaged!("the result is {}", ty.name()));
        }
        if constants.contains(&dst) {
            return Err(damaged!("register {} is a constant", dst.0));
        }
        if matches!(inst, Inst::Reduce { .. } | Inst::ArgReduce { .. }) {
            if self.pending.contains(&dst) {
                return Err(damaged!("two reductions into one register"));
            }
            self.pending.push(dst);
            self.written[dst.0 as usize] = Since::Never;
        } else {
            if self.pending.contains(&dst) {
                return Err(damaged!("an accumulator is overwritten"));
            }
            let earlier = self.written[dst.0 as usize];
            self.written[dst.0 as usize] = self.written_here(earlier);
        }
        Ok(())
    }

    /// Checks the operands of an instruction. Returns the register that it writes, and the type of the result.
    fn check_operands(&self, stage: &Stage, inst: &Inst) -> Result<Option<(Reg, Compute)>> {
        Ok(Some(match inst {
            Inst::Load { dst, access } => (*dst, self.arg_type(*access)?),
            Inst::LoadAt {
                dst,
                access,
                dynamic,
            } => {
                for d in dynamic {
                    self.expect(d.index, Compute::I64)?;
                    self.site(d.site)?;
                }
                (*dst, self.arg_type(*access)?)
            }
            Inst::Index { dst, .. } => (*dst, Compute::I64),
            Inst::Unary { op, dst, a } => {
                let ty = self.read(*a)?;
                let result = unary_result(*op, ty);
                (
                    *dst,
                    result.ok_or_else(|| damaged!("no {} of {}", op.name(), ty.name()))?,
                )
            }
            Inst::Binary {
                op,
                dst,
                a,
                b,
                site,
            } => {
                let ty = self.read(*a)?;
                self.expect(*b, ty)?;
                if op.divides() && !ty.is_float() {
                    self.site(*site)?;
                }
                let result = binary_result(*op, ty);
                (
                    *dst,
                    result.ok_or_else(|| damaged!("no {} of {}", op.name(), ty.name()))?,
                )
            }
            Inst::Select { dst, mask, a, b } => {
                self.expect(*mask, Compute::Mask)?;
                let ty = self.read(*a)?;
                self.expect(*b, ty)?;
                (*dst, ty)
            }
            Inst::Convert { dst, a, from, to } => {
                self.expect(*a, from.compute())?;
                (*dst, to.compute())
            }
            Inst::Random {
                dst,
                kind,
                seed,
                offset,
                index,
            } => {
                for r in [seed, offset, index] {
                    self.expect(*r, Compute::I64)?;
                }
                let ty = self.ty(*dst)?;
                let is_legal = match kind {
                    RandomKind::Bits => ty == Compute::I64,
                    RandomKind::Uniform | RandomKind::Normal => ty.is_float(),
                };
                if !is_legal {
                    return Err(damaged!("no random {}", ty.name()));
                }
                (*dst, ty)
            }
            Inst::Reduce { op, acc, a } => {
                let ty = self.read(*a)?;
                if !stage.over_inner || ty == Compute::Mask && *op == Reduction::Sum {
                    return Err(damaged!("a reduction without meaning"));
                }
                (*acc, ty)
            }
            Inst::ArgReduce { op, acc, a } => {
                self.read(*a)?;
                if !stage.over_inner || !matches!(op, Reduction::Max | Reduction::Min) {
                    return Err(damaged!("a reduction without meaning"));
                }
                (*acc, Compute::I64)
            }
            Inst::Keep { slot, src } => {
                self.expect(*src, self.slot(stage, *slot)?)?;
                return Ok(None);
            }
            Inst::Kept { dst, slot } => {
                let ty = self.slot(stage, *slot)?;
                if !self.is_available(self.kept[*slot as usize]) {
                    return Err(damaged!("slot {slot} is read before it is written"));
                }
                (*dst, ty)
            }
            Inst::Store { access, src } => {
                self.arg_type(*access)?;
                self.read(*src)?;
                let arg = self.program.accesses[*access as usize].arg;
                if !self.program.args[arg as usize].written {
                    return Err(damaged!("a store to a read-only argument"));
                }
                return Ok(None);
            }
        }))
    }
}

/// Returns the result type of a primitive on one operand of type `ty`, if it exists.
pub fn unary_result(op: Unary, ty: Compute) -> Option<Compute> {
    use Unary::*;
    let exists = match ty {
        Compute::F32 | Compute::F64 => true,
        Compute::I32 | Compute::I64 => {
            matches!(
                op,
                Neg | Abs | Not | Floor | Ceil | Round | Trunc | IsNan | IsInf
            )
        }
        Compute::Mask => op == Not,
    };
    exists.then_some(if op.gives_mask() { Compute::Mask } else { ty })
}

/// Returns the result type of a primitive on two operands of type `ty`, if it exists.
pub fn binary_result(op: Binary, ty: Compute) -> Option<Compute> {
    use Binary::*;
    let exists = match ty {
        Compute::Mask => {
            matches!(op, And | Or | Xor | Eq | Ne | Lt | Le | Gt | Ge | Max | Min)
        }
        _ => true,
    };
    exists.then_some(if op.gives_mask() { Compute::Mask } else { ty })
}

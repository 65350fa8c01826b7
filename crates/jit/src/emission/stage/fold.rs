//! The accumulators of reductions across lanes, and their final combination.

use super::emit::{StageEmitter, Table, register_count};
use crate::emission::Target;
use crate::emission::emit::{Emit, load_constant};
use crate::emission::ir::{Form, Ir, Src, Virt};
use crate::emission::lines::{Key, LaneLocation, Locations, NotEmitted};
use crate::emission::primitive::binary;
use crate::emission::tied::identity;
use crate::emission::value::{Value, is_wide};
use kiln_base::Compute;
use kiln_base::prim::Reduction;
use kiln_kernel::bugs::bug;
use kiln_plan::tile::Reg;
use kiln_x86::{Asm, Mem, Width, op};

impl StageEmitter<'_> {
    /// Initialises accumulators with the identity element.
    pub(super) fn initialize_accumulators(&mut self) {
        let width = self.target.width();
        for ((op, r), (_, groups)) in self.reductions.iter().zip(&self.accumulators) {
            let ty = self.body.registers[usize::from(r.0)];
            let constant = identity(*op, is_wide(ty), ty.is_float());
            let source = match groups[0] {
                LaneLocation::Register { registers, .. } => registers[0],
                _ => self.free[0],
            };
            load_constant(self.asm, &constant, width, source);
            for location in groups {
                for part in 0..register_count(ty) {
                    match location {
                        LaneLocation::Register { registers, .. } if registers[part] != source => {
                            self.asm.op(op::VMOVAPS, width, (registers[part], source));
                        }
                        LaneLocation::Register { .. } => {}
                        LaneLocation::Vector(m) => {
                            let m = m.plus((part * width.bytes()) as i32);
                            self.asm.op(op::VMOVUPS_STORE, width, (m, source));
                        }
                        _ => panic!("accumulators are in registers or memory"),
                    }
                }
            }
        }
    }

    /// Combines the lanes of each reduction, and adds the result to its state.
    pub(super) fn fold_accumulators(&mut self) -> Result<(), NotEmitted> {
        let accumulators = std::mem::take(&mut self.accumulators);
        for ((op, r), (_, groups)) in self.reductions.iter().zip(&accumulators) {
            let ty = self.body.registers[usize::from(r.0)];
            let ir = fold_code(self.target, *op, ty, self.groups)?;
            let state = Key::Accumulator(*r);
            let Some(i) = self.body.operands.iter().position(|(k, _)| *k == state) else {
                panic!("a reduction without a state");
            };
            let mut locations = FoldLocations {
                groups,
                operand: i,
                table: self.table,
            };
            let stack = (&self.free[..], self.spills);
            Emit::new(
                &ir,
                self.asm,
                &mut locations,
                stack.0,
                stack.1,
                &vec![None; ir.constants.len()],
                None,
            )
            .run();
        }
        self.accumulators = accumulators;
        Ok(())
    }
}

/// The locations of a fold: the accumulators of group `n` are slot `n`, the state is the input and the output.
struct FoldLocations<'a> {
    groups: &'a [LaneLocation],
    operand: usize,
    table: Table,
}

impl Locations for FoldLocations<'_> {
    fn location(&mut self, asm: &mut Asm, key: Key) -> LaneLocation {
        match key {
            Key::Slot(group) => self.groups[usize::from(group)],
            Key::Input(_) => LaneLocation::Splat(Mem::at(self.table.pointer(asm, self.operand))),
            _ => LaneLocation::Vector(Mem::at(self.table.pointer(asm, self.operand))),
        }
    }
}

/// Returns the code that halves 64 lanes until one is left, and combines that one with the state.
fn fold_code(target: Target, op: Reduction, ty: Compute, groups: usize) -> Result<Ir, NotEmitted> {
    let mut ir = Ir::new(target);
    let wide = is_wide(ty);
    let combine = |ir: &mut Ir, a: Src, b: Src| -> Result<Src, NotEmitted> {
        // A value with this register in both parts.
        let value_of = |part: Src| Value {
            ty,
            parts: [part, part],
        };
        Ok(binary(ir, op.combine(), value_of(a), value_of(b))?.parts[0])
    };
    let form = |p: u8| match wide {
        true => Form::Double(p),
        false => Form::Word,
    };
    let mut vectors: Vec<Src> = vec![];
    for group in 0..groups as u16 {
        for p in 0..register_count(ty) as u8 {
            vectors.push(ir.load(Key::Slot(group), form(p), false).into());
        }
    }
    while vectors.len() > 1 {
        let upper = vectors.split_off(vectors.len() / 2);
        for (a, b) in vectors.iter_mut().zip(upper) {
            *a = combine(&mut ir, *a, b)?;
        }
    }
    let mut sum = vectors[0];
    if target.evex {
        let upper = ir.upper_half(sum);
        sum = combine(&mut ir, sum, upper.into())?;
    }
    let upper = ir.op1_with(op::VEXTRACT128, Width::Y, Some(1), sum);
    sum = combine(&mut ir, sum, upper.into())?;
    for permutation in if wide { &[0x0E][..] } else { &[0x0E, 0x01] } {
        let permutation = bug("two lanes of a sum are left out", *permutation, |_| 0x0E);
        let permuted = ir.op1_with(op::VPERMILPS, Width::X, Some(permutation), sum);
        sum = combine(&mut ir, sum, permuted.into())?;
    }
    let state = Key::Input(Reg(0));
    let new_state: Virt = if op == Reduction::Sum && ty == Compute::F32 {
        let sum = ir.op1_with(op::VCVTPS2PD, Width::X, None, sum);
        let old_state = ir.load(state, Form::Double(0), false);
        ir.op2(op::VADDPD, old_state, sum)
    } else {
        let old_state = ir.load(state, form(0), false);
        match combine(&mut ir, old_state.into(), sum)? {
            Src::Virt(v) => v,
            Src::Const(_) => return Err(NotEmitted),
        }
    };
    ir.store(Key::Output(Reg(0)), Form::Bytes, new_state.into());
    Ok(ir)
}

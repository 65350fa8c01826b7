//! Emission of instructions whose result overwrites an operand, and of blends.

use super::emit::{Emit, Location, load_constant};
use super::ir::{Constant, Src, Step};
use super::locations::{Locations, Tail};
use kiln_base::prim::Reduction;
use kiln_x86::{Op, Vreg, Width, op};

impl<P: Locations> Emit<'_, P> {
    /// Returns the register of a result that overwrites `source`: the register of `source` if this is its last use, or
    /// else a copy.
    pub(super) fn overwrite(&mut self, source: Src, reads: &[Src], step: &Step, now: u32) -> Vreg {
        let Some(to) = step.to else {
            panic!("the step has no result");
        };
        let busy = &step.from;
        let from = self.register(source, now, busy);
        let is_last_use = match source {
            Src::Virt(v) => self.dies(v, now) && !self.borrowed[v.0 as usize],
            Src::Const(c) => self.pinned[c as usize].is_none(),
        };
        let preferred = self.preferred[to.0 as usize].filter(|r| *r == from || self.is_unused(*r));
        let r = match preferred {
            Some(r) => {
                self.borrowed[to.0 as usize] = true;
                r
            }
            None if is_last_use => {
                match source {
                    Src::Virt(v) => self.values[v.0 as usize] = Location::None,
                    Src::Const(_) => self.temporaries.retain(|t| *t != from),
                }
                from
            }
            // The register must not hold another operand, because that is read after this one is written.
            None => self.take_register(now, busy),
        };
        if r != from {
            let width = self.full_width();
            self.asm.op(op::VMOVAPS, width, (r, from));
        }
        for s in reads.iter().chain([&source]) {
            if let Src::Virt(v) = s
                && self.dies(*v, now)
            {
                self.release(*v);
            }
        }
        self.assign_register(to, r);
        r
    }

    pub(super) fn emit_tied(&mut self, op: Op, width: Width, step: &Step, now: u32) {
        let [Some(a), Some(b), Some(c)] = step.from else {
            panic!("three operands");
        };
        let second = self.operand(b, false, width, now, &step.from);
        let third = self.operand(c, true, width, now, &step.from);
        let to = self.overwrite(a, &[b, c], step, now);
        self.asm.op(op, width, (to, second, third));
    }

    pub(super) fn emit_fma(&mut self, negated: bool, wide: bool, step: &Step, now: u32) {
        let [Some(a), Some(b), Some(c)] = step.from else {
            panic!("three operands");
        };
        let width = self.full_width();
        let is_last_use = |s: Src| match s {
            Src::Virt(v) => self.dies(v, now) && !self.borrowed[v.0 as usize],
            Src::Const(_) => false,
        };
        // The result overwrites one of the three sources. A constant is best read from memory, as the last operand.
        let (f213, f231) = match (negated, wide) {
            (false, false) => (op::VFMADD213PS, op::VFMADD231PS),
            (false, true) => (op::VFMADD213PD, op::VFMADD231PD),
            (true, false) => (op::VFNMADD213PS, op::VFNMADD231PS),
            (true, true) => (op::VFNMADD213PD, op::VFNMADD231PD),
        };
        let is_constant = |s: Src| matches!(s, Src::Const(_));
        let (a, b) = if is_constant(a) { (b, a) } else { (a, b) };
        let (op, overwritten, second, third) = if is_constant(b) {
            // c = a · memory + c
            (f231, c, a, b)
        } else if is_last_use(c) {
            (f231, c, a, b)
        } else if is_last_use(b) && !is_last_use(a) {
            (f213, b, a, c)
        } else {
            (f213, a, b, c)
        };
        let second_operand = self.operand(second, false, width, now, &step.from);
        let third_operand = self.operand(third, true, width, now, &step.from);
        let to = self.overwrite(overwritten, &[second, third], step, now);
        self.asm.op(op, width, (to, second_operand, third_operand));
    }

    pub(super) fn emit_blend(&mut self, wide: bool, step: &Step, now: u32) {
        let [Some(a), Some(b), Some(Src::Virt(mask))] = step.from else {
            panic!("two operands and a mask");
        };
        let width = self.full_width();
        let first = self.operand(a, false, width, now, &step.from);
        let second = self.operand(b, true, width, now, &step.from);
        if self.ir.target.evex {
            let mask = self.mask(mask);
            self.release_dead_sources(step, now);
            let to = self.destination(step, now, &step.from);
            let op = if wide { op::VBLENDMPD } else { op::VBLENDMPS };
            self.asm
                .masked(op, width, (mask, false), (to, first, second));
        } else {
            let mask = self.vector(mask);
            self.release_dead_sources(step, now);
            let to = self.destination(step, now, &step.from);
            let op = if wide { op::VBLENDVPD } else { op::VBLENDVPS };
            self.asm.op(op, width, (to, first, second, mask));
        }
    }

    /// Replaces the lanes outside the tail with the identity element of the reduction.
    pub(super) fn emit_fill(
        &mut self,
        (reduction, wide, float): (Reduction, u8, bool),
        step: &Step,
        now: u32,
    ) {
        let Some(value) = step.from[0] else {
            panic!("the step has no source");
        };
        let Some(to) = step.to else {
            panic!("the step has no result");
        };
        let Some(tail) = self.tail else {
            // Without a tail, the result is the value itself.
            match value {
                Src::Virt(v) if self.dies(v, now) => {
                    let location =
                        std::mem::replace(&mut self.values[v.0 as usize], Location::None);
                    self.values[to.0 as usize] = location;
                    self.borrowed[to.0 as usize] = self.borrowed[v.0 as usize];
                }
                _ => {
                    let from = self.register(value, now, &step.from);
                    let r = self.result_register(to, now, &step.from);
                    let width = self.full_width();
                    self.asm.op(op::VMOVAPS, width, (r, from));
                }
            }
            return;
        };
        let width = self.full_width();
        let from = self.register(value, now, &step.from);
        let neutral = self.take_temporary(now, &step.from);
        let constant = identity(reduction, wide > 0, float);
        load_constant(self.asm, &constant, width, neutral);
        let part = wide.saturating_sub(1);
        let mask = self.tail_vector(tail, wide > 0, part, now, &step.from);
        self.release_dead_sources(step, now);
        let r = self.result_register(to, now, &step.from);
        match tail {
            Tail::Bits { low, high } => {
                let k = if part == 1 { high } else { low };
                let op = if wide > 0 {
                    op::VBLENDMPD
                } else {
                    op::VBLENDMPS
                };
                self.asm.masked(op, width, (k, false), (r, neutral, from));
            }
            Tail::Memory { .. } => {
                self.asm.op(op::VBLENDVPS, width, (r, neutral, from, mask));
            }
        }
    }
}

/// Returns the identity element of a reduction.
pub(super) fn identity(op: Reduction, wide: bool, float: bool) -> Constant {
    let lanes64 = |x: i64| Constant::Lanes64(x as u64);
    let lanes32 = |x: i32| Constant::Lanes32(x as u32);
    match (float, wide) {
        (true, true) => Constant::Lanes64(op.identity_f64().to_bits()),
        (true, false) => Constant::Lanes32((op.identity_f64() as f32).to_bits()),
        (false, true) => lanes64(match op {
            Reduction::Sum => 0,
            Reduction::Prod => 1,
            Reduction::Max => i64::MIN,
            Reduction::Min => i64::MAX,
        }),
        (false, false) => lanes32(match op {
            Reduction::Sum => 0,
            Reduction::Prod => 1,
            Reduction::Max => i32::MIN,
            Reduction::Min => i32::MAX,
        }),
    }
}

//! Instructions whose result overwrites an operand, or that choose between two.

use super::emit::{At, Emit, load_constant};
use super::ir::{Constant, Src, Step};
use super::locations::{Locations, Tail};
use kiln_base::prim::Reduction;
use kiln_x86::{Op, Vreg, Width, op};

impl<P: Locations> Emit<'_, P> {
    /// Returns the register of a result that overwrites `source`: the register of `source`, if this is its last use.
    pub(super) fn over(&mut self, source: Src, others: &[Src], step: &Step, now: u32) -> Vreg {
        let Some(to) = step.to else {
            panic!("a result for nothing");
        };
        let busy = &step.from;
        let from = self.register(source, now, busy);
        let owned = match source {
            Src::Virt(v) => self.dies(v, now) && !self.borrowed[v.0 as usize],
            Src::Const(c) => self.pinned[c as usize].is_none(),
        };
        let wanted = self.wanted[to.0 as usize].filter(|r| *r == from || self.is_unused(*r));
        let r = match wanted {
            Some(r) => {
                self.borrowed[to.0 as usize] = true;
                r
            }
            None if owned => {
                match source {
                    Src::Virt(v) => self.at[v.0 as usize] = At::Nowhere,
                    Src::Const(_) => self.temporary.retain(|t| *t != from),
                }
                from
            }
            // The register must not hold another operand, because that is read after this one is written.
            None => self.take(now, busy),
        };
        if r != from {
            let width = self.full();
            self.asm.op(op::VMOVAPS, width, (r, from));
        }
        for s in others.iter().chain([&source]) {
            if let Src::Virt(v) = s
                && self.dies(*v, now)
            {
                self.release(*v);
            }
        }
        self.location(to, r);
        r
    }

    pub(super) fn tied(&mut self, op: Op, width: Width, step: &Step, now: u32) {
        let [Some(a), Some(b), Some(c)] = step.from else {
            panic!("three operands");
        };
        let second = self.operand(b, false, width, now, &step.from);
        let third = self.operand(c, true, width, now, &step.from);
        let to = self.over(a, &[b, c], step, now);
        self.asm.op(op, width, (to, second, third));
    }

    pub(super) fn fma(&mut self, negated: bool, wide: bool, step: &Step, now: u32) {
        let [Some(a), Some(b), Some(c)] = step.from else {
            panic!("three operands");
        };
        let width = self.full();
        let ends = |s: Src| match s {
            Src::Virt(v) => self.dies(v, now) && !self.borrowed[v.0 as usize],
            Src::Const(_) => false,
        };
        // This is a · b + c over one of the three; a constant is best left in memory.
        let (f213, f231) = match (negated, wide) {
            (false, false) => (op::VFMADD213PS, op::VFMADD231PS),
            (false, true) => (op::VFMADD213PD, op::VFMADD231PD),
            (true, false) => (op::VFNMADD213PS, op::VFNMADD231PS),
            (true, true) => (op::VFNMADD213PD, op::VFNMADD231PD),
        };
        let is_constant = |s: Src| matches!(s, Src::Const(_));
        let (a, b) = if is_constant(a) { (b, a) } else { (a, b) };
        let (op, over, second, third) = if is_constant(b) {
            // c = a · memory + c, whatever c is.
            (f231, c, a, b)
        } else if ends(c) {
            (f231, c, a, b)
        } else if ends(b) && !ends(a) {
            (f213, b, a, c)
        } else {
            (f213, a, b, c)
        };
        let second_at = self.operand(second, false, width, now, &step.from);
        let third_at = self.operand(third, true, width, now, &step.from);
        let to = self.over(over, &[second, third], step, now);
        self.asm.op(op, width, (to, second_at, third_at));
    }

    pub(super) fn blend(&mut self, wide: bool, step: &Step, now: u32) {
        let [Some(a), Some(b), Some(Src::Virt(mask))] = step.from else {
            panic!("two operands and a mask");
        };
        let width = self.full();
        let first = self.operand(a, false, width, now, &step.from);
        let second = self.operand(b, true, width, now, &step.from);
        if self.ir.target.evex {
            let mask = self.mask(mask);
            self.end(step, now);
            let to = self.target(step, now, &step.from);
            let op = if wide { op::VBLENDMPD } else { op::VBLENDMPS };
            self.asm
                .masked(op, width, (mask, false), (to, first, second));
        } else {
            let mask = self.vector(mask);
            self.end(step, now);
            let to = self.target(step, now, &step.from);
            let op = if wide { op::VBLENDVPD } else { op::VBLENDVPS };
            self.asm.op(op, width, (to, first, second, mask));
        }
    }

    /// Replaces the lanes outside the tail by the identity element of the reduction.
    pub(super) fn neutral(
        &mut self,
        (reduction, wide, float): (Reduction, u8, bool),
        step: &Step,
        now: u32,
    ) {
        let Some(value) = step.from[0] else {
            panic!("nothing to reduce");
        };
        let Some(to) = step.to else {
            panic!("a result for nothing");
        };
        let Some(tail) = self.tail else {
            // The value itself.
            match value {
                Src::Virt(v) if self.dies(v, now) => {
                    let at = std::mem::replace(&mut self.at[v.0 as usize], At::Nowhere);
                    self.at[to.0 as usize] = at;
                    self.borrowed[to.0 as usize] = self.borrowed[v.0 as usize];
                }
                _ => {
                    let from = self.register(value, now, &step.from);
                    let r = self.result(to, now, &step.from);
                    let width = self.full();
                    self.asm.op(op::VMOVAPS, width, (r, from));
                }
            }
            return;
        };
        let width = self.full();
        let from = self.register(value, now, &step.from);
        let none = self.temporary(now, &step.from);
        let constant = identity(reduction, wide > 0, float);
        load_constant(self.asm, &constant, width, none);
        let part = wide.saturating_sub(1);
        let mask = self.tail_vector(tail, wide > 0, part, now, &step.from);
        self.end(step, now);
        let r = self.result(to, now, &step.from);
        match tail {
            Tail::Bits { low, high } => {
                let k = if part == 1 { high } else { low };
                let op = if wide > 0 {
                    op::VBLENDMPD
                } else {
                    op::VBLENDMPS
                };
                self.asm.masked(op, width, (k, false), (r, none, from));
            }
            Tail::Memory { .. } => {
                self.asm.op(op::VBLENDVPS, width, (r, none, from, mask));
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

//! Straight-line vector code with virtual registers.

use super::Target;
pub use super::step::Key;
pub(super) use super::step::{Action, Constant, Form, Src, Step, Virt};
use kiln_base::prim::Reduction;
use kiln_x86::{MaskOp, Op, Width, op};

/// A builder of vector code.
pub(super) struct Ir {
    pub target: Target,
    pub steps: Vec<Step>,
    pub constants: Vec<Constant>,
    /// True for each virtual register that is a mask register.
    pub masks: Vec<bool>,
}

/// The condition of a comparison.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// At least one operand is NaN.
    Unordered,
}

impl Cmp {
    /// Returns the quiet predicate of `vcmpps`.
    fn float(self) -> u8 {
        match self {
            Cmp::Eq => 0,
            Cmp::Ne => 4,
            Cmp::Lt => 17,
            Cmp::Le => 18,
            Cmp::Gt => 30,
            Cmp::Ge => 29,
            Cmp::Unordered => 3,
        }
    }

    /// Returns the predicate of `vpcmpd`.
    fn int(self) -> u8 {
        match self {
            Cmp::Eq => 0,
            Cmp::Lt => 1,
            Cmp::Le => 2,
            Cmp::Ne => 4,
            Cmp::Ge => 5,
            Cmp::Gt => 6,
            Cmp::Unordered => panic!("integers are ordered"),
        }
    }
}

impl Ir {
    pub(super) fn new(target: Target) -> Ir {
        Ir {
            target,
            steps: vec![],
            constants: vec![],
            masks: vec![],
        }
    }

    /// Returns the code of two groups of lanes with their steps interleaved, which hides latency.
    pub(super) fn interleave_groups(&self) -> Ir {
        let values = self.masks.len() as u32;
        let in_second_group = |v: Virt| Virt(v.0 + values);
        let mut steps = Vec::with_capacity(2 * self.steps.len());
        for step in &self.steps {
            let from = step.from.map(|s| match s {
                Some(Src::Virt(v)) => Some(Src::Virt(in_second_group(v))),
                s => s,
            });
            steps.push(*step);
            steps.push(Step {
                to: step.to.map(in_second_group),
                from,
                group: 1,
                ..*step
            });
        }
        Ir {
            target: self.target,
            steps,
            constants: self.constants.clone(),
            masks: self.masks.repeat(2),
        }
    }

    pub(super) fn width(&self) -> Width {
        self.target.width()
    }

    fn constant(&mut self, c: Constant) -> Src {
        let index = self.constants.iter().position(|k| *k == c);
        Src::Const(index.unwrap_or_else(|| {
            self.constants.push(c);
            self.constants.len() - 1
        }) as u32)
    }

    /// Returns a constant with the same f32 in each lane.
    pub(super) fn f32(&mut self, x: f32) -> Src {
        self.constant(Constant::Lanes32(x.to_bits()))
    }

    pub(super) fn f64(&mut self, x: f64) -> Src {
        self.constant(Constant::Lanes64(x.to_bits()))
    }

    pub(super) fn i32(&mut self, x: i32) -> Src {
        self.constant(Constant::Lanes32(x as u32))
    }

    pub(super) fn i64(&mut self, x: i64) -> Src {
        self.constant(Constant::Lanes64(x as u64))
    }

    pub(super) fn vector(&mut self, bytes: [u8; 64]) -> Src {
        self.constant(Constant::Vector(bytes))
    }

    fn new_register(&mut self, mask: bool) -> Virt {
        self.masks.push(mask);
        Virt(self.masks.len() as u32 - 1)
    }

    pub(super) fn push(&mut self, action: Action, mask: bool, from: [Option<Src>; 3]) -> Virt {
        let to = self.new_register(mask);
        self.steps.push(Step {
            action,
            to: Some(to),
            from,
            group: 0,
        });
        to
    }

    /// Returns the number that all lanes of a constant of f32, or of f64, hold.
    pub(super) fn constant_value(&self, wide: bool, x: Src) -> Option<f64> {
        let Src::Const(c) = x else { return None };
        match self.constants[c as usize] {
            Constant::Lanes32(bits) if !wide => Some(f32::from_bits(bits).into()),
            Constant::Lanes64(bits) if wide => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// Returns the instruction that computes a value, with its immediate and its sources.
    pub(super) fn definition(&self, x: Src) -> Option<(Op, Option<u8>, [Option<Src>; 3])> {
        let Src::Virt(v) = x else { return None };
        let step = self.steps.iter().rev().find(|s| s.to == Some(v))?;
        match step.action {
            Action::Op { op, immediate, .. } => Some((op, immediate, step.from)),
            _ => None,
        }
    }

    /// Removes steps without effects whose results are not used.
    pub(super) fn eliminate_dead_code(&mut self) {
        let mut used = vec![false; self.masks.len()];
        let mut steps = std::mem::take(&mut self.steps);
        steps.reverse();
        steps.retain(|step| {
            let has_effect = matches!(step.action, Action::Store { .. } | Action::Call(_));
            let is_live = has_effect || step.to.is_none_or(|v| used[v.0 as usize]);
            for from in step.from.iter().flatten().filter(|_| is_live) {
                if let Src::Virt(v) = from {
                    used[v.0 as usize] = true;
                }
            }
            is_live
        });
        steps.reverse();
        self.steps = steps;
    }

    /// Adds `op(a)`.
    pub(super) fn op1(&mut self, op: Op, a: impl Into<Src>) -> Virt {
        let width = self.width();
        self.op1_with(op, width, None, a)
    }

    /// Adds `op(a)` at a width, with an immediate.
    pub(super) fn op1_with(
        &mut self,
        op: Op,
        width: Width,
        immediate: Option<u8>,
        a: impl Into<Src>,
    ) -> Virt {
        let action = Action::op(op, width, immediate, false);
        self.push(action, false, [Some(a.into()), None, None])
    }

    /// Adds `op(a, b)`.
    pub(super) fn op2(&mut self, op: Op, a: impl Into<Src>, b: impl Into<Src>) -> Virt {
        let width = self.width();
        self.op2_with(op, width, None, a, b)
    }

    /// Adds `op(a, b)` for a commutative operation.
    pub(super) fn commutative(&mut self, op: Op, a: impl Into<Src>, b: impl Into<Src>) -> Virt {
        match (a.into(), b.into()) {
            (a @ Src::Const(_), b @ Src::Virt(_)) => self.op2(op, b, a),
            (a, b) => self.op2(op, a, b),
        }
    }

    /// Adds `op(a, b)` at a width, with an immediate.
    pub(super) fn op2_with(
        &mut self,
        op: Op,
        width: Width,
        immediate: Option<u8>,
        a: impl Into<Src>,
        b: impl Into<Src>,
    ) -> Virt {
        let (a, b) = (a.into(), b.into());
        // With EVEX, these instructions broadcast elements of 32 bits.
        let narrow = matches!(op.name, "VPAND" | "VPOR" | "VPXOR" | "VPANDN");
        let wide = match b {
            Src::Const(c) => matches!(self.constants[c as usize], Constant::Lanes64(_)),
            Src::Virt(_) => false,
        };
        let memory = width == self.width() && !(narrow && wide);
        let action = Action::op(op, width, immediate, memory);
        self.push(action, false, [Some(a), Some(b), None])
    }

    /// Adds an instruction that overwrites its first operand, `op(a, b, c)`.
    pub(super) fn tied(&mut self, op: Op, a: Src, b: Src, c: Src) -> Virt {
        let action = Action::Op {
            op,
            width: self.width(),
            immediate: None,
            memory: true,
            tied: true,
        };
        self.push(action, false, [Some(a), Some(b), Some(c)])
    }

    /// Adds `a · b + c`, rounded once.
    pub(super) fn fma(&mut self, a: impl Into<Src>, b: impl Into<Src>, c: impl Into<Src>) -> Virt {
        let action = Action::Fma {
            negated: false,
            wide: false,
        };
        let from = [Some(a.into()), Some(b.into()), Some(c.into())];
        self.push(action, false, from)
    }

    /// Adds `mask ? a : b`, for lanes of 32 or 64 bits.
    pub(super) fn select(
        &mut self,
        wide: bool,
        mask: Virt,
        a: impl Into<Src>,
        b: impl Into<Src>,
    ) -> Virt {
        let from = [Some(b.into()), Some(a.into()), Some(mask.into())];
        self.push(Action::Blend { wide }, false, from)
    }

    /// Adds a comparison of floats of 32 or 64 bits. The result is a mask, with half as many lanes for 64 bits.
    pub(super) fn compare(
        &mut self,
        wide: bool,
        cmp: Cmp,
        a: impl Into<Src>,
        b: impl Into<Src>,
    ) -> Virt {
        let op = if wide { op::VCMPPD } else { op::VCMPPS };
        let action = Action::op(op, self.width(), Some(cmp.float()), true);
        let from = [Some(a.into()), Some(b.into()), None];
        self.push(action, self.target.evex, from)
    }

    /// Adds a comparison of integers.
    pub(super) fn compare_int(&mut self, wide: bool, cmp: Cmp, a: Src, b: Src) -> Virt {
        if self.target.evex {
            let op = if wide { op::VPCMPQ } else { op::VPCMPD };
            let action = Action::op(op, self.width(), Some(cmp.int()), true);
            return self.push(action, true, [Some(a), Some(b), None]);
        }
        let (equal, greater) = match wide {
            true => (op::VPCMPEQQ, op::VPCMPGTQ),
            false => (op::VPCMPEQD, op::VPCMPGTD),
        };
        let not = |ir: &mut Ir, m: Virt| {
            let ones = ir.i32(-1);
            ir.op2(op::VPXOR, m, ones)
        };
        match cmp {
            Cmp::Eq => self.op2(equal, a, b),
            Cmp::Gt => self.op2(greater, a, b),
            Cmp::Lt => self.op2(greater, b, a),
            Cmp::Ne => {
                let m = self.op2(equal, a, b);
                not(self, m)
            }
            Cmp::Le => {
                let m = self.op2(greater, a, b);
                not(self, m)
            }
            Cmp::Ge => {
                let m = self.op2(greater, b, a);
                not(self, m)
            }
            Cmp::Unordered => panic!("integers are ordered"),
        }
    }

    /// Adds the conversion of the sign bits of a vector to a mask.
    pub(super) fn sign_mask(&mut self, wide: bool, a: Virt) -> Virt {
        if self.target.evex {
            let op = if wide { op::VPMOVQ2M } else { op::VPMOVD2M };
            let action = Action::op(op, self.width(), None, false);
            return self.push(action, true, [Some(a.into()), None, None]);
        }
        match wide {
            true => {
                let zero = self.i64(0);
                self.op2(op::VPCMPGTQ, zero, a)
            }
            false => {
                let width = self.width();
                self.op1_with(op::VPSRAD, width, Some(31), a)
            }
        }
    }

    /// Joins the masks of the two halves of a group, with 64 bits per lane, to the mask of the group.
    pub(super) fn join_masks(&mut self, low: Virt, high: Virt) -> Virt {
        if self.target.evex {
            let from = [Some(low.into()), Some(high.into()), None];
            return self.push(Action::JoinBits, true, from);
        }
        self.narrow64(low, high)
    }

    /// Truncates the lanes of two vectors of 64 bits per lane to 32 bits.
    pub(super) fn truncate64(&mut self, low: Virt, high: Virt) -> Virt {
        if !self.target.evex {
            return self.narrow64(low, high);
        }
        let [low, high] = [low, high].map(|x| self.op1(op::VPMOVQD, x));
        self.join_halves(low, high)
    }

    /// With VEX, truncates the lanes of two vectors of 64 bits per lane to 32 bits.
    pub(super) fn narrow64(&mut self, low: Virt, high: Virt) -> Virt {
        let width = self.width();
        let even = self.op2_with(op::VSHUFPS, width, Some(0x88), low, high);
        self.op1_with(op::VPERMQ, width, Some(0xD8), even)
    }

    /// Splits the mask of a group into the masks of its two halves, for lanes of 64 bits.
    pub(super) fn split_mask(&mut self, m: Virt) -> [Virt; 2] {
        if self.target.evex {
            let upper = self.push(Action::UpperBits, true, [Some(m.into()), None, None]);
            return [m, upper];
        }
        let upper = self.op1_with(op::VEXTRACT128, Width::Y, Some(1), m);
        [self.op1(op::VPMOVSXDQ, m), self.op1(op::VPMOVSXDQ, upper)]
    }

    /// Adds a bitwise operation on masks.
    pub(super) fn mask_op(&mut self, what: MaskOp, a: Virt, b: Virt) -> Virt {
        if self.target.evex {
            let from = [Some(a.into()), Some(b.into()), None];
            return self.push(Action::Masks(what), true, from);
        }
        let op = match what {
            MaskOp::And => op::VPAND,
            MaskOp::Or => op::VPOR,
            MaskOp::Xor => op::VPXOR,
            MaskOp::AndNot => op::VPANDN,
            MaskOp::Equal => op::VPCMPEQD,
        };
        self.op2(op, a, b)
    }

    /// Returns the complement of a mask.
    pub(super) fn not_mask(&mut self, a: Virt) -> Virt {
        if self.target.evex {
            let ones = self.mask_op(MaskOp::Equal, a, a);
            return self.mask_op(MaskOp::Xor, a, ones);
        }
        let ones = self.i32(-1);
        self.op2(op::VPXOR, a, ones)
    }

    /// Adds a load; `mask` is true if it loads a mask register.
    pub(super) fn load(&mut self, from: Key, form: Form, mask: bool) -> Virt {
        self.push(Action::Load { from, form }, mask, [None; 3])
    }

    pub(super) fn store(&mut self, to: Key, form: Form, value: Src) {
        self.steps.push(Step {
            action: Action::Store { to, form },
            to: None,
            from: [Some(value), None, None],
            group: 0,
        });
    }

    /// Replaces the lanes of a value beyond the tail with the identity element of a reduction.
    pub(super) fn fill(&mut self, op: Reduction, wide: u8, float: bool, value: Src) -> Virt {
        let action = Action::Fill { op, wide, float };
        self.push(action, false, [Some(value), None, None])
    }

    /// Extracts the upper half of a vector.
    pub(super) fn upper_half(&mut self, a: impl Into<Src>) -> Virt {
        match self.target.evex {
            true => self.op1_with(op::VEXTRACT256, Width::Z, Some(1), a),
            false => self.op1_with(op::VEXTRACT128, Width::Y, Some(1), a),
        }
    }

    /// Concatenates two vectors of half the width.
    pub(super) fn join_halves(&mut self, low: Virt, high: Virt) -> Virt {
        let (op, width) = match self.target.evex {
            true => (op::VINSERT256, Width::Z),
            false => (op::VINSERT128, Width::Y),
        };
        let action = Action::op(op, width, Some(1), false);
        self.push(action, false, [Some(low.into()), Some(high.into()), None])
    }
}

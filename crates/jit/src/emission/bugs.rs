//! Seeded bugs in vector code, as an emitter could have them. Tests that compare with the interpreter find each one.

use super::ir::{Action, Constant, Form, Ir, Src, Step};
use kiln_base::prim::Reduction;
use kiln_kernel::bugs::seeded;
use kiln_x86::MaskOp;

/// A mutation of vector code.
type Bug = fn(&mut Ir);

/// Returns the description of each bug.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUGS.iter().map(|(name, _)| *name)
}

/// Applies the bug that is seeded in this thread, if it is one of [`BUGS`].
pub(super) fn apply(ir: &mut Ir) {
    let is_seeded = |(name, _): &&(&str, Bug)| Some(*name) == seeded();
    if let Some((_, bug)) = BUGS.iter().find(is_seeded) {
        bug(ir);
    }
}

/// Applies `f` to each step.
fn for_each_step(ir: &mut Ir, f: impl Fn(&mut Step)) {
    ir.steps.iter_mut().for_each(f);
}

/// Applies `f` to each immediate of the named instructions.
fn map_immediates(ir: &mut Ir, names: &[&str], f: impl Fn(u8) -> u8) {
    for_each_step(ir, |s| {
        if let Action::Op {
            op,
            immediate: Some(n),
            ..
        } = &mut s.action
            && names.contains(&op.name)
        {
            *n = f(*n);
        }
    });
}

const BUGS: &[(&str, Bug)] = &[
    ("a selection takes the other side", |ir| {
        for_each_step(ir, |s| {
            if let Action::Blend { .. } = s.action {
                s.from.swap(0, 1);
            }
        });
    }),
    ("a product is subtracted", |ir| {
        for_each_step(ir, |s| {
            if let Action::Fma { negated, .. } = &mut s.action {
                *negated = true;
            }
        });
    }),
    ("less is less or equal", |ir| {
        map_immediates(ir, &["VCMPPS", "VCMPPD"], |n| if n == 17 { 18 } else { n });
    }),
    ("a comparison with NaN holds", |ir| {
        map_immediates(ir, &["VCMPPS"], |n| if n == 0 { 8 } else { n });
    }),
    ("floor is ceil", |ir| {
        map_immediates(
            ir,
            &["VROUNDPS", "VROUNDPD"],
            |n| if n == 9 { 10 } else { n },
        );
    }),
    ("f16 is rounded towards zero", |ir| {
        map_immediates(ir, &["VCVTPS2PH"], |_| 3);
    }),
    ("bytes have no sign", |ir| {
        for_each_step(ir, |s| {
            if let Action::Load { form, .. } = &mut s.action
                && *form == (Form::Byte { signed: true })
            {
                *form = Form::Byte { signed: false };
            }
        });
    }),
    ("the upper half of lanes is read like the lower", |ir| {
        for_each_step(ir, |s| {
            if let Action::Load { form, .. } = &mut s.action
                && *form == Form::Double(1)
            {
                *form = Form::Double(0);
            }
        });
    }),
    ("the upper half of lanes is written over the lower", |ir| {
        for_each_step(ir, |s| {
            if let Action::Store { form, .. } = &mut s.action
                && *form == Form::Double(1)
            {
                *form = Form::Double(0);
            }
        });
    }),
    ("the tail of a sum has one more element per lane", |ir| {
        for_each_step(ir, |s| {
            if let Action::Fill { op, .. } = &mut s.action
                && *op == Reduction::Sum
            {
                *op = Reduction::Prod;
            }
        });
    }),
    ("operands of a difference are swapped", |ir| {
        for_each_step(ir, |s| {
            if let Action::Op { op, .. } = s.action
                && matches!(op.name, "VSUBPS" | "VPSUBD")
                && matches!(s.from[1], Some(Src::Virt(_)))
            {
                s.from.swap(0, 1);
            }
        });
    }),
    ("a constant has another last bit", |ir| {
        for c in &mut ir.constants {
            match c {
                Constant::Lanes32(x) => *x ^= 1,
                Constant::Lanes64(x) => *x ^= 1,
                Constant::Vector(x) => x[0] ^= 1,
            }
        }
    }),
    ("OR of masks is AND", |ir| {
        for_each_step(ir, |s| match &mut s.action {
            Action::Masks(op) if *op == MaskOp::Or => *op = MaskOp::And,
            _ => {}
        });
    }),
];

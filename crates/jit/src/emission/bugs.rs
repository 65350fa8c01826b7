//! Seeded bugs, which make vector code wrong as a bug of the emitter would. Tests that compare with the interpreter
//! find each of them.

use super::ir::{Constant, Do, Form, Ir, Src, Step};
use kiln_base::prim::Reduction;
use kiln_kernel::bugs::seeded;
use kiln_x86::MaskOp;

/// A change to code, without effect where it does not apply.
type Bug = fn(&mut Ir);

/// Returns the description of each bug.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUGS.iter().map(|(name, _)| *name)
}

/// Applies the bug of this thread, if it is one of these.
pub(super) fn apply(ir: &mut Ir) {
    let is_it = |(name, _): &&(&str, Bug)| Some(*name) == seeded();
    if let Some((_, bug)) = BUGS.iter().find(is_it) {
        bug(ir);
    }
}

/// Applies `f` to each step.
fn steps(ir: &mut Ir, f: impl Fn(&mut Step)) {
    ir.steps.iter_mut().for_each(f);
}

/// Applies `f` to each immediate of the named instructions.
fn immediates(ir: &mut Ir, names: &[&str], f: impl Fn(u8) -> u8) {
    steps(ir, |s| {
        if let Do::Op {
            op,
            immediate: Some(n),
            ..
        } = &mut s.what
            && names.contains(&op.name)
        {
            *n = f(*n);
        }
    });
}

const BUGS: &[(&str, Bug)] = &[
    ("a selection takes the other side", |ir| {
        steps(ir, |s| {
            if let Do::Blend { .. } = s.what {
                s.from.swap(0, 1);
            }
        });
    }),
    ("a product is subtracted", |ir| {
        steps(ir, |s| {
            if let Do::Fma { negated, .. } = &mut s.what {
                *negated = true;
            }
        });
    }),
    ("less is less or equal", |ir| {
        immediates(ir, &["VCMPPS", "VCMPPD"], |n| if n == 17 { 18 } else { n });
    }),
    ("a comparison with NaN holds", |ir| {
        immediates(ir, &["VCMPPS"], |n| if n == 0 { 8 } else { n });
    }),
    ("floor is ceil", |ir| {
        immediates(
            ir,
            &["VROUNDPS", "VROUNDPD"],
            |n| if n == 9 { 10 } else { n },
        );
    }),
    ("halves are rounded towards zero", |ir| {
        immediates(ir, &["VCVTPS2PH"], |_| 3);
    }),
    ("bytes have no sign", |ir| {
        steps(ir, |s| {
            if let Do::Load { form, .. } = &mut s.what
                && *form == (Form::Byte { signed: true })
            {
                *form = Form::Byte { signed: false };
            }
        });
    }),
    ("the upper half of lanes is read like the lower", |ir| {
        steps(ir, |s| {
            if let Do::Load { form, .. } = &mut s.what
                && *form == Form::Double(1)
            {
                *form = Form::Double(0);
            }
        });
    }),
    ("the upper half of lanes is written over the lower", |ir| {
        steps(ir, |s| {
            if let Do::Store { form, .. } = &mut s.what
                && *form == Form::Double(1)
            {
                *form = Form::Double(0);
            }
        });
    }),
    ("the tail of a sum has one more element per lane", |ir| {
        steps(ir, |s| {
            if let Do::Neutral { op, .. } = &mut s.what
                && *op == Reduction::Sum
            {
                *op = Reduction::Prod;
            }
        });
    }),
    ("operands of a difference are swapped", |ir| {
        steps(ir, |s| {
            if let Do::Op { op, .. } = s.what
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
    ("either is both", |ir| {
        steps(ir, |s| match &mut s.what {
            Do::Masks(op) if *op == MaskOp::Or => *op = MaskOp::And,
            _ => {}
        });
    }),
];

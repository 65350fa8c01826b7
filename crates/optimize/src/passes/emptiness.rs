//! A value without elements is made of nothing:
//!
//! ```text
//! empty   f(x, …) = full(0)     where the result has an axis of extent 0
//! ```
//!
//! Nothing is read, divided or looked up for it. Other rules may then move the work that made it, since
//! work on what is stretched to no elements, done before it is stretched, could report a data error that
//! nothing stands for: `(a / b).sum(1)` of `[11, 0]` and `[11, 1]` divides nothing. Sizes are 0 for
//! every run or for none, since symbols are at least 2. What a user's kernel does is left to it, as are
//! the indices of a scatter that name places in a tensor that has none.

use crate::{Pass, Patch, Rule, Run, View};
use kiln_base::Scalar;
use kiln_ir::ops::Full;
use kiln_ir::{Fact, NodeId, Op};

/// The pass.
pub const PASS: Pass = Pass {
    name: "emptiness",
    about: "makes values without elements of nothing",
    exact: true,
    run: Run::Rules(&[&Empty]),
};

/// f(x, …) = full(0) of no elements.
pub struct Empty;

impl Rule for Empty {
    fn name(&self) -> &'static str {
        "empty"
    }

    fn apply(&self, view: &View<'_>, id: NodeId) -> Option<Patch> {
        let node = view.node(id);
        let [fact] = &node.facts[..] else {
            return None;
        };
        let stays = match &node.op {
            Op::Input(_) | Op::Full(_) | Op::Constant(_) | Op::Custom(_) => true,
            Op::Scatter(_) => !is_empty(view.fact(node.inputs[1])),
            op => !op.bodies().is_empty(),
        };
        if stays || !is_empty(fact) {
            return None;
        }
        let nothing = Full {
            value: Scalar::Int(0).cast(fact.dtype),
            dtype: fact.dtype,
            shape: fact.shape.clone(),
        };
        view.replace_with(id, nothing, &[])
    }
}

fn is_empty(fact: &Fact) -> bool {
    fact.shape.iter().any(|d| d.is(0))
}

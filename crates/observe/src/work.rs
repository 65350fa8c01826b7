//! The multiplications and operations of an op, from the facts of its operands and results.

use kiln_ir::ops::Loop;
use kiln_ir::{Fact, Graph, Op};

/// The work of an op. A loop has that of its steps, or of one step if there is no largest number; of branches, the
/// largest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Multiply-adds of convolutions and matrix products.
    pub contraction: u64,
    /// Multiply-adds of the products within attention.
    pub attention: u64,
    /// Operations of all other ops: one for each element that is computed, or that is reduced.
    pub elementwise: u64,
}

impl Work {
    pub fn add(&mut self, other: Work) {
        self.contraction = self.contraction.saturating_add(other.contraction);
        self.attention = self.attention.saturating_add(other.attention);
        self.elementwise = self.elementwise.saturating_add(other.elementwise);
    }

    fn times(self, n: u64) -> Work {
        Work {
            contraction: self.contraction.saturating_mul(n),
            attention: self.attention.saturating_mul(n),
            elementwise: self.elementwise.saturating_mul(n),
        }
    }

    /// Returns the work of an op.
    pub fn of(op: &Op, inputs: &[&Fact], outputs: &[Fact]) -> Work {
        let contraction = |contraction| Work {
            contraction,
            ..Work::default()
        };
        let elementwise = |elementwise| Work {
            elementwise,
            ..Work::default()
        };
        let attention = |products: [u64; 2]| {
            let [q, k, v] = [inputs[0], inputs[1], inputs[2]];
            let keys = size(k, k.rank() - 2);
            let width = |f: &Fact| size(f, f.rank() - 1);
            let pairs = (numel(q) / width(q).max(1)).saturating_mul(keys);
            Work {
                attention: pairs.saturating_mul(products[0] * width(q) + products[1] * width(v)),
                ..Work::default()
            }
        };
        match op {
            // Each element of the result is a sum over a filter; transposed, each of the input is scattered.
            Op::Conv(_) => contraction(numel(&outputs[0]).saturating_mul(filter(inputs[1]))),
            Op::ConvTranspose(_) => contraction(numel(inputs[0]).saturating_mul(filter(inputs[1]))),
            Op::ConvWeight(_) => contraction(numel(inputs[1]).saturating_mul(filter(&outputs[0]))),
            Op::MatMul(_) => {
                let steps = size(inputs[0], inputs[0].rank() - 1);
                contraction(numel(&outputs[0]).saturating_mul(steps))
            }
            Op::Attention(_) => attention([1, 1]),
            // The scores once more, and the gradients of query and key; those of weights and value.
            Op::AttentionGrad(_) => attention([3, 2]),
            Op::Loop(l) if l.trips == Loop::UNBOUNDED => Work::of_body(&l.body),
            Op::Loop(l) => Work::of_body(&l.body).times(l.trips.as_const().unwrap_or(1) as u64),
            Op::If(branches) => {
                let works = branches.branches.iter().map(|b| Work::of_body(b));
                works
                    .max_by_key(|w| (w.contraction.saturating_add(w.attention), w.elementwise))
                    .unwrap_or_default()
            }
            Op::Reduce(_) | Op::ArgReduce(_) | Op::Scan(_) => elementwise(numel(inputs[0])),
            Op::Input(_)
            | Op::Constant(_)
            | Op::Full(_)
            | Op::Iota(_)
            | Op::Barrier(_)
            | Op::Cast(_) => Work::default(),
            op if op.is_view() => Work::default(),
            _ => elementwise(outputs.iter().map(numel).sum()),
        }
    }

    fn of_body(body: &Graph) -> Work {
        let mut sum = Work::default();
        for (_, node) in body.iter() {
            let inputs: Vec<&Fact> = node.inputs.iter().map(|v| body.fact(*v)).collect();
            sum.add(Work::of(&node.op, &inputs, &node.facts));
        }
        sum
    }
}

/// The number of elements of a fact without symbols.
pub(crate) fn numel(fact: &Fact) -> u64 {
    (0..fact.rank()).map(|axis| size(fact, axis)).product()
}

/// The bytes of a fact without symbols.
pub(crate) fn bytes(fact: &Fact) -> u64 {
    numel(fact) * fact.dtype.size() as u64
}

pub(crate) fn size(fact: &Fact, axis: usize) -> u64 {
    fact.shape[axis].as_const().unwrap_or(1).max(0) as u64
}

/// The elements of one filter of a weight.
fn filter(weight: &Fact) -> u64 {
    numel(weight) / size(weight, 0).max(1)
}

//! Common subexpressions: two nodes with one op, equal attributes and the same operands are one.
//!
//! Operands of `add`, `mul`, `eq`, `ne` and the bit operations are compared in either order, and so are those of
//! `maximum` and `minimum` on integers and bool. On floats these two are not, since the zero that `maximum(0, -0)`
//! gives may depend on the order. Every op is pure, random numbers too: one key gives one sequence. Inputs are never
//! merged. Two outputs of the graph may come to share a value; their targets stay. One walk with a hash table.

use crate::{OptimizeError, Pass, Rewriter, Run, View};
use hashbrown::HashTable;
use kiln_ir::{Kind, Node, NodeId, Op, Pw, Value};
use smallvec::SmallVec;
use std::hash::{BuildHasher, Hash, Hasher};

/// The pass.
pub const PASS: Pass = Pass {
    name: "common_subexpressions",
    about: "computes equal expressions once",
    exact: true,
    run: Run::Walk(&["common_subexpression"], merge_equal),
};

/// Bytes of a constant that enter its hash; all are compared.
const HASHED_BYTES: usize = 256;

fn merge_equal(rewriter: &mut Rewriter<'_>) -> Result<(), OptimizeError> {
    let hasher = hashbrown::DefaultHashBuilder::default();
    let mut unique: HashTable<NodeId> = HashTable::new();
    for id in rewriter.ids() {
        let view = rewriter.view();
        let node = view.node(id);
        if matches!(node.op, Op::Input(_)) || !rewriter.is_live(id) {
            continue;
        }
        let hash = hash(&hasher, node);
        let twin = unique
            .find(hash, |other| is_equal(&view, *other, id))
            .copied();
        let Some(twin) = twin else {
            unique.insert_unique(hash, id, |other| {
                self::hash(&hasher, rewriter.view().node(*other))
            });
            continue;
        };
        let mut patch = view.patch(id);
        for output in 0..node.facts.len() as u32 {
            patch.replace(Value { node: id, output }, Value { node: twin, output });
        }
        let patch = patch.finish();
        if !rewriter.apply("common_subexpression", id, patch)? {
            break;
        }
    }
    Ok(())
}

fn is_equal(view: &View<'_>, a: NodeId, b: NodeId) -> bool {
    let (a, b) = (view.node(a), view.node(b));
    key_operands(a) == key_operands(b) && a.op == b.op && a.facts == b.facts
}

fn hash(hasher: &impl BuildHasher, node: &Node) -> u64 {
    let mut h = hasher.build_hasher();
    match &node.op {
        Op::Constant(c) => {
            (c.dtype, &c.shape).hash(&mut h);
            c.bytes[..c.bytes.len().min(HASHED_BYTES)].hash(&mut h);
        }
        op => op.hash(&mut h),
    }
    key_operands(node).hash(&mut h);
    h.finish()
}

/// The operands, sorted if the op is commutative.
fn key_operands(node: &Node) -> SmallVec<[Value; 3]> {
    let mut operands = node.inputs.clone();
    if commutes(node) {
        operands.sort();
    }
    operands
}

/// True if the order of the two operands changes no bit of the result.
fn commutes(node: &Node) -> bool {
    let Op::Pointwise(p) = &node.op else {
        return false;
    };
    match p.0 {
        Pw::Add | Pw::Mul | Pw::Eq | Pw::Ne | Pw::And | Pw::Or | Pw::Xor => true,
        Pw::Maximum | Pw::Minimum => node.fact().dtype.kind() != Kind::Float,
        _ => false,
    }
}

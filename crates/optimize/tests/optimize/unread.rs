//! Planted branches, loops and barriers with unread parts.

use crate::generate::Generator;
use crate::rng::loc;
use kiln_ir::ops::{Barrier, If, Loop};
use kiln_ir::{Builder, DType, Dim, Fact, Graph, GraphBuilder, Op, Pw, Role, Value};

/// A body on two values, each of which one output needs.
fn body(facts: [&Fact; 2], ops: [Pw; 2], counted: bool) -> Option<Graph> {
    let mut body = Graph::default();
    let mut b = GraphBuilder::new(&mut body, loc(2000));
    if counted {
        b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
    }
    let x = facts.map(|f| b.input(f.clone(), Role::Data));
    let outputs = [0, 1].map(|i| b.pointwise(ops[i], &[x[i]]));
    for y in outputs {
        body.add_output(y.ok()?);
    }
    Some(body)
}

/// The value of one output, sometimes of both, of an op on two values.
fn read(g: &mut Generator, op: impl Into<Op>, operands: &[Value]) -> Option<Value> {
    let outputs = g.b().emit(op.into(), operands).ok()?;
    let at = g.rng.below(2);
    if g.rng.coin(20) {
        g.values.push(outputs[1 - at]);
    }
    Some(outputs[at])
}

/// Two values that depend on no gather: an index out of range is not an error if nothing reads the result.
fn sound(g: &mut Generator) -> Option<[Value; 2]> {
    let x = [g.any_of(DType::F32), g.any_of(DType::F32)];
    let mut behind = x.map(|v| v.node).to_vec();
    while let Some(id) = behind.pop() {
        let node = g.graph.node(id);
        if matches!(node.op, Op::Gather(_)) {
            return None;
        }
        behind.extend(node.inputs.iter().map(|v| v.node));
    }
    Some(x)
}

/// A branch with two outputs, on a condition that is data.
pub fn branch(g: &mut Generator) -> Option<Value> {
    let x = sound(g)?;
    let facts = x.map(|v| g.graph.fact(v).clone());
    let all: Vec<usize> = (0..facts[0].rank()).collect();
    let sum = g.b().sum(&x[0], &all).ok()?;
    let condition = g.b().with(Pw::Lt, &sum, 0.5).ok()?;
    let [yes, no] = [[Pw::Neg, Pw::Sigmoid], [Pw::Exp, Pw::Relu]]
        .map(|ops| body([&facts[0], &facts[1]], ops, false));
    let branches = [yes?.into(), no?.into()];
    read(g, If { branches }, &[condition, x[0], x[1]])
}

/// A loop that carries two values, each of which depends on itself alone.
pub fn repeated(g: &mut Generator) -> Option<Value> {
    let x = sound(g)?;
    let facts = x.map(|v| g.graph.fact(v).clone());
    let body = body([&facts[0], &facts[1]], [Pw::Tanh, Pw::Neg], true)?;
    let trips = Dim::from(g.rng.below(3));
    read(g, Loop::repeat(trips, body), &x)
}

/// A barrier over an input and a computed value.
pub fn barrier(g: &mut Generator) -> Option<Value> {
    let input = g.graph.inputs()[0].value();
    let x = g.any();
    let operands = [x, input, x];
    let detach = false;
    let outputs = g.b().emit(Barrier { detach }.into(), &operands).ok()?;
    let at = g.rng.below(3);
    Some(outputs[at])
}

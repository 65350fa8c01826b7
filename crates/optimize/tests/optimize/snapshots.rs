//! Each pass before and after, as text.

use crate::norms::{Bias, Case};
use crate::rng::loc;
use kiln_base::Machine;
use kiln_ir::ops::{self, SliceAxis};
use kiln_ir::{
    Builder, DType, Dim, Fact, Graph, GraphBuilder, OpError, Output, Pw, Role, Target, Value,
};
use kiln_optimize::{Options, Select, decompose, optimize};

/// The graph before a pass, the patches of the pass, and the graph after it.
fn before_and_after(pass: &str, build: fn(&mut GraphBuilder<'_>) -> Result<Vec<Value>, OpError>) {
    let mut graph = Graph::default();
    let outputs = build(&mut GraphBuilder::new(&mut graph, loc(1))).expect("a legal graph");
    outputs.into_iter().for_each(|v| graph.add_output(v));
    show(pass, graph);
}

fn show(pass: &str, graph: Graph) {
    let options = Options {
        passes: Select::only([pass, "dead_code"]),
        verify: true,
        ..Options::default()
    };
    let before = graph.to_string();
    let (after, report) = optimize(graph, &options).unwrap();
    insta::assert_snapshot!(pass, format!("{before}\n{report}\n{after}"));
}

fn f32s(shape: &[i64]) -> Fact {
    Fact::new(DType::F32, shape.iter().copied())
}

fn dims<C: FromIterator<Dim>>(shape: &[i64]) -> C {
    shape.iter().map(|d| Dim::from(*d)).collect()
}

#[test]
fn dead_code() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = b.input(f32s(&[4]), Role::Data);
    b.input(f32s(&[4]), Role::Data);
    let kept = b.pointwise(Pw::Exp, &[x]).unwrap();
    let y = b.pointwise(Pw::Neg, &[x]).unwrap();
    let dead = b.pointwise(Pw::Tanh, &[kept]).unwrap();
    b.pointwise(Pw::Abs, &[dead]).unwrap();
    graph.add_output(y);
    graph.outputs.push(Output {
        value: kept,
        target: Target::Kept,
    });
    show("dead_code", graph);
}

#[test]
fn views() {
    before_and_after("views", |b| {
        let x = b.input(f32s(&[2, 3, 4]), Role::Data);
        let same = b.op(ops::Cast::to(DType::F32), &[x])?;
        let one = [1usize, 2, 0].into_iter().collect();
        let one = b.op(ops::Permute { perm: one }, &[same])?;
        let two = [0usize, 2, 1].into_iter().collect();
        let two = b.op(ops::Permute { perm: two }, &[one])?;
        let flat = b.reshape(&two, &[Dim::from(24)])?;
        let square = b.reshape(&flat, &dims::<Vec<_>>(&[1, 24, 1]))?;
        let wide = b.broadcast_to(&square, &dims::<Vec<_>>(&[1, 24, 5]))?;
        let wider = b.broadcast_to(&wide, &dims::<Vec<_>>(&[2, 24, 5]))?;
        let axes = [2, 24, 5].map(|n| SliceAxis::all(&Dim::from(n))).to_vec();
        let all = b.op(ops::Slice { axes }, &[wider])?;
        let narrow = b.op(ops::Cast::to(DType::F16), &[all])?;
        Ok(vec![b.op(ops::Cast::to(DType::F32), &[narrow])?])
    });
}

#[test]
fn constant_fold() {
    before_and_after("constant_fold", |b| {
        let x = b.input(f32s(&[3]), Role::Data);
        let third = b.full(3.0, DType::F32, &[])?;
        let third = b.pointwise(Pw::Reciprocal, &[third])?;
        let scaled = b.pointwise(Pw::Mul, &[x, third])?;
        let index = b.op(ops::Iota { len: Dim::from(3) }, &[])?;
        let one = b.scalar_like(1i64, &index)?;
        let index = b.pointwise(Pw::Add, &[index, one])?;
        let offset = b.cast(&index, DType::F32)?;
        let y = b.pointwise(Pw::Add, &[scaled, offset])?;
        // An error that the run must report.
        let zero = b.scalar_like(0i64, &one)?;
        Ok(vec![y, b.pointwise(Pw::Div, &[one, zero])?])
    });
}

#[test]
fn common_subexpressions() {
    before_and_after("common_subexpressions", |b| {
        let x = b.input(f32s(&[4]), Role::Data);
        let y = b.input(f32s(&[4]), Role::Data);
        let mut sums = vec![];
        for (op, swap) in [
            (Pw::Add, false),
            (Pw::Add, true),
            (Pw::Maximum, false),
            (Pw::Maximum, true),
        ] {
            let (p, q) = if swap { (y, x) } else { (x, y) };
            let v = b.pointwise(op, &[p, q])?;
            sums.push(b.pointwise(Pw::Exp, &[v])?);
        }
        Ok(sums)
    });
}

/// The label's log-probability.
fn picked(b: &mut GraphBuilder<'_>) -> Result<Vec<Value>, OpError> {
    let x = b.input(f32s(&[8, 10]), Role::Data);
    let label = b.input(Fact::new(DType::I64, [8i64, 1]), Role::Data);
    let log = b.op(ops::Softmax { axis: 1, log: true }, &[x])?;
    Ok(vec![b.op(ops::Gather { axis: 1 }, &[log, label])?])
}

#[test]
fn gathers() {
    let mut graph = Graph::default();
    let outputs = picked(&mut GraphBuilder::new(&mut graph, loc(1))).expect("a legal graph");
    outputs.into_iter().for_each(|v| graph.add_output(v));
    show("gathers", decompose(graph, &Machine::default()));
}

fn norm() -> Case {
    Case {
        dtype: DType::F32,
        batch: 2,
        spatial: 2,
        groups: 2,
        group_in: 3,
        group_out: 4,
        kernel: 3,
        bias: Bias::Stretched,
        affine: true,
        eps: 1e-5,
        weight: Role::Parameter,
        statistics: Role::Parameter,
        keeps_conv: false,
    }
}

#[test]
fn folding() {
    show("folding", norm().graph(false));
}

#[test]
fn decomposed() {
    insta::assert_snapshot!(
        "decompose",
        decompose(norm().graph(false), &Machine::default())
    );
}

//! Branches and barriers lose their unread parts, and nothing else.

use crate::bugs::wrong_pass;
use crate::rng::loc;
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::ops::{Barrier, If};
use kiln_ir::{Builder, DType, Fact, Graph, GraphBuilder, NodeId, Op, Pw, Role, Value};
use kiln_optimize::{Options, Pass, Patch, Run, View, optimize_with, passes};

fn f32s(shape: &[i64]) -> Fact {
    Fact::new(DType::F32, shape.iter().copied())
}

/// A side of a branch on x `[3]`, y `[3]` and z `[3]`: of three outputs, each needs other operands.
fn side(ops: [Pw; 3]) -> Graph {
    let mut side = Graph::default();
    let mut b = GraphBuilder::new(&mut side, loc(2));
    let x = [0; 3].map(|_| b.input(f32s(&[3]), Role::Data));
    let sum = b.pointwise(Pw::Add, &[x[0], x[1]]).unwrap();
    let outputs = [
        b.pointwise(ops[0], &[x[0]]).unwrap(),
        b.pointwise(ops[1], &[sum]).unwrap(),
        b.pointwise(ops[2], &[x[2]]).unwrap(),
    ];
    outputs.into_iter().for_each(|o| side.add_output(o));
    side
}

/// A branch whose listed outputs are read.
fn program(read: &[usize]) -> Graph {
    let sides = [
        side([Pw::Neg, Pw::Sin, Pw::Square]),
        side([Pw::Exp, Pw::Tanh, Pw::Cos]),
    ];
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let condition = b.input(Fact::new(DType::Bool, [0i64; 0]), Role::Data);
    let x = [0; 3].map(|_| b.input(f32s(&[3]), Role::Data));
    let op = If {
        branches: sides.map(Into::into),
    };
    let y = b.emit(op.into(), &[condition, x[0], x[1], x[2]]).unwrap();
    read.iter().for_each(|o| graph.add_output(y[*o]));
    graph
}

/// The result of a pass list on a program, if both sides of the branch give the same as before.
fn same(graph: &Graph, list: &[Pass]) -> Option<Graph> {
    let options = Options {
        verify: true,
        ..Options::default()
    };
    let after = optimize_with(graph.clone(), list, &options).ok()?.0;
    for side in [0.0, 1.0] {
        let x = |v: [f64; 3]| Array::from_f64(DType::F32, &[3], &v).unwrap();
        let inputs = [
            Array::from_f64(DType::Bool, &[], &[side]).unwrap(),
            x([0.5, -1.5, f64::NAN]),
            x([2.0, f64::INFINITY, 0.25]),
            x([-0.0, 7.0, 1.0]),
        ];
        let [a, b] = [graph, &after].map(|g| evaluate(g, &inputs, &[], Mode::Rounded));
        let bits = |a: Vec<Array>| -> Vec<Vec<u64>> {
            let bits = |a: &Array| a.to_f64().iter().map(|x| x.to_bits()).collect();
            a.iter().map(bits).collect()
        };
        if bits(a.unwrap()) != bits(b.unwrap()) {
            return None;
        }
    }
    Some(after)
}

fn branch_of(graph: &Graph) -> (usize, usize) {
    let found = graph.iter().find(|(_, n)| matches!(n.op, Op::If(_)));
    let node = found.unwrap().1;
    (node.inputs.len(), node.facts.len())
}

#[test]
fn outputs_of_branches_that_nothing_reads_go_with_their_operands() {
    let reads: [(&[usize], (usize, usize)); 7] = [
        (&[0], (2, 1)),
        (&[1], (3, 1)),
        (&[2], (2, 1)),
        (&[0, 1], (3, 2)),
        (&[2, 0], (3, 2)),
        (&[1, 2, 1], (4, 2)),
        (&[0, 1, 2], (4, 3)),
    ];
    for (read, left) in reads {
        let after = same(&program(read), passes()).expect("the same results");
        assert_eq!(branch_of(&after), left, "outputs {read:?} are read");
    }
}

/// Makes the one output that the graph reads the first and only output of the branch.
fn first_output_of(view: &View<'_>, id: NodeId, swap: bool, next: usize) -> Option<Patch> {
    let node = view.node(id);
    let Op::If(op) = &node.op else { return None };
    let [output] = view.outputs() else {
        return None;
    };
    let read = output.value.output as usize;
    if op.branches[0].outputs.len() < 2 {
        return None;
    }
    let mut branches = op.branches.clone();
    for (i, b) in branches.iter_mut().enumerate() {
        let b = std::sync::Arc::make_mut(b);
        let kept = b.outputs[(read + next * i) % b.outputs.len()];
        b.outputs = vec![kept];
    }
    if swap {
        branches.swap(0, 1);
    }
    let mut patch = view.patch(id);
    let new = patch.emit(If { branches }.into(), &node.inputs).ok()?;
    patch.replace(output.value, new[0]);
    Some(patch.finish())
}

fn branch_as_it_should_be(view: &View<'_>, id: NodeId) -> Option<Patch> {
    first_output_of(view, id, false, 0)
}

fn sides_change_places(view: &View<'_>, id: NodeId) -> Option<Patch> {
    first_output_of(view, id, true, 0)
}

fn one_side_gives_its_next_output(view: &View<'_>, id: NodeId) -> Option<Patch> {
    first_output_of(view, id, false, 1)
}

#[test]
fn wrong_branches_are_flagged() {
    let list = [wrong_pass!(branch_as_it_should_be)];
    assert!((0..3).all(|o| same(&program(&[o]), &list).is_some()));
    for pass in [
        wrong_pass!(sides_change_places),
        wrong_pass!(one_side_gives_its_next_output),
    ] {
        let list = [pass];
        let flagged = (0..3).all(|o| same(&program(&[o]), &list).is_none());
        assert!(flagged, "{} is not flagged", list[0].name);
    }
}

#[test]
fn barriers_keep_what_is_waited_for() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let x = [0; 2].map(|_| b.input(f32s(&[3]), Role::Data));
    let late = b.pointwise(Pw::Exp, &[x[1]]).unwrap();
    let operands = [x[0], late, x[1], late];
    let behind = b.emit(Barrier { detach: false }.into(), &operands).unwrap();
    let y = b.pointwise(Pw::Sin, &[behind[0]]).unwrap();
    graph.add_output(y);
    let (after, report) = optimize_with(graph, passes(), &Options::default()).unwrap();
    assert_eq!(report.count("unread_barrier_value"), 1);
    let barrier = after.iter().find(|(_, n)| matches!(n.op, Op::Barrier(_)));
    let inputs: Vec<Value> = barrier.unwrap().1.inputs.to_vec();
    let names: Vec<&str> = inputs
        .iter()
        .map(|v| after.node(v.node).op.name())
        .collect();
    assert_eq!(
        names,
        ["input", "exp"],
        "the second input and the repetition go"
    );
}

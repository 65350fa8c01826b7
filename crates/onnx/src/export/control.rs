//! Branches and loops.

use super::attributes::{graph, int, ints};
use super::writer::{Name, Value, Values, Writer};
use kiln_base::prim::ScanKind;
use kiln_ir::{
    Builder, DType, Fact, Facts, Graph, GraphBuilder, Loc, OpError, Pw, Role, Scalar, ops,
};

/// Writes a branch. Its sides read values of the graph around them.
pub(super) fn branch(w: &mut Writer, op: &ops::If, inputs: &[Value], facts: &Facts) -> Values {
    let condition = w.name(&inputs[0]);
    let names = ["then_branch", "else_branch"];
    let branches = names.iter().zip(&op.branches);
    let branches: Vec<_> = branches
        .map(|(name, side)| graph(name, w.body(side, &inputs[1..])))
        .collect();
    w.several("If", &[condition], branches, facts)
}

/// Writes a loop as a Scan, which also scans the number of the step.
pub(super) fn repeat(w: &mut Writer, op: &ops::Loop, inputs: &[Value], facts: &Facts) -> Values {
    // Runtimes refuse a Scan of nothing.
    if op.trips.is(0) {
        let stacked = facts[op.carried..].iter();
        let stacked = stacked.map(|f| w.scalar(0i64, f.dtype).stretched(f.shape.clone()));
        return inputs[..op.carried]
            .iter()
            .cloned()
            .chain(stacked)
            .collect();
    }
    let (zero, step_one) = (w.scalar(0i64, DType::I64), w.scalar(1i64, DType::I64));
    let trips = w.size_scalar(&op.trips);
    let steps = w.node("Range", &[zero.name, trips.name, step_one.name], 1, vec![]);
    let passed = op.carried + op.scanned;
    let mut names: Vec<Name> = inputs[..passed].iter().map(|v| w.name(v)).collect();
    names.extend(steps);

    let mut body_names = Vec::new();
    let mut input = Vec::new();
    let mut take = |w: &mut Writer, fact: &Fact| {
        let (value, info) = w.body_input(fact);
        body_names.push(value);
        input.push(info);
    };
    for (i, v) in inputs[..passed].iter().enumerate() {
        let mut fact = v.fact.clone();
        if i >= op.carried {
            fact.shape.remove(0);
        }
        take(w, &fact);
    }
    take(w, &Fact::new(DType::I64, [0i64; 0]));
    body_names.rotate_right(1); // the body has the number of the step in front
    body_names.extend_from_slice(&inputs[passed..]);
    let mut body = w.body(&op.body, &body_names);
    body.input = input;

    let direction = usize::from(op.reverse);
    let stacked = facts.len() - op.carried;
    let attributes = vec![
        graph("body", body),
        int("num_scan_inputs", op.scanned as i64 + 1),
        ints("scan_input_directions", vec![direction; op.scanned + 1]),
        ints("scan_output_directions", vec![direction; stacked]),
    ];
    w.several("Scan", &names, attributes, facts)
}

/// Writes a loop that a condition ends as a Loop, whose state holds the condition too.
pub(super) fn repeat_while(
    w: &mut Writer,
    op: &ops::Loop,
    inputs: &[Value],
    facts: &Facts,
) -> Values {
    let max_trips = match op.trips == ops::Loop::UNBOUNDED {
        true => "".into(),
        false => w.size_scalar(&op.trips).name,
    };
    let mut names = vec![max_trips, w.name(&inputs[0])];
    names.extend(inputs[..op.carried].iter().map(|v| w.name(v)));

    let step = Fact::new(DType::I64, [0i64; 0]);
    let parameters = [&step, &inputs[0].fact].into_iter();
    let parameters = parameters.chain(inputs[..op.carried].iter().map(|v| &v.fact));
    let (mut parameters, input): (Vec<Value>, Vec<_>) = parameters.map(|f| w.body_input(f)).unzip();
    parameters.remove(1); // the condition, which is the first of the state too
    parameters.extend_from_slice(&inputs[op.carried..]);
    let mut step = op.body.compact();
    step.outputs.insert(0, step.outputs[0]);
    let mut body = w.body(&step, &parameters);
    body.input = input;
    w.several("Loop", &names, vec![graph("body", body)], facts)
}

/// Writes a running product, extreme or logarithm of sums as a loop over the axis.
pub(super) fn running(w: &mut Writer, x: &Value, op: &ops::Scan) -> Result<Value, OpError> {
    let dtype = match x.dtype() {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    };
    let (low, high) = dtype.int_range().unwrap_or_default();
    let extreme = |float: f64, int: i128| match dtype.is_float() {
        true => Scalar::Float(float),
        false => Scalar::Int(int as i64),
    };
    let (row, initial) = match op.kind {
        ScanKind::Sum => (Pw::Add, Scalar::Int(0)),
        ScanKind::Prod => (Pw::Mul, Scalar::Int(1)),
        ScanKind::Max => (Pw::Maximum, extreme(f64::NEG_INFINITY, low)),
        ScanKind::Min => (Pw::Minimum, extreme(f64::INFINITY, high)),
        ScanKind::LogSumExp => (Pw::LogAddExp, Scalar::Float(f64::NEG_INFINITY)),
    };
    let mut to_front: Vec<usize> = (0..x.rank()).collect();
    let axis = to_front.remove(op.axis);
    to_front.insert(0, axis);
    let mut from_front: Vec<usize> = (1..x.rank()).collect();
    from_front.insert(op.axis, 0);

    let wide = w.cast(x, dtype)?;
    let slices = w.permute(&wide, &to_front)?;
    let slice = Fact::new(dtype, slices.fact.shape[1..].iter().cloned());
    let mut body = Graph::default();
    let mut b = GraphBuilder::new(&mut body, Loc::UNKNOWN);
    b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
    let operands = [(); 2].map(|()| b.input(slice.clone(), Role::Data));
    let next = b.pointwise(row, &operands)?;
    body.add_output(next);
    body.add_output(next);
    let op = ops::Loop {
        trips: slices.fact.shape[0].clone(),
        carried: 1,
        scanned: 1,
        reverse: op.reverse,
        conditional: false,
        body: body.into(),
    };
    let initial_state = w.scalar(initial, dtype).stretched(slice.shape);
    let results = w.emit(op.into(), &[initial_state, slices])?;
    let moved = w.permute(&results[1], &from_front)?;
    w.cast(&moved, x.dtype())
}

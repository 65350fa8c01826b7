//! Layer, RMS and group normalisation, found among the ops that they are recorded as.

use super::attributes::{float, int};
use super::writer::{Value, Values, Writer};
use kiln_base::Dim;
use kiln_base::prim::Reduction;
use kiln_ir::{
    Builder, DType, Graph, GraphBuilder, Loc, Node, Op, OpError, Pw, Role, Value as Of, ops,
};

/// Writes a node as the last one of a layer or RMS normalisation, if it is that. The others have no readers then.
pub(super) fn layer_norm(
    w: &mut Writer,
    graph: &Graph,
    node: &Node,
    values: &[Values],
) -> Option<Value> {
    let (normalised, weight, bias) = match pointwise_row(node)? {
        (Pw::Add, [m, bias]) => match pointwise_row(graph.node(m.node))? {
            (Pw::Mul, [n, weight]) => (graph.node(n.node), Some(*weight), Some(*bias)),
            _ => return None,
        },
        (Pw::Mul, [n, weight]) if Found::find(graph, node).is_none() => {
            (graph.node(n.node), Some(*weight), None)
        }
        (Pw::Mul, _) => (node, None, None),
        _ => return None,
    };
    let formula = Found::find(graph, normalised)?;
    if !formula.centred && (w.opset < 23 || bias.is_some()) {
        return None;
    }
    let fact = graph.fact(formula.x);
    let last = &fact.shape[formula.axis..];
    let parameter =
        |v: Of| Some(unbroadcast(graph, v)).filter(|v| graph.fact(*v).shape[..] == *last);
    let value = |v: Of| value_of(values, v);
    let scale = match weight {
        Some(weight) => value(parameter(weight)?),
        None if last.len() == 1 => w.scalar(1.0, fact.dtype).stretched(last.into()),
        None => return None,
    };
    let mut names = vec![w.name(&value(formula.x)), w.name(&scale)];
    if let Some(bias) = bias {
        let bias = value(parameter(bias)?);
        names.push(w.name(&bias));
    }
    let attributes = vec![
        int("axis", formula.axis as i64),
        float("epsilon", formula.eps),
    ];
    let op = if formula.centred {
        "LayerNormalization"
    } else {
        "RMSNormalization"
    };
    Some(w.single(op, &names, attributes, fact.clone()))
}

/// Writes a node as the last one of a group normalisation of known sizes, if it is that.
pub(super) fn group_norm(
    w: &mut Writer,
    graph: &Graph,
    node: &Node,
    values: &[Values],
) -> Option<Value> {
    let node_of = |v: &Of| graph.node(v.node);
    let (joined, weight, bias) = match pointwise_row(node) {
        Some((Pw::Add, [m, bias])) => match pointwise_row(node_of(m))? {
            (Pw::Mul, [n, weight]) => (node_of(n), Some(weight), Some(bias)),
            _ => return None,
        },
        Some((Pw::Mul, [n, weight])) => (node_of(n), Some(weight), None),
        Some(_) => return None,
        None => (node, None, None),
    };
    let is_reshape = |node: &Node| matches!(node.op, Op::Reshape(_));
    let normalised = joined.inputs.first().filter(|_| is_reshape(joined))?;
    let formula = Found::find(graph, node_of(normalised))
        .filter(|formula| formula.centred && formula.axis == 2)?;
    let x = node_of(&formula.x)
        .inputs
        .first()
        .filter(|_| is_reshape(node_of(&formula.x)))?;
    let fact = graph.fact(*x);
    let (channels, groups) = (
        fact.shape.get(1)?,
        graph.fact(formula.x).shape[1].as_const()?,
    );
    if w.opset < 21 || fact.rank() < 3 || *fact != joined.facts[0] || *fact != node.facts[0] {
        return None;
    }
    // A vector of the channels, stretched along axis 1.
    let vector = |v: &Of| {
        let source = unbroadcast(graph, *v);
        let vector = node_of(&source)
            .inputs
            .first()
            .filter(|_| is_reshape(node_of(&source)))?;
        let shape = &graph.fact(source).shape;
        let axis = (shape.len() + 1).checked_sub(fact.rank())?;
        let is_vector = graph.fact(*vector).shape[..] == [channels.clone()];
        (is_vector && shape.get(axis) == Some(channels)).then_some(*vector)
    };
    let mut names = vec![w.name(&value_of(values, *x))];
    for (operand, default) in [(weight, 1.0), (bias, 0.0)] {
        let v = match operand {
            Some(v) => value_of(values, vector(v)?),
            None => w
                .scalar(default, fact.dtype)
                .stretched([channels.clone()].into_iter().collect()),
        };
        names.push(w.name(&v));
    }
    let attributes = vec![int("num_groups", groups), float("epsilon", formula.eps)];
    Some(w.single("GroupNormalization", &names, attributes, fact.clone()))
}

/// The value of a node that was written.
fn value_of(values: &[Values], v: Of) -> Value {
    values[v.node.index()][v.output as usize].clone()
}

/// The row of a pointwise node, and its operands.
fn pointwise_row(node: &Node) -> Option<(Pw, &[Of])> {
    match &node.op {
        Op::Pointwise(ops::Pointwise(row)) => Some((*row, &node.inputs)),
        _ => None,
    }
}

/// The value in front of a broadcast.
fn unbroadcast(graph: &Graph, v: Of) -> Of {
    let node = graph.node(v.node);
    match node.op {
        Op::Broadcast(_) => node.inputs[0],
        _ => v,
    }
}

/// `(x − mean) / √(var + eps)` over all axes from `axis` on, or `x / √(mean(x²) + eps)` if it is not centred.
struct Found {
    x: Of,
    axis: usize,
    eps: f64,
    centred: bool,
}

impl Found {
    /// Guesses the parts of the formula from where they would be, and compares it with the node.
    fn find(graph: &Graph, node: &Node) -> Option<Found> {
        let operand = |node: &Node, row_of: Pw, i: usize| match pointwise_row(node)? {
            (row, operands) if row == row_of => Some(unbroadcast(graph, operands[i])),
            _ => None,
        };
        let node_of = |v: Of| graph.node(v.node);
        let left = operand(node, Pw::Mul, 0)?;
        let x = operand(node_of(left), Pw::Sub, 0).unwrap_or(left);
        let centred = x != left;
        let scale = node_of(operand(node, Pw::Mul, 1)?);
        let spread = node_of(operand(scale, Pw::Rsqrt, 0)?);
        let Op::Full(eps) = &node_of(operand(spread, Pw::Add, 1)?).op else {
            return None;
        };
        let mean = match centred {
            true => node_of(operand(node_of(left), Pw::Sub, 1)?),
            false => node_of(operand(spread, Pw::Add, 0)?),
        };
        let sum = node_of(operand(mean, Pw::Div, 0)?);
        let Op::Reduce(sum) = &node_of(*sum.inputs.first()?).op else {
            return None;
        };
        let fact = graph.fact(x);
        let candidate = Found {
            x,
            axis: *sum.axes.first()?,
            eps: eps.value.as_f64(),
            centred,
        };
        let mut last = fact.shape.get(candidate.axis..)?.iter();
        let known = last.all(|d| Dim::as_const(d).is_some());
        if fact.dtype == DType::F64 || !known {
            return None;
        }
        let mut pattern = Graph::default();
        let mut b = GraphBuilder::new(&mut pattern, Loc::UNKNOWN);
        let input = b.input(fact.clone(), Role::Data);
        let last = candidate.formula(&mut b, input).ok()?;
        same_node(graph, node, x, &pattern, pattern.node(last.node)).then_some(candidate)
    }

    /// The formula as it is recorded.
    fn formula(&self, b: &mut GraphBuilder, x: Of) -> Result<Of, OpError> {
        let fact = b.fact(&x);
        let axes: Vec<usize> = (self.axis..fact.rank()).collect();
        let shape = fact.shape[self.axis..].into();
        let count = b.op(ops::Numel { shape }, &[])?;
        let mut count = b.cast(&count, fact.dtype)?;
        let mut numbers = x;
        if self.centred {
            let sum = b.reduce_keepdim(Reduction::Sum, &x, &axes)?;
            let mean = b.pointwise(Pw::Div, &[sum, count])?;
            numbers = b.pointwise(Pw::Sub, &[x, mean])?;
            let freedom = b.with(Pw::Sub, &count, 0.0)?;
            count = b.with(Pw::Maximum, &freedom, 0.0)?;
        }
        let square = b.pointwise(Pw::Square, &[numbers])?;
        let sum = b.reduce_keepdim(Reduction::Sum, &square, &axes)?;
        let variance = b.pointwise(Pw::Div, &[sum, count])?;
        let spread = b.with(Pw::Add, &variance, self.eps)?;
        let scale = b.pointwise(Pw::Rsqrt, &[spread])?;
        b.pointwise(Pw::Mul, &[numbers, scale])
    }
}

/// True if a node computes what the node of the pattern does, with `x` for its input.
fn same_node(graph: &Graph, node: &Node, x: Of, pattern: &Graph, expected: &Node) -> bool {
    let alike = |(v, p): (&Of, &Of)| match &pattern.node(p.node).op {
        Op::Input(_) => *v == x,
        _ => same_node(graph, graph.node(v.node), x, pattern, pattern.node(p.node)),
    };
    node.op == expected.op
        && node.inputs.len() == expected.inputs.len()
        && node.inputs.iter().zip(&expected.inputs).all(alike)
}

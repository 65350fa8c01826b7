//! Layer normalisation, found among the ops that it is recorded as.

use super::attributes::{float, int};
use super::writer::{Value, Values, Writer};
use kiln_base::Dim;
use kiln_base::prim::Reduction;
use kiln_ir::{
    Builder, DType, Graph, GraphBuilder, Loc, Node, Op, OpError, Pw, Role, Value as Of, ops,
};

/// Writes a node as the last one of a layer normalisation, if it is that. The others have no readers then.
pub(super) fn layer_norm(
    w: &mut Writer,
    graph: &Graph,
    node: &Node,
    values: &[Values],
) -> Option<Value> {
    let (normalised, weight, bias) = match row(node)? {
        (Pw::Add, [m, bias]) => match row(graph.node(m.node))? {
            (Pw::Mul, [n, weight]) => (graph.node(n.node), Some(*weight), Some(*bias)),
            _ => return None,
        },
        (Pw::Mul, [n, weight]) if Found::by(graph, node).is_none() => {
            (graph.node(n.node), Some(*weight), None)
        }
        (Pw::Mul, _) => (node, None, None),
        _ => return None,
    };
    let found = Found::by(graph, normalised)?;
    let fact = graph.fact(found.x);
    let last = &fact.shape[found.axis..];
    let part = |v: Of| Some(unstretched(graph, v)).filter(|v| graph.fact(*v).shape[..] == *last);
    let value = |v: Of| values[v.node.index()][v.output as usize].clone();
    let scale = match weight {
        Some(weight) => value(part(weight)?),
        None if last.len() == 1 => w.scalar(1.0, fact.dtype).stretched(last.into()),
        None => return None,
    };
    let mut names = vec![w.name(&value(found.x)), w.name(&scale)];
    if let Some(bias) = bias {
        let bias = value(part(bias)?);
        names.push(w.name(&bias));
    }
    let attributes = vec![int("axis", found.axis as i64), float("epsilon", found.eps)];
    Some(w.one("LayerNormalization", &names, attributes, fact.clone()))
}

/// The row of a pointwise node, and its operands.
fn row(node: &Node) -> Option<(Pw, &[Of])> {
    match &node.op {
        Op::Pointwise(ops::Pointwise(row)) => Some((*row, &node.inputs)),
        _ => None,
    }
}

/// The value in front of a broadcast.
fn unstretched(graph: &Graph, v: Of) -> Of {
    let node = graph.node(v.node);
    match node.op {
        Op::Broadcast(_) => node.inputs[0],
        _ => v,
    }
}

/// `(x − mean) / √(var + eps)` over all axes from `axis` on.
struct Found {
    x: Of,
    axis: usize,
    eps: f64,
}

impl Found {
    /// Guesses the parts of the formula from where they would be, and compares it with the node.
    fn by(graph: &Graph, node: &Node) -> Option<Found> {
        let operand = |node: &Node, row_of: Pw, i: usize| match row(node)? {
            (row, operands) if row == row_of => Some(unstretched(graph, operands[i])),
            _ => None,
        };
        let at = |v: Of| graph.node(v.node);
        let centred = at(operand(node, Pw::Mul, 0)?);
        let x = operand(centred, Pw::Sub, 0)?;
        let scale = at(operand(node, Pw::Mul, 1)?);
        let spread = at(operand(scale, Pw::Rsqrt, 0)?);
        let Op::Full(eps) = &at(operand(spread, Pw::Add, 1)?).op else {
            return None;
        };
        let mean = at(operand(centred, Pw::Sub, 1)?);
        let sum = at(operand(mean, Pw::Div, 0)?);
        let Op::Reduce(sum) = &at(*sum.inputs.first()?).op else {
            return None;
        };
        let fact = graph.fact(x);
        let found = Found {
            x,
            axis: *sum.axes.first()?,
            eps: eps.value.as_f64(),
        };
        let known = fact.shape[found.axis..]
            .iter()
            .all(|d| Dim::as_const(d).is_some());
        if fact.dtype == DType::F64 || !known {
            return None;
        }
        let mut pattern = Graph::default();
        let mut b = GraphBuilder::new(&mut pattern, Loc::UNKNOWN);
        let input = b.input(fact.clone(), Role::Data);
        let last = formula(&mut b, input, found.axis, found.eps).ok()?;
        same(graph, node, x, &pattern, pattern.node(last.node)).then_some(found)
    }
}

/// The formula as it is recorded.
fn formula(b: &mut GraphBuilder, x: Of, axis: usize, eps: f64) -> Result<Of, OpError> {
    let fact = b.fact(&x);
    let axes: Vec<usize> = (axis..fact.rank()).collect();
    let sum = b.reduce_keepdim(Reduction::Sum, &x, &axes)?;
    let shape = fact.shape[axis..].into();
    let count = b.op(ops::Numel { shape }, &[])?;
    let count = b.cast(&count, fact.dtype)?;
    let mean = b.pointwise(Pw::Div, &[sum, count])?;
    let centred = b.pointwise(Pw::Sub, &[x, mean])?;
    let square = b.pointwise(Pw::Square, &[centred])?;
    let sum = b.reduce_keepdim(Reduction::Sum, &square, &axes)?;
    let freedom = b.with(Pw::Sub, &count, 0.0)?;
    let freedom = b.with(Pw::Maximum, &freedom, 0.0)?;
    let variance = b.pointwise(Pw::Div, &[sum, freedom])?;
    let spread = b.with(Pw::Add, &variance, eps)?;
    let scale = b.pointwise(Pw::Rsqrt, &[spread])?;
    b.pointwise(Pw::Mul, &[centred, scale])
}

/// True if a node computes what the node of the pattern does, with `x` for its input.
fn same(graph: &Graph, node: &Node, x: Of, pattern: &Graph, wanted: &Node) -> bool {
    let alike = |(v, p): (&Of, &Of)| match &pattern.node(p.node).op {
        Op::Input(_) => *v == x,
        _ => same(graph, graph.node(v.node), x, pattern, pattern.node(p.node)),
    };
    node.op == wanted.op
        && node.inputs.len() == wanted.inputs.len()
        && node.inputs.iter().zip(&wanted.inputs).all(alike)
}

//! Inputs for random programs.

use super::Rng;
use super::generate::MAX_SYMBOL;
use crate::eval::{Array, Data};
use crate::ops::{Gather, Scatter};
use crate::{Graph, NodeId, Op, Pw, Role};
use kiln_base::{DType, Dim, Kind};

/// The requirements of the readers of an input.
#[derive(Default)]
struct Needs {
    /// It is an index below this.
    bound: Option<i64>,
    /// It is a variance.
    positive: bool,
    /// It is an integer divisor.
    nonzero: bool,
    /// It is a scale that folds into weights, which an infinity would make NaN.
    finite: bool,
}

/// Returns random inputs for a graph. Symbols get values from their minimum to 6. Floats lie
/// within ±4; one seed in 8 puts NaN, infinities and negative zeros among them, and one in 4 puts the
/// ends of the range among the integers.
pub fn random_inputs(graph: &Graph, seed: u64) -> Vec<Array> {
    let mut rng = Rng::new(seed ^ 0x1A2B_3C4D);
    let symbols: Vec<i64> = graph
        .symbols
        .iter()
        .map(|s| rng.range(s.min, s.min.max(MAX_SYMBOL)))
        .collect();
    let special = seed % 8 == 7;
    let edges = seed % 4 == 3;
    let mut out = Vec::new();
    for id in graph.inputs() {
        let node = graph.node(id);
        let fact = node.fact();
        let dims = fact.shape.iter();
        let shape: Vec<usize> = dims
            .map(|d| d.eval_checked(&symbols).unwrap_or(0).max(0) as usize)
            .collect();
        let n: usize = shape.iter().product();
        let needs = needs(graph, id);
        let is_key = matches!(&node.op, Op::Input(op) if op.role == Role::RandomKey);
        let data = match fact.dtype.kind() {
            Kind::Float => {
                let value = |_| float(&mut rng, &needs, special);
                Data::Float((0..n).map(value).collect())
            }
            _ if is_key => Data::Int((0..n).map(|_| (rng.bits() >> 1) as i64).collect()),
            _ => {
                let value = |_| integer(&mut rng, fact.dtype, &needs, edges);
                Data::Int((0..n).map(value).collect())
            }
        };
        let array = match data {
            Data::Float(v) => Array::from_f64(fact.dtype, &shape, &v),
            Data::Int(v) => Array::from_i64(fact.dtype, &shape, &v),
        };
        out.extend(array); // as many elements as the shape has
    }
    out
}

/// Returns a size; if it is symbolic, its minimum over all bindings, at most 2. The size that a quotient leaves may be
/// larger for smaller symbols.
pub(super) fn min_size(graph: &Graph, size: &Dim) -> i64 {
    let mut bindings = vec![vec![]];
    for symbol in &graph.symbols {
        let extend = |b: Vec<i64>| {
            (symbol.min..=symbol.min.max(MAX_SYMBOL)).map(move |n| [&b[..], &[n]].concat())
        };
        bindings = bindings.into_iter().flat_map(extend).collect();
    }
    let sizes = bindings.iter().map(|b| size.eval_checked(b).unwrap_or(1));
    let smallest = || sizes.min().map_or(1, |n| n.min(2));
    size.as_const().unwrap_or_else(smallest)
}

fn needs(graph: &Graph, input: NodeId) -> Needs {
    let mut needs = Needs::default();
    for (_, node) in graph.iter() {
        for (slot, _) in node
            .inputs
            .iter()
            .enumerate()
            .filter(|(_, v)| v.node == input)
        {
            match &node.op {
                Op::Gather(Gather { axis }) | Op::Scatter(Scatter { axis, .. }) if slot == 1 => {
                    let extent = &graph.fact(node.inputs[0]).shape[*axis];
                    let extent = min_size(graph, extent);
                    needs.bound = Some(needs.bound.unwrap_or(extent).min(extent));
                }
                Op::BatchNorm(_) if slot == 2 => needs.positive = true,
                Op::BatchNorm(_) if slot == 3 => needs.finite = true,
                Op::Pointwise(op) if slot == 1 => {
                    needs.nonzero |=
                        matches!(op.0, Pw::Div | Pw::FloorDivide | Pw::Fmod | Pw::Remainder);
                }
                _ => {}
            }
        }
    }
    needs
}

fn float(rng: &mut Rng, needs: &Needs, special: bool) -> f64 {
    let sign = if needs.positive || rng.chance(0.5) {
        1.0
    } else {
        -1.0
    };
    if special && !needs.positive && rng.chance(0.05) {
        let value = rng.one([f64::NAN, f64::INFINITY, 0.0, 1e-40, 65504.0]);
        let value = if needs.finite && value.is_infinite() {
            1.0
        } else {
            value
        };
        return sign * value;
    }
    let size = match rng.below(8) {
        0 if !needs.positive => 0.0,
        // Eighths: exact in every dtype, and so are their sums.
        0..=4 => rng.range(1, 32) as f64 / 8.0,
        _ => 0.125 + rng.unit() * 3.875,
    };
    sign * size
}

fn integer(rng: &mut Rng, dtype: DType, needs: &Needs, edges: bool) -> i64 {
    if let Some(bound) = needs.bound {
        return rng.below(bound.max(0) as usize) as i64;
    }
    let (low, high) = dtype.int_range().unwrap_or((0, 1));
    let value = if edges && rng.chance(0.2) {
        rng.one([low, high, low + 1, high - 1])
    } else {
        (rng.range(-9, 9) as i128).clamp(low, high)
    };
    match value as i64 {
        0 if needs.nonzero => 1,
        x => x,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymbolInfo;
    use kiln_base::Sym;

    #[test]
    fn the_least_size_is_that_of_any_binding() {
        let name = "n".to_string();
        let mut graph = Graph::default();
        graph.symbols.push(SymbolInfo { name, min: 2 });
        let n = Dim::symbol(Sym(0));
        let left = &n - &(&n.div_floor(3) * &Dim::Const(3));
        assert_eq!(min_size(&graph, &left), 0); // of 3
        assert_eq!(min_size(&graph, &n.div_floor(2)), 1);
        assert_eq!(min_size(&graph, &(&n + &n)), 2);
        assert_eq!(min_size(&graph, &Dim::Const(7)), 7);
    }
}

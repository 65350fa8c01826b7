//! Merged products and merged reductions compute the same, and others are not merged.

use crate::random::seeds;
use crate::rng::{Rng, loc, random_inputs};
use kiln_base::prim::Reduction;
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::ops::{MatMul, Reduce};
use kiln_ir::{Builder, DType, Dim, Fact, Graph, GraphBuilder, OpError, Pw, Role};
use kiln_optimize::{Options, Pass, Report, optimize_with, passes};

/// Optimises, and compares in f64, the only rounding left.
pub fn same(before: &Graph, rng: &mut Rng) -> (Graph, Report) {
    compared(before, passes(), rng).unwrap_or_else(|e| panic!("{e}"))
}

/// The graph after a list of passes, or their error.
pub fn compared(before: &Graph, list: &[Pass], rng: &mut Rng) -> Result<(Graph, Report), String> {
    compared_within(before, list, rng, 1e-11)
}

/// The same with an allowed error, relative to the largest element.
pub fn compared_within(
    before: &Graph,
    list: &[Pass],
    rng: &mut Rng,
    error: f64,
) -> Result<(Graph, Report), String> {
    let options = Options {
        verify: true,
        ..Options::default()
    };
    let (after, report) =
        optimize_with(before.clone(), list, &options).map_err(|e| e.to_string())?;
    // Non-finite or huge values would hide differences; so would divisors close to zero.
    let tame = |a: &Array| {
        let data = a.to_f64();
        let data = data.iter().map(|x| {
            if (0.25..1e3).contains(&x.abs()) {
                *x
            } else {
                1.5
            }
        });
        Array::from_f64(a.dtype(), a.shape(), &data.collect::<Vec<_>>()).expect("as many numbers")
    };
    let inputs: Vec<Array> = random_inputs(before, rng).iter().map(tame).collect();
    let run = |g: &Graph| evaluate(g, &inputs, &[], Mode::Exact).expect("no data errors");
    for (old, new) in run(before).iter().zip(&run(&after)) {
        let (old, new) = (old.to_f64(), new.to_f64());
        let size = old.iter().fold(1.0f64, |m, x| m.max(x.abs()));
        for (a, b) in old.iter().zip(&new) {
            let within = (a - b).abs() <= error * size;
            if !within {
                return Err(format!("{a} became {b}\n{report}\n{before}\n{after}"));
            }
        }
    }
    Ok((after, report))
}

/// Projections of one value.
struct Projections {
    widths: Vec<usize>,
    bias: bool,
    /// True if the weights are parts of one value, in their order there.
    parts: bool,
    role: Role,
    /// A number that the first result is multiplied by.
    factor: Option<f64>,
    /// True if something other than a product reads a result.
    pointwise: bool,
}

impl Projections {
    fn graph(&self) -> Result<Graph, OpError> {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, loc(1));
        let total: usize = self.widths.iter().sum();
        let f64s = |shape: &[usize]| Fact::new(DType::F64, shape.iter().copied());
        let x = b.input(f64s(&[1, 5, 3]), Role::Data);
        let weight = b.input(f64s(&[total, 3]), self.role);
        let bias = b.input(f64s(&[total]), self.role);
        let (mut at, mut results) = (0, Vec::new());
        for (i, &n) in self.widths.iter().enumerate() {
            let (w, c) = match self.parts {
                true => (b.narrow(&weight, 0, at, n)?, b.narrow(&bias, 0, at, n)?),
                false => (
                    b.input(f64s(&[n, 3]), self.role),
                    b.input(f64s(&[n]), self.role),
                ),
            };
            at += n;
            let rows = b.reshape(&x, &[Dim::from(5usize), Dim::from(3usize)])?;
            let w = b.permute(&w, &[1, 0])?;
            let mut y = b.op(MatMul {}, &[rows, w])?;
            y = b.reshape(&y, &[Dim::ONE, Dim::from(5usize), Dim::from(n)])?;
            if self.bias {
                y = b.pointwise(Pw::Add, &[y, c])?;
            }
            match self.factor {
                Some(c) if i == 0 => y = b.with(Pw::Mul, &y, c)?,
                _ => {}
            }
            results.push(y);
        }
        let mut outputs = Vec::new();
        for y in results {
            let out = match self.pointwise {
                true => b.pointwise(Pw::Exp, &[y])?,
                false => {
                    let t = b.permute(&y, &[0, 2, 1])?;
                    b.op(MatMul {}, &[t, y])?
                }
            };
            outputs.push(out);
        }
        outputs.into_iter().for_each(|v| graph.add_output(v));
        Ok(graph)
    }
}

/// `w₁ · x + b₁, w₂ · x + b₂, …`, with a parameter for each weight and bias.
fn from_the_left(widths: &[usize], bias: bool) -> Result<Graph, OpError> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let f64s = |shape: &[usize]| Fact::new(DType::F64, shape.iter().copied());
    let x = b.input(f64s(&[3, 5]), Role::Data);
    let mut outputs = Vec::new();
    for &n in widths {
        let w = b.input(f64s(&[n, 3]), Role::Parameter);
        let c = b.input(f64s(&[n, 1]), Role::Parameter);
        let mut y = b.op(MatMul {}, &[w, x])?;
        if bias {
            y = b.pointwise(Pw::Add, &[c, y])?;
        }
        let transposed = b.permute(&y, &[1, 0])?;
        outputs.push(b.op(MatMul {}, &[transposed, y])?);
    }
    outputs.into_iter().for_each(|v| graph.add_output(v));
    Ok(graph)
}

#[test]
fn projections_from_the_left_become_one_product() {
    let mut rng = Rng::new(25);
    for i in 0..seeds() / 10 {
        let widths: Vec<usize> = (0..2 + rng.below(3)).map(|_| 1 + rng.below(4)).collect();
        let graph = from_the_left(&widths, i % 2 == 0).expect("a legal program");
        let (after, report) = same(&graph, &mut rng);
        assert_eq!(report.count("shared_operand"), 1, "{report}");
        assert_eq!(products_of_data(&after), 1 + widths.len(), "{after}");
    }
}

fn products_of_data(graph: &Graph) -> usize {
    let data = graph.inputs()[0];
    let mut depends = vec![false; graph.len()];
    depends[data.index()] = true;
    let mut count = 0;
    for (id, node) in graph.iter().filter(|(id, _)| *id != data) {
        depends[id.index()] = node.inputs.iter().any(|v| depends[v.node.index()]);
        count += (depends[id.index()] && node.op.name() == "matmul") as usize;
    }
    count
}

#[test]
fn projections_of_one_value_become_one_product() {
    let mut rng = Rng::new(21);
    for _ in 0..seeds() / 4 {
        let parts = rng.coin(50);
        let case = Projections {
            widths: (0..2 + rng.below(3)).map(|_| 1 + rng.below(4)).collect(),
            bias: rng.coin(60),
            parts,
            role: if parts && rng.coin(50) {
                Role::Data
            } else {
                Role::Parameter
            },
            factor: rng.pick(&[None, Some(0.5), Some(-0.3)]),
            pointwise: false,
        };
        let (after, report) = same(&case.graph().expect("a legal program"), &mut rng);
        assert_eq!(report.count("shared_operand"), 1, "{report}");
        assert_eq!(products_of_data(&after), 1 + case.widths.len(), "{after}");
    }
}

#[test]
fn weights_that_are_apart_and_results_that_are_fused_stay() {
    let mut rng = Rng::new(22);
    for apart in [true, false] {
        let case = Projections {
            widths: vec![2, 3],
            bias: true,
            parts: !apart,
            role: Role::Data,
            factor: None,
            pointwise: !apart,
        };
        let (_, report) = same(&case.graph().expect("a legal program"), &mut rng);
        assert_eq!(report.count("shared_operand"), 0, "{report}");
    }
}

/// A reduction of a reduction, perhaps with a reshape or a factor between.
fn twice(rng: &mut Rng, kind: Reduction, dtype: DType, factor: bool) -> Result<Graph, OpError> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(1));
    let shape: Vec<usize> = (0..4).map(|_| 1 + rng.below(3)).collect();
    let x = b.input(Fact::new(dtype, shape), Role::Data);
    let first: Vec<usize> = (0..4).filter(|_| rng.coin(50)).collect();
    let mut y = b.reduce_keepdim(kind, &x, &first)?;
    if rng.coin(30) {
        let wide: Vec<Dim> = b
            .fact(&y)
            .shape
            .iter()
            .filter(|d| !d.is(1))
            .cloned()
            .collect();
        y = b.reshape(&y, &wide)?;
    }
    if factor {
        y = b.with(rng.pick(&[Pw::Mul, Pw::Div]), &y, 3.0)?;
    }
    let axes = (0..b.fact(&y).rank()).filter(|_| rng.coin(60)).collect();
    let y = b.op(Reduce { kind, axes }, &[y])?;
    graph.add_output(y);
    Ok(graph)
}

#[test]
fn extremes_of_extremes_and_reductions_of_integers_become_one() {
    let mut rng = Rng::new(23);
    let reductions = |g: &Graph| g.iter().filter(|(_, n)| n.op.name() == "reduce").count();
    let (max, min) = (Reduction::Max, Reduction::Min);
    for _ in 0..seeds() {
        let (kind, dtype) = rng.pick(&[
            (max, DType::F64),
            (min, DType::F64),
            (Reduction::Sum, DType::I64),
            (Reduction::Prod, DType::I64),
        ]);
        let graph = twice(&mut rng, kind, dtype, false).expect("a legal program");
        let (after, _) = same(&graph, &mut rng);
        assert!(reductions(&after) <= 1, "{after}");
    }
}

#[test]
fn sums_of_sums_and_factors_between_extremes_stay() {
    let mut rng = Rng::new(24);
    for kind in [Reduction::Sum, Reduction::Prod, Reduction::Max] {
        for i in 0..50 {
            let factor = i % 2 == 0 || kind == Reduction::Max;
            let graph = twice(&mut rng, kind, DType::F64, factor).expect("a legal program");
            let (_, report) = same(&graph, &mut rng);
            assert_eq!(report.count("reduce_of_reduce"), 0, "{report}");
        }
    }
}

//! Biases that a mean cancels: programs that normalise `y + b`, forward and backward.

use crate::random::seeds;
use crate::rng::{Rng, loc, shape_of};
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::ops::MatMul;
use kiln_ir::{Builder, DType, Dim, Fact, Graph, GraphBuilder, OpError, Pw, Role, Value};
use kiln_optimize::{Options, Report, optimize};

/// Normalises `y + b` over `axes`, with its derivative.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    shape: Vec<usize>,
    axes: Vec<usize>,
    /// True if b comes first.
    in_front: bool,
    /// True if b differs along the axes, so that it must stay.
    varies: bool,
    /// True if something else reads the sum.
    read: bool,
    /// True if y is the result of a product.
    product: bool,
    /// The role of b.
    role: Role,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let shape: Vec<usize> = (0..2 + rng.below(3)).map(|_| 2 + rng.below(4)).collect();
        // Batch norm, or instance norm.
        let first = (shape.len() > 2 && rng.coin(30)) as usize * 2;
        Case {
            dtype: rng.pick(&[DType::F32, DType::F64]),
            axes: (first..shape.len()).filter(|a| *a != 1).collect(),
            shape,
            in_front: rng.coin(50),
            varies: false,
            read: false,
            product: true,
            role: Role::Parameter,
        }
    }

    /// The shape of statistics, with ones along the axes.
    fn row(&self) -> Vec<Dim> {
        let extent = |(i, n): (usize, &usize)| if self.axes.contains(&i) { 1 } else { *n };
        self.shape
            .iter()
            .enumerate()
            .map(extent)
            .map(Dim::from)
            .collect()
    }

    /// Results: the normalised value, its mean, the gradient of y, and that of b.
    fn build(&self, graph: &mut Graph) -> Result<Vec<Value>, OpError> {
        let mut b = GraphBuilder::new(graph, loc(3));
        let (axes, row) = (&self.axes[..], self.row());
        let shape: Vec<Dim> = self.shape.iter().map(|n| Dim::from(*n)).collect();
        let count: usize = axes.iter().map(|a| self.shape[*a]).product();
        let whole = Fact::new(self.dtype, self.shape.iter().copied());
        let mut y = b.input(whole.clone(), Role::Data);
        let g = b.input(whole.clone(), Role::Data);
        if self.product {
            let mut square = self.shape.clone();
            let rank = square.len();
            square[rank - 2] = square[rank - 1];
            let weight = b.input(Fact::new(self.dtype, square), Role::Data);
            y = b.op(MatMul {}, &[y, weight])?;
        }
        let bias = if self.varies { &shape } else { &row };
        let bias = b.input(Fact::new(self.dtype, bias.iter().cloned()), self.role);
        let stretched = b.broadcast_to(&bias, &shape)?;
        let x = match self.in_front {
            true => b.pointwise(Pw::Add, &[stretched, y])?,
            false => b.pointwise(Pw::Add, &[y, stretched])?,
        };
        let mean_of = |b: &mut GraphBuilder<'_>, v: Value| {
            let sum = b.sum(&v, axes)?;
            let sum = b.reshape(&sum, &row)?;
            b.with(Pw::Div, &sum, count as f64)
        };
        let mean = mean_of(&mut b, x)?;
        let centre = b.broadcast_to(&mean, &shape)?;
        let d = b.pointwise(Pw::Sub, &[x, centre])?;
        let square = b.pointwise(Pw::Mul, &[d, d])?;
        let variance = mean_of(&mut b, square)?;
        let spread = b.with(Pw::Add, &variance, 0.1)?;
        let r = b.pointwise(Pw::Rsqrt, &[spread])?;
        let r = b.broadcast_to(&r, &shape)?;
        let n = b.pointwise(Pw::Mul, &[d, r])?;
        // dx = r · (g − mean(g) − n · mean(g · n))
        let gn = b.pointwise(Pw::Mul, &[g, n])?;
        let [share, along] = [g, gn].map(|v| mean_of(&mut b, v).expect("a mean"));
        let share = b.broadcast_to(&share, &shape)?;
        let along = b.broadcast_to(&along, &shape)?;
        let rest = b.pointwise(Pw::Sub, &[g, share])?;
        let along = b.pointwise(Pw::Mul, &[n, along])?;
        let rest = b.pointwise(Pw::Sub, &[rest, along])?;
        let dx = b.pointwise(Pw::Mul, &[rest, r])?;
        let db = b.sum(&dx, axes)?;
        let mut results = vec![n, mean, dx, db];
        if self.read {
            results.push(b.pointwise(Pw::Exp, &[x])?);
        }
        Ok(results)
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        for v in self.build(&mut graph).expect("a legal case") {
            graph.add_output(v);
        }
        graph
    }
}

fn only_centring() -> Options {
    Options {
        passes: Some(vec!["dead_code", "constant_fold", "centring"]),
        verify: true,
        ..Options::default()
    }
}

/// Optimises and checks the results in f64, where the effect of rounding is far below the tolerance.
fn check(case: &Case, options: &Options, rng: &mut Rng) -> Report {
    let before = case.graph();
    let (after, report) = optimize(before.clone(), options).unwrap();
    let inputs: Vec<Array> = (before.inputs().into_iter())
        .map(|id| {
            let shape = shape_of(&before, id.value());
            let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.plain()).collect();
            Array::from_f64(case.dtype, &shape, &values).unwrap()
        })
        .collect();
    let old = evaluate(&before, &inputs, &[], Mode::Exact).unwrap();
    let new = evaluate(&after, &inputs, &[], Mode::Exact).unwrap();
    for (i, (a, b)) in old.iter().zip(&new).enumerate() {
        for (a, b) in a.to_f64().into_iter().zip(b.to_f64()) {
            assert!(
                (a - b).abs() < 1e-12,
                "{case:?}: output {i} was {a} and is {b}"
            );
        }
    }
    if !case.varies {
        assert!(
            new[3].to_f64().iter().all(|g| *g == 0.0),
            "{case:?}: {:?}",
            new[3]
        );
    }
    report
}

#[test]
fn a_bias_that_the_mean_takes_away_is_dropped() {
    let mut rng = Rng::new(21);
    for i in 0..seeds() {
        let case = Case::random(&mut rng);
        let options = if i % 2 == 0 {
            only_centring()
        } else {
            Options::default()
        };
        let report = check(&case, &options, &mut rng);
        assert_eq!(report.count("bias_before_norm"), 1, "{case:?}\n{report}");
        assert_eq!(report.count("sum_of_shift"), 1, "{case:?}\n{report}");
        assert_eq!(report.count("zero_sum"), 1, "{case:?}\n{report}");
    }
}

#[test]
fn a_bias_stays_where_it_matters() {
    type Change = fn(&mut Case);
    let refused: [(&str, Change); 4] = [
        ("it differs along the axes", |c| c.varies = true),
        ("something else reads the sum", |c| c.read = true),
        ("it shifts data", |c| c.product = false),
        ("it is data", |c| c.role = Role::Data),
    ];
    let mut rng = Rng::new(22);
    for (what, change) in refused {
        for _ in 0..50 {
            let mut case = Case::random(&mut rng);
            change(&mut case);
            let report = check(&case, &only_centring(), &mut rng);
            assert_eq!(report.count("bias_before_norm"), 0, "{what}: {case:?}");
            assert_eq!(report.count("sum_of_shift"), 0, "{what}: {case:?}");
        }
    }
}

#[test]
fn sums_that_are_not_zero_stay() {
    let mut rng = Rng::new(23);
    for _ in 0..50 {
        let case = Case::random(&mut rng);
        let mut graph = Graph::default();
        let values = case.build(&mut graph).unwrap();
        let mut b = GraphBuilder::new(&mut graph, loc(5));
        let other: Vec<usize> = (0..case.shape.len())
            .filter(|a| !case.axes.contains(a))
            .collect();
        // The normalised value, summed along other axes; and its square, summed along the axes of the mean.
        let sums = [b.sum(&values[0], &other).unwrap(), {
            let product = b.pointwise(Pw::Mul, &[values[0], values[0]]).unwrap();
            b.sum(&product, &case.axes).unwrap()
        }];
        sums.into_iter().for_each(|s| graph.add_output(s));
        let (_, report) = optimize(graph, &only_centring()).unwrap();
        assert_eq!(report.count("zero_sum"), 0, "{case:?}\n{report}");
    }
}

#[test]
fn exact_leaves_it_out() {
    let options = Options {
        exact: true,
        ..Options::default()
    };
    let (_, report) = optimize(Case::random(&mut Rng::new(24)).graph(), &options).unwrap();
    assert_eq!(
        report.count("bias_before_norm") + report.count("zero_sum"),
        0
    );
}

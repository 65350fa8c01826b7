//! First, second and third derivatives of every function on the page against differences of the order below, in
//! f64: at ties, zeros, singular matrices and far points. A row that is neither differentiated nor listed here fails.
//!
//! `KILN_FULL_SWEEP=1` takes all points, `KILN_SWEEP_PART=3/8` with it a part of them; else it is a share, and
//! `KILN_FUZZ_FIRST` says where it begins.

use super::calls::*;
use super::*;
use kiln_tensor::{
    DType, ErrorKind, Grad, Reduction, Result, Tensor, cat, evaluate_reference, grad_with,
    with_seed,
};
use kiln_testkit::sweep::{Sweep, seeds};
use std::iter::zip;

/// Of how many points one is taken, unless all are.
const EVERY: usize = 31;
/// The step of the differences.
const STEP: f64 = 1e-3;

/// Rows without derivatives, by what they give.
#[rustfmt::skip]
const NOT_DIFFERENTIABLE: &[(&str, &[&str])] = &[
    ("truth values", &[
        "torch.signbit", "torch.eq", "torch.ne", "torch.lt", "torch.le", "torch.gt", "torch.ge", "torch.isclose",
        "torch.isclose(rtol, atol, equal_nan)", "torch.allclose", "torch.isnan", "torch.isinf", "torch.isfinite",
        "torch.isposinf", "torch.isneginf", "torch.logical_and", "torch.logical_or", "torch.logical_xor",
        "torch.logical_not", "torch.any", "torch.all", "torch.isin", "torch.isin(invert=)",
    ]),
    ("integers of integers", &[
        "torch.gcd", "torch.lcm", "torch.bitwise_and", "torch.bitwise_or", "torch.bitwise_xor", "torch.bitwise_not",
        "torch.bitwise_left_shift", "torch.bitwise_right_shift", "torch.bincount",
        "torch.bincount(weights=, minlength=)", "torch.nn.functional.one_hot",
    ]),
    ("places, ranks and counts", &[
        "torch.argmax", "torch.argmin", "torch.argsort", "torch.argsort(descending=)", "torch.argwhere",
        "torch.nonzero", "torch.nonzero(as_tuple=True)", "torch.count_nonzero", "torch.searchsorted",
        "torch.searchsorted(right=, sorter=)", "torch.bucketize", "torch.bucketize(right=)", "torch.histc",
        "torch.histc(min=, max=)", "torch.linalg.matrix_rank", "torch.linalg.matrix_rank(atol=)",
    ]),
    ("facts about a tensor", &[
        "Tensor.shape", "Tensor.shape with symbolic sizes", "Tensor.size", "Tensor.ndim", "Tensor.numel", "Tensor.dtype", "Tensor.device",
        "Tensor.stride", "Tensor.is_contiguous", "Tensor.names",
    ]),
    ("the operand, by what it needs elsewhere: a GPU, names", &[
        "Tensor.to(device)", "Tensor.align_to", "Tensor.align_as",
    ]),
];

/// Rows that are not compared at some points, and the reason.
#[rustfmt::skip]
const LEFT_OUT: &[(&str, &[&str], &[&str])] = &[
    ("factors of singular matrices are not unique", &[
        "torch.linalg.qr", "torch.linalg.qr(mode=)", "torch.linalg.lu", "torch.linalg.lu_factor", "torch.linalg.svd",
        "torch.linalg.svd(full_matrices=)", "torch.linalg.eigh", "torch.linalg.eigh(UPLO=)",
    ], SINGULAR),
    ("the third derivative of the largest singular value lacks what couples others that are equal", &[
        "torch.linalg.matrix_norm(ord=2)",
    ], SINGULAR),
    ("logarithms of tails cancel", &[
        "torch.special.log_ndtr",
    ], &["far below", "far apart", "minus a thousand"]),
];

/// The points whose matrices have equal or almost equal columns.
#[rustfmt::skip]
const SINGULAR: &[&str] = &[
    "pairs", "tiny", "zeros", "ones", "minus ones", "halves", "threes", "zero and two", "two and zero",
];

/// Where the operands lie: a name, and element `i` of operand `k`.
type Point = (&'static str, fn(k: usize, i: usize) -> f64);

const POINTS: &[Point] = &[
    ("positive", |k, i| noise(k, i) * 0.6 + 0.2),
    ("signed", |k, i| noise(k, i) * 1.8 - 0.9),
    ("above one", |k, i| noise(k, i) * 2.0 + 1.1),
    ("ties", |k, i| [0.0, 0.5, 1.0, 0.5, -1.0][i * (k + 1) % 5]),
    ("pairs", |_, i| [2.0, -1.0, 0.0][i % 3]),
    ("zeros", |_, _| 0.0),
    ("ones", |_, _| 1.0),
    ("minus ones", |_, _| -1.0),
    ("halves", |_, _| 0.5),
    ("threes", |_, _| 3.0),
    ("zero and two", |k, _| 2.0 * k as f64),
    ("two and zero", |k, _| 2.0 - 2.0 * k as f64),
    ("tiny", |k, i| noise(k, i) * [1e-9, 1.0][(i + k) % 2]),
    ("far above", |k, i| 30.0 + 20.0 * noise(k, i)),
    ("far below", |k, i| -30.0 - 20.0 * noise(k, i)),
    ("far apart", |k, i| 80.0 * k as f64 - 40.0 + noise(k, i)),
    ("a thousand", |k, i| 200.0 + 1800.0 * noise(k, i)),
    ("minus a thousand", |k, i| -200.0 - 1800.0 * noise(k, i)),
];

/// A group of rows and the shapes of their two operands: a row is differentiated at the first pair that it accepts.
type Family = (
    &'static [Row],
    &'static [Group],
    &'static [(&'static [usize], &'static [usize])],
);

#[rustfmt::skip]
const FAMILIES: &[Family] = &[
    (elementwise::ROWS, &[POINTWISE, OF_SECOND], &[(&[2, 3], &[2, 3])]),
    (reductions::ROWS, &[REDUCTIONS], &[(&[3, 3], &[1])]),
    (products::ROWS, &[PRODUCTS, OF_VECTORS], &[(&[3, 3], &[3, 3]), (&[2, 3, 3], &[2, 3, 3]), (&[3, 3], &[3]), (&[3], &[3]), (&[3, 3], &[2, 3, 3])]),
    (linalg::ROWS, &[OF_MATRICES], &[(&[3, 3], &[3, 3])]),
    (linalg::ROWS, &[OF_MATRICES], &[(&[4, 2], &[4, 2])]),
    (linalg::ROWS, &[OF_MATRICES], &[(&[2, 4], &[2, 4])]),
    (convolution::ROWS, &[OF_PLANES], &[(&[1, 5], &[1]), (&[1, 4, 5], &[4, 4, 2]), (&[1, 4, 4, 4], &[4, 4, 2, 2]), (&[1, 4, 3, 3, 3], &[4, 4, 2, 2, 2]), (&[1, 4, 4, 4], &[1, 3, 3, 2]), (&[1, 1, 15, 15], &[1]), (&[1, 1, 15, 15, 15], &[1])]),
    (activations::ROWS, &[ACTIVATIONS], &[(&[2, 4], &[2, 4]), (&[4, 4], &[4, 4]), (&[4, 4, 4], &[4, 4, 4]), (&[1, 4, 4, 4], &[4]), (&[1, 2, 2, 2, 2], &[4]), (&[2, 8], &[8]), (&[1, 8, 64], &[64]), (&[1, 8, 64], &[8, 64])]),
    (losses::ROWS, &[LOSSES, OF_CLASSES, OF_SIGNS], &[(&[3, 4], &[3, 4]), (&[3, 4], &[3]), (&[4, 2, 5], &[2, 2])]),
    (indexing::ROWS, &[AT_COLUMNS, AT_PLACES, AT_ELEMENTS], &[(&[4, 5], &[4, 2]), (&[4, 5], &[4, 5]), (&[4, 5], &[4]), (&[2, 4, 5], &[4])]),
    (shape::ROWS, &[SHAPE], &[(&[4, 4], &[4, 4]), (&[4, 3], &[4, 3]), (&[1, 4], &[4, 4]), (&[1, 4, 1], &[1, 4, 1]), (&[2, 3, 4], &[2, 3, 4]), (&[10], &[10])]),
    (sorting::ROWS, &[SORTING], &[(&[3, 5], &[3, 5]), (&[5], &[5])]),
];

const POINTWISE: Group =
    |row, x, y| elementwise::call(row, x, y, &(y * 0.5 + 2.0), &x.gt(y), ONE, x.dtype());

/// A number in place of the first operand, for what is not differentiated by it.
const OF_SECOND: Group = |row, x, y| ELEMENTWISE(row, &x.full_like(3), y);

const OF_VECTORS: Group = |row, x, y| {
    let name = products::ROWS.get(row)?.torch[0];
    let (first, last) = (y.select(0, 0), y.select(0, -1));
    let (stacked, bias) = (y.unsqueeze(0), y.flatten(()).narrow(0, 0, 1));
    let x = if name.starts_with("torch.addmv") {
        &x.select(0, 0)
    } else {
        x
    };
    let y = if name.starts_with("torch.addr") {
        &first
    } else {
        y
    };
    products::call(row, x, y, &last, &stacked, &bias, 0, ONE, ONE, 3.0, false)
};

/// Symmetric matrices for what reads one triangle and for full factors.
const OF_MATRICES: Group = |row, x, y| {
    let name = linalg::ROWS.get(row)?.torch[0];
    let [m, n] = x.size().unwrap();
    let pivots = Tensor::arange(1, m as i64 + 1, 1).to_dtype(DType::I32);
    let symmetric = ["torch.linalg.cholesky", "torch.linalg.eig"];
    let x = match name == "torch.linalg.svd" || symmetric.iter().any(|s| name.starts_with(s)) {
        true if m <= n => &x.matmul(x.t()),
        true => &x.t().matmul(x),
        false => x,
    };
    linalg::call(row, x, y, &pivots)
};

/// Indices that are all different.
const OF_PLANES: Group = |row, x, y| {
    let places = Tensor::arange(0, x.numel().unwrap() as i64, 1).view_as(x);
    convolution::call(row, x, y, None, &places, y, 2, 2, 1, 1, 1, 0, false, false)
};

const OF_CLASSES: Group = |row, x, y| {
    let (lengths, labels) = (Tensor::from([4i64, 4]), Tensor::from([2i64, 1]));
    let weight = x.select(0, 0);
    losses::call(row, x, &lengths, &labels, y, Some(&weight), Reduction::Mean)
};

const OF_SIGNS: Group = |row, x, y| {
    let signs = Tensor::from([1i64, -1, 1]);
    losses::call(row, x, y, y, &signs, None, Reduction::Sum)
};

const AT_COLUMNS: Group = |row, x, y| {
    let (index, offsets) = (Tensor::from([0i64, 3]), Tensor::from([0i64, 1]));
    indexing::call(row, x, y, y, &index, &x.gt(0.0), x, Some(&offsets), 1)
};

const AT_PLACES: Group = |row, x, y| {
    let index = Tensor::arange(1, 9, 1).reshape([4, 2]);
    indexing::call(row, x, y, y, &index, &x.gt(0.0), x, None, 1)
};

const AT_ELEMENTS: Group = |row, x, y| {
    let index = Tensor::from([[0i64, 3], [1, 2], [2, 0], [3, 1]]);
    indexing::call(row, x, y, y, &index, &x.gt(0.0), x, None, 1)
};

/// A number in [0, 1) for an element.
fn noise(seed: usize, at: usize) -> f64 {
    let mixed = (at as u64 + 1 + 1000 * seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 29)) >> 11) as f64 / (1u64 << 53) as f64
}

/// A number in [-1, 1) for element `i` of a direction of operand `k`.
fn direction(k: usize, i: usize) -> f64 {
    2.0 * noise(100 + k, i) - 1.0
}

/// A sum of all elements, each with a weight of its own.
fn weighted(all: &[Tensor], seed: usize) -> Result<Tensor> {
    let term = |(k, t): (usize, &Tensor)| {
        let weights: Vec<f64> = (0..t.numel()?).map(|i| direction(k + seed, i)).collect();
        Ok((t * Tensor::from_slice(&weights, t.shape()?)).sum(()))
    };
    all.iter().enumerate().map(term).sum()
}

/// A row with operands that it accepts.
#[derive(Clone, Copy)]
struct Subject {
    name: &'static str,
    row: usize,
    call: Group,
    shapes: [&'static [usize]; 2],
    /// True if the second operand holds integers.
    index: bool,
}

/// A weighted sum of the results, and what it is differentiated to, at a point.
struct Orders {
    /// The sum; its gradient; the gradient of that along a direction; the gradient of this along it.
    values: [Vec<f64>; 4],
    results: Vec<f64>,
    /// The largest operand.
    reach: f64,
    /// The directions of the operands.
    direction: Vec<f64>,
}

impl Subject {
    /// An operand at a point, moved by so much along a direction.
    fn operand(&self, k: usize, at: &Point, (by, along): (f64, usize)) -> Tensor {
        let shape = self.shapes[k];
        let elements = 0..shape.iter().product::<usize>();
        if k == 1 && self.index {
            let values: Vec<i64> = elements.map(|i| (i % 2) as i64).collect();
            return Tensor::from_slice(&values, shape);
        }
        let values = elements.map(|i| at.1(k, i) + by * direction(k + along, i));
        Tensor::from_slice(&values.collect::<Vec<_>>(), shape).requires_grad_(true)
    }

    /// All orders at a point, moved; nothing if no result has a gradient.
    fn orders(&self, at: &Point, moved: (f64, usize)) -> Result<Option<Orders>> {
        let operands = [0, 1].map(|k| self.operand(k, at, moved));
        let called = with_seed(0, || (self.call)(self.row, &operands[0], &operands[1]));
        let mut results = called.expect("a row").1?;
        results.iter().try_for_each(|t| t.shape().map(drop))?;
        results.retain(Tensor::requires_grad);
        if results.is_empty() {
            return Ok(None);
        }
        let leaves: Vec<&Tensor> = operands.iter().filter(|t| t.requires_grad()).collect();
        let flat = |all: &[Tensor]| cat(all.iter().map(|t| t.flatten(())).collect::<Vec<_>>(), 0);
        let mut total = weighted(&results, 7)?;
        let mut all = vec![flat(&results), total.clone()];
        for _ in 0..3 {
            let options = Grad::new().create_graph(true).materialize_grads(true);
            let gradients = match total.requires_grad() {
                true => grad_with(&total, &leaves[..], options)?,
                false => leaves.iter().map(|t| t.zeros_like()).collect(),
            };
            total = weighted(&gradients, 0)?;
            all.push(flat(&gradients));
        }
        let values = evaluate_reference(all)?;
        let values = values.iter().map(Tensor::to_vec::<f64>);
        let [results, rest @ ..]: [Vec<f64>; 5] = values
            .collect::<Result<Vec<_>>>()?
            .try_into()
            .expect("the results and four orders");
        let sizes = leaves.iter().map(|t| t.numel());
        let sizes = sizes.collect::<Result<Vec<_>>>()?;
        let points = sizes
            .iter()
            .enumerate()
            .flat_map(|(k, n)| (0..*n).map(move |i| (k, i)));
        Ok(Some(Orders {
            values: rest,
            results,
            reach: points
                .clone()
                .fold(1.0, |most, (k, i)| most.max(at.1(k, i).abs())),
            direction: points.map(|(k, i)| direction(k, i)).collect(),
        }))
    }

    /// The elements of each order that were compared at a point, and what is wrong.
    fn compare(&self, point: &Point) -> Result<([usize; 3], Vec<String>)> {
        let orders = |moved| Ok(self.orders(point, moved)?.expect("what it has elsewhere"));
        let (mut compared, mut wrong) = ([0; 3], Vec::new());
        let at = orders((0.0, 0))?;
        let finite = |o: &Orders| o.results.iter().all(|v| v.is_finite());
        if !finite(&at) {
            return Ok((compared, wrong));
        }
        // Two more directions tell derivatives from slopes that only agree along one line.
        let near = [
            (-1.0, 0),
            (-0.5, 0),
            (0.5, 0),
            (1.0, 0),
            (1.0, 50),
            (1.0, 60),
        ];
        let near: Result<Vec<Orders>> = near.iter().map(|(k, u)| orders((k * STEP, *u))).collect();
        let near = near?;
        let middle = (near[1].values[0][0] + near[2].values[0][0]) / 2.0;
        let jumps = (middle - at.values[0][0]).abs() > 1e-2 * middle.abs() + 1e-2
            || near.iter().any(|n| n.results.len() != at.results.len());
        for order in 1..=3 {
            let exact = &at.values[order];
            let around = |k: usize| &near[k].values[order];
            // Poles and ends of the domain may be NaN.
            let ends = |wide: usize, narrow: usize, i: usize| {
                let both = finite(&near[wide]) && finite(&near[narrow]);
                !both || around(narrow)[i].abs() > 1.3 * around(wide)[i].abs() + 1e-3
            };
            let nan = |i: &usize| exact[*i].is_nan() && !(ends(0, 1, *i) && ends(3, 2, *i));
            if let Some(i) = (0..exact.len()).find(nan) {
                wrong.push(format!("order {order} is NaN at {i}"));
                break;
            }
            let most = largest((0..6).flat_map(around));
            let steady =
                |k| zip(around(k), around(0)).all(|(a, b)| (a - b).abs() <= 0.05 * most + 1e-3);
            if jumps || !(1..6).all(steady) {
                continue;
            }
            let exact = match order {
                1 => vec![zip(exact, &at.direction).map(|(g, u)| g * u).sum()],
                _ => exact.clone(),
            };
            let below = |k: usize| &near[k].values[order - 1];
            let slope = |a: usize, b: usize, steps: f64, i: usize| {
                (below(b)[i] - below(a)[i]) / (steps * STEP)
            };
            let rounding = 1e-15 * largest((0..4).flat_map(below)).max(at.reach) / STEP;
            let slopes: Vec<[f64; 4]> = (0..exact.len())
                .map(|i| {
                    [
                        slope(0, 3, 2.0, i),
                        slope(1, 2, 1.0, i),
                        slope(0, 1, 0.5, i),
                        slope(2, 3, 0.5, i),
                    ]
                })
                .collect();
            let steepest = largest(slopes.iter().flatten());
            for ([wide, narrow, left, right], exact) in zip(slopes, exact) {
                let scale = largest(&[wide, narrow, left, right])
                    .max(1e-3 * steepest)
                    .max(1e-6);
                let smooth = (left - right).abs() < 0.05 * scale + rounding
                    && (wide - narrow).abs() < 1e-3 * scale + rounding;
                if !smooth {
                    continue;
                }
                compared[order - 1] += 1;
                let expected = (4.0 * narrow - wide) / 3.0;
                let bound = 1e-6 * scale + 10.0 * rounding + (wide - narrow).abs();
                let off = (expected - exact).abs();
                if off.is_nan() || off > bound {
                    wrong.push(format!("order {order} is {exact}, not {expected}"));
                    break;
                }
            }
        }
        Ok((compared, wrong))
    }
}

fn largest<'a>(values: impl IntoIterator<Item = &'a f64>) -> f64 {
    values.into_iter().fold(0.0, |most, v| most.max(v.abs()))
}

/// Every row that is differentiated, with the first operands that it accepts in each family.
fn subjects() -> Vec<Subject> {
    let mut out = Vec::new();
    for (rows, calls, shapes) in FAMILIES {
        for (row, shown) in rows.iter().enumerate() {
            let name = shown.torch[0];
            let ways = shapes
                .iter()
                .flat_map(|s| calls.iter().map(move |c| (*s, *c)));
            let mut ways = ways.flat_map(|way| [(way, false), (way, true)]);
            out.extend(ways.find_map(|(((x, y), call), index)| {
                let shapes = [x, y];
                let subject = Subject {
                    name,
                    row,
                    call,
                    shapes,
                    index,
                };
                subject.orders(&POINTS[0], (0.0, 0)).ok()??;
                Some(subject)
            }));
        }
    }
    out
}

#[test]
fn derivatives_are_those_of_differences() {
    let subjects = subjects();
    let taken: BTreeSet<&str> = subjects.iter().map(|s| s.name).collect();
    let listed: BTreeSet<&str> = NOT_DIFFERENTIABLE
        .iter()
        .flat_map(|l| l.1)
        .copied()
        .collect();
    let functions = GROUPS
        .iter()
        .filter(|(group, _)| !["creation", "autograd", "modules", "amp"].contains(group));
    let names = functions.flat_map(|g| g.1).map(|row| row.torch[0]);
    let missing: Vec<&str> = names
        .filter(|n| taken.contains(n) == listed.contains(n))
        .collect();
    assert!(
        missing.is_empty(),
        "either differentiated or listed must be {missing:?}"
    );

    let left_out = |s: &Subject, p: &Point| {
        LEFT_OUT
            .iter()
            .any(|(_, rows, points)| rows.contains(&s.name) && points.contains(&p.0))
    };
    let all = subjects
        .iter()
        .flat_map(|s| POINTS.iter().map(move |p| (s, p)));
    let all: Vec<(&Subject, &Point)> = all.filter(|(s, p)| !left_out(s, p)).collect();
    let (sweep, first) = (Sweep::wanted(), seeds(1).start as usize % EVERY);
    let chosen: Vec<&(&Subject, &Point)> = match sweep {
        Some(sweep) => all[sweep.share(all.len())].iter().collect(),
        None => all.iter().skip(first).step_by(EVERY).collect(),
    };
    let (mut wrong, mut third) = (Vec::new(), BTreeMap::new());
    for (subject, point) in &chosen {
        let (name, shapes, at) = (subject.name, subject.shapes, point.0);
        let (compared, found) = match subject.compare(point) {
            Ok(compared) => compared,
            // As of singular matrices.
            Err(e) if e.kind() == ErrorKind::Data => Default::default(),
            Err(e) => ([0; 3], vec![e.to_string()]),
        };
        *third.entry(name).or_insert(0) += compared[2];
        wrong.extend(
            found
                .iter()
                .map(|f| format!("{name} of {shapes:?} at {at}: {f}")),
        );
    }
    println!(
        "{} of {} points of {} rows",
        chosen.len(),
        all.len(),
        taken.len()
    );
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    if sweep.is_some_and(|s| s.is_whole()) {
        third.retain(|_, compared| *compared == 0);
        assert!(third.is_empty(), "nowhere compared: {:?}", third.keys());
    }
}

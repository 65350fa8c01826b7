//! Scales and shifts of a product: every form folds, in every operand slot, to the same result, and every form that
//! must not fold is left alone.

use crate::random::seeds;
use crate::rng::{Rng, loc, shape_of};
use kiln_base::Scalar;
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::ops::{BatchNorm, Conv, ConvTranspose, MatMul};
use kiln_ir::{Builder, DType, Dim, Fact, Graph, GraphBuilder, OpError, Pw, Role, Value};
use kiln_optimize::{Options, Pass, Report, optimize_with, passes};

type Build = Result<Value, OpError>;

/// A product of random size.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Product {
    /// A convolution over a number of spatial axes, with or without padding.
    Conv {
        padding: usize,
    },
    Transposed,
    Right,
    Left,
    /// A batch of products, each with a weight of its own.
    Batch,
}

const PRODUCTS: [Product; 6] = [
    Product::Conv { padding: 0 },
    Product::Conv { padding: 1 },
    Product::Transposed,
    Product::Right,
    Product::Left,
    Product::Batch,
];

/// Sizes and roles of a case.
struct Case {
    product: Product,
    groups: usize,
    /// Channels of a group, in the data and in the result.
    channels: [usize; 2],
    spatial: usize,
    kernel: usize,
    known: Role,
}

impl Case {
    fn random(rng: &mut Rng, product: Product) -> Case {
        Case {
            product,
            groups: 1 + rng.below(3),
            channels: [1 + rng.below(3), 1 + rng.below(3)],
            spatial: rng.below(4),
            kernel: 1 + rng.below(3),
            known: Role::Parameter,
        }
    }

    /// Shapes of data and weight.
    fn shapes(&self) -> [Vec<usize>; 2] {
        let (groups, [c, o]) = (self.groups, self.channels);
        let with = |front: [usize; 2], extent: usize| {
            let mut shape = front.to_vec();
            shape.extend(vec![extent; self.spatial]);
            shape
        };
        match self.product {
            Product::Conv { .. } => [with([2, groups * c], 4), with([groups * o, c], self.kernel)],
            Product::Transposed => [with([2, groups * c], 3), with([groups * c, o], self.kernel)],
            Product::Right => [vec![4, c], vec![c, o]],
            Product::Left => [vec![c, 4], vec![o, c]],
            Product::Batch => [vec![3, 4, c], vec![3, c, o]],
        }
    }

    /// The axes of channels in the data and in the result, and the numbers of channels.
    fn channel_axes(&self) -> [(usize, usize); 2] {
        let (groups, [c, o]) = (self.groups, self.channels);
        match self.product {
            Product::Conv { .. } | Product::Transposed => [(1, groups * c), (1, groups * o)],
            Product::Right => [(1, c), (1, o)],
            Product::Left => [(0, c), (0, o)],
            Product::Batch => [(2, c), (2, o)],
        }
    }

    fn build(&self, b: &mut GraphBuilder<'_>, x: Value, w: Value) -> Build {
        let conv = |padding: usize| Conv {
            stride: vec![1; self.spatial].into(),
            padding: vec![(padding, padding); self.spatial],
            dilation: vec![1; self.spatial].into(),
            groups: self.groups,
        };
        match self.product {
            Product::Conv { padding } => b.op(conv(padding), &[x, w]),
            Product::Transposed => {
                let input = (0..self.spatial)
                    .map(|_| Dim::from(2 + self.kernel))
                    .collect();
                let conv = conv(0);
                b.op(ConvTranspose { conv, input }, &[x, w])
            }
            Product::Left => b.op(MatMul {}, &[w, x]),
            _ => b.op(MatMul {}, &[x, w]),
        }
    }
}

/// A graph of `form` applied after or before a product; its inputs are data, weight and four numbers a channel.
fn graph(
    case: &Case,
    behind: bool,
    form: impl Fn(&mut GraphBuilder<'_>, Value, &[Value]) -> Build,
) -> Graph {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(3));
    let [x, w] = case.shapes().map(|s| Fact::new(DType::F64, s));
    let rank = x.rank();
    let (x, w) = (b.input(x, Role::Data), b.input(w, case.known));
    let (axis, count) = case.channel_axes()[behind as usize];
    let vectors = [0; 4].map(|_| b.input(Fact::new(DType::F64, [count]), case.known));
    let mut column = vec![Dim::ONE; rank - axis];
    column[0] = count.into();
    let vectors = vectors.map(|v| b.reshape(&v, &column).expect("a column"));
    let y = match behind {
        true => {
            let y = case.build(&mut b, x, w).expect("a product");
            form(&mut b, y, &vectors)
        }
        false => {
            let x = form(&mut b, x, &vectors).expect("a form");
            case.build(&mut b, x, w)
        }
    };
    let y = y.expect("a legal program");
    graph.add_output(y);
    graph
}

fn inputs(graph: &Graph, rng: &mut Rng) -> Vec<Array> {
    let ids = graph.inputs().into_iter();
    ids.map(|id| {
        let shape = shape_of(graph, id.value());
        let n = shape.iter().product::<usize>();
        // Far enough from 0 to divide by.
        let values: Vec<f64> = (0..n).map(|_| rng.plain()).collect();
        let values: Vec<f64> = values.iter().map(|x| x + 0.25f64.copysign(*x)).collect();
        Array::from_f64(DType::F64, &shape, &values).expect("as many as the shape has")
    })
    .collect()
}

/// Folds with a list of passes, and compares in f64, the only rounding left.
fn flaw(list: &[Pass], before: &Graph, rng: &mut Rng) -> Result<Report, String> {
    let options = Options {
        verify: true,
        ..Options::default()
    };
    let (after, report) =
        optimize_with(before.clone(), list, &options).map_err(|e| e.to_string())?;
    let inputs = inputs(before, rng);
    let run =
        |g: &Graph| evaluate(g, &inputs, &[], Mode::Exact).expect("no data errors")[0].to_f64();
    let (old, new) = (run(before), run(&after));
    let size = old.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    for (a, b) in old.iter().zip(&new) {
        let close = a == b || (a - b).abs() <= 1e-11 * size;
        if !close {
            return Err(format!("{a} became {b}\n{report}\n{before}\n{after}"));
        }
    }
    Ok(report)
}

fn folded(before: &Graph, rng: &mut Rng) -> Report {
    let list: Vec<Pass> = passes()
        .iter()
        .filter(|p| p.name == "folding")
        .copied()
        .collect();
    flaw(&list, before, rng).unwrap_or_else(|e| panic!("{e}"))
}

/// The number of programs of every form and product that a list of passes gets wrong.
pub fn flaws(list: &[Pass]) -> usize {
    let mut rng = Rng::new(15);
    let mut count = 0;
    for product in PRODUCTS {
        for _ in 0..5 {
            let case = Case::random(&mut rng, product);
            for (_, _, _, form) in BEHIND {
                count += flaw(list, &graph(&case, true, form), &mut rng).is_err() as usize;
            }
            for (_, _, form) in BEFORE {
                count += flaw(list, &graph(&case, false, form), &mut rng).is_err() as usize;
            }
        }
    }
    count
}

type Form = fn(&mut GraphBuilder<'_>, Value, &[Value]) -> Build;

/// Each form after a product, the rule for it and the number of times that it fires.
const BEHIND: &[(&str, &str, usize, Form)] = &[
    ("y * c", "scaled_product", 0, |b, y, c| {
        b.pointwise(Pw::Mul, &[y, c[0]])
    }),
    ("y / c", "scaled_product", 0, |b, y, c| {
        b.pointwise(Pw::Div, &[y, c[0]])
    }),
    ("-y", "scaled_product", 1, |b, y, _| {
        b.pointwise(Pw::Neg, &[y])
    }),
    ("y * 3", "scaled_product", 1, |b, y, _| {
        b.with(Pw::Mul, &y, 3.0)
    }),
    ("-3 * y", "scaled_product", 1, |b, y, _| {
        let three = b.scalar_like(-3.0, &y)?;
        b.pointwise(Pw::Mul, &[three, y])
    }),
    ("y / 3", "scaled_product", 1, |b, y, _| {
        b.with(Pw::Div, &y, 3.0)
    }),
    ("3 / y", "scaled_product", 0, |b, y, _| {
        let three = b.scalar_like(3.0, &y)?;
        b.pointwise(Pw::Div, &[three, y])
    }),
    ("y * 1e-20", "scaled_product", 0, |b, y, _| {
        b.with(Pw::Mul, &y, 1e-20)
    }),
    ("y + c", "shifted_product", 0, |b, y, c| {
        b.pointwise(Pw::Add, &[y, c[0]])
    }),
    ("c - y", "shifted_product", 1, |b, y, c| {
        b.pointwise(Pw::Sub, &[c[0], y])
    }),
    ("y - c", "shifted_product", 0, |b, y, c| {
        b.pointwise(Pw::Sub, &[y, c[0]])
    }),
    ("(y + c) + d", "shifted_product", 1, |b, y, c| {
        let y = b.pointwise(Pw::Add, &[y, c[0]])?;
        b.pointwise(Pw::Add, &[y, c[1]])
    }),
    ("d + (c + y)", "shifted_product", 1, |b, y, c| {
        let y = b.pointwise(Pw::Add, &[c[0], y])?;
        b.pointwise(Pw::Add, &[c[1], y])
    }),
    ("(y - c) - d", "shifted_product", 1, |b, y, c| {
        let y = b.pointwise(Pw::Sub, &[y, c[0]])?;
        b.pointwise(Pw::Sub, &[y, c[1]])
    }),
    ("d - (y - c)", "shifted_product", 1, |b, y, c| {
        let y = b.pointwise(Pw::Sub, &[y, c[0]])?;
        b.pointwise(Pw::Sub, &[c[1], y])
    }),
    ("(y - c) * 3", "scaled_product", 1, |b, y, c| {
        let y = b.pointwise(Pw::Sub, &[y, c[0]])?;
        b.with(Pw::Mul, &y, 3.0)
    }),
    ("(c + y) / 3", "scaled_product", 1, |b, y, c| {
        let y = b.pointwise(Pw::Add, &[c[0], y])?;
        b.with(Pw::Div, &y, 3.0)
    }),
    ("-((c - y) * 3) / 7 + d", "scaled_product", 3, |b, y, c| {
        let y = b.pointwise(Pw::Sub, &[c[0], y])?;
        let y = b.with(Pw::Mul, &y, 3.0)?;
        let y = b.pointwise(Pw::Neg, &[y])?;
        let y = b.with(Pw::Div, &y, 7.0)?;
        b.pointwise(Pw::Add, &[y, c[1]])
    }),
];

#[test]
fn what_is_behind_a_product_folds_in_every_slot() {
    let mut rng = Rng::new(11);
    for i in 0..seeds().max(PRODUCTS.len() as u64) {
        let product = PRODUCTS[i as usize % PRODUCTS.len()];
        let case = Case::random(&mut rng, product);
        let (name, rule, times, form) = BEHIND[rng.below(BEHIND.len())];
        let report = folded(&graph(&case, true, form), &mut rng);
        assert_eq!(report.count(rule), times, "{name} of {product:?}: {report}");
    }
}

/// Each form before a product, and the rule for it.
const BEFORE: &[(&str, &str, Form)] = &[
    ("x * 3", "scaled_data", |b, x, _| b.with(Pw::Mul, &x, 3.0)),
    ("-3 * x", "scaled_data", |b, x, _| {
        let three = b.scalar_like(-3.0, &x)?;
        b.pointwise(Pw::Mul, &[three, x])
    }),
    ("x / 3", "scaled_data", |b, x, _| b.with(Pw::Div, &x, 3.0)),
    ("-x", "scaled_data", |b, x, _| b.pointwise(Pw::Neg, &[x])),
    ("x * 1e-20", "", |b, x, _| b.with(Pw::Mul, &x, 1e-20)),
    ("3 / x", "", |b, x, _| {
        let three = b.scalar_like(3.0, &x)?;
        b.pointwise(Pw::Div, &[three, x])
    }),
    ("x * c", "", |b, x, c| b.pointwise(Pw::Mul, &[x, c[0]])),
    ("x / c", "", |b, x, c| b.pointwise(Pw::Div, &[x, c[0]])),
    ("x + c", "", |b, x, c| b.pointwise(Pw::Add, &[x, c[0]])),
    ("c - x", "", |b, x, c| b.pointwise(Pw::Sub, &[c[0], x])),
    ("x - 3", "", |b, x, _| b.with(Pw::Sub, &x, 3.0)),
];

#[test]
fn what_is_before_a_product_folds_in_every_slot() {
    let mut rng = Rng::new(12);
    for i in 0..seeds().max(PRODUCTS.len() as u64) {
        let product = PRODUCTS[i as usize % PRODUCTS.len()];
        let case = Case::random(&mut rng, product);
        let (name, rule, form) = BEFORE[rng.below(BEFORE.len())];
        let before = graph(&case, false, form);
        let report = folded(&before, &mut rng);
        let times = !rule.is_empty();
        let what = format!("{name} of {product:?}: {report}\n{before}");
        assert_eq!(report.fired.len(), times as usize, "{what}");
        assert!(!times || report.count(rule) == 1, "{what}");
    }
}

/// A batch norm with the columns as statistics.
fn batch_norm(b: &mut GraphBuilder<'_>, x: Value, c: &[Value]) -> Build {
    let channels = b.graph().fact(x).shape[1].clone();
    let mut operands = vec![x];
    for v in c {
        operands.push(b.reshape(v, std::slice::from_ref(&channels))?);
    }
    operands[2] = b.pointwise(Pw::Square, &operands[2..3])?;
    let norm = BatchNorm {
        eps: Scalar::Float(1e-3),
        affine: true,
    };
    b.op(norm, &operands)
}

#[test]
fn batch_norms_fold_behind_a_product_and_not_before_it() {
    let mut rng = Rng::new(13);
    for i in 0..seeds() {
        let product = PRODUCTS[i as usize % 4];
        let case = Case::random(&mut rng, product);
        let behind = folded(&graph(&case, true, batch_norm), &mut rng);
        let name = match product {
            Product::Right => "linear_batch_norm",
            _ => "conv_batch_norm",
        };
        assert_eq!(behind.count(name), 1, "{product:?}: {behind}");
        let before = folded(&graph(&case, false, batch_norm), &mut rng);
        assert_eq!(before.fired, [], "{product:?}: {before}");
    }
}

#[test]
fn a_weight_that_is_data_is_left_alone() {
    let mut rng = Rng::new(14);
    for product in PRODUCTS {
        for (name, _, _, form) in BEHIND {
            let mut case = Case::random(&mut rng, product);
            case.known = Role::Data;
            let report = folded(&graph(&case, true, form), &mut rng);
            assert_eq!(report.fired.len(), 0, "{name} of {product:?}: {report}");
        }
    }
}

/// A linear layer on data of three dims, so that forms after it are beyond a reshape.
fn linear(behind: &[Form], role: Role) -> Result<Graph, OpError> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, loc(5));
    let f64s = |shape: &[usize]| Fact::new(DType::F64, shape.iter().copied());
    let x = b.input(f64s(&[2, 3, 4]), Role::Data);
    let w = b.input(f64s(&[4, 5]), role);
    let c = [0; 4].map(|_| b.input(f64s(&[5]), role));
    let rows = b.reshape(&x, &[Dim::from(6usize), Dim::from(4usize)])?;
    let product = b.op(MatMul {}, &[rows, w])?;
    let mut y = b.reshape(&product, &[2, 3, 5].map(Dim::from))?;
    for form in behind {
        y = form(&mut b, y, &c)?;
    }
    graph.add_output(y);
    Ok(graph)
}

/// Forms that fold after a product.
const FOLDING: [Form; 6] = [
    |b, y, _| b.with(Pw::Mul, &y, 0.3),
    |b, y, _| b.with(Pw::Div, &y, -0.7),
    |b, y, _| b.pointwise(Pw::Neg, &[y]),
    |b, y, c| b.pointwise(Pw::Add, &[c[3], y]),
    |b, y, c| b.pointwise(Pw::Sub, &[y, c[0]]),
    |b, y, c| b.pointwise(Pw::Sub, &[c[1], y]),
];

#[test]
fn linear_layers_on_data_of_more_dims_fold_across_their_reshapes() {
    let mut rng = Rng::new(16);
    for _ in 0..seeds() / 4 {
        let behind: Vec<Form> = (0..rng.below(4)).map(|_| rng.pick(&FOLDING)).collect();
        let graph = linear(&behind, Role::Parameter).unwrap();
        let report = flaw(passes(), &graph, &mut rng).unwrap_or_else(|e| panic!("{e}"));
        let after = kiln_optimize::optimize(graph, &Options::default())
            .unwrap()
            .0;
        let data = after.inputs()[0];
        let mut depends = vec![false; after.len()];
        depends[data.index()] = true;
        let mut run = Vec::new();
        for (id, node) in after.iter().filter(|(id, _)| *id != data) {
            depends[id.index()] = node.inputs.iter().any(|v| depends[v.node.index()]);
            if depends[id.index()] && node.op.name() != "reshape" {
                run.push(node.op.name());
            }
        }
        // At most one bias is left.
        let folded = run == ["matmul"] || run == ["matmul", "add"];
        assert!(
            folded || run == ["matmul", "sub"],
            "{run:?}\n{report}\n{after}"
        );
    }
}

/// A factor between two products belongs to the first, or the two rules would move it back and forth for ever.
#[test]
fn factors_between_two_products_come_to_rest() {
    let mut rng = Rng::new(17);
    for form in FOLDING {
        for role in [Role::Parameter, Role::Data] {
            let mut graph = Graph::default();
            let mut b = GraphBuilder::new(&mut graph, loc(5));
            let f64s = |shape: &[usize]| Fact::new(DType::F64, shape.iter().copied());
            let x = b.input(f64s(&[6, 4]), Role::Data);
            let [first, second] = [0; 2].map(|_| b.input(f64s(&[4, 4]), Role::Parameter));
            let c = [0; 4].map(|_| b.input(f64s(&[4]), role));
            let y = b.op(MatMul {}, &[x, first]).unwrap();
            let y = b.reshape(&y, &[2, 3, 4].map(Dim::from)).unwrap();
            let y = form(&mut b, y, &c).unwrap();
            let y = b.reshape(&y, &[3, 2, 4].map(Dim::from)).unwrap();
            let second = b.broadcast_to(&second, &[3, 4, 4].map(Dim::from)).unwrap();
            let y = b.op(MatMul {}, &[y, second]).unwrap();
            graph.add_output(y);
            let report = flaw(passes(), &graph, &mut rng).unwrap_or_else(|e| panic!("{e}"));
            assert!(report.rounds < 6, "{report}");
        }
    }
}

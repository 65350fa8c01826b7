//! Every op through the engine, one at a time: odd sizes, ranks 0 to 6, broadcasting and other views, every dtype
//! that it accepts, NaN and infinities.

use crate::oracle::{Engine, Oracle};
use kiln::Tensor;
use kiln_base::prim::{Reduction, ScanKind, ScatterKind};
use kiln_compiler::Options;
use kiln_ir::eval::{Array, Data};
use kiln_ir::fuzz::Rng;
use kiln_ir::ops::{self, SliceAxis};
use kiln_ir::{Builder, DType, Dim, Fact, Graph, GraphBuilder, Loc, OpError, Pw, Role, Value};

/// Shapes with 0, 1, primes, sizes around a vector and a tile, and ranks 0 to 6.
const SHAPES: &[&[usize]] = &[
    &[],
    &[0],
    &[1],
    &[7],
    &[17],
    &[511],
    &[513],
    &[3, 0],
    &[5, 13],
    &[64, 3],
    &[2, 1, 11],
    &[3, 2, 5, 2],
    &[2, 3, 1, 2, 7],
    &[2, 1, 3, 2, 1, 5],
];

/// Values of a dtype: small numbers of both signs, with special ones among the floats.
fn values(dtype: DType, shape: &[usize], rng: &mut Rng, special: bool) -> Array {
    let count = shape.iter().product::<usize>();
    let data = if dtype.is_float() {
        let float = |rng: &mut Rng| match rng.below(if special { 8 } else { usize::MAX }) {
            0 => rng.one([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0]),
            _ => (rng.unit() - 0.5) * 6.0,
        };
        Data::Float((0..count).map(|_| float(rng)).collect())
    } else {
        Data::Int((0..count).map(|_| rng.range(-5, 6)).collect())
    };
    let array = Array::new(dtype, shape, data).unwrap();
    // Rounds floats to the dtype.
    Array::from_bytes(dtype, shape, &array.to_bytes()).unwrap()
}

/// A graph of one op on inputs of these facts, checked with and without special values.
#[track_caller]
fn check(
    inputs: &[(DType, &[usize])],
    rng: &mut Rng,
    tweak: impl Fn(usize, Array) -> Array,
    build: impl Fn(&mut GraphBuilder, &[Value]) -> Result<Value, OpError>,
) {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let operands: Vec<Value> = inputs
        .iter()
        .map(|(d, s)| b.input(Fact::new(*d, s.iter().copied()), Role::Data))
        .collect();
    let result = build(&mut b, &operands).unwrap_or_else(|e| panic!("{e}\n{inputs:?}"));
    graph.add_output(result);
    let engine =
        Engine::new(&graph, &Options::default()).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    for special in [false, true] {
        let arrays = inputs.iter().enumerate();
        let arrays = arrays
            .map(|(i, (d, s))| tweak(i, values(*d, s, rng, special)))
            .collect();
        let oracle = Oracle::new(&graph, arrays);
        let outputs = engine
            .run(&oracle.inputs)
            .unwrap_or_else(|e| panic!("{e}\n{graph}"));
        if let Err(e) = oracle.check(&outputs) {
            panic!("{e}\n{graph}\n{:?}", oracle.inputs);
        }
    }
}

fn plain(_: usize, a: Array) -> Array {
    a
}

/// Integers kept off zero.
fn nonzero(i: usize, a: Array) -> Array {
    match a.ints() {
        Some(ints) if i == 1 => {
            let data = ints.iter().map(|x| if *x == 0 { 3 } else { *x }).collect();
            Array::new(a.dtype(), a.shape(), Data::Int(data)).unwrap()
        }
        _ => a,
    }
}

fn computing() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| d.computes())
}

#[test]
fn pointwise_rows() {
    let mut rng = Rng::new(1);
    for &row in Pw::ALL {
        for dtype in DType::ALL.into_iter().filter(|d| row.takes(*d)) {
            for shape in SHAPES {
                let mut inputs = vec![(dtype, *shape); row.row().arity];
                if row == Pw::Select {
                    inputs[0].0 = DType::Bool;
                }
                check(&inputs, &mut rng, nonzero, |b, x| {
                    b.op(ops::Pointwise(row), x)
                });
            }
        }
    }
}

#[test]
fn casts() {
    let mut rng = Rng::new(2);
    for from in DType::ALL {
        for to in DType::ALL {
            for shape in [&[][..], &[1], &[513], &[3, 0], &[2, 1, 3, 2, 1, 5]] {
                check(&[(from, shape)], &mut rng, plain, |b, x| {
                    b.op(ops::Cast::to(to), x)
                });
            }
        }
    }
}

#[test]
fn views() {
    let mut rng = Rng::new(3);
    let axis = |start: i64, len: i64, step| SliceAxis {
        start: Dim::Const(start),
        len: Dim::Const(len),
        step,
    };
    for dtype in DType::ALL {
        let mut view = |shape: &[usize], op: ops::Slice| {
            check(&[(dtype, shape)], &mut rng, plain, |b, x| {
                b.op(op.clone(), x)
            });
        };
        view(
            &[7, 5],
            ops::Slice {
                axes: vec![axis(6, 4, -2), axis(1, 4, 1)],
            },
        );
        view(
            &[513],
            ops::Slice {
                axes: vec![axis(512, 513, -1)],
            },
        );
        view(
            &[4, 3],
            ops::Slice {
                axes: vec![axis(0, 0, 1), axis(2, 1, 5)],
            },
        );
        let shape = [2, 3, 1, 5, 2, 1];
        check(&[(dtype, &shape)], &mut rng, plain, |b, x| {
            let perm = [5, 3, 1, 0, 4, 2].into_iter().collect();
            let t = b.op(ops::Permute { perm }, x)?;
            let t = b.reshape(&t, &[5, 6, 2].map(Dim::from))?;
            let t = b.op(
                ops::Slice {
                    axes: vec![axis(4, 5, -1), axis(0, 3, 2), axis(0, 2, 1)],
                },
                &[t],
            )?;
            b.broadcast_to(&t, &[3, 5, 3, 2].map(Dim::from))
        });
        check(&[(dtype, &[3, 5])], &mut rng, plain, |b, x| {
            let low = [1, 0].map(Dim::from).into_iter().collect();
            let high = [2, 7].map(Dim::from).into_iter().collect();
            b.op(
                ops::Pad {
                    low,
                    high,
                    value: kiln_base::Scalar::Int(1).cast(dtype),
                },
                x,
            )
        });
        check(
            &[(dtype, &[3, 5]), (dtype, &[3, 0]), (dtype, &[3, 2])],
            &mut rng,
            plain,
            |b, x| b.op(ops::Concat { axis: 1 }, x),
        );
    }
}

#[test]
fn reductions() {
    let mut rng = Rng::new(4);
    for &kind in Reduction::ALL {
        let extreme = matches!(kind, Reduction::Max | Reduction::Min);
        for dtype in computing().filter(|d| extreme || *d != DType::Bool) {
            let cases: &[(&[usize], &[usize])] = &[
                (&[], &[]),
                (&[1], &[0]),
                (&[513], &[0]),
                (&[7, 3], &[0]),
                (&[7, 3], &[1]),
                (&[5, 2, 11], &[0, 2]),
                (&[0, 4], &[1]),
                (&[3, 70, 2], &[1]),
                (&[2, 3, 1, 2, 7, 3], &[1, 3, 4]),
            ];
            for (shape, axes) in cases {
                // Products stay small, since overflowing ones are not comparable.
                let tame = |_: usize, a: Array| match kind {
                    Reduction::Prod if a.len() > 20 => {
                        Array::from_f64(a.dtype(), a.shape(), &vec![1.0; a.len()]).unwrap()
                    }
                    _ => a,
                };
                check(&[(dtype, shape)], &mut rng, tame, |b, x| {
                    b.op(
                        ops::Reduce {
                            kind,
                            axes: (*axes).into(),
                        },
                        x,
                    )
                });
                if let ([axis], true) = (axes, extreme) {
                    check(&[(dtype, shape)], &mut rng, plain, |b, x| {
                        b.op(ops::ArgReduce { kind, axis: *axis }, x)
                    });
                }
            }
        }
    }
}

#[test]
fn empty_sums_are_the_identity() {
    let mut rng = Rng::new(5);
    for kind in [Reduction::Sum, Reduction::Prod] {
        for dtype in computing().filter(|d| *d != DType::Bool) {
            check(&[(dtype, &[3, 0])], &mut rng, plain, |b, x| {
                b.op(
                    ops::Reduce {
                        kind,
                        axes: [1].into_iter().collect(),
                    },
                    x,
                )
            });
        }
    }
}

#[test]
fn matrix_products() {
    let mut rng = Rng::new(6);
    for dtype in computing().filter(|d| *d != DType::Bool) {
        for (m, k, n) in [
            (1, 1, 1),
            (7, 5, 3),
            (17, 33, 65),
            (0, 4, 2),
            (3, 0, 5),
            (1, 130, 70),
        ] {
            check(
                &[(dtype, &[m, k]), (dtype, &[k, n])],
                &mut rng,
                plain,
                |b, x| b.op(ops::MatMul {}, x),
            );
        }
        check(
            &[(dtype, &[2, 3, 5, 4]), (dtype, &[3, 4, 6])],
            &mut rng,
            plain,
            |b, x| {
                let y = b.broadcast_to(&x[1], &[2, 3, 4, 6].map(Dim::from))?;
                b.op(ops::MatMul {}, &[x[0], y])
            },
        );
        check(
            &[(dtype, &[5, 7]), (dtype, &[9, 7]), (dtype, &[9])],
            &mut rng,
            plain,
            |b, x| {
                let t = b.op(
                    ops::Permute {
                        perm: [1, 0].into_iter().collect(),
                    },
                    &[x[1]],
                )?;
                let y = b.op(ops::MatMul {}, &[x[0], t])?;
                b.pointwise(Pw::Add, &[y, x[2]])
            },
        );
    }
}

#[test]
fn convolutions_and_pooling() {
    let mut rng = Rng::new(7);
    let conv =
        |stride: &[usize], padding: &[(usize, usize)], dilation: &[usize], groups| ops::Conv {
            stride: stride.into(),
            padding: padding.to_vec(),
            dilation: dilation.into(),
            groups,
        };
    let cases: &[(&[usize], &[usize], ops::Conv)] = &[
        (
            &[2, 3, 7, 5],
            &[4, 3, 3, 3],
            conv(&[1, 1], &[(1, 1), (1, 1)], &[1, 1], 1),
        ),
        (
            &[1, 4, 9, 9],
            &[6, 2, 3, 2],
            conv(&[2, 3], &[(0, 2), (1, 0)], &[2, 1], 2),
        ),
        (
            &[3, 5, 6, 6],
            &[5, 1, 3, 3],
            conv(&[1, 1], &[(1, 1), (1, 1)], &[1, 1], 5),
        ),
        (&[2, 3, 11], &[4, 3, 1], conv(&[1], &[(0, 0)], &[1], 1)),
        (
            &[1, 2, 3, 4, 5],
            &[3, 2, 2, 2, 2],
            conv(&[1, 2, 1], &[(0, 0), (1, 1), (0, 1)], &[1, 1, 2], 1),
        ),
        (
            &[0, 2, 5, 5],
            &[3, 2, 3, 3],
            conv(&[1, 1], &[(0, 0), (0, 0)], &[1, 1], 1),
        ),
    ];
    for dtype in computing().filter(|d| *d != DType::Bool) {
        for (x, w, op) in cases {
            check(&[(dtype, x), (dtype, w)], &mut rng, plain, |b, v| {
                b.op(op.clone(), v)
            });
        }
        for kind in [Reduction::Max, Reduction::Sum, Reduction::Min] {
            let pool = ops::WindowReduce {
                kind,
                kernel: [3, 2].into_iter().collect(),
                stride: [2, 1].into_iter().collect(),
                padding: vec![(1, 1), (0, 1)],
                dilation: [1, 2].into_iter().collect(),
            };
            check(&[(dtype, &[2, 3, 7, 6])], &mut rng, plain, |b, v| {
                b.op(pool.clone(), v)
            });
        }
    }
}

#[test]
fn gathers_and_composites() {
    let mut rng = Rng::new(8);
    for dtype in DType::ALL {
        let inside = |i: usize, a: Array| match a.ints() {
            Some(ints) if i == 1 => {
                let data = ints.iter().map(|x| x.rem_euclid(4)).collect();
                Array::new(a.dtype(), a.shape(), Data::Int(data)).unwrap()
            }
            _ => a,
        };
        check(
            &[(dtype, &[3, 4, 5]), (DType::I64, &[2, 7, 5])],
            &mut rng,
            inside,
            |b, x| b.op(ops::Gather { axis: 1 }, x),
        );
    }
    for dtype in computing().filter(|d| d.is_float()) {
        for (shape, axis) in [
            (&[5, 13][..], 1),
            (&[5, 13], 0),
            (&[2, 3, 600], 2),
            (&[1], 0),
            (&[3, 0], 1),
        ] {
            for log in [false, true] {
                check(&[(dtype, shape)], &mut rng, plain, |b, x| {
                    b.op(ops::Softmax { axis, log }, x)
                });
            }
        }
        let positive = |i: usize, a: Array| match a.floats() {
            Some(x) if i == 2 => Array::from_f64(
                dtype,
                a.shape(),
                &x.iter().map(|x| x.abs() + 0.5).collect::<Vec<_>>(),
            )
            .unwrap(),
            _ => a,
        };
        let channel = (dtype, &[3usize][..]);
        let inputs = [
            (dtype, &[2, 3, 4, 5][..]),
            channel,
            channel,
            channel,
            channel,
        ];
        check(&inputs, &mut rng, positive, |b, x| {
            b.op(
                ops::BatchNorm {
                    eps: kiln_base::Scalar::Float(1e-5),
                    affine: true,
                },
                x,
            )
        });
    }
}

#[test]
fn scans() {
    let mut rng = Rng::new(9);
    for dtype in computing().filter(|d| *d != DType::Bool) {
        for &kind in ScanKind::ALL {
            if kind == ScanKind::LogSumExp && !dtype.is_float() {
                continue;
            }
            for shape in SHAPES.iter().filter(|s| !s.is_empty()) {
                // Products stay small, since overflowing ones are not comparable.
                let tame = |_: usize, a: Array| match kind {
                    ScanKind::Prod if a.len() > 20 => {
                        Array::from_f64(a.dtype(), a.shape(), &vec![1.0; a.len()]).unwrap()
                    }
                    _ => a,
                };
                for axis in [0, shape.len() / 2, shape.len() - 1] {
                    let reverse = rng.chance(0.5);
                    check(&[(dtype, shape)], &mut rng, tame, |b, x| {
                        b.op(
                            ops::Scan {
                                kind,
                                axis,
                                reverse,
                            },
                            x,
                        )
                    });
                }
            }
        }
    }
}

#[test]
fn sorts() {
    let mut rng = Rng::new(10);
    for dtype in computing() {
        for shape in SHAPES.iter().filter(|s| !s.is_empty()) {
            for axis in [0, shape.len() / 2, shape.len() - 1] {
                for descending in [false, true] {
                    for first in [None, Some(shape[axis].min(2))] {
                        let op = ops::ArgSort {
                            axis,
                            descending,
                            first: first.map(Dim::from),
                        };
                        check(&[(dtype, shape)], &mut rng, plain, |b, x| {
                            let order = b.op(op.clone(), x)?;
                            b.op(ops::Gather { axis }, &[x[0], order])
                        });
                        check(&[(dtype, shape)], &mut rng, plain, |b, x| {
                            b.op(op.clone(), x)
                        });
                    }
                }
            }
        }
    }
}

/// Indices below a bound.
fn inside(bound: i64) -> impl Fn(usize, Array) -> Array {
    move |i, a| match a.ints() {
        Some(ints) if i == 1 => {
            let data = ints.iter().map(|x| x.rem_euclid(bound)).collect();
            Array::new(a.dtype(), a.shape(), Data::Int(data)).unwrap()
        }
        _ => a,
    }
}

#[test]
fn scatters() {
    let mut rng = Rng::new(11);
    for dtype in DType::ALL {
        for &kind in ScatterKind::ALL {
            let adds = matches!(kind, ScatterKind::Sum | ScatterKind::Prod);
            if kind != ScatterKind::Set && (!dtype.computes() || adds && dtype == DType::Bool) {
                continue;
            }
            let cases: &[(usize, &[usize], &[usize])] = &[
                (0, &[4], &[13]),
                (0, &[4, 7], &[9, 5]),
                (1, &[7, 4], &[7, 0]),
                (1, &[3, 4, 5], &[2, 7, 5]),
                (4, &[2, 1, 3, 2, 4], &[2, 1, 2, 2, 3]),
            ];
            for (axis, shape, index) in cases {
                let op = ops::Scatter { axis: *axis, kind };
                let inputs = [(dtype, *shape), (DType::I64, *index), (dtype, *index)];
                check(&inputs, &mut rng, inside(4), |b, x| b.op(op, x));
            }
            // One index per row, one number for all, and an x that the same kernel computes first.
            let op = ops::Scatter { axis: 0, kind };
            let inputs = [(dtype, &[4, 7][..]), (DType::I64, &[9]), (dtype, &[7, 4])];
            check(&inputs, &mut rng, inside(4), |b, x| {
                let index = b.reshape(&x[1], &[Dim::Const(9), Dim::ONE])?;
                let index = b.broadcast_to(&index, &[9, 7].map(Dim::from))?;
                let perm = [1, 0].into_iter().collect();
                let x = b.op(ops::Permute { perm }, &x[2..])?;
                let one = b.scalar_like(1.0, &x)?;
                let src = b.broadcast_to(&one, &[9, 7].map(Dim::from))?;
                b.op(op, &[x, index, src])
            });
        }
    }
}

#[test]
fn an_index_outside_is_an_error_at_the_scatter() {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let mut input = |dtype, n: usize| b.input(Fact::new(dtype, [n]), Role::Data);
    let operands = [(DType::BF16, 3), (DType::I64, 2), (DType::BF16, 2)].map(|(d, n)| input(d, n));
    let kind = ScatterKind::Sum;
    let result = b.op(ops::Scatter { axis: 0, kind }, &operands).unwrap();
    graph.add_output(result);
    let engine = Engine::new(&graph, &Options::default()).unwrap();
    let zeros = |n: usize| Array::from_f64(DType::BF16, &[n], &vec![0.0; n]).unwrap();
    let index = Array::from_i64(DType::I64, &[2], &[0, 3]).unwrap();
    let error = engine.run(&[zeros(3), index, zeros(2)]).unwrap_err();
    let kiln_runtime::Error::Data {
        op, index, bound, ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((&op[..], index, bound), ("scatter", 3, 3));
}

#[test]
fn attention() {
    let mut rng = Rng::new(12);
    for dtype in computing().filter(|d| d.is_float()) {
        for (l, s, e, v) in [
            (5, 7, 3, 2),
            (1, 1, 1, 1),
            (3, 0, 2, 4),
            (0, 3, 2, 2),
            (17, 33, 8, 5),
        ] {
            for causal in [false, true] {
                // Hidden keys that a GPU's blocks don't read may hold any values.
                let s = if causal { s.min(31) } else { s };
                for mask in [None, Some(DType::Bool), Some(dtype)] {
                    let op = ops::Attention {
                        scale: kiln_base::Scalar::Float(0.5),
                        causal,
                        dropout: None,
                    };
                    let shapes = [[2, l, e], [2, s, e], [2, s, v], [2, l, s]];
                    let dtypes = [dtype, dtype, dtype, mask.unwrap_or(dtype)];
                    let mut inputs: Vec<(DType, &[usize])> = dtypes
                        .into_iter()
                        .zip(shapes.iter().map(|s| &s[..]))
                        .collect();
                    inputs.truncate(3 + mask.is_some() as usize);
                    check(&inputs, &mut rng, plain, |b, x| b.op(op, x));
                }
            }
        }
    }
}

/// Rows of a table by index, with factors that are constant along the row, along parts of it, or nowhere; and rows of
/// every length that has a loop of its own.
#[test]
fn rows_by_index_with_factors_and_sums() -> kiln::Result<()> {
    for (parts, width) in [(4, 16), (3, 16), (4, 17), (2, 5), (1, 64), (5, 33), (3, 97)] {
        let table: Vec<f32> = (0..11 * parts * width)
            .map(|i| (i % 61) as f32 - 30.0)
            .collect();
        for rows in [1, 2, 37, 301] {
            let index: Vec<i64> = (0..rows).map(|i| (i * 7 + 3) as i64 % 22 - 11).collect();
            let row = |i: usize| index[i].rem_euclid(11) as usize;
            let part: Vec<f32> = (0..rows * parts).map(|i| (i % 13) as f32 - 6.0).collect();
            let all: Vec<f32> = (0..rows * parts * width).map(|i| (i % 5) as f32).collect();
            let x = Tensor::from(table.clone()).reshape([11, parts as i64, width as i64]);
            let x = x.i(Tensor::from(index.clone()));
            let shape = [rows, parts, 1].map(|n| n as i64);
            let a = Tensor::from(part.clone()).reshape(shape);
            let turned: Vec<f32> = (0..rows * parts)
                .map(|i| part[i % rows * parts + i / rows])
                .collect();
            let t = Tensor::from(turned).reshape([parts as i64, rows as i64]);
            let t = t.transpose(0, 1).unsqueeze(-1);
            let g = Tensor::from(all.clone()).reshape([rows, parts, width].map(|n| n as i64));
            let (mut product, mut sums, mut most) = (vec![], vec![], vec![]);
            for p in 0..rows * parts {
                let from = (row(p / parts) * parts + p % parts) * width;
                let line = &table[from..from + width];
                product.extend(line.iter().map(|x| x * part[p]));
                let weighted = line.iter().zip(&all[p * width..]).map(|(x, g)| x * g);
                sums.push(weighted.sum::<f32>());
                most.push(line.iter().fold(f32::MIN, |m, x| m.max(*x)));
            }
            let case = format!("{rows} rows of [{parts}, {width}]");
            assert_eq!((&x * &a).to_vec::<f32>()?, product, "{case}");
            assert_eq!((&x * &t).to_vec::<f32>()?, product, "{case}, turned");
            assert_eq!((&x * &g).sum(-1).to_vec::<f32>()?, sums, "{case}, summed");
            assert_eq!(x.amax(-1).to_vec::<f32>()?, most, "{case}, largest");
        }
    }
    Ok(())
}

/// Contiguous heads, as the backward of a split into heads produces them, and the same with padding.
#[test]
fn concats_and_pads_of_permuted_parts() -> kiln::Result<()> {
    for (b, h, s, d) in [
        (2, 3, 5, 16),
        (1, 4, 32, 17),
        (3, 2, 70, 64),
        (8, 4, 32, 16),
    ] {
        let part = |p: usize| (0..b * h * s * d).map(move |i| (i * 3 + p) as f32);
        let parts = [0, 1, 2].map(|p| {
            let x = Tensor::from(part(p).collect::<Vec<f32>>());
            let x = x.reshape([b, h, s, d].map(|n| n as i64)).transpose(1, 2);
            x.reshape([b, s, h * d].map(|n| n as i64))
        });
        let at = |b: usize, s_: usize, c: usize| {
            let (p, c) = (c / (h * d), c % (h * d));
            ((((b * h) + c / d) * s + s_) * d + c % d) as f32 * 3.0 + p as f32
        };
        let all = (0..b).flat_map(|b| (0..s).map(move |s| (b, s)));
        let row = |(b, s): (usize, usize)| (0..3 * h * d).map(move |c| at(b, s, c));
        let wanted: Vec<f32> = all.clone().flat_map(row).collect();
        let heads = kiln::cat(&parts, 2);
        assert_eq!(heads.to_vec::<f32>()?, wanted, "{b}, {h}, {s}, {d}");
        let padded = heads.pad([1, 2, 1, 0], kiln::PadMode::ZEROS);
        let inner = padded
            .narrow(2, 1, 3 * (h * d) as i64)
            .narrow(1, 1, s as i64);
        let others = |v: &[f32]| v.iter().filter(|x| **x != 0.0).count();
        assert_eq!(others(&padded.to_vec::<f32>()?), others(&wanted));
        assert_eq!(inner.to_vec::<f32>()?, wanted, "{b}, {h}, {s}, {d}, padded");
    }
    Ok(())
}

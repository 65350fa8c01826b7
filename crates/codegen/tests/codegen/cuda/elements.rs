//! Every primitive and every cast, element by element.

use super::lowered;
use crate::device;
use crate::run::{Engine, run};
use kiln_base::DType;
use kiln_codegen::{Options, lower};
use kiln_ir::eval::{Array, Data, Mode, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Pw, Role, Value, ops};

/// Numbers of a dtype: small ones of both signs, and among floats special ones.
pub fn values(dtype: DType, shape: &[usize], rng: &mut Rng) -> Array {
    let count = shape.iter().product::<usize>();
    let data = if dtype.is_float() {
        let float = |rng: &mut Rng| match rng.below(12) {
            0 => rng.one([
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                -0.0,
                0.0,
                1.0,
                -1.0,
            ]),
            1 => (rng.unit() - 0.5) * 60.0,
            _ => (rng.unit() - 0.5) * 6.0,
        };
        Data::Float((0..count).map(|_| float(rng)).collect())
    } else {
        Data::Int((0..count).map(|_| rng.range(-5, 6)).collect())
    };
    settled(dtype, shape, data)
}

fn settled(dtype: DType, shape: &[usize], data: Data) -> Array {
    let array = Array::new(dtype, shape, data).unwrap();
    Array::from_bytes(dtype, shape, &array.to_bytes()).unwrap()
}

/// Every row of the pointwise table, at every dtype, element by element.
#[test]
fn every_primitive() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(1);
    let mut worst: Vec<(f64, String)> = Vec::new();
    let mut wrong = Vec::new();
    for dtype in DType::ALL.into_iter().filter(|d| d.computes()) {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let shape = [61usize];
        let mut inputs = Vec::new();
        let mut results = Vec::new();
        for &row in Pw::ALL.iter().filter(|r| {
            r.takes(dtype) && !(dtype == DType::F64 && [Pw::Sin, Pw::Cos, Pw::Tan].contains(r))
        }) {
            let operands: Vec<Value> = (0..row.row().arity)
                .map(|i| {
                    let dtype = if row == Pw::Select && i == 0 {
                        DType::Bool
                    } else {
                        dtype
                    };
                    let mut x = values(dtype, &shape, &mut rng);
                    if i == 1
                        && let Some(ints) = x.ints()
                    {
                        let data = ints.iter().map(|x| if *x == 0 { 3 } else { *x }).collect();
                        x = settled(dtype, &shape, Data::Int(data));
                    }
                    inputs.push(x);
                    b.input(Fact::new(dtype, shape), Role::Data)
                })
                .collect();
            results.push((row, b.op(ops::Pointwise(row), &operands).unwrap()));
        }
        for r in &results {
            graph.add_output(r.1);
        }
        let rounded = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
        let exact = evaluate(&graph, &inputs, &[], Mode::Exact).unwrap();
        let program = lowered(&graph, false).expect("pointwise kernels have a printer");
        let got = run(&program, &inputs, &[], Engine::Device).expect("no data error");
        let cpu = lower(
            &graph,
            &Options {
                fuse: false,
                ..Options::default()
            },
        )
        .unwrap();
        let points = run(&cpu, &inputs, &[], Engine::Points).unwrap();
        for (o, (row, _)) in results.iter().enumerate() {
            let got = got[o].as_ref().unwrap();
            let points = points[o].as_ref().unwrap();
            let (g, p, r, e) = (
                got.to_f64(),
                points.to_f64(),
                rounded[o].to_f64(),
                exact[o].to_f64(),
            );
            let eps = match dtype {
                DType::F16 => 1.0 / 1024.0,
                DType::BF16 => 1.0 / 128.0,
                DType::F32 => f32::EPSILON as f64,
                _ => f64::EPSILON,
            };
            for i in 0..g.len() {
                let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
                if same(g[i], p[i]) || same(g[i], r[i]) || same(g[i], e[i]) {
                    continue;
                }
                if got.dtype().is_float() {
                    let rounding = (r[i] - e[i]).abs().max((p[i] - e[i]).abs());
                    let off = ((g[i] - e[i]).abs() - 4.0 * rounding) / (eps * e[i].abs().max(0.1));
                    worst.push((
                        off,
                        format!(
                            "{} {dtype}: {} {} {} {}",
                            row.name(),
                            g[i],
                            p[i],
                            r[i],
                            e[i]
                        ),
                    ));
                    if off < if dtype == DType::F64 { 32.0 } else { 8.0 } {
                        continue;
                    }
                }
                wrong.push(format!(
                    "{} of {dtype}: {} and not {} ({})",
                    row.name(),
                    g[i],
                    r[i],
                    e[i]
                ));
                break;
            }
        }
    }
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (off, text) in worst.iter().take(20) {
        println!("{off} {text}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every cast, exactly.
#[test]
fn every_cast() {
    if device::nvrtc().is_none() {
        return;
    }
    let floats = [
        0.0,
        -0.0,
        0.3,
        -0.7,
        1.5,
        2.5,
        -2.5,
        127.4,
        128.6,
        255.9,
        256.0,
        -129.0,
        32767.9,
        65535.5,
        65520.0,
        1e-8,
        3.1e-5,
        70000.0,
        2147483520.0,
        2147483648.0,
        -2147483648.0,
        -3e9,
        4294967295.0,
        5e9,
        9.3e18,
        -9.3e18,
        1.9e19,
        1e30,
        1e300,
        -1e39,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let ints = [
        0,
        1,
        -1,
        2,
        127,
        128,
        255,
        256,
        -128,
        -129,
        32767,
        32768,
        65535,
        65536,
        2049,
        4097,
        257,
        16777217,
        i32::MAX as i64,
        i32::MIN as i64,
        u32::MAX as i64,
        1 << 33,
        (1 << 53) + 1,
        i64::MAX,
        i64::MIN,
    ];
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let (mut inputs, mut results) = (Vec::new(), Vec::new());
    for from in DType::ALL {
        let data = match from.is_float() {
            true => Data::Float(floats.to_vec()),
            false => Data::Int(ints.iter().map(|i| kiln_base::wrap_int(*i, from)).collect()),
        };
        let n = if from.is_float() {
            floats.len()
        } else {
            ints.len()
        };
        inputs.push(settled(from, &[n], data));
        let x = b.input(Fact::new(from, [n]), Role::Data);
        for to in DType::ALL {
            results.push((from, to, b.op(ops::Cast { dtype: to }, &[x]).unwrap()));
        }
    }
    for r in &results {
        graph.add_output(r.2);
    }
    let expected = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
    let program = lowered(&graph, false).expect("casts have a printer");
    let got = run(&program, &inputs, &[], Engine::Device).expect("no data error");
    let mut wrong = Vec::new();
    for (o, (from, to, _)) in results.iter().enumerate() {
        let (g, e) = (got[o].as_ref().unwrap(), &expected[o]);
        let input = inputs[DType::ALL.iter().position(|d| d == from).unwrap()].to_f64();
        let (gf, ef) = (g.to_f64(), e.to_f64());
        for i in 0..gf.len() {
            let same = match (g.ints(), e.ints()) {
                (Some(g), Some(e)) => g[i] == e[i],
                _ => {
                    gf[i] == ef[i] && gf[i].is_sign_negative() == ef[i].is_sign_negative()
                        || gf[i].is_nan() && ef[i].is_nan()
                }
            };
            if !same {
                wrong.push(format!(
                    "{from} to {to}: {} gives {} and not {}",
                    input[i], gf[i], ef[i]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

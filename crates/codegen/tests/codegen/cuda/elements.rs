//! Every primitive and every cast, element by element.

use super::lowered;
use crate::device;
use crate::run::{Engine, run};
use kiln_base::DType;
use kiln_codegen::{Options, lower};
use kiln_ir::eval::{Array, Data, Mode, evaluate};
use kiln_ir::fuzz::{Rng, bits, extremes, float8_casts};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Pw, Role, Value, ops};

/// The number of elements of an input: not a multiple of the vector width.
const SIZE: usize = 61;

/// Returns small numbers of both signs, and special floats among them.
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
    round(dtype, shape, data)
}

/// Returns an array of numbers rounded to a dtype.
fn round(dtype: DType, shape: &[usize], data: Data) -> Array {
    let array = Array::new(dtype, shape, data).unwrap();
    Array::from_bytes(dtype, shape, &array.to_bytes()).unwrap()
}

/// Returns a graph with every pointwise op that takes a dtype, each with its own inputs.
pub fn every_row(dtype: DType) -> (Graph, Vec<Array>, Vec<Pw>) {
    let mut rng = Rng::new(1);
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let (mut inputs, mut results) = (Vec::new(), Vec::new());
    let rows: Vec<Pw> = (Pw::ALL.iter().copied())
        .filter(|r| r.takes(dtype))
        .collect();
    for row in &rows {
        let operands: Vec<Value> = (0..row.row().arity)
            .map(|i| {
                let mask = *row == Pw::Select && i == 0;
                let dtype = if mask { DType::Bool } else { dtype };
                let mut x = values(dtype, &[SIZE], &mut rng);
                if let (1, Some(ints)) = (i, x.ints()) {
                    let nonzero = ints.iter().map(|x| if *x == 0 { 3 } else { *x });
                    x = round(dtype, &[SIZE], Data::Int(nonzero.collect()));
                }
                inputs.push(x);
                b.input(Fact::new(dtype, [SIZE]), Role::Data)
            })
            .collect();
        results.push(b.op(ops::Pointwise(*row), &operands).unwrap());
    }
    results.into_iter().for_each(|r| graph.add_output(r));
    (graph, inputs, rows)
}

/// Every pointwise op, at every dtype: integers are exact, and errors of floats exceed those of the Kernel IR
/// interpreter by at most a few units in the last place.
#[test]
fn every_primitive() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut wrong = Vec::new();
    for dtype in DType::ALL {
        let (graph, inputs, rows) = every_row(dtype);
        let exact = evaluate(&graph, &inputs, &[], Mode::Exact).unwrap();
        let rounded = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
        let program = lowered(&graph, false).expect("pointwise kernels have a printer");
        let got = run(&program, &inputs, &[], Engine::Device).expect("no data error");
        let unfused = Options {
            fuse: false,
            ..Options::default()
        };
        let cpu = lower(&graph, &unfused).unwrap();
        let points = run(&cpu, &inputs, &[], Engine::Points).unwrap();
        for (o, row) in rows.iter().enumerate() {
            let got = got[o].as_ref().unwrap();
            let [g, p, r, e] =
                [got, points[o].as_ref().unwrap(), &rounded[o], &exact[o]].map(Array::to_f64);
            let differs = |i: &usize| {
                let (g, p, r, e) = (g[*i], p[*i], r[*i], e[*i]);
                let same = |w: f64| g == w || g.is_nan() && w.is_nan();
                if same(p) || same(r) || same(e) {
                    return false;
                }
                let rounding = (r - e).abs().max((p - e).abs());
                // The error of a difference is relative to its terms.
                let limit = 4.0 * rounding + units(dtype) * e.abs().max(0.1);
                !got.dtype().is_float() || (g - e).is_nan() || (g - e).abs() > limit
            };
            if let Some(i) = (0..SIZE).find(differs) {
                let (name, g, r, e) = (row.name(), g[i], r[i], e[i]);
                wrong.push(format!("{name} of {dtype}: {g} and not {r} (exactly {e})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Maxima, minima and clamps have the reference's signs of zeros. NVRTC makes `min.f32`, for which −0 is less than 0,
/// of an `fmin` with a constant 0 in front.
#[test]
fn signs_of_zeros() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let (graph, inputs, rows) = extremes(dtype);
        let expected = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
        let cpu = lower(&graph, &Options::default()).unwrap();
        let mut programs = vec![(&cpu, Engine::Points), (&cpu, Engine::Tiles)];
        let gpu = lowered(&graph, true).expect("pointwise kernels have a printer");
        if device::nvrtc().is_some() {
            programs.push((&gpu, Engine::Device));
        }
        for (program, engine) in programs {
            let got = run(program, &inputs, &[], engine).expect("no data error");
            for (o, (got, want)) in got.iter().flatten().zip(&expected).enumerate() {
                if (engine, rows[o]) != (Engine::Device, Pw::Fmin) {
                    let label = format!("result {o}, {:?} of {dtype}, by {engine:?}", rows[o]);
                    assert_eq!(bits(got), bits(want), "{label}");
                }
            }
        }
    }
}

/// Returns a few units in the last place.
fn units(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 8.0 / 1024.0,
        DType::BF16 => 8.0 / 128.0,
        DType::F32 => 8.0 * f32::EPSILON as f64,
        _ => 32.0 * f64::EPSILON,
    }
}

/// Every cast, exactly.
#[test]
fn every_cast() {
    if device::nvrtc().is_none() {
        return;
    }
    #[rustfmt::skip]
    let floats = [
        0.0, -0.0, 0.3, -0.7, 1.5, 2.5, -2.5, 127.4, 128.6, 255.9, 256.0, -129.0, 32767.9, 65535.5, 65520.0,
        1e-8, 3.1e-5, 70000.0, 2147483520.0, 2147483648.0, -2147483648.0, -3e9, 4294967295.0, 5e9, 9.3e18,
        -9.3e18, 1.9e19, 1e30, 1e300, -1e39, 1.0 + 0.5 / 1024.0 + 1e-12, 1.0 + 0.5 / 128.0 + 1e-12, f64::NAN, f64::INFINITY, f64::NEG_INFINITY,
    ];
    #[rustfmt::skip]
    let ints = [
        0, 1, -1, 2, 127, 128, 255, 256, -128, -129, 32767, 32768, 65535, 65536, 2049, 4097, 257, 16777217,
        i32::MAX as i64, i32::MIN as i64, u32::MAX as i64, 1 << 33, (1 << 53) + 1, i64::MAX, i64::MIN,
        (1 << 25) + (1 << 17) + 1,
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
        inputs.push(round(from, &[n], data));
        let x = b.input(Fact::new(from, [n]), Role::Data);
        for to in DType::ALL {
            results.push((from, to, b.op(ops::Cast::to(to), &[x]).unwrap()));
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

/// Casts between 8-bit floats and f32.
#[test]
fn floats_of_8_bits() {
    if device::nvrtc().is_none() {
        return;
    }
    for dtype in DType::ALL.into_iter().filter(|d| d.float8().is_some()) {
        let (graph, inputs, results) = float8_casts(dtype);
        let program = lowered(&graph, false).expect("casts have a printer");
        let got = run(&program, &inputs, &[], Engine::Device).expect("no data error");
        for (got, want) in got.into_iter().map(Option::unwrap).zip(&results) {
            assert!(bits(&got) == bits(want), "{dtype}");
        }
    }
}

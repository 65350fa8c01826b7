//! Every primitive on every type, conversions, and random numbers.

use super::build::*;
use super::oracle::{self, check};
use kiln_base::prim::{Binary, RandomKind, Unary};
use kiln_base::{Compute, DType};
use kiln_plan::tile::*;
use kiln_runtime::Buffer;

const SIZES: [i64; 9] = [0, 1, 3, 7, 64, 511, 512, 513, 1000];
const PLAIN: [DType; 5] = [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool];

/// `n` values of a dtype, the awkward ones first.
fn values(dtype: DType, n: i64, seed: u64) -> Buffer {
    let mut r = Random(seed * 77 + 12345);
    let n = n as usize;
    let rotate = seed as usize % 5;
    macro_rules! make {
        ($t:ty, $special:expr, $random:expr) => {{
            let special: Vec<$t> = $special;
            let data: Vec<$t> = (0..n)
                .map(|i| {
                    if i % 3 == 0 {
                        special[(i / 3 + i / 60 + rotate) % special.len()]
                    } else {
                        $random(&mut r)
                    }
                })
                .collect();
            Buffer::from_slice(&data, &[n as i64]).unwrap()
        }};
    }
    match dtype {
        DType::F32 => make!(
            f32,
            vec![
                0.0,
                -0.0,
                f32::NAN,
                f32::INFINITY,
                f32::NEG_INFINITY,
                1.0,
                -1.0,
                0.5,
                2.5,
                -3.5,
                f32::MAX,
                f32::MIN,
                1e-40,
                1e6,
                -1e30,
                88.0,
                -104.0
            ],
            |r: &mut Random| (r.float() * 10.0) as f32
        ),
        DType::F64 => make!(
            f64,
            vec![
                0.0,
                -0.0,
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                1.0,
                -1.0,
                0.5,
                2.5,
                -3.5,
                f64::MAX,
                f64::MIN,
                1e-310,
                1e6,
                -1e30,
                700.0,
                -745.0
            ],
            |r: &mut Random| r.float() * 10.0
        ),
        DType::I32 => make!(
            i32,
            vec![
                0,
                1,
                -1,
                2,
                -2,
                7,
                i32::MIN,
                i32::MAX,
                31,
                32,
                33,
                63,
                64,
                -40
            ],
            |r: &mut Random| (r.next() as i32) >> (r.below(32) as i32)
        ),
        DType::I64 => make!(
            i64,
            vec![
                0,
                1,
                -1,
                2,
                -2,
                7,
                i64::MIN,
                i64::MAX,
                31,
                32,
                33,
                63,
                64,
                -40
            ],
            |r: &mut Random| (r.next() as i64) >> (r.below(64) as i64)
        ),
        _ => make!(bool, vec![true, false], |r: &mut Random| r.below(2) == 1),
    }
}

fn ints_have(op: Unary) -> bool {
    use Unary::*;
    matches!(
        op,
        Neg | Abs | Not | Floor | Ceil | Round | Trunc | IsNan | IsInf
    )
}

fn masks_have(op: Binary) -> bool {
    use Binary::*;
    matches!(op, And | Or | Xor | Eq | Ne | Max | Min)
}

fn tolerance(dtype: DType, expensive: bool) -> f64 {
    match (dtype, expensive) {
        (DType::F32, true) => 4.0 * f32::EPSILON as f64,
        (DType::F64, true) => 4.0 * f64::EPSILON,
        _ => 0.0,
    }
}

#[test]
fn every_unary_primitive_on_every_type() {
    for dtype in PLAIN {
        for op in Unary::ALL {
            let exists = match dtype {
                DType::F32 | DType::F64 => true,
                DType::Bool => *op == Unary::Not,
                _ => ints_have(*op),
            };
            if !exists {
                continue;
            }
            for n in SIZES {
                let mut p = Program::lanes(&[n]);
                let x = p.input(dtype);
                let y = p.unary(*op, x);
                let to = if op.gives_mask() { DType::Bool } else { dtype };
                p.output(to, y);
                // Single-precision division and square root round twice in 1 / sqrt x.
                let expensive = op.is_expensive() || *op == Unary::Rsqrt;
                check(
                    &p.0,
                    &[values(dtype, n, 1)],
                    &[n],
                    tolerance(dtype, expensive),
                );
            }
        }
    }
}

#[test]
fn every_binary_primitive_on_every_type() {
    for dtype in PLAIN {
        for op in Binary::ALL {
            if dtype == DType::Bool && !masks_have(*op) {
                continue;
            }
            for n in SIZES {
                let mut p = Program::lanes(&[n]);
                let (x, y) = (p.input(dtype), p.input(dtype));
                let y = if op.divides() && dtype.is_int() {
                    // Divisors of 0 become 3: 0 is a data error, tested elsewhere.
                    let three = p.constant(p.ty(y), 3i64);
                    let zero = p.constant(p.ty(y), 0i64);
                    let mask = p.binary(Binary::Eq, y, zero);
                    let dst = p.reg(p.ty(y));
                    p.push(Inst::Select {
                        dst,
                        mask,
                        a: three,
                        b: y,
                    });
                    dst
                } else {
                    y
                };
                let z = p.binary(*op, x, y);
                let to = if op.gives_mask() { DType::Bool } else { dtype };
                p.output(to, z);
                let expensive = dtype.is_float()
                    && matches!(
                        op,
                        Binary::Pow
                            | Binary::Atan2
                            | Binary::FloorMod
                            | Binary::Hypot
                            | Binary::Zeta
                    );
                let (a, b) = (values(dtype, n, 1), values(dtype, n, 3));
                check(&p.0, &[a, b], &[n], tolerance(dtype, expensive));
            }
        }
    }
}

/// At every level, `Max` and `Min` return the first of equal operands, and NaN; also beside constants, for which other
/// instructions are emitted.
#[test]
fn extremes_return_the_first_of_equal_operands() {
    let numbers = [-0.0, 0.0, -1.0, 1.0, f64::INFINITY, f64::NAN];
    for dtype in [DType::F32, DType::F64] {
        let mut p = Program::lanes(&[36]);
        let (x, y) = (p.input(dtype), p.input(dtype));
        let mut operands = vec![(x, None, y, None)];
        for n in numbers {
            let constant = p.constant(p.ty(x), n);
            operands.extend([(x, None, constant, Some(n)), (constant, Some(n), y, None)]);
        }
        let ops = [Binary::Max, Binary::Min];
        for op in ops {
            for (a, _, b, _) in &operands {
                let z = p.binary(op, *a, *b);
                p.output(dtype, z);
            }
        }
        let pairs: Vec<(f64, f64)> = numbers
            .iter()
            .flat_map(|x| numbers.map(|y| (*x, y)))
            .collect();
        let [a, b] = [|p: &(f64, f64)| p.0, |p: &(f64, f64)| p.1]
            .map(|of| pairs.iter().map(of).collect::<Vec<_>>());
        let mut args = vec![(dtype, 36, false); 2];
        args.resize(2 + 2 * operands.len(), (dtype, 36, true));
        let plan = plan_of(kiln_plan::Kernel::Tile(p.0), &args);
        for (level, outputs) in run(&plan, &[buffer(dtype, &a), buffer(dtype, &b)])
            .into_iter()
            .enumerate()
        {
            let outputs = outputs.unwrap();
            let mut outputs = outputs.iter();
            for op in ops {
                for (_, first, _, second) in &operands {
                    let got = dtype.floats(outputs.next().unwrap().bytes().unwrap());
                    for (g, (x, y)) in got.into_iter().zip(&pairs) {
                        let (x, y) = (first.unwrap_or(*x), second.unwrap_or(*y));
                        let beaten = if op == Binary::Max { y > x } else { y < x };
                        let want = if beaten || y.is_nan() { y } else { x };
                        let same = g.to_bits() == want.to_bits() || g.is_nan() && want.is_nan();
                        assert!(
                            same,
                            "{op:?} of {x:?} and {y:?} in {dtype} at level {level}: {g:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_conversion() {
    for from in DType::ALL {
        for to in DType::ALL {
            let n = 517;
            let mut data: Vec<f64> = vec![
                0.0, -0.0, 1.0, -1.0, 2.5, 127.5, 128.0, 255.9, 256.0, -129.0, 32767.6, 65535.0,
                65536.0, 70000.0, 1e9, 2.2e9, 4.3e9, -2.2e9, 1e19, -1e19, 2e19,
            ];
            if from.is_float() {
                data.extend([
                    f64::NAN,
                    f64::INFINITY,
                    f64::NEG_INFINITY,
                    1e-8,
                    6e-8,
                    1e-41,
                ]);
            }
            let mut r = Random(5);
            data.resize_with(n as usize, || r.float() * 300.0);
            let mut p = Program::lanes(&[n]);
            let x = p.input(from);
            let y = p.convert(x, from, to);
            p.output(to, y);
            check(&p.0, &[buffer(from, &data)], &[n], 0.0);
        }
    }
}

#[test]
fn stores_convert_registers_of_another_type() {
    for (from, to) in [
        (DType::F32, DType::I8),
        (DType::I64, DType::F16),
        (DType::F64, DType::Bool),
    ] {
        let mut p = Program::lanes(&[70]);
        let x = p.input(from);
        p.output(to, x);
        let data: Vec<f64> = (0..70).map(|i| i as f64 * 7.0 - 200.0).collect();
        check(&p.0, &[buffer(from, &data)], &[70], 0.0);
    }
}

#[test]
fn select_and_reused_registers() {
    for dtype in [DType::F32, DType::F64] {
        let n = 700;
        let mut p = Program::lanes(&[n]);
        let (a, b, c) = (p.input(dtype), p.input(dtype), p.input(dtype));
        let s = p.binary(Binary::Mul, a, b);
        // The same register as operand and result, several times.
        p.push(Inst::Unary {
            op: Unary::Neg,
            dst: s,
            a: s,
        });
        p.push(Inst::Binary {
            op: Binary::Add,
            dst: s,
            a: s,
            b: s,
            site: 0,
        });
        let mask = p.binary(Binary::Lt, s, c);
        p.push(Inst::Select {
            dst: s,
            mask,
            a: s,
            b,
        });
        p.output(dtype, s);
        let mut r = Random(3);
        let mut data = || {
            buffer(
                dtype,
                &(0..n)
                    .map(|_| (r.float() * 8.0).round())
                    .collect::<Vec<_>>(),
            )
        };
        let inputs = [data(), data(), data()];
        check(&p.0, &inputs, &[n], 1e-5);
    }
}

#[test]
fn random_numbers_are_the_defined_ones() {
    let kinds = [
        (RandomKind::Bits, Compute::I64, DType::I64),
        (RandomKind::Uniform, Compute::F32, DType::F32),
        (RandomKind::Uniform, Compute::F64, DType::F64),
        (RandomKind::Normal, Compute::F32, DType::F32),
        (RandomKind::Normal, Compute::F64, DType::F64),
    ];
    for (kind, ty, dtype) in kinds {
        let n = 1301;
        let mut p = Program::lanes(&[n]);
        let key = p.arg(DType::I64, false);
        let (a, b) = (p.access(key, 0, &[0]), p.access(key, 1, &[0]));
        let (seed, offset) = (p.load(a), p.load(b));
        let index = p.reg(Compute::I64);
        p.push(Inst::Index {
            dst: index,
            offset: 5i64.into(),
            strides: vec![3i64.into()],
        });
        let dst = p.reg(ty);
        p.push(Inst::Random {
            dst,
            kind,
            seed,
            offset,
            index,
        });
        p.output(dtype, dst);
        let key = Buffer::from_slice(&[-7i64, i64::MAX - 100], &[2]).unwrap();
        // A normal f32 is computed by functions of f32.
        let tolerance = match (kind, ty) {
            (RandomKind::Normal, Compute::F32) => 1e-6,
            _ => 0.0,
        };
        check(&p.0, &[key], &[n], tolerance);
    }
}

#[test]
fn division_by_zero_reports_the_first_place() {
    for dtype in [DType::I32, DType::I64] {
        for op in [Binary::Div, Binary::FloorDiv, Binary::Rem, Binary::FloorMod] {
            let n = 40_000;
            let mut p = Program::lanes(&[n]);
            let (x, y) = (p.input(dtype), p.input(dtype));
            let z = p.binary(op, x, y);
            p.output(dtype, z);
            let a: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let b: Vec<f64> = (0..n)
                .map(|i| if i % 9000 == 8001 { 0.0 } else { 2.0 })
                .collect();
            let args = [(dtype, n, false), (dtype, n, false), (dtype, n, true)];
            let plan = plan_of(kiln_plan::Kernel::Tile(p.0), &args);
            for result in run(&plan, &[buffer(dtype, &a), buffer(dtype, &b)]) {
                match result {
                    Err(kiln_runtime::Error::Data {
                        site: 0,
                        op,
                        node: 10,
                        index: 8001,
                        bound: 0,
                        ..
                    }) => {
                        assert_eq!(op, "op0");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn the_oracle_agrees_with_the_scalar_definitions() {
    let x = oracle::Value::F(-2.5);
    assert_eq!(
        oracle::unary(Unary::Round, Compute::F32, x),
        oracle::Value::F(-2.0)
    );
}

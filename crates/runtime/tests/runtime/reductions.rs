//! Reductions and row slots under both schedules.

use super::build::*;
use super::oracle::check;
use kiln_base::prim::{Binary, Reduction, Unary};
use kiln_base::{Compute, DType};
use kiln_plan::Kernel;
use kiln_plan::tile::*;
use kiln_runtime::Buffer;

const BOTH: [Schedule; 2] = [Schedule::Lanes, Schedule::Rows];

fn data(dtype: DType, n: i64) -> Buffer {
    let mut r = Random(n as u64 + 99);
    buffer(
        dtype,
        &(0..n)
            .map(|_| (r.float() * 9.0).round())
            .collect::<Vec<_>>(),
    )
}

fn store_rows(p: &mut Program, dtype: DType, r: Reg) {
    let out = p.arg(dtype, true);
    let mut strides = p.dense();
    let inner: i64 =
        p.0.inner
            .iter()
            .map(|d| d.as_const().unwrap().max(1))
            .product();
    for (i, s) in strides.iter_mut().enumerate() {
        *s = if i < p.0.axes.len() { *s / inner } else { 0 };
    }
    let access = p.access(out, 0, &strides);
    p.store(access, r);
}

#[test]
fn every_reduction_on_every_type() {
    for schedule in BOTH {
        for (axes, inner) in [
            (vec![5], vec![700]),
            (vec![3, 200], vec![5]),
            (vec![600], vec![2, 3]),
            (vec![1], vec![1]),
            (vec![4], vec![0]),
            (vec![0], vec![4]),
            (vec![], vec![513]),
            (vec![2], vec![2, 300]),
        ] {
            for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool] {
                for op in Reduction::ALL {
                    if dtype == DType::Bool && *op == Reduction::Sum {
                        continue;
                    }
                    let mut p = Program::new(schedule, &axes, &inner);
                    p.stage(true);
                    let x = p.input(dtype);
                    let s = p.reduce(*op, x);
                    p.stage(false);
                    store_rows(&mut p, dtype, s);
                    let rows: i64 = axes.iter().product();
                    let n = rows * inner.iter().product::<i64>();
                    let tolerance = if *op == Reduction::Prod { 1e-4 } else { 0.0 };
                    let x = if *op == Reduction::Prod && dtype.is_float() {
                        buffer(
                            dtype,
                            &(0..n)
                                .map(|i| 1.0 + (i % 9 - 4) as f64 * 0.01)
                                .collect::<Vec<_>>(),
                        )
                    } else {
                        data(dtype, n)
                    };
                    check(&p.0, &[x], &[rows], tolerance);
                }
            }
        }
    }
}

#[test]
fn extrema_and_their_indices_prefer_nan_and_the_first() {
    let (rows, cols) = (9, 1100);
    for schedule in BOTH {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool] {
            for op in [Reduction::Max, Reduction::Min] {
                let mut p = Program::new(schedule, &[rows], &[cols]);
                p.stage(true);
                let x = p.input(dtype);
                let m = p.reduce(op, x);
                let i = p.reg(Compute::I64);
                p.push(Inst::ArgReduce { op, acc: i, a: x });
                p.stage(false);
                store_rows(&mut p, dtype, m);
                store_rows(&mut p, DType::I64, i);
                let mut r = Random(4);
                let mut x: Vec<f64> = (0..rows * cols)
                    .map(|_| r.below(40) as f64 - 20.0)
                    .collect();
                if dtype.is_float() {
                    x[cols as usize * 2 + 700] = f64::NAN;
                    x[cols as usize * 2 + 900] = f64::NAN;
                    x[cols as usize * 3..cols as usize * 4].fill(f64::NEG_INFINITY);
                    x[cols as usize * 4..cols as usize * 5].fill(f64::INFINITY);
                    x[cols as usize * 5] = f64::NAN;
                }
                check(&p.0, &[buffer(dtype, &x)], &[rows, rows], 0.0);
            }
        }
    }
}

/// The rows minus their sums, and the sums of columns over `serial` rows at a time.
pub fn rows_and_columns(dtype: DType, parts: i64, serial: i64, columns: i64) -> Program {
    let mut p = Program::new(Schedule::Rows, &[parts, serial], &[columns]);
    p.0.serial = 1;
    let ty = dtype.compute();
    p.0.slots.push(ty);
    let zero = p.constant(ty, 0i64);
    let arg = p.arg(dtype, false);
    let read = p.access(arg, 0, &p.dense());
    let turn = |p: &mut Program, serial_points: SerialPoints| {
        p.stage(true);
        p.0.stages.last_mut().unwrap().serial_points = serial_points;
    };
    turn(&mut p, SerialPoints::First);
    p.push(Inst::Keep { slot: 0, src: zero });
    p.stage(true);
    let x = p.load(read);
    let sum = p.reduce(Reduction::Sum, x);
    p.stage(true);
    let x = p.load(read);
    let y = p.binary(Binary::Sub, x, sum);
    p.output(dtype, y);
    let before = p.reg(ty);
    p.push(Inst::Kept {
        dst: before,
        slot: 0,
    });
    let both = p.binary(Binary::Add, before, x);
    p.push(Inst::Keep { slot: 0, src: both });
    turn(&mut p, SerialPoints::Last);
    let all = p.reg(ty);
    p.push(Inst::Kept { dst: all, slot: 0 });
    let out = p.arg(dtype, true);
    let access = p.access(out, 0, &[columns, 0, 1]);
    p.store(access, all);
    p
}

#[test]
fn rows_and_columns_in_one_kernel() {
    for dtype in [DType::F32, DType::F64, DType::I32, DType::I64] {
        for (parts, serial, columns) in [
            (1, 1, 1),
            (1, 3, 5),
            (7, 1, 130),
            (37, 13, 600), // all threads
            (5, 31, 1025),
            (0, 3, 4),
            (3, 2, 0),
        ] {
            let p = rows_and_columns(dtype, parts, serial, columns);
            let points = parts * serial * columns;
            check(
                &p.0,
                &[data(dtype, points)],
                &[points, parts * columns],
                0.0,
            );
        }
    }
}

/// Softmax over the last axis, with the exponentials kept between stages.
pub fn softmax(schedule: Schedule, rows: i64, cols: i64) -> Program {
    let mut p = Program::new(schedule, &[rows], &[cols]);
    p.0.slots.push(Compute::F32);
    p.stage(true);
    let arg = p.arg(DType::F32, false);
    let access = p.access(arg, 0, &[cols, 1]);
    let x = p.load(access);
    let max = p.reduce(Reduction::Max, x);
    p.stage(true);
    let x = p.load(access);
    let d = p.binary(Binary::Sub, x, max);
    let e = p.unary(Unary::Exp, d);
    p.push(Inst::Keep { slot: 0, src: e });
    let sum = p.reduce(Reduction::Sum, e);
    p.stage(false);
    let r = p.unary(Unary::Recip, sum);
    p.stage(true);
    let e = p.reg(Compute::F32);
    p.push(Inst::Kept { dst: e, slot: 0 });
    let y = p.binary(Binary::Mul, e, r);
    p.output(DType::F32, y);
    p
}

#[test]
fn softmax_in_one_kernel() {
    for schedule in BOTH {
        for (rows, cols) in [(1, 1), (3, 513), (700, 5), (2, 2000), (0, 3), (3, 0)] {
            let p = softmax(schedule, rows, cols);
            check(&p.0, &[data(DType::F32, rows * cols)], &[rows * cols], 1e-5);
        }
    }
}

#[test]
fn slots_written_late_and_read_in_place() {
    for schedule in BOTH {
        let (rows, cols) = (4, 777);
        let mut p = Program::new(schedule, &[rows], &[cols]);
        p.0.slots.extend([Compute::F64, Compute::F64]);
        p.stage(true);
        let x = p.input(DType::F64);
        let two = p.constant(Compute::F64, 2.0);
        let y = p.binary(Binary::Mul, x, two);
        p.push(Inst::Keep { slot: 0, src: x });
        p.push(Inst::Keep { slot: 1, src: y });
        p.stage(true);
        let (a, b) = (p.reg(Compute::F64), p.reg(Compute::F64));
        p.push(Inst::Kept { dst: a, slot: 0 });
        p.push(Inst::Kept { dst: b, slot: 1 });
        // Swap the slots while both old values are still needed.
        let s = p.binary(Binary::Add, a, b);
        p.push(Inst::Keep { slot: 0, src: s });
        p.push(Inst::Keep { slot: 1, src: a });
        let d = p.binary(Binary::Sub, a, b);
        p.output(DType::F64, d);
        p.stage(true);
        let (a, b) = (p.reg(Compute::F64), p.reg(Compute::F64));
        p.push(Inst::Kept { dst: a, slot: 0 });
        p.push(Inst::Kept { dst: b, slot: 1 });
        let d = p.binary(Binary::Sub, a, b);
        p.output(DType::F64, d);
        let n = rows * cols;
        check(&p.0, &[data(DType::F64, n)], &[n, n], 0.0);
    }
}

#[test]
fn long_sums_are_accurate() {
    let n = 3_000_000i64;
    let x: Vec<f32> = (0..n).map(|i| 0.1 + (i % 7) as f32 * 0.01).collect();
    let want: f64 = x.iter().map(|x| *x as f64).sum();
    for schedule in BOTH {
        let mut p = Program::new(schedule, &[1], &[n]);
        p.stage(true);
        let r = p.input(DType::F32);
        let s = p.reduce(Reduction::Sum, r);
        p.stage(false);
        store_rows(&mut p, DType::F32, s);
        let plan = plan_of(
            Kernel::Tile(p.0),
            &[(DType::F32, n, false), (DType::F32, 1, true)],
        );
        for result in run(&plan, &[Buffer::from_slice(&x, &[n]).unwrap()]) {
            let got = result.unwrap()[0].to_vec::<f32>().unwrap()[0] as f64;
            assert!(
                (got - want).abs() / want < 1e-6,
                "{schedule:?}: {got} {want}"
            );
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let plan = plan_of(
        Kernel::Tile(softmax(Schedule::Rows, 500, 3000).0),
        &[
            (DType::F32, 1_500_000, false),
            (DType::F32, 1_500_000, true),
        ],
    );
    let mut r = Random(8);
    let x: Vec<f32> = (0..1_500_000).map(|_| r.float() as f32).collect();
    let x = Buffer::from_slice(&x, &[1_500_000]).unwrap();
    let exe = executable(&plan, levels()[levels().len() - 1]).unwrap();
    let pool = kiln_runtime::pool::Pool::global();
    let before = pool.threads();
    let results: Vec<_> = [1, 2, 5]
        .map(|threads| {
            pool.set_threads(threads);
            exe.run_shared(std::slice::from_ref(&x)).unwrap()[0]
                .bytes()
                .unwrap()
                .to_vec()
        })
        .into();
    pool.set_threads(before);
    assert!(results.iter().all(|r| *r == results[0]));
}

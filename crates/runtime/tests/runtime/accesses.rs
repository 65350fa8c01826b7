//! Accesses of programs to memory.

use super::build::*;
use super::oracle::check;
use kiln_base::prim::Binary;
use kiln_base::{Compute, DType, Scalar};
use kiln_plan::Kernel;
use kiln_plan::tile::*;
use kiln_runtime::{Buffer, Error};

fn counted(dtype: DType, n: i64) -> Buffer {
    buffer(
        dtype,
        &(0..n).map(|i| (i % 251 - 100) as f64).collect::<Vec<_>>(),
    )
}

#[test]
fn broadcast_strided_negative_and_offset_loads() {
    for dtype in [DType::F32, DType::F16, DType::I64, DType::Bool, DType::U8] {
        for (axes, strides, offset, len) in [
            (vec![5, 7, 9], vec![0, 1, 0], 0, 7),
            (vec![5, 7, 9], vec![1, 5, 35], 0, 315),
            (vec![30, 40], vec![-40, -1], 1199, 1200),
            (vec![30, 40], vec![40, -1], 39, 1200),
            (vec![700], vec![3], 2, 2200),
            (vec![1, 700, 1], vec![9, 1, 4], 1, 701),
            (vec![3, 600], vec![0, 1], 0, 600),
            (vec![3, 600], vec![1, 0], 0, 3),
            (vec![2, 3, 4, 5, 6], vec![360, 6, 18, 72, 1], 0, 720),
            (vec![4, 0, 3], vec![1, 1, 1], 0, 1),
            (vec![], vec![], 3, 5),
        ] {
            let mut p = Program::lanes(&axes);
            let arg = p.arg(dtype, false);
            let access = p.access(arg, offset, &strides);
            let x = p.load(access);
            p.output(dtype, x);
            check(&p.0, &[counted(dtype, len)], &[axes.iter().product()], 0.0);
        }
    }
}

#[test]
fn what_lies_across_rows_is_turned_over_in_blocks() {
    for dtype in [
        DType::F32,
        DType::F64,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::U8,
    ] {
        for [n, rows, columns] in [
            [1, 16, 8],
            [2, 16, 32],
            [1, 17, 33],
            [3, 40, 71],
            [2, 35, 12],
            [2, 15, 100],
            [1, 100, 7],
        ] {
            // The rows are two axes, as those of an image are.
            let upper = if rows % 5 == 0 { 5 } else { 1 };
            let lower = rows / upper;
            let mut p = Program::lanes(&[n, upper, lower, columns]);
            let (arg, bias) = (p.arg(dtype, false), p.arg(DType::I64, false));
            let turned = p.access(arg, 0, &[rows * columns, lower, 1, rows]);
            // Columns to the left are 0.
            let shifted = p.access(arg, -3 * rows, &[rows * columns, lower, 1, rows]);
            p.bound(shifted, -3, &[0, 0, 0, 1], columns);
            let along = p.access(bias, 0, &[0, 0, 0, 1]);
            let loads = [p.load(turned), p.load(shifted)];
            let numbers = loads.map(|x| p.convert(x, dtype, DType::I64));
            let index = p.reg(Compute::I64);
            p.push(Inst::Index {
                dst: index,
                offset: 5i64.into(),
                strides: [7i64, 1000, 10, 1].map(Into::into).to_vec(),
            });
            let along = p.load(along);
            let mut sum = p.binary(Binary::Add, index, along);
            for x in numbers {
                sum = p.binary(Binary::Add, sum, x);
            }
            p.output(DType::I64, sum);
            p.output(dtype, loads[0]);
            let points = n * rows * columns;
            let inputs = [counted(dtype, points), counted(DType::I64, columns)];
            check(&p.0, &inputs, &[points; 2], 0.0);
        }
    }
}

#[test]
fn a_splat_does_not_reuse_a_register_that_points_at_an_input() {
    // `x` is read in place, at its last use.
    let mut p = Program::lanes(&[600]);
    let x = p.input(DType::F32);
    let y = p.binary(Binary::Add, x, x);
    let arg = p.arg(DType::F32, false);
    let access = p.access(arg, 0, &[0]);
    let one = p.load(access);
    let y = p.binary(Binary::Mul, y, one);
    p.output(DType::F32, y);
    let inputs = [counted(DType::F32, 600), counted(DType::F32, 1)];
    check(&p.0, &inputs, &[600], 0.0);
}

#[test]
fn strided_and_predicated_stores() {
    let mut p = Program::lanes(&[13, 41]);
    let x = p.input(DType::F32);
    let out = p.arg(DType::BF16, true);
    let transposed = p.access(out, 0, &[1, 13]);
    p.store(transposed, x);
    let narrow = p.arg(DType::F32, true);
    let part = p.access(narrow, -5 * 41, &[41, 1]);
    p.bound(part, -5, &[1, 0], 3);
    p.store(part, x);
    check(&p.0, &[counted(DType::F32, 533)], &[533, 3 * 41], 0.0);
}

#[test]
fn predicated_loads_fill() {
    // A padded window in every direction, with steps and flips.
    for (step, flip) in [(1i64, 1i64), (2, 1), (3, -1), (1, -1)] {
        for dtype in [DType::F32, DType::I8, DType::F64] {
            let (h, w) = (9i64, 37i64);
            let (oh, ow) = (12i64, 47i64);
            let mut p = Program::lanes(&[oh, ow]);
            let arg = p.arg(dtype, false);
            let (dy, dx) = (step * flip, step * flip);
            let (y0, x0) = if flip < 0 { (h + 1, w + 2) } else { (-2, -3) };
            let access = p.access(arg, y0 * w + x0, &[dy * w, dx]);
            p.bound(access, y0, &[dy, 0], h);
            p.bound(access, x0, &[0, dx], w);
            p.0.accesses[access as usize].fill = Scalar::Float(-3.0);
            let x = p.load(access);
            p.output(dtype, x);
            check(&p.0, &[counted(dtype, h * w)], &[oh * ow], 0.0);
        }
    }
}

#[test]
fn limits_that_bind_several_axes() {
    // A window of 3 over a padded line: the limit is on the sum of two axes.
    for schedule in [Schedule::Lanes, Schedule::Rows] {
        let mut p = Program::new(schedule, &[50], &[3]);
        p.stage(true);
        let arg = p.arg(DType::F32, false);
        let access = p.access(arg, -1, &[2, 1]);
        p.bound(access, -1, &[2, 1], 100);
        let x = p.load(access);
        let s = p.reduce(kiln_base::prim::Reduction::Sum, x);
        p.stage(false);
        let out = p.arg(DType::F32, true);
        let store = p.access(out, 0, &[1, 0]);
        p.store(store, s);
        check(&p.0, &[counted(DType::F32, 100)], &[50], 1e-6);
    }
}

#[test]
fn limits_that_do_not_keep_the_access_inside_are_made_to() {
    // The limit holds everywhere but the buffer is short: elements outside it are filled.
    let mut p = Program::lanes(&[100]);
    let arg = p.arg(DType::F32, false);
    let access = p.access(arg, 0, &[1]);
    p.bound(access, 0, &[1], 100);
    let x = p.load(access);
    p.output(DType::F32, x);
    let plan = plan_of(
        Kernel::Tile(p.0),
        &[(DType::F32, 60, false), (DType::F32, 100, true)],
    );
    for result in run(&plan, &[counted(DType::F32, 60)]) {
        let y = result.unwrap()[0].to_vec::<f32>().unwrap();
        assert_eq!(y[59], -41.0);
        assert!(y[60..].iter().all(|y| *y == 0.0));
    }
}

#[test]
fn accesses_outside_their_buffer_are_refused() {
    for (offset, stride, len) in [
        (0, 1, 99),
        (-1, 1, 200),
        (0, -1, 200),
        (0, i64::MAX / 4, 200),
        (1 << 40, 1, 200),
    ] {
        let mut p = Program::lanes(&[100]);
        let arg = p.arg(DType::F32, false);
        let access = p.access(arg, offset, &[stride]);
        let x = p.load(access);
        p.output(DType::F32, x);
        let plan = plan_of(
            Kernel::Tile(p.0),
            &[(DType::F32, len, false), (DType::F32, 100, true)],
        );
        for result in run(&plan, &[counted(DType::F32, len)]) {
            assert!(matches!(result, Err(Error::Plan(_))), "{result:?}");
        }
    }
}

fn gather(n: i64, d: i64, rows: i64, axes: &[i64]) -> Program {
    let mut p = Program::lanes(axes);
    p.0.sites = 1;
    let table = p.arg(DType::F32, false);
    let list = p.arg(DType::I64, false);
    let index = p.access(list, 0, &[1, 0]);
    let index = p.load(index);
    let access = p.access(table, 0, &[0, 1]);
    let dst = p.reg(Compute::F32);
    p.push(Inst::LoadAt {
        dst,
        access,
        dynamic: vec![Dynamic {
            index,
            stride: d.into(),
            extent: rows.into(),
            site: 0,
        }],
    });
    let one = p.constant(Compute::F32, 1.0);
    let y = p.binary(Binary::Add, dst, one);
    p.output(DType::F32, y);
    assert_eq!(axes, [n, d]);
    p
}

#[test]
fn gathers_read_rows_and_report_bad_indices() {
    let (n, d, rows) = (300, 7, 50);
    let p = gather(n, d, rows, &[n, d]);
    let list: Vec<f64> = (0..n).map(|i| (i * 17 % rows) as f64).collect();
    let table = counted(DType::F32, rows * d);
    check(
        &p.0,
        &[table.clone(), buffer(DType::I64, &list)],
        &[n * d],
        0.0,
    );

    let args = [
        (DType::F32, rows * d, false),
        (DType::I64, n, false),
        (DType::F32, n * d, true),
    ];
    let plan = plan_of(Kernel::Tile(p.0), &args);
    for bad in [-1.0, 50.0, 1e18, -1e18] {
        let mut list = list.clone();
        (list[255], list[299]) = (bad, -5.0);
        for result in run(&plan, &[table.clone(), buffer(DType::I64, &list)]) {
            match result {
                Err(Error::Data {
                    site: 0,
                    index,
                    bound: 50,
                    ..
                }) => assert_eq!(index as f64, bad),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn gathers_from_nothing_report_and_read_nothing() {
    let p = gather(4, 3, 0, &[4, 3]);
    let args = [
        (DType::F32, 0, false),
        (DType::I64, 4, false),
        (DType::F32, 12, true),
    ];
    let plan = plan_of(Kernel::Tile(p.0), &args);
    for result in run(
        &plan,
        &[counted(DType::F32, 0), buffer(DType::I64, &[0.0; 4])],
    ) {
        assert!(
            matches!(
                result,
                Err(Error::Data {
                    index: 0,
                    bound: 0,
                    ..
                })
            ),
            "{result:?}"
        );
    }
}

#[test]
fn large_results_bypass_the_cache_unharmed() {
    let n = 9_000_001;
    let mut p = Program::lanes(&[n]);
    let x = p.input(DType::F32);
    let y = p.binary(Binary::Add, x, x);
    p.output(DType::F32, y);
    p.output(DType::F32, x);
    let data: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
    let args = [
        (DType::F32, n, false),
        (DType::F32, n, true),
        (DType::F32, n, true),
    ];
    let plan = plan_of(Kernel::Tile(p.0), &args);
    for result in run(&plan, &[Buffer::from_slice(&data, &[n]).unwrap()]) {
        let out = result.unwrap();
        assert!(out[1].as_slice::<f32>().unwrap() == data);
        let y = out[0].as_slice::<f32>().unwrap();
        assert!(y.iter().zip(&data).all(|(y, x)| *y == 2.0 * x));
    }
}

//! Scans, sorts and scatters against plain loops.

use super::build::*;
use super::oracle::{Value, read};
use kiln_base::prim::{ScanKind, ScatterKind};
use kiln_base::{DType, Dim, round_float, wrap_int};
use kiln_plan::{ArgSort, Kernel, Plan, Scan, Scatter, Strided};
use kiln_runtime::{Buffer, Error};
use std::cmp::Ordering;

fn computing() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| d.computes())
}

/// Small integers, and for floats also special numbers.
fn data(dtype: DType, n: usize, r: &mut Random, special: bool) -> Buffer {
    let value = |r: &mut Random| match r.below(if special { 6 } else { u64::MAX }) {
        0 => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0][r.below(5) as usize],
        _ if dtype == DType::U8 => r.below(7) as f64,
        _ => r.below(13) as f64 - 6.0,
    };
    let values: Vec<f64> = (0..n).map(|_| value(r)).collect();
    if dtype.is_float() {
        return buffer(dtype, &values);
    }
    let finite: Vec<f64> = values
        .iter()
        .map(|x| x.clamp(-9.0, 9.0).max(-9.0))
        .collect();
    buffer(dtype, &finite)
}

/// Asserts that the plan gives the same result at every level and with every number of threads, bit for bit.
fn same_everywhere(plan: &Plan, inputs: &[Buffer]) -> Result<Vec<Value>, Error> {
    let pool = kiln_runtime::pool::Pool::global();
    let threads = pool.threads();
    let mut results = Vec::new();
    for n in [1, 2, 5] {
        pool.set_threads(n);
        results.push(run(plan, inputs));
    }
    pool.set_threads(threads);
    for level in 0..results[0].len() {
        for other in &results[1..] {
            match (&results[0][level], &other[level]) {
                (Ok(a), Ok(b)) => assert_eq!(a[0].bytes().unwrap(), b[0].bytes().unwrap()),
                (a, b) => assert_eq!(a.as_ref().err(), b.as_ref().err()),
            }
        }
    }
    results[0].swap_remove(0).map(|outputs| read(&outputs[0]))
}

fn same(a: f64, b: f64) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

// ---- scans ----

fn scan_plan(dtype: DType, kind: ScanKind, reverse: bool, dims: [i64; 3]) -> Plan {
    let [outer, len, inner] = dims.map(Dim::Const);
    let n = dims.iter().product();
    let scan = Scan {
        dtype,
        kind,
        reverse,
        outer,
        len,
        inner,
        x: 0,
        out: 1,
    };
    plan_of(Kernel::Scan(scan), &[(dtype, n, false), (dtype, n, true)])
}

fn combined(kind: ScanKind, dtype: DType, a: Value, b: Value) -> Value {
    match (a, b) {
        (Value::I(a), Value::I(b)) => Value::I(wrap_int(
            match kind {
                ScanKind::Sum => a.wrapping_add(b),
                ScanKind::Prod => a.wrapping_mul(b),
                ScanKind::Max => a.max(b),
                _ => a.min(b),
            },
            dtype,
        )),
        _ => {
            let (a, b) = (a.f(), b.f());
            let nan = a.is_nan() || b.is_nan();
            Value::F(match kind {
                ScanKind::Sum => a + b,
                ScanKind::Prod => a * b,
                _ if nan => f64::NAN,
                ScanKind::Max => a.max(b),
                ScanKind::Min => a.min(b),
                ScanKind::LogSumExp if a.max(b).is_infinite() => a.max(b),
                ScanKind::LogSumExp => a.max(b) + (a.min(b) - a.max(b)).exp().ln_1p(),
            })
        }
    }
}

fn check_scan(dtype: DType, kind: ScanKind, reverse: bool, dims: [i64; 3], special: bool) {
    let [outer, len, inner] = dims.map(|d| d as usize);
    let mut r = Random(len as u64 * 7 + 1);
    let mut x = data(dtype, outer * len * inner, &mut r, special);
    if kind == ScanKind::Prod && dtype.is_float() && !special {
        let signs: Vec<f64> = read(&x)
            .iter()
            .map(|v| if v.f() < 0.0 { -1.0 } else { 1.0 })
            .collect();
        x = buffer(dtype, &signs);
    }
    let plan = scan_plan(dtype, kind, reverse, dims);
    let got = same_everywhere(&plan, std::slice::from_ref(&x)).unwrap();
    let x = read(&x);
    for (o, j) in (0..outer).flat_map(|o| (0..inner).map(move |j| (o, j))) {
        let mut total: Option<Value> = None;
        for i in 0..len {
            let i = if reverse { len - 1 - i } else { i };
            let at = (o * len + i) * inner + j;
            let now = total.map_or(x[at], |t| combined(kind, dtype, t, x[at]));
            total = Some(now);
            let what = || format!("{kind:?} {dtype} {dims:?} {reverse} at {at}: {:?}", got[at]);
            match (now, got[at]) {
                (Value::I(a), Value::I(b)) => assert_eq!(a, b, "{}", what()),
                (a, b) if kind != ScanKind::LogSumExp => {
                    assert!(same(round_float(a.f(), dtype), b.f()), "{a:?} {}", what())
                }
                (a, b) => {
                    // Each step rounds once or twice, and the error of one does not grow in the next.
                    let eps = match dtype {
                        DType::F64 => f64::EPSILON,
                        _ => f32::EPSILON as f64,
                    };
                    let limit = 4.0 * eps * (i.max(len - i) + 1) as f64 * (a.f().abs() + 1.0);
                    let rounding = (round_float(a.f(), dtype) - a.f()).abs() * 2.0 + limit;
                    let near = (a.f() - b.f()).abs() <= rounding;
                    assert!(near || same(a.f(), b.f()), "{a:?} {}", what())
                }
            }
        }
    }
}

#[test]
fn scans_are_running_results() {
    for dtype in computing().filter(|d| *d != DType::Bool) {
        for &kind in ScanKind::ALL {
            if kind == ScanKind::LogSumExp && !dtype.is_float() {
                continue;
            }
            for (i, dims) in [
                [1, 1, 1],
                [3, 0, 2],
                [0, 5, 1],
                [2, 3, 0],
                [3, 1031, 1],
                [2, 5, 7],
                [300, 3, 2],
                [1, 2048, 1],
                [3, 17, 513],
            ]
            .into_iter()
            .enumerate()
            {
                check_scan(dtype, kind, i % 2 == 1, dims, false);
                // Where lanes are split, infinities of both signs meet in another order.
                if dims[1] < 1000 || matches!(kind, ScanKind::Max | ScanKind::Min) {
                    check_scan(dtype, kind, i % 2 == 0, dims, true);
                }
            }
        }
    }
}

#[test]
fn long_lanes_are_cut_and_still_run_on() {
    for dtype in [DType::F32, DType::I64, DType::I8, DType::BF16] {
        for &kind in ScanKind::ALL {
            if kind == ScanKind::LogSumExp && !dtype.is_float() {
                continue;
            }
            for reverse in [false, true] {
                check_scan(dtype, kind, reverse, [1, 200_003, 1], false);
            }
            check_scan(dtype, kind, false, [2, 30_011, 5], false);
            check_scan(dtype, kind, true, [1, 500, 600], false);
        }
    }
}

// ---- sorts ----

fn check_sort(dtype: DType, lanes: usize, len: usize, kept: usize, descending: bool) {
    let mut r = Random(len as u64 + 3);
    let x = match dtype {
        // Keys of all bits, where the lane is long.
        DType::I64 | DType::I32 if len > 1000 => {
            let bits: Vec<i64> = (0..lanes * len)
                .map(|_| wrap_int(r.next() as i64, dtype))
                .collect();
            let n = [bits.len() as i64];
            match dtype {
                DType::I64 => Buffer::from_slice(&bits, &n).unwrap(),
                _ => Buffer::from_slice(&bits.iter().map(|b| *b as i32).collect::<Vec<_>>(), &n)
                    .unwrap(),
            }
        }
        DType::F32 | DType::F64 if len > 1000 => {
            let values: Vec<f64> = (0..lanes * len).map(|_| r.float() * 1e3).collect();
            buffer(dtype, &values)
        }
        _ => data(dtype, lanes * len, &mut r, true),
    };
    let sort = ArgSort {
        dtype,
        descending,
        lanes: Dim::from(lanes),
        len: Dim::from(len),
        kept: Dim::from(kept),
        x: 0,
        out: 1,
    };
    let args = [
        (dtype, (lanes * len) as i64, false),
        (DType::I64, (lanes * kept) as i64, true),
    ];
    let plan = plan_of(Kernel::ArgSort(sort), &args);
    let got = same_everywhere(&plan, std::slice::from_ref(&x)).unwrap();
    let x = read(&x);
    for lane in 0..lanes {
        let x = &x[lane * len..][..len];
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_by(|a, b| {
            let ordering = match (x[*a], x[*b]) {
                (Value::I(a), Value::I(b)) => a.cmp(&b),
                (a, b) => {
                    let (a, b) = (a.f(), b.f());
                    a.partial_cmp(&b)
                        .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
                }
            };
            match descending {
                true => Ordering::reverse(ordering),
                false => ordering,
            }
        });
        let got: Vec<usize> = got[lane * kept..][..kept]
            .iter()
            .map(|i| i.i() as usize)
            .collect();
        assert!(
            got == order[..kept],
            "{dtype} {lanes} {len} {kept} {descending}"
        );
    }
}

#[test]
fn sorts_are_stable_and_nan_is_the_largest() {
    for dtype in computing() {
        for (lanes, len) in [
            (1, 0),
            (0, 5),
            (3, 1),
            (5, 2),
            (7, 31),
            (2, 511),
            (3, 513),
            (2, 3001),
        ] {
            for descending in [false, true] {
                for kept in [len, 0, len / 2, len.min(1), len.min(3)] {
                    check_sort(dtype, lanes, len, kept, descending);
                }
            }
        }
    }
}

#[test]
fn one_long_lane_is_sorted_by_many_threads() {
    for dtype in [DType::F32, DType::F64, DType::I64, DType::U8, DType::F16] {
        for kept in [140_001, 70_000, 1000, 7] {
            check_sort(dtype, 1, 140_001, kept, kept % 2 == 1);
        }
    }
}

// ---- scatters ----

/// A scatter with its operands; strides are those of contiguous operands where not given.
struct Case {
    dtype: DType,
    kind: ScatterKind,
    axis: usize,
    shape: Vec<i64>,
    index_shape: Vec<i64>,
    index: (i64, Vec<i64>),
    src: (i64, Vec<i64>),
}

fn dense(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for a in (1..shape.len()).rev() {
        strides[a - 1] = strides[a] * shape[a];
    }
    strides
}

/// The number of elements that an operand reaches.
fn reach((offset, strides): &(i64, Vec<i64>), shape: &[i64]) -> i64 {
    if shape.contains(&0) {
        return 0;
    }
    let steps = strides.iter().zip(shape).map(|(s, d)| (s * (d - 1)).max(0));
    offset + steps.sum::<i64>() + 1
}

impl Case {
    fn new(
        dtype: DType,
        kind: ScatterKind,
        axis: usize,
        shape: &[i64],
        index_shape: &[i64],
    ) -> Case {
        Case {
            dtype,
            kind,
            axis,
            shape: shape.to_vec(),
            index_shape: index_shape.to_vec(),
            index: (0, dense(index_shape)),
            src: (0, dense(index_shape)),
        }
    }

    fn plan(&self) -> Plan {
        let dims = |d: &[i64]| d.iter().map(|d| Dim::Const(*d)).collect::<Vec<_>>();
        let strided = |arg, x: &(i64, Vec<i64>)| Strided {
            arg,
            offset: x.0.into(),
            strides: dims(&x.1),
        };
        let n = self.shape.iter().product();
        let scatter = Scatter {
            dtype: self.dtype,
            kind: self.kind,
            axis: self.axis as u16,
            shape: dims(&self.shape),
            index_shape: dims(&self.index_shape),
            x: 0,
            index: strided(1, &self.index),
            src: strided(2, &self.src),
            out: 3,
        };
        plan_of(
            Kernel::Scatter(scatter),
            &[
                (self.dtype, n, false),
                (DType::I64, reach(&self.index, &self.index_shape), false),
                (self.dtype, reach(&self.src, &self.index_shape), false),
                (self.dtype, n, true),
            ],
        )
    }

    fn inputs(&self, special: bool) -> [Buffer; 3] {
        let mut r = Random(self.shape.len() as u64 + 11);
        let n: i64 = self.shape.iter().product();
        let bound = self.shape[self.axis] as u64;
        let count = reach(&self.index, &self.index_shape);
        let index: Vec<i64> = (0..count).map(|_| r.below(bound.max(1)) as i64).collect();
        let mut x = data(self.dtype, n as usize, &mut r, special);
        if self.kind == ScatterKind::Prod {
            let count = n as usize;
            x = buffer(self.dtype, &vec![1.0; count]);
        }
        let src = reach(&self.src, &self.index_shape) as usize;
        let src = match self.kind {
            ScatterKind::Prod => buffer(self.dtype, &vec![1.0; src]),
            _ => data(self.dtype, src, &mut r, special),
        };
        [x, Buffer::from_slice(&index, &[count]).unwrap(), src]
    }

    fn check(&self, special: bool) {
        let inputs = self.inputs(special);
        let got = same_everywhere(&self.plan(), &inputs).unwrap();
        let mut want = read(&inputs[0]);
        let (index, src) = (read(&inputs[1]), read(&inputs[2]));
        let mut steps = dense(&self.shape);
        let along = std::mem::take(&mut steps[self.axis]);
        let dims: Vec<Dim> = self.index_shape.iter().map(|d| Dim::Const(*d)).collect();
        for point in super::oracle::points(&dims) {
            let at = |offset: i64, strides: &[i64]| {
                let steps = strides.iter().zip(&point).map(|(s, i)| s * i);
                (offset + steps.sum::<i64>()) as usize
            };
            let to = at(0, &steps) + (index[at(self.index.0, &self.index.1)].i() * along) as usize;
            let new = src[at(self.src.0, &self.src.1)];
            let kind = match self.kind {
                ScatterKind::Set => {
                    want[to] = new;
                    continue;
                }
                ScatterKind::Sum => ScanKind::Sum,
                ScatterKind::Prod => ScanKind::Prod,
                ScatterKind::Max => ScanKind::Max,
                ScatterKind::Min => ScanKind::Min,
            };
            want[to] = match combined(kind, self.dtype, want[to], new) {
                Value::F(x) => Value::F(round_float(x, self.dtype)),
                int => int,
            };
        }
        for (at, (got, want)) in got.iter().zip(&want).enumerate() {
            let ok = match (got, want) {
                (Value::I(a), Value::I(b)) => a == b,
                (a, b) => same(a.f(), b.f()),
            };
            let Case {
                dtype,
                kind,
                axis,
                shape,
                ..
            } = self;
            assert!(
                ok,
                "{kind:?} {dtype} {shape:?} {axis} at {at}: {got:?}, not {want:?}"
            );
        }
    }
}

#[test]
fn scatters_combine_in_order_at_every_shape() {
    let cases: &[(usize, &[i64], &[i64])] = &[
        (0, &[7], &[0]),
        (0, &[1], &[5]),
        (0, &[9], &[100]),
        (0, &[5, 4], &[9, 4]),
        (0, &[5, 300], &[9, 300]),
        (1, &[6, 5], &[4, 11]),
        (1, &[3, 7, 4], &[3, 5, 2]),
        (1, &[2, 3, 2, 5, 3], &[2, 4, 1, 5, 2]),
        (2, &[3, 2, 4], &[2, 2, 9]),
        (1, &[3, 0, 4], &[3, 0, 4]),
        (1, &[4, 1], &[4, 3]),
    ];
    for dtype in DType::ALL {
        for &kind in ScatterKind::ALL {
            let adds = matches!(kind, ScatterKind::Sum | ScatterKind::Prod);
            let narrow = matches!(dtype, DType::Bool | DType::F16 | DType::BF16);
            if kind != ScatterKind::Set && (!dtype.computes() || adds && narrow) {
                continue;
            }
            for (axis, shape, index_shape) in cases {
                let case = Case::new(dtype, kind, *axis, shape, index_shape);
                case.check(false);
                case.check(kind != ScatterKind::Prod);
            }
        }
    }
}

#[test]
fn scatters_read_views_of_their_operands() {
    for kind in [ScatterKind::Set, ScatterKind::Sum] {
        // One index for each row, one number for all, operands in reverse and transposed.
        for (index, src) in [
            ((0, vec![1, 0]), (0, vec![6, 1])),
            ((2, vec![1, 0]), (1, vec![0, 0])),
            ((8, vec![-1, 0]), (9 * 6 - 1, vec![-6, -1])),
            ((0, vec![1, 9]), (0, vec![1, 9])),
            ((0, vec![0, 1]), (0, vec![0, 2])),
        ] {
            let mut case = Case::new(DType::F32, kind, 0, &[5, 6], &[9, 6]);
            (case.index, case.src) = (index, src);
            case.check(true);
        }
    }
}

#[test]
fn one_lane_is_shared_by_destination() {
    for (shape, index_shape) in [
        (&[5003i64][..], &[70_001i64][..]),
        (&[503, 30], &[70_001, 30]),
    ] {
        for kind in [ScatterKind::Set, ScatterKind::Sum, ScatterKind::Max] {
            let mut case = Case::new(DType::F32, kind, 0, shape, index_shape);
            case.check(false);
            if shape.len() == 2 {
                case.index.1 = vec![1, 0];
                case.check(false);
            }
        }
    }
}

#[test]
fn untouched_elements_keep_their_bits() {
    let case = Case::new(DType::F32, ScatterKind::Sum, 0, &[4], &[2]);
    let x = Buffer::from_slice(&[-0.0f32, -0.0, f32::from_bits(0x7fc0_1234), 1.0], &[4]).unwrap();
    let index = Buffer::from_slice(&[3i64, 0], &[2]).unwrap();
    let src = Buffer::from_slice(&[1.0f32, 2.0], &[2]).unwrap();
    for result in run(&case.plan(), &[x, index, src]) {
        let y = result.unwrap();
        let bits: Vec<u32> = y[0]
            .as_slice::<f32>()
            .unwrap()
            .iter()
            .map(|x| x.to_bits())
            .collect();
        assert_eq!(
            bits,
            [2f32.to_bits(), 0x8000_0000, 0x7fc0_1234, 2f32.to_bits()]
        );
    }
}

#[test]
fn indices_outside_the_axis_are_data_errors_that_name_the_first() {
    for (shape, index_shape) in [
        (&[50i64][..], &[70_001i64][..]),
        (&[50, 3], &[70_001, 3]),
        (&[50, 300], &[99, 300]),
    ] {
        let case = Case::new(DType::I32, ScatterKind::Sum, 0, shape, index_shape);
        let [x, index, src] = case.inputs(false);
        for wrong in [[50, -1], [i64::MIN, 50], [-1, i64::MAX]] {
            let mut indices = index.as_slice::<i64>().unwrap().to_vec();
            let last = indices.len() - 7;
            (indices[last], indices[1003]) = (wrong[1], wrong[0]);
            let index = Buffer::from_slice(&indices, &[indices.len() as i64]).unwrap();
            match same_everywhere(&case.plan(), &[x.clone(), index, src.clone()]) {
                Err(Error::Data { index, bound, .. }) => assert_eq!((index, bound), (wrong[0], 50)),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Plans for the tests of damage.
pub fn plans() -> Vec<Plan> {
    let sort = ArgSort {
        dtype: DType::F32,
        descending: false,
        lanes: 3i64.into(),
        len: 40i64.into(),
        kept: 7i64.into(),
        x: 0,
        out: 1,
    };
    vec![
        scan_plan(DType::F32, ScanKind::Sum, true, [3, 7, 5]),
        plan_of(
            Kernel::ArgSort(sort),
            &[(DType::F32, 120, false), (DType::I64, 21, true)],
        ),
        Case::new(DType::F32, ScatterKind::Sum, 1, &[3, 7, 4], &[3, 5, 2]).plan(),
    ]
}

//! What is printed computes the bits that the interpreter does.

use super::link::link_as;
use super::{Failures, bind, kernels, run::run_range};
use crate::printed::bugs::{names, seed};
use crate::simd::Level;
use kiln_base::prim::{Binary, Reduction, Unary};
use kiln_base::{Compute, DType, Scalar};
use kiln_plan::tile::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Random programs of each kind.
const SEEDS: u64 = 600;

const SIZES: [i64; 14] = [1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 511, 512, 513, 1000];
const TYPES: [Compute; 5] = [
    Compute::F32,
    Compute::F64,
    Compute::I32,
    Compute::I64,
    Compute::Mask,
];
const DTYPES: [DType; 13] = [
    DType::Bool,
    DType::U8,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// `n` elements of a dtype as bytes, many of them awkward.
fn elements(dtype: DType, n: usize, r: &mut Random) -> Vec<u8> {
    const FLOATS: [f64; 24] = [
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
        1e-40,
        -1e-310,
        1e30,
        -1e30,
        88.7,
        -104.2,
        2147483648.0,
        -2147483649.0,
        1e19,
        65504.0,
        65520.0,
        3e-8,
        255.5,
        -128.9,
    ];
    const INTS: [i64; 14] = [
        0,
        1,
        -1,
        2,
        7,
        31,
        32,
        33,
        64,
        -40,
        i64::MIN,
        i64::MAX,
        i32::MIN as i64,
        i32::MAX as i64,
    ];
    let mut bytes = vec![];
    for _ in 0..n {
        let float = match r.below(4) {
            0 => r.one_of(&FLOATS),
            1 => (r.next() as i32 as f64) * 1e-3,
            _ => (r.below(20001) as f64 - 10000.0) * 1e-3,
        };
        let int = match r.below(3) {
            0 => r.one_of(&INTS),
            1 => r.next() as i64 - (1 << 52),
            _ => r.below(200) as i64 - 100,
        };
        match dtype {
            DType::Bool => bytes.push((int & 1) as u8),
            DType::F32 => bytes.extend((float as f32).to_le_bytes()),
            DType::F64 => bytes.extend(float.to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f64(float).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f64(float).to_le_bytes()),
            _ => bytes.extend(&int.to_le_bytes()[..dtype.size()]),
        }
    }
    bytes
}

/// A program's arguments: their dtypes and lengths.
struct Case {
    program: TileProgram,
    lens: Vec<i64>,
}

/// Runs at a level.
fn run(case: &Case, level: Level, prints: bool, args: &[Vec<u8>]) -> (Vec<Vec<u8>>, usize) {
    let bound = bind(&case.program, &[], &case.lens).unwrap();
    let linked = link_as(&bound, level, prints).unwrap();
    // In words, so that every element is aligned.
    let mut memory: Vec<Vec<u64>> = args.iter().map(|a| vec![0; a.len() / 8 + 2]).collect();
    for (to, from) in memory.iter_mut().zip(args) {
        // SAFETY: there is room for the bytes.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_mut_ptr().cast(), from.len()) };
    }
    let pointers: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
    let failures = Failures::default();
    // SAFETY: each argument has the length it was bound with.
    unsafe { run_range(&linked, pointers.as_ptr(), (0, linked.points), &failures) };
    assert_eq!(failures.take().unwrap(), None);
    let bytes = |m: &Vec<u64>, len: usize| {
        // SAFETY: so many bytes are there.
        unsafe { std::slice::from_raw_parts(m.as_ptr().cast::<u8>(), len + 8) }.to_vec()
    };
    let results = memory.iter().zip(args).map(|(m, a)| bytes(m, a.len()));
    (results.collect(), linked.printed.len())
}

/// Whether elements are the same, whatever NaN.
fn same(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let nan = |x: &[u8]| match dtype {
        DType::F32 => f32::from_le_bytes(x.try_into().unwrap()).is_nan(),
        DType::F64 => f64::from_le_bytes(x.try_into().unwrap()).is_nan(),
        DType::F16 => half::f16::from_le_bytes(x.try_into().unwrap()).is_nan(),
        DType::BF16 => half::bf16::from_le_bytes(x.try_into().unwrap()).is_nan(),
        _ => false,
    };
    a == b || nan(a) && nan(b)
}

/// Compares printed and interpreted results at all levels; gives how many functions were printed.
fn compare(case: &Case, what: &str, r: &mut Random) -> usize {
    let args: Vec<Vec<u8>> = (case.program.args.iter().zip(&case.lens))
        .map(|(a, n)| elements(a.dtype, *n as usize, r))
        .collect();
    let mut printed = 0;
    for level in [Level::Avx2, Level::Avx512] {
        if !level.is_supported() {
            continue;
        }
        let (want, none) = run(case, level, false, &args);
        let (got, some) = run(case, level, true, &args);
        assert_eq!(none, 0);
        printed += some;
        for (i, arg) in case.program.args.iter().enumerate() {
            let size = arg.dtype.size();
            let whole = args[i].len();
            assert_eq!(
                got[i][whole..],
                want[i][whole..],
                "{what} at {level:?}: behind the end"
            );
            let pairs = got[i][..whole].chunks(size).zip(want[i].chunks(size));
            for (k, (got, want)) in pairs.enumerate() {
                assert!(
                    same(arg.dtype, got, want),
                    "{what} at {level:?}: argument {i} ({:?}), element {k} of {}: {got:?}, not {want:?}\n{:?} {:?}",
                    arg.dtype,
                    case.lens[i],
                    case.program.stages,
                    case.program.constants,
                );
            }
        }
    }
    printed
}

fn line(arg: u16, axes: usize) -> Access {
    let mut strides = vec![0i64.into(); axes];
    strides[axes - 1] = 1i64.into();
    Access {
        arg,
        offset: 0i64.into(),
        strides,
        bounds: vec![],
        fill: Scalar::Int(0),
    }
}

/// A program over `n` elements: it loads arguments of these dtypes into the first registers, runs the code, and
/// stores registers as dtypes.
fn pointwise(
    n: i64,
    loads: &[DType],
    registers: Vec<Compute>,
    code: Vec<Inst>,
    stores: &[(Reg, DType)],
) -> Case {
    let arg = |dtype: &DType, written| Arg {
        dtype: *dtype,
        written,
    };
    let mut args: Vec<Arg> = loads.iter().map(|d| arg(d, false)).collect();
    args.extend(stores.iter().map(|(_, d)| arg(d, true)));
    let load = |i: usize| Inst::Load {
        dst: Reg(i as u16),
        access: i as u16,
    };
    let mut all: Vec<Inst> = (0..loads.len()).map(load).collect();
    all.extend(code);
    all.extend(stores.iter().enumerate().map(|(i, (r, _))| Inst::Store {
        access: (loads.len() + i) as u16,
        src: *r,
    }));
    let lens = vec![n; args.len()];
    Case {
        program: TileProgram {
            name: "t".into(),
            axes: vec![n.into()],
            inner: vec![],
            serial: 0,
            schedule: Schedule::Lanes,
            cut: Cut::default(),
            accesses: (0..args.len() as u16).map(|a| line(a, 1)).collect(),
            args,
            registers,
            constants: vec![],
            slots: vec![],
            stages: vec![Stage {
                over_inner: false,
                turn: Turn::Every,
                code: all,
            }],
            sites: 1,
        },
        lens,
    }
}

fn plain(ty: Compute) -> DType {
    super::compute::plain_dtype(ty)
}

const R: [Reg; 5] = [Reg(0), Reg(1), Reg(2), Reg(3), Reg(4)];

#[test]
fn primitives_on_one_operand() {
    let mut r = Random(1);
    for op in Unary::ALL {
        for ty in TYPES {
            let Some(result) = kernels::unary_result(*op, ty) else {
                continue;
            };
            let code = vec![Inst::Unary {
                op: *op,
                dst: R[1],
                a: R[0],
            }];
            for n in SIZES {
                let stores = [(R[1], plain(result))];
                let case = pointwise(n, &[plain(ty)], vec![ty, result], code.clone(), &stores);
                compare(&case, &format!("{op:?} of {ty:?}"), &mut r);
            }
        }
    }
}

#[test]
fn primitives_on_two_operands() {
    let mut r = Random(2);
    for op in Binary::ALL {
        for ty in TYPES {
            let Some(result) = kernels::binary_result(*op, ty) else {
                continue;
            };
            if op.divides() && !ty.is_float() {
                continue;
            }
            let (dst, site) = (R[2], 0);
            let (a, b) = (R[0], R[1]);
            let op = *op;
            let code = vec![Inst::Binary {
                op,
                dst,
                a,
                b,
                site,
            }];
            for n in SIZES {
                let stores = [(R[2], plain(result))];
                let types = vec![ty, ty, result];
                let case = pointwise(n, &[plain(ty); 2], types, code.clone(), &stores);
                compare(&case, &format!("{op:?} of {ty:?}"), &mut r);
            }
        }
    }
}

#[test]
fn selections() {
    let mut r = Random(3);
    for ty in TYPES {
        for n in SIZES {
            let (dst, mask, a, b) = (R[3], R[0], R[1], R[2]);
            let code = vec![Inst::Select { dst, mask, a, b }];
            let types = vec![Compute::Mask, ty, ty, ty];
            let loads = [DType::Bool, plain(ty), plain(ty)];
            let case = pointwise(n, &loads, types, code, &[(R[3], plain(ty))]);
            assert_eq!(compare(&case, &format!("select of {ty:?}"), &mut r), 2);
        }
    }
}

#[test]
fn casts_and_memory_of_every_dtype() {
    let mut r = Random(4);
    for from in DTYPES {
        for to in DTYPES {
            for n in [1, 3, 8, 16, 31, 100, 513] {
                let types = vec![from.compute(), to.compute()];
                let (dst, a) = (R[1], R[0]);
                let code = vec![Inst::Convert { dst, a, from, to }];
                let case = pointwise(n, &[from], types.clone(), code, &[(R[1], to)]);
                compare(&case, &format!("{from:?} as {to:?}"), &mut r);
                // A store converts too.
                let case = pointwise(n, &[from], types, vec![], &[(R[0], to)]);
                compare(&case, &format!("{from:?} to {to:?}"), &mut r);
            }
        }
    }
}

/// A random program of `steps` instructions on the registers that there are; no data errors.
fn random_code(
    r: &mut Random,
    registers: &mut Vec<Compute>,
    first: usize,
    steps: usize,
) -> Vec<Inst> {
    let mut code = vec![];
    while code.len() < steps {
        let n = registers.len();
        let from = if r.below(3) == 0 {
            first
        } else {
            n.saturating_sub(8).max(first)
        };
        let a = Reg((from + r.below(n - from)) as u16);
        let ty = registers[usize::from(a.0)];
        let alike: Vec<Reg> = (first..n)
            .filter(|i| registers[*i] == ty)
            .map(|i| Reg(i as u16))
            .collect();
        let b = r.one_of(&alike);
        let dst = Reg(n as u16);
        let (inst, result) = match r.below(8) {
            0..=1 => {
                let op = r.one_of(Unary::ALL);
                let Some(result) = kernels::unary_result(op, ty) else {
                    continue;
                };
                (Inst::Unary { op, dst, a }, result)
            }
            2..=4 => {
                let op = r.one_of(Binary::ALL);
                let Some(result) = kernels::binary_result(op, ty) else {
                    continue;
                };
                if op.divides() && !ty.is_float() {
                    continue;
                }
                let site = 0;
                (
                    Inst::Binary {
                        op,
                        dst,
                        a,
                        b,
                        site,
                    },
                    result,
                )
            }
            5 => {
                let masks: Vec<Reg> = (first..n)
                    .filter(|i| registers[*i] == Compute::Mask)
                    .map(|i| Reg(i as u16))
                    .collect();
                if masks.is_empty() {
                    continue;
                }
                let mask = r.one_of(&masks);
                (Inst::Select { dst, mask, a, b }, ty)
            }
            _ => {
                let to = r.one_of(&DTYPES);
                let from = plain(ty);
                (Inst::Convert { dst, a, from, to }, to.compute())
            }
        };
        registers.push(result);
        code.push(inst);
    }
    code
}

/// A random program over elements.
fn elementwise(r: &mut Random) -> Case {
    let loads: Vec<DType> = (0..1 + r.below(4)).map(|_| r.one_of(&DTYPES)).collect();
    let mut registers: Vec<Compute> = loads.iter().map(|d| d.compute()).collect();
    let constants = r.below(4);
    let scalars = [0.0, 1.0, -2.5, 1e10, f64::NAN];
    let of_constants: Vec<(Reg, Scalar)> = (0..constants)
        .map(|i| {
            let value = Scalar::Float(r.one_of(&scalars));
            (Reg((loads.len() + i) as u16), value)
        })
        .collect();
    for _ in 0..constants {
        registers.push(r.one_of(&TYPES));
    }
    let steps = if r.below(10) == 0 {
        120
    } else {
        1 + r.below(20)
    };
    let code = random_code(r, &mut registers, 0, steps);
    let stores: Vec<(Reg, DType)> = (0..1 + r.below(3))
        .map(|i| {
            let last = registers.len() - 1 - i.min(registers.len() - 1);
            (Reg(last as u16), r.one_of(&DTYPES))
        })
        .collect();
    let n = r.one_of(&SIZES);
    let mut case = pointwise(n, &loads, registers, code, &stores);
    case.program.constants = of_constants;
    case.program.cut.stream = [None, Some(true)][r.below(2)];
    case
}

#[test]
fn random_programs() {
    let mut printed = 0;
    for seed in 0..SEEDS {
        let mut r = Random(seed * 977 + 13);
        let case = elementwise(&mut r);
        printed += compare(&case, &format!("seed {seed}"), &mut r);
    }
    assert!(printed > SEEDS as usize, "{printed} functions");
}

/// A program over rows: reductions of random code, work on their results, and more random code with these.
fn rows(r: &mut Random) -> Case {
    let (outer, lane) = (1 + r.below(3) as i64, r.one_of(&SIZES));
    let loads: Vec<DType> = (0..1 + r.below(2)).map(|_| r.one_of(&DTYPES)).collect();
    let mut registers: Vec<Compute> = loads.iter().map(|d| d.compute()).collect();
    let load = |registers: &mut Vec<Compute>, i: usize| {
        registers.push(loads[i].compute());
        Inst::Load {
            dst: Reg(registers.len() as u16 - 1),
            access: i as u16,
        }
    };
    let mut first: Vec<Inst> = (0..loads.len())
        .map(|i| Inst::Load {
            dst: Reg(i as u16),
            access: i as u16,
        })
        .collect();
    let steps = r.below(8);
    first.extend(random_code(r, &mut registers, 0, steps));
    let mut accumulators = vec![];
    for _ in 0..1 + r.below(3) {
        let a = Reg(r.below(registers.len()) as u16);
        let ty = registers[usize::from(a.0)];
        let op = r.one_of(Reduction::ALL);
        if ty == Compute::Mask && op == Reduction::Sum {
            continue;
        }
        accumulators.push((op, a));
    }
    let mut sums = vec![];
    for (op, a) in accumulators {
        let acc = Reg(registers.len() as u16);
        registers.push(registers[usize::from(a.0)]);
        first.push(Inst::Reduce { op, acc, a });
        sums.push(acc);
    }
    let src = Reg(r.below(loads.len()) as u16);
    let slots = vec![registers[usize::from(src.0)]];
    first.push(Inst::Keep { slot: 0, src });
    let between = registers.len();
    registers.extend(
        sums.iter()
            .map(|r| registers[usize::from(r.0)])
            .collect::<Vec<_>>(),
    );
    let mut middle: Vec<Inst> = sums
        .iter()
        .enumerate()
        .map(|(i, r)| {
            let (dst, a) = (Reg((between + i) as u16), *r);
            let dtype = plain(registers[usize::from(r.0)]);
            Inst::Convert {
                dst,
                a,
                from: dtype,
                to: dtype,
            }
        })
        .collect();
    if !sums.is_empty() {
        let steps = r.below(4);
        middle.extend(random_code(r, &mut registers, between, steps));
    }
    // A register that the first stage uses too may hold a row's value afterwards.
    if let (Some(Inst::Convert { dst, a, .. }), true) = (middle.first(), r.below(2) == 0) {
        let (dst, a) = (*dst, *a);
        let ty = registers[usize::from(dst.0)];
        let free = (0..loads.len()).find(|i| {
            let r = Reg(*i as u16);
            registers[*i] == ty && r != a
        });
        if let Some(name) = free {
            middle.push(Inst::Convert {
                dst: Reg(name as u16),
                a: dst,
                from: plain(ty),
                to: plain(ty),
            });
        }
    }
    let mut last = vec![load(&mut registers, 0)];
    registers.push(slots[0]);
    last.push(Inst::Kept {
        slot: 0,
        dst: Reg(registers.len() as u16 - 1),
    });
    // What rows have, and what was loaded anew.
    let steps = 1 + r.below(6);
    last.extend(random_code(r, &mut registers, between, steps));
    // What the middle may have left in a name of the first stage.
    if let Some(Inst::Convert { dst, to, .. }) = middle.last()
        && usize::from(dst.0) < loads.len()
        && middle.len() > 1
    {
        registers.push(to.compute());
        last.push(Inst::Convert {
            dst: Reg(registers.len() as u16 - 1),
            a: *dst,
            from: *to,
            to: *to,
        });
    }
    let results: Vec<(Reg, DType)> = (1..3)
        .map(|i| (Reg((registers.len() - i) as u16), r.one_of(&DTYPES)))
        .collect();
    let mut args: Vec<Arg> = loads
        .iter()
        .map(|d| Arg {
            dtype: *d,
            written: false,
        })
        .collect();
    for (i, (src, dtype)) in results.iter().enumerate() {
        args.push(Arg {
            dtype: *dtype,
            written: true,
        });
        last.push(Inst::Store {
            access: (loads.len() + i) as u16,
            src: *src,
        });
    }
    let accesses: Vec<Access> = (0..args.len() as u16)
        .map(|a| {
            let mut access = line(a, 2);
            access.strides[0] = lane.into();
            access
        })
        .collect();
    let stage = |over_inner, code| Stage {
        over_inner,
        turn: Turn::Every,
        code,
    };
    Case {
        lens: vec![outer * lane; args.len()],
        program: TileProgram {
            name: "t".into(),
            axes: vec![outer.into()],
            inner: vec![lane.into()],
            serial: 0,
            schedule: Schedule::Rows,
            cut: Cut::default(),
            args,
            accesses,
            registers,
            constants: vec![],
            slots,
            stages: vec![stage(true, first), stage(false, middle), stage(true, last)],
            sites: 1,
        },
    }
}

#[test]
fn random_rows() {
    let mut printed = 0;
    for seed in 0..SEEDS {
        let mut r = Random(seed * 1033 + 7);
        let case = rows(&mut r);
        printed += compare(&case, &format!("rows {seed}"), &mut r);
    }
    assert!(printed > SEEDS as usize, "{printed} functions");
}

/// Whether an access of a printed function is visited run by run.
fn visits_runs(case: &Case, level: Level) -> bool {
    let bound = bind(&case.program, &[], &case.lens).unwrap();
    let linked = link_as(&bound, level, true).unwrap();
    linked.printed.iter().any(|p| !p.runs.is_empty())
}

/// One spatial axis of a window over a padded image.
#[derive(Copy, Clone, Debug)]
struct Axis {
    size: i64,
    window: i64,
    stride: i64,
    dilation: i64,
    pad: i64,
    out: i64,
}

impl Axis {
    fn any(size: i64, r: &mut Random) -> Axis {
        let (window, dilation) = (1 + r.below(3) as i64, 1 + r.below(2) as i64);
        // A negative padding leaves the edge out.
        let (stride, pad) = (r.one_of(&[1, 1, 2]), r.below(5) as i64 - 1);
        let span = (window - 1) * dilation + 1;
        // Windows beyond the image see nothing of it.
        let out = ((size + 2 * pad - span) / stride).max(0) + 1 + r.below(2) as i64;
        Axis {
            size,
            window,
            stride,
            dilation,
            pad,
            out,
        }
    }
}

const RUNS: [i64; 6] = [31, 32, 33, 64, 600, 1100];

/// What windows over a padded image have, reduced; the innermost axis is that of the channels or of the columns.
fn windows(last: bool, dtype: DType, run: i64, r: &mut Random) -> Case {
    let (images, channels) = (1 + r.below(2) as i64, if last { run } else { 2 });
    let rows = Axis::any(1 + r.below(6) as i64, r);
    let columns = Axis::any(if last { 1 + r.below(6) as i64 } else { run }, r);
    let (height, width) = (rows.size, columns.size);
    // The strides of image, channel, row and column.
    let strides = |h: i64, w: i64| match last {
        true => (h * w * channels, 1, w * channels, channels),
        false => (h * w * channels, h * w, w, 1),
    };
    // The axes in the order of the result, then the window's.
    let order = |image: i64, channel: i64, row: i64, column: i64| match last {
        true => [image, row, column, channel],
        false => [image, channel, row, column],
    };
    let of = |outer: [i64; 4], inner: [i64; 2]| -> Vec<kiln_base::Dim> {
        outer.into_iter().chain(inner).map(|s| s.into()).collect()
    };
    let (image, channel, row, column) = strides(height, width);
    let bound = |axis: Axis, outer: [i64; 4], inner: [i64; 2]| Bound {
        offset: (-axis.pad).into(),
        strides: of(outer, inner),
        extent: axis.size.into(),
    };
    let fill = match r.below(3) {
        _ if dtype == DType::Bool => Scalar::Bool(r.below(2) == 0),
        0 => Scalar::Int(0),
        1 if dtype.compute().is_float() => Scalar::Float(f64::NEG_INFINITY),
        _ => Scalar::Int(100),
    };
    let load = Access {
        arg: 0,
        offset: (-rows.pad * row - columns.pad * column).into(),
        strides: of(
            order(image, channel, row * rows.stride, column * columns.stride),
            [row * rows.dilation, column * columns.dilation],
        ),
        bounds: vec![
            bound(rows, order(0, 0, rows.stride, 0), [rows.dilation, 0]),
            bound(
                columns,
                order(0, 0, 0, columns.stride),
                [0, columns.dilation],
            ),
        ],
        fill,
    };
    let (image, channel, row, column) = strides(rows.out, columns.out);
    let store = Access {
        arg: 1,
        offset: 0i64.into(),
        strides: of(order(image, channel, row, column), [0, 0]),
        bounds: vec![],
        fill: Scalar::Int(0),
    };
    let axes = order(images, channels, rows.out, columns.out);
    let op = match dtype {
        DType::Bool => Reduction::Max,
        _ => r.one_of(&[Reduction::Max, Reduction::Min, Reduction::Sum]),
    };
    let stage = |over_inner, code| Stage {
        over_inner,
        turn: Turn::Every,
        code,
    };
    let (acc, a) = (R[1], R[0]);
    let load_it = Inst::Load { dst: a, access: 0 };
    let store_it = |src| Inst::Store { access: 1, src };
    let arg = |written| Arg { dtype, written };
    let pads = rows.window * columns.window == 1;
    let stages = match pads {
        // Without a window it is padded only.
        true => vec![stage(false, vec![load_it, store_it(a)])],
        false => vec![
            stage(true, vec![load_it, Inst::Reduce { op, acc, a }]),
            stage(false, vec![store_it(acc)]),
        ],
    };
    let window = [rows.window, columns.window];
    let inner: &[i64] = if pads { &[] } else { &window };
    let mut accesses = vec![load, store];
    for a in &mut accesses {
        a.strides.truncate(4 + inner.len());
        for b in &mut a.bounds {
            b.strides.truncate(4 + inner.len());
        }
    }
    Case {
        lens: vec![
            images * channels * height * width,
            images * channels * rows.out * columns.out,
        ],
        program: TileProgram {
            name: "t".into(),
            axes: axes.into_iter().map(|e| e.into()).collect(),
            inner: inner.iter().map(|e| (*e).into()).collect(),
            serial: 0,
            schedule: Schedule::Lanes,
            cut: Cut::default(),
            accesses,
            args: vec![arg(false), arg(true)],
            registers: vec![dtype.compute(); 2],
            constants: vec![],
            slots: vec![],
            stages,
            sites: 1,
        },
    }
}

#[test]
fn windows_over_padded_images() {
    let mut r = Random(11);
    let mut visited = 0;
    for dtype in [
        DType::F32,
        DType::F16,
        DType::I64,
        DType::Bool,
        DType::I8,
        DType::U32,
    ] {
        for run in RUNS {
            for i in 0..24 {
                let last = i % 2 == 0;
                let mut case = windows(last, dtype, run, &mut r);
                case.program.cut.stream = [None, Some(true)][r.below(2)];
                let what = format!("{dtype:?} in runs of {run}, channels last: {last}, {i}");
                compare(&case, &what, &mut r);
                if last && Level::Avx2.is_supported() {
                    let bounds = &case.program.accesses[0].bounds;
                    let visits = visits_runs(&case, Level::Avx2);
                    assert!(visits || run < 32, "{what}: {bounds:?}");
                    visited += usize::from(visits);
                }
            }
        }
    }
    assert!(
        visited > 300 || !Level::Avx2.is_supported(),
        "{visited} with runs"
    );
}

/// Rows some of which are excluded, as a whole or in part, reduced; numbers that are the same for all lanes too.
fn padded_rows(dtype: DType, lane: i64, r: &mut Random) -> Case {
    let outer = 1 + r.below(5) as i64;
    let (low, shift) = (r.below(3) as i64 - 1, r.below(9) as i64 - 4);
    let limit = |offset: i64, strides: [i64; 2], extent: i64| Bound {
        offset: offset.into(),
        strides: strides.into_iter().map(|s| s.into()).collect(),
        extent: extent.into(),
    };
    let access = |arg: u16, offset: i64, strides: [i64; 2], bounds: Vec<Bound>| Access {
        arg,
        offset: offset.into(),
        strides: strides.into_iter().map(|s| s.into()).collect(),
        bounds,
        fill: Scalar::Int(1),
    };
    let whole = limit(-low, [1, 0], outer - 1);
    let mut both = vec![whole.clone()];
    if r.below(2) == 0 {
        both.push(limit(shift, [0, 1], lane));
    } else {
        both.push(limit(lane + shift, [0, -1], lane));
    }
    let accesses = vec![
        access(0, -low * lane + shift, [lane, 1], both),
        access(1, -low, [1, 0], vec![whole]),
        access(2, 0, [1, 0], vec![]),
        access(3, 0, [lane, 1], vec![]),
    ];
    let ty = dtype.compute();
    let op = r.one_of(&[Reduction::Max, Reduction::Min]);
    let stage = |over_inner, code| Stage {
        over_inner,
        turn: Turn::Every,
        code,
    };
    let load = |dst, access| Inst::Load { dst, access };
    let maximum = |dst, a, b| Inst::Binary {
        op: Binary::Max,
        dst,
        a,
        b,
        site: 0,
    };
    let first = vec![
        load(R[0], 0),
        Inst::Reduce {
            op,
            acc: R[1],
            a: R[0],
        },
    ];
    let middle = vec![
        load(R[2], 1),
        maximum(R[3], R[1], R[2]),
        Inst::Store {
            access: 2,
            src: R[3],
        },
    ];
    let (x, y, z) = (Reg(4), Reg(5), Reg(6));
    let last = vec![
        load(x, 0),
        load(y, 1),
        maximum(z, x, y),
        Inst::Store { access: 3, src: z },
    ];
    let arg = |written| Arg { dtype, written };
    Case {
        lens: vec![(outer + 2) * lane, outer + 2, outer, outer * lane],
        program: TileProgram {
            name: "t".into(),
            axes: vec![outer.into()],
            inner: vec![lane.into()],
            serial: 0,
            schedule: Schedule::Rows,
            cut: Cut::default(),
            accesses,
            args: vec![arg(false), arg(false), arg(true), arg(true)],
            registers: vec![ty; 7],
            constants: vec![],
            slots: vec![],
            stages: vec![stage(true, first), stage(false, middle), stage(true, last)],
            sites: 1,
        },
    }
}

#[test]
fn rows_with_limits() {
    let mut r = Random(12);
    for dtype in [DType::F32, DType::F16, DType::I64, DType::Bool, DType::U8] {
        for lane in RUNS {
            for i in 0..16 {
                let case = padded_rows(dtype, lane, &mut r);
                compare(&case, &format!("{dtype:?}, rows of {lane}, {i}"), &mut r);
            }
        }
    }
}

#[test]
fn seeded_bugs_are_found() {
    for (bug, name) in names().into_iter().enumerate() {
        seed(Some(bug));
        let found = (0..4000).any(|i| {
            let mut r = Random(i * 1033 + 7);
            let case = match i % 2 {
                0 => rows(&mut r),
                _ => elementwise(&mut r),
            };
            catch_unwind(AssertUnwindSafe(|| compare(&case, name, &mut r))).is_err()
        });
        seed(None);
        assert!(found, "{name} is not found");
    }
}

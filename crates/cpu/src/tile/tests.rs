//! Tests that emitted code computes the same bits as the interpreter.

mod located;
mod programs;
mod rows;
mod windows;

use super::bind;
use super::link::link_with;
use super::run::run_on;
use kiln_base::prim::{Binary, Reduction, Unary};
use kiln_base::{Compute, DType, Scalar};
use kiln_jit::emission::bugs::names;
use kiln_kernel::bugs::seed;
use kiln_kernel::check;
use kiln_kernel::failures::{Failure, Failures};
use kiln_kernel::interpreted::{declare, interpreting};
use kiln_kernel::simd::Features;
use kiln_kernel::view::{View, ViewMut};
use kiln_plan::tile::*;
use programs::{elementwise, random_code};
use rows::rows;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of random programs of each kind.
const SEEDS: u64 = 600;

const SIZES: [i64; 14] = [1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 511, 512, 513, 1000];
const TYPES: [Compute; 5] = [
    Compute::F32,
    Compute::F64,
    Compute::I32,
    Compute::I64,
    Compute::Mask,
];

/// The dtypes of random programs.
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

/// The lanes of runs along the innermost axis.
const RUNS: [i64; 8] = [15, 16, 31, 32, 33, 64, 600, 1100];

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

/// Returns `n` elements of a dtype as bytes, many of them special values.
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
    const INTS: [i64; 18] = [
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
        // Close to the midpoint of two f32 numbers, but not of two f64 numbers.
        (1 << 62) + (1 << 38) + 1,
        -(1 << 62) - (1 << 38) - 1,
        (1 << 62) + (3 << 38) - 1,
        (1 << 53) + 1,
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

/// A program, and the lengths of its arguments.
struct Case {
    program: TileProgram,
    lens: Vec<i64>,
}

/// The outcome of a run: the arguments' bytes, the number of emitted functions, and the data error.
type Outcome = (Vec<Vec<u8>>, usize, Option<Failure>);

/// The execution of a program: by interpreted instructions, by emitted code, or by emitted code on the emulated
/// processor, which checks accesses.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Execution {
    Loops,
    Emitted,
    Emulated,
}

/// Runs a program at a level.
fn run(case: &Case, level: Features, execution: Execution, args: &[Vec<u8>]) -> Outcome {
    let bound = bind(&case.program, &[], &case.lens).unwrap();
    let linked = link_with(&bound, level, execution != Execution::Loops).unwrap();
    // Words align every element.
    let mut memory: Vec<Vec<u64>> = args.iter().map(|a| vec![0; a.len() / 8 + 2]).collect();
    for (to, from) in memory.iter_mut().zip(args) {
        ViewMut::of(to).bytes().copy(0, from);
    }
    let failures = Failures::default();
    let regions = memory.iter_mut().map(|m| m.as_mut_ptr().cast::<u8>());
    let regions = regions.zip(args).zip(&case.program.args);
    let regions = regions.map(|((address, a), arg)| (address.cast_const(), a.len(), arg.written));
    let regions: Vec<_> = regions.collect();
    let mut run_linked = || run_on(&linked, &mut memory, false, &failures);
    if execution == Execution::Emulated {
        interpreting(|| {
            let _declared = declare(regions.into_iter());
            run_linked();
        });
    } else {
        run_linked();
    }
    let bytes = |m: &Vec<u64>, len: usize| View::of(m).bytes().slice(0, len as i64 + 8).to_vec();
    let results = memory.iter().zip(args).map(|(m, a)| bytes(m, a.len()));
    let failure = failures.take().unwrap();
    (results.collect(), linked.emitted.len(), failure)
}

/// True if elements have equal bits, or both are NaN.
fn is_equal(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let is_nan = |x: &[u8]| dtype.floats(x).first().is_some_and(|x| x.is_nan());
    a == b || is_nan(a) && is_nan(b)
}

/// Compares emitted code with loops at all levels. Returns the number of emitted functions.
fn compare(case: &Case, label: &str, r: &mut Random) -> usize {
    let args: Vec<Vec<u8>> = (case.program.args.iter().zip(&case.lens))
        .map(|(a, n)| elements(a.dtype, *n as usize, r))
        .collect();
    compare_with(case, &args, label, r)
}

/// Returns the number of levels with emitted code that this processor supports.
fn levels() -> usize {
    let levels = [Features::AVX2, Features::AVX512].into_iter();
    levels.filter(|l| l.is_supported()).count()
}

/// As [`compare`], for these arguments. A sample of the emitted code is also emulated, at unsupported levels too.
fn compare_with(case: &Case, args: &[Vec<u8>], label: &str, r: &mut Random) -> usize {
    let mut emitted = 0;
    for level in [Features::AVX2, Features::AVX512] {
        let (expected, no_functions, failure) = run(case, level, Execution::Loops, args);
        assert_eq!(no_functions, 0);
        let emulates = r.below(12) == 0;
        for execution in [Execution::Emitted, Execution::Emulated] {
            if execution == Execution::Emitted && !level.is_supported()
                || execution == Execution::Emulated && !emulates
            {
                continue;
            }
            let (actual, functions, reported) = run(case, level, execution, args);
            emitted += if execution == Execution::Emitted {
                functions
            } else {
                0
            };
            assert_eq!(reported, failure, "{label} at {level:?}, {execution:?}");
            assert_equal(
                case,
                args,
                [&actual, &expected],
                &format!("{label} at {level:?}, {execution:?}"),
            );
        }
    }
    emitted
}

/// Checks that results are the same, and that the memory after them is untouched.
fn assert_equal(case: &Case, args: &[Vec<u8>], [actual, expected]: [&[Vec<u8>]; 2], label: &str) {
    for (i, arg) in case.program.args.iter().enumerate() {
        let (size, len) = (arg.dtype.size(), args[i].len());
        assert_eq!(
            actual[i][len..],
            expected[i][len..],
            "{label}: beyond the end of {i}"
        );
        let pairs = actual[i][..len].chunks(size).zip(expected[i].chunks(size));
        for (k, (actual, expected)) in pairs.enumerate() {
            assert!(
                is_equal(arg.dtype, actual, expected),
                "{label}: argument {i} ({:?}), element {k} of {}: {actual:?}, not {expected:?}\n{:?} {:?}",
                arg.dtype,
                case.lens[i],
                case.program.stages,
                case.program.constants,
            );
        }
    }
}

fn stage(over_inner: bool, code: Vec<Inst>) -> Stage {
    Stage {
        over_inner,
        code,
        ..Stage::default()
    }
}

fn access(arg: u16, offset: i64, strides: &[i64]) -> Access {
    Access {
        arg,
        offset: offset.into(),
        strides: strides.iter().map(|s| (*s).into()).collect(),
        bounds: vec![],
        fill: Scalar::Int(0),
    }
}

/// Returns a program over `n` elements. It loads arguments of these dtypes into the first registers, runs the code, and
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
    let mut instructions: Vec<Inst> = (0..loads.len()).map(load).collect();
    instructions.extend(code);
    instructions.extend(stores.iter().enumerate().map(|(i, (r, _))| Inst::Store {
        access: (loads.len() + i) as u16,
        src: *r,
    }));
    let lens = vec![n; args.len()];
    Case {
        program: TileProgram {
            axes: vec![n.into()],
            accesses: (0..args.len() as u16).map(|a| access(a, 0, &[1])).collect(),
            args,
            registers,
            stages: vec![stage(false, instructions)],
            sites: 1,
            ..TileProgram::default()
        },
        lens,
    }
}

fn dtype_of(ty: Compute) -> DType {
    ty.dtype()
}

/// The first registers.
const R: [Reg; 5] = [Reg(0), Reg(1), Reg(2), Reg(3), Reg(4)];

#[test]
fn seeded_bugs_are_found() {
    for name in names() {
        seed(Some(name));
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

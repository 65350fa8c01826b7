//! What the results of a kernel must be.
//!
//! A product or convolution is computed once more in f64. A sum of k products of numbers up to 1, in
//! floating-point arithmetic of unit roundoff u and in any order, is off by at most λ · √k · u · k with a
//! probability of at least 1 − 2k · exp(−λ² / 2) (Higham and Mary, "A New Approach to Probabilistic
//! Rounding Error Analysis", 2019); λ is 8. Algorithms that do more than sum have the bound times their
//! [`error_growth`](kiln_plan::Algorithm::error_growth). Where operands are rounded first, products are off by
//! e/2 at most, if e is the [error](Approximation::error) of a product as a part of it, since numbers up to 1 are
//! rounded by half of a unit; k of them are off by λ · √k · e/2 with the same probability. Work fused behind the
//! product is run on the f64 result and on that moved by the bound to either side, each element to another, since a norm
//! of a row doesn't see all of it move: what this does to an element is how far the kernel's may be off.
//!
//! Kernels of custom operators are compared with the operator's own, as closely as
//! `torch.testing.assert_close` asks.

use super::alone::{self, Arg, Numbers, buffer, load, numbers};
use kiln_base::{DType, Dim, Float, numel};
use kiln_codegen::Approximation;
use kiln_plan::{Conv, ConvRole, Images, Kernel, MatMul, Reads};
use kiln_runtime::{Buffer, Error};
use std::sync::{Arc, Mutex, PoisonError};

/// λ in the bound of a sum's error.
const LAMBDA: f64 = 8.0;
/// Products in a sum that Winograd's transforms count as.
const TRANSFORMS: f64 = 28.0;
/// How many units in the last place a result may be off by itself, and how many times as far as the moved
/// ones.
const ULPS: f64 = 4.0;
const MOVED: f64 = 2.0;

/// A product in f64, and what happens to its elements.
pub(super) struct Product {
    /// What is multiplied.
    dtype: DType,
    /// What the sums are rounded to.
    rounded: DType,
    /// In f64.
    raw: Vec<f64>,
    /// Products in a sum.
    terms: f64,
    /// What is done with the raw result: a kernel whose last argument it is.
    epilogue: Option<(Kernel, Vec<Arg>)>,
    /// What was expected for bounds that were asked for.
    known: Mutex<Vec<(f64, Arc<Sides>)>>,
}

/// The kernel's results for the sums in f64, and for those moved down and up by their bound.
type Sides = [Vec<Vec<f64>>; 3];

/// The operands of a product, its result, and the products in one of its sums.
struct Parts {
    operands: [u16; 2],
    dtype: DType,
    total: Dim,
    terms: Dim,
}

fn parts(kernel: &Kernel) -> Option<Parts> {
    match kernel {
        Kernel::MatMul(m) => Some(Parts {
            operands: [m.lhs.arg, m.rhs.arg],
            dtype: m.dtype(),
            total: &(&numel(&m.batch) * &m.m) * &m.n,
            terms: m.k.clone(),
        }),
        Kernel::Conv(c) => Some(conv_parts(c)),
        _ => None,
    }
}

fn conv_parts(c: &Conv) -> Parts {
    let of = |dims: &[&Dim]| dims.iter().fold(Dim::ONE, |n, d| &n * *d);
    let (x, y, taps) = (numel(&c.input), numel(&c.output), numel(&c.kernel));
    let (total, terms) = match c.role {
        ConvRole::Result => (
            of(&[&c.batch, &c.groups, &c.out_channels, &y]),
            of(&[&c.in_channels, &taps]),
        ),
        ConvRole::Input => (
            of(&[&c.batch, &c.groups, &c.in_channels, &x]),
            of(&[&c.out_channels, &taps]),
        ),
        ConvRole::Weight => (
            of(&[&c.groups, &c.out_channels, &c.in_channels, &taps]),
            of(&[&c.batch, &y]),
        ),
    };
    Parts {
        operands: c.operands,
        dtype: c.dtype(),
        total,
        terms,
    }
}

/// The arguments that are multiplied, or made into what is.
pub(super) fn multiplied(kernel: &Kernel) -> Vec<u16> {
    let (Kernel::MatMul(_) | Kernel::Conv(_), Ok(contract)) = (kernel, kernel.contract()) else {
        return Vec::new();
    };
    let args = (0..).zip(&contract.args);
    let read = args.filter(|(_, a)| a.reads == Reads::Throughout);
    read.map(|(at, _)| at).collect()
}

/// An operand of a product: an argument, or what a prologue makes of the arguments.
fn operand(
    kernel: &Kernel,
    side: usize,
    arg: u16,
    args: &[Arg],
    given: &[Option<Buffer>],
    symbols: &[Buffer],
) -> Result<Buffer, Error> {
    let prologue = kernel.prologues().get(side);
    let Some(prologue) = prologue.and_then(Option::as_ref) else {
        let operand = given.get(usize::from(arg)).and_then(Option::as_ref);
        return operand
            .cloned()
            .ok_or_else(|| Error::Internal("no operand".into()));
    };
    let program = prologue.program.clone();
    let made = Arg {
        dtype: program.args.last().map_or(DType::F32, |a| a.dtype),
        len: numel(&program.axes),
        written: true,
        fixed: false,
    };
    // What the product writes is an argument that nothing reads here.
    let read = args.iter().cloned().zip(&program.args);
    let read = read.map(|(arg, of)| Arg {
        written: of.written,
        ..arg
    });
    let mut inputs = symbols.to_vec();
    for (arg, given) in args.iter().zip(given) {
        inputs.push(match given {
            Some(given) => given.clone(),
            None => buffer(arg.dtype, &vec![0.0; arg.len.eval(&lens(symbols)) as usize])?,
        });
    }
    let all: Vec<Arg> = read.chain([made]).collect();
    let plan = alone::plan(Kernel::Tile(program), &all, symbols.len());
    let mut results = load(plan, None)?.run_shared(&inputs)?;
    results
        .pop()
        .ok_or_else(|| Error::Internal("no operand".into()))
}

/// The values that inputs of these lengths give symbols.
fn lens(symbols: &[Buffer]) -> Vec<i64> {
    symbols.iter().map(|b| b.len() as i64).collect()
}

/// The product that a kernel computes of these arguments (of which those that it writes are `None`), where
/// `symbols` are the inputs that give symbols their values, on the CPU or a GPU. `None` for kernels of which only
/// the default says what is right.
///
/// # Errors
/// If the reference can't be run.
pub(super) fn product(
    kernel: &Kernel,
    args: &[Arg],
    given: &[Option<Buffer>],
    symbols: &[Buffer],
    on_gpu: bool,
) -> Result<Option<Product>, Error> {
    let Some(parts) = parts(kernel) else {
        return Ok(None);
    };
    let values = lens(symbols);
    let mut inputs = symbols.to_vec();
    let mut reference_args = Vec::new();
    // The reference has channels first.
    let [first, second, result] = last(kernel, &values, on_gpu);
    for (i, arg) in parts.operands.into_iter().enumerate() {
        let of = operand(kernel, i, arg, args, given, symbols)?;
        let mut of = numbers(&of)?;
        if let Some([batch, channels]) = [first, second][i] {
            of = turned(&of, batch, of.len() / (batch * channels).max(1));
        }
        reference_args.push(Arg {
            dtype: DType::F64,
            len: Dim::from(of.len()),
            written: false,
            fixed: false,
        });
        inputs.push(buffer(DType::F64, &of)?);
    }
    reference_args.push(Arg {
        dtype: DType::F64,
        len: parts.total.clone(),
        written: true,
        fixed: false,
    });
    let plan = alone::plan(in_f64(kernel), &reference_args, values.len());
    let raw = load(plan, None)?.run_shared(&inputs)?;
    let mut raw = numbers(&raw[0])?;
    if let Some([batch, channels]) = result {
        raw = turned(&raw, batch, channels);
    }
    let epilogue = match kernel {
        Kernel::MatMul(MatMul { epilogue, .. }) | Kernel::Conv(Conv { epilogue, .. }) => epilogue,
        _ => &None,
    };
    let made = epilogue.as_ref().and_then(|e| e.program.args.last());
    let rounded = made.map_or(parts.dtype, |raw| raw.dtype);
    let epilogue = epilogue.as_ref().map(|e| {
        let raw = Arg {
            dtype: rounded,
            len: parts.total.clone(),
            written: false,
            fixed: false,
        };
        let args = args.iter().cloned().chain([raw]).collect();
        (Kernel::Tile(e.program.clone()), args)
    });
    Ok(Some(Product {
        dtype: parts.dtype,
        rounded,
        raw,
        terms: parts.terms.eval(&values) as f64,
        epilogue,
        known: Mutex::default(),
    }))
}

/// How often channels repeat, and how many there are, in the operands and the result of a convolution, where these
/// have channels last.
fn last(kernel: &Kernel, values: &[i64], on_gpu: bool) -> [Option<[usize; 2]>; 3] {
    let Kernel::Conv(c) = kernel else {
        return [None; 3];
    };
    let size = |dim: &Dim| dim.eval(values) as usize;
    let groups = size(&c.groups);
    let image = |channels| [size(&c.batch), groups * size(channels)];
    let [x, y] = c.images.last();
    let x_last = x.then(|| image(&c.in_channels));
    let y_last = y.then(|| image(&c.out_channels));
    let filters = [groups * size(&c.out_channels), size(&c.in_channels)];
    let filters = (on_gpu && (x || y)).then_some(filters);
    match c.role {
        ConvRole::Result => [x_last, filters, y_last],
        ConvRole::Input => [y_last, filters, x_last],
        ConvRole::Weight => [x_last, y_last, None],
    }
}

/// Matrices of so many rows each, transposed.
fn turned(numbers: &[f64], matrices: usize, rows: usize) -> Vec<f64> {
    let len = numbers.len() / matrices.max(1);
    let columns = len / rows.max(1);
    let element = |i: usize| i / len * len + i % rows * columns + i % len / rows;
    (0..numbers.len()).map(|i| numbers[element(i)]).collect()
}

/// The kernel in f64, without what happens to its result: the operands are arguments 0 and 1, the result
/// is argument 2.
fn in_f64(kernel: &Kernel) -> Kernel {
    let mut kernel = kernel.clone();
    match &mut kernel {
        Kernel::MatMul(m) => {
            (m.dtypes, m.epilogue) = ([DType::F64; 2], None);
            (m.lhs.arg, m.rhs.arg, m.out) = (0, 1, 2);
            m.prologues = [None, None];
        }
        Kernel::Conv(c) => {
            (c.dtypes, c.epilogue) = ([DType::F64; 2], None);
            (c.operands, c.out, c.images) = ([0, 1], 2, Images::ChannelsFirst);
            c.prologue = None;
        }
        _ => {}
    }
    let by = kernel.by_default(false, true);
    kernel.by(by)
}

impl Product {
    /// Compares the results of a kernel that gives up so much; the text says where one is wrong.
    ///
    /// # Errors
    /// If the work behind the product can't be run.
    pub fn compare(
        &self,
        approximation: Option<Approximation>,
        got: &[Buffer],
        given: &[Option<Buffer>],
        symbols: &[Buffer],
    ) -> Result<Option<String>, Error> {
        let growth = approximation.map_or(1.0, Approximation::growth);
        let terms = match approximation {
            Some(Approximation::Algorithm(a)) if !a.only_sums() => self.terms + TRANSFORMS,
            _ => self.terms,
        };
        // The reference in f64 is off too.
        let unit = (epsilon(summed_in(self.dtype)) + epsilon(DType::F64)) / 2.0;
        let rounded = approximation.map_or(0.0, Approximation::error) / 2.0;
        let mut bound = LAMBDA * terms.sqrt() * (unit * terms * growth + rounded);
        if summed_in(self.rounded) != self.rounded {
            // Sums are in f32, and rounded before what is fused behind them, or not.
            let largest = self.raw.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            bound += epsilon(self.rounded) / 2.0 * largest;
        }
        let sides = self.sides(bound, given, symbols)?;
        for (o, got) in got.iter().enumerate() {
            let moved = [&sides[0][o][..], &sides[1][o][..], &sides[2][o][..]];
            if let Some(text) = differs(got.dtype(), &numbers(got)?, moved) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// What is expected within a bound, computed once.
    fn sides(
        &self,
        bound: f64,
        given: &[Option<Buffer>],
        symbols: &[Buffer],
    ) -> Result<Arc<Sides>, Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, sides)) = known.iter().find(|(b, _)| *b == bound) {
            return Ok(sides.clone());
        }
        let behind = |by| -> Result<Vec<Vec<f64>>, Error> {
            self.behind(by, given, symbols)?
                .iter()
                .map(numbers)
                .collect()
        };
        let sides = Arc::new([behind(0.0)?, behind(-bound)?, behind(bound)?]);
        known.push((bound, sides.clone()));
        Ok(sides)
    }

    /// The kernel's results if every sum is off by so much.
    fn behind(
        &self,
        by: f64,
        given: &[Option<Buffer>],
        symbols: &[Buffer],
    ) -> Result<Vec<Buffer>, Error> {
        let mut signs = Numbers(1);
        let moved = self.raw.iter().map(|x| x + signs.sign() * by);
        let moved: Vec<f64> = moved.collect();
        let raw = buffer(self.rounded, &moved)?;
        let Some((kernel, args)) = &self.epilogue else {
            return Ok(vec![raw]);
        };
        let mut inputs = symbols.to_vec();
        inputs.extend(given.iter().flatten().cloned());
        inputs.push(raw);
        let plan = alone::plan(kernel.clone(), args, symbols.len());
        load(plan, None)?.run_shared(&inputs)
    }
}

/// Where results differ from the expected ones by more than these move.
fn differs(dtype: DType, got: &[f64], [middle, low, high]: [&[f64]; 3]) -> Option<String> {
    (0..got.len()).find_map(|i| {
        let (x, m, l, h) = (got[i], middle[i], low[i], high[i]);
        let same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
        if [m, l, h].iter().any(|e| same(x, *e)) {
            return None;
        }
        let moved = (m - l).abs().max((m - h).abs());
        let size = [m, l, h].iter().fold(0.0, |s: f64, e| s.max(e.abs()));
        let most = MOVED * moved + ULPS * epsilon(dtype) * size;
        // Where the expected ones are not numbers, or not all of them, anything near says nothing.
        let off = (x - m).abs();
        let right = off <= most || m.is_nan() != l.is_nan() || m.is_nan() != h.is_nan();
        (!right).then(|| format!("element {i} is {x}, not {m} (within {most:.1e})"))
    })
}

/// Where results are further from the default's than `torch.testing.assert_close` lets them be, and than the
/// bound of sums of so many terms of one sign, where there are any; functions may be off by `error` too.
pub(super) fn far(
    got: &Buffer,
    expected: &Buffer,
    terms: f64,
    error: f64,
) -> Result<Option<String>, Error> {
    let dtype = got.dtype();
    let summed = LAMBDA * terms.sqrt() * epsilon(summed_in(dtype)) / 2.0;
    let (relative, absolute) = match dtype {
        DType::F16 => (1e-3, 1e-5),
        DType::BF16 => (1.6e-2, 1e-5),
        DType::F32 => (1.3e-6, 1e-5),
        DType::F64 => (1e-7, 1e-7),
        _ => {
            let (a, b) = (got.bytes()?, expected.bytes()?);
            let at = a.iter().zip(b).position(|(a, b)| a != b);
            return Ok(at.map(|at| format!("element {} is another", at / dtype.size())));
        }
    };
    let (relative, absolute) = (relative + summed + MOVED * error, absolute + MOVED * error);
    let (got, expected) = (numbers(got)?, numbers(expected)?);
    let pairs = got.iter().zip(&expected).enumerate();
    let wrong = pairs.filter(|(_, (x, e))| {
        let equal = x == e || x.is_nan() && e.is_nan();
        let near = (*x - *e).abs() <= absolute + relative * e.abs(); // not where one is NaN
        !equal && !near
    });
    let mut texts = wrong.map(|(i, (x, e))| format!("element {i} is {x}, not {e}"));
    Ok(texts.next())
}

/// What sums of elements are carried in.
fn summed_in(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// The distance from 1 to the next number.
fn epsilon(dtype: DType) -> f64 {
    dtype.float().map_or(0.0, Float::epsilon)
}

//! The expected results of a kernel.
//!
//! A product or convolution is computed once more in f64. The error of a sum of k products of numbers up to 1, in
//! floating-point arithmetic with unit roundoff u and in any order, is at most λ · √k · u · k with a probability of
//! at least 1 − 2k · exp(−λ² / 2) (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019);
//! λ is 8. For algorithms that do more than sum, the bound is multiplied by their
//! [`error_growth`](kiln_plan::Algorithm::error_growth). If operands are rounded first, the error of a product is at
//! most e/2, where e is the relative [error](Approximation::error) of a product, since numbers up to 1 are rounded by
//! half a unit; the error of k of them is at most λ · √k · e/2 with the same probability.
//!
//! The epilogue is run on the f64 result and on two others, moved by the bound in opposite directions. Each element
//! moves up or down at random, since a norm of a row would not change if all of the row moved alike. The resulting
//! change of an element is the error that the kernel's may have.
//!
//! Kernels of custom operators are compared with the operator's own, as closely as `torch.testing.assert_close` asks.

use super::alone::{self, Arg, Numbers, buffer, load, numbers};
use kiln_base::{DType, Dim, Float, numel};
use kiln_codegen::Approximation;
use kiln_plan::{Conv, ConvRole, Images, Kernel, MatMul, Reads};
use kiln_runtime::{Buffer, Error};
use std::sync::{Arc, Mutex, PoisonError};

/// λ in the bound of a sum's error.
const LAMBDA: f64 = 8.0;
/// The number of products in a sum that Winograd's transforms count as.
const TRANSFORMS: f64 = 28.0;
/// The error, in units in the last place, that a result may have by itself, and the multiple of the change of the
/// moved results that its error may be.
const ULPS: f64 = 4.0;
const MOVED: f64 = 2.0;

/// A product in f64, and its epilogue.
pub(super) struct Product {
    /// The dtype of the first operand.
    dtype: DType,
    /// The dtype that the sums are rounded to.
    rounded: DType,
    /// The raw result, in f64.
    raw: Vec<f64>,
    /// The number of products in a sum.
    terms: f64,
    /// The epilogue: a kernel whose last argument is the raw result.
    epilogue: Option<(Kernel, Vec<Arg>)>,
    /// The expected results for bounds that were asked for.
    known: Mutex<Vec<(f64, Arc<Sides>)>>,
}

/// The kernel's results for the sums in f64, and for those moved down and up by their bound.
type Sides = [Vec<Vec<f64>>; 3];

/// The operands of a product, its result, and the number of products in one of its sums.
struct ProductShape {
    operands: [u16; 2],
    dtype: DType,
    total: Dim,
    terms: Dim,
}

fn product_shape(kernel: &Kernel) -> Option<ProductShape> {
    match kernel {
        Kernel::MatMul(m) => Some(ProductShape {
            operands: [m.lhs.arg, m.rhs.arg],
            dtype: m.dtype(),
            total: &(&numel(&m.batch) * &m.m) * &m.n,
            terms: m.k.clone(),
        }),
        Kernel::Conv(c) => Some(conv_shape(c)),
        _ => None,
    }
}

fn conv_shape(c: &Conv) -> ProductShape {
    let product = |dims: &[&Dim]| dims.iter().fold(Dim::ONE, |n, d| &n * *d);
    let (x, y, taps) = (numel(&c.input), numel(&c.output), numel(&c.kernel));
    let (total, terms) = match c.role {
        ConvRole::Result => (
            product(&[&c.batch, &c.groups, &c.out_channels, &y]),
            product(&[&c.in_channels, &taps]),
        ),
        ConvRole::Input => (
            product(&[&c.batch, &c.groups, &c.in_channels, &x]),
            product(&[&c.out_channels, &taps]),
        ),
        ConvRole::Weight => (
            product(&[&c.groups, &c.out_channels, &c.in_channels, &taps]),
            product(&[&c.batch, &y]),
        ),
    };
    ProductShape {
        operands: c.operands,
        dtype: c.dtype(),
        total,
        terms,
    }
}

/// The arguments that are multiplied, or read by a prologue to compute an operand.
pub(super) fn product_operands(kernel: &Kernel) -> Vec<u16> {
    let (Kernel::MatMul(_) | Kernel::Conv(_), Ok(contract)) = (kernel, kernel.contract()) else {
        return Vec::new();
    };
    let args = (0..).zip(&contract.args);
    let read = args.filter(|(_, a)| a.reads == Reads::Throughout);
    read.map(|(arg, _)| arg).collect()
}

/// An operand of a product: an argument, or the result of a prologue on the arguments.
fn operand(
    kernel: &Kernel,
    side: usize,
    arg: u16,
    args: &[Arg],
    arguments: &[Option<Buffer>],
    symbols: &[Buffer],
) -> Result<Buffer, Error> {
    let prologue = kernel.prologues().get(side);
    let Some(prologue) = prologue.and_then(Option::as_ref) else {
        let operand = arguments.get(usize::from(arg)).and_then(Option::as_ref);
        return operand
            .cloned()
            .ok_or_else(|| Error::Internal("no operand".into()));
    };
    let program = prologue.program.clone();
    let result_arg = Arg {
        dtype: program.args.last().map_or(DType::F32, |a| a.dtype),
        len: numel(&program.axes),
        written: true,
        fixed: false,
    };
    // The prologue takes the product's output as an argument too; nothing reads it here.
    let read = args.iter().cloned().zip(&program.args);
    let read = read.map(|(arg, declared)| Arg {
        written: declared.written,
        ..arg
    });
    let mut inputs = symbols.to_vec();
    for (arg, arguments) in args.iter().zip(arguments) {
        inputs.push(match arguments {
            Some(arguments) => arguments.clone(),
            None => buffer(arg.dtype, &vec![0.0; arg.len.eval(&lens(symbols)) as usize])?,
        });
    }
    let program_args: Vec<Arg> = read.chain([result_arg]).collect();
    let plan = alone::plan(Kernel::Tile(program), &program_args, symbols.len());
    let mut results = load(plan, None)?.run_shared(&inputs)?;
    results
        .pop()
        .ok_or_else(|| Error::Internal("no operand".into()))
}

/// The values of symbols that are given by inputs with these lengths.
fn lens(symbols: &[Buffer]) -> Vec<i64> {
    symbols.iter().map(|b| b.len() as i64).collect()
}

/// Returns the product that a kernel computes, on the CPU or a GPU. `arguments` is `None` for the arguments that it
/// writes, and `symbols` are the inputs that define symbols. `None` for kernels whose results can only be compared with
/// the default's.
///
/// # Errors
/// If the reference can't be run.
pub(super) fn product(
    kernel: &Kernel,
    args: &[Arg],
    arguments: &[Option<Buffer>],
    symbols: &[Buffer],
    on_gpu: bool,
) -> Result<Option<Product>, Error> {
    let Some(shape) = product_shape(kernel) else {
        return Ok(None);
    };
    let values = lens(symbols);
    let mut inputs = symbols.to_vec();
    let mut reference_args = Vec::new();
    // The reference has channels first.
    let [first, second, result] = channels_last_sizes(kernel, &values, on_gpu);
    for (i, arg) in shape.operands.into_iter().enumerate() {
        let x = operand(kernel, i, arg, args, arguments, symbols)?;
        let mut x = numbers(&x)?;
        if let Some([batch, channels]) = [first, second][i] {
            x = transposed(&x, batch, x.len() / (batch * channels).max(1));
        }
        reference_args.push(Arg {
            dtype: DType::F64,
            len: Dim::from(x.len()),
            written: false,
            fixed: false,
        });
        inputs.push(buffer(DType::F64, &x)?);
    }
    reference_args.push(Arg {
        dtype: DType::F64,
        len: shape.total.clone(),
        written: true,
        fixed: false,
    });
    let plan = alone::plan(in_f64(kernel), &reference_args, values.len());
    let raw = load(plan, None)?.run_shared(&inputs)?;
    let mut raw = numbers(&raw[0])?;
    if let Some([batch, channels]) = result {
        raw = transposed(&raw, batch, channels);
    }
    let epilogue = match kernel {
        Kernel::MatMul(MatMul { epilogue, .. }) | Kernel::Conv(Conv { epilogue, .. }) => epilogue,
        _ => &None,
    };
    let output = epilogue.as_ref().and_then(|e| e.program.args.last());
    let rounded = output.map_or(shape.dtype, |raw| raw.dtype);
    let epilogue = epilogue.as_ref().map(|e| {
        let raw = Arg {
            dtype: rounded,
            len: shape.total.clone(),
            written: false,
            fixed: false,
        };
        let args = args.iter().cloned().chain([raw]).collect();
        (Kernel::Tile(e.program.clone()), args)
    });
    Ok(Some(Product {
        dtype: shape.dtype,
        rounded,
        raw,
        terms: shape.terms.eval(&values) as f64,
        epilogue,
        known: Mutex::default(),
    }))
}

/// The number of images (or filters) and of their channels, in the operands and the result of a convolution, where
/// these have channels last.
fn channels_last_sizes(kernel: &Kernel, values: &[i64], on_gpu: bool) -> [Option<[usize; 2]>; 3] {
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

/// Transposes each of `matrices` matrices with `rows` rows.
fn transposed(numbers: &[f64], matrices: usize, rows: usize) -> Vec<f64> {
    let len = numbers.len() / matrices.max(1);
    let columns = len / rows.max(1);
    let element = |i: usize| i / len * len + i % rows * columns + i % len / rows;
    (0..numbers.len()).map(|i| numbers[element(i)]).collect()
}

/// Returns the kernel in f64, without prologues and epilogue. The operands are arguments 0 and 1, the result is
/// argument 2.
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
    let schedule = kernel.by_default(false, true);
    kernel.by(schedule)
}

impl Product {
    /// Compares the results of a kernel that uses this approximation; the text names a wrong element.
    ///
    /// # Errors
    /// If the epilogue can't be run.
    pub fn compare(
        &self,
        approximation: Option<Approximation>,
        result: &[Buffer],
        arguments: &[Option<Buffer>],
        symbols: &[Buffer],
    ) -> Result<Option<String>, Error> {
        let growth = approximation.map_or(1.0, Approximation::growth);
        let terms = match approximation {
            Some(Approximation::Algorithm(a)) if !a.only_sums() => self.terms + TRANSFORMS,
            _ => self.terms,
        };
        // The reference in f64 has an error too.
        let unit = (epsilon(summed_in(self.dtype)) + epsilon(DType::F64)) / 2.0;
        let rounded = approximation.map_or(0.0, Approximation::error) / 2.0;
        let mut bound = LAMBDA * terms.sqrt() * (unit * terms * growth + rounded);
        if summed_in(self.rounded) != self.rounded {
            // Sums are in f32, and may be rounded before the epilogue.
            let largest = self.raw.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
            bound += epsilon(self.rounded) / 2.0 * largest;
        }
        let sides = self.sides(bound, arguments, symbols)?;
        for (o, result) in result.iter().enumerate() {
            let expected = [&sides[0][o][..], &sides[1][o][..], &sides[2][o][..]];
            if let Some(text) = find_excess(result.dtype(), &numbers(result)?, expected) {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// Returns the expected results within a bound, computed once.
    fn sides(
        &self,
        bound: f64,
        arguments: &[Option<Buffer>],
        symbols: &[Buffer],
    ) -> Result<Arc<Sides>, Error> {
        let mut computed = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, sides)) = computed.iter().find(|(b, _)| *b == bound) {
            return Ok(sides.clone());
        }
        let with_error = |by| -> Result<Vec<Vec<f64>>, Error> {
            self.results_with_error(by, arguments, symbols)?
                .iter()
                .map(numbers)
                .collect()
        };
        let sides = Arc::new([with_error(0.0)?, with_error(-bound)?, with_error(bound)?]);
        computed.push((bound, sides.clone()));
        Ok(sides)
    }

    /// The kernel's results if the error of every sum is `error`, with random signs.
    fn results_with_error(
        &self,
        error: f64,
        arguments: &[Option<Buffer>],
        symbols: &[Buffer],
    ) -> Result<Vec<Buffer>, Error> {
        let mut signs = Numbers(1);
        let perturbed = self.raw.iter().map(|x| x + signs.sign() * error);
        let perturbed: Vec<f64> = perturbed.collect();
        let raw = buffer(self.rounded, &perturbed)?;
        let Some((kernel, args)) = &self.epilogue else {
            return Ok(vec![raw]);
        };
        let mut inputs = symbols.to_vec();
        inputs.extend(arguments.iter().flatten().cloned());
        inputs.push(raw);
        let plan = alone::plan(kernel.clone(), args, symbols.len());
        load(plan, None)?.run_shared(&inputs)
    }
}

/// Finds an element that differs from the expected one by more than the perturbed results do.
fn find_excess(dtype: DType, got: &[f64], [middle, low, high]: [&[f64]; 3]) -> Option<String> {
    (0..got.len()).find_map(|i| {
        let (x, m, l, h) = (got[i], middle[i], low[i], high[i]);
        let equal = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan();
        if [m, l, h].iter().any(|e| equal(x, *e)) {
            return None;
        }
        let change = (m - l).abs().max((m - h).abs());
        let size = [m, l, h].iter().fold(0.0, |s: f64, e| s.max(e.abs()));
        let tolerance = MOVED * change + ULPS * epsilon(dtype) * size;
        // If some or all of the expected values are NaN, a nearby value says nothing.
        let error = (x - m).abs();
        let is_right = error <= tolerance || m.is_nan() != l.is_nan() || m.is_nan() != h.is_nan();
        (!is_right).then(|| format!("element {i} is {x}, not {m} (within {tolerance:.1e})"))
    })
}

/// Finds an element that is further from the default's than `torch.testing.assert_close` allows, plus the bound for
/// sums of `terms` terms of one sign, if there are any. The results of functions may also have the error `error`.
pub(super) fn find_difference(
    got: &Buffer,
    expected: &Buffer,
    terms: f64,
    error: f64,
) -> Result<Option<String>, Error> {
    let dtype = got.dtype();
    let slack = LAMBDA * terms.sqrt() * epsilon(summed_in(dtype)) / 2.0;
    let (relative, absolute) = match dtype {
        DType::F16 => (1e-3, 1e-5),
        DType::BF16 => (1.6e-2, 1e-5),
        DType::F32 => (1.3e-6, 1e-5),
        DType::F64 => (1e-7, 1e-7),
        _ => {
            let (a, b) = (got.bytes()?, expected.bytes()?);
            let byte = a.iter().zip(b).position(|(a, b)| a != b);
            return Ok(byte.map(|byte| format!("element {} is another", byte / dtype.size())));
        }
    };
    let (relative, absolute) = (relative + slack + MOVED * error, absolute + MOVED * error);
    let (got, expected) = (numbers(got)?, numbers(expected)?);
    let pairs = got.iter().zip(&expected).enumerate();
    let differing = pairs.filter(|(_, (x, e))| {
        let is_equal = x == e || x.is_nan() && e.is_nan();
        let is_close = (*x - *e).abs() <= absolute + relative * e.abs(); // not where one is NaN
        !is_equal && !is_close
    });
    let mut texts = differing.map(|(i, (x, e))| format!("element {i} is {x}, not {e}"));
    Ok(texts.next())
}

/// The dtype of the accumulator for sums of elements.
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

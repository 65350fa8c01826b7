//! Quantisation of trained networks: products of bytes in place of products of floats.
//!
//! Inside [`Calibration::quantized`] and [`quantize_dynamic`] a layer's input becomes unsigned bytes and its weight
//! signed bytes: `x ≈ (q − zero) · scale`. Their product is exact in i32, and is converted to floats by both scales.
//! Weights have a scale for each output channel, set by the largest magnitude in the channel. Weights that depend on
//! parameters alone are quantised once.
//!
//! As in ONNX's form of quantised networks, values are quantised, not operands: once a calibrated layer has read a
//! value, everything else reads its dequantised bytes. So only the bytes of the value are stored, even if a residual
//! connection adds it to a later result.

use crate::ops::Conv;
use crate::record::{SOURCE, compose};
use crate::{Error, Result, Tensor, cat, keep, no_grad, on_behalf_of_caller, set_device, stack};
use kiln_base::{DType, Scoped};
use kiln_ir::{OpError, Shape};
use kiln_lazy::node::Node;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

thread_local! {
    static MODE: RefCell<Mode> = const { RefCell::new(Mode::Floats) };
    static STORED: RefCell<Stored> = RefCell::default();
    static REDUCED: RefCell<bool> = const { RefCell::new(false) };
}

/// The values that calibrated layers have quantised, by node and output, each with its dequantised value.
type Stored = HashMap<(*const Node, u32), (Tensor, Tensor)>;

fn key(t: &Tensor) -> (*const Node, u32) {
    (Arc::as_ptr(&t.handle.node), t.handle.output)
}

/// Returns the values that operations read: dequantised values in place of those that are stored as bytes.
pub(crate) fn read(values: &[Tensor]) -> Cow<'_, [Tensor]> {
    STORED.with_borrow(|stored| {
        let known = |t: &Tensor| Some(stored.get(&key(t))?.1.handle.clone());
        if stored.is_empty() || !values.iter().any(|t| known(t).is_some()) {
            return Cow::Borrowed(values);
        }
        let read = |t: &Tensor| Tensor {
            handle: known(t).unwrap_or_else(|| t.handle.clone()),
            ..t.clone()
        };
        values.iter().map(read).collect()
    })
}

/// The mode of the layers of this thread.
enum Mode {
    Floats,
    /// The inputs of layers are observed.
    Observed(Vec<Observed>),
    /// The inputs of linear layers are quantised by their own range, computed in each run.
    Dynamic,
    /// The inputs of layers are quantised by observed ranges, one for each layer in order.
    Known(Arc<[Range]>, usize),
}

/// The smallest and the largest number that a layer reads, not computed yet.
struct Observed {
    weight: Shape,
    ends: (Tensor, Tensor),
}

/// The range of a layer's input. The shape of the layer's weight identifies the layer.
#[derive(Clone, Debug, PartialEq)]
struct Range {
    weight: Shape,
    ends: [f64; 2],
}

impl Range {
    /// The scale, and the byte that represents 0.
    fn scale_and_zero_point(&self) -> (f64, i64) {
        let [least, largest] = [self.ends[0].min(0.0), self.ends[1].max(0.0)];
        let scale = ((largest - least) / max_byte()).max(f64::from(f32::MIN_POSITIVE));
        (scale, (-least / scale).round_ties_even() as i64)
    }
}

/// The largest byte that an input may have.
fn max_byte() -> f64 {
    match REDUCED.with_borrow(|reduced| *reduced) {
        true => 127.0,
        false => 255.0,
    }
}

/// The largest byte that a weight may have.
const MAX_WEIGHT: f64 = 127.0;

/// The ranges of the inputs of linear layers and convolutions of a network: what PyTorch's observers collect.
///
/// ```
/// use kiln_tensor::{Calibration, DType, Tensor, Var, compile};
/// let w = Var::parameter(Tensor::randn([10, 64], DType::F32))?;
/// let model = |x: &Tensor| x.relu().linear(&w);
///
/// let mut calibration = Calibration::new();
/// for _ in 0..3 {
///     calibration.observe(|| model(&Tensor::randn([8, 64], DType::F32)))?;
/// }
/// let x = Tensor::randn([8, 64], DType::F32);
/// let quantized = compile(&x, |x| calibration.quantized(|| model(&x)))?;
/// let (y, exact) = (quantized.run(&x)?, model(&x));
/// assert!((y - &exact).abs().mean(()).item::<f32>()? < 0.05 * exact.abs().mean(()).item::<f32>()?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Calibration(Arc<[Range]>);

impl Calibration {
    /// The calibration of a network that has not been observed yet.
    pub fn new() -> Calibration {
        Calibration::default()
    }

    /// Calls a function and records the range of the input of each linear layer and convolution of floats in it.
    /// Ranges extend those observed before.
    ///
    /// # Errors
    /// If an input can't be computed or is not finite, or if the layers differ from those observed before.
    pub fn observe<T>(&mut self, f: impl FnOnce() -> T) -> Result<T> {
        let inside = Scoped::new(&MODE, Mode::Observed(Vec::new()));
        let result = f();
        let observed = MODE.with_borrow_mut(|mode| std::mem::replace(mode, Mode::Floats));
        drop(inside);
        let Mode::Observed(observed) = observed else {
            return Err(value_error("another calibration was left open inside"));
        };
        // All of them are computed in one run.
        let ends = observed.iter().flat_map(|o| [&o.ends.0, &o.ends.1]);
        let ends: Vec<Tensor> = ends.map(|t| t.to_dtype(DType::F64)).collect();
        let ends = match ends.is_empty() {
            true => Vec::new(),
            false => stack(&ends, 0).to_vec::<f64>()?,
        };
        let mut ranges = Vec::with_capacity(observed.len());
        for (i, Observed { weight, .. }) in observed.into_iter().enumerate() {
            let mut ends = [ends[2 * i], ends[2 * i + 1]];
            if !ends.iter().all(|x| x.is_finite()) {
                return Err(value_error(format!(
                    "layer {i} reads numbers from {} to {}",
                    ends[0], ends[1]
                )));
            }
            if let Some(before) = self.0.get(i) {
                ends = [before.ends[0].min(ends[0]), before.ends[1].max(ends[1])];
            }
            ranges.push(Range { weight, ends });
        }
        let alike = |(a, b): (&Range, &Range)| a.weight == b.weight;
        let same = self.0.len() == ranges.len() && self.0.iter().zip(&ranges).all(alike);
        if !self.0.is_empty() && !same {
            return Err(value_error(
                "the layers are not those that were observed before",
            ));
        }
        self.0 = ranges.into();
        Ok(result)
    }

    /// Returns the number of observed layers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if no layer was observed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls a function with the observed layers, in the same order, such that each multiplies bytes. Results are f32
    /// (or the dtype of the input), and nothing is differentiated. A layer that was not observed is an error of the
    /// recorded operation.
    ///
    /// The input of a layer is rounded to a byte for everything that is recorded after the layer, not only for its
    /// product: a residual connection around it adds the rounded value.
    pub fn quantized<T>(&self, f: impl FnOnce() -> T) -> T {
        let _inside = Scoped::new(&MODE, Mode::Known(self.0.clone(), 0));
        let _stored = Scoped::new(&STORED, Stored::new());
        f()
    }
}

/// Calls a function in which each linear layer of floats multiplies bytes. The smallest and the largest number of an
/// input determine its quantisation (`torch.ao.quantization.quantize_dynamic`). Nothing is differentiated.
///
/// ```
/// use kiln_tensor::{DType, Tensor, quantize_dynamic};
/// let (x, w) = (Tensor::randn([8, 64], DType::F32), Tensor::randn([10, 64], DType::F32));
/// let (y, exact) = (quantize_dynamic(|| x.linear(&w)), x.linear(&w));
/// assert!((y - &exact).abs().mean(()).item::<f32>()? < 0.05 * exact.abs().mean(()).item::<f32>()?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn quantize_dynamic<T>(f: impl FnOnce() -> T) -> T {
    let _inside = Scoped::new(&MODE, Mode::Dynamic);
    f()
}

/// Calls a function in which [quantised](Calibration::quantized) layers, including [dynamic](quantize_dynamic) ones,
/// read only bytes from 0 to 127, which represent the same range in coarser steps: PyTorch's `reduce_range`, the
/// default of its quantisation for x86. Processors without VNNI multiply such bytes faster; others gain nothing.
///
/// ```
/// use kiln_tensor::{DType, Tensor, quantize_dynamic, reduce_range};
/// let (x, w) = (Tensor::randn([8, 64], DType::F32), Tensor::randn([10, 64], DType::F32));
/// let (y, exact) = (reduce_range(|| quantize_dynamic(|| x.linear(&w))), x.linear(&w));
/// assert!((y - &exact).abs().mean(()).item::<f32>()? < 0.1 * exact.abs().mean(()).item::<f32>()?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn reduce_range<T>(f: impl FnOnce() -> T) -> T {
    let _inside = Scoped::new(&REDUCED, true);
    f()
}

#[track_caller]
fn value_error(message: impl Into<String>) -> Error {
    Error::invalid("Calibration", message.into())
}

/// The source of the range that a layer's input is quantised by.
enum Input {
    Dynamic,
    Known(Range),
}

/// Records the operations of a layer at its caller's line, without derivatives, with operands read as they are.
#[track_caller]
fn for_caller(f: impl FnOnce() -> Tensor) -> Tensor {
    let _as_is = Scoped::new(&STORED, Stored::new());
    on_behalf_of_caller(SOURCE, || no_grad(f))
}

/// Makes later reads of a layer's input read its dequantised bytes.
#[track_caller]
fn store_input(x: &Tensor, input: &Input) {
    let Input::Known(range) = input else { return };
    if STORED.with_borrow(|stored| stored.contains_key(&key(x))) {
        return;
    }
    let (scale, zero) = range.scale_and_zero_point();
    let value = for_caller(|| {
        let (q, ..) = quantize_input(x, input);
        q.dequantize_per_tensor(scale, zero).to_dtype(x.dtype())
    });
    STORED.with_borrow_mut(|stored| stored.insert(key(x), (x.clone(), value)));
}

/// Returns the quantisation of the input of a layer, if the layer is quantised.
fn quantize_input_of(
    x: &Tensor,
    weight: &Tensor,
    is_linear: bool,
) -> Option<std::result::Result<Input, OpError>> {
    MODE.with_borrow_mut(|mode| {
        if !x.dtype().is_float() || !weight.dtype().is_float() {
            return None;
        }
        match mode {
            Mode::Floats => None,
            Mode::Observed(all) => {
                let x = x.detach();
                let weight = weight.dims().into();
                all.push(Observed {
                    weight,
                    ends: min_max(&x),
                });
                None
            }
            Mode::Dynamic => is_linear.then_some(Ok(Input::Dynamic)),
            Mode::Known(ranges, next) => {
                let range = ranges.get(*next).filter(|r| r.weight[..] == *weight.dims());
                *next += 1;
                let unknown = || {
                    OpError(format!(
                        "layer {} was not observed with a weight {}",
                        *next - 1,
                        weight.fact()
                    ))
                };
                Some(range.cloned().map(Input::Known).ok_or_else(unknown))
            }
        }
    })
}

/// The smallest and the largest element. If there may be no elements, a 0 is included, which every range of bytes
/// contains.
fn min_max(x: &Tensor) -> (Tensor, Tensor) {
    let sizes = (0..).zip(x.dims());
    let some: Vec<i64> = sizes
        .filter(|(_, d)| d.as_const().is_some_and(|n| n > 0))
        .map(|(a, _)| a)
        .collect();
    if some.len() == x.ndim() {
        return x.aminmax(());
    }
    let (smallest, largest) = match some.is_empty() {
        true => (x.clone(), x.clone()),
        false => x.aminmax(some),
    };
    let _here = set_device(x.device());
    let [smallest, largest] =
        [smallest, largest].map(|t| cat(&[t.flatten(()), Tensor::zeros([1], x.dtype())], 0));
    (smallest.amin(()), largest.amax(()))
}

/// A weight as signed bytes, and the scales to multiply them by, `[out]`.
fn quantize_weight(weight: &Tensor) -> (Tensor, Tensor) {
    let w = weight.detach().to_dtype(DType::F32);
    let dims: Vec<i64> = (1..w.ndim() as i64).collect();
    let largest = w.abs().amax(keep(dims)) / MAX_WEIGHT;
    let scale = largest.clamp(f64::from(f32::MIN_POSITIVE), f64::INFINITY);
    let bytes = (w / &scale).round().to_dtype(DType::I8);
    (bytes, scale.reshape([-1]))
}

/// The byte that represents 0.
enum Zero {
    Number(i64),
    Tensor(Tensor),
}

/// An input as bytes, their scale, and the byte that represents 0.
fn quantize_input(x: &Tensor, input: &Input) -> (Tensor, Tensor, Zero) {
    let x = x.detach().to_dtype(DType::F32);
    match input {
        Input::Known(range) => {
            let _here = set_device(x.device());
            let (scale, zero) = range.scale_and_zero_point();
            let q = x.quantize_up_to(scale, zero, DType::U8, max_byte() as i128);
            (q, Tensor::scalar(scale as f32), Zero::Number(zero))
        }
        Input::Dynamic => {
            let (smallest, largest) = min_max(&x);
            let smallest = smallest.clamp(f64::NEG_INFINITY, 0.0);
            let scale = (largest.clamp(0.0, f64::INFINITY) - &smallest) / max_byte();
            let scale = scale.clamp(f64::from(f32::MIN_POSITIVE), f64::INFINITY);
            let zero = -(smallest / &scale).round();
            let q = (x / &scale).round() + &zero;
            let q = q.clamp(0.0, max_byte()).to_dtype(DType::U8);
            (q, scale, Zero::Tensor(zero.to_dtype(DType::I32)))
        }
    }
}

/// Subtracts the contribution of the byte that represents 0 from sums of bytes. `weight_sum` is the sum of the weights of a
/// result.
fn less_zero(products: Tensor, zero: Zero, weight_sum: impl FnOnce() -> Tensor) -> Tensor {
    match zero {
        Zero::Number(0) => products,
        Zero::Number(zero) => products - weight_sum() * zero,
        Zero::Tensor(zero) => products - weight_sum() * zero,
    }
}

/// `x · weightᵀ + bias` of bytes, in the modes where linear layers multiply bytes.
#[track_caller]
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Option<Tensor> {
    if weight.ndim() != 2 {
        return None;
    }
    let input = match quantize_input_of(x, weight, true)? {
        Ok(input) => input,
        Err(e) => return Some(compose("linear", &[x, weight], |_| Err(e))),
    };
    store_input(x, &input);
    Some(for_caller(|| {
        let (w, factors) = quantize_weight(weight);
        let (q, scale, zero) = quantize_input(x, &input);
        let wide = w.to_dtype(DType::I32);
        let products = q.to_dtype(DType::I32).matmul(wide.t());
        let products = less_zero(products, zero, || wide.sum(1).to_dtype(DType::I32));
        dequantize(products, scale * factors, bias, x.dtype())
    }))
}

/// Converts sums to floats and adds the bias.
fn dequantize(products: Tensor, by: Tensor, bias: Option<&Tensor>, dtype: DType) -> Tensor {
    let y = products.to_dtype(DType::F32) * by;
    let y = match bias {
        Some(bias) => y + bias.detach().to_dtype(DType::F32),
        None => y,
    };
    y.to_dtype(dtype)
}

/// A convolution of bytes, in the modes where convolutions multiply bytes. `padding` gives the zeros on both sides of
/// each spatial dim; `convolve` does the convolution.
#[track_caller]
pub(crate) fn convolution(
    (called, x, weight): (&'static str, &Tensor, &Tensor),
    conv: &Conv,
    padding: impl FnOnce() -> std::result::Result<Vec<(usize, usize)>, OpError>,
    convolve: impl FnOnce(&Tensor, &Tensor, &Conv) -> Tensor,
) -> Option<Tensor> {
    let prepared = quantize_input_of(x, weight, false)?.and_then(|input| Ok((input, padding()?)));
    let (input, padding) = match prepared {
        Ok(prepared) => prepared,
        Err(e) => return Some(compose(called, &[x, weight], |_| Err(e))),
    };
    store_input(x, &input);
    Some(for_caller(|| {
        let (w, factors) = quantize_weight(weight);
        let (mut q, scale, zero) = quantize_input(x, &input);
        let mut options = Conv {
            bias: None,
            ..conv.clone()
        };
        if let (Zero::Number(byte), true) = (&zero, padding.iter().any(|p| *p != (0, 0))) {
            // The padding is the byte that represents 0.
            let sizes = padding
                .iter()
                .rev()
                .flat_map(|(low, high)| [*low as i64, *high as i64]);
            if *byte != 0 {
                q = q.pad(
                    sizes.collect::<Vec<_>>(),
                    crate::PadMode::Constant((*byte).into()),
                );
                options = options.padding(0);
            }
        }
        let wide = w.to_dtype(DType::I32);
        let products = convolve(&q.to_dtype(DType::I32), &wide, &options);
        let column = |v: Tensor| {
            let mut shape = vec![1i64; padding.len() + 1];
            shape[0] = -1;
            v.reshape(shape)
        };
        let dims: Vec<i64> = (1..w.ndim() as i64).collect();
        let products = less_zero(products, zero, || {
            column(wide.sum(dims).to_dtype(DType::I32))
        });
        let bias = conv.bias.as_ref().map(|b| column(b.clone()));
        dequantize(products, column(scale * factors), bias.as_ref(), x.dtype())
    }))
}

//! Initialisers (`torch.nn.init`). They assign a cell new values of its own shape and dtype, drawn from
//! the generator that [`manual_seed`](kiln_tensor::manual_seed) seeds.

use kiln_tensor::{DType, Error, PadMode, Result, Tensor, Var, options, set_device};

/// The dims of a weight that a scaled initialiser counts. Counting inputs keeps the variance of the forward pass,
/// counting outputs that of the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FanMode {
    /// The inputs of one output.
    #[default]
    FanIn,
    /// The outputs of one input.
    FanOut,
}

/// The function after a layer, for [`calculate_gain`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nonlinearity {
    /// None, or a convolution.
    Linear,
    /// The sigmoid.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// max(x, 0).
    Relu,
    /// A rectifier with this slope below 0.
    LeakyRelu(f64),
    /// The self-normalising ELU.
    Selu,
}

/// Returns the factor that keeps the variance through a nonlinearity: 1, 5/3 for tanh, √2 for relu, √(2 / (1 + slope²))
/// for leaky relu, 3/4 for selu.
pub fn calculate_gain(nonlinearity: Nonlinearity) -> f64 {
    match nonlinearity {
        Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
        Nonlinearity::Tanh => 5.0 / 3.0,
        Nonlinearity::Relu => 2f64.sqrt(),
        Nonlinearity::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
        Nonlinearity::Selu => 0.75,
    }
}

/// Uniform numbers in `[low, high)`.
///
/// # Errors
/// If the cell does not hold floats.
#[track_caller]
pub fn uniform_(var: &Var, low: f64, high: f64) -> Result<()> {
    check_float(var, "uniform_")?;
    var.uniform_(low, high)
}

/// Normal numbers.
///
/// # Errors
/// If the cell does not hold floats.
#[track_caller]
pub fn normal_(var: &Var, mean: f64, std: f64) -> Result<()> {
    check_float(var, "normal_")?;
    var.normal_(mean, std)
}

options! {
    /// The distribution of [`trunc_normal_`].
    TruncNormal () {
        /// The mean before truncation (default 0).
        mean: f64 = 0.0,
        /// The deviation before truncation (default 1).
        std: f64 = 1.0,
        /// The smallest number (default −2): PyTorch's `a`.
        low: f64 = -2.0,
        /// The largest number (default 2): PyTorch's `b`.
        high: f64 = 2.0,
    }
}

/// Normal numbers truncated to `[low, high]`.
///
/// ```
/// use kiln_nn::init::{TruncNormal, trunc_normal_};
/// use kiln_tensor::{DType, Tensor, Var};
/// let w = Var::parameter(Tensor::zeros([4, 3], DType::F32))?;
/// trunc_normal_(&w, TruncNormal::new().std(0.02))?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the cell does not hold floats, or the range is empty.
#[track_caller]
pub fn trunc_normal_(var: &Var, options: TruncNormal) -> Result<()> {
    let TruncNormal {
        mean,
        std,
        low,
        high,
    } = options;
    check_float(var, "trunc_normal_")?;
    if low >= high || std <= 0.0 {
        let message = format!("nothing lies in {low}..{high} with a deviation of {std}");
        return Err(Error::invalid("trunc_normal_", message));
    }
    let _here = set_device(var.device());
    // Applies the inverse of the distribution function to a uniform number between its values at both ends.
    let erf = |x: f64| Tensor::scalar((x - mean) / (std * 2f64.sqrt())).erf();
    let (from, to) = (erf(low), erf(high));
    let u = Tensor::rand(var.shape()?, DType::F64);
    let z = (&from + &(u * &(&to - &from))).erfinv();
    let values = (z * (std * 2f64.sqrt()) + mean).clamp(low, high);
    var.assign(values.to_dtype(var.dtype()))
}

/// The same number everywhere.
///
/// # Errors
/// If the assignment fails.
#[track_caller]
pub fn constant_(var: &Var, value: f64) -> Result<()> {
    let _here = set_device(var.device());
    var.assign(Tensor::full(var.shape()?, value, var.dtype()))
}

/// Ones.
///
/// # Errors
/// As [`constant_`].
#[track_caller]
pub fn ones_(var: &Var) -> Result<()> {
    constant_(var, 1.0)
}

/// Zeros.
///
/// # Errors
/// As [`constant_`].
#[track_caller]
pub fn zeros_(var: &Var) -> Result<()> {
    constant_(var, 0.0)
}

/// The identity, for a matrix.
///
/// # Errors
/// If the cell does not hold a matrix.
#[track_caller]
pub fn eye_(var: &Var) -> Result<()> {
    let &[n, m] = &var.shape()?[..] else {
        return Err(shape_error(var, "eye_", "a matrix"));
    };
    let _here = set_device(var.device());
    var.assign(Tensor::eye((n, m), var.dtype()))
}

/// A random matrix of orthonormal rows or columns, whichever are fewer, times `gain`; dims after the first count as
/// columns (Saxe et al., 2013).
///
/// # Errors
/// If the cell holds fewer than 2 dims, or no floats.
#[track_caller]
pub fn orthogonal_(var: &Var, gain: f64) -> Result<()> {
    check_float(var, "orthogonal_")?;
    let shape = var.shape()?;
    if shape.len() < 2 {
        return Err(shape_error(var, "orthogonal_", "at least 2 dims"));
    }
    let (rows, columns) = (shape[0], shape[1..].iter().product::<usize>());
    let (count, len) = (rows.min(columns), rows.max(columns));
    let _here = set_device(var.device());
    let mut vectors = Tensor::randn([count, len], DType::F64).to_vec::<f64>()?;
    orthonormalize(&mut vectors, len.max(1));
    let q = Tensor::from_slice(&vectors, [count, len]) * gain;
    let q = if rows > columns { q.t() } else { q };
    let dims: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
    var.assign(q.reshape(dims).to_dtype(var.dtype()))
}

/// Makes vectors of `len` elements orthonormal, one after the other (modified Gram-Schmidt). A second pass removes
/// rounding errors.
fn orthonormalize(vectors: &mut [f64], len: usize) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for i in 0..vectors.len() / len {
        let (before, remaining) = vectors.split_at_mut(i * len);
        let v = &mut remaining[..len];
        for _ in 0..2 {
            for u in before.chunks(len) {
                let along = dot(u, v);
                v.iter_mut().zip(u).for_each(|(v, u)| *v -= along * u);
            }
        }
        let norm = dot(v, v).sqrt();
        v.iter_mut().for_each(|v| *v /= norm);
    }
}

/// Normal numbers in a matrix, where the fraction `sparsity` (rounded up) of each column is 0 (Martens, 2010).
///
/// # Errors
/// If the cell does not hold a matrix of floats, or the fraction is not within `0..=1`.
#[track_caller]
pub fn sparse_(var: &Var, sparsity: f64, std: f64) -> Result<()> {
    check_float(var, "sparse_")?;
    let &[rows, _] = &var.shape()?[..] else {
        return Err(shape_error(var, "sparse_", "a matrix"));
    };
    if !(0.0..=1.0).contains(&sparsity) {
        let message = format!("the sparsity must be within 0..=1, not {sparsity}");
        return Err(Error::invalid("sparse_", message));
    }
    let _here = set_device(var.device());
    // The ranks of random numbers in each column are a random order of its rows.
    let ranks = Tensor::rand(var.shape()?, DType::F64).argsort(0).argsort(0);
    let kept = ranks.ge((sparsity * rows as f64).ceil() as i64);
    let normal = Tensor::randn(var.shape()?, var.dtype()) * std;
    var.assign(&(normal * kept.to_dtype(var.dtype())))
}

/// The identity of a convolution, for a weight `[o, c, ..]` of 3 to 5 dims in `groups` groups: output
/// channel i of each group is input channel i, and the outputs beyond the inputs are 0.
///
/// # Errors
/// If the weight has another number of dims, or its outputs do not divide into the groups.
#[track_caller]
pub fn dirac_(var: &Var, groups: usize) -> Result<()> {
    let shape = var.shape()?;
    if !(3..=5).contains(&shape.len()) {
        return Err(shape_error(
            var,
            "dirac_",
            "a convolution's weight of 3 to 5 dims",
        ));
    }
    if groups == 0 || !shape[0].is_multiple_of(groups) {
        let message = format!("{} outputs do not divide into {groups} groups", shape[0]);
        return Err(Error::invalid("dirac_", message));
    }
    let _here = set_device(var.device());
    let outputs = (shape[0] / groups) as i64;
    let mut identity = Tensor::eye((outputs, shape[1]), var.dtype());
    let mut pad = Vec::new();
    for &k in &shape[2..] {
        identity = identity.unsqueeze(-1);
        // `pad` lists the last dim first.
        pad.splice(0..0, [k / 2, k.saturating_sub(k / 2 + 1)]);
    }
    let tap = identity.pad(pad, PadMode::ZEROS);
    let repeats = (0..shape.len()).map(|d| if d == 0 { groups } else { 1 });
    var.assign(tap.repeat(repeats.collect::<Vec<_>>()))
}

/// Uniform numbers within `± gain · √(6 / (fan_in + fan_out))` (Glorot and Bengio, 2010).
///
/// # Errors
/// If the cell holds fewer than 2 dims, or no floats.
#[track_caller]
pub fn xavier_uniform_(var: &Var, gain: f64) -> Result<()> {
    let bound = 3f64.sqrt() * xavier(var, "xavier_uniform_", gain)?;
    uniform_(var, -bound, bound)
}

/// Normal numbers with the deviation `gain · √(2 / (fan_in + fan_out))` (Glorot and Bengio, 2010).
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn xavier_normal_(var: &Var, gain: f64) -> Result<()> {
    let std = xavier(var, "xavier_normal_", gain)?;
    normal_(var, 0.0, std)
}

#[track_caller]
fn xavier(var: &Var, called: &str, gain: f64) -> Result<f64> {
    let (fan_in, fan_out) = fans(var, called)?;
    Ok(gain * (2.0 / (fan_in + fan_out).max(1.0)).sqrt())
}

/// [`kaiming_uniform_with_`] of PyTorch's defaults: `± √(6 / fan_in)`, for a rectifier after the layer.
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_uniform_(var: &Var) -> Result<()> {
    kaiming_uniform_with_(var, FanMode::FanIn, Nonlinearity::LeakyRelu(0.0))
}

/// Uniform numbers within `± gain · √(3 / fan)` (He et al., 2015).
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_uniform_with_(var: &Var, mode: FanMode, nonlinearity: Nonlinearity) -> Result<()> {
    let bound = 3f64.sqrt() * kaiming(var, "kaiming_uniform_", mode, nonlinearity)?;
    uniform_(var, -bound, bound)
}

/// [`kaiming_normal_with_`] of PyTorch's defaults: the deviation `√(2 / fan_in)`, for a rectifier after the layer.
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_normal_(var: &Var) -> Result<()> {
    kaiming_normal_with_(var, FanMode::FanIn, Nonlinearity::LeakyRelu(0.0))
}

/// Normal numbers with the deviation `gain / √fan` (He et al., 2015).
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_normal_with_(var: &Var, mode: FanMode, nonlinearity: Nonlinearity) -> Result<()> {
    let std = kaiming(var, "kaiming_normal_", mode, nonlinearity)?;
    normal_(var, 0.0, std)
}

#[track_caller]
fn kaiming(var: &Var, called: &str, mode: FanMode, nonlinearity: Nonlinearity) -> Result<f64> {
    let (fan_in, fan_out) = fans(var, called)?;
    let fan = match mode {
        FanMode::FanIn => fan_in,
        FanMode::FanOut => fan_out,
    };
    Ok(calculate_gain(nonlinearity) / fan.max(1.0).sqrt())
}

/// Returns the number of inputs of one output and of outputs of one input, for a weight `[out, in, ..]`.
#[track_caller]
fn fans(var: &Var, called: &str) -> Result<(f64, f64)> {
    let shape = var.shape()?;
    if shape.len() < 2 {
        return Err(shape_error(
            var,
            called,
            "at least 2 dims, to count inputs and outputs",
        ));
    }
    let taps: usize = shape[2..].iter().product();
    Ok(((shape[1] * taps) as f64, (shape[0] * taps) as f64))
}

#[track_caller]
fn check_float(var: &Var, called: &str) -> Result<()> {
    match var.dtype().is_float() {
        true => Ok(()),
        false => Err(shape_error(var, called, "floats")),
    }
}

#[track_caller]
fn shape_error(var: &Var, called: &str, wanted: &str) -> Error {
    let message = format!("needs {wanted}, not {var:?}");
    Error::invalid(called, message)
}

//! Printing tensors as PyTorch does (`torch/_tensor_str.py`).

use crate::{DType, Device, Error, ErrorKind, Result, Tensor, names};
use kiln_base::Loc;
use kiln_lazy::run::read;
use kiln_runtime::Buffer;
use kiln_runtime::lock::lock;
use std::fmt;
use std::sync::Mutex;

/// Options for printing tensors: PyTorch's `set_printoptions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintOptions {
    /// The number of digits after the decimal point.
    pub precision: usize,
    /// Tensors of more elements are summarised.
    pub threshold: usize,
    /// The number of elements that a summary shows at each end of a dim.
    pub edgeitems: usize,
    /// Characters in a line.
    pub linewidth: usize,
    /// True if floats print as `1.0000e+00`; `None` decides by their magnitudes.
    pub sci_mode: Option<bool>,
}

impl PrintOptions {
    /// PyTorch's defaults.
    pub const DEFAULT: PrintOptions = PrintOptions {
        precision: 4,
        threshold: 1000,
        edgeitems: 3,
        linewidth: 80,
        sci_mode: None,
    };
}

impl Default for PrintOptions {
    fn default() -> PrintOptions {
        PrintOptions::DEFAULT
    }
}

static OPTIONS: Mutex<PrintOptions> = Mutex::new(PrintOptions::DEFAULT);

/// Sets the options for printing tensors, for the whole process.
///
/// ```
/// use kiln_tensor::{PrintOptions, Tensor, set_printoptions};
/// set_printoptions(PrintOptions { precision: 2, ..Default::default() });
/// assert_eq!(Tensor::from([0.5f32, 2.0]).to_string(), "tensor([0.50, 2.00])");
/// ```
pub fn set_printoptions(options: PrintOptions) {
    *lock(&OPTIONS) = options;
}

/// Returns the options for printing tensors.
pub fn printoptions() -> PrintOptions {
    lock(&OPTIONS).clone()
}

impl fmt::Display for Tensor {
    /// Computes the values and prints them as PyTorch does; an error prints as its code frame.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The error is located at the tensor's own line: printing has no line of the user's.
        match self.to_text(&printoptions()) {
            Ok(text) => f.write_str(&text),
            Err(e) => write!(f, "{e}"),
        }
    }
}

impl fmt::Debug for Tensor {
    /// Prints the fact and where it was recorded; runs nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error() {
            Some(e) => write!(f, "Tensor({e})"),
            None => write!(
                f,
                "Tensor({} from {} at {}:{})",
                self.fact(),
                self.handle.node.called,
                self.handle.node.loc.file(),
                self.handle.node.loc.line()
            ),
        }
    }
}

impl Tensor {
    /// Returns the text printed under these options.
    ///
    /// # Errors
    /// As [`Tensor::realize`].
    pub fn to_text(&self, options: &PrintOptions) -> Result<String> {
        let shape = self.shape()?;
        let values = read::read(&self.handle, self.handle.node.loc)?;
        let numel = values.len();
        let mut text = "tensor(".to_string();
        if numel == 0 {
            text.push_str("[]");
        } else {
            let layout = Layout {
                options,
                edge: if numel > options.threshold {
                    options.edgeitems
                } else {
                    usize::MAX
                },
            };
            let shown = layout.shown(&shape);
            let (texts, width) = format_elements(&values, &shown, options).map_err(|e| {
                let loc = Loc::from(self.handle.node.loc);
                Error::new(ErrorKind::Internal, "print", e.to_string(), loc)
            })?;
            text.push_str(&layout.format_dim(&shape, &mut texts.into_iter(), width, 7));
        }
        for suffix in self.suffixes(&shape, numel) {
            let line = text.len() - text.rfind('\n').map_or(0, |newline| newline + 1);
            let gap = if line + suffix.len() + 2 > options.linewidth {
                ",\n       "
            } else {
                ", "
            };
            text.push_str(gap);
            text.push_str(&suffix);
        }
        Ok(text + ")")
    }

    /// The suffixes that PyTorch prints where device, size, dtype or names aren't the default.
    fn suffixes(&self, shape: &[usize], numel: usize) -> Vec<String> {
        let mut out = Vec::new();
        if self.device() != Device::Cpu {
            out.push(format!("device='{}'", self.device()));
        }
        if numel == 0 && shape.len() != 1 {
            let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
            out.push(format!("size=({})", sizes.join(", ")));
        }
        let usual = match self.dtype() {
            DType::F32 => true,
            DType::I64 | DType::Bool => numel > 0,
            _ => false,
        };
        if !usual {
            out.push(format!("dtype={}", self.dtype()));
        }
        if self.names.is_some() {
            out.push(format!("names={}", names::shown(&self.names())));
        }
        out
    }
}

/// The choice of elements that are shown, and their positions.
struct Layout<'a> {
    options: &'a PrintOptions,
    /// The number of elements shown at each end of a dim; the others are left out.
    edge: usize,
}

impl Layout<'_> {
    fn is_summarized(&self, n: usize) -> bool {
        n > self.edge.saturating_mul(2)
    }

    /// The indices of a dim that are shown.
    fn shown_indices(&self, n: usize) -> Vec<usize> {
        let indices = 0..n;
        let is_shown = |i: &usize| !self.is_summarized(n) || *i < self.edge || *i >= n - self.edge;
        indices.filter(is_shown).collect()
    }

    /// The positions of the elements that are shown.
    fn shown(&self, shape: &[usize]) -> Vec<usize> {
        let mut out = vec![0];
        for &n in shape {
            let shown_indices = self.shown_indices(n);
            let next = out
                .iter()
                .flat_map(|prefix| shown_indices.iter().map(move |i| prefix * n + i));
            out = next.collect();
        }
        out
    }

    fn format_dim(
        &self,
        shape: &[usize],
        texts: &mut impl Iterator<Item = String>,
        width: usize,
        indent: usize,
    ) -> String {
        let [n, rest @ ..] = shape else {
            return texts.next().unwrap_or_default().trim_start().to_string();
        };
        let shown_indices = self.shown_indices(*n).len();
        let mut items: Vec<String> = match rest {
            [] => texts.take(shown_indices).collect(),
            _ => (0..shown_indices)
                .map(|_| self.format_dim(rest, texts, width, indent + 1))
                .collect(),
        };
        let newline = format!(",{}{:2$}", "\n".repeat(rest.len().max(1)), "", indent + 1);
        if self.is_summarized(*n) {
            let dots = if rest.is_empty() { " ..." } else { "..." };
            items.insert(self.edge, dots.to_string());
        }
        if !rest.is_empty() {
            return format!("[{}]", items.join(&newline));
        }
        let in_line = (self.options.linewidth.saturating_sub(indent) / (width + 2)).max(1);
        let lines: Vec<String> = items.chunks(in_line).map(|line| line.join(", ")).collect();
        format!("[{}]", lines.join(&newline))
    }
}

/// The elements at these positions as texts, and their width.
fn format_elements(
    values: &Buffer,
    shown: &[usize],
    options: &PrintOptions,
) -> kiln_runtime::Result<(Vec<String>, usize)> {
    let (dtype, bytes) = (values.dtype(), values.bytes()?);
    let element = |i: &usize| &bytes[i * dtype.size()..][..dtype.size()];
    let shown: Vec<u8> = shown.iter().flat_map(element).copied().collect();
    if dtype.is_float() {
        return Ok(format_floats(&dtype.floats(&shown), options));
    }
    let text = |n: &i64| match (dtype, n) {
        (DType::Bool, 0) => "False".to_string(),
        (DType::Bool, _) => "True".to_string(),
        (DType::U64, n) => (*n as u64).to_string(),
        (_, n) => n.to_string(),
    };
    let texts = dtype.ints(&shown).iter().map(text).collect();
    Ok(right_align(texts, |_| true))
}

/// Right-aligns texts to the longest one for which `counts` is true. A longer text that doesn't count sticks out.
fn right_align(texts: Vec<String>, counts: impl Fn(usize) -> bool) -> (Vec<String>, usize) {
    let counted = texts.iter().enumerate().filter(|(i, _)| counts(*i));
    let width = counted.map(|(_, t)| t.len()).max().unwrap_or(1);
    let texts = texts.iter().map(|t| format!("{t:>width$}"));
    (texts.collect(), width)
}

/// Prints integral floats as `1.`, others with decimals, and all in scientific notation if their magnitudes differ
/// much. Zeros, infinities and NaN affect neither the notation nor the width.
fn format_floats(values: &[f64], options: &PrintOptions) -> (Vec<String>, usize) {
    let decides = |v: &f64| v.is_finite() && *v != 0.0;
    let sizes = || values.iter().filter(|v| decides(v)).map(|v| v.abs());
    let max = sizes().fold(0.0, f64::max);
    let min = sizes().fold(f64::INFINITY, f64::min);
    let are_integral = sizes().all(|v| v.fract() == 0.0);
    let wide = max > 0.0 && (max / min > 1000.0 || max > 1e8 || !are_integral && min < 1e-4);
    let scientific = options.sci_mode.unwrap_or(wide);
    let precision = options.precision;
    let text = |v: &f64| match *v {
        v if v.is_nan() => "nan".to_string(),
        f64::INFINITY => "inf".to_string(),
        f64::NEG_INFINITY => "-inf".to_string(),
        v if scientific => format_exponential(v, precision),
        v if are_integral => format!("{v:.0}."),
        v => format!("{v:.precision$}"),
    };
    right_align(values.iter().map(text).collect(), |i| decides(&values[i]))
}

/// C's `%e`: at least two digits of exponent, with a sign.
fn format_exponential(v: f64, precision: usize) -> String {
    let text = format!("{v:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

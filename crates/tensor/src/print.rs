//! Printing tensors.

use crate::{DType, Tensor};
use kiln_base::Kind;
use std::fmt;

/// Elements beyond this many are summarised.
const THRESHOLD: usize = 1000;
/// How many elements stand at each end of a summarised dim.
const EDGE: usize = 3;

impl fmt::Display for Tensor {
    /// Computes the values and prints them like PyTorch; an error prints as its code frame.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = match self.shape() {
            Ok(shape) => shape,
            Err(e) => return write!(f, "{e}"),
        };
        let values = match self.numbers() {
            Ok(values) => values,
            Err(e) => return write!(f, "{e}"),
        };
        let shown = if values.len() > THRESHOLD {
            EDGE
        } else {
            usize::MAX
        };
        let texts = format_numbers(&values, self.dtype());
        f.write_str("tensor(")?;
        write_dim(f, &texts, &shape, shown, 7)?;
        if values.is_empty() {
            write!(f, ", size={shape:?}")?;
        }
        if !matches!(self.dtype(), DType::F32 | DType::I64 | DType::Bool) {
            write!(f, ", dtype={}", self.dtype())?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Tensor {
    /// The fact and where it was recorded; runs nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error() {
            Some(e) => write!(f, "Tensor({e})"),
            None => write!(
                f,
                "Tensor({} from {} at {}:{})",
                self.fact(),
                self.node.called,
                self.node.loc.file(),
                self.node.loc.line()
            ),
        }
    }
}

impl Tensor {
    /// The values as f64 (integers beyond 2^53 round), for printing.
    fn numbers(&self) -> crate::Result<Vec<f64>> {
        match self.dtype().kind() {
            Kind::Float => self.to_dtype(DType::F64).to_vec::<f64>(),
            _ => Ok(self
                .to_dtype(DType::I64)
                .to_vec::<i64>()?
                .into_iter()
                .map(|i| i as f64)
                .collect()),
        }
    }
}

/// Texts of one width: four decimals, or scientific where magnitudes differ much.
fn format_numbers(values: &[f64], dtype: DType) -> Vec<String> {
    let finite = || {
        values
            .iter()
            .filter(|v| v.is_finite() && **v != 0.0)
            .map(|v| v.abs())
    };
    let max = finite().fold(0.0, f64::max);
    let min = finite().fold(f64::INFINITY, f64::min);
    let whole = values.iter().all(|v| !v.is_finite() || v.fract() == 0.0);
    let scientific = dtype.is_float() && (max >= 1e8 || min < 1e-4 || max / min > 1000.0 && !whole);
    let text = |v: &f64| match dtype.kind() {
        Kind::Bool => if *v != 0.0 { "true" } else { "false" }.to_string(),
        Kind::Int => format!("{}", *v as i64),
        Kind::Float if v.is_nan() => "nan".to_string(),
        Kind::Float if v.is_infinite() => if *v > 0.0 { "inf" } else { "-inf" }.to_string(),
        Kind::Float if scientific => format!("{v:.4e}"),
        Kind::Float if whole => format!("{v:.0}."),
        Kind::Float => format!("{v:.4}"),
    };
    let texts: Vec<String> = values.iter().map(text).collect();
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    texts.iter().map(|t| format!("{t:>width$}")).collect()
}

fn write_dim(
    f: &mut fmt::Formatter<'_>,
    texts: &[String],
    shape: &[usize],
    shown: usize,
    indent: usize,
) -> fmt::Result {
    let [n, rest @ ..] = shape else {
        return f.write_str(texts.first().map_or("", |t| t.trim()));
    };
    let stride: usize = rest.iter().product();
    f.write_str("[")?;
    let skip = *n > shown.saturating_mul(2);
    for i in 0..*n {
        if skip && i >= shown && i < n - shown {
            continue;
        }
        let gap = if rest.is_empty() {
            " ".to_string()
        } else {
            format!("{}{:2$}", "\n".repeat(rest.len()), "", indent + 1)
        };
        if i > 0 {
            write!(f, ",{gap}")?;
        }
        if skip && i == n - shown {
            write!(f, "...,{gap}")?;
        }
        write_dim(
            f,
            &texts[i * stride..(i + 1) * stride],
            rest,
            shown,
            indent + 1,
        )?;
    }
    f.write_str("]")
}

//! Printing tensors.

use crate::{DType, Error, ErrorKind, Result, Tensor, realize};
use half::{bf16, f16};
use kiln_base::Loc;
use kiln_runtime::{Buffer, Element};
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
        // Drawn at the tensor's own line: printing has none of the user's.
        let texts = match realize::read(self, self.node.loc).and_then(|b| self.texts(&b)) {
            Ok(texts) => texts,
            Err(e) => return write!(f, "{e}"),
        };
        f.write_str("tensor(")?;
        if texts.is_empty() {
            write!(f, "[], size={shape:?}")?;
        } else {
            let many = texts.len() > THRESHOLD;
            let shown = if many { EDGE } else { usize::MAX };
            write_dim(f, &texts, &shape, shown, 7)?;
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
    /// The elements as texts of one width.
    fn texts(&self, values: &Buffer) -> Result<Vec<String>> {
        let texts = match self.dtype() {
            DType::Bool => exact::<bool>(values),
            DType::U8 => exact::<u8>(values),
            DType::I8 => exact::<i8>(values),
            DType::I16 => exact::<i16>(values),
            DType::I32 => exact::<i32>(values),
            DType::I64 => exact::<i64>(values),
            DType::U16 => exact::<u16>(values),
            DType::U32 => exact::<u32>(values),
            DType::U64 => exact::<u64>(values),
            DType::F16 => floats::<f16>(values),
            DType::BF16 => floats::<bf16>(values),
            DType::F32 => floats::<f32>(values),
            DType::F64 => floats::<f64>(values),
        };
        let texts = texts.map_err(|e| {
            let loc = Loc::from(self.node.loc);
            Error::new(ErrorKind::Internal, "print", e.to_string(), loc)
        })?;
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        Ok(texts.iter().map(|t| format!("{t:>width$}")).collect())
    }
}

fn exact<T: Element + fmt::Display>(values: &Buffer) -> kiln_runtime::Result<Vec<String>> {
    Ok(values.as_slice::<T>()?.iter().map(T::to_string).collect())
}

/// Four decimals, or scientific where magnitudes differ much.
fn floats<T: Element + Into<f64>>(values: &Buffer) -> kiln_runtime::Result<Vec<String>> {
    let values: Vec<f64> = values.to_vec::<T>()?.into_iter().map(T::into).collect();
    let finite = || {
        values
            .iter()
            .filter(|v| v.is_finite() && **v != 0.0)
            .map(|v| v.abs())
    };
    let max = finite().fold(0.0, f64::max);
    let min = finite().fold(f64::INFINITY, f64::min);
    let whole = values.iter().all(|v| !v.is_finite() || v.fract() == 0.0);
    let scientific = max >= 1e8 || min < 1e-4 || max / min > 1000.0 && !whole;
    let text = |v: &f64| match *v {
        v if v.is_nan() => "nan".to_string(),
        f64::INFINITY => "inf".to_string(),
        f64::NEG_INFINITY => "-inf".to_string(),
        v if scientific => format!("{v:.4e}"),
        v if whole => format!("{v:.0}."),
        v => format!("{v:.4}"),
    };
    Ok(values.iter().map(text).collect())
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

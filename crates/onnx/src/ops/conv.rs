//! Convolutions, and the windows that they share with pooling.

use super::shape::pad_constant;
use super::{Record, quantize};
use crate::call::{Call, Results, known_size, single};
use crate::fault::{invalid, unsupported};
use kiln_base::Dim;
use kiln_tensor::{Conv, ConvTranspose, Result, Scalar, Tensor};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "Conv" => conv,
        "ConvTranspose" => conv_transpose,
        _ => return None,
    })
}

/// The windows of a convolution or a pooling, with a number for each spatial axis.
#[derive(Clone)]
pub(super) struct Windows {
    pub kernel: Vec<i64>,
    pub strides: Vec<i64>,
    pub dilations: Vec<i64>,
    pub before: Vec<i64>,
    pub after: Vec<i64>,
}

impl Windows {
    /// The windows that attributes describe, over an input of `[n, c, ..]`.
    pub fn new(c: &Call, x: &Tensor, kernel: Option<Vec<i64>>) -> Result<Windows> {
        let spatial = x.ndim().saturating_sub(2);
        if spatial == 0 {
            return Err(invalid(format!(
                "needs an input of at least 3 dims, not {}",
                x.ndim()
            )));
        }
        let kernel = c.ints("kernel_shape")?.or(kernel);
        let kernel = kernel.ok_or_else(|| invalid("kernel_shape is missing"))?;
        let per_axis =
            |name: &str| Ok::<_, kiln_tensor::Error>(c.ints(name)?.unwrap_or(vec![1; spatial]));
        let (strides, dilations) = (per_axis("strides")?, per_axis("dilations")?);
        let pads = c.ints("pads")?.unwrap_or(vec![0; 2 * spatial]);
        let lists = [kernel.len(), strides.len(), dilations.len()];
        if lists != [spatial; 3] || pads.len() != 2 * spatial {
            return Err(invalid(format!(
                "{spatial} spatial dims don't fit the attributes' lists"
            )));
        }
        if kernel
            .iter()
            .chain(&strides)
            .chain(&dilations)
            .any(|n| *n < 1 || *n > i64::from(i32::MAX))
        {
            return Err(invalid(
                "kernel sizes, strides and dilations must be positive",
            ));
        }
        let mut windows = Windows {
            before: pads[..spatial].to_vec(),
            after: pads[spatial..].to_vec(),
            kernel,
            strides,
            dilations,
        };
        let mode = c.text("auto_pad", "NOTSET")?;
        match mode {
            "NOTSET" | "" => {}
            "VALID" => {
                windows.before.fill(0);
                windows.after.fill(0);
            }
            "SAME_UPPER" | "SAME_LOWER" => {
                for a in 0..spatial {
                    let total = windows.same_padding(a, x)?;
                    let (small, large) = (total / 2, total - total / 2);
                    (windows.before[a], windows.after[a]) = match mode {
                        "SAME_UPPER" => (small, large),
                        _ => (large, small),
                    };
                }
            }
            other => return Err(invalid(format!("there is no auto_pad {other:?}"))),
        }
        Ok(windows)
    }

    /// Returns the distance from the first to behind the last element of a window.
    pub fn extent(&self, a: usize) -> i64 {
        (self.kernel[a] - 1) * self.dilations[a] + 1
    }

    /// Returns the padding with which a window starts at each stride of an axis.
    fn same_padding(&self, a: usize, x: &Tensor) -> Result<i64> {
        let (stride, extent) = (self.strides[a], self.extent(a));
        if stride == 1 {
            return Ok(extent - 1);
        }
        let n = known_size(x, a + 2)?;
        Ok((((n + stride - 1) / stride - 1) * stride + extent - n).max(0))
    }

    /// Returns the spatial axes.
    pub fn axes(&self) -> Vec<usize> {
        (2..2 + self.kernel.len()).collect()
    }

    /// True if as much is padded before each axis as after it.
    pub fn is_symmetric(&self) -> bool {
        self.before == self.after
    }

    /// Returns the windows of an input that has its border already.
    pub fn without_border(&self) -> Windows {
        let none = vec![0; self.kernel.len()];
        Windows {
            before: none.clone(),
            after: none,
            ..self.clone()
        }
    }

    /// Returns the input with a border of this value.
    pub fn padded(&self, x: &Tensor, value: Scalar) -> Tensor {
        pad_constant(x, &self.axes(), &self.before, &self.after, value)
    }
}

/// The windows of a convolution, of the weight's extent unless an attribute says another.
pub(super) fn weight_windows(c: &Call, x: &Tensor, weight: &Tensor) -> Result<Windows> {
    let (dims, own) = (x.ndim(), weight.ndim());
    if own != dims || dims < 2 {
        return Err(invalid(format!(
            "a weight of {own} dims for an input of {dims}"
        )));
    }
    Windows::new(c, x, weight.dims()[2..].iter().map(Dim::as_const).collect())
}

fn conv(c: &Call) -> Results {
    if let Some(y) = quantize::convolution(c)? {
        return single(y);
    }
    let (x, weight) = (c.tensor(0)?, c.tensor(1)?);
    let windows = weight_windows(c, &x, &weight)?;
    single(convolve_windows(c, &windows, &x, &weight, c.optional(2)?)?)
}

/// The convolution of an input with a weight over these windows.
pub(super) fn convolve_windows(
    c: &Call,
    w: &Windows,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<Tensor>,
) -> Result<Tensor> {
    let options = Conv::new()
        .stride(w.strides.clone())
        .dilation(w.dilations.clone())
        .groups(c.int("group", 1)?)
        .bias(bias);
    let symmetric = w.is_symmetric() && w.before.iter().all(|p| *p >= 0);
    let (x, options) = match symmetric {
        true => (x.clone(), options.padding(w.before.clone())),
        false => (w.padded(x, Scalar::Int(0)), options),
    };
    convolution(&x, weight, options)
}

/// The convolution over the spatial dims, at most three.
pub(super) fn convolution(x: &Tensor, weight: &Tensor, options: Conv) -> Result<Tensor> {
    match x.ndim().saturating_sub(2) {
        1 => Ok(x.conv1d_with(weight, options)),
        2 => Ok(x.conv2d_with(weight, options)),
        3 => Ok(x.conv3d_with(weight, options)),
        n => Err(unsupported(format!("windows over {n} dims"))),
    }
}

fn conv_transpose(c: &Call) -> Results {
    let (x, weight) = (c.tensor(0)?, c.tensor(1)?);
    let mode = c.text("auto_pad", "NOTSET")?;
    let w = weight_windows(c, &x, &weight)?;
    let spatial = w.kernel.len();
    let extra = c.ints("output_padding")?.unwrap_or(vec![0; spatial]);
    let output_shape = c.ints("output_shape")?;
    if extra.len() != spatial || output_shape.as_ref().is_some_and(|s| s.len() != spatial) {
        return Err(invalid(
            "output_padding and output_shape need a number for each spatial dim",
        ));
    }
    let (mut before, mut after) = (w.before.clone(), w.after.clone());
    for a in 0..spatial {
        let n = || known_size(&x, a + 2);
        let full = |n: i64| (n - 1) * w.strides[a] + w.extent(a) + extra[a];
        let total_padding = match (&output_shape, mode) {
            (Some(output_shape), _) => full(n()?) - output_shape[a],
            (None, "SAME_UPPER" | "SAME_LOWER") => {
                let n = n()?;
                full(n) - n * w.strides[a]
            }
            _ => continue,
        };
        // Missing elements lie at the end.
        let half = total_padding.max(0) / 2;
        // As ONNX has it: the odd one lies at the end for SAME_UPPER, else before.
        (before[a], after[a]) = match mode {
            _ if total_padding < 0 => (0, total_padding),
            "SAME_UPPER" => (half, total_padding - half),
            _ => (total_padding - half, half),
        };
    }
    // Missing elements at the end are padded, extra ones cropped.
    let fits = |a: usize| {
        before[a] == after[a] && before[a] >= 0 && extra[a] < w.strides[a].max(w.dilations[a])
    };
    let direct = (0..spatial).all(fits);
    let bias = c.optional(2)?;
    let mut options = ConvTranspose::new()
        .stride(w.strides.clone())
        .dilation(w.dilations.clone())
        .groups(c.int("group", 1)?);
    if direct {
        options = options
            .padding(before.clone())
            .output_padding(extra.clone())
            .bias(&bias);
    }
    let y = match spatial {
        1 => x.conv_transpose1d_with(weight, options),
        2 => x.conv_transpose2d_with(weight, options),
        3 => x.conv_transpose3d_with(weight, options),
        n => {
            return Err(unsupported(format!(
                "a transposed convolution over {n} dims"
            )));
        }
    };
    if direct {
        return single(y);
    }
    let crop: Vec<i64> = before.iter().map(|b| -b).collect();
    let end: Vec<i64> = (0..spatial).map(|a| extra[a] - after[a]).collect();
    let y = pad_constant(&y, &w.axes(), &crop, &end, Scalar::Int(0));
    match bias {
        Some(bias) => single(y + per_channel(&bias, spatial)),
        None => single(y),
    }
}

/// Returns a vector as `[c, 1, ..]`, which broadcasts over spatial axes.
pub(super) fn per_channel(t: &Tensor, spatial: usize) -> Tensor {
    (0..spatial).fold(t.clone(), |t, _| t.unsqueeze(-1))
}

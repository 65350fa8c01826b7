//! Pooling.

use super::conv::{Windows, convolution};
use super::shape::pad_constant;
use super::{Record, sum_dtype};
use crate::call::{Call, Results, known_size, single};
use crate::fault::{invalid, unsupported};
use kiln_base::{Dim, numel};
use kiln_tensor::{AvgPool, Conv, Pool, Result, Scalar, Tensor, keep};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "AveragePool" => average,
        "GlobalAveragePool" => |c| pool_globally(c, |x, a| x.mean(keep(a))),
        "GlobalLpPool" => |c| {
            let p = c.int("p", 2)? as f64;
            pool_globally(c, |x, a| x.abs().pow(p).sum(keep(a)).pow(1.0 / p))
        },
        "GlobalMaxPool" => |c| pool_globally(c, |x, a| x.amax(keep(a))),
        "LpPool" => lp,
        "MaxPool" => max,
        _ => return None,
    })
}

fn pool_globally(c: &Call, f: impl Fn(&Tensor, Vec<usize>) -> Tensor) -> Results {
    let x = c.tensor(0)?;
    if x.ndim() < 3 {
        return Err(invalid(format!("needs at least 3 dims, not {}", x.ndim())));
    }
    single(f(&x, (2..x.ndim()).collect()))
}

fn max(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let w = Windows::new(c, &x, None)?;
    let spatial = w.kernel.len();
    let ceil = c.flag("ceil_mode", false)?;
    let direct =
        w.is_symmetric() && (0..spatial).all(|a| (0..=w.kernel[a] / 2).contains(&w.before[a]));
    if !direct && c.wants(1) {
        return Err(unsupported(
            "positions of maxima with different padding at both ends",
        ));
    }
    let lowest = match x.dtype().int_range() {
        Some((low, _)) => Scalar::Int(low as i64),
        None => Scalar::Float(f64::NEG_INFINITY),
    };
    let (padded, padding) = match direct {
        true => (x.clone(), w.before.clone()),
        false => (w.padded(&x, lowest), vec![0; spatial]),
    };
    let options = Pool::new(w.kernel.clone())
        .stride(w.strides.clone())
        .dilation(w.dilations.clone())
        .padding(padding)
        .ceil_mode(ceil);
    if !c.wants(1) {
        return match spatial {
            1 => single(padded.max_pool1d(options)),
            2 => single(padded.max_pool2d(options)),
            3 => single(padded.max_pool3d(options)),
            n => Err(unsupported(format!("pooling over {n} dims"))),
        };
    }
    let (y, index) = match spatial {
        1 => padded.max_pool1d_with_indices(options),
        2 => padded.max_pool2d_with_indices(options),
        3 => padded.max_pool3d_with_indices(options),
        n => return Err(unsupported(format!("pooling over {n} dims"))),
    };
    // Positions count over the whole input.
    let plane = numel(&x.dims()[2..]).as_const();
    let plane = plane.ok_or_else(|| invalid("positions of maxima need known sizes"))?;
    let index = match (c.int("storage_order", 0)?, &x.dims()[2..]) {
        (0, _) => index,
        (_, [Dim::Const(h), Dim::Const(width)]) => {
            let row = index.floor_divide(*width);
            index.remainder(*width) * *h + row
        }
        _ => return Err(unsupported("column-major positions of other than 2 dims")),
    };
    let mut leading_dims = vec![Dim::ONE; x.ndim()];
    leading_dims[..2].clone_from_slice(&x.dims()[..2]);
    let images = crate::value::iota(&numel(&x.dims()[..2])).reshape(leading_dims) * plane;
    Ok(vec![y.into(), (index + images).into()])
}

/// Sums over windows of any axes, by a convolution with ones. The input has its border already.
fn window_sum(x: &Tensor, w: &Windows) -> Result<Tensor> {
    let [n, channels, rest @ ..] = x.dims() else {
        return Err(invalid("needs channels"));
    };
    let planes = [&[n * channels, Dim::ONE], rest].concat();
    let window_ones = Tensor::ones([&[1, 1], &w.kernel[..]].concat(), x.dtype());
    let options = Conv::new()
        .stride(w.strides.clone())
        .dilation(w.dilations.clone());
    let planes = x.reshape(planes);
    let window_sums = convolution(&planes, &window_ones, options)?;
    window_sums.check()?;
    let shape = [&[n.clone(), channels.clone()], &window_sums.dims()[2..]].concat();
    Ok(window_sums.reshape(shape))
}

/// Returns the elements behind the border that a last window needs, which starts within the input or the border
/// before it.
fn ceil_border(x: &Tensor, w: &Windows) -> Result<Vec<i64>> {
    let needed = |a: usize| {
        let n = known_size(x, a + 2)?;
        let (padded_len, stride) = (n + w.before[a] + w.after[a] - w.extent(a), w.strides[a]);
        let mut count = (padded_len + stride - 1).div_euclid(stride) + 1;
        if (count - 1) * stride >= n + w.before[a] {
            count -= 1;
        }
        Ok(((count - 1) * stride - padded_len).max(0))
    };
    (0..w.kernel.len()).map(needed).collect()
}

fn average(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let w = Windows::new(c, &x, None)?;
    let spatial = w.kernel.len();
    let (ceil, counts_border) = (
        c.flag("ceil_mode", false)?,
        c.flag("count_include_pad", false)?,
    );
    let plain = w.dilations.iter().all(|d| *d == 1)
        && w.is_symmetric()
        && (0..spatial).all(|a| (0..=w.kernel[a] / 2).contains(&w.before[a]));
    if plain {
        let options = AvgPool::new(w.kernel.clone())
            .stride(w.strides.clone())
            .padding(w.before.clone())
            .ceil_mode(ceil)
            .count_include_pad(counts_border);
        return match spatial {
            1 => single(x.avg_pool1d(options)),
            2 => single(x.avg_pool2d(options)),
            3 => single(x.avg_pool3d(options)),
            n => Err(unsupported(format!("pooling over {n} dims"))),
        };
    }
    let extra = match ceil {
        true => ceil_border(&x, &w)?,
        false => vec![0; spatial],
    };
    let none = vec![0; spatial];
    let bordered = |t: &Tensor, inner: Scalar| {
        let t = w.padded(t, inner);
        pad_constant(&t, &w.axes(), &none, &extra, Scalar::Int(0))
    };
    let mut plane = x.dims().to_vec();
    (plane[0], plane[1]) = (Dim::ONE, Dim::ONE);
    let counted = Tensor::ones(plane, x.dtype());
    let counts = window_sum(&bordered(&counted, Scalar::Float(counts_border.into())), &w)?;
    single(window_sum(&bordered(&x, Scalar::Int(0)), &w)? / counts)
}

fn lp(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let w = Windows::new(c, &x, None)?;
    let p = c.int("p", 2)? as f64;
    let extra = match c.flag("ceil_mode", false)? {
        true => ceil_border(&x, &w)?,
        false => vec![0; w.kernel.len()],
    };
    let powers = x.abs().pow(p);
    let powers = w.padded(&powers, Scalar::Int(0));
    let none = vec![0; w.kernel.len()];
    let powers = pad_constant(&powers, &w.axes(), &none, &extra, Scalar::Int(0));
    let dtype = x.dtype();
    let wide = powers.to_dtype(sum_dtype(dtype));
    single(window_sum(&wide, &w)?.pow(1.0 / p).to_dtype(dtype))
}

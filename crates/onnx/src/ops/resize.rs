//! Resizing: along each axis, a weighted sum of neighbours.

use super::Record;
use crate::call::{Call, Results, axes, single};
use crate::fault::{invalid, unsupported};
use kiln_base::Dim;
use kiln_tensor::{DType, Result, Tensor};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "Resize" | "Upsample" => resize,
        _ => return None,
    })
}

/// The maximum number of weights along an axis.
const MAX_WEIGHTS: usize = 1 << 26;

/// The mapping of positions to the input, and the weights of neighbours there.
struct Resize<'a> {
    coordinates: &'a str,
    mode: &'a str,
    nearest: &'a str,
    cubic_a: f64,
    antialias: bool,
    exclude_outside: bool,
}

/// An axis that is resized.
struct Axis {
    index: usize,
    n: i64,
    out: i64,
    scale: f64,
    /// The first and last position of the region, as a part of the axis.
    region: (f64, f64),
}

fn resize(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let rank = x.ndim();
    let old = c.version < 11;
    let list = match c.ints("axes")? {
        Some(list) => axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    let filled = |numbers: Option<Vec<f64>>| numbers.filter(|l| !l.is_empty());
    let (scales, sizes, region) = match old {
        true => {
            let attribute = match c.version < 9 {
                true => c.floats("scales")?,
                false => None,
            };
            (filled(attribute.or(c.numbers(1)?)), None, None)
        }
        false => (
            filled(c.numbers(2)?),
            filled(c.numbers(3)?),
            filled(c.numbers(1)?),
        ),
    };
    let method = Resize {
        coordinates: match old {
            true => "asymmetric",
            false => c.text("coordinate_transformation_mode", "half_pixel")?,
        },
        mode: c.text("mode", "nearest")?,
        nearest: match old {
            true => "floor",
            false => c.text("nearest_mode", "round_prefer_floor")?,
        },
        cubic_a: c.float("cubic_coeff_a", -0.75)?,
        antialias: c.flag("antialias", false)?,
        exclude_outside: c.flag("exclude_outside", false)?,
    };
    let crops = method.coordinates == "tf_crop_and_resize";
    if crops && region.as_ref().is_none_or(|r| r.len() != 2 * list.len()) {
        return Err(invalid("tf_crop_and_resize needs a region"));
    }
    let known = |dim: usize| {
        let n = x.dims()[dim].as_const();
        n.filter(|n| *n > 0)
            .ok_or_else(|| invalid("needs sizes that are known and not 0"))
    };
    // The new sizes where they are not the scaled ones, rounded down.
    let (scales, sizes) = match (scales, sizes) {
        (Some(scales), None) if scales.len() == list.len() => (scales, None),
        (None, Some(sizes)) if sizes.len() == list.len() => {
            let old: Vec<f64> = list
                .iter()
                .map(|dim| Ok(known(*dim)? as f64))
                .collect::<Result<_>>()?;
            let scales: Vec<f64> = sizes.iter().zip(&old).map(|(size, n)| size / n).collect();
            let kept = match c.text("keep_aspect_ratio_policy", "stretch")? {
                "stretch" => None,
                "not_larger" => scales.iter().copied().reduce(f64::min),
                "not_smaller" => scales.iter().copied().reduce(f64::max),
                other => return Err(invalid(format!("there is no policy {other:?}"))),
            };
            match kept {
                None => (scales, Some(sizes)),
                Some(scale) => {
                    let sizes = old.iter().map(|n| (scale * n + 0.5).floor());
                    (vec![scale; list.len()], Some(sizes.collect()))
                }
            }
        }
        _ => return Err(invalid("needs scales or sizes, one for each axis")),
    };
    let mut resized: Vec<Axis> = Vec::new();
    for (i, (dim, scale)) in list.iter().zip(scales).enumerate() {
        // An axis that stays may have any size.
        if sizes.is_none() && scale == 1.0 && !crops {
            continue;
        }
        let n = known(*dim)?;
        let out = match &sizes {
            None => (n as f64 * scale).floor(),
            Some(sizes) => sizes[i],
        };
        if !(0.0..1e9).contains(&out) {
            return Err(invalid(format!("can't resize {n} by {scale} to {out}")));
        }
        resized.push(Axis {
            index: *dim,
            n,
            out: out as i64,
            scale,
            region: match &region {
                Some(region) if crops => (region[i], region[i + list.len()]),
                _ => (0.0, 1.0),
            },
        });
    }
    let dtype = x.dtype();
    let outside_value = c.float("extrapolation_value", 0.0)?;
    let exact = method.mode == "nearest";
    let mut y = if exact || dtype.is_float() {
        x
    } else {
        x.to_dtype(DType::F32)
    };
    for axis in resized {
        if axis.n == axis.out && axis.scale == 1.0 && axis.region == (0.0, 1.0) {
            continue;
        }
        let positions: Vec<f64> = (0..axis.out)
            .map(|i| method.position(&axis, i as f64))
            .collect::<Result<_>>()?;
        y = method.resize_axis(&y, &axis, &positions)?;
        y.check()?;
        if crops {
            let last = (axis.n - 1) as f64;
            let outside: Vec<bool> = positions.iter().map(|p| *p < 0.0 || *p > last).collect();
            if outside.contains(&true) {
                let mask = Tensor::from(outside).reshape(shape_along(&y, axis.index, axis.out));
                y = y.masked_fill(mask, outside_value);
            }
        }
    }
    single(y.to_dtype(dtype))
}

/// Returns the shape with which a vector broadcasts along an axis.
fn shape_along(t: &Tensor, axis: usize, n: i64) -> Vec<Dim> {
    let mut shape = vec![Dim::ONE; t.ndim()];
    shape[axis] = Dim::Const(n);
    shape
}

impl Resize<'_> {
    /// Returns the position in the input of a position of the result.
    fn position(&self, axis: &Axis, i: f64) -> Result<f64> {
        let (n, last) = (axis.n as f64, (axis.n - 1) as f64);
        let out = axis.scale * n;
        Ok(match self.coordinates {
            "half_pixel" => (i + 0.5) / axis.scale - 0.5,
            "half_pixel_symmetric" => {
                let adjustment = axis.out as f64 / out;
                n / 2.0 * (1.0 - adjustment) + (i + 0.5) / axis.scale - 0.5
            }
            "pytorch_half_pixel" if out > 1.0 => (i + 0.5) / axis.scale - 0.5,
            "pytorch_half_pixel" => -0.5,
            "align_corners" if out == 1.0 => 0.0,
            "align_corners" => i * last / (out - 1.0),
            "asymmetric" => i / axis.scale,
            "tf_crop_and_resize" => {
                let (start, end) = axis.region;
                let ratio = match out == 1.0 {
                    true => (end - start) * last / 2.0,
                    false => i * (end - start) * last / (out - 1.0),
                };
                ratio + start * last
            }
            other => {
                return Err(invalid(format!("there is no coordinate mode {other:?}")));
            }
        })
    }

    fn resize_axis(&self, x: &Tensor, axis: &Axis, positions: &[f64]) -> Result<Tensor> {
        let axis_index = axis.index as i64;
        let inside = |p: f64| (p as i64).clamp(0, axis.n - 1);
        if self.mode == "nearest" {
            let nearest = |p: &f64| {
                Ok(inside(match self.nearest {
                    "round_prefer_floor" => (p - 0.5).ceil(),
                    "round_prefer_ceil" => (p + 0.5).floor(),
                    "floor" => p.floor(),
                    "ceil" => p.ceil(),
                    other => {
                        return Err(invalid(format!("there is no nearest_mode {other:?}")));
                    }
                }))
            };
            let index: Vec<i64> = positions.iter().map(nearest).collect::<Result<_>>()?;
            return Ok(x.index_select(axis_index, Tensor::from(index)));
        }
        let support = match self.mode {
            "linear" => 1.0,
            "cubic" => 2.0,
            other => return Err(invalid(format!("there is no mode {other:?}"))),
        };
        let squeeze = match self.antialias {
            true => axis.scale.min(1.0),
            false => 1.0,
        };
        let first_tap = (-support / squeeze).floor() + 1.0;
        let offsets = (2.0 * (1.0 - first_tap)) as usize;
        let cells = offsets
            .max(axis.n as usize)
            .saturating_mul(positions.len().max(1));
        if cells > MAX_WEIGHTS {
            return Err(unsupported(format!(
                "{} positions with {offsets} neighbours each",
                positions.len()
            )));
        }
        let mut weights = vec![vec![0.0; positions.len()]; offsets];
        let mut indices = vec![vec![0i64; positions.len()]; offsets];
        for (i, p) in positions.iter().enumerate() {
            let base = p.floor();
            for k in 0..offsets {
                let offset = first_tap + k as f64;
                let index = base + offset;
                let is_outside = index < 0.0 || index > (axis.n - 1) as f64;
                indices[k][i] = inside(index);
                if !(self.exclude_outside && is_outside) {
                    weights[k][i] = self.weight((offset - (p - base)) * squeeze);
                }
            }
            let sum: f64 = weights.iter().map(|w| w[i]).sum();
            if (self.antialias || self.exclude_outside) && sum != 0.0 {
                weights.iter_mut().for_each(|w| w[i] /= sum);
            }
        }
        let shape = shape_along(x, axis.index, axis.out);
        // Many neighbours are a product with a matrix.
        if offsets > 4 {
            let mut matrix = vec![0f64; (axis.n * axis.out) as usize];
            for (w, index) in weights.iter().zip(&indices) {
                for (i, (w, j)) in w.iter().zip(index).enumerate() {
                    matrix[i * axis.n as usize + *j as usize] += w;
                }
            }
            let matrix = Tensor::from_slice(&matrix, [axis.out, axis.n]).to_dtype(x.dtype());
            return Ok(x
                .movedim(axis_index, -1)
                .matmul(matrix.t())
                .movedim(-1, axis_index));
        }
        let terms = weights.into_iter().zip(indices).map(|(w, index)| {
            let w = Tensor::from(w).to_dtype(x.dtype()).reshape(&shape);
            x.index_select(axis_index, Tensor::from(index)) * w
        });
        Ok(terms.reduce(|sum, term| sum + term).unwrap_or(x.clone()))
    }

    /// Returns the weight of a neighbour at a distance (cubic: Keys, 1981).
    fn weight(&self, distance: f64) -> f64 {
        let (d, a) = (distance.abs(), self.cubic_a);
        match self.mode {
            "linear" => (1.0 - d).max(0.0),
            _ if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
            _ if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
            _ => 0.0,
        }
    }
}

//! Convolutions as products of what im2col copies bring: rows are positions of the filter, and terms are taps, each with
//! its channels. The channels of a tap fill whole stages: those past the last are 0 in both operands. In gradients of
//! filters, terms are positions, and columns taps with their channels.

use super::operand::split;
use super::warpgroup::{BoxCopy, MAX_DIMENSIONS, TmaOperand, span};
use crate::cuda::source::Source;
use kiln_base::prim::gcd;
use kiln_base::{DType, Dim, ceil};
use kiln_plan::contraction::{Access, BATCH, COLUMNS, Contraction, ROWS, TERMS};
use kiln_plan::cuda::{Boxes, Im2col, Path};
use std::fmt::Write;

/// The maximum offset of a tap, for one to three spatial dimensions.
const MAX_OFFSET: [i64; 3] = [0xffff, 0xff, 0x1f];

/// The convolution that an operand belongs to.
pub(super) struct Convolution {
    /// The extents of the loops over taps.
    taps: Vec<i64>,
    /// The number of channels.
    channels: i64,
    /// The number of terms of a tap: channels, padded to whole stages.
    terms: i64,
    /// The images; `None` for filters.
    images: Option<Images>,
}

struct Images {
    /// The extents of the loops over rows, the batch first.
    rows: Vec<Dim>,
    /// The spatial dimensions, innermost first.
    axes: Vec<Axis>,
    paths: Vec<Path>,
}

/// A dimension of images.
struct Axis {
    /// The stride, in elements.
    unit: i64,
    /// The coordinate of the loops' first iterations.
    offset: i64,
    /// The extent; `None` if it has no padding.
    extent: Option<i64>,
    /// The loop over rows that moves along it, and its step.
    row: Option<(usize, i64)>,
    /// The loops over taps that move along it, and their steps.
    taps: Vec<(usize, i64)>,
}

/// Returns the operands of a convolution as TMA sees them, and the number of its terms; `None` if it is none, or its
/// images are not as im2col copies need them. Images are the right operand if the result has channels first, or is a
/// gradient of filters.
pub(super) fn operands(c: &Contraction, dtype: DType) -> Option<([TmaOperand; 2], i64)> {
    let transposed = || {
        let ([images, filters], terms) = images_and_filters(&c.clone().transposed(), dtype)?;
        Some(([filters, images], terms))
    };
    let all = images_and_filters(c, dtype).or_else(transposed);
    all.or_else(|| gradients_and_images(c, dtype))
}

/// Returns the operands of a gradient of filters. Both have contiguous lines, the images the channels of a tap: these
/// fill whole boxes, since no column of the result is padding.
fn gradients_and_images(c: &Contraction, dtype: DType) -> Option<([TmaOperand; 2], i64)> {
    let gradients = TmaOperand::new(c, 0, dtype)?;
    // Rows are farther apart than columns, unlike channels and images of a gradient of images.
    let stride = |at: usize| c.result.strides[at].as_const();
    let is_farthest = |row| c.range(COLUMNS).all(|at| stride(at) < stride(row));
    if gradients.along_k || !c.range(ROWS).all(is_farthest) {
        return None;
    }
    let c = with_single_channels(&by_positions(c))?;
    let extents = c.loops[TERMS].iter().map(Dim::as_const);
    let mut taps = extents.collect::<Option<Vec<i64>>>()?;
    let channels = taps.pop()?;
    let convolution = Convolution {
        taps,
        channels,
        terms: channels,
        images: None,
    };
    let images = TmaOperand {
        along_k: false,
        ..image_operand(&c, dtype, &convolution)?
    };
    let count = c.size(ROWS).as_const()?;
    let is_legal = dtype.size() == 2
        && channels % i64::from(span(dtype)) == 0
        && (1..1 << 30).contains(&count);
    is_legal.then_some(([gradients, images], count))
}

/// Returns a gradient of filters with positions as rows, and taps with their channels as terms. Its images are the left
/// operand.
fn by_positions(c: &Contraction) -> Contraction {
    let mut c = c.clone();
    let (from, terms) = (c.range(ROWS).start, c.loops[TERMS].len());
    let rotate = |strides: &mut Vec<Dim>| strides[from..].rotate_right(terms);
    let [left, right] = &mut c.operands;
    for access in [left, right, &mut c.result] {
        rotate(&mut access.strides);
        let bounds = access.bounds.iter_mut();
        bounds.for_each(|b| rotate(&mut b.strides));
    }
    c.loops[ROWS..].rotate_right(1);
    c.operands.reverse();
    c
}

/// Returns the operands of a convolution whose left operand is the images.
fn images_and_filters(c: &Contraction, dtype: DType) -> Option<([TmaOperand; 2], i64)> {
    let c = with_single_channels(c)?;
    let extents = c.loops[TERMS].iter().map(Dim::as_const);
    let mut taps = extents.collect::<Option<Vec<i64>>>()?;
    let (channels, depth) = (taps.pop()?, i64::from(span(dtype)));
    let terms = ceil(channels, depth) * depth;
    let count = taps.iter().try_fold(terms, |n, t| n.checked_mul(*t))?;
    let convolution = Convolution {
        taps,
        channels,
        terms,
        images: None,
    };
    let operands = [
        image_operand(&c, dtype, &convolution)?,
        filter_operand(&c, dtype, convolution)?,
    ];
    let is_legal = (1..1 << 30).contains(&count);
    is_legal.then_some((operands, count))
}

/// Returns the contraction with the channels as the last loop of terms. If this loop also runs over taps, it is split.
fn with_single_channels(c: &Contraction) -> Option<Contraction> {
    let mut c = c.clone();
    let (last, image) = (c.range(TERMS).last()?, &c.operands[0]);
    let mut bounds = image.bounds.iter();
    let is_contiguous = image.strides[last].is(1) && bounds.all(|b| b.strides[last].is(0));
    if !is_contiguous || !c.loops[BATCH].is_empty() {
        return None;
    }
    let extent = c.loops[TERMS].last()?.as_const()?;
    let outer = c.range(ROWS).chain(c.range(TERMS).start..last);
    let strides = outer.map(|at| image.strides[at].as_const());
    let strides = strides.collect::<Option<Vec<i64>>>()?;
    let nearest = strides.into_iter().map(i64::abs).min()?;
    if nearest == 0 || nearest >= extent {
        return Some(c);
    }
    let channels = gcd(nearest, extent);
    let split_loop = |strides: &mut Vec<Dim>| {
        let outer = &strides[last] * &Dim::Const(channels);
        strides.insert(last, outer);
    };
    let [left, right] = &mut c.operands;
    for access in [left, right, &mut c.result] {
        split_loop(&mut access.strides);
        let bounds = access.bounds.iter_mut();
        bounds.for_each(|b| split_loop(&mut b.strides));
    }
    c.loops[TERMS].pop();
    c.loops[TERMS].extend([extent / channels, channels].map(Dim::Const));
    Some(c)
}

/// Returns a number of elements; `None` if it is not a multiple of 16 bytes.
fn aligned(elements: i64, dtype: DType) -> Option<Dim> {
    let is_aligned = elements >= 0 && elements * dtype.size() as i64 % 16 == 0;
    is_aligned.then_some(Dim::Const(elements))
}

/// Returns the left operand, the images.
fn image_operand(c: &Contraction, dtype: DType, convolution: &Convolution) -> Option<TmaOperand> {
    let taps = &convolution.taps;
    let mut axes = axes(c, taps)?;
    axes.sort_by_key(|axis| axis.unit);
    let rows: Vec<usize> = axes.iter().filter_map(|a| Some(a.row?.0)).collect();
    if rows.windows(2).any(|pair| pair[0] <= pair[1]) {
        return None;
    }
    let mut loops = c.loops[ROWS].clone();
    let batch = match axes.pop_if(|a| a.extent.is_none() && a.taps.is_empty()) {
        Some(images) => (loops.first()?.clone(), images.unit),
        None => {
            // A single image.
            loops.insert(0, Dim::ONE);
            for (row, _) in axes.iter_mut().filter_map(|a| a.row.as_mut()) {
                *row += 1;
            }
            let outermost = axes.last()?;
            (Dim::ONE, outermost.unit * outermost.extent.unwrap_or(1))
        }
    };
    let spatial = axes.len();
    if !(1..=3).contains(&spatial) {
        return None;
    }
    let corners = Path::corners(spatial);
    let mut paths = Vec::new();
    for axis in &mut axes {
        let (row, step) = axis.row.unwrap_or((0, 1));
        let count = axis.row.map_or(Some(1), |_| loops[row].as_const())?;
        let [low, high] = axis.tap_range(taps)?;
        if axis.extent.is_none() {
            axis.offset = -low;
            axis.extent = Some(step * (count - 1) + high - low + 1);
        }
        let (lower, last) = (axis.offset + low, axis.extent? - 1);
        let upper = lower + step * (count - 1) - last;
        let is_legal = count > 0
            && last >= 0
            && (1..=Path::MAX_STEP).contains(&step)
            && [lower, upper].iter().all(|c| corners.contains(c))
            && high - low <= MAX_OFFSET[spatial - 1];
        if !is_legal {
            return None;
        }
        paths.push(Path {
            lower: lower as i16,
            upper: upper as i16,
            step: step as u8,
        });
    }
    let origin = axes.iter().map(|a| a.offset * a.unit).sum::<i64>();
    let units = axes.iter().map(|a| a.unit).chain([batch.1]);
    let channels = [c.loops[TERMS].last()?.clone()].into_iter();
    let extents = axes.iter().filter_map(|a| a.extent).map(Dim::Const);
    Some(TmaOperand {
        along_k: true,
        span: span(dtype),
        offset: aligned(c.operands[0].offset.as_const()? - origin, dtype)?,
        extents: channels.chain(extents).chain([batch.0]).collect(),
        strides: units.map(|n| aligned(n, dtype)).collect::<Option<_>>()?,
        batch: Vec::new(),
        strided_batch: Vec::new(),
        rounds_to_tf32: dtype == DType::F32,
        convolution: Some(Convolution {
            taps: taps.clone(),
            images: Some(Images {
                rows: loops,
                axes,
                paths,
            }),
            ..*convolution
        }),
    })
}

/// Returns the dimensions of images other than channels. The loops over rows and taps of a bound belong to one
/// dimension. A tap without a bound belongs to the dimension of the row whose stride has the largest common divisor
/// with its own, else to a new one.
fn axes(c: &Contraction, taps: &[i64]) -> Option<Vec<Axis>> {
    let (image, rows, first_tap) = (&c.operands[0], c.range(ROWS), c.range(TERMS).start);
    let stride = |axis: usize| image.strides[axis].as_const();
    let (mut axes, mut used) = (Vec::new(), Vec::new());
    for bound in &image.bounds {
        let mut axis = Axis {
            unit: 0,
            offset: bound.offset.as_const()?,
            extent: Some(bound.extent.as_const()?),
            row: None,
            taps: Vec::new(),
        };
        for (at, step) in bound.strides.iter().enumerate().filter(|(_, s)| !s.is(0)) {
            let (elements, step) = (stride(at)?, step.as_const()?);
            let unit = elements / step;
            let is_consistent = axis.unit == 0 || axis.unit == unit;
            if !is_consistent || unit <= 0 || elements % step != 0 || used.contains(&at) {
                return None;
            }
            (axis.unit, _) = (unit, used.push(at));
            match (rows.contains(&at), axis.row) {
                (true, None) => axis.row = Some((at - rows.start, step)),
                (false, _) if at >= first_tap => axis.taps.push((at - first_tap, step)),
                _ => return None,
            }
        }
        axes.push(axis);
    }
    let is_free = |at: &usize| !used.contains(at);
    for at in rows.clone().filter(is_free) {
        axes.push(Axis {
            unit: stride(at)?,
            offset: 0,
            extent: None,
            row: Some((at - rows.start, 1)),
            taps: Vec::new(),
        });
    }
    for at in (first_tap..first_tap + taps.len()).filter(is_free) {
        let elements = stride(at)?;
        let common_unit = |axis: &Axis| gcd(axis.unit.abs(), elements.abs());
        let fits = |axis: &&mut Axis| {
            let Some((row, step)) = axis.row.filter(|_| axis.extent.is_none()) else {
                return false;
            };
            // The first row is the batch, unless it is the only one.
            let is_spatial = row > 0 || rows.len() == 1;
            let is_known = c.loops[ROWS][row].as_const().is_some();
            is_spatial && is_known && step * axis.unit / common_unit(axis).max(1) <= Path::MAX_STEP
        };
        let axis = axes.iter_mut().filter(fits);
        let Some(axis) = axis.max_by_key(|axis| (common_unit(axis), -axis.unit)) else {
            axes.push(Axis {
                unit: elements.abs(),
                offset: 0,
                extent: None,
                row: None,
                taps: vec![(at - first_tap, elements.signum())],
            });
            continue;
        };
        let unit = common_unit(axis).max(1);
        let ratio = axis.unit / unit;
        let steps = axis.row.iter_mut().chain(&mut axis.taps);
        steps.for_each(|(_, step)| *step *= ratio);
        axis.unit = unit;
        axis.taps.push((at - first_tap, elements / unit));
    }
    axes.iter().all(|axis| axis.unit > 0).then_some(axes)
}

impl Axis {
    /// Returns the minimum and the maximum of what taps add to a coordinate.
    fn tap_range(&self, taps: &[i64]) -> Option<[i64; 2]> {
        let mut range = [0; 2];
        for (tap, step) in &self.taps {
            let last = step.checked_mul(taps[*tap] - 1)?;
            range = [range[0] + last.min(0), range[1] + last.max(0)];
        }
        Some(range)
    }

    /// Returns the expression of a tap's offset along the axis.
    fn offset_of_tap(&self, taps: &[i64], names: &[String]) -> String {
        let offset = |(tap, step): &(usize, i64)| match step {
            ..0 => format!("({} - {}) * {}", taps[*tap] - 1, names[*tap], -step),
            _ => format!("{} * {step}", names[*tap]),
        };
        let offsets: Vec<String> = self.taps.iter().map(offset).collect();
        if offsets.is_empty() {
            "0".into()
        } else {
            offsets.join(" + ")
        }
    }
}

/// Returns the right operand, the filters.
fn filter_operand(c: &Contraction, dtype: DType, convolution: Convolution) -> Option<TmaOperand> {
    let Access {
        strides,
        bounds,
        offset,
        ..
    } = &c.operands[1];
    let (columns, terms) = (c.range(COLUMNS), c.range(TERMS));
    let (line, channel) = (columns.start, terms.end - 1);
    let along_k = strides[channel].is(1);
    let [inner, outer] = if along_k {
        [channel, line]
    } else {
        [line, channel]
    };
    let outer_axes: Vec<usize> = [outer].into_iter().chain(terms.start..channel).collect();
    let is_legal = columns.len() == 1
        && bounds.is_empty()
        && strides[inner].is(1)
        && (along_k || dtype.size() == 2)
        && outer_axes.len() < MAX_DIMENSIONS;
    if !is_legal {
        return None;
    }
    let stride = |at: &usize| aligned(strides[*at].as_const().filter(|n| *n > 0)?, dtype);
    let extents: Vec<Dim> = c.extents().cloned().collect();
    let axes = [inner].into_iter().chain(outer_axes.iter().copied());
    Some(TmaOperand {
        along_k,
        span: span(dtype),
        offset: aligned(offset.as_const()?, dtype)?,
        extents: axes.map(|axis| extents[axis].clone()).collect(),
        strides: outer_axes.iter().map(stride).collect::<Option<_>>()?,
        batch: Vec::new(),
        strided_batch: Vec::new(),
        rounds_to_tf32: dtype == DType::F32,
        convolution: Some(convolution),
    })
}

impl Convolution {
    /// Returns the constants `CHANNELS` and `TAP_TERMS`.
    pub fn constants(&self) -> String {
        let (channels, terms) = (self.channels, self.terms);
        format!("constexpr int CHANNELS = {channels}, TAP_TERMS = {terms};\n")
    }

    /// True if the operand is the images.
    pub fn has_images(&self) -> bool {
        self.images.is_some()
    }

    /// Returns a copy of an operand named `name` from a line on, and the declarations before it. `boxes` are the extents
    /// of a box of filters. Images whose lines are contiguous have positions along K, and taps along lines.
    pub fn box_copy(
        &self,
        source: &mut Source,
        [name, first_line]: [&str; 2],
        along_k: bool,
        boxes: Vec<u16>,
    ) -> (String, BoxCopy) {
        let by_lines = self.images.is_some() && !along_k;
        let [along, position] = match by_lines {
            true => ["line", "k"],
            false => ["k", first_line],
        };
        let terms = self.terms;
        let mut declarations =
            format!("const Index tap = {along} / {terms}, channel = {along} % {terms};\n");
        let extents: Vec<Dim> = self.taps.iter().copied().map(Dim::Const).collect();
        let (text, taps) = split(source, &extents, ["tap", "tap"]);
        declarations += &text;
        let Some(images) = &self.images else {
            let inner_and_outer = if along_k {
                ["channel", "line"]
            } else {
                ["line", "channel"]
            };
            let coordinates = inner_and_outer.map(String::from).into_iter();
            let box_copy = BoxCopy {
                coordinates: coordinates.chain(taps).collect(),
                declarations,
                offsets: None,
                boxes: Boxes::Tiled(boxes),
            };
            return (String::new(), box_copy);
        };
        let (mut text, rows) = split(
            source,
            &images.rows,
            [&format!("{name}_row"), &format!("({position})")],
        );
        let mut coordinates = vec!["channel".to_string()];
        for (n, (axis, path)) in images.axes.iter().zip(&images.paths).enumerate() {
            let coordinate = match axis.row {
                Some((row, step)) => format!("{} * {step} + {}", rows[row], path.lower),
                None => path.lower.to_string(),
            };
            let _ = writeln!(text, "const Index {name}_at{n} = {coordinate};");
            coordinates.push(format!("{name}_at{n}"));
        }
        coordinates.extend(rows.first().cloned());
        if by_lines {
            declarations += &std::mem::take(&mut text);
        }
        let offsets = images.axes.iter();
        let offsets = offsets.map(|axis| axis.offset_of_tap(&self.taps, &taps));
        let box_copy = BoxCopy {
            coordinates,
            declarations,
            offsets: Some(offsets.collect()),
            boxes: Boxes::Im2col(Im2col {
                channels: boxes[0],
                pixels: boxes[1],
                paths: images.paths.clone(),
            }),
        };
        (text, box_copy)
    }
}

//! Convolutions and their gradients: sums of products over the taps of a filter, with channels last.
//!
//! The three of them are one sum over images x, filters w and results y, of which one is written. With channels last,
//! every loop is a stride of each. Each tap, or each row of taps whose channels are contiguous, is a matrix product. An
//! x that is read is padded; of one that is written, products skip the positions whose tap falls beside it.

use super::contraction::{Loop, Products, element, merged};
use super::dialect::memory;
use super::images::Images;
use super::kernel::{Emitter, View, packed_strides};
use crate::error::{Error, Result};
use kiln_base::DType;
use kiln_plan::{Conv, ConvRole};

/// A convolution with the values of its sizes.
struct Sizes {
    groups: i64,
    ins: i64,
    outs: i64,
    taps: i64,
    x: Images,
    y: Images,
    /// The products whose sum is the tensor that is written.
    products: Products,
}

impl Sizes {
    fn new(k: &Emitter<'_>, c: &Conv) -> Result<Sizes> {
        let [x_last, y_last] = c.images.last();
        let groups = k.number(&c.groups)?;
        let (ins, outs) = (k.number(&c.in_channels)?, k.number(&c.out_channels)?);
        let (input, output) = (k.numbers(&c.input)?, k.numbers(&c.output)?);
        let (kernel, padding) = (k.numbers(&c.kernel)?, k.numbers(&c.padding)?);
        let (stride, dilation) = (k.numbers(&c.stride)?, k.numbers(&c.dilation)?);
        let axes = 0..kernel.len();
        let is_input = c.role == ConvRole::Input;
        let reached = |i: usize| {
            let footprint = (output[i] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1;
            footprint.max(input[i] + padding[i])
        };
        // Padding would be computed, where x is written.
        let (padded, zeros) = match is_input {
            true => (input.clone(), vec![0; input.len()]),
            false => (axes.clone().map(reached).collect(), padding.clone()),
        };
        let x = Images {
            dtype: c.dtype(),
            channels: groups * ins,
            extents: input,
            padding: zeros,
            padded,
            last: x_last,
        };
        let y = Images {
            dtype: c.dtype(),
            channels: groups * outs,
            padded: output.clone(),
            padding: vec![0; output.len()],
            extents: output,
            last: y_last,
        };
        // The positions in x, w and y of A, B and C.
        let order = match c.role {
            ConvRole::Result => [0, 1, 2],
            ConvRole::Input => [2, 1, 0],
            ConvRole::Weight => [0, 2, 1],
        };
        let new = |index: &str, n: i64, strides: [i64; 3]| {
            Loop::new(index, n, order.map(|operand| strides[operand]))
        };
        let (xs, ys) = (x.strides(), y.strides());
        let ws = packed_strides(&kernel, ins * outs);
        let tap = |i: usize| {
            let strides = [dilation[i] * xs[i], ws[i], 0];
            new(&format!("t{i}"), kernel[i], strides)
        };
        let position = |i: usize| {
            let strides = [stride[i] * xs[i], 0, ys[i]];
            new(&format!("p{i}"), y.extents[i], strides)
        };
        let taps = kernel.iter().product();
        let mut outer = merged([new("g", groups, [ins, taps * ins * outs, outs])]);
        let positions = axes.clone().map(position);
        let mut inner: Vec<Loop> = match is_input {
            true => positions.collect(),
            false => merged(positions),
        };
        let position = inner.pop();
        let position = position.unwrap_or_else(|| new("u", 1, [0, 0, y.channels]));
        let [in_stride, out_stride] = match is_input {
            true => [1, ins],
            false => [outs, 1],
        };
        let from = new("c", ins, [1, in_stride, 0]);
        let to = new("o", outs, [0, out_stride, 1]);
        let (mut skips, mut start) = (Vec::new(), 0);
        let [m, n, k] = if is_input {
            for i in axes.clone() {
                outer.push(tap(i));
                start -= padding[i] * xs[i];
                let (stride, last, n) = (stride[i], x.extents[i] - 1, y.extents[i]);
                let ahead = format!("{} - t{i} * {}", padding[i], dilation[i]);
                skips.push(match i + 1 == axes.end {
                    false => format!("if (p{i} * {stride} < {ahead} || p{i} * {stride} > {last} + {ahead}) continue;"),
                    // The first position whose tap falls on the image, and the end of these positions.
                    true => format!(
                        "\
const kiln_int ahead = {ahead}, rest = {last} + ahead;
const kiln_int low = ahead > 0 ? (ahead + {stride} - 1) / {stride} : 0;
const kiln_int high = rest < 0 ? 0 : rest / {stride} + 1 < {n} ? rest / {stride} + 1 : {n};
if (high <= low) continue;"
                    ),
                });
            }
            [position, from, to]
        } else {
            let mut terms = merged(axes.map(tap).chain([from]));
            let term = terms.pop().unwrap_or_else(|| new("u", 1, [0; 3]));
            outer.extend(terms);
            match c.role {
                ConvRole::Weight => [term, to, position],
                _ => [position, to, term],
            }
        };
        Ok(Sizes {
            groups,
            ins,
            outs,
            taps,
            x,
            y,
            products: Products {
                dtypes: [c.dtypes[0], c.dtypes[1], c.sums()],
                outer,
                inner,
                m,
                n,
                k,
                skips,
                start,
            },
        })
    }

    /// True if it is depthwise, with few enough taps to unroll.
    fn is_depthwise(&self) -> bool {
        let one_each = (self.ins, self.outs) == (1, 1) && self.groups > 1;
        one_each && self.taps <= 49 && self.products.dtypes[2].is_float()
    }

    /// The layout of filters that are read: `[groups, taps.., k, n]` from `[groups · out, in, taps..]`, where products
    /// have k terms and n columns.
    fn filters(&self, role: ConvRole) -> View {
        let (ins, outs) = ((self.ins, self.taps), (self.outs, self.ins * self.taps));
        let (k, n) = match role {
            ConvRole::Input => (outs, ins),
            _ => (ins, outs),
        };
        View {
            offset: 0,
            extents: vec![self.groups, self.taps, k.0, n.0],
            strides: vec![self.outs * outs.1, 1, k.1, n.1],
        }
    }
}

/// Emits a convolution.
pub(super) fn emit(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    let is_int = c.role == ConvRole::Result && c.sums().is_int();
    if !is_int && !matches!(c.dtype(), DType::F32 | DType::F64) {
        let why = format!("convolutions of {} are not emitted", c.dtype());
        return Err(Error::kernel(c.role.name(), why));
    }
    let sizes = Sizes::new(k, c)?;
    match c.role {
        ConvRole::Weight => weights(k, c, &sizes),
        _ => images(k, c, sizes),
    }
}

/// Emits a gradient of weights.
fn weights(k: &mut Emitter<'_>, c: &Conv, s: &Sizes) -> Result<()> {
    let [x, dy] = c.operands.map(|arg| k.arg(arg));
    let batch = k.number(&c.batch)?;
    let filters = View {
        offset: 0,
        extents: vec![s.groups, s.outs, s.ins, s.taps],
        strides: vec![s.taps * s.ins * s.outs, 1, s.outs, s.ins * s.outs],
    };
    let len = filters.extents.iter().product();
    let accumulators = k.array(c.dtype(), len)?;
    let out = k.destination(&c.epilogue, c.out, (c.dtype(), len))?;
    k.body.zero(&accumulators, len);
    k.body.loop_to("n", batch);
    s.x.read(k, "x", &x)?;
    s.y.read(k, "y", &dy)?;
    s.products.emit(k, ["x", "y", &accumulators]);
    k.body.close();
    k.pack(&out.array, &accumulators, &filters);
    out.finish("0", &len.to_string(), &mut k.body);
    Ok(())
}

/// Emits a convolution, in blocks of each result image, or a gradient of images.
fn images(k: &mut Emitter<'_>, c: &Conv, mut s: Sizes) -> Result<()> {
    let by_blocks = c.role == ConvRole::Result;
    let depthwise = by_blocks && s.is_depthwise();
    let x = k.operand(c.operands[0], &c.prologue)?;
    let filters = match depthwise {
        true => View {
            offset: 0,
            extents: vec![s.taps, s.groups],
            strides: vec![1, s.taps],
        },
        false => s.filters(c.role),
    };
    let mut w = k.arg(c.operands[1]);
    if let Some(view) = k.args[usize::from(c.operands[1])].lay_out(filters) {
        let copy = k.array(c.dtypes[1], view.extents.iter().product())?;
        k.pack(&copy, &w, &view);
        w = copy;
    }
    let products = &mut s.products;
    let (read, written, mut around, block, line);
    if by_blocks {
        (read, written) = (&s.x, &s.y);
        let last = products.inner.pop();
        around = std::mem::replace(&mut products.inner, last.into_iter().collect());
        line = products.rows().strides[2];
        block = products.rows().block(line);
    } else {
        (read, written, around) = (&s.y, &s.x, Vec::new());
        (block, line) = (1, written.len());
    }
    let (is_direct, len) = (written.is_direct(), written.len());
    let out_len = if is_direct { block * line } else { len };
    let out = k.destination(&c.epilogue, c.out, (c.sums(), out_len))?;
    let (a, ty) = (memory(c.dtypes[0]), memory(c.sums()));
    let batch = k.number(&c.batch)?;
    k.body.loop_to("n", batch);
    read.read(k, "v", &x)?;
    let mut count = line.to_string();
    if by_blocks {
        for l in &around {
            k.body.loop_to(&l.index, l.extent);
        }
        around.push(products.rows().open_blocks(k, block));
        count = format!("rows * {line}");
    }
    let [x_start, z_start] = [0, 2].map(|operand| element(&around, operand));
    k.body
        .line(format!("const {a} *restrict x = v + {x_start};"));
    let first_element = format!("n * {len} + {z_start}");
    let z = match is_direct {
        true => out.block(&first_element),
        false => k.array(c.sums(), block * line)?,
    };
    k.body.line(format!("{ty} *restrict z = {z};"));
    if depthwise {
        each_channel(k, s.groups, products, &w);
    } else {
        k.body.zero("z", &count);
        products.emit(k, ["x", &w, "z"]);
    }
    if !is_direct {
        let image = if out.has_epilogue() { "0" } else { "n" };
        let (channels, to) = (written.channels, (&out.array[..], image));
        let [start, len] = [&z_start, &count].map(|n| format!("({n}) / {channels}"));
        written.copy(k, "z", to, (&start, &len), true);
    } else if by_blocks {
        out.finish(&first_element, &count, &mut k.body);
    }
    k.body.close_all(around.len());
    if !(is_direct && by_blocks) {
        out.finish(&format!("n * {len}"), &len.to_string(), &mut k.body);
    }
    k.body.close();
    Ok(())
}

/// Emits sums over the taps of a depthwise filter, whose loops are the group's, and those of the products' terms.
fn each_channel(k: &mut Emitter<'_>, channels: i64, products: &Products, w: &str) {
    let (ty, name) = (memory(products.dtypes[2]), products.dtypes[2].name());
    let positions = || products.inner.iter().chain([&products.m]);
    let [x, z] = [0, 2].map(|operand| element(positions(), operand));
    for l in positions() {
        k.body.loop_to(&l.index, &l.trips);
    }
    k.body.loop_to("c", channels);
    k.body.line(format!("{ty} s = 0;"));
    let taps = || products.outer[1..].iter().chain([&products.k]);
    let taps = View {
        offset: 0,
        extents: taps().map(|l| l.extent).collect(),
        strides: taps().map(|l| l.strides[0]).collect(),
    };
    for (tap, offset) in taps.positions().into_iter().enumerate() {
        let weight = tap as i64 * channels;
        k.body.line(format!(
            "s = kiln_fma_{name}(x[{x} + c + {offset}], {w}[c + {weight}], s);"
        ));
    }
    k.body.line(format!("z[{z} + c] = s;"));
    k.body.close_all(1 + positions().count());
}

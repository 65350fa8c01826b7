//! Convolutions: sums of products over the taps of a filter, with channels last.
//!
//! Images with channels first are transposed to channels last, and padded images are copied with their zeros, one
//! image at a time; a result with channels first is transposed back. Then each tap, or each row of taps whose
//! channels are contiguous, is a matrix product of positions by output channels.

use super::dialect::memory;
use super::kernel::{Destination, Emitter, View};
use super::product::{BLOCK, DEEP};
use super::text::{affine, indices};
use crate::error::{Error, Result};
use kiln_base::{DType, Dim};
use kiln_plan::{Conv, ConvRole};

/// The sizes of a convolution: three spatial axes, the first of which may have one element.
pub(super) struct Sizes {
    pub dtype: DType,
    pub batch: i64,
    pub groups: i64,
    pub ins: i64,
    pub outs: i64,
    pub input: [i64; 3],
    pub output: [i64; 3],
    pub kernel: [i64; 3],
    pub stride: [i64; 3],
    pub padding: [i64; 3],
    pub dilation: [i64; 3],
}

impl Sizes {
    pub fn new(k: &Emitter<'_>, c: &Conv) -> Result<Sizes> {
        let three = |dims: &[Dim], missing: i64| -> Result<[i64; 3]> {
            let sizes = k.numbers(dims)?;
            let mut padded_dims = [missing; 3];
            let from = 3usize.checked_sub(sizes.len());
            let from = from.ok_or_else(|| {
                Error::kernel(c.role.name(), "it has more than three spatial axes")
            })?;
            padded_dims[from..].copy_from_slice(&sizes);
            Ok(padded_dims)
        };
        Ok(Sizes {
            dtype: c.dtype(),
            batch: k.number(&c.batch)?,
            groups: k.number(&c.groups)?,
            ins: k.number(&c.in_channels)?,
            outs: k.number(&c.out_channels)?,
            input: three(&c.input, 1)?,
            output: three(&c.output, 1)?,
            kernel: three(&c.kernel, 1)?,
            stride: three(&c.stride, 1)?,
            padding: three(&c.padding, 0)?,
            dilation: three(&c.dilation, 1)?,
        })
    }

    /// True if each output position depends on the input position of the same number only.
    fn is_pointwise(&self) -> bool {
        let all_equal = |values: &[i64; 3], n: i64| values.iter().all(|x| *x == n);
        let taps =
            all_equal(&self.kernel, 1) && all_equal(&self.stride, 1) && all_equal(&self.padding, 0);
        taps && self.input == self.output
    }

    /// Flattens the spatial axes of a pointwise convolution to one.
    fn flat(mut self) -> Sizes {
        if self.is_pointwise() {
            let n = self.output.iter().product();
            self.input = [1, 1, n];
            self.output = [1, 1, n];
        }
        self
    }

    fn taps(&self) -> i64 {
        self.kernel.iter().product()
    }

    /// True for depthwise convolutions with few enough taps to unroll.
    fn has_filter_a_channel(&self) -> bool {
        self.ins == 1 && self.outs == 1 && self.groups > 1 && self.taps() <= 49
    }

    fn x_channels(&self) -> i64 {
        self.groups * self.ins
    }

    fn y_channels(&self) -> i64 {
        self.groups * self.outs
    }

    /// The extents of a padded image: the footprint of all taps.
    pub fn padded(&self) -> [i64; 3] {
        std::array::from_fn(|i| {
            let reached =
                (self.output[i] - 1) * self.stride[i] + (self.kernel[i] - 1) * self.dilation[i] + 1;
            reached.max(self.input[i] + self.padding[i])
        })
    }

    /// The images of x.
    pub fn x(&self, last: bool) -> Image {
        Image {
            dtype: self.dtype,
            channels: self.x_channels(),
            extents: self.input,
            padding: self.padding,
            padded: self.padded(),
            last,
        }
    }

    /// The images of y.
    pub fn y(&self, last: bool) -> Image {
        Image {
            dtype: self.dtype,
            channels: self.y_channels(),
            extents: self.output,
            padding: [0; 3],
            padded: self.output,
            last,
        }
    }
}

/// Emits a convolution.
pub(super) fn emit(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    if c.role == ConvRole::Result && c.sums().is_int() {
        return super::integers::conv(k, c);
    }
    if !matches!(c.dtype(), DType::F32 | DType::F64) {
        let why = format!("convolutions of {} are not emitted", c.dtype());
        return Err(Error::kernel(c.role.name(), why));
    }
    match c.role {
        ConvRole::Result => result(k, c),
        ConvRole::Input => super::transposed::emit(k, c),
        ConvRole::Weight => super::filters::emit(k, c),
    }
}

/// The layout of filters: `[groups, taps.., in, out]` from `[groups · out, in, taps..]`; depthwise filters as
/// `[taps.., groups]`.
pub(super) fn filters(s: &Sizes) -> View {
    let taps = s.taps();
    if s.has_filter_a_channel() && s.dtype.is_float() {
        return View {
            offset: 0,
            extents: vec![taps, s.groups],
            strides: vec![1, taps],
        };
    }
    View {
        offset: 0,
        extents: vec![s.groups, taps, s.ins, s.outs],
        strides: vec![s.outs * s.ins * taps, 1, taps, s.ins * taps],
    }
}

/// The operand `at` of the kernel in the layout of a view: laid out in the weights if it is constant, else copied at
/// each call.
pub(super) fn lay_out(k: &mut Emitter<'_>, at: u16, dtype: DType, view: View) -> Result<String> {
    let name = k.arg(at);
    let arg = &mut k.args[usize::from(at)];
    if arg.fixed && arg.view.is_none() {
        arg.view = Some(view);
        return Ok(name);
    }
    let copy = k.array(dtype, view.extents.iter().product())?;
    let laid = view.packed_strides();
    let names = indices("e", laid.len());
    for (name, n) in names.iter().zip(&view.extents) {
        k.body.loop_to(name, *n);
    }
    let to = affine(0, &laid, &names);
    let from = affine(view.offset, &view.strides, &names);
    k.body.line(format!("{copy}[{to}] = {name}[{from}];"));
    k.body.close_all(names.len());
    Ok(copy)
}

/// The images of an operand, which are read with channels last and with zeros around them.
pub(super) struct Image {
    dtype: DType,
    channels: i64,
    extents: [i64; 3],
    padding: [i64; 3],
    padded: [i64; 3],
    /// True if channels are last in memory.
    last: bool,
}

impl Image {
    fn is_padded(&self) -> bool {
        self.padded != self.extents
    }

    /// Declares the array of a copy, unless images are read where they are.
    pub fn copy(&self, k: &mut Emitter<'_>) -> Result<Option<String>> {
        let len = self.padded.iter().product::<i64>() * self.channels;
        match !self.last && self.channels > 1 || self.is_padded() {
            true => Ok(Some(k.array(self.dtype, len)?)),
            false => Ok(None),
        }
    }

    /// Emits `to`, a pointer to image `n` of the array `x`, after its copy to that of [`Image::copy`].
    pub fn emit(&self, k: &mut Emitter<'_>, to: &str, copy: &Option<String>, x: &str) {
        let image = match copy {
            Some(copy) => {
                self.copy_padded(k, copy, x);
                copy.clone()
            }
            None => {
                let len = self.extents.iter().product::<i64>() * self.channels;
                format!("{x} + n * {len}")
            }
        };
        let ty = memory(self.dtype);
        k.body.line(format!("const {ty} *restrict {to} = {image};"));
    }

    fn copy_padded(&self, k: &mut Emitter<'_>, to: &str, x: &str) {
        let (channels, [_, h, w]) = (self.channels, self.padded);
        let [p0, p1, p2] = self.padding;
        let [d0, h0, w0] = self.extents;
        if self.is_padded() {
            let len = self.padded.iter().product::<i64>() * channels;
            k.body
                .line(format!("memset({to}, 0, (size_t){len} * sizeof *{to});"));
        }
        k.body.loop_to("z", d0);
        k.body.loop_to("y", h0);
        let address = format!("(((z + {p0}) * {h} + y + {p1}) * {w} + {p2}) * {channels}");
        match self.last {
            true => {
                let line = w0 * channels;
                k.body.line(format!("memcpy({to} + {address}, {x} + ((n * {d0} + z) * {h0} + y) * {line}, {line} * sizeof *{to});"));
            }
            false => {
                k.body.loop_to("c", channels);
                k.body.line(format!("for (kiln_int x = 0; x < {w0}; ++x) {to}[{address} + x * {channels} + c] = {x}[(((n * {channels} + c) * {d0} + z) * {h0} + y) * {w0} + x];"));
                k.body.close();
            }
        }
        k.body.close_all(2);
    }
}

/// The destination of results, transposed or not.
pub(super) struct Results {
    pub to: Destination,
    /// With channels first: the array of a block before it is transposed. The destination has whole images.
    untransposed: Option<String>,
}

impl Results {
    /// `len` is the number of elements of an image, `block` of those that are computed at once.
    pub fn new(k: &mut Emitter<'_>, c: &Conv, (len, block): (i64, i64)) -> Result<Results> {
        let (dtype, last) = (c.dtype(), c.writes_channels_last());
        let untransposed = match last {
            true => None,
            false => Some(k.array(dtype, block)?),
        };
        let len = if last { block } else { len };
        let to = k.destination(&c.epilogue, c.out, (dtype, len))?;
        Ok(Results { to, untransposed })
    }

    /// Emits `u`, a pointer to the block that begins with number `first` of the results.
    pub fn begin(&self, k: &mut Emitter<'_>, ty: &str, first: &str) {
        let block = match &self.untransposed {
            Some(untransposed) => untransposed.clone(),
            None => self.to.block(first),
        };
        k.body.line(format!("{ty} *restrict u = {block};"));
    }

    /// Emits the transposition of a block of `positions` positions, from number `base` of its image, to its place.
    pub fn transpose(
        &self,
        k: &mut Emitter<'_>,
        (channels, plane): (i64, i64),
        positions: &str,
        base: &str,
    ) {
        if self.untransposed.is_none() {
            return;
        }
        let n = if self.to.has_epilogue() { "0" } else { "n" };
        k.body.loop_to("c", channels);
        k.body.line(format!("for (kiln_int p = 0; p < {positions}; ++p) {}[({n} * {channels} + c) * {plane} + {base} + p] = u[p * {channels} + c];", self.to.array));
        k.body.close();
    }
}

fn result(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    let s = Sizes::new(k, c)?.flat();
    let (ty, name) = (memory(s.dtype), s.dtype.name());
    let [x_last, y_last] = c.images.last();
    let x = k.operand(c.operands[0], &c.prologue)?;
    let w = lay_out(k, c.operands[1], s.dtype, filters(&s))?;
    let channels = s.y_channels();
    let [depth, height, width] = s.output;
    let line = width * channels;
    let rows = (BLOCK / line.max(1)).clamp(1, height.max(1));
    let plane = depth * height * width;
    let len = plane * channels;
    let results = Results::new(k, c, (len, rows * line))?;
    let images = s.x(x_last);
    let copy = images.copy(k)?;
    k.body.loop_to("n", s.batch);
    images.emit(k, "v", &copy, &x);
    k.body.loop_to("oz", depth);
    k.body.open(format!(
        "for (kiln_int oy = 0; oy < {height}; oy += {rows})"
    ));
    k.body.line(format!(
        "const kiln_int rows = {height} - oy < {rows} ? {height} - oy : {rows};"
    ));
    let first_element = format!("((n * {depth} + oz) * {height} + oy) * {line}");
    results.begin(k, ty, &first_element);
    match s.has_filter_a_channel() {
        true => each_channel(k, &s, &w),
        false => {
            k.body.line(format!(
                "memset(u, 0, (size_t)(rows * {line}) * sizeof *u);"
            ));
            products(k, &s, &w, name);
        }
    }
    if y_last {
        let len = format!("rows * {line}");
        results.to.finish("u", &first_element, &len, &mut k.body);
    }
    let position = format!("(oz * {height} + oy) * {width}");
    let positions = format!("rows * {width}");
    results.transpose(k, (channels, plane), &positions, &position);
    k.body.close_all(2);
    if !y_last {
        let (raw, first_element) = (&results.to.array, format!("n * {len}"));
        results
            .to
            .finish(raw, &first_element, &len.to_string(), &mut k.body);
    }
    k.body.close();
    Ok(())
}

/// Sums over taps and channels, as products of positions by output channels.
fn products(k: &mut Emitter<'_>, s: &Sizes, w: &str, name: &str) {
    let [_, h, wide] = s.padded();
    let channels = s.x_channels();
    let [kz, ky, kx] = s.kernel;
    let [_, _, width] = s.output;
    let (sz, sy, sx) = (s.stride[0], s.stride[1], s.stride[2]);
    let (dz, dy, dx) = (s.dilation[0], s.dilation[1], s.dilation[2]);
    // Taps of a line whose channels are contiguous are one run.
    let joined = s.groups == 1 && (dx == 1 || kx == 1);
    let (runs, run) = match joined {
        true => (1, kx * s.ins),
        false => (kx, s.ins),
    };
    k.body.loop_to("g", s.groups);
    k.body.loop_to("tz", kz);
    k.body.loop_to("ty", ky);
    k.body.loop_to("tx", runs);
    k.body
        .open(format!("for (kiln_int d = 0; d < {run}; d += {DEEP})"));
    k.body.line(format!(
        "const kiln_int deep = {run} - d < {DEEP} ? {run} - d : {DEEP};"
    ));
    k.body.open("for (kiln_int r = 0; r < rows; ++r)");
    let line = format!("((oz * {sz} + tz * {dz}) * {h} + (oy + r) * {sy} + ty * {dy}) * {wide}");
    let from = format!("v + ({line} + tx * {dx}) * {channels} + g * {} + d", s.ins);
    let filter = format!(
        "{w} + (((g * {kz} + tz) * {ky} + ty) * {kx} + tx) * {} + d * {}",
        s.ins * s.outs,
        s.outs
    );
    let to = format!("u + r * {} + g * {}", width * s.y_channels(), s.outs);
    k.body.line(format!(
        "kiln_product_{name}({width}, {}, deep, {from}, {}, 1, {filter}, {}, {to}, {});",
        s.outs,
        sx * channels,
        s.outs,
        s.y_channels()
    ));
    k.body.close_all(6);
}

/// Sums over the taps of a depthwise filter.
fn each_channel(k: &mut Emitter<'_>, s: &Sizes, w: &str) {
    let [_, h, wide] = s.padded();
    let channels = s.x_channels();
    let [_, _, width] = s.output;
    let name = s.dtype.name();
    k.body.open("for (kiln_int r = 0; r < rows; ++r)");
    k.body.loop_to("ox", width);
    k.body.line(format!(
        "const {} *restrict p = v + ((oz * {} * {h} + (oy + r) * {}) * {wide} + ox * {}) * {channels};",
        memory(s.dtype),
        s.stride[0],
        s.stride[1],
        s.stride[2]
    ));
    k.body.line(format!(
        "{} *restrict q = u + (r * {width} + ox) * {channels};",
        memory(s.dtype)
    ));
    k.body.loop_to("c", channels);
    k.body.line(format!("{} s = 0;", memory(s.dtype)));
    let mut tap = 0;
    for z in 0..s.kernel[0] {
        for y in 0..s.kernel[1] {
            for x in 0..s.kernel[2] {
                let offset = ((z * s.dilation[0] * h + y * s.dilation[1]) * wide
                    + x * s.dilation[2])
                    * channels;
                k.body.line(format!(
                    "s = kiln_fma_{name}(p[c + {offset}], {w}[c + {}], s);",
                    tap * channels
                ));
                tap += 1;
            }
        }
    }
    k.body.line("q[c] = s;");
    k.body.close_all(3);
}

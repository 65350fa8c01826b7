//! Convolutions: sums of products over the taps of a filter, with channels last.
//!
//! Images with channels first are transposed to channels last, and padded images are copied with their zeros, one
//! image at a time; a result with channels first is transposed back. Then each tap, or each row of taps whose
//! channels are contiguous, is a matrix product of positions by output channels.

use super::dialect::memory;
use super::kernel::{Emitter, EpilogueCode, View};
use super::product::{BLOCK, DEEP};
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
            let found = k.numbers(dims)?;
            let mut all = [missing; 3];
            let from = 3usize.checked_sub(found.len());
            let from = from.ok_or_else(|| {
                Error::kernel(c.role.name(), "it has more than three spatial axes")
            })?;
            all[from..].copy_from_slice(&found);
            Ok(all)
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
        let is = |all: &[i64; 3], n: i64| all.iter().all(|x| *x == n);
        let taps = is(&self.kernel, 1) && is(&self.stride, 1) && is(&self.padding, 0);
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

    pub fn is_padded(&self) -> bool {
        self.padded() != self.input
    }
}

/// Emits a convolution.
pub(super) fn print(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    if c.role == ConvRole::Result && c.sums().is_int() {
        return super::integers::conv(k, c);
    }
    if !matches!(c.dtype(), DType::F32 | DType::F64) {
        let why = format!("convolutions of {} are not printed", c.dtype());
        return Err(Error::kernel(c.role.name(), why));
    }
    match c.role {
        ConvRole::Result => result(k, c),
        ConvRole::Input => super::transposed::print(k, c),
        ConvRole::Weight => super::filters::print(k, c),
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
pub(super) fn viewed(k: &mut Emitter<'_>, at: u16, dtype: DType, view: View) -> Result<String> {
    let name = k.arg(at);
    let arg = &mut k.args[usize::from(at)];
    if arg.fixed && arg.view.is_none() {
        arg.view = Some(view);
        return Ok(name);
    }
    let copy = k.array(dtype, view.extents.iter().product())?;
    let laid = view.laid();
    let names: Vec<String> = (0..laid.len()).map(|i| format!("e{i}")).collect();
    for (name, n) in names.iter().zip(&view.extents) {
        k.body.each(name, *n);
    }
    let of = |strides: &[i64], offset: i64| {
        super::text::sum(
            offset,
            strides.iter().zip(&names).map(|(s, n)| (*s, &n[..])),
        )
    };
    let (to, from) = (of(&laid, 0), of(&view.strides, view.offset));
    k.body.line(format!("{copy}[{to}] = {name}[{from}];"));
    k.body.close_all(names.len());
    Ok(copy)
}

/// Emits the copy of image `n` of `x`, with channels last and with zeros around it.
pub(super) fn copied(k: &mut Emitter<'_>, s: &Sizes, last: bool, to: &str, x: &str) {
    let [_, h, w] = s.padded();
    let channels = s.x_channels();
    let all = s.padded().iter().product::<i64>() * channels;
    let [d0, h0, w0] = s.input;
    let [p0, p1, p2] = s.padding;
    if s.is_padded() {
        k.body
            .line(format!("memset({to}, 0, (size_t){all} * sizeof *{to});"));
    }
    k.body.each("z", d0);
    k.body.each("y", h0);
    let address = format!("(((z + {p0}) * {h} + y + {p1}) * {w} + {p2}) * {channels}");
    match last {
        true => k.body.line(format!(
            "memcpy({to} + {address}, {x} + ((n * {d0} + z) * {h0} + y) * {}, {} * sizeof *{to});",
            w0 * channels,
            w0 * channels
        )),
        false => {
            k.body.each("c", channels);
            k.body.line(format!("for (kiln_int x = 0; x < {w0}; ++x) {to}[{address} + x * {channels} + c] = {x}[(((n * {channels} + c) * {d0} + z) * {h0} + y) * {w0} + x];"));
            k.body.close();
        }
    }
    k.body.close_all(2);
}

/// Emits the transposition of image `n` of an array with channels first, with this number of channels and of
/// positions, to channels last.
pub(super) fn to_channels_last(
    k: &mut Emitter<'_>,
    to: &str,
    from: &str,
    (channels, plane): (i64, i64),
) {
    k.body.each("c", channels);
    k.body.line(format!("for (kiln_int p = 0; p < {plane}; ++p) {to}[p * {channels} + c] = {from}[(n * {channels} + c) * {plane} + p];"));
    k.body.close();
}

/// The destination of results: directly in memory, or through an epilogue, transposed or not.
pub(super) struct Results {
    /// The epilogue, if there is one. Then `out` is the array that it reads, of an image or a block; otherwise `out`
    /// is the argument that the kernel writes.
    pub epilogue_code: Option<EpilogueCode>,
    pub out: String,
    /// With channels first: the array of a block before it is transposed.
    pub untransposed: Option<String>,
}

impl Results {
    /// `len` is the number of elements of an image, `block` of those that are computed at once.
    pub fn new(k: &mut Emitter<'_>, c: &Conv, (len, block): (i64, i64)) -> Result<Results> {
        let last = c.writes_channels_last();
        let epilogue_code = k.epilogue_code(&c.epilogue)?;
        let untransposed = match last {
            true => None,
            false => Some(k.array(c.dtype(), block)?),
        };
        let out = match (&epilogue_code, last) {
            (None, _) => k.arg(c.out),
            (Some(_), true) => k.array(c.dtype(), block)?,
            (Some(_), false) => k.array(c.dtype(), len)?,
        };
        Ok(Results {
            epilogue_code,
            out,
            untransposed,
        })
    }
}

fn result(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    let s = Sizes::new(k, c)?.flat();
    let (ty, name) = (memory(s.dtype), s.dtype.name());
    let [x_last, y_last] = c.images.last();
    let x = match &c.prologue {
        Some(made) => k.made(made)?,
        None => k.arg(c.operands[0]),
    };
    let w = viewed(k, c.operands[1], s.dtype, filters(&s))?;
    let channels = s.y_channels();
    let [depth, height, width] = s.output;
    let line = width * channels;
    let rows = (BLOCK / line.max(1)).clamp(1, height.max(1));
    let image = depth * height * line;
    let results = Results::new(k, c, (image, rows * line))?;
    let copy = match !x_last && s.x_channels() > 1 || s.is_padded() {
        true => Some(k.array(s.dtype, s.padded().iter().product::<i64>() * s.x_channels())?),
        false => None,
    };
    k.body.each("n", s.batch);
    let v = match &copy {
        Some(copy) => {
            copied(k, &s, x_last, copy, &x);
            copy.clone()
        }
        None => format!(
            "{x} + n * {}",
            s.input.iter().product::<i64>() * s.x_channels()
        ),
    };
    k.body.line(format!("const {ty} *restrict v = {v};"));
    k.body.each("oz", depth);
    k.body.open(format!(
        "for (kiln_int oy = 0; oy < {height}; oy += {rows})"
    ));
    k.body.line(format!(
        "const kiln_int rows = {height} - oy < {rows} ? {height} - oy : {rows};"
    ));
    let first = format!("((n * {depth} + oz) * {height} + oy) * {line}");
    let block = match (&results.untransposed, &results.epilogue_code) {
        (Some(untransposed), _) => untransposed.clone(),
        (None, Some(_)) => results.out.clone(),
        (None, None) => format!("{} + {first}", results.out),
    };
    k.body.line(format!("{ty} *restrict u = {block};"));
    match s.has_filter_a_channel() {
        true => each_channel(k, &s, &w),
        false => {
            k.body.line(format!(
                "memset(u, 0, (size_t)(rows * {line}) * sizeof *u);"
            ));
            products(k, &s, &w, name);
        }
    }
    written(k, &s, &results, &first);
    k.body.close_all(2);
    if let (Some(epilogue_code), false) = (&results.epilogue_code, y_last) {
        let call = epilogue_code.call(&results.out, &format!("n * {image}"), &image.to_string());
        k.body.line(call);
    }
    k.body.close();
    Ok(())
}

/// Emits the output of a block of lines, whose first element is number `first` of the result.
fn written(k: &mut Emitter<'_>, s: &Sizes, results: &Results, first: &str) {
    let channels = s.y_channels();
    let [depth, height, width] = s.output;
    let line = width * channels;
    match (&results.untransposed, &results.epilogue_code) {
        (None, Some(epilogue_code)) => {
            let call = epilogue_code.call("u", first, &format!("rows * {line}"));
            k.body.line(call);
        }
        (None, None) => {}
        (Some(_), epilogue_code) => {
            // Transposes the block to its place in the image.
            let n = if epilogue_code.is_some() { "0" } else { "n" };
            let plane = depth * height * width;
            k.body.each("c", channels);
            k.body.line(format!("for (kiln_int p = 0; p < rows * {width}; ++p) {}[({n} * {channels} + c) * {plane} + (oz * {height} + oy) * {width} + p] = u[p * {channels} + c];", results.out));
            k.body.close();
        }
    }
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
    k.body.each("g", s.groups);
    k.body.each("tz", kz);
    k.body.each("ty", ky);
    k.body.each("tx", runs);
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
    k.body.each("ox", width);
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
    k.body.each("c", channels);
    k.body.line(format!("{} s = 0;", memory(s.dtype)));
    let mut tap = 0;
    for z in 0..s.kernel[0] {
        for y in 0..s.kernel[1] {
            for x in 0..s.kernel[2] {
                let at = ((z * s.dilation[0] * h + y * s.dilation[1]) * wide + x * s.dilation[2])
                    * channels;
                k.body.line(format!(
                    "s = kiln_fma_{name}(p[c + {at}], {w}[c + {}], s);",
                    tap * channels
                ));
                tap += 1;
            }
        }
    }
    k.body.line("q[c] = s;");
    k.body.close_all(3);
}

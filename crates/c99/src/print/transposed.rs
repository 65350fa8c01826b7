//! Transposed convolutions, which gradients of images are too. Each position of the operand is multiplied by the taps
//! of the filter, and the products are added to the positions of the result under the taps.

use super::conv::{Results, Sizes, to_channels_last, viewed};
use super::dialect::memory;
use super::kernel::{Emitter, View};
use crate::error::Result;
use kiln_plan::Conv;

/// Emits a transposed convolution.
pub(super) fn print(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    let s = Sizes::new(k, c)?;
    let ty = memory(c.dtype());
    let y = match &c.prologue {
        Some(made) => k.made(made)?,
        None => k.arg(c.operands[0]),
    };
    let taps: i64 = s.kernel.iter().product();
    // The layout is [groups, taps.., out, in].
    let filters = View {
        offset: 0,
        extents: vec![s.groups, taps, s.outs, s.ins],
        strides: vec![s.outs * s.ins * taps, 1, s.ins * taps, taps],
    };
    let w = viewed(k, c.operands[1], c.dtype(), filters)?;
    let (from, to) = (s.groups * s.outs, s.groups * s.ins);
    let [plane, result] = [&s.output, &s.input].map(|extents| extents.iter().product::<i64>());
    let image = result * to;
    let results = Results::new(k, c, (image, image))?;
    let copy = match !c.images.last()[1] && from > 1 {
        true => Some(k.array(c.dtype(), plane * from)?),
        false => None,
    };
    k.body.each("n", s.batch);
    let v = match &copy {
        Some(copy) => {
            to_channels_last(k, copy, &y, (from, plane));
            copy.clone()
        }
        None => format!("{y} + n * {}", plane * from),
    };
    k.body.line(format!("const {ty} *restrict v = {v};"));
    let block = match (&results.untransposed, &results.epilogue_code) {
        (Some(untransposed), _) => untransposed.clone(),
        (None, Some(_)) => results.out.clone(),
        (None, None) => format!("{} + n * {image}", results.out),
    };
    k.body.line(format!("{ty} *restrict u = {block};"));
    k.body
        .line(format!("memset(u, 0, (size_t){image} * sizeof *u);"));
    each_tap(k, &s, &w);
    if results.untransposed.is_some() {
        let n = if results.epilogue_code.is_some() {
            "0"
        } else {
            "n"
        };
        k.body.each("c", to);
        k.body.line(format!("for (kiln_int p = 0; p < {result}; ++p) {}[({n} * {to} + c) * {result} + p] = u[p * {to} + c];", results.out));
        k.body.close();
    }
    if let Some(epilogue_code) = &results.epilogue_code {
        let raw = match results.untransposed.is_some() {
            true => &results.out[..],
            false => "u",
        };
        let call = epilogue_code.call(raw, &format!("n * {image}"), &image.to_string());
        k.body.line(call);
    }
    k.body.close();
    Ok(())
}

/// Emits the products of all positions of a line by each tap.
fn each_tap(k: &mut Emitter<'_>, s: &Sizes, w: &str) {
    let name = s.dtype.name();
    let (from, to) = (s.groups * s.outs, s.groups * s.ins);
    let ([kz, ky, kx], [sz, sy, sx]) = (s.kernel, s.stride);
    let ([pz, py, px], [dz, dy, dx]) = (s.padding, s.dilation);
    let ([depth, height, width], [oz, oy, ox]) = (s.input, s.output);
    k.body.each("g", s.groups);
    k.body.each("tz", kz);
    k.body.each("ty", ky);
    k.body.each("tx", kx);
    // The first position whose tap falls on the image, and the end of these positions.
    k.body.line(format!(
        "const kiln_int ahead = {px} - tx * {dx}, rest = {} - tx * {dx};",
        width - 1 + px
    ));
    k.body.line(format!(
        "const kiln_int low = ahead > 0 ? (ahead + {}) / {sx} : 0;",
        sx - 1
    ));
    k.body.line(format!(
        "const kiln_int high = rest < 0 ? 0 : rest / {sx} + 1 < {ox} ? rest / {sx} + 1 : {ox};"
    ));
    k.body.line("if (high <= low) continue;");
    k.body.each("z", oz);
    k.body
        .line(format!("const kiln_int iz = z * {sz} + tz * {dz} - {pz};"));
    k.body
        .line(format!("if (iz < 0 || iz >= {depth}) continue;"));
    k.body.each("y", oy);
    k.body
        .line(format!("const kiln_int iy = y * {sy} + ty * {dy} - {py};"));
    k.body
        .line(format!("if (iy < 0 || iy >= {height}) continue;"));
    let positions = format!(
        "v + ((z * {oy} + y) * {ox} + low) * {from} + g * {}",
        s.outs
    );
    let filter = format!(
        "{w} + (((g * {kz} + tz) * {ky} + ty) * {kx} + tx) * {}",
        s.ins * s.outs
    );
    let places = format!(
        "u + ((iz * {height} + iy) * {width} + low * {sx} + tx * {dx} - {px}) * {to} + g * {}",
        s.ins
    );
    k.body.line(format!(
        "kiln_product_{name}(high - low, {0}, {1}, {positions}, {from}, 1, {filter}, {0}, {places}, {2});",
        s.ins,
        s.outs,
        sx * to
    ));
    k.body.close_all(6);
}

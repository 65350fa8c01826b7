//! Transposed convolutions, which gradients of images are too. Each position of the operand is multiplied by the taps
//! of the filter, and the products are added to the positions of the result under the taps.

use super::conv::{Results, Sizes, lay_out};
use super::dialect::memory;
use super::kernel::{Emitter, View};
use crate::error::Result;
use kiln_plan::Conv;

/// Emits a transposed convolution.
pub(super) fn emit(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    let s = Sizes::new(k, c)?;
    let ty = memory(c.dtype());
    let y = k.operand(c.operands[0], &c.prologue)?;
    let taps: i64 = s.kernel.iter().product();
    // The layout is [groups, taps.., out, in].
    let filters = View {
        offset: 0,
        extents: vec![s.groups, taps, s.outs, s.ins],
        strides: vec![s.outs * s.ins * taps, 1, s.ins * taps, taps],
    };
    let w = lay_out(k, c.operands[1], c.dtype(), filters)?;
    let (to, result) = (s.groups * s.ins, s.input.iter().product::<i64>());
    let len = result * to;
    let results = Results::new(k, c, (len, len))?;
    let images = s.y(c.images.last()[1]);
    let copy = images.copy(k)?;
    k.body.loop_to("n", s.batch);
    images.emit(k, "v", &copy, &y);
    let first_element = format!("n * {len}");
    results.begin(k, ty, &first_element);
    k.body
        .line(format!("memset(u, 0, (size_t){len} * sizeof *u);"));
    each_tap(k, &s, &w);
    results.transpose(k, (to, result), &result.to_string(), "0");
    let raw = match c.writes_channels_last() {
        true => "u",
        false => &results.to.array,
    };
    results
        .to
        .finish(raw, &first_element, &len.to_string(), &mut k.body);
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
    k.body.loop_to("g", s.groups);
    k.body.loop_to("tz", kz);
    k.body.loop_to("ty", ky);
    k.body.loop_to("tx", kx);
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
    k.body.loop_to("z", oz);
    k.body
        .line(format!("const kiln_int iz = z * {sz} + tz * {dz} - {pz};"));
    k.body
        .line(format!("if (iz < 0 || iz >= {depth}) continue;"));
    k.body.loop_to("y", oy);
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
    let sums = format!(
        "u + ((iz * {height} + iy) * {width} + low * {sx} + tx * {dx} - {px}) * {to} + g * {}",
        s.ins
    );
    k.body.line(format!(
        "kiln_product_{name}(high - low, {0}, {1}, {positions}, {from}, 1, {filter}, {0}, {sums}, {2});",
        s.ins,
        s.outs,
        sx * to
    ));
    k.body.close_all(6);
}

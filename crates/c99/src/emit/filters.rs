//! Gradients of a convolution's weights: for each tap, products of the images' channels by those of the result's
//! gradient, summed over positions.

use super::conv::Sizes;
use super::kernel::Emitter;
use crate::error::Result;
use kiln_plan::Conv;

/// Emits the gradient of weights.
pub(super) fn emit(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    let s = Sizes::new(k, c)?;
    let name = c.dtype().name();
    let [x_last, y_last] = c.images.last();
    let [x, dy] = c.operands.map(|arg| k.arg(arg));
    let taps: i64 = s.kernel.iter().product();
    let len = taps * s.groups * s.ins * s.outs;
    // The layout is [groups, taps.., in, out].
    let accumulators = k.array(c.dtype(), len)?;
    let out = k.destination(&c.epilogue, c.out, (c.dtype(), len))?;
    let images = [s.x(x_last), s.y(y_last)];
    let [x_copy, y_copy] = [images[0].copy(k)?, images[1].copy(k)?];
    k.body.line(format!(
        "memset({accumulators}, 0, (size_t){len} * sizeof *{accumulators});"
    ));
    k.body.loop_to("n", s.batch);
    images[0].emit(k, "v", &x_copy, &x);
    images[1].emit(k, "q", &y_copy, &dy);
    each_tap(k, &s, &accumulators, name);
    k.body.close();
    // Transposes to the layout of filters: [groups · out, in, taps..].
    let array = &out.array;
    k.body.loop_to("g", s.groups);
    k.body.loop_to("o", s.outs);
    k.body.loop_to("i", s.ins);
    k.body.line(format!(
        "for (kiln_int t = 0; t < {taps}; ++t) {array}[((g * {0} + o) * {1} + i) * {taps} + t] = {accumulators}[((g * {taps} + t) * {1} + i) * {0} + o];",
        s.outs, s.ins
    ));
    k.body.close_all(3);
    out.finish(array, "0", &len.to_string(), &mut k.body);
    Ok(())
}

/// Emits the products of all lines for each tap.
fn each_tap(k: &mut Emitter<'_>, s: &Sizes, accumulators: &str, name: &str) {
    let [_, h, wide] = s.padded();
    let (from, to) = (s.groups * s.ins, s.groups * s.outs);
    let ([kz, ky, kx], [sz, sy, sx]) = (s.kernel, s.stride);
    let ([dz, dy, dx], [depth, height, width]) = (s.dilation, s.output);
    k.body.loop_to("g", s.groups);
    k.body.loop_to("tz", kz);
    k.body.loop_to("ty", ky);
    k.body.loop_to("tx", kx);
    k.body.loop_to("z", depth);
    k.body.loop_to("y", height);
    let line = format!("((z * {sz} + tz * {dz}) * {h} + y * {sy} + ty * {dy}) * {wide}");
    let images = format!("v + ({line} + tx * {dx}) * {from} + g * {}", s.ins);
    let gradient = format!("q + (z * {height} + y) * {} + g * {}", width * to, s.outs);
    let expression = format!(
        "{accumulators} + (((g * {kz} + tz) * {ky} + ty) * {kx} + tx) * {}",
        s.ins * s.outs
    );
    k.body.line(format!(
        "kiln_product_{name}({0}, {1}, {width}, {images}, 1, {2}, {gradient}, {to}, {expression}, {1});",
        s.ins,
        s.outs,
        sx * from
    ));
    k.body.close_all(6);
}

//! Gradients of a convolution's weights: for each tap, products of the images' channels by those of the result's
//! gradient, summed over positions.

use super::conv::{Sizes, copied, to_channels_last};
use super::dialect::memory;
use super::kernel::Emitter;
use crate::error::Result;
use kiln_plan::Conv;

/// Emits the gradient of weights.
pub(super) fn print(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    let s = Sizes::new(k, c)?;
    let (ty, name) = (memory(c.dtype()), c.dtype().name());
    let [x_last, y_last] = c.images.last();
    let [x, dy] = c.operands.map(|at| k.arg(at));
    let taps: i64 = s.kernel.iter().product();
    let plane: i64 = s.output.iter().product();
    let (from, to) = (s.groups * s.ins, s.groups * s.outs);
    let all = taps * from * s.outs;
    // The layout is [groups, taps.., in, out].
    let sums = k.array(c.dtype(), all)?;
    let epilogue_code = k.epilogue_code(&c.epilogue)?;
    let out = match &epilogue_code {
        Some(_) => k.array(c.dtype(), all)?,
        None => k.arg(c.out),
    };
    let padded: i64 = s.padded().iter().product();
    let copy = match !x_last && from > 1 || s.is_padded() {
        true => Some(k.array(c.dtype(), padded * from)?),
        false => None,
    };
    let last = match !y_last && to > 1 {
        true => Some(k.array(c.dtype(), plane * to)?),
        false => None,
    };
    k.body.line(format!(
        "memset({sums}, 0, (size_t){all} * sizeof *{sums});"
    ));
    k.body.each("n", s.batch);
    let v = match &copy {
        Some(copy) => {
            copied(k, &s, x_last, copy, &x);
            copy.clone()
        }
        None => format!("{x} + n * {}", padded * from),
    };
    k.body.line(format!("const {ty} *restrict v = {v};"));
    let q = match &last {
        Some(last) => {
            to_channels_last(k, last, &dy, (to, plane));
            last.clone()
        }
        None => format!("{dy} + n * {}", plane * to),
    };
    k.body.line(format!("const {ty} *restrict q = {q};"));
    each_tap(k, &s, &sums, name);
    k.body.close();
    // Transposes to the layout of filters: [groups · out, in, taps..].
    k.body.each("g", s.groups);
    k.body.each("o", s.outs);
    k.body.each("i", s.ins);
    k.body.line(format!(
        "for (kiln_int t = 0; t < {taps}; ++t) {out}[((g * {0} + o) * {1} + i) * {taps} + t] = {sums}[((g * {taps} + t) * {1} + i) * {0} + o];",
        s.outs, s.ins
    ));
    k.body.close_all(3);
    if let Some(epilogue_code) = &epilogue_code {
        let call = epilogue_code.call(&out, "0", &all.to_string());
        k.body.line(call);
    }
    Ok(())
}

/// Emits the products of all lines for each tap.
fn each_tap(k: &mut Emitter<'_>, s: &Sizes, sums: &str, name: &str) {
    let [_, h, wide] = s.padded();
    let (from, to) = (s.groups * s.ins, s.groups * s.outs);
    let ([kz, ky, kx], [sz, sy, sx]) = (s.kernel, s.stride);
    let ([dz, dy, dx], [depth, height, width]) = (s.dilation, s.output);
    k.body.each("g", s.groups);
    k.body.each("tz", kz);
    k.body.each("ty", ky);
    k.body.each("tx", kx);
    k.body.each("z", depth);
    k.body.each("y", height);
    let line = format!("((z * {sz} + tz * {dz}) * {h} + y * {sy} + ty * {dy}) * {wide}");
    let images = format!("v + ({line} + tx * {dx}) * {from} + g * {}", s.ins);
    let gradient = format!("q + (z * {height} + y) * {} + g * {}", width * to, s.outs);
    let sums = format!(
        "{sums} + (((g * {kz} + tz) * {ky} + ty) * {kx} + tx) * {}",
        s.ins * s.outs
    );
    k.body.line(format!(
        "kiln_product_{name}({0}, {1}, {width}, {images}, 1, {2}, {gradient}, {to}, {sums}, {1});",
        s.ins,
        s.outs,
        sx * from
    ));
    k.body.close_all(6);
}

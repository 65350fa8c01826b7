//! Transposed convolutions, which gradients of images are too: each position of the operand is multiplied by the taps
//! of the filter and added to the places of the result that they meet.

use super::conv::{Results, viewed};
use super::kernel::{Printing, View};
use super::scalar::memory;
use crate::error::{Error, Result};
use kiln_plan::Conv;

/// Prints one over one or two spatial axes.
pub(super) fn print(k: &mut Printing<'_>, c: &Conv) -> Result<()> {
    let two = |dims: &[kiln_base::Dim], missing: i64| -> Result<[i64; 2]> {
        match k.numbers(dims)?[..] {
            [] => Ok([missing; 2]),
            [x] => Ok([missing, x]),
            [y, x] => Ok([y, x]),
            _ => Err(Error::kernel(
                "conv_transpose",
                "it has more than two spatial axes",
            )),
        }
    };
    let (input, output, kernel) = (two(&c.input, 1)?, two(&c.output, 1)?, two(&c.kernel, 1)?);
    let (stride, padding, dilation) = (
        two(&c.stride, 1)?,
        two(&c.padding, 0)?,
        two(&c.dilation, 1)?,
    );
    let (batch, groups) = (k.number(&c.batch)?, k.number(&c.groups)?);
    let (ins, outs) = (k.number(&c.in_channels)?, k.number(&c.out_channels)?);
    let (ty, name) = (memory(c.dtype), c.dtype.name());
    let y = match &c.prologue {
        Some(made) => k.made(made)?,
        None => k.arg(c.operands[0]),
    };
    let taps = kernel[0] * kernel[1];
    // As [groups, taps.., out, in].
    let filters = View {
        offset: 0,
        extents: vec![groups, taps, outs, ins],
        strides: vec![outs * ins * taps, 1, ins * taps, taps],
    };
    let w = viewed(k, c.operands[1], c.dtype, filters)?;
    let image = input[0] * input[1] * groups * ins;
    let results = Results::new(k, c, (image, image))?;
    let y_last = c.images.last()[1];
    let (from, to) = (groups * outs, groups * ins);
    let plane = output[0] * output[1];
    let copy = match !y_last && from > 1 {
        true => Some(k.array(c.dtype, plane * from)?),
        false => None,
    };
    k.body.each("n", batch);
    let v = match &copy {
        Some(copy) => {
            k.body.each("c", from);
            k.body.line(format!("for (kiln_int p = 0; p < {plane}; ++p) {copy}[p * {from} + c] = {y}[(n * {from} + c) * {plane} + p];"));
            k.body.close();
            copy.clone()
        }
        None => format!("{y} + n * {}", plane * from),
    };
    k.body.line(format!("const {ty} *restrict v = {v};"));
    let block = match (&results.turned, &results.behind) {
        (Some(turned), _) => turned.clone(),
        (None, Some(_)) => results.out.clone(),
        (None, None) => format!("{} + n * {image}", results.out),
    };
    k.body.line(format!("{ty} *restrict u = {block};"));
    k.body
        .line(format!("memset(u, 0, (size_t){image} * sizeof *u);"));
    k.body.each("g", groups);
    k.body.each("ty", kernel[0]);
    k.body.each("tx", kernel[1]);
    // The first and the last position whose tap falls on the image.
    k.body.line(format!(
        "const kiln_int ahead = {} - tx * {}, rest = {} + {} - tx * {};",
        padding[1],
        dilation[1],
        input[1] - 1,
        padding[1],
        dilation[1]
    ));
    let by = stride[1];
    k.body.line(format!(
        "const kiln_int low = ahead > 0 ? (ahead + {}) / {by} : 0;",
        by - 1
    ));
    k.body.line(format!(
        "const kiln_int high = rest < 0 ? 0 : rest / {by} + 1 < {0} ? rest / {by} + 1 : {0};",
        output[1]
    ));
    k.body.each("oy", output[0]);
    k.body.line(format!(
        "const kiln_int iy = oy * {} + ty * {} - {};",
        stride[0], dilation[0], padding[0]
    ));
    k.body.line(format!(
        "if (iy < 0 || iy >= {} || high <= low) continue;",
        input[0]
    ));
    k.body.line(format!(
        "kiln_product_{name}(high - low, {ins}, {outs}, v + (oy * {} + low) * {from} + g * {outs}, {from}, 1, {w} + ((g * {} + ty) * {} + tx) * {}, {ins}, u + (iy * {} + low * {by} + tx * {} - {}) * {to} + g * {ins}, {});",
        output[1],
        kernel[0],
        kernel[1],
        ins * outs,
        input[1],
        dilation[1],
        padding[1],
        by * to
    ));
    k.body.close_all(4);
    if results.turned.is_some() {
        let n = if results.behind.is_some() { "0" } else { "n" };
        let plane = input[0] * input[1];
        k.body.each("c", to);
        k.body.line(format!("for (kiln_int p = 0; p < {plane}; ++p) {}[({n} * {to} + c) * {plane} + p] = u[p * {to} + c];", results.out));
        k.body.close();
    }
    if let Some(behind) = &results.behind {
        let raw = match results.turned.is_some() {
            true => &results.out[..],
            false => "u",
        };
        let call = behind.call(raw, &format!("n * {image}"), &image.to_string());
        k.body.line(call);
    }
    k.body.close();
    Ok(())
}

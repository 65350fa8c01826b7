//! Products and convolutions of integers: plain sums, which wrap around.

use super::conv::{Sizes, filters, lay_out};
use super::dialect::memory;
use super::kernel::Emitter;
use super::product::{each_matrix, operands};
use crate::error::Result;
use kiln_base::DType;
use kiln_plan::{Conv, MatMul};

/// A statement that adds a product to an accumulator of a dtype; all arithmetic wraps around.
fn add_statement(dtype: DType, to: &str, x: &str, y: &str) -> String {
    let name = dtype.compute().name();
    format!("{to} = kiln_add_{name}({to}, kiln_mul_{name}({x}, {y}));")
}

/// Emits a product.
pub(super) fn product(k: &mut Emitter<'_>, p: &MatMul) -> Result<()> {
    let batch = k.numbers(&p.batch)?;
    let (m, deep, n) = (k.number(&p.m)?, k.number(&p.k)?, k.number(&p.n)?);
    let [left, right] = operands(k, p)?;
    let [a, b] = p.dtypes.map(memory);
    let ty = memory(p.sums());
    let len = batch.iter().product::<i64>() * m * n;
    let results = k.destination(&p.epilogue, p.out, (p.sums(), len))?;
    let number = each_matrix(k, &batch);
    let (x, y, z) = (left.start(), right.start(), &results.array);
    k.body.loop_to("i", m);
    k.body
        .line(format!("const {a} *restrict x = {x} + i * {};", left.row));
    k.body.line(format!(
        "{ty} *restrict z = {z} + ({number}) * {} + i * {n};",
        m * n
    ));
    k.body
        .line(format!("memset(z, 0, (size_t){n} * sizeof *z);"));
    k.body.loop_to("d", deep);
    k.body
        .line(format!("const {b} *restrict y = {y} + d * {};", right.row));
    k.body.line(format!("const {ty} f = x[d * {}];", left.col));
    let sum = add_statement(p.sums(), "z[j]", "f", &format!("y[j * {}]", right.col));
    k.body
        .line(format!("for (kiln_int j = 0; j < {n}; ++j) {sum}"));
    k.body.close_all(2 + batch.len());
    results.finish(&results.array, "0", &len.to_string(), &mut k.body);
    Ok(())
}

/// Emits a convolution.
pub(super) fn conv(k: &mut Emitter<'_>, c: &Conv) -> Result<()> {
    let s = Sizes::new(k, c)?;
    let x = k.operand(c.operands[0], &c.prologue)?;
    let w = lay_out(k, c.operands[1], c.dtypes[1], filters(&s))?;
    let ty = memory(c.sums());
    let [x_last, y_last] = c.images.last();
    let (ins, outs) = (s.ins, s.outs);
    let ([depth, height, width], [deep, high, wide]) = (s.output, s.input);
    let (outputs, inputs) = (depth * height * width, deep * high * wide);
    let len = s.batch * s.groups * outs * outputs;
    let results = k.destination(&c.epilogue, c.out, (c.sums(), len))?;
    let accumulators = k.array(c.sums(), outs)?;
    for (index, n) in [
        ("n", s.batch),
        ("oz", depth),
        ("oy", height),
        ("ox", width),
        ("g", s.groups),
    ] {
        k.body.loop_to(index, n);
    }
    k.body.line(format!(
        "memset({accumulators}, 0, (size_t){outs} * sizeof *{accumulators});"
    ));
    for (i, axis) in ["z", "y", "x"].into_iter().enumerate() {
        k.body.loop_to(&format!("t{axis}"), s.kernel[i]);
        k.body.line(format!(
            "const kiln_int i{axis} = o{axis} * {} + t{axis} * {} - {};",
            s.stride[i], s.dilation[i], s.padding[i]
        ));
        k.body.line(format!(
            "if (i{axis} < 0 || i{axis} >= {}) continue;",
            s.input[i]
        ));
    }
    k.body.loop_to("c", ins);
    let src = format!("(iz * {high} + iy) * {wide} + ix");
    let src = match x_last {
        true => format!(
            "(n * {inputs} + {src}) * {} + g * {ins} + c",
            s.groups * ins
        ),
        false => format!("((n * {} + g) * {ins} + c) * {inputs} + {src}", s.groups),
    };
    k.body.line(format!("const {ty} f = {x}[{src}];"));
    let [kz, ky, kx] = s.kernel;
    let weight = format!(
        "{w}[(((g * {kz} + tz) * {ky} + ty) * {kx} + tx) * {} + c * {outs} + o]",
        ins * outs
    );
    let sum = add_statement(c.sums(), &format!("{accumulators}[o]"), "f", &weight);
    k.body
        .line(format!("for (kiln_int o = 0; o < {outs}; ++o) {sum}"));
    k.body.close_all(4);
    let dst = format!("(oz * {height} + oy) * {width} + ox");
    let channels = s.groups * outs;
    let dst = match y_last {
        true => format!("(n * {outputs} + {dst}) * {channels} + g * {outs} + o"),
        false => format!("(n * {channels} + g * {outs} + o) * {outputs} + {dst}"),
    };
    let z = &results.array;
    k.body.line(format!(
        "for (kiln_int o = 0; o < {outs}; ++o) {z}[{dst}] = {accumulators}[o];"
    ));
    k.body.close_all(5);
    results.finish(&results.array, "0", &len.to_string(), &mut k.body);
    Ok(())
}

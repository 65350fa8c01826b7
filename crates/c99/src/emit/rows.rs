//! Programs whose tiles are cut from the inner axes: the innermost loop runs along a row.

use super::dialect::{C99, Dialect, combine};
use super::stage::{PARTIAL_RESULTS, Reduced, Stages};
use super::text::Text;
use super::tile::{address, inner_number};
use crate::error::Result;
use kiln_base::Compute;
use kiln_plan::tile::{Reg, SerialPoints};

/// Emits the loops and their bodies.
pub(super) fn emit(s: &Stages<'_>, text: &mut Text) -> Result<()> {
    let program = s.numbers.program;
    let axes = &s.numbers.axes;
    for r in &s.live_out {
        text.line(format!("{} r{} = 0;", C99::ctype(s.ty(*r)?), r.0));
    }
    let blocks = match s.called.raw {
        Some(_) => {
            text.open("for (kiln_int at = from; at < to; ++at)");
            super::lanes::coordinates(axes, text);
            1
        }
        None => {
            for (i, n) in axes.iter().enumerate() {
                text.loop_to(&format!("i{i}"), *n);
            }
            if axes.is_empty() {
                text.open("");
            }
            axes.len().max(1)
        }
    };
    let serial = axes.len().saturating_sub(program.serial.into())..axes.len();
    for (i, stage) in program.stages.iter().enumerate() {
        let serial_loops = |name_of: &dyn Fn(usize) -> String| {
            let names: Vec<String> = serial.clone().map(name_of).collect();
            (!names.is_empty()).then(|| names.join(" && "))
        };
        let when = match stage.serial_points {
            SerialPoints::Every => None,
            SerialPoints::First => serial_loops(&|i| format!("i{i} == 0")),
            SerialPoints::Last => serial_loops(&|i| format!("i{i} == {}", axes[i] - 1)),
        };
        match when {
            Some(when) => text.open(format!("if ({when})")),
            None => text.open(""),
        }
        match stage.over_inner {
            true => along(s, i, text)?,
            false => s.point(i, &address(s.numbers), text)?,
        }
        text.close();
    }
    text.close_all(blocks);
    Ok(())
}

/// Emits a stage that runs along a row.
fn along(s: &Stages<'_>, stage: usize, text: &mut Text) -> Result<()> {
    let reductions = s.reductions(stage)?;
    let inner = &s.numbers.inner;
    let len = inner.last().copied().unwrap_or(1);
    let in_parts = reductions.iter().any(|r| !r.address) && len >= PARTIAL_RESULTS;
    for r in &reductions {
        let (ty, acc) = (C99::ctype(r.ty), r.acc);
        match r.address {
            true => {
                text.line(format!("{ty} s{acc} = {};", r.identity()));
                text.line(format!("r{acc} = 0;"));
            }
            false => {
                text.line(format!("{ty} s{acc}[{PARTIAL_RESULTS}];"));
                text.line(format!(
                    "for (kiln_int l = 0; l < {PARTIAL_RESULTS}; ++l) s{acc}[l] = {};",
                    r.identity()
                ));
            }
        }
    }
    let outer = inner.len().saturating_sub(1);
    for (j, n) in inner[..outer].iter().enumerate() {
        text.loop_to(&format!("j{j}"), *n);
    }
    let mut position = address(s.numbers);
    position.part = "[l]";
    let last = position.index.len().saturating_sub(1);
    let full = match in_parts {
        true => len / PARTIAL_RESULTS * PARTIAL_RESULTS,
        false => 0,
    };
    let mut run = |index: Vec<String>, n: i64, text: &mut Text| -> Result<()> {
        if !inner.is_empty() {
            position.index[last] = index;
        }
        position.number = inner_number(s.numbers, &position);
        position.slot = position.number.clone();
        text.loop_to("l", n);
        s.point(stage, &position, text)?;
        text.close();
        Ok(())
    };
    if full > 0 {
        text.open(format!(
            "for (kiln_int j{outer} = 0; j{outer} < {full}; j{outer} += {PARTIAL_RESULTS})"
        ));
        run(vec![format!("j{outer}"), "l".into()], PARTIAL_RESULTS, text)?;
        text.close();
    }
    // The rest of the row, or all of it: it is accumulated into the first partial results.
    let left = len - full;
    if left > 0 {
        run(vec![full.to_string(), "l".into()], left, text)?;
    }
    text.close_all(outer);
    reductions.iter().try_for_each(|r| fold(s, r, text))
}

/// Combines partial results to the result.
fn fold(s: &Stages<'_>, r: &Reduced, text: &mut Text) -> Result<()> {
    if r.address {
        return Ok(());
    }
    let acc = r.acc;
    let (a, b) = (format!("s{acc}[l]"), format!("s{acc}[l + n]"));
    let next = combine(r.op, &a, &b, r.ty);
    text.line(format!(
        "for (kiln_int n = {}; n > 0; n /= 2)",
        PARTIAL_RESULTS / 2
    ));
    text.line(format!("  for (kiln_int l = 0; l < n; ++l) {a} = {next};"));
    let cast = match r.ty {
        Compute::F64 => format!("({})", C99::ctype(s.ty(Reg(acc))?)),
        _ => String::new(),
    };
    text.line(format!("r{acc} = {cast}s{acc}[0];"));
    Ok(())
}

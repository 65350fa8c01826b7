//! Programs whose tiles are cut from the parallel axes: the innermost loop runs over neighbouring points.

use super::dialect::{C99, Dialect};
use super::stage::Stages;
use super::text::{Text, sum};
use super::tile::{address, inner_number};
use crate::error::Result;
use kiln_base::Compute;

/// The number of points of a tile, for which results are kept from stage to stage.
pub(super) const TILE: i64 = 128;

/// Emits the loops and their bodies.
pub(super) fn emit(s: &Stages<'_>, text: &mut Text) -> Result<()> {
    let axes = &s.numbers.axes;
    let blocks = match s.called.raw {
        Some(_) => range(axes, text),
        None => open_point_loops(axes, text),
    };
    let mut position = address(s.numbers);
    if let Some(last) = axes.len().checked_sub(1) {
        position.index[last] = vec![format!("i{last}"), "l".into()];
    }
    position.lane = "[l]";
    position.part = "[l]";
    tile(s, position, text)?;
    if s.called.raw.is_some() {
        text.line("at += n;");
    }
    text.close_all(blocks);
    Ok(())
}

/// Opens loops over all points; their body covers `n` points from `i` of the last axis on.
fn open_point_loops(axes: &[i64], text: &mut Text) -> usize {
    let Some((last, outer)) = axes.split_last() else {
        text.open("");
        text.line("const kiln_int n = 1;");
        return 1;
    };
    for (i, n) in outer.iter().enumerate() {
        text.loop_to(&format!("i{i}"), n);
    }
    text.blocks(&format!("i{}", outer.len()), *last, TILE, "n");
    axes.len()
}

/// Emits the coordinates of point number `at` along each axis.
pub(super) fn coordinates(axes: &[i64], text: &mut Text) {
    let mut quot = "at".to_string();
    for (i, n) in axes.iter().enumerate().rev() {
        match i {
            0 => text.line(format!("const kiln_int i0 = {quot};")),
            _ => text.line(format!("const kiln_int i{i} = {quot} % {};", (*n).max(1))),
        }
        text.line(format!("(void)i{i};"));
        quot = format!("{quot} / {}", (*n).max(1));
    }
}

/// Opens a loop over the points `from..to` in their order.
fn range(axes: &[i64], text: &mut Text) -> usize {
    text.open("for (kiln_int at = from; at < to;)");
    coordinates(axes, text);
    let end = match axes.last() {
        Some(n) => format!("{n} - i{}", axes.len() - 1),
        None => "1".into(),
    };
    text.line(format!(
        "const kiln_int run = {end} < to - at ? {end} : to - at;"
    ));
    text.line(format!("const kiln_int n = run < {TILE} ? run : {TILE};"));
    1
}

/// Emits the body for one tile: stage by stage over its points.
fn tile(s: &Stages<'_>, mut at: super::stage::StageAddress, text: &mut Text) -> Result<()> {
    for r in &s.live_out {
        text.line(format!("{} r{}[{TILE}];", C99::ctype(s.ty(*r)?), r.0));
    }
    for (i, stage) in s.numbers.program.stages.iter().enumerate() {
        if !stage.over_inner {
            text.open("for (kiln_int l = 0; l < n; ++l)");
            s.point(i, &at, text)?;
            text.close();
            continue;
        }
        let reductions = s.reductions(i)?;
        text.open("");
        for r in &reductions {
            text.line(format!("{} s{}[{TILE}];", C99::ctype(r.ty), r.acc));
            let positions = if r.address {
                format!(" r{}[l] = 0;", r.acc)
            } else {
                String::new()
            };
            let identity = r.identity();
            text.line(format!(
                "for (kiln_int l = 0; l < n; ++l) {{ s{}[l] = {identity};{positions} }}",
                r.acc
            ));
        }
        for (j, n) in s.numbers.inner.iter().enumerate() {
            text.loop_to(&format!("j{j}"), *n);
        }
        at.number = inner_number(s.numbers, &at);
        at.slot = sum(0, [(TILE, &format!("({})", at.number)[..]), (1, "l")]);
        text.open("for (kiln_int l = 0; l < n; ++l)");
        s.point(i, &at, text)?;
        text.close();
        text.close_all(s.numbers.inner.len());
        for r in reductions.iter().filter(|r| !r.address) {
            let cast = match r.ty {
                Compute::F64 => format!("({})", C99::ctype(s.ty(kiln_plan::tile::Reg(r.acc))?)),
                _ => String::new(),
            };
            text.line(format!(
                "for (kiln_int l = 0; l < n; ++l) r{0}[l] = {cast}s{0}[l];",
                r.acc
            ));
        }
        text.close();
    }
    Ok(())
}

//! A drawing of the arena over the steps of a run: a temporary is a box from the step that writes it to the last step
//! that reads it, at its offset in the arena.

use super::html::{bytes, colour};
use crate::Explain;
use std::fmt::Write;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 260.0;
const TOP: f64 = 20.0;

/// Returns the drawing, or a line of text if sizes are symbolic or nothing is temporary.
pub(super) fn timeline(explain: &Explain) -> String {
    let Some(memory) = &explain.memory else {
        return "<p>The sizes are symbolic; a run's memory depends on them.</p>".to_string();
    };
    if explain.temporaries.is_empty() || memory.peak == 0 {
        return "<p>No step needs temporary memory.</p>".to_string();
    }
    let steps = explain.temporaries.iter().map(|b| b.last + 1).max();
    let steps = steps.unwrap_or(1).max(1);
    let (x, y) = (WIDTH / steps as f64, HEIGHT / memory.peak as f64);
    let mut svg = format!(
        "<svg class=\"memory\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\">\n",
        HEIGHT + TOP + 24.0
    );
    let mut alive = vec![0usize; steps];
    for (i, b) in explain.temporaries.iter().enumerate() {
        alive[b.first..=b.last]
            .iter_mut()
            .for_each(|n| *n += b.bytes);
        let name = match b.buffer {
            Some(id) => format!("buffer {id}"),
            None => "scratch memory".to_string(),
        };
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{name}: \
             {}, steps {} to {}, offset {}</title></rect>",
            b.first as f64 * x,
            TOP + HEIGHT - (b.offset + b.bytes) as f64 * y,
            (b.last + 1 - b.first) as f64 * x,
            (b.bytes as f64 * y).max(0.5),
            colour(i),
            bytes(b.bytes as f64),
            b.first,
            b.last,
            b.offset,
        );
    }
    let mut path = String::new();
    for (i, n) in alive.iter().enumerate() {
        let level = TOP + HEIGHT - *n as f64 * y;
        let (a, b) = (i as f64 * x, (i + 1) as f64 * x);
        let letter = if i == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{letter}{a:.1} {level:.1}L{b:.1} {level:.1}");
    }
    let _ = writeln!(svg, "<path class=\"alive\" d=\"{path}\"/>");
    let (peak, bound) = (bytes(memory.peak as f64), bytes(memory.lower_bound as f64));
    let _ = writeln!(
        svg,
        "<text x=\"4\" y=\"14\">arena {peak}; no layout needs less than {bound}; the line is what is \
         alive</text>\n<text x=\"4\" y=\"{:.0}\">step 0</text>\n<text x=\"{WIDTH}\" y=\"{:.0}\" \
         text-anchor=\"end\">step {}</text>\n</svg>",
        HEIGHT + TOP + 18.0,
        HEIGHT + TOP + 18.0,
        steps - 1
    );
    svg
}

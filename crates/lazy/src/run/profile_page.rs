//! A self-contained page of a profile.

use super::profiler::{Profile, time as shown};
use kiln_compiler::html::{bytes, escaped, page_head};
use std::fmt::Write as _;
use std::time::Duration;

const WIDTH: f64 = 1000.0;
/// The height of a track.
const TRACK: f64 = 22.0;
/// The spans that a track shows: the longest.
const SPANS: usize = 4000;
/// The kernels and compilations that have a row.
const ROWS: usize = 100;

const STYLE: &str = "svg{display:block;width:100%;background:#f4f6f8;margin-bottom:2px}";

pub(super) fn page(profile: &Profile) -> String {
    let wall = profile.wall_time();
    let share = |of: Duration| 100.0 * of.as_secs_f64() / wall.as_secs_f64().max(1e-12);
    let compiling: Duration = profile.compilations().iter().map(|c| c.time).sum();
    // Writing to a string does not fail.
    let mut out = page_head("Kiln: profile", STYLE);
    let _ = writeln!(
        out,
        "<h1>Profile</h1>\n<p>{} in all: {:.1} % in kernels, {:.1} % compiling, {:.1} % waiting for data.</p>",
        shown(wall),
        share(profile.total_time()),
        share(compiling),
        share(profile.wait_time()),
    );
    let runs = profile.runs().iter();
    let runs = runs.map(|r| (r.start, r.time, format!("run at {}", r.loc)));
    let kernels = profile.events().iter();
    let kernels = kernels.map(|e| (e.start, e.time, e.name.clone()));
    let compilations = profile.compilations().iter();
    let compilations = compilations.map(|c| (c.start, c.time, format!("compile at {}", c.loc)));
    let waits = profile.waits().iter();
    let waits = waits.map(|w| (w.start, w.time, w.what.to_string()));
    let tracks = [
        ("runs", "#4c78a8", runs.collect()),
        ("kernels", "#54a24b", kernels.collect()),
        ("compilations", "#e45756", compilations.collect()),
        ("waits for data", "#eeca3b", waits.collect()),
    ];
    for (name, colour, spans) in tracks {
        out.push_str(&track(name, colour, spans, wall));
    }
    out.push_str(
        "<h2>Kernels</h2>\n<table>\n<tr><th class=\"n\">total<th class=\"n\">calls<th class=\"n\">operations\
         <th class=\"n\">bytes<th>kernel<th>last op</tr>\n",
    );
    for row in profile.key_averages().rows.iter().take(ROWS) {
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{:.3e}<td class=\"n\">{}<td>{}<td>{}</tr>",
            shown(row.total),
            row.count,
            row.flops,
            bytes(row.bytes),
            escaped(&row.name),
            escaped(row.ops.last().map_or("", |o| o)),
        );
    }
    out.push_str("</table>\n<h2>Compilations</h2>\n<table>\n<tr><th class=\"n\">time<th>line<th>reason</tr>\n");
    for c in profile.compilations().iter().take(ROWS) {
        let (time, loc, reason) = (shown(c.time), c.loc.to_string(), escaped(&c.reason));
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{time}<td>{}<td>{reason}</tr>",
            escaped(&loc)
        );
    }
    out.push_str("</table>\n<h2>Waits for data</h2>\n");
    let _ = writeln!(
        out,
        "<p>{} in {} waits. `num_workers` and `prefetch_factor` of a `DataLoader` prepare batches beside the steps.</p>",
        shown(profile.wait_time()),
        profile.waits().len()
    );
    out + "</body>\n</html>\n"
}

/// One kind of spans over the time of the profile.
fn track(
    name: &str,
    colour: &str,
    mut spans: Vec<(Duration, Duration, String)>,
    wall: Duration,
) -> String {
    spans.sort_by_key(|(_, time, _)| std::cmp::Reverse(*time));
    let scale = WIDTH / wall.as_secs_f64().max(1e-12);
    let mut out = format!(
        "<div>{name}</div>\n<svg viewBox=\"0 0 {WIDTH} {TRACK}\" preserveAspectRatio=\"none\" height=\"{TRACK}\">\n"
    );
    for (start, time, about) in spans.iter().take(SPANS) {
        let (x, width) = (start.as_secs_f64() * scale, time.as_secs_f64() * scale);
        let _ = writeln!(
            out,
            "<rect x=\"{x:.2}\" width=\"{:.2}\" height=\"{TRACK}\" fill=\"{colour}\"><title>{}, {}</title></rect>",
            width.max(0.2),
            escaped(about),
            shown(*time)
        );
    }
    out + "</svg>\n"
}

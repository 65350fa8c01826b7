//! A self-contained page of a timeline.

use super::Timeline;
use hashbrown::HashMap;
use kiln_compiler::html::{bytes, escaped, page_head};
use kiln_runtime::memory::Category;
use std::fmt::Write as _;

const WIDTH: usize = 1000;
const HEIGHT: f64 = 280.0;
const ROW: f64 = 26.0;
/// The maximum number of columns. With more steps, several share a column, which shows their maximum.
const COLUMNS: usize = 500;
/// The number of holders that have a row.
const HOLDERS: usize = 60;

/// The colours of the categories.
const COLOURS: [&str; 7] = [
    "#4c78a8", "#e45756", "#b279a2", "#54a24b", "#eeca3b", "#9d755d", "#9aa5b3",
];

const STYLE: &str = "svg{display:block;width:100%}svg.all{border:1px solid #b9c2ce}td.row{width:52%}\
    i{display:inline-block;width:12px;height:12px}";

pub(super) fn page(timeline: &Timeline) -> String {
    let (step, peak) = timeline.peak();
    // Writing to a string does not fail.
    let mut out = page_head(&timeline.title, STYLE);
    let _ = writeln!(
        out,
        "<h1>{}</h1>\n<p>The peak is {peak} bytes ({}) at step {step} of {}.</p>",
        escaped(&timeline.title),
        bytes(peak as f64),
        timeline.steps
    );
    out.push_str(&categories(timeline, peak));
    out.push_str("<h2>At the peak</h2>\n<table>\n<tr><th>category<th class=\"n\">bytes<th class=\"n\">share</tr>\n");
    for (category, n) in timeline.at_peak() {
        let (name, colour) = (category.name(), COLOURS[category as usize]);
        let share = 100.0 * n as f64 / peak.max(1) as f64;
        let _ = writeln!(
            out,
            "<tr><td><i style=\"background:{colour}\"></i> {name}<td class=\"n\">{n}<td class=\"n\">{share:.1} %</tr>"
        );
    }
    let _ = writeln!(
        out,
        "<tr><td>total<td class=\"n\">{peak}<td></tr>\n</table>\n<h2>Who is alive when</h2>\n<table>\n<tr><th>holder\
         <th class=\"n\">at the peak<th class=\"n\">most<th>over the steps</tr>"
    );
    out.push_str(&holders(timeline, step));
    out.push_str("</table>\n</body>\n</html>\n");
    out
}

/// The maximum over the steps of each column.
fn columns(course: &[usize]) -> Vec<usize> {
    let columns = course.len().min(COLUMNS);
    let steps_of = |c: usize| c * course.len() / columns..(c + 1) * course.len() / columns;
    let maxima = (0..columns).map(|c| course[steps_of(c)].iter().copied().max().unwrap_or(0));
    maxima.collect()
}

/// A stepped area between two courses, `scale` units of height a byte.
fn area(low: &[f64], high: &[f64], scale: f64, height: f64, colour: &str, title: &str) -> String {
    let x = WIDTH as f64 / high.len() as f64;
    let mut path = String::new();
    let mut edge = |columns: &mut dyn Iterator<Item = (usize, f64)>, is_reversed: bool| {
        for (i, n) in columns {
            let (a, b) = (i as f64 * x, (i + 1) as f64 * x);
            let (a, b) = if is_reversed { (b, a) } else { (a, b) };
            let letter = if path.is_empty() { 'M' } else { 'L' };
            let y = height - n * scale;
            let _ = write!(path, "{letter}{a:.1} {y:.1}L{b:.1} {y:.1}");
        }
    };
    edge(&mut high.iter().copied().enumerate(), false);
    edge(&mut low.iter().copied().enumerate().rev(), true);
    format!("<path fill=\"{colour}\" d=\"{path}Z\"><title>{title}</title></path>\n")
}

/// The categories over the steps, one on the other.
fn categories(timeline: &Timeline, peak: usize) -> String {
    let mut out = format!("<svg class=\"all\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n");
    let mut low = vec![0.0; timeline.steps.min(COLUMNS)];
    for category in Category::ALL {
        let course = columns(&timeline.course(|b| b.category == category));
        let high: Vec<f64> = low
            .iter()
            .zip(&course)
            .map(|(l, n)| l + *n as f64)
            .collect();
        if course.iter().any(|n| *n > 0) {
            let scale = (HEIGHT - 4.0) / peak.max(1) as f64;
            let colour = COLOURS[category as usize];
            out.push_str(&area(&low, &high, scale, HEIGHT, colour, category.name()));
        }
        low = high;
    }
    out + "</svg>\n"
}

/// Returns the table of holders, largest peak first.
fn holders(timeline: &Timeline, step: usize) -> String {
    let mut by_holder: HashMap<(Category, &str), Timeline> = HashMap::new();
    for block in &timeline.blocks {
        let entry = by_holder.entry((block.category, &block.holder[..]));
        let timeline_of = entry.or_insert_with(|| Timeline {
            title: String::new(),
            steps: timeline.steps,
            blocks: Vec::new(),
        });
        timeline_of.blocks.push(block.clone());
    }
    let rows = by_holder.into_iter().map(|(key, timeline_of)| {
        let course = timeline_of.course(|_| true);
        let peak = course.iter().copied().max().unwrap_or(0);
        (peak, key, course[step], columns(&course))
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|a, b| (b.0, a.1).cmp(&(a.0, b.1)));
    let mut out = String::new();
    for (peak, (category, holder), now, course) in rows.iter().take(HOLDERS) {
        let (colour, name) = (COLOURS[*category as usize], category.name());
        let high: Vec<f64> = course.iter().map(|n| *n as f64).collect();
        let low = vec![0.0; high.len()];
        let svg = area(
            &low,
            &high,
            (ROW - 2.0) / (*peak).max(1) as f64,
            ROW,
            colour,
            name,
        );
        let _ = writeln!(
            out,
            "<tr><td><i style=\"background:{colour}\"></i> {}<td class=\"n\">{}<td class=\"n\">{}<td class=\"row\"><svg \
             viewBox=\"0 0 {WIDTH} {ROW}\" preserveAspectRatio=\"none\" height=\"18\">{svg}</svg></tr>",
            escaped(holder),
            bytes(*now as f64),
            bytes(*peak as f64),
        );
    }
    if rows.len() > HOLDERS {
        let _ = writeln!(
            out,
            "<tr><td>and {} smaller holders</tr>",
            rows.len() - HOLDERS
        );
    }
    out
}

//! The results as one self-contained HTML page: a roofline, bars and the table.

use super::{Report, duration, percent};
use crate::Failure;
use crate::bench::{Measured, Peaks};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fmt::Write as _;

const STYLE: &str = "body{font:14px/1.5 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}\
    table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}svg{max-width:100%}";

/// The page.
///
/// # Errors
/// If a plot can't be drawn.
pub fn page(report: &Report) -> Result<String, Failure> {
    let mut body = String::new();
    let (device, threads) = (escaped(&report.device), report.threads);
    let _ = write!(
        body,
        "<h1>Kiln benchmark</h1><p>{device}, {threads} threads, Kiln {}",
        report.version
    );
    if let Some(peaks) = &report.peaks {
        let (flops, bytes) = (peaks.flops / 1e9, peaks.bandwidth / 1e9);
        let _ = write!(
            body,
            "; measured peaks: {flops:.0} GFLOP/s, {bytes:.1} GB/s</p>"
        );
        if !report.results.is_empty() {
            let _ = write!(
                body,
                "<h2>Roofline</h2>{}",
                roofline(&report.results, peaks)?
            );
            let _ = write!(
                body,
                "<h2>Share of what the peaks allow</h2>{}",
                bars(&report.results, peaks)?
            );
        }
    }
    let _ = write!(body, "<h2>Results</h2>{}", table(report));
    Ok(format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>Kiln benchmark</title>\
         <style>{STYLE}</style><body>{body}</body></html>\n"
    ))
}

fn table(report: &Report) -> String {
    let mut rows = String::new();
    for r in &report.results {
        let share = report.peaks.map_or(String::new(), |p| percent(r.share(&p)));
        let cells = [
            escaped(&r.workload),
            r.dtype.clone(),
            duration(r.median()),
            percent(r.spread()),
            format!("{:.1}", r.flops_per_second() / 1e9),
            format!("{:.2}", r.bytes_per_second() / 1e9),
            share,
            r.kernels.to_string(),
            r.times.len().to_string(),
            escaped(&r.algorithms.join(" ")),
        ];
        let _ = write!(rows, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
    }
    let heads = [
        "workload",
        "dtype",
        "median",
        "spread",
        "GFLOP/s",
        "GB/s",
        "share",
        "kernels",
        "runs",
        "algorithms",
    ];
    format!(
        "<table><tr><th>{}</th></tr>{rows}</table>",
        heads.join("</th><th>")
    )
}

fn drawn(
    size: (u32, u32),
    draw: impl FnOnce(&DrawingArea<SVGBackend, Shift>) -> Result<(), Failure>,
) -> Result<String, Failure> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        draw(&root)?;
        root.present()?;
    }
    Ok(svg)
}

/// Arithmetic intensity against speed, on logarithmic axes, under the lines that bandwidth and arithmetic set.
fn roofline(results: &[Measured], peaks: &Peaks) -> Result<String, Failure> {
    // What does no arithmetic, such as a copy, stands at the left.
    let intensity = |r: &Measured| (r.flops / r.bytes.max(1.0)).max(1e-3);
    let ridge = peaks.flops / peaks.bandwidth;
    let ends = results.iter().map(intensity).chain([ridge]);
    let (left, right) = ends.fold((f64::MAX, 0f64), |(l, r), x| (l.min(x), r.max(x)));
    let (left, right) = (left / 2.0, right * 4.0);
    let roof = |x: f64| (x * peaks.bandwidth).min(peaks.flops) / 1e9;
    let speed = |r: &Measured| (r.flops_per_second() / 1e9).max(1e-6);
    let lowest = results.iter().map(speed).fold(roof(left), f64::min) / 2.0;
    drawn((900, 460), |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(
                (left..right).log_scale(),
                (lowest..peaks.flops / 1e9 * 2.0).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("FLOP a byte")
            .y_desc("GFLOP/s")
            .draw()?;
        let corners = [left, ridge, right].map(|x| (x, roof(x)));
        chart.draw_series(LineSeries::new(corners, &RED))?;
        let points = results.iter().map(|r| {
            EmptyElement::at((intensity(r), speed(r)))
                + Circle::new((0, 0), 4, BLUE.filled())
                + Text::new(r.workload.clone(), (6, -6), ("sans-serif", 11))
        });
        chart.draw_series(points)?;
        Ok(())
    })
}

/// A bar a workload.
fn bars(results: &[Measured], peaks: &Peaks) -> Result<String, Failure> {
    let most = results.iter().map(|r| r.share(peaks)).fold(1.0, f64::max);
    let rows = results.len();
    let height = 60 + 24 * rows as u32;
    drawn((900, height), |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(0)
            .build_cartesian_2d(0.0..most * 100.0, 0..rows)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_desc("%")
            .draw()?;
        for (i, r) in results.iter().enumerate() {
            let (row, share) = (rows - 1 - i, r.share(peaks) * 100.0);
            let mut bar = Rectangle::new([(0.0, row), (share, row + 1)], BLUE.mix(0.4).filled());
            bar.set_margin(2, 2, 0, 0);
            chart.draw_series([bar])?;
            let label = format!("{} {}: {share:.0} %", r.workload, r.dtype);
            let text = Text::new(label, (4, -17), ("sans-serif", 12));
            chart.draw_series([EmptyElement::at((0.0, row)) + text])?;
        }
        Ok(())
    })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

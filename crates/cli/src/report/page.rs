//! The results as one self-contained HTML page: a roofline, bars and the table.

use super::labels::{self, Area};
use super::{Report, duration, share_text};
use crate::Failure;
use crate::bench::{Peaks, WorkloadMeasurements};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fmt::Write as _;

const STYLE: &str = "body{font:14px/1.5 sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}\
    table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:nth-child(2),th:nth-child(2),td:last-child,th:last-child{text-align:left}svg{max-width:100%}";

/// The explanation of the roofs.
const NOTE: &str = "Points have the numbers of their rows in the table. A roof is the measured peak, or the best \
    workload where that was faster; for bandwidth, of those that are larger than caches. What fits into the caches \
    may be above the slope, since that is of memory; its share is cut at 100 %. Operations are those of the direct \
    algorithm, whichever was used.";

/// The page.
///
/// # Errors
/// If a plot can't be drawn.
pub fn page(report: &Report) -> Result<String, Failure> {
    let mut body = String::new();
    let header = escape(&report.header());
    let _ = write!(body, "<h1>Kiln benchmark</h1><p>{header}");
    if let (Some(peaks), Some(roofs)) = (report.peaks_text(), &report.roofs()) {
        let _ = write!(body, "; peaks measured in the same run: {peaks}</p>");
        if !report.results.is_empty() {
            let _ = write!(
                body,
                "<h2>Roofline</h2><p>{NOTE}</p>{}",
                roofline(&report.results, roofs)?
            );
            let _ = write!(
                body,
                "<h2>Share of what the roofs allow</h2>{}",
                bars(&report.results, roofs)?
            );
        }
    }
    let _ = write!(body, "<h2>Results</h2>{}", table(report));
    if !report.left_out.is_empty() {
        let items = report
            .left_out
            .iter()
            .map(|l| format!("<li>{}</li>", escape(l)));
        let items: String = items.collect();
        let _ = write!(body, "<h2>Not timed</h2><ul>{items}</ul>");
    }
    Ok(format!(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>Kiln benchmark</title>\
         <style>{STYLE}</style><body>{body}</body></html>\n"
    ))
}

fn table(report: &Report) -> String {
    let mut rows = String::new();
    let roofs = report.roofs();
    for (i, r) in report.results.iter().enumerate() {
        let share = roofs.as_ref().and_then(|p| r.share(p));
        let share = share.map_or(String::new(), |share| escape(&share_text(share)));
        let cells = [
            (i + 1).to_string(),
            escape(&r.workload),
            r.dtype.clone(),
            duration(r.median()),
            super::percent(r.spread()),
            format!("{:.1}", r.flops_per_second() / 1e9),
            format!("{:.2}", r.bytes_per_second() / 1e9),
            share,
            r.kernels.to_string(),
            r.times.len().to_string(),
            escape(&r.algorithms.join(", ")),
        ];
        let _ = write!(rows, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
    }
    let heads = [
        "#",
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

fn draw_svg(
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

/// The size of the roofline.
const SIZE: (u32, u32) = (900, 460);

/// Plots arithmetic intensity against speed, on logarithmic axes, under the roofs of bandwidth and arithmetic. The
/// points carry the numbers of their rows in the table.
fn roofline(results: &[WorkloadMeasurements], roofs: &Peaks) -> Result<String, Failure> {
    // A workload without arithmetic, such as a copy, stands at the left.
    let intensity = |r: &WorkloadMeasurements| (r.flops / r.bytes.max(1.0)).max(1e-3);
    // A roof for each dtype whose peak is known, over one slope.
    let tops: Vec<f64> = roofs.flops.values().copied().collect();
    let ridge = |top: f64| top / roofs.bandwidth;
    let ridges = tops.iter().map(|top| ridge(*top));
    let ends = results.iter().map(intensity).chain(ridges);
    let (left, right) = ends.fold((f64::MAX, 0f64), |(l, r), x| (l.min(x), r.max(x)));
    let (left, right) = (left / 2.0, right * 4.0);
    let roof = |x: f64, top: f64| (x * roofs.bandwidth).min(top) / 1e9;
    let speed = |r: &WorkloadMeasurements| (r.flops_per_second() / 1e9).max(1e-6);
    let lowest = results
        .iter()
        .map(speed)
        .fold(roof(left, f64::MAX), f64::min)
        / 2.0;
    let fastest = tops.iter().map(|top| top / 1e9);
    let highest = results
        .iter()
        .map(speed)
        .chain(fastest)
        .fold(lowest, f64::max)
        * 2.0;
    draw_svg(SIZE, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d((left..right).log_scale(), (lowest..highest).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("FLOP a byte")
            .y_desc("GFLOP/s")
            .draw()?;
        for top in &tops {
            let corners = [left, ridge(*top), right].map(|x| (x, roof(x, *top)));
            chart.draw_series(LineSeries::new(corners, &RED))?;
        }
        let pixel = |r: &WorkloadMeasurements| chart.backend_coord(&(intensity(r), speed(r)));
        let points: Vec<(i32, i32)> = results.iter().map(pixel).collect();
        let (x, y) = chart.plotting_area().get_pixel_range();
        let inside = Area {
            x: x.start,
            y: y.start,
            wide: x.end - x.start,
            high: y.end - y.start,
        };
        draw_numbered(root, &points, inside)
    })
}

/// Points with their numbers, counted from 1.
fn draw_numbered(
    root: &DrawingArea<SVGBackend, Shift>,
    points: &[(i32, i32)],
    inside: Area,
) -> Result<(), Failure> {
    let texts: Vec<String> = (1..=points.len()).map(|i| i.to_string()).collect();
    let sizes: Vec<(i32, i32)> = texts.iter().map(|t| (7 * t.len() as i32, 11)).collect();
    let areas = labels::place_beside(points, &sizes, inside);
    for (point, area) in points.iter().zip(&areas) {
        let middle = (area.x + area.wide / 2, area.y + area.high / 2);
        let is_far = (point.0 - middle.0).abs().max((point.1 - middle.1).abs()) > 18;
        if is_far {
            let line = PathElement::new([*point, middle], BLACK.mix(0.25));
            root.draw(&line)?;
        }
    }
    for ((point, area), text) in points.iter().zip(&areas).zip(texts) {
        root.draw(&Circle::new(*point, 4, BLUE.mix(0.6).filled()))?;
        root.draw(&Text::new(text, (area.x, area.y), ("sans-serif", 11)))?;
    }
    Ok(())
}

/// One bar per workload.
fn bars(results: &[WorkloadMeasurements], roofs: &Peaks) -> Result<String, Failure> {
    let rows = results.len();
    let height = 60 + 24 * rows as u32;
    draw_svg((900, height), |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(0)
            .build_cartesian_2d(0.0..100.0, 0..rows)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_desc("%")
            .draw()?;
        for (i, r) in results.iter().enumerate() {
            let (row, share) = (rows - 1 - i, r.share(roofs));
            let end = share.unwrap_or(0.0).min(1.0) * 100.0;
            let mut bar = Rectangle::new([(0.0, row), (end, row + 1)], BLUE.mix(0.4).filled());
            bar.set_margin(2, 2, 0, 0);
            chart.draw_series([bar])?;
            let (number, share) = (i + 1, share.map_or("no peak".into(), share_text));
            let label = format!("{number}  {} {}: {share}", r.workload, r.dtype);
            let text = Text::new(label, (4, -17), ("sans-serif", 12));
            chart.draw_series([EmptyElement::at((0.0, row)) + text])?;
        }
        Ok(())
    })
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workload with this number of operations and bytes that took a second.
    fn measured(i: usize, flops: f64, bytes: f64) -> WorkloadMeasurements {
        WorkloadMeasurements {
            workload: format!("matmul:{i}x<{i}"),
            dtype: "f32".into(),
            algorithms: vec!["mma tile=64x64x32 part=32x32 stages=4 raster=1 parts=1".into()],
            kernels: 1,
            flops,
            bytes,
            times: vec![1.0, 1.0, 1.0],
        }
    }

    #[test]
    fn points_are_numbered_and_nothing_is_beyond_its_roof() {
        let close_measurement = |i: usize| measured(i, 3e9 + i as f64 * 1e7, 1e8);
        let mut results: Vec<WorkloadMeasurements> = (0..38).map(close_measurement).collect();
        results.push(measured(38, 9e9, 1e9)); // above the measured peak
        results.push(measured(39, 1e3, 3e7)); // above the bandwidth, from caches
        let report = Report {
            device: crate::devices::info(kiln::Device::Cpu),
            version: "1".into(),
            release: true,
            left_out: vec!["a <b>".into()],
            peaks: Some(Peaks {
                flops: [("f32".to_string(), 8e9)].into(),
                bandwidth: 1e7,
            }),
            results,
        };
        let roofs = report.roofs().unwrap();
        assert_eq!((roofs.flops["f32"], roofs.bandwidth), (9e9, 1e9));
        let large = report.results.iter().filter(|r| r.bytes > 3e7);
        large.for_each(|r| assert!(r.share(&roofs) <= Some(1.0)));
        let page = page(&report).unwrap();
        let svg = &page[page.find("<svg").unwrap()..page.find("</svg>").unwrap()];
        let texts: Vec<&str> = svg.lines().map(str::trim).collect();
        let all = (1..=40).all(|i| texts.contains(&&i.to_string()[..]));
        assert!(all, "{svg}");
        assert!(page.contains("<td>39</td><td>matmul:38x&lt;38</td>"));
        assert!(page.contains("in the same run"));
        assert!(page.contains("<li>a &lt;b&gt;</li>"));
        // A dtype without a peak has no share.
        let mut other = report.clone();
        other
            .results
            .iter_mut()
            .for_each(|r| r.dtype = "bf16".into());
        assert!(other.results.iter().all(|r| r.share(&roofs).is_none()));
        assert!(super::page(&other).unwrap().contains("no peak"));
        assert!(other.json()["results"][0]["share_of_peak"].is_null());
        // Caches give a higher bandwidth than memory.
        let narrow = Report {
            results: vec![measured(0, 1e3, 3e7)],
            ..report
        };
        assert_eq!(narrow.roofs().unwrap().bandwidth, 1e7);
        assert!(super::page(&narrow).unwrap().contains("&gt; 100 %"));
    }
}

//! The curve of the loss, for the terminal and as a picture.

use crate::Failure;
use crate::say::sayln;
use plotters::prelude::*;
use std::path::Path;

/// Rows of text.
const HEIGHT: usize = 8;
/// Columns of text.
const WIDTH: usize = 66;

/// Draws the losses of all steps, each column the mean of its steps.
pub fn print(losses: &[f32]) {
    let width = WIDTH.min(losses.len()).max(1);
    let edge = |c: usize| c * losses.len() / width;
    let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len().max(1) as f32;
    let columns: Vec<f32> = (0..width)
        .map(|c| mean(&losses[edge(c)..edge(c + 1)]))
        .collect();
    let top = columns.iter().fold(1e-6f32, |m, x| m.max(*x));
    let eighths = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    for row in (0..HEIGHT).rev() {
        let cell = |x: &f32| {
            let filled = x / top * (HEIGHT * 8) as f32 - (row * 8) as f32;
            eighths[filled.clamp(0.0, 8.0).round() as usize]
        };
        let label = top * (row + 1) as f32 / HEIGHT as f32;
        let line: String = columns.iter().map(cell).collect();
        sayln!("{label:>7.3} ┤{line}");
    }
}

/// Writes the losses of all steps as an SVG file.
pub fn save(losses: &[f32], path: &Path) -> Result<(), Failure> {
    let top = losses.iter().fold(0f32, |m, x| m.max(*x));
    let root = SVGBackend::new(path, (720, 360)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(0..losses.len(), 0f32..top)?;
    chart
        .configure_mesh()
        .x_desc("step")
        .y_desc("loss")
        .draw()?;
    let points = losses.iter().copied().enumerate();
    chart.draw_series(LineSeries::new(points, &BLUE))?;
    root.present()?;
    Ok(())
}

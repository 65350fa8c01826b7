//! The curve of the loss, for the terminal.

use crate::say::sayln;

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

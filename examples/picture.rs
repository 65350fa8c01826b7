//! Draws a training step and its kernels, as `explain` reports them: the picture of the README.
//!
//! ```sh
//! cargo run --example picture > docs/step.svg
//! ```

use kiln::prelude::*;
use kiln::{Explain, KernelInfo};

/// Ops that move data or depend on numbers alone; the picture leaves them out.
const MOVES: [&str; 7] = ["full", "iota", "reshape", "broadcast", "slice", "permute", "cast"];
/// The colours of the user's lines.
const COLOURS: [&str; 4] = ["#1f5fbf", "#b3541e", "#2e7d32", "#8e24aa"];

fn main() -> Result<()> {
    let (fc1, fc2) = (Linear::new(64, 128)?, Linear::new(128, 10)?);
    let mut opt = Optimizer::new([fc1.parameters(), fc2.parameters()].concat(), AdamW::new())?;
    let batch = (Spec::new(DType::F32, [64, 64]), Spec::new(DType::I64, 64));
    let first = line!() as usize + 2;
    let step = compile(batch, |(x, y)| {
        let hidden = fc1.call(x).gelu();
        let scores = fc2.call(hidden);
        let loss = scores.cross_entropy(y);
        opt.zero_grad();
        loss.backward()?;
        opt.step()?;
        Ok(loss)
    })?;
    let code: Vec<&str> = include_str!("picture.rs").lines().skip(first - 1).take(6).map(str::trim).collect();
    println!("{}", draw(step.explain(), &code, first));
    Ok(())
}

/// The ops of a kernel that one line of the user's recorded: the line, and the names of the ops.
fn ops_by_line(kernel: &KernelInfo) -> Vec<(usize, Vec<&str>)> {
    let mut lines: Vec<(usize, Vec<&str>)> = Vec::new();
    for op in &kernel.ops {
        let (name, place) = (op.split(' ').next().unwrap_or_default(), op.rsplit(" at ").next().unwrap_or_default());
        let Some(line) = place.split(':').nth(1).and_then(|n| n.parse().ok()) else { continue };
        if MOVES.contains(&name) {
            continue;
        }
        match lines.iter_mut().find(|(l, _)| *l == line) {
            Some((_, names)) if names.contains(&name) => {}
            Some((_, names)) => names.push(name),
            None => lines.push((line, vec![name])),
        }
    }
    lines.sort();
    lines
}

/// The code on the left, a box for each kernel on the right, and curves from lines to the kernels of their ops.
fn draw(explain: &Explain, code: &[&str], first: usize) -> String {
    let mut recorded: Vec<usize> = explain.kernels.iter().flat_map(ops_by_line).map(|(line, _)| line).collect();
    recorded.sort();
    recorded.dedup();
    let colour = |line: usize| COLOURS[recorded.iter().position(|l| *l == line).unwrap_or(0) % COLOURS.len()];
    let (mut boxes, mut curves, mut y) = (String::new(), String::new(), 12);
    let height: usize = explain.kernels.iter().map(|k| 36 + 16 * ops_by_line(k).len()).sum::<usize>() + 36;
    let code_y = |line: usize| height * (2 * (line - first) + 1) / (2 * code.len());
    for kernel in &explain.kernels {
        let lines = ops_by_line(kernel);
        let with = if kernel.concurrent { " (concurrent)" } else { "" };
        boxes += &format!(
            "<rect x=\"400\" y=\"{y}\" width=\"448\" height=\"{}\" rx=\"4\" fill=\"#f6f7f9\" stroke=\"#c4c9d0\"/>\n\
             <text x=\"410\" y=\"{}\" font-weight=\"bold\">{}{with}</text>\n",
            26 + 16 * lines.len(),
            y + 17,
            kernel.name
        );
        for (i, (line, names)) in lines.iter().enumerate() {
            let (at, from) = (y + 33 + 16 * i, code_y(*line));
            boxes += &format!("<text x=\"420\" y=\"{at}\" fill=\"{}\">{}</text>\n", colour(*line), names.join(" "));
            let to = at - 4;
            curves += &format!("<path d=\"M300 {from}C350 {from} 350 {to} 414 {to}\" stroke=\"{}\"/>\n", colour(*line));
        }
        y += 36 + 16 * lines.len();
    }
    for (i, text) in code.iter().enumerate() {
        let fill = if recorded.contains(&(first + i)) { colour(first + i) } else { "#000" };
        boxes += &format!("<text x=\"16\" y=\"{}\" fill=\"{fill}\">{text}</text>\n", code_y(first + i) + 4);
    }
    let (run, launches) = (explain.kernels_run(), explain.launches_run());
    let peak = explain.memory.map_or(0, |m| m.peak);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 {height}\" font-family=\"monospace\" \
         font-size=\"13\">\n<rect width=\"860\" height=\"{height}\" fill=\"#fff\"/>\n\
         <g fill=\"none\" stroke-opacity=\".5\">\n{curves}</g>\n{boxes}\
         <text x=\"400\" y=\"{}\">{run} kernels, {launches} launches; {peak} bytes at the peak</text>\n</svg>",
        height - 10
    )
}

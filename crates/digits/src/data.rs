//! The shipped digits.

use crate::Failure;
use crate::say::{say, sayln};
use kiln::Tensor;

const DIGITS: &str = include_str!("../../../data/digits.csv");

/// Images `[n, 1, 8, 8]` with pixels in 0..=1, and labels `[n]`.
pub struct Digits {
    pub pixels: Vec<f32>,
    pub labels: Vec<i64>,
}

impl Digits {
    /// Reads the shipped file.
    pub fn read() -> Result<Digits, Failure> {
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for line in DIGITS.lines() {
            let numbers = line.split(',').map(str::parse);
            let numbers = numbers.collect::<Result<Vec<i64>, _>>()?;
            let [digit @ .., label] = numbers.as_slice() else {
                return Err("an empty line among the digits".into());
            };
            if digit.len() != 64 {
                return Err(format!("a digit has 64 pixels, not {}", digit.len()).into());
            }
            pixels.extend(digit.iter().map(|p| *p as f32 / 16.0));
            labels.push(*label);
        }
        Ok(Digits { pixels, labels })
    }

    /// The digits at the given indices.
    pub fn part(&self, places: &[usize]) -> Digits {
        let image = |i: &usize| &self.pixels[i * 64..i * 64 + 64];
        Digits {
            pixels: places.iter().flat_map(image).copied().collect(),
            labels: places.iter().map(|i| self.labels[*i]).collect(),
        }
    }

    /// Images and labels as tensors.
    pub fn tensors(&self) -> (Tensor, Tensor) {
        let n = self.labels.len();
        (
            Tensor::from_slice(&self.pixels, [n, 1, 8, 8]),
            Tensor::from_slice(&self.labels, [n]),
        )
    }

    /// Draws a few digits with their predictions, two rows of pixels per line of text.
    pub fn draw(&self, predictions: &[i64]) {
        let right = |i: &usize| self.labels[*i] == predictions[*i];
        let indices = 0..self.labels.len();
        let wrong: Vec<usize> = indices.clone().filter(|i| !right(i)).take(2).collect();
        let shown: Vec<usize> = indices.filter(right).take(4).chain(wrong).collect();
        let shade = |p: f32| [' ', '░', '▒', '▓', '█'][(p * 4.0).round() as usize % 5];
        for row in 0..8 {
            for i in &shown {
                let line = &self.pixels[i * 64 + row * 8..i * 64 + row * 8 + 8];
                let text: String = line.iter().flat_map(|p| [shade(*p); 2]).collect();
                say!("{text}  ");
            }
            sayln!("");
        }
        for i in &shown {
            let mark = if right(i) { "" } else { " (wrong)" };
            let text = format!("{} -> {}{mark}", self.labels[*i], predictions[*i]);
            say!("{text:<18}");
        }
        sayln!("");
    }
}

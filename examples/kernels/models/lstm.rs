//! A step of an LSTM (Hochreiter and Schmidhuber, 1997), with PyTorch's order of gates.

use kiln::nn::{Forward, Linear, Module};
use kiln::{Result, Tensor};

/// One step: features `[n, input]` and states `[n, hidden]` to new states.
#[derive(Module)]
pub struct LstmCell {
    ih: Linear,
    hh: Linear,
}

impl LstmCell {
    /// A cell with random weights.
    ///
    /// # Errors
    /// If a size is zero.
    pub fn new(input: usize, hidden: usize) -> Result<LstmCell> {
        Ok(LstmCell {
            ih: Linear::new(input, 4 * hidden)?,
            hh: Linear::new(hidden, 4 * hidden)?,
        })
    }

    /// The new h and c.
    pub fn forward(&self, x: &Tensor, h: &Tensor, c: &Tensor) -> [Tensor; 2] {
        let gates = self.ih.forward(x) + self.hh.forward(h);
        let gates = gates.chunk(4, 1);
        let [input, forget, cell, output] = &gates[..] else {
            return [gates[0].clone(), gates[0].clone()];
        };
        let c = forget.sigmoid() * c + input.sigmoid() * cell.tanh();
        [output.sigmoid() * c.tanh(), c]
    }
}

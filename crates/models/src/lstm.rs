//! A step of a recurrent network.

use kiln::nn::{Forward, Linear, Module};
use kiln::{Result, Tensor};

/// A step of an LSTM ("Long Short-Term Memory", Hochreiter and Schmidhuber, 1997), with PyTorch's order of gates:
/// features `[n, input]` and states `[n, hidden]` to new states.
///
/// ```
/// use kiln::{DType, Tensor};
/// use kiln_models::LstmCell;
///
/// let cell = LstmCell::new(8, 16)?;
/// let (x, zeros) = (Tensor::rand([2, 8], DType::F32), Tensor::zeros([2, 16], DType::F32));
/// let [h, c] = cell.forward(&x, &zeros, &zeros);
/// assert_eq!((h.shape()?, c.shape()?), (vec![2, 16], vec![2, 16]));
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct LstmCell {
    ih: Linear,
    hh: Linear,
}

impl LstmCell {
    /// A cell with random weights.
    ///
    /// # Errors
    /// Inside `compile`: make networks before.
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

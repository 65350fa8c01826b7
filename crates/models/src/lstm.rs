//! A step of a recurrent network.

use kiln::nn::{Forward, Hooks, Linear, Module};
use kiln::{Result, Tensor};

/// A step of an LSTM ("Long Short-Term Memory", Hochreiter and Schmidhuber, 1997), with PyTorch's order of gates:
/// features `[n, input]` and states `[n, hidden]` to new states.
///
/// ```
/// use kiln::nn::Forward;
/// use kiln::{DType, Tensor};
/// use kiln_models::LstmCell;
///
/// let cell = LstmCell::new(8, 16)?;
/// let (x, zeros) = (Tensor::rand([2, 8], DType::F32), Tensor::zeros([2, 16], DType::F32));
/// let [h, c] = cell.call((&x, &zeros, &zeros));
/// assert_eq!((h.shape()?, c.shape()?), (vec![2, 16], vec![2, 16]));
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct LstmCell {
    ih: Linear,
    hh: Linear,
    hooks: Hooks,
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
            hooks: Hooks::new(),
        })
    }
}

impl Forward<(Tensor, Tensor, Tensor), [Tensor; 2]> for LstmCell {
    fn forward(&self, (x, h, c): (Tensor, Tensor, Tensor)) -> Result<[Tensor; 2]> {
        let gates = self.ih.call(x) + self.hh.call(h);
        let gates = gates.chunk(4, 1);
        let [input, forget, cell, output] = &gates[..] else {
            return Ok([gates[0].clone(), gates[0].clone()]);
        };
        let c = forget.sigmoid() * c + input.sigmoid() * cell.tanh();
        Ok([output.sigmoid() * c.tanh(), c])
    }
}

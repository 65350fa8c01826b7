//! One step of a recurrent network.

use kiln::nn::{Forward, Linear, module};
use kiln::{Result, Tensor};

module!(
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
    pub struct LstmCell(input: usize, hidden: usize) {
        ih: Linear = Linear::new(input, hidden.saturating_mul(4)),
        hh: Linear = Linear::new(hidden, hidden.saturating_mul(4)),
    }
);

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

//! Running a recurrent network over a sequence.

use super::Network;
use super::cell::{Cell, State, Weights};
use crate::Module;
use crate::layer::{fact, input_error};
use kiln_tensor::{
    DType, Result, Scan, Tensor, Var, cat, current_autocast, scan_with, set_device, stack, where_,
};

impl Network {
    /// Returns outputs, last hidden states and last cells of a layer. If there is a mask `[l, n]` of the steps of each
    /// sequence, the batch is in dim 1.
    pub(super) fn sequence(
        &self,
        layer: &dyn Module,
        x: &Tensor,
        (h0, c0): (Option<Tensor>, Option<Tensor>),
        mask: Option<Tensor>,
    ) -> Result<[Tensor; 3]> {
        x.check()?;
        let batch_first = self.batch_first && mask.is_none();
        let mask = mask.map(|mask| mask.unsqueeze(-1));
        // Inside autocast, everything is in the narrower dtype, and so are the states that the loop carries.
        let narrower = current_autocast().map(|casts| casts.dtype);
        let is_cast = x.dtype().is_float() && x.dtype() != DType::F64;
        let narrower = narrower.filter(|_| is_cast);
        let low = |t: &Tensor| t.to_dtype(narrower.unwrap_or(t.dtype()));
        let low_state = |t: Option<Tensor>| t.as_ref().map(low);
        let (x, h0, c0) = (&low(x), low_state(h0), low_state(c0));
        let unbatched = x.ndim() == 2 && mask.is_none();
        let size = self.input_size as i64;
        if !(x.ndim() == 3 || unbatched) || !x.dims()[x.ndim() - 1].is(size) {
            let message = format!(
                "the input must be [length, batch, {size}] (with batch_first [batch, length, {size}]) or \
                 [length, {size}], not {}",
                fact(x)
            );
            return input_error(layer, message);
        }
        let sequence = match unbatched {
            true => x.unsqueeze(1),
            false if batch_first => x.transpose(0, 1),
            false => x.clone(),
        };
        if sequence.dims()[0].is(0) {
            return input_error(layer, "the sequence has no steps");
        }
        let zeros = self.zeros(&sequence);
        let init = |t: Option<Tensor>, what: &str| {
            let Some(t) = t else {
                return Ok(zeros.clone());
            };
            let t = if unbatched { t.unsqueeze(1) } else { t };
            t.check()?;
            match t.dims() == zeros.dims() && t.dtype() == zeros.dtype() {
                true => Ok(t),
                false => {
                    let message = format!("the {what} must be {}, not {}", fact(&zeros), fact(&t));
                    input_error(layer, message)
                }
            }
        };
        let (h0, c0) = (init(h0, "first states h0")?, init(c0, "first cells c0")?);
        let mut y = sequence;
        let mut last: Vec<State> = Vec::new();
        for level in 0..self.num_layers {
            if level > 0 {
                y = y.dropout_with(self.dropout, self.mode.is_training());
            }
            let mut outputs_of = Vec::new();
            for direction in 0..self.directions() {
                let index = level * self.directions() + direction;
                let state = State {
                    hidden: h0.select(0, index as i64),
                    cell: (self.cell == Cell::Lstm).then(|| c0.select(0, index as i64)),
                };
                let (outputs, state) =
                    self.direction(index, direction == 1, &y, mask.as_ref(), state);
                outputs_of.push(outputs);
                last.push(state);
            }
            y = cat(&outputs_of.iter().collect::<Vec<_>>(), 2);
        }
        let stacked = |state_of: fn(&State) -> Option<&Tensor>| {
            let states: Vec<&Tensor> = last.iter().filter_map(state_of).collect();
            let t = stack(&states, 0);
            if unbatched { t.squeeze(1) } else { t }
        };
        let h = stacked(|s| Some(&s.hidden));
        let c = match self.cell {
            Cell::Lstm => stacked(|s| s.cell.as_ref()),
            _ => h.clone(),
        };
        let y = match unbatched {
            true => y.squeeze(1),
            false if batch_first => y.transpose(0, 1),
            false => y,
        };
        Ok([y, h, c])
    }

    /// Returns states of 0 for a sequence `[l, n, input]`: `[layers · directions, n, hidden]`.
    fn zeros(&self, x: &Tensor) -> Tensor {
        let count = (self.num_layers * self.directions()) as i64;
        let _here = set_device(x.device());
        let zeros = Tensor::zeros([count as usize, 1, self.hidden_size], x.dtype());
        // The batch dim comes from one element of each sample, so that its size may be symbolic.
        let batch = x.detach().narrow(2, 0, 1).narrow(0, 0, 1);
        &zeros + &batch.zeros_like()
    }

    /// Runs one layer in one direction over `[l, n, input]`: returns the outputs `[l, n, hidden]` and the last state.
    /// Where the mask `[l, n, 1]` is false, the outputs are 0 and the state stays as it is.
    ///
    /// The inputs of all steps are projected at once; the steps only compute the recurrent product.
    fn direction(
        &self,
        index: usize,
        reverse: bool,
        x: &Tensor,
        mask: Option<&Tensor>,
        state: State,
    ) -> (Tensor, State) {
        let vars: Vec<&Var> = self.weights[index * self.weights_per_layer()..]
            [..self.weights_per_layer()]
            .iter()
            .map(|(_, var)| var)
            .collect();
        let mut weights = Weights::new(vars[1], vars.get(3).copied());
        let mut input_bias = vars.get(2).map(|b| b.get());
        if self.cell != Cell::Gru
            && let (Some(b), Some(c)) = (&input_bias, weights.hidden_bias.take())
        {
            input_bias = Some(b + &c);
        }
        let projected = x.linear_with(vars[0], input_bias);
        let options = Scan::new().reverse(reverse);
        let initial = (state.hidden, state.cell);
        let ((hidden, cell), outputs) = scan_with(
            initial,
            (projected, mask),
            options,
            |(hidden, cell), (x, mask)| {
                let last = State { hidden, cell };
                let mut next = self.cell.step(&x, &last, &weights);
                let mut output = next.hidden.clone();
                if let Some(mask) = mask {
                    output = where_(&mask, &output, 0.0);
                    next.hidden = where_(&mask, next.hidden, last.hidden);
                    next.cell = (next.cell.zip(last.cell)).map(|(c, last)| where_(&mask, c, last));
                }
                ((next.hidden, next.cell), output)
            },
        );
        (outputs, State { hidden, cell })
    }
}

//! Recurrent layers, as scans over time.

use super::Record;
use crate::call::{Call, Results, known_size};
use crate::fault::invalid;
use crate::value::iota;
use kiln_base::Dim;
use kiln_tensor::{DType, Result, Scan, Tensor, scan_with, stack};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "GRU" => |c| recurrent(c, Cell::Gru),
        "LSTM" => |c| recurrent(c, Cell::Lstm),
        "RNN" => |c| recurrent(c, Cell::Plain),
        _ => return None,
    })
}

#[derive(Copy, Clone, PartialEq)]
enum Cell {
    Plain,
    Gru,
    Lstm,
}

impl Cell {
    fn gates(self) -> i64 {
        match self {
            Cell::Plain => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    fn activations(self) -> &'static [&'static str] {
        match self {
            Cell::Plain => &["Tanh"],
            Cell::Gru => &["Sigmoid", "Tanh"],
            Cell::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// An activation function with its factors.
#[derive(Clone)]
struct Activation {
    name: String,
    alpha: Option<f64>,
    beta: Option<f64>,
}

impl Activation {
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (alpha, beta) = (
            |d: f64| self.alpha.unwrap_or(d),
            |d: f64| self.beta.unwrap_or(d),
        );
        Ok(match self.name.as_str() {
            "relu" => x.relu(),
            "tanh" => x.tanh(),
            "sigmoid" => x.sigmoid(),
            "affine" => x * alpha(1.0) + beta(0.0),
            "leakyrelu" => x.leaky_relu_with(alpha(0.01)),
            "thresholdedrelu" => x.threshold(alpha(1.0), 0.0),
            "scaledtanh" => (x * beta(1.0)).tanh() * alpha(1.0),
            "hardsigmoid" => (x * alpha(0.2) + beta(0.5)).clamp(0.0, 1.0),
            "elu" => x.elu_with(alpha(1.0)),
            "softsign" => x.softsign(),
            "softplus" => x.softplus(),
            other => return Err(invalid(format!("there is no activation {other:?}"))),
        })
    }
}

fn activations(c: &Call, cell: Cell, directions: usize) -> Result<Vec<Activation>> {
    let defaults = || {
        cell.activations()
            .repeat(directions)
            .iter()
            .map(|s| s.to_string())
            .collect()
    };
    let names: Vec<String> = c.texts("activations")?.unwrap_or_else(defaults);
    if names.len() != cell.activations().len() * directions {
        return Err(invalid(format!("{} activations don't fit", names.len())));
    }
    let (alphas, betas) = (c.floats("activation_alpha")?, c.floats("activation_beta")?);
    let entry = |list: &Option<Vec<f64>>, i: usize| list.as_ref().and_then(|l| l.get(i)).copied();
    let activation = |(i, name): (usize, String)| Activation {
        name: name.to_lowercase(),
        alpha: entry(&alphas, i),
        beta: entry(&betas, i),
    };
    Ok(names.into_iter().enumerate().map(activation).collect())
}

fn recurrent(c: &Call, cell: Cell) -> Results {
    let batch_first = c.flag("layout", false)?;
    let swapped = |t: Tensor| if batch_first { t.transpose(0, 1) } else { t };
    let x = swapped(c.tensor(0)?);
    let (weight, recurrence) = (c.tensor(1)?, c.tensor(2)?);
    if [x.ndim(), weight.ndim(), recurrence.ndim()] != [3; 3] {
        return Err(invalid("input and weights need 3 dims"));
    }
    let directions: &[bool] = match c.text("direction", "forward")? {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(invalid(format!("there is no direction {other:?}"))),
    };
    let hidden = known_size(&recurrence, 2)?;
    let functions = activations(c, cell, directions.len())?;
    let (time, batch) = (x.dims()[0].clone(), x.dims()[1].clone());
    let mask = match c.optional(4)? {
        Some(lengths) => {
            let steps = iota(&time).unsqueeze(-1);
            Some(
                steps
                    .lt(lengths.to_dtype(DType::I64).unsqueeze(0))
                    .unsqueeze(-1),
            )
        }
        None => None,
    };
    let state = |i: usize| Ok::<_, kiln_tensor::Error>(c.optional(i)?.map(swapped));
    let (hidden0, cell0) = (state(5)?, state(6)?);
    let cell0 = if cell == Cell::Lstm { cell0 } else { None };
    let peepholes = if cell == Cell::Lstm {
        c.optional(7)?
    } else {
        None
    };
    let bias = c.optional(3)?;
    let per_direction = functions.len() / directions.len();
    let (mut outputs, mut last, mut last_cell) = (Vec::new(), Vec::new(), Vec::new());
    for (d, reverse) in directions.iter().enumerate() {
        let direction_of = |t: &Option<Tensor>| match t {
            Some(t) => t.select(0, d),
            None => Tensor::zeros(vec![batch.clone(), Dim::Const(hidden)], x.dtype()),
        };
        let direction = Direction {
            cell,
            hidden,
            recurrence: recurrence.select(0, d),
            bias: bias.as_ref().map(|b| b.select(0, d)),
            peepholes: peepholes.as_ref().map(|p| p.select(0, d)),
            functions: functions[d * per_direction..(d + 1) * per_direction].to_vec(),
            clip: c.maybe_float("clip")?,
            reset_behind: c.flag("linear_before_reset", false)?,
            input_forget: c.flag("input_forget", false)?,
        };
        let (y, h, s) = direction.run(
            &x,
            &weight.select(0, d),
            (direction_of(&hidden0), direction_of(&cell0)),
            mask.as_ref(),
            *reverse,
        )?;
        outputs.push(y);
        last.push(h);
        last_cell.push(s);
    }
    // [t, d, b, h]; batch first, [b, t, d, h].
    let y = stack(outputs, 1);
    let y = if batch_first {
        y.permute([2, 0, 1, 3])
    } else {
        y
    };
    let mut results = vec![y.into(), swapped(stack(last, 0)).into()];
    if cell == Cell::Lstm {
        results.push(swapped(stack(last_cell, 0)).into());
    }
    Ok(results)
}

/// A layer over time in one direction.
struct Direction {
    cell: Cell,
    hidden: i64,
    /// `[gates · h, h]`.
    recurrence: Tensor,
    /// Those of the input, and then those of the state.
    bias: Option<Tensor>,
    /// Of the input, output and forget gate.
    peepholes: Option<Tensor>,
    functions: Vec<Activation>,
    clip: Option<f64>,
    /// True if the reset gate scales the state's product, not the state.
    reset_behind: bool,
    input_forget: bool,
}

impl Direction {
    fn run(
        &self,
        x: &Tensor,
        weight: &Tensor,
        state: (Tensor, Tensor),
        mask: Option<&Tensor>,
        reverse: bool,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let gates = self.cell.gates() * self.hidden;
        let mut projected = x.matmul(weight.t());
        let mut state_bias = None;
        if let Some(bias) = &self.bias {
            let of_state = bias.narrow(0, gates, gates);
            projected += bias.narrow(0, 0, gates);
            // A reset gate scales a part of the bias too.
            match self.cell == Cell::Gru && self.reset_behind {
                true => state_bias = Some(of_state),
                false => projected += of_state,
            }
        }
        let recurrence = self.recurrence.t();
        let options = Scan::new().reverse(reverse);
        let step = |(h, s): (Tensor, Tensor), (x, mask): (Tensor, Option<Tensor>)| {
            let (next, next_cell) = self.step(&x, &h, &s, &recurrence, state_bias.as_ref())?;
            let (next, next_cell, y) = match mask {
                Some(mask) => (
                    next.where_cond(&mask, &h),
                    next_cell.where_cond(&mask, &s),
                    next.where_cond(&mask, next.zeros_like()),
                ),
                None => (next.clone(), next_cell, next),
            };
            Ok(((next, next_cell), y))
        };
        let ((h, s), y) = scan_with(state, (projected, mask.cloned()), options, step)?;
        Ok((y, h, s))
    }

    /// Returns the next state and cell.
    fn step(
        &self,
        x: &Tensor,
        h: &Tensor,
        s: &Tensor,
        recurrence: &Tensor,
        state_bias: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let clipped = |t: Tensor| match self.clip {
            Some(c) => t.clamp(-c, c),
            None => t,
        };
        let gate = |t: &Tensor, i: i64| t.narrow(1, i * self.hidden, self.hidden);
        let f = |i: usize, t: Tensor| self.functions[i].apply(&clipped(t));
        match self.cell {
            Cell::Plain => Ok((f(0, x + h.matmul(recurrence))?, s.clone())),
            Cell::Gru => {
                let two_gates = 2 * self.hidden;
                let (gates, candidate) = (
                    recurrence.narrow(1, 0, two_gates),
                    recurrence.narrow(1, two_gates, self.hidden),
                );
                let mut gates_in = x.narrow(1, 0, two_gates) + h.matmul(gates);
                if let Some(b) = state_bias {
                    gates_in += b.narrow(0, 0, two_gates);
                }
                let (update, reset) = (f(0, gate(&gates_in, 0))?, f(0, gate(&gates_in, 1))?);
                let from_state = match (self.reset_behind, state_bias) {
                    (true, Some(b)) => {
                        reset * (h.matmul(candidate) + b.narrow(0, two_gates, self.hidden))
                    }
                    (true, None) => reset * h.matmul(candidate),
                    (false, _) => (reset * h).matmul(candidate),
                };
                let candidate = f(1, gate(x, 2) + from_state)?;
                Ok(((-&update + 1.0) * candidate + update * h, s.clone()))
            }
            Cell::Lstm => {
                let preactivations = x + h.matmul(recurrence);
                let peep = |i: i64, s: &Tensor, t: Tensor| match &self.peepholes {
                    Some(p) => t + p.narrow(0, i * self.hidden, self.hidden) * s,
                    None => t,
                };
                let input = f(0, peep(0, s, gate(&preactivations, 0)))?;
                let forget = match self.input_forget {
                    true => -&input + 1.0,
                    false => f(0, peep(2, s, gate(&preactivations, 2)))?,
                };
                let candidate = f(1, gate(&preactivations, 3))?;
                let next_cell = forget * s + input * candidate;
                let output = f(0, peep(1, &next_cell, gate(&preactivations, 1)))?;
                let next = output * self.functions[2].apply(&next_cell)?;
                Ok((next, next_cell))
            }
        }
    }
}

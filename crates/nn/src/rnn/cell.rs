//! One step of each kind of recurrent network.

use crate::init::Nonlinearity;
use crate::layer::invalid;
use kiln_tensor::{Result, Tensor, Var};

/// The kind of a recurrent network.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Cell {
    Tanh,
    Relu,
    Lstm,
    Gru,
}

/// The state between two steps: `[n, hidden]` each. The cell is the LSTM's.
#[derive(Clone)]
pub(super) struct State {
    pub(super) hidden: Tensor,
    pub(super) cell: Option<Tensor>,
}

/// The recurrent weights of one layer in one direction.
pub(super) struct Weights {
    pub(super) hidden: Tensor,
    pub(super) hidden_bias: Option<Tensor>,
}

impl Cell {
    pub(super) fn name(self) -> &'static str {
        match self {
            Cell::Tanh | Cell::Relu => "RNN",
            Cell::Lstm => "LSTM",
            Cell::Gru => "GRU",
        }
    }

    /// Returns the cell with another activation.
    #[track_caller]
    pub(super) fn with_nonlinearity(self, f: Nonlinearity) -> Result<Cell> {
        match (self, f) {
            (_, Nonlinearity::Tanh) => Ok(self),
            (Cell::Tanh, Nonlinearity::Relu) => Ok(Cell::Relu),
            _ => {
                let message = format!("the nonlinearity can't be {f:?}");
                Err(invalid(self.name(), message))
            }
        }
    }

    /// Returns the number of vectors of the hidden size that a step computes.
    pub(super) fn gates(self) -> usize {
        match self {
            Cell::Tanh | Cell::Relu => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }

    /// Returns the state after a step, whose projected input is `x` `[n, gates · hidden]`.
    pub(super) fn step(self, x: &Tensor, state: &State, w: &Weights) -> State {
        let h = state.hidden.linear_with(&w.hidden, &w.hidden_bias);
        let gates = self.gates() as i64;
        match self {
            Cell::Tanh => state.with_hidden((x + &h).tanh()),
            Cell::Relu => state.with_hidden((x + &h).relu()),
            Cell::Lstm => {
                let gate_values = (x + &h).chunk(gates, 1);
                let ([i, f, g, o], Some(cell)) = (&gate_values[..], &state.cell) else {
                    return state.clone();
                };
                let kept = &f.sigmoid() * cell;
                let cell = &kept + &(&i.sigmoid() * &g.tanh());
                let hidden = &o.sigmoid() * &cell.tanh();
                let cell = Some(cell);
                State { hidden, cell }
            }
            Cell::Gru => {
                let (xs, hs) = (x.chunk(gates, 1), h.chunk(gates, 1));
                let ([xr, xz, xn], [hr, hz, hn]) = (&xs[..], &hs[..]) else {
                    return state.clone();
                };
                let reset = (xr + hr).sigmoid();
                let update = (xz + hz).sigmoid();
                let new = (xn + &(&reset * hn)).tanh();
                let hidden = &new + &(&update * &(&state.hidden - &new));
                state.with_hidden(hidden)
            }
        }
    }
}

impl State {
    fn with_hidden(&self, hidden: Tensor) -> State {
        State { hidden, cell: None }
    }
}

impl Weights {
    pub(super) fn new(hidden: &Var, hidden_bias: Option<&Var>) -> Weights {
        Weights {
            hidden: hidden.get(),
            hidden_bias: hidden_bias.map(Var::get),
        }
    }
}

//! Single steps of recurrent networks as layers.

use super::cell::{Cell, State, Weights};
use crate::init::Nonlinearity;
use crate::layer::{self, fact, input_error, invalid};
use crate::{Forward, Hooks, Module, init};
use kiln_tensor::{Int, Result, Tensor, Var, options, set_device};

options! {
    /// The options of a recurrent cell.
    RecurrentCell () {
        /// True if there are biases (default yes).
        bias: bool = true,
        /// The activation of an RNN's cell: tanh (the default) or relu. The others have functions of their own.
        nonlinearity: Nonlinearity = Nonlinearity::Tanh,
    }
}

macro_rules! cells {
    ($($(#[$doc:meta])* $name:ident $cell:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// Inputs are `[n, input]` and states `[n, hidden]`, or both without n; states are 0 where not given. All
        /// parameters start uniform within ±1/√hidden.
        #[derive(Module)]
        #[module(extra_repr, reset_parameters)]
        pub struct $name {
            /// `[gates · hidden, input]`.
            pub weight_ih: Var,
            /// `[gates · hidden, hidden]`.
            pub weight_hh: Var,
            /// `[gates · hidden]`.
            pub bias_ih: Option<Var>,
            /// `[gates · hidden]`.
            pub bias_hh: Option<Var>,
            #[skip]
            cell: Cell,
            hooks: Hooks,
        }

        impl $name {
            /// Makes a cell with PyTorch's defaults.
            ///
            /// # Errors
            /// If a size is 0, or inside `compile`: make layers before.
            #[track_caller]
            pub fn new(input_size: impl Into<Int>, hidden_size: impl Into<Int>) -> Result<$name> {
                $name::with(input_size, hidden_size, RecurrentCell::new())
            }

            /// Makes a cell from inputs of one size to states of another.
            ///
            /// # Errors
            /// As [`Self::new`], or if an option does not exist for this cell.
            #[track_caller]
            pub fn with(
                input_size: impl Into<Int>,
                hidden_size: impl Into<Int>,
                options: RecurrentCell,
            ) -> Result<$name> {
                let (name, sizes) = (stringify!($name), [input_size.into(), hidden_size.into()]);
                let [input, hidden] = layer::feature_sizes(name, sizes)?;
                if input == 0 || hidden == 0 {
                    let message = format!("sizes must be at least 1, not {input} and {hidden}");
                    return Err(invalid(name, message));
                }
                let cell = $cell.with_nonlinearity(options.nonlinearity)?;
                let rows = cell.gates() * hidden;
                let layer = $name {
                    weight_ih: layer::filled([rows, input], 0.0)?,
                    weight_hh: layer::filled([rows, hidden], 0.0)?,
                    bias_ih: layer::filled_if(options.bias, [rows], 0.0)?,
                    bias_hh: layer::filled_if(options.bias, [rows], 0.0)?,
                    cell,
                    hooks: Hooks::new(),
                };
                layer.reset_parameters()?;
                Ok(layer)
            }

            /// The size of an input.
            pub fn input_size(&self) -> usize {
                layer::shape(&self.weight_ih)[1]
            }

            /// The size of a state.
            pub fn hidden_size(&self) -> usize {
                layer::shape(&self.weight_hh)[1]
            }

            #[track_caller]
            fn reset_parameters(&self) -> Result<()> {
                let bound = 1.0 / (self.hidden_size() as f64).sqrt();
                let parameters = self.parameters();
                parameters.iter().try_for_each(|p| init::uniform_(p, -bound, bound))
            }

            fn extra_repr(&self) -> String {
                let mut s = format!("{}, {}", self.input_size(), self.hidden_size());
                if self.bias_ih.is_none() {
                    s += ", bias=False";
                }
                if self.cell == Cell::Relu {
                    s += ", nonlinearity=relu";
                }
                s
            }

            /// Returns the state after a step.
            fn step(&self, x: &Tensor, states: [Option<Tensor>; 2]) -> Result<State> {
                let (input, hidden) = (self.input_size(), self.hidden_size());
                x.check()?;
                let fits = matches!(x.ndim(), 1 | 2) && x.dims()[x.ndim() - 1].is(input as i64);
                if !fits {
                    let message = format!("takes [n, {input}] or [{input}], not {}", fact(x));
                    return input_error(self, message);
                }
                let unbatched = x.ndim() == 1;
                let batched = |t: &Tensor| if unbatched { t.unsqueeze(0) } else { t.clone() };
                let x = batched(x);
                // The zeros come from one element of each sample, so that the size of the batch may be symbolic.
                let _here = set_device(x.device());
                let zeros = Tensor::zeros([1, hidden], x.dtype());
                let zeros = zeros + x.detach().narrow(1, 0, 1).zeros_like();
                let [h, c] = states.map(|t| t.as_ref().map_or(zeros.clone(), &batched));
                for t in [&h, &c] {
                    t.check()?;
                    if t.dims() != zeros.dims() || t.dtype() != zeros.dtype() {
                        let message = format!("the state must be {}, not {}", fact(&zeros), fact(t));
                        return input_error(self, message);
                    }
                }
                let cell = (self.cell == Cell::Lstm).then_some(c);
                let state = State { hidden: h, cell };
                let projected = x.linear_with(&self.weight_ih, &self.bias_ih);
                let weights = Weights::new(&self.weight_hh, self.bias_hh.as_ref());
                let next = self.cell.step(&projected, &state, &weights);
                let own = |t: Tensor| if unbatched { t.squeeze(0) } else { t };
                Ok(State {
                    hidden: own(next.hidden),
                    cell: next.cell.map(own),
                })
            }
        }
    )*};
}

cells! {
    /// One step of an [`RNN`](crate::RNN) (`torch.nn.RNNCell`), which returns the next state.
    RNNCell Cell::Tanh;
    /// One step of an [`LSTM`](crate::LSTM) (`torch.nn.LSTMCell`), which returns the next hidden state and cell.
    ///
    /// ```
    /// use kiln_nn::{Forward, LSTMCell};
    /// use kiln_tensor::{DType, Tensor};
    /// let cell = LSTMCell::new(4, 6)?;
    /// let x = Tensor::rand([3, 4], DType::F32);
    /// let state = cell.call(&x);
    /// let (h, c) = cell.call((&x, state));
    /// assert_eq!((h.shape()?, c.shape()?), (vec![3, 6], vec![3, 6]));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    LSTMCell Cell::Lstm;
    /// One step of a [`GRU`](crate::GRU) (`torch.nn.GRUCell`), which returns the next state.
    GRUCell Cell::Gru;
}

macro_rules! one_state {
    ($($name:ident)*) => {$(
        impl Forward for $name {
            fn forward(&self, x: Tensor) -> Result<Tensor> {
                Ok(self.step(&x, [None, None])?.hidden)
            }
        }

        impl Forward<(Tensor, Tensor)> for $name {
            fn forward(&self, (x, h): (Tensor, Tensor)) -> Result<Tensor> {
                Ok(self.step(&x, [Some(h), None])?.hidden)
            }
        }
    )*};
}
one_state!(RNNCell GRUCell);

/// The hidden state and the cell.
type States = (Tensor, Tensor);

impl LSTMCell {
    fn states(&self, x: &Tensor, states: [Option<Tensor>; 2]) -> Result<States> {
        let State { hidden, cell } = self.step(x, states)?;
        // An LSTM's step always returns both.
        Ok((hidden.clone(), cell.unwrap_or(hidden)))
    }
}

impl Forward<Tensor, States> for LSTMCell {
    fn forward(&self, x: Tensor) -> Result<States> {
        self.states(&x, [None, None])
    }
}

impl Forward<(Tensor, States), States> for LSTMCell {
    fn forward(&self, (x, (h, c)): (Tensor, States)) -> Result<States> {
        self.states(&x, [Some(h), Some(c)])
    }
}

//! Recurrent networks: what RNN, LSTM and GRU share is here, their cells are in `cell`.

mod cell;
mod run;

use crate::layer::{self, invalid, run_all, wrong};
use crate::members::Members;
use crate::print::{float, python};
use crate::{Mode, Module, init};
use cell::Cell;
use kiln_tensor::{Int, Result, Tensor, Var};
use std::fmt;

/// The parameters and hyperparameters of a recurrent network.
struct Recurrent {
    cell: Cell,
    input_size: usize,
    hidden_size: usize,
    num_layers: usize,
    bias: bool,
    batch_first: bool,
    dropout: f64,
    bidirectional: bool,
    /// By layer, then direction, then as in [`Recurrent::parts`].
    weights: Vec<(String, Var)>,
    mode: Mode,
}

impl Recurrent {
    #[track_caller]
    fn new(cell: Cell, input_size: usize, hidden_size: usize) -> Result<Recurrent> {
        if input_size == 0 || hidden_size == 0 {
            let message = format!(
                "sizes must be at least 1, not {input_size} inputs and {hidden_size} hidden"
            );
            return Err(invalid(cell.name(), message));
        }
        Recurrent {
            cell,
            input_size,
            hidden_size,
            num_layers: 1,
            bias: true,
            batch_first: false,
            dropout: 0.0,
            bidirectional: false,
            weights: Vec::new(),
            mode: Mode::new(),
        }
        .with_new_weights()
    }

    fn directions(&self) -> usize {
        1 + self.bidirectional as usize
    }

    /// How many weights a layer has in one direction.
    fn parts(&self) -> usize {
        if self.bias { 4 } else { 2 }
    }

    #[track_caller]
    fn with_new_weights(mut self) -> Result<Recurrent> {
        if self.num_layers == 0 {
            return Err(invalid(self.cell.name(), "needs at least 1 layer"));
        }
        self.weights.clear();
        let (hidden, gates) = (self.hidden_size, self.cell.gates() * self.hidden_size);
        for layer in 0..self.num_layers {
            let input = match layer {
                0 => self.input_size,
                _ => hidden * self.directions(),
            };
            for suffix in ["", "_reverse"].into_iter().take(self.directions()) {
                let shapes = [
                    ("weight_ih", vec![gates, input]),
                    ("weight_hh", vec![gates, hidden]),
                    ("bias_ih", vec![gates]),
                    ("bias_hh", vec![gates]),
                ];
                for (name, shape) in shapes.into_iter().take(self.parts()) {
                    let var = layer::constant(shape, 0.0)?;
                    self.weights.push((format!("{name}_l{layer}{suffix}"), var));
                }
            }
        }
        self.reset_parameters()?;
        Ok(self)
    }

    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        let bound = 1.0 / (self.hidden_size as f64).sqrt();
        for (_, var) in &self.weights {
            init::uniform_(var, -bound, bound)?;
        }
        Ok(())
    }

    fn extra_repr(&self) -> String {
        let mut s = format!("{}, {}", self.input_size, self.hidden_size);
        if self.num_layers != 1 {
            s += &format!(", num_layers={}", self.num_layers);
        }
        if !self.bias {
            s += &format!(", bias={}", python(false));
        }
        if self.batch_first {
            s += &format!(", batch_first={}", python(true));
        }
        if self.dropout != 0.0 {
            s += &format!(", dropout={}", float(self.dropout));
        }
        if self.bidirectional {
            s += &format!(", bidirectional={}", python(true));
        }
        s
    }
}

macro_rules! recurrent {
    ($($(#[$doc:meta])* $name:ident $cell:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// The parameters are `weight_ih_l{k}` `[gates · hidden, input]`, `weight_hh_l{k}`
        /// `[gates · hidden, hidden]`, `bias_ih_l{k}` and `bias_hh_l{k}` `[gates · hidden]` of layer k,
        /// those of the second direction with `_reverse`. All start uniform within ±1/√hidden.
        ///
        /// The steps are one loop, whatever the length of the sequence is (at least 1).
        pub struct $name(Recurrent);

        impl $name {
            /// One layer in one direction with biases, batches in dim 1.
            ///
            /// # Errors
            /// If a size is 0.
            #[track_caller]
            pub fn new(
                input_size: impl Into<Int>,
                hidden_size: impl Into<Int>,
            ) -> Result<$name> {
                let sizes = [input_size.into(), hidden_size.into()];
                let [input_size, hidden_size] = layer::sizes(stringify!($name), sizes)?;
                Recurrent::new($cell, input_size, hidden_size).map($name)
            }

            /// The network with this many layers (default 1), its parameters drawn anew.
            ///
            /// # Errors
            /// If it is 0.
            #[track_caller]
            pub fn num_layers(mut self, num_layers: impl Into<Int>) -> Result<$name> {
                [self.0.num_layers] = layer::sizes(stringify!($name), [num_layers.into()])?;
                self.0.with_new_weights().map($name)
            }

            /// The network in both directions or one (default one), its parameters drawn anew.
            ///
            /// # Errors
            /// Inside `compile`: make layers before.
            #[track_caller]
            pub fn bidirectional(mut self, bidirectional: bool) -> Result<$name> {
                self.0.bidirectional = bidirectional;
                self.0.with_new_weights().map($name)
            }

            /// The network with or without biases (default with), its parameters drawn anew.
            ///
            /// # Errors
            /// Inside `compile`: make layers before.
            #[track_caller]
            pub fn bias(mut self, bias: bool) -> Result<$name> {
                self.0.bias = bias;
                self.0.with_new_weights().map($name)
            }

            /// Whether batches of sequences are in dim 0 (default no: in dim 1). Those of states are in
            /// dim 1 regardless.
            pub fn batch_first(mut self, batch_first: bool) -> $name {
                self.0.batch_first = batch_first;
                self
            }

            /// The network with this probability of dropout between layers in training (default 0).
            pub fn dropout(mut self, dropout: f64) -> $name {
                self.0.dropout = dropout;
                self
            }

            /// Projections of the hidden state are not there: any size but 0 is an error.
            ///
            /// # Errors
            /// If the size is not 0.
            #[track_caller]
            pub fn proj_size(self, proj_size: impl Into<Int>) -> Result<$name> {
                match proj_size.into().0 {
                    0 => Ok(self),
                    n => {
                        let message = format!("proj_size {n} is not supported; use a Linear after it");
                        Err(invalid(stringify!($name), message))
                    }
                }
            }
        }

        impl Module for $name {
            fn as_module(&self) -> &dyn Module {
                self
            }

            fn name(&self) -> &str {
                stringify!($name)
            }

            fn members(&self) -> Members<'_> {
                let mut members = Members::new();
                for (name, var) in &self.0.weights {
                    members.parameter(name, var);
                }
                members.mode(&self.0.mode);
                members
            }

            fn extra_repr(&self) -> String {
                self.0.extra_repr()
            }

            fn reset_parameters(&self) -> Result<()> {
                self.0.reset_parameters()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.as_module().fmt(f)
            }
        }
    )*};
}

recurrent! {
    /// A network of `h' = tanh(W x + b + U h + c)` (`torch.nn.RNN`; Elman, 1990).
    RNN Cell::Tanh;
    /// Long short-term memory (`torch.nn.LSTM`; Hochreiter and Schmidhuber, 1997), with the gates i, f,
    /// g, o.
    ///
    /// ```
    /// use kiln_nn::LSTM;
    /// use kiln_tensor::{DType, Tensor};
    /// let lstm = LSTM::new(4, 6)?.num_layers(2)?.bidirectional(true)?.batch_first(true);
    /// let (y, (h, c)) = lstm.forward(&Tensor::rand([3, 5, 4], DType::F32), None);
    /// assert_eq!(y.shape()?, [3, 5, 12]);
    /// assert_eq!((h.shape()?, c.shape()?), (vec![4, 3, 6], vec![4, 3, 6]));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    LSTM Cell::Lstm;
    /// Gated recurrent units (`torch.nn.GRU`; Cho et al., 2014), with the gates r, z, n.
    GRU Cell::Gru;
}

impl RNN {
    /// The network with relu in place of tanh (`nonlinearity="relu"`).
    pub fn relu(mut self) -> RNN {
        self.0.cell = Cell::Relu;
        self
    }

    /// The outputs `[l, n, directions · hidden]` of the last layer and the last states
    /// `[layers · directions, n, hidden]` for a sequence `[l, n, input]` (or `[l, input]`, without n
    /// everywhere) and first states `h0`, 0 where not given.
    #[track_caller]
    pub fn forward(&self, x: &Tensor, h0: Option<&Tensor>) -> (Tensor, Tensor) {
        let [y, h, _] = self.0.forward(self, x, h0, None);
        (y, h)
    }
}

impl GRU {
    /// As [`RNN::forward`].
    #[track_caller]
    pub fn forward(&self, x: &Tensor, h0: Option<&Tensor>) -> (Tensor, Tensor) {
        let [y, h, _] = self.0.forward(self, x, h0, None);
        (y, h)
    }
}

impl LSTM {
    /// As [`RNN::forward`], with hidden states and cells.
    #[track_caller]
    pub fn forward(
        &self,
        x: &Tensor,
        first: Option<(&Tensor, &Tensor)>,
    ) -> (Tensor, (Tensor, Tensor)) {
        let (h0, c0) = first.unzip();
        let [y, h, c] = self.0.forward(self, x, h0, c0);
        (y, (h, c))
    }
}

impl Recurrent {
    #[track_caller]
    fn forward(
        &self,
        layer: &dyn Module,
        x: &Tensor,
        h0: Option<&Tensor>,
        c0: Option<&Tensor>,
    ) -> [Tensor; 3] {
        let mut operands = vec![x];
        operands.extend(h0.into_iter().chain(c0));
        run_all(layer, &operands, || match self.sequence(x, h0, c0) {
            Ok(results) => results,
            Err(message) => {
                let e = wrong(layer, message);
                [e.clone(), e.clone(), e]
            }
        })
    }
}

//! Recurrent networks: the common part of RNN, LSTM and GRU. Their cells are in `cell`.

mod cell;
mod cells;
mod packed;
mod run;

use crate::field::Field;
use crate::init::Nonlinearity;
use crate::layer::{self, check_probability, invalid};
use crate::members::Members;
use crate::print::{float, python};
use crate::{Copies, Forward, Hooks, Mode, Module, init};
use cell::Cell;
pub use cells::{GRUCell, LSTMCell, RNNCell, RecurrentCell};
use kiln_tensor::{Int, Result, Tensor, Var, options};
pub use packed::{
    PackPaddedSequence, PackedSequence, pack_padded_sequence, pack_padded_sequence_with,
    pack_sequence, pad_packed_sequence, pad_packed_sequence_with, unpack_sequence, unpad_sequence,
};

options! {
    /// The options of a recurrent network.
    Recurrent () {
        /// The number of stacked layers (default 1).
        num_layers: Int = 1,
        /// The activation of an RNN: tanh (the default) or relu. The others have functions of their own.
        nonlinearity: Nonlinearity = Nonlinearity::Tanh,
        /// True if there are biases (default yes).
        bias: bool = true,
        /// True if batches of sequences are in dim 0 (default no: in dim 1). Batches of states are always in dim 1.
        batch_first: bool = false,
        /// The probability of dropout between layers in training (default 0).
        dropout: f64 = 0.0,
        /// True if there is a second direction, from the end (default no).
        bidirectional: bool = false,
        /// The size to which hidden states are projected. Projections are not supported: any value but 0 is an error.
        proj_size: Int = 0,
    }
}

/// The parameters and settings of a recurrent network.
struct Network {
    cell: Cell,
    input_size: usize,
    hidden_size: usize,
    num_layers: usize,
    bias: bool,
    batch_first: bool,
    dropout: f64,
    bidirectional: bool,
    /// The weights by layer, then direction, then in the order of [`Network::weights_per_layer`].
    weights: Vec<(String, Var)>,
    mode: Mode,
    hooks: Hooks,
}

impl Network {
    #[track_caller]
    fn new(cell: Cell, sizes: [Int; 2], options: Recurrent) -> Result<Network> {
        let layer = cell.name();
        let [input_size, hidden_size] = layer::feature_sizes(layer, sizes)?;
        let num_layers = layer::layer_count(layer, options.num_layers)?;
        if input_size == 0 || hidden_size == 0 {
            let message = format!(
                "sizes must be at least 1, not {input_size} inputs and {hidden_size} hidden"
            );
            return Err(invalid(layer, message));
        }
        if num_layers == 0 {
            return Err(invalid(layer, "needs at least 1 layer"));
        }
        if options.proj_size != Int(0) {
            let message = format!(
                "proj_size {} is not supported; use a Linear after it",
                options.proj_size.0
            );
            return Err(invalid(layer, message));
        }
        let mut network = Network {
            cell: cell.with_nonlinearity(options.nonlinearity)?,
            input_size,
            hidden_size,
            num_layers,
            bias: options.bias,
            batch_first: options.batch_first,
            dropout: check_probability(layer, options.dropout)?,
            bidirectional: options.bidirectional,
            weights: Vec::new(),
            mode: Mode::new(),
            hooks: Hooks::new(),
        };
        network.make_weights()?;
        network.reset_parameters()?;
        Ok(network)
    }

    fn directions(&self) -> usize {
        1 + self.bidirectional as usize
    }

    /// Returns the number of weights of a layer in one direction.
    fn weights_per_layer(&self) -> usize {
        if self.bias { 4 } else { 2 }
    }

    #[track_caller]
    fn make_weights(&mut self) -> Result<()> {
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
                for (name, shape) in shapes.into_iter().take(self.weights_per_layer()) {
                    let var = layer::filled(shape, 0.0)?;
                    self.weights.push((format!("{name}_l{layer}{suffix}"), var));
                }
            }
        }
        Ok(())
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

/// The parameters belong to the network that holds this one, under their own names.
impl Field for Network {
    fn add_to<'a>(&'a self, _: &str, members: &mut Members<'a>) {
        for (name, var) in &self.weights {
            members.parameter(name, var);
        }
        members.mode(&self.mode);
    }

    #[track_caller]
    fn copy_with(&self, copies: &mut Copies) -> Result<Network> {
        let copy = |(name, var): &(String, Var)| Ok((name.clone(), copies.var(var)?));
        Ok(Network {
            weights: self.weights.iter().map(copy).collect::<Result<_>>()?,
            mode: self.mode.clone(),
            hooks: self.hooks.copy_with(copies)?,
            ..*self
        })
    }

    fn hooks(&self) -> Option<&Hooks> {
        Some(&self.hooks)
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
        /// It takes a sequence `[l, n, input]` (or `[l, input]`, without n everywhere), or that and the first states
        /// `[layers · directions, n, hidden]`, 0 where not given. It returns the outputs `[l, n, directions · hidden]`
        /// of the last layer and the last states. The states of an LSTM are pairs of hidden states and cells.
        /// It takes and returns a [`PackedSequence`] likewise.
        ///
        /// The steps are one loop, for any length of the sequence (at least 1).
        #[derive(Module)]
        #[module(extra_repr, reset_parameters)]
        pub struct $name(Network);

        impl $name {
            /// Makes one layer in one direction with biases, batches in dim 1.
            ///
            /// # Errors
            /// If a size is 0.
            #[track_caller]
            pub fn new(
                input_size: impl Into<Int>,
                hidden_size: impl Into<Int>,
            ) -> Result<$name> {
                $name::with(input_size, hidden_size, Recurrent::new())
            }

            /// Makes a network from inputs of one size to hidden states of another.
            ///
            /// # Errors
            /// If a size is 0, an option does not exist for this network, or inside `compile`: make layers before.
            #[track_caller]
            pub fn with(
                input_size: impl Into<Int>,
                hidden_size: impl Into<Int>,
                options: Recurrent,
            ) -> Result<$name> {
                let sizes = [input_size.into(), hidden_size.into()];
                Network::new($cell, sizes, options).map($name)
            }

            /// The size of an input.
            pub fn input_size(&self) -> usize {
                self.0.input_size
            }

            /// The size of a hidden state.
            pub fn hidden_size(&self) -> usize {
                self.0.hidden_size
            }

            /// Returns the number of layers.
            pub fn num_layers(&self) -> usize {
                self.0.num_layers
            }

            /// True if batches of sequences are in dim 0.
            pub fn batch_first(&self) -> bool {
                self.0.batch_first
            }

            /// The probability of dropout between layers.
            pub fn dropout(&self) -> f64 {
                self.0.dropout
            }

            /// True if there is a second direction.
            pub fn bidirectional(&self) -> bool {
                self.0.bidirectional
            }

            /// Returns the parameter of a name, such as `weight_ih_l0`.
            pub fn weight(&self, name: &str) -> Option<&Var> {
                self.0.weights.iter().find(|(n, _)| n == name).map(|(_, var)| var)
            }

            fn extra_repr(&self) -> String {
                self.0.extra_repr()
            }

            fn reset_parameters(&self) -> Result<()> {
                self.0.reset_parameters()
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
    /// use kiln_nn::{Forward, LSTM, Recurrent};
    /// use kiln_tensor::{DType, Tensor};
    /// let lstm = LSTM::with(4, 6, Recurrent::new().num_layers(2).bidirectional(true).batch_first(true))?;
    /// let (y, (h, c)) = lstm.call(Tensor::rand([3, 5, 4], DType::F32));
    /// assert_eq!(y.shape()?, [3, 5, 12]);
    /// assert_eq!((h.shape()?, c.shape()?), (vec![4, 3, 6], vec![4, 3, 6]));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    LSTM Cell::Lstm;
    /// Gated recurrent units (`torch.nn.GRU`; Cho et al., 2014), with the gates r, z, n.
    GRU Cell::Gru;
}

/// The input is a sequence, padded or packed, alone or with first states, which are optional.
macro_rules! inputs {
    ($($name:ident $states:ty: |$first:ident| $split:expr, |$hidden:ident, $cell:ident| $joined:expr;)*) => {$(
        impl Forward<(Tensor, Option<$states>), (Tensor, $states)> for $name {
            fn forward(&self, (x, $first): (Tensor, Option<$states>)) -> Result<(Tensor, $states)> {
                let [y, $hidden, $cell] = self.0.sequence(self, &x, $split, None)?;
                Ok((y, $joined))
            }
        }

        impl Forward<(PackedSequence, Option<$states>), (PackedSequence, $states)> for $name {
            fn forward(
                &self,
                (x, $first): (PackedSequence, Option<$states>),
            ) -> Result<(PackedSequence, $states)> {
                let [y, $hidden, $cell] = self.0.sequence(self, &x.data, $split, Some(x.mask()))?;
                Ok((PackedSequence { data: y, ..x }, $joined))
            }
        }

        inputs!(@some $name $states, Tensor);
        inputs!(@some $name $states, PackedSequence);
    )*};
    (@some $name:ident $states:ty, $sequence:ty) => {
        impl Forward<$sequence, ($sequence, $states)> for $name {
            fn forward(&self, x: $sequence) -> Result<($sequence, $states)> {
                self.forward((x, None))
            }
        }

        impl Forward<($sequence, $states), ($sequence, $states)> for $name {
            fn forward(&self, (x, first): ($sequence, $states)) -> Result<($sequence, $states)> {
                self.forward((x, Some(first)))
            }
        }
    };
}
inputs! {
    RNN Tensor: |first| (first, None), |h, _c| h;
    GRU Tensor: |first| (first, None), |h, _c| h;
    LSTM (Tensor, Tensor): |first| first.unzip(), |h, c| (h, c);
}

//! Transformers (Vaswani et al., 2017).

use crate::layer::{self, check_probability, invalid};
use crate::{
    AttentionMasks, AttentionOptions, Dropout, Forward, Hooks, LayerNorm, Linear, Module,
    ModuleList, MultiheadAttention, Norm,
};
use kiln_tensor::{Int, Result, Tensor, options};

options! {
    /// The options of a transformer's layer.
    TransformerOptions () {
        /// The number of features between the linear layers (default 2048).
        dim_feedforward: Int = 2048,
        /// The probability of dropout, after each part and in the attention (default 0.1).
        dropout: f64 = 0.1,
        /// The activation between the linear layers (default relu).
        activation: TransformerActivation = TransformerActivation::Relu,
        /// The term added to the variance in the norms (default 1e-5).
        layer_norm_eps: f64 = 1e-5,
        /// True if batches are in dim 0 (default no: in dim 1).
        batch_first: bool = false,
        /// True if the norms come before attention and linear layers (default no: after).
        norm_first: bool = false,
        /// True if attention, linear layers and norms have biases (default yes).
        bias: bool = true,
    }
}

/// The activation between the linear layers of a transformer's layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransformerActivation {
    /// [`Tensor::relu`].
    #[default]
    Relu,
    /// [`Tensor::gelu`].
    Gelu,
}

/// The checked options of both kinds of layers.
#[derive(Clone)]
pub(crate) struct Config {
    d_model: usize,
    nhead: usize,
    dim_feedforward: usize,
    options: TransformerOptions,
}

impl Config {
    #[track_caller]
    fn new(name: &'static str, sizes: [Int; 2], options: TransformerOptions) -> Result<Config> {
        let [d_model, nhead, dim_feedforward] =
            layer::feature_sizes(name, [sizes[0], sizes[1], options.dim_feedforward])?;
        if dim_feedforward == 0 {
            return Err(invalid(name, "dim_feedforward must be at least 1, not 0"));
        }
        check_probability(name, options.dropout)?;
        Ok(Config {
            d_model,
            nhead,
            dim_feedforward,
            options,
        })
    }

    #[track_caller]
    fn attention(&self) -> Result<MultiheadAttention> {
        let options = AttentionOptions::new()
            .dropout(self.options.dropout)
            .batch_first(self.options.batch_first)
            .bias(self.options.bias);
        MultiheadAttention::with(self.d_model, self.nhead, options)
    }

    #[track_caller]
    pub(crate) fn norm(&self) -> Result<LayerNorm> {
        let options = Norm::new()
            .eps(self.options.layer_norm_eps)
            .bias(self.options.bias);
        LayerNorm::with(self.d_model, options)
    }

    #[track_caller]
    fn dropout(&self) -> Result<Dropout> {
        Dropout::new(self.options.dropout)
    }

    #[track_caller]
    fn linear(&self, from: usize, to: usize) -> Result<Linear> {
        Linear::from_sizes([from.into(), to.into()], self.options.bias)
    }

    fn activation(&self, x: &Tensor) -> Tensor {
        match self.options.activation {
            TransformerActivation::Relu => x.relu(),
            TransformerActivation::Gelu => x.gelu(),
        }
    }
}

/// The common part of both kinds of layers: constructors, and the linear layers.
macro_rules! transformer_layer {
    ($name:ident) => {
        impl $name {
            /// Makes a layer with PyTorch's defaults: 2048 features between the linear layers, dropout of 0.1, relu,
            /// the norms after attention and linear layers, batches in dim 1.
            ///
            /// # Errors
            /// If the features do not divide into the heads.
            #[track_caller]
            pub fn new(d_model: impl Into<Int>, nhead: impl Into<Int>) -> Result<$name> {
                $name::with(d_model, nhead, TransformerOptions::new())
            }

            /// Makes a layer of `d_model` features in `nhead` heads.
            ///
            /// # Errors
            /// If the features do not divide into the heads, an option is impossible, or inside `compile`:
            /// make layers before.
            #[track_caller]
            pub fn with(
                d_model: impl Into<Int>,
                nhead: impl Into<Int>,
                options: TransformerOptions,
            ) -> Result<$name> {
                let sizes = [d_model.into(), nhead.into()];
                $name::from_config(Config::new(stringify!($name), sizes, options)?)
            }

            /// Returns the options with which it was made.
            pub fn options(&self) -> &TransformerOptions {
                &self.config.options
            }

            fn feedforward(&self, x: &Tensor) -> Tensor {
                let x = self.config.activation(&self.linear1.call(x));
                self.linear2.call(self.dropout.call(x))
            }
        }
    };
}

/// Self-attention, then two linear layers, each with dropout, a residual and a norm
/// (`torch.nn.TransformerEncoderLayer`), on `[l, n, d_model]` (`[n, l, d_model]` with `batch_first`), which
/// [`AttentionMasks`] may follow.
#[derive(Module)]
pub struct TransformerEncoderLayer {
    /// The attention.
    pub self_attn: MultiheadAttention,
    /// The first linear layer, `d_model` to `dim_feedforward`.
    pub linear1: Linear,
    dropout: Dropout,
    /// The second linear layer.
    pub linear2: Linear,
    /// The norm of the attention.
    pub norm1: LayerNorm,
    /// The norm of the linear layers.
    pub norm2: LayerNorm,
    dropout1: Dropout,
    dropout2: Dropout,
    #[skip]
    pub(crate) config: Config,
    hooks: Hooks,
}

transformer_layer!(TransformerEncoderLayer);

impl TransformerEncoderLayer {
    #[track_caller]
    fn from_config(config: Config) -> Result<TransformerEncoderLayer> {
        let (narrow, wide) = (config.d_model, config.dim_feedforward);
        Ok(TransformerEncoderLayer {
            self_attn: config.attention()?,
            linear1: config.linear(narrow, wide)?,
            dropout: config.dropout()?,
            linear2: config.linear(wide, narrow)?,
            norm1: config.norm()?,
            norm2: config.norm()?,
            dropout1: config.dropout()?,
            dropout2: config.dropout()?,
            config,
            hooks: Hooks::new(),
        })
    }
}

impl Forward<(Tensor, AttentionMasks)> for TransformerEncoderLayer {
    fn forward(&self, (src, masks): (Tensor, AttentionMasks)) -> Result<Tensor> {
        let attend = |x: &Tensor| {
            let (y, _) = self.self_attn.call((x, x, x, &masks));
            self.dropout1.call(y)
        };
        let feedforward = |x: &Tensor| self.dropout2.call(self.feedforward(x));
        if self.config.options.norm_first {
            let x = &src + attend(&self.norm1.call(&src));
            return Ok(&x + feedforward(&self.norm2.call(&x)));
        }
        let x = self.norm1.call(&src + attend(&src));
        Ok(self.norm2.call(&x + feedforward(&x)))
    }
}

impl Forward for TransformerEncoderLayer {
    fn forward(&self, src: Tensor) -> Result<Tensor> {
        self.forward((src, AttentionMasks::new()))
    }
}

/// Self-attention, attention to a memory, then two linear layers, each with dropout, a residual and a
/// norm (`torch.nn.TransformerDecoderLayer`), on a target and a memory `[l, n, d_model]` (`[n, l, d_model]`
/// with `batch_first`), which the [`AttentionMasks`] of both may follow.
#[derive(Module)]
pub struct TransformerDecoderLayer {
    /// The attention to itself.
    pub self_attn: MultiheadAttention,
    /// The attention to the memory.
    pub multihead_attn: MultiheadAttention,
    /// The first linear layer, `d_model` to `dim_feedforward`.
    pub linear1: Linear,
    dropout: Dropout,
    /// The second linear layer.
    pub linear2: Linear,
    /// The norm of the attention to itself.
    pub norm1: LayerNorm,
    /// The norm of the attention to the memory.
    pub norm2: LayerNorm,
    /// The norm of the linear layers.
    pub norm3: LayerNorm,
    dropout1: Dropout,
    dropout2: Dropout,
    dropout3: Dropout,
    #[skip]
    pub(crate) config: Config,
    hooks: Hooks,
}

transformer_layer!(TransformerDecoderLayer);

impl TransformerDecoderLayer {
    #[track_caller]
    fn from_config(config: Config) -> Result<TransformerDecoderLayer> {
        let (narrow, wide) = (config.d_model, config.dim_feedforward);
        Ok(TransformerDecoderLayer {
            self_attn: config.attention()?,
            multihead_attn: config.attention()?,
            linear1: config.linear(narrow, wide)?,
            dropout: config.dropout()?,
            linear2: config.linear(wide, narrow)?,
            norm1: config.norm()?,
            norm2: config.norm()?,
            norm3: config.norm()?,
            dropout1: config.dropout()?,
            dropout2: config.dropout()?,
            dropout3: config.dropout()?,
            config,
            hooks: Hooks::new(),
        })
    }
}

impl Forward<(Tensor, Tensor, AttentionMasks, AttentionMasks)> for TransformerDecoderLayer {
    fn forward(
        &self,
        (tgt, memory, tgt_masks, memory_masks): (Tensor, Tensor, AttentionMasks, AttentionMasks),
    ) -> Result<Tensor> {
        let attend = |x: &Tensor| {
            let (y, _) = self.self_attn.call((x, x, x, &tgt_masks));
            self.dropout1.call(y)
        };
        let look = |x: &Tensor| {
            let (y, _) = self
                .multihead_attn
                .call((x, &memory, &memory, &memory_masks));
            self.dropout2.call(y)
        };
        let feedforward = |x: &Tensor| self.dropout3.call(self.feedforward(x));
        if self.config.options.norm_first {
            let x = &tgt + attend(&self.norm1.call(&tgt));
            let x = &x + look(&self.norm2.call(&x));
            return Ok(&x + feedforward(&self.norm3.call(&x)));
        }
        let x = self.norm1.call(&tgt + attend(&tgt));
        let x = self.norm2.call(&x + look(&x));
        Ok(self.norm3.call(&x + feedforward(&x)))
    }
}

/// The constructors of a stack of copies of a layer.
macro_rules! stack {
    ($name:ident $layer:ident) => {
        impl $name {
            /// Makes a stack of copies of a layer, which start with its values.
            ///
            /// # Errors
            /// If the number is negative or above 4096, or a value of the layer can't be computed.
            #[track_caller]
            pub fn new(layer: &$layer, num_layers: impl Into<Int>) -> Result<$name> {
                let num_layers = layer::layer_count(stringify!($name), num_layers.into())?;
                let layers = (0..num_layers).map(|_| layer.deep_copy());
                Ok($name {
                    layers: layers.collect::<Result<_>>()?,
                    norm: None,
                    hooks: Hooks::new(),
                })
            }

            /// [`Self::new`] with a norm after the last layer.
            ///
            /// # Errors
            /// As [`Self::new`].
            #[track_caller]
            pub fn with_norm(
                layer: &$layer,
                num_layers: impl Into<Int>,
                norm: LayerNorm,
            ) -> Result<$name> {
                let stack = $name::new(layer, num_layers)?;
                Ok($name {
                    norm: Some(norm),
                    ..stack
                })
            }

            fn apply_norm(&self, y: Tensor) -> Tensor {
                match &self.norm {
                    Some(norm) => norm.call(y),
                    None => y,
                }
            }
        }
    };
}

/// Encoder layers in sequence (`torch.nn.TransformerEncoder`), with the same inputs as one of them.
///
/// ```
/// use kiln_nn::{Forward, TransformerEncoder, TransformerEncoderLayer, TransformerOptions};
/// use kiln_tensor::{DType, Tensor};
/// let layer = TransformerEncoderLayer::with(8, 2, TransformerOptions::new().dim_feedforward(16))?;
/// let encoder = TransformerEncoder::new(&layer, 3)?;
/// let y = encoder.call(Tensor::rand([5, 2, 8], DType::F32));
/// assert_eq!(y.shape()?, [5, 2, 8]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: ModuleList<TransformerEncoderLayer>,
    /// A norm that is applied to the last layer's result.
    pub norm: Option<LayerNorm>,
    hooks: Hooks,
}

stack!(TransformerEncoder TransformerEncoderLayer);

impl Forward<(Tensor, AttentionMasks)> for TransformerEncoder {
    fn forward(&self, (src, masks): (Tensor, AttentionMasks)) -> Result<Tensor> {
        let layers = self.layers.iter();
        Ok(self.apply_norm(layers.fold(src, |x, layer| layer.call((x, &masks)))))
    }
}

impl Forward for TransformerEncoder {
    fn forward(&self, src: Tensor) -> Result<Tensor> {
        self.forward((src, AttentionMasks::new()))
    }
}

/// Decoder layers in sequence (`torch.nn.TransformerDecoder`), with the same inputs as one of them.
#[derive(Module)]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: ModuleList<TransformerDecoderLayer>,
    /// A norm that is applied to the last layer's result.
    pub norm: Option<LayerNorm>,
    hooks: Hooks,
}

stack!(TransformerDecoder TransformerDecoderLayer);

impl Forward<(Tensor, Tensor, AttentionMasks, AttentionMasks)> for TransformerDecoder {
    fn forward(
        &self,
        (tgt, memory, tgt_masks, memory_masks): (Tensor, Tensor, AttentionMasks, AttentionMasks),
    ) -> Result<Tensor> {
        let layers = self.layers.iter();
        let step = |x, layer: &TransformerDecoderLayer| {
            layer.call((x, &memory, &tgt_masks, &memory_masks))
        };
        Ok(self.apply_norm(layers.fold(tgt, step)))
    }
}

/// Calls without masks, or with those of the target alone.
macro_rules! fewer_masks {
    ($($name:ident)*) => {$(
        impl Forward<(Tensor, Tensor)> for $name {
            fn forward(&self, (tgt, memory): (Tensor, Tensor)) -> Result<Tensor> {
                self.forward((tgt, memory, AttentionMasks::new(), AttentionMasks::new()))
            }
        }

        impl Forward<(Tensor, Tensor, AttentionMasks)> for $name {
            fn forward(
                &self,
                (tgt, memory, masks): (Tensor, Tensor, AttentionMasks),
            ) -> Result<Tensor> {
                self.forward((tgt, memory, masks, AttentionMasks::new()))
            }
        }
    )*};
}
fewer_masks!(TransformerDecoderLayer TransformerDecoder);

//! Transformers (Vaswani et al., 2017).

use crate::layer::{self, invalid, on_behalf, with_dtype};
use crate::{
    AttentionMasks, Dropout, Forward, LayerNorm, Linear, Module, ModuleList, MultiheadAttention,
};
use kiln_tensor::{Int, Result, Tensor};

/// What both kinds of layers are made with.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    d_model: usize,
    nhead: usize,
    dim_feedforward: usize,
    dropout: f64,
    gelu: bool,
    layer_norm_eps: f64,
    batch_first: bool,
    norm_first: bool,
    bias: bool,
}

impl Config {
    fn new(d_model: usize, nhead: usize) -> Config {
        Config {
            d_model,
            nhead,
            dim_feedforward: 2048,
            dropout: 0.1,
            gelu: false,
            layer_norm_eps: 1e-5,
            batch_first: false,
            norm_first: false,
            bias: true,
        }
    }

    #[track_caller]
    fn attention(&self) -> Result<MultiheadAttention> {
        let attention = MultiheadAttention::new(self.d_model, self.nhead)?;
        let attention = attention
            .dropout(self.dropout)
            .batch_first(self.batch_first);
        Ok(attention.bias(self.bias))
    }

    #[track_caller]
    pub(crate) fn norm(&self) -> Result<LayerNorm> {
        let norm = LayerNorm::new(self.d_model)?.eps(self.layer_norm_eps);
        Ok(norm.bias(self.bias))
    }

    /// The two linear layers between which the activation is.
    #[track_caller]
    fn feedforward(&self) -> Result<(Linear, Linear)> {
        let first = Linear::new(self.d_model, self.dim_feedforward)?.bias(self.bias);
        let second = Linear::new(self.dim_feedforward, self.d_model)?.bias(self.bias);
        Ok((first, second))
    }

    fn activation(&self, x: &Tensor) -> Tensor {
        if self.gelu { x.gelu() } else { x.relu() }
    }
}

/// The methods that change what a layer is made with.
macro_rules! configured {
    ($name:ident) => {
        impl $name {
            /// A layer with PyTorch's defaults: 2048 features in between, dropout of 0.1, relu, the norms
            /// behind, batches in dim 1.
            ///
            /// # Errors
            /// If the features do not divide into the heads.
            #[track_caller]
            pub fn new(d_model: impl Into<Int>, nhead: impl Into<Int>) -> Result<$name> {
                let sizes = [d_model.into(), nhead.into()];
                let [d_model, nhead] = layer::sizes(stringify!($name), sizes)?;
                $name::with(Config::new(d_model, nhead))
            }

            /// The layer with this many features between its linear layers (default 2048), its parameters
            /// drawn anew.
            ///
            /// # Errors
            /// If the size is 0.
            #[track_caller]
            pub fn dim_feedforward(mut self, features: impl Into<Int>) -> Result<$name> {
                let [features] = layer::sizes(stringify!($name), [features.into()])?;
                if features == 0 {
                    let message = "dim_feedforward must be at least 1, not 0";
                    return Err(invalid(stringify!($name), message));
                }
                self.config.dim_feedforward = features;
                $name::with(self.config)
            }

            /// The layer with or without biases (default with), its parameters drawn anew.
            ///
            /// # Errors
            /// Inside `compile`: make layers before.
            #[track_caller]
            pub fn bias(mut self, bias: bool) -> Result<$name> {
                self.config.bias = bias;
                $name::with(self.config)
            }

            /// The layer with this probability of dropout (default 0.1), its parameters drawn anew.
            ///
            /// # Errors
            /// Inside `compile`: make layers before.
            #[track_caller]
            pub fn dropout(mut self, dropout: f64) -> Result<$name> {
                self.config.dropout = dropout;
                $name::with(self.config)
            }

            /// Whether batches are in dim 0 (default no: in dim 1); the parameters are drawn anew.
            ///
            /// # Errors
            /// Inside `compile`: make layers before.
            #[track_caller]
            pub fn batch_first(mut self, batch_first: bool) -> Result<$name> {
                self.config.batch_first = batch_first;
                $name::with(self.config)
            }

            /// The layer with this number in the norms' denominators (default 1e-5), its parameters drawn
            /// anew.
            ///
            /// # Errors
            /// Inside `compile`: make layers before.
            #[track_caller]
            pub fn layer_norm_eps(mut self, eps: f64) -> Result<$name> {
                self.config.layer_norm_eps = eps;
                $name::with(self.config)
            }

            /// The layer with gelu in place of relu.
            pub fn gelu(mut self) -> $name {
                self.config.gelu = true;
                self
            }

            /// Whether the norms are in front of attention and feed-forward (default no: behind).
            pub fn norm_first(mut self, norm_first: bool) -> $name {
                self.config.norm_first = norm_first;
                self
            }

            /// Another layer with the same values.
            #[track_caller]
            fn copy(&self) -> Result<$name> {
                let dtype = self.linear1.weight.dtype();
                let copy = with_dtype(dtype, || $name::with(self.config))?;
                copy.load_state_dict(&self.state_dict(), true)?;
                Ok(copy)
            }

            fn feedforward(&self, x: &Tensor) -> Tensor {
                let x = self.config.activation(&self.linear1.forward(x));
                self.linear2.forward(&self.dropout.forward(&x))
            }
        }
    };
}

/// Self-attention, then two linear layers, each with dropout, a residual and a norm
/// (`torch.nn.TransformerEncoderLayer`), on `[l, n, d_model]` (`[n, l, d_model]` with `batch_first`).
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
}

configured!(TransformerEncoderLayer);

impl TransformerEncoderLayer {
    #[track_caller]
    fn with(config: Config) -> Result<TransformerEncoderLayer> {
        let self_attn = config.attention()?;
        let (linear1, linear2) = config.feedforward()?;
        Ok(TransformerEncoderLayer {
            self_attn,
            linear1,
            dropout: Dropout::new(config.dropout),
            linear2,
            norm1: config.norm()?,
            norm2: config.norm()?,
            dropout1: Dropout::new(config.dropout),
            dropout2: Dropout::new(config.dropout),
            config,
        })
    }

    /// The result with masks of the attention.
    #[track_caller]
    pub fn forward_with(&self, src: &Tensor, masks: AttentionMasks) -> Tensor {
        on_behalf(|| {
            let attend = |x: &Tensor| {
                let (y, _) = self.self_attn.forward_with(x, x, x, masks);
                self.dropout1.forward(&y)
            };
            let feedforward = |x: &Tensor| self.dropout2.forward(&self.feedforward(x));
            if self.config.norm_first {
                let x = src + &attend(&self.norm1.forward(src));
                return &x + &feedforward(&self.norm2.forward(&x));
            }
            let x = self.norm1.forward(&(src + &attend(src)));
            self.norm2.forward(&(&x + &feedforward(&x)))
        })
    }
}

impl Forward for TransformerEncoderLayer {
    #[track_caller]
    fn forward(&self, src: &Tensor) -> Tensor {
        self.forward_with(src, AttentionMasks::default())
    }
}

/// Self-attention, attention to a memory, then two linear layers, each with dropout, a residual and a
/// norm (`torch.nn.TransformerDecoderLayer`), on `[l, n, d_model]` (`[n, l, d_model]` with
/// `batch_first`).
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
}

configured!(TransformerDecoderLayer);

impl TransformerDecoderLayer {
    #[track_caller]
    fn with(config: Config) -> Result<TransformerDecoderLayer> {
        let (self_attn, multihead_attn) = (config.attention()?, config.attention()?);
        let (linear1, linear2) = config.feedforward()?;
        let dropout = || Dropout::new(config.dropout);
        Ok(TransformerDecoderLayer {
            self_attn,
            multihead_attn,
            linear1,
            dropout: dropout(),
            linear2,
            norm1: config.norm()?,
            norm2: config.norm()?,
            norm3: config.norm()?,
            dropout1: dropout(),
            dropout2: dropout(),
            dropout3: dropout(),
            config,
        })
    }

    /// The result for a target and a memory, without masks.
    #[track_caller]
    pub fn forward(&self, tgt: &Tensor, memory: &Tensor) -> Tensor {
        let none = AttentionMasks::default();
        self.forward_with(tgt, memory, none, none)
    }

    /// The result with masks of the attention to the target and to the memory.
    #[track_caller]
    pub fn forward_with(
        &self,
        tgt: &Tensor,
        memory: &Tensor,
        tgt_masks: AttentionMasks,
        memory_masks: AttentionMasks,
    ) -> Tensor {
        on_behalf(|| {
            let attend = |x: &Tensor| {
                let (y, _) = self.self_attn.forward_with(x, x, x, tgt_masks);
                self.dropout1.forward(&y)
            };
            let look = |x: &Tensor| {
                let (y, _) = self
                    .multihead_attn
                    .forward_with(x, memory, memory, memory_masks);
                self.dropout2.forward(&y)
            };
            let feedforward = |x: &Tensor| self.dropout3.forward(&self.feedforward(x));
            if self.config.norm_first {
                let x = tgt + &attend(&self.norm1.forward(tgt));
                let x = &x + &look(&self.norm2.forward(&x));
                return &x + &feedforward(&self.norm3.forward(&x));
            }
            let x = self.norm1.forward(&(tgt + &attend(tgt)));
            let x = self.norm2.forward(&(&x + &look(&x)));
            self.norm3.forward(&(&x + &feedforward(&x)))
        })
    }
}

/// Encoder layers one after the other (`torch.nn.TransformerEncoder`).
///
/// ```
/// use kiln_nn::{Forward, TransformerEncoder, TransformerEncoderLayer};
/// use kiln_tensor::{DType, Tensor};
/// let layer = TransformerEncoderLayer::new(8, 2)?.dim_feedforward(16)?;
/// let encoder = TransformerEncoder::new(&layer, 3)?;
/// let y = encoder.forward(&Tensor::rand([5, 2, 8], DType::F32));
/// assert_eq!(y.shape()?, [5, 2, 8]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: ModuleList<TransformerEncoderLayer>,
    /// Applied to the last one's result.
    pub norm: Option<LayerNorm>,
}

impl TransformerEncoder {
    /// An encoder of copies of a layer, which start with its values.
    ///
    /// # Errors
    /// If a value of the layer can't be computed.
    #[track_caller]
    pub fn new(
        layer: &TransformerEncoderLayer,
        num_layers: impl Into<Int>,
    ) -> Result<TransformerEncoder> {
        let [num_layers] = layer::sizes("TransformerEncoder", [num_layers.into()])?;
        let mut layers = ModuleList::default();
        for _ in 0..num_layers {
            layers.push(layer.copy()?);
        }
        Ok(TransformerEncoder { layers, norm: None })
    }

    /// The encoder with a norm behind its last layer (default none).
    pub fn norm(mut self, norm: LayerNorm) -> TransformerEncoder {
        self.norm = Some(norm);
        self
    }

    /// The result with masks of the attention in every layer.
    #[track_caller]
    pub fn forward_with(&self, src: &Tensor, masks: AttentionMasks) -> Tensor {
        on_behalf(|| {
            let layers = self.layers.iter();
            let y = layers.fold(src.clone(), |x, layer| layer.forward_with(&x, masks));
            self.norm
                .as_ref()
                .map_or(y.clone(), |norm| norm.forward(&y))
        })
    }
}

impl Forward for TransformerEncoder {
    #[track_caller]
    fn forward(&self, src: &Tensor) -> Tensor {
        self.forward_with(src, AttentionMasks::default())
    }
}

/// Decoder layers one after the other (`torch.nn.TransformerDecoder`).
#[derive(Module)]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: ModuleList<TransformerDecoderLayer>,
    /// Applied to the last one's result.
    pub norm: Option<LayerNorm>,
}

impl TransformerDecoder {
    /// A decoder of copies of a layer, which start with its values.
    ///
    /// # Errors
    /// If a value of the layer can't be computed.
    #[track_caller]
    pub fn new(
        layer: &TransformerDecoderLayer,
        num_layers: impl Into<Int>,
    ) -> Result<TransformerDecoder> {
        let [num_layers] = layer::sizes("TransformerDecoder", [num_layers.into()])?;
        let mut layers = ModuleList::default();
        for _ in 0..num_layers {
            layers.push(layer.copy()?);
        }
        Ok(TransformerDecoder { layers, norm: None })
    }

    /// The decoder with a norm behind its last layer (default none).
    pub fn norm(mut self, norm: LayerNorm) -> TransformerDecoder {
        self.norm = Some(norm);
        self
    }

    /// The result for a target and a memory, without masks.
    #[track_caller]
    pub fn forward(&self, tgt: &Tensor, memory: &Tensor) -> Tensor {
        let none = AttentionMasks::default();
        self.forward_with(tgt, memory, none, none)
    }

    /// The result with masks of the attention in every layer.
    #[track_caller]
    pub fn forward_with(
        &self,
        tgt: &Tensor,
        memory: &Tensor,
        tgt_masks: AttentionMasks,
        memory_masks: AttentionMasks,
    ) -> Tensor {
        on_behalf(|| {
            let layers = self.layers.iter();
            let y = layers.fold(tgt.clone(), |x, layer| {
                layer.forward_with(&x, memory, tgt_masks, memory_masks)
            });
            self.norm
                .as_ref()
                .map_or(y.clone(), |norm| norm.forward(&y))
        })
    }
}

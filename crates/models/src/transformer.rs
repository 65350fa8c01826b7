//! Blocks of transformers.

use kiln::Result;
use kiln::nn::{
    TransformerActivation, TransformerDecoderLayer, TransformerEncoderLayer, TransformerOptions,
};

/// The sizes of a block of a transformer ("Attention Is All You Need", Vaswani et al., 2017) with GELU, for
/// tokens `[n, length, width]`. The default is BERT-base's (Devlin et al., 2018).
///
/// ```
/// use kiln::nn::Forward;
/// use kiln::{DType, Tensor};
/// use kiln_models::TransformerConfig;
///
/// let config = TransformerConfig { width: 64, heads: 4, hidden: 256, ..TransformerConfig::default() };
/// let tokens = Tensor::randn([2, 7, 64], DType::F32);
/// let seen = config.encoder_block()?.call(&tokens);
/// assert_eq!(seen.shape()?, [2, 7, 64]);
/// let words = Tensor::randn([2, 3, 64], DType::F32);
/// assert_eq!(config.decoder_block()?.call((&words, &seen)).shape()?, [2, 3, 64]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerConfig {
    /// Numbers of a token.
    pub width: usize,
    /// Heads of the attention, which divide the width.
    pub heads: usize,
    /// Width between the two linear layers.
    pub hidden: usize,
    /// Probability that dropout makes a number zero in training.
    pub dropout: f64,
    /// Whether norms are in front of attention and linear layers, not behind the sums.
    pub norm_first: bool,
}

impl Default for TransformerConfig {
    fn default() -> TransformerConfig {
        TransformerConfig {
            width: 768,
            heads: 12,
            hidden: 3072,
            dropout: 0.1,
            norm_first: false,
        }
    }
}

impl TransformerConfig {
    /// Self-attention and two linear layers, with random weights.
    ///
    /// # Errors
    /// If the heads don't divide the width, or inside `compile`: make networks before.
    pub fn encoder_block(&self) -> Result<TransformerEncoderLayer> {
        TransformerEncoderLayer::with(self.width, self.heads, self.options())
    }

    /// Self-attention, attention to an encoder's result and two linear layers, with random weights.
    ///
    /// # Errors
    /// If the heads don't divide the width, or inside `compile`: make networks before.
    pub fn decoder_block(&self) -> Result<TransformerDecoderLayer> {
        TransformerDecoderLayer::with(self.width, self.heads, self.options())
    }

    fn options(&self) -> TransformerOptions {
        TransformerOptions::new()
            .dim_feedforward(self.hidden)
            .dropout(self.dropout)
            .activation(TransformerActivation::Gelu)
            .batch_first(true)
            .norm_first(self.norm_first)
    }
}

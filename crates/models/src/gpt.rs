//! A transformer that continues text.

use crate::{TransformerConfig, limits};
use kiln::nn::{
    AttentionMasks, Dropout, Embedding, Forward, Hooks, LayerNorm, Module, ModuleList,
    TransformerEncoderLayer, init,
};
use kiln::{Result, Tensor};

config! {
    /// The sizes of a [`Gpt`]. The default is the smallest GPT-2's.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct GptConfig {
        /// The size of the vocabulary.
        pub vocabulary: usize = 50257,
        /// The maximal length of a text in tokens.
        pub context: usize = 1024,
        /// The number of blocks.
        pub layers: usize = 12,
        /// The sizes of a block.
        pub block: TransformerConfig = TransformerConfig {
                norm_first: true,
                ..TransformerConfig::default()
            },
    }
}

/// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019), with the exact GELU: tokens
/// `[n, length]` to scores `[n, length, vocabulary]` of the token that follows each. The matrix of the scores is the
/// embedding matrix of the tokens.
///
/// ```
/// use kiln::Tensor;
/// use kiln::nn::Forward;
/// use kiln_models::{Gpt, GptConfig};
///
/// let mut config = GptConfig { vocabulary: 100, context: 32, layers: 2, ..GptConfig::default() };
/// (config.block.width, config.block.heads, config.block.hidden) = (32, 4, 128);
/// let gpt = Gpt::new(config)?;
/// let tokens = Tensor::randint(0, 100, [2, 16]);
/// assert_eq!(gpt.call(&tokens).shape()?, [2, 16, 100]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
    blocks: ModuleList<TransformerEncoderLayer>,
    norm: LayerNorm,
    hooks: Hooks,
}

impl Gpt {
    /// Makes the network with random weights.
    ///
    /// # Errors
    /// If the heads don't divide the width, if a size is above 2^24 or there are more than
    /// 4096 layers, or inside `compile`: make networks before.
    pub fn new(config: GptConfig) -> Result<Gpt> {
        let sizes = [config.vocabulary, config.context];
        limits::check("Gpt", &[config.layers], &sizes)?;
        let embedding = |rows: usize| -> Result<Embedding> {
            let embedding = Embedding::new(rows, config.block.width)?;
            // Scores are products with these rows: with a deviation of 1 they would be far from 0.
            init::normal_(&embedding.weight, 0.0, 0.02)?;
            Ok(embedding)
        };
        let blocks = (0..config.layers).map(|_| config.block.encoder_block());
        Ok(Gpt {
            tokens: embedding(config.vocabulary)?,
            positions: embedding(config.context)?,
            dropout: Dropout::new(config.block.dropout)?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: LayerNorm::new(config.block.width)?,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for Gpt {
    fn forward(&self, tokens: Tensor) -> Result<Tensor> {
        let length = tokens.dims().last().cloned().unwrap_or(1.into());
        let positions = Tensor::arange(0, length, 1).to(tokens.device());
        let x = self.tokens.call(&tokens) + self.positions.call(&positions);
        let mut x = self.dropout.call(&x);
        let causal = AttentionMasks::new().is_causal(true);
        for block in self.blocks.iter() {
            x = block.call((x, &causal));
        }
        let scores = self.tokens.weight.get();
        Ok(self.norm.call(&x).linear(&scores))
    }
}

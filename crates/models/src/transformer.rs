//! Blocks of transformers.

use kiln::nn::{
    Forward, Hooks, LayerNorm, Linear, Module, TransformerActivation, TransformerDecoderLayer,
    TransformerEncoderLayer, TransformerOptions,
};
use kiln::{Error, Result, Tensor, cat};

config! {
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
        /// The width of a token.
        pub width: usize = 768,
        /// The number of attention heads, which divide the width.
        pub heads: usize = 12,
        /// The width between the two linear layers.
        pub hidden: usize = 3072,
        /// The probability that dropout zeroes a number in training.
        pub dropout: f64 = 0.1,
        /// True if norms come before attention and linear layers, not after the sums.
        pub norm_first: bool = false,
    }
}

impl TransformerConfig {
    /// Makes self-attention and two linear layers, with random weights.
    ///
    /// # Errors
    /// If the heads don't divide the width, or inside `compile`: make networks before.
    pub fn encoder_block(&self) -> Result<TransformerEncoderLayer> {
        TransformerEncoderLayer::with(self.width, self.heads, self.options())
    }

    /// Makes self-attention, attention to an encoder's result and two linear layers, with random weights.
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

/// A transformer block with norms first that continues a text token by token ("Language Models are Unsupervised
/// Multitask Learners", Radford et al., 2019). It takes tokens `[n, length, width]`, and the keys and values `[n,
/// heads, before, width / heads]` of the tokens before them. It returns the block's result and all keys and values.
///
/// ```
/// use kiln::nn::Forward;
/// use kiln::{DType, Tensor};
/// use kiln_models::CachedBlock;
///
/// let block = CachedBlock::new(64, 4, 256)?;
/// let token = Tensor::randn([2, 1, 64], DType::F32);
/// let cache = Tensor::randn([2, 4, 7, 16], DType::F32);
/// let [y, keys, _] = block.call((&token, &cache, &cache));
/// assert_eq!((y.shape()?, keys.shape()?), (vec![2, 1, 64], vec![2, 4, 8, 16]));
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct CachedBlock {
    norm1: LayerNorm,
    qkv: Linear,
    out: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    #[skip]
    heads: usize,
    hooks: Hooks,
}

impl CachedBlock {
    /// Makes the block with random weights.
    ///
    /// # Errors
    /// If the heads don't divide the width, or inside `compile`: make networks before.
    pub fn new(width: usize, heads: usize, hidden: usize) -> Result<CachedBlock> {
        if heads == 0 || !width.is_multiple_of(heads) {
            let message = format!("{heads} heads of a width of {width}");
            return Err(Error::invalid("CachedBlock::new", message));
        }
        Ok(CachedBlock {
            norm1: LayerNorm::new(width)?,
            qkv: Linear::new(width, 3 * width)?,
            out: Linear::new(width, width)?,
            norm2: LayerNorm::new(width)?,
            fc1: Linear::new(width, hidden)?,
            fc2: Linear::new(hidden, width)?,
            heads,
            hooks: Hooks::new(),
        })
    }
}

impl Forward<(Tensor, Tensor, Tensor), [Tensor; 3]> for CachedBlock {
    fn forward(&self, (x, keys, values): (Tensor, Tensor, Tensor)) -> Result<[Tensor; 3]> {
        let [n, length, width] = x.size()?;
        let shape = [n, length, 3 * self.heads, width / self.heads];
        let split = self.qkv.call(self.norm1.call(&x)).view(shape);
        let chunks = split.transpose(1, 2).chunk(3, 1);
        let [q, k, v] = <[Tensor; 3]>::try_from(chunks)
            .map_err(|_| Error::invalid("CachedBlock", "tokens without numbers"))?;
        let (k, v) = (cat(&[keys, k], 2), cat(&[values, v], 2));
        let y = q.scaled_dot_product_attention(&k, &v).transpose(1, 2);
        let x = x + self.out.call(y.reshape([n, length, width]));
        let y = self.fc1.call(self.norm2.call(&x)).gelu();
        Ok([x + self.fc2.call(y), k, v])
    }
}

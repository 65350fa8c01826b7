//! BERT with the names of the library `transformers`.
#![allow(non_snake_case)] // transformers' names

use crate::limits;
use crate::text::{self, Activation};
use kiln::nn::{
    Copies, Dropout, Embedding, Forward, Hooks, LayerNorm, Linear, Members, Mode, Module,
    ModuleList, Norm, module,
};
use kiln::{Attention, Nest, Result, Tensor};
use serde::{Deserialize, Serialize};

config! {
    /// The sizes of a [`BertModel`], under the names of `config.json`. The default is BERT-base's.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct BertConfig {
        /// The size of the vocabulary.
        pub vocab_size: usize = 30522,
        /// The width of a token.
        pub hidden_size: usize = 768,
        /// The number of blocks.
        pub num_hidden_layers: usize = 12,
        /// The number of attention heads, which divide the width.
        pub num_attention_heads: usize = 12,
        /// The width between the two linear layers of a block.
        pub intermediate_size: usize = 3072,
        /// The activation between the two linear layers.
        pub hidden_act: String = "gelu".into(),
        /// The probability that dropout zeroes an element in training.
        pub hidden_dropout_prob: f64 = 0.1,
        /// The probability that an attention weight is dropped in training.
        pub attention_probs_dropout_prob: f64 = 0.1,
        /// The maximum length of a text in tokens.
        pub max_position_embeddings: usize = 512,
        /// The number of token types.
        pub type_vocab_size: usize = 2,
        /// The standard deviation of new weights.
        pub initializer_range: f64 = 0.02,
        /// The term that norms add to the variance.
        pub layer_norm_eps: f64 = 1e-12,
        /// The dropout before a classifier; `hidden_dropout_prob` unless given.
        pub classifier_dropout: Option<f64> = None,
        /// True if the matrix of the token scores is the embedding matrix.
        pub tie_word_embeddings: bool = true,
    }
}

impl BertConfig {
    pub(crate) fn norm(&self) -> Result<LayerNorm> {
        LayerNorm::with(self.hidden_size, Norm::new().eps(self.layer_norm_eps))
    }

    fn dropout(&self) -> Result<Dropout> {
        Dropout::new(self.hidden_dropout_prob)
    }

    pub(crate) fn square(&self) -> Result<Linear> {
        Linear::new(self.hidden_size, self.hidden_size)
    }
}

/// The inputs of BERT: tokens, their mask and their types.
///
/// ```
/// use kiln::Tensor;
/// use kiln_models::BertInputs;
///
/// let tokens = Tensor::from([[5i64, 3, 0]]);
/// let inputs = BertInputs::new(tokens).attention_mask(Tensor::from([[1i64, 1, 0]]));
/// assert!(inputs.token_type_ids.is_none());
/// ```
#[derive(Clone, Debug, Nest)]
pub struct BertInputs<T = Tensor> {
    /// The tokens, `[n, l]`.
    pub input_ids: T,
    /// A mask that is 0 at padding, `[n, l]`.
    pub attention_mask: Option<T>,
    /// The type of each token, `[n, l]`; 0 unless given.
    pub token_type_ids: Option<T>,
}

impl<T> BertInputs<T> {
    /// Makes inputs of tokens alone.
    pub fn new(input_ids: T) -> BertInputs<T> {
        BertInputs {
            input_ids,
            attention_mask: None,
            token_type_ids: None,
        }
    }

    /// Adds a mask that is 0 at padding.
    pub fn attention_mask(self, mask: T) -> BertInputs<T> {
        BertInputs {
            attention_mask: Some(mask),
            ..self
        }
    }

    /// Adds the type of each token.
    pub fn token_type_ids(self, types: T) -> BertInputs<T> {
        BertInputs {
            token_type_ids: Some(types),
            ..self
        }
    }
}

module!(
    struct BertEmbeddings(config: &BertConfig) {
        word_embeddings: Embedding = Embedding::new(config.vocab_size, config.hidden_size),
        position_embeddings: Embedding =
            Embedding::new(config.max_position_embeddings, config.hidden_size),
        token_type_embeddings: Embedding =
            Embedding::new(config.type_vocab_size, config.hidden_size),
        LayerNorm: LayerNorm = config.norm(),
        dropout: Dropout = config.dropout(),
    }
);

impl Forward<BertInputs> for BertEmbeddings {
    fn forward(&self, inputs: BertInputs) -> Result<Tensor> {
        let tokens = inputs.input_ids;
        let types = inputs.token_type_ids.unwrap_or_else(|| tokens.zeros_like());
        let x = self.word_embeddings.call(&tokens) + self.token_type_embeddings.call(types);
        let x = x + self.position_embeddings.call(text::positions(&tokens));
        Ok(self.dropout.call(self.LayerNorm.call(x)))
    }
}

/// The hidden states of the tokens, and the mask of the keys that queries attend to.
type Masked = (Tensor, Option<Tensor>);

module!(
    struct BertSelfAttention(config: &BertConfig) {
        query: Linear = config.square(),
        key: Linear = config.square(),
        value: Linear = config.square(),
        heads: usize = config.num_attention_heads,
        dropout: f64 = config.attention_probs_dropout_prob,
        mode: Mode = Mode::new(),
    }
);

impl Forward<Masked> for BertSelfAttention {
    fn forward(&self, (x, mask): Masked) -> Result<Tensor> {
        let projections = [&self.query, &self.key, &self.value];
        let [q, k, v] = projections.map(|p| text::split_heads(&p.call(&x), self.heads));
        let p = match self.mode.is_training() {
            true => self.dropout,
            false => 0.0,
        };
        let options = Attention::new().attn_mask(&mask).dropout_p(p);
        let y = q.scaled_dot_product_attention_with(&k, &v, options);
        Ok(text::join_heads(&y))
    }
}

module!(
    /// A linear layer whose result is added to the block's input, and normalised.
    struct BertOutput(in_features: usize, config: &BertConfig) {
        dense: Linear = Linear::new(in_features, config.hidden_size),
        LayerNorm: LayerNorm = config.norm(),
        dropout: Dropout = config.dropout(),
    }
);

impl Forward<(Tensor, Tensor)> for BertOutput {
    fn forward(&self, (y, x): (Tensor, Tensor)) -> Result<Tensor> {
        let y = self.dropout.call(self.dense.call(y));
        Ok(self.LayerNorm.call(y + x))
    }
}

/// The attention of a block. Its first part is named `self`, which can't be a field's name.
struct BertAttention {
    attention: BertSelfAttention,
    output: BertOutput,
    hooks: Hooks,
}

impl BertAttention {
    fn new(config: &BertConfig) -> Result<BertAttention> {
        Ok(BertAttention {
            attention: BertSelfAttention::new(config)?,
            output: BertOutput::new(config.hidden_size, config)?,
            hooks: Hooks::new(),
        })
    }
}

impl Module for BertAttention {
    fn as_module(&self) -> &dyn Module {
        self
    }

    fn name(&self) -> &str {
        "BertAttention"
    }

    fn members(&self) -> Members<'_> {
        let mut members = Members::new();
        members.child("self", &self.attention);
        members.child("output", &self.output);
        members
    }

    fn hooks(&self) -> Option<&Hooks> {
        Some(&self.hooks)
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<BertAttention> {
        Ok(BertAttention {
            attention: self.attention.copy_with(copies)?,
            output: self.output.copy_with(copies)?,
            hooks: Hooks::new(),
        })
    }
}

impl Forward<Masked> for BertAttention {
    fn forward(&self, (x, mask): Masked) -> Result<Tensor> {
        let y = self.attention.call((&x, mask));
        Ok(self.output.call((y, x)))
    }
}

module!(
    struct BertIntermediate(config: &BertConfig, activation: Activation) {
        dense: Linear = Linear::new(config.hidden_size, config.intermediate_size),
        #[skip]
        activation: Activation,
    }
);

impl Forward for BertIntermediate {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(self.activation.call(&self.dense.call(x)))
    }
}

module!(
    struct BertLayer(config: &BertConfig, activation: Activation) {
        attention: BertAttention = BertAttention::new(config),
        intermediate: BertIntermediate = BertIntermediate::new(config, activation),
        output: BertOutput = BertOutput::new(config.intermediate_size, config),
    }
);

impl Forward<Masked> for BertLayer {
    fn forward(&self, input: Masked) -> Result<Tensor> {
        let x = self.attention.call(input);
        Ok(self.output.call((self.intermediate.call(&x), x)))
    }
}

fn layers(config: &BertConfig, activation: Activation) -> Result<ModuleList<BertLayer>> {
    let layers = 0..config.num_hidden_layers;
    layers.map(|_| BertLayer::new(config, activation)).collect()
}

module!(
    struct BertEncoder(config: &BertConfig, activation: Activation) {
        layer: ModuleList<BertLayer> = layers(config, activation),
    }
);

impl Forward<Masked> for BertEncoder {
    fn forward(&self, (mut x, mask): Masked) -> Result<Tensor> {
        for layer in self.layer.iter() {
            x = layer.call((x, mask.clone()));
        }
        Ok(x)
    }
}

module!(
    struct BertPooler(config: &BertConfig) {
        dense: Linear = config.square(),
    }
);

impl Forward for BertPooler {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(self.dense.call(x.select(1, 0)).tanh())
    }
}

/// "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding" (Devlin et al., 2018), with the
/// weight names of the library `transformers`. It takes tokens `[n, l]`, or [`BertInputs`]. It returns the last hidden
/// states of the tokens, `[n, l, hidden_size]`, and the pooled state of the first token, `[n, hidden_size]`, if there
/// is a pooling layer.
///
/// ```
/// use kiln::Tensor;
/// use kiln::nn::Forward;
/// use kiln_models::{BertConfig, BertInputs, BertModel};
///
/// let config = BertConfig {
///     vocab_size: 100,
///     hidden_size: 32,
///     num_hidden_layers: 2,
///     num_attention_heads: 4,
///     intermediate_size: 64,
///     ..BertConfig::default()
/// };
/// let model = BertModel::new(config)?;
/// let (tokens, mask) = (Tensor::randint(0, 100, [2, 7]), Tensor::ones([2, 7], kiln::DType::I64));
/// let (states, pooled) = model.call(BertInputs::new(tokens).attention_mask(mask));
/// assert_eq!(states.shape()?, [2, 7, 32]);
/// assert_eq!(pooled.unwrap().shape()?, [2, 32]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct BertModel {
    embeddings: BertEmbeddings,
    encoder: BertEncoder,
    pooler: Option<BertPooler>,
    #[skip]
    config: BertConfig,
    hooks: Hooks,
}

impl BertModel {
    /// Makes the model with random weights.
    ///
    /// # Errors
    /// If the heads don't divide the width, the activation is unknown, a size is above 2^24, there are more than 4096
    /// layers, or it is called inside `compile`, where no weights can be made.
    pub fn new(config: BertConfig) -> Result<BertModel> {
        BertModel::with_pooling(config, true)
    }

    /// Makes the model with random weights, with or without a pooling layer.
    ///
    /// # Errors
    /// As [`BertModel::new`].
    pub fn with_pooling(config: BertConfig, add_pooling_layer: bool) -> Result<BertModel> {
        let sizes = [
            config.vocab_size,
            config.hidden_size,
            config.intermediate_size,
            config.max_position_embeddings,
            config.type_vocab_size,
        ];
        limits::check("BertModel", &[config.num_hidden_layers], &sizes)?;
        text::check_heads("BertModel", config.hidden_size, config.num_attention_heads)?;
        let activation = Activation::parse(&config.hidden_act)?;
        let pooler = add_pooling_layer.then(|| BertPooler::new(&config));
        let model = BertModel {
            embeddings: BertEmbeddings::new(&config)?,
            encoder: BertEncoder::new(&config, activation)?,
            pooler: pooler.transpose()?,
            config,
            hooks: Hooks::new(),
        };
        text::init_weights(&model, model.config.initializer_range)?;
        Ok(model)
    }

    /// The sizes.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Returns the embedding matrix of the tokens.
    pub(crate) fn words(&self) -> &kiln::Var {
        &self.embeddings.word_embeddings.weight
    }
}

impl Forward<BertInputs, (Tensor, Option<Tensor>)> for BertModel {
    fn forward(&self, inputs: BertInputs) -> Result<(Tensor, Option<Tensor>)> {
        let mask = inputs.attention_mask.as_ref().map(text::padding_mask);
        let x = self.encoder.call((self.embeddings.call(inputs), mask));
        let pooled = self.pooler.as_ref().map(|pooler| pooler.call(&x));
        Ok((x, pooled))
    }
}

impl Forward<Tensor, (Tensor, Option<Tensor>)> for BertModel {
    fn forward(&self, tokens: Tensor) -> Result<(Tensor, Option<Tensor>)> {
        self.forward(BertInputs::new(tokens))
    }
}

//! GPT-2 with the names of the library `transformers`.

use crate::limits;
use crate::text::{self, Activation};
use kiln::formats::Pretrained;
use kiln::nn::{
    Dropout, Embedding, Forward, Hooks, LayerNorm, Linear, LinearOptions, LoadReport, Mode, Module,
    ModuleList, Norm, StateDict, init, module,
};
use kiln::{AsTensor, Attention, Dim, Error, Nest, Result, Tensor, Var, default_dtype};
use serde::{Deserialize, Serialize};
use std::path::Path;

config! {
    /// The sizes of a [`GPT2Model`], under the names of `config.json`. The default is the smallest GPT-2's.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct GPT2Config {
        /// The size of the vocabulary.
        pub vocab_size: usize = 50257,
        /// The maximal length of a text in tokens.
        pub n_positions: usize = 1024,
        /// The width of a token.
        pub n_embd: usize = 768,
        /// The number of blocks.
        pub n_layer: usize = 12,
        /// The number of attention heads, which divide `n_embd`.
        pub n_head: usize = 12,
        /// The width between the two linear layers of a block; four times `n_embd` unless given.
        pub n_inner: Option<usize> = None,
        /// The activation between the two linear layers: `gelu_new` is GELU approximated with tanh.
        pub activation_function: String = "gelu_new".into(),
        /// The probability that dropout zeroes a number of a block's result in training.
        pub resid_pdrop: f64 = 0.1,
        /// The probability that dropout zeroes a number of the embeddings in training.
        pub embd_pdrop: f64 = 0.1,
        /// The probability that an attention weight is dropped in training.
        pub attn_pdrop: f64 = 0.1,
        /// The term that norms add to the variance.
        pub layer_norm_epsilon: f64 = 1e-5,
        /// The standard deviation of new weights.
        pub initializer_range: f64 = 0.02,
        /// True if scores of the attention are divided by the root of a head's width.
        pub scale_attn_weights: bool = true,
        /// True if scores of the attention are also divided by the block's number, from 1.
        pub scale_attn_by_inverse_layer_idx: bool = false,
        /// True if the matrix of the scores is the embedding matrix of the tokens.
        pub tie_word_embeddings: bool = true,
        /// The state of a text by which [`GPT2DoubleHeadsModel`] scores it; only `cls_index`, that of one token.
        pub summary_type: String = "cls_index".into(),
        /// True if that score is linear in the state; only true.
        pub summary_use_proj: bool = true,
        /// The activation of that score, if there is one.
        pub summary_activation: Option<String> = None,
        /// The probability that dropout zeroes a number of that state in training.
        pub summary_first_dropout: f64 = 0.1,
    }
}

impl GPT2Config {
    fn norm(&self) -> Result<LayerNorm> {
        LayerNorm::with(self.n_embd, Norm::new().eps(self.layer_norm_epsilon))
    }

    fn inner(&self) -> usize {
        self.n_inner.unwrap_or(4 * self.n_embd)
    }
}

module!(
    /// A linear layer whose matrix is `[from, to]`.
    struct Conv1D(from: usize, to: usize) {
        weight: Var = Var::parameter(Tensor::zeros([from, to], default_dtype())),
        bias: Var = Var::parameter(Tensor::zeros([to], default_dtype())),
    }
);

impl Forward for Conv1D {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(x.matmul(self.weight.get()) + self.bias.get())
    }
}

#[derive(Module)]
struct GPT2Attention {
    c_attn: Conv1D,
    c_proj: Conv1D,
    resid_dropout: Dropout,
    heads: usize,
    scale: f64,
    dropout: f64,
    mode: Mode,
    hooks: Hooks,
}

impl GPT2Attention {
    fn new(config: &GPT2Config, layer: usize) -> Result<GPT2Attention> {
        let width = config.n_embd;
        let mut scale = 1.0;
        if config.scale_attn_weights {
            scale /= ((width / config.n_head) as f64).sqrt();
        }
        if config.scale_attn_by_inverse_layer_idx {
            scale /= (layer + 1) as f64;
        }
        Ok(GPT2Attention {
            c_attn: Conv1D::new(width, 3 * width)?,
            c_proj: Conv1D::new(width, width)?,
            resid_dropout: Dropout::new(config.resid_pdrop)?,
            heads: config.n_head,
            scale,
            dropout: config.attn_pdrop,
            mode: Mode::new(),
            hooks: Hooks::new(),
        })
    }
}

/// The input may have a mask of the keys that each query sees. Without one, a query sees all keys up to its own
/// position.
impl Forward<(Tensor, Option<Tensor>)> for GPT2Attention {
    fn forward(&self, (x, mask): (Tensor, Option<Tensor>)) -> Result<Tensor> {
        let qkv = self.c_attn.call(x);
        let [q, k, v] = <[Tensor; 3]>::try_from(qkv.check()?.chunk(3, 2))
            .map_err(|_| Error::invalid("GPT2Attention", "tokens without numbers"))?;
        let [q, k, v] = [q, k, v].map(|t| text::split_heads(&t, self.heads));
        let p = match self.mode.is_training() {
            true => self.dropout,
            false => 0.0,
        };
        let options = Attention::new().scale(self.scale).dropout_p(p);
        let options = options.is_causal(mask.is_none()).attn_mask(&mask);
        let y = q.scaled_dot_product_attention_with(&k, &v, options);
        let y = self.c_proj.call(text::join_heads(&y));
        Ok(self.resid_dropout.call(y))
    }
}

module!(
    struct GPT2MLP(config: &GPT2Config, activation: Activation) {
        c_fc: Conv1D = Conv1D::new(config.n_embd, config.inner()),
        c_proj: Conv1D = Conv1D::new(config.inner(), config.n_embd),
        dropout: Dropout = Dropout::new(config.resid_pdrop),
        #[skip]
        activation: Activation,
    }
);

impl Forward for GPT2MLP {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.activation.call(&self.c_fc.call(x));
        Ok(self.dropout.call(self.c_proj.call(y)))
    }
}

module!(
    struct GPT2Block(config: &GPT2Config, activation: Activation, layer: usize) {
        ln_1: LayerNorm = config.norm(),
        attn: GPT2Attention = GPT2Attention::new(config, layer),
        ln_2: LayerNorm = config.norm(),
        mlp: GPT2MLP = GPT2MLP::new(config, activation),
    }
);

impl Forward<(Tensor, Option<Tensor>)> for GPT2Block {
    fn forward(&self, (x, mask): (Tensor, Option<Tensor>)) -> Result<Tensor> {
        let x = self.attn.call((self.ln_1.call(&x), mask)) + x;
        Ok(self.mlp.call(self.ln_2.call(&x)) + x)
    }
}

/// GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) without its scores, with the
/// weight names of the library `transformers`: tokens `[n, l]` to their last states `[n, l, n_embd]`. A mask `[n, l]`,
/// which is 0 at padding, may follow the tokens.
#[derive(Module)]
pub struct GPT2Model {
    wte: Embedding,
    wpe: Embedding,
    drop: Dropout,
    h: ModuleList<GPT2Block>,
    ln_f: LayerNorm,
    #[skip]
    config: GPT2Config,
    hooks: Hooks,
}

impl GPT2Model {
    /// Makes the model with random weights.
    ///
    /// # Errors
    /// If the heads don't divide the width, the activation is unknown, if a size is above 2^24 or there are more than
    /// 4096 layers, or inside `compile`: make networks before.
    pub fn new(config: GPT2Config) -> Result<GPT2Model> {
        let inner = config.n_inner.unwrap_or(0);
        let sizes = [config.vocab_size, config.n_positions, config.n_embd, inner];
        limits::check("GPT2Model", &[config.n_layer], &sizes)?;
        text::check_heads("GPT2Model", config.n_embd, config.n_head)?;
        let activation = Activation::parse(&config.activation_function)?;
        let blocks = (0..config.n_layer).map(|i| GPT2Block::new(&config, activation, i));
        let model = GPT2Model {
            wte: Embedding::new(config.vocab_size, config.n_embd)?,
            wpe: Embedding::new(config.n_positions, config.n_embd)?,
            drop: Dropout::new(config.embd_pdrop)?,
            h: blocks.collect::<Result<_>>()?,
            ln_f: config.norm()?,
            config,
            hooks: Hooks::new(),
        };
        model.draw()?;
        Ok(model)
    }

    fn draw(&self) -> Result<()> {
        let std = self.config.initializer_range;
        text::init_weights(self, std)?;
        // Every block adds to the residual path, so its output weights start smaller.
        let added = std / ((2 * self.config.n_layer) as f64).sqrt();
        for block in self.h.iter() {
            for conv in [&block.attn.c_attn, &block.mlp.c_fc] {
                init::normal_(&conv.weight, 0.0, std)?;
            }
            for conv in [&block.attn.c_proj, &block.mlp.c_proj] {
                init::normal_(&conv.weight, 0.0, added)?;
            }
        }
        Ok(())
    }

    /// The sizes.
    pub fn config(&self) -> &GPT2Config {
        &self.config
    }
}

const PREFIX: &str = "transformer.";

fn is_head(name: &str) -> bool {
    name.starts_with("lm_head.") || name.starts_with("multiple_choice_head.")
}

impl Forward for GPT2Model {
    fn forward(&self, tokens: Tensor) -> Result<Tensor> {
        self.states(&tokens, None)
    }
}

impl Forward<(Tensor, Tensor)> for GPT2Model {
    fn forward(&self, (tokens, mask): (Tensor, Tensor)) -> Result<Tensor> {
        let positions = text::positions(&tokens);
        let causal = positions.unsqueeze(0).le(positions.unsqueeze(1));
        let mask = text::padding_mask(&mask).logical_and(&causal);
        self.states(&tokens, Some(mask))
    }
}

impl GPT2Model {
    fn states(&self, tokens: &Tensor, mask: Option<Tensor>) -> Result<Tensor> {
        let positions = self.wpe.call(text::positions(tokens));
        let mut x = self.drop.call(self.wte.call(tokens) + positions);
        for block in self.h.iter() {
            x = block.call((x, mask.clone()));
        }
        Ok(self.ln_f.call(x))
    }
}

module!(
    /// GPT-2 with scores of the token that follows each, `[n, l, vocab_size]`, from the same inputs as [`GPT2Model`].
    /// With `tie_word_embeddings`, the matrix of the scores is the embedding matrix.
    ///
    /// ```
    /// use kiln::Tensor;
    /// use kiln::nn::{Forward, Module};
    /// use kiln_models::{GPT2Config, GPT2LMHeadModel};
    ///
    /// let (n_embd, n_head, n_layer) = (32, 4, 2);
    /// let config = GPT2Config { vocab_size: 100, n_embd, n_head, n_layer, ..GPT2Config::default() };
    /// let model = GPT2LMHeadModel::new(config)?;
    /// let tokens = Tensor::randint(0, 100, [2, 7]);
    /// assert_eq!(model.call(&tokens).shape()?, [2, 7, 100]);
    ///
    /// let (loss, scores) = model.with_labels(&tokens, &tokens);
    /// assert_eq!((loss.ndim(), scores.shape()?), (0, vec![2, 7, 100]));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub struct GPT2LMHeadModel(config: GPT2Config) {
        transformer: GPT2Model = GPT2Model::new(config),
        lm_head: Linear = lm_head(&transformer),
    }
);

impl GPT2LMHeadModel {
    /// The sizes.
    pub fn config(&self) -> &GPT2Config {
        self.transformer.config()
    }

    /// Returns the loss and the scores, as `labels=` of `transformers` does: the mean cross-entropy of each token's
    /// scores with the label behind it. The labels are integers, `[n, l]`, as a rule the tokens; those of −100 are
    /// left out.
    #[track_caller]
    pub fn with_labels<I, A>(&self, input: A, labels: impl AsTensor) -> (Tensor, Tensor)
    where
        Self: Forward<I>,
        I: Nest<Owned = I> + 'static,
        A: Nest<Owned = I>,
    {
        let scores = self.call(input);
        (lm_loss(&scores, &labels.as_tensor()), scores)
    }
}

impl Forward for GPT2LMHeadModel {
    fn forward(&self, tokens: Tensor) -> Result<Tensor> {
        Ok(self.lm_head.call(self.transformer.call(tokens)))
    }
}

impl Forward<(Tensor, Tensor)> for GPT2LMHeadModel {
    fn forward(&self, input: (Tensor, Tensor)) -> Result<Tensor> {
        Ok(self.lm_head.call(self.transformer.call(input)))
    }
}

fn lm_head(transformer: &GPT2Model) -> Result<Linear> {
    let config = transformer.config();
    let options = LinearOptions::new().bias(false);
    let mut head = Linear::with(config.n_embd, config.vocab_size, options)?;
    match config.tie_word_embeddings {
        true => head.weight = transformer.wte.weight.clone(),
        false => text::init_weights(&head, config.initializer_range)?,
    }
    Ok(head)
}

/// Returns the mean cross-entropy of the scores `[.., l, vocab_size]` of each token with the label behind it.
fn lm_loss(scores: &Tensor, labels: &Tensor) -> Tensor {
    let scores = scores.flatten((0, -3)).i((.., ..-1)).flatten((0, 1));
    scores.cross_entropy(labels.flatten((0, -2)).i((.., 1..)).flatten(()))
}

/// The state of one token of each choice, and a score computed from it.
#[derive(Module)]
struct SequenceSummary {
    summary: Linear,
    first_dropout: Dropout,
    #[skip]
    activation: Option<Activation>,
    hooks: Hooks,
}

impl SequenceSummary {
    fn new(config: &GPT2Config) -> Result<SequenceSummary> {
        if config.summary_type != "cls_index" || !config.summary_use_proj {
            let message = format!(
                "summary_type must be \"cls_index\" with summary_use_proj, not {:?} with {}",
                config.summary_type, config.summary_use_proj
            );
            return Err(Error::invalid("GPT2DoubleHeadsModel", message));
        }
        let parse = |name: &String| Activation::parse(name);
        let summary = SequenceSummary {
            summary: Linear::new(config.n_embd, 1)?,
            first_dropout: Dropout::new(config.summary_first_dropout)?,
            activation: config.summary_activation.as_ref().map(parse).transpose()?,
            hooks: Hooks::new(),
        };
        text::init_weights(&summary, config.initializer_range)?;
        Ok(summary)
    }
}

/// From states `[n, c, l, n_embd]` and the places `[n, c]` of tokens, the last ones unless given, to scores `[n, c]`.
impl Forward<(Tensor, Option<Tensor>)> for SequenceSummary {
    fn forward(&self, (states, places): (Tensor, Option<Tensor>)) -> Result<Tensor> {
        let state = match places {
            Some(places) => states
                .take_along_dim(places.unsqueeze(-1).unsqueeze(-1), 2)
                .squeeze(2),
            None => states.i((.., .., -1)),
        };
        let scores = self
            .summary
            .call(self.first_dropout.call(state))
            .squeeze(-1);
        Ok(match self.activation {
            Some(activation) => activation.call(&scores),
            None => scores,
        })
    }
}

module!(
    /// GPT-2 with two heads, for texts among which one is to be chosen: from tokens `[n, c, l]` of `c` choices, the
    /// scores of the tokens that follow, `[n, c, l, vocab_size]`, and of the choices, `[n, c]`. The places of the
    /// tokens by whose states choices are scored may follow the tokens, `[n, c]`; without them these are the last ones.
    /// A mask `[n, c, l]`, which is 0 at padding, may stand between the two.
    ///
    /// ```
    /// use kiln::Tensor;
    /// use kiln::nn::{Forward, Module};
    /// use kiln_models::{GPT2Config, GPT2DoubleHeadsModel};
    ///
    /// let (n_embd, n_head, n_layer) = (32, 4, 2);
    /// let config = GPT2Config { vocab_size: 100, n_embd, n_head, n_layer, ..GPT2Config::default() };
    /// let model = GPT2DoubleHeadsModel::new(config)?;
    /// let (tokens, places) = (Tensor::randint(0, 100, [2, 3, 7]), Tensor::from([[6i64, 3, 5], [2, 6, 6]]));
    /// let (scores, mc_scores) = model.call((&tokens, &places));
    /// assert_eq!((scores.shape()?, mc_scores.shape()?), (vec![2, 3, 7, 100], vec![2, 3]));
    ///
    /// let right = Tensor::from([2i64, 0]);
    /// let (loss, mc_loss, _, _) = model.with_labels((&tokens, &places), &tokens, &right);
    /// (loss * 2 + mc_loss).backward()?;
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub struct GPT2DoubleHeadsModel(config: GPT2Config) {
        transformer: GPT2Model = GPT2Model::new(config),
        lm_head: Linear = lm_head(&transformer),
        multiple_choice_head: SequenceSummary = SequenceSummary::new(transformer.config()),
    }
);

impl GPT2DoubleHeadsModel {
    /// The sizes.
    pub fn config(&self) -> &GPT2Config {
        self.transformer.config()
    }

    /// Returns the loss of the tokens and that of the choices, and the scores of both, as `labels=` and `mc_labels=` of
    /// `transformers` do. The first is the one of [`GPT2LMHeadModel::with_labels`] with labels `[n, c, l]`, the second
    /// the mean cross-entropy of the choices' scores with the right ones, `[n]`.
    #[track_caller]
    pub fn with_labels<I, A>(
        &self,
        input: A,
        labels: impl AsTensor,
        mc_labels: impl AsTensor,
    ) -> (Tensor, Tensor, Tensor, Tensor)
    where
        Self: Forward<I, (Tensor, Tensor)>,
        I: Nest<Owned = I> + 'static,
        A: Nest<Owned = I>,
    {
        let (scores, mc_scores) = self.call(input);
        let loss = lm_loss(&scores, &labels.as_tensor());
        let mc_loss = mc_scores.cross_entropy(mc_labels);
        (loss, mc_loss, scores, mc_scores)
    }

    /// Returns the scores of both heads from the states of all choices, `[n · c, l, n_embd]`.
    fn scores(
        &self,
        states: &Tensor,
        tokens: &Tensor,
        positions: Option<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let shape: Vec<Dim> = tokens
            .dims()
            .iter()
            .chain(states.dims().last())
            .cloned()
            .collect();
        let states = states.reshape(shape);
        let mc_scores = self.multiple_choice_head.call((states.clone(), positions));
        Ok((self.lm_head.call(states), mc_scores))
    }
}

impl Forward<Tensor, (Tensor, Tensor)> for GPT2DoubleHeadsModel {
    fn forward(&self, tokens: Tensor) -> Result<(Tensor, Tensor)> {
        let states = self.transformer.call(tokens.flatten((0, 1)));
        self.scores(&states, &tokens, None)
    }
}

impl Forward<(Tensor, Tensor), (Tensor, Tensor)> for GPT2DoubleHeadsModel {
    fn forward(&self, (tokens, places): (Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
        let states = self.transformer.call(tokens.flatten((0, 1)));
        self.scores(&states, &tokens, Some(places))
    }
}

impl Forward<(Tensor, Tensor, Tensor), (Tensor, Tensor)> for GPT2DoubleHeadsModel {
    fn forward(
        &self,
        (tokens, mask, places): (Tensor, Tensor, Tensor),
    ) -> Result<(Tensor, Tensor)> {
        let input = (tokens.flatten((0, 1)), mask.flatten((0, 1)));
        let states = self.transformer.call(input);
        self.scores(&states, &tokens, Some(places))
    }
}

/// Returns the values of a file for a model with heads.
fn rename_for_model(config: &GPT2Config, state: &StateDict) -> StateDict {
    let mut state = text::rename_for_model(state, PREFIX, true, is_head);
    if config.tie_word_embeddings {
        text::tie(&mut state, "lm_head.weight", "transformer.wte.weight");
    }
    state
}

text::pretrained! { "GPT-2", "gpt2", "transformer.":
    GPT2Model |folder| GPT2Model::new(folder.config()?),
        |_model, state| text::rename_for_model(state, PREFIX, false, is_head);
    GPT2LMHeadModel |folder| GPT2LMHeadModel::new(folder.config()?),
        |model, state| rename_for_model(model.config(), state);
    GPT2DoubleHeadsModel |folder| GPT2DoubleHeadsModel::new(folder.config()?),
        |model, state| rename_for_model(model.config(), state);
}

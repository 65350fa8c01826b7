//! BERT with the heads of its tasks.
#![allow(non_snake_case)] // transformers' names

use crate::text::{self, Activation};
use crate::{BertConfig, BertInputs, BertModel};
use kiln::formats::Pretrained;
use kiln::nn::{
    Dropout, Forward, Hooks, LayerNorm, Linear, LinearOptions, LoadReport, Module, StateDict,
    module,
};
use kiln::{AsTensor, Error, Nest, Result, Tensor, Var, default_dtype};
use std::path::Path;

const PREFIX: &str = "bert.";

fn is_head(name: &str) -> bool {
    name.starts_with("cls.") || name.starts_with("classifier.")
}

text::pretrained! { "BERT", "bert", "bert.":
    BertModel |folder| BertModel::new(folder.config()?),
        |_model, state| text::rename_for_model(state, PREFIX, false, is_head);
    BertForMaskedLM |folder| BertForMaskedLM::new(folder.config()?),
        |model, state| model.rename_for_model(state);
    BertForSequenceClassification |folder| {
        let labels = match folder.state.get("classifier.bias") {
            Some(bias) => bias.shape()?.first().copied().unwrap_or(2),
            None => 2,
        };
        BertForSequenceClassification::new(folder.config()?, labels)
    }, |_model, state| text::rename_for_model(state, PREFIX, true, is_head);
}

module!(
    struct BertPredictionHeadTransform(config: &BertConfig) {
        dense: Linear = config.square(),
        LayerNorm: LayerNorm = config.norm(),
        #[skip]
        activation: Activation = Activation::parse(&config.hidden_act),
    }
);

impl Forward for BertPredictionHeadTransform {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.activation.call(&self.dense.call(x));
        Ok(self.LayerNorm.call(y))
    }
}

/// The bias of the decoder also has a name of its own.
#[derive(Module)]
struct BertLMPredictionHead {
    bias: Var,
    transform: BertPredictionHeadTransform,
    decoder: Linear,
    hooks: Hooks,
}

impl Forward for BertLMPredictionHead {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(self.decoder.call(self.transform.call(x)))
    }
}

module!(
    struct BertOnlyMLMHead(predictions: BertLMPredictionHead) {
        predictions: BertLMPredictionHead,
    }
);

impl Forward for BertOnlyMLMHead {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(self.predictions.call(x))
    }
}

/// BERT with scores of each token, `[n, l, vocab_size]`, from the same inputs as [`BertModel`], to predict masked
/// tokens. With `tie_word_embeddings`, the matrix of the scores is the embedding matrix.
#[derive(Module)]
pub struct BertForMaskedLM {
    bert: BertModel,
    cls: BertOnlyMLMHead,
    hooks: Hooks,
}

impl BertForMaskedLM {
    /// Makes the model with random weights.
    ///
    /// # Errors
    /// As [`BertModel::new`].
    pub fn new(config: BertConfig) -> Result<BertForMaskedLM> {
        let bert = BertModel::with_pooling(config, false)?;
        let config = bert.config();
        let bias = Var::parameter(Tensor::zeros([config.vocab_size], default_dtype()))?;
        let mut decoder = Linear::with(
            config.hidden_size,
            config.vocab_size,
            LinearOptions::new().bias(false),
        )?;
        decoder.bias = Some(bias.clone());
        let predictions = BertLMPredictionHead {
            bias,
            transform: BertPredictionHeadTransform::new(config)?,
            decoder,
            hooks: Hooks::new(),
        };
        text::init_weights(&predictions, config.initializer_range)?;
        let mut cls = BertOnlyMLMHead::new(predictions)?;
        if config.tie_word_embeddings {
            cls.predictions.decoder.weight = bert.words().clone();
        }
        let hooks = Hooks::new();
        Ok(BertForMaskedLM { bert, cls, hooks })
    }

    /// The sizes.
    pub fn config(&self) -> &BertConfig {
        self.bert.config()
    }

    fn rename_for_model(&self, state: &StateDict) -> StateDict {
        // The weights of other tasks in the same files.
        let dropped_prefixes = ["bert.pooler.", "cls.seq_relationship."];
        let state = text::rename_for_model(state, PREFIX, true, is_head);
        let mut state = state.filter(|name| !dropped_prefixes.iter().any(|o| name.starts_with(o)));
        let (bias, decoder) = ("cls.predictions.bias", "cls.predictions.decoder.bias");
        text::tie(&mut state, decoder, bias);
        text::tie(&mut state, bias, decoder);
        if self.config().tie_word_embeddings {
            let words = "bert.embeddings.word_embeddings.weight";
            text::tie(&mut state, "cls.predictions.decoder.weight", words);
        }
        state
    }
}

/// BERT with scores of the whole text, `[n, labels]`, from the same inputs as [`BertModel`].
///
/// ```
/// use kiln::Tensor;
/// use kiln::nn::Forward;
/// use kiln_models::{BertConfig, BertForSequenceClassification};
///
/// let config = BertConfig {
///     vocab_size: 100,
///     hidden_size: 32,
///     num_hidden_layers: 2,
///     num_attention_heads: 4,
///     intermediate_size: 64,
///     ..BertConfig::default()
/// };
/// let model = BertForSequenceClassification::new(config, 3)?;
/// assert_eq!(model.call(Tensor::randint(0, 100, [2, 7])).shape()?, [2, 3]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct BertForSequenceClassification {
    bert: BertModel,
    dropout: Dropout,
    classifier: Linear,
    hooks: Hooks,
}

impl BertForSequenceClassification {
    /// Makes the model with random weights.
    ///
    /// # Errors
    /// As [`BertModel::new`].
    pub fn new(config: BertConfig, labels: usize) -> Result<BertForSequenceClassification> {
        let bert = BertModel::new(config)?;
        let config = bert.config();
        let p = config.classifier_dropout;
        let classifier = Linear::new(config.hidden_size, labels)?;
        text::init_weights(&classifier, config.initializer_range)?;
        Ok(BertForSequenceClassification {
            dropout: Dropout::new(p.unwrap_or(config.hidden_dropout_prob))?,
            classifier,
            bert,
            hooks: Hooks::new(),
        })
    }

    /// The sizes.
    pub fn config(&self) -> &BertConfig {
        self.bert.config()
    }
}

macro_rules! scores {
    ($($(#[$about:meta])* $name:ident |$model:ident, $inputs:ident| $scores:expr, |$found:ident, $labels:ident| $loss:expr;)*) => {$(
        impl $name {
            /// Returns the loss and the scores, as `labels=` of `transformers` does.
            ///
            $(#[$about])*
            #[track_caller]
            pub fn with_labels<I, A>(&self, input: A, labels: impl AsTensor) -> (Tensor, Tensor)
            where
                Self: Forward<I>,
                I: Nest<Owned = I> + 'static,
                A: Nest<Owned = I>,
            {
                let $found = self.call(input);
                let $labels = &*labels.as_tensor();
                let loss = $loss;
                (loss, $found)
            }
        }

        impl Forward<BertInputs> for $name {
            fn forward(&self, $inputs: BertInputs) -> Result<Tensor> {
                let $model = self;
                Ok($scores)
            }
        }

        impl Forward for $name {
            fn forward(&self, tokens: Tensor) -> Result<Tensor> {
                Forward::<BertInputs>::forward(self, BertInputs::new(tokens))
            }
        }
    )*};
}
scores! {
    /// The loss is the mean cross-entropy of the scores of each position and its label, an integer; those of −100 are
    /// left out.
    BertForMaskedLM |model, inputs| model.cls.call(model.bert.call(inputs).0), |scores, labels| {
        scores.flatten((0, 1)).cross_entropy(labels.flatten(()))
    };
    /// The loss is the mean cross-entropy with integer labels; the binary cross-entropy with floats, one for each
    /// score; and of a single score the mean squared error.
    BertForSequenceClassification |model, inputs| {
        let Some(pooled) = model.bert.call(inputs).1 else {
            return Err(Error::invalid("BertForSequenceClassification", "there is no pooling layer"));
        };
        model.classifier.call(model.dropout.call(pooled))
    }, |scores, labels| {
        match (scores.dims().last().is_some_and(|n| n.is(1)), labels.dtype().is_float()) {
            (true, _) => scores.squeeze(-1).mse_loss(labels.flatten(()).to_dtype(scores.dtype())),
            (_, true) => scores.binary_cross_entropy_with_logits(labels),
            (_, false) => scores.cross_entropy(labels),
        }
    };
}

//! The common part of the text models with the names of the library `transformers`.

use kiln::formats::Pretrained;
use kiln::nn::{Embedding, Linear, Module, StateDict, init};
use kiln::{Error, Result, Tensor};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// An activation by its name in a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Activation {
    Gelu,
    GeluTanh,
    Relu,
    Silu,
    Tanh,
}

impl Activation {
    pub(crate) fn parse(name: &str) -> Result<Activation> {
        Ok(match name {
            "gelu" => Activation::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            "silu" | "swish" => Activation::Silu,
            "tanh" => Activation::Tanh,
            other => {
                let message = format!(
                    "there is no activation {other:?}, but gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish and \
                     tanh"
                );
                return Err(Error::invalid("config", message));
            }
        })
    }

    pub(crate) fn call(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Relu => x.relu(),
            Activation::Silu => x.silu(),
            Activation::Tanh => x.tanh(),
        }
    }
}

/// Checks that the heads divide the width.
pub(crate) fn check_heads(model: &str, width: usize, heads: usize) -> Result<()> {
    match heads != 0 && width.is_multiple_of(heads) {
        true => Ok(()),
        false => {
            let message = format!("{heads} heads do not divide a width of {width}");
            Err(Error::invalid(model, message))
        }
    }
}

/// Reshapes `[n, l, heads · e]` to `[n, heads, l, e]`.
pub(crate) fn split_heads(x: &Tensor, heads: usize) -> Tensor {
    x.unflatten(2, [heads as i64, -1]).transpose(1, 2)
}

/// Reshapes `[n, heads, l, e]` to `[n, l, heads · e]`.
pub(crate) fn join_heads(x: &Tensor) -> Tensor {
    x.transpose(1, 2).flatten((2, 3))
}

/// Returns the positions 0 to l − 1 of tokens `[n, l]`.
pub(crate) fn positions(tokens: &Tensor) -> Tensor {
    let length = tokens.dims().last().cloned().unwrap_or(1.into());
    Tensor::arange(0, length, 1).to(tokens.device())
}

/// Returns the mask of keys that queries attend to, `[n, 1, 1, l]`, from a mask `[n, l]` of bools or numbers, which is
/// 0 at padding.
pub(crate) fn padding_mask(mask: &Tensor) -> Tensor {
    mask.ne(0).unsqueeze(1).unsqueeze(1)
}

/// Initialises the weights of all linear layers and embeddings from a normal distribution, with biases of 0.
pub(crate) fn init_weights(model: &dyn Module, std: f64) -> Result<()> {
    for module in model.modules() {
        if let Some(linear) = module.downcast_ref::<Linear>() {
            init::normal_(&linear.weight, 0.0, std)?;
            linear.bias.as_ref().map_or(Ok(()), init::zeros_)?;
        }
        if let Some(embedding) = module.downcast_ref::<Embedding>() {
            init::normal_(&embedding.weight, 0.0, std)?;
        }
    }
    Ok(())
}

/// Renames values for a model whose own parts, except heads, have the prefix `prefix` if `model_has_prefix`; files may
/// have it or not. `is_head` is true for the names of heads. Names of older files become today's, and entries that are
/// not weights are left out.
pub(crate) fn rename_for_model(
    state: &StateDict,
    prefix: &str,
    model_has_prefix: bool,
    is_head: impl Fn(&str) -> bool,
) -> StateDict {
    state.rename(|name| {
        if is_head(name) {
            return model_has_prefix.then(|| current_form(name));
        }
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        let no_weight = bare.ends_with(".attn.bias")
            || bare.ends_with(".attn.masked_bias")
            || bare.ends_with("embeddings.position_ids")
            || bare.ends_with("embeddings.token_type_ids");
        let name = match model_has_prefix {
            true => format!("{prefix}{bare}"),
            false => bare.to_string(),
        };
        (!no_weight).then(|| current_form(&name))
    })
}

/// Returns today's form of a name.
fn current_form(name: &str) -> String {
    for (old, new) in [
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
    ] {
        if let Some(path) = name.strip_suffix(old) {
            return format!("{path}{new}");
        }
    }
    name.to_string()
}

/// Gives a missing `name` the value of `source`, whose cell it shares.
pub(crate) fn tie(state: &mut StateDict, name: &str, source: &str) {
    if let (None, Some(value)) = (state.get(name), state.get(source)) {
        let value = value.clone();
        state.insert(name, value);
    }
}

/// The contents of a configuration file.
#[derive(Serialize)]
struct Described<'a, C> {
    model_type: &'a str,
    architectures: [&'a str; 1],
    #[serde(flatten)]
    config: &'a C,
}

/// Reading and writing of the models of one kind: its name, the type and the prefix in files, and for each model how it
/// is made for a folder and how it renames a file's values.
macro_rules! pretrained {
    ($kind:literal, $type:literal, $prefix:literal:
     $($name:ident |$folder:ident| $made:expr, |$model:ident, $state:ident| $fitted:expr;)*) => {$(
        impl $name {
            #[doc = concat!("Assigns the weights of a file of any ", $kind, " of these sizes, with or without the")]
            #[doc = concat!("prefix `", $prefix, "` of names. The report lists missing and unexpected names.")]
            ///
            /// # Errors
            /// Lists every shape that differs.
            #[track_caller]
            pub fn load_transformers(&self, $state: &StateDict) -> Result<LoadReport> {
                let $model = self;
                let state = $fitted;
                self.load_state_dict(&state, false)
            }

            /// Reads the model of a folder with `config.json` and weights. The report lists missing and unexpected
            /// names.
            ///
            /// # Errors
            /// If the folder can't be read, or the weights don't fit the configuration.
            #[track_caller]
            pub fn from_pretrained(folder: impl AsRef<Path>) -> Result<($name, LoadReport)> {
                let $folder = Pretrained::load(folder)?;
                let model = $made?;
                let report = model.load_transformers(&$folder.state)?;
                Ok((model, report))
            }

            /// Writes `config.json` and the weights into a folder that the library `transformers` can read.
            ///
            /// # Errors
            /// If the folder can't be written.
            #[track_caller]
            pub fn save_pretrained(&self, folder: impl AsRef<Path>) -> Result<()> {
                text::save(folder.as_ref(), self, $type, self.config())
            }
        }
    )*};
}
pub(crate) use pretrained;

/// Writes a model's folder. Values with several names are written once.
pub(crate) fn save(
    folder: &Path,
    model: &dyn Module,
    model_type: &str,
    config: &impl Serialize,
) -> Result<()> {
    let names: BTreeSet<String> = model
        .named_parameters()
        .into_iter()
        .chain(model.named_buffers())
        .map(|(name, _)| name)
        .collect();
    let described = Described {
        model_type,
        architectures: [model.name()],
        config,
    };
    let state = model.state_dict().filter(|name| names.contains(name));
    Pretrained::new(&described, state)?.save(folder)
}

//! The two networks of the training runs, as their `run.json` describes them.

use crate::engine::Array;
use crate::train::TrainError;
use kiln_tensor::{Affine, Conv, DType, Device, Result, RunningStats, Tensor, Var};
use std::collections::BTreeMap;

/// Named parameters and buffers. Those of the convolutional network include `conv1.weight`, those of
/// the decoder `tok.weight`.
pub(crate) struct Network {
    all: BTreeMap<String, Var>,
}

const HEADS: i64 = 4;
const EPS: f64 = 1e-5;

impl Network {
    pub(crate) fn new(init: &BTreeMap<String, Array>, device: Device) -> Result<Network> {
        let cell = |(name, a): (&String, &Array)| {
            let buffer = name.contains(".running_") || a.dtype == DType::I64;
            let cell = match buffer {
                true => Var::new(a.tensor().to(device)),
                false => Var::parameter(a.tensor().to(device)),
            };
            Ok((name.clone(), cell?))
        };
        let vars = init.iter().map(cell).collect::<Result<_>>()?;
        Ok(Network { all: vars })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.all.iter().map(|(name, v)| (name.as_str(), v))
    }

    pub(crate) fn parameters(&self) -> Vec<(&str, &Var)> {
        self.all().filter(|(_, v)| v.requires_grad()).collect()
    }

    /// The scores of each class, `[samples, classes]`.
    ///
    /// # Errors
    /// If a parameter is missing.
    pub(crate) fn forward(&self, inputs: &Tensor) -> Result<Tensor, TrainError> {
        match self.all.contains_key("tok.weight") {
            true => self.decoder(inputs),
            false => self.convolutional(inputs),
        }
    }

    fn weight(&self, name: &str) -> Result<Tensor, TrainError> {
        let weight = self.optional(name);
        Ok(weight.ok_or_else(|| format!("there is no {name}"))?)
    }

    fn optional(&self, name: &str) -> Option<Tensor> {
        self.all.get(name).map(Var::get)
    }

    fn linear(&self, x: &Tensor, layer: &str) -> Result<Tensor, TrainError> {
        let bias = self.optional(&format!("{layer}.bias"));
        Ok(x.linear_with(&self.weight(&format!("{layer}.weight"))?, &bias))
    }

    /// `images` `[n, 1, 8, 8]`.
    fn convolutional(&self, images: &Tensor) -> Result<Tensor, TrainError> {
        let mut x = images.clone();
        for i in ["1", "2"] {
            let bias = self.optional(&format!("conv{i}.bias"));
            let weight = self.weight(&format!("conv{i}.weight"))?;
            x = x.conv2d_with(&weight, Conv::new().bias(bias.as_ref()).padding(1));
            x = self.batch_norm(&x, &format!("bn{i}"))?.relu();
        }
        let x = x.max_pool2d(2).flatten(1);
        self.linear(&self.linear(&x, "fc1")?.relu(), "fc2")
    }

    fn batch_norm(&self, x: &Tensor, layer: &str) -> Result<Tensor, TrainError> {
        let cell = |name: &str| self.all.get(&format!("{layer}.{name}"));
        if let Some(count) = cell("num_batches_tracked") {
            count.assign(&(count.get() + 1))?;
        }
        Ok(x.batch_norm_with(
            RunningStats::new()
                .running_mean(cell("running_mean").cloned())
                .running_var(cell("running_var").cloned())
                .weight(cell("weight"))
                .bias(cell("bias"))
                .training(true)
                .eps(EPS),
        ))
    }

    /// `tokens` `[n, length]`; the scores of every position, one after another.
    fn decoder(&self, tokens: &Tensor) -> Result<Tensor, TrainError> {
        let mut x = self.weight("tok.weight")?.embedding(tokens) + self.weight("pos.weight")?;
        for i in (0..).take_while(|i| self.all.contains_key(&format!("b{i}.ln1.weight"))) {
            let layer = |name: &str| format!("b{i}.{name}");
            let y = self.layer_norm(&x, &layer("ln1"))?;
            let projected =
                |name: &str| Ok::<_, TrainError>(heads(&self.linear(&y, &layer(name))?));
            let mixed = attention(&projected("q")?, &projected("k")?, &projected("v")?)?;
            let mixed = mixed.transpose(1, 2).flatten(2);
            x += self.linear(&mixed, &layer("o"))?;
            let y = self.layer_norm(&x, &layer("ln2"))?;
            let hidden = self.linear(&y, &layer("fc1"))?.gelu();
            x += self.linear(&hidden, &layer("fc2"))?;
        }
        let scores = self.linear(&self.layer_norm(&x, "lnf")?, "head")?;
        Ok(scores.flatten((0, 1)))
    }

    fn layer_norm(&self, x: &Tensor, layer: &str) -> Result<Tensor, TrainError> {
        let weight = self.weight(&format!("{layer}.weight"))?;
        let bias = self.optional(&format!("{layer}.bias"));
        Ok(x.layer_norm_with(
            weight.shape()?,
            Affine::new().weight(&weight).bias(&bias).eps(EPS),
        ))
    }
}

/// `[n, length, width]` as `[n, heads, length, width / heads]`.
fn heads(x: &Tensor) -> Tensor {
    x.unflatten(-1, [HEADS, -1]).transpose(1, 2)
}

/// Causal attention of `[n, heads, length, width]`.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, TrainError> {
    let shape = q.shape()?;
    let (length, width) = (shape[2], shape[3]);
    let later = Tensor::ones([length, length], DType::Bool).triu_with(1);
    let scores = q.matmul(k.transpose(-2, -1)) / (width as f64).sqrt();
    let scores = scores.masked_fill(&later, f64::NEG_INFINITY);
    Ok(scores.softmax(-1).matmul(v))
}

//! Training runs: two small networks trained from given weights on given batches.

use crate::case::read_tensors;
use crate::engine::{Array, Engine};
use crate::network::Network;
use kiln_nn::optim::{
    Adagrad, Adam, AdamW, LambdaLR, Optimizer, RMSprop, SGD, Scheduler, clip_grad_norm_,
};
use kiln_tensor::{CrossEntropy, Device, Tensor, Var};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::path::Path;

/// An error of loading or training a run.
pub type TrainError = Box<dyn std::error::Error>;

/// A run: the network, the data, and the settings of the training.
pub struct Run {
    /// `run.json`.
    pub settings: Value,
    init: BTreeMap<String, Array>,
    data: BTreeMap<String, Array>,
    order: Vec<Vec<i64>>,
}

impl Run {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn load(folder: &Path) -> Result<Run, TrainError> {
        let tensors = |name: &str| read_tensors(&folder.join(format!("{name}.safetensors")));
        let order = tensors("order")?;
        let order = order.get("order").ok_or("order.safetensors has no order")?;
        let batch = order.shape.last().copied().unwrap_or(1).max(1);
        Ok(Run {
            settings: serde_json::from_slice(&std::fs::read(folder.join("run.json"))?)?,
            init: tensors("init")?,
            data: tensors("data")?,
            order: order.to_i64().chunks(batch).map(<[i64]>::to_vec).collect(),
        })
    }

    /// Trains on a device. Returns `losses` of each step, `grad0.<parameter>` of the first step before clipping, and
    /// `final.<name>` of parameters and buffers.
    ///
    /// # Errors
    /// If the settings are unknown or a step fails.
    pub fn train(&self, device: Device) -> Result<BTreeMap<String, Array>, TrainError> {
        let network = Network::new(&self.init, device)?;
        let parameters = network.parameters();
        let mut optimizer = self.optimizer(parameters.iter().map(|(_, p)| *p))?;
        let rates = self.rates(optimizer.lr()[0])?;
        let base = optimizer.lr()[0];
        let schedule =
            LambdaLR::new(move |s: u64| rates.get(s as usize).map_or(0.0, |lr| lr / base));
        let mut scheduler = Scheduler::new(&mut optimizer, schedule)?;
        let clip = self.settings["clip_grad_norm"].as_f64();
        let smoothing = self.settings["label_smoothing"].as_f64().unwrap_or(0.0);
        let mut results = BTreeMap::new();
        let mut losses = Vec::new();
        for (step, chosen) in self.order.iter().enumerate() {
            let (inputs, labels) = self.batch(chosen)?;
            let (inputs, labels) = (inputs.to(device), labels.to(device));
            optimizer.zero_grad();
            let scores = network.forward(&inputs)?;
            let loss =
                scores.cross_entropy_with(&labels, CrossEntropy::new().label_smoothing(smoothing));
            loss.backward()?;
            if step == 0 {
                for (name, p) in &parameters {
                    let g = p.grad().ok_or(format!("{name} has no gradient"))?;
                    results.insert(format!("grad0.{name}"), read(&g)?);
                }
            }
            if let Some(max_norm) = clip {
                let vars = parameters.iter().map(|(_, p)| *p);
                clip_grad_norm_(vars, max_norm)?;
            }
            optimizer.step()?;
            scheduler.step(&mut optimizer)?;
            losses.push(loss.detach());
        }
        let losses: Vec<&Tensor> = losses.iter().collect();
        results.insert("losses".into(), read(&kiln_tensor::stack(&losses, 0))?);
        for (name, v) in network.all() {
            results.insert(format!("final.{name}"), read(&v.get())?);
        }
        Ok(results)
    }

    /// The learning rate of each step.
    ///
    /// # Errors
    /// If the schedule is unknown and its rates are not listed.
    pub fn rates(&self, base: f64) -> Result<Vec<f64>, TrainError> {
        let steps = self.order.len();
        let schedule = &self.settings["schedule"];
        if schedule.is_null() {
            return Ok(vec![base; steps]);
        }
        if schedule[0] == "cosine_warmup" {
            let number = |i: usize| {
                schedule[i]
                    .as_f64()
                    .ok_or("cosine_warmup takes two numbers")
            };
            let (warm, total) = (number(1)?, number(2)?);
            let rate = |s: f64| match s < warm {
                true => base * (s + 1.0) / warm,
                false => base * 0.5 * (1.0 + (PI * (s - warm) / (total - warm)).cos()),
            };
            return Ok((0..steps).map(|s| rate(s as f64)).collect());
        }
        let listed = self.settings["lrs"].as_array().map(Vec::as_slice);
        let listed: Option<Vec<f64>> = listed.unwrap_or(&[]).iter().map(Value::as_f64).collect();
        let listed = listed.filter(|l| l.len() >= steps);
        Ok(listed.ok_or(format!("unknown schedule {schedule}"))?)
    }

    fn optimizer<'a>(
        &self,
        parameters: impl Iterator<Item = &'a Var>,
    ) -> Result<Optimizer, TrainError> {
        let hyper = self.settings["hyper"].as_object();
        let mut arguments = UnusedArguments(hyper.cloned().unwrap_or_default());
        /// Builds the optimiser of a rule with the arguments of these names.
        macro_rules! optimizer {
            ($rule:ident: $($field:ident)*) => {{
                let mut rule = $rule::new();
                $(arguments.take(stringify!($field), &mut rule.$field)?;)*
                Optimizer::new(parameters, rule)
            }};
        }
        let name = self.settings["optimizer"].as_str().unwrap_or("none");
        let optimizer = match name {
            "SGD" => optimizer!(SGD: lr momentum dampening weight_decay nesterov maximize),
            "Adam" => optimizer!(Adam: lr betas eps weight_decay amsgrad maximize),
            "AdamW" => optimizer!(AdamW: lr betas eps weight_decay amsgrad maximize),
            "RMSprop" => {
                optimizer!(RMSprop: lr alpha eps weight_decay momentum centered maximize)
            }
            "Adagrad" => {
                optimizer!(Adagrad: lr lr_decay weight_decay initial_accumulator_value eps maximize)
            }
            other => return Err(format!("unknown optimizer {other}").into()),
        };
        match arguments.0.iter().find(|(_, v)| !v.is_null()) {
            Some((key, _)) => Err(format!("{name} takes no {key}").into()),
            None => Ok(optimizer?),
        }
    }

    /// The inputs and labels of the chosen samples.
    fn batch(&self, chosen: &[i64]) -> Result<(Tensor, Tensor), TrainError> {
        if let Some(tokens) = self.data.get("tokens") {
            let (tokens, window) = (tokens.to_i64(), 24);
            let windows = |from: usize| -> Option<Vec<i64>> {
                let window_at =
                    |at: &i64| tokens.get(*at as usize + from..*at as usize + from + window);
                Some(
                    chosen
                        .iter()
                        .map(window_at)
                        .collect::<Option<Vec<_>>>()?
                        .concat(),
                )
            };
            let (x, y) = windows(0)
                .zip(windows(1))
                .ok_or("a window ends behind the tokens")?;
            let shape = [chosen.len(), window];
            let labels = Tensor::from_slice(&y, [y.len()]);
            return Ok((Tensor::from_slice(&x, shape), labels));
        }
        let data = |name: &str| self.data.get(name).ok_or(format!("no {name} in the data"));
        let rows = Tensor::from_slice(chosen, [chosen.len()]);
        let take = |a: &Array| a.tensor().index_select(0, &rows);
        Ok((take(data("images")?), take(data("labels")?)))
    }
}

fn read(t: &Tensor) -> Result<Array, TrainError> {
    let arrays = Engine::Cpu.read(std::slice::from_ref(t))?;
    Ok(arrays.into_iter().next().ok_or("a tensor has no values")?)
}

/// PyTorch's constructor arguments that are not used yet.
struct UnusedArguments(Map<String, Value>);

impl UnusedArguments {
    fn take<T: DeserializeOwned>(&mut self, name: &str, into: &mut T) -> Result<(), TrainError> {
        if let Some(value) = self.0.remove(name) {
            *into = T::deserialize(&value).map_err(|_| format!("{name} is {value}"))?;
        }
        Ok(())
    }
}

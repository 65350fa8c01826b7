//! Tables of a model's layers.

use crate::SOURCE;
use crate::flops::{Convention, Flops, grouped};
use crate::module_calls::{ModuleCall, facts, watch_modules};
use crate::work::bytes;
use kiln_ir::Fact;
use kiln_nn::{Forward, Module};
use kiln_tensor::{Flat, Nest, Result, Spec, Var, on_behalf_of_caller, record};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// A column of a [`Summary`], after the layers' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The shapes of the inputs.
    InputSize,
    /// The shapes of the outputs.
    OutputSize,
    /// The parameters of a layer, without those of layers with separate rows.
    NumParams,
    /// Their share of all parameters.
    ParamsPercent,
    /// True if all parameters are trained, false if none, else "partial".
    Trainable,
    /// The work, by the summary's convention.
    MultAdds,
    /// The bytes of the outputs.
    Activations,
    /// The bytes that it reads: inputs and parameters.
    Read,
    /// The bytes that it writes for others.
    Written,
}

/// A call of a module.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The module's path; that of the model itself is empty.
    pub path: String,
    /// The module's type, such as `Conv2d`.
    pub name: String,
    /// The number of modules around it.
    pub depth: usize,
    /// Dtypes and shapes of the inputs.
    pub inputs: Vec<Fact>,
    /// Dtypes and shapes of the outputs.
    pub outputs: Vec<Fact>,
    /// Numbers of its parameters, with those of modules within it.
    pub num_params: usize,
    /// The number of these that are trained.
    pub trainable_params: usize,
    /// The bytes that it and modules within it read from outside, each value once, before fusion.
    pub read: u64,
    /// The bytes that it and modules within it write for others.
    pub written: u64,
    /// True if an earlier row has the same module.
    pub is_recursive: bool,
    /// True if no module within it was called.
    pub is_leaf: bool,
    begin: u64,
    end: u64,
}

impl Layer {
    /// The bytes of its outputs.
    pub fn activations(&self) -> u64 {
        self.outputs.iter().map(bytes).sum()
    }
}

/// The layers of a model; see [`summary`]. It prints as a table.
#[derive(Clone, Debug)]
pub struct Summary {
    layers: Vec<Layer>,
    flops: Flops,
    num_params: usize,
    trainable_params: usize,
    param_bytes: u64,
    input_bytes: u64,
    depth: usize,
    columns: Vec<Column>,
    by: Convention,
}

/// Returns a table of a model's layers for inputs of these specs: shapes, parameters, work and bytes. Nothing is
/// computed, and buffers keep their values. A layer is each call of a module that has hooks.
///
/// ```
/// use kiln_nn::{Linear, ReLU, sequential};
/// use kiln_observe::{Column, Convention, summary};
/// use kiln_tensor::{DType, Spec};
///
/// let model = sequential!["body": Linear::new(4, 8), "act": ReLU::new(), "head": Linear::new(8, 2)]?;
/// let table = summary(&model, Spec::new(DType::F32, [16, 4]))?;
/// assert_eq!(table.total_params(), 58);
/// assert_eq!(table.total(Convention::MultAdds), 16 * (4 * 8 + 8 * 2));
/// assert_eq!(table.layers()[1].path, "body");
/// println!("{}", table.depth(1).columns([Column::OutputSize, Column::NumParams]));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the call fails or reads a value, or a size is a name: figures need numbers.
#[track_caller]
pub fn summary<S: Nest<Spec>, O: Nest<Owned = O> + 'static>(
    model: &impl Forward<S::Owned, O>,
    specs: S,
) -> Result<Summary>
where
    S::Owned: 'static,
{
    let mut inputs: Vec<Fact> = Vec::new();
    let (recording, calls) = on_behalf_of_caller(SOURCE, || {
        watch_modules(model.as_module(), || {
            record(specs, |handles| {
                inputs = facts(Flat::of(&handles).tensors());
                model.try_call(handles)
            })
        })
    });
    let flops = Flops::new(&recording?, &calls);
    Ok(make(model.as_module(), flops, calls, inputs))
}

fn make(model: &dyn Module, flops: Flops, calls: Vec<ModuleCall>, inputs: Vec<Fact>) -> Summary {
    let modules: HashMap<_, _> = model.named_modules().into_iter().collect();
    let mut visited = HashSet::new();
    let is_leaf: Vec<bool> = (0..calls.len())
        .map(|i| {
            calls
                .get(i + 1)
                .is_none_or(|next| next.depth <= calls[i].depth)
        })
        .collect();
    let layers = calls
        .into_iter()
        .zip(is_leaf)
        .filter_map(|(call, is_leaf)| {
            let module = modules.get(&call.path)?;
            let (read, written) = flops.traffic(flops.within(call.begin..call.end));
            let address = (*module as *const dyn Module).cast::<()>();
            Some(Layer {
                name: module.name().to_string(),
                depth: call.depth,
                inputs: call.inputs,
                outputs: call.outputs,
                num_params: module.num_parameters(),
                trainable_params: module.num_trainable(),
                read,
                written,
                is_recursive: !visited.insert(address),
                is_leaf,
                begin: call.begin,
                end: call.end,
                path: call.path,
            })
        });
    let size = |p: &Var| p.nbytes().unwrap_or(0) as u64;
    Summary {
        layers: layers.collect(),
        num_params: model.num_parameters(),
        trainable_params: model.num_trainable(),
        param_bytes: model.parameters().iter().map(size).sum(),
        input_bytes: inputs.iter().map(bytes).sum(),
        flops,
        depth: 3,
        columns: vec![Column::OutputSize, Column::NumParams, Column::MultAdds],
        by: Convention::default(),
    }
}

impl Summary {
    /// The calls of modules, in order: the model itself, then those within it.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The calls of functions that the model recorded, and their work.
    pub fn flops(&self) -> &Flops {
        &self.flops
    }

    /// Returns the work of the model.
    pub fn total(&self, by: Convention) -> u64 {
        self.flops.total(by)
    }

    /// Returns the work of a layer and those within it.
    pub fn of_layer(&self, layer: &Layer, by: Convention) -> u64 {
        let calls = self.flops.within(layer.begin..layer.end).iter();
        let work = calls.map(|c| c.flops(by));
        work.fold(0, u64::saturating_add)
    }

    /// The number of elements of all parameters.
    pub fn total_params(&self) -> usize {
        self.num_params
    }

    /// The number of elements of the parameters that are trained.
    pub fn trainable_params(&self) -> usize {
        self.trainable_params
    }

    /// The bytes of all parameters.
    pub fn param_bytes(&self) -> u64 {
        self.param_bytes
    }

    /// torchinfo's `total_output_bytes`: the bytes of the outputs of layers with parameters, and as much for gradients.
    pub fn output_bytes(&self) -> u64 {
        let layers = self.flops.calls().iter().filter(|c| c.is_layer());
        layers.map(|c| 2 * bytes(&c.output)).sum()
    }

    /// Prints layers within at most this many modules; 3 by default.
    pub fn depth(mut self, depth: usize) -> Summary {
        self.depth = depth;
        self
    }

    /// Prints these columns; by default output size, parameters and mult-adds.
    pub fn columns(mut self, columns: impl IntoIterator<Item = Column>) -> Summary {
        self.columns = columns.into_iter().collect();
        self
    }

    /// Prints work by another convention than [`Convention::MultAdds`].
    pub fn convention(mut self, by: Convention) -> Summary {
        self.by = by;
        self
    }

    fn row(&self, i: usize) -> Vec<String> {
        let layer = &self.layers[i];
        let name = match layer.path.rsplit('.').next() {
            Some("") | None => layer.name.clone(),
            Some(last) => format!("{} ({last})", layer.name),
        };
        let indent = match layer.depth {
            0 => String::new(),
            depth => "│    ".repeat(depth - 1) + "├─",
        };
        let below = self.layers[i + 1..].iter();
        let below = below.take_while(|l| l.depth > layer.depth);
        let is_expanded = below.clone().next().is_some() && layer.depth < self.depth;
        let inner = below.filter(|l| l.depth == layer.depth + 1 && !l.is_recursive);
        let params = match is_expanded {
            true => {
                layer.num_params
                    - inner
                        .map(|l| l.num_params)
                        .sum::<usize>()
                        .min(layer.num_params)
            }
            false => layer.num_params,
        };
        let number = |n: u64| if n == 0 { "--".to_string() } else { grouped(n) };
        let cell = |column: &Column| match column {
            Column::InputSize => shapes(&layer.inputs),
            Column::OutputSize => shapes(&layer.outputs),
            Column::NumParams | Column::ParamsPercent if layer.is_recursive => "(recursive)".into(),
            Column::NumParams => number(params as u64),
            Column::ParamsPercent if params == 0 => "--".into(),
            Column::ParamsPercent => {
                format!("{:.2}%", params as f64 / self.num_params as f64 * 100.0)
            }
            Column::Trainable => match (layer.num_params, layer.trainable_params) {
                (0, _) => "--".into(),
                (_, 0) => "false".into(),
                (total, trained) if total == trained => "true".into(),
                _ => "partial".into(),
            },
            Column::MultAdds if is_expanded => "--".into(),
            Column::MultAdds => number(self.of_layer(layer, self.by)),
            Column::Activations => grouped(layer.activations()),
            Column::Read => grouped(layer.read),
            Column::Written => grouped(layer.written),
        };
        let mut row = vec![indent + &name];
        row.extend(self.columns.iter().map(cell));
        row
    }
}

fn shapes(facts: &[Fact]) -> String {
    let shapes = facts.iter().map(|f| format!("{:?}", f.shape));
    shapes.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = |column: &Column| match column {
            Column::InputSize => "input size".to_string(),
            Column::OutputSize => "output size".into(),
            Column::NumParams => "parameters".into(),
            Column::ParamsPercent => "share".into(),
            Column::Trainable => "trainable".into(),
            Column::MultAdds if self.by == Convention::MultAdds => "mult-adds".into(),
            Column::MultAdds => format!("{:?}", self.by),
            Column::Activations => "activation bytes".into(),
            Column::Read => "bytes read".into(),
            Column::Written => "bytes written".into(),
        };
        let mut rows = vec![vec!["layer".to_string()]];
        rows[0].extend(self.columns.iter().map(heading));
        let shown = (0..self.layers.len()).filter(|i| self.layers[*i].depth <= self.depth);
        rows.extend(shown.map(|i| self.row(i)));
        let width = |c: usize| {
            rows.iter()
                .map(|row| row[c].chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        let line = "=".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
        writeln!(f, "{line}")?;
        for (i, row) in rows.iter().enumerate() {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
            if i == 0 {
                writeln!(f, "{line}")?;
            }
        }
        let megabytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
        let size = self.input_bytes + self.output_bytes() + self.param_bytes;
        writeln!(f, "{line}")?;
        writeln!(f, "Total params: {}", grouped(self.num_params as u64))?;
        writeln!(
            f,
            "Trainable params: {}",
            grouped(self.trainable_params as u64)
        )?;
        let frozen = self.num_params - self.trainable_params;
        writeln!(f, "Non-trainable params: {}", grouped(frozen as u64))?;
        writeln!(
            f,
            "Total {}: {}",
            heading(&Column::MultAdds),
            grouped(self.total(self.by))
        )?;
        writeln!(f, "{line}")?;
        writeln!(f, "Input size (MB): {}", megabytes(self.input_bytes))?;
        writeln!(
            f,
            "Forward/backward pass size (MB): {}",
            megabytes(self.output_bytes())
        )?;
        writeln!(f, "Params size (MB): {}", megabytes(self.param_bytes))?;
        writeln!(f, "Estimated Total Size (MB): {}", megabytes(size))?;
        write!(f, "{line}")
    }
}

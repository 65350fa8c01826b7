//! Export of compiled functions.
//!
//! The recorded graph is exported, before any rewrite. [`Writer`] is a recorder of ops ([`kiln_ir::Builder`]) that
//! writes nodes of ONNX: an op that ONNX lacks is written as those of its decomposition, and a pointwise row as the
//! primitives of its expression. Files of `export` hold the ops of a kind.

mod attributes;
mod contraction;
mod control;
mod dtypes;
mod file;
mod index;
mod norm;
mod pointwise;
mod reduce;
mod refusals;
mod shape;
mod sizes;
mod write;
mod writer;

use crate::fault::{for_caller, invalid, unsupported};
use crate::proto::{GraphProto, ModelProto, OperatorSetIdProto};
use file::Weight;
use kiln_tensor::{Compiled, Error, ErrorKind, Result};
use std::path::Path;
use writer::{Name, Value, Writer};

/// The versions of ONNX's operators that can be written, and the version of the format that came with each.
const OPSETS: [(i64, i64); 12] = [
    (17, 8),
    (18, 8),
    (19, 9),
    (20, 9),
    (21, 10),
    (22, 10),
    (23, 11),
    (24, 12),
    (25, 13),
    (26, 13),
    (27, 13),
    (28, 14),
];

/// Options of [`export`].
#[derive(Clone, Debug)]
pub struct Export {
    opset: i64,
    inputs: Option<Vec<String>>,
    outputs: Option<Vec<String>>,
    max_inline: u64,
}

impl Default for Export {
    fn default() -> Export {
        Export::new()
    }
}

impl Export {
    /// The defaults: version 21, names from arguments and results, weights in the file where they fit.
    pub fn new() -> Export {
        Export {
            opset: 21,
            inputs: None,
            outputs: None,
            max_inline: file::MAX_INLINE,
        }
    }

    /// Sets the version of ONNX's operators, from 17 to 28.
    pub fn opset(mut self, version: i64) -> Export {
        self.opset = version;
        self
    }

    /// Names all inputs, in the order of the arguments.
    pub fn inputs<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Export {
        self.inputs = Some(names.into_iter().map(String::from).collect());
        self
    }

    /// Names all outputs, in the order of the results.
    pub fn outputs<'n>(mut self, names: impl IntoIterator<Item = &'n str>) -> Export {
        self.outputs = Some(names.into_iter().map(String::from).collect());
        self
    }

    /// Puts weights into a second file beside the model, named as the model with `.data` behind. A model whose weights
    /// don't fit into 2 GB always has one.
    pub fn external_data(self, external_data: bool) -> Export {
        self.external_data_above(if external_data { 0 } else { file::MAX_INLINE })
    }

    /// Puts weights into a second file where they have more bytes than this, which is at most 2 GB.
    pub fn external_data_above(mut self, bytes: u64) -> Export {
        self.max_inline = bytes.min(file::MAX_INLINE);
        self
    }
}

/// Writes a compiled function as an ONNX model, replacing an older file.
///
/// Sizes that are symbols of its specs are symbolic in the model, under their names. [`Var`](kiln_tensor::Var)s that
/// the function reads, and tensors that it captured, become initialisers with their values at the time of writing;
/// a `Var` that has a name has the same name there ([`Var::name`](kiln_tensor::Var::name)). An input or output is named
/// by its position in arguments or results, such as `input.0`, `output.1` or `rows`; a single one is `input` or
/// `output`.
///
/// A `Var` that the function assigns, as a training step does, is an input whose default is its value at the time of
/// writing, and an output with `.next` behind its name. The next run takes the value that the output had.
///
/// # Errors
/// If the function has operations that ONNX lacks, with all of them and their lines; if it draws random numbers; or if
/// a file can't be written: an older one then stays.
///
/// ```
/// use kiln_onnx::{Export, export, load};
/// use kiln_tensor::{DType, Spec, Tensor, Var, compile};
///
/// let weight = Var::new(Tensor::ones([3, 2], DType::F32))?;
/// let layer = compile(Spec::new(DType::F32, ("batch", 3)), |x| x.matmul(&weight).relu())?;
/// let path = std::env::temp_dir().join("layer.onnx");
/// export(&layer, &path, Export::new().inputs(["x"]).outputs(["y"]))?;
///
/// let out = load(&path)?.run([("x", Tensor::ones([5, 3], DType::F32))])?;
/// assert_eq!(out.get("y")?.to_vec::<f32>()?, [3.0; 10]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn export<I, O>(
    function: &Compiled<I, O>,
    path: impl AsRef<Path>,
    options: Export,
) -> Result<()> {
    for_caller(|| {
        let Some((opset, format)) = OPSETS
            .into_iter()
            .find(|(opset, _)| *opset == options.opset)
        else {
            return Err(unsupported(format!(
                "models are exported with opset 17 to 28, not {}",
                options.opset
            )));
        };
        let signature = function.signature();
        let arguments = signature.arguments.iter().map(|a| &a.name[..]);
        let inputs = choose_names("inputs", options.inputs, arguments, "input")?;
        let results = signature.results.iter().map(|r| &r.name[..]);
        let outputs = choose_names("outputs", options.outputs, results, "output")?;
        let mut names_in_use: Vec<&String> = inputs.iter().chain(&outputs).collect();
        names_in_use.sort_unstable();
        if let Some(pair) = names_in_use.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(invalid(format!(
                "two inputs or outputs are named `{}`",
                pair[0]
            )));
        }

        let graph = function.recorded().compact();
        let mut writer = Writer::new(opset, &graph.symbols, &names_in_use, write::op);
        let mut operands: Vec<Option<Value>> = vec![None; graph.inputs().len()];
        let facts = graph.inputs().into_iter().map(|id| graph.node(id).fact());
        let facts: Vec<_> = facts.cloned().collect();
        for (argument, name) in signature.arguments.iter().zip(&inputs) {
            let index = argument.at as usize;
            operands[index] = Some(writer.input(name, facts[index].clone()));
        }
        let mut weights = Vec::new();
        let captured = signature.captured.iter().zip(function.captured());
        for (named, tensor) in captured {
            let index = named.at as usize;
            let value = writer.weight(&named.name, false, facts[index].clone());
            weights.push(Weight::new(&value, tensor));
            operands[index] = Some(value);
        }
        let results = signature.results.iter().map(|r| r.at);
        let mut ends: Vec<(u32, String)> = results.zip(outputs).collect();
        for (state, var) in signature.states.iter().zip(function.states()) {
            let path = var.name();
            let mut name: Name = path.as_deref().unwrap_or(&state.name).into();
            if let Some(input) = state.input {
                let fact = facts[input as usize].clone();
                let value = writer.weight(&name, path.is_some(), fact);
                weights.push(Weight::new(&value, var.get().detach()));
                name = value.name.clone();
                if state.output.is_some() {
                    writer.overridable(&value);
                }
                operands[input as usize] = Some(value);
            }
            if let Some(output) = state.output {
                ends.push((output, writer.unique(&format!("{name}.next")).to_string()));
            }
        }
        let values = writer.graph(&graph, &operands);
        let values = ends
            .iter()
            .map(|(index, _)| values[*index as usize].clone());
        let values = values.collect();
        let outputs: Vec<String> = ends.into_iter().map(|(_, name)| name).collect();
        let finished = writer.finish(values, &outputs).map_err(|failures| {
            let count = match failures.len() {
                1 => "1 operation".to_string(),
                n => format!("{n} operations"),
            };
            let list = failures.join("\n  ");
            unsupported(format!(
                "{count} can't be exported with opset {opset}:\n  {list}"
            ))
        })?;
        let model = ModelProto {
            ir_version: Some(format),
            opset_import: vec![OperatorSetIdProto {
                domain: Some(String::new()),
                version: Some(opset),
            }],
            producer_name: Some("kiln".into()),
            producer_version: Some(env!("CARGO_PKG_VERSION").into()),
            graph: Some(GraphProto {
                name: Some("main".into()),
                ..finished
            }),
            ..ModelProto::default()
        };
        file::save(model, weights, path.as_ref(), options.max_inline).map_err(|e| match e {
            file::Failure::Value(e) => e,
            file::Failure::Io(e) => {
                let message = format!("{}: {e}", path.as_ref().display());
                Error::at_caller(ErrorKind::Io, "onnx", message)
            }
        })
    })
}

/// The names of inputs or outputs: those that were chosen, else paths.
fn choose_names<'p>(
    what: &str,
    chosen: Option<Vec<String>>,
    paths: impl ExactSizeIterator<Item = &'p str>,
    single: &str,
) -> Result<Vec<String>> {
    let count = paths.len();
    match chosen {
        Some(names) if names.len() != count => Err(invalid(format!(
            "the function has {count} {what}, and {} are named",
            names.len()
        ))),
        Some(names) if names.iter().any(String::is_empty) => {
            Err(invalid(format!("one of the {what} has an empty name")))
        }
        Some(names) => Ok(names),
        None => Ok(paths
            .map(|path| match path.chars().next() {
                None => single.to_string(),
                Some(c) if c.is_ascii_digit() => format!("{single}.{path}"),
                Some(_) => path.to_string(),
            })
            .collect()),
    }
}

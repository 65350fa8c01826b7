//! A case: a call, its tensors and the expected results.

use crate::args::{Arg, Args};
use crate::engine::Array;
use kiln_tensor::{DType, Device, Tensor};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A sample call of an operator.
pub struct Case {
    /// `folder/name`.
    pub id: String,
    /// PyTorch's name of the operator, without `torch.`.
    pub op: String,
    /// `core`, `promo` or `ext`.
    pub tier: String,
    /// The expected kind of outcome.
    pub kind: Kind,
    /// The arguments.
    pub args: Args,
    /// The names of the flattened outputs.
    pub outputs: Vec<String>,
    /// Inputs that the call changes, with the names of their new values.
    pub mutated: BTreeMap<String, String>,
    /// The gradients that the call must have, if it has any.
    pub gradients: Option<Gradients>,
    /// `[rtol, atol]` for each output.
    pub tolerances: BTreeMap<String, [f64; 2]>,
    /// Every tensor of the case by name.
    pub tensors: BTreeMap<String, Array>,
}

/// Gradients of a call.
pub struct Gradients {
    /// The given cotangents, by output.
    pub cotangents: BTreeMap<String, String>,
    /// The expected gradients, by input; `None` for inputs without a gradient.
    pub expected: BTreeMap<String, Option<String>>,
    /// The inputs, as leaves.
    pub leaves: BTreeMap<String, Tensor>,
}

/// The expectation of a case.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// These outputs.
    Value,
    /// An error: the call is rejected.
    Error,
}

/// An error of reading a case.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {message}")]
pub struct CaseError {
    path: PathBuf,
    message: String,
}

impl Case {
    /// Reads the case `id` under `root`.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn load(root: &Path, id: &str) -> Result<Case, CaseError> {
        Case::load_with(root, id, &|array| array)
    }

    /// The same with `change` applied to all its tensors, including the expected ones.
    ///
    /// # Errors
    /// As [`Case::load`].
    pub fn load_with(
        root: &Path,
        id: &str,
        change: &dyn Fn(Array) -> Array,
    ) -> Result<Case, CaseError> {
        let json = root.join(format!("{id}.json"));
        let wrong = |path: &Path, message: String| CaseError {
            path: path.to_path_buf(),
            message,
        };
        let text = std::fs::read_to_string(&json).map_err(|e| wrong(&json, e.to_string()))?;
        let value: Value = serde_json::from_str(&text).map_err(|e| wrong(&json, e.to_string()))?;
        let data = root.join(format!("{id}.safetensors"));
        let tensors = if data.exists() {
            read_tensors(&data).map_err(|e| wrong(&data, e))?
        } else {
            BTreeMap::new()
        };
        let tensors = tensors
            .into_iter()
            .map(|(name, array)| (name, change(array)));
        parse(id, &value, tensors.collect()).map_err(|e| wrong(&json, e))
    }
}

impl Case {
    /// The same call on a device, leaves included.
    pub fn move_to(mut self, device: Device) -> Case {
        let leaves = self.gradients.iter_mut().flat_map(|g| &mut g.leaves);
        let leaves = leaves.map(|(name, leaf)| {
            *leaf = leaf.detach().to(device).requires_grad_(true);
            (name.clone(), leaf.clone())
        });
        let leaves = leaves.collect();
        self.args.move_to(device, &leaves);
        self
    }

    /// The same call with every float tensor as f64, without gradients: the results of the call without its rounding.
    pub fn in_f64(mut self) -> Case {
        for array in self.tensors.values_mut() {
            *array = array.in_f64();
        }
        self.gradients = None;
        self.args.in_f64();
        self
    }
}

fn parse(id: &str, v: &Value, tensors: BTreeMap<String, Array>) -> Result<Case, String> {
    let text = |key: &str| v[key].as_str().unwrap_or_default().to_string();
    let positional = v["args"].as_array().ok_or("has no args")?;
    let gradients = gradients(&v["grad"], &tensors);
    let none = BTreeMap::new();
    let leaves = gradients.as_ref().map_or(&none, |g| &g.leaves);
    let positional = positional.iter().map(|a| Arg::parse(a, &tensors, leaves));
    let mut positional: Vec<Arg> = positional.collect::<Result<_, String>>()?;
    // The function has the condition in front of the tensor on which the method is called.
    if text("torch_name") == "torch.where" && positional.len() > 1 {
        positional.swap(0, 1);
    }
    let keywords = v["kwargs"].as_object().ok_or("has no kwargs")?;
    let keywords = keywords
        .iter()
        .map(|(k, a)| Ok((k.clone(), Arg::parse(a, &tensors, leaves)?)));
    let mut outputs = Vec::new();
    flatten(&v["outputs"], &mut outputs);
    let mutated = v["mutated"].as_object().into_iter().flatten();
    let mutated = mutated.filter_map(|(k, n)| Some((k.clone(), n.as_str()?.to_string())));
    let tolerances = v["tol"].as_object().into_iter().flatten();
    let tolerances = tolerances
        .filter_map(|(k, t)| Some((k.clone(), [t.get(0)?.as_f64()?, t.get(1)?.as_f64()?])));
    Ok(Case {
        id: id.to_string(),
        op: text("op"),
        tier: text("tier"),
        kind: match text("kind").as_str() {
            "value" => Kind::Value,
            "error" => Kind::Error,
            other => return Err(format!("unknown kind {other:?}")),
        },
        args: Args::new(positional, keywords.collect::<Result<_, String>>()?),
        outputs,
        mutated: mutated.collect(),
        tolerances: tolerances.collect(),
        gradients,
        tensors,
    })
}

fn gradients(v: &Value, tensors: &BTreeMap<String, Array>) -> Option<Gradients> {
    let names = |key: &str| -> BTreeMap<String, Option<String>> {
        let pairs = v[key].as_object().into_iter().flatten();
        let name = |v: &Value| v.as_str().map(str::to_string);
        pairs.map(|(k, v)| (k.clone(), name(v))).collect()
    };
    let expected = names("inputs");
    let leaf = |name: &String| {
        let tensor = tensors.get(name)?.tensor().requires_grad_(true);
        Some((name.clone(), tensor))
    };
    v.is_object().then(|| Gradients {
        cotangents: names("cotangents")
            .into_iter()
            .filter_map(|(k, v)| Some((k, v?)))
            .collect(),
        leaves: expected.keys().filter_map(leaf).collect(),
        expected,
    })
}

/// The tensor names in a nest of lists and tuples, in order.
fn flatten(v: &Value, out: &mut Vec<String>) {
    if let Some(name) = v["t"].as_str() {
        out.push(name.to_string());
    }
    let nested = v["tuple"].as_array().or(v.as_array());
    for item in nested.into_iter().flatten() {
        flatten(item, out);
    }
}

/// Every tensor of a safetensors file.
///
/// # Errors
/// If the file can't be read or holds a dtype that Kiln does not have.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, Array>, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?;
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let dtype = DType::from_name(&view.dtype().to_string().to_lowercase());
        let dtype = dtype.ok_or(format!("{name} is {:?}", view.dtype()))?;
        let array = Array {
            dtype,
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        Ok((name, array))
    });
    tensors.collect()
}

/// Writes arrays as one safetensors file.
///
/// # Errors
/// If the file can't be written.
pub fn write_tensors(path: &Path, arrays: &BTreeMap<String, Array>) -> std::io::Result<()> {
    let mut views = Vec::new();
    for (name, a) in arrays {
        // The name of the dtype in safetensors files.
        let dtype = serde_json::from_value(a.dtype.name().to_uppercase().into())?;
        let view = TensorView::new(dtype, a.shape.clone(), &a.bytes);
        views.push((name, view.map_err(std::io::Error::other)?));
    }
    let bytes = safetensors::serialize(views, None).map_err(std::io::Error::other)?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(path, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Outcome, run};

    /// Both orders of the arguments of `where`, where all arguments are bool.
    #[test]
    fn the_condition_of_where_goes_by_position() {
        let bools = |bytes: [u8; 4]| Array {
            dtype: DType::Bool,
            shape: vec![4],
            bytes: bytes.to_vec(),
        };
        let tensors = || {
            let named = [
                ("in0", [1, 1, 0, 0]),
                ("in1", [1, 0, 1, 0]),
                ("in2", [0, 0, 1, 1]),
            ];
            named.map(|(n, b)| (n.to_string(), bools(b))).into()
        };
        let orders = [
            ("torch.testing.<lambda>", [1, 0, 0, 1]),
            ("torch.Tensor.where", [1, 0, 0, 1]),
            ("torch.where", [1, 0, 1, 1]),
        ];
        for (torch_name, expected) in orders {
            let json = serde_json::json!({
                "op": "where", "torch_name": torch_name, "kind": "value",
                "args": [{"t": "in0"}, {"t": "in1"}, {"t": "in2"}], "kwargs": {},
                "outputs": {"t": "out0"}, "grad": null, "mutated": {}, "tol": {},
            });
            let case = parse("where/bools", &json, tensors()).unwrap();
            let Outcome::Values(values) = run(&case, Engine::Reference) else {
                panic!("{torch_name} gives nothing");
            };
            assert_eq!(values["out0"].bytes, expected, "{torch_name}");
        }
    }
}

//! The interface of an entry, in a form that people and programs can read.

use crate::error::{Result, ensure};
use kiln_base::{DType, Dim};
use kiln_plan::{Named, Plan, Signature, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The inputs, outputs and states of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// The inputs of a run, in order.
    pub inputs: Vec<TensorInfo>,
    /// The outputs, in order.
    pub outputs: Vec<TensorInfo>,
    /// The symbols in sizes.
    pub symbols: Vec<SymbolInfo>,
    /// The states whose values a run depends on.
    pub reads: Vec<String>,
    /// The states that it changes.
    pub writes: Vec<String>,
    /// The tensors among the weights that it uses and that never change.
    pub constants: Vec<String>,
    /// True if it draws random numbers, and so advances the state of their generator.
    pub random: bool,
}

/// Name, dtype and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorInfo {
    /// Its name, unique within its list.
    pub name: String,
    /// Its element type.
    #[serde(with = "dtype_name")]
    pub dtype: DType,
    /// Its shape, outermost dim first.
    pub shape: Vec<Size>,
}

/// An extent of a shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// A number.
    Known(i64),
    /// A symbol, or an expression of symbols.
    Symbolic(String),
}

/// A size that is given with the inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymbolInfo {
    /// Its name, such as `batch`.
    pub name: String,
    /// The smallest value that the entry's general program takes.
    pub min: i64,
}

/// A tensor that is kept from run to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateInfo {
    /// Its name, such as `fc.weight`.
    pub name: String,
    /// Its element type.
    #[serde(with = "dtype_name")]
    pub dtype: DType,
    /// Its shape, outermost dim first.
    pub shape: Vec<i64>,
    /// The names of its elements, where each is a number of its own, such as `lr`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elements: Vec<String>,
}

/// Dtypes by their names.
mod dtype_name {
    use kiln_base::DType;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        DType::from_name(&name).ok_or_else(|| D::Error::custom(format!("no dtype {name:?}")))
    }
}

/// The dtype and shape of an input of a plan.
pub(crate) fn input_type(plan: &Plan, index: u32) -> (DType, &[Dim]) {
    let input = &plan.inputs[index as usize];
    (input.dtype, &input.shape)
}

/// The dtype and shape of an output of a plan.
pub(crate) fn output_type(plan: &Plan, index: u32) -> (DType, &[Dim]) {
    let output = &plan.outputs[index as usize];
    (output.dtype, &output.shape)
}

impl Interface {
    /// The interface of a program.
    pub(crate) fn of(signature: &Signature, plan: &Plan) -> Interface {
        let input = |n: &Named| tensor(plan, &n.name, input_type(plan, n.at));
        let output = |n: &Named| tensor(plan, &n.name, output_type(plan, n.at));
        let states = |is_used: fn(&State) -> bool| {
            let states = signature.states.iter().filter(|s| is_used(s));
            states.map(|s| s.name.clone()).collect()
        };
        Interface {
            inputs: signature.arguments.iter().map(input).collect(),
            outputs: signature.results.iter().map(output).collect(),
            symbols: (plan.symbols.iter())
                .map(|s| SymbolInfo {
                    name: s.name.clone(),
                    min: s.min,
                })
                .collect(),
            reads: states(|s| s.input.is_some()),
            writes: states(|s| s.output.is_some()),
            constants: signature.captured.iter().map(|c| c.name.clone()).collect(),
            random: !signature.draws.is_empty(),
        }
    }

    /// Checks that names are unique and not empty.
    pub(crate) fn check(&self, entry: &str) -> Result<()> {
        for list in [&self.inputs, &self.outputs] {
            let names: BTreeSet<&str> = list.iter().map(|t| &t.name[..]).collect();
            let are_unique = names.len() == list.len() && !names.contains("");
            ensure!(
                are_unique,
                "two inputs or outputs of `{entry}` have one name, or none"
            );
        }
        let names: BTreeSet<&str> = self.symbols.iter().map(|s| &s.name[..]).collect();
        let are_unique = names.len() == self.symbols.len();
        ensure!(are_unique, "two symbols of `{entry}` have one name");
        Ok(())
    }
}

fn tensor(plan: &Plan, name: &str, (dtype, shape): (DType, &[Dim])) -> TensorInfo {
    let size = |d: &Dim| match d.as_const() {
        Some(n) => Size::Known(n),
        None => {
            let symbol = |s: kiln_base::Sym| Some(&plan.symbols.get(s.0 as usize)?.name[..]);
            Size::Symbolic(d.named(symbol))
        }
    };
    TensorInfo {
        name: name.into(),
        dtype,
        shape: shape.iter().map(size).collect(),
    }
}

impl std::fmt::Display for TensorInfo {
    /// Dtype and shape, such as `f32[batch, 10]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(Size::to_string).collect();
        write!(f, "{}[{}]", self.dtype, shape.join(", "))
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Size::Known(n) => n.fmt(f),
            Size::Symbolic(text) => f.write_str(text),
        }
    }
}

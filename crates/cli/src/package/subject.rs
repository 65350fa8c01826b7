//! The entries to verify, measure or tune.

use super::read_inputs;
use crate::Failure;
use crate::failure::Usage;
use clap::ArgMatches;
use kiln::package::{Buffer, DType, Entry, Inputs, Package, Size, TensorInfo};
use kiln_base::{Dim, Role, Sym};
use kiln_ir::{Graph, SymbolInfo};
use std::collections::BTreeMap;

/// An entry for certain sizes, with inputs to run it on.
pub(crate) struct BoundEntry {
    /// Its name and sizes: `forward (batch = 8)`.
    pub name: String,
    pub entry: Entry,
    /// The values of its open sizes.
    pub sizes: BTreeMap<String, i64>,
    /// Its inputs, by name.
    pub inputs: Vec<(String, Buffer)>,
}

/// The sizes given on the command line.
pub(crate) fn sizes(m: &ArgMatches) -> Result<BTreeMap<String, i64>, Failure> {
    let mut sizes = BTreeMap::new();
    for argument in m.get_many::<String>("size").into_iter().flatten() {
        let size = argument.split_once('=');
        let size = size.and_then(|(name, n)| Some((name, n.parse().ok().filter(|n| *n > 0)?)));
        let (name, n) =
            size.ok_or_else(|| Usage(format!("--size {argument}: a size is NAME=N, from 1 on")))?;
        sizes.insert(name.to_string(), n);
    }
    Ok(sizes)
}

/// The named entries of a package, or all, for the given sizes and inputs. Other sizes are as small as the entry
/// accepts; other inputs are random.
pub(crate) fn subjects(package: &Package, m: &ArgMatches) -> Result<Vec<BoundEntry>, Failure> {
    let named = m.get_many::<String>("entry").into_iter().flatten();
    let mut names: Vec<String> = named.cloned().collect();
    if names.is_empty() {
        names = package.entries().map(String::from).collect();
    }
    let asked = sizes(m)?;
    let inputs = match m.try_contains_id("input") {
        Ok(_) => read_inputs(m)?,
        Err(_) => Vec::new(),
    };
    let subjects = names
        .iter()
        .map(|name| BoundEntry::new(package, name, &asked, &inputs));
    let subjects = subjects.collect::<Result<Vec<_>, _>>()?;
    let known = |name: &str| subjects.iter().any(|s| s.sizes.contains_key(name));
    match asked.keys().find(|name| !known(name)) {
        Some(name) => Err(Usage(format!("no entry leaves a size `{name}` open")).into()),
        None => Ok(subjects),
    }
}

impl BoundEntry {
    fn new(
        package: &Package,
        name: &str,
        asked: &BTreeMap<String, i64>,
        files: &[(&str, Buffer)],
    ) -> Result<BoundEntry, Failure> {
        let entry = package.entry(name)?;
        let about = entry.interface();
        let symbol_values =
            |usual: &dyn Fn(&kiln::package::SymbolInfo) -> i64| -> BTreeMap<String, i64> {
                let size = |s: &kiln::package::SymbolInfo| {
                    let n = asked.get(&s.name).copied().unwrap_or_else(|| usual(s));
                    (s.name.clone(), n)
                };
                about.symbols.iter().map(size).collect()
            };
        let mut sizes = symbol_values(&|_| 1);
        if entry.memory(&pairs(&sizes)).is_err() {
            sizes = symbol_values(&|s| s.min);
        }
        let mut inputs = Vec::new();
        for (i, info) in about.inputs.iter().enumerate() {
            let file = files.iter().find(|(n, _)| *n == info.name);
            let value = match file {
                Some((_, value)) => value.clone(),
                None => random(info, &sizes, i as u64)?,
            };
            inputs.push((info.name.clone(), value));
        }
        let values_text: Vec<String> = sizes.iter().map(|(n, v)| format!("{n} = {v}")).collect();
        let name = match values_text.is_empty() {
            true => name.to_string(),
            false => format!("{name} ({})", values_text.join(", ")),
        };
        Ok(BoundEntry {
            name,
            entry,
            sizes,
            inputs,
        })
    }

    /// The inputs of a run.
    pub fn inputs(&self) -> Inputs {
        let buffers = self.inputs.iter().cloned();
        buffers.fold(Inputs::new(), |inputs, (name, value)| {
            inputs.with(&name, value)
        })
    }

    /// The program that it runs.
    pub fn compiled(&self) -> Result<kiln_plan::Entry, Failure> {
        Ok(self.entry.compiled(&pairs(&self.sizes))?.0)
    }

    /// The graph that the program was compiled from.
    pub fn graph(&self, package: &Package) -> Result<Graph, Failure> {
        let small = self.entry.interface().symbols.iter();
        let small = small.filter_map(|s| {
            let n = self.sizes[&s.name];
            (n < s.min).then(|| (s.name.clone(), n))
        });
        graph(package, self.entry.name(), &small.collect())
    }

    /// The inputs of its plan: the entry's own inputs, states, captured tensors, and keys of random numbers.
    pub fn plan_inputs(
        &self,
        package: &Package,
        compiled: &kiln_plan::Entry,
    ) -> Result<Vec<Buffer>, Failure> {
        let (signature, plan) = (&compiled.signature, &compiled.plan);
        let mut buffers: Vec<Option<Buffer>> = vec![None; plan.inputs.len()];
        for (named, (_, value)) in signature.arguments.iter().zip(&self.inputs) {
            buffers[named.at as usize] = Some(value.clone());
        }
        for state in &signature.states {
            if let Some(input) = state.input {
                buffers[input as usize] = Some(package.get(&state.name)?);
            }
        }
        for named in &signature.captured {
            buffers[named.at as usize] = Some(package.constant(&named.name)?);
        }
        for (index, input) in plan.inputs.iter().enumerate() {
            if input.role == Role::RandomKey {
                buffers[index] = Some(Buffer::from_slice(&[1i64, index as i64 * 1_000_000], &[2])?);
            }
        }
        let buffers = buffers.into_iter().collect::<Option<Vec<Buffer>>>();
        Ok(buffers.ok_or("an input of the program is nothing")?)
    }
}

/// The graph of an entry, with these values in place of symbols.
pub(crate) fn graph(
    package: &Package,
    entry: &str,
    small: &BTreeMap<String, i64>,
) -> Result<Graph, Failure> {
    let mut graph = Graph::parse(package.graph(entry)?)?;
    if small.is_empty() {
        return Ok(graph);
    }
    let symbols = std::mem::take(&mut graph.symbols);
    let mut left: Vec<SymbolInfo> = Vec::new();
    let values = symbols.into_iter().map(|s| match small.get(&s.name) {
        Some(n) => Dim::Const(*n),
        None => {
            left.push(s);
            Dim::symbol(Sym(left.len() as u32 - 1))
        }
    });
    let values: Vec<Dim> = values.collect();
    graph.dims_mut(&mut |d| *d = d.substitute(&values));
    graph.bind(&left)?;
    Ok(graph)
}

/// The sizes as a slice that entries take.
pub(crate) fn pairs(sizes: &BTreeMap<String, i64>) -> Vec<(&str, i64)> {
    sizes.iter().map(|(n, v)| (&n[..], *v)).collect()
}

/// Normally distributed numbers, or integers of 0 and 1, which are valid indices of most axes.
fn random(info: &TensorInfo, sizes: &BTreeMap<String, i64>, seed: u64) -> Result<Buffer, Failure> {
    let extent = |s: &Size| match s {
        Size::Known(n) => Ok(*n as usize),
        Size::Symbolic(text) => {
            let known = sizes.get(text).map(|n| *n as usize);
            known.ok_or_else(|| format!("input `{}` must be given: {info}", info.name))
        }
    };
    let shape: Vec<usize> = info.shape.iter().map(extent).collect::<Result<_, _>>()?;
    let tensor = kiln::with_seed(seed, || match info.dtype.is_float() {
        true => kiln::Tensor::randn(&shape[..], DType::F32),
        false => kiln::Tensor::randint(0, 2, &shape[..]),
    });
    super::buffer(&tensor.to_dtype(info.dtype))
}

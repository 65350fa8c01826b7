//! A compiled function, prepared for a package.

use kiln_package::Code;
use kiln_plan::{Entry, Named};
use kiln_tensor::{Compiled, Result, Tensor, Var};
use std::collections::BTreeMap;
use std::panic::Location;

/// A compiled function, with its properties when it is added.
pub(crate) struct Exported {
    pub name: String,
    /// The recorded graph, as text.
    pub graph: String,
    /// The programs, the general one first, each with the values of symbols for which it is specialised.
    pub programs: Vec<(BTreeMap<String, i64>, Entry)>,
    /// The cells that it reads and assigns, in the order of its signature, and their names in the signature.
    pub states: Vec<Var>,
    pub state_names: Vec<String>,
    pub captured: Vec<(String, Tensor)>,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// The code for which its kernels are compiled, if it runs on a GPU: PTX for that GPU.
    pub cuda: Option<Code>,
}

/// The number of its symbols that may be 1. The first, which often is a batch size, may also be 0.
const SMALL_SYMBOLS: usize = 3;

impl Exported {
    pub fn new<I, O>(
        name: &str,
        function: &Compiled<I, O>,
        loc: &'static Location<'static>,
    ) -> Result<Exported> {
        let signature = function.signature();
        let symbols = &function.plan().symbols;
        let mut programs = vec![(BTreeMap::new(), function.entry())];
        let n = symbols.len().min(SMALL_SYMBOLS);
        let cases = if n > 0 { 3 << (n - 1) } else { 0 };
        for case in 1..cases {
            let small = (0..n).filter_map(|s| match s {
                0 => Some((s, [None, Some(1), Some(0)][case % 3]?)),
                _ => ((case / 3) >> (s - 1) & 1 == 1).then_some((s, 1)),
            });
            // A function may be invalid for a small size; a run for that size then reports that there is no program.
            let Ok(Some(small_one)) = function.for_sizes(small.clone(), loc) else {
                continue;
            };
            let sizes = small.map(|(s, n)| (symbols[s].name.clone(), n)).collect();
            programs.push((sizes, small_one.entry()));
        }
        let captured = signature.captured.iter().map(|c| c.name.clone());
        Ok(Exported {
            name: name.into(),
            graph: function.recorded().to_string(),
            programs,
            states: function.states(),
            state_names: signature.states.iter().map(|s| s.name.clone()).collect(),
            captured: captured.zip(function.captured()).collect(),
            inputs: list_names(&signature.arguments, "input"),
            outputs: list_names(&signature.results, "output"),
            cuda: function.executable().gpu().map(|gpu| {
                let (major, minor) = gpu.capability();
                Code::Ptx(10 * major + minor)
            }),
        })
    }

    /// Names the inputs.
    pub fn name_inputs<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<(), String> {
        rename(&self.name, "inputs", &mut self.inputs, names)
    }

    /// Names the outputs.
    pub fn name_outputs<'n>(
        &mut self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<(), String> {
        rename(&self.name, "outputs", &mut self.outputs, names)
    }
}

/// Replaces the names of an entry's inputs or outputs; their number must not change.
fn rename<'n>(
    entry: &str,
    what: &str,
    names: &mut Vec<String>,
    new: impl IntoIterator<Item = &'n str>,
) -> Result<(), String> {
    let new: Vec<String> = new.into_iter().map(String::from).collect();
    let (count, actual) = (names.len(), new.len());
    if actual != count {
        let old = names.join(", ");
        return Err(format!(
            "`{entry}` has {count} {what}, {old}, and {actual} names are given"
        ));
    }
    *names = new;
    Ok(())
}

/// Returns the names of inputs or outputs; `default` names a single one without a name.
fn list_names(list: &[Named], default: &str) -> Vec<String> {
    let name = |n: &Named| match &n.name[..] {
        "" => default.to_string(),
        name => name.to_string(),
    };
    list.iter().map(name).collect()
}

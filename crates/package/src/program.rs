//! Programs of an entry: decoded, compared with the package's description of them, and linked.

use crate::error::{Error, Result, damaged, ensure, failed};
use crate::interface::{Interface, input_type, output_type};
use crate::manifest::EntryInfo;
use kiln_base::{DType, Dim, Sym};
use kiln_plan::{DecodeError, Entry as PlanEntry, Kernel, Named, Plan, Signature};
use kiln_runtime::{Executable, cuda};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A program that is ready to run.
pub(crate) struct Program {
    pub executable: Executable,
    pub signature: Signature,
    /// True once weights were packed, and the originals released.
    pub packed: AtomicBool,
}

/// Decodes the member that holds a program.
pub(crate) fn decode(bytes: &[u8], written_by: &str) -> Result<PlanEntry> {
    PlanEntry::from_bytes(bytes).map_err(|e| match e {
        DecodeError::Version { found } => Error::PlanFormat {
            found,
            by: written_by.into(),
        },
        e => damaged!("a program: {e}"),
    })
}

/// True if a program has GPU kernels.
pub(crate) fn is_cuda(plan: &Plan) -> bool {
    plan.kernels.iter().any(|k| matches!(**k, Kernel::Cuda(_)))
}

impl Program {
    pub fn new(
        decoded: PlanEntry,
        entry: &str,
        loader: Option<&Arc<cuda::Loader>>,
    ) -> Result<Program> {
        let PlanEntry { signature, plan } = decoded;
        let executable = match loader {
            None => Executable::new(plan),
            Some(loader) => Executable::loaded_by(plan, loader),
        };
        Ok(Program {
            executable: executable.map_err(failed(entry))?,
            signature,
            packed: AtomicBool::new(false),
        })
    }

    fn plan(&self) -> &Plan {
        self.executable.plan()
    }

    /// Checks that the program is an entry's general one.
    pub fn check_described(&self, info: &EntryInfo) -> Result<()> {
        let same = Interface::of(&self.signature, self.plan()) == info.interface;
        ensure!(same, "entry `{}` is not what the manifest says", info.name);
        Ok(())
    }

    /// Checks that the program is the general one with these values of its symbols.
    pub fn check_case_of(&self, general: &Program, sizes: &BTreeMap<String, i64>) -> Result<()> {
        let mut open_symbols = 0u32..;
        let symbols = || general.plan().symbols.iter();
        let dims = symbols().map(|s| match sizes.get(&s.name) {
            Some(n) => Dim::Const(*n),
            None => Dim::symbol(Sym(open_symbols.next().unwrap_or(u32::MAX))),
        });
        let dims: Vec<Dim> = dims.collect();
        let open = symbols().filter(|s| !sizes.contains_key(&s.name));
        let open = open.map(|s| (&s.name, s.min));
        let (expected, actual) = (&general.signature, &self.signature);
        let same = self.shapes() == general.shapes().substitute_symbols(&dims)
            && states(expected) == states(actual)
            && expected.draws.len() == actual.draws.len()
            && open.eq(self.plan().symbols.iter().map(|s| (&s.name, s.min)));
        ensure!(same, "the program for {} is another one", sizes_text(sizes));
        Ok(())
    }

    /// Checks that its states and captured tensors match the package's tensors of these names.
    pub fn check_tensors(
        &self,
        state: impl Fn(&str) -> Option<(DType, Vec<i64>)>,
        tensor: impl Fn(&str) -> Option<(DType, Vec<i64>)>,
    ) -> Result<()> {
        let plan = self.plan();
        let matches = |(dtype, shape): (DType, &[Dim]), actual: Option<(DType, Vec<i64>)>| {
            actual.is_some_and(|(d, s)| {
                d == dtype && s.len() == shape.len() && shape.iter().zip(s).all(|(a, b)| a.is(b))
            })
        };
        for s in &self.signature.states {
            let input = s.input.map(|at| input_type(plan, at));
            let mut types = input
                .into_iter()
                .chain(s.output.map(|at| output_type(plan, at)));
            let matches = types.all(|ty| matches(ty, state(&s.name)));
            ensure!(matches, "a program does not fit state `{}`", s.name);
        }
        for c in &self.signature.captured {
            let matches = matches(input_type(plan, c.at), tensor(&c.name));
            ensure!(matches, "a program does not fit tensor `{}`", c.name);
        }
        Ok(())
    }

    fn shapes(&self) -> Shapes {
        let (plan, signature) = (self.plan(), &self.signature);
        let shapes = |list: &[Named], of: fn(&Plan, u32) -> (DType, &[Dim])| {
            let shape = |n: &Named| {
                let (dtype, shape) = of(plan, n.at);
                (n.name.clone(), dtype, shape.to_vec())
            };
            list.iter().map(shape).collect()
        };
        Shapes([
            shapes(&signature.arguments, input_type),
            shapes(&signature.captured, input_type),
            shapes(&signature.results, output_type),
        ])
    }
}

/// Names, dtypes and shapes of arguments, captured tensors and results.
#[derive(PartialEq)]
struct Shapes([Vec<(String, DType, Vec<Dim>)>; 3]);

impl Shapes {
    /// The shapes with other dims substituted for symbols.
    fn substitute_symbols(mut self, dims: &[Dim]) -> Shapes {
        let types = self.0.iter_mut().flatten();
        for dim in types.flat_map(|(_, _, shape)| shape) {
            *dim = dim.substitute(dims);
        }
        self
    }
}

/// The states of a program by name, with flags for reading and writing.
fn states(signature: &Signature) -> Vec<(&str, bool, bool)> {
    let states = signature.states.iter();
    let states = states.map(|s| (&s.name[..], s.input.is_some(), s.output.is_some()));
    states.collect()
}

/// Sizes in the form of messages.
pub(crate) fn sizes_text(sizes: &BTreeMap<String, i64>) -> String {
    let pairs: Vec<String> = sizes.iter().map(|(n, v)| format!("{n} = {v}")).collect();
    match pairs.is_empty() {
        true => "all sizes".into(),
        false => pairs.join(", "),
    }
}

//! Random programs: compiled emitted sources agree with the reference.

use crate::cc::{self, Library};
use kiln_c99::{Error, Input, Output, Program, Weights, emit};
use kiln_compiler::Options;
use kiln_ir::Graph;
use kiln_ir::eval::Array;
use kiln_ir::fuzz::{Config, random_inputs};
use kiln_plan::{Plan, Role};
use kiln_runtime::Buffer;
use kiln_testkit::oracle::{Engine, Oracle};
use kiln_testkit::programs::plain;
use kiln_testkit::rules::some_program;

/// A compiled program with the reference's results.
pub struct Case {
    pub name: String,
    engine: Engine,
    oracle: Oracle,
    symbols: Vec<i64>,
}

impl Case {
    pub fn new(name: String, graph: &Graph, inputs: Vec<Array>, options: &Options) -> Case {
        let oracle = Oracle::new(graph, inputs);
        let engine = Engine::new(graph, options).unwrap();
        let plan = engine.executable.plan();
        let value =
            |s: &kiln_plan::Symbol| oracle.inputs[s.input as usize].shape()[s.axis as usize] as i64;
        Case {
            name,
            symbols: plan.symbols.iter().map(value).collect(),
            engine,
            oracle,
        }
    }

    /// True if the runtime agrees with the reference. Some rewrites are valid only for finite numbers.
    fn is_exact(&self) -> bool {
        let outputs = self.engine.run(&self.oracle.inputs);
        outputs.is_ok_and(|o| self.oracle.check(&o).is_ok())
    }

    fn plan(&self) -> &Plan {
        self.engine.executable.plan()
    }

    pub fn program(&self) -> Program<'_> {
        let inputs = self.plan().inputs.iter().zip(&self.oracle.inputs);
        let inputs = inputs
            .enumerate()
            .map(|(i, (input, value))| match input.role {
                Role::Parameter => {
                    let shape: Vec<i64> = value.shape().iter().map(|d| *d as i64).collect();
                    Input::Fixed(
                        Buffer::from_bytes(value.dtype(), &shape, &value.to_bytes()).unwrap(),
                    )
                }
                _ => Input::Argument(format!("in{i}")),
            });
        Program {
            name: &self.name,
            plan: self.plan(),
            symbols: &self.symbols,
            inputs: inputs.collect(),
            outputs: (0..self.plan().outputs.len())
                .map(|i| Output::Named(format!("out{i}")))
                .collect(),
            draws: None,
        }
    }

    pub fn check(&self, library: &Library) -> Result<(), String> {
        self.oracle.check_arrays(&self.outputs(library)?)
    }

    /// The outputs of the graph; `None` for an output that is not written.
    pub fn outputs(&self, library: &Library) -> Result<Vec<Option<Array>>, String> {
        let plan = self.plan();
        let arguments = plan.inputs.iter().zip(&self.oracle.inputs);
        let arguments = arguments.filter(|(i, _)| i.role != Role::Parameter);
        let arguments: Vec<Vec<u8>> = arguments.map(|(_, a)| a.to_bytes()).collect();
        let shapes = plan.outputs.iter().map(|o| {
            let shape = o.shape.iter().map(|d| d.eval(&self.symbols) as usize);
            (o.dtype, shape.collect::<Vec<_>>())
        });
        let shapes: Vec<_> = shapes.collect();
        let sizes: Vec<usize> = (shapes.iter())
            .map(|(d, s)| s.iter().product::<usize>() * d.size())
            .collect();
        let values = library.call(&self.name, &arguments, &sizes)?;
        let array = |i: usize| {
            let (dtype, shape) = &shapes[i];
            Array::from_bytes(*dtype, shape, &values[i]).unwrap()
        };
        let outputs = self.engine.outputs.iter();
        Ok(outputs.map(|o| o.map(array)).collect())
    }
}

#[test]
fn random_programs_equal_the_reference() {
    if !cc::is_there() {
        return;
    }
    let count: u64 = std::env::var("KILN_C99_SEEDS").map_or(120, |n| n.parse().unwrap());
    let config = Config::default();
    let (mut cases, mut refused) = (Vec::new(), Vec::new());
    for seed in 0..count {
        let options = match seed % 4 {
            3 => plain(),
            _ => Options::default(),
        };
        let graph = match seed % 2 {
            0 => config.graph(seed),
            _ => some_program(seed),
        };
        let case = Case::new(
            format!("p{seed}"),
            &graph,
            random_inputs(&graph, seed),
            &options,
        );
        match emit("random", &[case.program()], Weights::Arrays) {
            Ok(_) => cases.extend(case.is_exact().then_some(case)),
            Err(Error::Kernel { kernel, why }) => refused.push(format!("{kernel}: {why}")),
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    let mut wrong = Vec::new();
    for batch in cases.chunks(40) {
        let programs: Vec<Program<'_>> = batch.iter().map(Case::program).collect();
        let sources = emit("random", &programs, Weights::Arrays).unwrap();
        let shims = cc::shims("random", &programs, false);
        let library = Library::new(&sources, "random", "-O1", &shims);
        let checked = batch.iter().map(|c| (c, c.check(&library)));
        let failed = checked.filter_map(|(c, r)| Some(format!("{}: {}", c.name, r.err()?)));
        wrong.extend(failed);
    }
    assert!(
        cases.len() as u64 * 5 > count * 4,
        "{} of {count}: {refused:#?}",
        cases.len()
    );
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}

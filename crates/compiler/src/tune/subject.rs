//! A kernel of a plan as something that can be computed in several ways.

use super::alone::{self, Arg, Numbers, load, symbol_inputs};
use super::expect::{Expected, expected, far, multiplied};
use super::search::{Candidate, Checked, Rejected, Subject};
use kiln_base::plan::{Algorithm, Kernel};
use kiln_runtime::{Buffer, Error, cuda, memory};
use std::sync::{Arc, OnceLock};

/// Operands take at least so many bytes in all, so that they are cold when a run begins: more than the
/// second-level cache of a CPU holds, or the one of a GPU.
const COLD: [usize; 2] = [32 << 20, 256 << 20];
/// The most copies of the operands.
const COPIES: usize = 256;

/// A kernel and its candidates.
pub(super) struct KernelSubject {
    candidates: Vec<Candidate>,
    /// The same, as kernels with the same arguments.
    kernels: Vec<Kernel>,
    args: Vec<Arg>,
    /// The values of symbols.
    values: Vec<i64>,
    gpu: Option<Arc<cuda::Device>>,
    trial: OnceLock<Result<Trial, String>>,
}

/// What candidates are run on, and what they must give.
struct Trial {
    /// The arguments on the host; `None` for those that are written.
    given: Vec<Option<Buffer>>,
    symbols: Vec<Buffer>,
    /// Inputs of the program, several times, where it runs.
    inputs: Arc<Vec<Vec<Buffer>>>,
    expected: Expected,
    /// The default's results on the host.
    default: Vec<Buffer>,
}

impl KernelSubject {
    pub fn new(
        list: Vec<(Candidate, Kernel)>,
        args: Vec<Arg>,
        values: Vec<i64>,
        gpu: Option<Arc<cuda::Device>>,
    ) -> KernelSubject {
        let (candidates, kernels) = list.into_iter().unzip();
        KernelSubject {
            candidates,
            kernels,
            args,
            values,
            gpu,
            trial: OnceLock::new(),
        }
    }

    fn load(&self, candidate: usize) -> Result<kiln_runtime::Executable, Error> {
        let kernel = self.kernels[candidate].clone();
        let plan = alone::plan(kernel, &self.args, self.values.len());
        load(plan, self.gpu.as_ref())
    }

    /// The program's inputs where it runs.
    fn bring(&self, symbols: &[Buffer], given: &[Option<Buffer>]) -> Result<Vec<Buffer>, Error> {
        let inputs = symbols.iter().chain(given.iter().flatten());
        let brought = inputs.map(|b| match &self.gpu {
            None => Buffer::from_bytes(b.dtype(), b.shape(), b.bytes()?),
            Some(gpu) => b.to_gpu(gpu),
        });
        brought.collect()
    }

    fn trial(&self) -> Result<&Trial, String> {
        let made = self
            .trial
            .get_or_init(|| self.prepare().map_err(|e| e.to_string()));
        made.as_ref().map_err(Clone::clone)
    }

    fn prepare(&self) -> Result<Trial, Error> {
        let symbols = symbol_inputs(&self.values)?;
        let signed = multiplied(&self.kernels[0]);
        let mut random = Numbers(1);
        let mut given = Vec::new();
        for (i, arg) in self.args.iter().enumerate() {
            let len = arg.len.eval(&self.values);
            let signed = signed.contains(&(i as u16));
            let elements = || random.elements(arg.dtype, len, signed);
            given.push((!arg.written).then(elements).transpose()?);
        }
        let expected = expected(&self.kernels[0], &self.args, &given, &symbols)?;
        let mut inputs = vec![self.bring(&symbols, &given)?];
        let bytes: usize = given
            .iter()
            .flatten()
            .map(|b| b.len() * b.dtype().size())
            .sum();
        let cold = COLD[self.gpu.is_some() as usize];
        for _ in 1..(cold / bytes.max(1)).clamp(2, COPIES) {
            inputs.push(self.bring(&symbols, &given)?);
        }
        let default = self.load(0)?.run_shared(&inputs[0])?;
        let default = default.iter().map(Buffer::to_host);
        Ok(Trial {
            given,
            symbols,
            inputs: Arc::new(inputs),
            expected,
            default: default.collect::<Result<_, _>>()?,
        })
    }

    fn compare(&self, i: usize, trial: &Trial, got: &[Buffer]) -> Result<Option<String>, Error> {
        match &trial.expected {
            Expected::Product(product) => {
                let algorithm = self.kernels[i].algorithm().unwrap_or(Algorithm::Auto);
                product.compare(algorithm, got, &trial.given, &trial.symbols)
            }
            Expected::Default => {
                for (got, expected) in got.iter().zip(&trial.default) {
                    if let Some(text) = far(got, expected)? {
                        return Ok(Some(text));
                    }
                }
                Ok(None)
            }
        }
    }
}

impl Subject for KernelSubject {
    fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    fn start(&self, i: usize) -> Result<Checked, Rejected> {
        let failed = |e: Error| Rejected::Failed(e.to_string());
        let trial = self.trial().map_err(Rejected::Failed)?;
        let executable = self.load(i).map_err(failed)?;
        let (ran, peak) = memory::peak_during(|| executable.run_shared(&trial.inputs[0]));
        let got: Result<Vec<Buffer>, Error> = ran.and_then(|list| {
            let list = list.iter().map(Buffer::to_host);
            list.collect()
        });
        let got = got.map_err(failed)?;
        if let Some(text) = self.compare(i, trial, &got).map_err(failed)? {
            return Err(Rejected::Wrong(text));
        }
        let results: usize = got.iter().map(|b| b.len() * b.dtype().size()).sum();
        // Blocks of the results are rounded up by a quarter at most. On a GPU only what a plan asks for
        // is taken.
        let beside = match self.gpu {
            None => peak.saturating_sub(results + results / 4),
            Some(_) => 0,
        };
        let same = |(a, b): (&Buffer, &Buffer)| a.bytes().ok() == b.bytes().ok();
        let inputs = trial.inputs.clone();
        Ok(Checked {
            same_bits: got.iter().zip(&trial.default).all(same),
            workspace: beside as u64,
            run: Box::new(move |at| {
                let time = alone::time(&executable, &inputs[at % inputs.len()]);
                time.map_err(|e| e.to_string())
            }),
        })
    }
}

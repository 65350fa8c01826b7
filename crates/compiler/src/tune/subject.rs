//! A kernel of a plan as a subject with several candidates.

use super::alone::{self, Arg, IsolatedKernel, Numbers, load, symbol_inputs};
use super::candidates;
use super::expect::{Product, find_difference, product, product_operands};
use super::key::bytes;
use super::record::Outcome;
use super::search::{CandidateInfo, Checked, Subject};
use kiln_base::numel;
use kiln_codegen::{Approximation, Body, Candidate, Slot, Work, cpu_kernel};
use kiln_plan::tile::{Inst, TileProgram};
use kiln_plan::{Conv, Kernel, MatMul, Plan};
use kiln_runtime::{Buffer, Error, Executable, cuda, memory};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The minimum number of bytes of all operands together, on the CPU and on a GPU, where operands can't be evicted
/// from the caches: more than the second-level cache of a CPU holds, or the cache of a GPU. So operands are cold when
/// a run begins.
const COLD: [usize; 2] = [32 << 20, 256 << 20];
/// The maximum number of bytes of arguments to try: with the reference, a trial takes about ten times as many.
const MAX_BYTES: usize = 256 << 20;
/// The maximum number of copies of the operands.
const COPIES: usize = 256;
/// The maximum number of copies of parameters: an executable keeps the packed forms of only this many. Parameters must
/// not be packed right before a run is timed.
const PARAMETERS: usize = 4;
/// The number of runs that a GPU is given and timed at once, each on a copy of its own. Its clock, and the launch of
/// a graph, are too coarse for a kernel of a few microseconds.
const REPLAYS: usize = 32;

/// Candidates that compute the same results from the same arguments.
pub(super) struct KernelSubject {
    candidates: Vec<CandidateInfo>,
    /// A kernel of the CPU engine that defines their results; `None` for programs that are only compared with the
    /// default.
    kernel: Option<Kernel>,
    /// The approximation of each candidate.
    approximations: Vec<Option<Approximation>>,
    /// The programs that run them.
    plans: Vec<Plan>,
    /// The number of terms in the sums of fused work; `None` where results are not compared.
    terms: Option<i64>,
    args: Vec<Arg>,
    /// The values of symbols.
    values: Vec<i64>,
    gpu: Option<Arc<cuda::Device>>,
    trial: OnceLock<Result<TrialData, String>>,
}

/// The number of results that are compared bit by bit. If one run has fewer, several sets of operands are run: two
/// orders of a sum often give the same bits.
const RESULTS: usize = 1024;
/// The maximum number of sets of operands for that.
const OPERANDS: usize = 16;

/// The operands that candidates are run on, and the expected results.
struct TrialData {
    /// The first arguments on the host; `None` for those that are written.
    arguments: Vec<Option<Buffer>>,
    symbols: Vec<Buffer>,
    /// Inputs on the program's device: sets with different elements, then copies of these.
    inputs: Arc<Vec<Vec<Buffer>>>,
    /// The expected product; `None` if candidates are compared with the default.
    product: Option<Product>,
    /// The default's results on the host, for each distinct set of inputs.
    default: Vec<Vec<Buffer>>,
}

impl KernelSubject {
    /// The subject of candidates that compute some work.
    pub fn of_work(
        work: &Work,
        candidates: &[Candidate],
        values: Vec<i64>,
        gpu: Option<Arc<cuda::Device>>,
    ) -> KernelSubject {
        let plans = candidates.iter().map(|w| plan(w, &work.args, values.len()));
        let list = candidates::infos(candidates, &values)
            .into_iter()
            .zip(plans);
        let terms = match &work.body {
            Body::Fused(kernel) if !kernel.inner.is_empty() => numel(&kernel.inner).eval(&values),
            _ => 0,
        };
        KernelSubject {
            kernel: Some(cpu_kernel(work, true)),
            approximations: candidates.iter().map(|w| w.approximation).collect(),
            ..KernelSubject::of_plans(list.collect(), terms, work.args.clone(), values, gpu)
        }
    }

    /// The subject of programs with these arguments, with `terms` terms in their sums.
    pub fn of_plans(
        list: Vec<(CandidateInfo, Plan)>,
        terms: i64,
        args: Vec<Arg>,
        values: Vec<i64>,
        gpu: Option<Arc<cuda::Device>>,
    ) -> KernelSubject {
        let (candidates, plans): (Vec<CandidateInfo>, Vec<Plan>) = list.into_iter().unzip();
        KernelSubject {
            kernel: None,
            approximations: vec![None; plans.len()],
            terms: Some(terms),
            candidates,
            plans,
            args,
            values,
            gpu,
            trial: OnceLock::new(),
        }
    }

    /// The subject of whole programs of known sizes on the CPU, whose kernels were compared one by one. Their results
    /// are not compared, since random operands may give NaN in a whole network.
    pub fn of_networks(list: Vec<(CandidateInfo, Plan)>, args: Vec<Arg>) -> KernelSubject {
        KernelSubject {
            terms: None,
            ..KernelSubject::of_plans(list, 0, args, Vec::new(), None)
        }
    }

    fn bytes(&self, arg: &Arg) -> usize {
        bytes(arg.dtype, arg.len.eval(&self.values))
    }

    fn load(&self, candidate: usize) -> Result<Executable, Error> {
        load(self.plans[candidate].clone(), self.gpu.as_ref())
    }

    /// Returns the program's inputs on its device; parameters are those of `shared`, if given.
    fn bring(
        &self,
        symbols: &[Buffer],
        arguments: &[Option<Buffer>],
        shared: Option<&Vec<Buffer>>,
    ) -> Result<Vec<Buffer>, Error> {
        let read = self.args.iter().filter(|arg| !arg.written);
        let parameter = symbols.iter().map(|_| false);
        let parameter = parameter.chain(read.map(|arg| arg.fixed));
        let inputs = symbols
            .iter()
            .chain(arguments.iter().flatten())
            .zip(parameter);
        let buffers = inputs.enumerate().map(|(i, (b, parameter))| {
            match (shared.filter(|_| parameter), &self.gpu) {
                (Some(shared), _) => Ok(shared[i].clone()),
                (None, None) => Buffer::from_bytes(b.dtype(), b.shape(), b.bytes()?),
                (None, Some(gpu)) => b.to_gpu(gpu),
            }
        });
        buffers.collect()
    }

    fn trial(&self) -> Result<&TrialData, String> {
        let data = self
            .trial
            .get_or_init(|| self.prepare().map_err(|e| e.to_string()));
        data.as_ref().map_err(Clone::clone)
    }

    fn prepare(&self) -> Result<TrialData, Error> {
        let size = |arg: &Arg| self.bytes(arg);
        let symbols = symbol_inputs(&self.values)?;
        let results = self.args.iter().filter(|arg| arg.written);
        let results = results.map(|arg| arg.len.eval(&self.values) as usize);
        let different = RESULTS.div_ceil(results.min().unwrap_or(1).max(1));
        let different = different.clamp(1, OPERANDS);
        let mut random = Numbers(1);
        let operands = (0..different).map(|_| self.operands(&mut random));
        let operands = operands.collect::<Result<Vec<_>, Error>>()?;
        let read = self.args.iter().filter(|arg| !arg.written);
        let read: usize = read.map(size).sum();
        let cold = match self.gpu.is_none() && memory::can_evict() {
            true => 0,
            false => COLD[self.gpu.is_some() as usize],
        };
        let copies = (cold / read.max(1)).clamp(2, COPIES).max(different);
        let mut inputs: Vec<Vec<Buffer>> = Vec::new();
        for i in 0..copies {
            let shared = i.checked_sub(PARAMETERS).map(|_| &inputs[i % PARAMETERS]);
            let set = self.bring(&symbols, &operands[i % different], shared)?;
            inputs.push(set);
        }
        let default = self.load(0)?;
        let default = inputs[..different].iter().map(|i| run(&default, i));
        let default = default.collect::<Result<_, Error>>()?;
        let arguments = operands.into_iter().next().unwrap_or_default();
        let product = match &self.kernel {
            Some(kernel) => product(kernel, &self.args, &arguments, &symbols, self.gpu.is_some())?,
            None => None,
        };
        Ok(TrialData {
            product,
            arguments,
            symbols,
            inputs: Arc::new(inputs),
            default,
        })
    }

    /// Random elements for the arguments; `None` for those that are written.
    fn operands(&self, random: &mut Numbers) -> Result<Vec<Option<Buffer>>, Error> {
        let signed = self.kernel.as_ref().map_or_else(Vec::new, product_operands);
        let indices = self
            .plans
            .iter()
            .flat_map(|p| &p.kernels)
            .any(|k| takes_indices(k));
        let arg = |(i, arg): (usize, &Arg)| {
            let len = arg.len.eval(&self.values);
            let signed = signed.contains(&(i as u16));
            let elements = || random.elements(arg.dtype, len, signed, indices);
            (!arg.written).then(elements).transpose()
        };
        self.args.iter().enumerate().map(arg).collect()
    }

    fn compare(
        &self,
        i: usize,
        trial: &TrialData,
        got: &[Buffer],
    ) -> Result<Option<String>, Error> {
        match &trial.product {
            Some(product) => {
                let approximation = self.approximations[i];
                product.compare(approximation, got, &trial.arguments, &trial.symbols)
            }
            None => {
                let Some(terms) = self.terms else {
                    return Ok(None);
                };
                for (got, expected) in got.iter().zip(&trial.default[0]) {
                    let error = self.approximations[i].map_or(0.0, Approximation::error);
                    if let Some(text) = find_difference(got, expected, terms as f64, error)? {
                        return Ok(Some(text));
                    }
                }
                Ok(None)
            }
        }
    }
}

/// True if integers may be indices, as far as the kernel says.
fn takes_indices(kernel: &Kernel) -> bool {
    let dynamic = |t: &TileProgram| {
        let mut code = t.stages.iter().flat_map(|s| &s.code);
        code.any(|inst| matches!(inst, Inst::LoadAt { .. }))
    };
    match kernel {
        Kernel::Tile(t) => dynamic(t),
        Kernel::MatMul(MatMul { epilogue, .. }) | Kernel::Conv(Conv { epilogue, .. }) => {
            epilogue.as_ref().is_some_and(|e| dynamic(&e.program))
        }
        _ => true,
    }
}

/// The program that runs a candidate alone.
fn plan(candidate: &Candidate, args: &[Arg], symbols: usize) -> Plan {
    let calls = &candidate.calls;
    let kernels = calls.steps.iter().map(|step| IsolatedKernel {
        kernel: step.kernel.clone(),
        args: (step.args.iter())
            .map(|slot| match slot {
                Slot::Arg(a) => *a,
                Slot::Scratch(s) => args.len() + s,
            })
            .collect(),
        sites: step.sites.iter().map(|s| *s as u32).collect(),
    });
    let scratch = calls.scratch.iter();
    let scratch = scratch.map(|(dtype, shape)| (*dtype, numel(shape)));
    alone::plan_of(kernels.collect(), args, scratch.collect(), symbols)
}

/// Runs a program and returns its results on the host.
fn run(executable: &Executable, inputs: &[Buffer]) -> Result<Vec<Buffer>, Error> {
    let results = executable.run_shared(inputs)?;
    results.iter().map(Buffer::to_host).collect()
}

fn same_bytes(a: &[Buffer], b: &[Buffer]) -> bool {
    let equal = |(a, b): (&Buffer, &Buffer)| a.bytes().ok() == b.bytes().ok();
    a.iter().zip(b).all(equal)
}

impl Subject for KernelSubject {
    fn candidates(&self) -> &[CandidateInfo] {
        &self.candidates
    }

    fn is_too_large(&self) -> bool {
        self.args.iter().map(|arg| self.bytes(arg)).sum::<usize>() > MAX_BYTES
    }

    fn start(&self, i: usize) -> Result<Checked, Outcome> {
        let fail = |e: Error| Outcome::Failed(e.to_string());
        let trial = self.trial().map_err(Outcome::Failed)?;
        let executable = self.load(i).map_err(fail)?;
        let result = run(&executable, &trial.inputs[0]).map_err(fail)?;
        if let Some(text) = self.compare(i, trial, &result).map_err(fail)? {
            return Err(Outcome::Wrong(text));
        }
        let mut same_bits = same_bytes(&result, &trial.default[0]);
        for (inputs, default) in trial.inputs.iter().zip(&trial.default).skip(1) {
            same_bits = same_bits && same_bytes(&run(&executable, inputs).map_err(fail)?, default);
        }
        let inputs = trial.inputs.clone();
        let mut time: Box<dyn FnMut(usize) -> Result<Duration, Error>> = match &self.gpu {
            None => {
                // The memory of its results is cold from the second run on.
                alone::time(&executable, &inputs[0]).map_err(fail)?;
                Box::new(move |at| alone::time(&executable, &inputs[at % inputs.len()]))
            }
            Some(_) => {
                let replays = Arc::new(executable).replays(&inputs, REPLAYS);
                let replays = replays.map_err(fail)?;
                Box::new(move |at| replays.time(at))
            }
        };
        Ok(Checked {
            same_bits,
            run: Box::new(move |at| time(at).map_err(|e| e.to_string())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::search::Subject as _;
    use super::*;
    use kiln_base::{DType, Dim};
    use kiln_codegen::{KernelCalls, Schedule};
    use kiln_plan::Decision;
    use kiln_plan::{ConvRole, Images, Matrix};

    fn dims(list: &[i64]) -> Vec<Dim> {
        list.iter().map(|d| Dim::Const(*d)).collect()
    }

    fn matmul(dtype: DType, [m, k, n]: [i64; 3]) -> (MatMul, Vec<Arg>) {
        let matrix = |arg, width: i64| Matrix {
            arg,
            offset: Dim::ZERO,
            batch_strides: Vec::new(),
            row: Dim::Const(width),
            col: Dim::ONE,
        };
        let product = MatMul {
            dtypes: [dtype; 2],
            reduce_range: false,
            batch: Vec::new(),
            m: Dim::Const(m),
            k: Dim::Const(k),
            n: Dim::Const(n),
            lhs: matrix(0, k),
            rhs: matrix(1, n),
            out: 2,
            prologues: [None, None],
            epilogue: None,
            algorithm: Default::default(),
        };
        let arg = |len, written| Arg {
            dtype,
            len: Dim::Const(len),
            written,
            fixed: false,
        };
        let args = vec![arg(m * k, false), arg(k * n, false), arg(m * n, true)];
        (product, args)
    }

    fn conv(role: ConvRole) -> (Conv, Vec<Arg>) {
        let [x, w, y] = [2 * 6 * 9 * 8, 2 * 5 * 3 * 9, 2 * 10 * 9 * 8];
        let lens = match role {
            ConvRole::Result => [x, w, y],
            ConvRole::Input => [y, w, x],
            ConvRole::Weight => [x, y, w],
        };
        let conv = Conv {
            dtypes: [DType::F32; 2],
            reduce_range: false,
            role,
            batch: Dim::Const(2),
            groups: Dim::Const(2),
            in_channels: Dim::Const(3),
            out_channels: Dim::Const(5),
            input: dims(&[9, 8]),
            output: dims(&[9, 8]),
            kernel: dims(&[3, 3]),
            stride: dims(&[1, 1]),
            padding: dims(&[1, 1]),
            dilation: dims(&[1, 1]),
            operands: [0, 1],
            out: 2,
            prologue: None,
            epilogue: None,
            algorithm: Default::default(),
            images: Default::default(),
        };
        let arg = |(i, len): (usize, &i64)| Arg {
            dtype: DType::F32,
            len: Dim::Const(*len),
            written: i == 2,
            fixed: i == 1,
        };
        (conv, lens.iter().enumerate().map(arg).collect())
    }

    /// The subject of kernels that should compute the same results as the first.
    fn subject(kernels: Vec<Kernel>, args: Vec<Arg>) -> KernelSubject {
        let work = Work {
            body: match kernels[0].clone() {
                Kernel::MatMul(m) => Body::MatMul(m),
                Kernel::Conv(c) => Body::Conv(c),
                other => panic!("{} is not tried here", other.name()),
            },
            prologues: [None, None],
            epilogue: None,
            args,
            in_place: Vec::new(),
        };
        // By the default algorithm, where none is named.
        let candidate = |mut kernel: Kernel| {
            if kernel.decision().is_none() {
                kernel.decide(kernel.by_default(false, true));
            }
            let by = kernel.decision().and_then(Decision::one);
            let by = by.map(|by| by.algorithm).filter(|by| !by.only_sums());
            Candidate {
                schedule: Schedule::Default,
                approximation: by.map(Approximation::Algorithm),
                predicted: None,
                calls: KernelCalls::one(kernel, &work),
            }
        };
        let candidates: Vec<Candidate> = kernels.into_iter().map(candidate).collect();
        KernelSubject::of_work(&work, &candidates, Vec::new(), None)
    }

    /// The outcome of trying each of these kernels, of which the first is right.
    fn tried(kernels: Vec<Kernel>, args: Vec<Arg>) -> Vec<Result<bool, Outcome>> {
        let count = kernels.len();
        let subject = subject(kernels, args);
        let start = |i| subject.start(i).map(|checked| checked.same_bits);
        (0..count).map(start).collect()
    }

    #[test]
    fn products_that_are_wrong_in_one_element_or_one_term_are_found() {
        for (dtype, sizes) in [
            (DType::F32, [7, 300, 5]),
            (DType::F32, [3, 4000, 2]),
            (DType::F64, [7, 300, 5]),
            (DType::F32, [1, 1, 1]),
        ] {
            let (right, args) = matmul(dtype, sizes);
            let change = |f: fn(&mut MatMul)| {
                let mut wrong = right.clone();
                f(&mut wrong);
                Kernel::MatMul(wrong)
            };
            let all = tried(
                vec![
                    Kernel::MatMul(right.clone()),
                    change(|m| m.k = &m.k - &Dim::ONE),
                    change(|m| m.m = &m.m - &Dim::ONE), // leaves a row of old memory
                    change(|m| m.lhs.row = Dim::ZERO),
                ],
                args,
            );
            assert_eq!(all[0], Ok(true), "{sizes:?}");
            for wrong in &all[1..3] {
                assert!(
                    matches!(wrong, Err(Outcome::Wrong(_))),
                    "{sizes:?}: {wrong:?}"
                );
            }
            let one_row = sizes[0] == 1;
            assert_eq!(all[3].is_ok(), one_row, "{sizes:?}: {:?}", all[3]);
        }
    }

    #[test]
    fn convolutions_and_their_gradients_that_are_wrong_are_found() {
        for role in [ConvRole::Result, ConvRole::Input, ConvRole::Weight] {
            let (right, args) = conv(role);
            let mut list = vec![Kernel::Conv(right.clone())];
            let legal = Kernel::Conv(right.clone()).algorithms(&[]);
            list.extend(legal.iter().map(|a| Kernel::Conv(right.clone()).by(*a)));
            // Shifted by one, and with taps further apart.
            list.push(Kernel::Conv(Conv {
                padding: dims(&[1, 0]),
                ..right.clone()
            }));
            list.push(Kernel::Conv(Conv {
                dilation: dims(&[1, 2]),
                ..right.clone()
            }));
            let all = tried(list, args);
            for (i, found) in all.iter().enumerate() {
                let right = i <= legal.len();
                assert_eq!(found.is_ok(), right, "{role:?} {i}: {found:?}");
            }
            assert_eq!(all[0], Ok(true));
        }
    }

    #[test]
    fn wrong_convolutions_of_images_with_channels_last_are_found() {
        for images in [Images::ChannelsLast, Images::ToChannelsLast] {
            let (first, args) = conv(ConvRole::Result);
            let right = Conv { images, ..first };
            let wrong = Conv {
                padding: dims(&[1, 0]),
                ..right.clone()
            };
            let all = tried(vec![Kernel::Conv(right), Kernel::Conv(wrong)], args);
            assert!(all[0].is_ok(), "{images:?}: {:?}", all[0]);
            assert!(matches!(all[1], Err(Outcome::Wrong(_))), "{:?}", all[1]);
        }
    }

    #[test]
    fn times_are_taken() {
        let (product, args) = matmul(DType::F32, [64, 64, 64]);
        let subject = subject(vec![Kernel::MatMul(product)], args);
        let mut checked = subject.start(0).unwrap_or_else(|e| panic!("{e:?}"));
        for input in 0..300 {
            assert!((checked.run)(input).unwrap().as_nanos() > 0);
        }
    }
}

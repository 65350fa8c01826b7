//! cuBLASLt as a yardstick: the best of the algorithms that it advises for a product, in this process and in turns with
//! Kiln's kernels.

use super::{check_finite, median, random};
use crate::{Failed, Report, Settings};
use kiln_base::Dim;
use kiln_ir::fuzz::Rng;
use kiln_plan::{
    Allocation, Buffer as PlanBuffer, BufferId, Input, Kernel, LibraryMatrix, LibraryProduct,
    Output, Plan, Role, Step,
};
use kiln_runtime::{Buffer, Executable, Replays, cuda};
use kiln_tensor::DType;
use std::sync::Arc;

/// M, N and K of the products that measure the peak of the library.
pub(crate) const PEAK_SIZE: usize = 8192;
/// Rounds of these products.
const PEAK_ROUNDS: usize = 9;

/// True if the library is found; else a note says why it is not measured. On the emulated device, a variable names its
/// stand-in.
pub(crate) fn has_cublas(settings: &Settings, report: &mut Report) -> bool {
    if settings.emulated() && std::env::var_os("KILN_CUBLASLT").is_none() {
        return false;
    }
    let version = cuda::cublas_lt_version();
    if let Err(e) = &version {
        report.note(format!("cuBLASLt is not measured: {e}"));
    }
    version.is_ok()
}

/// A product by each of the library's algorithms, with its seconds in each round.
pub(crate) struct Yardstick(Vec<(Replays, Vec<f64>)>);

impl Yardstick {
    /// A product of `m × k` and `k × n` matrices, on each of these pairs.
    pub(crate) fn new(
        gpu: &Arc<cuda::Device>,
        dtype: DType,
        [m, n, k]: [usize; 3],
        runs: &[Vec<Buffer>],
    ) -> Result<Yardstick, Failed> {
        let [m, n, k] = [m, n, k].map(|size| size as i64);
        let rows = |arg: u16, leading: i64| LibraryMatrix {
            arg,
            offset: 0,
            transposed: false,
            leading,
            batch_stride: 0,
        };
        let product = LibraryProduct {
            dtype,
            stored: dtype,
            tf32: false,
            batch: 1,
            m,
            k,
            n,
            operands: [rows(0, k), rows(1, n)],
            out: 2,
            workspace: None,
            workspace_bytes: 0,
            algorithm: [0; 8],
        };
        let mut algorithms = Vec::new();
        for algorithm in cuda::library_algorithms(gpu, &product)? {
            let product = LibraryProduct {
                workspace: (algorithm.workspace > 0).then_some(3),
                workspace_bytes: algorithm.workspace,
                algorithm: algorithm.description,
                ..product.clone()
            };
            let executable = Arc::new(Executable::on_gpu(plan(product), gpu)?);
            check_finite(&executable, &runs[0])?;
            algorithms.push((executable.replays(runs, runs.len())?, Vec::new()));
        }
        match algorithms.is_empty() {
            true => Err("no algorithm is advised".into()),
            false => Ok(Yardstick(algorithms)),
        }
    }

    /// Measures each algorithm once more.
    pub(crate) fn time(&mut self, round: usize) -> Result<(), Failed> {
        for (replays, seconds) in &mut self.0 {
            seconds.push(replays.time(round)?.as_secs_f64());
        }
        Ok(())
    }

    /// The seconds of the best algorithm in each round.
    pub(crate) fn best(&self) -> &[f64] {
        let timings = self.0.iter().map(|(_, seconds)| &seconds[..]);
        let best = timings.min_by(|a, b| median(a).total_cmp(&median(b)));
        best.expect("there is an algorithm")
    }
}

/// The plan of a product of two inputs.
fn plan(product: LibraryProduct) -> Plan {
    let LibraryProduct {
        dtype,
        m,
        k,
        n,
        workspace_bytes,
        ..
    } = product;
    let input = |shape: [i64; 2], buffer| Input {
        dtype,
        shape: shape.map(Dim::from).into(),
        role: Role::Data,
        buffer: BufferId(buffer),
    };
    let buffer = |dtype, len: i64, allocation| PlanBuffer {
        dtype,
        len: len.into(),
        allocation,
    };
    let mut buffers = vec![
        buffer(dtype, m * k, Allocation::Input),
        buffer(dtype, k * n, Allocation::Input),
        buffer(dtype, m * n, Allocation::Output),
    ];
    if workspace_bytes > 0 {
        let bytes = workspace_bytes as i64;
        buffers.push(buffer(DType::U8, bytes, Allocation::Temporary));
    }
    Plan {
        inputs: vec![input([m, k], 0), input([k, n], 1)],
        outputs: vec![Output {
            dtype,
            shape: [m, n].map(Dim::from).into(),
            buffer: BufferId(2),
            donor: None,
        }],
        run: vec![Step {
            kernel: 0,
            args: (0..buffers.len() as u32).map(BufferId).collect(),
            sites: Vec::new(),
            concurrent: false,
            guard: None,
        }],
        buffers,
        kernels: vec![Arc::new(Kernel::Library(Box::new(product)))],
        commit: 1,
        ..Plan::default()
    }
}

/// Operations a second of large products by the best algorithm, measured several times.
pub(crate) fn peak_rates(gpu: &Arc<cuda::Device>, dtype: DType) -> Result<Vec<f64>, Failed> {
    let shape = [PEAK_SIZE as i64; 2];
    let matrix = |seed| Ok(random(dtype, &shape, &mut Rng::new(seed))?.to_gpu(gpu)?);
    let operands = [1, 2].map(matrix).into_iter();
    let run = operands.collect::<Result<Vec<Buffer>, Failed>>()?;
    let mut products = Yardstick::new(gpu, dtype, [PEAK_SIZE; 3], &[run])?;
    (0..PEAK_ROUNDS).try_for_each(|round| products.time(round))?;
    let flops = 2.0 * (PEAK_SIZE as f64).powi(3);
    Ok(products.best().iter().map(|s| flops / s).collect())
}

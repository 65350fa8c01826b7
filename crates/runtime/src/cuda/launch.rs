//! Kernels with known sizes, and launching them.

use super::driver::{Address, call, sys};
use super::loader::Loader;
use super::module::{Function, Unloaded};
use super::stream::Stream;
use crate::error::{Error, Result, damaged};
use crate::kernels::calls::{Calls, Ends};
use crate::kernels::work::{Expand, Work};
use kiln_plan::cuda::CudaKernel;
use kiln_plan::{Kernel, Plan};
use smallvec::SmallVec;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// A kernel with known sizes.
pub(crate) struct Launch {
    function: Function,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    scalars: Vec<i64>,
    sites: usize,
}

impl Work for Launch {
    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<Ends> {
        calls.add(with.within.call(self, with.args))
    }

    fn can_fail(&self) -> bool {
        self.sites() > 0
    }
}

/// The most blocks along x, y and z.
pub(super) const GRID: [i64; 3] = [i32::MAX as i64, 65535, 65535];

impl Launch {
    fn new(kernel: &CudaKernel, function: Function, values: &[i64]) -> Result<Launch> {
        let mut grid = [0; 3];
        for (i, blocks) in kernel.grid.iter().enumerate() {
            let points = blocks.points.eval_checked(values).filter(|p| *p >= 0);
            let count = points.map(|p| (p as u64).div_ceil(u64::from(blocks.each.max(1))) as i64);
            let count = count.filter(|n| *n <= GRID[i]);
            grid[i] =
                count.ok_or_else(|| damaged!("{}: a grid of too many blocks", kernel.name))? as u32;
        }
        let scalars = kernel.scalars.iter().map(|d| {
            let value = d.eval_checked(values);
            value.ok_or_else(|| damaged!("{}: {d} has no value", kernel.name))
        });
        Ok(Launch {
            function,
            grid,
            block: kernel.block,
            shared: kernel.shared,
            sites: kernel.sites as usize,
            scalars: scalars.collect::<Result<_>>()?,
        })
    }

    /// How many places in it can report a data error.
    pub(crate) fn sites(&self) -> usize {
        self.sites
    }

    /// A kernel that is no plan's, linked.
    pub(super) fn of(
        loader: &Loader,
        kernel: Unloaded,
        grid: [u32; 3],
        block: [u32; 3],
        scalars: Vec<i64>,
    ) -> Result<Arc<Launch>> {
        let shared = kernel.shared;
        let function = loader.functions(&[kernel])?.swap_remove(0); // as many as kernels
        Ok(Arc::new(Launch {
            function,
            grid,
            block,
            shared,
            scalars,
            sites: 0,
        }))
    }

    /// The CUDA kernels of a plan, linked for these sizes; nothing in the place of the others.
    pub(crate) fn all(
        loader: &Loader,
        plan: &Plan,
        values: &[i64],
    ) -> Result<Vec<Option<Arc<Launch>>>> {
        let mut functions = loader.functions(&cuda_kernels(plan, false))?.into_iter();
        let link = |kernel: &Arc<Kernel>| match &**kernel {
            Kernel::Cuda(k) => {
                let function = functions.next();
                let lost = || Error::Internal("fewer functions than kernels".into());
                let launch = Launch::new(k, function.ok_or_else(lost)?, values)?;
                Ok(Some(Arc::new(launch)))
            }
            _ => Ok(None),
        };
        plan.kernels.iter().map(link).collect()
    }
}

/// The CUDA kernels of a plan, and with `bodies` those of the plans in it.
pub(super) fn cuda_kernels(plan: &Plan, bodies: bool) -> Vec<Unloaded<'_>> {
    let mut found = Vec::new();
    for kernel in &plan.kernels {
        if let Kernel::Cuda(k) = &**kernel {
            found.push(k.into());
        }
        let inner = kernel.bodies().iter().filter(|_| bodies);
        found.extend(inner.flat_map(|body| cuda_kernels(body, true)));
    }
    found
}

impl Loader {
    /// Compiles or loads every kernel of a plan; they are loaded as long as somebody holds them.
    pub(crate) fn prepare(&self, plan: &Plan) -> Result<Vec<Function>> {
        self.functions(&cuda_kernels(plan, true))
    }
}

/// A launch and what it is called with.
pub(crate) struct Call<'a> {
    pub(crate) launch: &'a Launch,
    pub(crate) args: SmallVec<[*mut u8; 12]>,
    /// The plan's numbers of its sites, at least as many as the kernel has.
    pub(crate) sites: SmallVec<[u32; 2]>,
    /// The error record.
    pub(crate) record: Address,
    /// Whether an error before leaves out its effect.
    pub(crate) guarded: bool,
    /// The plan's step that it belongs to.
    pub(crate) step: usize,
    /// The calls before it, by position, that it waits for.
    pub(crate) after: SmallVec<[u32; 4]>,
}

/// Every parameter of a call in 8 bytes; narrow ones are read from the low end.
pub(super) type Words = SmallVec<[u64; 16]>;

impl Call<'_> {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.launch.grid.contains(&0)
    }

    pub(super) fn words(&self) -> Words {
        let l = self.launch;
        let mut words = Words::new();
        words.extend(self.args.iter().map(|p| *p as u64));
        words.extend(l.scalars.iter().map(|s| *s as u64));
        words.extend(self.sites[..l.sites].iter().map(|s| u64::from(*s)));
        words.push(self.record);
        words.push(u64::from(self.guarded));
        words
    }

    /// Calls `with` on the launch as a graph's node, which points to `words` and is good for as long.
    pub(super) fn node<T>(
        &self,
        words: &mut Words,
        with: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> T,
    ) -> T {
        let l = self.launch;
        let mut parameters: SmallVec<[*mut c_void; 16]> =
            words.iter_mut().map(|w| (&raw mut *w).cast()).collect();
        with(&sys::CUDA_KERNEL_NODE_PARAMS {
            func: l.function.handle.0,
            gridDimX: l.grid[0],
            gridDimY: l.grid[1],
            gridDimZ: l.grid[2],
            blockDimX: l.block[0],
            blockDimY: l.block[1],
            blockDimZ: l.block[2],
            sharedMemBytes: l.shared,
            kernelParams: parameters.as_mut_ptr(),
            extra: null_mut(),
            // Instead of the function.
            kern: null_mut(),
            // The current one.
            ctx: null_mut(),
        })
    }

    /// Gives the launch to a stream.
    pub(super) fn launch(&self, stream: &Stream) -> Result<()> {
        let ([x, y, z], [bx, by, bz]) = (self.launch.grid, self.launch.block);
        let launched = self.node(&mut self.words(), |n| {
            let (function, shared, stream) = (n.func, n.sharedMemBytes, stream.handle());
            let (values, extra) = (n.kernelParams, n.extra);
            // SAFETY: the function is loaded and takes these parameters, which the driver copies; the
            // plan's check and its binding say that the memory behind the pointers is large enough.
            unsafe {
                call!(cuLaunchKernel(
                    function, x, y, z, bx, by, bz, shared, stream, values, extra
                ))
            }
        });
        Ok(launched?)
    }
}

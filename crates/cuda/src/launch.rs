//! Kernels with known sizes, and launching them.

use super::cublaslt::LibraryLaunch;
use super::driver::{MAP, call, sys};
use super::loader::Loader;
use super::module::{Function, Unloaded, cuda_kernels};
use super::stream::Stream;
use super::tensor_map::Map;
use kiln_kernel::calls::{self, Calls, LastCalls, LaunchCall};
use kiln_kernel::error::{Error, Result, damaged};
use kiln_kernel::work::{Expand, LinkedKernel};
use kiln_plan::cuda::{ARGUMENT_ALIGN, CudaKernel};
use kiln_plan::{Kernel, Plan};
use smallvec::SmallVec;
use std::any::Any;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// A kernel with known sizes.
pub struct Launch {
    function: Function,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    scalars: Vec<i64>,
    sites: usize,
    maps: Vec<Map>,
}

impl calls::Launch for Launch {
    fn sites(&self) -> usize {
        self.sites
    }

    fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

impl LinkedKernel for Launch {
    fn expand(&self, with: Expand, calls: &mut Calls) -> Result<LastCalls> {
        calls.add(with.context.call(self, with.args))
    }

    fn can_fail(&self) -> bool {
        self.sites > 0
    }
}

/// The maximum number of blocks along x, y and z.
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
        let maps = kernel.maps.iter().map(|m| Map::new(kernel, m, values));
        Ok(Launch {
            function,
            grid,
            block: kernel.block,
            shared: kernel.shared,
            sites: kernel.sites as usize,
            maps: maps.collect::<Result<_>>()?,
            scalars: scalars.collect::<Result<_>>()?,
        })
    }

    /// A kernel that belongs to no plan, linked.
    pub(super) fn of(
        loader: &Loader,
        kernel: Unloaded,
        grid: [u32; 3],
        block: [u32; 3],
        scalars: Vec<i64>,
    ) -> Result<Arc<Launch>> {
        let shared = kernel.shared;
        let function = loader.functions(&[kernel])?.swap_remove(0); // one per kernel
        Ok(Arc::new(Launch {
            function,
            grid,
            block,
            shared,
            scalars,
            sites: 0,
            maps: Vec::new(),
        }))
    }

    /// The CUDA kernels of a plan, linked for these sizes; `None` for kernels of other engines.
    pub fn all(loader: &Loader, plan: &Plan, values: &[i64]) -> Result<Vec<Option<Arc<Launch>>>> {
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

impl Loader {
    /// Compiles or loads every kernel of a plan; they stay loaded while the functions are held.
    pub fn prepare(&self, plan: &Plan) -> Result<Vec<Function>> {
        self.functions(&cuda_kernels(plan, true))
    }
}

/// Every parameter of a call in 8 bytes, and each tensor map, which come last, in 128; narrow ones occupy the low end.
pub(super) type Words = SmallVec<[u64; 16]>;

impl Launch {
    /// The launch of a call.
    ///
    /// # Errors
    /// [`Error::Internal`] if it belongs to another engine.
    pub(super) fn of_call<'a>(call: &LaunchCall<'a>) -> Result<&'a Launch> {
        let launch: &dyn Any = call.launch;
        let other = || Error::Internal("a launch of another engine".into());
        launch.downcast_ref().ok_or_else(other)
    }

    /// The parameters of a call.
    ///
    /// # Errors
    /// If an argument is not aligned, or the driver refuses a tensor map.
    pub(super) fn words(&self, call: &LaunchCall) -> Result<Words> {
        let is_aligned = |p: &&*mut u8| p.addr().is_multiple_of(ARGUMENT_ALIGN);
        if let Some(p) = call.args.iter().find(|p| !is_aligned(p)) {
            return Err(Error::Internal(format!("an argument of a kernel at {p:?}")));
        }
        let mut words = Words::new();
        words.extend(call.args.iter().map(|p| *p as u64));
        words.extend(self.scalars.iter().map(|s| *s as u64));
        words.extend(call.sites[..self.sites].iter().map(|s| u64::from(*s)));
        words.push(call.record);
        words.push(u64::from(call.guarded));
        for map in &self.maps {
            words.extend(map.encode(call.args[map.arg] as u64)?);
        }
        Ok(words)
    }

    /// Calls `f` with the launch as a graph's node, which points to `words`.
    pub(super) fn node<T>(
        &self,
        words: &mut Words,
        f: impl FnOnce(&sys::CUDA_KERNEL_NODE_PARAMS) -> T,
    ) -> T {
        let scalar_count = words.len() - MAP * self.maps.len();
        let (scalars, maps) = words.split_at_mut(scalar_count);
        let pointers = scalars.chunks_mut(1).chain(maps.chunks_mut(MAP));
        let mut parameters: SmallVec<[*mut c_void; 16]> =
            pointers.map(|words| words.as_mut_ptr().cast()).collect();
        f(&sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.function.handle.0,
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.block[0],
            blockDimY: self.block[1],
            blockDimZ: self.block[2],
            sharedMemBytes: self.shared,
            kernelParams: parameters.as_mut_ptr(),
            extra: null_mut(),
            // The function is set instead.
            kern: null_mut(),
            // The current context.
            ctx: null_mut(),
        })
    }

    /// Enqueues the launch on a stream.
    pub(super) fn run(call: &LaunchCall, stream: &Stream) -> Result<()> {
        if let Some(library) = LibraryLaunch::of_call(call) {
            return library.run(&call.args, stream);
        }
        let launch = Launch::of_call(call)?;
        let ([x, y, z], [bx, by, bz]) = (launch.grid, launch.block);
        let launched = launch.node(&mut launch.words(call)?, |n| {
            let (function, shared, stream) = (n.func, n.sharedMemBytes, stream.handle());
            let (values, extra) = (n.kernelParams, n.extra);
            // SAFETY: the function is loaded and takes these parameters, which the driver copies; checking and
            // binding the plan proved that the memory behind the pointers is large enough.
            unsafe {
                call!(cuLaunchKernel(
                    function, x, y, z, bx, by, bz, shared, stream, values, extra
                ))
            }
        });
        Ok(launched?)
    }
}

//! Kernels that read along one axis and write along another. A block transposes tiles in shared memory: the threads of
//! a warp both read and write neighbouring elements.

use super::job::Job;
use super::source::{Source, memory};
use super::values::{Values, declare_indices};
use super::vector::Vector;
use super::walk;
use crate::kir::{Expr, Kernel, Val};
use kiln_base::{Dim, ceil, numel};
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::{Blocks, CudaCpp, CudaKernel};

/// The number of points of a tile along either axis.
const TILE: i64 = 32;
const THREADS: u32 = 256;
/// The minimum extent of either axis. Shorter ones leave tiles nearly empty.
const MIN_EXTENT: i64 = 16;
/// The maximum number of loads whose tiles fit into shared memory.
const MAX_LOADS: usize = 4;

/// The loads of a kernel that go through shared memory.
pub(super) struct Transposition {
    /// The axis along which loads are contiguous. Stores are contiguous along the last axis.
    axis: usize,
    loads: Vec<Val>,
}

impl Transposition {
    /// Returns the transposition of a kernel, if tiles suit all of its accesses.
    pub fn of(kernel: &Kernel) -> Option<Transposition> {
        let last = kernel.axes.len().checked_sub(1)?;
        let access = |i: u16| &kernel.accesses[usize::from(i)];
        let mut stores = kernel.stores.iter();
        let is_row = stores.all(|s| s.combine.is_none() && access(s.access).strides[last].is(1));
        let mut read_along = None;
        let mut loads = Vec::new();
        for (v, def) in (0..).map(Val).zip(&kernel.body) {
            let Expr::Load { access: i } = def.expr else {
                continue;
            };
            let a = access(i);
            if matches!(a.strides[last].as_const(), Some(0 | 1)) {
                continue;
            }
            let axis = a.strides[..last].iter().position(|s| s.is(1))?;
            let of_arg = kernel.accesses.iter().filter(|o| o.arg == a.arg);
            if !a.bounds.is_empty() || of_arg.count() > 1 || read_along.is_some_and(|r| r != axis) {
                return None;
            }
            read_along = Some(axis);
            loads.push(v);
        }
        let axis = read_along?;
        let is_long = |axis: usize| {
            kernel.axes[axis]
                .as_const()
                .is_some_and(|n| n >= MIN_EXTENT)
        };
        let fits = kernel.inner.is_empty() && is_row && is_long(axis) && is_long(last);
        (fits && loads.len() <= MAX_LOADS).then_some(Transposition { axis, loads })
    }
}

/// Emits the kernel, with fast math if `fast`.
pub(super) fn emit(job: Job, kernel: &Kernel, plan: &Transposition, fast: bool) -> CudaKernel {
    let mut source = job.source(kernel, &job.in_place);
    let index = source.index;
    let mut values = Values::new(kernel);
    values.fast = fast;
    let arg_of = |v: &Val| match &kernel.body[v.index()].expr {
        Expr::Load { access } => usize::from(kernel.accesses[usize::from(*access)].arg),
        _ => unreachable!("only loads are staged"),
    };
    let staged: Vec<(Val, usize)> = plan.loads.iter().map(|v| (*v, arg_of(v))).collect();
    let tile = |(_, arg): &(Val, usize)| {
        let ty = memory(kernel.args[*arg].dtype);
        format!(" {ty} tile{arg}[{TILE}][{TILE} + 1];")
    };
    let tiles: String = staged.iter().map(tile).collect();
    source.scope(&format!("struct Shared {{{tiles} }};"));
    source.shared("Shared");
    let last = kernel.axes.len() - 1;
    let mut extents = kernel.axes.clone();
    for axis in [plan.axis, last] {
        let extent = extents[axis].as_const().expect("tiles have known extents");
        extents[axis] = Dim::Const(ceil(extent, TILE));
    }
    let ty = index.name();
    source.line(format!("const {ty} tile = blockIdx.x;"));
    let names = declare_indices(&mut source, "a", &extents, "tile", &|_| true);
    source.line(format!(
        "const {ty} read = {} * {TILE}, written = {} * {TILE};",
        names[plan.axis], names[last]
    ));
    source.line("const int lane = threadIdx.x % 32;");
    values.indices[..names.len()].clone_from_slice(&names);
    let mut walk = |source: &mut Source, [at_read, at_written]: [&str; 2]| {
        values.indices[plan.axis] = format!("(read + {at_read})");
        values.indices[last] = format!("(written + {at_written})");
        let [read, written] = [plan.axis, last].map(|axis| source.dim(&kernel.axes[axis]));
        source.line("#pragma unroll");
        let step = THREADS / 32;
        source.line(format!(
            "for (int i = threadIdx.x / 32; i < {TILE}; i += {step}) {{"
        ));
        source.line(format!(
            "if (read + {at_read} >= {read} || written + {at_written} >= {written}) break;"
        ));
        if at_read == "lane" {
            for (v, arg) in &staged {
                let address = values.load_address(source, *v);
                source.line(format!("shared.tile{arg}[i][lane] = arg{arg}[{address}];"));
            }
        } else {
            for (_, arg) in &staged {
                let element = format!("shared.tile{arg}[lane][i]");
                let element = CudaCpp::loaded(&element, kernel.args[*arg].dtype);
                values.replace(*arg, element);
            }
            walk::emit(source, &mut values, kernel, &Vector::scalar(kernel));
        }
        source.line("}");
    };
    walk(&mut source, ["lane", "i"]);
    source.line("__syncthreads();");
    walk(&mut source, ["i", "lane"]);
    let grid = Blocks {
        points: numel(&extents),
        each: 1,
    };
    source.finish([grid, Blocks::one(), Blocks::one()], [THREADS, 1, 1])
}

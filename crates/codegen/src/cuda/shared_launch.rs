//! Concurrent kernels in one launch.
//!
//! Each kernel launch on a GPU has a cost, and the last blocks of each leave most of the GPU idle. So independent
//! kernels, none of which fills the GPU for long, become one launch. Its blocks are divided among the kernels, whose
//! code is unchanged. Examples are the gradients of queries and of keys, or the updates of all biases. The compiler
//! chooses the kernels of a launch.

use super::parts;
use crate::Cost;
use crate::program::BufId;
use crate::sequence::{Launch, Sequence};
use kiln_base::{Dim, Machine};
use kiln_ir::NodeId;
use kiln_plan::Kernel;
use kiln_plan::cuda::{Blocks, CudaKernel, SharedLaunch};

/// The maximum number of kernels of a launch.
const MAX_KERNELS: usize = 16;
/// The maximum number of products and convolutions of a launch, which take long to compile.
const MAX_PRODUCTS: usize = 4;
/// The maximum number of pointers of a launch.
const MAX_ARGS: usize = 256;
/// The maximum size of a merged kernel, in waves of threads with the maximum number of registers. A larger kernel keeps
/// the GPU busy alone.
const MAX_WAVES: i64 = 2;

/// True if a launch may be merged with others: it is for a GPU, its size is known and small, and it can't fail.
pub fn shares_a_launch(sequence: &Sequence, launch: &Launch) -> bool {
    as_part(sequence, launch).is_some()
}

/// True if launches that each [may be merged](shares_a_launch) can be merged into one: their blocks have equally many
/// threads, and beside products, which take many registers, other kernels have at most one block per multiprocessor.
pub fn fit_in_a_launch(sequence: &Sequence, launches: &[&Launch]) -> bool {
    let Machine::Gpu(gpu) = &sequence.machine else {
        return false;
    };
    let parts = launches.iter().filter_map(|l| as_part(sequence, l));
    let parts: Vec<&CudaKernel> = parts.collect();
    let is_product = |k: &CudaKernel| k.text.shared_launch == SharedLaunch::Few;
    let products = parts.iter().filter(|k| is_product(k)).count();
    let is_light = |k: &CudaKernel| is_product(k) || k.grid[0].count(&[]) <= gpu.processors.into();
    parts.len() == launches.len()
        && parts.len() <= MAX_KERNELS
        && products <= MAX_PRODUCTS
        && (products == 0 || parts.iter().all(|k| is_light(k)))
        && parts.iter().all(|k| k.block == parts[0].block)
        && parts.iter().map(|k| k.args.len()).sum::<usize>() <= MAX_ARGS
}

/// Returns the sequence with the launches of each group merged into one, in the order of the groups.
///
/// # Panics
/// If a group of several does not [fit](fit_in_a_launch).
pub fn merge_launches(sequence: &Sequence, groups: &[Vec<usize>]) -> Sequence {
    let launch = |group: &Vec<usize>| match group[..] {
        [index] => sequence.launches[index].clone(),
        _ => merge_group(sequence, group),
    };
    Sequence {
        launches: groups.iter().map(launch).collect(),
        ..sequence.clone()
    }
}

/// Returns the kernel of a launch, if it may be merged with others.
fn as_part<'a>(sequence: &Sequence, launch: &'a Launch) -> Option<&'a CudaKernel> {
    let (Kernel::Cuda(kernel), Machine::Gpu(gpu)) = (&*launch.kernel, &sequence.machine) else {
        return None;
    };
    let threads: u32 = kernel.block.iter().product();
    let is_line = kernel.grid[1..].iter().all(|b| *b == Blocks::one());
    let is_known = kernel.scalars.is_empty() && kernel.grid[0].points.as_const().is_some();
    let is_plain = kernel.sites == 0
        && kernel.shared == 0
        && kernel.text.shared_launch != SharedLaunch::Nothing;
    let wave = i64::from(gpu.processors) * i64::from(gpu.resident());
    let is_small = || kernel.grid[0].count(&[]).saturating_mul(threads.into()) <= MAX_WAVES * wave;
    (is_line && is_known && is_plain && is_small()).then_some(kernel)
}

/// Merges the launches of a group into one.
fn merge_group(sequence: &Sequence, group: &[usize]) -> Launch {
    let mut group = group.to_vec();
    // Equal kernels are one function.
    group.sort_by_key(|l| as_part(sequence, &sequence.launches[*l]).map(|k| &k.entry));
    let launches: Vec<&Launch> = group.iter().map(|l| &sequence.launches[*l]).collect();
    let kernels = launches.iter().map(|l| as_part(sequence, l));
    let kernels: Option<Vec<_>> = kernels.collect();
    let kernel = parts::merge(&kernels.expect("the group fits in a launch"));
    let args: Vec<BufId> = launches.iter().flat_map(|l| l.args.clone()).collect();
    let mut in_place = Vec::new();
    let mut first_arg = 0;
    for l in &launches {
        // An argument that another launch also reads must not be overwritten.
        let is_exclusive = |r: usize| args.iter().filter(|b| **b == l.args[r]).count() == 1;
        let pairs = l.in_place.iter().filter(|(r, _)| is_exclusive(*r));
        in_place.extend(pairs.map(|(r, w)| (first_arg + r, first_arg + w)));
        first_arg += l.args.len();
    }
    let mut nodes: Vec<NodeId> = launches.iter().flat_map(|l| l.nodes.clone()).collect();
    nodes.sort();
    nodes.dedup();
    let sum = |f: fn(&Cost) -> &Dim| launches.iter().fold(Dim::ZERO, |n, l| &n + f(&l.cost));
    Launch {
        kernel: Kernel::Cuda(kernel).into(),
        args,
        written: launches.iter().flat_map(|l| l.written.clone()).collect(),
        bodies: Vec::new(),
        sites: Vec::new(),
        nodes,
        in_place,
        cost: Cost {
            flops: sum(|c| &c.flops),
            bytes: sum(|c| &c.bytes),
        },
        tasks: launches.iter().flat_map(|l| l.tasks.clone()).collect(),
    }
}

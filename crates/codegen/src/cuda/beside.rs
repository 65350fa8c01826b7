//! Kernels side by side in one launch.
//!
//! A GPU starts one kernel behind another at a cost, and the last blocks of each leave most of it idle. So
//! kernels that do not depend on each other, none of which fills the GPU for long, are one launch whose
//! blocks are shared out, some to each kernel, whose code stays as it is: the gradients of queries and of
//! keys, or the updates of all biases. Which of them, the compiler decides.

use super::families::multiplies;
use super::parts;
use super::source::{RESIDENT, SHARED};
use crate::Cost;
use crate::program::BufId;
use crate::sequence::{Launch, Sequence};
use kiln_base::Dim;
use kiln_ir::NodeId;
use kiln_plan::Kernel;
use kiln_plan::cuda::{Blocks, CudaKernel};

/// The most kernels of a launch.
const MOST: usize = 16;
/// The most products and convolutions of a launch, which take long to compile.
const MOST_PRODUCTS: usize = 4;
/// The most pointers of a launch.
const MOST_ARGS: usize = 256;
/// Multiprocessors of a large GPU.
const PROCESSORS: i64 = 132;
/// Threads of a kernel that such a GPU runs in two turns, with as many registers each as a thread may have.
/// More keep it busy without others.
const SHORT: i64 = 2 * PROCESSORS * RESIDENT as i64;

/// Whether a launch for a GPU may share one with others: its size is known and small, and it can't fail.
pub fn shares_a_launch(launch: &Launch) -> bool {
    part(launch).is_some()
}

/// Whether launches that each [share one](shares_a_launch) can be a single one: their blocks have as many
/// threads, and beside products, which take many registers, is only what a block a multiprocessor does.
pub fn fit_in_a_launch(launches: &[&Launch]) -> bool {
    let parts: Vec<&CudaKernel> = launches.iter().filter_map(|l| part(l)).collect();
    let products = parts.iter().filter(|k| multiplies(k)).count();
    let light = |k: &CudaKernel| multiplies(k) || k.grid[0].count(&[]) <= PROCESSORS;
    parts.len() == launches.len()
        && parts.len() <= MOST
        && products <= MOST_PRODUCTS
        && (products == 0 || parts.iter().all(|k| light(k)))
        && parts.iter().all(|k| k.block == parts[0].block)
        && parts.iter().map(|k| k.args.len()).sum::<usize>() <= MOST_ARGS
}

/// The sequence with the launches of each group as one, in the order of the groups.
///
/// # Panics
/// If a group of several does not [fit](fit_in_a_launch).
pub fn side_by_side(sequence: &Sequence, groups: &[Vec<usize>]) -> Sequence {
    let launch = |group: &Vec<usize>| match group[..] {
        [one] => sequence.launches[one].clone(),
        _ => together(&sequence.launches, group),
    };
    Sequence {
        launches: groups.iter().map(launch).collect(),
        ..sequence.clone()
    }
}

/// The kernel of a launch that may be a part of another.
fn part(launch: &Launch) -> Option<&CudaKernel> {
    let Kernel::Cuda(kernel) = &launch.kernel else {
        return None;
    };
    let threads: u32 = kernel.block.iter().product();
    let row = kernel.grid[1..].iter().all(|b| *b == Blocks::one());
    let known = kernel.scalars.is_empty() && kernel.grid[0].points.as_const().is_some();
    let plain = kernel.sites == 0 && kernel.shared == 0;
    let own = kernel.source.matches("__shared__").count();
    let shared = own == kernel.source.matches(SHARED).count() && own <= 1;
    let short = || kernel.grid[0].count(&[]).saturating_mul(threads.into()) <= SHORT;
    (row && known && plain && shared && short()).then_some(kernel)
}

/// The launches of a set as one.
fn together(launches: &[Launch], set: &[usize]) -> Launch {
    let mut set = set.to_vec();
    // Equal kernels are one function.
    set.sort_by_key(|l| part(&launches[*l]).map(|k| &k.entry));
    let launches: Vec<&Launch> = set.iter().map(|l| &launches[*l]).collect();
    let kernels = launches.iter().map(|l| part(l).expect("the set fits"));
    let kernel = parts::together(&kernels.collect::<Vec<_>>());
    let args: Vec<BufId> = launches.iter().flat_map(|l| l.args.clone()).collect();
    let mut in_place = Vec::new();
    let mut first = 0;
    for l in &launches {
        // What another of them reads as well must not be written over.
        let alone = |r: usize| args.iter().filter(|b| **b == l.args[r]).count() == 1;
        let pairs = l.in_place.iter().filter(|(r, _)| alone(*r));
        in_place.extend(pairs.map(|(r, w)| (first + r, first + w)));
        first += l.args.len();
    }
    let mut nodes: Vec<NodeId> = launches.iter().flat_map(|l| l.nodes.clone()).collect();
    nodes.sort();
    nodes.dedup();
    let sum = |of: fn(&Cost) -> &Dim| launches.iter().fold(Dim::ZERO, |n, l| &n + of(&l.cost));
    Launch {
        kernel: Kernel::Cuda(kernel),
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

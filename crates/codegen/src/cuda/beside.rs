//! Small kernels side by side in one launch.
//!
//! A step of training ends in an update of every parameter, most of them a kernel of a few blocks, which a
//! GPU starts no faster than a large one. What nothing else reads can wait for the last of them: then the
//! blocks of one launch are shared out, some to each kernel, whose code stays as it is.

use super::source::merged;
use crate::program::{BufId, GroupReport, Launch, Program};
use crate::{Cost, kir};
use kiln_base::Dim;
use kiln_base::cuda::{Blocks, CudaKernel};
use kiln_base::plan::Kernel;
use kiln_ir::NodeId;

/// The most kernels of a launch: each may have some static shared memory.
const MOST: usize = 16;
/// The most pointers of a launch.
const MOST_ARGS: usize = 256;
/// The bytes that a kernel touches at most: no more than what is done before another launch would start.
const SMALL: i64 = 1 << 18;

/// The program with small launches for a GPU, of which nothing reads the results, merged in place of the last
/// of them; nothing where there are none. What they read is held until then, so a plan may need more memory.
pub fn side_by_side(program: &Program) -> Option<Program> {
    let mut read = vec![false; program.buffers.len()];
    for launch in &program.launches {
        for (b, _) in launch.args.iter().zip(&launch.written).filter(|a| !a.1) {
            read[b.0 as usize] = true;
        }
    }
    let prepared = |b: &BufId| program.buffers[b.0 as usize].parameter_only;
    let ends = |l: &Launch| {
        let mut written = l.args.iter().zip(&l.written).filter(|a| *a.1);
        written.all(|(b, _)| !read[b.0 as usize] && !prepared(b))
    };
    let mut sets: Vec<Vec<usize>> = Vec::new();
    for (i, launch) in program.launches.iter().enumerate() {
        let Some(kernel) = small(launch).filter(|_| ends(launch)) else {
            continue;
        };
        let fits = |set: &Vec<usize>| {
            let args = set.iter().map(|l| program.launches[*l].args.len());
            let first = small(&program.launches[set[0]]);
            set.len() < MOST
                && first.is_some_and(|k| k.block == kernel.block)
                && args.sum::<usize>() + launch.args.len() <= MOST_ARGS
        };
        match sets.iter_mut().find(|set| fits(set)) {
            Some(set) => set.push(i),
            None => sets.push(vec![i]),
        }
    }
    sets.retain(|set| set.len() > 1);
    if sets.is_empty() {
        return None;
    }
    let mut merged = program.clone();
    let mut gone = vec![false; program.launches.len()];
    for set in &sets {
        let (launch, report) = together(program, set);
        let (last, others) = set.split_last().expect("more than one");
        others.iter().for_each(|l| gone[*l] = true);
        merged.launches[*last] = launch;
        merged.groups[*last] = report;
    }
    let mut keep = gone.iter().map(|g| !g);
    merged.launches.retain(|_| keep.next().unwrap_or(true));
    let mut keep = gone.iter().map(|g| !g);
    merged.groups.retain(|_| keep.next().unwrap_or(true));
    Some(merged)
}

/// The kernel of a launch that is small, of a known size, and can't fail.
fn small(launch: &Launch) -> Option<&CudaKernel> {
    let Kernel::Cuda(kernel) = &launch.kernel else {
        return None;
    };
    let row = kernel.grid[1..].iter().all(|b| *b == Blocks::one());
    // The Kernel IR of an epilogue has one argument more, the raw result.
    let fused = |k: &kir::Kernel| k.args.len() == launch.args.len();
    let plain = launch.kir.as_ref().is_some_and(fused) && kernel.sites == 0 && kernel.shared == 0;
    let known = kernel.scalars.is_empty() && kernel.grid[0].points.as_const().is_some();
    let few = launch.cost.bytes.as_const().is_some_and(|b| b <= SMALL);
    (row && plain && known && few).then_some(kernel)
}

/// The launches of a set as one.
fn together(program: &Program, set: &[usize]) -> (Launch, GroupReport) {
    let launches: Vec<&Launch> = set.iter().map(|l| &program.launches[*l]).collect();
    let kernels: Vec<&CudaKernel> = launches.iter().filter_map(|l| small(l)).collect();
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
    let kernel = merged(&kernels);
    let report = GroupReport {
        name: kernel.name.clone(),
        nodes: nodes.clone(),
        why_not: set
            .iter()
            .flat_map(|l| program.groups[*l].why_not.clone())
            .collect(),
    };
    let launch = Launch {
        kernel: Kernel::Cuda(kernel),
        variants: Vec::new(),
        kir: None,
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
        ways: None,
    };
    (launch, report)
}

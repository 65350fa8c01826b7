//! Graph → fused groups → Kernel IR → tile programs and library kernels.
//!
//! [`lower`] turns a decomposed [`Graph`] into a [`Program`]: buffers, and tasks over them. The stages are, in order:
//! `flow` (the graph in ops that index maps and reductions express), `fuse` (the nodes that share a task), `layout`
//! (the memory layout of images), `emit` (groups as [`kir`]) and `engine`. The latter emits the candidates for each
//! task's [`Work`], in kernels of the CPU engine (`cpu`, with Kernel IR emitted as tile programs by `tile`) or in CUDA
//! C++ (`cuda`). With chosen candidates, a program is a [`Sequence`] of kernel launches.

mod affine;
mod approximation;
mod assemble;
mod cpu;
mod cuda;
mod emit;
mod engine;
mod flow;
mod fuse;
pub mod kir;
mod layout;
mod limits;
mod program;
mod schedule;
mod sequence;
mod tile;
mod work;

// Unit tests of this crate's internals run programs as its other tests do.
#[cfg(test)]
extern crate self as kiln_codegen;
#[cfg(test)]
#[path = "../tests/codegen/device.rs"]
#[allow(dead_code)]
mod device;
#[cfg(test)]
#[path = "../tests/codegen/numbers.rs"]
mod numbers;
#[cfg(test)]
#[path = "../tests/codegen/points.rs"]
mod points;
#[cfg(test)]
#[path = "../tests/codegen/run.rs"]
#[allow(dead_code)]
mod run;
#[cfg(test)]
#[path = "../tests/codegen/tiles.rs"]
mod tiles;

pub use approximation::Approximation;
pub use cpu::kernel as cpu_kernel;
pub use cuda::{
    fit_in_a_launch, library_candidate, library_product, merge_launches, shares_a_launch,
};
pub use program::{
    BufId, BufferInfo, Conversion, Cost, Hint, Hints, Layout, LayoutReport, LowerError, Options,
    Origin, Program, Task,
};
pub use schedule::Schedule;
pub use sequence::{Launch, Sequence};
pub use tile::tile_text;
pub use work::{Arg, Body, Candidate, KernelCall, KernelCalls, Slot, Work};

use assemble::Keeps;
use kiln_ir::Graph;

/// Lowers a graph.
///
/// # Errors
/// If the graph holds composites (decompose them first) or ops that have no kernel yet.
pub fn lower(graph: &Graph, options: &Options) -> Result<Program, LowerError> {
    lower_with(graph, options, &Hints::default())
}

/// Lowers a graph, with hints for nodes that deviate from the rules.
///
/// # Errors
/// As [`lower`].
pub fn lower_with(graph: &Graph, options: &Options, hints: &Hints) -> Result<Program, LowerError> {
    lower_keeping(graph, options, hints, Keeps::Parameters)
}

/// Lowers a graph, the body of a loop, or a branch. `keeps` is the data that is the same in all runs.
fn lower_keeping(
    graph: &Graph,
    options: &Options,
    hints: &Hints,
    keeps: Keeps,
) -> Result<Program, LowerError> {
    let mut flow = flow::build(graph, options, hints)?;
    let mut groups = fuse::group(&flow, options);
    let layout = layout::assign(&mut flow, &mut groups, options);
    let groups = absorbed(&flow, groups, options);
    assemble::assemble(&flow, &groups, options, layout, keeps)
}

/// Makes groups prologues of products, where the engine's model says that this pays.
fn absorbed(flow: &flow::Flow, groups: Vec<fuse::Group>, options: &Options) -> Vec<fuse::Group> {
    fuse::absorb(flow, groups, options, &|group| {
        assemble::preferred(flow, group, options)
    })
}

/// Returns an estimate of the peak bytes of live temporaries of the program that [`lower`] returns, for typical values
/// of symbols. The program's plan needs at least as much. No kernel is emitted.
///
/// # Errors
/// As for [`lower`].
pub fn live_bytes(graph: &Graph, options: &Options) -> Result<i64, LowerError> {
    let flow = flow::build(graph, options, &Hints::default())?;
    let groups = absorbed(&flow, fuse::group(&flow, options), options);
    Ok(assemble::order(&flow, &groups).peak)
}

//! Prologues: pointwise work whose result only a matrix product or convolution reads becomes a part of its launch.
//!
//! The product has the operand computed block by block, so the operand is never in memory. A group stays a launch if it
//! would be rematerialised often, keep more memory alive than its result, or report data errors.
//!
//! Where warpgroups of a GPU multiply, with the operand in memory or without, the model of their schedules says whether
//! the products that compute it, several perhaps, take more cycles than those that read it and its kernel. Other
//! instructions have threads read and compute element by element, at a cost of constants ([`MAX_RECOMPUTED`]).
//!
//! On the CPU, a group that rounds an input to f16 or bf16, as mixed precision does with a batch, becomes a part of
//! every product and convolution that reads it: that is hardly more work than reading the input.

use super::fuser::{Anchor, Group, Prologue, renumbered};
use crate::Options;
use crate::affine::estimate;
use crate::flow::{Flow, Nid, Op};
use kiln_base::{DType, Dim, Machine, numel};
use kiln_plan::schedule::{Gpu, kernel_cycles};
use kiln_plan::{Conv, ConvRole, Images};

/// A model of products: the default schedule of a group's, and its cycles.
pub(crate) type Model<'a> = &'a dyn Fn(&Group) -> Option<(Gpu, f64)>;

/// The maximum number of primitives per element, which each thread that reads it computes.
const MAX_OPS: usize = 32;
/// The maximum work per element that the blocks of a GPU that read it compute: about the cost of writing it
/// to memory and reading it back.
const MAX_RECOMPUTED: i64 = 64;
/// The rows or columns of a block of a large product.
const BLOCK: i64 = 64;
/// The cost of reading an element of f16 or bf16 alone, relative to one of eight that are copied from memory at once.
const ALONE: i64 = 8;
/// The amount of work that all blocks compute in less time than it takes to start a kernel.
const LITTLE: i64 = 1 << 22;

/// Turns groups into prologues of the products and convolutions that are their only readers.
pub(crate) fn absorb(
    flow: &Flow,
    groups: Vec<Group>,
    options: &Options,
    model: Model,
) -> Vec<Group> {
    if !options.fuse {
        return groups;
    }
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); flow.nodes.len()];
    for (g, group) in groups.iter().enumerate() {
        group.loaded.iter().for_each(|v| readers[*v].push(g));
    }
    let mut stored: Vec<bool> = flow.nodes.iter().map(|n| n.apart).collect();
    for o in flow.outputs.iter().filter(|o| o.required) {
        stored[o.node] = true;
    }
    let mut slots: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
    for g in 0..slots.len() {
        // The group of a product's other operand may itself not be a product.
        let Some(mut group) = slots[g].take() else {
            continue;
        };
        let search = Search {
            flow,
            readers: &readers,
            stored: &stored,
            machine: options.machine,
            model,
            groups: &slots,
        };
        match search.hosts((g, &group)) {
            Ok(hosts) => {
                for (host, side) in hosts {
                    if let Some(product) = &mut slots[host] {
                        prepend(product, side, (g, &group));
                    }
                }
            }
            Err(why) => {
                let node = &flow.nodes[group.roots[0].0];
                let text = |why| format!("{} ({}) is stored: {why}", node.source, node.name());
                group.why_not.extend(why.map(text));
                slots[g] = Some(group);
            }
        }
    }
    let mut remaining = renumbered(slots);
    for group in &mut remaining {
        group.prologues.sort_by_key(|b| b.side);
    }
    remaining
}

/// Makes group number `g` the prologue of an operand of a product.
fn prepend(product: &mut Group, side: usize, (g, group): (usize, &Group)) {
    product.loaded.remove(&group.roots[0].0);
    product.loaded.extend(group.loaded.iter().copied());
    product.deps.retain(|d| *d != g);
    product.deps.extend(&group.deps);
    let group = group.clone();
    product.prologues.push(Prologue { side, group });
}

/// The search for products that can compute the value of a group.
struct Search<'a> {
    flow: &'a Flow,
    /// The groups that read each value.
    readers: &'a [Vec<usize>],
    /// True for values that must be in memory.
    stored: &'a [bool],
    machine: Machine,
    model: Model<'a>,
    /// The groups that are launches, without that of the value.
    groups: &'a [Option<Group>],
}

impl Search<'_> {
    /// Returns the products and convolutions that can compute the value of a group, each with the operand that it is.
    /// Otherwise, for pointwise work read by a product or convolution, returns the reason.
    fn hosts(
        &self,
        (g, group): (usize, &Group),
    ) -> Result<Vec<(usize, usize)>, Option<&'static str>> {
        let flow = self.flow;
        let Some((v, map)) = group.roots.first() else {
            return Err(None);
        };
        let readers = &self.readers[*v];
        let products = readers.iter().filter_map(|to| self.groups[*to].as_ref());
        let mut products = products.filter(|to| product(flow, to, *v).is_some());
        let is_candidate =
            group.anchor.is_none() && group.space.inner.is_empty() && !self.stored[*v];
        let candidate = products.next().filter(|_| is_candidate);
        if candidate.is_none_or(|to| to.parameter_only != group.parameter_only) {
            return Err(None);
        }
        let is_gpu = matches!(self.machine, Machine::Gpu(_));
        let by_all = rounds_input(flow, group) && !is_gpu;
        if group.roots.len() > 1 || readers.len() > 1 && !by_all && !is_gpu {
            return Err(Some(OTHERS));
        }
        let side = |to: &usize| {
            let reader = self.groups[*to].as_ref().ok_or(OTHERS)?;
            Ok((*to, side(flow, group, reader, (self.machine, by_all))?))
        };
        let hosts = readers.iter().map(side);
        let hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(Some)?;
        if group.ops > MAX_OPS {
            return Err(Some(
                "it takes too many operations to compute it for each block",
            ));
        }
        let is_concat = |m: &Nid| matches!(flow.nodes[*m].op, Op::Concat(_));
        if !is_gpu && group.members.iter().any(is_concat) {
            return Err(Some(
                "each of its elements would be tested for the operand that it is of",
            ));
        }
        if !keeps_less(flow, group) {
            return Err(Some(
                "its operands would stay in memory for longer, and are larger",
            ));
        }
        let flat = group.space.resolve(&flow.nodes[*v].address(map));
        let mut stride = Dim::ONE;
        let in_order = group.space.axes.iter().rev().all(|a| {
            let is_next = flat.coefficient(*a) == stride;
            stride = &stride * group.space.extent(*a);
            is_next
        });
        if !in_order || !group.members.iter().all(|m| is_safe(flow, *m)) {
            return Err(Some(
                "it is written in another order, or computing it can report an error",
            ));
        }
        match is_gpu && !self.pays((g, group), &hosts) {
            true if hosts.len() > 1 => Err(Some(OTHERS)),
            true => Err(Some("so many blocks of the product would compute it again")),
            false => Ok(hosts),
        }
    }

    /// True if products of a GPU that compute the value of a group take no longer than those that read it and its kernel.
    fn pays(&self, (g, group): (usize, &Group), hosts: &[(usize, usize)]) -> bool {
        let is_read_by_few = || match (hosts, hosts.first().map(|(to, _)| &self.groups[*to])) {
            ([(_, side)], Some(Some(product))) => is_read_by_few(self.flow, group, product, *side),
            _ => false,
        };
        match self.saved_cycles((g, group), hosts) {
            Some((saved, in_registers)) => saved >= 0.0 && (in_registers || is_read_by_few()),
            None => is_read_by_few(),
        }
    }

    /// Returns the cycles that products save by computing the value of a group, by the model, and whether warpgroups
    /// compute it in registers; `None` if there is no model, or warpgroups multiply in neither case.
    fn saved_cycles(
        &self,
        (g, group): (usize, &Group),
        hosts: &[(usize, usize)],
    ) -> Option<(f64, bool)> {
        let values = group.loaded.iter().chain([&group.roots[0].0]);
        let moved = values.fold(0i64, |sum, v| sum.saturating_add(bytes(self.flow, *v)));
        let mut saved = kernel_cycles(self.machine.gpu()?, moved);
        let (mut by_warpgroups, mut in_registers) = (false, true);
        for (host, side) in hosts {
            let mut product = self.groups[*host].clone()?;
            let (reading, reading_cycles) = (self.model)(&product)?;
            prepend(&mut product, *side, (g, group));
            let (computing, computing_cycles) = (self.model)(&product)?;
            saved += reading_cycles - computing_cycles;
            in_registers &= computing.multiply.is_by_warpgroups();
            by_warpgroups |= reading.multiply.is_by_warpgroups() || in_registers;
        }
        by_warpgroups.then_some((saved, in_registers))
    }
}

const OTHERS: &str = "other launches than that of the product need it in memory";

/// Returns the product or convolution of a group if `v` is an operand of it.
fn product<'a>(flow: &Flow, group: &'a Group, v: Nid) -> Option<&'a Anchor> {
    let anchor = group.anchor.as_ref()?;
    let is_operand = anchor.operands.iter().any(|o| o.held == v);
    (is_operand && flow.nodes[anchor.node].is_product()).then_some(anchor)
}

/// Returns the operand of the product or convolution of `reader` for which it can compute the value of `group`, or the
/// reason why it can't. `everywhere` is true if all readers would.
fn side(
    flow: &Flow,
    group: &Group,
    reader: &Group,
    (machine, everywhere): (Machine, bool),
) -> Result<usize, &'static str> {
    let v = group.roots[0].0;
    let Some(anchor) = product(flow, reader, v) else {
        return Err(OTHERS);
    };
    let sides = anchor.operands.iter().enumerate();
    let mut sides = sides.filter(|(_, o)| o.held == v).map(|(side, _)| side);
    let (Some(side), None) = (sides.next(), sides.next()) else {
        return Err("several operands of the product are this value");
    };
    let mut epilogue = reader.members.iter().filter(|m| **m != anchor.node);
    if epilogue.any(|m| flow.nodes[*m].inputs.contains(&v)) {
        return Err("the epilogue of the product reads it too");
    }
    let node = &flow.nodes[anchor.node];
    let pays = match (machine, &node.op) {
        (Machine::Gpu(_), Op::MatMul) => true,
        (Machine::Gpu(_), Op::Conv(spec)) => side == 0 && spec.role == ConvRole::Result,
        (_, Op::MatMul) => has_lines(flow, reader, side, everywhere),
        (_, Op::Conv(spec)) => {
            side == 0 && (has_time(group, spec) || everywhere && is_copied(spec))
        }
        _ => false,
    };
    match (pays, &node.op) {
        (true, _) => Ok(side),
        (_, Op::MatMul) => {
            Err("the product reads it as a vector, across its rows, or for a whole batch")
        }
        (_, Op::Conv(_)) => {
            Err("the convolution would compute it too often, or may transform its images")
        }
        _ => Err("attention reads its operands from memory"),
    }
}

/// True if a group only rounds an input to f16 or bf16.
fn rounds_input(flow: &Flow, group: &Group) -> bool {
    let moves = |m: &Nid| matches!(flow.nodes[*m].op, Op::Cast(_) | Op::Reshape | Op::View(_));
    let mut loaded = group.loaded.iter().map(|v| &flow.nodes[*v]);
    let is_input = loaded.all(|n| matches!(n.op, Op::Input(_)) && n.dtype == DType::F32);
    let to = flow.nodes[group.roots[0].0].dtype;
    is_input && group.loaded.len() == 1 && to.is_half() && group.members.iter().all(moves)
}

/// True if a convolution, or gradient of weights, of f16 or bf16 has all its images computed first, unless it reads
/// them in parts. If they only are rounded, there is time for that. False if it could transform them.
fn is_copied(spec: &Conv) -> bool {
    let reads_images = matches!(spec.role, ConvRole::Result | ConvRole::Weight);
    reads_images && spec.is_half() && !(spec.role == ConvRole::Result && spec.may_be_transformed())
}

/// True if an operand is matrices, not vectors, with contiguous rows or columns, one for each of the batch. A right
/// matrix of f16 or bf16 is packed from memory, or from a value that is rematerialised `everywhere`.
fn has_lines(flow: &Flow, product: &Group, side: usize, everywhere: bool) -> bool {
    let Some(anchor) = &product.anchor else {
        return false;
    };
    let shape = &flow.nodes[anchor.node].shape;
    let batch = shape.len() - 2;
    let strides = &anchor.operands[side].strides;
    let batched = strides[..batch].iter().zip(&shape[..batch]);
    let batched = batched
        .into_iter()
        .all(|(s, extent)| !s.is(0) || extent.is(1));
    // If a product reduces its rows, each thread would compute all of B.
    let reduces_rows = side == 1 && !product.space.inner.is_empty();
    let narrow = flow.nodes[anchor.operands[side].held].dtype.size() < 4;
    let packed = side == 1 && narrow && !everywhere;
    batched
        && !reduces_rows
        && !packed
        && strides[batch..].iter().any(|s| s.is(1))
        && shape[batch..].iter().all(|d| !d.is(1))
}

/// True if a convolution multiplies so much that it has time to compute its images, even if neighbouring blocks compute
/// the same rows. If it could transform them instead (Winograd's algorithms, Fourier's), they stay in memory, so that
/// this can be tried.
fn has_time(group: &Group, spec: &Conv) -> bool {
    // Each row is computed for all rows of the filter, so these don't count.
    let steps = estimate(&numel(spec.stride.get(1..).unwrap_or_default()));
    let taps = spec.kernel.iter().skip(1).map(estimate);
    let products = taps.fold(estimate(&spec.out_channels), i64::saturating_mul);
    spec.role == ConvRole::Result
        && spec.images != Images::ToChannelsLast
        && spec.groups.is(1)
        && !spec.may_be_transformed()
        && (group.ops as i64).saturating_mul(steps) <= products
}

/// True if the blocks of a GPU compute little more than is saved by keeping the operand out of memory.
fn is_read_by_few(flow: &Flow, group: &Group, product: &Group, side: usize) -> bool {
    let Some(anchor) = &product.anchor else {
        return false;
    };
    let node = &flow.nodes[anchor.node];
    let readers = match &node.op {
        Op::MatMul => blocks(&node.shape, &anchor.operands[side].strides, side),
        Op::Conv(spec) => {
            // If its images could be transformed, they stay in memory, so that this can be tried.
            if spec.dtype() == DType::F32 && spec.is_3_by_3() {
                return false;
            }
            taps(spec).saturating_mul(in_blocks(estimate(&spec.out_channels)))
        }
        _ => return false,
    };
    let is_copied = match &node.op {
        Op::Conv(spec) => {
            let eights = estimate(&spec.in_channels) % 8 == 0;
            spec.dtype().size() == 2 && eights && spec.reads_channels_last()
        }
        _ => flow.nodes[anchor.operands[side].held].dtype.size() == 2,
    };
    let own_cost = if is_copied { ALONE } else { 0 };
    let cost = (group.ops + group.loaded.len()) as i64 + own_cost - 1;
    let cost = cost.saturating_mul(readers);
    let elements = estimate(&flow.numel(group.roots[0].0));
    cost <= MAX_RECOMPUTED || cost.saturating_mul(elements) <= LITTLE
}

fn in_blocks(extent: i64) -> i64 {
    (extent + BLOCK - 1) / BLOCK
}

/// Returns the number of blocks of a product of this shape that read an element of an operand.
fn blocks(shape: &[Dim], strides: &[Dim], side: usize) -> i64 {
    let batch = shape.len() - 2;
    let repeats = strides.iter().zip(&shape[..batch]);
    let repeats = repeats.filter(|(s, _)| s.is(0));
    let repeats = repeats.fold(1i64, |n, (_, d)| n.saturating_mul(estimate(d)));
    repeats.saturating_mul(in_blocks(estimate(&shape[batch + 1 - side])))
}

/// Returns the number of taps of a convolution's filter that meet an element of an image.
fn taps(spec: &Conv) -> i64 {
    let kernel = spec.kernel.iter().map(estimate);
    let by_axis = kernel
        .zip(spec.stride.iter().map(estimate))
        .map(|(k, s)| (k + s - 1) / s);
    by_axis.fold(1, |n, taps| n.saturating_mul(taps))
}

/// True if the temporaries that a group reads take no more memory than its result, or hardly more, such as a factor for
/// each channel.
fn keeps_less(flow: &Flow, group: &Group) -> bool {
    let read = group.loaded.iter().filter(|v| !flow.nodes[**v].is_leaf());
    let read = read.fold(0i64, |sum, v| sum.saturating_add(bytes(flow, *v)));
    let written = bytes(flow, group.roots[0].0);
    read <= written.saturating_add(written / 16)
}

/// Returns the bytes of a value, at typical sizes.
fn bytes(flow: &Flow, v: Nid) -> i64 {
    let size = flow.nodes[v].dtype.size() as i64;
    estimate(&flow.numel(v)).saturating_mul(size)
}

/// True if a node can be rematerialised without effect: it reports no data error.
fn is_safe(flow: &Flow, v: Nid) -> bool {
    let node = &flow.nodes[v];
    match &node.op {
        Op::Pw(_) => node.dtype.is_float() || node.dtype == kiln_base::DType::Bool,
        Op::Cast(_) | Op::Copy | Op::View(_) | Op::Reshape | Op::Concat(_) => true,
        Op::Scalar(_) | Op::Iota | Op::Size(_) => true,
        _ => false,
    }
}

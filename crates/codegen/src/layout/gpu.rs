//! The costs of layouts on a GPU, in thousandths of a fused multiply-add, as on the CPU.
//!
//! Nothing is measured. Costs follow from instructions, of which a lane issues as many as multiply-adds, and from
//! memory traffic, in sectors of 32 bytes. A convolution has equally many multiply-adds in either layout, so these are
//! left out, and so are full sectors that both read and write. The differences are:
//!
//! * Addressing an element of a window takes [`FIND`] instructions, and loads one element. It loads 16 bytes if
//!   tensor cores multiply and neighbours in the sum are contiguous at aligned addresses. With channels last, that
//!   holds if the channels of a group are a multiple of eight, of bytes sixteen. With channels first, it holds if one
//!   tap falls on every position, and the positions of an image are a multiple of eight.
//! * With channels last, the channels of a group are a run, whose last sector is partly unused.
//! * A launch that reads an image in the other order uses one element of each sector. One without a reduction or a
//!   convolution, such as a copy, transposes tiles in shared memory instead ([`TRANSPOSE`]).

use super::filters::Filters;
use super::{IMPOSSIBLE, Image, Network, Pair, elements};
use crate::Layout;
use crate::affine::estimate;
use crate::flow::Flow;
use crate::fuse::Group;
use crate::program::NEVER;
use kiln_base::{Dim, numel};
use kiln_plan::{Conv, ConvRole};

/// The number of multiply-adds in the time of a sector's memory transfer.
const SECTOR: u64 = 256;
const SECTOR_BYTES: u64 = 32;
/// The instructions that address an element of a window: divisions by extents, and comparisons with them.
const FIND: u64 = 24;
/// The instructions that address an element of a matrix.
const FIND_IN_MATRIX: u64 = 4;
/// The rows or columns of a block's tile. An image is read once per tile.
const BLOCK: u64 = 64;
/// The maximum number of loads that is counted. Greater costs would be taken for an impossible layout.
const MAX_LOADS: u64 = 1 << 38;
/// The cost of starting a kernel, in multiply-adds.
const START: u64 = 1 << 22;
/// The instructions per element of a transposition in shared memory.
pub(super) const TRANSPOSE: u64 = 16;

impl Network {
    /// Adds an image operand of a convolution. It is read in its own layout, or as a copy with channels last,
    /// independent of the result's layout. All convolutions that read it share the choice.
    pub fn add_gpu_image(
        &mut self,
        flow: &Flow,
        group: &Group,
        g: usize,
        operand: usize,
        (layout, filters): (Layout, &Filters),
    ) {
        let (Some(conv), Some(anchor)) = (&self.convs[g], &group.anchor) else {
            return;
        };
        let value = anchor.operands[operand].held;
        // A value that is reshaped to an image keeps its order.
        if flow.nodes[value].shape != flow.nodes[flow.nodes[anchor.node].inputs[operand]].shape {
            return;
        }
        let [mut first, mut last] = read_cost(conv, operand);
        if let Some((by_first, by_last)) = flow.nodes[anchor.node].measured {
            last = first / 1000 * u64::from(by_last);
            first = first / 1000 * u64::from(by_first);
        } else if conv.role != ConvRole::Weight {
            let w = anchor.operands[1].held;
            if filters.is_copied_each_run(flow, w) {
                last += filter_copy_cost(elements(flow, w), flow.nodes[w].dtype.size());
            }
        }
        // A depthwise convolution reads its image in the order of its result.
        let depthwise = is_depthwise(conv).then(|| elements(flow, value).min(MAX_LOADS >> 8));
        let strided = depthwise.map_or(0, |n| n * self.strided_cost(flow, value));
        let is_free = self.free.contains(&value);
        let index = self.images.iter().position(|i| i.value == value);
        let index = index.unwrap_or_else(|| {
            self.images.push(Image {
                value,
                readers: Vec::new(),
            });
            let is_forced = is_free && layout == Layout::ChannelsLast;
            let cost = if is_forced { NEVER } else { 0 };
            self.label_costs.push((cost, 0));
            let bytes = flow.nodes[value].dtype.size() as u64;
            let per_element = TRANSPOSE + 2 * bytes * SECTOR / SECTOR_BYTES;
            let copy = (START + elements(flow, value) * per_element) * 1000;
            self.add_difference(value, self.label_costs.len() - 1, copy, IMPOSSIBLE);
            self.images.len() - 1
        });
        self.images[index].readers.push((g, operand));
        let label = self.label_costs.len() - self.images.len() + index;
        let cost = &mut self.label_costs[label];
        *cost = (cost.0 + first, cost.1 + last);
        if strided > 0 {
            self.pairs.push(Pair {
                value,
                writer: label,
                reader: g,
                to_last: strided,
                to_first: strided,
            });
        }
    }
}

/// Returns the costs of reading an image operand of a convolution with channels first, and last. The kernel is the same
/// whatever the layout of the result.
fn read_cost(c: &Conv, operand: usize) -> [u64; 2] {
    if is_depthwise(c) {
        return [0; 2];
    }
    let bytes = c.dtype().size();
    let (loads, find, copied_last) = reads(c, operand);
    let pointwise = is_pointwise(c);
    let copied_first = pointwise && bytes == 2 && product(&c.output).is_multiple_of(8);
    let [first, last] = [copied_first, copied_last].map(|c| if c { loads / 8 } else { loads });
    let find_first = if pointwise { FIND_IN_MATRIX } else { find };
    let padding = sector_padding(c, reads_y(c, operand));
    [first * find_first, last * find + padding].map(thousandths)
}

/// Returns the cost of writing the result of a convolution with channels last, beyond that with channels first.
pub(super) fn write_cost(c: &Conv) -> u64 {
    match c.role {
        _ if is_depthwise(c) => 0,
        ConvRole::Weight => 0,
        role => thousandths(sector_padding(c, role == ConvRole::Result)),
    }
}

/// Returns the cost of the unused parts of sectors of x, or of y if `is_y`, with channels last.
fn sector_padding(c: &Conv, is_y: bool) -> u64 {
    let (channels, positions) = match is_y {
        true => (size(&c.out_channels), product(&c.output)),
        false => (size(&c.in_channels), product(&c.input)),
    };
    let run = channels * c.dtype().size() as u64;
    let padding = run.div_ceil(SECTOR_BYTES) * SECTOR_BYTES - run;
    let runs = match size(&c.groups) {
        1 => 0,
        groups => groups * size(&c.batch) * positions,
    };
    runs * padding * SECTOR / SECTOR_BYTES
}

/// True if an image operand is y.
fn reads_y(c: &Conv, operand: usize) -> bool {
    match c.role {
        ConvRole::Result => false,
        ConvRole::Input => true,
        ConvRole::Weight => operand == 1,
    }
}

/// Returns the cost of reading or writing an element in the other order.
pub(super) fn strided_cost(bytes: usize) -> u64 {
    (SECTOR_BYTES - bytes as u64) * SECTOR * 1000 / SECTOR_BYTES
}

/// Returns the cost of copying the filters of a convolution in each run.
fn filter_copy_cost(elements: u64, bytes: usize) -> u64 {
    thousandths(START) + elements * strided_cost(bytes)
}

/// Returns the number of reads of elements of an image operand and, with channels last, the instructions per read and
/// true if eight elements are copied at a time.
fn reads(c: &Conv, operand: usize) -> (u64, u64, bool) {
    let (cin, cout) = (size(&c.in_channels), size(&c.out_channels));
    let (positions, taps) = (product(&c.output), product(&c.kernel));
    let blocks = |n: u64| n.div_ceil(BLOCK);
    let is_y = reads_y(c, operand);
    let loads = match c.role {
        ConvRole::Input => [positions, taps, cout, blocks(cin)],
        ConvRole::Weight if is_y => [positions, 1, cout, blocks(cin * taps)],
        _ => [positions, taps, cin, blocks(cout)],
    };
    let outer = [size(&c.groups), size(&c.batch)];
    let loads = loads.into_iter().chain(outer).fold(1, u64::saturating_mul);
    let is_plain = is_pointwise(c) && c.groups.is(1) || c.role == ConvRole::Weight && is_y;
    let channels = if is_y { cout } else { cin };
    (
        loads.min(MAX_LOADS),
        if is_plain { FIND_IN_MATRIX } else { FIND },
        match c.dtype().size() {
            1 => channels.is_multiple_of(16),
            bytes => bytes == 2 && channels.is_multiple_of(8),
        },
    )
}

/// True if the convolution is depthwise.
fn is_depthwise(c: &Conv) -> bool {
    c.role == ConvRole::Result && c.in_channels.is(1) && c.out_channels.is(1)
}

fn is_pointwise(c: &Conv) -> bool {
    let is_1x1 = c.kernel.iter().all(|k| k.is(1)) && c.stride.iter().all(|s| s.is(1));
    is_1x1 && c.padding.iter().all(|p| p.is(0))
}

fn size(d: &Dim) -> u64 {
    estimate(d).clamp(1, 1 << 32) as u64
}

fn product(dims: &[Dim]) -> u64 {
    size(&numel(dims))
}

fn thousandths(cost: u64) -> u64 {
    cost.min(MAX_LOADS) * 1000
}

//! The costs of layouts on a GPU, in thousandths of a fused multiply-add, as on the CPU.
//!
//! Nothing is measured. Costs follow from instructions, of which a lane issues as many as multiply-adds, and from
//! memory traffic, in sectors of 32 bytes. A convolution has equally many multiply-adds in either layout, so these are
//! left out, and so are whole sectors that both read and write. The differences are:
//!
//! * Finding an element of a window takes [`FIND`] instructions, and loads one element. It loads 16 bytes if
//!   tensor cores multiply and neighbours in the sum are contiguous at aligned addresses. With channels last, that
//!   holds if the channels of a group are a multiple of eight, of bytes sixteen. With channels first, it holds if one
//!   tap falls on every position, and the positions of an image are a multiple of eight.
//! * With channels last, the channels of a group are a run of their own, whose last sector is partly empty.
//! * A launch that walks over an image in the other order uses one element of each sector.

use crate::affine::estimate;
use kiln_base::{Dim, numel};
use kiln_plan::{Conv, ConvRole};

/// The number of multiply-adds in the time of a sector's memory transfer.
const SECTOR: u64 = 256;
const SECTOR_BYTES: u64 = 32;
/// The instructions that find an element of a window: divisions by extents, and comparisons with them.
const FIND: u64 = 24;
/// The instructions that find an element of a matrix.
const STEP: u64 = 4;
/// The rows or columns that a block computes: an image is read once more for each such part.
const BLOCK: u64 = 64;
/// The maximum number of loads that is counted: greater costs mean that a layout is impossible.
const MAX_LOADS: u64 = 1 << 38;
/// The cost of starting a kernel, in multiply-adds.
const START: u64 = 1 << 22;

/// Returns the costs of a convolution with channels first, and last.
pub(super) fn conv_cost(c: &Conv) -> [u64; 2] {
    if is_depthwise(c) {
        return [0; 2];
    }
    let bytes = c.dtype().size();
    let (inputs, positions) = (product(&c.input), product(&c.output));
    let (cin, cout) = (size(&c.in_channels), size(&c.out_channels));
    let groups = size(&c.groups);
    let pointwise = is_pointwise(c);
    let copied_first = pointwise && bytes == 2 && positions.is_multiple_of(8);
    let read = |i: &usize| {
        let (loads, find, copied_last) = reads(c, *i);
        let [first, last] = [copied_first, copied_last].map(|c| if c { loads / 8 } else { loads });
        let find_first = if pointwise { STEP } else { find };
        [first * find_first, last * find]
    };
    let read: Vec<[u64; 2]> = c.image_operands().iter().map(read).collect();
    let sum = |layout: usize| read.iter().map(|r| r[layout]).sum::<u64>();
    let gaps = |channels: u64, all: u64| {
        let run = channels * bytes as u64;
        let gap = run.div_ceil(SECTOR_BYTES) * SECTOR_BYTES - run;
        let runs = match groups {
            1 => 0,
            _ => groups * size(&c.batch) * all,
        };
        runs * gap * SECTOR / SECTOR_BYTES
    };
    [sum(0), sum(1) + gaps(cin, inputs) + gaps(cout, positions)].map(thousandths)
}

/// Returns the extra cost of a convolution with channels last if image operand `operand` has channels first. The image
/// is then read element by element; a depthwise convolution reads it through strides.
pub(super) fn channels_first_read_cost(c: &Conv, operand: usize) -> u64 {
    if is_depthwise(c) {
        let image = product(&c.input).saturating_mul(size(&c.groups) * size(&c.batch));
        return image.min(MAX_LOADS >> 8) * strided(c.dtype().size());
    }
    let (loads, find, copied) = reads(c, operand);
    thousandths(if copied { loads / 8 * 7 * find } else { 0 })
}

/// Returns the cost of an element that is read or written in the other order.
pub(super) fn strided(bytes: usize) -> u64 {
    (SECTOR_BYTES - bytes as u64) * SECTOR * 1000 / SECTOR_BYTES
}

/// Returns the cost of copying the filters of a convolution in each run.
pub(super) fn filters(elements: u64, bytes: usize) -> u64 {
    thousandths(START) + elements * strided(bytes)
}

/// Returns the number of reads of elements of an image operand and, with channels last, the instructions per read and
/// true if eight elements are copied at a time.
fn reads(c: &Conv, operand: usize) -> (u64, u64, bool) {
    let (cin, cout) = (size(&c.in_channels), size(&c.out_channels));
    let (positions, taps) = (product(&c.output), product(&c.kernel));
    let blocks = |n: u64| n.div_ceil(BLOCK);
    let y = match c.role {
        ConvRole::Result => false,
        ConvRole::Input => true,
        ConvRole::Weight => operand == 1,
    };
    let loads = match c.role {
        ConvRole::Input => [positions, taps, cout, blocks(cin)],
        ConvRole::Weight if y => [positions, 1, cout, blocks(cin * taps)],
        _ => [positions, taps, cin, blocks(cout)],
    };
    let all = [size(&c.groups), size(&c.batch)];
    let loads = loads.into_iter().chain(all).fold(1, u64::saturating_mul);
    let plain = is_pointwise(c) && c.groups.is(1) || c.role == ConvRole::Weight && y;
    let channels = if y { cout } else { cin };
    (
        loads.min(MAX_LOADS),
        if plain { STEP } else { FIND },
        match c.dtype().size() {
            1 => channels.is_multiple_of(16),
            bytes => bytes == 2 && channels.is_multiple_of(8),
        },
    )
}

/// True if the convolution is depthwise; neighbouring lanes then have neighbouring elements.
fn is_depthwise(c: &Conv) -> bool {
    c.role == ConvRole::Result && c.in_channels.is(1) && c.out_channels.is(1)
}

fn is_pointwise(c: &Conv) -> bool {
    let ones = c.kernel.iter().all(|k| k.is(1)) && c.stride.iter().all(|s| s.is(1));
    ones && c.padding.iter().all(|p| p.is(0))
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

//! What layouts cost on a GPU, in thousandths of a fused multiply-add, as on the CPU.
//!
//! Nothing is measured: costs follow from instructions, of which a lane issues as many as multiply-adds, and
//! from what passes through memory, in sectors of 32 bytes. The multiply-adds of a convolution are as many in
//! either layout and are left out, and so is what both read and write in whole sectors. What differs:
//!
//! * to find an element of a window takes [`FIND`] instructions, and brings one element, or 16 bytes where
//!   tensor cores multiply and neighbours in the sum lie side by side at aligned addresses: with channels last
//!   if the channels of a group are a multiple of eight, with channels first if one tap falls on every
//!   position and an image's positions are;
//! * with channels last the channels of a group are a run of their own, of which the last sector is partly empty;
//! * who walks over an image in the other order uses one element of each sector.

use crate::affine::estimate;
use kiln_base::{Dim, numel};
use kiln_plan::{Conv, ConvRole};

/// Multiply-adds in the time in which a sector passes through memory.
const SECTOR: u64 = 256;
const SECTOR_BYTES: u64 = 32;
/// Instructions that find an element of a window: divisions by extents, and comparisons with them.
const FIND: u64 = 24;
/// Those that find an element of a matrix.
const STEP: u64 = 4;
/// Rows or columns that a block computes: for each such part an image is read once more.
const BLOCK: u64 = 64;
/// The most that a sum counts, so that costs stay below those of what is not possible.
const MOST: u64 = 1 << 38;
/// What takes as long as to start a kernel.
const START: u64 = 1 << 22;

/// What a convolution costs with channels first, and last.
pub(super) fn conv_cost(c: &Conv) -> [u64; 2] {
    if is_each(c) {
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

/// What it costs a convolution with channels last that image number `operand` has channels first: it is read
/// element by element, by a filter a channel through strides.
pub(super) fn turned(c: &Conv, operand: usize) -> u64 {
    if is_each(c) {
        let image = product(&c.input).saturating_mul(size(&c.groups) * size(&c.batch));
        return image.min(MOST >> 8) * strided(c.dtype().size());
    }
    let (loads, find, copied) = reads(c, operand);
    thousandths(if copied { loads / 8 * 7 * find } else { 0 })
}

/// What an element costs that is read or written in the other order.
pub(super) fn strided(bytes: usize) -> u64 {
    (SECTOR_BYTES - bytes as u64) * SECTOR * 1000 / SECTOR_BYTES
}

/// What it costs to copy the filters of a convolution in each run.
pub(super) fn filters(elements: u64, bytes: usize) -> u64 {
    thousandths(START) + elements * strided(bytes)
}

/// How often elements of an image are read, which is an operand, how many instructions that takes with channels
/// last, and whether eight are copied at a time there.
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
        loads.min(MOST),
        if plain { STEP } else { FIND },
        c.dtype().size() == 2 && channels.is_multiple_of(8),
    )
}

/// Whether each channel has a filter of its own; neighbouring lanes then have neighbouring elements.
fn is_each(c: &Conv) -> bool {
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
    cost.min(MOST) * 1000
}

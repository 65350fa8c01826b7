//! Schedules that a tuner tries in addition to those that follow from sizes.

use super::ProductEpilogue;
use crate::schedule::{Cpu, lanes, max_rows};
use crate::{Algorithm, Conv, ConvRole, Kernel, MatMul};
use kiln_base::{DType, Features, Instruction, numel};

/// The numbers of vectors of columns of register tiles.
const VECTORS: [u8; 4] = [1, 2, 3, 4];
/// The rows and columns of blocks.
const BLOCKS: [[i64; 2]; 5] = [[32, 1024], [128, 128], [128, 1024], [512, 128], [1024, 64]];
/// The numbers of terms that are summed at a time.
const TERMS: [u32; 4] = [64, 128, 512, 1024];
/// The relative cost from which on a schedule is not tried, as a multiple of the algorithm's.
const MAX_RELATIVE_COST: f64 = 1.5;
/// The numbers of parts of sums.
const PARTS: [u16; 5] = [1, 2, 4, 8, 16];

impl Kernel {
    /// Returns distinct schedules of an algorithm with explicit sizes, if symbols have these values: tiles that fit the
    /// registers, and blocks, terms and parts that fit the sizes. Each has its cost as a multiple of the
    /// algorithm's; much slower ones are omitted. Empty for a kernel without a choice.
    pub fn schedules(&self, by: Algorithm, level: Features, values: &[i64]) -> Vec<(Cpu, f64)> {
        let (candidates, sums) = match self {
            Kernel::MatMul(m) => (m.schedules(by, level, values), m.sums()),
            Kernel::Conv(c) => (c.schedules(by, level, values), c.sums()),
            _ => return Vec::new(),
        };
        let instruction = Instruction::of_numbers(sums);
        let default_cost = Cpu::from(by).tile_cost(level, instruction);
        let priced = candidates.into_iter().flatten();
        let priced = priced.map(|s| (s, s.tile_cost(level, instruction) / default_cost));
        priced
            .filter(|(_, cost)| *cost < MAX_RELATIVE_COST)
            .collect()
    }
}

impl MatMul {
    fn schedules(&self, by: Algorithm, level: Features, values: &[i64]) -> Option<Vec<Cpu>> {
        let size = |d: &kiln_base::Dim| d.eval_checked(values);
        let (m, k, n) = (size(&self.m)?, size(&self.k)?, size(&self.n)?);
        let base = Cpu::from(by);
        let with = |parts| Cpu {
            parts: Some(parts),
            ..base
        };
        if by == Algorithm::Parts {
            return Some(PARTS.into_iter().filter(|n| *n > 1).map(with).collect());
        }
        if by == Algorithm::Vector {
            return None;
        }
        let mut list = tile_schedules(base, level, self.dtypes, n);
        match by {
            Algorithm::Panels => {
                list.extend(self.blocks(values).into_iter().map(|b| with_block(base, b)));
                let terms = TERMS.into_iter().filter(|terms| i64::from(*terms) < k);
                list.extend(terms.map(|terms| Cpu {
                    terms: Some(terms),
                    ..base
                }));
            }
            _ => {
                let columns = match self.epilogue_kind() {
                    ProductEpilogue::Rows => 1,
                    _ => n,
                };
                list.extend(block_schedules(base, [m, columns]));
            }
        }
        Some(list)
    }
}

impl Conv {
    fn schedules(&self, by: Algorithm, level: Features, values: &[i64]) -> Option<Vec<Cpu>> {
        let size = |d: &kiln_base::Dim| d.eval_checked(values);
        let product_of = |dims: &[kiln_base::Dim]| size(&numel(dims));
        let (cin, cout) = (size(&self.in_channels)?, size(&self.out_channels)?);
        let is_each = (cin, cout) == (1, 1);
        let [rows, columns] = match self.role {
            ConvRole::Result => [product_of(&self.output)?, cout],
            ConvRole::Input => [product_of(&self.input)?, cin],
            ConvRole::Weight => [cin * product_of(&self.kernel)?, cout],
        };
        let columns = match is_each {
            true => size(&self.groups)?,
            false => columns,
        };
        let base = Cpu::from(by);
        let mut list = match by {
            Algorithm::Fft => return None,
            _ if is_each => Vec::new(),
            _ => tile_schedules(base, level, self.dtypes, columns),
        };
        let rows = match by {
            // Tiles of results.
            Algorithm::Winograd2 => rows / 4,
            Algorithm::Winograd4 => rows / 16,
            _ => rows,
        };
        list.extend(block_schedules(base, [rows, columns]));
        if self.role == ConvRole::Weight {
            if !is_each {
                list.extend(TERMS.map(|terms| Cpu {
                    terms: Some(terms),
                    ..base
                }));
            }
            list.extend(PARTS.map(|parts| Cpu {
                parts: Some(parts),
                ..base
            }));
        }
        Some(list)
    }
}

/// Returns the largest register tile of each width, for operands of these dtypes and `columns` columns.
fn tile_schedules(base: Cpu, level: Features, operands: [DType; 2], columns: i64) -> Vec<Cpu> {
    // Any of these insts may multiply them: the limit is the one that takes the most registers.
    let kinds = [[false; 2], [false, true], [true; 2]];
    let insts = kinds
        .map(|[reduce_range, grouped]| Instruction::of(operands, reduce_range, level, grouped));
    if level == Features::BASELINE || insts.iter().any(|i| i.has_tiles()) {
        return Vec::new();
    }
    let lanes = i64::from(lanes(level, insts[0].sums));
    let tile = |vectors: u8| {
        let rows = insts.iter().map(|i| max_rows(level, *i, vectors)).min()?;
        let is_useful = rows > 0 && i64::from(vectors - 1) * lanes < columns;
        is_useful.then_some(Cpu {
            tile: Some([rows, vectors]),
            ..base
        })
    };
    VECTORS.into_iter().filter_map(tile).collect()
}

fn with_block(base: Cpu, block: [u32; 2]) -> Cpu {
    Cpu {
        block: Some(block),
        ..base
    }
}

/// Returns the blocks that differ for `limits` rows and columns. Their names are the same for many sizes.
fn block_schedules(base: Cpu, limits: [i64; 2]) -> Vec<Cpu> {
    let clamp = |sizes: [i64; 2]| [0, 1].map(|i| sizes[i].min(limits[i]));
    let differs = |(i, sizes): &(usize, [i64; 2])| {
        let mut earlier = BLOCKS[..*i].iter();
        earlier.all(|previous| clamp(*previous) != clamp(*sizes))
    };
    let distinct = BLOCKS.into_iter().enumerate().filter(differs);
    distinct
        .map(|(_, sizes)| with_block(base, sizes.map(|n| n as u32)))
        .collect()
}

//! The model of a GPU's cycles, by which schedules are chosen without measurements.

use super::{Gpu, Multiply};
use kiln_base::{DType, Gpu as Machine, ceil};

/// The approximate bytes of L2, by threads and by bulk copies, and of memory that a multiprocessor gets per cycle.
const L2: f64 = 28.0;
const BULK: f64 = 40.0;
const MEMORY: f64 = 16.0;
/// The cycles of a stage that no other work hides: barrier, reads of shared memory and the chain of products.
const STAGE: f64 = 120.0;
/// The further cycles of a stage that has not arrived in time.
const UNHIDDEN: f64 = 400.0;
/// The instructions of threads that a multiprocessor issues per cycle.
const SLOTS: f64 = 128.0;
/// The instructions of threads per product of f16 by tensor cores: 32 for 2048, and as many others. Products of bytes
/// take half of them.
const INSTRUCTIONS: f64 = 1.0 / 32.0;
/// The further instructions of a thread per stage, counted in machine code: loop, barrier and addresses.
const STAGE_INSTRUCTIONS: f64 = 30.0;
/// The cycles until a block's first stage has arrived.
const FILL: f64 = 800.0;
/// The instructions of a thread per score of attention, and those for each column of queries and values, counted in
/// machine code: of kernels of warpgroups, which keep scores in registers, and of warps.
const WARPGROUP_SCORE: [f64; 2] = [6.5, 1.0 / 85.0];
const WARP_SCORE: [f64; 2] = [62.0, 0.14];
/// The share of the shorter of computing and moving through memory that the longer does not hide.
const UNHIDDEN_SHARE: f64 = 0.1;
/// The bytes of an operand that L2 keeps while tiles of the result are walked.
const L2_KEEPS: i64 = 16 << 20;
/// The cycles of a further kernel, which starts after the last block of the one before.
const LAUNCH: f64 = 5000.0;

/// Returns the approximate cycles of moving `bytes` bytes through a machine's memory.
pub fn transfer_cycles(machine: &Machine, bytes: i64) -> f64 {
    bytes as f64 / (MEMORY * f64::from(machine.processors.max(1)))
}

/// Returns the approximate cycles of a further kernel that moves `bytes` bytes through a machine's memory.
pub fn kernel_cycles(machine: &Machine, bytes: i64) -> f64 {
    LAUNCH + transfer_cycles(machine, bytes)
}

impl Gpu {
    /// Returns the approximate cycles that a machine takes.
    pub fn cycles(&self, machine: &Machine, work: &ContractionSizes) -> f64 {
        let ContractionSizes {
            dtype,
            batches,
            sizes: [m, n, k],
            instructions,
            elements,
            element_bytes,
        } = *work;
        if self.is_transposed() {
            let work = ContractionSizes {
                sizes: [n, m, k],
                elements: [elements[1], elements[0]],
                instructions: [instructions[1], instructions[0]],
                element_bytes: [element_bytes[1], element_bytes[0]],
                ..*work
            };
            return self.transposed().cycles(machine, &work);
        }
        let [rows, columns, terms] = self.tile.map(i64::from);
        let (size, parts) = (dtype.size() as f64, i64::from(self.parts));
        let cluster = i64::from(self.cluster);
        let clusters = ceil(m, rows * cluster) * ceil(n, columns) * parts;
        let blocks = batches.max(1) as f64 * (clusters * cluster) as f64;
        let waves = (blocks / f64::from(machine.processors.max(1))).ceil();
        let present = f64::from(self.resident(machine, dtype).max(1)).min(waves);

        let multiplications = (rows * columns * terms) as f64;
        let products = multiplications / self.multiply.rate(dtype);
        let [warp_rows, warp_columns] = self.warp.map(f64::from);
        let reads = (warp_rows + warp_columns) / (warp_rows * warp_columns);
        let operand_cycles = (rows as f64 * instructions[0] + columns as f64 * instructions[1])
            * terms as f64
            / SLOTS;
        let (read_cycles, issued) = match self.multiply {
            Multiply::Fma => (0.0, products * (1.0 + reads / 2.0) + operand_cycles),
            // Tensor cores read shared memory themselves; threads may make the left operand.
            Multiply::Wgmma | Multiply::WgmmaTf32 => (0.0, operand_cycles),
            // Warps read their operands from shared memory, 128 bytes per cycle.
            _ => (
                multiplications * reads * size / 128.0,
                (multiplications * INSTRUCTIONS * size.min(2.0) / 2.0
                    + STAGE_INSTRUCTIONS * f64::from(self.threads()))
                    / SLOTS
                    + operand_cycles,
            ),
        };
        let l2 = if self.multiply.is_by_warpgroups() {
            BULK
        } else {
            L2
        };
        let [row_bytes, column_bytes] = element_bytes.map(|bytes| bytes as i64 * terms);
        let copied = (rows * row_bytes + columns / cluster * column_bytes) as f64 / l2;
        // While a stage is multiplied, the others are on their way.
        let hidden = STAGE.max(FILL / f64::from(self.stages.max(2) - 1));
        let stage = products
            .max(read_cycles)
            .max(issued)
            .max(copied)
            .max(hidden / present);
        let stages = ceil(ceil(k, parts), terms).max(1) as f64;
        let stored = (rows * columns) as f64 * (stored_size(dtype) as f64 / MEMORY + 0.05);
        let computed = waves * (stages * stage + stored + FILL / present);
        let wave = (f64::from(machine.processors) * present) as i64;
        let moved = transfer_cycles(machine, self.memory_bytes(work, wave));
        let mut cycles = computed.max(moved) + UNHIDDEN_SHARE * computed.min(moved);
        if parts > 1 {
            let partial_bytes = batches.max(1) * m * n * (parts + 1) * (dtype.size() as i64).max(4);
            cycles += kernel_cycles(machine, partial_bytes);
        }
        cycles
    }

    /// Returns the approximate bytes that pass through memory, if `wave` blocks are resident: those of the result, and
    /// of operands. Tiles are walked in bands; unless L2 keeps all columns' operand, each band reads it again.
    fn memory_bytes(&self, work: &ContractionSizes, wave: i64) -> i64 {
        let [m, n, k] = work.sizes;
        let ([rows, columns, _], cluster) = (self.tile.map(i64::from), i64::from(self.cluster));
        let [left_bytes, right_bytes] = work.element_bytes.map(|bytes| bytes as i64);
        let at_once = wave / (cluster * ceil(n, columns)).max(1);
        let bands = match n.saturating_mul(k).saturating_mul(right_bytes) > L2_KEEPS {
            true => ceil(ceil(m, rows * cluster), at_once.max(self.raster.into())).max(1),
            false => 1,
        };
        let [left, right] = work.elements;
        let left = left.saturating_mul(left_bytes);
        let read = left.saturating_add(right.saturating_mul(right_bytes).saturating_mul(bands));
        let results = work.batches.max(1).saturating_mul(m).saturating_mul(n);
        let written = results.saturating_mul(stored_size(work.dtype) * i64::from(self.parts));
        read.saturating_add(written)
    }

    /// Returns the approximate cycles that a machine takes for attention of f16 or bf16. The tile has rows of queries
    /// and keys, and `columns` columns of the result; its terms are the width of queries.
    pub fn attention_cycles(&self, machine: &Machine, work: &AttentionSizes, columns: i64) -> f64 {
        let AttentionSizes {
            batches,
            length,
            keys,
            width,
            columns: all_columns,
            causal,
        } = *work;
        let [rows, tile_keys, _] = self.tile.map(i64::from);
        let by_warpgroups = self.multiply.is_by_warpgroups();
        let (per_score, l2, latency, present) = match by_warpgroups {
            true => (WARPGROUP_SCORE, BULK, STAGE, 1),
            false => (
                WARP_SCORE,
                L2,
                UNHIDDEN,
                machine.resident() / self.threads().max(1),
            ),
        };
        let strips = ceil(all_columns, columns);
        let blocks = batches.max(1) as f64 * (ceil(length, rows) * strips) as f64;
        let waves = (blocks / f64::from(machine.processors.max(1))).ceil();
        let present = f64::from(present.max(1)).min(waves);
        // Rows of causal attention see half of the keys on average.
        let visible_keys = if causal {
            keys.min((keys + rows) / 2)
        } else {
            keys
        };
        let scores = (rows * tile_keys) as f64;
        let inner_len = (width + columns) as f64;
        let products = scores * inner_len / self.multiply.rate(DType::BF16);
        let issued = scores * (per_score[0] + per_score[1] * inner_len) / SLOTS;
        let copied = tile_keys as f64 * inner_len * 2.0 / l2;
        let step = products.max(issued).max(copied).max(latency / present);
        waves * (ceil(visible_keys, tile_keys).max(1) as f64 * step + FILL / present)
    }
}

/// The attention that a schedule is for.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct AttentionSizes {
    /// The number of matrices.
    pub batches: i64,
    /// The rows of queries.
    pub length: i64,
    /// The rows of keys and values.
    pub keys: i64,
    /// The columns of queries and keys.
    pub width: i64,
    /// The columns of values.
    pub columns: i64,
    /// True if a row sees no later key.
    pub causal: bool,
}

/// The work that a schedule is for.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ContractionSizes {
    /// The dtype of the operands.
    pub dtype: DType,
    /// The number of products.
    pub batches: i64,
    /// The rows, columns and terms of each product.
    pub sizes: [i64; 3],
    /// The elements in memory of each operand of all products.
    pub elements: [i64; 2],
    /// The instructions of a thread that bring an element of either operand to shared memory, or make it.
    pub instructions: [f64; 2],
    /// The bytes of an element of either operand in memory, where it may be of another dtype.
    pub element_bytes: [usize; 2],
}

/// Returns the bytes of an element of the result.
fn stored_size(dtype: DType) -> i64 {
    if dtype.is_byte() {
        4
    } else {
        dtype.size() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Gpu = Gpu {
        multiply: Multiply::Mma,
        tile: [128, 128, 32],
        warp: [64, 64],
        stages: 4,
        cluster: 1,
        raster: 8,
        parts: 1,
    };

    #[test]
    fn large_tiles_take_less_of_large_products() {
        let small = Gpu {
            tile: [64, 64, 32],
            warp: [32, 32],
            ..LARGE
        };
        let cycles = |s: Gpu, sizes| {
            let work = ContractionSizes {
                dtype: DType::BF16,
                batches: 1,
                sizes,
                elements: [sizes[0] * sizes[2], sizes[1] * sizes[2]],
                instructions: [0.7; 2],
                element_bytes: [2; 2],
            };
            s.cycles(&Machine::H100, &work)
        };
        let wide = "wgmma tile=128x256x64 part=64x256 stages=4 raster=8 parts=1";
        let wide: Gpu = wide.parse().unwrap();
        let large = [4096; 3];
        assert!(cycles(wide, large) < 0.7 * cycles(LARGE, large));
        assert!(cycles(LARGE, large) < cycles(small, large));
        let little = [256, 256, 4096];
        assert!(cycles(small, little) < cycles(LARGE, little));
        let cut = Gpu { parts: 8, ..small };
        assert!(cycles(cut, little) < cycles(small, little));
    }
}

//! Without tuning, the schedule with the fewest cycles by the model is chosen. No compiler is needed. `KILN_SEEDS` sets
//! the number of shapes, 500 unless set.

use super::{lowered_for, parsed};
use crate::device;
use crate::fuzz::env_number;
use kiln_base::{DType, Gpu, ceil};
use kiln_codegen::Schedule;
use kiln_ir::Graph;
use kiln_ir::fuzz::Rng;
use kiln_plan::schedule::{self, ContractionSizes, Multiply};

/// Large tiles and their parts of warps or warpgroups, and some small ones.
const BY_WARPS: [[u16; 4]; 7] = [
    [256, 128, 64, 64],
    [128, 256, 64, 64],
    [128, 128, 64, 64],
    [128, 64, 64, 32],
    [64, 128, 32, 64],
    [64, 64, 32, 32],
    [32, 32, 16, 16],
];
const BY_WARPGROUPS: [[u16; 4]; 4] = [
    [128, 256, 64, 256],
    [256, 128, 128, 128],
    [128, 128, 64, 128],
    [128, 64, 64, 64],
];

/// Returns the fewest cycles of these tiles, with whole sums or in as many parts as may help, and their schedule.
fn best(gpu: &Gpu, work: &ContractionSizes) -> (f64, schedule::Gpu) {
    let [m, n, k] = work.sizes;
    let size = work.dtype.size() as u16;
    let tiles = |multiply, depth, tiles: &[[u16; 4]]| -> Vec<schedule::Gpu> {
        let schedule = |[rows, columns, part_rows, part_columns]: &[u16; 4]| schedule::Gpu {
            multiply,
            tile: [*rows, *columns, depth],
            warp: [*part_rows, *part_columns],
            // As many as sums have, and one.
            stages: (ceil(k, depth.into()) + 1).clamp(2, 4) as u8,
            cluster: 1,
            raster: 1,
            parts: 1,
        };
        tiles.iter().map(schedule).collect()
    };
    let mut all = tiles(Multiply::Mma, 64 / size, &BY_WARPS);
    all.extend(tiles(Multiply::Wgmma, 128 / size, &BY_WARPGROUPS));
    all.retain(|s| s.check(gpu, work.dtype).is_ok());
    let mut best: Option<(f64, schedule::Gpu)> = None;
    for schedule in all {
        // Parts of at least 128 terms, and no more than fill the machine.
        for parts in (0..6).map(|p| 1 << p).filter(|p| *p == 1 || k / p >= 128) {
            let blocks = ceil(m, schedule.tile[0].into()) * ceil(n, schedule.tile[1].into());
            if parts > 1 && blocks * parts > 2 * gpu.busy() {
                continue;
            }
            let schedule = schedule::Gpu {
                parts: parts as u16,
                ..schedule
            };
            let cycles = schedule.cycles(gpu, work);
            if best.is_none_or(|(least, _)| cycles < least) {
                best = Some((cycles, schedule));
            }
        }
    }
    best.expect("a tile is legal")
}

/// A product for a GPU, of a random dtype and random sizes.
pub struct Drawn {
    pub capability: u32,
    pub gpu: Gpu,
    pub dtype: DType,
    pub sizes: [i64; 3],
    pub graph: Graph,
}

impl Drawn {
    /// Returns the products of all seeds.
    pub fn all() -> impl Iterator<Item = Drawn> {
        (0..env_number("KILN_SEEDS", 500)).map(Drawn::of)
    }

    fn of(seed: u64) -> Drawn {
        let mut rng = Rng::new(7_000_000 + seed);
        let (capability, gpu) = rng.one(device::architectures());
        let dtype = rng.one([DType::BF16, DType::F16, DType::I8]);
        // From few to many, and often with long sums, as gradients of weights have.
        let mut size = |least: u32, most: u32| 16 << rng.range(least.into(), most.into());
        let sizes: [i64; 3] = [size(0, 9), size(0, 9), size(2, 13)];
        let [m, n, k] = sizes;
        let inputs = format!(
            "%0: {dtype}[{m}, {k}] = input(index: 0, role: Data)
             %1: {dtype}[{n}, {k}] = input(index: 1, role: Data)"
        );
        let graph = parsed(&match dtype {
            DType::I8 => format!(
                "{inputs}
                 %2: i32[{m}, {k}] = cast %0
                 %3: i32[{n}, {k}] = cast %1
                 %4: i32[{k}, {n}] = permute(perm: [1, 0]) %3
                 %5: i32[{m}, {n}] = matmul %2, %4
                 return %5"
            ),
            _ => format!(
                "{inputs}
                 %2: {dtype}[{k}, {n}] = permute(perm: [1, 0]) %1
                 %3: {dtype}[{m}, {n}] = matmul %0, %2
                 return %3"
            ),
        });
        Drawn {
            capability,
            gpu,
            dtype,
            sizes,
            graph,
        }
    }
}

/// Returns the schedule that is chosen without tuning, and its cycles.
pub fn chosen(gpu: Gpu, graph: &Graph) -> (schedule::Gpu, f64) {
    let program = lowered_for(gpu, graph, true).unwrap();
    let candidate = program.tasks.last().unwrap().candidate();
    let Schedule::Gpu(schedule) = candidate.schedule else {
        panic!("{}", candidate.name())
    };
    (schedule, candidate.predicted.expect("all sizes are known"))
}

#[test]
fn no_tile_of_products_is_better_than_the_chosen_one() {
    for drawn in Drawn::all() {
        let Drawn {
            gpu, dtype, sizes, ..
        } = drawn;
        let [m, n, k] = sizes;
        let (schedule, cycles) = chosen(gpu, &drawn.graph);
        let work = ContractionSizes {
            dtype,
            batches: 1,
            sizes,
            elements: [m * k, n * k],
            instructions: [0.7; 2],
            element_bytes: [dtype.size(); 2],
        };
        let (least, other) = best(&gpu, &work);
        assert!(
            cycles <= least * 1.001,
            "{dtype} {m}x{n}x{k}: {schedule} in {cycles}, {other} in {least}"
        );
    }
}

/// A product of few rows takes no less than the time in which memory delivers its operands, and enough blocks ask for
/// them.
#[test]
fn products_of_few_rows_wait_for_memory() {
    for (capability, gpu) in device::architectures() {
        for dtype in [DType::BF16, DType::F32] {
            for m in [1, 2, 7, 16] {
                let (n, k) = (8192, 8192);
                let graph = parsed(&format!(
                    "%0: {dtype}[{m}, {k}] = input(index: 0, role: Data)
                     %1: {dtype}[{n}, {k}] = input(index: 1, role: Data)
                     %2: {dtype}[{k}, {n}] = permute(perm: [1, 0]) %1
                     %3: {dtype}[{m}, {n}] = matmul %0, %2
                     return %3"
                ));
                let (schedule, cycles) = chosen(gpu, &graph);
                let bytes = (m * k + k * n + m * n) * dtype.size() as i64;
                let least = schedule::transfer_cycles(&gpu, bytes);
                let what = format!("sm_{capability} {dtype} {m} rows: {schedule}");
                println!("{what}: {cycles:.0} cycles, {least:.0} of memory");
                assert!(
                    cycles >= least && cycles < 2.0 * least,
                    "{what}: {cycles}, {least}"
                );
                let [rows, columns, _] = schedule.tile.map(i64::from);
                let blocks = ceil(n, columns) * i64::from(schedule.parts);
                assert!(
                    rows <= 32 && 3 * blocks >= i64::from(gpu.processors),
                    "{what}"
                );
            }
        }
    }
}

/// Tiles of products that fill a machine are so large that tensor cores need fewer bytes of L2 than it delivers.
#[test]
fn large_products_read_few_bytes() {
    let mut large = 0;
    for drawn in Drawn::all() {
        let [m, n, k] = drawn.sizes;
        let fills = m * n >= 256 * 128 * i64::from(drawn.gpu.processors);
        if m.min(n).min(k) < 512 || !fills {
            continue;
        }
        large += 1;
        let (schedule, _) = chosen(drawn.gpu, &drawn.graph);
        let [rows, columns, _] = schedule.tile.map(f64::from);
        let rows = rows * f64::from(schedule.cluster);
        let bytes = (rows + columns) * drawn.dtype.size() as f64;
        let least = if drawn.capability == 90 { 85.0 } else { 64.0 };
        let operations = 2.0 * rows * columns / bytes;
        assert!(
            operations >= least,
            "{m}x{n}x{k}: {schedule}: {operations} operations a byte"
        );
    }
    assert!(large > 10, "{large}");
}

/// The gradient of weights has few tiles and long sums: large tiles in parts, not small whole ones.
#[test]
fn gradients_of_weights_split_large_tiles() {
    for (_, gpu) in device::architectures() {
        let graph = parsed(
            "%0: bf16[64, 128, 28, 28] = input(index: 0, role: Data)
             %1: bf16[64, 128, 28, 28] = input(index: 1, role: Data)
             %2: bf16[128, 128, 3, 3] = conv_weight(conv: (stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1), kernel: [3, 3]) %0, %1
             return %2",
        );
        let (schedule, _) = chosen(gpu, &graph);
        let [rows, columns, _] = schedule.tile;
        assert!(rows.min(columns) >= 64 && schedule.parts > 1, "{schedule}");
    }
}

/// Attention whose rows fill the tiles of warpgroups is theirs, and only on machines that have them.
#[test]
fn attention_takes_the_fewest_cycles() {
    let graph = |length: usize| {
        parsed(&format!(
            "%0: bf16[4, 16, {length}, 64] = input(index: 0, role: Data)
             %1: bf16[4, 16, {length}, 64] = input(index: 1, role: Data)
             %2: bf16[4, 16, {length}, 64] = input(index: 2, role: Data)
             %3: bf16[4, 16, {length}, 64] = attention(scale: Float(0.125), causal: true) %0, %1, %2
             return %3"
        ))
    };
    for length in [128, 1000, 4096] {
        let (schedule, cycles) = chosen(Gpu::H100, &graph(length));
        assert_eq!(schedule.multiply, Multiply::Wgmma);
        let program = super::candidates::lowered_for(Gpu::H100, &graph(length));
        let candidates = &program.tasks.last().unwrap().candidates;
        let predicted: Vec<f64> = candidates.iter().filter_map(|c| c.predicted).collect();
        assert!(
            predicted.len() == 2 && predicted[1] > cycles,
            "{predicted:?}"
        );
    }
}

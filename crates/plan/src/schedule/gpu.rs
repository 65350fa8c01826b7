//! Schedules of contractions on GPUs.

mod cost;

pub use cost::{AttentionSizes, ContractionSizes, kernel_cycles, transfer_cycles};
use kiln_base::{DType, Gpu as Machine};
use std::fmt;
use std::str::FromStr;

/// The instructions that multiply.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Multiply {
    /// Multiply-adds of f32, f64, i32 or i64.
    Fma,
    /// `mma.sync` of f16 or bf16, with sums of f32, or of bytes, with sums of i32.
    Mma,
    /// `wgmma` of the same: compute capability 9.0 alone. Bytes must be contiguous along k.
    Wgmma,
    /// `wgmma` of f32 rounded to TF32, with sums of f32: likewise.
    WgmmaTf32,
    /// `mma.sync` of f32 rounded to TF32.
    Tf32,
    /// `mma.sync` of f32 as sums of two numbers of TF32.
    Tf32x3,
}

impl Multiply {
    const ALL: [Multiply; 6] = [
        Multiply::Fma,
        Multiply::Mma,
        Multiply::Wgmma,
        Multiply::WgmmaTf32,
        Multiply::Tf32,
        Multiply::Tf32x3,
    ];

    /// Returns the instruction that represents a dtype's numbers exactly.
    pub fn exact(dtype: DType) -> Multiply {
        match dtype.is_half() || dtype.is_byte() {
            true => Multiply::Mma,
            false => Multiply::Fma,
        }
    }

    /// Returns the number of terms of an instruction for operands of a dtype, or of multiply-adds together.
    fn terms(self, dtype: DType) -> u16 {
        match self {
            // Those that a thread reads at a time.
            Multiply::Fma => 16 / dtype.size() as u16,
            Multiply::Mma | Multiply::Wgmma => 32 / dtype.size() as u16,
            Multiply::WgmmaTf32 | Multiply::Tf32 | Multiply::Tf32x3 => 8,
        }
    }

    /// True if tensor cores multiply.
    pub fn is_by_tensor_cores(self) -> bool {
        self != Multiply::Fma
    }

    /// True if warpgroups multiply, from what bulk copies bring.
    pub fn is_by_warpgroups(self) -> bool {
        matches!(self, Multiply::Wgmma | Multiply::WgmmaTf32)
    }

    /// Returns the approximate number of multiply-adds of a multiprocessor per cycle.
    fn rate(self, dtype: DType) -> f64 {
        match (self, dtype) {
            (Multiply::Mma, DType::U8 | DType::I8) => 2048.0,
            (Multiply::Wgmma, DType::U8 | DType::I8) => 4096.0,
            (Multiply::Mma | Multiply::WgmmaTf32, _) => 1024.0,
            (Multiply::Wgmma, _) => 2048.0,
            (Multiply::Tf32, _) => 512.0,
            (Multiply::Tf32x3, _) => 160.0,
            (Multiply::Fma, DType::F32) => 128.0,
            (Multiply::Fma, DType::F64 | DType::I32) => 64.0,
            (Multiply::Fma, _) => 16.0,
        }
    }
}

impl fmt::Display for Multiply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Multiply::Fma => "fma",
            Multiply::Mma => "mma",
            Multiply::Wgmma => "wgmma",
            Multiply::WgmmaTf32 => "wgmma_tf32",
            Multiply::Tf32 => "tf32",
            Multiply::Tf32x3 => "tf32x3",
        })
    }
}

/// A schedule of a contraction on a GPU: a block computes a tile of the result, whose operands pass through stages of
/// shared memory. All sizes are in elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gpu {
    /// The instruction.
    pub multiply: Multiply,
    /// The rows and columns of a block's tile, and the terms of a stage.
    pub tile: [u16; 3],
    /// The rows and columns of a warp's part of the tile; with [`Multiply::Fma`], of a thread's, with `wgmma` of a
    /// warpgroup's: half of the tile's rows, or of its columns if operands are exchanged ([`Gpu::is_transposed`]).
    pub warp: [u16; 2],
    /// The stages in shared memory, two at least.
    pub stages: u8,
    /// The number of blocks, one below the other, whose tiles are computed together: each brings a part of the columns'
    /// operand to all of them. Not 1 only with `wgmma`. Those of a transposed product lie side by side, and share the
    /// rows' operand.
    pub cluster: u8,
    /// The number of tiles (of a cluster), one below the other, that are walked before those in the next columns.
    pub raster: u8,
    /// The number of parts of sums, which a second kernel adds in order.
    pub parts: u16,
}

/// The padding of rows of a block's result in shared memory, in columns, so that rows begin in different banks.
pub const ROW_PADDING: u16 = 8;

/// The bytes of 16 rows and 64 columns of a result of f32.
pub const WARP_RESULT: u32 = 16 * 64 * 4;
/// The registers of a thread with which kernels start that have a warpgroup to copy and two to multiply. These take
/// over most of those of the first.
const WARPGROUP_REGISTERS: u32 = 168;

impl Gpu {
    /// True if `wgmma` computes the transposed product: columns take the 64 rows of the instruction, so that there may
    /// be as few as 8 rows.
    pub fn is_transposed(&self) -> bool {
        self.multiply.is_by_warpgroups() && self.tile[0] == self.warp[0]
    }

    /// Returns the same schedule for the transposed product.
    #[must_use]
    pub fn transposed(self) -> Gpu {
        let ([m, n, k], [rows, columns]) = (self.tile, self.warp);
        Gpu {
            tile: [n, m, k],
            warp: [columns, rows],
            ..self
        }
    }

    /// Returns the number of threads of a block.
    pub fn threads(&self) -> u32 {
        let ([m, n, _], [rows, columns]) = (self.tile, self.warp);
        let parts = u32::from(m / rows.max(1)) * u32::from(n / columns.max(1));
        match self.multiply {
            Multiply::Fma => parts,
            // And a warpgroup that copies.
            multiply if multiply.is_by_warpgroups() => 128 * (parts + 1),
            _ => 32 * parts,
        }
    }

    /// Returns the bytes of a block's shared memory for operands of a dtype: stages, then the result in their place. With
    /// `wgmma`, each warp has room for 16 rows and 64 columns of the result beside the stages.
    pub fn shared(&self, dtype: DType) -> u32 {
        let ([m, n, k], size) = (self.tile.map(u32::from), dtype.size() as u32);
        if self.multiply.is_by_warpgroups() {
            let (stages, warps) = (u32::from(self.stages), self.threads() / 32 - 4);
            let (stage, barriers) = ((m + n) * k * size, 16);
            return (stages * (stage + barriers) + warps * WARP_RESULT).next_multiple_of(1024);
        }
        let stages = u32::from(self.stages) * (m + n) * k * size;
        stages.max(m * (n + u32::from(ROW_PADDING)) * size.max(4))
    }

    /// Returns the approximate number of registers of a thread.
    pub fn registers(&self, dtype: DType) -> u32 {
        if self.multiply.is_by_warpgroups() {
            return WARPGROUP_REGISTERS;
        }
        let [rows, columns] = self.warp.map(u32::from);
        let words = (dtype.size() as u32).div_ceil(4);
        let split = if self.multiply == Multiply::Tf32x3 {
            2
        } else {
            1
        };
        let (accumulators, operands) = match self.multiply.is_by_tensor_cores() {
            true => (rows * columns / 32, split * (rows / 4 + columns / 4)),
            // 16 bytes of each row and of up to four columns, and addresses.
            false => (rows * columns * words, 2 * (rows + columns.min(4)) + 12),
        };
        accumulators + 2 * operands + 40
    }

    /// Returns the number of blocks that a multiprocessor holds at once.
    pub fn resident(&self, machine: &Machine, dtype: DType) -> u32 {
        let (threads, registers) = (self.threads().max(1), self.registers(dtype));
        // The system reserves shared memory in addition to a block's own.
        let by_shared = machine.processor_shared / (self.shared(dtype) + 1024);
        let by_registers = machine.registers / (threads * registers.next_multiple_of(8));
        by_shared.min(by_registers).min(machine.threads / threads)
    }

    /// Checks that a machine has the memory and the registers for it.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn check(&self, machine: &Machine, dtype: DType) -> Result<(), String> {
        let ([m, n, k], [rows, columns]) = (self.tile, self.warp);
        let sizes = [m, n, k, rows, columns];
        if !sizes.iter().all(|n| n.is_power_of_two()) || self.parts == 0 || self.raster == 0 {
            return Err(format!("{self}: sizes are powers of two, and none is 0"));
        }
        if self.multiply.is_by_warpgroups() {
            return self.check_warpgroups(machine, dtype);
        }
        if self.cluster != 1 {
            return Err(format!("{self}: clusters of {} blocks", self.cluster));
        }
        let by_tensor_cores = self.multiply.is_by_tensor_cores();
        let min_part = if by_tensor_cores { 16 } else { 1 };
        let terms = self.multiply.terms(dtype);
        if rows > m || columns > n || rows.min(columns) < min_part || k < terms {
            return Err(format!(
                "{self}: parts of {rows}x{columns} of {m}x{n} by {k} terms"
            ));
        }
        // Threads load pieces of 16 bytes, and keep to their lines or terms.
        let (threads, size) = (self.threads(), dtype.size() as u32);
        let covers_stage = threads * 16 / size >= u32::from(m.max(n).max(k));
        if threads > 1024 || threads % 32 != 0 || !covers_stage {
            return Err(format!("{self}: {threads} threads for stages of {k} terms"));
        }
        if self.stages < 2 {
            return Err(format!("{self}: a single stage in shared memory"));
        }
        self.check_shared(machine, dtype)?;
        let registers = self.registers(dtype);
        match registers > 255 || self.resident(machine, dtype) == 0 {
            true => Err(format!(
                "{self}: {registers} registers for each of {threads} threads"
            )),
            false => Ok(()),
        }
    }

    /// Checks the same with `wgmma`: two warpgroups, whose sums fit their registers, and stages of rows of
    /// 128 bytes.
    fn check_warpgroups(&self, machine: &Machine, dtype: DType) -> Result<(), String> {
        let is_transposed = self.is_transposed();
        let by_rows = if is_transposed {
            self.transposed()
        } else {
            *self
        };
        let ([m, n, k], [rows, columns]) = (by_rows.tile, by_rows.warp);
        if machine.arch != (9, 0) {
            let (major, minor) = machine.arch;
            return Err(format!("{self}: compute capability {major}.{minor}"));
        }
        let accumulators = u32::from(rows) * u32::from(columns);
        let fits = m == 2 * rows && [64, 128].contains(&rows) && accumulators <= 64 * 256;
        let min_columns = if is_transposed { 8 } else { 64 };
        if !fits || n != columns || !(min_columns..=256).contains(&n) {
            return Err(format!("{self}: parts that warpgroups don't multiply"));
        }
        // Each block of a cluster brings some columns, in whole groups of eight.
        let cluster = u16::from(self.cluster);
        let shares = cluster == 2 && machine.clusters && n / cluster >= 8;
        if cluster != 1 && !shares {
            return Err(format!("{self}: clusters of {cluster} blocks"));
        }
        if usize::from(k) * dtype.size() != 128 || self.stages < 2 {
            return Err(format!("{self}: {} stages of {k} terms", self.stages));
        }
        self.check_shared(machine, dtype)
    }

    fn check_shared(&self, machine: &Machine, dtype: DType) -> Result<(), String> {
        let (shared, max_shared) = (self.shared(dtype), machine.most_shared);
        match shared > max_shared {
            true => Err(format!(
                "{self}: {shared} bytes of shared memory, of which a block gets {max_shared}"
            )),
            false => Ok(()),
        }
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([m, n, k], [rows, columns]) = (self.tile, self.warp);
        write!(
            f,
            "{} tile={m}x{n}x{k} part={rows}x{columns} stages={} raster={} parts={}",
            self.multiply, self.stages, self.raster, self.parts
        )?;
        match self.cluster {
            1 => Ok(()),
            blocks => write!(f, " cluster={blocks}"),
        }
    }
}

impl FromStr for Gpu {
    type Err = super::UnknownSchedule;

    /// Parses the text that `Display` writes.
    fn from_str(text: &str) -> Result<Gpu, super::UnknownSchedule> {
        let parsed = || {
            let mut words = text.split(' ');
            let multiply = words.next()?;
            fn value<'a>(word: Option<&'a str>, name: &str) -> Option<&'a str> {
                word?.strip_prefix(name)?.strip_prefix('=')
            }
            let mut next = |name: &str| value(words.next(), name);
            let (tile, warp) = (numbers(next("tile")?)?, numbers(next("part")?)?);
            Some(Gpu {
                multiply: Multiply::ALL
                    .into_iter()
                    .find(|m| m.to_string() == multiply)?,
                tile,
                warp,
                stages: next("stages")?.parse().ok()?,
                raster: next("raster")?.parse().ok()?,
                parts: next("parts")?.parse().ok()?,
                cluster: match words.next() {
                    None => 1,
                    word => value(word, "cluster")?.parse().ok()?,
                },
            })
        };
        parsed()
            .filter(|s| s.to_string() == text)
            .ok_or_else(|| super::UnknownSchedule(text.into()))
    }
}

fn numbers<const N: usize>(text: &str) -> Option<[u16; N]> {
    let sizes: Result<Vec<u16>, _> = text.split('x').map(str::parse).collect();
    sizes.ok()?.try_into().ok()
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
    fn texts_parse_back() {
        let text = "mma tile=128x128x32 part=64x64 stages=4 raster=8 parts=1";
        assert_eq!(LARGE.to_string(), text);
        assert_eq!(text.parse(), Ok(LARGE));
        for wrong in [
            "",
            "mma",
            "dpas tile=128x128x32 part=64x64 stages=4 raster=8 parts=1",
            "mma tile=128x128 part=64x64 stages=4 raster=8 parts=1",
            "mma tile=128x128x032 part=64x64 stages=4 raster=8 parts=1",
            "mma tile=128x128x32 part=64x64 stages=4 raster=8 parts=1 ",
            "mma part=64x64 tile=128x128x32 stages=4 raster=8 parts=1",
            "mma tile=128x128x32 part=64x64 stages=4 raster=8 parts=1 cluster=1",
        ] {
            assert!(wrong.parse::<Gpu>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn blocks_must_fit_into_a_machine() {
        let machine = Machine::H100;
        assert_eq!(LARGE.threads(), 128);
        // Four stages of 16 KiB, or 128 rows of 136 accumulators.
        assert_eq!(LARGE.shared(DType::BF16), 128 * 136 * 4);
        assert_eq!(LARGE.check(&machine, DType::BF16), Ok(()));
        assert_eq!(LARGE.resident(&machine, DType::BF16), 2);
        let with = |change: fn(&mut Gpu)| {
            let mut schedule = LARGE;
            change(&mut schedule);
            schedule.check(&machine, DType::BF16)
        };
        assert!(with(|s| s.warp = [128, 128]).is_err(), "512 sums a thread");
        assert!(with(|s| s.warp = [64, 48]).is_err());
        assert!(with(|s| s.warp = [8, 64]).is_err());
        assert!(with(|s| s.tile[2] = 8).is_err(), "half of an instruction");
        assert!(with(|s| s.warp = [16, 16]).is_err(), "2048 threads");
        assert!(with(|s| s.stages = 1).is_err());
        assert!(
            with(|s| s.tile = [1024, 128, 32]).is_err(),
            "more than a block gets"
        );
        assert!(with(|s| s.stages = 0).is_err());
        assert!(with(|s| s.tile = [256, 128, 32]).is_ok());
        let small = Machine {
            most_shared: 48 << 10,
            ..machine
        };
        assert!(LARGE.check(&small, DType::BF16).is_err());
    }

    #[test]
    fn warpgroups_are_for_one_architecture() {
        let check = |text: &str, machine: &Machine| {
            let schedule: Gpu = text.parse().unwrap();
            schedule.check(machine, DType::BF16)
        };
        let (h100, text) = (
            Machine::H100,
            "wgmma tile=128x256x64 part=64x256 stages=4 raster=8 parts=1",
        );
        assert_eq!(check(text, &h100), Ok(()));
        let cluster = format!("{text} cluster=2");
        assert_eq!(check(&cluster, &h100), Ok(()));
        let few = "wgmma tile=16x128x64 part=16x64 stages=4 raster=8 parts=1 cluster=2";
        assert_eq!(check(few, &h100), Ok(()));
        for rows in [8, 64, 256] {
            let few = format!("wgmma tile={rows}x128x64 part={rows}x64 stages=4 raster=8 parts=1");
            assert_eq!(check(&few, &h100), Ok(()));
            let [few, wide] = [&few, text].map(|text| text.parse::<Gpu>().unwrap());
            assert!(few.is_transposed() && !wide.is_transposed());
            assert_eq!(few.threads(), wide.threads());
        }
        let alone = Machine {
            clusters: false,
            ..h100
        };
        assert!(check(&cluster, &alone).is_err());
        for arch in [(8, 0), (8, 9), (10, 0), (12, 0)] {
            assert!(check(text, &Machine { arch, ..h100 }).is_err(), "{arch:?}");
        }
        for wrong in [
            "wgmma tile=128x256x32 part=64x256 stages=4 raster=8 parts=1",
            "wgmma tile=128x256x64 part=64x128 stages=4 raster=8 parts=1",
            "wgmma tile=128x256x64 part=128x256 stages=4 raster=8 parts=1",
            "wgmma tile=256x256x64 part=128x256 stages=2 raster=8 parts=1",
            "wgmma tile=128x256x64 part=64x256 stages=5 raster=8 parts=1",
            "wgmma tile=128x256x64 part=64x256 stages=1 raster=8 parts=1",
            "wgmma tile=128x32x64 part=64x32 stages=4 raster=8 parts=1",
            "wgmma tile=8x128x64 part=8x64 stages=4 raster=8 parts=1 cluster=2",
            "wgmma tile=16x64x64 part=16x64 stages=4 raster=8 parts=1",
            "wgmma tile=4x128x64 part=4x64 stages=4 raster=8 parts=1",
            "wgmma tile=128x256x64 part=64x256 stages=4 raster=8 parts=1 cluster=4",
            "mma tile=128x128x32 part=64x64 stages=4 raster=8 parts=1 cluster=2",
        ] {
            assert!(check(wrong, &h100).is_err(), "{wrong}");
        }
    }
}

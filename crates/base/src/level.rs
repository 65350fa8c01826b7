//! CPU levels: the instruction sets that kernels are compiled for.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// An instruction set that kernels are compiled for.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What every machine of the target has (SSE2 on x86-64).
    #[default]
    Baseline,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI, as processors of laptops have it: products of bytes, four to a lane.
    Avx2Vnni,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with VNNI: products of bytes, four to a lane.
    Avx512Vnni,
    /// AVX-512 with VNNI and BF16: products of bf16, two to a lane.
    Avx512Bf16,
    /// AVX-512 with VNNI, BF16 and FP16: arithmetic on f16.
    Avx512Fp16,
    /// AVX-512 with all of these, and AMX: products of tiles of bf16 and of bytes.
    Amx,
}

/// A CPU level that does not exist or that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CPU level {asked:?}: {why}")]
pub struct LevelError {
    /// What was asked for.
    pub asked: String,
    /// What is wrong with it.
    pub why: String,
}

/// 0: not overridden, else the level's number plus 1.
static OVERRIDE: AtomicU8 = AtomicU8::new(0);

impl Level {
    /// Every level, the least first; each has what those in front of it have, but for AVX-VNNI.
    pub const ALL: [Level; 8] = [
        Level::Baseline,
        Level::Avx2,
        Level::Avx2Vnni,
        Level::Avx512,
        Level::Avx512Vnni,
        Level::Avx512Bf16,
        Level::Avx512Fp16,
        Level::Amx,
    ];

    /// The levels whose vectors of f32 differ.
    pub const WIDTHS: [Level; 3] = [Level::Baseline, Level::Avx2, Level::Avx512];

    /// The name that `KILN_CPU_LEVEL` takes.
    pub fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx2Vnni => "avx2_vnni",
            Level::Avx512 => "avx512",
            Level::Avx512Vnni => "avx512_vnni",
            Level::Avx512Bf16 => "avx512_bf16",
            Level::Avx512Fp16 => "avx512_fp16",
            Level::Amx => "amx",
        }
    }

    /// The level of its vectors of f32, one of [`Level::WIDTHS`].
    pub fn width(self) -> Level {
        match self {
            Level::Avx2Vnni => Level::Avx2,
            level => level.min(Level::Avx512),
        }
    }

    /// Whether instructions multiply four bytes to a lane.
    pub fn multiplies_bytes(self) -> bool {
        self == Level::Avx2Vnni || self >= Level::Avx512Vnni
    }

    /// Whether products of bf16 are faster than those of f32: by VDPBF16PS, or in tiles. Processors that have FP16 take
    /// four times as long for a VDPBF16PS as for a VFMADD of f32, which does half as much (Emerald Rapids).
    pub fn multiplies_bf16(self) -> bool {
        matches!(self, Level::Avx512Bf16 | Level::Amx)
    }

    /// Whether this machine has it.
    pub fn is_supported(self) -> bool {
        let below = Level::ALL.into_iter().filter(|l| *l < self);
        let mut below = below.filter(|l| *l != Level::Avx2Vnni);
        self.is_found() && below.all(Level::is_found)
    }

    /// Whether this machine has what the level has beside those below it.
    #[cfg(target_arch = "x86_64")]
    fn is_found(self) -> bool {
        use is_x86_feature_detected as has;
        match self {
            Level::Baseline => true,
            Level::Avx2 => has!("avx2") && has!("fma") && has!("f16c"),
            Level::Avx2Vnni => has!("avxvnni"),
            Level::Avx512 => {
                has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl")
            }
            Level::Avx512Vnni => has!("avx512vnni"),
            Level::Avx512Bf16 => has!("avx512bf16"),
            // Bits of EDX, leaf 7 of CPUID: AVX512-FP16; AMX-BF16, AMX-TILE and AMX-INT8.
            Level::Avx512Fp16 => extended_features() & 1 << 23 != 0,
            Level::Amx => extended_features() & AMX == AMX && keeps_tiles(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_found(self) -> bool {
        self == Level::Baseline
    }

    /// The level in use: the override, else `KILN_CPU_LEVEL`, else the best this machine has.
    ///
    /// # Errors
    /// If the environment asks for a level that does not exist or that this machine lacks.
    pub fn current() -> Result<Level, LevelError> {
        static DEFAULT: OnceLock<Result<Level, LevelError>> = OnceLock::new();
        match OVERRIDE.load(Ordering::Relaxed) {
            0 => DEFAULT.get_or_init(Level::from_environment).clone(),
            n => Ok(Level::ALL[n as usize - 1]),
        }
    }

    /// Makes programs that are bound from now on use this level; `None` ends that.
    ///
    /// # Errors
    /// If this machine lacks it.
    pub fn force(level: Option<Level>) -> Result<(), LevelError> {
        if let Some(level) = level {
            level.supported()?;
        }
        OVERRIDE.store(level.map_or(0, |l| l as u8 + 1), Ordering::Relaxed);
        Ok(())
    }

    fn supported(self) -> Result<Level, LevelError> {
        if self.is_supported() {
            return Ok(self);
        }
        Err(LevelError {
            asked: self.name().into(),
            why: "this machine does not have it".into(),
        })
    }

    fn from_environment() -> Result<Level, LevelError> {
        let asked = std::env::var("KILN_CPU_LEVEL").unwrap_or_default();
        if asked.is_empty() {
            let best = Level::ALL.into_iter().rev().find(|l| l.is_supported());
            return Ok(best.unwrap_or(Level::Baseline));
        }
        match Level::ALL.into_iter().find(|l| l.name() == asked) {
            Some(level) => level.supported(),
            None => Err(LevelError {
                asked,
                why: format!(
                    "KILN_CPU_LEVEL takes {}",
                    Level::ALL.map(Level::name).join(", ")
                ),
            }),
        }
    }
}

#[cfg(target_arch = "x86_64")]
const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// EDX of leaf 7 of CPUID.
#[cfg(target_arch = "x86_64")]
fn extended_features() -> u32 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    match __cpuid(0).eax {
        7.. => __cpuid_count(7, 0).edx,
        _ => 0,
    }
}

/// Whether the operating system keeps the tiles of AMX when it switches threads, and lets this process use them.
#[cfg(target_arch = "x86_64")]
fn keeps_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    unsafe fn kept() -> u64 {
        // SAFETY: XCR0 is there wherever XGETBV is.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    if !is_x86_feature_detected!("avx") {
        return false;
    }
    // SAFETY: AVX is only found where the operating system has switched XGETBV on.
    let kept = unsafe { kept() };
    kept & (1 << 17 | 1 << 18) == 1 << 17 | 1 << 18 && may_use_tiles()
}

/// Asks Linux for tiles: it gives a process no room for them unless it is asked to.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call that touches no memory of the process; it leaves all registers but these.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn may_use_tiles() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_stand_on_each_other() {
        let all = Level::ALL.into_iter().filter(|l| *l != Level::Avx2Vnni);
        let supported: Vec<bool> = all.map(Level::is_supported).collect();
        assert!(supported.is_sorted_by(|a, b| a >= b), "{supported:?}");
        assert!(Level::ALL.is_sorted());
        assert_eq!(Level::WIDTHS, Level::WIDTHS.map(Level::width));
        assert!(
            Level::ALL
                .iter()
                .all(|l| Level::WIDTHS.contains(&l.width()))
        );
    }
}

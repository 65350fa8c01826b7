//! Instruction sets that kernels are compiled for: sets of features, some with a name.

#[cfg(all(target_arch = "x86_64", not(portable)))]
use std::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use std::fmt;
use std::ops::BitOr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// An extension of an instruction set.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-VNNI: products of bytes, four to a lane, with VEX.
    AvxVnni,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX512-VNNI: products of bytes, four to a lane.
    Avx512Vnni,
    /// AVX512-BF16: products of bf16, two per lane.
    Avx512Bf16,
    /// AVX512-FP16: arithmetic on f16.
    Avx512Fp16,
    /// AMX-TILE, AMX-BF16 and AMX-INT8: products of tiles of bf16 and of bytes.
    Amx,
    /// AMX-FP16: products of tiles of f16.
    AmxFp16,
}

/// A set of features that kernels are compiled for. The sets with a name are the *levels* that `KILN_CPU_LEVEL` takes.
#[derive(Copy, Clone, Default, PartialEq, Eq, Hash)]
pub struct Features(u16);

/// A CPU level that does not exist or that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CPU level {asked:?}: {why}")]
pub struct LevelError {
    /// The requested name.
    pub asked: String,
    /// The reason why it can't be used.
    pub why: String,
}

/// [`NOT_OVERRIDDEN`], or a set.
static OVERRIDE: AtomicU32 = AtomicU32::new(NOT_OVERRIDDEN);
const NOT_OVERRIDDEN: u32 = u32::MAX;

impl Feature {
    /// Every feature.
    pub const ALL: [Feature; 8] = [
        Feature::Avx2,
        Feature::AvxVnni,
        Feature::Avx512,
        Feature::Avx512Vnni,
        Feature::Avx512Bf16,
        Feature::Avx512Fp16,
        Feature::Amx,
        Feature::AmxFp16,
    ];
}

impl Features {
    /// The features that every machine of the target has (SSE2 on x86-64).
    pub const BASELINE: Features = Features(0);
    /// AVX2, FMA and F16C.
    pub const AVX2: Features = Features::BASELINE.with(Feature::Avx2);
    /// AVX2 with AVX-VNNI, as in laptop processors.
    pub const AVX2_VNNI: Features = Features::AVX2.with(Feature::AvxVnni);
    /// AVX-512 F, BW, DQ and VL.
    pub const AVX512: Features = Features::AVX2.with(Feature::Avx512);
    /// AVX-512 with VNNI.
    pub const AVX512_VNNI: Features = Features::AVX512.with(Feature::Avx512Vnni);
    /// AVX-512 with VNNI and BF16.
    pub const AVX512_BF16: Features = Features::AVX512_VNNI.with(Feature::Avx512Bf16);
    /// AVX-512 with VNNI, BF16 and FP16.
    pub const AVX512_FP16: Features = Features::AVX512_BF16.with(Feature::Avx512Fp16);
    /// All of the above, and AMX.
    pub const AMX: Features = Features::AVX512_FP16.with(Feature::Amx);
    /// The same, with f16 tiles.
    pub const AMX_FP16: Features = Features::AMX.with(Feature::AmxFp16);

    /// The sets with a name, each after those that it contains.
    pub const LEVELS: [Features; 9] = [
        Features::BASELINE,
        Features::AVX2,
        Features::AVX2_VNNI,
        Features::AVX512,
        Features::AVX512_VNNI,
        Features::AVX512_BF16,
        Features::AVX512_FP16,
        Features::AMX,
        Features::AMX_FP16,
    ];

    /// The levels whose vectors of f32 differ.
    pub const WIDTHS: [Features; 3] = [Features::BASELINE, Features::AVX2, Features::AVX512];

    const NAMES: [&str; 9] = [
        "baseline",
        "avx2",
        "avx2_vnni",
        "avx512",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx",
        "amx_fp16",
    ];

    /// Returns the set with another feature.
    pub const fn with(self, feature: Feature) -> Features {
        Features(self.0 | 1 << feature as u16)
    }

    /// Returns the set without a feature.
    pub const fn without(self, feature: Feature) -> Features {
        Features(self.0 & !(1 << feature as u16))
    }

    /// Returns a bit for each of [`Feature::ALL`].
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// True if the set has a feature.
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & 1 << feature as u16 != 0
    }

    /// True if the set contains another.
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the name that `KILN_CPU_LEVEL` takes. For a set that is not a level, it is that of the last level that
    /// it contains.
    pub fn name(self) -> &'static str {
        let mut levels = Features::LEVELS.into_iter().zip(Features::NAMES).rev();
        let level = levels.find(|(level, _)| self.contains(*level));
        level.map_or("baseline", |(_, name)| name)
    }

    /// Returns the set that determines its vectors of f32, one of [`Features::WIDTHS`].
    pub fn width(self) -> Features {
        match (self.has(Feature::Avx512), self.has(Feature::Avx2)) {
            (true, _) => Features::AVX512,
            (false, true) => Features::AVX2,
            (false, false) => Features::BASELINE,
        }
    }

    /// True if this machine has all of its features.
    pub fn is_supported(self) -> bool {
        Features::detect().contains(self)
    }

    /// Returns the features that this machine has.
    fn detect() -> Features {
        static DETECTED: OnceLock<Features> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let detected = Feature::ALL.into_iter().filter(|f| f.is_found());
            detected.fold(Features::BASELINE, Features::with)
        })
    }

    /// Returns the level in use: the override, or `KILN_CPU_LEVEL`, or the best that this machine has.
    ///
    /// # Errors
    /// If the environment asks for a level that does not exist or that this machine lacks.
    pub fn current() -> Result<Features, LevelError> {
        static DEFAULT: OnceLock<Result<Features, LevelError>> = OnceLock::new();
        match OVERRIDE.load(Ordering::Relaxed) {
            NOT_OVERRIDDEN => DEFAULT.get_or_init(Features::from_environment).clone(),
            n => Ok(Features(n as u16)),
        }
    }

    /// Makes programs that are bound from now on use this level; `None` ends that.
    ///
    /// # Errors
    /// If this machine lacks it.
    pub fn force(level: Option<Features>) -> Result<(), LevelError> {
        if let Some(level) = level {
            level.require_supported()?;
        }
        OVERRIDE.store(
            level.map_or(NOT_OVERRIDDEN, |l| l.0.into()),
            Ordering::Relaxed,
        );
        Ok(())
    }

    fn require_supported(self) -> Result<Features, LevelError> {
        if self.is_supported() {
            return Ok(self);
        }
        Err(LevelError {
            asked: self.name().into(),
            why: "this machine does not have it".into(),
        })
    }

    fn from_environment() -> Result<Features, LevelError> {
        let name = std::env::var("KILN_CPU_LEVEL").unwrap_or_default();
        if name.is_empty() {
            let best = Features::LEVELS
                .into_iter()
                .rev()
                .find(|l| l.is_supported());
            return Ok(best.unwrap_or_default());
        }
        match Features::LEVELS.into_iter().find(|l| l.name() == name) {
            Some(level) => level.require_supported(),
            None => Err(LevelError {
                asked: name,
                why: format!("KILN_CPU_LEVEL takes {}", Features::NAMES.join(", ")),
            }),
        }
    }
}

impl BitOr for Features {
    type Output = Features;

    fn bitor(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match Features::LEVELS.contains(self) {
            true => write!(f, "{name}"),
            false => {
                let features = Feature::ALL.into_iter().filter(|x| self.has(*x));
                f.debug_set().entries(features).finish()
            }
        }
    }
}

impl Feature {
    /// True if this machine has it, and its operating system lets this process use it.
    #[cfg(all(target_arch = "x86_64", not(portable)))]
    fn is_found(self) -> bool {
        use is_x86_feature_detected as has;
        match self {
            Feature::Avx2 => has!("avx2") && has!("fma") && has!("f16c"),
            Feature::AvxVnni => has!("avxvnni"),
            Feature::Avx512 => {
                has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl")
            }
            Feature::Avx512Vnni => has!("avx512vnni"),
            Feature::Avx512Bf16 => has!("avx512bf16"),
            // Bits of leaf 7 of CPUID: AVX512-FP16; AMX-BF16, AMX-TILE and AMX-INT8; AMX-FP16.
            Feature::Avx512Fp16 => extended_features(0).edx & 1 << 23 != 0,
            Feature::Amx => extended_features(0).edx & AMX == AMX && saves_tiles(),
            Feature::AmxFp16 => Feature::Amx.is_found() && extended_features(1).eax & 1 << 21 != 0,
        }
    }

    #[cfg(not(all(target_arch = "x86_64", not(portable))))]
    fn is_found(self) -> bool {
        false
    }
}

#[cfg(all(target_arch = "x86_64", not(portable)))]
const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;

/// Returns a subleaf of leaf 7 of CPUID: zeros if it does not exist.
#[cfg(all(target_arch = "x86_64", not(portable)))]
fn extended_features(subleaf: u32) -> CpuidResult {
    match __cpuid(0).eax >= 7 && __cpuid_count(7, 0).eax >= subleaf {
        true => __cpuid_count(7, subleaf),
        false => CpuidResult {
            eax: 0,
            ebx: 0,
            ecx: 0,
            edx: 0,
        },
    }
}

/// True if the operating system saves AMX tiles when it switches threads, and lets this process use them.
#[cfg(all(target_arch = "x86_64", not(portable)))]
fn saves_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    unsafe fn xcr0() -> u64 {
        // SAFETY: XCR0 exists wherever XGETBV does.
        unsafe { std::arch::x86_64::_xgetbv(0) }
    }
    if !is_x86_feature_detected!("avx") {
        return false;
    }
    // SAFETY: AVX is only found where the operating system has enabled XGETBV.
    let enabled = unsafe { xcr0() };
    enabled & (1 << 17 | 1 << 18) == 1 << 17 | 1 << 18 && request_tiles()
}

/// Requests AMX tiles from Linux, which grants them only on request.
#[cfg(all(target_arch = "x86_64", not(portable), target_os = "linux"))]
fn request_tiles() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call that touches no memory of the process; it preserves all registers except these.
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

#[cfg(all(target_arch = "x86_64", not(portable), not(target_os = "linux")))]
fn request_tiles() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_sets_of_features() {
        for (i, level) in Features::LEVELS.into_iter().enumerate() {
            assert_eq!(level.name(), Features::NAMES[i]);
            assert!(Features::WIDTHS.contains(&level.width()) && level.contains(level.width()));
            let later = &Features::LEVELS[i + 1..];
            assert!(later.iter().all(|l| !level.contains(*l)));
            for feature in Feature::ALL {
                assert!(level.with(feature).has(feature) && !level.without(feature).has(feature));
            }
        }
        assert_eq!(Features::WIDTHS, Features::WIDTHS.map(Features::width));
        // Neither of these sets contains the other.
        let [vnni, wide] = [Features::AVX2_VNNI, Features::AVX512];
        assert!(!vnni.contains(wide) && !wide.contains(vnni) && (vnni | wide).contains(vnni));
        assert_eq!((vnni | wide).name(), "avx512");
    }
}

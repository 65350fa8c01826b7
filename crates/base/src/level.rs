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
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
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
    /// Every level, the least first.
    pub const ALL: [Level; 3] = [Level::Baseline, Level::Avx2, Level::Avx512];

    /// The name that `KILN_CPU_LEVEL` takes.
    pub fn name(self) -> &'static str {
        match self {
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// Whether this machine has it.
    pub fn is_supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            match self {
                Level::Baseline => true,
                Level::Avx2 => avx2,
                Level::Avx512 => {
                    avx2 && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Level::Baseline
        }
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
                why: "KILN_CPU_LEVEL takes baseline, avx2 or avx512".into(),
            }),
        }
    }
}

//! The settings by which algorithms are chosen: those of the process, and those of one compilation.

use kiln_codegen::Approximation;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The method by which the algorithm of a kernel is chosen, where there are several.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By rules on its sizes. Nothing is measured and the store is not read, so results depend on the
    /// program and the device alone.
    #[default]
    Off,
    /// The fastest: by the store, else by measuring, which the store remembers. A later measurement, or another
    /// machine's store, may choose another algorithm, whose results are rounded differently.
    On,
    /// By the store alone; nothing is measured. Kernels that the store does not know are computed as in
    /// [`Mode::Off`], and [`Tuning::missing`](super::Tuning::missing) names them.
    Frozen,
    /// As [`Mode::On`], but only among candidates that compute the results of [`Mode::Off`] bit for bit: the choice
    /// changes nothing but the time of a run.
    Deterministic,
}

/// The approximations that may be used. Each is a candidate, which runs only where it was measured to be faster.
/// Without tuning there are none, with two exceptions: the rewrites, and, on the CPU, Winograd's F(2×2, 3×3).
/// Convolutions of images with channels last whose weights are parameters are computed by the latter where the model
/// says that it pays. In the bounds below, u is 2⁻²⁴, half the distance from 1 to the next f32, and S is the sum of
/// the absolute values of the products in a sum of k. A plain sum is off by γ(k) · S at most, where γ(k) = k · u / (1
/// − k · u).
///
/// | approximation | from | error at most | NaN, infinities | derivation |
/// |---|---|---|---|---|
/// | rewrites that change rounding (a batch norm folded into a convolution) | `default` | that of the rounding | as without, but for scales that are not finite | each pass |
/// | Winograd's F(2×2, 3×3) | `default` | 64/9 · γ(k + 28) · k · max abs(x) · max abs(w) | spread within a tile | [`Algorithm`] |
/// | Fourier transforms of many taps, CPU | `default` | likewise, 8 times | spread within a tile | [`Algorithm`] |
/// | products and convolutions of f32 as three products of TF32, GPU, sums of 32 and more | `default` | (2⁻¹⁸ + γ(k)) · S, 3 times a plain sum's | infinity gives NaN | [`Approximation::Tf32x3`] |
/// | Winograd's F(4×4, 3×3) | `fast` | 256 times | spread within a tile | [`Algorithm`] |
/// | products and convolutions of f32 rounded to TF32, GPU | `fast` | (2⁻¹⁰ + 2⁻²² + 3 · γ(k)) · S | as without, but numbers from (1 − 2⁻¹²) · 2¹²⁸ on are infinite | [`Approximation::Tf32`] |
/// | `exp`, `log`, `sqrt`, `tanh` and division of f32 by a GPU's special functions, in fused kernels | `fast` | for `exp` 2⁻¹⁶, for `tanh` 2⁻¹¹, else 4 units in the last place, of each function's result | as without | [`Approximation::FastMath`] |
///
/// f16 and bf16 have no approximation of their own: their products are exact in f32, and so are their sums except for
/// rounding. The functions of the CPU engine have no cheaper form: they are polynomials within 4 units in the last
/// place, and one coefficient less saves one of about ten multiply-adds and costs some bits.
///
/// The tuner compares a candidate with the same computed in f64, within the bound of the candidate. The test suites
/// compare each with f64 at odd sizes, with cancellation, NaN and infinities (`runtime/tests/runtime/algorithms.rs`,
/// `codegen/tests/codegen/cuda/approximate.rs`).
///
/// [`Algorithm`]: kiln_plan::Algorithm::error_growth
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Precision {
    /// None: no rewrite changes rounding, and sums are sums of products. The order of a sum is the engine's.
    Exact,
    /// Those whose bound is at most [`Precision::growth`] times the bound without them.
    #[default]
    Default,
    /// All.
    Fast,
}

impl Precision {
    /// The factor by which the bound of an algorithm's error may exceed that of a plain sum; see
    /// [`Algorithm::error_growth`](kiln_plan::Algorithm::error_growth).
    pub fn growth(self) -> f64 {
        match self {
            Precision::Exact => 1.0,
            Precision::Default => 8.0,
            Precision::Fast => 256.0,
        }
    }

    /// True if a candidate may use this approximation.
    pub fn allows(self, approximation: Approximation) -> bool {
        match approximation {
            Approximation::Algorithm(algorithm) => algorithm.error_growth() <= self.growth(),
            Approximation::Tf32x3 => self >= Precision::Default,
            Approximation::Tf32 | Approximation::FastMath(_) => self == Precision::Fast,
        }
    }
}

/// The settings by which algorithms are chosen in one compilation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The method by which algorithms are chosen.
    pub mode: Mode,
    /// The file of the store: an empty path for a store in memory that ends with the process, `None` for the user's
    /// (see [`store_path`]).
    pub store: Option<Arc<Path>>,
    /// The maximum number of bytes of workspace of a candidate. If none fits, the default candidate is used, which
    /// [`Why::NothingFits`](super::Why::NothingFits) reports.
    pub workspace: Option<u64>,
    /// The time that one compilation may spend on measuring. Further kernels are computed as in [`Mode::Off`],
    /// and measured by a later compilation.
    pub budget: Duration,
    /// The time that a candidate may take to be prepared, or to run once, before it is given up.
    pub patience: Duration,
    /// True to also try cuBLASLt for products on a GPU, if it is found. Packages have Kiln's kernels instead.
    pub cublaslt: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mode: Mode::Off,
            store: None,
            workspace: None,
            budget: Duration::from_secs(60),
            patience: Duration::from_secs(20),
            cublaslt: true,
        }
    }
}

impl Settings {
    /// The settings of the process: those last [set](set), initially those of the environment. `KILN_TUNE` is the
    /// mode (`off`, `on`, `frozen`, `deterministic`), `KILN_TUNE_WORKSPACE` the bytes of workspace,
    /// `KILN_TUNE_BUDGET` the seconds of a compilation, `KILN_TUNE_CUBLASLT=0` leaves cuBLASLt out. A value that can't
    /// be read is an error of the next compilation.
    pub fn current() -> Settings {
        process(|p| p.settings.clone())
    }

    /// The file of the store; empty for the store in memory.
    pub(super) fn store_path(&self) -> PathBuf {
        match &self.store {
            Some(path) => path.to_path_buf(),
            None => store_path().unwrap_or_default(),
        }
    }
}

impl Precision {
    /// The precision of the process: the one last [set](set_precision), initially that of `KILN_PRECISION` (`exact`,
    /// `default`, `fast`).
    pub fn current() -> Precision {
        process(|p| p.precision)
    }
}

/// Sets the settings for programs compiled from now on.
pub fn set(settings: Settings) {
    process(|p| p.settings = settings);
}

/// Sets the approximations that may be used, for programs compiled from now on.
pub fn set_precision(precision: Precision) {
    process(|p| p.precision = precision);
}

/// The variable of the environment that can't be read, and why.
pub(crate) fn problem() -> Option<String> {
    process(|p| p.problem.clone())
}

/// The user's store: `KILN_TUNE_STORE`, else `tune.jsonl` in [`kiln_base::file::cache_folder`]. `None` if
/// the variable is empty or there is no such folder; measurements then end with the process.
pub fn store_path() -> Option<PathBuf> {
    match std::env::var_os("KILN_TUNE_STORE") {
        Some(path) => Some(PathBuf::from(path)).filter(|p| !p.as_os_str().is_empty()),
        None => kiln_base::file::cache_folder().map(|folder| folder.join("tune.jsonl")),
    }
}

/// The settings of the process.
#[derive(Default)]
struct Process {
    settings: Settings,
    precision: Precision,
    problem: Option<String>,
}

fn process<T>(f: impl FnOnce(&mut Process) -> T) -> T {
    static PROCESS: Mutex<Option<Process>> = Mutex::new(None);
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    f(process.get_or_insert_with(from_environment))
}

fn from_environment() -> Process {
    let mut process = Process::default();
    let (settings, problem) = (&mut process.settings, &mut process.problem);
    settings.mode = var("KILN_TUNE", problem).unwrap_or_default();
    process.precision = var("KILN_PRECISION", problem).unwrap_or_default();
    settings.workspace = var("KILN_TUNE_WORKSPACE", problem);
    if let Some(seconds) = var("KILN_TUNE_BUDGET", problem) {
        settings.budget = Duration::from_secs(seconds);
    }
    if let Some(on) = var::<u8>("KILN_TUNE_CUBLASLT", problem) {
        settings.cublaslt = on != 0;
    }
    process
}

/// Returns the value of a variable that is set and not empty.
fn var<T: FromStr<Err: std::fmt::Display>>(name: &str, problem: &mut Option<String>) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let value = text.parse();
    value
        .map_err(|e| *problem = Some(format!("{name}={text}: {e}")))
        .ok()
}

/// A word that names no [`Mode`] or [`Precision`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not one of {known}")]
pub struct UnknownWord {
    found: String,
    known: &'static str,
}

macro_rules! words {
    ($type:ident, $known:literal, $($variant:ident = $word:literal),*) => {
        impl $type {
            /// Returns its name in the environment and on command lines.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<$type, UnknownWord> {
                match text {
                    $($word => Ok($type::$variant),)*
                    other => Err(UnknownWord { found: other.into(), known: $known }),
                }
            }
        }
    };
}

words!(
    Mode,
    "off, on, frozen, deterministic",
    Off = "off",
    On = "on",
    Frozen = "frozen",
    Deterministic = "deterministic"
);
words!(
    Precision,
    "exact, default, fast",
    Exact = "exact",
    Default = "default",
    Fast = "fast"
);

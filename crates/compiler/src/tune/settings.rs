//! How algorithms are chosen: settings of the process, and of one compilation.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How the algorithm of a kernel is chosen, where there are several.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By rules on its sizes. Nothing is measured and the store is not read, so results depend on the
    /// program and the device alone.
    #[default]
    Off,
    /// The fastest: by the store, else by measuring, which the store remembers. A later measurement, or
    /// another machine's store, may choose another algorithm, whose results are rounded otherwise.
    On,
    /// By the store alone; nothing is measured. What the store does not know is computed as in
    /// [`Mode::Off`], and [`Tuning::missing`](super::Tuning::missing) names it.
    Frozen,
    /// As [`Mode::On`], but only among candidates that give the results of [`Mode::Off`] bit for bit: what is
    /// chosen changes the time of a run and nothing else.
    Deterministic,
}

/// Which approximations may be used.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Precision {
    /// None: no rewrite changes rounding, and sums are sums of products. The order of a sum is the
    /// engine's.
    Exact,
    /// Rewrites that are known to be harmless (a batch norm folded into a convolution), and algorithms whose
    /// error bound is at most [`Precision::growth`] times that of a sum: Winograd's F(2×2, 3×3), times 64/9,
    /// and Fourier transforms of many taps, times 8, where they are measured to be faster. These carry NaN and infinities to the other results of a tile too.
    #[default]
    Default,
    /// Algorithms with larger bounds too: Winograd's F(4×4, 3×3), times 256.
    Fast,
}

impl Precision {
    /// By how much the bound of an algorithm's error may exceed that of a plain sum; see
    /// [`Algorithm::error_growth`](kiln_base::plan::Algorithm::error_growth).
    pub fn growth(self) -> f64 {
        match self {
            Precision::Exact => 1.0,
            Precision::Default => 8.0,
            Precision::Fast => 256.0,
        }
    }
}

/// How algorithms are chosen in one compilation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Whether to measure.
    pub mode: Mode,
    /// The file of the store: an empty path for one that ends with the process, `None` for the user's
    /// (see [`store_path`]).
    pub store: Option<Arc<Path>>,
    /// The most bytes of memory that a candidate may need beside its arguments. Where none fits, the
    /// default candidate is used, which [`Why::NothingFits`](super::Why::NothingFits) says.
    pub workspace: Option<u64>,
    /// The time that one compilation may spend on measuring. Kernels that it does not suffice for are
    /// computed as in [`Mode::Off`], and measured by a later compilation.
    pub budget: Duration,
    /// How long a candidate may take to be prepared, or to run once, before it is given up.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mode: Mode::Off,
            store: None,
            workspace: None,
            budget: Duration::from_secs(60),
            patience: Duration::from_secs(20),
        }
    }
}

impl Settings {
    /// The process's: what was last [set](set), at first what the environment says. `KILN_TUNE` is the mode
    /// (`off`, `on`, `frozen`, `deterministic`), `KILN_TUNE_WORKSPACE` the bytes of workspace,
    /// `KILN_TUNE_BUDGET` the seconds of a compilation. A value that can't be read is an error of the next
    /// compilation.
    pub fn current() -> Settings {
        process(|p| p.settings.clone())
    }

    /// The file of the store; empty for the one in memory.
    pub(super) fn store_path(&self) -> PathBuf {
        match &self.store {
            Some(path) => path.to_path_buf(),
            None => store_path().unwrap_or_default(),
        }
    }
}

impl Precision {
    /// The process's: what was last [set](set_precision), at first what `KILN_PRECISION` says (`exact`,
    /// `default`, `fast`).
    pub fn current() -> Precision {
        process(|p| p.precision)
    }
}

/// Sets how algorithms are chosen, for programs compiled from now on.
pub fn set(settings: Settings) {
    process(|p| p.settings = settings);
}

/// Sets which approximations may be used, for programs compiled from now on.
pub fn set_precision(precision: Precision) {
    process(|p| p.precision = precision);
}

/// What can't be read in the environment.
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
    settings.mode = read("KILN_TUNE", problem).unwrap_or_default();
    process.precision = read("KILN_PRECISION", problem).unwrap_or_default();
    settings.workspace = read("KILN_TUNE_WORKSPACE", problem);
    if let Some(seconds) = read("KILN_TUNE_BUDGET", problem) {
        settings.budget = Duration::from_secs(seconds);
    }
    process
}

/// The value of a variable that is set and not empty.
fn read<T: FromStr<Err: std::fmt::Display>>(name: &str, problem: &mut Option<String>) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let value = text.parse();
    value
        .map_err(|e| *problem = Some(format!("{name}={text}: {e}")))
        .ok()
}

/// A word that names no [`Mode`] or [`Precision`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is none of {known}")]
pub struct UnknownWord {
    found: String,
    known: &'static str,
}

macro_rules! words {
    ($type:ident, $known:literal, $($variant:ident = $word:literal),*) => {
        impl $type {
            /// The word for it in the environment and on command lines.
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

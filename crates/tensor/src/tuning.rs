//! Choosing the fastest algorithms by measuring them, once for a device.
//!
//! Off by default, like `torch.backends.cudnn.benchmark`: kernels then use the algorithm that rules on their sizes
//! select. With [`Mode::On`] the candidates of each convolution, matrix product and custom op are checked and timed
//! when a program is compiled. The results are stored in one file for all programs of the user ([`store_path`]), so
//! that a later compilation measures nothing.
//!
//! ```
//! use kiln_tensor::tuning::{self, Mode};
//! use kiln_tensor::{CompileOptions, DType, Spec, Tensor, compile_with};
//!
//! # let folder = std::env::temp_dir().join(format!("kiln-doc-tuning-{}", std::process::id()));
//! // For one function, with a store of its own:
//! let options = CompileOptions {
//!     tune: tuning::Settings {
//!         mode: Mode::On,
//!         store: Some(folder.join("tune.jsonl").into()),
//!         ..Default::default()
//!     },
//!     ..Default::default()
//! };
//! let a = Tensor::rand([64, 300], DType::F32);
//! let product = compile_with(Spec::new(DType::F32, [300, 40]), &options, |x| a.matmul(x))?;
//! let tuning = &product.explain().tuning;
//! for choice in &tuning.choices {
//!     println!("{choice}"); // the chosen algorithm, why, and all times
//! }
//! # assert_eq!(tuning.choices.len(), 1);
//! # std::fs::remove_dir_all(folder).unwrap();
//!
//! // For everything that is compiled from now on:
//! tuning::set_mode(Mode::Frozen); // by the store alone
//! assert_eq!(tuning::mode(), Mode::Frozen);
//! # tuning::set_mode(Mode::Off);
//! # Ok::<(), kiln_tensor::Error>(())
//! ```
//!
//! Environment variables set the same: `KILN_TUNE=on`, `KILN_TUNE_STORE=file`, `KILN_TUNE_WORKSPACE=bytes`,
//! `KILN_TUNE_BUDGET=seconds`, `KILN_TUNE_CUBLASLT=0`; see [`Settings::current`]. [`Precision`] decides which
//! approximations may be candidates.

pub use kiln_compiler::tune::{
    Choice, Damage, Merged, Mode, Outcome, Precision, Record, Settings, Store, Trial, Tuning, Why,
    measured, set, store_path,
};
use std::path::Path;
use std::time::Duration;

/// The mode of programs that are compiled from now on.
pub fn mode() -> Mode {
    Settings::current().mode
}

fn change(f: impl FnOnce(&mut Settings)) {
    let mut settings = Settings::current();
    f(&mut settings);
    set(settings);
}

/// Sets the mode of programs that are compiled from now on.
pub fn set_mode(mode: Mode) {
    change(|settings| settings.mode = mode);
}

/// Sets the file of the store: an empty path for a store that ends with the process, `None` for the user's file.
pub fn set_store(path: Option<&Path>) {
    change(|settings| settings.store = path.map(Into::into));
}

/// Limits the workspace of a candidate in bytes. If no candidate fits, the default is used and the report says so.
pub fn set_workspace_limit(bytes: Option<u64>) {
    change(|settings| settings.workspace = bytes);
}

/// Sets the time that one compilation may spend on measuring.
pub fn set_budget(budget: Duration) {
    change(|settings| settings.budget = budget);
}

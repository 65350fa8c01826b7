//! Packages printed as C99, for machines where nothing else runs.
//!
//! [`Export`] takes entries of a package, with sizes for their symbols, and writes sources that any compiler of C99
//! takes with `-Wall -Wextra -pedantic -Werror` and that need `libm` and nothing else: a function an entry, which
//! allocates nothing and keeps nothing. Its temporaries are in memory that the caller gives, of a size that a macro
//! says; weights are arrays, or a file that is mapped.
//!
//! ```no_run
//! use kiln_c99::Export;
//! use kiln_package::Package;
//!
//! let package = Package::open("digits.kiln")?;
//! Export::new("digits").size("batch", 1).write(&package, "generated")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```c
//! #include "digits.h"
//!
//! static double memory[DIGITS_FORWARD_ARENA / sizeof(double) + 1];
//!
//! int classify(const float image[64], float scores[10]) {
//!   return digits_forward(image, scores, memory);
//! }
//! ```
//!
//! What is printed is what the runtime runs: the plan. Kernels are printed from their descriptions as loops over known
//! sizes that compilers vectorise: tile programs as loops whose innermost runs over neighbouring elements, products
//! and convolutions as sums over blocks that stay in the cache, in one function that both share. What depends on
//! weights alone is computed when the sources are written, and weights are laid out as the loops read them.
//!
//! Where an entry changes states, such as a training step, all states that the printed entries read or change are
//! members of a struct, `digits_state`, which the caller holds and `digits_begin` fills. A call that gives an error
//! leaves it as it was.
//!
//! Random numbers are the runtime's, bit for bit as far as they are bits (what is made of them by `libm` is as exact as
//! that is); their generator is a state, which a call that succeeds moves on.
//!
//! Kernels that there is no C for are refused: gradients of attention, products, convolutions and attention of halves,
//! users' operators, and special functions that `libm` lacks.

mod error;
mod export;
mod prepare;
mod print;
mod sources;
mod state;

pub use error::{Error, Result};
pub use export::Export;
pub use sources::{Draws, Input, Output, Program, Sources, Weights, print};

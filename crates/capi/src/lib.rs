//! Packages for C, and for any language that calls C: `include/kiln.h` declares the functions.
//!
//! Every function that can fail returns a [`KilnStatus`], and [`kiln_last_error`] returns the text of the last
//! failure on the calling thread. A panic does not cross the border: it becomes [`KilnStatus::KILN_INTERNAL`].
//! Handles may be used from any number of threads at once, and are freed once, by the function of their kind; freeing
//! null does nothing. Strings are UTF-8 and end with a zero byte.

mod dlpack;
mod dlpack_abi;
mod package;
mod run;
mod status;
mod tensor;

pub use dlpack::*;
pub use dlpack_abi::*;
pub use package::*;
pub use run::*;
pub use status::*;
pub use tensor::*;

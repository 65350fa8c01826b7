//! Packages from C, and from whatever calls C: `include/kiln.h` has the functions.
//!
//! Every function that can fail gives a [`KilnStatus`], and [`kiln_last_error`] the text of the last failure on the
//! calling thread. A panic does not cross the border: it is [`KilnStatus::KILN_INTERNAL`]. Handles may be used from any
//! number of threads at once, and are freed once, by the function of their kind; null is freed by doing nothing.
//! Strings are UTF-8 and end with a zero byte.

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

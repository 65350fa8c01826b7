//! Operations on tensors, under PyTorch's names.

mod activation;
mod args;
mod arith;
mod attention;
mod conv;
mod diagonal;
mod distance;
mod einsum;
mod index;
mod join;
mod logic;
mod loss;
mod matmul;
mod norm;
mod pad;
mod parts;
mod pool;
mod record;
mod reduce;
mod resize;
mod sequence;
mod shape;

pub use args::IntList;
pub use arith::Other;
pub use conv::Padding;
pub use distance::cdist;
pub use einsum::einsum;
pub use index::{cartesian_prod, meshgrid, where_};
pub use join::{cat, hstack, stack, vstack};
pub use logic::RoundingMode;
pub use loss::Reduction;
pub use pad::PadMode;
pub use resize::{InterpolateMode, InterpolateSize};

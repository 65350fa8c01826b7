//! Gradients of recorded values.
//!
//! Each handle has an edge for its gradient ([`edge`]): to nowhere, to the operation that computed it, or to a leaf
//! that keeps the gradient. A backward pass traverses that graph ([`walk`]) and records derivatives ([`engine`]). The
//! values that it will need can be determined before ([`needs`]).

pub mod again;
pub mod edge;
pub mod engine;
pub mod hook;
mod mode;
pub mod needs;
pub mod walk;

pub use mode::{enable_grad, is_grad_enabled, no_grad, set_grad_enabled};

//! Gradients of recorded values.
//!
//! A handle knows where its gradient goes: nowhere, to the operation that made it, or to a leaf that keeps
//! it ([`edge`]). A backward pass walks that graph ([`walk`]) and records derivatives ([`engine`]); what
//! one will need can be told before ([`needs`]).

pub mod again;
pub mod edge;
pub mod engine;
pub mod hook;
mod mode;
pub mod needs;
pub mod walk;

pub use mode::{enable_grad, is_grad_enabled, no_grad, set_grad_enabled};

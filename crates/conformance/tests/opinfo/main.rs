//! PyTorch's operator samples on every engine, PyTorch's worked examples, arguments far out of range, and
//! the page that lists the operators.

mod examples;
mod extremes;
mod factors;
mod gpu;
mod heads;
mod machine_code;
mod margins;
mod numbers;
mod page;
pub(crate) mod samples;

//! PyTorch's operator samples on every engine, PyTorch's worked examples, and arguments far out of range.

mod examples;
mod extremes;
mod heads;
mod margins;
mod numbers;
mod samples;

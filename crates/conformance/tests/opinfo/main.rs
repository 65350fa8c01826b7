//! PyTorch's operator samples on every engine, and PyTorch's worked examples.

mod examples;
mod samples;

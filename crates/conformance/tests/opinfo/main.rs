//! PyTorch's operator samples on every engine, PyTorch's worked examples, arguments far out of range, the page
//! that lists the operators, PyTorch's training runs, and the proof of a GPU on the emulated one.

mod examples;
mod extremes;
mod factors;
mod gpu;
mod heads;
mod low_precision;
mod machine_code;
mod margins;
mod numbers;
mod page;
mod samples;
mod training;

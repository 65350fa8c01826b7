//! Kiln is a lazy compute-graph compiler for tensors.
//!
//! User code records tensor operations; nothing runs. When a value is asked for, the recorded graph is
//! optimised, fused, lowered to kernels, planned into one memory arena and run on every core. Recording
//! the same program again compiles nothing.
//!
//! ```
//! use kiln::{DType, Tensor};
//!
//! let x = Tensor::arange(0, 6, 1).to_dtype(DType::F32).reshape([2, 3]);
//! let y = (&x * 2.0 + 1.0).relu().sum([1], false); // recorded, not run
//! assert_eq!(y.to_vec::<f32>()?, [9.0, 27.0]); // one fused kernel runs here
//! # Ok::<(), kiln::Error>(())
//! ```
//!
//! A function can be compiled once and run many times, with sizes left open:
//!
//! ```
//! use kiln::{DType, Spec, Tensor, Var, compile};
//!
//! let weight = Var::new(&Tensor::ones([3, 2], DType::F32))?;
//! let linear = compile(&[Spec::new(DType::F32, ["batch".into(), 3.into()])], |x| {
//!     x[0].matmul(&weight.get()).relu()
//! })?;
//! let y = linear.run(&[&Tensor::ones([4, 3], DType::F32)])?;
//! assert_eq!(y[0].to_vec::<f32>()?, [3.0; 8]);
//! # Ok::<(), kiln::Error>(())
//! ```

pub use kiln_tensor::*;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

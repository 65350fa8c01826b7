//! Lazy tensors: what users type.
//!
//! A [`Tensor`] is a handle to a recorded operation; nothing runs until a value is asked for. A
//! [`Var`] is a cell that holds a tensor and can be assigned another one. See the crate `kiln` for the
//! guide.

mod about;
mod anomaly;
mod autograd;
pub mod backends;
mod caller;
mod cell;
mod compile;
mod compiled;
mod control;
mod convert;
mod create;
mod custom;
mod device;
mod error;
mod frame;
mod in_place;
mod names;
#[cfg(feature = "ndarray")]
mod ndarray;
mod nest;
mod node;
mod ops;
mod options;
mod print;
pub mod profiler;
mod promote;
mod random;
mod record;
mod recording;
mod reference;
mod repeated;
mod run;
mod scope;
mod small;
mod spec;
mod strides;
mod trace;
pub mod tuning;
mod var;
mod verify;
mod warning;

pub use about::with_error_note;
pub use anomaly::{AnomalyMode, detect_anomaly, is_anomaly_enabled, set_detect_anomaly};
pub use autograd::{
    GradMode, GradOptions, HookHandle, checkpoint, custom_function, enable_grad, grad, grad_with,
    gradcheck, is_grad_enabled, jvp, no_grad, set_grad_enabled, vjp,
};
pub use caller::on_behalf_of_caller;
pub use compile::{compile, compile_with};
pub use compiled::Compiled;
pub use control::{ScanOptions, cond, scan, scan_with};
pub use create::{Element, IntoShape, Limit};
pub use custom::CustomOp;
pub use device::{Device, set_threads, threads};
pub use error::{Error, ErrorKind, Result};
pub use kiln_base::custom::{ArrayView, ArrayViewMut, CudaFunction, CudaGrid, KernelError};
pub use kiln_base::{DType, Dim, Scalar};
pub use kiln_compiler::tune::{Precision, set_precision};
pub use kiln_compiler::{
    Bisection, CacheStats, ConversionInfo, Explain, KernelCheck, KernelInfo, Layout, LayoutReport,
    Options as CompileOptions, Recomputed, Verification,
};
pub use kiln_ir::Fact;
pub use kiln_runtime::{Cancel, Executable, Level, MemoryReport, StepTime, memory};
pub use names::DimNames;
pub use nest::Nest;
pub use node::Tensor;
pub use ops::*;
pub use print::{PrintOptions, printoptions, set_printoptions};
pub use random::{Generator, draw_seed, get_rng_state, manual_seed, set_rng_state, with_seed};
pub use reference::evaluate_reference;
pub use repeated::Repeated;
pub use run::boundary::realize_all;
pub use run::cached::{cache_stats, explain};
pub use scope::is_recording;
pub use spec::{DimSpec, IntoOutputs, Spec};
pub use var::{Var, assign_together};
pub use warning::{WarningHook, set_warning_hook};

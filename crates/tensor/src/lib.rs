//! Lazy tensors: the API that users call.
//!
//! A [`Tensor`] is a handle to a recorded operation; nothing runs until a value is read. A [`Var`] is a cell that
//! holds a tensor and can be assigned another one. See the crate `kiln` for the guide.

mod autocast;
mod autograd;
pub mod backends;
mod collective;
mod control;
mod convert;
mod create;
pub mod cuda;
mod custom;
mod defaults;
mod draw;
mod evaluate;
mod function;
mod in_place;
pub mod memory;
mod names;
mod narrow;
#[cfg(feature = "ndarray")]
mod ndarray;
mod nest;
mod operand;
mod ops;
mod options;
mod print;
mod promote;
mod quantization;
mod random;
mod record;
mod repeated;
mod shared;
mod spec;
mod strides;
mod tensor;
pub mod tuning;
mod var;
mod view_within;

pub use autocast::{
    Autocast, AutocastList, AutocastOp, AutocastRule, autocast, autocast_operand, autocast_ops,
    current_autocast, is_autocast_enabled, no_autocast, set_autocast,
};
pub use autograd::{
    Backward, CustomFunction, Grad, GradCheck, GradFn, Pullback, after_backward, checkpoint,
    custom_function, grad, grad_with, gradcheck, gradcheck_with, gradgradcheck, gradgradcheck_with,
    hessian, jacobian, jvp, vjp, watch_gradients,
};
pub use collective::collective;
pub use control::{Scan, WhileLoop, cond, scan, scan_with, while_loop, while_loop_with};
pub use create::{Element, IntoShape, Limit, realize_first};
pub use custom::CustomOp;
pub use defaults::{default_dtype, empty, ones, rand, randn, with_default_dtype, zeros};
pub use evaluate::{evaluate_reference, explain};
pub use function::{Compiled, Recording, compile, compile_with, record};
pub use kiln_base::custom::{ArrayView, ArrayViewMut, CudaFunction, CudaGrid, KernelError};
pub use kiln_base::{DType, Dim, Scalar, Scoped};
pub use kiln_compiler::tune::{Precision, set_precision};
pub use kiln_compiler::{
    Bisection, CacheStats, ConversionInfo, Explain, KernelCheck, KernelInfo, Layout, LayoutReport,
    Options as CompileOptions, Reasons, Recomputed, Verification,
};
pub use kiln_derive::{KilnNest, Nest};
pub use kiln_ir::Fact;
pub use kiln_lazy::caller::{on_behalf_of, on_behalf_of_caller, user_line};
pub use kiln_lazy::default_device::{default_device, set_default_device, set_device, with_device};
pub use kiln_lazy::device::{Device, set_threads, threads};
pub use kiln_lazy::error::{Error, ErrorKind, Result};
pub use kiln_lazy::grad::hook::{HookHandle, HookHandles};
pub use kiln_lazy::grad::{enable_grad, is_grad_enabled, no_grad, set_grad_enabled};
pub use kiln_lazy::note::with_error_note;
pub use kiln_lazy::random::{
    Generator, draw_seed, get_rng_state, manual_seed, set_rng_state, with_seed,
};
pub use kiln_lazy::run::anomaly::{detect_anomaly, is_anomaly_enabled, set_detect_anomaly};
pub use kiln_lazy::run::boundary::realize_all;
pub use kiln_lazy::run::cached::cache_stats;
pub use kiln_lazy::run::compiled::Program;
pub use kiln_lazy::run::profiler;
pub use kiln_lazy::scope::is_recording;
pub use kiln_lazy::warning::{WarningHook, set_warning_hook, warn};
pub use kiln_runtime::{Cancel, Executable, Features, MemoryReport, StepTime, peaks};
pub use names::DimNames;
pub use nest::{Feed, Flat, Nest, NestOf, Returned};
pub use operand::{AsTensor, AsVar, MaybeTensor, Other, Vars};
pub use ops::*;
pub use options::Settings;
pub use print::{PrintOptions, printoptions, set_printoptions};
pub use quantization::{Calibration, quantize_dynamic, reduce_range};
pub use repeated::Repeated;
pub use spec::{DimSpec, DimSpecs, Spec};
pub use tensor::Tensor;
#[doc(hidden)]
pub use var::{Source, with_values};
pub use var::{Var, assign_together, assign_unless};
pub use view_within::ViewWithin;

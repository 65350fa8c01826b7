//! Mixed precision: scaling of losses ([`GradScaler`]), and Apex's levels ([`initialize`]).
//!
//! [`autocast`](kiln_tensor::autocast) selects the operations computed in f16 or bf16. In f16 small gradients would be
//! zero, so the loss is multiplied by a scale before the backward pass and the gradients are divided by it afterwards:
//! a [`GradScaler`] finds the largest scale that rarely overflows. In bf16 no scale is needed.
//!
//! ```
//! use kiln_nn::amp::GradScaler;
//! use kiln_nn::optim::{Optimizer, SGD, clip_grad_norm_};
//! use kiln_nn::{Forward, Linear, Module};
//! use kiln_tensor::{DType, Tensor, autocast, randn};
//! let model = Linear::new(8, 3)?;
//! let mut optimizer = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
//! let mut scaler = GradScaler::new();
//! for _ in 0..3 {
//!     let (x, y) = (randn([4, 8]), Tensor::from([0i64, 2, 1, 0]));
//!     optimizer.zero_grad();
//!     let loss = autocast(DType::F16, || model.call(&x).cross_entropy(&y));
//!     scaler.scale(&loss).backward()?;
//!     scaler.unscale_(&optimizer)?; // only needed to see the gradients in between
//!     clip_grad_norm_(model.parameters(), 1.0)?;
//!     scaler.step(&mut optimizer)?; // changes nothing if a gradient is not finite
//!     scaler.update()?;
//! }
//! # Ok::<(), kiln_tensor::Error>(())
//! ```

pub(crate) mod apex;
mod grad_scaler;
mod level;
mod names;
mod saved;
mod scale;
mod unscale;

pub use apex::{Amp, AmpState, LossScalerState, ScaleLoss, initialize, master_params};
pub use grad_scaler::GradScaler;
pub use level::{Initialize, LossScale, OptLevel, Properties};
pub use names::{FusedAdam, FusedLayerNorm, FusedRMSNorm, FusedSGD};
pub use scale::{GradScalerState, Scaling};

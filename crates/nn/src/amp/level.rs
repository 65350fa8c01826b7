//! Apex's optimisation levels, and the properties of each.

use kiln_tensor::{DType, Error, ErrorKind, Result, options};
use std::fmt;
use std::panic::Location;

/// Apex's `opt_level`: the extent of mixed precision in training.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OptLevel {
    /// No mixed precision: everything is f32.
    O0,
    /// The operations that [`autocast`](kiln_tensor::autocast) casts.
    O1,
    /// Everything except batch norms, with master weights.
    O2,
    /// Everything.
    O3,
}

impl OptLevel {
    /// All levels.
    pub const ALL: [OptLevel; 4] = [OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3];

    /// Returns the properties of the level, with `half` as its 16-bit dtype.
    pub fn properties(self, half: DType) -> Properties {
        let defaults = Properties {
            opt_level: self,
            cast_model_type: None,
            patch_torch_functions: false,
            keep_batchnorm_fp32: None,
            master_weights: None,
            loss_scale: LossScale::Fixed(1.0),
        };
        match self {
            OptLevel::O0 => Properties {
                cast_model_type: Some(DType::F32),
                master_weights: Some(false),
                ..defaults
            },
            OptLevel::O1 => Properties {
                patch_torch_functions: true,
                loss_scale: LossScale::Dynamic,
                ..defaults
            },
            OptLevel::O2 => Properties {
                cast_model_type: Some(half),
                keep_batchnorm_fp32: Some(true),
                master_weights: Some(true),
                loss_scale: LossScale::Dynamic,
                ..defaults
            },
            OptLevel::O3 => Properties {
                cast_model_type: Some(half),
                keep_batchnorm_fp32: Some(false),
                master_weights: Some(false),
                ..defaults
            },
        }
    }
}

/// The scale of losses.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum LossScale {
    /// A scale that grows, and backs off where gradients overflow.
    Dynamic,
    /// A constant scale; no step is skipped.
    Fixed(f64),
}

impl From<f64> for LossScale {
    fn from(scale: f64) -> LossScale {
        LossScale::Fixed(scale)
    }
}

/// The properties of a level, overridden by keyword arguments. `None` means "does not apply".
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Properties {
    /// The level on which the properties are based.
    pub opt_level: OptLevel,
    /// The dtype to which parameters and inputs of the model are cast.
    pub cast_model_type: Option<DType>,
    /// True if the model computes inside [`autocast`](kiln_tensor::autocast).
    pub patch_torch_functions: bool,
    /// True if batch norms stay in f32 where the model is cast.
    pub keep_batchnorm_fp32: Option<bool>,
    /// True if optimisers keep master weights.
    pub master_weights: Option<bool>,
    /// The scale of losses.
    pub loss_scale: LossScale,
}

impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn show<T: fmt::Display>(value: Option<T>) -> String {
            value.map_or_else(|| "-".to_string(), |v| v.to_string())
        }
        writeln!(f, "opt_level: {:?}", self.opt_level)?;
        writeln!(f, "cast_model_type: {}", show(self.cast_model_type))?;
        writeln!(f, "patch_torch_functions: {}", self.patch_torch_functions)?;
        writeln!(f, "keep_batchnorm_fp32: {}", show(self.keep_batchnorm_fp32))?;
        writeln!(f, "master_weights: {}", show(self.master_weights))?;
        match self.loss_scale {
            LossScale::Dynamic => write!(f, "loss_scale: dynamic"),
            LossScale::Fixed(scale) => write!(f, "loss_scale: {scale}"),
        }
    }
}

options! {
    /// The options of [`initialize`](super::initialize); an [`OptLevel`] converts into them. Options that are not set
    /// take the level's value.
    Initialize (
        /// The level.
        opt_level: OptLevel
    ) {
        /// True if mixed precision is used at all.
        enabled: bool = true,
        /// The 16-bit dtype of the level: f16 or bf16.
        half: DType = DType::F16,
        /// The dtype to which parameters and inputs of the model are cast.
        cast_model_type: Option<DType> = None,
        /// True if the model computes inside [`autocast`](kiln_tensor::autocast).
        patch_torch_functions: Option<bool> = None,
        /// The dtype to which outputs of the model are cast; f32 where the model is cast.
        cast_model_outputs: Option<DType> = None,
        /// True if batch norms stay in f32.
        keep_batchnorm_fp32: Option<bool> = None,
        /// True if optimisers keep master weights.
        master_weights: Option<bool> = None,
        /// The scale of losses: a number, or [`LossScale::Dynamic`].
        loss_scale: Option<LossScale> = None,
        /// The number of losses, each with a scale of its own.
        num_losses: i64 = 1i64,
        /// The smallest scale.
        min_loss_scale: Option<f64> = None,
        /// The largest scale.
        max_loss_scale: f64 = 16_777_216.0,
        /// Above 0, the chosen properties are written to standard error.
        verbosity: i64 = 0i64,
    }
}

impl Initialize {
    /// Returns the level's properties, overridden by the given options.
    #[track_caller]
    pub(super) fn properties(&self) -> Result<Properties> {
        let loc = Location::caller();
        let wrong = |message: String| {
            Err(Error::new(
                ErrorKind::Value,
                "amp::initialize",
                message,
                loc,
            ))
        };
        if ![DType::F16, DType::BF16].contains(&self.half) {
            return wrong(format!("half must be f16 or bf16, but is {}", self.half));
        }
        let mut p = self.opt_level.properties(self.half);
        p.cast_model_type = self.cast_model_type.or(p.cast_model_type);
        p.patch_torch_functions = self
            .patch_torch_functions
            .unwrap_or(p.patch_torch_functions);
        p.keep_batchnorm_fp32 = self.keep_batchnorm_fp32.or(p.keep_batchnorm_fp32);
        p.master_weights = self.master_weights.or(p.master_weights);
        p.loss_scale = self.loss_scale.unwrap_or(p.loss_scale);
        if p.patch_torch_functions {
            // Autocast's lists already keep some operations in f32 there, and parameters stay in f32.
            let overrides = [
                (
                    "cast_model_type",
                    p.cast_model_type.is_some_and(|t| t != DType::F32),
                ),
                ("keep_batchnorm_fp32", p.keep_batchnorm_fp32.is_some()),
                ("master_weights", p.master_weights == Some(true)),
            ];
            if let Some((name, _)) = overrides.iter().find(|g| g.1) {
                return wrong(format!(
                    "{name} can't be combined with patch_torch_functions ({:?}), which keeps parameters in f32; choose O2 or leave it out",
                    self.opt_level
                ));
            }
        }
        if let LossScale::Fixed(scale) = p.loss_scale
            && !(scale > 0.0 && scale.is_finite())
        {
            return wrong(format!(
                "loss_scale must be positive and finite, but is {scale}"
            ));
        }
        if self.num_losses < 1 {
            return wrong(format!(
                "num_losses must be at least 1, but is {}",
                self.num_losses
            ));
        }
        Ok(p)
    }
}

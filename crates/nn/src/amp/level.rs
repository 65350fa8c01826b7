//! Apex's optimisation levels, and what each means.

use kiln_tensor::{DType, Error, ErrorKind, Result, options};
use std::fmt;
use std::panic::Location;

/// How much of a training is done in the narrower dtype.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OptLevel {
    /// Nothing: f32.
    O0,
    /// What [`autocast`](kiln_tensor::autocast) casts.
    O1,
    /// All but batch norms, with master weights.
    O2,
    /// All.
    O3,
}

impl OptLevel {
    /// All of them.
    pub const ALL: [OptLevel; 4] = [OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3];

    /// What the level means, where the narrower dtype is `half`.
    pub fn properties(self, half: DType) -> Properties {
        let none = Properties {
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
                ..none
            },
            OptLevel::O1 => Properties {
                patch_torch_functions: true,
                loss_scale: LossScale::Dynamic,
                ..none
            },
            OptLevel::O2 => Properties {
                cast_model_type: Some(half),
                keep_batchnorm_fp32: Some(true),
                master_weights: Some(true),
                loss_scale: LossScale::Dynamic,
                ..none
            },
            OptLevel::O3 => Properties {
                cast_model_type: Some(half),
                keep_batchnorm_fp32: Some(false),
                master_weights: Some(false),
                ..none
            },
        }
    }
}

/// The scale of losses.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum LossScale {
    /// One that grows, and backs off where gradients overflow.
    Dynamic,
    /// Always this one; no step is skipped.
    Fixed(f64),
}

impl From<f64> for LossScale {
    fn from(scale: f64) -> LossScale {
        LossScale::Fixed(scale)
    }
}

/// What a level, or single keywords, say. `None` is "does not apply".
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Properties {
    /// The level that it began with.
    pub opt_level: OptLevel,
    /// What parameters and inputs of the model are cast to.
    pub cast_model_type: Option<DType>,
    /// Whether the model computes inside [`autocast`](kiln_tensor::autocast).
    pub patch_torch_functions: bool,
    /// Whether batch norms stay in f32 where the model is cast.
    pub keep_batchnorm_fp32: Option<bool>,
    /// Whether optimisers keep master weights.
    pub master_weights: Option<bool>,
    /// The scale of losses.
    pub loss_scale: LossScale,
}

impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn shown<T: fmt::Display>(value: Option<T>) -> String {
            value.map_or_else(|| "-".to_string(), |v| v.to_string())
        }
        writeln!(f, "opt_level: {:?}", self.opt_level)?;
        writeln!(f, "cast_model_type: {}", shown(self.cast_model_type))?;
        writeln!(f, "patch_torch_functions: {}", self.patch_torch_functions)?;
        writeln!(
            f,
            "keep_batchnorm_fp32: {}",
            shown(self.keep_batchnorm_fp32)
        )?;
        writeln!(f, "master_weights: {}", shown(self.master_weights))?;
        match self.loss_scale {
            LossScale::Dynamic => write!(f, "loss_scale: dynamic"),
            LossScale::Fixed(scale) => write!(f, "loss_scale: {scale}"),
        }
    }
}

options! {
    /// How [`initialize`](super::initialize) prepares a training; a level alone stands for it. What is not given is the
    /// level's.
    Initialize (
        /// The level.
        opt_level: OptLevel
    ) {
        /// Whether anything is done at all.
        enabled: bool = true,
        /// The narrower dtype of the level: f16, or bf16.
        half: DType = DType::F16,
        /// What parameters and inputs of the model are cast to.
        cast_model_type: Option<DType> = None,
        /// Whether the model computes inside [`autocast`](kiln_tensor::autocast).
        patch_torch_functions: Option<bool> = None,
        /// What outputs of the model are cast to; f32 where the model is cast.
        cast_model_outputs: Option<DType> = None,
        /// Whether batch norms stay in f32.
        keep_batchnorm_fp32: Option<bool> = None,
        /// Whether optimisers keep master weights.
        master_weights: Option<bool> = None,
        /// The scale of losses: a number, or [`LossScale::Dynamic`].
        loss_scale: Option<LossScale> = None,
        /// How many losses there are, each with a scale of its own.
        num_losses: i64 = 1i64,
        /// The smallest scale.
        min_loss_scale: Option<f64> = None,
        /// The largest scale.
        max_loss_scale: f64 = 16_777_216.0,
        /// Above 0, what was chosen is written to standard error.
        verbosity: i64 = 0i64,
    }
}

impl Initialize {
    /// The level's properties with what was given.
    #[track_caller]
    pub(super) fn chosen(&self) -> Result<Properties> {
        let loc = Location::caller();
        let wrong = |message: String| {
            Err(Error::new(
                ErrorKind::Value,
                "amp::initialize",
                message,
                loc,
            ))
        };
        let halves = [DType::F16, DType::BF16];
        if !halves.contains(&self.half) {
            return wrong(format!("half is f16 or bf16, not {}", self.half));
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
            // The lists say what is f32 there, and parameters are.
            let given = [
                (
                    "cast_model_type",
                    p.cast_model_type.is_some_and(|t| t != DType::F32),
                ),
                ("keep_batchnorm_fp32", p.keep_batchnorm_fp32.is_some()),
                ("master_weights", p.master_weights == Some(true)),
            ];
            if let Some((name, _)) = given.iter().find(|g| g.1) {
                return wrong(format!(
                    "{name} does not go with patch_torch_functions ({:?}), where parameters stay in f32; choose O2 or leave it out",
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

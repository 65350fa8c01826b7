//! The states of scales, as PyTorch's and Apex's checkpoints hold them.

use super::{AmpState, GradScalerState, LossScalerState};
use kiln_formats::Value;
use kiln_tensor::{Error, Result};

/// The `state_dict()` of PyTorch's `GradScaler`.
///
/// # Errors
/// If the value is not such a state; the message says what is missing. That of a disabled scaler is empty.
impl TryFrom<&Value> for GradScalerState {
    type Error = Error;

    #[track_caller]
    fn try_from(dict: &Value) -> Result<GradScalerState> {
        Ok(GradScalerState {
            scale: dict.get("scale")?.float()?,
            growth_factor: dict.get("growth_factor")?.float()?,
            backoff_factor: dict.get("backoff_factor")?.float()?,
            growth_interval: dict.get("growth_interval")?.int()?,
            growth_tracker: dict.get("_growth_tracker")?.int()?,
            skipped: [0; 2],
        })
    }
}

/// The form that PyTorch's `GradScaler` loads, which counts no skipped steps.
impl From<&GradScalerState> for Value {
    fn from(state: &GradScalerState) -> Value {
        Value::dict([
            ("scale", Value::from(state.scale)),
            ("growth_factor", state.growth_factor.into()),
            ("backoff_factor", state.backoff_factor.into()),
            ("growth_interval", state.growth_interval.into()),
            ("_growth_tracker", state.growth_tracker.into()),
        ])
    }
}

/// The `state_dict()` of Apex's `amp`.
///
/// # Errors
/// As of [`GradScalerState`].
impl TryFrom<&Value> for AmpState {
    type Error = Error;

    #[track_caller]
    fn try_from(dict: &Value) -> Result<AmpState> {
        let mut state = AmpState::default();
        for (name, scaler) in dict.entries() {
            let kept = LossScalerState {
                loss_scale: scaler.get("loss_scale")?.float()?,
                unskipped: scaler.get("unskipped")?.int()?,
            };
            state.0.insert(name.str()?.into(), kept);
        }
        Ok(state)
    }
}

/// The form that Apex's `amp` loads.
impl From<&AmpState> for Value {
    fn from(state: &AmpState) -> Value {
        let scalers = state.0.iter().map(|(name, scaler)| {
            let numbers = [
                ("loss_scale", Value::from(scaler.loss_scale)),
                ("unskipped", scaler.unskipped.into()),
            ];
            (name.as_str(), Value::dict(numbers))
        });
        Value::dict(scalers)
    }
}

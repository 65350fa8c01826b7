//! The states of schedules, as PyTorch's checkpoints hold them.

use super::{PlateauState, Schedule, Scheduler, SchedulerState};
use kiln_formats::Value;
use kiln_tensor::{DType, Error, ErrorKind, Result};
use std::panic::Location;

/// The `state_dict()` of one of PyTorch's schedulers. For sequential or chained schedules, the numbers come from the
/// schedules within.
///
/// # Errors
/// If the value is not such a state; the message says what is missing.
impl TryFrom<&Value> for SchedulerState {
    type Error = Error;

    #[track_caller]
    fn try_from(dict: &Value) -> Result<SchedulerState> {
        let inner = dict.get("_schedulers").and_then(Value::list);
        let first_state = inner.ok().and_then(|states| states.first()).unwrap_or(dict);
        let get = |name: &str| dict.get(name).or_else(|_| first_state.get(name));
        let epoch = get("last_epoch")?.int()?;
        /// Schedules of a user's function count up to the epoch.
        const MAX_EPOCH: u64 = 1 << 32;
        let invalid = |message| Err(Error::invalid("load_state_dict", message));
        let epoch = match u64::try_from(epoch) {
            Ok(epoch @ 0..=MAX_EPOCH) => epoch,
            Ok(_) => return invalid(format!("epoch {epoch} of a schedule is beyond {MAX_EPOCH}")),
            Err(_) => return invalid(format!("a schedule at epoch {epoch} has not begun")),
        };
        let base_lrs = rates(get("base_lrs")?)?;
        let last_lr = match get("_last_lr") {
            Ok(last) => rates(last)?,
            Err(_) => base_lrs.clone(),
        };
        Ok(SchedulerState {
            epoch,
            base_lrs,
            last_lr,
        })
    }
}

/// Reads rates, each of which may be a tensor in PyTorch.
#[track_caller]
fn rates(list: &Value) -> Result<Vec<f64>> {
    let rate = |value: &Value| match value {
        Value::Tensor(t) => t.to_dtype(DType::F64).item(),
        value => value.float(),
    };
    list.list()?.iter().map(rate).collect()
}

/// The form that PyTorch's schedulers load: the state of one class for [`Scheduler::new`], of a `ChainedScheduler` for
/// [`Scheduler::chained`]. As in PyTorch, the schedules' own numbers are not replaced.
impl From<&Scheduler> for Value {
    fn from(scheduler: &Scheduler) -> Value {
        let state = scheduler.state_dict();
        let save = |schedule: &dyn Schedule| saved(schedule, &state, state.epoch as i64);
        match &scheduler.schedules[..] {
            [schedule] => save(&**schedule),
            schedules => {
                let inner: Vec<Value> = schedules.iter().map(|s| save(&**s)).collect();
                let last = Value::from(state.last_lr.clone());
                Value::dict([("_schedulers", Value::from(inner)), ("_last_lr", last)])
            }
        }
    }
}

/// The state of one schedule at an epoch of its own, which is −1 before it has begun.
pub(crate) fn saved(schedule: &dyn Schedule, state: &SchedulerState, epoch: i64) -> Value {
    let numbers = [
        ("last_epoch", Value::from(epoch)),
        ("_step_count", (epoch + 1).into()),
        ("base_lrs", state.base_lrs.clone().into()),
        ("_last_lr", state.last_lr.clone().into()),
    ];
    let own = SchedulerState {
        epoch: epoch.max(0) as u64,
        ..state.clone()
    };
    Value::dict(numbers.into_iter().chain(schedule.saved(&own)))
}

/// The `state_dict()` of PyTorch's `ReduceLROnPlateau`.
///
/// # Errors
/// If the value is not such a state; the message says what is missing.
impl TryFrom<&Value> for PlateauState {
    type Error = Error;

    #[track_caller]
    fn try_from(dict: &Value) -> Result<PlateauState> {
        let best = dict.get("best")?.float()?;
        let loc = Location::caller();
        let counted = |name: &str| -> Result<u64> {
            let count = dict.get(name)?.int()?;
            let message = format!("{name} can't be {count}");
            u64::try_from(count)
                .map_err(|_| Error::new(ErrorKind::Value, "load_state_dict", message, loc))
        };
        Ok(PlateauState {
            best: best.is_finite().then_some(best),
            num_bad_epochs: counted("num_bad_epochs")?,
            cooldown_counter: counted("cooldown_counter")?,
        })
    }
}

/// The form that PyTorch's `ReduceLROnPlateau` loads. It keeps its own best metric if there is none yet.
impl From<&PlateauState> for Value {
    fn from(state: &PlateauState) -> Value {
        let counts = [
            ("num_bad_epochs", Value::from(state.num_bad_epochs)),
            ("cooldown_counter", state.cooldown_counter.into()),
        ];
        let best = state.best.map(|best| ("best", best.into()));
        Value::dict(counts.into_iter().chain(best))
    }
}

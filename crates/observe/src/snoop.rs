//! The values that a function records.

use crate::SOURCE;
use crate::work::numel;
use kiln_base::Loc;
use kiln_ir::Fact;
use kiln_lazy::Handle;
use kiln_lazy::node::NodeState;
use kiln_lazy::watch::{Recorded, watch};
use kiln_tensor::{
    DType, Device, Error, Result, Tensor, is_recording, no_grad, on_behalf_of_caller, realize_first,
};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// A tensor that a function recorded, with its range.
#[derive(Clone, Debug)]
pub struct TracedValue {
    /// The function that was called.
    pub called: &'static str,
    /// The user's line.
    pub loc: Loc,
    /// Dtype and shape.
    pub fact: Fact,
    /// The device.
    pub device: Device,
    /// The smallest and the largest number, NaN left out; NaN if there is none.
    pub range: (f64, f64),
    /// The number of NaNs.
    pub nans: u64,
}

/// The tensors that a function recorded, in order; see [`trace_values`]. It prints as a table.
#[derive(Clone, Debug)]
pub struct TracedValues(Vec<TracedValue>);

/// Runs `f`, and returns the result of every call that it recorded on this thread, such as `conv2d`, and of its
/// backward passes: shape, dtype, device, range and number of NaNs, with your line. All of them are computed and
/// kept in memory.
///
/// ```
/// use kiln_observe::trace_values;
/// use kiln_tensor::Tensor;
///
/// let (y, values) = trace_values(|| {
///     let x = Tensor::from([1.0f32, 0.0, -1.0]);
///     (x.log() * 2.0).sum(())
/// })?;
/// println!("{values}");
/// let log = &values.values()[0];
/// assert_eq!((log.called, log.nans, log.range.1), ("log", 1, 0.0));
/// # drop(y);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// The error of a run, or inside `compile`, where there are no values.
#[track_caller]
pub fn trace_values<T>(f: impl FnOnce() -> T) -> Result<(T, TracedValues)> {
    if is_recording() {
        let message =
            "inside compile there are no values; call it around the function without compile";
        return Err(Error::invalid("trace_values", message));
    }
    let (result, recorded) = watch(f);
    let results = results_of_calls(&recorded);
    let ranges = || results.iter().map(|t| Ranges::of(t)).collect::<Vec<_>>();
    let ranges = on_behalf_of_caller(SOURCE, || no_grad(ranges));
    realize_first(ranges.iter().flatten().flat_map(|r| &r.0))?;
    let value = |(t, ranges): (&Handle, Option<Ranges>)| -> Result<TracedValue> {
        let [min, max, nans] = match ranges {
            Some(Ranges([min, max, nans])) => [min.item()?, max.item()?, nans.item()?],
            None => [f64::NAN, f64::NAN, 0.0],
        };
        let all_nan = nans as u64 == numel(t.fact());
        Ok(TracedValue {
            called: t.node.called,
            loc: t.node.loc.into(),
            fact: t.fact().clone(),
            device: t.device(),
            range: if all_nan {
                (f64::NAN, f64::NAN)
            } else {
                (min, max)
            },
            nans: nans as u64,
        })
    };
    let values = results
        .into_iter()
        .zip(ranges)
        .map(value)
        .collect::<Result<_>>()?;
    Ok((result, TracedValues(values)))
}

impl TracedValues {
    /// The values, in the order in which they were recorded.
    pub fn values(&self) -> &[TracedValue] {
        &self.0
    }
}

impl fmt::Display for TracedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fact, device, loc) = (self.fact.to_string(), self.device.to_string(), &self.loc);
        let range = match self.range.0.is_nan() {
            true => "--".to_string(),
            false => format!("{:.4} .. {:.4}", self.range.0, self.range.1),
        };
        write!(
            f,
            "{:20} {fact:24} {device:6} {range:26} {:>6} NaN  {loc}",
            self.called, self.nans
        )
    }
}

impl fmt::Display for TracedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, value) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{value}")?;
        }
        Ok(())
    }
}

/// The results of operations that no other operation of the same call reads.
fn results_of_calls(recorded: &[Recorded]) -> Vec<&Handle> {
    let calls: HashMap<u64, u32> = recorded.iter().map(|r| (r.node().serial, r.call)).collect();
    let mut internal = HashSet::new();
    for op in recorded {
        if let NodeState::Lazy { inputs, .. } = &*op.node().state() {
            let values = inputs
                .iter()
                .filter(|o| calls.get(&o.node.serial) == Some(&op.call));
            internal.extend(values.map(|o| o.node.serial));
        }
    }
    let last = recorded
        .iter()
        .filter(|r| !internal.contains(&r.node().serial));
    last.flat_map(|r| &r.outputs).collect()
}

/// The smallest number, the largest and the number of NaNs of a value, in f64.
struct Ranges([Tensor; 3]);

impl Ranges {
    /// `None` if there are no elements.
    fn of(t: &Handle) -> Option<Ranges> {
        if numel(t.fact()) == 0 {
            return None;
        }
        let x = Tensor::from(t.plain()).to_dtype(DType::F64);
        let is_nan = x.isnan();
        Some(Ranges([
            x.masked_fill(&is_nan, f64::INFINITY).amin(()),
            x.masked_fill(&is_nan, f64::NEG_INFINITY).amax(()),
            is_nan.to_dtype(DType::F64).sum(()),
        ]))
    }
}

//! Loops.
//!
//! A loop of few iterations is unrolled. Another is one loop of the program if its state keeps dtypes and
//! shapes; a condition that is computed ends it. A loop that collects rows needs its number of iterations: it is counted
//! first, by a loop that collects nothing.

use crate::call::{Call, Results};
use crate::fault::{invalid, unsupported};
use crate::loaded::Port;
use crate::proto::{GraphProto, ValueInfoProto};
use crate::value::{Known, Value};
use kiln_base::Dim;
use kiln_tensor::{DType, DimSpec, Error, Result, Tensor, WhileLoop, scan, stack, while_loop_with};
use std::cell::Cell;

/// The maximum number of iterations of a loop that is unrolled where it could be one loop.
const MAX_UNROLLED: i64 = 8;
/// The maximum number of nodes of unrolled iterations.
const MAX_RECORDED: i64 = 1 << 19;
/// The maximum number of iterations of a loop with gradients whose condition is computed.
const MAX_BOUNDED: i64 = 1 << 20;

pub(super) fn repeat(c: &Call) -> Results {
    let graph = c.graph("body")?;
    let carried = c.inputs.len().saturating_sub(2);
    if graph.output.len() <= carried {
        return Err(invalid("the body gives too few outputs"));
    }
    let repeated = Loop { c, graph, carried };
    let trips = match c.has(0) {
        true => c.traced(0)?.known().and_then(|k| k.integers()),
        false => Some(vec![i64::MAX]),
    };
    let trips = trips.and_then(|list| list.first().copied());
    if trips.is_some_and(|n| n <= MAX_UNROLLED)
        && let Some(results) = repeated.unroll(false)?
    {
        return Ok(results);
    }
    match repeated.as_loop(trips) {
        Ok(results) => Ok(results),
        // Shapes change, values are read or a sequence is carried.
        Err(e) => match repeated.unroll(true)? {
            Some(results) => Ok(results),
            None => Err(e),
        },
    }
}

/// Returns the truth of a value if it is known.
fn known_truth(value: &Value) -> Result<Option<bool>> {
    let Value::Tensor(t) = value else {
        return Err(invalid("a condition is not a tensor"));
    };
    let list = t.known().and_then(|k| k.integers());
    Ok(list.map(|list| list.first().is_some_and(|n| *n != 0)))
}

/// Returns the tensors of values.
fn tensors(values: impl IntoIterator<Item = Value>) -> Result<Vec<Tensor>> {
    let tensor = |value| match value {
        Value::Tensor(t) => t.tensor().check().cloned(),
        _ => Err(invalid("a loop carries a sequence")),
    };
    values.into_iter().map(tensor).collect()
}

struct Loop<'a> {
    c: &'a Call<'a>,
    graph: &'a GraphProto,
    /// The number of values that iterations carry.
    carried: usize,
}

impl Loop<'_> {
    fn first_state(&self) -> Result<Vec<Value>> {
        (0..self.carried)
            .map(|i| self.c.value(i + 2).cloned())
            .collect()
    }

    /// Records an iteration, in which the condition holds. Returns the next condition, and the state and rows behind it.
    fn iterate(&self, step: Value, state: Vec<Value>) -> Result<(Value, Vec<Value>)> {
        let mut inputs = vec![step, Known::scalar(DType::Bool, 1).into()];
        inputs.extend(state);
        let mut results = self.c.scope.body(self.graph, inputs)?;
        if results.len() <= self.carried {
            return Err(invalid("the body gives too few outputs"));
        }
        Ok((results.remove(0), results))
    }

    /// Records each iteration. A condition that is computed is read after each, or gives `None`.
    fn unroll(&self, may_read: bool) -> Result<Option<Vec<Value>>> {
        let trips = self.c.first_integer(0)?.unwrap_or(i64::MAX);
        let read = |value: &Value| match (known_truth(value)?, value) {
            (None, Value::Tensor(t)) if may_read => {
                let list = t.tensor().to_dtype(DType::I64).to_vec::<i64>()?;
                Ok::<_, Error>(Some(list.first().is_some_and(|n| *n != 0)))
            }
            (known, _) => Ok(known),
        };
        let mut goes_on = match self.c.has(1) {
            true => read(self.c.value(1)?)?,
            false => Some(true),
        };
        let mut state = self.first_state()?;
        let mut rows = vec![Vec::new(); self.graph.output.len() - 1 - self.carried];
        let mut step = 0;
        while step < trips && goes_on == Some(true) {
            if step.saturating_mul(self.graph.node.len() as i64) > MAX_RECORDED {
                return Err(unsupported(format!(
                    "more than {step} turns of other shapes or values"
                )));
            }
            let (condition, mut next) =
                self.iterate(Known::scalar(DType::I64, step).into(), state)?;
            for (rows, row) in rows.iter_mut().zip(next.drain(self.carried..)) {
                rows.push(row);
            }
            goes_on = read(&condition)?;
            state = next;
            step += 1;
        }
        if goes_on.is_none() && step < trips {
            return Ok(None);
        }
        for (rows, port) in rows.into_iter().zip(&self.graph.output[1 + self.carried..]) {
            state.push(match rows.is_empty() {
                false => stack(tensors(rows)?, 0).into(),
                true => empty_rows(port)?.into(),
            });
        }
        Ok(Some(state))
    }

    /// Records the body once.
    fn as_loop(&self, trips: Option<i64>) -> Results {
        let state = tensors(self.first_state()?)?;
        let begins = match self.c.has(1) {
            true => known_truth(self.c.value(1)?)?,
            false => Some(true),
        };
        if begins == Some(true)
            && let Some(trips) = trips.filter(|n| *n <= MAX_BOUNDED)
            && let Some(results) = self.record_counted(trips, &state, false)?
        {
            return Ok(results);
        }
        let mut end = self.record_conditional(trips, &state)?;
        if self.graph.output.len() == 1 + self.carried {
            return Ok(end.drain(2..).map(Value::from).collect());
        }
        let trips = end[0].item::<i64>()?;
        let results = self.record_counted(trips, &state, true)?;
        results.ok_or_else(|| invalid("the loop has no number of turns"))
    }

    /// A loop of so many iterations, or `None` if a condition that is computed could end it earlier.
    fn record_counted(
        &self,
        trips: i64,
        state: &[Tensor],
        is_certain: bool,
    ) -> Result<Option<Vec<Value>>> {
        let always = Cell::new(is_certain);
        let steps = Tensor::arange_dtype(0, trips, 1, DType::I64);
        let (state, rows) = scan(state.to_vec(), steps, |state: Vec<Tensor>, step: Tensor| {
            let state = state.into_iter().map(Value::from).collect();
            let (condition, next) = self.iterate(step.into(), state)?;
            always.set(is_certain || known_truth(&condition)? == Some(true));
            let mut next = tensors(next)?;
            let rows = next.split_off(self.carried);
            Ok::<_, Error>((next, rows))
        })?;
        let results = state.into_iter().chain(rows).map(Value::from);
        Ok(always.get().then(|| results.collect()))
    }

    /// A loop that a condition ends, without rows: the number of iterations, the last condition and the state.
    fn record_conditional(&self, trips: Option<i64>, state: &[Tensor]) -> Result<Vec<Tensor>> {
        let limit = match trips {
            Some(n) => Tensor::scalar(n),
            None => self.c.tensor(0)?.reshape(()),
        };
        let goes_on = match self.c.has(1) {
            true => self.c.tensor(1)?.reshape(()),
            false => Tensor::scalar(true),
        };
        let mut initial = vec![Tensor::scalar(0i64), goes_on];
        initial.extend(state.iter().cloned());
        let bound = trips.filter(|n| *n <= MAX_BOUNDED);
        while_loop_with(
            initial,
            WhileLoop::new().max_trips(bound),
            |state| state[1].logical_and(state[0].lt(&limit)),
            |mut state| {
                let carried = state.drain(2..).map(Value::from).collect();
                let (condition, mut next) = self.iterate(state[0].clone().into(), carried)?;
                next.truncate(self.carried);
                let condition = tensors([condition])?.remove(0).reshape(());
                let mut outputs = vec![&state[0] + 1, condition];
                outputs.extend(tensors(next)?);
                Ok::<_, Error>(outputs)
            },
        )
    }
}

/// Returns the rows of a loop without iterations.
fn empty_rows(port: &ValueInfoProto) -> Result<Tensor> {
    let port = Port::new(port.name(), port.r#type.as_ref());
    let dtype = port
        .dtype
        .ok_or_else(|| unsupported("a loop without turns whose results have no type"))?;
    let size = |d: &DimSpec| match d {
        DimSpec::Known(n) => Dim::Const(*n),
        DimSpec::Symbol(_) => Dim::ZERO,
    };
    let dims = port.dims.unwrap_or_default();
    let shape: Vec<Dim> = [Dim::ZERO]
        .into_iter()
        .chain(dims.iter().map(size))
        .collect();
    Ok(Tensor::zeros(shape, dtype))
}

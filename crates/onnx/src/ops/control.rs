//! Branches and loops.

use super::Record;
use crate::call::{Call, Results, axis};
use crate::fault::{invalid, unsupported};
use crate::proto::GraphProto;
use crate::value::{Element, Known, Value};
use kiln_base::Dim;
use kiln_tensor::{DType, Result, Tensor, cond, scan, stack};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "If" => branch,
        "Loop" => repeat,
        "Scan" => scan_over,
        "SequenceMap" => sequence_map,
        _ => return None,
    })
}

fn branch(c: &Call) -> Results {
    let (then, otherwise) = (c.graph("then_branch")?, c.graph("else_branch")?);
    let condition = c.traced(0)?;
    if condition.known().is_none() {
        // Both sides become part of the program, if they give tensors of the same shapes.
        let side = |g: &GraphProto| {
            c.surroundings
                .body(g, vec![])?
                .iter()
                .map(|v| match v {
                    Value::Tensor(t) => Ok(t.tensor()),
                    _ => Err(unsupported("a branch gives a sequence")),
                })
                .collect::<Result<Vec<_>>>()
        };
        let test = condition.tensor().reshape(());
        let both = cond(test, || side(then), || side(otherwise));
        if let Ok(both) = both
            && both.iter().all(|t| t.error().is_none())
        {
            return Ok(both.into_iter().map(Value::from).collect());
        }
    }
    let truth = c.first_flag(0)?;
    c.surroundings
        .body(if truth { then } else { otherwise }, vec![])
}

fn truth(t: bool) -> Value {
    Known {
        dtype: DType::Bool,
        shape: vec![],
        elements: vec![Element::Int(Dim::Const(t.into()))],
    }
    .into()
}

/// Returns the truth of a value, which is read if it is not known.
fn is_true(value: &Value) -> Result<bool> {
    let Value::Tensor(t) = value else {
        return Err(invalid("a condition is no tensor"));
    };
    match t.known().and_then(|k| k.integers()) {
        Some(list) => Ok(list.first().is_some_and(|n| *n != 0)),
        None => Ok(t
            .tensor()
            .to_dtype(DType::I64)
            .to_vec::<i64>()?
            .first()
            .is_some_and(|n| *n != 0)),
    }
}

/// A loop, of which each turn is recorded. A condition that is computed is read after each.
fn repeat(c: &Call) -> Results {
    let graph = c.graph("body")?;
    let trips = c.first_integer(0)?.unwrap_or(i64::MAX);
    let mut goes_on = if c.has(1) {
        is_true(c.value(1)?)?
    } else {
        true
    };
    let carried = c.inputs.len().saturating_sub(2);
    let mut state: Vec<Value> = (0..carried)
        .map(|i| c.value(i + 2).cloned())
        .collect::<Result<_>>()?;
    let collected = graph.output.len().checked_sub(1 + carried);
    let collected = collected.ok_or_else(|| invalid("the body gives too few outputs"))?;
    let mut rows: Vec<Vec<Tensor>> = vec![Vec::new(); collected];
    let mut turn = 0;
    while turn < trips && goes_on {
        let number = Known {
            dtype: DType::I64,
            shape: vec![],
            elements: vec![Element::Int(Dim::Const(turn))],
        };
        let mut inputs = vec![number.into(), truth(true)];
        inputs.append(&mut state);
        let mut results = c.surroundings.body(graph, inputs)?.into_iter();
        goes_on = is_true(&results.next().unwrap_or_else(|| truth(false)))?;
        state = results.by_ref().take(carried).collect();
        for (row, value) in rows.iter_mut().zip(results) {
            match value {
                Value::Tensor(t) => row.push(t.tensor()),
                _ => return Err(invalid("a collected value is no tensor")),
            }
        }
        turn += 1;
    }
    for (row, port) in rows.into_iter().zip(&graph.output[1 + carried..]) {
        state.push(match row.is_empty() {
            false => stack(row, 0).into(),
            true => no_rows(port)?.into(),
        });
    }
    Ok(state)
}

/// Returns what a loop without turns collects.
fn no_rows(port: &crate::proto::ValueInfoProto) -> Result<Tensor> {
    let port = crate::loaded::Port::new(port.name(), port.r#type.as_ref());
    let dtype = port
        .dtype
        .ok_or_else(|| unsupported("a loop without turns whose results have no type"))?;
    let size = |d: &kiln_tensor::DimSpec| match d {
        kiln_tensor::DimSpec::Known(n) => Dim::Const(*n),
        kiln_tensor::DimSpec::Symbol(_) => Dim::ZERO,
    };
    let dims = port.dims.unwrap_or_default();
    let shape: Vec<Dim> = [Dim::ZERO]
        .into_iter()
        .chain(dims.iter().map(size))
        .collect();
    Ok(Tensor::zeros(shape, dtype))
}

/// Returns entry `i` of a list in an attribute, 0 if there is none.
fn entry(list: &Option<Vec<i64>>, i: usize) -> i64 {
    list.as_ref().and_then(|l| l.get(i)).copied().unwrap_or(0)
}

fn scan_over(c: &Call) -> Results {
    if c.version < 9 {
        return scan_of_batches(c);
    }
    let graph = c.graph("body")?;
    let scanned = usize::try_from(c.int("num_scan_inputs", 0)?).unwrap_or(usize::MAX);
    let all = c.tensors(0)?;
    let Some(carried) = all.len().checked_sub(scanned).filter(|_| scanned > 0) else {
        return Err(invalid(format!(
            "{scanned} of {} inputs can't be scanned",
            all.len()
        )));
    };
    let (axes, flips) = (c.ints("scan_input_axes")?, c.ints("scan_input_directions")?);
    let mut slices = Vec::new();
    for (i, t) in all[carried..].iter().enumerate() {
        let at = axis(entry(&axes, i), t.ndim())?;
        let t = t.movedim(at as i64, 0);
        slices.push(if entry(&flips, i) != 0 { t.flip(0) } else { t });
    }
    let (state, rows) = scanned_graph(c, graph, all[..carried].to_vec(), slices)?;
    let (axes, flips) = (
        c.ints("scan_output_axes")?,
        c.ints("scan_output_directions")?,
    );
    let mut results: Vec<Value> = state.into_iter().map(Value::from).collect();
    for (i, t) in rows.into_iter().enumerate() {
        let t = if entry(&flips, i) != 0 { t.flip(0) } else { t };
        let at = axis(entry(&axes, i), t.ndim())?;
        results.push(t.movedim(0, at as i64).into());
    }
    Ok(results)
}

/// A scan of the body over the first dim of `slices`, as one loop.
fn scanned_graph(
    c: &Call,
    graph: &GraphProto,
    state: Vec<Tensor>,
    slices: Vec<Tensor>,
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let carried = state.len();
    scan(state, slices, |state: Vec<Tensor>, slices: Vec<Tensor>| {
        let inputs = state.into_iter().chain(slices).map(Value::from).collect();
        let mut results = Vec::new();
        for value in c.surroundings.body(graph, inputs)? {
            match value {
                Value::Tensor(t) => results.push(t.tensor()),
                _ => return Err(invalid("a body of a scan gives a sequence")),
            }
        }
        if results.len() < carried {
            return Err(invalid("the body gives too few outputs"));
        }
        let rows = results.split_off(carried);
        Ok((results, rows))
    })
}

/// Version 8: each input has a batch in front, which is scanned one by one.
fn scan_of_batches(c: &Call) -> Results {
    if c.has(0) {
        return Err(unsupported("Scan before version 9 with lengths"));
    }
    let graph = c.graph("body")?;
    let scanned = usize::try_from(c.int("num_scan_inputs", 0)?).unwrap_or(usize::MAX);
    let all = c.tensors(1)?;
    let Some(carried) = all.len().checked_sub(scanned).filter(|_| scanned > 0) else {
        return Err(invalid(format!(
            "{scanned} of {} inputs can't be scanned",
            all.len()
        )));
    };
    let batch = all[0].dims().first().and_then(Dim::as_const);
    let batch = batch.ok_or_else(|| invalid("the batch must be known"))?;
    let flips = c.ints("directions")?;
    let mut results: Vec<Vec<Tensor>> = Vec::new();
    for b in 0..batch {
        let of = |t: &Tensor| t.select(0, b);
        let state = all[..carried].iter().map(of).collect();
        let slices = all[carried..]
            .iter()
            .enumerate()
            .map(|(i, t)| match entry(&flips, i) {
                0 => of(t),
                _ => of(t).flip(0),
            });
        let (mut state, rows) = scanned_graph(c, graph, state, slices.collect())?;
        state.extend(rows);
        results.resize(state.len(), Vec::new());
        results
            .iter_mut()
            .zip(state)
            .for_each(|(list, t)| list.push(t));
    }
    Ok(results
        .into_iter()
        .map(|list| stack(list, 0).into())
        .collect())
}

/// Applies the body to each element of a sequence.
fn sequence_map(c: &Call) -> Results {
    let graph = c.graph("body")?;
    let Value::Sequence(first) = c.value(0)? else {
        return Err(invalid("input 0 is no sequence"));
    };
    let mut results = vec![Vec::new(); graph.output.len()];
    for i in 0..first.len() {
        let mut inputs = Vec::new();
        for at in 0..c.inputs.len() {
            inputs.push(match c.value(at)? {
                Value::Sequence(list) => list
                    .get(i)
                    .cloned()
                    .ok_or_else(|| invalid("the sequences are not equally long"))?,
                other => other.clone(),
            });
        }
        for (list, value) in results.iter_mut().zip(c.surroundings.body(graph, inputs)?) {
            list.push(value);
        }
    }
    Ok(results.into_iter().map(Value::Sequence).collect())
}

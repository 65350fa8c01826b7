//! Branches, scans and maps.

use super::Record;
use super::repeat::repeat;
use crate::call::{Call, Results, axis, known_size};
use crate::fault::{invalid, unsupported};
use crate::proto::GraphProto;
use crate::value::Value;
use kiln_tensor::{Result, Tensor, cond, scan, stack};

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
            c.scope
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
    c.scope.body(if truth { then } else { otherwise }, vec![])
}

/// Returns entry `i` of a list in an attribute, 0 if there is none.
fn entry(list: &Option<Vec<i64>>, i: usize) -> i64 {
    list.as_ref().and_then(|l| l.get(i)).copied().unwrap_or(0)
}

/// Returns the number of a scan's `inputs` that are its state; the others are scanned.
fn count_carried(c: &Call, inputs: usize) -> Result<usize> {
    let scanned = usize::try_from(c.int("num_scan_inputs", 0)?).unwrap_or(usize::MAX);
    let carried = inputs.checked_sub(scanned).filter(|_| scanned > 0);
    carried.ok_or_else(|| invalid(format!("{scanned} of {inputs} inputs can't be scanned")))
}

fn scan_over(c: &Call) -> Results {
    if c.version < 9 {
        return scan_of_batches(c);
    }
    let graph = c.graph("body")?;
    let operands = c.tensors(0)?;
    let carried = count_carried(c, operands.len())?;
    let (axes, flips) = (c.ints("scan_input_axes")?, c.ints("scan_input_directions")?);
    let mut slices = Vec::new();
    for (i, t) in operands[carried..].iter().enumerate() {
        let axis = axis(entry(&axes, i), t.ndim())?;
        let t = t.movedim(axis as i64, 0);
        slices.push(if entry(&flips, i) != 0 { t.flip(0) } else { t });
    }
    let (state, rows) = scan_graph(c, graph, operands[..carried].to_vec(), slices)?;
    let (axes, flips) = (
        c.ints("scan_output_axes")?,
        c.ints("scan_output_directions")?,
    );
    let mut results: Vec<Value> = state.into_iter().map(Value::from).collect();
    for (i, t) in rows.into_iter().enumerate() {
        let t = if entry(&flips, i) != 0 { t.flip(0) } else { t };
        let axis = axis(entry(&axes, i), t.ndim())?;
        results.push(t.movedim(0, axis as i64).into());
    }
    Ok(results)
}

/// A scan of the body over the first dim of `slices`, as one loop.
fn scan_graph(
    c: &Call,
    graph: &GraphProto,
    state: Vec<Tensor>,
    slices: Vec<Tensor>,
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let carried = state.len();
    scan(state, slices, |state: Vec<Tensor>, slices: Vec<Tensor>| {
        let inputs = state.into_iter().chain(slices).map(Value::from).collect();
        let mut results = Vec::new();
        for value in c.scope.body(graph, inputs)? {
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
    let operands = c.tensors(1)?;
    let carried = count_carried(c, operands.len())?;
    let batch = known_size(&operands[0], 0)?;
    let flips = c.ints("directions")?;
    let mut results: Vec<Vec<Tensor>> = Vec::new();
    for b in 0..batch {
        let sample = |t: &Tensor| t.select(0, b);
        let state = operands[..carried].iter().map(sample).collect();
        let slices = operands[carried..].iter().map(sample).enumerate();
        let slices = slices.map(|(i, t)| if entry(&flips, i) != 0 { t.flip(0) } else { t });
        let (mut state, rows) = scan_graph(c, graph, state, slices.collect())?;
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
    let Value::Sequence(first_list) = c.value(0)? else {
        return Err(invalid("input 0 is not a sequence"));
    };
    let mut results = vec![Vec::new(); graph.output.len()];
    for i in 0..first_list.len() {
        let mut inputs = Vec::new();
        for index in 0..c.inputs.len() {
            inputs.push(match c.value(index)? {
                Value::Sequence(list) => list
                    .get(i)
                    .cloned()
                    .ok_or_else(|| invalid("the sequences are not equally long"))?,
                other => other.clone(),
            });
        }
        for (list, value) in results.iter_mut().zip(c.scope.body(graph, inputs)?) {
            list.push(value);
        }
    }
    Ok(results.into_iter().map(Value::Sequence).collect())
}

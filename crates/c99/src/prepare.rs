//! Evaluation of *prepare* when sources are emitted.

use crate::emit::number;
use crate::error::{Error, Result};
use kiln_plan::{Allocation, Output, Plan};
use kiln_runtime::{Buffer, Executable};

/// Runs *prepare*. Returns the buffers that it computes, with their indices in the plan. `fixed` holds the plan's
/// constant inputs; *prepare* reads no others.
pub(crate) fn run_prepare(
    plan: &Plan,
    values: &[i64],
    fixed: &[Option<&Buffer>],
) -> Result<Vec<(usize, Buffer)>> {
    let is_prepared = |b: &kiln_plan::Buffer| b.allocation == Allocation::Prepared;
    let prepared_buffers: Vec<usize> = (0..plan.buffers.len())
        .filter(|i| is_prepared(&plan.buffers[*i]))
        .collect();
    if prepared_buffers.is_empty() {
        return Ok(Vec::new());
    }
    // A plan that runs *prepare*, and whose outputs are the prepared buffers.
    let mut prepare_plan = plan.clone();
    prepare_plan.run = std::mem::take(&mut prepare_plan.prepare);
    prepare_plan.commit = prepare_plan.run.len() as u32;
    prepare_plan.outputs.clear();
    for buffer in &mut prepare_plan.buffers {
        buffer.allocation = match buffer.allocation {
            Allocation::Output => Allocation::Temporary,
            Allocation::Prepared => Allocation::Output,
            other => other,
        };
    }
    for i in &prepared_buffers {
        let buffer = &prepare_plan.buffers[*i];
        prepare_plan.outputs.push(Output {
            dtype: buffer.dtype,
            shape: vec![buffer.len.clone()],
            buffer: kiln_plan::BufferId(*i as u32),
            donor: None,
        });
    }
    let mut inputs = Vec::new();
    for (input, value) in plan.inputs.iter().zip(fixed) {
        inputs.push(match value {
            Some(buffer) => (*buffer).clone(),
            None => {
                let shape: Result<Vec<i64>> =
                    input.shape.iter().map(|d| number(d, values)).collect();
                Buffer::zeros(input.dtype, &shape?).map_err(Error::Prepare)?
            }
        });
    }
    let outcome = Executable::new(prepare_plan).and_then(|e| e.run_shared(&inputs));
    Ok(prepared_buffers
        .into_iter()
        .zip(outcome.map_err(Error::Prepare)?)
        .collect())
}

//! Work that depends on weights alone is done once, when sources are emitted.

use crate::emit::number;
use crate::error::{Error, Result};
use kiln_plan::{Allocation, Output, Plan};
use kiln_runtime::{Buffer, Executable};

/// The values of the buffers that *prepare* computes, with their numbers. `fixed` are the plan's constant inputs;
/// *prepare* depends on no other inputs.
pub(crate) fn prepared(
    plan: &Plan,
    values: &[i64],
    fixed: &[Option<&Buffer>],
) -> Result<Vec<(usize, Buffer)>> {
    let made = |b: &kiln_plan::Buffer| b.allocation == Allocation::Prepared;
    let places: Vec<usize> = (0..plan.buffers.len())
        .filter(|i| made(&plan.buffers[*i]))
        .collect();
    if places.is_empty() {
        return Ok(Vec::new());
    }
    // A plan whose run is the work that the other one prepares.
    let mut first = plan.clone();
    first.run = std::mem::take(&mut first.prepare);
    first.commit = first.run.len() as u32;
    first.outputs.clear();
    for buffer in &mut first.buffers {
        buffer.allocation = match buffer.allocation {
            Allocation::Output => Allocation::Temporary,
            Allocation::Prepared => Allocation::Output,
            other => other,
        };
    }
    for i in &places {
        let buffer = &first.buffers[*i];
        first.outputs.push(Output {
            dtype: buffer.dtype,
            shape: vec![buffer.len.clone()],
            buffer: kiln_plan::BufferId(*i as u32),
            donor: None,
        });
    }
    let mut inputs = Vec::new();
    for (input, given) in plan.inputs.iter().zip(fixed) {
        inputs.push(match given {
            Some(buffer) => (*buffer).clone(),
            None => {
                let shape: Result<Vec<i64>> =
                    input.shape.iter().map(|d| number(d, values)).collect();
                Buffer::zeros(input.dtype, &shape?).map_err(Error::Prepare)?
            }
        });
    }
    let run = Executable::new(first).and_then(|e| e.run_shared(&inputs));
    Ok(places
        .into_iter()
        .zip(run.map_err(Error::Prepare)?)
        .collect())
}

use super::array::element_count;
use super::{Array, Problem, fact_of, shape_of};
use crate::OpDef;
use crate::ops::Collective;
use kiln_base::collective::{Call, start};

/// This process's part in the operation, and the next token.
pub(super) fn eval(op: &Collective, x: &[&Array]) -> Result<Vec<Array>, Problem> {
    let failed = |text: String| Problem::Custom {
        name: op.kind.name().into(),
        text,
    };
    let facts = x.iter().map(|x| fact_of(x)).collect::<Vec<_>>();
    let results = op.infer(&facts.iter().collect::<Vec<_>>())?;
    let (dtype, shape) = (x[0].dtype(), shape_of(&results[0], &[])?);
    let count = element_count(&shape).unwrap_or_default();
    let mut output = vec![0; count * dtype.size()];
    let call = Call {
        kind: op.kind,
        dtype,
        input: &x[0].to_bytes(),
        output: output.len(),
    };
    start(&op.group, op.ranks, call)
        .and_then(|request| request.wait(&mut output))
        .map_err(failed)?;
    let next = i64::from_le_bytes(x[1].to_bytes()[..].try_into().unwrap_or_default()) + 1;
    let array = |dtype, shape: &[usize], bytes: &[u8]| {
        Array::from_bytes(dtype, shape, bytes).map_err(|e| failed(e.to_string()))
    };
    Ok(vec![
        array(dtype, &shape, &output)?,
        array(x[1].dtype(), &[1], &next.to_le_bytes())?,
    ])
}

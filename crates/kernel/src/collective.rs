//! The sizes of collective operations.

use crate::error::{Result, damaged};
use kiln_base::numel;
use kiln_plan::{Array, Collective};

/// Returns the sizes of the operand and the result in bytes. `lens` are the lengths of the arguments.
///
/// # Errors
/// [`Error::Plan`](crate::error::Error::Plan) if arguments have other sizes, or operand and result differ in dtype.
pub fn operand_sizes(op: &Collective, values: &[i64], lens: &[i64]) -> Result<[usize; 2]> {
    let len = |arg: u16| lens.get(usize::from(arg)).copied();
    let bytes = |a: &Array| {
        let count = numel(&a.shape).eval_checked(values);
        match count.filter(|n| *n >= 0 && len(a.arg) == Some(*n)) {
            Some(count) => Ok(count as usize * a.dtype.size()),
            None => Err(damaged!("{} in a buffer of another size", op.kind)),
        }
    };
    if [op.token, op.next].iter().any(|t| len(*t) != Some(1)) {
        return Err(damaged!("{} with a token of another size", op.kind));
    }
    if op.x.dtype != op.out.dtype {
        return Err(damaged!("{} changes the dtype", op.kind));
    }
    Ok([bytes(&op.x)?, bytes(&op.out)?])
}

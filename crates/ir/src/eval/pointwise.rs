use super::{Array, Context, Data, Problem};
use crate::ops::Pointwise;
use smallvec::SmallVec;

/// Floats and bool go through the row's float function (`Not` is logical there), integers through its
/// integer function. The mask of `select` follows its values.
pub(super) fn eval(op: &Pointwise, x: &[&Array], cx: &Context) -> Result<Data, Problem> {
    let row = op.0.row();
    let n: usize = cx.shape.iter().product();
    // The last operand is never the mask.
    if x[x.len() - 1].dtype().is_int() {
        let operands: SmallVec<[&[i64]; 3]> = x.iter().filter_map(|a| a.ints()).collect();
        let mut element_operands = [0i64; 3];
        let mut out = Vec::with_capacity(n);
        for element in 0..n {
            for (slot, operand) in element_operands.iter_mut().zip(&operands) {
                *slot = operand[element];
            }
            match (row.int)(&element_operands[..x.len()]) {
                Ok(y) => out.push(y),
                Err(_) => return Err(Problem::DivisionByZero { element }),
            }
        }
        return Ok(Data::Int(out));
    }
    let mut element_operands = [0f64; 3];
    let results = (0..n).map(|element| {
        for (slot, operand) in element_operands.iter_mut().zip(x) {
            *slot = match operand.data() {
                Data::Float(v) => v[element],
                Data::Int(v) => v[element] as f64,
            };
        }
        (row.float)(&element_operands[..x.len()])
    });
    Ok(if cx.dtype.is_float() {
        Data::Float(results.collect())
    } else {
        Data::Int(results.map(|y| y as i64).collect())
    })
}

//! Softmax and batch normalisation.

use crate::erased::{Erased, Id};
use crate::{Call, Gradients};
use kiln_base::Dim;
use kiln_base::prim::Reduction;
use kiln_ir::ops::{BatchNorm, Softmax};
use kiln_ir::{Builder, OpError, Pw, Shape};

/// `y · (g − Σ g·y)`, or `g − exp(y) · Σ g` for log softmax.
pub(crate) fn softmax(b: &mut Erased<'_>, op: &Softmax, g: &Id, y: &Id) -> Result<Id, OpError> {
    if op.log {
        let sum = b.reduce_keepdim(Reduction::Sum, g, &[op.axis])?;
        let exp = b.pointwise(Pw::Exp, std::slice::from_ref(y))?;
        let share = b.pointwise(Pw::Mul, &[exp, sum])?;
        return b.pointwise(Pw::Sub, &[g.clone(), share]);
    }
    let product = b.pointwise(Pw::Mul, &[g.clone(), y.clone()])?;
    let sum = b.reduce_keepdim(Reduction::Sum, &product, &[op.axis])?;
    let centred = b.pointwise(Pw::Sub, &[g.clone(), sum])?;
    b.pointwise(Pw::Mul, &[y.clone(), centred])
}

/// With `n = (x − mean) · r`, `r = 1 / √(variance + eps)`, the gradients are `g·w·r` for x, minus its sum for the
/// mean, `−r²/2 · Σ g·w·n` for the variance, `Σ g·n` for the weight and `Σ g` for the bias. Sums are over all axes
/// but the channels.
pub(crate) fn batch_norm(
    b: &mut Erased<'_>,
    op: &BatchNorm,
    g: &Id,
    call: &Call<'_, Id>,
) -> Result<Gradients<Id>, OpError> {
    let x = &call.inputs[0];
    let shape = b.fact(x).shape;
    let axes: Vec<usize> = (0..shape.len()).filter(|a| *a != 1).collect();
    let mut column = Shape::from_elem(Dim::ONE, shape.len() - 1);
    column[0] = shape[1].clone();

    let mean = b.reshape(&call.inputs[1], &column)?;
    let spread = b.with(Pw::Add, &call.inputs[2], op.eps)?;
    let r = b.pointwise(Pw::Rsqrt, &[spread])?;
    let scale = match op.affine {
        true => b.pointwise(Pw::Mul, &[r.clone(), call.inputs[3].clone()])?,
        false => r.clone(),
    };
    let r_column = b.reshape(&r, &column)?;
    let centred = b.pointwise(Pw::Sub, &[x.clone(), mean])?;
    let n = b.pointwise(Pw::Mul, &[centred, r_column])?;
    let gn = b.pointwise(Pw::Mul, &[g.clone(), n])?;
    let sum_gn = b.sum(&gn, &axes)?;
    let sum_g = b.sum(g, &axes)?;

    let scale_column = b.reshape(&scale, &column)?;
    let dx = b.pointwise(Pw::Mul, &[g.clone(), scale_column])?;
    let dmean = b.pointwise(Pw::Mul, &[sum_g.clone(), scale.clone()])?;
    let dmean = b.pointwise(Pw::Neg, &[dmean])?;
    let dvariance = b.pointwise(Pw::Mul, &[sum_gn.clone(), scale])?;
    let dvariance = b.pointwise(Pw::Mul, &[dvariance, r])?;
    let dvariance = b.with(Pw::Mul, &dvariance, -0.5)?;
    let mut out = Gradients::from_iter([Some(dx), Some(dmean), Some(dvariance)]);
    if op.affine {
        out.extend([Some(sum_gn), Some(sum_g)]);
    }
    Ok(out)
}

//! Parameters as one vector.

use crate::layer::{self, fact};
use kiln_tensor::{AsTensor, Error, Result, Tensor, Vars, assign_together, cat};

/// The elements of all parameters as one vector, through which gradients reach them
/// (`torch.nn.utils.parameters_to_vector`).
///
/// ```
/// use kiln_nn::{Linear, Module, parameters_to_vector, vector_to_parameters};
/// let model = Linear::new(3, 2)?;
/// let all = parameters_to_vector(model.parameters());
/// assert_eq!(all.shape()?, [8]);
/// vector_to_parameters(all * 0.5, model.parameters())?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn parameters_to_vector(parameters: impl Vars) -> Tensor {
    let parameters = parameters.into_vars();
    let flat: Vec<Tensor> = parameters.iter().map(|p| p.flatten(0)).collect();
    cat(&flat, 0)
}

/// Assigns parameters the elements of a vector, as [`parameters_to_vector`] orders them
/// (`torch.nn.utils.vector_to_parameters`).
///
/// # Errors
/// If the vector has other than the parameters' number of elements, or can't be assigned. The parameters are then as
/// before.
#[track_caller]
pub fn vector_to_parameters(vector: impl AsTensor, parameters: impl Vars) -> Result<()> {
    let vector: &Tensor = &vector.as_tensor();
    vector.check()?;
    let parameters = parameters.into_vars();
    let shapes: Vec<Vec<usize>> = parameters.iter().map(layer::shape).collect();
    let counts: Vec<i64> = (shapes.iter())
        .map(|s| s.iter().product::<usize>() as i64)
        .collect();
    let total: i64 = counts.iter().sum();
    if vector.ndim() != 1 || !vector.dims()[0].is(total) {
        let vector = fact(vector);
        let message = format!("the parameters have {total} elements, which {vector} does not hold");
        return Err(Error::invalid("vector_to_parameters", message));
    }
    let mut from = 0;
    let mut values = Vec::new();
    for ((p, shape), count) in parameters.iter().zip(shapes).zip(counts) {
        let segment = vector.narrow(0, from, count).reshape(shape);
        values.push((p, segment.to_dtype(p.dtype())));
        from += count;
    }
    assign_together(values)
}

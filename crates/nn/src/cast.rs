//! Modules in other dtypes.

use crate::{Module, tree};
use kiln_tensor::{DType, Error, Result};

/// Casts the floats that chosen modules hold.
#[track_caller]
pub(crate) fn cast(
    module: &dyn Module,
    dtype: DType,
    chosen: &dyn Fn(&dyn Module) -> bool,
) -> Result<()> {
    if !dtype.is_float() || !dtype.computes() {
        let message = format!("parameters are floats that are computed in, not {dtype}");
        return Err(Error::invalid("to_dtype", message));
    }
    if let Some(name) = tree::wrapper(module) {
        let message = format!(
            "the model is in a {name}: cast it first, and wrap it then: `model.to_dtype(..)?`, then `{name}::new(model)?`"
        );
        return Err(Error::invalid("to_dtype", message));
    }
    tree::vars(module); // which tells the cells their names
    let modules = module
        .named_modules()
        .into_iter()
        .filter(|(_, m)| chosen(*m));
    for (path, m) in modules {
        let vars = tree::own_vars(m, &path).into_iter().map(|v| v.var);
        for var in vars.chain(tree::computed(m).into_iter().map(|(_, var)| var)) {
            if var.dtype().is_float() {
                var.to_dtype_(dtype)?;
            }
        }
    }
    Ok(())
}

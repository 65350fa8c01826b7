//! Modules in other dtypes.

use crate::running_norm::{BatchNormNd, InstanceNormNd};
use crate::{GroupNorm, LayerNorm, Module, RMSNorm, tree};
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
    tree::vars(module); // which tells the cells their names
    let modules = module
        .named_modules()
        .into_iter()
        .filter(|(_, m)| chosen(*m));
    for (path, m) in modules {
        for held in tree::own_vars(m, &path) {
            if held.var.dtype().is_float() {
                held.var.to_dtype_(dtype)?;
            }
        }
    }
    Ok(())
}

/// Whether a module is a batch norm, of any number of dims.
pub fn is_batch_norm(module: &dyn Module) -> bool {
    module.downcast_ref::<BatchNormNd<1>>().is_some()
        || module.downcast_ref::<BatchNormNd<2>>().is_some()
        || module.downcast_ref::<BatchNormNd<3>>().is_some()
}

/// Whether a module is a norm: batch, instance, layer, group or RMS.
pub fn is_norm(module: &dyn Module) -> bool {
    is_batch_norm(module)
        || module.downcast_ref::<InstanceNormNd<1>>().is_some()
        || module.downcast_ref::<InstanceNormNd<2>>().is_some()
        || module.downcast_ref::<InstanceNormNd<3>>().is_some()
        || module.downcast_ref::<LayerNorm>().is_some()
        || module.downcast_ref::<GroupNorm>().is_some()
        || module.downcast_ref::<RMSNorm>().is_some()
}

//! Functions that recognise norms.

use crate::running_norm::{BatchNormNd, InstanceNormNd};
use crate::{GroupNorm, LayerNorm, Module, RMSNorm};

/// True for a batch norm, of any number of dims.
pub fn is_batch_norm(module: &dyn Module) -> bool {
    module.downcast_ref::<BatchNormNd<1>>().is_some()
        || module.downcast_ref::<BatchNormNd<2>>().is_some()
        || module.downcast_ref::<BatchNormNd<3>>().is_some()
}

/// True for a norm: batch, instance, layer, group or RMS.
pub fn is_norm(module: &dyn Module) -> bool {
    is_batch_norm(module)
        || module.downcast_ref::<InstanceNormNd<1>>().is_some()
        || module.downcast_ref::<InstanceNormNd<2>>().is_some()
        || module.downcast_ref::<InstanceNormNd<3>>().is_some()
        || module.downcast_ref::<LayerNorm>().is_some()
        || module.downcast_ref::<GroupNorm>().is_some()
        || module.downcast_ref::<RMSNorm>().is_some()
}

//! The lists of operations and their rules for operands inside `autocast`.

use crate::Device;

/// The rule of an operation for its operands of float dtypes other than f64, inside [`autocast`](crate::autocast).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AutocastRule {
    /// Casts them to the narrower dtype.
    Lower,
    /// Casts them to f32.
    Full,
    /// Casts them to f32 if any of them is wider than the narrower dtype, else to the narrower dtype.
    Widest,
    /// Fails: the result would often be infinite.
    Refused,
}

/// The device of a list of operations.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AutocastList {
    /// The list of CPUs.
    Cpu,
    /// The list of NVIDIA GPUs.
    Cuda,
}

impl From<Device> for AutocastList {
    fn from(device: Device) -> AutocastList {
        match device {
            Device::Cpu => AutocastList::Cpu,
            _ => AutocastList::Cuda,
        }
    }
}

/// An operation in the lists of [`autocast`](crate::autocast).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AutocastOp {
    /// The name of the operation in this crate.
    pub name: &'static str,
    /// The rule on a GPU, if any.
    pub cuda: Option<AutocastRule>,
    /// The rule on a CPU, if any.
    pub cpu: Option<AutocastRule>,
}

impl AutocastOp {
    /// Returns the rule of a list, if any.
    pub fn rule(&self, list: AutocastList) -> Option<AutocastRule> {
        match list {
            AutocastList::Cpu => self.cpu,
            AutocastList::Cuda => self.cuda,
        }
    }
}

/// Returns all operations in the lists of [`autocast`](crate::autocast), sorted by name. They and their rules are
/// PyTorch's.
pub fn autocast_ops() -> &'static [AutocastOp] {
    OPS
}

/// The rule of an operation, if it is in a list.
pub(super) fn rule(name: &str, list: AutocastList) -> Option<AutocastRule> {
    let index = OPS.binary_search_by(|op| op.name.cmp(name)).ok()?;
    OPS[index].rule(list)
}

macro_rules! rule {
    (-) => {
        None
    };
    ($rule:ident) => {
        Some(AutocastRule::$rule)
    };
}

macro_rules! ops {
    ($($name:ident $cuda:tt $cpu:tt;)*) => {
        /// Sorted by name.
        const OPS: &[AutocastOp] = &[$(AutocastOp {
            name: stringify!($name),
            cuda: rule!($cuda),
            cpu: rule!($cpu),
        },)*];
    };
}

ops! {
    acos Full -;
    adaptive_avg_pool3d - Full;
    adaptive_max_pool3d - Full;
    addbmm Lower Lower;
    addcdiv Widest -;
    addcmul Widest -;
    addmm Lower Lower;
    addmv Lower -;
    addr Lower -;
    asin Full -;
    atan2 Widest -;
    avg_pool3d - Full;
    baddbmm Lower Lower;
    bilinear Widest -;
    binary_cross_entropy Refused Full;
    binary_cross_entropy_with_logits Full Full;
    bmm Lower Lower;
    cdist Full Full;
    cholesky - Full;
    cholesky_inverse - Full;
    cholesky_solve - Full;
    cond - Full;
    conv1d Lower Lower;
    conv2d Lower Lower;
    conv3d Lower Lower;
    conv_transpose1d Lower Lower;
    conv_transpose2d Lower Lower;
    conv_transpose3d Lower Lower;
    cosh Full -;
    cosine_embedding_loss Full Full;
    cosine_similarity Full -;
    cross Widest -;
    cross_entropy Full Full;
    ctc_loss - Full;
    cumprod Full -;
    cumsum Full -;
    dist Full -;
    dot Widest -;
    eigh - Full;
    eigvalsh - Full;
    einsum Lower Lower;
    erfinv Full -;
    exp Full -;
    expm1 Full -;
    fractional_max_pool2d - Full;
    fractional_max_pool3d - Full;
    grid_sample Widest Full;
    group_norm Full -;
    hinge_embedding_loss Full Full;
    huber_loss Full Full;
    index_copy - Widest;
    index_put Widest -;
    interpolate Full -;
    inv - Full;
    kl_div Full Full;
    l1_loss Full Full;
    layer_norm Full -;
    linear Lower Lower;
    log Full -;
    log10 Full -;
    log1p Full -;
    log2 Full -;
    log_softmax Full -;
    logsumexp Full -;
    lstsq - Full;
    margin_ranking_loss Full Full;
    matmul Lower Lower;
    matrix_norm Full -;
    matrix_rank - Full;
    max_pool3d - Full;
    max_unpool2d - Full;
    max_unpool3d - Full;
    mm Lower Lower;
    mse_loss Full Full;
    multi_dot Lower Lower;
    multi_margin_loss Full Full;
    multilabel_margin_loss Full Full;
    multilabel_soft_margin_loss Full -;
    mv Lower -;
    nanquantile - Full;
    nll_loss Full Full;
    pdist Full -;
    poisson_nll_loss Full Full;
    pow Full -;
    prelu Lower Lower;
    prod Full Full;
    qr - Full;
    quantile - Full;
    reciprocal Full -;
    reflection_pad1d - Full;
    reflection_pad2d - Full;
    renorm Full -;
    replication_pad1d - Full;
    replication_pad2d - Full;
    replication_pad3d - Full;
    rms_norm Full -;
    rsqrt Full -;
    scaled_dot_product_attention Lower Lower;
    scatter_add Widest -;
    sinh Full -;
    smooth_l1_loss Full Full;
    soft_margin_loss Full Full;
    softmax Full -;
    softplus Full -;
    solve - Full;
    sum Full -;
    svd - Full;
    svdvals - Full;
    tan Full -;
    tensordot Widest Lower;
    trace - Full;
    triplet_margin_loss Full Full;
    vecdot Lower Lower;
    vector_norm Full -;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted() {
        assert!(OPS.is_sorted_by(|a, b| a.name < b.name));
    }
}

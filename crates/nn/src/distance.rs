//! Distances of pairs of vectors as modules.

use crate::Module;
use crate::layer::run;
use kiln_tensor::Tensor;

/// [`Tensor::cosine_similarity`] along a dim (`torch.nn.CosineSimilarity`).
#[derive(Clone, Copy, Debug, Module)]
pub struct CosineSimilarity {
    /// The dim of the vectors.
    pub dim: i64,
    /// The least length.
    pub eps: f64,
}

impl CosineSimilarity {
    /// The module with PyTorch's defaults: dim 1, lengths of at least 1e-8.
    pub fn new() -> CosineSimilarity {
        CosineSimilarity { dim: 1, eps: 1e-8 }
    }

    /// The cosines of the angles between two lists of vectors.
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Tensor {
        run(self, &[x1, x2], || {
            x1.cosine_similarity(x2, self.dim, self.eps)
        })
    }
}

impl Default for CosineSimilarity {
    fn default() -> CosineSimilarity {
        CosineSimilarity::new()
    }
}

/// [`Tensor::pairwise_distance`] along the last dim (`torch.nn.PairwiseDistance`).
#[derive(Clone, Copy, Debug, Module)]
pub struct PairwiseDistance {
    /// The order of the norm.
    pub p: f64,
    /// Added to each difference.
    pub eps: f64,
    /// Whether the dim stays, of size 1.
    pub keepdim: bool,
}

impl PairwiseDistance {
    /// The module with PyTorch's defaults: the Euclidean norm, 1e-6 added, without the dim.
    pub fn new() -> PairwiseDistance {
        PairwiseDistance {
            p: 2.0,
            eps: 1e-6,
            keepdim: false,
        }
    }

    /// The distances of two lists of vectors.
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Tensor {
        let (p, eps) = (self.p, self.eps);
        run(self, &[x1, x2], || {
            x1.pairwise_distance(x2, p, eps, self.keepdim)
        })
    }
}

impl Default for PairwiseDistance {
    fn default() -> PairwiseDistance {
        PairwiseDistance::new()
    }
}

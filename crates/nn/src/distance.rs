//! Distances of pairs of vectors as modules.

use crate::Module;
use crate::layer::run;
use kiln_tensor::{Cosine, Pairwise, Tensor};

/// [`Tensor::cosine_similarity`] along a dim (`torch.nn.CosineSimilarity`).
#[derive(Clone, Debug, Default, Module)]
pub struct CosineSimilarity {
    /// What the function takes by name.
    #[skip]
    pub options: Cosine,
}

impl CosineSimilarity {
    /// The module with PyTorch's defaults.
    pub fn new() -> CosineSimilarity {
        CosineSimilarity::default()
    }

    /// The module with these settings.
    pub fn with(options: Cosine) -> CosineSimilarity {
        CosineSimilarity { options }
    }

    /// The cosines of the angles between two lists of vectors.
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Tensor {
        run(self, &[x1, x2], || {
            x1.cosine_similarity_with(x2, self.options.clone())
        })
    }
}

/// [`Tensor::pairwise_distance`] along the last dim (`torch.nn.PairwiseDistance`).
#[derive(Clone, Debug, Default, Module)]
pub struct PairwiseDistance {
    /// What the function takes by name.
    #[skip]
    pub options: Pairwise,
}

impl PairwiseDistance {
    /// The module with PyTorch's defaults.
    pub fn new() -> PairwiseDistance {
        PairwiseDistance::default()
    }

    /// The module with these settings.
    pub fn with(options: Pairwise) -> PairwiseDistance {
        PairwiseDistance { options }
    }

    /// The distances of two lists of vectors.
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Tensor {
        run(self, &[x1, x2], || {
            x1.pairwise_distance_with(x2, self.options.clone())
        })
    }
}

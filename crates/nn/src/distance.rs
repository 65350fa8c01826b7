//! Distances of pairs of vectors as modules.

use crate::{Forward, Hooks, Module};
use kiln_tensor::{Cosine, Pairwise, Result, Tensor};

/// [`Tensor::cosine_similarity`] along a dim (`torch.nn.CosineSimilarity`).
#[derive(Clone, Debug, Default, Module)]
pub struct CosineSimilarity {
    #[skip]
    options: Cosine,
    hooks: Hooks,
}

impl CosineSimilarity {
    /// The module with PyTorch's defaults.
    pub fn new() -> CosineSimilarity {
        CosineSimilarity::default()
    }

    /// The module with these settings.
    pub fn with(options: Cosine) -> CosineSimilarity {
        let hooks = Hooks::new();
        CosineSimilarity { options, hooks }
    }

    /// Returns the function's settings.
    pub fn options(&self) -> &Cosine {
        &self.options
    }
}

/// Two lists of vectors.
impl Forward<(Tensor, Tensor)> for CosineSimilarity {
    fn forward(&self, (x1, x2): (Tensor, Tensor)) -> Result<Tensor> {
        Ok(x1.cosine_similarity_with(&x2, self.options.clone()))
    }
}

/// [`Tensor::pairwise_distance`] along the last dim (`torch.nn.PairwiseDistance`).
#[derive(Clone, Debug, Default, Module)]
pub struct PairwiseDistance {
    #[skip]
    options: Pairwise,
    hooks: Hooks,
}

impl PairwiseDistance {
    /// The module with PyTorch's defaults.
    pub fn new() -> PairwiseDistance {
        PairwiseDistance::default()
    }

    /// The module with these settings.
    pub fn with(options: Pairwise) -> PairwiseDistance {
        let hooks = Hooks::new();
        PairwiseDistance { options, hooks }
    }

    /// Returns the function's settings.
    pub fn options(&self) -> &Pairwise {
        &self.options
    }
}

/// Two lists of vectors.
impl Forward<(Tensor, Tensor)> for PairwiseDistance {
    fn forward(&self, (x1, x2): (Tensor, Tensor)) -> Result<Tensor> {
        Ok(x1.pairwise_distance_with(&x2, self.options.clone()))
    }
}

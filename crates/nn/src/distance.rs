//! Distances of pairs of vectors as modules.

use crate::{Forward, Hooks, Module};
use kiln_tensor::{Cosine, Pairwise, Result, Tensor};

macro_rules! distances {
    ($($(#[$doc:meta])* $name:ident $options:ident $op:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Module)]
        pub struct $name {
            #[skip]
            options: $options,
            hooks: Hooks,
        }

        impl $name {
            /// The module with PyTorch's defaults.
            pub fn new() -> $name {
                $name::default()
            }

            /// The module with these settings.
            pub fn with(options: $options) -> $name {
                let hooks = Hooks::new();
                $name { options, hooks }
            }

            /// Returns the function's settings.
            pub fn options(&self) -> &$options {
                &self.options
            }
        }

        /// Two lists of vectors.
        impl Forward<(Tensor, Tensor)> for $name {
            fn forward(&self, (x1, x2): (Tensor, Tensor)) -> Result<Tensor> {
                Ok(x1.$op(&x2, self.options.clone()))
            }
        }
    )*};
}

distances! {
    /// [`Tensor::cosine_similarity`] along a dim (`torch.nn.CosineSimilarity`).
    CosineSimilarity Cosine cosine_similarity_with;
    /// [`Tensor::pairwise_distance`] along the last dim (`torch.nn.PairwiseDistance`).
    PairwiseDistance Pairwise pairwise_distance_with;
}

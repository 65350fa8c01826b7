//! Losses as modules of two or three arguments. Their weights are buffers, so they move with the module
//! and are part of its state.

use crate::Module;
use crate::layer::{fact, run_lookup, wrong};
use kiln_tensor::{Reduction, Tensor, Var};

macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $ty:ty = $default:expr),* }
        |$loss:ident, $($arg:ident),*| $body:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            /// What becomes of the elements.
            #[skip]
            pub reduction: Reduction,
            $($(#[$about])* pub $field: $ty,)*
        }

        impl $name {
            /// The loss with PyTorch's defaults; its fields change them.
            pub fn new() -> $name {
                $name {
                    reduction: Reduction::Mean,
                    $($field: $default,)*
                }
            }

            /// The loss of these tensors.
            #[track_caller]
            pub fn forward(&self, $($arg: &Tensor),*) -> Tensor {
                run_lookup(self, &[$($arg),*], || {
                    let $loss = self;
                    $body
                })
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }
    )*};
}

/// The target, unless both it and the input would be stretched: `[n]` beside `[n, 1]` would make `[n, n]`.
fn aligned(loss: &dyn Module, input: &Tensor, target: &Tensor) -> Tensor {
    let ones = |a: &Tensor, b: &Tensor| {
        let (a, mut b) = (a.dims().iter().rev(), b.dims().iter().rev());
        let mut stretched = false;
        for d in a {
            let beside = b.next();
            stretched |= !d.is(1) && beside.is_none_or(|d| d.is(1));
        }
        stretched
    };
    match ones(input, target) && ones(target, input) {
        true => {
            let (x, y) = (fact(input), fact(target));
            let message = format!("the input {x} and the target {y} must have one shape");
            wrong(loss, message)
        }
        false => target.clone(),
    }
}

/// The value of a buffer.
fn held(buffer: &Option<Var>) -> Option<Tensor> {
    buffer.as_ref().map(Var::get)
}

losses! {
    /// [`Tensor::mse_loss`] (`torch.nn.MSELoss`).
    MSELoss {} |l, input, target| input.mse_loss(&aligned(l, input, target), l.reduction);
    /// [`Tensor::l1_loss`] (`torch.nn.L1Loss`).
    L1Loss {} |l, input, target| input.l1_loss(&aligned(l, input, target), l.reduction);
    /// [`Tensor::smooth_l1_loss`] (`torch.nn.SmoothL1Loss`).
    SmoothL1Loss {
        /// Where it becomes linear.
        beta: f64 = 1.0
    } |l, input, target| input.smooth_l1_loss(&aligned(l, input, target), l.reduction, l.beta);
    /// [`Tensor::huber_loss`] (`torch.nn.HuberLoss`).
    HuberLoss {
        /// Where it becomes linear.
        delta: f64 = 1.0
    } |l, input, target| input.huber_loss(&aligned(l, input, target), l.reduction, l.delta);
    /// [`Tensor::kl_div`] (`torch.nn.KLDivLoss`).
    KLDivLoss {
        /// Whether the target holds logarithms.
        log_target: bool = false
    } |l, input, target| input.kl_div(target, l.reduction, l.log_target);
    /// [`Tensor::binary_cross_entropy`] of probabilities (`torch.nn.BCELoss`).
    BCELoss {
        /// A factor for each element.
        #[buffer]
        weight: Option<Var> = None
    } |l, input, target| input.binary_cross_entropy(target, held(&l.weight).as_ref(), l.reduction);
    /// [`Tensor::binary_cross_entropy_with_logits`] (`torch.nn.BCEWithLogitsLoss`).
    BCEWithLogitsLoss {
        /// A factor for each element.
        #[buffer]
        weight: Option<Var> = None,
        /// A factor for the positives of each class.
        #[buffer]
        pos_weight: Option<Var> = None
    } |l, input, target| {
        let (weight, positive) = (held(&l.weight), held(&l.pos_weight));
        let (weight, positive) = (weight.as_ref(), positive.as_ref());
        input.binary_cross_entropy_with_logits(target, weight, l.reduction, positive)
    };
    /// [`Tensor::nll_loss`] of log-probabilities (`torch.nn.NLLLoss`).
    NLLLoss {
        /// A factor for each class.
        #[buffer]
        weight: Option<Var> = None,
        /// The target that counts for nothing.
        ignore_index: i64 = -100
    } |l, input, target| input.nll_loss(target, held(&l.weight).as_ref(), l.ignore_index, l.reduction);
    /// [`Tensor::cross_entropy`] of logits (`torch.nn.CrossEntropyLoss`).
    ///
    /// ```
    /// use kiln_nn::CrossEntropyLoss;
    /// use kiln_tensor::{Tensor, Var};
    /// let logits = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [3, 3]);
    /// let weight = Some(Var::new(&Tensor::from_slice(&[0.2f32, 0.4, 1.0], [3]))?);
    /// let loss = CrossEntropyLoss { weight, ..CrossEntropyLoss::new() };
    /// let loss = loss.forward(&logits, &Tensor::from_slice(&[0i64, 1, 2], [3]));
    /// assert!((loss.item::<f32>()? - 0.9076).abs() < 1e-4);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    CrossEntropyLoss {
        /// A factor for each class.
        #[buffer]
        weight: Option<Var> = None,
        /// The target that counts for nothing.
        ignore_index: i64 = -100,
        /// How much of each target is spread over all classes.
        label_smoothing: f64 = 0.0
    } |l, input, target| input.cross_entropy(target, held(&l.weight).as_ref(), l.ignore_index, l.reduction, l.label_smoothing);
    /// [`Tensor::hinge_embedding_loss`] (`torch.nn.HingeEmbeddingLoss`).
    HingeEmbeddingLoss {
        /// How far dissimilar pairs are to be apart.
        margin: f64 = 1.0
    } |l, input, target| input.hinge_embedding_loss(target, l.margin, l.reduction);
    /// [`Tensor::soft_margin_loss`] (`torch.nn.SoftMarginLoss`).
    SoftMarginLoss {} |l, input, target| input.soft_margin_loss(target, l.reduction);
    /// [`Tensor::multi_margin_loss`] (`torch.nn.MultiMarginLoss`).
    MultiMarginLoss {
        /// The power, 1 or 2.
        p: i64 = 1,
        /// How far the target is to be above the others.
        margin: f64 = 1.0,
        /// A factor for each class.
        #[buffer]
        weight: Option<Var> = None
    } |l, input, target| {
        input.multi_margin_loss(target, l.p, l.margin, held(&l.weight).as_ref(), l.reduction)
    };
    /// [`Tensor::multilabel_margin_loss`] (`torch.nn.MultiLabelMarginLoss`).
    MultiLabelMarginLoss {} |l, input, target| input.multilabel_margin_loss(target, l.reduction);
    /// [`Tensor::multilabel_soft_margin_loss`] (`torch.nn.MultiLabelSoftMarginLoss`).
    MultiLabelSoftMarginLoss {
        /// A factor for each class.
        #[buffer]
        weight: Option<Var> = None
    } |l, input, target| {
        input.multilabel_soft_margin_loss(target, held(&l.weight).as_ref(), l.reduction)
    };
    /// [`Tensor::poisson_nll_loss`] (`torch.nn.PoissonNLLLoss`).
    PoissonNLLLoss {
        /// Whether the input is the logarithm of the rate.
        log_input: bool = true,
        /// Whether to add Stirling's approximation of the target's term.
        full: bool = false,
        /// What keeps the logarithm of a rate of 0 finite.
        eps: f64 = 1e-8
    } |l, input, target| {
        input.poisson_nll_loss(target, l.log_input, l.full, l.eps, l.reduction)
    };
    /// [`Tensor::gaussian_nll_loss`] of means, targets and variances (`torch.nn.GaussianNLLLoss`).
    GaussianNLLLoss {
        /// Whether to add the constant term.
        full: bool = false,
        /// The least variance.
        eps: f64 = 1e-6
    } |l, input, target, var| input.gaussian_nll_loss(target, var, l.full, l.eps, l.reduction);
    /// [`Tensor::cosine_embedding_loss`] of pairs (`torch.nn.CosineEmbeddingLoss`).
    CosineEmbeddingLoss {
        /// The cosine that dissimilar pairs may have.
        margin: f64 = 0.0
    } |l, input1, input2, target| {
        input1.cosine_embedding_loss(input2, target, l.margin, l.reduction)
    };
    /// [`Tensor::margin_ranking_loss`] of pairs (`torch.nn.MarginRankingLoss`).
    MarginRankingLoss {
        /// How far the pairs are to be apart.
        margin: f64 = 0.0
    } |l, input1, input2, target| {
        input1.margin_ranking_loss(input2, target, l.margin, l.reduction)
    };
    /// [`Tensor::triplet_margin_loss`] (`torch.nn.TripletMarginLoss`). For another distance, use
    /// [`Tensor::triplet_margin_with_distance_loss`].
    TripletMarginLoss {
        /// How much nearer the positive is to be than the negative.
        margin: f64 = 1.0,
        /// The order of the norm.
        p: f64 = 2.0,
        /// Added to each difference.
        eps: f64 = 1e-6,
        /// Whether the negative's distance to the positive counts where it is smaller.
        swap: bool = false
    } |l, anchor, positive, negative| {
        let (m, p) = (l.margin, l.p);
        anchor.triplet_margin_loss(positive, negative, m, p, l.eps, l.swap, l.reduction)
    };
}

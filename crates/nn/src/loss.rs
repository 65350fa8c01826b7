//! Losses as modules of two to four inputs. Their weights are buffers, so they move with the module
//! and are part of its state.

use crate::layer::{check_settings, fact, input_error, look_up};
use crate::{Forward, Hooks, Module};
use kiln_tensor::{
    BinaryCrossEntropy, BinaryCrossEntropyWithLogits, CosineEmbedding, CrossEntropy, Ctc,
    GaussianNll, HingeEmbedding, Huber, KlDiv, MarginRanking, MultiLabelSoftMargin, MultiMargin,
    Nll, PoissonNll, Reduction, Result, SmoothL1, Tensor, TripletMargin, Var,
};

/// Modules that hold their function's settings. The tensors named after the type are buffers instead. The body calls
/// the function with all settings.
macro_rules! losses {
    ($($(#[$doc:meta])* $name:ident { $field:ident: $settings:ident $($buffer:ident)* }
        |$loss:pat_param, $options:ident, $($arg:ident),*| $body:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            #[skip]
            $field: $settings,
            $(#[doc = concat!("[`", stringify!($settings), "::", stringify!($buffer), "`].")]
            #[buffer]
            pub $buffer: Option<Var>,)*
            hooks: Hooks,
        }

        impl $name {
            /// Makes the loss with PyTorch's defaults.
            pub fn new() -> $name {
                $name {
                    $field: $settings::default(),
                    $($buffer: None,)*
                    hooks: Hooks::new(),
                }
            }

            /// Makes the loss with these settings.
            ///
            /// # Errors
            /// If a setting is out of its range, a weight carries an error, or a weight is given inside `compile`,
            /// where no buffer can be made.
            #[track_caller]
            #[allow(unused_mut)]
            pub fn with($field: $settings) -> Result<$name> {
                let mut $field = check_settings(stringify!($name), $field)?;
                Ok($name {
                    $($buffer: buffer($field.$buffer.take())?,)*
                    $field,
                    hooks: Hooks::new(),
                })
            }

            /// Returns the function's settings, without its tensors, which are the module's buffers.
            pub fn $field(&self) -> &$settings {
                &self.$field
            }
        }

        impl Forward<losses!(@inputs $($arg)*)> for $name {
            fn forward(&self, ($($arg,)*): losses!(@inputs $($arg)*)) -> Result<Tensor> {
                $(let $arg = &$arg;)*
                let ($loss, $options) = (self, losses!(@held self $field $settings $($buffer)*));
                Ok(look_up(self, || $body))
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }
    )*};
    (@inputs $a:ident $b:ident) => {
        (Tensor, Tensor)
    };
    (@inputs $a:ident $b:ident $c:ident) => {
        (Tensor, Tensor, Tensor)
    };
    (@inputs $a:ident $b:ident $c:ident $d:ident) => {
        (Tensor, Tensor, Tensor, Tensor)
    };
    (@held $this:ident $field:ident $settings:ident) => {
        $this.$field.clone()
    };
    (@held $this:ident $field:ident $settings:ident $($buffer:ident)+) => {{
        let mut options: $settings = $this.$field.clone();
        $(if let Some(var) = &$this.$buffer {
            options.$buffer = Some(var.get());
        })+
        options
    }};
}

#[track_caller]
fn buffer(value: Option<Tensor>) -> Result<Option<Var>> {
    match value {
        Some(value) => Var::new(&value).map(Some),
        None => Ok(None),
    }
}

/// Returns the target, or an error if both it and the input would be broadcast: `[n]` and `[n, 1]` would make `[n, n]`.
fn check_aligned(loss: &dyn Module, input: &Tensor, target: &Tensor) -> Tensor {
    let is_stretched = |a: &Tensor, b: &Tensor| {
        let (a, mut b) = (a.dims().iter().rev(), b.dims().iter().rev());
        let mut stretched = false;
        for d in a {
            let other = b.next();
            stretched |= !d.is(1) && other.is_none_or(|d| d.is(1));
        }
        stretched
    };
    match is_stretched(input, target) && is_stretched(target, input) {
        true => {
            let (x, y) = (fact(input), fact(target));
            let message = format!("the input {x} and the target {y} must have one shape");
            input_error(loss, message).unwrap_or_else(Tensor::from_error)
        }
        false => target.clone(),
    }
}

losses! {
    /// [`Tensor::mse_loss`] (`torch.nn.MSELoss`).
    MSELoss { reduction: Reduction }
        |l, options, input, target| input.mse_loss_with(check_aligned(l, input, target), options);
    /// [`Tensor::l1_loss`] (`torch.nn.L1Loss`).
    L1Loss { reduction: Reduction }
        |l, options, input, target| input.l1_loss_with(check_aligned(l, input, target), options);
    /// [`Tensor::smooth_l1_loss`] (`torch.nn.SmoothL1Loss`).
    SmoothL1Loss { options: SmoothL1 }
        |l, options, input, target| input.smooth_l1_loss_with(check_aligned(l, input, target), options);
    /// [`Tensor::huber_loss`] (`torch.nn.HuberLoss`).
    HuberLoss { options: Huber }
        |l, options, input, target| input.huber_loss_with(check_aligned(l, input, target), options);
    /// [`Tensor::kl_div`] (`torch.nn.KLDivLoss`).
    KLDivLoss { options: KlDiv } |_, options, input, target| input.kl_div_with(target, options);
    /// [`Tensor::binary_cross_entropy`] of probabilities (`torch.nn.BCELoss`).
    BCELoss { options: BinaryCrossEntropy weight }
        |_, options, input, target| input.binary_cross_entropy_with(target, options);
    /// [`Tensor::binary_cross_entropy_with_logits`] (`torch.nn.BCEWithLogitsLoss`).
    BCEWithLogitsLoss { options: BinaryCrossEntropyWithLogits weight pos_weight }
        |_, options, input, target| input.binary_cross_entropy_with_logits_with(target, options);
    /// [`Tensor::nll_loss`] of log-probabilities (`torch.nn.NLLLoss`).
    NLLLoss { options: Nll weight } |_, options, input, target| input.nll_loss_with(target, options);
    /// [`Tensor::cross_entropy`] of logits (`torch.nn.CrossEntropyLoss`).
    ///
    /// ```
    /// use kiln_nn::{CrossEntropyLoss, Forward};
    /// use kiln_tensor::{CrossEntropy, Tensor};
    /// let logits = Tensor::from([[1f32, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]);
    /// let weight = Tensor::from([0.2f32, 0.4, 1.0]);
    /// let loss = CrossEntropyLoss::with(CrossEntropy::new().weight(&weight))?;
    /// let loss = loss.call((&logits, Tensor::from([0i64, 1, 2])));
    /// assert!((loss.item::<f32>()? - 0.9076).abs() < 1e-4);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    CrossEntropyLoss { options: CrossEntropy weight }
        |_, options, input, target| input.cross_entropy_with(target, options);
    /// [`Tensor::hinge_embedding_loss`] (`torch.nn.HingeEmbeddingLoss`).
    HingeEmbeddingLoss { options: HingeEmbedding }
        |_, options, input, target| input.hinge_embedding_loss_with(target, options);
    /// [`Tensor::soft_margin_loss`] (`torch.nn.SoftMarginLoss`).
    SoftMarginLoss { reduction: Reduction }
        |_, options, input, target| input.soft_margin_loss_with(target, options);
    /// [`Tensor::multi_margin_loss`] (`torch.nn.MultiMarginLoss`).
    MultiMarginLoss { options: MultiMargin weight }
        |_, options, input, target| input.multi_margin_loss_with(target, options);
    /// [`Tensor::multilabel_margin_loss`] (`torch.nn.MultiLabelMarginLoss`).
    MultiLabelMarginLoss { reduction: Reduction }
        |_, options, input, target| input.multilabel_margin_loss_with(target, options);
    /// [`Tensor::multilabel_soft_margin_loss`] (`torch.nn.MultiLabelSoftMarginLoss`).
    MultiLabelSoftMarginLoss { options: MultiLabelSoftMargin weight }
        |_, options, input, target| input.multilabel_soft_margin_loss_with(target, options);
    /// [`Tensor::poisson_nll_loss`] (`torch.nn.PoissonNLLLoss`).
    PoissonNLLLoss { options: PoissonNll }
        |_, options, input, target| input.poisson_nll_loss_with(target, options);
    /// [`Tensor::gaussian_nll_loss`] of means, targets and variances (`torch.nn.GaussianNLLLoss`).
    GaussianNLLLoss { options: GaussianNll }
        |_, options, input, target, var| input.gaussian_nll_loss_with(target, var, options);
    /// [`Tensor::cosine_embedding_loss`] of pairs (`torch.nn.CosineEmbeddingLoss`).
    CosineEmbeddingLoss { options: CosineEmbedding }
        |_, options, input1, input2, target| input1.cosine_embedding_loss_with(input2, target, options);
    /// [`Tensor::margin_ranking_loss`] of pairs (`torch.nn.MarginRankingLoss`).
    MarginRankingLoss { options: MarginRanking }
        |_, options, input1, input2, target| input1.margin_ranking_loss_with(input2, target, options);
    /// [`Tensor::ctc_loss`] of log probabilities, targets, and the lengths of both (`torch.nn.CTCLoss`).
    CTCLoss { options: Ctc }
        |_, options, log_probs, targets, input_lengths, target_lengths|
            log_probs.ctc_loss_with(targets, input_lengths, target_lengths, options);
    /// [`Tensor::triplet_margin_loss`] (`torch.nn.TripletMarginLoss`). For another distance, use
    /// [`Tensor::triplet_margin_with_distance_loss`].
    TripletMarginLoss { options: TripletMargin }
        |_, options, anchor, positive, negative| anchor.triplet_margin_loss_with(positive, negative, options);
}

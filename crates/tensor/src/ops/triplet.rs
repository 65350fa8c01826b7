//! Triplet losses.

use super::loss::{reduce_loss, widen_floats};
use crate::operand::AsTensor;
use crate::options::{Settings, options};
use crate::record::{SOURCE, compose};
use crate::{Pairwise, Reduction, Tensor, on_behalf_of_caller};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};

options! {
    /// The options of [`Tensor::triplet_margin_loss`].
    TripletMargin () {
        /// The margin by which the positive must be nearer than the negative (default 1).
        margin: f64 = 1.0,
        /// The order of the norm (default 2).
        p: f64 = 2.0,
        /// A number added to each difference (default 1e-6).
        eps: f64 = 1e-6,
        /// True to use the negative's distance to the positive if it is smaller (default false).
        swap: bool = false,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

options! {
    /// The options of [`Tensor::triplet_margin_with_distance_loss`].
    TripletMarginWithDistance () {
        /// The margin by which the positive must be nearer than the negative (default 1).
        margin: f64 = 1.0,
        /// True to use the negative's distance to the positive if it is smaller (default false).
        swap: bool = false,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

fn check_margin(margin: f64) -> Result<(), OpError> {
    ensure!(margin > 0.0, "the margin must be positive, but is {margin}");
    Ok(())
}

impl Settings for TripletMargin {
    fn check(&self) -> Result<(), OpError> {
        check_margin(self.margin)
    }
}

impl Settings for TripletMarginWithDistance {
    fn check(&self) -> Result<(), OpError> {
        check_margin(self.margin)
    }
}

#[on_cells]
impl Tensor {
    /// `max(0, margin + d(anchor, positive) − d(anchor, negative))` with this tensor as the anchor and
    /// the distance of [`Tensor::pairwise_distance`]; the margin is 1.
    pub fn triplet_margin_loss(&self, positive: impl AsTensor, negative: impl AsTensor) -> Tensor {
        self.triplet_margin_loss_with(positive, negative, TripletMargin::new())
    }

    /// [`Tensor::triplet_margin_loss`] with another margin, norm or reduction.
    #[autocast]
    pub fn triplet_margin_loss_with(
        &self,
        positive: impl AsTensor,
        negative: impl AsTensor,
        options: TripletMargin,
    ) -> Tensor {
        let ranks = compose("triplet_margin_loss", &[self, positive, negative], |_| {
            ensure!(
                self.ndim() == positive.ndim() && self.ndim() == negative.ndim(),
                "anchor {}, positive {} and negative {} must have as many dims",
                self.fact(),
                positive.fact(),
                negative.fact()
            );
            Ok(self.clone())
        });
        if ranks.error().is_some() {
            return ranks;
        }
        let norm = Pairwise::new().p(options.p).eps(options.eps);
        let distance = |x: &Tensor, y: &Tensor| x.pairwise_distance_with(y, norm.clone());
        let options = TripletMarginWithDistance {
            margin: options.margin,
            swap: options.swap,
            reduction: options.reduction,
        };
        on_behalf_of_caller(SOURCE, || {
            self.triplet_margin_with_distance_loss_with(positive, negative, distance, options)
        })
    }

    /// [`Tensor::triplet_margin_loss`] with any distance.
    pub fn triplet_margin_with_distance_loss(
        &self,
        positive: impl AsTensor,
        negative: impl AsTensor,
        distance: impl Fn(&Tensor, &Tensor) -> Tensor,
    ) -> Tensor {
        let options = TripletMarginWithDistance::new();
        self.triplet_margin_with_distance_loss_with(positive, negative, distance, options)
    }

    /// [`Tensor::triplet_margin_with_distance_loss`] with another margin or reduction.
    pub fn triplet_margin_with_distance_loss_with(
        &self,
        positive: impl AsTensor,
        negative: impl AsTensor,
        distance: impl Fn(&Tensor, &Tensor) -> Tensor,
        options: TripletMarginWithDistance,
    ) -> Tensor {
        let margin = options.margin;
        let mut distances = vec![distance(self, positive), distance(self, negative)];
        if options.swap {
            distances.push(distance(positive, negative));
        }
        let operands: Vec<&Tensor> = distances.iter().collect();
        compose("triplet_margin_loss", &operands, |b| {
            options.check()?;
            let (dtype, d) = widen_floats(b, &operands)?;
            let negative = match d.get(2) {
                Some(between) => b.binary(Pw::Minimum, &d[1], between)?,
                None => d[1].clone(),
            };
            let difference = b.binary(Pw::Sub, &d[0], &negative)?;
            let gap = b.with(Pw::Add, &difference, margin)?;
            let loss = b.unary(Pw::Relu, &gap)?;
            let loss = reduce_loss(b, &loss, options.reduction)?;
            b.cast(&loss, dtype)
        })
    }
}

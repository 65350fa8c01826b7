//! Losses with margins.

use super::entropy::{class_weight, weighted};
use super::index::check_index;
use super::loss::{reduce_loss, widen_floats};
use crate::operand::AsTensor;
use crate::options::{Settings, options};
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Reduction, Tensor, promote};
use kiln_base::prim::Reduction as Fold;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};

options! {
    /// The options of [`Tensor::cosine_embedding_loss`].
    CosineEmbedding () {
        /// The largest cosine that dissimilar pairs may have (default 0).
        margin: f64 = 0.0,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

options! {
    /// The options of [`Tensor::hinge_embedding_loss`].
    HingeEmbedding () {
        /// The required distance of dissimilar pairs (default 1).
        margin: f64 = 1.0,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

options! {
    /// The options of [`Tensor::multi_margin_loss`].
    MultiMargin () {
        /// The exponent of the gaps, 1 or 2 (default 1).
        p: i64 = 1,
        /// The required distance of the target's score above the others (default 1).
        margin: f64 = 1.0,
        /// The reduction of the samples (default their mean).
        reduction: Reduction = Reduction::Mean,
        ;
        /// A factor for each class, `[c]`.
        weight,
    }
}

options! {
    /// The options of [`Tensor::multilabel_soft_margin_loss`].
    MultiLabelSoftMargin () {
        /// The reduction of the samples (default their mean).
        reduction: Reduction = Reduction::Mean,
        ;
        /// A factor for each class.
        weight,
    }
}

options! {
    /// The options of [`Tensor::margin_ranking_loss`].
    MarginRanking () {
        /// The required distance of the pairs (default 0).
        margin: f64 = 0.0,
        /// The reduction of the elements (default their mean).
        reduction: Reduction = Reduction::Mean,
    }
}

impl Settings for MultiMargin {
    fn check(&self) -> Result<(), OpError> {
        let p = self.p;
        ensure!(p == 1 || p == 2, "p must be 1 or 2, not {p}");
        Ok(())
    }
}

impl Settings for CosineEmbedding {}
impl Settings for HingeEmbedding {}
impl Settings for MultiLabelSoftMargin {}
impl Settings for MarginRanking {}

#[on_cells]
impl Tensor {
    /// With the cosine c of the angle between the rows of this tensor and `input2`, both `[n, d]` (or `[d]`): `1 − c`
    /// where the target `[n]` (or a number) is 1, `max(0, c − margin)` where it is −1. The margin is 0.
    pub fn cosine_embedding_loss(&self, input2: impl AsTensor, target: impl AsTensor) -> Tensor {
        self.cosine_embedding_loss_with(input2, target, CosineEmbedding::new())
    }

    /// [`Tensor::cosine_embedding_loss`] with another margin or reduction.
    #[autocast]
    pub fn cosine_embedding_loss_with(
        &self,
        input2: impl AsTensor,
        target: impl AsTensor,
        options: CosineEmbedding,
    ) -> Tensor {
        let CosineEmbedding { margin, reduction } = options;
        compose("cosine_embedding_loss", &[self, input2, target], |b| {
            let rank = target.ndim() + 1;
            ensure!(
                rank <= 2 && self.ndim() == rank && input2.ndim() == rank,
                "a target {} takes inputs of {rank} dims, not {} and {}",
                target.fact(),
                self.fact(),
                input2.fact()
            );
            let (dtype, x) = widen_floats(b, &[self, input2])?;
            let axes = [rank - 1];
            let dot = |b: &mut Recorder, x: &Tensor, y: &Tensor| {
                let product = b.binary(Pw::Mul, x, y)?;
                b.sum(&product, &axes, false)
            };
            let cosine = dot(b, &x[0], &x[1])?;
            let mut squares = Vec::new();
            for v in &x {
                let square = dot(b, v, v)?;
                squares.push(b.with(Pw::Add, &square, 1e-12)?);
            }
            let squares = b.binary(Pw::Mul, &squares[0], &squares[1])?;
            let lengths = b.unary(Pw::Sqrt, &squares)?;
            let cosine = b.binary(Pw::Div, &cosine, &lengths)?;
            let unit = b.scalar_like(1.0, &cosine)?;
            let positive_loss = b.binary(Pw::Sub, &unit, &cosine)?;
            let negative_loss = b.with(Pw::Sub, &cosine, margin)?;
            let negative_loss = b.unary(Pw::Relu, &negative_loss)?;
            let zero = b.scalar_like(0.0, &cosine)?;
            let target = b.cast(target, cosine.dtype())?;
            let (yes, no) = (
                b.with(Pw::Eq, &target, 1.0)?,
                b.with(Pw::Eq, &target, -1.0)?,
            );
            let loss = b.select(&no, &negative_loss, &zero)?;
            let loss = b.select(&yes, &positive_loss, &loss)?;
            let loss = reduce_loss(b, &loss, reduction)?;
            b.cast(&loss, dtype)
        })
    }

    /// The input where the target is 1, `max(0, margin − input)` where it is −1 (and the sum of both
    /// elsewhere, as in PyTorch); the margin is 1.
    pub fn hinge_embedding_loss(&self, target: impl AsTensor) -> Tensor {
        self.hinge_embedding_loss_with(target, HingeEmbedding::new())
    }

    /// [`Tensor::hinge_embedding_loss`] with another margin or reduction.
    #[autocast]
    pub fn hinge_embedding_loss_with(
        &self,
        target: impl AsTensor,
        options: HingeEmbedding,
    ) -> Tensor {
        let HingeEmbedding { margin, reduction } = options;
        compose("hinge_embedding_loss", &[self, target], |b| {
            let (dtype, operands) = widen_floats(b, &[self, target])?;
            let (x, t) = (&operands[0], &operands[1]);
            let margin = b.scalar_like(margin, x)?;
            let gap = b.binary(Pw::Sub, &margin, x)?;
            let gap = b.unary(Pw::Relu, &gap)?;
            let (yes, no) = (b.with(Pw::Eq, t, 1.0)?, b.with(Pw::Eq, t, -1.0)?);
            let gap = b.fill_where(&yes, 0.0, &gap)?;
            let own = b.fill_where(&no, 0.0, x)?;
            let loss = b.binary(Pw::Add, &gap, &own)?;
            let loss = reduce_loss(b, &loss, reduction)?;
            b.cast(&loss, dtype)
        })
    }

    /// The sum of `weight[y] · max(0, margin − input[y] + input[j])ᵖ` over the classes j other than the target y,
    /// divided by the number of classes. The input is `[n, c]` (or `[c]`), the target holds i64 classes `[n]` (or a
    /// single one). The margin and p are 1.
    pub fn multi_margin_loss(&self, target: impl AsTensor) -> Tensor {
        self.multi_margin_loss_with(target, MultiMargin::new())
    }

    /// [`Tensor::multi_margin_loss`] with another exponent or margin, weights of classes or another reduction.
    #[autocast(options)]
    pub fn multi_margin_loss_with(&self, target: impl AsTensor, options: MultiMargin) -> Tensor {
        let (p, weight) = (options.p, options.weight.as_ref());
        let mut operands = vec![self, target];
        operands.extend(weight);
        compose("multi_margin_loss", &operands, |b| {
            options.check()?;
            let x = as_rows(b, self)?;
            check_index(target, "target")?;
            b.indexed_by("target", target);
            let n = &x.dims()[0];
            ensure!(
                target.ndim() <= 1 && target.fact().numel() == *n,
                "the target must hold a class for each of {n} samples, not {}",
                target.fact()
            );
            let classes = b.reshape(target, &[n.clone(), 1.into()])?;
            let own = b.gather(&x, 1, &classes)?;
            let difference = b.binary(Pw::Sub, &x, &own)?;
            let gap = b.with(Pw::Add, &difference, options.margin)?;
            let mut gap = b.unary(Pw::Relu, &gap)?;
            if p == 2 {
                gap = b.unary(Pw::Square, &gap)?;
            }
            if let Some(w) = weight {
                let w = class_weight(b, &x, 1, w)?;
                let flat = b.reshape(&classes, std::slice::from_ref(n))?;
                let w = b.gather(&w, 0, &flat)?;
                let w = b.unsqueeze(&w, 1)?;
                gap = b.binary(Pw::Mul, &gap, &w)?;
            }
            let numbers = b.iota(&x.dims()[1])?;
            let same = b.binary(Pw::Eq, &classes, &numbers)?;
            let gap = b.fill_where(&same, 0.0, &gap)?;
            let loss = b.mean(&gap, &[1], false)?;
            let loss = b.reshape(&loss, target.dims())?;
            let loss = reduce_loss(b, &loss, options.reduction)?;
            b.cast(&loss, self.dtype())
        })
    }

    /// The sum of `max(0, 1 − input[y] + input[j])` over the target classes y and the classes j that are not targets,
    /// divided by the number of classes. The input is `[n, c]` (or `[c]`). The i64 target of the same shape lists
    /// classes up to the first −1.
    pub fn multilabel_margin_loss(&self, target: impl AsTensor) -> Tensor {
        self.multilabel_margin_loss_with(target, Reduction::Mean)
    }

    /// [`Tensor::multilabel_margin_loss`] with another reduction.
    #[autocast]
    pub fn multilabel_margin_loss_with(
        &self,
        target: impl AsTensor,
        reduction: Reduction,
    ) -> Tensor {
        compose("multilabel_margin_loss", &[self, target], |b| {
            check_index(target, "target")?;
            b.indexed_by("target", target);
            ensure!(
                target.dims() == self.dims(),
                "the input {} and the target {} must have one shape",
                self.fact(),
                target.fact()
            );
            let x = as_rows(b, self)?;
            let target = b.reshape(target, x.dims())?;
            let count = x.dims()[1].clone();
            let numbers = b.iota(&count)?;
            // The positions before the first −1.
            let end = b.with(Pw::Eq, &target, -1i64)?;
            let never = b.full(i64::MAX, DType::I64, &[])?;
            let ends = b.select(&end, &numbers, &never)?;
            let first_end = b.reduce(Fold::Min, &ends, &[1], true)?;
            let listed = b.binary(Pw::Lt, &numbers, &first_end)?;
            let none = b.scalar_like(0i64, &target)?;
            let safe = b.select(&listed, &target, &none)?;
            let own = b.gather(&x, 1, &safe)?;
            // [n, y, j]: class y of the list against class j.
            let (column, row) = (b.unsqueeze(&safe, 2)?, numbers);
            let hit = b.binary(Pw::Eq, &column, &row)?;
            let listed = b.unsqueeze(&listed, 2)?;
            let hit = b.binary(Pw::And, &hit, &listed)?;
            let chosen = b.reduce(Fold::Max, &hit, &[1], true)?;
            let other = b.unary(Pw::Not, &chosen)?;
            let counted = b.binary(Pw::And, &other, &listed)?;
            let (own, scores) = (b.unsqueeze(&own, 2)?, b.unsqueeze(&x, 1)?);
            let difference = b.binary(Pw::Sub, &scores, &own)?;
            let gap = b.with(Pw::Add, &difference, 1.0)?;
            let gap = b.unary(Pw::Relu, &gap)?;
            let zero = b.scalar_like(0.0, &gap)?;
            let gap = b.select(&counted, &gap, &zero)?;
            let sum = b.sum(&gap, &[1, 2], false)?;
            let classes = b.count(&x, &[1], x.dtype())?;
            let loss = b.binary(Pw::Div, &sum, &classes)?;
            let loss = b.reshape(&loss, &self.dims()[..self.ndim().saturating_sub(1)])?;
            let loss = reduce_loss(b, &loss, reduction)?;
            b.cast(&loss, self.dtype())
        })
    }

    /// The mean over the classes, the last dim, of the binary cross-entropy of `sigmoid(input)`.
    pub fn multilabel_soft_margin_loss(&self, target: impl AsTensor) -> Tensor {
        self.multilabel_soft_margin_loss_with(target, MultiLabelSoftMargin::new())
    }

    /// [`Tensor::multilabel_soft_margin_loss`] with weights of classes or another reduction.
    #[autocast(options)]
    pub fn multilabel_soft_margin_loss_with(
        &self,
        target: impl AsTensor,
        options: MultiLabelSoftMargin,
    ) -> Tensor {
        let weight = options.weight.as_ref();
        let mut operands = vec![self, target];
        operands.extend(weight);
        compose("multilabel_soft_margin_loss", &operands, |b| {
            let (dtype, operands) = widen_floats(b, &[self, target])?;
            let (x, y) = (&operands[0], &operands[1]);
            // y log σ(x) + (1 − y) log σ(−x)
            let unit = b.scalar_like(1.0, y)?;
            let rest = b.binary(Pw::Sub, &unit, y)?;
            let minus = b.unary(Pw::Neg, x)?;
            let (yes, no) = (
                b.unary(Pw::LogSigmoid, x)?,
                b.unary(Pw::LogSigmoid, &minus)?,
            );
            let (yes, no) = (b.binary(Pw::Mul, y, &yes)?, b.binary(Pw::Mul, &rest, &no)?);
            let sum = b.binary(Pw::Add, &yes, &no)?;
            let loss = b.unary(Pw::Neg, &sum)?;
            let loss = weighted(b, &loss, weight, Reduction::None, loss.dtype())?;
            ensure!(loss.ndim() > 0, "the input must have a class dim");
            let loss = b.mean(&loss, &[loss.ndim() - 1], false)?;
            let loss = reduce_loss(b, &loss, options.reduction)?;
            b.cast(&loss, dtype)
        })
    }

    /// `max(0, −target · (input1 − input2) + margin)`; the margin is 0.
    pub fn margin_ranking_loss(&self, input2: impl AsTensor, target: impl AsTensor) -> Tensor {
        self.margin_ranking_loss_with(input2, target, MarginRanking::new())
    }

    /// [`Tensor::margin_ranking_loss`] with another margin or reduction.
    #[autocast]
    pub fn margin_ranking_loss_with(
        &self,
        input2: impl AsTensor,
        target: impl AsTensor,
        options: MarginRanking,
    ) -> Tensor {
        let MarginRanking { margin, reduction } = options;
        compose("margin_ranking_loss", &[self, input2, target], |b| {
            let dtype = promote::common_dtype(&[self, input2, target])?;
            let dtype = promote::float_dtype(dtype);
            let wide = super::short::wide(dtype);
            let (x, y) = (b.cast(self, wide)?, b.cast(input2, wide)?);
            let t = b.cast(target, wide)?;
            let difference = b.binary(Pw::Sub, &y, &x)?;
            let product = b.binary(Pw::Mul, &t, &difference)?;
            let loss = b.with(Pw::Add, &product, margin)?;
            let loss = b.unary(Pw::Relu, &loss)?;
            let loss = reduce_loss(b, &loss, reduction)?;
            b.cast(&loss, dtype)
        })
    }
}

/// Widens scores of classes and reshapes them to `[n, c]`; a number is the score of one class.
fn as_rows(b: &mut Recorder, x: &Tensor) -> Recorded {
    super::args::check_float(x, "input")?;
    let classes = x.dims().last();
    ensure!(
        x.ndim() <= 2 && classes.is_none_or(|c| !c.is(0)),
        "the input must be [n, c] or [c] with classes, or a number for one class, not {}",
        x.fact()
    );
    let wide = b.widen(x)?;
    match x.ndim() {
        0 => b.reshape(&wide, &[1.into(), 1.into()]),
        1 => b.unsqueeze(&wide, 0),
        _ => Ok(wide),
    }
}

//! A softmax over many classes, few of which are frequent.

use crate::SOURCE;
use crate::layer::{self, fact, input_error, invalid, look_up};
use crate::{Forward, Hooks, Linear, LinearOptions, Module, ModuleList, Sequential};
use kiln_tensor::{
    DType, Int, IntList, Result, Tensor, cat, on_behalf_of_caller, options, set_device, where_,
};

options! {
    /// The cutoffs between the clusters of an [`AdaptiveLogSoftmaxWithLoss`]; a list of class indices converts to it.
    Cutoffs (
        /// The first class of each cluster, ascending. The classes before the first cluster are the frequent ones.
        cutoffs: IntList
    ) {
        /// The factor by which the number of features shrinks from each cluster to the next (default 4).
        div_value: f64 = 4.0,
        /// True if the scores of the frequent classes and of the clusters have a bias (default no).
        head_bias: bool = false,
    }
}

/// The log softmax over classes sorted by frequency, and its loss (Grave et al., "Efficient softmax approximation for
/// GPUs", 2016; `torch.nn.AdaptiveLogSoftmaxWithLoss`). It takes `[n, in_features]` and i64 classes `[n]` (or
/// `[in_features]` and one class). It returns the log probability of each class, and the negated mean of these.
///
/// The head scores the frequent classes and the clusters, and for each cluster two small products score its
/// classes. Every cluster is computed for all rows, so that the program is the same for any classes.
///
/// ```
/// use kiln_nn::{AdaptiveLogSoftmaxWithLoss, Forward};
/// use kiln_tensor::{DType, Tensor};
/// let softmax = AdaptiveLogSoftmaxWithLoss::new(64, 1000, [100, 500])?;
/// let (x, y) = (Tensor::randn([8, 64], DType::F32), Tensor::randint(0, 1000, [8]));
/// let (log_probs, loss) = softmax.call((&x, &y));
/// assert_eq!((log_probs.shape()?, loss.shape()?), (vec![8], vec![]));
/// assert_eq!(softmax.log_prob(&x).shape()?, [8, 1000]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct AdaptiveLogSoftmaxWithLoss {
    /// Scores of the frequent classes, then of the clusters.
    pub head: Linear,
    /// For each cluster, a product to fewer features and one to its classes.
    pub tail: ModuleList<Sequential>,
    /// The first class of each cluster, followed by the number of classes.
    #[skip]
    cutoffs: Vec<i64>,
    hooks: Hooks,
}

impl AdaptiveLogSoftmaxWithLoss {
    /// Makes a layer from `in_features` features to `n_classes` classes, with these cutoffs or [`Cutoffs`].
    ///
    /// # Errors
    /// If the cutoffs do not ascend between 1 and the last class, `div_value` is not positive, a size is negative, or
    /// inside `compile`.
    #[track_caller]
    pub fn new(
        in_features: impl Into<Int>,
        n_classes: impl Into<Int>,
        cutoffs: impl Into<Cutoffs>,
    ) -> Result<AdaptiveLogSoftmaxWithLoss> {
        const NAME: &str = "AdaptiveLogSoftmaxWithLoss";
        let options = cutoffs.into();
        let [features, classes] =
            layer::feature_sizes(NAME, [in_features.into(), n_classes.into()])?;
        let mut cutoffs = options.cutoffs.0;
        let shortlist = cutoffs.first().copied().unwrap_or(0);
        cutoffs.push(classes as i64);
        if shortlist < 1 || !cutoffs.is_sorted_by(|a, b| a < b) {
            let message = format!(
                "the cutoffs must ascend between 1 and {}, not {:?}",
                classes.max(1) - 1,
                &cutoffs[..cutoffs.len() - 1]
            );
            return Err(invalid(NAME, message));
        }
        if options.div_value.is_nan() || options.div_value <= 0.0 {
            let message = format!("div_value must be positive, not {}", options.div_value);
            return Err(invalid(NAME, message));
        }
        let clusters = cutoffs.len() as i64 - 1;
        let cluster = |(i, ends): (i32, &[i64])| {
            let hidden = (features as f64 / options.div_value.powi(i)).floor() as i64;
            let (down, up) = (
                Linear::with(features, hidden, LinearOptions::new().bias(false))?,
                Linear::with(hidden, ends[1] - ends[0], LinearOptions::new().bias(false))?,
            );
            Ok(Sequential::new().add(down).add(up))
        };
        Ok(AdaptiveLogSoftmaxWithLoss {
            head: Linear::from_sizes(
                [features.into(), (shortlist + clusters).into()],
                options.head_bias,
            )?,
            tail: (1..)
                .zip(cutoffs.windows(2))
                .map(cluster)
                .collect::<Result<_>>()?,
            cutoffs,
            hooks: Hooks::new(),
        })
    }

    /// Returns the number of classes.
    pub fn n_classes(&self) -> usize {
        self.cutoffs[self.cutoffs.len() - 1] as usize
    }

    /// The first class of each cluster.
    pub fn cutoffs(&self) -> &[i64] {
        &self.cutoffs[..self.cutoffs.len() - 1]
    }

    /// The log probabilities of all classes: `[n, in_features]` to `[n, n_classes]`.
    #[track_caller]
    pub fn log_prob(&self, x: &Tensor) -> Tensor {
        on_behalf_of_caller(SOURCE, || {
            let head = self.head.call(x).log_softmax(-1);
            let mut blocks = vec![head.narrow(-1, 0, self.cutoffs[0])];
            for (index, cluster) in (self.cutoffs[0]..).zip(self.tail.iter()) {
                blocks.push(cluster.call(x).log_softmax(-1) + head.narrow(-1, index, 1));
            }
            cat(blocks, -1)
        })
    }

    /// The most probable class of each row: `[n, in_features]` to i64 `[n]`.
    #[track_caller]
    pub fn predict(&self, x: &Tensor) -> Tensor {
        on_behalf_of_caller(SOURCE, || self.log_prob(x).argmax(-1))
    }
}

/// Features and classes to the log probability of each class, and the loss.
impl Forward<(Tensor, Tensor), (Tensor, Tensor)> for AdaptiveLogSoftmaxWithLoss {
    fn forward(&self, (x, y): (Tensor, Tensor)) -> Result<(Tensor, Tensor)> {
        let fits = (1..=2).contains(&x.ndim()) && y.dims() == &x.dims()[..x.ndim() - 1];
        if !fits || y.dtype() != DType::I64 {
            let (x, y) = (fact(&x), fact(&y));
            let message =
                format!("takes [n, in_features] and i64[n], or without n, not {x} and {y}");
            return input_error(self, message);
        }
        look_up(self, || {
            // This look-up gives the error of a class that does not exist.
            let device_scope = set_device(y.device());
            let classes = Tensor::arange(0, self.n_classes(), 1);
            drop(device_scope);
            let y = classes.gather(0, y.reshape(-1)).reshape(y.dims());
            let head = self.head.call(&x).log_softmax(-1);
            let picked =
                |scores: &Tensor, class: Tensor| scores.gather(-1, class.unsqueeze(-1)).squeeze(-1);
            let mut head_index = y.clamp_max(self.cutoffs[0] - 1);
            let mut inner = head.select(-1, 0).zeros_like();
            for (i, (ends, cluster)) in self.cutoffs.windows(2).zip(self.tail.iter()).enumerate() {
                let in_cluster = y.ge(ends[0]).logical_and(y.lt(ends[1]));
                head_index = where_(&in_cluster, self.cutoffs[0] + i as i64, head_index);
                let class = where_(&in_cluster, &y - ends[0], 0);
                inner = where_(
                    &in_cluster,
                    picked(&cluster.call(&x).log_softmax(-1), class),
                    inner,
                );
            }
            let output = picked(&head, head_index) + inner;
            let loss = -output.mean(());
            Ok((output, loss))
        })
    }
}

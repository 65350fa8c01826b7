//! Averages of a model's parameters over training.

use crate::SOURCE;
use crate::{Forward, Hooks, Module};
use kiln_tensor::{
    DType, Error, Nest, Result, Tensor, Var, assign_together, no_grad, on_behalf_of_caller, where_,
};
use std::sync::Arc;

/// A model whose parameters are averages of another model's over training (`torch.optim.swa_utils.AveragedModel`): equal
/// ones by default, for stochastic weight averaging (Izmailov et al., 2018), or exponential ones, by
/// [`get_ema_avg_fn`]. [`update_bn`](crate::update_bn) gives its batch norms their statistics.
///
/// ```
/// use kiln_nn::{AveragedModel, Forward, Linear, Module, get_ema_avg_fn};
/// use kiln_tensor::{DType, Tensor};
/// let model = Linear::new(4, 2)?;
/// let ema = AveragedModel::new(&model)?.avg_fn(get_ema_avg_fn(0.9)).use_buffers(true);
/// for _ in 0..3 {
///     model.weight.mul_(0.5)?; // a step of training
///     ema.update_parameters(&model)?;
/// }
/// ema.call(Tensor::ones([1, 4], DType::F32)).realize()?;
/// assert_eq!(ema.n_averaged.item::<i64>()?, 3);
/// assert_eq!(ema.state_dict().names().collect::<Vec<_>>(), ["n_averaged", "module.weight", "module.bias"]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Module)]
pub struct AveragedModel<M: Module> {
    /// The number of updates: i64 of rank 0.
    #[buffer]
    pub n_averaged: Var,
    /// The model with the averages.
    pub module: M,
    #[skip]
    avg_fn: AvgFn,
    use_buffers: bool,
    hooks: Hooks,
}

/// A new average from the one so far, the parameter, and the number of updates so far.
type AvgFn = Arc<dyn Fn(&Tensor, &Tensor, &Tensor) -> Tensor + Send + Sync>;

impl<M: Module> AveragedModel<M> {
    /// Makes a copy of a model that will hold equal averages. The first update takes over the model's parameters.
    ///
    /// # Errors
    /// As [`Module::deep_copy`].
    #[track_caller]
    pub fn new(model: &M) -> Result<AveragedModel<M>> {
        Ok(AveragedModel {
            n_averaged: Var::new(Tensor::zeros((), DType::I64))?,
            module: model.deep_copy()?,
            avg_fn: Arc::new(get_swa_avg_fn()),
            use_buffers: false,
            hooks: Hooks::new(),
        })
    }

    /// This model with other averages: a function of the average so far, the parameter, and the number of updates so
    /// far (i64, rank 0).
    pub fn avg_fn(
        mut self,
        f: impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor + Send + Sync + 'static,
    ) -> AveragedModel<M> {
        self.avg_fn = Arc::new(f);
        self
    }

    /// This model with averages of buffers too, which are copied otherwise.
    pub fn use_buffers(mut self, use_buffers: bool) -> AveragedModel<M> {
        self.use_buffers = use_buffers;
        self
    }

    /// Takes the parameters of a model into the averages. Inside `compile` this happens at each run.
    ///
    /// # Errors
    /// If the model's parameters or buffers are other than the copy's, which then keeps its averages.
    #[track_caller]
    pub fn update_parameters(&self, model: &dyn Module) -> Result<()> {
        let parameters = (self.module.parameters(), model.parameters());
        let buffers = (self.module.buffers(), model.buffers());
        for (own, others) in [&parameters, &buffers] {
            if own.len() != others.len() {
                let message = format!("{} values do not fit {}", others.len(), own.len());
                return Err(Error::invalid("update_parameters", message));
            }
        }
        on_behalf_of_caller(SOURCE, || {
            let mut new = vec![(&self.n_averaged, self.n_averaged.get() + 1)];
            for (own, value) in parameters.0.iter().zip(parameters.1) {
                new.push((own, self.average_with(own, &value)));
            }
            for (own, value) in buffers.0.iter().zip(buffers.1) {
                new.push((
                    own,
                    match self.use_buffers {
                        true => self.average_with(own, &value),
                        false => value.detach(),
                    },
                ));
            }
            assign_together(new)
        })
    }

    /// The new average of a cell.
    fn average_with(&self, own: &Var, value: &Var) -> Tensor {
        let count = self.n_averaged.get().to(own.device());
        let (average, value) = (own.detach(), value.detach().to(own.device()));
        let new = no_grad(|| (self.avg_fn)(&average, &value, &count));
        where_(count.eq(0), value, new.to_dtype(own.dtype()))
    }
}

impl<I, O, M: Forward<I, O>> Forward<I, O> for AveragedModel<M>
where
    I: Nest<Owned = I> + 'static,
    O: Nest<Owned = O> + 'static,
{
    fn forward(&self, input: I) -> Result<O> {
        self.module.try_call(input)
    }
}

/// Equal averages, for [`AveragedModel::avg_fn`] (`torch.optim.swa_utils.get_swa_avg_fn`).
pub fn get_swa_avg_fn() -> impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor + Send + Sync + 'static {
    |average, value, count| average + (value - average) / (count + 1)
}

/// Exponential averages, for [`AveragedModel::avg_fn`]: `decay · average + (1 − decay) · parameter`
/// (`torch.optim.swa_utils.get_ema_avg_fn`, by default with 0.999). A decay outside 0..=1 is an error of the first
/// update.
pub fn get_ema_avg_fn(
    decay: f64,
) -> impl Fn(&Tensor, &Tensor, &Tensor) -> Tensor + Send + Sync + 'static {
    move |average, value, _| match (0.0..=1.0).contains(&decay) {
        true => average * decay + value * (1.0 - decay),
        false => {
            let message = format!("the decay must lie in 0..=1, but is {decay}");
            Tensor::from_error(Error::invalid("get_ema_avg_fn", message))
        }
    }
}

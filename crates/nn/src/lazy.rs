//! Layers that take their number of input features from their first input.

use crate::layer::{self, fact, input_error, invalid};
use crate::{
    BatchNorm, BatchNormNd, ConvNd, ConvTransposeNd, Copies, Forward, Hooks, InstanceNorm,
    InstanceNormNd, Kernel, Linear, LinearOptions, Members, Mode, Module, TransposedKernel,
};
use kiln_tensor::{DType, Int, Result, Tensor, Var, is_recording};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

const WAITING: &str = "is made at its first input: call the model once before";

/// A layer that is made when the first input shows its number of features: on that input's device, in the default dtype
/// of that moment. From then on it is that layer, under that layer's name.
///
/// Before, there is one parameter, `weight`, that holds an error. So making an optimiser or a copy, saving, or moving
/// to a device reports that the model must be called first. Modes and `requires_grad` may be set before; hooks may not.
///
/// ```
/// use kiln_nn::optim::{Optimizer, SGD};
/// use kiln_nn::{Flatten, Forward, LazyConv2d, LazyLinear, Module, sequential};
/// use kiln_tensor::{DType, Tensor};
/// let model = sequential![LazyConv2d::new(8, 3), Flatten::new(), LazyLinear::new(10)]?;
/// assert!(Optimizer::new(model.parameters(), SGD::new().lr(0.1)).is_err());
/// model.call(Tensor::zeros([1, 3, 8, 8], DType::F32));
/// assert_eq!(model[2].as_module().to_string(), "Linear(in_features=288, out_features=10, bias=True)");
/// Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub struct Lazy<L> {
    layer: OnceLock<L>,
    /// Held while the layer is made.
    making: Mutex<()>,
    make: Arc<dyn Fn(usize) -> Result<L> + Send + Sync>,
    name: String,
    /// Returns the dim of the features for an input's number of dims.
    features: fn(usize) -> usize,
    /// A placeholder for the parameters to come.
    placeholder: Var,
    mode: Mode,
}

impl<L: Module> Lazy<L> {
    #[track_caller]
    fn from_fn(
        name: &str,
        features: fn(usize) -> usize,
        make: impl Fn(usize) -> Result<L> + Send + Sync + 'static,
    ) -> Result<Lazy<L>> {
        let name = format!("Lazy{name}");
        let mut placeholder = Var::parameter(Tensor::zeros([0], DType::F32))?;
        placeholder += Tensor::from_error(invalid(&name, WAITING));
        Ok(Lazy {
            layer: OnceLock::new(),
            making: Mutex::new(()),
            make: Arc::new(make),
            name,
            features,
            placeholder,
            mode: Mode::with_statistics(),
        })
    }

    /// Returns the layer.
    ///
    /// # Errors
    /// If there has been no input yet.
    #[track_caller]
    pub fn get(&self) -> Result<&L> {
        match self.layer.get() {
            Some(layer) => Ok(layer),
            None => Err(invalid(&self.name, WAITING)),
        }
    }

    /// Returns the layer, after making it if necessary.
    fn layer_for(&self, x: &Tensor) -> Result<&L> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layer) = self.layer.get() {
            return Ok(layer);
        }
        x.check()?;
        if is_recording() {
            return input_error(self, format!("{WAITING} compile"));
        }
        let features = x
            .dims()
            .get((self.features)(x.ndim()))
            .and_then(|d| d.as_const());
        let Some(features) = features else {
            return input_error(self, format!("can't be made for an input of {}", fact(x)));
        };
        let layer = (self.make)(features as usize)?;
        layer.to(x.device())?;
        layer.requires_grad_(self.placeholder.requires_grad())?;
        layer.as_module().each_mode(&mut |mode| {
            mode.set_training(self.mode.is_training());
            if self.mode.is_frozen() {
                mode.freeze();
            }
        });
        Ok(self.layer.get_or_init(|| layer))
    }
}

impl<L: Module> Module for Lazy<L> {
    fn as_module(&self) -> &dyn Module {
        self.layer.get().map_or(self, L::as_module)
    }

    fn members(&self) -> Members<'_> {
        if let Some(layer) = self.layer.get() {
            return layer.members();
        }
        let mut members = Members::new();
        members.parameter("weight", &self.placeholder);
        members.mode(&self.mode);
        members
    }

    fn name(&self) -> &str {
        self.layer.get().map_or(&self.name, L::name)
    }

    fn extra_repr(&self) -> String {
        self.layer.get().map(L::extra_repr).unwrap_or_default()
    }

    fn hooks(&self) -> Option<&Hooks> {
        self.layer.get().and_then(L::hooks)
    }

    fn reset_parameters(&self) -> Result<()> {
        self.layer.get().map_or(Ok(()), L::reset_parameters)
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<Lazy<L>> {
        Ok(Lazy {
            layer: self.get()?.copy_with(copies)?.into(),
            making: Mutex::new(()),
            make: self.make.clone(),
            name: self.name.clone(),
            features: self.features,
            placeholder: self.placeholder.clone(),
            mode: self.mode.clone(),
        })
    }
}

impl<L: Forward> Forward for Lazy<L> {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        match self.layer.get() {
            Some(layer) => layer.forward(x),
            None => self.layer_for(&x)?.forward(x),
        }
    }
}

/// A [`Linear`] whose `in_features` are the first input's last dim (`torch.nn.LazyLinear`).
pub type LazyLinear = Lazy<Linear>;

impl Lazy<Linear> {
    /// Makes a layer with a bias.
    ///
    /// # Errors
    /// If the size is negative, or inside `compile`.
    #[track_caller]
    pub fn new(out_features: impl Into<Int>) -> Result<LazyLinear> {
        LazyLinear::with(out_features, LinearOptions::new())
    }

    /// Makes a layer.
    ///
    /// # Errors
    /// As [`LazyLinear::new`].
    #[track_caller]
    pub fn with(out_features: impl Into<Int>, options: LinearOptions) -> Result<LazyLinear> {
        let out = out_features.into();
        layer::feature_sizes("LazyLinear", [out])?;
        Lazy::from_fn(
            "Linear",
            |dims| dims.wrapping_sub(1),
            move |features| Linear::from_sizes([features.into(), out], options.bias),
        )
    }
}

/// Layers whose channels precede `D` spatial dims, constructed from a kernel size.
macro_rules! convolutions {
    ($($layer:ident $kernel:ident: $($(#[$doc:meta])* $lazy:ident $dims:literal)*;)*) => {$(
        $($(#[$doc])* pub type $lazy = Lazy<$layer<$dims>>;)*

        impl<const D: usize> Lazy<$layer<D>> {
            /// Makes a layer to `out_channels` channels, with this kernel.
            ///
            /// # Errors
            /// If a size is impossible, the groups do not divide the channels, or inside `compile`.
            #[track_caller]
            pub fn new(out_channels: impl Into<Int>, kernel: impl Into<$kernel>) -> Result<Self> {
                let (out, kernel) = (out_channels.into(), kernel.into());
                // An input has at least as many channels as there are groups.
                $layer::<D>::filters([kernel.groups, out], &kernel)?;
                Lazy::from_fn($layer::<D>::NAME, before::<D>, move |channels| $layer::new(channels, out, kernel.clone()))
            }
        }
    )*};
}

/// Returns the dim before the last `D`.
fn before<const D: usize>(dims: usize) -> usize {
    dims.wrapping_sub(D + 1)
}

convolutions! {
    ConvNd Kernel:
        /// A [`Conv1d`](crate::Conv1d) with the channels of its first input (`torch.nn.LazyConv1d`).
        LazyConv1d 1
        /// A [`Conv2d`](crate::Conv2d) with the channels of its first input (`torch.nn.LazyConv2d`).
        LazyConv2d 2
        /// A [`Conv3d`](crate::Conv3d) with the channels of its first input (`torch.nn.LazyConv3d`).
        LazyConv3d 3;
    ConvTransposeNd TransposedKernel:
        /// A [`ConvTranspose1d`](crate::ConvTranspose1d) with the channels of its first input
        /// (`torch.nn.LazyConvTranspose1d`).
        LazyConvTranspose1d 1
        /// A [`ConvTranspose2d`](crate::ConvTranspose2d) with the channels of its first input
        /// (`torch.nn.LazyConvTranspose2d`).
        LazyConvTranspose2d 2
        /// A [`ConvTranspose3d`](crate::ConvTranspose3d) with the channels of its first input
        /// (`torch.nn.LazyConvTranspose3d`).
        LazyConvTranspose3d 3;
}

/// Norms of `D` spatial dims, made with options.
macro_rules! norms {
    ($($layer:ident $options:ident $channels:expr; $($(#[$doc:meta])* $lazy:ident $dims:literal)*;)*) => {$(
        $($(#[$doc])* pub type $lazy = Lazy<$layer<$dims>>;)*

        impl<const D: usize> Lazy<$layer<D>> {
            /// Makes a layer with PyTorch's defaults.
            ///
            /// # Errors
            /// Inside `compile`.
            #[track_caller]
            pub fn new() -> Result<Self> {
                Self::with($options::new())
            }

            /// Makes a layer with these settings.
            ///
            /// # Errors
            /// Inside `compile`.
            #[track_caller]
            pub fn with(options: $options) -> Result<Self> {
                Lazy::from_fn($layer::<D>::NAME, $channels, move |channels| $layer::with(channels, options.clone()))
            }
        }
    )*};
}

norms! {
    BatchNormNd BatchNorm |_| 1;
        /// A [`BatchNorm1d`](crate::BatchNorm1d) with the channels of its first input (`torch.nn.LazyBatchNorm1d`).
        LazyBatchNorm1d 1
        /// A [`BatchNorm2d`](crate::BatchNorm2d) with the channels of its first input (`torch.nn.LazyBatchNorm2d`).
        LazyBatchNorm2d 2
        /// A [`BatchNorm3d`](crate::BatchNorm3d) with the channels of its first input (`torch.nn.LazyBatchNorm3d`).
        LazyBatchNorm3d 3;
    InstanceNormNd InstanceNorm before::<D>;
        /// An [`InstanceNorm1d`](crate::InstanceNorm1d) with the channels of its first input
        /// (`torch.nn.LazyInstanceNorm1d`).
        LazyInstanceNorm1d 1
        /// An [`InstanceNorm2d`](crate::InstanceNorm2d) with the channels of its first input
        /// (`torch.nn.LazyInstanceNorm2d`).
        LazyInstanceNorm2d 2
        /// An [`InstanceNorm3d`](crate::InstanceNorm3d) with the channels of its first input
        /// (`torch.nn.LazyInstanceNorm3d`).
        LazyInstanceNorm3d 3;
}

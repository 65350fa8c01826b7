//! The common interface of all modules.

use crate::copy::{BoxCopy, Copies};
use crate::forward::Forward;
use crate::load_report::LoadReport;
use crate::members::{Hooks, Members};
use kiln_formats::StateDict;
use kiln_tensor::{DType, Device, Result, Var};
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

/// A layer or a model: named parameters, buffers and child modules, and its mode.
///
/// Derive it; the struct's fields are its members (see the [derive](derive@crate::Module)). Or have
/// [`module!`](crate::module) write the struct and its constructor. [`Forward`](crate::Forward) defines its
/// computation.
///
/// ```
/// use kiln_nn::{Forward, Linear, Module};
/// use kiln_tensor::{DType, Result, Tensor};
///
/// #[derive(Module)]
/// struct Mlp {
///     fc1: Linear,
///     fc2: Linear,
/// }
///
/// impl Mlp {
///     fn new() -> Result<Mlp> {
///         Ok(Mlp { fc1: Linear::new(64, 32)?, fc2: Linear::new(32, 10)? })
///     }
/// }
///
/// impl Forward for Mlp {
///     fn forward(&self, x: Tensor) -> Result<Tensor> {
///         Ok(self.fc2.call(self.fc1.call(x).relu()))
///     }
/// }
///
/// let model = Mlp::new()?;
/// assert_eq!(model.call(Tensor::zeros([5, 64], DType::F32)).shape()?, [5, 10]);
/// let names: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
/// assert_eq!(
///     model.to_string(),
///     "Mlp(
///   (fc1): Linear(in_features=64, out_features=32, bias=True)
///   (fc2): Linear(in_features=32, out_features=10, bias=True)
/// )"
/// );
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub trait Module: Any + Send + Sync + BoxModule {
    /// Returns this module, or the module inside a box.
    fn as_module(&self) -> &dyn Module;

    /// Returns the members that this module holds itself, in order of declaration.
    fn members(&self) -> Members<'_>;

    /// The type's name, as printed.
    fn name(&self) -> &str;

    /// Returns the text printed in parentheses after the name.
    fn extra_repr(&self) -> String {
        String::new()
    }

    /// Returns this module's hooks; the derive finds the field.
    fn hooks(&self) -> Option<&Hooks> {
        None
    }

    /// Returns the note for errors that arise in this module.
    #[doc(hidden)]
    fn error_note(&self) -> Option<String> {
        Some(self.as_module().describe())
    }

    /// Returns a copy, parts of which are in `copies` already; the derive writes it. See [`Module::deep_copy`].
    ///
    /// # Errors
    /// As [`Module::deep_copy`].
    #[track_caller]
    fn copy_with(&self, _copies: &mut Copies) -> Result<Self>
    where
        Self: Sized,
    {
        Err(self.as_module().copy_error())
    }

    /// Returns a copy with cells of its own, which hold the current values of this module's cells (Python's
    /// `copy.deepcopy`). Parts that are shared within this module are shared within the copy. Modes and `requires_grad`
    /// are kept; hooks are left out. No random numbers are drawn.
    ///
    /// ```
    /// use kiln_nn::{Forward, Linear, Module};
    /// use kiln_tensor::{DType, Tensor};
    /// let model = Linear::new(3, 2)?;
    /// let average = model.deep_copy()?;
    /// model.weight.mul_(2)?;
    /// assert_ne!(model.weight.get().to_vec::<f32>()?, average.weight.get().to_vec::<f32>()?);
    /// assert_eq!(average.deep_copy_as(DType::F64)?.weight.dtype(), DType::F64);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a value can't be computed, a field that is left out can't be cloned, or inside `compile`: copy
    /// modules before.
    #[track_caller]
    fn deep_copy(&self) -> Result<Self>
    where
        Self: Sized,
    {
        let mut copies = Copies::default();
        let copy = self.copy_with(&mut copies)?;
        copies.compute()?;
        Ok(copy)
    }

    /// [`Module::deep_copy`] with all floats in another dtype.
    ///
    /// # Errors
    /// As [`Module::deep_copy`], or if the dtype is not a float.
    #[track_caller]
    fn deep_copy_as(&self, dtype: DType) -> Result<Self>
    where
        Self: Sized,
    {
        let mut copies = Copies::of_float("deep_copy_as", dtype)?;
        let copy = self.copy_with(&mut copies)?;
        copies.compute()?;
        Ok(copy)
    }

    /// Initialises the parameters again, as when the module was made.
    ///
    /// # Errors
    /// Inside `compile`, where making new values is part of the program, an assignment may not fit.
    #[track_caller]
    fn reset_parameters(&self) -> Result<()> {
        self.as_module().reset_children()
    }

    /// All parameters with their names, frozen ones too: this module's own, then its children's. A shared parameter
    /// appears once, under its first name.
    fn named_parameters(&self) -> Vec<(String, Var)> {
        self.as_module().distinct_parameters()
    }

    /// All parameters; see [`Module::named_parameters`].
    fn parameters(&self) -> Vec<Var> {
        drop_names(self.named_parameters())
    }

    /// All buffers with their names.
    fn named_buffers(&self) -> Vec<(String, Var)> {
        self.as_module().collect_buffers()
    }

    /// All buffers.
    fn buffers(&self) -> Vec<Var> {
        drop_names(self.named_buffers())
    }

    /// The modules directly within this one, with their names.
    fn named_children(&self) -> Vec<(String, &dyn Module)> {
        self.as_module().collect_children()
    }

    /// The modules directly within this one.
    fn children(&self) -> Vec<&dyn Module> {
        drop_names(self.named_children())
    }

    /// This module, under the empty name, and all modules within it, with their paths.
    fn named_modules(&self) -> Vec<(String, &dyn Module)> {
        self.as_module().collect_modules()
    }

    /// This module and all modules within it.
    fn modules(&self) -> Vec<&dyn Module> {
        drop_names(self.named_modules())
    }

    /// The module at a path such as `layer1.0.conv`; the empty path is this one.
    ///
    /// # Errors
    /// If there is none.
    #[track_caller]
    fn get_submodule(&self, path: &str) -> Result<&dyn Module> {
        self.as_module().submodule("get_submodule", path)
    }

    /// Puts a module in the place of the one at a path, which is called and listed instead of it from then on: in calls,
    /// parameters, state dicts, prints and copies. It must take and give the same types; where it implements several
    /// kinds of calls, write them: `set_submodule::<Tensor, Tensor>(..)`. A module that is shared is replaced at each place.
    ///
    /// The parent's field still holds the old module, as does `model[0]` of a [`Sequential`](crate::Sequential): a parent
    /// that reads a weight without calling the child, as for tied weights, still reads the old one's. The old hooks
    /// don't run any more, and an optimiser that was made before still has the old parameters.
    ///
    /// ```
    /// use kiln_nn::{Forward, Identity, Linear, Module, module};
    /// use kiln_tensor::{DType, Result, Tensor};
    ///
    /// module!(struct Net() { body: Linear = Linear::new(8, 4), fc: Linear = Linear::new(4, 1000) });
    /// impl Forward for Net {
    ///     fn forward(&self, x: Tensor) -> Result<Tensor> {
    ///         Ok(self.fc.call(self.body.call(x).relu()))
    ///     }
    /// }
    ///
    /// let (model, x) = (Net::new()?, Tensor::ones([2, 8], DType::F32));
    /// model.set_submodule("fc", Linear::new(4, 10)?)?;
    /// assert_eq!(model.call(&x).shape()?, [2, 10]);
    /// assert_eq!(model.get_parameter("fc.weight")?.shape()?, [10, 4]);
    /// model.set_submodule("fc", Identity::new())?;
    /// assert_eq!(model.call(&x).shape()?, [2, 4]);
    /// let e = model.set_submodule("head", Identity::new()).unwrap_err();
    /// assert!(e.to_string().contains(r#"directly within it are ["body", "fc"]"#));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no module at the path, it is a list, has no field `hooks: Hooks` or is part of the new module.
    #[track_caller]
    fn set_submodule<I: 'static, O: 'static>(
        &self,
        path: &str,
        module: impl Forward<I, O>,
    ) -> Result<()>
    where
        Self: Sized,
    {
        let module: Arc<dyn Forward<I, O>> = Arc::new(module);
        self.as_module().replace_submodule(path, Arc::new(module))
    }

    /// The parameter at a path such as `layer1.0.conv.weight`.
    ///
    /// # Errors
    /// If there is none.
    #[track_caller]
    fn get_parameter(&self, path: &str) -> Result<Var> {
        self.as_module().find_parameter(path)
    }

    /// Calls `f` with every module within this one, children before the modules that hold them, and with this one last.
    ///
    /// ```
    /// use kiln_nn::{Linear, Module, ReLU, init, sequential};
    /// let model = sequential![Linear::new(4, 8), ReLU::new(), Linear::new(8, 2)]?;
    /// model.apply(&mut |m| {
    ///     if let Some(linear) = m.downcast_ref::<Linear>() {
    ///         init::xavier_uniform_(&linear.weight, 1.0).expect("the weight is a matrix");
    ///     }
    /// });
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    fn apply(&self, f: &mut dyn FnMut(&dyn Module)) {
        self.as_module().visit(f);
    }

    /// Puts every layer within into training, except frozen batch norms.
    fn train(&self) {
        self.set_training(true);
    }

    /// Puts every layer within into evaluation: dropout passes through, batch norms use their running statistics.
    /// Gradients do not depend on it; see [`no_grad`](kiln_tensor::no_grad).
    fn eval(&self) {
        self.set_training(false);
    }

    /// [`Module::train`] or [`Module::eval`].
    fn set_training(&self, training: bool) {
        self.as_module().switch_modes(training);
    }

    /// True if any layer within trains.
    fn is_training(&self) -> bool {
        self.as_module().has_training_mode()
    }

    /// Moves all parameters and buffers to a device, with their gradients. Other owners, such as an optimiser, see them
    /// move.
    ///
    /// ```no_run
    /// use kiln_nn::{Linear, Module};
    /// use kiln_tensor::Device;
    /// let model = Linear::new(64, 10)?;
    /// model.to(Device::best())?;
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device fails or is full.
    fn to(&self, device: Device) -> Result<()> {
        self.as_module().move_to(device)
    }

    /// Moves all parameters and buffers to memory that child processes forked from now on share with this one
    /// (`torch.nn.Module.share_memory`); see [`Var::share_memory_`]. Load and cast the model before.
    ///
    /// # Errors
    /// As [`Var::share_memory_`].
    #[track_caller]
    fn share_memory(&self) -> Result<()> {
        self.as_module().share_vars()
    }

    /// Casts all parameters and buffers of floats to a float dtype, with their gradients. Other owners, such as an
    /// optimiser, see the new dtype. See [`Module::to_dtype_where`] to keep some.
    ///
    /// ```
    /// use kiln_nn::{BatchNorm1d, Linear, Module, sequential};
    /// use kiln_tensor::DType;
    /// let model = sequential!["fc": Linear::new(4, 8), "norm": BatchNorm1d::new(8)]?;
    /// model.to_dtype(DType::BF16)?;
    /// assert!(model.parameters().iter().all(|p| p.dtype() == DType::BF16));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the dtype is not a float, a value can't be computed, or inside `compile`: cast modules before.
    #[track_caller]
    fn to_dtype(&self, dtype: DType) -> Result<()> {
        self.as_module().cast_floats(dtype, &|_| true)
    }

    /// [`Module::to_dtype`] for the cells of the modules that `chosen` accepts. [`is_norm`](crate::is_norm) and
    /// [`is_batch_norm`](crate::is_batch_norm) recognise norms, which are often kept in f32.
    ///
    /// ```
    /// use kiln_nn::{BatchNorm1d, Linear, Module, is_norm, sequential};
    /// use kiln_tensor::DType;
    /// let model = sequential!["fc": Linear::new(4, 8), "norm": BatchNorm1d::new(8)]?;
    /// model.to_dtype_where(DType::BF16, &|m| !is_norm(m))?;
    /// assert_eq!(model.get_parameter("fc.weight")?.dtype(), DType::BF16);
    /// assert_eq!(model.get_parameter("norm.weight")?.dtype(), DType::F32);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Module::to_dtype`].
    #[track_caller]
    fn to_dtype_where(&self, dtype: DType, chosen: &dyn Fn(&dyn Module) -> bool) -> Result<()> {
        self.as_module().cast_floats(dtype, chosen)
    }

    /// [`Module::to_dtype`] with f16.
    ///
    /// # Errors
    /// As [`Module::to_dtype`].
    #[track_caller]
    fn half(&self) -> Result<()> {
        self.to_dtype(DType::F16)
    }

    /// [`Module::to_dtype`] with bf16.
    ///
    /// # Errors
    /// As [`Module::to_dtype`].
    #[track_caller]
    fn bfloat16(&self) -> Result<()> {
        self.to_dtype(DType::BF16)
    }

    /// [`Module::to_dtype`] with f32.
    ///
    /// # Errors
    /// As [`Module::to_dtype`].
    #[track_caller]
    fn float(&self) -> Result<()> {
        self.to_dtype(DType::F32)
    }

    /// [`Module::to_dtype`] with f64.
    ///
    /// # Errors
    /// As [`Module::to_dtype`].
    #[track_caller]
    fn double(&self) -> Result<()> {
        self.to_dtype(DType::F64)
    }

    /// Switches the gradients of all parameters on or off. Unlike [`Module::freeze`], this leaves batch norms updating
    /// their statistics.
    ///
    /// # Errors
    /// If a parameter is not a float and gradients are switched on.
    fn requires_grad_(&self, requires_grad: bool) -> Result<()> {
        self.as_module().switch_gradients(requires_grad)
    }

    /// Switches off the gradients of all parameters, and puts batch norms into evaluation, where [`Module::train`]
    /// leaves them. To freeze a part, call it on that child, or use [`Module::freeze_where`].
    fn freeze(&self) {
        self.freeze_where(&|_| true);
    }

    /// Freezes the parameters whose names `chosen` accepts. Freezes each batch norm if it accepts all its parameters
    /// (or buffers, where it has no parameters).
    ///
    /// ```
    /// use kiln_nn::{BatchNorm1d, Linear, Module, sequential};
    /// let backbone = sequential![Linear::new(4, 8), BatchNorm1d::new(8)]?;
    /// let model = sequential!["backbone": backbone, "head": Linear::new(8, 2)]?;
    /// model.freeze_where(&|name| name.starts_with("backbone."));
    /// assert_eq!((model.num_parameters(), model.num_trainable()), (74, 18));
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    fn freeze_where(&self, chosen: &dyn Fn(&str) -> bool) {
        self.as_module().freeze_chosen(chosen);
    }

    /// Undoes [`Module::freeze`]: every parameter gets gradients, and frozen batch norms train again.
    ///
    /// # Errors
    /// As [`Module::requires_grad_`].
    fn unfreeze(&self) -> Result<()> {
        self.as_module().thaw()
    }

    /// Clears the gradients of all parameters.
    fn zero_grad(&self) {
        self.as_module().clear_gradients();
    }

    /// Returns the number of elements of the parameters; shared ones count once.
    fn num_parameters(&self) -> usize {
        self.as_module().count_elements(|_| true)
    }

    /// Returns the number of elements of the parameters that require gradients.
    fn num_trainable(&self) -> usize {
        self.as_module().count_elements(Var::requires_grad)
    }

    /// The values of all parameters and buffers by name: snapshots that later training does not change.
    fn state_dict(&self) -> StateDict {
        self.as_module().collect_state()
    }

    /// Assigns all parameters and buffers the values of the same names, cast to their dtypes: all of them, or none on
    /// an error. If not `strict`, names on one side only are allowed and reported.
    ///
    /// ```
    /// use kiln_nn::{Linear, Module, sequential};
    /// let trained = sequential!["body": Linear::new(4, 8), "head": Linear::new(8, 2)]?;
    /// let state = trained.state_dict();
    ///
    /// // Another head on the same body.
    /// let model = sequential!["body": Linear::new(4, 8), "head": Linear::new(8, 5)]?;
    /// let report = model.load_state_dict(&state.filter(|name| name.starts_with("body.")), false)?;
    /// assert_eq!(report.missing, ["head.weight", "head.bias"]);
    ///
    /// // The body alone.
    /// let body = Linear::new(4, 8)?;
    /// body.load_state_dict(&state.part("body."), true)?;
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Lists every shape that differs and, if `strict`, every missing and unexpected name.
    #[track_caller]
    fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<LoadReport> {
        self.as_module().load_state(state, strict)
    }

    /// Assigns the parameters and buffers that have a value of their name and shape, and reports the rest. It suits the
    /// weights of a model with a different last layer.
    ///
    /// ```
    /// use kiln_nn::{Linear, Module, sequential};
    /// let trained = sequential!["body": Linear::new(4, 8), "head": Linear::new(8, 2)]?;
    /// let model = sequential!["body": Linear::new(4, 8), "head": Linear::new(8, 5)]?;
    /// let report = model.load_matching(&trained.state_dict())?;
    /// assert_eq!(report.mismatched, ["head.weight", "head.bias"]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a value can't be computed.
    #[track_caller]
    fn load_matching(&self, state: &StateDict) -> Result<LoadReport> {
        self.as_module().load_matching_state(state)
    }

    /// Writes [`Module::state_dict`] as a safetensors file; see [`StateDict::save`].
    ///
    /// # Errors
    /// As [`StateDict::save`].
    #[track_caller]
    fn save_state_dict(&self, path: impl AsRef<Path>) -> Result<()>
    where
        Self: Sized,
    {
        self.state_dict().save(path)
    }
}

/// Copies any module into a box of unknown type.
pub trait BoxModule {
    #[doc(hidden)]
    fn boxed_module(&self, copies: &mut Copies) -> Result<Box<dyn Module>>;
}

impl<M: Module> BoxModule for M {
    fn boxed_module(&self, copies: &mut Copies) -> Result<Box<dyn Module>> {
        Ok(Box::new(self.copy_with(copies)?))
    }
}

impl<M: Module> BoxCopy for M {
    fn box_copy(&self, copies: &mut Copies) -> Result<Box<M>> {
        self.copy_with(copies).map(Box::new)
    }
}

impl BoxCopy for dyn Module {
    fn box_copy(&self, copies: &mut Copies) -> Result<Box<dyn Module>> {
        self.boxed_module(copies)
    }
}

/// Drops the names of named values.
fn drop_names<T>(named: Vec<(String, T)>) -> Vec<T> {
    named.into_iter().map(|(_, value)| value).collect()
}

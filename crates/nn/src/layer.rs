//! What all layers do: name themselves in errors and record at the user's line.

use crate::{Module, tree};
use kiln_tensor::{
    DType, Error, ErrorKind, Int, IntList, Result, Tensor, Var, on_behalf_of_caller,
    with_error_note,
};
use std::cell::Cell;

/// The folder of this crate's source.
const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "layer.rs".len()).0
};

/// Runs a container's forward: its operations are recorded at the user's line.
#[track_caller]
pub(crate) fn on_behalf<T>(f: impl FnOnce() -> T) -> T {
    on_behalf_of_caller(SOURCE, f)
}

/// Runs a layer's forward: its operations are recorded at the user's line, and an error that arises in
/// it names the layer.
#[track_caller]
pub(crate) fn run(layer: &dyn Module, inputs: &[&Tensor], f: impl FnOnce() -> Tensor) -> Tensor {
    run_all(layer, inputs, || [f()])
        .into_iter()
        .next()
        .unwrap_or_else(|| {
            Tensor::from_error(Error::at_caller(
                ErrorKind::Internal,
                layer.name(),
                "no result",
            ))
        })
}

/// [`run`] for several results.
#[track_caller]
pub(crate) fn run_all<const N: usize>(
    layer: &dyn Module,
    inputs: &[&Tensor],
    f: impl FnOnce() -> [Tensor; N],
) -> [Tensor; N] {
    on_behalf(|| {
        let outputs = f();
        if inputs.iter().any(|t| t.error().is_some()) {
            return outputs;
        }
        outputs.map(|y| match y.error() {
            Some(e) => {
                tree::name_own(layer);
                Tensor::from_error(e.clone().with_note(described(layer)))
            }
            None => y,
        })
    })
}

/// What errors call a layer.
pub(crate) fn described(layer: &dyn Module) -> String {
    format!("in {}({})", layer.name(), layer.extra_repr())
}

/// [`run`] of a layer that looks data up: what is wrong with it, such as an index, is only found when
/// that is computed, and names the layer too.
#[track_caller]
pub(crate) fn run_lookup(
    layer: &dyn Module,
    inputs: &[&Tensor],
    f: impl FnOnce() -> Tensor,
) -> Tensor {
    run(layer, inputs, || with_error_note(described(layer), f))
}

/// A tensor that carries a layer's complaint about its input.
#[track_caller]
pub(crate) fn wrong(layer: &dyn Module, message: impl Into<String>) -> Tensor {
    Tensor::from_error(Error::at_caller(ErrorKind::Op, layer.name(), message))
}

/// What is wrong with the arguments of a constructor.
#[track_caller]
pub(crate) fn invalid(layer: &str, message: impl Into<String>) -> Error {
    Error::invalid(layer, message)
}

/// Numbers of features, heads or rows as sizes.
#[track_caller]
pub(crate) fn sizes<const N: usize>(layer: &str, numbers: [Int; N]) -> Result<[usize; N]> {
    match numbers.iter().find(|n| n.0 < 0) {
        Some(n) => Err(invalid(
            layer,
            format!("a size can't be negative ({})", n.0),
        )),
        None => Ok(numbers.map(|n| n.0 as usize)),
    }
}

/// dtype and shape of a tensor, for messages.
pub(crate) fn fact(t: &Tensor) -> String {
    let dims: Vec<String> = t.dims().iter().map(|d| d.to_string()).collect();
    format!("{}[{}]", t.dtype(), dims.join(", "))
}

/// One number for each of `n` axes, of which one stands for all, each at least `least`.
#[track_caller]
pub(crate) fn each(
    layer: &str,
    what: &str,
    list: &IntList,
    n: usize,
    least: i64,
) -> Result<Vec<usize>> {
    if list.0.len() != n && list.0.len() != 1 {
        let message = format!("{what} needs one number or {n}, not {:?}", list.0);
        return Err(invalid(layer, message));
    }
    if let Some(v) = list.0.iter().find(|v| **v < least) {
        return Err(invalid(
            layer,
            format!("{what} must be at least {least}, not {v}"),
        ));
    }
    Ok((0..n).map(|i| list.0[i % list.0.len()] as usize).collect())
}

thread_local! {
    static DTYPE: Cell<DType> = const { Cell::new(DType::F32) };
}

/// Runs `f`, in which layers make their parameters in `dtype` instead of f32.
///
/// ```
/// use kiln_nn::{Linear, with_dtype};
/// use kiln_tensor::DType;
/// let layer = with_dtype(DType::F64, || Linear::new(3, 2))?;
/// assert_eq!(layer.weight.dtype(), DType::F64);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn with_dtype<T>(dtype: DType, f: impl FnOnce() -> T) -> T {
    struct Restore(DType);
    impl Drop for Restore {
        fn drop(&mut self) {
            DTYPE.set(self.0);
        }
    }
    let _restore = Restore(DTYPE.replace(dtype));
    f()
}

/// The dtype of new parameters.
pub(crate) fn dtype() -> DType {
    DTYPE.get()
}

/// A parameter that holds one number everywhere.
#[track_caller]
pub(crate) fn constant(shape: impl AsRef<[usize]>, value: f64) -> Result<Var> {
    Var::parameter(Tensor::full(shape.as_ref(), value, dtype()))
}

/// A buffer that holds one number everywhere.
#[track_caller]
pub(crate) fn buffer(shape: impl AsRef<[usize]>, value: f64) -> Result<Var> {
    Var::new(Tensor::full(shape.as_ref(), value, dtype()))
}

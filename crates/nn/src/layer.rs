//! Common functions of layers: they name themselves in errors and record at the user's line.

use crate::{Forward, Module};
use kiln_base::Loc;
use kiln_tensor::{
    Error, ErrorKind, Int, IntList, Result, Settings, Tensor, Var, default_dtype, no_grad,
    user_line, with_error_note,
};
use std::panic::Location;

impl dyn Module {
    /// Returns the description of a layer in errors.
    pub(crate) fn describe(&self) -> String {
        format!("in {}({})", self.name(), self.extra_repr())
    }

    /// Adds this module's name to an error that arose in it, and the line of the module's call if the error has
    /// another.
    pub(crate) fn name_error(&self, e: Error) -> Error {
        self.name_own_vars();
        let call = Loc::from(user_line(Location::caller()));
        match self.error_note() {
            Some(note) if call == *e.loc() => e.with_note(note),
            Some(note) => e.with_note(format!("{note}, called at {call}")),
            None => e,
        }
    }
}

/// Runs the forward of a layer that looks up data. Errors in the data, such as an index out of range, are found only
/// when it is computed; they name the layer too.
pub(crate) fn look_up<T>(layer: &dyn Module, f: impl FnOnce() -> T) -> T {
    with_error_note(layer.describe(), f)
}

/// Makes the error of a layer about its input.
#[track_caller]
pub(crate) fn input_error<T>(layer: &dyn Module, message: impl Into<String>) -> Result<T> {
    Err(Error::at_caller(ErrorKind::Op, layer.name(), message))
}

/// Returns the layer if it accepts zeros of this shape; nothing is computed. The layer's operations check their own
/// rules, so the layer need not repeat them.
#[track_caller]
pub(crate) fn check_accepts<L: Forward>(layer: L, shape: &[usize]) -> Result<L> {
    let e = no_grad(|| layer.try_call(Tensor::zeros(shape, default_dtype()))).err();
    match e {
        Some(e) => Err(Error::at_caller(
            ErrorKind::Value,
            layer.name(),
            e.message(),
        )),
        None => Ok(layer),
    }
}

/// Makes an error about the arguments of a constructor.
#[track_caller]
pub(crate) fn invalid(layer: &str, message: impl Into<String>) -> Error {
    Error::invalid(layer, message)
}

/// Returns the settings if they are valid by themselves.
#[track_caller]
pub(crate) fn check_settings<S: Settings>(layer: &str, settings: S) -> Result<S> {
    match settings.check() {
        Ok(()) => Ok(settings),
        Err(e) => Err(invalid(layer, e.0)),
    }
}

/// The shape of a cell.
pub(crate) fn shape(var: &Var) -> Vec<usize> {
    var.shape().expect("the shape of a cell is known")
}

/// The maximum size: above all that exist, and small enough to compute with.
const MAX_SIZE: i64 = 1 << 40;

/// The maximum number of layers of a stack.
const MAX_LAYERS: usize = 1 << 12;

/// Converts numbers of features, heads or rows to sizes.
#[track_caller]
pub(crate) fn feature_sizes<const N: usize>(layer: &str, numbers: [Int; N]) -> Result<[usize; N]> {
    let message = match numbers.iter().find(|n| !(0..=MAX_SIZE).contains(&n.0)) {
        Some(n) if n.0 < 0 => format!("a size can't be negative ({})", n.0),
        Some(n) => format!("a size must be at most {MAX_SIZE}, not {}", n.0),
        None => return Ok(numbers.map(|n| n.0 as usize)),
    };
    Err(invalid(layer, message))
}

/// Converts a number of layers of a stack.
#[track_caller]
pub(crate) fn layer_count(layer: &str, number: Int) -> Result<usize> {
    match feature_sizes(layer, [number])? {
        [n] if n > MAX_LAYERS => {
            let message = format!("num_layers must be at most {MAX_LAYERS}, not {n}");
            Err(invalid(layer, message))
        }
        [n] => Ok(n),
    }
}

/// Returns a probability of dropout if it is valid.
#[track_caller]
pub(crate) fn check_probability(layer: &str, p: f64) -> Result<f64> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(p),
        false => Err(invalid(
            layer,
            format!("the probability must lie in 0..=1, not {p}"),
        )),
    }
}

/// Returns the dtype and shape of a tensor, for messages.
pub(crate) fn fact(t: &Tensor) -> String {
    let dims: Vec<String> = t.dims().iter().map(|d| d.to_string()).collect();
    format!("{}[{}]", t.dtype(), dims.join(", "))
}

/// Returns one number for each axis; a single number is taken for all. Each must be at least `minimum`.
#[track_caller]
pub(crate) fn per_axis<const D: usize>(
    layer: &str,
    what: &str,
    list: &IntList,
    minimum: usize,
) -> Result<[usize; D]> {
    if list.0.len() != D && list.0.len() != 1 {
        let message = format!("{what} needs one number or {D}, not {:?}", list.0);
        return Err(invalid(layer, message));
    }
    if let Some(v) = list.0.iter().find(|v| **v < minimum as i64) {
        let message = format!("{what} must be at least {minimum}, not {v}");
        return Err(invalid(layer, message));
    }
    Ok(std::array::from_fn(|i| list.0[i % list.0.len()] as usize))
}

/// Makes a parameter that holds one number everywhere.
#[track_caller]
pub(crate) fn filled(shape: impl AsRef<[usize]>, value: f64) -> Result<Var> {
    Var::parameter(Tensor::full(shape.as_ref(), value, default_dtype()))
}

/// Makes a parameter, or `None` if `some` is false.
#[track_caller]
pub(crate) fn filled_if(some: bool, shape: impl AsRef<[usize]>, value: f64) -> Result<Option<Var>> {
    match some {
        true => filled(shape, value).map(Some),
        false => Ok(None),
    }
}

/// Makes a buffer that holds one number everywhere.
#[track_caller]
pub(crate) fn buffer(shape: impl AsRef<[usize]>, value: f64) -> Result<Var> {
    Var::new(Tensor::full(shape.as_ref(), value, default_dtype()))
}

//! Comparing with the expected outputs.

use crate::case::{Case, Kind};
use crate::engine::Array;
use crate::run::Outcome;

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// As expected.
    Pass,
    /// Not supported yet.
    Unsupported(String),
    /// Wrong: a value that differs, a legal call rejected, or an illegal one that gave a value.
    Wrong(String),
}

/// Compares the outcome of a case with what it expects: shapes and dtypes exactly, integers and bool
/// exactly, floats to `atol + rtol · |expected|` with NaN equal to NaN.
pub fn judge(case: &Case, outcome: &Outcome) -> Verdict {
    match (case.kind, outcome) {
        (_, Outcome::Unsupported(why)) => Verdict::Unsupported(why.clone()),
        (Kind::Error, Outcome::Error(_)) => Verdict::Pass,
        (Kind::Error, Outcome::Values(_)) => {
            Verdict::Wrong("gave values where an error was due".into())
        }
        (Kind::Value, Outcome::Error(message)) => Verdict::Wrong(format!("rejected: {message}")),
        (Kind::Value, Outcome::Values(values)) => {
            let expected = case.outputs.iter().chain(case.mutated.values());
            let gradients = case.gradients.iter().flat_map(|g| g.expected.values());
            for name in expected.chain(gradients.flatten()) {
                let Some(want) = case.tensors.get(name) else {
                    return Verdict::Wrong(format!("the case has no tensor {name}"));
                };
                let Some(got) = values.get(name) else {
                    return Verdict::Wrong(format!("there is no {name}"));
                };
                let tolerance = case.tolerances.get(name).copied().unwrap_or([0.0, 0.0]);
                if let Some(why) = difference(got, want, tolerance) {
                    return Verdict::Wrong(format!("{name}: {why}"));
                }
            }
            let count = values.keys().filter(|k| k.starts_with("out")).count();
            if count != case.outputs.len() {
                return Verdict::Wrong(format!(
                    "gave {count} outputs instead of {}",
                    case.outputs.len()
                ));
            }
            Verdict::Pass
        }
    }
}

fn difference(got: &Array, want: &Array, [rtol, atol]: [f64; 2]) -> Option<String> {
    if (got.dtype, &got.shape) != (want.dtype, &want.shape) {
        return Some(format!(
            "is {}{:?} instead of {}{:?}",
            got.dtype, got.shape, want.dtype, want.shape
        ));
    }
    if !want.dtype.is_float() {
        let (got, want) = (got.to_i64(), want.to_i64());
        let index = (0..want.len()).find(|i| got[*i] != want[*i])?;
        return Some(format!(
            "element {index} is {} instead of {}",
            got[index], want[index]
        ));
    }
    let (got, want) = (got.to_f64(), want.to_f64());
    let close = |a: f64, b: f64| {
        a == b
            || a.is_nan() && b.is_nan()
            || (a - b).abs() <= atol + rtol * b.abs() && b.is_finite()
    };
    let index = (0..want.len()).find(|i| !close(got[*i], want[*i]))?;
    Some(format!(
        "element {index} is {:e} instead of {:e}, within {:e}",
        got[index],
        want[index],
        atol + rtol * want[index].abs()
    ))
}

//! PyTorch's operator samples, judged.

use crate::{Array, Case, CaseError, Engine, Outcome, Verdict, judge, run};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Samples whose expected bf16 values differ from the exact ones by more than their own tolerance, because PyTorch
/// rounds inside the operator where Kiln rounds once. Kiln's values are compared with f64.
const ROUNDED_INSIDE: &[&str] = &[
    "matrix_exp/bf16_00",
    "nn.functional.conv_transpose2d/bf16_00",
];

/// The operators all of whose samples pass.
pub fn listed() -> BTreeSet<&'static str> {
    include_str!("opinfo_pass.txt").lines().collect()
}

/// Runs a sample on an engine and compares.
///
/// # Errors
/// If the sample can't be read.
pub fn verdict(root: &Path, id: &str, engine: Engine) -> Result<(Case, Verdict), CaseError> {
    let case = Case::load(root, id)?.move_to(engine.device());
    let outcome = run(&case, engine);
    let verdict = match ROUNDED_INSIDE.contains(&id) {
        true => as_exact(Case::load(root, id)?.in_f64(), &outcome),
        false => judge(&case, &outcome),
    };
    Ok((case, verdict))
}

/// Compares with the reference evaluation in f64, to the sample's own tolerance.
fn as_exact(mut exact: Case, outcome: &Outcome) -> Verdict {
    let Outcome::Values(values) = outcome else {
        return Verdict::Wrong(format!("{outcome:?}"));
    };
    let Outcome::Values(expected) = run(&exact, Engine::Reference) else {
        return Verdict::Wrong("f64 gives nothing".into());
    };
    let widened = values.iter().map(|(k, a)| (k.clone(), a.in_f64()));
    exact.tensors.extend(expected);
    judge(
        &exact,
        &Outcome::Values(widened.collect::<BTreeMap<String, Array>>()),
    )
}

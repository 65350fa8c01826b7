//! PyTorch's operator samples, judged.

use crate::{Array, Case, CaseError, Engine, Outcome, Verdict, judge, run, run_together};
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

/// Runs samples on an engine, together, and compares each.
///
/// # Errors
/// If a sample can't be read.
pub fn verdicts(
    root: &Path,
    ids: &[String],
    engine: Engine,
) -> Result<Vec<(Case, Verdict)>, CaseError> {
    let case = |id: &String| Ok(Case::load(root, id)?.move_to(engine.device()));
    let cases = ids.iter().map(case).collect::<Result<Vec<_>, _>>()?;
    let outcomes = run_together(&cases, engine);
    let judged = cases.into_iter().zip(outcomes).map(|(case, outcome)| {
        let verdict = match ROUNDED_INSIDE.contains(&&*case.id) {
            true => as_exact(Case::load(root, &case.id)?.in_f64(), &outcome),
            false => judge(&case, &outcome),
        };
        Ok((case, verdict))
    });
    judged.collect()
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

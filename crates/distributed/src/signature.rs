//! The description of a call by which ranks check that all of them make the same one.

use kiln_base::DType;
use kiln_base::collective::Kind;

/// The maximum number of bytes of a description.
pub(crate) const MAX_BYTES: usize = 128;

/// Returns the description of a call: equal on all ranks that belong together. `input` and `output` are the bytes of
/// operand and result.
pub(crate) fn describe(kind: Kind, dtype: DType, input: usize, output: usize) -> String {
    let bytes = match kind {
        Kind::Scatter { .. } | Kind::Receive(_) => output,
        _ => input,
    };
    let reducer = match kind {
        // Sender and receiver name each other.
        Kind::Send(_) | Kind::Receive(_) => "send".to_string(),
        kind => kind.to_string(),
    };
    format!("{reducer} of {} elements of {dtype}", bytes / dtype.size())
}

/// Returns the error of a rank that makes another call than some others; `descriptions` are the descriptions of every rank.
///
/// # Errors
/// Names the first rank that differs, and both calls.
pub(crate) fn check_agreement(rank: usize, descriptions: &[String]) -> Result<(), String> {
    match descriptions.iter().position(|s| *s != descriptions[rank]) {
        None => Ok(()),
        Some(other) => Err(format!(
            "the ranks call different operations: rank {rank} calls {}, rank {other} calls {}",
            descriptions[rank], descriptions[other]
        )),
    }
}

/// Returns the text for ranks that did not take part in an operation in time.
pub(crate) fn missing(what: &str, ranks: &[usize], size: usize, seconds: f64) -> String {
    format!("{what}: {}", late_text(ranks, size, seconds))
}

/// Returns the text for ranks that did not come in time.
pub(crate) fn late_text(late: &[usize], size: usize, seconds: f64) -> String {
    let ranks: Vec<String> = late.iter().map(usize::to_string).collect();
    let ranks = match &ranks[..] {
        [one] => format!("rank {one}"),
        _ => format!("ranks {}", ranks.join(", ")),
    };
    format!("{ranks} of {size} did not come within {seconds} s")
}

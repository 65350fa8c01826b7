//! The operators, in a file for each kind.

mod attention;
mod contrib;
mod control;
mod conv;
mod create;
mod elementwise;
mod image;
mod index;
mod loss;
mod norm;
mod pool;
mod product;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod repeat;
mod resize;
mod sequence;
mod shape;
mod signal;

use crate::call::{Call, Results};

/// The newest version of ONNX's own operators that is known.
pub(crate) const NEWEST: i64 = 28;

/// Records an operator.
pub(crate) type Record = fn(&Call) -> Results;

/// Returns the operator of a domain, if Kiln has it at this version.
pub(crate) fn find(domain: &str, op: &str, version: i64) -> Option<Record> {
    if domain == "com.microsoft" {
        return contrib::find(op);
    }
    if !domain.is_empty() || !(1..=NEWEST).contains(&version) {
        return None;
    }
    let kinds = [
        elementwise::find,
        reduce::find,
        shape::find,
        index::find,
        create::find,
        product::find,
        quantize::find,
        conv::find,
        pool::find,
        norm::find,
        resize::find,
        recurrent::find,
        attention::find,
        loss::find,
        control::find,
        sequence::find,
        image::find,
        random::find,
        signal::find,
        contrib::find_in_own,
    ];
    kinds.iter().find_map(|find| find(op))
}

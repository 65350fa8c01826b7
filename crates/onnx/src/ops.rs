//! The operators, in a file for each kind.

mod attention;
mod classify;
mod contrib;
mod control;
mod conv;
mod create;
#[cfg(feature = "vision")]
mod decode;
mod elementwise;
mod image;
mod index;
mod loss;
mod machine_learning;
mod norm;
mod optimizer;
mod pool;
mod product;
mod quantize;
mod random;
mod recurrence;
mod recurrent;
mod reduce;
mod region;
mod repeat;
mod resize;
mod scores;
mod sequence;
mod shape;
mod signal;
mod svm;
mod text;
mod tfidf;
mod trees;

use crate::call::{Call, Results};
use crate::proto::NodeProto;
use kiln_tensor::DType;

/// The newest version of ONNX's own operators that is known.
pub(crate) const NEWEST: i64 = 28;

/// Records an operator.
pub(crate) type Record = fn(&Call) -> Results;

/// Returns the dtype in which sums of elements are computed.
fn sum_dtype(dtype: DType) -> DType {
    if dtype.is_half() { DType::F32 } else { dtype }
}

/// Returns the operator of a domain for inputs of which one is text.
pub(crate) fn find_for_text(domain: &str, op: &str, version: i64) -> Option<Record> {
    match domain {
        "" => text::find_for_text(op).or_else(|| find(domain, op, version)),
        "ai.onnx.ml" if op == "ArrayFeatureExtractor" => Some(text::move_texts),
        _ => find(domain, op, version),
    }
}

/// True if the node is evaluated on the host, whatever its operands are.
pub(crate) fn is_on_host(domain: &str, node: &NodeProto) -> bool {
    match domain {
        "" => node.op_type() == "ImageDecoder" || text::find(node.op_type()).is_some(),
        "ai.onnx.ml" => machine_learning::takes_text(node),
        _ => false,
    }
}

/// Returns the operator of a domain, if Kiln has it at this version.
pub(crate) fn find(domain: &str, op: &str, version: i64) -> Option<Record> {
    match domain {
        "com.microsoft" => return contrib::find(op),
        "ai.onnx.ml" => return machine_learning::find(op),
        "ai.onnx.preview" => return attention::find_preview(op),
        "ai.onnx.preview.training" => return optimizer::find(op),
        _ => {}
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
        text::find,
        recurrence::find,
        region::find,
        contrib::find_in_own,
        #[cfg(feature = "vision")]
        decode::find,
    ];
    kinds.iter().find_map(|find| find(op))
}

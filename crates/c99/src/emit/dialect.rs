//! Scalars in C99. Operations that C lacks are functions of `kiln_c99.h`, named after their compute type.

use crate::error::{Error, Result};
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType};
pub(crate) use kiln_plan::cstyle::Dialect;

/// C99 with its library.
pub(crate) struct C99;

impl Dialect for C99 {
    type Missing = Error;
    const SIGNED: [&'static str; 4] = ["int8_t", "int16_t", "int32_t", "int64_t"];
    const UNSIGNED: [&'static str; 4] = ["uint8_t", "uint16_t", "uint32_t", "uint64_t"];
    const MASK: &'static str = "int";
    const MASK_VALUES: [&'static str; 2] = ["0", "1"];
    const MASK_OPERATORS: [&'static str; 3] = ["&", "|", "^"];
    const LONG_SUFFIX: &'static str = "LL";
    const NAN: &'static str = "NAN";
    const INFINITY: &'static str = "INFINITY";

    fn function(name: &str, compute: Compute) -> String {
        let suffix = match compute {
            Compute::Mask => "i32",
            other => other.name(),
        };
        format!("kiln_{name}_{suffix}")
    }

    fn failure_arguments(site: u32) -> String {
        format!("failed, {site}")
    }

    fn intrinsic(
        name: &'static str,
        operands: &[&str],
        compute: Compute,
    ) -> Result<Option<String>> {
        match name {
            "erfinv" | "log_ndtr" | "ndtri" | "digamma" | "i0" | "i0e" | "i1" | "i1e" | "zeta" => {
                Err(Error::function(name))
            }
            // Functions without branches, so that loops over them vectorise.
            "exp" | "sigmoid" | "tanh" | "erf" if compute == Compute::F32 => {
                Ok(Some(format!("kiln_{name}_f32({})", operands[0])))
            }
            _ => Ok(None),
        }
    }
}

/// The type of an element in memory.
pub(crate) fn memory(dtype: DType) -> &'static str {
    C99::memory(dtype)
}

/// Returns the expression that combines two operands of a reduction.
pub(crate) fn combine(op: Reduction, a: &str, b: &str, compute: Compute) -> String {
    match (op, compute) {
        (Reduction::Max, Compute::Mask) => format!("{a} | {b}"),
        (_, Compute::Mask) => format!("{a} & {b}"),
        _ => format!("{}({a}, {b})", C99::function(op.combine().name(), compute)),
    }
}

//! Scalars in CUDA C++. Functions that CUDA lacks are in the prelude, overloaded by type.

use crate::cstyle::Dialect;
use kiln_base::Compute;
use std::convert::Infallible;

/// CUDA C++.
#[derive(Copy, Clone, Debug)]
pub struct CudaCpp;

impl Dialect for CudaCpp {
    type Missing = Infallible;
    const SIGNED: [&'static str; 4] = ["signed char", "short", "int", "long long"];
    const UNSIGNED: [&'static str; 4] = [
        "unsigned char",
        "unsigned short",
        "unsigned",
        "unsigned long long",
    ];
    const MASK: &'static str = "bool";
    const TRUTH: [&'static str; 2] = ["false", "true"];
    const LOGIC: [&'static str; 3] = ["&&", "||", "!="];
    const LONG: &'static str = "LL";
    const NAN: &'static str = "kiln_nan";
    const INFINITY: &'static str = "kiln_inf";

    fn function(name: &str, _: Compute) -> String {
        format!("kiln_{name}")
    }

    fn failure(site: u32) -> String {
        format!("errors, site{site}")
    }

    fn own(
        name: &'static str,
        operands: &[&str],
        compute: Compute,
    ) -> Result<Option<String>, Infallible> {
        let (single, operand) = (compute == Compute::F32, operands.join(", "));
        let in_double = |function: &str| match single {
            true => format!("(float){function}((double){})", operands.join(", (double)")),
            false => format!("{function}({operand})"),
        };
        Ok(Some(match name {
            // Rounded one by one, and never contracted. So a value is the same to the bit in whichever kernel it is
            // computed.
            "add" | "sub" | "mul" if single => format!("__f{name}_rn({operand})"),
            "add" | "sub" | "mul" => format!("__d{name}_rn({operand})"),
            "rsqrt" if single => format!("rsqrtf({operand})"),
            "signbit" => format!("kiln_sign_bit({operand})"),
            "erfc" | "erfinv" => in_double(name),
            "ndtri" => in_double("normcdfinv"),
            "log_ndtr" | "lgamma" | "digamma" | "i0" | "i0e" | "i1" | "i1e" | "zeta" => {
                in_double(&format!("kiln_{name}"))
            }
            _ => return Ok(None),
        }))
    }
}

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
    const MASK_VALUES: [&'static str; 2] = ["false", "true"];
    const MASK_OPERATORS: [&'static str; 3] = ["&&", "||", "!="];
    const LONG_SUFFIX: &'static str = "LL";
    const NAN: &'static str = "kiln_nan";
    const INFINITY: &'static str = "kiln_inf";

    fn function(name: &str, _: Compute) -> String {
        format!("kiln_{name}")
    }

    fn failure_arguments(site: u32) -> String {
        format!("errors, site{site}")
    }

    fn intrinsic(
        name: &'static str,
        operands: &[&str],
        compute: Compute,
    ) -> Result<Option<String>, Infallible> {
        let (is_f32, list) = (compute == Compute::F32, operands.join(", "));
        let in_double = |function: &str| match is_f32 {
            true => format!("(float){function}((double){})", operands.join(", (double)")),
            false => format!("{function}({list})"),
        };
        Ok(Some(match name {
            // Never contracted to fused multiply-adds, so that every kernel computes the same bits.
            "add" | "sub" | "mul" if is_f32 => format!("__f{name}_rn({list})"),
            "add" | "sub" | "mul" => format!("__d{name}_rn({list})"),
            "rsqrt" if is_f32 => format!("rsqrtf({list})"),
            "signbit" => format!("kiln_sign_bit({list})"),
            "erfc" | "erfinv" => in_double(name),
            "ndtri" => in_double("normcdfinv"),
            "log_ndtr" | "lgamma" | "digamma" | "i0" | "i0e" | "i1" | "i1e" | "zeta" => {
                in_double(&format!("kiln_{name}"))
            }
            _ => return Ok(None),
        }))
    }
}

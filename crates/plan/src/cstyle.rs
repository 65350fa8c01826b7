//! Scalars in C-like languages: types, literals, loads and stores, primitives, casts and random numbers.
//!
//! A [`Dialect`] defines the differences of a language from C99; the text is the same for all of them, in its provided
//! methods. Operands are names, literals or in parentheses, so precedence never matters. Where C has no function, the
//! text calls a `kiln_` function, which the dialect defines in a prelude of its own.

use kiln_base::prim::{Binary, RandomKind, Reduction, Unary};
use kiln_base::{Compute, DType, Scalar};

/// A C-like language.
pub trait Dialect {
    /// The error for a primitive that the language lacks.
    type Missing;
    /// Signed integers of 8, 16, 32 and 64 bits.
    const SIGNED: [&'static str; 4];
    /// Unsigned integers of 8, 16, 32 and 64 bits.
    const UNSIGNED: [&'static str; 4];
    /// The type of masks.
    const MASK: &'static str;
    /// The masks false and true.
    const MASK_VALUES: [&'static str; 2];
    /// The operators for and, or and exclusive or of masks.
    const MASK_OPERATORS: [&'static str; 3];
    /// The suffix of literals of 64 bits.
    const LONG_SUFFIX: &'static str;
    /// Not a number, as a float.
    const NAN: &'static str;
    /// Infinity, as a float.
    const INFINITY: &'static str;

    /// Returns the name of a prelude's function on values of a compute type, such as `kiln_max`.
    fn function(name: &str, compute: Compute) -> String;

    /// Returns the last arguments of a prelude function that reports a divisor of 0.
    fn failure_arguments(site: u32) -> String;

    /// Returns the text of a float primitive that the language does not write as C does; `None` for one that it does.
    ///
    /// # Errors
    /// If the language lacks the primitive.
    fn intrinsic(
        name: &'static str,
        operands: &[&str],
        compute: Compute,
    ) -> Result<Option<String>, Self::Missing>;

    /// Returns the name of a function of C's library.
    fn library(name: &str, compute: Compute) -> String {
        match compute {
            Compute::F32 => format!("{name}f"),
            _ => name.into(),
        }
    }

    /// Returns the type of an element in memory; floats narrower than f32 are their bits.
    fn memory(dtype: DType) -> &'static str {
        let width = dtype.size().ilog2() as usize;
        match dtype {
            DType::F32 => "float",
            DType::F64 => "double",
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => Self::SIGNED[width],
            _ => Self::UNSIGNED[width],
        }
    }

    /// Returns the C type of a compute type.
    fn ctype(compute: Compute) -> &'static str {
        match compute {
            Compute::Mask => Self::MASK,
            other => Self::memory(other.dtype()),
        }
    }

    /// Returns a number in a compute type, with exactly its bits.
    fn number(x: Scalar, compute: Compute) -> String {
        let float = |x: f64, cast: &str, finite: String| match x {
            x if x.is_nan() => format!("{cast}{}", Self::NAN),
            f64::INFINITY => format!("{cast}{}", Self::INFINITY),
            f64::NEG_INFINITY => format!("-{cast}{}", Self::INFINITY),
            _ => finite,
        };
        let integer = |x: i64, min: i64, suffix: &str| match x == min {
            true => format!("({}{suffix} - 1)", x + 1),
            false => format!("{x}{suffix}"),
        };
        match compute {
            Compute::F32 => {
                let x = x.as_f64() as f32;
                float(x.into(), "", format!("{x:?}f"))
            }
            Compute::F64 => float(x.as_f64(), "(double)", format!("{:?}", x.as_f64())),
            Compute::I32 => integer((x.as_i64() as i32).into(), i32::MIN.into(), ""),
            Compute::I64 => integer(x.as_i64(), i64::MIN, Self::LONG_SUFFIX),
            Compute::Mask => Self::MASK_VALUES[usize::from(x.as_bool())].into(),
        }
    }

    /// Returns a number in a compute type as an operand.
    fn literal(x: Scalar, compute: Compute) -> String {
        let text = Self::number(x, compute);
        match text.starts_with('-') {
            true => format!("({text})"),
            false => text,
        }
    }

    /// Returns an element of memory as a value of the dtype's compute type.
    fn loaded(x: &str, dtype: DType) -> String {
        match dtype {
            DType::Bool => format!("({x} != 0)"),
            dtype if dtype.is_narrow_float() => format!("kiln_from_{}({x})", dtype.name()),
            DType::I32 | DType::I64 | DType::F32 | DType::F64 => x.into(),
            narrow => format!("({}){x}", Self::ctype(narrow.compute())),
        }
    }

    /// Converts a value of the dtype's compute type to its form in memory: floats round and integers wrap.
    fn stored(x: &str, dtype: DType) -> String {
        match dtype {
            dtype if dtype.is_narrow_float() => {
                format!("{}({x})", Self::rounding(dtype, Compute::F32))
            }
            DType::Bool | DType::I32 | DType::I64 | DType::F32 | DType::F64 => x.into(),
            narrow => format!("({}){x}", Self::memory(narrow)),
        }
    }

    /// Returns the name of the prelude's function that rounds a float to the bits of a narrower one.
    fn rounding(to: DType, from: Compute) -> String {
        Self::function(&format!("to_{}", to.name()), from)
    }

    /// Returns a primitive on one value.
    ///
    /// # Errors
    /// If the language has no function for it.
    fn unary(op: Unary, x: &str, compute: Compute) -> Result<String, Self::Missing> {
        use Unary::*;
        if !compute.is_float() {
            return Ok(match op {
                _ if op.gives_mask() => Self::MASK_VALUES[0].into(),
                Not if compute == Compute::Mask => format!("!{x}"),
                Not => format!("~{x}"),
                Neg | Abs => format!("{}({x})", Self::function(op.name(), compute)),
                _ => x.into(),
            });
        }
        if let Some(text) = Self::intrinsic(op.name(), &[x], compute)? {
            return Ok(text);
        }
        let one = Self::number(Scalar::Float(1.0), compute);
        let call = |name: &str| format!("{}({x})", Self::library(name, compute));
        Ok(match op {
            Neg => format!("-{x}"),
            Abs => call("fabs"),
            Not => format!("({})({x} == 0)", Self::ctype(compute)),
            Recip => format!("{one} / {x}"),
            Rsqrt => format!("{one} / {}", call("sqrt")),
            Sigmoid => format!("{one} / ({one} + {}(-{x}))", Self::library("exp", compute)),
            Round => call("rint"),
            IsNan => format!("{x} != {x}"),
            IsInf => {
                let infinity = Self::number(Scalar::Float(f64::INFINITY), compute);
                format!("{} == {infinity}", call("fabs"))
            }
            SignBit => format!("signbit({x}) != 0"),
            Sqrt | Exp | Exp2 | Expm1 | Log | Log2 | Log10 | Log1p | Sin | Cos | Tan | Asin
            | Acos | Atan | Sinh | Cosh | Tanh | Asinh | Acosh | Atanh | Erf | Erfc | ErfInv
            | LogNdtr | Ndtri | Floor | Ceil | Trunc | Lgamma | Digamma | I0 | I0e | I1 | I1e => {
                call(op.name())
            }
        })
    }

    /// Returns a primitive on two values of one compute type. An integer division by zero is reported at `site`.
    ///
    /// # Errors
    /// If the language has no function for it.
    fn binary(
        op: Binary,
        a: &str,
        b: &str,
        compute: Compute,
        site: u32,
    ) -> Result<String, Self::Missing> {
        use Binary::*;
        let (mask, float) = (compute == Compute::Mask, compute.is_float());
        if float && let Some(text) = Self::intrinsic(op.name(), &[a, b], compute)? {
            return Ok(text);
        }
        let ty = Self::ctype(compute);
        let infix = |operator: &str| format!("{a} {operator} {b}");
        let library = |name: &str| format!("{}({a}, {b})", Self::library(name, compute));
        let function = Self::function(op.name(), compute);
        Ok(match op {
            Eq => infix("=="),
            Ne => infix("!="),
            Lt => infix("<"),
            Le => infix("<="),
            Gt => infix(">"),
            Ge => infix(">="),
            And | Mul | Min if mask => infix(Self::MASK_OPERATORS[0]),
            Or | Add | Max if mask => infix(Self::MASK_OPERATORS[1]),
            _ if mask => infix(Self::MASK_OPERATORS[2]),
            Add if float => infix("+"),
            Sub if float => infix("-"),
            Mul if float => infix("*"),
            Div if float => infix("/"),
            FloorDiv if float => format!("{}({a} / {b})", Self::library("floor", compute)),
            Rem if float => library("fmod"),
            Pow | Atan2 | Hypot | Zeta if float => library(op.name()),
            And if float => format!("({ty})({a} != 0 && {b} != 0)"),
            Or if float => format!("({ty})({a} != 0 || {b} != 0)"),
            Xor if float => format!("({ty})(({a} != 0) != ({b} != 0))"),
            Gcd | Lcm | Shl | Shr if float => Self::number(Scalar::Float(f64::NAN), compute),
            And => infix("&"),
            Or => infix("|"),
            Xor => infix("^"),
            Atan2 | Hypot | Zeta => {
                let [a, b] = [a, b].map(|x| format!("(double){x}"));
                let in_f64 = Self::binary(op, &a, &b, Compute::F64, site)?;
                format!("({ty})kiln_to_i64({in_f64})")
            }
            Div | FloorDiv | Rem | FloorMod if !float => {
                format!("{function}({a}, {b}, {})", Self::failure_arguments(site))
            }
            Add | Sub | Mul | Div | FloorDiv | Rem | FloorMod | Pow | Gcd | Lcm | Max | Min
            | Shl | Shr => format!("{function}({a}, {b})"),
        })
    }

    /// Casts a value that represents dtype `from`.
    fn convert(x: &str, from: DType, to: DType) -> String {
        let ty = Self::ctype(to.compute());
        let unsigned = match from {
            DType::U64 => format!("({})", Self::memory(from)),
            _ => String::new(),
        };
        match (from.compute(), to) {
            (Compute::Mask, DType::Bool) => x.into(),
            (_, DType::Bool) => format!("{x} != 0"),
            (Compute::F32 | Compute::F64, to) if to.is_int() => {
                let truncated = format!("kiln_to_{}({x})", to.name());
                match to.compute() {
                    Compute::I32 => truncated,
                    _ => format!("({ty}){truncated}"),
                }
            }
            (_, DType::I32 | DType::I64 | DType::U64) => format!("({ty}){x}"),
            (_, to) if to.is_int() => format!("({ty})({}){x}", Self::memory(to)),
            (Compute::F32, to) if to.is_narrow_float() => Self::loaded(&Self::stored(x, to), to),
            (_, to) if to.is_narrow_float() => {
                // Integers of up to 16 bits are exact in f32.
                let exact = match from.size() {
                    ..=2 => Compute::F32,
                    _ => Compute::F64,
                };
                let (rounding, float_type) = (Self::rounding(to, exact), Self::ctype(exact));
                Self::loaded(&format!("{rounding}(({float_type}){unsigned}{x})"), to)
            }
            _ => format!("({ty}){unsigned}{x}"),
        }
    }

    /// Returns the random number of a stream at `offset + index`.
    fn random(kind: RandomKind, [seed, offset, index]: [&str; 3], compute: Compute) -> String {
        let name = match kind {
            RandomKind::Bits => "random_bits".into(),
            _ => format!("{}_{}", kind.name(), compute.name()),
        };
        let numbers = kind.numbers_a_block(matches!(compute, Compute::F64 | Compute::I64));
        let add = Self::function("add", Compute::I64);
        format!("kiln_{name}(kiln_random({add}({offset}, {index}), {seed}, {numbers}u))")
    }

    /// Returns the neutral element of a reduction.
    fn identity(op: Reduction, compute: Compute) -> String {
        Self::literal(op.identity(compute.dtype()), compute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of OpenCL C, whose functions are overloaded.
    struct OpenCl;

    impl Dialect for OpenCl {
        type Missing = String;
        const SIGNED: [&'static str; 4] = ["char", "short", "int", "long"];
        const UNSIGNED: [&'static str; 4] = ["uchar", "ushort", "uint", "ulong"];
        const MASK: &'static str = "bool";
        const MASK_VALUES: [&'static str; 2] = ["false", "true"];
        const MASK_OPERATORS: [&'static str; 3] = ["&&", "||", "!="];
        const LONG_SUFFIX: &'static str = "L";
        const NAN: &'static str = "NAN";
        const INFINITY: &'static str = "INFINITY";

        fn function(name: &str, _: Compute) -> String {
            format!("kiln_{name}")
        }

        fn failure_arguments(site: u32) -> String {
            format!("errors, {site}")
        }

        fn intrinsic(name: &'static str, x: &[&str], _: Compute) -> Result<Option<String>, String> {
            match name {
                "i0" | "zeta" => Err(format!("OpenCL has no {name}")),
                "rsqrt" => Ok(Some(format!("rsqrt({})", x[0]))),
                _ => Ok(None),
            }
        }

        fn library(name: &str, _: Compute) -> String {
            name.into()
        }
    }

    #[test]
    fn a_dialect_is_its_names() {
        use Compute::*;
        let unary = |op, compute| OpenCl::unary(op, "x", compute).unwrap();
        assert_eq!(unary(Unary::Sigmoid, F32), "1.0f / (1.0f + exp(-x))");
        assert_eq!(unary(Unary::Rsqrt, F64), "rsqrt(x)");
        assert_eq!(unary(Unary::IsInf, F64), "fabs(x) == (double)INFINITY");
        assert_eq!(unary(Unary::Abs, I64), "kiln_abs(x)");
        assert_eq!(
            OpenCl::unary(Unary::I0, "x", F32),
            Err("OpenCL has no i0".into())
        );
        let binary = |op, compute| OpenCl::binary(op, "a", "b", compute, 7).unwrap();
        assert_eq!(binary(Binary::Add, F32), "a + b");
        assert_eq!(binary(Binary::Add, I32), "kiln_add(a, b)");
        assert_eq!(binary(Binary::Div, I32), "kiln_div(a, b, errors, 7)");
        assert_eq!(
            binary(Binary::Hypot, I32),
            "(int)kiln_to_i64(hypot((double)a, (double)b))"
        );
        assert_eq!(binary(Binary::Max, Mask), "a || b");
        assert!(OpenCl::binary(Binary::Zeta, "a", "b", I64, 0).is_err());
        let convert = |from, to| OpenCl::convert("x", from, to);
        assert_eq!(convert(DType::U64, DType::F32), "(float)(ulong)x");
        assert_eq!(convert(DType::I64, DType::U8), "(int)(uchar)x");
        assert_eq!(convert(DType::F32, DType::U32), "(long)kiln_to_u32(x)");
        assert_eq!(
            convert(DType::I32, DType::BF16),
            "kiln_from_bf16(kiln_to_bf16((double)x))"
        );
        assert_eq!(
            OpenCl::random(RandomKind::Uniform, ["s", "o", "i"], F32),
            "kiln_uniform_f32(kiln_random(kiln_add(o, i), s, 4u))"
        );
        assert_eq!(OpenCl::loaded("a[i]", DType::U32), "(long)a[i]");
        assert_eq!(OpenCl::stored("x", DType::I16), "(short)x");
    }

    #[test]
    fn literals_are_numbers_to_the_bit() {
        use Compute::*;
        let int = |x: i64, compute| OpenCl::literal(Scalar::Int(x), compute);
        let float = |x: f64, compute| OpenCl::literal(Scalar::Float(x), compute);
        assert_eq!(int(i32::MIN.into(), I32), "(-2147483647 - 1)");
        assert_eq!(int(i64::MIN, I64), "(-9223372036854775807L - 1)");
        assert_eq!(
            (int(-3, I32), int(3, I64), int(3, Mask)),
            ("(-3)".into(), "3L".into(), "true".into())
        );
        assert_eq!(
            (float(-0.0, F32), float(0.1, F64)),
            ("(-0.0f)".into(), "0.1".into())
        );
        assert_eq!(
            (float(1e300, F32), float(f64::NAN, F64)),
            ("INFINITY".into(), "(double)NAN".into())
        );
        assert_eq!(OpenCl::identity(Reduction::Max, F64), "(-(double)INFINITY)");
        assert_eq!(OpenCl::identity(Reduction::Max, Mask), "false");
        assert_eq!(OpenCl::identity(Reduction::Prod, I64), "1L");
    }

    /// No integer and no mask is NaN, infinite, or has the sign bit of a float.
    #[test]
    fn tests_of_floats_are_false_on_others() {
        for op in [Unary::IsNan, Unary::IsInf, Unary::SignBit] {
            for compute in [Compute::I32, Compute::I64, Compute::Mask] {
                assert_eq!(OpenCl::unary(op, "x", compute).unwrap(), "false");
            }
        }
    }
}

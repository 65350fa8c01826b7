//! Prologues of f16 or bf16 in instructions that compute two neighbouring terms at once.
//!
//! Such an instruction rounds its result to 16 bits. The same instruction of f32 and then the conversion give these bits
//! too: f32 has enough more digits that rounding twice is rounding once. So the results are those of Kernel IR, which
//! rounds at the end, if on the way to it no more than one instruction rounds: the others negate, or take maxima.

use crate::cuda::source::Source;
use crate::kir::{Access, Expr, Kernel, Val};
use crate::tile::without_casts;
use kiln_base::prim::{Binary, Unary};
use kiln_base::{DType, Dim};
use std::fmt::Write;

/// Returns the functions that prologues by pairs call.
pub(super) fn functions(dtype: DType) -> String {
    let mut text = String::new();
    for (name, instruction) in [
        ("add", "add.rn"),
        ("sub", "sub.rn"),
        ("mul", "mul.rn"),
        ("max", "max.NaN"),
        ("min", "min.NaN"),
    ] {
        let _ = writeln!(
            text,
            "__device__ __forceinline__ unsigned pair_{name}(unsigned a, unsigned b) {{\n    \
             unsigned both;\n    \
             asm(\"{instruction}.{dtype}x2 %0, %1, %2;\" : \"=r\"(both) : \"r\"(a), \"r\"(b));\n    \
             return both;\n}}"
        );
    }
    text
}

/// True if instructions on pairs compute a prologue, which reads these elements in order.
pub(super) fn suits(prologue: &Kernel, source: usize) -> bool {
    let dtype = prologue.args[prologue.args.len() - 1].dtype;
    // True for each value that is a number of 16 bits, false for one that is yet to be rounded.
    let mut rounded: Vec<Option<bool>> = Vec::with_capacity(prologue.body.len());
    for (at, def) in prologue.body.iter().enumerate() {
        let v = Val(at as u32);
        let of = |v: &Val| rounded[without_casts(prologue, *v).index()];
        let is_half = |a: &Access| prologue.args[usize::from(a.arg)].dtype == dtype;
        let value = match &def.expr {
            _ if without_casts(prologue, v) != v => of(&v),
            Expr::Load { access } => {
                is_half(&prologue.accesses[usize::from(*access)]).then_some(true)
            }
            Expr::Const(c) => (c.cast(dtype).as_f64() == c.as_f64()).then_some(true),
            Expr::Convert { a, .. } if def.dtype == dtype => of(a).and(Some(true)),
            Expr::Unary(Unary::Neg | Unary::Abs, a) => of(a),
            Expr::Binary { op, a, b, .. } => match (op, of(a), of(b)) {
                (Binary::Max | Binary::Min, Some(a), Some(b)) => Some(a && b),
                (Binary::Add | Binary::Sub | Binary::Mul, Some(true), Some(true)) => Some(false),
                _ => None,
            },
            _ => None,
        };
        rounded.push(value);
    }
    let stored = without_casts(prologue, prologue.stores[0].value);
    let is_read = prologue.args[source].dtype == dtype;
    dtype.is_half() && is_read && rounded[stored.index()].is_some()
}

/// Emits the values of a prologue for a register `raw` of two elements, and returns the expression of the result. The
/// axes with indices `indices` are all that other arguments move along. `is_even` is true if the number of terms
/// is even.
pub(super) fn emit(
    source: &mut Source,
    kernel: &Kernel,
    raw: u16,
    indices: &[Option<&str>],
    is_even: bool,
) -> String {
    let dtype = kernel.args[kernel.args.len() - 1].dtype;
    let mut names: Vec<String> = Vec::with_capacity(kernel.body.len());
    for (at, def) in kernel.body.iter().enumerate() {
        let v = Val(at as u32);
        let name = |v: &Val| names[without_casts(kernel, *v).index()].clone();
        let value = match &def.expr {
            _ if without_casts(kernel, v) != v => name(&v),
            Expr::Convert { a, .. } => name(a),
            Expr::Const(c) => {
                let bytes = dtype.float_bytes(&[c.as_f64()]);
                format!("0x{:02x}{:02x}{0:02x}{1:02x}u", bytes[1], bytes[0])
            }
            Expr::Load { access } => {
                let access = &kernel.accesses[usize::from(*access)];
                match access.arg == raw {
                    true => "raw".into(),
                    false => loaded(source, access, indices, is_even),
                }
            }
            Expr::Unary(Unary::Neg, a) => format!("{} ^ 0x80008000u", name(a)),
            Expr::Unary(_, a) => format!("{} & 0x7fff7fffu", name(a)),
            Expr::Binary { op, a, b, .. } => {
                format!("pair_{}({}, {})", op.name(), name(a), name(b))
            }
            _ => unreachable!("`suits` knows all others"),
        };
        let is_named = matches!(
            def.expr,
            Expr::Load { .. } | Expr::Unary(..) | Expr::Binary { .. }
        );
        names.push(
            match is_named && without_casts(kernel, v) == v && value != "raw" {
                true => {
                    source.line(format!("const unsigned {v} = {value};"));
                    v.to_string()
                }
                false => value,
            },
        );
    }
    let stored = without_casts(kernel, kernel.stores[0].value);
    names.swap_remove(stored.index())
}

/// Returns two neighbours of an argument, or an element twice that is for all terms.
fn loaded(source: &mut Source, access: &Access, indices: &[Option<&str>], is_even: bool) -> String {
    let at = |source: &mut Source, term: &str| {
        let names = indices.iter().map(|index| match index {
            Some("j") => term.to_string(),
            index => index.unwrap_or("0").to_string(),
        });
        let names: Vec<String> = names.collect();
        source.affine(&access.offset, &access.strides, &names)
    };
    let arg = format!("arg{}", access.arg);
    let stride =
        |(index, stride): (&Option<&str>, &Dim)| (*index == Some("j")).then(|| stride.clone());
    let stride = indices.iter().zip(&access.strides).find_map(stride);
    let first = at(source, "j");
    match stride.filter(|s| !s.is(0)) {
        None => format!("{arg}[{first}] * 0x10001u"),
        Some(Dim::Const(1)) if is_even && access.offset.as_const().is_some_and(|n| n % 2 == 0) => {
            format!("*(const unsigned*)({arg} + ({first}))")
        }
        Some(_) => format!("{arg}[{first}] | {arg}[{}] << 16", at(source, "next")),
    }
}

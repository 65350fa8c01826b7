//! The text form of Kernel IR.
//!
//! ```text
//! kernel sum axes[s0] inner[8] {
//!   arg0: f32
//!   arg1: f32 written
//!   v0: f32 = load arg0[8*a0 + i0]
//!   v1: f32 = sum v0
//!   store arg1[a0] = v1
//! }
//! ```
//!
//! `a0`, `a1`, … are the parallel axes, the last of which may be serial (`in order[..]`); `i0`, `i1`, … are the inner
//! ones. An access with bounds ends with them and with its value outside of them: `if 0 <= a0 - 1 < 6 else 0`.

use super::{Access, Expr, Kernel, Val};
use kiln_base::Dim;
use std::fmt;

impl fmt::Display for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |dims: &[Dim]| {
            let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
            dims.join(", ")
        };
        let (axes, serial) = self.axes.split_at(self.axes.len() - self.serial);
        write!(f, "kernel {} axes[{}]", self.name, list(axes))?;
        if !serial.is_empty() {
            write!(f, " in order[{}]", list(serial))?;
        }
        writeln!(f, " inner[{}] {{", list(&self.inner))?;
        for (i, a) in self.args.iter().enumerate() {
            let written = if a.written { " written" } else { "" };
            writeln!(f, "  arg{i}: {}{written}", a.dtype)?;
        }
        for (i, def) in self.body.iter().enumerate() {
            writeln!(
                f,
                "  {}: {} = {}",
                Val(i as u32),
                def.dtype,
                self.expr_text(&def.expr)
            )?;
        }
        for s in &self.stores {
            let access = self.access_text(s.access, &[]);
            let combine = s.combine.map(|op| format!("{} in order ", op.name()));
            let combine = combine.unwrap_or_default();
            writeln!(f, "  store {access} = {combine}{}", s.value)?;
        }
        f.write_str("}")
    }
}

/// Returns the text of `offset + Σ stride · axis`, where the first `outer` axes are parallel.
pub(crate) fn affine_text(offset: &Dim, strides: &[Dim], outer: usize) -> String {
    let mut terms = Vec::new();
    for (n, s) in strides.iter().enumerate() {
        let axis = match n.checked_sub(outer) {
            None => format!("a{n}"),
            Some(n) => format!("i{n}"),
        };
        match s {
            Dim::Const(0) => {}
            Dim::Const(1) => terms.push(axis),
            Dim::Const(c) => terms.push(format!("{c}*{axis}")),
            s => terms.push(format!("({s})*{axis}")),
        }
    }
    if !offset.is(0) || terms.is_empty() {
        terms.push(offset.to_string());
    }
    terms.join(" + ").replace("+ -", "- ")
}

/// Returns the text of an access, with `dynamic` after the static part of its address.
pub(crate) fn access_text(a: &Access, outer: usize, dynamic: &str) -> String {
    let address = affine_text(&a.offset, &a.strides, outer);
    let mut text = format!("arg{}[{address}{dynamic}]", a.arg);
    for (n, b) in a.bounds.iter().enumerate() {
        let word = if n == 0 { "if" } else { "and" };
        let index = affine_text(&b.offset, &b.strides, outer);
        text += &format!(" {word} 0 <= {index} < {}", b.extent);
    }
    if !a.bounds.is_empty() {
        text += &format!(" else {}", a.fill);
    }
    text
}

impl Kernel {
    fn access_text(&self, id: u16, dynamic: &[super::Dynamic]) -> String {
        let dynamic = dynamic.iter().map(|d| {
            let (stride, extent) = (&d.stride, &d.extent);
            format!(" + {stride}*({} < {extent} at site {})", d.index, d.site)
        });
        let dynamic: String = dynamic.collect();
        access_text(&self.accesses[id as usize], self.axes.len(), &dynamic)
    }

    fn expr_text(&self, expr: &Expr) -> String {
        match expr {
            Expr::Load { access } => format!("load {}", self.access_text(*access, &[])),
            Expr::LoadAt { access, dynamic } => {
                format!("load {}", self.access_text(*access, dynamic))
            }
            Expr::Index { offset, strides } => {
                format!("index {}", affine_text(offset, strides, self.axes.len()))
            }
            Expr::Const(c) => c.to_string(),
            Expr::Unary(op, a) => format!("{} {a}", op.name()),
            Expr::Binary { op, a, b, .. } => format!("{} {a}, {b}", op.name()),
            Expr::Select { mask, a, b } => format!("select {mask}, {a}, {b}"),
            Expr::Convert { a, from } => format!("convert {a} from {from}"),
            Expr::Random {
                kind,
                seed,
                offset,
                index,
            } => format!("random {} {seed}, {offset}, {index}", kind.name()),
            Expr::Reduce { op, a } => format!("{} over inner {a}", op.name()),
            Expr::ArgReduce { op, a } => format!("arg{} over inner {a}", op.name()),
        }
    }
}

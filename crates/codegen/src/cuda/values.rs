//! The values of a Kernel IR kernel as C statements, for any loop around them.

use super::fast;
use super::source::{Index, Source};
use crate::kir::{Access, Dynamic, Expr, Kernel, Store, Val};
use crate::tile::without_casts;
use kiln_base::{Compute, Dim};
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::CudaCpp;

/// An emitter of the values and stores of a kernel. The caller sets the index of each axis ([`Values::indices`]), the
/// order and scope in which values are defined, and the loads that don't read memory.
///
/// A point of an epilogue, whose raw result is the C expression `acc`:
/// ```text
/// let mut values = Values::new(kernel);
/// values.replace(raw_argument, "acc");
/// values.decompose(source, "p"); // declares the indices of the point of that number
/// each(source, &mut values, kernel, &Vector::scalar(kernel)); // declares every value, and stores
/// ```
pub(super) struct Values<'a> {
    kernel: &'a Kernel,
    /// A C expression for the index of each of `axes`, then of each of `inner`.
    pub indices: Vec<String>,
    /// True if f32 functions are emitted as fast math.
    pub fast: bool,
    /// The argument whose vectors stay in registers: in `out{arg}`, of the compute type.
    pub in_registers: Option<usize>,
    /// The C expression of each value that is defined.
    names: Vec<Option<String>>,
    /// For each argument, the expression that replaces a load of it.
    replaced: Vec<Option<String>>,
}

impl<'a> Values<'a> {
    /// Returns an emitter without defined values, whose indices are all 0.
    pub fn new(kernel: &'a Kernel) -> Values<'a> {
        Values {
            kernel,
            indices: vec!["0".into(); kernel.axes.len() + kernel.inner.len()],
            fast: false,
            in_registers: None,
            names: vec![None; kernel.body.len()],
            replaced: vec![None; kernel.args.len()],
        }
    }

    /// Returns `Int` if the kernel's addresses and numbers of points fit into an `int`.
    pub fn index_type(kernel: &Kernel) -> Index {
        match fits_int(kernel) {
            true => Index::Int,
            false => Index::Long,
        }
    }

    /// Replaces loads of an argument by an expression of its dtype's compute type.
    pub fn replace(&mut self, arg: usize, expression: impl Into<String>) {
        self.replaced[arg] = Some(expression.into());
    }

    /// Declares the indices of `axes` from the row-major number of a point.
    pub fn decompose(&mut self, source: &mut Source, point: &str) {
        let extents = &self.kernel.axes;
        let names = declare_indices(source, "a", extents, point, &|a| self.uses(a));
        self.indices[..extents.len()].clone_from_slice(&names);
    }

    /// Declares the indices of `inner` from the row-major number of an inner point.
    pub fn decompose_inner(&mut self, source: &mut Source, point: &str) {
        let outer = self.kernel.axes.len();
        let extents = &self.kernel.inner;
        let names = declare_indices(source, "i", extents, point, &|a| self.uses(outer + a));
        self.indices[outer..].clone_from_slice(&names);
    }

    /// True if an access or a value depends on the index of an axis.
    fn uses(&self, axis: usize) -> bool {
        let k = self.kernel;
        let moves = |s: &[Dim]| !s[axis].is(0);
        let access = |a: &Access| moves(&a.strides) || a.bounds.iter().any(|b| moves(&b.strides));
        k.accesses.iter().any(access)
            || k.body.iter().any(|d| match &d.expr {
                Expr::Index { strides, .. } => moves(strides),
                _ => false,
            })
    }

    /// Declares every value of a kernel without inner axes.
    pub fn define_all(&mut self, source: &mut Source) {
        for v in 0..self.kernel.body.len() as u32 {
            self.define(source, Val(v));
        }
    }

    /// Returns the C expression of a value: a name or a literal.
    ///
    /// # Panics
    /// If the value has not been defined.
    pub fn name(&self, v: Val) -> String {
        let v = without_casts(self.kernel, v);
        let def = &self.kernel.body[v.index()];
        if let Expr::Const(c) = def.expr {
            return CudaCpp::literal(c, def.dtype.compute());
        }
        let name = self.names[v.index()].clone();
        name.expect("values are defined before they are used")
    }

    /// Sets the C expression of a value: a name, or an expression in parentheses.
    pub fn set(&mut self, v: Val, name: impl Into<String>) {
        self.names[v.index()] = Some(name.into());
    }

    /// Declares a value as a constant by its definition. It may be declared again in another scope.
    ///
    /// # Panics
    /// If it is a reduction: the caller emits these, see [`Values::set`].
    pub fn define(&mut self, source: &mut Source, v: Val) {
        let def = &self.kernel.body[v.index()];
        if without_casts(self.kernel, v) != v || matches!(def.expr, Expr::Const(_)) {
            return;
        }
        let expression = self.expression(source, v);
        let compute = CudaCpp::ctype(def.dtype.compute());
        source.line(format!("const {compute} {v} = {expression};"));
        self.set(v, v.to_string());
    }

    /// Declares a value that the caller has loaded within the bounds of its access. `raw` is the stored element.
    pub fn define_loaded(&mut self, source: &mut Source, v: Val, access: u16, raw: &str) {
        let dtype = self.kernel.body[v.index()].dtype;
        let compute = CudaCpp::ctype(dtype.compute());
        let value = self.or_fill(source, access, CudaCpp::loaded(raw, dtype));
        source.line(format!("const {compute} {v} = {value};"));
        self.set(v, v.to_string());
    }

    /// Returns the definition of a value as a C expression.
    fn expression(&self, source: &mut Source, v: Val) -> String {
        let def = &self.kernel.body[v.index()];
        let compute_of = |v: Val| self.kernel.body[v.index()].dtype.compute();
        let fast = |v: &Val| self.fast && compute_of(*v) == Compute::F32;
        let cheaper = match &def.expr {
            Expr::Unary(op, a) if fast(a) => fast::unary(*op, &self.name(*a)),
            Expr::Binary { op, a, b, .. } if fast(a) => {
                fast::binary(*op, &self.name(*a), &self.name(*b))
            }
            _ => None,
        };
        if let Some((text, _)) = cheaper {
            return text;
        }
        match &def.expr {
            Expr::Load { access } | Expr::LoadAt { access, .. } => self.load(source, v, *access),
            Expr::Index { offset, strides } => {
                let text = source.affine(offset, strides, &self.indices);
                match source.index {
                    Index::Int => format!("(long long)({text})"),
                    Index::Long => text,
                }
            }
            Expr::Const(c) => CudaCpp::literal(*c, def.dtype.compute()),
            Expr::Unary(op, a) => {
                let Ok(text) = CudaCpp::unary(*op, &self.name(*a), compute_of(*a));
                text
            }
            Expr::Binary { op, a, b, site } => {
                let (x, y) = (self.name(*a), self.name(*b));
                let Ok(text) = CudaCpp::binary(*op, &x, &y, compute_of(*a), *site);
                text
            }
            Expr::Select { mask, a, b } => {
                let [mask, a, b] = [mask, a, b].map(|v| self.name(*v));
                format!("{mask} ? {a} : {b}")
            }
            // f16 and bf16 are in f32 until they are stored.
            Expr::Convert { a, from } if *from == def.dtype => self.name(*a),
            Expr::Convert { a, from } => CudaCpp::convert(&self.name(*a), *from, def.dtype),
            Expr::Random {
                kind,
                seed,
                offset,
                index,
            } => {
                let [seed, offset, index] = [seed, offset, index].map(|v| self.name(*v));
                CudaCpp::random(*kind, [&seed, &offset, &index], def.dtype.compute())
            }
            Expr::Reduce { .. } | Expr::ArgReduce { .. } => {
                unreachable!("the caller emits reductions")
            }
        }
    }

    /// Returns a load as an expression of the compute type.
    fn load(&self, source: &mut Source, v: Val, access: u16) -> String {
        let arg = self.kernel.accesses[access as usize].arg as usize;
        if let Some(text) = &self.replaced[arg] {
            return text.clone();
        }
        let address = self.load_address(source, v);
        let dtype = self.kernel.args[arg].dtype;
        let value = CudaCpp::loaded(&format!("arg{arg}[{address}]"), dtype);
        self.or_fill(source, access, value)
    }

    /// Returns a loaded value, or the fill value of its access outside the bounds.
    fn or_fill(&self, source: &mut Source, access: u16, value: String) -> String {
        let a = &self.kernel.accesses[access as usize];
        let compute = self.kernel.args[a.arg as usize].dtype.compute();
        match self.bounds_condition(source, access) {
            Some(test) => format!("{test} ? {value} : {}", CudaCpp::literal(a.fill, compute)),
            None => value,
        }
    }

    /// Returns the element offset of a load, with its data-dependent terms and their checks.
    pub fn load_address(&self, source: &mut Source, v: Val) -> String {
        let (access, dynamic): (u16, &[Dynamic]) = match &self.kernel.body[v.index()].expr {
            Expr::Load { access } => (*access, &[]),
            Expr::LoadAt { access, dynamic } => (*access, dynamic),
            _ => unreachable!("only loads have addresses"),
        };
        let mut address = self.address(source, access);
        for d in dynamic {
            let index = self.name(d.index);
            let extent = source.dim(&d.extent);
            let stride = source.dim(&d.stride);
            let checked = format!("kiln_checked({index}, {extent}, errors, site{})", d.site);
            address += &format!(" + {checked} * {stride}");
        }
        address
    }

    /// Returns the element offset of an access at the point.
    pub fn address(&self, source: &mut Source, access: u16) -> String {
        let a = &self.kernel.accesses[access as usize];
        source.affine(&a.offset, &a.strides, &self.indices)
    }

    /// Returns the condition that an access is within its bounds, if it has any.
    pub fn bounds_condition(&self, source: &mut Source, access: u16) -> Option<String> {
        let a = &self.kernel.accesses[access as usize];
        let unsigned = match source.index {
            Index::Int => "unsigned",
            Index::Long => "unsigned long long",
        };
        let conditions: Vec<String> = a
            .bounds
            .iter()
            .map(|b| {
                let index = source.affine(&b.offset, &b.strides, &self.indices);
                let extent = source.dim(&b.extent);
                format!("({unsigned})({index}) < ({unsigned}){extent}")
            })
            .collect();
        match conditions.len() {
            0 => None,
            1 => Some(format!("({})", conditions[0])),
            _ => Some(format!("({})", conditions.join(" && "))),
        }
    }

    /// Emits a store.
    pub fn store(&self, source: &mut Source, store: &Store) {
        self.store_as(source, store, &self.name(store.value));
    }

    /// Emits a store of a C expression instead of the value.
    pub fn store_as(&self, source: &mut Source, store: &Store, value: &str) {
        let a = &self.kernel.accesses[store.access as usize];
        let dtype = self.kernel.args[a.arg as usize].dtype;
        let value = CudaCpp::stored(value, dtype);
        let address = self.address(source, store.access);
        let statement = format!("arg{}[{address}] = {value};", a.arg);
        match self.bounds_condition(source, store.access) {
            Some(condition) => source.line(format!("if {condition} {statement}")),
            None => source.line(statement),
        }
    }
}

/// Declares the indices of the row-major number `point` as `<prefix>0`, …, and returns their names. Unused ones are 0.
pub(super) fn declare_indices(
    source: &mut Source,
    prefix: &str,
    extents: &[Dim],
    point: &str,
    used: &dyn Fn(usize) -> bool,
) -> Vec<String> {
    let index = source.index.name();
    if extents.len() == 1 {
        return vec![point.into()];
    }
    let mut names = Vec::with_capacity(extents.len());
    let mut size = Dim::ONE;
    for (axis, extent) in extents.iter().enumerate().rev() {
        let name = format!("{prefix}{axis}");
        let quotient = match size.is(1) {
            true => point.to_string(),
            false => format!("{point} / {}", source.dim(&size)),
        };
        size = &size * extent;
        if !used(axis) {
            names.push("0".into());
            continue;
        }
        let value = match axis {
            0 => quotient,
            _ => format!("{quotient} % {}", source.dim(extent)),
        };
        source.line(format!("const {index} {name} = {value};"));
        names.push(name);
    }
    names.reverse();
    names
}

/// True if every number of points, and every affine expression at any point, fits into 30 bits.
fn fits_int(kernel: &Kernel) -> bool {
    const LIMIT: i64 = 1 << 30;
    let max_offset = |offset: &Dim, strides: &[Dim]| -> Option<i64> {
        let extents = kernel.axes.iter().chain(&kernel.inner);
        strides
            .iter()
            .zip(extents)
            .try_fold(offset.as_const()?.checked_abs()?, |sum, (s, e)| {
                let last = (e.as_const()? - 1).max(0);
                sum.checked_add(s.as_const()?.checked_mul(last)?.checked_abs()?)
            })
    };
    let is_small = |n: Option<i64>| n.is_some_and(|n| n < LIMIT);
    let product = |dims: &[Dim]| {
        dims.iter()
            .try_fold(1i64, |n, d| n.checked_mul(d.as_const()?.max(1)))
    };
    let access_fits = |a: &Access| {
        let bound_fits = |b: &kiln_plan::tile::Bound| {
            is_small(max_offset(&b.offset, &b.strides)) && is_small(b.extent.as_const())
        };
        is_small(max_offset(&a.offset, &a.strides)) && a.bounds.iter().all(bound_fits)
    };
    is_small(product(&kernel.axes))
        && is_small(product(&kernel.inner))
        && kernel.accesses.iter().all(access_fits)
        && kernel.body.iter().all(|d| match &d.expr {
            Expr::Index { offset, strides } => is_small(max_offset(offset, strides)),
            _ => true,
        })
}

//! An interpreter that runs a kernel point by point: the meaning of Kernel IR, in plain loops.

use crate::numbers::{Num, beats, binary, convert, random, scalar, unary};
use crate::run::each_point;
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType, Dim, Scalar, SymbolValues, round_float, wrap_int};
use kiln_codegen::kir::{Access, Dynamic, Expr, Kernel, Store, Val};
use kiln_ir::eval::Data;
use kiln_plan::SiteKind;

/// A data error that a kernel reports.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DataError {
    /// The kernel's site.
    pub site: u32,
    /// The kind of the error.
    pub kind: SiteKind,
}

/// Runs a kernel. `args` are the buffers, as floats or as integers (bool as 0 and 1) like
/// [`kiln_ir::eval::Array`] holds them; written ones are updated.
///
/// # Errors
/// Returns the first data error. The kernel has nevertheless run to its end.
///
/// # Panics
/// If an access leaves its buffer, or the arguments are not those that the kernel takes. The kernel is wrong then.
pub fn interpret(
    kernel: &Kernel,
    args: &mut [Data],
    symbols: &SymbolValues,
) -> Result<(), DataError> {
    let varies = kernel.varies_inside();
    let mut interpreter = Interpreter {
        kernel,
        subtrees: subtrees(kernel, &varies),
        varies,
        values: vec![Num::I(0); kernel.body.len()],
        symbols,
        error: None,
    };
    let outer: Vec<i64> = kernel.axes.iter().map(|d| d.eval(symbols)).collect();
    let inner: Vec<i64> = kernel.inner.iter().map(|d| d.eval(symbols)).collect();
    each_point(&outer, |point| interpreter.run_row(point, &inner, args));
    match interpreter.error {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

/// For each reduction and each store, returns the values that it needs at every inner point.
fn subtrees(kernel: &Kernel, varies: &[bool]) -> Vec<Vec<Val>> {
    let roots = kernel.body.iter().map(|def| match &def.expr {
        Expr::Reduce { a, .. } | Expr::ArgReduce { a, .. } => Some(*a),
        _ => None,
    });
    let stores = kernel.stores.iter().map(|s| Some(s.value));
    roots
        .chain(stores)
        .map(|root| {
            let mut needed = vec![false; kernel.body.len()];
            if let Some(root) = root {
                needed[root.index()] = varies[root.index()];
            }
            for i in (0..kernel.body.len()).rev() {
                if needed[i] {
                    kernel.body[i]
                        .expr
                        .operands(|o| needed[o.index()] |= varies[o.index()]);
                }
            }
            let values = (0..kernel.body.len() as u32).map(Val);
            values.filter(|v| needed[v.index()]).collect()
        })
        .collect()
}

struct Interpreter<'a> {
    kernel: &'a Kernel,
    varies: Vec<bool>,
    subtrees: Vec<Vec<Val>>,
    values: Vec<Num>,
    symbols: &'a SymbolValues,
    error: Option<DataError>,
}

impl Interpreter<'_> {
    fn run_row(&mut self, point: &[i64], inner: &[i64], args: &mut [Data]) {
        let kernel = self.kernel;
        let zero: Vec<i64> = point
            .iter()
            .copied()
            .chain(inner.iter().map(|_| 0))
            .collect();
        for i in 0..kernel.body.len() {
            if self.varies[i] {
                continue;
            }
            self.values[i] = match &kernel.body[i].expr {
                Expr::Reduce { op, a } => self.reduce(i, *op, *a, point, inner, args),
                Expr::ArgReduce { op, a } => self.arg_reduce(i, *op, *a, point, inner, args),
                _ => self.eval(i, &zero, args),
            };
        }
        for (n, store) in kernel.stores.iter().enumerate() {
            let access = &kernel.accesses[store.access as usize];
            let moves = access.strides[point.len()..].iter().any(|s| !s.is(0));
            if !self.varies[store.value.index()] && !moves {
                self.store(store, &zero, args);
                continue;
            }
            let tree = self.subtrees[kernel.body.len() + n].clone();
            each_point(inner, |at| {
                let at = join(point, at);
                self.eval_all(&tree, &at, args);
                self.store(store, &at, args);
            });
        }
    }

    fn eval_all(&mut self, tree: &[Val], at: &[i64], args: &[Data]) {
        for v in tree {
            self.values[v.index()] = self.eval(v.index(), at, args);
        }
    }

    fn reduce(
        &mut self,
        i: usize,
        op: Reduction,
        a: Val,
        point: &[i64],
        inner: &[i64],
        args: &[Data],
    ) -> Num {
        let compute = self.kernel.body[i].dtype.compute();
        let mut acc = match (compute, op) {
            (Compute::I32, Reduction::Max) => Num::I(i32::MIN as i64),
            (Compute::I32, Reduction::Min) => Num::I(i32::MAX as i64),
            (Compute::I64, Reduction::Max) => Num::I(i64::MIN),
            (Compute::I64, Reduction::Min) => Num::I(i64::MAX),
            _ => scalar(Scalar::Float(op.identity_f64()), compute),
        };
        let tree = self.subtrees[i].clone();
        each_point(inner, |at| {
            self.eval_all(&tree, &join(point, at), args);
            let x = self.values[a.index()];
            acc = binary(op.combine(), acc, x).unwrap_or(acc).fit(compute);
        });
        acc
    }

    fn arg_reduce(
        &mut self,
        i: usize,
        op: Reduction,
        a: Val,
        point: &[i64],
        inner: &[i64],
        args: &[Data],
    ) -> Num {
        let tree = self.subtrees[i].clone();
        let (mut best, mut best_at, mut at_linear) = (None::<Num>, 0, 0);
        each_point(inner, |at| {
            self.eval_all(&tree, &join(point, at), args);
            let x = self.values[a.index()];
            if best.is_none_or(|b| beats(op, x, b)) {
                (best, best_at) = (Some(x), at_linear);
            }
            at_linear += 1;
        });
        Num::I(best_at)
    }

    /// Returns the address of an access, if its bounds allow it.
    fn address(&self, access: &Access, at: &[i64]) -> Option<i64> {
        let affine = |offset: &Dim, strides: &[Dim]| {
            let steps = strides.iter().zip(at);
            steps.fold(offset.eval(self.symbols), |n, (s, i)| {
                n + s.eval(self.symbols) * i
            })
        };
        let is_inside = access.bounds.iter().all(|b| {
            let index = affine(&b.offset, &b.strides);
            (0..b.extent.eval(self.symbols)).contains(&index)
        });
        is_inside.then(|| affine(&access.offset, &access.strides))
    }

    fn store(&mut self, store: &Store, at: &[i64], args: &mut [Data]) {
        let access = &self.kernel.accesses[store.access as usize];
        let Some(address) = self.address(access, at) else {
            return;
        };
        let dtype = self.kernel.args[access.arg as usize].dtype;
        let mut value = self.values[store.value.index()];
        let axes = self.kernel.axes.len();
        let is_first = at[axes - self.kernel.serial..axes].iter().all(|i| *i == 0);
        if let (Some(op), false) = (store.combine, is_first) {
            let accumulated = match &args[access.arg as usize] {
                Data::Float(v) => Num::F(v[address as usize]),
                Data::Int(v) => Num::I(v[address as usize]),
            };
            let combined = binary(op.combine(), accumulated, value).unwrap_or(value);
            value = combined.fit(dtype.compute());
        }
        match &mut args[access.arg as usize] {
            Data::Float(v) => v[address as usize] = round_float(value.f(), dtype),
            Data::Int(v) => v[address as usize] = wrap_int(value.i(), dtype),
        }
    }

    fn load(&mut self, access: &Access, dynamic: &[Dynamic], at: &[i64], args: &[Data]) -> Num {
        let compute = self.kernel.args[access.arg as usize].dtype.compute();
        let Some(mut address) = self.address(access, at) else {
            return scalar(access.fill, compute);
        };
        for d in dynamic {
            let mut index = self.values[d.index.index()].i();
            if !(0..d.extent.eval(self.symbols)).contains(&index) {
                self.report(d.site, SiteKind::IndexOutOfRange);
                index = 0;
            }
            address += index * d.stride.eval(self.symbols);
        }
        let element = match &args[access.arg as usize] {
            Data::Float(v) => v.get(address as usize).map(|x| Num::F(*x)),
            Data::Int(v) => v.get(address as usize).map(|x| Num::I(*x)),
        };
        let has_failed = self.error.is_some();
        assert!(
            element.is_some() || has_failed,
            "a load at {address} leaves its buffer"
        );
        element.unwrap_or_else(|| scalar(Scalar::Int(0), compute))
    }

    fn report(&mut self, site: u32, kind: SiteKind) {
        self.error.get_or_insert(DataError { site, kind });
    }

    fn eval(&mut self, i: usize, at: &[i64], args: &[Data]) -> Num {
        let kernel = self.kernel;
        let def = &kernel.body[i];
        let value = |v: &Val| self.values[v.index()];
        let result = match &def.expr {
            Expr::Load { access } => self.load(&kernel.accesses[*access as usize], &[], at, args),
            Expr::LoadAt { access, dynamic } => {
                self.load(&kernel.accesses[*access as usize], dynamic, at, args)
            }
            Expr::Index { offset, strides } => {
                let steps = strides.iter().zip(at);
                Num::I(steps.fold(offset.eval(self.symbols), |n, (s, i)| {
                    n + s.eval(self.symbols) * i
                }))
            }
            Expr::Const(c) => scalar(*c, def.dtype.compute()),
            Expr::Unary(op, a) => unary(*op, value(a), kernel.body[a.index()].dtype == DType::Bool),
            Expr::Binary { op, a, b, site } => match binary(*op, value(a), value(b)) {
                Some(n) => n,
                None => {
                    self.report(*site, SiteKind::DivisionByZero);
                    Num::I(0)
                }
            },
            Expr::Select { mask, a, b } => match value(mask).i() != 0 {
                true => value(a),
                false => value(b),
            },
            // f16 and bf16 are in f32 until they are stored.
            Expr::Convert { a, from } if *from == def.dtype => value(a),
            Expr::Convert { a, from } => convert(value(a), *from, def.dtype),
            Expr::Random {
                kind,
                seed,
                offset,
                index,
            } => {
                let counter = value(offset).i().wrapping_add(value(index).i());
                random(
                    *kind,
                    counter as u64,
                    value(seed).i() as u64,
                    def.dtype.compute(),
                )
            }
            Expr::Reduce { .. } | Expr::ArgReduce { .. } => self.values[i],
        };
        result.fit(def.dtype.compute())
    }
}

fn join(point: &[i64], at: &[i64]) -> Vec<i64> {
    point.iter().chain(at).copied().collect()
}

//! The verifier. A kernel is sound when
//!
//! 1. every operand is defined before its user, and every access, argument and site exists;
//! 2. strides and bounds have one entry for each axis and inner axis;
//! 3. a load has its argument's dtype, and its argument is not written;
//! 4. a store writes a written argument, with a value of that argument's compute type, and no written
//!    argument is left out or stored twice;
//! 5. operands of a primitive have the compute type that it takes, and its result the one that it returns;
//! 6. masks are bool values, indices i64 values;
//! 7. reductions are not nested: the operand of a reduction needs no other reduction at the same
//!    inner point (it may use finished ones), so no reduction varies inside;
//! 8. constants are values of their dtype;
//! 9. a store without inner strides stores a value that does not vary inside;
//! 10. a store that combines has strides along inner axes but not along serial ones, and combines floats or
//!     integers; a kernel has such a store if and only if it has serial axes.

use super::{Access, Expr, Kernel, Val};
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType, Dim, Kind};

impl Kernel {
    /// Returns the problems of the kernel; empty if it is sound.
    pub fn verify(&self) -> Vec<String> {
        let mut v = Verifier {
            kernel: self,
            problems: Vec::new(),
        };
        v.check_accesses();
        for i in 0..self.body.len() {
            v.check_def(i);
        }
        if v.problems.is_empty() {
            v.check_stores();
        }
        v.problems
    }
}

struct Verifier<'a> {
    kernel: &'a Kernel,
    problems: Vec<String>,
}

impl Verifier<'_> {
    fn require(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(text());
        }
    }

    fn check_strides(&mut self, strides: &[Dim], owner: &dyn Fn() -> String) {
        let expected = self.kernel.axes.len() + self.kernel.inner.len();
        self.require(strides.len() == expected, || {
            format!("{} has {} strides, not {expected}", owner(), strides.len())
        });
    }

    fn check_accesses(&mut self) {
        for (i, a) in self.kernel.accesses.iter().enumerate() {
            self.check_strides(&a.strides, &|| format!("access {i}"));
            for b in &a.bounds {
                self.check_strides(&b.strides, &|| format!("a bound of access {i}"));
            }
            self.require((a.arg as usize) < self.kernel.args.len(), || {
                format!("access {i} names argument {}, which does not exist", a.arg)
            });
        }
    }

    fn dtype(&self, v: Val) -> DType {
        self.kernel.body[v.index()].dtype
    }

    fn check_load(&mut self, i: usize, access: u16, dtype: DType) {
        let Some(a): Option<&Access> = self.kernel.accesses.get(access as usize) else {
            self.problems
                .push(format!("v{i} names access {access}, which does not exist"));
            return;
        };
        let Some(arg) = self.kernel.args.get(a.arg as usize) else {
            return;
        };
        self.require(arg.dtype == dtype, || {
            format!("v{i} is {dtype} but loads {}", arg.dtype)
        });
        self.require(!arg.written, || {
            format!("v{i} loads argument {}, which is written", a.arg)
        });
    }

    fn check_def(&mut self, i: usize) {
        let kernel = self.kernel;
        let def = &kernel.body[i];
        let mut are_defined = true;
        def.expr.operands(|o| are_defined &= o.index() < i);
        if !are_defined {
            self.problems
                .push(format!("v{i} uses a value that is not defined before it"));
            return;
        }
        let dtype = def.dtype;
        let compute = dtype.compute();
        let ty = |v: &Val| self.dtype(*v).compute();
        match &def.expr {
            Expr::Load { access } => self.check_load(i, *access, dtype),
            Expr::LoadAt { access, dynamic } => {
                for d in dynamic {
                    let index = self.dtype(d.index);
                    self.require(index == DType::I64, || {
                        format!("v{i} is indexed by {index}, not i64")
                    });
                    self.require(d.site < kernel.sites, || {
                        format!("v{i} names site {}, which does not exist", d.site)
                    });
                }
                self.check_load(i, *access, dtype);
            }
            Expr::Index { strides, .. } => {
                self.check_strides(strides, &|| format!("v{i}"));
                self.require(dtype == DType::I64, || {
                    format!("v{i} is an index of {dtype}")
                });
            }
            Expr::Const(c) => {
                let valid = match dtype.kind() {
                    Kind::Float => c.kind() == Kind::Float,
                    _ => c.cast(dtype) == *c,
                };
                self.require(valid, || format!("v{i}: {c} is no {dtype}"));
            }
            Expr::Unary(op, a) => {
                let a = ty(a);
                let valid = if op.gives_mask() {
                    a.is_float() && dtype == DType::Bool
                } else {
                    let has_integers = op.eval_i64(0).is_some();
                    a == compute && (a.is_float() || has_integers)
                };
                self.require(valid, || {
                    format!("v{i}: {} of {} can't give {dtype}", op.name(), a.name())
                });
            }
            Expr::Binary { op, a, b, site } => {
                let (x, y) = (ty(a), ty(b));
                let valid = x == y
                    && match op.gives_mask() {
                        true => dtype == DType::Bool,
                        false => compute == x,
                    };
                self.require(valid, || {
                    let (x, y) = (x.name(), y.name());
                    format!("v{i}: {} of {x} and {y} can't give {dtype}", op.name())
                });
                let may_fail = op.divides() && !x.is_float();
                self.require(!may_fail || *site < kernel.sites, || {
                    format!("v{i} names site {site}, which does not exist")
                });
            }
            Expr::Select { mask, a, b } => {
                let valid = ty(mask) == Compute::Mask && ty(a) == ty(b) && ty(a) == compute;
                self.require(valid, || format!("v{i}: select of different types"));
            }
            Expr::Convert { a, from } => {
                let valid = ty(a) == from.compute();
                self.require(valid, || format!("v{i}: the operand is no {from}"));
            }
            Expr::Random {
                seed,
                offset,
                index,
                ..
            } => {
                let valid = [seed, offset, index].map(ty) == [Compute::I64; 3];
                self.require(valid, || format!("v{i}: random numbers take i64 operands"));
            }
            Expr::Reduce { a, .. } => {
                let valid = ty(a) == compute && compute != Compute::Mask;
                self.require(valid, || format!("v{i}: a reduction of another type"));
            }
            Expr::ArgReduce { op, a } => {
                let valid = dtype == DType::I64
                    && ty(a) != Compute::Mask
                    && matches!(op, Reduction::Max | Reduction::Min);
                self.require(valid, || format!("v{i}: an arg-reduction of other types"));
            }
        }
    }

    fn check_stores(&mut self) {
        let kernel = self.kernel;
        let varies = kernel.varies_inside();
        let mut stored = vec![0; kernel.args.len()];
        for (n, s) in kernel.stores.iter().enumerate() {
            let exists =
                s.value.index() < kernel.body.len() && (s.access as usize) < kernel.accesses.len();
            if !exists {
                self.problems.push(format!(
                    "store {n} names a value or access that does not exist"
                ));
                continue;
            }
            let access = &kernel.accesses[s.access as usize];
            let arg = kernel.args[access.arg as usize];
            stored[access.arg as usize] += 1;
            let dtype = self.dtype(s.value);
            self.require(arg.dtype.compute() == dtype.compute(), || {
                format!("store {n} writes {dtype} to {}", arg.dtype)
            });
            let axes = kernel.axes.len();
            let moves = access.strides[axes..].iter().any(|s| !s.is(0));
            let serial = &access.strides[axes.saturating_sub(kernel.serial)..axes];
            let combines = moves
                && kernel.serial > 0
                && access.bounds.is_empty()
                && serial.iter().all(|s| s.is(0))
                && dtype.compute() != Compute::Mask;
            self.require(combines || s.combine.is_none(), || {
                format!("store {n} can't combine its values")
            });
            self.require(moves || !varies[s.value.index()], || {
                format!("store {n} writes every inner point to one address")
            });
        }
        let combines = kernel.stores.iter().any(|s| s.combine.is_some());
        let is_positive = |d: &Dim| d.as_const().is_some_and(|n| n > 0);
        let serial = kernel.axes.iter().rev().take(kernel.serial);
        let is_valid = kernel.serial <= kernel.axes.len() && serial.into_iter().all(is_positive);
        self.require(is_valid && combines == (kernel.serial > 0), || {
            format!("{} axes are walked in order", kernel.serial)
        });
        for (i, arg) in kernel.args.iter().enumerate() {
            self.require(stored[i] == arg.written as usize, || {
                format!("argument {i} is stored {} times", stored[i])
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::kir::{Access, Arg, Def, Expr, Kernel, Store, Val};
    use kiln_base::prim::{Binary, Unary};
    use kiln_base::{DType, Dim, Scalar};

    fn sound() -> Kernel {
        let access = |arg| Access {
            arg,
            offset: Dim::ZERO,
            strides: vec![Dim::ONE],
            bounds: vec![],
            fill: Scalar::Float(0.0),
        };
        let arg = |written| Arg {
            dtype: DType::F32,
            written,
        };
        let def = |expr| Def {
            expr,
            dtype: DType::F32,
        };
        Kernel {
            name: "exp".into(),
            axes: vec![Dim::Const(4)],
            args: vec![arg(false), arg(true)],
            accesses: vec![access(0), access(1)],
            body: vec![
                def(Expr::Load { access: 0 }),
                def(Expr::Unary(Unary::Exp, Val(0))),
            ],
            stores: vec![Store {
                access: 1,
                value: Val(1),
                combine: None,
            }],
            ..Kernel::default()
        }
    }

    #[test]
    fn sound_kernels_pass() {
        assert_eq!(sound().verify(), Vec::<String>::new());
    }

    #[test]
    fn every_violation_is_reported() {
        let mut k = sound();
        k.accesses[0].strides.clear();
        k.body[0].dtype = DType::I32;
        k.body.push(Def {
            expr: Expr::Binary {
                op: Binary::Add,
                a: Val(0),
                b: Val(9),
                site: 0,
            },
            dtype: DType::F32,
        });
        assert_eq!(
            k.verify(),
            [
                "access 0 has 0 strides, not 1",
                "v0 is i32 but loads f32",
                "v1: exp of i32 can't give f32",
                "v2 uses a value that is not defined before it",
            ]
        );
        let mut k = sound();
        k.stores.clear();
        assert_eq!(k.verify(), ["argument 1 is stored 0 times"]);
    }
}

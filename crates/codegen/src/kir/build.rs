//! Construction of kernels: equal definitions are one value, equal accesses one access.

use super::{Access, Arg, Def, Expr, Kernel, Store, Val};
use hashbrown::HashMap;
use kiln_base::prim::{Binary, Reduction, ScalarBuilder, Unary};
use kiln_base::{DType, Dim, Scalar};
use kiln_plan::{Site, SiteKind};

/// A kernel under construction.
#[derive(Default)]
pub(crate) struct KernelBuilder {
    pub kernel: Kernel,
    pub sites: Vec<Site>,
    values: HashMap<Def, Val>,
    accesses: HashMap<Access, u16>,
}

impl KernelBuilder {
    pub fn arg(&mut self, dtype: DType, written: bool) -> u16 {
        self.kernel.args.push(Arg { dtype, written });
        self.kernel.args.len() as u16 - 1
    }

    pub fn access(&mut self, access: Access) -> u16 {
        if let Some(a) = self.accesses.get(&access) {
            return *a;
        }
        let id = self.kernel.accesses.len() as u16;
        self.kernel.accesses.push(access.clone());
        self.accesses.insert(access, id);
        id
    }

    pub fn def(&mut self, expr: Expr, dtype: DType) -> Val {
        let def = Def { expr, dtype };
        if let Some(v) = self.values.get(&def) {
            return *v;
        }
        let v = Val(self.kernel.body.len() as u32);
        self.kernel.body.push(def.clone());
        self.values.insert(def, v);
        v
    }

    /// Returns the value of an expression that exists already.
    pub fn find(&self, expr: Expr, dtype: DType) -> Option<Val> {
        self.values.get(&Def { expr, dtype }).copied()
    }

    pub fn dtype(&self, v: Val) -> DType {
        self.kernel.body[v.index()].dtype
    }

    pub fn expr(&self, v: Val) -> &Expr {
        &self.kernel.body[v.index()].expr
    }

    pub fn constant(&mut self, value: Scalar, dtype: DType) -> Val {
        self.def(Expr::Const(value.cast(dtype)), dtype)
    }

    pub fn index(&mut self, offset: Dim, strides: Vec<Dim>) -> Val {
        match offset.as_const() {
            Some(n) if strides.iter().all(|s| s.is(0)) => self.constant(Scalar::Int(n), DType::I64),
            _ => self.def(Expr::Index { offset, strides }, DType::I64),
        }
    }

    pub fn select(&mut self, mask: Val, a: Val, b: Val) -> Val {
        let dtype = self.dtype(a);
        if a == b {
            return a;
        }
        self.def(Expr::Select { mask, a, b }, dtype)
    }

    /// Casts a value, unless the cast has no effect.
    pub fn convert(&mut self, a: Val, to: DType) -> Val {
        let from = self.dtype(a);
        if from == to {
            return a;
        }
        if let Expr::Const(c) = self.expr(a) {
            let c = c.cast(to);
            return self.constant(c, to);
        }
        self.def(Expr::Convert { a, from }, to)
    }

    /// Wraps an integer that is narrower than its compute type, after arithmetic.
    pub fn wrap(&mut self, v: Val) -> Val {
        let dtype = self.dtype(v);
        match dtype {
            DType::U8 | DType::I8 | DType::I16 => self.def(
                Expr::Convert {
                    a: v,
                    from: wide(dtype),
                },
                dtype,
            ),
            _ => v,
        }
    }

    pub fn site(&mut self, op: &str, kind: SiteKind, node: u32) -> u32 {
        let site = Site {
            op: op.into(),
            kind,
            node,
        };
        let index = self.sites.iter().position(|s| *s == site);
        let index = index.unwrap_or_else(|| {
            self.sites.push(site);
            self.sites.len() - 1
        });
        self.kernel.sites = self.sites.len() as u32;
        index as u32
    }

    pub fn binary(&mut self, op: Binary, a: Val, b: Val, site: u32) -> Val {
        let dtype = if op.gives_mask() {
            DType::Bool
        } else {
            self.dtype(a)
        };
        let raw_dtype = match wraps(op) {
            true => wide(dtype),
            false => dtype,
        };
        let v = self.def(Expr::Binary { op, a, b, site }, raw_dtype);
        self.narrow(v, dtype)
    }

    fn narrow(&mut self, v: Val, dtype: DType) -> Val {
        let from = self.dtype(v);
        match from == dtype {
            true => v,
            false => self.def(Expr::Convert { a: v, from }, dtype),
        }
    }

    pub fn unary(&mut self, op: Unary, a: Val) -> Val {
        let dtype = self.dtype(a);
        if !dtype.is_float() {
            match op {
                Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => return a,
                Unary::IsNan | Unary::IsInf => {
                    return self.constant(Scalar::Bool(false), DType::Bool);
                }
                _ => {}
            }
        }
        if op.gives_mask() {
            return self.def(Expr::Unary(op, a), DType::Bool);
        }
        let v = self.def(Expr::Unary(op, a), wide(dtype));
        self.narrow(v, dtype)
    }

    pub fn store(&mut self, access: Access, value: Val, combine: Option<Reduction>) {
        let access = self.access(access);
        self.kernel.stores.push(Store {
            access,
            value,
            combine,
        });
    }
}

/// Returns the dtype of an arithmetic result before it wraps: i32 for narrower integers.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::U8 | DType::I8 | DType::I16 => DType::I32,
        other => other,
    }
}

/// True if a result may leave the range of a narrow integer dtype.
fn wraps(op: Binary) -> bool {
    use Binary::*;
    matches!(op, Add | Sub | Mul | Div | FloorDiv | Pow | Gcd | Lcm | Shl)
}

/// A builder of the expression of one pointwise node.
pub(crate) struct PointwiseBuilder<'a> {
    pub kernel: &'a mut KernelBuilder,
    /// The node and name, for sites.
    pub node: u32,
    pub op: &'a str,
    /// The points where the result is needed; elsewhere integer divisors are replaced by 1.
    pub mask: Option<Val>,
}

impl ScalarBuilder for PointwiseBuilder<'_> {
    fn unary(&mut self, op: Unary, a: u32) -> u32 {
        self.kernel.unary(op, Val(a)).0
    }

    fn binary(&mut self, op: Binary, a: u32, b: u32) -> u32 {
        let (a, mut b) = (Val(a), Val(b));
        let dtype = self.kernel.dtype(a);
        let mut site = 0;
        if op.divides() && dtype.is_int() {
            site = self
                .kernel
                .site(self.op, SiteKind::DivisionByZero, self.node);
            let is_nonzero = matches!(self.kernel.expr(b), Expr::Const(c) if c.as_i64() != 0);
            if let (Some(mask), false) = (self.mask, is_nonzero) {
                let one = self.kernel.constant(Scalar::Int(1), dtype);
                b = self.kernel.select(mask, b, one);
            }
        }
        self.kernel.binary(op, a, b, site).0
    }

    fn select(&mut self, mask: u32, a: u32, b: u32) -> u32 {
        self.kernel.select(Val(mask), Val(a), Val(b)).0
    }

    fn constant(&mut self, value: f64, like: u32) -> u32 {
        let dtype = self.kernel.dtype(Val(like));
        let value = match dtype.is_float() {
            // Constants of f16 and bf16 expressions are f32, as the expression is.
            true if dtype.size() < 4 => {
                let value = Scalar::Float(value).cast(DType::F32);
                return self.kernel.def(Expr::Const(value), dtype).0;
            }
            true => Scalar::Float(value),
            false => Scalar::Int(value as i64),
        };
        self.kernel.constant(value, dtype).0
    }

    fn is_float(&self, a: u32) -> bool {
        self.kernel.dtype(Val(a)).is_float()
    }
}

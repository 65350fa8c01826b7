//! Matrix decompositions, inverses and determinants.
//!
//! The formulas are those of PyTorch's `FunctionsManual.cpp` for real matrices, unless a rule states another source.
//! Terms of a formula that divide by zero are left out.

mod formula;

use crate::erased::{Erased, Id};
use crate::reduce::products_before;
use crate::{Call, Gradients};
use formula::Formula;
use kiln_base::linalg::Routine;
use kiln_base::prim::Reduction;
use kiln_ir::linalg::{
    apply, matrices, min_dim, permutation, position_mask, split_packed, unit_lower,
};
use kiln_ir::ops::{Barrier, Concat, Iota};
use kiln_ir::{Builder, DType, Dim, Fact, OpError, Pw, Shape};
use smallvec::smallvec;
use std::f64::consts::PI;

pub(crate) fn pullback(
    b: &mut Erased<'_>,
    routine: Routine,
    call: &Call<'_, Id>,
    g: &Id,
) -> Result<Gradients<Id>, OpError> {
    let (a, y) = (&call.inputs[0], &call.outputs[0]);
    let mut f = Formula(b);
    let gradient = match routine {
        Routine::Cholesky => f.cholesky(y, g)?,
        Routine::Lu => f.lu(a, y, g)?,
        Routine::Qr => f.qr(a, y, g)?,
        Routine::QrComplete => f.qr_complete(a, y, g)?,
        Routine::Svd | Routine::SvdFull => f.svd(a, y, g, routine == Routine::SvdFull)?,
        Routine::SingularValues => f.singular_values(a, g)?,
        Routine::Eigh => f.eigh(a, y, g)?,
        Routine::Eigenvalues => f.eigenvalues(a, g)?,
        Routine::Inverse | Routine::InverseUnchecked => f.inverse(y, g)?,
        Routine::Determinant => {
            let cofactors = apply(f.0, Routine::Cofactors, std::slice::from_ref(a))?;
            let g = f.as_matrices(g)?;
            f.pw(Pw::Mul, &g, &cofactors)?
        }
        Routine::SignAndLog => {
            let g = f.narrow(g, 1i64, 1i64)?;
            let g = f.unsqueezed(&g)?;
            let inverse = apply(f.0, Routine::InverseUnchecked, std::slice::from_ref(a))?;
            let inverse = f.t(&inverse)?;
            f.pw(Pw::Mul, &g, &inverse)?
        }
        Routine::Cofactors => f.cofactors(a, g)?,
        Routine::PseudoInverse => {
            return Ok(smallvec![Some(f.pseudo_inverse(a, y, g)?), None, None]);
        }
        Routine::Solve | Routine::SolveTriangular { .. } => {
            return f.solve(routine, call, g);
        }
        Routine::Rows => return Ok(smallvec![None]),
    };
    Ok(smallvec![Some(gradient)])
}

impl Formula<'_, '_> {
    /// `½ L⁻ᵀ (Φ + Φᵀ) L⁻¹` with Φ the lower triangle of `Lᵀ gL`, half of its diagonal.
    fn cholesky(&mut self, l: &Id, g: &Id) -> Result<Id, OpError> {
        let phi = self.tm(l, g)?;
        let (lower, strict) = (self.tril(&phi, false)?, self.tril(&phi, true)?);
        let strict = self.t(&strict)?;
        let symmetric = self.add(&lower, &strict)?;
        let lt = self.t(l)?;
        let x = self.solve_left(&lt, &symmetric, true, false)?;
        let x = self.solve_right(l, &x, false, false)?;
        self.0.with(Pw::Mul, &x, 0.5)
    }

    /// See `linalg_lu_backward`. For the square part: `P L⁻ᵀ (tril(Lᵀ gL, −1) + triu(gU Uᵀ)) U⁻ᵀ`. Columns beyond it
    /// are `U₂ = L⁻¹ A₂`, rows beyond it `L₂ = A₂ U⁻¹`.
    fn lu(&mut self, a: &Id, y: &Id, g: &Id) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let (_, m, n) = matrices(&fact)?;
        let k = min_dim(m, n)?;
        let shapes: [&[Dim]; 2] = [&[m.clone(), n.clone()], std::slice::from_ref(&k)];
        let [lu, pivots] = split_packed(self.0, y, shapes)?;
        let [g, _] = split_packed(self.0, g, shapes)?;
        let axis = fact.rank() - 2;
        let (square, g_square) = (self.corner(&lu, &k)?, self.corner(&g, &k)?);
        let (l, u) = (unit_lower(self.0, &square)?, self.triu(&square, false)?);
        let (gl, gu) = (self.tril(&g_square, true)?, self.triu(&g_square, false)?);
        let (mut to_l, mut to_u) = (self.tm(&l, &gl)?, self.mt(&gu, &u)?);
        let mut rectangle = None;
        if *n != k {
            let u2 = self.narrow(&lu, k.clone(), n - &k)?;
            let g2 = self.narrow(&g, k.clone(), n - &k)?;
            let correction = self.mt(&g2, &u2)?;
            to_l = self.sub(&to_l, &correction)?;
            let lt = self.t(&l)?;
            rectangle = Some((axis + 1, self.solve_left(&lt, &g2, true, true)?));
        } else if *m != k {
            let l2 = self.0.narrow(&lu, axis, k.clone(), m - &k)?;
            let g2 = self.0.narrow(&g, axis, k.clone(), m - &k)?;
            let correction = self.tm(&l2, &g2)?;
            to_u = self.sub(&to_u, &correction)?;
            let ut = self.t(&u)?;
            rectangle = Some((axis, self.solve_right(&ut, &g2, false, false)?));
        }
        let (to_l, to_u) = (self.tril(&to_l, true)?, self.triu(&to_u, false)?);
        let x = self.add(&to_l, &to_u)?;
        let (lt, ut) = (self.t(&l)?, self.t(&u)?);
        let x = self.solve_left(&lt, &x, true, true)?;
        let mut x = self.solve_right(&ut, &x, false, false)?;
        if let Some((axis, rectangle)) = rectangle {
            x = self.0.op(Concat { axis }, &[x, rectangle])?;
        }
        let pivots = self.0.cast(&pivots, DType::I32)?;
        let p = permutation(self.0, &pivots, m, fact.dtype)?;
        self.mm(&p, &x)
    }

    fn qr(&mut self, a: &Id, y: &Id, g: &Id) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let (_, m, n) = matrices(&fact)?;
        let k = min_dim(m, n)?;
        let shapes: [&[Dim]; 2] = [&[m.clone(), k.clone()], &[k.clone(), n.clone()]];
        let [q, r] = split_packed(self.0, y, shapes)?;
        let [gq, gr] = split_packed(self.0, g, shapes)?;
        if *n == k {
            return self.qr_tall(&q, &r, &gq, &gr);
        }
        // A = (A₁ A₂) with a square A₁ = Q R₁, so that R₂ = Qᵀ A₂.
        let (r1, g1) = (self.first_columns(&r, &k)?, self.first_columns(&gr, &k)?);
        let r2 = self.narrow(&r, k.clone(), n - &k)?;
        let g2 = self.narrow(&gr, k.clone(), n - &k)?;
        let a2 = self.mm(&q, &r2)?;
        let from_r2 = self.mt(&a2, &g2)?;
        let gq = self.add(&gq, &from_r2)?;
        let left_columns = self.qr_tall(&q, &r1, &gq, &g1)?;
        let right_columns = self.mm(&q, &g2)?;
        let axis = fact.rank() - 1;
        self.0.op(Concat { axis }, &[left_columns, right_columns])
    }

    /// `(gQ + Q S) R⁻ᵀ` with a symmetric S whose upper triangle is that of `gR Rᵀ − Qᵀ gQ` (Walter and Lehmann,
    /// Algorithmic differentiation of linear algebra functions).
    fn qr_tall(&mut self, q: &Id, r: &Id, gq: &Id, gr: &Id) -> Result<Id, OpError> {
        let (x, y) = (self.mt(gr, r)?, self.tm(q, gq)?);
        let x = self.sub(&x, &y)?;
        let (upper, strict) = (self.triu(&x, false)?, self.triu(&x, true)?);
        let strict = self.t(&strict)?;
        let s = self.add(&upper, &strict)?;
        let qs = self.mm(q, &s)?;
        let x = self.add(gq, &qs)?;
        let rt = self.t(r)?;
        self.solve_right(&rt, &x, false, false)
    }

    fn qr_complete(&mut self, a: &Id, y: &Id, g: &Id) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let (_, m, n) = matrices(&fact)?;
        if min_dim(m, n)? != *m {
            return Err(OpError::new(
                "The QR decomposition is not differentiable when mode='complete' and nrows > ncols",
            ));
        }
        self.qr(a, y, g)
    }

    /// `U ((skew(Uᵀ gU) / E) S + S (skew(Vᵀ gV) / E) + gS) Vᵀ`, where `Eᵢⱼ = Sⱼ² − Sᵢ²`, plus the parts of `gU` and
    /// `gV` outside the spaces of U and V, divided by S. Of the full U and V, only the first k vectors are used.
    fn svd(&mut self, a: &Id, y: &Id, g: &Id, full: bool) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let (_, m, n) = matrices(&fact)?;
        let k = min_dim(m, n)?;
        let (rows, columns) = if full { (m, n) } else { (&k, &k) };
        let (u_shape, vt_shape) = ([m.clone(), rows.clone()], [columns.clone(), n.clone()]);
        let axis = fact.rank() - 2;
        let mut unpack = |packed: &Id| -> Result<[Id; 3], OpError> {
            let [u, s, vt] = split_packed(
                self.0,
                packed,
                [&u_shape, std::slice::from_ref(&k), &vt_shape],
            )?;
            let vt = self.0.narrow(&vt, axis, 0i64, k.clone())?;
            Ok([self.first_columns(&u, &k)?, s, self.t(&vt)?])
        };
        let ([u, s, v], [gu, gs, gv]) = (unpack(y)?, unpack(g)?);
        let row = self.row(&s)?;
        let column = self.unsqueezed(&s)?;
        let largest = self.largest(&s)?;
        let e = [self.add(&row, &column)?, self.sub(&row, &column)?];
        let from_u = self.skew_quotient(&u, &gu, &e, &largest)?;
        let from_u = self.pw(Pw::Mul, &from_u, &row)?;
        let from_v = self.skew_quotient(&v, &gv, &e, &largest)?;
        let from_v = self.pw(Pw::Mul, &from_v, &column)?;
        let middle = self.add(&from_u, &from_v)?;
        let from_s = self.diagonal(&gs, &middle)?;
        let middle = self.add(&middle, &from_s)?;
        let x = self.mm(&u, &middle)?;
        let mut x = self.mt(&x, &v)?;
        if *m != k {
            let residual = self.outside_space(&u, &gu, &row, &largest)?;
            let residual = self.mt(&residual, &v)?;
            x = self.add(&x, &residual)?;
        }
        if *n != k {
            let residual = self.outside_space(&v, &gv, &row, &largest)?;
            let residual = self.mt(&u, &residual)?;
            x = self.add(&x, &residual)?;
        }
        Ok(x)
    }

    /// `(Uᵀ gU − gUᵀ U) / E`, with 0 on the diagonal; `e` holds two factors of E.
    fn skew_quotient(&mut self, u: &Id, gu: &Id, e: &[Id; 2], largest: &Id) -> Result<Id, OpError> {
        let x = self.tm(u, gu)?;
        let xt = self.t(&x)?;
        let skew = self.sub(&x, &xt)?;
        let quotient = self.quotient(&skew, &e[0], largest)?;
        self.quotient(&quotient, &e[1], largest)
    }

    /// `(gU − U Uᵀ gU) / S`.
    fn outside_space(&mut self, u: &Id, gu: &Id, s: &Id, largest: &Id) -> Result<Id, OpError> {
        let projection = self.tm(u, gu)?;
        let projection = self.mm(u, &projection)?;
        let residual = self.sub(gu, &projection)?;
        self.quotient(&residual, s, largest)
    }

    /// `U gS Vᵀ`.
    fn singular_values(&mut self, a: &Id, g: &Id) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let (_, m, n) = matrices(&fact)?;
        let k = min_dim(m, n)?;
        let packed = apply(self.0, Routine::Svd, std::slice::from_ref(a))?;
        let (u_shape, vt_shape) = ([m.clone(), k.clone()], [k.clone(), n.clone()]);
        let [u, _, vt] = split_packed(self.0, &packed, [&u_shape, &[k], &vt_shape])?;
        let row = self.row(g)?;
        let scaled = self.pw(Pw::Mul, &u, &row)?;
        self.mm(&scaled, &vt)
    }

    /// `V ((Vᵀ gV) / E + gL) Vᵀ`, where `Eᵢⱼ = Lⱼ − Lᵢ` and the diagonal of the quotient is 0.
    fn eigh(&mut self, a: &Id, y: &Id, g: &Id) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let (_, _, n) = matrices(&fact)?;
        let shapes: [&[Dim]; 2] = [std::slice::from_ref(n), &[n.clone(), n.clone()]];
        let [l, v] = split_packed(self.0, y, shapes)?;
        let [gl, gv] = split_packed(self.0, g, shapes)?;
        let (row, column) = (self.row(&l)?, self.unsqueezed(&l)?);
        let e = self.sub(&row, &column)?;
        let x = self.tm(&v, &gv)?;
        let largest = self.largest(&l)?;
        let x = self.quotient(&x, &e, &largest)?;
        let of_l = self.diagonal(&gl, &x)?;
        let x = self.add(&x, &of_l)?;
        let x = self.mm(&v, &x)?;
        self.mt(&x, &v)
    }

    /// `V gL Vᵀ`.
    fn eigenvalues(&mut self, a: &Id, g: &Id) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let (_, _, n) = matrices(&fact)?;
        let packed = apply(self.0, Routine::Eigh, std::slice::from_ref(a))?;
        let [_, v] = split_packed(
            self.0,
            &packed,
            [std::slice::from_ref(n), &[n.clone(), n.clone()]],
        )?;
        let row = self.row(g)?;
        let scaled = self.pw(Pw::Mul, &v, &row)?;
        self.mt(&scaled, &v)
    }

    /// `−Yᵀ gY Yᵀ`.
    fn inverse(&mut self, y: &Id, g: &Id) -> Result<Id, OpError> {
        let yt = self.t(y)?;
        let x = self.mm(&yt, g)?;
        let x = self.mm(&x, &yt)?;
        self.neg(&x)
    }

    /// The derivative of the cofactors, even for a singular matrix. Its own derivative is that of
    /// [`Formula::cofactors_by_nodes`].
    fn cofactors(&mut self, a: &Id, g: &Id) -> Result<Id, OpError> {
        let value = self.cofactors_by_svd(a, g)?;
        let differentiable = self.cofactors_by_nodes(a, g)?;
        self.pw(Pw::Surrogate, &value, &differentiable)
    }

    /// With `A = U S Vᵀ`, `H = det(U) det(V) Uᵀ gC V` and `Mᵢⱼ = Π Sₖ` over k ≠ i, j: `U B Vᵀ`, where
    /// `Bⱼᵢ = −Hᵢⱼ Mᵢⱼ` and `Bⱼⱼ = Σᵢ Hᵢᵢ Mᵢⱼ` over i ≠ j.
    fn cofactors_by_svd(&mut self, a: &Id, g: &Id) -> Result<Id, OpError> {
        let [u, s, vt] = self.square_svd(a)?;
        let mut h = self.tm(&u, g)?;
        h = self.mt(&h, &vt)?;
        for q in [&u, &vt] {
            let sign = apply(self.0, Routine::Determinant, std::slice::from_ref(q))?;
            let sign = self.as_matrices(&sign)?;
            h = self.pw(Pw::Mul, &h, &sign)?;
        }
        let m = self.products_except_two(&s, &h)?;
        let hm = self.pw(Pw::Mul, &h, &m)?;
        let off_diagonal = self.t(&hm)?;
        let off_diagonal = self.neg(&off_diagonal)?;
        // The diagonal of h, as a column that broadcasts to every column.
        let equal = position_mask(self.0, Pw::Eq, &h)?;
        let diagonal = self.masked(&equal, &h)?;
        let last = self.0.fact(&h).rank() - 1;
        let diagonal = self.0.reduce_keepdim(Reduction::Sum, &diagonal, &[last])?;
        let on_diagonal = self.pw(Pw::Mul, &diagonal, &m)?;
        let on_diagonal = self.0.sum(&on_diagonal, &[last - 1])?;
        let on_diagonal = self.diagonal(&on_diagonal, &h)?;
        let b = self.add(&off_diagonal, &on_diagonal)?;
        let x = self.mm(&u, &b)?;
        self.mm(&x, &vt)
    }

    fn square_svd(&mut self, a: &Id) -> Result<[Id; 3], OpError> {
        let n = self.0.fact(a).shape.last().cloned().unwrap_or(Dim::ONE);
        let packed = apply(self.0, Routine::Svd, std::slice::from_ref(a))?;
        let square = [n.clone(), n.clone()];
        split_packed(self.0, &packed, [&square, &[n], &square])
    }

    /// Returns, for each i and j, the product of the elements of `s` except these two; 0 where i = j.
    fn products_except_two(&mut self, s: &Id, like: &Id) -> Result<Id, OpError> {
        let last = self.0.fact(s).rank() - 1;
        let before = products_before(self.0, s, last, false)?;
        let after = products_before(self.0, s, last, true)?;
        let (before, after) = (self.unsqueezed(&before)?, self.row(&after)?);
        // The elements between i and j, where i is the smaller.
        let above = position_mask(self.0, Pw::Lt, like)?;
        let ones = self.0.scalar_like(1.0, s)?;
        let row = self.row(s)?;
        let shape = self.0.fact(like).shape;
        let row = self.0.broadcast_to(&row, &shape)?;
        let factors = self.0.pointwise(Pw::Select, &[above, row, ones])?;
        let between = products_before(self.0, &factors, last + 1, false)?;
        let product = self.pw(Pw::Mul, &before, &between)?;
        let product = self.pw(Pw::Mul, &product, &after)?;
        let upper = self.triu(&product, true)?;
        let lower = self.t(&upper)?;
        self.add(&upper, &lower)
    }

    /// The derivative of `C = det(A) A⁻ᵀ`: `⟨gC, A⁻ᵀ⟩ C − C gCᵀ A⁻ᵀ`. At `A + λD` it and its derivatives are
    /// polynomials in λ of degree at most n. Their values at 2n nodes around 0 determine the value at 0.
    fn cofactors_by_nodes(&mut self, a: &Id, g: &Id) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let rank = fact.rank();
        if fact.shape[rank - 1].is(0) {
            return Ok(g.clone());
        }
        let [lambda, weight] = self.chebyshev_nodes(&fact)?;
        let direction = self.small_vectors(a, &lambda)?;
        let direction = self.pw(Pw::Mul, &lambda, &direction)?;
        let shifted = self.add(a, &direction)?;
        let shape = self.0.fact(&shifted).shape;
        let g = self.0.broadcast_to(g, &shape)?;
        let pair = apply(self.0, Routine::SignAndLog, std::slice::from_ref(&shifted))?;
        let sign = self.narrow(&pair, 0i64, 1i64)?;
        let log = self.narrow(&pair, 1i64, 1i64)?;
        let size = self.0.pointwise(Pw::Exp, &[log])?;
        let det = self.pw(Pw::Mul, &sign, &size)?;
        let det = self.unsqueezed(&det)?;
        let inverse = apply(self.0, Routine::InverseUnchecked, &[shifted])?;
        let inverse = self.t(&inverse)?;
        let pair = self.pw(Pw::Mul, &g, &inverse)?;
        let axes = [rank - 1, rank];
        let sum = self.0.reduce_keepdim(Reduction::Sum, &pair, &axes)?;
        let inner_term = self.pw(Pw::Mul, &sum, &inverse)?;
        let outer_term = self.mt(&inverse, &g)?;
        let outer_term = self.mm(&outer_term, &inverse)?;
        let cotangent = self.sub(&inner_term, &outer_term)?;
        let cotangent = self.pw(Pw::Mul, &cotangent, &det)?;
        let cotangent = self.pw(Pw::Mul, &cotangent, &weight)?;
        self.0.sum(&cotangent, &[0])
    }

    /// Returns 2n Chebyshev nodes along a leading dim of matrices `[n, n]`, and the weights of their values for the
    /// value at 0.
    fn chebyshev_nodes(&mut self, matrices: &Fact) -> Result<[Id; 2], OpError> {
        let mut shape = Shape::from_elem(Dim::ONE, matrices.rank() + 1);
        shape[0] = &matrices.shape[matrices.rank() - 1] * &Dim::Const(2);
        let len = shape[0].clone();
        let number = self.0.op(Iota { len }, &[])?;
        let number = self.0.reshape(&number, &shape)?;
        let number = self.0.cast(&number, matrices.dtype)?;
        let last = self.0.reduce_keepdim(Reduction::Max, &number, &[0])?;
        let count = self.0.with(Pw::Add, &last, 1.0)?;
        let angle = self.0.with(Pw::Add, &number, 0.5)?;
        let angle = self.0.with(Pw::Mul, &angle, PI)?;
        let angle = self.pw(Pw::Div, &angle, &count)?;
        let half_turns = self.0.with(Pw::Mul, &number, PI)?;
        let sign = self.0.pointwise(Pw::Cos, &[half_turns])?;
        let size = self.0.pointwise(Pw::Tan, std::slice::from_ref(&angle))?;
        let weight = self.pw(Pw::Mul, &sign, &size)?;
        let total = self.0.reduce_keepdim(Reduction::Sum, &weight, &[0])?;
        let weight = self.pw(Pw::Div, &weight, &total)?;
        Ok([self.0.pointwise(Pw::Cos, &[angle])?, weight])
    }

    /// Returns the matrix D of the singular vectors of A with small singular values, as large as A, so that `A + λD`
    /// is regular for these λ. No gradient flows to it.
    fn small_vectors(&mut self, a: &Id, lambda: &Id) -> Result<Id, OpError> {
        let detached = Barrier { detach: true };
        let detached = self.0.op(detached, std::slice::from_ref(a))?;
        let [u, s, vt] = self.square_svd(&detached)?;
        let largest = self.largest(&s)?;
        let is_zero = self.0.with(Pw::Eq, &largest, 0.0)?;
        let ones = self.0.scalar_like(1.0, &largest)?;
        let size = self.0.pointwise(Pw::Select, &[is_zero, ones, largest])?;
        let lambda = self.0.pointwise(Pw::Abs, std::slice::from_ref(lambda))?;
        let min_lambda = self.0.reduce_keepdim(Reduction::Min, &lambda, &[0])?;
        let min_lambda = self.0.reshape(&min_lambda, &[])?;
        let bound = self.pw(Pw::Mul, &size, &min_lambda)?;
        let bound = self.0.with(Pw::Mul, &bound, 0.5)?;
        let s = self.row(&s)?;
        let small = self.pw(Pw::Lt, &s, &bound)?;
        let zero = self.0.scalar_like(0.0, &size)?;
        let sizes = self.0.pointwise(Pw::Select, &[small, size, zero])?;
        let d = self.pw(Pw::Mul, &u, &sizes)?;
        self.mm(&d, &vt)
    }

    /// `−(Y K)ᵀ + K Yᵀ − (A Y)(K Yᵀ) + (Yᵀ Y)(gYᵀ − K A)` with `K = gYᵀ Y`, if A is not tall (Golub and Pereyra, The
    /// differentiation of pseudo-inverses). For a tall A, that of its transpose.
    fn pseudo_inverse(&mut self, a: &Id, y: &Id, g: &Id) -> Result<Id, OpError> {
        let fact = self.0.fact(a);
        let (_, m, n) = matrices(&fact)?;
        if min_dim(m, n)? != *m {
            let (a, y, g) = (self.t(a)?, self.t(y)?, self.t(g)?);
            let x = self.pseudo_inverse(&a, &y, &g)?;
            return self.t(&x);
        }
        let (gt, yt) = (self.t(g)?, self.t(y)?);
        let k = self.mm(&gt, y)?;
        let ky = self.mm(&k, &yt)?;
        let yk = self.mm(y, &k)?;
        let yk = self.t(&yk)?;
        let x = self.sub(&ky, &yk)?;
        let ay = self.mm(a, y)?;
        let ayky = self.mm(&ay, &ky)?;
        let x = self.sub(&x, &ayky)?;
        let ka = self.mm(&k, a)?;
        let difference = self.sub(&gt, &ka)?;
        let yty = self.mm(&yt, y)?;
        let row_space_term = self.mm(&yty, &difference)?;
        self.add(&x, &row_space_term)
    }

    /// `gB = A⁻ᵀ gX` and `gA = −gB Xᵀ`; for a triangular A, gA is restricted to its triangle.
    fn solve(
        &mut self,
        routine: Routine,
        call: &Call<'_, Id>,
        g: &Id,
    ) -> Result<Gradients<Id>, OpError> {
        let (a, x) = (&call.inputs[0], &call.outputs[0]);
        let a_t = self.t(a)?;
        let gb = match routine {
            Routine::SolveTriangular { upper, unit } => self.solve_left(&a_t, g, !upper, unit)?,
            _ => apply(self.0, routine, &[a_t, g.clone()])?,
        };
        if !call.needs_grad[0] {
            return Ok(smallvec![None, Some(gb)]);
        }
        let ga = self.mt(&gb, x)?;
        let ga = self.neg(&ga)?;
        let ga = match routine {
            Routine::SolveTriangular { upper: true, unit } => self.triu(&ga, unit)?,
            Routine::SolveTriangular { unit, .. } => self.tril(&ga, unit)?,
            _ => ga,
        };
        Ok(smallvec![Some(ga), Some(gb)])
    }
}

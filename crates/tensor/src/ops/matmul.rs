//! Matrix products.

use super::args::{DimArgs, Int, IntList, check_alike};
use crate::operand::{AsTensor, MaybeTensor};
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{Scalar, Tensor, promote};
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, broadcast_shapes, ensure};

options! {
    /// The factors of [`Tensor::addmm_with`] and similar functions: `beta · self + alpha · product`.
    ///
    /// ```
    /// use kiln_tensor::{Factors, Tensor};
    /// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    /// let y = x.addmm_with(&x, &x, Factors::new().beta(0.0).alpha(0.5));
    /// assert_eq!(y.to_vec::<f32>()?, [3.5, 5.0, 7.5, 11.0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Factors () {
        /// The factor of the tensor that is added to (default 1). With 0, its values are ignored.
        beta: Scalar = 1i64,
        /// The factor of the product (default 1).
        alpha: Scalar = 1i64,
    }
}

#[on_cells]
impl Tensor {
    /// The matrix product (`torch.matmul`): vectors are rows on the left and columns on the right, and
    /// batch dims broadcast. Dtypes must be equal.
    #[autocast]
    pub fn matmul(&self, other: impl AsTensor) -> Tensor {
        compose("matmul", &[self, other], |b| matmul(b, self, other))
    }

    /// The product of two matrices `[n, k]` and `[k, m]`.
    #[autocast]
    pub fn mm(&self, mat2: impl AsTensor) -> Tensor {
        product_of_ranks("mm", self, 2, mat2, 2)
    }

    /// The products of two batches of matrices `[b, n, k]` and `[b, k, m]`.
    #[autocast]
    pub fn bmm(&self, mat2: impl AsTensor) -> Tensor {
        product_of_ranks("bmm", self, 3, mat2, 3)
    }

    /// The product of a matrix `[n, k]` and a vector `[k]`.
    #[autocast]
    pub fn mv(&self, vec: impl AsTensor) -> Tensor {
        product_of_ranks("mv", self, 2, vec, 1)
    }

    /// The dot product of two vectors.
    #[autocast]
    pub fn dot(&self, tensor: impl AsTensor) -> Tensor {
        product_of_ranks("dot", self, 1, tensor, 1)
    }

    /// The products of each element of one vector with each of another, `[n, m]`, promoted.
    pub fn outer(&self, vec2: impl AsTensor) -> Tensor {
        compose("outer", &[self, vec2], |b| {
            ensure!(
                self.ndim() == 1 && vec2.ndim() == 1,
                "needs two vectors, not {} and {}",
                self.fact(),
                vec2.fact()
            );
            let (x, y) = b.promoted(self, vec2)?;
            let x = b.unsqueeze(&x, 1)?;
            b.times(&x, &y)
        })
    }

    /// The sums of products over the last dims of both; if one is a scalar, their product.
    pub fn inner(&self, other: impl AsTensor) -> Tensor {
        compose("inner", &[self, other], |b| {
            if self.ndim() == 0 || other.ndim() == 0 {
                let (x, y) = b.promoted(self, other)?;
                return b.times(&x, &y);
            }
            let (n, m) = (self.ndim() as i64, other.ndim() as i64);
            contract(b, self, other, &[n - 1], &[m - 1])
        })
    }

    /// `self + mat1 · mat2` with the matrices `[n, k]` and `[k, m]`; self broadcasts.
    pub fn addmm(&self, mat1: impl AsTensor, mat2: impl AsTensor) -> Tensor {
        self.addmm_with(mat1, mat2, Factors::new())
    }

    /// `beta · self + alpha · mat1 · mat2`, see [`Tensor::addmm`].
    #[autocast]
    pub fn addmm_with(&self, mat1: impl AsTensor, mat2: impl AsTensor, factors: Factors) -> Tensor {
        add_product("addmm", self, (mat1, 2), (mat2, 2), factors)
    }

    /// `self + mat · vec` with a matrix `[n, k]` and a vector `[k]`.
    pub fn addmv(&self, mat: impl AsTensor, vec: impl AsTensor) -> Tensor {
        self.addmv_with(mat, vec, Factors::new())
    }

    /// `beta · self + alpha · mat · vec`, see [`Tensor::addmv`].
    #[autocast]
    pub fn addmv_with(&self, mat: impl AsTensor, vec: impl AsTensor, factors: Factors) -> Tensor {
        add_product("addmv", self, (mat, 2), (vec, 1), factors)
    }

    /// `self + batch1 · batch2` with batches `[b, n, k]` and `[b, k, m]`; self broadcasts.
    pub fn baddbmm(&self, batch1: impl AsTensor, batch2: impl AsTensor) -> Tensor {
        self.baddbmm_with(batch1, batch2, Factors::new())
    }

    /// `beta · self + alpha · batch1 · batch2`, see [`Tensor::baddbmm`].
    #[autocast]
    pub fn baddbmm_with(
        &self,
        batch1: impl AsTensor,
        batch2: impl AsTensor,
        factors: Factors,
    ) -> Tensor {
        add_product("baddbmm", self, (batch1, 3), (batch2, 3), factors)
    }

    /// `self + Σ batch1 · batch2` over the batch, with `[b, n, k]` and `[b, k, m]`; self broadcasts.
    pub fn addbmm(&self, batch1: impl AsTensor, batch2: impl AsTensor) -> Tensor {
        self.addbmm_with(batch1, batch2, Factors::new())
    }

    /// `beta · self + alpha · Σ batch1 · batch2`, see [`Tensor::addbmm`].
    #[autocast]
    pub fn addbmm_with(
        &self,
        batch1: impl AsTensor,
        batch2: impl AsTensor,
        factors: Factors,
    ) -> Tensor {
        compose("addbmm", &[self, batch1, batch2], |b| {
            check_ranks((batch1, 3), (batch2, 3))?;
            // The sum over the batch becomes part of K in a single product.
            let [batches, m, k] = [0, 1, 2].map(|a| batch1.dims()[a].clone());
            ensure!(
                batch2.dims()[1] == k,
                "{} and {} can't be multiplied: columns and rows differ in number",
                batch1.fact(),
                batch2.fact()
            );
            let all_k = &batches * &k;
            let left = b.permute(batch1, &[1, 0, 2])?;
            let left = b.reshape(&left, &[m, all_k.clone()])?;
            let right = b.reshape(batch2, &[all_k, batch2.dims()[2].clone()])?;
            sum_with_product(b, self, (&left, 2), (&right, 2), &factors)
        })
    }

    /// `self + vec1 ⊗ vec2` with vectors `[n]` and `[m]`, promoted; self broadcasts. On bool, addition is "or" and
    /// multiplication "and".
    pub fn addr(&self, vec1: impl AsTensor, vec2: impl AsTensor) -> Tensor {
        self.addr_with(vec1, vec2, Factors::new())
    }

    /// `beta · self + alpha · vec1 ⊗ vec2`, see [`Tensor::addr`].
    #[autocast]
    pub fn addr_with(&self, vec1: impl AsTensor, vec2: impl AsTensor, factors: Factors) -> Tensor {
        compose("addr", &[self, vec1, vec2], |b| {
            ensure!(
                vec1.ndim() == 1 && vec2.ndim() == 1,
                "needs two vectors, not {} and {}",
                vec1.fact(),
                vec2.fact()
            );
            let dtype = promote::common_dtype(&[self, vec1, vec2])?;
            let operands = [self, vec1, vec2].map(|t| b.cast(t, super::short::wide(dtype)));
            let [x, left, right] = operands;
            let (x, left, right) = (x?, b.unsqueeze(&left?, 1)?, right?);
            let product = b.times(&left, &right)?;
            let x = b.broadcast_to(&x, product.dims())?;
            let y = scaled_sum(b, &x, &product, &factors)?;
            b.cast(&y, dtype)
        })
    }

    /// `self · weightᵀ` with a weight `[out, in]` (or `[in]`) and self `[.., in]`.
    pub fn linear(&self, weight: impl AsTensor) -> Tensor {
        self.linear_with(weight, None::<Tensor>)
    }

    /// `self · weightᵀ + bias`, see [`Tensor::linear`], with a bias `[out]` if there is one.
    #[autocast]
    pub fn linear_with(&self, weight: impl AsTensor, bias: impl MaybeTensor) -> Tensor {
        if let Some(y) = crate::quantization::linear(self, weight, bias) {
            return y;
        }
        let mut operands = vec![self, weight];
        operands.extend(bias);
        compose("linear", &operands, |b| {
            check_alike(self, "input", weight, "weight")?;
            ensure!(
                (1..=2).contains(&weight.ndim()),
                "the weight must be [out, in] or [in], not {}",
                weight.fact()
            );
            let (x, w) = super::conv::widen_for_bias(b, self, weight, bias)?;
            let transposed = match w.ndim() {
                1 => w,
                _ => b.transposed(&w)?,
            };
            let y = matmul(b, &x, &transposed).map_err(|_| {
                OpError(format!(
                    "the input {} does not fit the weight {}, which takes {} features",
                    self.fact(),
                    weight.fact(),
                    weight.dims()[weight.ndim() - 1]
                ))
            })?;
            let Some(bias) = bias else { return Ok(y) };
            check_alike(self, "input", bias, "bias")?;
            let wide_bias = b.widen(bias)?;
            let sum = b.binary(Pw::Add, &y, &wide_bias)?;
            ensure!(
                sum.dims() == y.dims(),
                "the bias {} does not fit the output {}",
                bias.fact(),
                y.fact()
            );
            b.cast(&sum, self.dtype())
        })
    }

    /// The sums of products over the last `dims` dims of self and the first `dims` dims of other.
    #[autocast]
    pub fn tensordot(&self, other: impl AsTensor, dims: impl Into<Int>) -> Tensor {
        compose("tensordot", &[self, other], |b| {
            let n = self.ndim() as i64;
            ensure!(
                (0..=n.min(other.ndim() as i64)).contains(&dims),
                "can't contract {dims} dims of {} and {}",
                self.fact(),
                other.fact()
            );
            let left: Vec<i64> = (n - dims..n).collect();
            let right: Vec<i64> = (0..dims).collect();
            contract(b, self, other, &left, &right)
        })
    }

    /// The sums of products over pairs of dims of self and other.
    #[autocast]
    pub fn tensordot_dims(
        &self,
        other: impl AsTensor,
        dims_self: impl Into<IntList>,
        dims_other: impl Into<IntList>,
    ) -> Tensor {
        compose("tensordot", &[self, other], |b| {
            contract(b, self, other, &dims_self.0, &dims_other.0)
        })
    }
}

impl Recorder {
    /// `x · y`, "and" on bool.
    pub(crate) fn times(&mut self, x: &Tensor, y: &Tensor) -> Recorded {
        let bool = x.dtype() == crate::DType::Bool;
        self.binary(if bool { Pw::And } else { Pw::Mul }, x, y)
    }
}

/// Records a product of operands of given ranks.
#[track_caller]
fn product_of_ranks(called: &'static str, x: &Tensor, n: usize, y: &Tensor, m: usize) -> Tensor {
    compose(called, &[x, y], |b| {
        check_ranks((x, n), (y, m))?;
        matmul(b, x, y)
    })
}

fn check_ranks((x, n): (&Tensor, usize), (y, m): (&Tensor, usize)) -> Result<(), OpError> {
    ensure!(
        x.ndim() == n && y.ndim() == m,
        "needs tensors of {n} and {m} dims, not {} and {}",
        x.fact(),
        y.fact()
    );
    ensure!(
        n < 3 || x.dims()[0] == y.dims()[0],
        "{} and {} differ in the number of matrices",
        x.fact(),
        y.fact()
    );
    Ok(())
}

/// `beta · x + alpha · left · right`; with a beta of 0 the values of x are ignored.
#[track_caller]
fn add_product(
    called: &'static str,
    x: &Tensor,
    left: (&Tensor, usize),
    right: (&Tensor, usize),
    factors: Factors,
) -> Tensor {
    compose(called, &[x, left.0, right.0], |b| {
        sum_with_product(b, x, left, right, &factors)
    })
}

fn sum_with_product(
    b: &mut Recorder,
    x: &Tensor,
    left: (&Tensor, usize),
    right: (&Tensor, usize),
    factors: &Factors,
) -> Recorded {
    check_ranks(left, right)?;
    check_alike(x, "added tensor", left.0, "product")?;
    check_alike(left.0, "left operand", right.0, "right operand")?;
    let (l, r) = (b.widen(left.0)?, b.widen(right.0)?);
    let product = matmul(b, &l, &r)?;
    let added = b.broadcast_to(x, product.dims())?;
    let added = b.widen(&added)?;
    let y = scaled_sum(b, &added, &product, factors)?;
    b.cast(&y, x.dtype())
}

/// `beta · x + alpha · y`; with a beta of 0 the values of x are ignored. On bool the factors are truth values.
fn scaled_sum(b: &mut Recorder, x: &Tensor, y: &Tensor, factors: &Factors) -> Recorded {
    let (beta, alpha) = (factors.beta, factors.alpha);
    let bool = x.dtype() == crate::DType::Bool;
    for f in [beta, alpha] {
        ensure!(
            bool || f.kind() <= x.dtype().kind(),
            "a factor of {f} can't scale {}",
            x.dtype()
        );
    }
    let mut scaled = |t: &Tensor, factor: Scalar| match bool {
        true => b.with(Pw::And, t, factor.as_bool()),
        false if factor.as_f64() == 1.0 => Ok(t.clone()),
        false => b.with(Pw::Mul, t, factor),
    };
    let y = scaled(y, alpha)?;
    if beta.as_f64() == 0.0 {
        return b.connect(&y, x);
    }
    let x = scaled(x, beta)?;
    b.binary(if bool { Pw::Or } else { Pw::Add }, &x, &y)
}

/// `torch.matmul` of tensors with the same dtype.
pub(crate) fn matmul(b: &mut Recorder, x: &Tensor, y: &Tensor) -> Recorded {
    check_alike(x, "left operand", y, "right operand")?;
    if x.ndim() == 0 || y.ndim() == 0 {
        return Err(OpError::new(
            "operands must have at least one dim; multiply numbers with *",
        ));
    }
    let (row, column) = (x.ndim() == 1, y.ndim() == 1);
    let x2 = if row { b.unsqueeze(x, 0)? } else { x.clone() };
    let y2 = if column {
        b.unsqueeze(y, 1)?
    } else {
        y.clone()
    };
    let (mut left, mut right) = (Shape::from(x2.dims()), Shape::from(y2.dims()));
    let (l, r) = (split_off_matrix(&mut left), split_off_matrix(&mut right));
    let batch = common_batch((x, &left), (y, &right))?;
    let named = x.names.is_some() || y.names.is_some();
    if right.is_empty() && !left.is_empty() && !named {
        // With a single matrix on the right, all rows on the left form one product. (The reshapes would lose names of
        // dims.)
        let rows = &numel(&left) * &l[0];
        let x2 = b.reshape(&x2, &[rows, l[1].clone()])?;
        let product = b.product(&x2, &y2)?;
        left.extend([l[0].clone(), r[1].clone()]);
        let product = b.reshape(&product, &left)?;
        let unit_dims: &[usize] = if column { &[left.len() - 1] } else { &[] };
        return b.squeeze(&product, unit_dims);
    }
    let broadcast = |m: &Shape| -> Shape { batch.iter().chain(m).cloned().collect() };
    let x2 = b.broadcast_to(&x2, &broadcast(&l))?;
    let y2 = b.broadcast_to(&y2, &broadcast(&r))?;
    let product = b.product(&x2, &y2)?;
    let unit_dims = [(row, batch.len()), (column, batch.len() + 1)];
    let unit_dims: Vec<usize> = unit_dims.iter().filter(|d| d.0).map(|d| d.1).collect();
    b.squeeze(&product, &unit_dims)
}

/// Returns the batch dims that those of two tensors broadcast to.
pub(crate) fn common_batch(
    (x, left): (&Tensor, &[Dim]),
    (y, right): (&Tensor, &[Dim]),
) -> Result<Shape, OpError> {
    broadcast_shapes([left, right]).ok_or_else(|| {
        OpError(format!(
            "the batch dims of {} and {} do not broadcast",
            x.fact(),
            y.fact()
        ))
    })
}

/// Splits off the last two dims.
fn split_off_matrix(shape: &mut Shape) -> Shape {
    shape.drain(shape.len() - 2..).collect()
}

/// Sums of products over pairs of dims: one matrix product whose rows and columns are the other dims.
fn contract(b: &mut Recorder, x: &Tensor, y: &Tensor, left: &[i64], right: &[i64]) -> Recorded {
    check_alike(x, "left operand", y, "right operand")?;
    ensure!(
        left.len() == right.len(),
        "the dims {left:?} and {right:?} differ in number"
    );
    let (from_x, from_y) = (DimArgs::from(left).axes(x)?, DimArgs::from(right).axes(y)?);
    let (mut x, mut y) = (x.clone(), y.clone());
    for (&p, &q) in from_x.iter().zip(&from_y) {
        let (m, n) = (x.dims()[p].clone(), y.dims()[q].clone());
        ensure!(
            m == n || m.is(1) || n.is(1),
            "the sizes {m} and {n} of contracted dims differ"
        );
        // A dim of size 1 paired with a larger one: the larger one is summed first.
        if m != n && m.is(1) {
            y = b.sum(&y, &[q], true)?;
        } else if m != n {
            x = b.sum(&x, &[p], true)?;
        }
    }
    let other_axes = |t: &Tensor, used: &[usize]| -> Vec<usize> {
        (0..t.ndim()).filter(|a| !used.contains(a)).collect()
    };
    let (keep_x, keep_y) = (other_axes(&x, &from_x), other_axes(&y, &from_y));
    let sizes = |t: &Tensor, axes: &[usize]| -> Shape {
        axes.iter().map(|a| t.dims()[*a].clone()).collect()
    };
    let (rows, columns, inner) = (sizes(&x, &keep_x), sizes(&y, &keep_y), sizes(&x, &from_x));
    let order: Vec<usize> = keep_x.iter().chain(&from_x).copied().collect();
    let l = b.permute(&x, &order)?;
    let l = b.reshape(&l, &[numel(&rows), numel(&inner)])?;
    let order: Vec<usize> = from_y.iter().chain(&keep_y).copied().collect();
    let r = b.permute(&y, &order)?;
    let r = b.reshape(&r, &[numel(&inner), numel(&columns)])?;
    let product = b.product(&l, &r)?;
    let shape: Shape = rows.into_iter().chain(columns).collect();
    b.reshape(&product, &shape)
}

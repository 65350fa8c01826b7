//! PyTorch's in-place names, for cells.

use crate::{
    AsTensor, Combine, DimArg, DimArgs, Error, ErrorKind, Factors, Indices, Int, NanToNum, Other,
    Put, Result, Scalar, Tensor, Var,
};
use kiln_base::Loc;
use std::panic::Location;

macro_rules! in_place {
    ($($(#[$doc:meta])* $name:ident = $op:ident($($arg:ident: $type:ty),*);)*) => {
        /// Operations on the value of the cell, under PyTorch's in-place names. Each is an assignment: snapshots don't
        /// change. The result is cast to the cell's dtype and must have its shape; a float result of an integer cell is
        /// an error.
        ///
        /// ```
        /// use kiln_tensor::{Factors, Tensor, Var};
        /// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
        /// let w = Var::new(&x)?;
        /// w.addmm_with_(&x, &x, Factors::new().alpha(10))?;
        /// w.fill_diagonal_(0)?;
        /// assert_eq!(w.get().to_vec::<f32>()?, [0.0, 102.0, 153.0, 0.0]);
        /// # Ok::<(), kiln_tensor::Error>(())
        /// ```
        impl Var {
            $(#[doc = concat!("[`Tensor::", stringify!($op), "`].")]
            ///
            $(#[$doc])*
            ///
            /// # Errors
            /// If the operation is invalid or its result doesn't fit; the cell then keeps its value.
            #[track_caller]
            #[allow(clippy::needless_lifetimes)] // only some of the arguments name it
            pub fn $name<'a>(&'a self, $($arg: $type),*) -> Result<()> {
                self.hold(stringify!($name), &self.get().detach().$op($($arg),*))
            })*
        }
    };
}

in_place! {
    /// PyTorch's `x.add_(other)` or `x += other`.
    ///
    /// ```
    /// use kiln_tensor::{Tensor, Var};
    /// let weight = Var::new(&Tensor::from([1.0f32, 2.0]))?;
    /// let gradient = Tensor::from([0.5f32, 1.0]);
    /// weight.sub_(gradient * 0.1)?;
    /// assert_eq!(weight.get().to_vec::<f32>()?, [0.95, 1.9]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    add_ = add(other: impl Into<Other<'a>>);
    /// PyTorch's `x.sub_(other)` or `x -= other`.
    sub_ = sub(other: impl Into<Other<'a>>);
    /// PyTorch's `x.mul_(other)` or `x *= other`.
    mul_ = mul(other: impl Into<Other<'a>>);
    /// PyTorch's `x.div_(other)` or `x /= other`.
    div_ = div(other: impl Into<Other<'a>>);
    true_divide_ = true_divide(other: impl Into<Other<'a>>);
    floor_divide_ = floor_divide(other: impl Into<Other<'a>>);
    fmod_ = fmod(other: impl Into<Other<'a>>);
    remainder_ = remainder(other: impl Into<Other<'a>>);
    pow_ = pow(other: impl Into<Other<'a>>);
    float_power_ = float_power(other: impl Into<Other<'a>>);
    copysign_ = copysign(other: impl Into<Other<'a>>);
    atan2_ = atan2(other: impl Into<Other<'a>>);
    hypot_ = hypot(other: impl Into<Other<'a>>);
    xlogy_ = xlogy(other: impl Into<Other<'a>>);
    gcd_ = gcd(other: impl Into<Other<'a>>);
    lcm_ = lcm(other: impl Into<Other<'a>>);
    eq_ = eq(other: impl Into<Other<'a>>);
    ne_ = ne(other: impl Into<Other<'a>>);
    lt_ = lt(other: impl Into<Other<'a>>);
    le_ = le(other: impl Into<Other<'a>>);
    gt_ = gt(other: impl Into<Other<'a>>);
    ge_ = ge(other: impl Into<Other<'a>>);
    clamp_min_ = clamp_min(other: impl Into<Other<'a>>);
    clamp_max_ = clamp_max(other: impl Into<Other<'a>>);
    bitwise_and_ = bitwise_and(other: impl Into<Other<'a>>);
    bitwise_or_ = bitwise_or(other: impl Into<Other<'a>>);
    bitwise_xor_ = bitwise_xor(other: impl Into<Other<'a>>);
    bitwise_left_shift_ = bitwise_left_shift(other: impl Into<Other<'a>>);
    bitwise_right_shift_ = bitwise_right_shift(other: impl Into<Other<'a>>);
    logical_and_ = logical_and(other: impl Into<Other<'a>>);
    logical_or_ = logical_or(other: impl Into<Other<'a>>);
    logical_xor_ = logical_xor(other: impl Into<Other<'a>>);
    neg_ = neg();
    abs_ = abs();
    sign_ = sign();
    sqrt_ = sqrt();
    rsqrt_ = rsqrt();
    reciprocal_ = reciprocal();
    square_ = square();
    exp_ = exp();
    exp2_ = exp2();
    expm1_ = expm1();
    log_ = log();
    log2_ = log2();
    log10_ = log10();
    log1p_ = log1p();
    sin_ = sin();
    cos_ = cos();
    tan_ = tan();
    asin_ = asin();
    acos_ = acos();
    atan_ = atan();
    sinh_ = sinh();
    cosh_ = cosh();
    tanh_ = tanh();
    asinh_ = asinh();
    acosh_ = acosh();
    atanh_ = atanh();
    erf_ = erf();
    erfc_ = erfc();
    erfinv_ = erfinv();
    lgamma_ = lgamma();
    digamma_ = digamma();
    i0_ = i0();
    sinc_ = sinc();
    logit_ = logit();
    nan_to_num_ = nan_to_num();
    floor_ = floor();
    ceil_ = ceil();
    round_ = round();
    trunc_ = trunc();
    sigmoid_ = sigmoid();
    relu_ = relu();
    relu6_ = relu6();
    silu_ = silu();
    hardsigmoid_ = hardsigmoid();
    hardswish_ = hardswish();
    selu_ = selu();
    elu_ = elu();
    celu_ = celu();
    mish_ = mish();
    hardtanh_ = hardtanh();
    leaky_relu_ = leaky_relu();
    logical_not_ = logical_not();
    bitwise_not_ = bitwise_not();
    tril_ = tril();
    triu_ = triu();
    tril_with_ = tril_with(diagonal: impl Into<Int>);
    triu_with_ = triu_with(diagonal: impl Into<Int>);
    cumsum_ = cumsum(dim: impl Into<DimArg>);
    cumprod_ = cumprod(dim: impl Into<DimArg>);
    leaky_relu_with_ = leaky_relu_with(negative_slope: f64);
    elu_with_ = elu_with(alpha: f64);
    celu_with_ = celu_with(alpha: f64);
    hardtanh_with_ = hardtanh_with(min_val: impl Into<Scalar>, max_val: impl Into<Scalar>);
    threshold_ = threshold(threshold: impl Into<Scalar>, value: impl Into<Scalar>);
    logit_with_ = logit_with(eps: impl Into<Option<f64>>);
    nan_to_num_with_ = nan_to_num_with(options: NanToNum);
    polygamma_ = polygamma(n: impl Into<Int>);
    mvlgamma_ = mvlgamma(p: impl Into<Int>);
    ldexp_ = ldexp(other: impl AsTensor);
    nextafter_ = nextafter(other: impl AsTensor);
    heaviside_ = heaviside(values: impl AsTensor);
    renorm_ = renorm(p: f64, dim: impl Into<DimArg>, maxnorm: f64);
    dropout_ = dropout(p: f64);
    alpha_dropout_ = alpha_dropout(p: f64);
    feature_alpha_dropout_ = feature_alpha_dropout(p: f64);
    clamp_ = clamp(min: impl Into<Other<'a>>, max: impl Into<Other<'a>>);
    lerp_ = lerp(end: impl AsTensor, weight: impl Into<Other<'a>>);
    add_scaled_ = add_scaled(other: impl Into<Other<'a>>, alpha: impl Into<Scalar>);
    sub_scaled_ = sub_scaled(other: impl Into<Other<'a>>, alpha: impl Into<Scalar>);
    addcmul_ = addcmul(tensor1: impl AsTensor, tensor2: impl AsTensor);
    addcdiv_ = addcdiv(tensor1: impl AsTensor, tensor2: impl AsTensor);
    addcmul_with_ = addcmul_with(
        tensor1: impl AsTensor, tensor2: impl AsTensor, value: impl Into<Scalar>
    );
    addcdiv_with_ = addcdiv_with(
        tensor1: impl AsTensor, tensor2: impl AsTensor, value: impl Into<Scalar>
    );
    addmm_ = addmm(mat1: impl AsTensor, mat2: impl AsTensor);
    addmm_with_ = addmm_with(mat1: impl AsTensor, mat2: impl AsTensor, factors: Factors);
    addmv_ = addmv(mat: impl AsTensor, vec: impl AsTensor);
    addmv_with_ = addmv_with(mat: impl AsTensor, vec: impl AsTensor, factors: Factors);
    addr_ = addr(vec1: impl AsTensor, vec2: impl AsTensor);
    addr_with_ = addr_with(vec1: impl AsTensor, vec2: impl AsTensor, factors: Factors);
    baddbmm_ = baddbmm(batch1: impl AsTensor, batch2: impl AsTensor);
    baddbmm_with_ = baddbmm_with(batch1: impl AsTensor, batch2: impl AsTensor, factors: Factors);
    addbmm_ = addbmm(batch1: impl AsTensor, batch2: impl AsTensor);
    addbmm_with_ = addbmm_with(batch1: impl AsTensor, batch2: impl AsTensor, factors: Factors);
    masked_fill_ = masked_fill(mask: impl AsTensor, value: impl Into<Other<'a>>);
    masked_scatter_ = masked_scatter(mask: impl AsTensor, source: impl AsTensor);
    scatter_ = scatter(dim: impl Into<DimArg>, index: impl AsTensor, src: impl Into<Other<'a>>);
    scatter_add_ = scatter_add(dim: impl Into<DimArg>, index: impl AsTensor, src: impl AsTensor);
    scatter_reduce_ = scatter_reduce(
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        src: impl Into<Other<'a>>,
        reduce: impl Into<Combine>
    );
    index_reduce_ = index_reduce(
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        source: impl AsTensor,
        reduce: impl Into<Combine>
    );
    put_ = put(index: impl AsTensor, source: impl AsTensor);
    put_with_ = put_with(index: impl AsTensor, source: impl AsTensor, options: Put);
    index_put_ = index_put(indices: impl Indices, values: impl AsTensor);
    index_put_with_ = index_put_with(indices: impl Indices, values: impl AsTensor, options: Put);
    index_copy_ = index_copy(dim: impl Into<DimArg>, index: impl AsTensor, source: impl AsTensor);
    index_fill_ = index_fill(
        dim: impl Into<DimArg>, index: impl AsTensor, value: impl Into<Other<'a>>
    );
    index_add_ = index_add(dim: impl Into<DimArg>, index: impl AsTensor, source: impl AsTensor);
    index_add_scaled_ = index_add_scaled(
        dim: impl Into<DimArg>, index: impl AsTensor, source: impl AsTensor, alpha: impl Into<Scalar>
    );
}

/// Views under PyTorch's in-place names: value and gradient get the new shape, for all holders of the cell. Snapshots
/// keep the old one, and so does the state that an optimiser has for the cell, whose steps are errors then. Functions
/// that were compiled before no longer run.
///
/// ```
/// use kiln_tensor::{DType, Tensor, Var};
/// let w = Var::parameter(Tensor::zeros([2, 3], DType::F32))?;
/// w.t_()?;
/// w.unsqueeze_(0)?;
/// assert_eq!(w.shape()?, [1, 3, 2]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
impl Var {
    /// [`Tensor::t`].
    ///
    /// # Errors
    /// If there are more than two dims; if the shape changes inside `compile`, `scan`, `cond` or a functional call.
    #[track_caller]
    pub fn t_(&self) -> Result<()> {
        self.become_view("t_", |x| x.t())
    }

    /// [`Tensor::transpose`].
    ///
    /// # Errors
    /// If there is no such dim; as [`Var::t_`].
    #[track_caller]
    pub fn transpose_(&self, dim0: impl Into<DimArg>, dim1: impl Into<DimArg>) -> Result<()> {
        let (dim0, dim1) = (dim0.into(), dim1.into());
        self.become_view("transpose_", |x| x.transpose(dim0.clone(), dim1.clone()))
    }

    /// [`Tensor::squeeze`].
    ///
    /// # Errors
    /// If there is no such dim; as [`Var::t_`].
    #[track_caller]
    pub fn squeeze_(&self, dims: impl Into<DimArgs>) -> Result<()> {
        let dims = dims.into();
        self.become_view("squeeze_", |x| x.squeeze(dims.clone()))
    }

    /// [`Tensor::unsqueeze`].
    ///
    /// # Errors
    /// If there is no such place; as [`Var::t_`].
    #[track_caller]
    pub fn unsqueeze_(&self, dim: impl Into<Int>) -> Result<()> {
        let dim = dim.into();
        self.become_view("unsqueeze_", |x| x.unsqueeze(dim))
    }
}

impl Var {
    /// Puts a number on the main diagonal, where all indices are equal.
    ///
    /// # Errors
    /// If the tensor has no main diagonal; the cell then keeps its value.
    #[track_caller]
    pub fn fill_diagonal_(&self, value: impl Into<Scalar>) -> Result<()> {
        self.hold("fill_diagonal_", &self.get().detach().with_diagonal(value))
    }

    /// Assigns `value`, broadcast to the cell's shape and cast to its dtype: PyTorch's `x.copy_(value)`.
    /// [`Var::assign`] is the strict form.
    ///
    /// # Errors
    /// If the value carries an error or does not broadcast to the cell's shape.
    #[track_caller]
    pub fn copy_(&self, value: impl AsTensor) -> Result<()> {
        self.set((), &*value.as_tensor())
    }

    /// Assigns a number to every element.
    ///
    /// # Errors
    /// As [`Var::assign`].
    #[track_caller]
    pub fn fill_(&self, number: impl Into<Scalar>) -> Result<()> {
        self.assign(self.get().detach().full_like(number))
    }

    /// Assigns zero to every element.
    ///
    /// # Errors
    /// As [`Var::assign`].
    #[track_caller]
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0)
    }

    #[track_caller]
    pub(crate) fn hold(&self, called: &str, result: &Tensor) -> Result<()> {
        if result.check()?.dtype().kind() > self.dtype().kind() {
            let message = format!(
                "the result is {}, which a Var of {} can't hold; cast the operand",
                result.dtype(),
                self.dtype()
            );
            let loc = Loc::from(Location::caller());
            return Err(Error::new(ErrorKind::Assign, called, message, loc));
        }
        self.assign(result.to_dtype(self.dtype()))
    }
}

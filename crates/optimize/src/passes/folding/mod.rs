//! Folding of what scales and shifts channels into the weight of a product, for inference. P(x, w) is a
//! convolution, a transposed one or a matrix product whose weight w depends on parameters and constants
//! only:
//!
//! ```text
//! scaled_product    (P(x, w) + b) · c = P(x, w · c) + b · c    either order; / c, and −(…) as · (−1)
//! shifted_product   (P(x, w) + a) ± b = P(x, w) + (a ± b)      c − P(x, w) = P(x, −w) + c
//! conv_batch_norm   batch_norm(P(x, w) + b, mean, var, weight, bias) = P(x, w · s) + ((b − mean) · s + bias)
//!                   where s = weight / √(var + eps), one number a channel; of a convolution
//! linear_batch_norm the same of a matrix product
//! scaled_data       P(x · c, w) = P(x, w · c)                  either order, / c, and P(−x, w) = P(x, −w)
//! shifted_data      P(x ± b, w) = P(x, w) ± (P of b)           of integers that were bytes or i16, as zero points
//!                                                              are taken from, and a product without padding;
//!                                                              it changes no bit
//! norm_of_scaled    batch_norm(x · c, mean, var, weight, bias) = x · (c · s) + (bias − mean · s)   of what was
//!                                                              cast from a product of integers; of halves also
//!                                                              without c
//! ```
//!
//! Between what is behind a product and the product may stand permutations and reshapes that leave the channels
//! whole; they are then behind the new product. The b may be missing. a and b hold one number a channel of the
//! product's result (of its data in `shifted_data`), or one number in all; so does the c of `norm_of_scaled`. Any
//! other c is one number, by which weights may be scaled (`keeps_range`). `c / P(x, w)` is no such form.
//! Any number of groups and spatial axes.
//!
//! What must hold: weight, factors and statistics depend on parameters and constants only, so that the new
//! ones land in *prepare*; nothing else reads what is folded; eps is positive and finite, so that s is
//! finite whatever non-negative variance it gets; the dtype is f32 or f64, since f16 and bf16 would round the new
//! weight where the program computes in f32. Behind a convolution of halves that the machine multiplies as f32 the new
//! weight is f32, and with it the product; `norm_of_scaled` computes in f32 what is of halves, whose last bit is worth
//! more than what the mean may cancel of its terms. (Of whole numbers the weight stays as it is.)
//!
//! Changes rounding. With unit roundoff u and K products a sum, the old and the new result of
//! `conv_batch_norm` differ by at most `(2K + 13) · u · (Σ|x·w|·|s| + (|b| + |mean|)·|s| + |bias|)` to
//! first order: the old one has K + 7 roundings on a path, the new one K + 6. Either rounds the product, so where
//! the mean cancels most of that, neither is nearer. The other rules have fewer on both sides. Of x that no product
//! rounds, a shift or norm would not be taken off: `P(x − b, w)` keeps what `P(x, w) − (P of b)` loses.
//! The bound is for finite parameters and w · s within range: an infinite weight, or a
//! factor that made infinities of finite data, may make NaN. Infinities and NaN in x come out as before.
//!
//! Saves work on every element of the result or of the data, and lets a chain of such forms fold to its
//! end; constant cost a match.

mod before;
mod behind;
mod product;
mod scaled;

use crate::{Pass, Run};

/// The pass.
pub const PASS: Pass = Pass {
    name: "folding",
    about: "folds scales, shifts and batch norms beside a product into its weight",
    exact: false,
    run: Run::Rules(&[
        &behind::ScaledProduct,
        &behind::ShiftedProduct,
        &behind::CONV_BATCH_NORM,
        &behind::LINEAR_BATCH_NORM,
        &before::ScaledData,
        &before::ShiftedData,
        &scaled::NormOfScaled,
    ]),
};

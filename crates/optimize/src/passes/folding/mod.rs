//! Folding of scales and shifts of channels into the weight of a product, for inference. P(x, w) is a convolution, a
//! transposed one or a matrix product whose weight w depends on parameters and constants only:
//!
//! ```text
//! scaled_product    (P(x, w) + b) · c = P(x, w · c) + b · c    either order; / c, and −(…) as · (−1)
//! shifted_product   (P(x, w) + a) ± b = P(x, w) + (a ± b)      c − P(x, w) = P(x, −w) + c
//! conv_batch_norm   batch_norm(P(x, w) + b, mean, var, weight, bias) = P(x, w · s) + ((b − mean) · s + bias)
//!                   where s = weight / √(var + eps), one number per channel; of a convolution
//! linear_batch_norm the same of a matrix product
//! scaled_data       P(x · c, w) = P(x, w · c)                  either order, / c, and P(−x, w) = P(x, −w)
//! shifted_data      P(x ± b, w) = P(x, w) ± (P of b)           of integers that were bytes or i16, from which zero
//!                                                              points are subtracted, and a product without padding;
//!                                                              it changes no bit
//! norm_of_scaled    batch_norm(x · c, mean, var, weight, bias) = x · (c · s) + (bias − mean · s)   of an x cast from
//!                                                              a product of integers; of f16 and bf16 also without c
//! ```
//!
//! Permutations and reshapes that leave the channels whole may be between the product and the op that is folded;
//! they then follow the new product. The b may be missing. a and b hold one number per channel of the product's
//! result (of its data in `shifted_data`), or one number in all; so does the c of `norm_of_scaled`. Any other c is
//! one number, by which weights may be scaled (`keeps_range`). `c / P(x, w)` is not folded. Any number of groups and
//! spatial axes.
//!
//! Conditions: weight, factors and statistics depend on parameters and constants only, so that the new ones land in
//! *prepare*. Nothing else reads the folded values. eps is positive and finite, so that s is finite for any
//! non-negative variance. The dtype is f32 or f64, since f16 and bf16 would round the new weight where the program
//! computes in f32. Behind a convolution of f16 or bf16 that the machine computes in f32, the new weight is f32, and
//! with it the product. `norm_of_scaled` computes f16 and bf16 in f32: a last bit of theirs is worth more than the
//! mean may cancel of its terms. (For integers the weight stays as it is.)
//!
//! Changes rounding. With unit roundoff u and K products a sum, the old and the new result of `conv_batch_norm`
//! differ by at most `(2K + 13) · u · (Σ|x·w|·|s| + (|b| + |mean|)·|s| + |bias|)` to first order: the old one has K +
//! 7 roundings on a path, the new one K + 6. Either rounds the product, so where the mean cancels most of that,
//! neither is nearer. The other rules have fewer on both sides. If no product rounds x, a shift or norm of x is not
//! folded: `P(x − b, w)` keeps digits that `P(x, w) − (P of b)` loses. The bound is for finite parameters and w · s
//! within range: an infinite weight, or a factor that made infinities of finite data, may give NaN. Infinities and
//! NaN in x come out as before.
//!
//! Saves work on every element of the result or of the data, and folds a chain of such ops completely; the cost is
//! constant per match.

mod before;
mod behind;
mod product;
mod scaled;

use crate::{Pass, Run, rules};
use before::{scaled_data, shifted_data};
use behind::{conv_batch_norm, linear_batch_norm, scaled_product, shifted_product};
use scaled::norm_of_scaled;

/// The pass.
pub const PASS: Pass = Pass {
    name: "folding",
    about: "folds scales, shifts and batch norms beside a product into its weight",
    exact: false,
    run: Run::Rules(rules![
        scaled_product,
        shifted_product,
        conv_batch_norm,
        linear_batch_norm,
        scaled_data,
        shifted_data,
        norm_of_scaled,
    ]),
};

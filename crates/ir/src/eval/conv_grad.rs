use super::conv::Windows;
use super::index::Sum;
use super::{Array, Context, Data, Problem};
use crate::ops::{Conv, ConvTranspose, ConvWeight};

/// Products with padding are dropped: only elements of the input have gradients.
pub(super) fn input(
    op: &ConvTranspose,
    y: &Array,
    w: &Array,
    cx: &Context,
) -> Result<Data, Problem> {
    let products = Products::new(&op.conv, &cx.shape, w.shape(), y.shape())?;
    Ok(products.sum(y, w, cx, |x, w, y| Some((x?, Some(y), w))))
}

/// Zeros in the padding are ordinary numbers: an infinity in `y` gives NaN.
pub(super) fn weight(op: &ConvWeight, x: &Array, y: &Array, cx: &Context) -> Result<Data, Problem> {
    let products = Products::new(&op.conv, x.shape(), &cx.shape, y.shape())?;
    Ok(products.sum(x, y, cx, |x, w, y| Some((w, x, y))))
}

/// Every product of a convolution. There are far more products than elements, so none is stored.
struct Products<'a> {
    windows: Windows,
    /// For each position of a padded plane, the position of its element in the unpadded plane; `None` in the padding.
    inside: Vec<Option<usize>>,
    groups: usize,
    x: &'a [usize],
    w: &'a [usize],
}

impl Products<'_> {
    fn new<'a>(
        op: &Conv,
        x: &'a [usize],
        w: &'a [usize],
        y: &[usize],
    ) -> Result<Products<'a>, Problem> {
        let windows = Windows::new(x, &w[2..], y, &op.stride, &op.padding, &op.dilation)?;
        Ok(Products {
            inside: windows.unpadded(&x[2..]),
            windows,
            groups: op.groups,
            x,
            w,
        })
    }

    /// The sums of products of elements of `a` and `b`. From the positions of [`Products::for_each_product`],
    /// `positions` gives those of the sum and of its factors; of `a`, `None` stands for 0.
    fn sum(
        &self,
        a: &Array,
        b: &Array,
        cx: &Context,
        positions: impl Fn(Option<usize>, usize, usize) -> Option<(usize, Option<usize>, usize)>,
    ) -> Data {
        let n = cx.shape.iter().product();
        match (a.data(), b.data()) {
            (Data::Float(a), Data::Float(b)) => {
                let mut sums = vec![Sum::default(); n];
                self.for_each_product(|x, w, y| {
                    if let Some((target, i, j)) = positions(x, w, y) {
                        sums[target].add(i.map_or(0.0, |i| a[i]) * b[j]);
                    }
                });
                Data::Float(sums.iter().map(Sum::get).collect())
            }
            (Data::Int(a), Data::Int(b)) => {
                let mut sums = vec![0i64; n];
                self.for_each_product(|x, w, y| {
                    if let Some((target, i, j)) = positions(x, w, y) {
                        let product = i.map_or(0, |i| a[i]).wrapping_mul(b[j]);
                        sums[target] = sums[target].wrapping_add(product);
                    }
                });
                Data::Int(sums)
            }
            _ => unreachable!("inference wants one dtype"),
        }
    }

    /// Calls `visit` on the positions of the three elements of each: of the input, the weight and the result. In the
    /// padding the input has no position.
    fn for_each_product(&self, mut visit: impl FnMut(Option<usize>, usize, usize)) {
        let (x, w) = (self.x, self.w);
        let (taps, outputs) = (self.windows.taps.len(), self.windows.bases.len());
        let plane: usize = x[2..].iter().product();
        let (group_in, group_out) = (w[1], w[0] / self.groups);
        for image in 0..x[0] * w[0] * group_in {
            let (n, o, c) = (
                image / group_in / w[0],
                image / group_in % w[0],
                image % group_in,
            );
            let channel = n * x[1] + o / group_out * group_in + c;
            for (output, base) in self.windows.bases.iter().enumerate() {
                for (t, tap) in self.windows.taps.iter().enumerate() {
                    visit(
                        self.inside[base + tap].map(|i| channel * plane + i),
                        (o * group_in + c) * taps + t,
                        (n * w[0] + o) * outputs + output,
                    );
                }
            }
        }
    }
}

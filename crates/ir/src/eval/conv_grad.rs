use super::conv::Windows;
use super::index::Sum;
use super::{Array, Context, Data, Problem};
use crate::ops::{Conv, ConvTranspose, ConvWeight};

/// Every product of a convolution, by the positions of its three elements: of the input, the weight
/// and the result. In the padding the input has no position.
#[derive(Default)]
struct Products {
    x: Vec<Option<usize>>,
    w: Vec<usize>,
    y: Vec<usize>,
}

pub(super) fn input(
    op: &ConvTranspose,
    y: &Array,
    w: &Array,
    cx: &Context,
) -> Result<Data, Problem> {
    let p = products(&op.conv, &cx.shape, w.shape(), y.shape())?;
    let n = cx.shape.iter().product();
    let inside = |at: &[usize]| -> Vec<usize> {
        let kept = at.iter().zip(&p.x).filter(|(_, x)| x.is_some());
        kept.map(|(i, _)| *i).collect()
    };
    let to: Vec<usize> = p.x.iter().flatten().copied().collect();
    Ok(accumulate(
        n,
        &to,
        (y.data(), &inside(&p.y)),
        (w.data(), &inside(&p.w)),
    ))
}

/// Zeros in the padding are numbers like any other: an infinity in `y` makes NaN of them.
pub(super) fn weight(op: &ConvWeight, x: &Array, y: &Array, cx: &Context) -> Result<Data, Problem> {
    let p = products(&op.conv, x.shape(), &cx.shape, y.shape())?;
    let n = cx.shape.iter().product();
    // A zero behind the elements of x.
    let zero = x.to_f64().len();
    let padded = match x.data() {
        Data::Float(x) => Data::Float(x.iter().copied().chain([0.0]).collect()),
        Data::Int(x) => Data::Int(x.iter().copied().chain([0]).collect()),
    };
    let at: Vec<usize> = p.x.iter().map(|i| i.unwrap_or(zero)).collect();
    Ok(accumulate(n, &p.w, (&padded, &at), (y.data(), &p.y)))
}

/// `out[to] += a[i] · b[j]` for all products.
fn accumulate(n: usize, to: &[usize], a: (&Data, &[usize]), b: (&Data, &[usize])) -> Data {
    let places = a.1.iter().zip(b.1).zip(to);
    match (a.0, b.0) {
        (Data::Float(a), Data::Float(b)) => {
            let mut sums = vec![Sum::default(); n];
            places.for_each(|((i, j), to)| sums[*to].add(a[*i] * b[*j]));
            Data::Float(sums.iter().map(Sum::get).collect())
        }
        (Data::Int(a), Data::Int(b)) => {
            let mut sums = vec![0i64; n];
            places.for_each(|((i, j), to)| {
                sums[*to] = sums[*to].wrapping_add(a[*i].wrapping_mul(b[*j]));
            });
            Data::Int(sums)
        }
        _ => unreachable!("inference wants one dtype"),
    }
}

fn products(op: &Conv, x: &[usize], w: &[usize], y: &[usize]) -> Result<Products, Problem> {
    let windows = Windows::new(x, &w[2..], y, &op.stride, &op.padding, &op.dilation)?;
    let inside = windows.unpadded(&x[2..]);
    let (taps, places) = (windows.taps.len(), windows.bases.len());
    let plane: usize = x[2..].iter().product();
    let (group_in, group_out) = (w[1], w[0] / op.groups);
    let mut p = Products::default();
    for image in 0..x[0] * w[0] * group_in {
        let (n, o, c) = (
            image / group_in / w[0],
            image / group_in % w[0],
            image % group_in,
        );
        let channel = n * x[1] + o / group_out * group_in + c;
        for (at, base) in windows.bases.iter().enumerate() {
            for (t, tap) in windows.taps.iter().enumerate() {
                p.x.push(inside[base + tap].map(|i| channel * plane + i));
                p.w.push((o * group_in + c) * taps + t);
                p.y.push((n * w[0] + o) * places + at);
            }
        }
    }
    Ok(p)
}

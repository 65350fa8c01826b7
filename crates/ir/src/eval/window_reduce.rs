use super::conv::Windows;
use super::reduce::{combine_floats, combine_ints};
use super::{Array, Context, Data, Problem};
use crate::ops::WindowReduce;

pub(super) fn eval(op: &WindowReduce, x: &Array, cx: &Context) -> Result<Data, Problem> {
    let windows = Windows::new(
        x.shape(),
        &op.kernel,
        &cx.shape,
        &op.stride,
        &op.padding,
        &op.dilation,
    )?;
    let planes: usize = x.shape()[..x.shape().len() - op.kernel.len()]
        .iter()
        .product();
    // The reduction of no elements is the identity.
    Ok(match x.data() {
        Data::Float(v) => {
            let v = windows.pad(v, x.shape(), combine_floats(op.kind, std::iter::empty()));
            Data::Float(over_windows(&windows, planes, |start| {
                combine_floats(op.kind, windows.taps.iter().map(|t| v[start + t]))
            }))
        }
        Data::Int(v) => {
            let identity = combine_ints(op.kind, cx.dtype, std::iter::empty());
            let v = windows.pad(v, x.shape(), identity);
            Data::Int(over_windows(&windows, planes, |start| {
                combine_ints(op.kind, cx.dtype, windows.taps.iter().map(|t| v[start + t]))
            }))
        }
    })
}

fn over_windows<T>(windows: &Windows, planes: usize, reduced: impl Fn(usize) -> T) -> Vec<T> {
    let starts = (0..planes).flat_map(|p| windows.bases.iter().map(move |b| p * windows.plane + b));
    starts.map(reduced).collect()
}

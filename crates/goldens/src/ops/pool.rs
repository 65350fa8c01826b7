//! Pooling.

use super::Outputs;
use crate::args::{Args, Failure, Parsed};
use kiln_tensor::{AvgPool, Im2Col, OutputSize, Pool, Tensor, Unpool};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    let name = op.strip_prefix("nn.functional.").unwrap_or(op);
    Ok(match name {
        "max_pool1d" | "max_pool2d" | "max_pool3d" => max(name, a)?,
        "max_unpool1d" | "max_unpool2d" | "max_unpool3d" => unpool(name, a)?.into(),
        "avg_pool1d" | "avg_pool2d" | "avg_pool3d" => average(name, a)?.into(),
        "adaptive_avg_pool1d"
        | "adaptive_avg_pool2d"
        | "adaptive_avg_pool3d"
        | "adaptive_max_pool1d"
        | "adaptive_max_pool2d"
        | "adaptive_max_pool3d" => adaptive(name, a)?,
        "unfold" if op.starts_with("nn.") => {
            let (kernel, dilation) = (a.ints(1, "kernel_size")?, a.ints_or(2, "dilation", &[1])?);
            let (padding, stride) = (
                a.ints_or(3, "padding", &[0])?,
                a.ints_or(4, "stride", &[1])?,
            );
            a.input()?
                .im2col(
                    Im2Col::new(kernel)
                        .stride(stride)
                        .padding(padding)
                        .dilation(dilation),
                )
                .into()
        }
        _ => return Err(Failure::Unknown),
    })
}

fn max(name: &str, a: &Args) -> Parsed<Outputs> {
    let x = a.input()?;
    let (k, s) = (a.ints(1, "kernel_size")?, a.ints_or(2, "stride", &[])?);
    let (p, d) = (
        a.ints_or(3, "padding", &[0])?,
        a.ints_or(4, "dilation", &[1])?,
    );
    let ceil = a.bool_or(5, "ceil_mode", false)?;
    let windows = Pool::new(k)
        .stride(s)
        .padding(p)
        .dilation(d)
        .ceil_mode(ceil);
    Ok(match (name, a.bool_or(6, "return_indices", false)?) {
        ("max_pool1d", false) => x.max_pool1d(windows).into(),
        ("max_pool2d", false) => x.max_pool2d(windows).into(),
        (_, false) => x.max_pool3d(windows).into(),
        ("max_pool1d", true) => x.max_pool1d_with_indices(windows).into(),
        ("max_pool2d", true) => x.max_pool2d_with_indices(windows).into(),
        (_, true) => x.max_pool3d_with_indices(windows).into(),
    })
}

fn unpool(name: &str, a: &Args) -> Parsed<Tensor> {
    let (x, indices, k) = (
        a.input()?,
        a.tensor(1, "indices")?,
        a.ints(2, "kernel_size")?,
    );
    let (s, p) = (a.ints_or(3, "stride", &[])?, a.ints_or(4, "padding", &[0])?);
    let size = a.ints_or(5, "output_size", &[])?;
    let windows = Unpool::new(k).stride(s).padding(p).output_size(size);
    Ok(match name {
        "max_unpool1d" => x.max_unpool1d(&indices, windows),
        "max_unpool2d" => x.max_unpool2d(&indices, windows),
        _ => x.max_unpool3d(&indices, windows),
    })
}

fn average(name: &str, a: &Args) -> Parsed<Tensor> {
    let x = a.input()?;
    let (k, s) = (a.ints(1, "kernel_size")?, a.ints_or(2, "stride", &[])?);
    let p = a.ints_or(3, "padding", &[0])?;
    let ceil = a.bool_or(4, "ceil_mode", false)?;
    let include = a.bool_or(5, "count_include_pad", true)?;
    let divisor = a.opt_int(6, "divisor_override")?;
    let windows = AvgPool::new(k)
        .stride(s)
        .padding(p)
        .ceil_mode(ceil)
        .count_include_pad(include)
        .divisor_override(divisor);
    Ok(match name {
        "avg_pool1d" => x.avg_pool1d(windows),
        "avg_pool2d" => x.avg_pool2d(windows),
        _ => x.avg_pool3d(windows),
    })
}

fn adaptive(name: &str, a: &Args) -> Parsed<Outputs> {
    let x = a.input()?;
    let size = match a.get(1, "output_size") {
        // None keeps a size.
        Some(crate::Arg::List(l)) => {
            let size = |d: &crate::Arg| match d {
                crate::Arg::None => Some(None),
                d => d.int().map(Some),
            };
            let list: Option<Vec<Option<i64>>> = l.iter().map(size).collect();
            list.map(OutputSize::from)
        }
        _ => Some(a.ints(1, "output_size")?.into()),
    };
    let size = size.ok_or(super::unsupported("this output size"))?;
    let indices = name.contains("max") && a.bool_or(2, "return_indices", false)?;
    Ok(match (name, indices) {
        ("adaptive_avg_pool1d", _) => x.adaptive_avg_pool1d(size).into(),
        ("adaptive_avg_pool2d", _) => x.adaptive_avg_pool2d(size).into(),
        ("adaptive_avg_pool3d", _) => x.adaptive_avg_pool3d(size).into(),
        ("adaptive_max_pool1d", false) => x.adaptive_max_pool1d(size).into(),
        ("adaptive_max_pool2d", false) => x.adaptive_max_pool2d(size).into(),
        (_, false) => x.adaptive_max_pool3d(size).into(),
        ("adaptive_max_pool1d", true) => x.adaptive_max_pool1d_with_indices(size).into(),
        ("adaptive_max_pool2d", true) => x.adaptive_max_pool2d_with_indices(size).into(),
        (_, true) => x.adaptive_max_pool3d_with_indices(size).into(),
    })
}

//! Every kernel family at three sizes, beside the reference in f64.

use crate::{Failed, Report, Settings};
use kiln_compiler::Options;
use kiln_tensor::{Attention, Conv, DType, Grad, Result, Spec, Tensor, compile, grad_with};
use kiln_testkit::programs::check;

type Function = fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// Work of one family: dtype and shape of its operands at each size, and what is done with them.
struct Family {
    name: &'static str,
    dtypes: &'static [DType],
    /// Shapes of the operands at each of three sizes: small and odd, a few tiles, large.
    shapes: [&'static [&'static [usize]]; 3],
    function: Function,
}

use DType::{BF16, F16, F32, F64, I8, I32, I64};

/// The gradients of a function's first result for its last operand, by all others.
fn last_gradient(x: &[Tensor], f: impl Fn(&[Tensor]) -> Tensor) -> Result<Vec<Tensor>> {
    let (dy, x) = x.split_last().expect("there is a last operand");
    let leaves: Vec<Tensor> = x.iter().map(|t| t.requires_grad_(true)).collect();
    let y = f(&leaves);
    grad_with(
        &y,
        &leaves.iter().collect::<Vec<_>>(),
        Grad::new().grad_outputs(dy),
    )
}

fn conv(x: &[Tensor], options: Conv) -> Tensor {
    x[0].conv2d_with(&x[1], options)
}

/// The same with images that lie channels last.
fn conv_last(x: &[Tensor], options: Conv) -> Tensor {
    let images = x[0].permute([0, 3, 1, 2]);
    images.conv2d_with(&x[1], options).permute([0, 2, 3, 1])
}

fn attend(x: &[Tensor], causal: bool) -> Tensor {
    let options = Attention::new().is_causal(causal);
    x[0].scaled_dot_product_attention_with(&x[1], &x[2], options)
}

const FAMILIES: &[Family] = &[
    Family {
        name: "product",
        dtypes: &[BF16, F16, F32, F64, I8, I32],
        shapes: [
            &[&[7, 13], &[13, 5]],
            &[&[128, 96], &[96, 160]],
            &[&[257, 520], &[520, 300]],
        ],
        function: |x| Ok(vec![x[0].matmul(&x[1])]),
    },
    Family {
        name: "product with bias and GELU",
        dtypes: &[BF16, F32],
        shapes: [
            &[&[7, 13], &[13, 5], &[5]],
            &[&[128, 96], &[96, 160], &[160]],
            &[&[257, 520], &[520, 304], &[304]],
        ],
        function: |x| Ok(vec![(x[0].matmul(&x[1]) + &x[2]).gelu()]),
    },
    Family {
        name: "batched products",
        dtypes: &[BF16, F32],
        shapes: [
            &[&[3, 7, 13], &[3, 13, 5]],
            &[&[5, 64, 64], &[5, 64, 64]],
            &[&[8, 130, 96], &[8, 96, 70]],
        ],
        function: |x| Ok(vec![x[0].matmul(&x[1])]),
    },
    Family {
        name: "convolution 3x3",
        dtypes: &[BF16, F32],
        shapes: [
            &[&[1, 3, 7, 9], &[5, 3, 3, 3]],
            &[&[2, 16, 20, 20], &[32, 16, 3, 3]],
            &[&[4, 64, 28, 28], &[64, 64, 3, 3]],
        ],
        function: |x| Ok(vec![conv(x, Conv::new().padding(1))]),
    },
    Family {
        name: "convolution 3x3, channels last",
        dtypes: &[BF16, F32],
        shapes: [
            &[&[1, 7, 9, 3], &[5, 3, 3, 3]],
            &[&[2, 20, 20, 16], &[32, 16, 3, 3]],
            &[&[4, 28, 28, 64], &[64, 64, 3, 3]],
        ],
        function: |x| Ok(vec![conv_last(x, Conv::new().padding(1))]),
    },
    Family {
        name: "gradients of a convolution with steps, channels last",
        dtypes: &[BF16, F32],
        shapes: [
            &[&[1, 8, 10, 3], &[5, 3, 3, 3], &[1, 4, 5, 5]],
            &[&[2, 20, 20, 16], &[32, 16, 3, 3], &[2, 10, 10, 32]],
            &[&[4, 28, 28, 64], &[64, 64, 3, 3], &[4, 14, 14, 64]],
        ],
        function: |x| last_gradient(x, |x| conv_last(x, Conv::new().padding(1).stride(2))),
    },
    Family {
        name: "depthwise convolution and its gradients",
        dtypes: &[BF16, F32],
        shapes: [
            &[&[1, 3, 7, 9], &[3, 1, 3, 3], &[1, 3, 7, 9]],
            &[&[2, 16, 20, 20], &[16, 1, 3, 3], &[2, 16, 20, 20]],
            &[&[4, 64, 28, 28], &[64, 1, 3, 3], &[4, 64, 28, 28]],
        ],
        function: |x| {
            let channels = x[0].shape()?[1] as i64;
            last_gradient(x, |x| conv(x, Conv::new().padding(1).groups(channels)))
        },
    },
    Family {
        name: "attention",
        dtypes: &[BF16, F16, F32],
        shapes: [
            &[&[1, 2, 7, 8], &[1, 2, 9, 8], &[1, 2, 9, 8]],
            &[&[2, 3, 65, 64], &[2, 3, 65, 64], &[2, 3, 65, 64]],
            &[&[1, 2, 200, 128], &[1, 2, 200, 128], &[1, 2, 200, 128]],
        ],
        function: |x| Ok(vec![attend(x, false)]),
    },
    Family {
        name: "gradients of causal attention",
        dtypes: &[BF16, F32],
        shapes: [
            &[&[1, 2, 7, 8], &[1, 2, 7, 8], &[1, 2, 7, 8], &[1, 2, 7, 8]],
            &[
                &[2, 3, 65, 64],
                &[2, 3, 65, 64],
                &[2, 3, 65, 64],
                &[2, 3, 65, 64],
            ],
            &[
                &[1, 2, 130, 128],
                &[1, 2, 130, 128],
                &[1, 2, 130, 128],
                &[1, 2, 130, 128],
            ],
        ],
        function: |x| last_gradient(x, |x| attend(x, true)),
    },
    Family {
        name: "softmax and its gradient",
        dtypes: &[BF16, F32, F64],
        shapes: [
            &[&[3, 5], &[3, 5]],
            &[&[40, 768], &[40, 768]],
            &[&[17, 50257], &[17, 50257]],
        ],
        function: |x| last_gradient(x, |x| x[0].softmax(-1)),
    },
    Family {
        name: "layer norm and its gradient",
        dtypes: &[BF16, F32],
        shapes: [
            &[&[3, 5], &[3, 5]],
            &[&[40, 768], &[40, 768]],
            &[&[33, 4096], &[33, 4096]],
        ],
        function: |x| {
            let width = x[0].shape()?[1];
            last_gradient(x, |x| x[0].layer_norm([width]))
        },
    },
    Family {
        name: "statistics of channels, channels last",
        dtypes: &[BF16, F32],
        shapes: [&[&[2, 3, 3, 5]], &[&[4, 14, 14, 64]], &[&[8, 28, 28, 96]]],
        function: |x| Ok(vec![x[0].mean((0, 1, 2)), x[0].var((0, 1, 2))]),
    },
    Family {
        name: "reductions of rows and columns",
        dtypes: &[BF16, F32, F64, I64],
        shapes: [&[&[5, 7]], &[&[130, 257]], &[&[1000, 1025]]],
        function: |x| {
            Ok(vec![
                x[0].sum(-1),
                x[0].amax(0),
                x[0].argmax(-1),
                x[0].sum(()),
            ])
        },
    },
    Family {
        name: "scans",
        dtypes: &[F32, F64, I64],
        shapes: [&[&[3, 5]], &[&[7, 1030]], &[&[5, 20000]]],
        function: |x| Ok(vec![x[0].cumsum(-1), x[0].cummax(-1).0]),
    },
    Family {
        name: "sorts",
        dtypes: &[BF16, F32, I64],
        shapes: [&[&[3, 5]], &[&[7, 1030]], &[&[3, 20000]]],
        function: |x| Ok(vec![x[0].sort(-1).0, x[0].topk(3).0]),
    },
    Family {
        name: "elements of many dtypes",
        dtypes: &[BF16, F16, F32, F64],
        shapes: [
            &[&[3, 1], &[1, 5]],
            &[&[130, 1], &[1, 257]],
            &[&[1000, 1], &[1, 1025]],
        ],
        function: |x| {
            let sum = &x[0] + &x[1];
            Ok(vec![
                sum.gelu() * sum.sigmoid() + sum.exp(),
                sum.transpose(0, 1).contiguous(),
            ])
        },
    },
    Family {
        name: "pools",
        dtypes: &[BF16, F32],
        shapes: [&[&[1, 2, 7, 9]], &[&[2, 16, 20, 21]], &[&[4, 64, 56, 56]]],
        function: |x| Ok(vec![x[0].max_pool2d(2), x[0].avg_pool2d(2)]),
    },
];

pub(crate) fn run(settings: &Settings, report: &mut Report) -> std::result::Result<(), Failed> {
    let sizes = if settings.short { 1 } else { 3 };
    // Small sizes of all families come first, should there be no time for the rest.
    for size in 0..sizes {
        for family in FAMILIES {
            for dtype in family.dtypes {
                let name = format!("{}, {dtype}, size {}", family.name, size + 1);
                if settings.is_over() {
                    report.leave_out(format!("{name} and what comes after it"));
                    return Ok(());
                }
                let result = prove(family, *dtype, size);
                report.check(&name, result.map_err(|e| e.to_string()));
            }
        }
    }
    Ok(())
}

fn prove(family: &Family, dtype: DType, size: usize) -> std::result::Result<(), Failed> {
    let specs = family.shapes[size].iter().map(|s| Spec::new(dtype, *s));
    let recorded = compile(specs.collect::<Vec<_>>(), |x| (family.function)(&x))?;
    let options = Options {
        gpu: Some(0),
        ..Options::default()
    };
    check(recorded.recorded(), size as u64, &[options])?;
    Ok(())
}

//! Programs for images of any height and width: windows that need not divide them, gradients, and parts of axes.

use crate::cuda::test_device;
use kiln::nn::{Forward, Module};
use kiln::{
    AvgPool, Conv, ConvTranspose, DType, Device, ErrorKind, Im2Col, InterpolateMode,
    InterpolateSize, Pool, Result, Spec, Tensor, Window, compile, grad, step,
};
use kiln_models::{ResNet, ResNetBlock, ResNetConfig};
use kiln_testkit::sweep::Sweep;

/// Distinct numbers, so that each window has one maximum.
fn data(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| (i as f64 * 1.7 + 0.3).sin()).collect();
    Tensor::from_slice(&values, shape).to(test_device())
}

/// The largest difference, relative to the largest number.
fn off(a: &Tensor, b: &Tensor) -> f64 {
    let host = |t: &Tensor| {
        t.to(Device::Cpu)
            .to_dtype(DType::F64)
            .to_vec::<f64>()
            .unwrap()
    };
    assert_eq!(a.shape().unwrap(), b.shape().unwrap());
    let (a, b) = (host(a), host(b));
    let scale = b.iter().fold(1e-300f64, |m, x| m.max(x.abs()));
    let apart = a
        .iter()
        .zip(&b)
        .map(|(a, b)| match a == b || a.is_nan() && b.is_nan() {
            true => 0.0,
            false => (a - b).abs() / scale,
        });
    apart.fold(
        0.0,
        |m: f64, x| if x.is_nan() { f64::INFINITY } else { m.max(x) },
    )
}

type Function = fn(&Tensor) -> Tensor;

/// A name, a function of `[2, 3, h, w]`, and the smallest height and width.
type Case = (&'static str, Function, [usize; 2]);

/// Weights of a convolution of three channels to four.
fn weight(kernel: [usize; 2]) -> Tensor {
    data(&[4, 3, kernel[0], kernel[1]])
}

fn by(factor: f64) -> InterpolateSize {
    InterpolateSize::ScaleFactor(vec![factor])
}

const LINEAR: InterpolateMode = InterpolateMode::Linear {
    align_corners: false,
};
const CORNERS: InterpolateMode = InterpolateMode::Linear {
    align_corners: true,
};

const CASES: &[Case] = &[
    (
        "two apart",
        |x| x.conv2d_with(weight([3, 3]), Conv::new().stride(2).padding(1)),
        [0, 0],
    ),
    (
        "three and two apart, no border",
        |x| x.conv2d_with(weight([2, 3]), Conv::new().stride([3, 2])),
        [2, 3],
    ),
    (
        "spread taps",
        |x| {
            x.conv2d_with(
                weight([3, 2]),
                Conv::new().stride([2, 3]).padding([2, 0]).dilation([2, 3]),
            )
        },
        [1, 4],
    ),
    (
        "single taps",
        |x| x.conv2d_with(weight([1, 1]), Conv::new().stride(2)),
        [1, 1],
    ),
    (
        "one channel per group",
        |x| {
            let w = data(&[6, 1, 3, 3]);
            x.conv2d_with(w, Conv::new().stride(2).padding(1).groups(3))
        },
        [1, 1],
    ),
    (
        "more border than taps",
        |x| x.conv2d_with(weight([1, 2]), Conv::new().stride(3).padding(2)),
        [0, 0],
    ),
    (
        "two behind each other",
        |x| {
            let y = x.conv2d_with(weight([3, 3]), Conv::new().stride(2).padding(1));
            let w = data(&[5, 4, 3, 3]);
            y.conv2d_with(&w, Conv::new().stride(2).padding(1))
                + y.conv2d_with(&w, Conv::new().stride(2).padding(1)).relu()
        },
        [1, 1],
    ),
    (
        "transposed behind",
        |x| {
            let y = x.conv2d_with(weight([3, 3]), Conv::new().stride(2).padding(1));
            y.conv_transpose2d_with(
                data(&[4, 2, 3, 3]),
                ConvTranspose::new().stride(2).padding(1),
            )
        },
        [1, 1],
    ),
    ("maxima", |x| x.max_pool2d(2), [2, 2]),
    (
        "maxima with a border",
        |x| x.max_pool2d(Pool::new(3).stride(2).padding(1)),
        [1, 1],
    ),
    (
        "maxima of spread taps",
        |x| x.max_pool2d(Pool::new([3, 2]).stride([2, 3]).dilation([2, 1])),
        [5, 2],
    ),
    (
        "maxima beyond the end",
        |x| x.max_pool2d(Pool::new(3).stride(2).ceil_mode(true)),
        [2, 2],
    ),
    (
        "maxima beyond the end, with a border",
        |x| x.max_pool2d(Pool::new([2, 3]).stride(2).padding(1).ceil_mode(true)),
        [1, 1],
    ),
    ("means", |x| x.avg_pool2d(AvgPool::new(3).stride(2)), [3, 3]),
    (
        "means with a border",
        |x| x.avg_pool2d(AvgPool::new(3).stride(2).padding(1)),
        [1, 1],
    ),
    (
        "means without the border",
        |x| {
            x.avg_pool2d(
                AvgPool::new(3)
                    .stride(2)
                    .padding(1)
                    .count_include_pad(false),
            )
        },
        [1, 1],
    ),
    (
        "means beyond the end",
        |x| {
            x.avg_pool2d(
                AvgPool::new([2, 3])
                    .stride([3, 2])
                    .padding(1)
                    .ceil_mode(true),
            )
        },
        [1, 1],
    ),
    (
        "means beyond the end, without the border",
        |x| {
            x.avg_pool2d(
                AvgPool::new(3)
                    .stride(2)
                    .padding(1)
                    .ceil_mode(true)
                    .count_include_pad(false),
            )
        },
        [1, 1],
    ),
    ("means of all", |x| x.adaptive_avg_pool2d(1), [1, 1]),
    (
        "means of uneven parts",
        |x| x.adaptive_avg_pool2d([3, 2]),
        [1, 1],
    ),
    (
        "means along one axis",
        |x| x.adaptive_avg_pool2d([None, Some(4)]),
        [1, 1],
    ),
    ("the maximum of all", |x| x.adaptive_max_pool2d(1), [1, 1]),
    (
        "where the maxima are",
        |x| {
            let (y, at) = x.adaptive_max_pool2d_with_indices([None, Some(1)]);
            y * at.to_dtype(DType::F64)
        },
        [1, 1],
    ),
    (
        "where the maxima of windows are",
        |x| {
            let (y, at) =
                x.max_pool2d_with_indices(Pool::new(3).stride(2).padding(1).ceil_mode(true));
            y * at.to_dtype(DType::F64)
        },
        [1, 1],
    ),
    (
        "columns",
        |x| x.im2col(Im2Col::new([3, 2]).stride(2).padding(1)),
        [1, 1],
    ),
    (
        "windows",
        |x| x.unfold(2, Window::new(3).step(2)).sum(-1),
        [3, 1],
    ),
    (
        "every other",
        |x| x.i((.., .., step(.., 2), step(1.., 3))),
        [1, 2],
    ),
    (
        "every third from the end",
        |x| x.i((.., .., step(.., -3), step(1.., -2))),
        [1, 2],
    ),
    (
        "the nearest of half as many",
        |x| x.interpolate(by(0.5), InterpolateMode::Nearest),
        [2, 2],
    ),
    (
        "the nearest of more",
        |x| x.interpolate(by(2.25), InterpolateMode::NearestExact),
        [1, 1],
    ),
    (
        "the nearest of a quarter more, or of as many",
        |x| x.interpolate(by(1.25), InterpolateMode::Nearest),
        [1, 1],
    ),
    (
        "the nearest of a little more than twice as many",
        |x| x.interpolate(by(2.125), InterpolateMode::Nearest),
        [1, 1],
    ),
    (
        "blends of an eighth more, or copies",
        |x| x.interpolate(by(1.125), LINEAR),
        [1, 1],
    ),
    (
        "blends of half as many",
        |x| x.interpolate(by(0.5), LINEAR),
        [2, 2],
    ),
    (
        "blends of twice as many",
        |x| x.interpolate(by(2.0), CORNERS),
        [1, 1],
    ),
    (
        "blends to a size",
        |x| x.interpolate(InterpolateSize::Size([5, 7].into()), LINEAR),
        [1, 1],
    ),
    (
        "blends of corners to a size",
        |x| x.interpolate(InterpolateSize::Size([1, 6].into()), CORNERS),
        [1, 1],
    ),
];

/// Heights and widths: odd and even ones, primes, the sizes that a window just fits and the next ones.
const SIZES: [[usize; 2]; 10] = [
    [2, 2],
    [3, 5],
    [4, 4],
    [5, 4],
    [7, 11],
    [8, 6],
    [12, 9],
    [13, 16],
    [1, 1],
    [1, 6],
];

/// A function and its gradient.
fn with_gradient(f: Function, x: &Tensor) -> Result<[Tensor; 2]> {
    let x = x.detach().requires_grad_(true);
    let y = f(&x);
    let g = grad((&y * y.sin()).sum(()), &x)?;
    Ok([y.detach(), g])
}

#[test]
fn windows_need_not_divide() -> Result<()> {
    let spec = || Spec::new(DType::F64, (2, 3, "h", "w")).on(test_device());
    // NVRTC compiles each size alone: on a GPU a function takes a third of them, in turn.
    let is_all = test_device() == Device::Cpu || Sweep::wanted().is_some();
    let share = if is_all { 1 } else { 3 };
    for (i, (name, f, least)) in CASES.iter().enumerate() {
        let any =
            compile(spec(), |x| with_gradient(*f, &x)).unwrap_or_else(|e| panic!("{name}: {e}"));
        for [h, w] in SIZES.into_iter().skip(i % share).step_by(share) {
            let x = data(&[2, 3, h, w]);
            if h < least[0] || w < least[1] {
                let e = any.run(&x).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Op, "{name} of {h}, {w}: {e}");
                continue;
            }
            let known = compile(&x, |x| with_gradient(*f, &x))?.run(&x)?;
            for (any, known) in any.run(&x)?.iter().zip(&known) {
                assert!(off(any, known) < 1e-12, "{name} of {h}, {w}");
            }
        }
    }
    Ok(())
}

/// The gradients of all parameters, and the loss.
fn trained(images: &Tensor, net: &ResNet) -> Result<Vec<Tensor>> {
    let loss = net.call(images).pow(2).mean(());
    let parameters: Vec<Tensor> = net.parameters().iter().map(|p| p.get()).collect();
    let mut all = grad(&loss, parameters)?;
    all.push(loss.detach());
    Ok(all)
}

#[test]
fn a_network_is_compiled_and_trained_for_any_size() -> Result<()> {
    kiln::manual_seed(3);
    let net = ResNet::new(ResNetConfig {
        block: ResNetBlock::Basic,
        blocks: [1, 1, 1, 0],
        channels: 2,
        classes: 5,
        ..ResNetConfig::default()
    })?;
    net.to(test_device())?;
    let any = || Spec::new(DType::F32, ("n", 2, "h", "w")).on(test_device());
    net.eval();
    let scores = compile(any(), |x| net.call(&x))?;
    net.train();
    let training = compile(any(), |x| trained(&x, &net))?;
    for [n, h, w] in [[4, 25, 23], [3, 32, 32], [2, 2, 5], [2, 45, 26]] {
        let x = data(&[n, 2, h, w]).to_dtype(DType::F32);
        net.eval();
        let known = compile(&x, |x| net.call(&x))?.run(&x)?;
        assert!(off(&scores.run(&x)?, &known) < 1e-5, "{n}, {h}, {w}");
        if h < 9 {
            continue; // a batch norm of two numbers forgets all but their order
        }
        net.train();
        let known = compile(&x, |x| trained(&x, &net))?.run(&x)?;
        for (any, known) in training.run(&x)?.iter().zip(&known) {
            let off = off(any, known);
            assert!(off < 1e-4, "{n}, {h}, {w}: {off}");
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error_of_the_run() -> Result<()> {
    let spec = || Spec::new(DType::F32, ("n", 3, "height", "width")).on(test_device());
    let f = compile(spec(), |x| {
        let y = x.avg_pool2d(2);
        y.max_pool2d(5)
    })?;
    let line = line!() - 2;
    for (h, fits) in [
        (10, true),
        (11, true),
        (9, false),
        (3, false),
        (2, false),
        (10, true),
    ] {
        let x = Tensor::ones([2, 3, h, 20], DType::F32).to(test_device());
        match f.run(&x) {
            Ok(y) => assert!(fits && y.shape()? == [2, 3, 1, 2]),
            Err(e) => {
                let text = e.to_string();
                assert!(!fits && e.kind() == ErrorKind::Op, "{text}");
                let half = format!(
                    "needs height//2-5 to be at least 0, and it is {}",
                    h / 2 - 5
                );
                assert!(
                    text.contains("max_pool2d: ") && text.contains(&half),
                    "{text}"
                );
                assert!(text.contains(&format!("for height = {h}")), "{text}");
                assert!(text.contains(&format!("any_size.rs:{line}")), "{text}");
            }
        }
    }
    // The plan checks exactly the conditions on symbols that the program depends on.
    let part = compile(Spec::new(DType::F32, "n"), |x| {
        (x.narrow(0, 2, 3), x.i(-4..-1))
    })?;
    let needs: Vec<String> = part
        .plan()
        .needs
        .iter()
        .map(|n| n.size.to_string())
        .collect();
    assert_eq!(needs, ["s0-5", "s0-4"]);
    let x = Tensor::arange(0, 5, 1).to_dtype(DType::F32);
    let (a, b) = part.run(&x)?;
    assert_eq!(
        (a.to_vec::<f32>()?, b.to_vec::<f32>()?),
        (vec![2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0])
    );
    assert!(part.run(Tensor::ones([4], DType::F32)).is_err());
    // Sizes that may differ can't be added, and the error names them.
    let e = compile(spec(), |x| {
        &x.max_pool2d(2).conv_transpose2d_with(
            Tensor::ones([3, 3, 2, 2], DType::F32),
            ConvTranspose::new().stride(2),
        ) + &x
    });
    let text = e.unwrap_err().to_string();
    assert!(
        text.contains("2*(height//2)") && text.contains("do not broadcast"),
        "{text}"
    );
    Ok(())
}

#[test]
fn a_shipped_function_takes_any_size() -> Result<()> {
    let spec = Spec::new(DType::F64, (2, 3, "h", "w"));
    let f = |x: Tensor| {
        x.max_pool2d(Pool::new(3).stride(2).padding(1))
            .i((.., .., step(.., 2)))
    };
    let any = compile(spec, f)?;
    let plan = kiln_plan::Entry::from_bytes(&any.to_bytes()).unwrap().plan;
    assert_eq!(plan, *any.plan());
    let shipped = kiln_runtime::Executable::new(plan).unwrap();
    for [h, w] in [[2, 2], [7, 11], [10, 3]] {
        let x = data(&[2, 3, h, w]).to(Device::Cpu);
        let values = x.to_vec::<f64>()?;
        let given = kiln_runtime::Buffer::from_slice(&values, &[2, 3, h as i64, w as i64]).unwrap();
        let y = shipped.run_shared(&[given]).unwrap();
        assert_eq!(
            y[0].as_slice::<f64>().unwrap(),
            any.run(&x)?.to_vec::<f64>()?
        );
    }
    Ok(())
}

/// PyTorch's number of windows: no window begins beyond the input and the padding in front of it.
#[test]
fn windows_beyond_the_end_are_counted() {
    for n in 1i64..12 {
        let x = Tensor::zeros([1, 1, n], DType::F32);
        for [k, s, d] in (0..36).map(|i| [1 + i % 4, 1 + i / 4 % 3, 1 + i / 12]) {
            for p in 0..=k / 2 {
                let room = n + 2 * p - d * (k - 1) - 1 + s - 1;
                let mut count = room.div_euclid(s) + 1;
                if (count - 1) * s >= n + p {
                    count -= 1;
                }
                let pool = Pool::new(k)
                    .stride(s)
                    .padding(p)
                    .dilation(d)
                    .ceil_mode(true);
                match x.max_pool1d(pool).shape() {
                    Ok(shape) => assert!(room >= 0 && shape == [1, 1, count as usize]),
                    Err(e) => assert!(room < 0, "{n} by {k}, {s}, {p}, {d}: {e}"),
                }
            }
        }
    }
}

//! A bias in front of a batch norm that uses batch statistics is dropped from the compiled step.

use kiln::nn::{
    BatchNorm1d, BatchNorm2d, BatchNorm3d, Conv1d, Conv2d, Conv3d, ConvTranspose1d,
    ConvTranspose2d, ConvTranspose3d, Forward, Linear, Module, StateDict,
};
use kiln::{Bisection, Conv, DType, Device, DimSpec, Spec, Tensor, Var, compile, keep};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn numbers(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().expect("a computed tensor")
}

fn near(a: &Tensor, b: &Tensor, what: &str) {
    let (a, b) = (numbers(a), numbers(b));
    assert_eq!(a.len(), b.len(), "{what}");
    for (x, y) in a.iter().zip(&b) {
        assert!(
            (x - y).abs() <= 1e-4 * (1.0 + y.abs()),
            "{what}: {x} is not {y}"
        );
    }
}

#[track_caller]
fn all_zero(gradient: &Tensor) {
    let gradient = numbers(gradient);
    assert!(gradient.iter().all(|g| *g == 0.0), "{gradient:?}");
}

/// The batch norm of a layer's result by its definition, on values that were computed before it, and its means.
fn normalised(h: &Tensor) -> kiln::Result<(Tensor, Tensor)> {
    let h = h.detach();
    h.realize()?;
    let axes: Vec<i64> = (0..h.ndim() as i64).filter(|a| *a != 1).collect();
    let (mean, var) = (h.mean(keep(&axes[..])), h.var_with(keep(&axes[..]), 0.0));
    Ok(((&h - &mean) / (&var + 1e-5).sqrt(), mean))
}

/// [`check_on`] the CPU, for data of these sizes, and for a batch of any size.
fn check<L: Forward + Module, N: Forward + Module>(
    layer: &L,
    norm: &N,
    sizes: &[usize],
    read: bool,
) -> Outcome {
    let mut dims: Vec<DimSpec> = sizes.iter().map(|n| (*n).into()).collect();
    check_on(Device::Cpu, layer, norm, sizes, &dims, read)?;
    dims[0] = "n".into();
    for (_, buffer) in norm.named_buffers() {
        // The running mean starts at 0 again.
        if buffer.get().dtype() == DType::F32 {
            buffer.assign(buffer.get().zeros_like())?;
        }
    }
    check_on(Device::Cpu, layer, norm, sizes, &dims, read)
}

/// Compiles a step of `layer` and `norm` for data of `dims` and compares it with PyTorch's definitions.
fn check_on<L: Forward + Module, N: Forward + Module>(
    device: Device,
    layer: &L,
    norm: &N,
    sizes: &[usize],
    dims: &[DimSpec],
    read: bool,
) -> Outcome {
    let parameter = |name: &str| {
        let mut all = layer.named_parameters().into_iter();
        all.find(|(n, _)| n == name).expect("a layer with a bias").1
    };
    let (weight, bias) = (parameter("weight"), parameter("bias"));
    let x = Tensor::randn(sizes, DType::F32).to(device);
    let spec = Spec::new(DType::F32, dims).on(device);
    let step = compile(spec, |x| {
        let h = layer.call(&x);
        let y = norm.call(&h);
        let loss = (&y * y.sin()).sum(());
        loss.backward()?;
        let mut outputs = vec![y, weight.grad().unwrap(), bias.grad().unwrap()];
        if read {
            outputs.push(h.exp());
        }
        kiln::Result::Ok(outputs)
    })?;
    let dropped = step.explain().dropped_biases();
    assert_eq!(dropped, !read as usize, "{}", step.explain());

    let (expected, mean) = normalised(&layer.call(&x))?;

    let outputs = step.run(&x)?;
    near(&outputs[0], &expected, "the result");
    let buffers = norm.named_buffers();
    let running = |name: &str| {
        buffers
            .iter()
            .find(|(n, _)| n == name)
            .expect("statistics")
            .1
            .get()
    };
    near(
        &running("running_mean"),
        &(mean.flatten(()) * 0.1),
        "the running mean",
    );

    // The weight's gradient does not change with the bias; the bias's is exactly zero.
    if !read {
        all_zero(&outputs[2]);
    }
    bias.assign((bias.get() + 0.5).detach())?;
    let again = step.run(&x)?;
    near(&again[0], &outputs[0], "the result with another bias");
    near(&again[1], &outputs[1], "the gradient with another bias");
    Ok(())
}

/// In lazy programs, sizes that have changed become symbols; a gradient that is zero in the first plan is zero in
/// all.
#[test]
fn gradients_are_zero_for_batches_of_any_size() -> Outcome {
    let (layer, norm) = (Conv2d::new(3, 4, 3)?, BatchNorm2d::new(4)?);
    for batch in [6, 7, 11, 5, 9, 6, 13] {
        let x = Tensor::randn([batch, 3, 8, 8], DType::F32);
        let y = norm.call(layer.call(&x));
        (&y * y.sin()).mean(()).backward()?;
        for (name, p) in layer.named_parameters() {
            let gradient = p.grad().expect("a gradient");
            match &name[..] {
                "bias" => all_zero(&gradient),
                _ => assert!(numbers(&gradient).iter().any(|g| *g != 0.0)),
            }
            p.zero_grad();
        }
    }
    Ok(())
}

#[test]
fn convolutions_and_linear_layers_lose_their_bias() -> Outcome {
    check(
        &Conv1d::new(2, 3, 3)?,
        &BatchNorm1d::new(3)?,
        &[4, 2, 7],
        false,
    )?;
    check(
        &Conv2d::new(3, 4, 3)?,
        &BatchNorm2d::new(4)?,
        &[2, 3, 6, 5],
        false,
    )?;
    check(
        &Conv3d::new(2, 3, 2)?,
        &BatchNorm3d::new(3)?,
        &[2, 2, 3, 4, 3],
        false,
    )?;
    check(
        &ConvTranspose1d::new(2, 3, 3)?,
        &BatchNorm1d::new(3)?,
        &[4, 2, 5],
        false,
    )?;
    check(
        &ConvTranspose2d::new(3, 4, 3)?,
        &BatchNorm2d::new(4)?,
        &[2, 3, 4, 5],
        false,
    )?;
    check(
        &ConvTranspose3d::new(2, 3, 2)?,
        &BatchNorm3d::new(3)?,
        &[2, 2, 3, 2, 3],
        false,
    )?;
    check(&Linear::new(5, 6)?, &BatchNorm1d::new(6)?, &[7, 5], false)
}

/// A norm reads views of the layer's result.
#[test]
fn a_bias_behind_a_view_is_dropped() -> Outcome {
    let norm = BatchNorm1d::new(5)?;
    let (linear, conv) = (Linear::new(3, 5)?, Conv2d::new(3, 5, 3)?);
    let [of_linear, of_conv] = [linear.bias.clone(), conv.bias.clone()];
    type Case<'a> = (Vec<usize>, Option<Var>, &'a dyn Fn(&Tensor) -> Tensor);
    let cases: [Case<'_>; 4] = [
        (vec![4, 7, 3], of_linear.clone(), &|x| {
            linear.call(x).permute([0, 2, 1])
        }),
        (vec![4, 7, 3], of_linear, &|x| {
            linear.call(x).reshape([28, 5])
        }),
        (vec![4, 3, 6, 7], of_conv.clone(), &|x| {
            conv.call(x).flatten((2, 3))
        }),
        (vec![4, 3, 6, 7], of_conv, &|x| {
            conv.call(x).permute([0, 2, 3, 1]).reshape([80, 5])
        }),
    ];
    for (sizes, bias, layer) in cases {
        let x = Tensor::randn(&sizes, DType::F32);
        let bias = bias.expect("a layer with a bias");
        let step = compile(&x, |x| {
            let y = norm.call(&layer(&x));
            (&y * y.sin()).sum(()).backward()?;
            let gradient = bias.grad().unwrap();
            bias.zero_grad();
            kiln::Result::Ok(vec![y, gradient])
        })?;
        assert_eq!(step.explain().dropped_biases(), 1, "{}", step.explain());
        let before = step.run(&x)?;
        all_zero(&before[1]);
        bias.assign((bias.get() + 0.5).detach())?;
        let after = step.run(&x)?;
        near(&after[0], &before[0], "the result with another bias");
        near(&after[0], &normalised(&layer(&x))?.0, "the result");
    }
    Ok(())
}

/// In mixed precision the norm reads values that were rounded to f16 or bf16 after the bias was added. These may have
/// more correct digits than without the bias. The bias's gradient is zero all the same.
#[test]
fn a_bias_in_front_of_a_cast_stays() -> Outcome {
    let norm = BatchNorm2d::new(6)?;
    let weight = Var::parameter(&(Tensor::randn([6, 3, 3, 3], DType::F32) * 0.3))?;
    // The data are around 30; the bias cancels most of that.
    let bias = Var::parameter(weight.get().sum([1, 2, 3]) * -30.0)?;
    let x = Tensor::randn([4, 3, 7, 5], DType::F32) + 30.0;
    let convolved = |x: &Tensor, dtype: DType| {
        let [x, w, b] =
            [x, &weight.get(), &bias.get()].map(|t| t.to_dtype(DType::F16).to_dtype(DType::F32));
        x.conv2d_with(&w, Conv::new().bias(&b)).to_dtype(dtype)
    };
    for (dtype, epsilon) in [(DType::BF16, 1.0 / 128.0), (DType::F16, 1.0 / 1024.0)] {
        let step = compile(&x, |x| {
            let y = norm.call(&convolved(&x, dtype).to_dtype(DType::F32));
            (&y * y.sin()).sum(()).backward()?;
            let gradient = bias.grad().unwrap();
            bias.zero_grad();
            kiln::Result::Ok(vec![y, gradient])
        })?;
        assert_eq!(step.explain().dropped_biases(), 0, "{}", step.explain());
        let outputs = step.run(&x)?;
        all_zero(&outputs[1]);
        let expected = numbers(&normalised(&convolved(&x, DType::F32))?.0);
        for (got, expected) in numbers(&outputs[0]).iter().zip(expected) {
            let off = f64::from((got - expected).abs());
            assert!(off <= 8.0 * epsilon, "{dtype}: {got} is not {expected}");
        }
        let found = step.verify(&x)?;
        assert!(found.is_right(), "{found}");
        assert_eq!(step.bisect(&x)?, Bisection::Right, "{dtype}");
    }
    Ok(())
}

#[test]
fn a_gpu_drops_it_too() -> Outcome {
    let Some(gpu) = crate::cuda::device() else {
        return Ok(());
    };
    let (conv, norm) = (Conv2d::new(2, 3, 3)?, BatchNorm2d::new(3)?);
    conv.to(gpu)?;
    norm.to(gpu)?;
    let sizes = [2, 2, 4, 5];
    let dims = sizes.map(DimSpec::from);
    check_on(gpu, &conv, &norm, &sizes, &dims, false)
}

/// The statistics are of the last axis of `[n, c, l]`, and the bias is per channel.
#[test]
fn a_bias_of_another_axis_than_the_norm_s_stays() -> Outcome {
    let (conv, norm) = (Conv1d::new(2, 5, 3)?, BatchNorm1d::new(5)?);
    let x = Tensor::randn([4, 2, 7], DType::F32);
    let step = compile(&x, |x| norm.call(&conv.call(&x).permute([0, 2, 1])))?;
    let explain = step.explain();
    assert_eq!(explain.dropped_biases(), 0, "{explain}");
    let before = step.run(&x)?;
    let bias = conv
        .named_parameters()
        .into_iter()
        .find(|(n, _)| n == "bias");
    let bias = bias.expect("a layer with a bias").1;
    bias.assign(crate::vector(&[0.0, 9.0, -3.0, 0.5, 2.0]))?;
    let after = step.run(&x)?;
    let largest = (&before - &after).abs().amax(()).item::<f32>()?;
    assert!(largest > 0.1, "another bias changes the result: {largest}");
    Ok(())
}

/// A step that does not read the bias changes neither the saved nor the loaded bias.
#[test]
fn a_dropped_bias_is_saved_and_loaded() -> Outcome {
    let (conv, norm) = (Conv2d::new(3, 4, 3)?, BatchNorm2d::new(4)?);
    let x = Tensor::randn([2, 3, 6, 5], DType::F32);
    let step = compile(&x, |x| norm.call(&conv.call(&x)))?;
    assert_eq!(step.explain().dropped_biases(), 1);
    let bias = |state: &StateDict| numbers(state.get("bias").expect("a layer with a bias"));
    let file = std::env::temp_dir().join(format!("kiln-bias-{}.safetensors", std::process::id()));
    let kept = bias(&conv.state_dict());
    step.run(&x)?;
    conv.save_state_dict(&file)?;
    let mut saved = StateDict::load(&file)?;
    std::fs::remove_file(&file)?;
    assert_eq!(bias(&saved), kept);
    let other = Conv2d::new(3, 4, 3)?;
    other.load_state_dict(&saved, true)?;
    assert_eq!(bias(&other.state_dict()), kept);
    // The step reads what was loaded: the running mean includes the new bias.
    saved.insert("bias", crate::vector(&[100.0; 4]));
    conv.load_state_dict(&saved, true)?;
    step.run(&x)?;
    let mean = norm
        .named_buffers()
        .into_iter()
        .find(|(n, _)| n == "running_mean");
    let mean = numbers(&mean.expect("statistics").1.get());
    assert!(mean.iter().all(|m| *m > 5.0), "{mean:?}");
    Ok(())
}

#[test]
fn a_bias_that_something_else_reads_stays() -> Outcome {
    check(
        &Conv2d::new(3, 4, 3)?,
        &BatchNorm2d::new(4)?,
        &[2, 3, 6, 5],
        true,
    )
}

#[test]
fn running_statistics_fold_instead() -> Outcome {
    let (conv, norm) = (Conv2d::new(3, 4, 3)?, BatchNorm2d::new(4)?);
    norm.eval();
    let x = Tensor::randn([2, 3, 6, 5], DType::F32);
    let compiled = compile(&x, |x| norm.call(&conv.call(&x)))?;
    let explain = compiled.explain();
    assert_eq!(
        (explain.folded(), explain.dropped_biases()),
        (1, 0),
        "{explain}"
    );
    Ok(())
}

#[test]
fn sums_of_zeros_show_what_is_not_a_number() -> Outcome {
    let x = Tensor::from_slice(&[-1.0f32, f32::INFINITY, f32::NAN], [3]);
    let row = x.sum(keep([0]));
    for zeros in [&x * 0.0, &x - &x, &x * 2.0 - &x - &x, &row - &row + &x - &x] {
        assert!(zeros.sum([0]).item::<f32>()?.is_nan());
    }
    Ok(())
}

/// This also holds if nothing else reads the gradient of the layer's result, since the weight is frozen.
#[test]
fn a_bias_alone_has_a_gradient_of_zero() -> Outcome {
    let losses: [fn(&Tensor) -> Tensor; 3] = [
        |y| (y * y.sin()).sum([0, 1, 2, 3]),
        |y| y.relu().square().sum([0, 1, 2, 3]),
        |y| y.gelu().mean([0, 1, 2, 3]),
    ];
    let devices = [Some(Device::Cpu), crate::cuda::device()];
    for (device, loss) in devices
        .iter()
        .flatten()
        .flat_map(|d| losses.map(|l| (*d, l)))
    {
        let (conv, norm) = (Conv2d::new(3, 4, 3)?, BatchNorm2d::new(4)?);
        conv.to(device)?;
        norm.to(device)?;
        let of = |name: &str| {
            let mut all = conv.named_parameters().into_iter();
            all.find(|(n, _)| n == name).expect("a parameter").1
        };
        of("weight").requires_grad_(false)?;
        let x = Tensor::randn([3, 3, 6, 5], DType::F32).to(device);
        let step = compile(&x, |x| -> kiln::Result<Tensor> {
            loss(&norm.call(&conv.call(&x))).backward()?;
            of("bias")
                .grad()
                .ok_or_else(|| unreachable!("it has a gradient"))
        })?;
        assert_eq!(numbers(&step.run(&x)?), [0.0; 4]);
    }
    Ok(())
}

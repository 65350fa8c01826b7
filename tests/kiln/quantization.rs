//! Networks whose layers multiply bytes.

use kiln::nn::{
    BatchNorm2d, Conv2d, Forward, Kernel, Linear, Module, ReLU, Sequential, sequential,
};
use kiln::{Calibration, DType, Result, Tensor, compile, no_grad, quantize_dynamic, with_seed};

fn network() -> Result<Sequential> {
    let net = sequential![
        Conv2d::new(3, 16, Kernel::new(3).padding(1).bias(false)),
        BatchNorm2d::new(16),
        ReLU::new(),
        Conv2d::new(16, 24, Kernel::new(3).stride(2).padding(1)),
        ReLU::new(),
        Conv2d::new(24, 10, 1),
    ]?;
    net.eval();
    Ok(net)
}

/// The mean distance as a part of the mean size.
fn distance(y: &Tensor, exact: &Tensor) -> Result<f64> {
    let off = (y - exact).abs().mean(()).item::<f64>()?;
    Ok(off / exact.abs().mean(()).item::<f64>()?)
}

#[test]
fn a_calibrated_network_is_near_the_one_of_floats() -> Result<()> {
    with_seed(3, || {
        let net = network()?;
        let images = || Tensor::randn([4, 3, 15, 13], DType::F32);
        let mut calibration = Calibration::new();
        for _ in 0..3 {
            let x = images();
            no_grad(|| calibration.observe(|| net.call(&x)))?;
        }
        assert_eq!(calibration.len(), 3);
        let x = images();
        let exact = no_grad(|| net.call(&x));
        let eager = no_grad(|| calibration.quantized(|| net.call(&x)));
        let off = distance(&eager, &exact)?;
        assert!((1e-5..0.05).contains(&off), "{off}");
        let f = compile(&x, |x| no_grad(|| calibration.quantized(|| net.call(x))))?;
        let off = distance(&f.run(&x)?, &eager)?;
        assert!(off < 0.01, "{off}");
        // Each layer is a kernel, and one makes the images into bytes.
        let explain = f.explain();
        assert!(explain.kernels_run() <= 5, "{explain}");
        let found = f.verify(&x)?;
        assert!(found.is_right(), "{found}");
        Ok(())
    })
}

#[test]
fn linear_layers_scale_bytes_as_they_run() -> Result<()> {
    with_seed(5, || {
        let net = sequential![Linear::new(65, 130), ReLU::new(), Linear::new(130, 7)]?;
        for rows in [1, 6, 33] {
            let x = Tensor::randn([rows, 65], DType::F32) * 3.0 + 1.0;
            let exact = net.call(&x);
            let eager = quantize_dynamic(|| net.call(&x));
            let off = distance(&eager, &exact)?;
            assert!((1e-5..0.05).contains(&off), "{off}");
            let f = compile(&x, |x| quantize_dynamic(|| net.call(x)))?;
            let off = distance(&f.run(&x)?, &eager)?;
            assert!(off < 0.01, "{off}");
            let found = f.verify(&x)?;
            assert!(found.is_right(), "{found}");
        }
        // Zeros are zeros, and halves come back as halves.
        let net = Linear::no_bias(8, 3)?;
        let zeros = Tensor::zeros([2, 8], DType::F32);
        let y = quantize_dynamic(|| net.call(&zeros));
        assert_eq!(y.to_vec::<f32>()?, [0.0; 6]);
        net.to_dtype(DType::F16)?;
        let y = quantize_dynamic(|| net.call(zeros.to_dtype(DType::F16)));
        assert_eq!(y.dtype(), DType::F16);
        Ok(())
    })
}

#[test]
fn layers_that_were_not_observed_are_refused() -> Result<()> {
    let (net, x) = (network()?, Tensor::randn([1, 3, 8, 8], DType::F32));
    let mut calibration = Calibration::new();
    let error = |y: Tensor| y.realize().unwrap_err().to_string();
    let none = error(calibration.quantized(|| net.call(&x)));
    assert!(none.contains("layer 0 was not observed"), "{none}");
    calibration.observe(|| net.call(&x))?;
    let other = Conv2d::new(3, 5, 3)?;
    let other = error(calibration.quantized(|| other.call(&x)));
    assert!(other.contains("layer 0 was not observed"), "{other}");
    let fewer = calibration.observe(|| x.sum(())).unwrap_err().to_string();
    assert!(fewer.contains("not those that were observed"), "{fewer}");
    let wild = &x * f64::NAN;
    let wild = calibration
        .observe(|| net.call(&wild))
        .unwrap_err()
        .to_string();
    assert!(wild.contains("layer 0 reads numbers"), "{wild}");
    for (scale, zero, dtype) in [
        (0.0, 0, DType::U8),
        (f64::NAN, 0, DType::I8),
        (1.0, 256, DType::U8),
        (1.0, 0, DType::I32),
    ] {
        error(x.quantize_per_tensor(scale, zero, dtype));
    }
    error(x.dequantize_per_tensor(1.0, 0));
    // At the user's line.
    let narrow = Tensor::zeros([4, 7], DType::F32);
    let wrong = error(quantize_dynamic(|| x.linear(&narrow)));
    assert!(wrong.contains("quantization.rs:"), "{wrong}");
    assert!(!wrong.contains("crates/tensor"), "{wrong}");
    Ok(())
}

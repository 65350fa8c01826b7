//! Networks whose layers multiply bytes.

use kiln::nn::{
    BatchNorm2d, Conv2d, Forward, Kernel, Linear, LinearOptions, Module, ReLU, Sequential, module,
    sequential,
};
use kiln::{
    Calibration, DType, Result, Tensor, compile, no_grad, quantize_dynamic, reduce_range, with_seed,
};

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

/// The mean distance, relative to the mean magnitude.
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
        let compiled = distance(&f.run(&x)?, &eager)?;
        assert!(compiled < 0.01, "{compiled}");
        // Each layer is a kernel, and one more quantises the images.
        let explain = f.explain();
        assert!(explain.kernels_run() <= 5, "{explain}");
        let found = f.verify(&x)?;
        assert!(found.is_right(), "{found}");
        // With seven bits the results are farther from the exact ones.
        let reduced = || reduce_range(|| calibration.quantized(|| net.call(&x)));
        let eager = no_grad(reduced);
        let farther = distance(&eager, &exact)?;
        assert!((1.1 * off..0.1).contains(&farther), "{farther}");
        let f = compile(&x, |x| {
            no_grad(|| reduce_range(|| calibration.quantized(|| net.call(x))))
        })?;
        let off = distance(&f.run(&x)?, &eager)?;
        assert!(off < 0.01, "{off}");
        let found = f.verify(&x)?;
        assert!(found.is_right(), "{found}");
        Ok(())
    })
}

module!(struct Block(channels: usize) {
    first: Conv2d = Conv2d::new(channels, channels, Kernel::new(3).padding(1)),
    second: Conv2d = Conv2d::new(channels, channels, 1),
});

impl Forward for Block {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.second.call(self.first.call(&x).relu());
        Ok((y + x).relu())
    }
}

/// Residual blocks exchange bytes alone: a layer's input is quantised once for all its readers.
#[test]
fn what_a_layer_reads_is_stored_as_bytes_alone() -> Result<()> {
    with_seed(7, || {
        let net = sequential![
            Conv2d::new(3, 16, 3),
            ReLU::new(),
            Block::new(16),
            Block::new(16)
        ]?;
        net.eval();
        let images = || Tensor::randn([2, 3, 14, 11], DType::F32);
        let mut calibration = Calibration::new();
        for _ in 0..3 {
            let x = images();
            no_grad(|| calibration.observe(|| net.call(&x)))?;
        }
        let x = images();
        let exact = no_grad(|| net.call(&x));
        let eager = no_grad(|| calibration.quantized(|| net.call(&x)));
        let off = distance(&eager, &exact)?;
        assert!((1e-5..0.05).contains(&off), "{off}");
        let f = compile(&x, |x| no_grad(|| calibration.quantized(|| net.call(x))))?;
        let off = distance(&f.run(&x)?, &eager)?;
        assert!(off < 0.01, "{off}");
        let found = f.verify(&x)?;
        assert!(found.is_right(), "{found}");
        let explain = f.explain();
        let blocks = explain.temporaries.iter().filter_map(|b| b.buffer);
        let stored: Vec<DType> = blocks.map(|b| f.plan().buffers[b as usize].dtype).collect();
        let all = stored.iter().all(|dtype| *dtype == DType::U8);
        assert!(all && stored.len() > 3, "{stored:?}\n{explain}");
        Ok(())
    })
}

/// Another reader of a quantised input gets the values that the bytes represent.
#[test]
fn what_was_quantised_is_read_as_its_bytes() -> Result<()> {
    let x = Tensor::from_slice(&[-1.0f32, 0.26, 0.031, 2.0], [1, 4]);
    let w = Tensor::ones([3, 4], DType::F32);
    let mut calibration = Calibration::new();
    calibration.observe(|| x.linear(&w))?;
    let (before, behind, sum) = calibration.quantized(|| {
        let before = &x * 1.0;
        let _ = x.linear(&w);
        (before, &x * 1.0, x.sum(()))
    });
    let (scale, zero) = (3.0 / 255.0, 85);
    let bytes = x.quantize_per_tensor(scale, zero, DType::U8);
    let stands_for = bytes.dequantize_per_tensor(scale, zero);
    assert_eq!(before.to_vec::<f32>()?, x.to_vec::<f32>()?);
    assert_eq!(behind.to_vec::<f32>()?, stands_for.to_vec::<f32>()?);
    assert_ne!(behind.to_vec::<f32>()?, x.to_vec::<f32>()?);
    assert_eq!(sum.item::<f32>()?, stands_for.sum(()).item::<f32>()?);
    // Outside of quantisation the input is unchanged.
    assert_eq!((&x * 1.0).to_vec::<f32>()?, x.to_vec::<f32>()?);
    Ok(())
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
        // Zeros stay zeros, and f16 inputs give f16 results.
        let net = Linear::with(8, 3, LinearOptions::new().bias(false))?;
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
    // The error is at the user's line.
    let narrow = Tensor::zeros([4, 7], DType::F32);
    let wrong = error(quantize_dynamic(|| x.linear(&narrow)));
    assert!(wrong.contains("quantization.rs:"), "{wrong}");
    assert!(!wrong.contains("crates/tensor"), "{wrong}");
    Ok(())
}

#[test]
fn layers_take_a_batch_of_none() -> Result<()> {
    let net = with_seed(5, network)?;
    let [x, none] = [2, 0].map(|n| Tensor::ones([n, 3, 15, 13], DType::F32));
    let mut calibration = Calibration::new();
    no_grad(|| calibration.observe(|| net.call(&x)))?;
    let quantized = |c: &Calibration, x: &Tensor| no_grad(|| c.quantized(|| net.call(x)));
    let before = quantized(&calibration, &x).to_vec::<f32>()?;
    // An empty batch changes no range.
    no_grad(|| calibration.observe(|| net.call(&none)))?;
    assert_eq!(quantized(&calibration, &x).to_vec::<f32>()?, before);
    assert_eq!(quantized(&calibration, &none).shape()?, [0, 10, 8, 7]);
    assert!(quantized(&calibration, &none).to_vec::<f32>()?.is_empty());

    let linear = Linear::new(3, 2)?;
    let dynamic = |x: &Tensor| no_grad(|| quantize_dynamic(|| linear.call(x)));
    let none = Tensor::zeros([0, 3], DType::F32);
    assert!(dynamic(&none).to_vec::<f32>()?.is_empty());
    let any = compile(kiln::Spec::new(DType::F32, ("n", 3)), |x| dynamic(&x))?;
    for n in [0, 1, 5, 0] {
        let x = Tensor::ones([n, 3], DType::F32);
        assert_eq!(any.run(&x)?.to_vec::<f32>()?, dynamic(&x).to_vec::<f32>()?);
    }
    Ok(())
}

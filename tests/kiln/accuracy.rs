//! Optimised programs are as close to the result in f64 as recorded ones, with large offsets and at the ends of a
//! range.

use kiln::nn::{BatchNorm2d, Conv2d, Forward, Kernel, Linear, Module, ReLU, sequential};
use kiln::{DType, Tensor, compile, manual_seed, no_grad, realize_all};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Realised data around an offset.
fn around(offset: f64, sizes: &[usize]) -> kiln::Result<Tensor> {
    let x = Tensor::randn(sizes, DType::F32) + offset;
    x.realize()?;
    Ok(x)
}

fn wide(t: &Tensor) -> Tensor {
    t.to_dtype(DType::F64)
}

/// The largest difference from the same function of f64 values, relative to the largest result.
fn off(found: &Tensor, exact: &Tensor) -> kiln::Result<f64> {
    let largest = |t: Tensor| t.abs().amax(()).item::<f64>();
    Ok(largest(wide(found) - exact)? / largest(exact.clone())?)
}

#[test]
fn what_cancels_an_offset_is_added_before_a_mean() -> Outcome {
    type Program = fn(&Tensor) -> Tensor;
    let programs: [Program; 3] = [
        |x| x.mean(0),
        |x| (x - x.mean(0)) / (x.var_with(0, 0.0) + 1e-5).sqrt(),
        |x| x.layer_norm([16]),
    ];
    for offset in [300.0, 1e5, 1e6] {
        let x = around(offset, &[64, 16])?;
        let b = Tensor::full([16], -offset, DType::F32);
        b.realize()?;
        for (i, program) in programs.iter().enumerate() {
            let exact = program(&(wide(&x) + wide(&b)));
            // The sum is dropped, or held, or a number is added instead.
            let held = &x + &b;
            let results = [program(&(&x + &b)), program(&held), program(&(&x - offset))];
            for (j, found) in results.iter().enumerate() {
                let off = off(found, &exact)?;
                assert!(off < 2e-5, "program {i}, way {j} at {offset}: {off:e}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_cancels_an_offset_is_added_before_a_product() -> Outcome {
    let linear = Linear::new(64, 3)?;
    let [weight, bias] =
        [&linear.weight, linear.bias.as_ref().expect("a bias")].map(|v| wide(&v.get()));
    for offset in [2e3, 1e5, 1e6] {
        let x = around(offset, &[8, 64])?;
        let exact = (wide(&x) - offset).matmul(weight.t()) + &bias;
        let compiled = compile(&x, |x| no_grad(|| linear.call(x - offset)))?;
        let held = &x - offset;
        let results = no_grad(|| {
            [
                linear.call(&x - offset),
                linear.call(&held),
                linear.call(&x - offset),
            ]
        });
        for found in results.iter().chain([&compiled.run(&x)?]) {
            let off = off(found, &exact)?;
            assert!(off < 1e-5, "at {offset}: {off:e}");
        }
    }
    Ok(())
}

#[test]
fn factors_that_keep_results_in_range_stay_where_they_are() -> Outcome {
    let full = |sizes: [usize; 2], value: f64, dtype: DType| -> kiln::Result<Tensor> {
        let t = Tensor::full(sizes, value, dtype);
        t.realize()?;
        Ok(t)
    };
    let half = |sizes, value| full(sizes, value, DType::F16);
    let (x, w, k) = (
        half([2, 32], 1.25)?,
        half([32, 64], 1.0)?,
        half([64, 3], 40.0)?,
    );
    let scores = (x.matmul(&w) * 0.125).matmul(&k);
    assert_eq!(wide(&scores).to_vec::<f64>()?, [12800.0; 6]);

    let [a, b, y] = [[4, 5], [5, 6], [6, 3]].map(|sizes| full(sizes, 1e13, DType::F32));
    let z = (a?.matmul(&b?) * 1e-20).matmul(&y?);
    assert!(off(&z, &Tensor::full([4, 3], 3e20, DType::F64))? < 1e-6);

    let x = full([3, 2], 1e38, DType::F32)?;
    assert!(off(&x.mean(0).mean(0), &Tensor::full((), 1e38, DType::F64))? < 1e-6);

    // The product of weight and factor would be subnormal.
    let (x, w) = (
        full([2, 8], 1e20, DType::F32)?,
        full([8, 3], 1e-20, DType::F32)?,
    );
    let found = compile(&x, |x| x.matmul(&w) * 1e-23)?.run(&x)?;
    assert!(off(&found, &Tensor::full([2, 3], 8e-23, DType::F64))? < 1e-6);
    Ok(())
}

/// A network whose parameters are drawn at its first run gives the same bits in every run.
#[test]
fn the_first_run_gives_the_bits_of_every_run() -> Outcome {
    for realized in [false, true] {
        manual_seed(0);
        let x = Tensor::randn([8, 3, 16, 16], DType::F32);
        x.realize()?;
        let net = sequential![
            Conv2d::new(3, 8, Kernel::new(3).padding(1).bias(false)),
            BatchNorm2d::new(8),
            ReLU::new(),
            Conv2d::new(8, 8, 3),
            BatchNorm2d::new(8)
        ]?;
        net.eval();
        if realized {
            realize_all()?;
        }
        let run = || no_grad(|| net.call(&x).to_vec::<f32>());
        let first = run()?;
        assert_eq!(first, run()?, "realized before: {realized}");
        assert_eq!(first, run()?, "realized before: {realized}");
    }
    Ok(())
}

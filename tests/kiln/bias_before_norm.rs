//! A bias in front of a batch norm that uses batch statistics is dropped from the compiled step.

use kiln::nn::{
    BatchNorm1d, BatchNorm2d, BatchNorm3d, Conv1d, Conv2d, Conv3d, ConvTranspose2d, Forward,
    Linear, Module,
};
use kiln::{DType, Spec, Tensor, compile};

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

/// Compiles a step of `layer` and `norm` and holds it against PyTorch's definitions.
fn check<L: Forward + Module, N: Forward + Module>(
    layer: &L,
    norm: &N,
    sizes: &[usize],
    read: bool,
) -> Outcome {
    let parameter = |name: &str| {
        let mut all = layer.named_parameters().into_iter();
        all.find(|(n, _)| n == name).expect("a layer with a bias").1
    };
    let (weight, bias) = (parameter("weight"), parameter("bias"));
    let x = Tensor::randn(sizes, DType::F32);
    let step = compile(&[Spec::like(&x)?], |x| {
        let h = layer.forward(&x[0]);
        let y = norm.forward(&h);
        let loss = (&y * y.sin()).sum((), false);
        loss.backward()?;
        let mut outputs = vec![y, weight.grad().unwrap(), bias.grad().unwrap()];
        if read {
            outputs.push(h.exp());
        }
        kiln::Result::Ok(outputs)
    })?;
    let dropped = step.explain().dropped_biases();
    assert_eq!(dropped, !read as usize, "{}", step.explain());

    // Batch norm by hand, on values that were computed before it.
    let h = layer.forward(&x).detach();
    h.realize()?;
    let axes: Vec<i64> = (0..sizes.len() as i64).filter(|a| *a != 1).collect();
    let (mean, var) = (h.mean(&axes[..], true), h.var(&axes[..], 0.0, true));
    let expected = (&h - &mean) / (&var + 1e-5).sqrt();

    let outputs = step.run(&[&x])?;
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
        &(mean.flatten(0, -1) * 0.1),
        "the running mean",
    );

    // The weight's gradient does not change with the bias; the bias's is exactly zero.
    if !read {
        assert!(
            numbers(&outputs[2]).iter().all(|g| *g == 0.0),
            "{:?}",
            numbers(&outputs[2])
        );
    }
    bias.assign(&(bias.get() + 0.5).detach())?;
    let again = step.run(&[&x])?;
    near(&again[0], &outputs[0], "the result with another bias");
    near(&again[1], &outputs[1], "the gradient with another bias");
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
        &ConvTranspose2d::new(3, 4, 3)?,
        &BatchNorm2d::new(4)?,
        &[2, 3, 4, 5],
        false,
    )?;
    check(&Linear::new(5, 6)?, &BatchNorm1d::new(6)?, &[7, 5], false)
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
    let compiled = compile(&[Spec::like(&x)?], |x| norm.forward(&conv.forward(&x[0])))?;
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
    let row = x.sum([0], true);
    for zeros in [&x * 0.0, &x - &x, &x * 2.0 - &x - &x, &row - &row + &x - &x] {
        assert!(zeros.sum([0], false).item::<f32>()?.is_nan());
    }
    Ok(())
}

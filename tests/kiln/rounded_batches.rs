//! In mixed precision, a batch is rounded to f16 or bf16 by every product and convolution that reads it. The results
//! equal those for a batch that was rounded before.

use kiln::{Compiled, Conv, DType, Result, Spec, Tensor, Var, compile, with_seed};

type Results = Vec<Vec<f64>>;

/// Compiles a function of a batch and a weight to its results and the gradient of the weight.
fn compiled(
    spec: Spec,
    weight: &Tensor,
    half: DType,
    f: fn(&Tensor, &Tensor) -> Tensor,
) -> Result<Compiled<Tensor, Vec<Tensor>>> {
    let weight = Var::parameter(weight)?;
    compile(spec, |x| {
        let y = f(&x.to_dtype(half), &weight.get());
        (y.to_dtype(DType::F32).square() * 0.5).sum(()).backward()?;
        let gradient = weight.grad().expect("it has one");
        Ok(vec![y, gradient])
    })
}

fn values(all: Vec<Tensor>) -> Result<Results> {
    let wide = |t: &Tensor| t.to_dtype(DType::F64).to_vec();
    all.iter().map(wide).collect()
}

/// Checks `f` of batches of a shape.
fn check(
    shape: &[usize],
    weight: &[usize],
    half: DType,
    f: fn(&Tensor, &Tensor) -> Tensor,
) -> Result<()> {
    let [x, w] = with_seed(shape[0] as u64, || {
        [shape, weight].map(|s| Tensor::randn(s, DType::F32))
    });
    let w = (w * 0.3).to_dtype(half);
    let wide = compiled(Spec::new(DType::F32, shape), &w, half, f)?;
    let narrow = compiled(Spec::new(half, shape), &w, half, f)?;
    let found = values(wide.run(&x)?)?;
    let wanted = values(narrow.run(x.to_dtype(half))?)?;
    for (found, wanted) in found.iter().zip(&wanted) {
        let largest = wanted.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
        for (a, b) in found.iter().zip(wanted) {
            // The schedules of sums may differ; each sum is rounded to f16 or bf16 once.
            let off = (a - b).abs() / largest;
            assert!(off < 8e-3, "{shape:?} {weight:?} {half}: {a} and {b}");
        }
    }
    let casts = wide.explain().casts_alone();
    assert_eq!(casts, 0, "{shape:?} {weight:?} {half}: {}", wide.explain());
    Ok(())
}

#[test]
fn products_round_their_batch() -> Result<()> {
    for half in [DType::BF16, DType::F16] {
        for (rows, terms, columns) in [(33, 40, 29), (128, 64, 96), (7, 131, 65), (2, 3, 5)] {
            check(&[rows, terms], &[columns, terms], half, |x, w| x.linear(w))?;
            check(&[rows, terms], &[terms, columns], half, |x, w| x.matmul(w))?;
        }
    }
    Ok(())
}

#[test]
fn convolutions_round_their_batch() -> Result<()> {
    let step = |x: &Tensor, w: &Tensor| x.conv2d_with(w, Conv::new().stride(2).padding(1));
    for half in [DType::BF16, DType::F16] {
        for (channels, size, out, kernel) in [(3, 17, 32, 7), (8, 12, 16, 3), (5, 9, 7, 3)] {
            let shape = [4, channels, size, size + 3];
            check(&shape, &[out, channels, kernel, kernel], half, step)?;
        }
    }
    Ok(())
}

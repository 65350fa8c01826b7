//! The first program of the README.

use kiln::{DType, Spec, Tensor, Var, compile};

fn main() -> kiln::Result<()> {
    // Recorded, not run:
    let x = Tensor::arange(0, 6, 1).to_dtype(DType::F32).reshape([2, 3]);
    let y = (&x * 2.0 + 1.0).gelu().sum([1]);
    // Compiled and run here, as one kernel:
    println!("{y}");

    // A function compiled once, for any batch size. The weight may change between runs.
    let weight = Var::new(Tensor::randn([3, 4], DType::F32))?;
    let layer = compile(Spec::new(DType::F32, ("batch", 3)), |x| x.matmul(&weight).relu())?;
    let out = layer.run(&x)?;
    assert_eq!(out.shape()?, [2, 4]);
    println!("{}", layer.explain());

    // Mistakes are errors that show your line:
    let wrong = x.matmul(Tensor::ones([2, 2], DType::F32));
    println!("{}", wrong.to_vec::<f32>().unwrap_err());
    Ok(())
}

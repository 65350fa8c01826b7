//! A gradient penalty: the gradient of an input is part of the loss; a function with a derivative of its own,
//! what a layer gave, and second derivatives.

use kiln::prelude::*;

fn main() -> Result<()> {
    let square = custom_function(|x: Tensor| (&x * &x, x), |x, g| 2.0 * x * g);
    let f = sequential![Linear::new(3, 16), Tanh::new(), Linear::new(16, 1)]?;
    let x = randn([5, 3]).requires_grad_(true);
    let (y, [hidden]) = extract(&f, ["0"], &x)?;
    let y = square.apply(y).sum(());
    let g = grad_with(&y, &x, Grad::new().create_graph(true))?;
    let loss = y + 10.0 * (g.vector_norm(2.0, 1) - 1.0).pow(2).mean(());
    loss.backward()?;
    let slope = f.get_parameter("0.weight")?.grad().expect("it is a parameter");
    println!("{loss} {:?} {}", hidden[0].shape()?, slope.vector_norm(2.0, ()));
    let h = hessian(|v: Tensor| v.pow(3).sum(()), Tensor::from([1.0f32, 2.0]))?;
    println!("{h}");
    Ok(())
}

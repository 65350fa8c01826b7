//! A program on the first NVIDIA GPU, or on the processor where there is none.

use kiln::nn::{Forward, Linear, Module};
use kiln::{DType, Device, Tensor, no_grad};

fn main() -> kiln::Result<()> {
    let device = Device::best();
    println!("on {device}: {}", device.name());

    let layer = Linear::new(3, 2)?;
    layer.to(device)?;
    // Tensors that depend on no data go to the device of the other operands; data is moved.
    let x = Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]).to(device);
    let y = no_grad(|| layer.call(&x).softmax(1));
    println!("{y}");

    let sums = y.sum([1]).to(Device::Cpu);
    let ones = Tensor::ones([2], DType::F32);
    assert!(sums.isclose(&ones).all(()).item::<bool>()?);
    println!("{} bytes are held there", device.memory().allocated);
    Ok(())
}

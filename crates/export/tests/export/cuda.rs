//! Packages of programs for a GPU: the emulated one, or the one of the driver in `KILN_CUDA_DRIVER`.

use crate::support::{batch, buffer};
use kiln_export::Builder;
use kiln_nn::optim::{Adam, Optimizer};
use kiln_nn::{BatchNorm1d, Forward, Linear, Module, ReLU, Sequential, sequential};
use kiln_package::{Buffer, Options, Package};
use kiln_runtime::cuda;
use kiln_tensor::{DType, Device, Spec, compile, with_seed};

/// Returns the device, or prints why the test is skipped.
pub fn device() -> Option<Device> {
    cuda::set_driver(kiln_fake_cuda::library());
    if let Err(e) = cuda::Nvrtc::get() {
        let message = e.to_string();
        eprintln!("skipped: {}", message.lines().next().unwrap_or_default());
        return None;
    }
    Some(Device::cuda(0).unwrap())
}

/// A small network on a GPU.
pub fn network(seed: u64, gpu: Device) -> Sequential {
    let network = with_seed(seed, || {
        let layers = sequential![
            Linear::new(3, 5),
            BatchNorm1d::new(5),
            ReLU::new(),
            Linear::new(5, 2)
        ];
        layers.unwrap()
    });
    network.to(gpu).unwrap();
    network
}

#[test]
fn programs_for_a_gpu_run_and_train_there() {
    let Some(gpu) = device() else { return };
    let network = network(1, gpu);
    let mut optimizer = Optimizer::new(network.parameters(), Adam::new()).unwrap();
    let rows = Spec::new(DType::F32, ("batch", 3)).on(gpu);
    let labels = Spec::new(DType::I64, "batch").on(gpu);
    network.eval();
    let forward = compile(rows.clone(), |x| network.call(x).softmax(1)).unwrap();
    network.train();
    let step = compile((rows, labels), |(x, y)| {
        optimizer.zero_grad();
        let loss = network.call(x).cross_entropy(&y);
        loss.backward()?;
        optimizer.step()?;
        kiln_tensor::Result::Ok(loss.detach())
    })
    .unwrap();
    let bytes = Builder::new()
        .module("", &network)
        .optimizer("optimizer", &optimizer)
        .entry("forward", &forward)
        .inputs(["rows"])
        .outputs(["chances"])
        .entry("train_step", &step)
        .inputs(["rows", "labels"])
        .outputs(["loss"])
        .to_bytes()
        .unwrap();
    let package = Options::new().gpu(0).open_bytes(&bytes).unwrap();
    let host = |b: &Buffer| b.to_host().unwrap().to_bytes().unwrap();
    let chances = |package: &Package, x: &Buffer| {
        let out = package.entry("forward").unwrap().run([("rows", x.clone())]);
        host(&out.unwrap()[0])
    };
    for n in [2, 6, 1] {
        let (x, _) = batch(n as u64, n);
        let wanted = forward.run(x.to(gpu)).unwrap();
        assert_eq!(
            chances(&package, &buffer(&x)),
            wanted.to_bytes().unwrap(),
            "{n} rows"
        );
    }
    for n in [6, 3, 6] {
        let (x, y) = batch(n as u64, n);
        let wanted = step.run((x.to(gpu), y.to(gpu))).unwrap();
        let given = [("rows", buffer(&x)), ("labels", buffer(&y))];
        let found = package.entry("train_step").unwrap().run(given).unwrap();
        assert_eq!(host(&found[0]), wanted.to_bytes().unwrap(), "{n} rows");
    }
    // The trained state is saved from the device, and loaded again on it.
    let (x, _) = batch(9, 4);
    let wanted = forward.run(x.to(gpu)).unwrap().to_bytes().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("later.kiln");
    package.save(&file).unwrap();
    let later = Options::new().gpu(0).open(&file).unwrap();
    assert_eq!(chances(&later, &buffer(&x)), wanted);
    // A machine without a GPU reports what is missing.
    let here = Package::from_bytes(&bytes).unwrap();
    let error = here.entry("forward").unwrap_err().to_string();
    assert!(
        error.contains("no program that runs on Cpu, only on Cuda"),
        "{error}"
    );
}

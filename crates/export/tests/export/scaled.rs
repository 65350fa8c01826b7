//! Training steps in mixed precision, exported with their scaler.

use crate::support::{batch, buffer};
use kiln_export::Builder;
use kiln_nn::amp::{GradScaler, Scaling};
use kiln_nn::optim::{AdamW, Optimizer};
use kiln_nn::{Forward, Linear, Module, ReLU, sequential};
use kiln_package::{Buffer, Package};
use kiln_tensor::{DType, Spec, Tensor, autocast, compile, with_seed};

/// Some steps overflow, with master weights of bf16 parameters. The runtime alone skips the same steps, with identical
/// bits, and its scale grows and backs off.
#[test]
fn scaled_training_goes_on_elsewhere_to_the_bit() {
    let network = with_seed(3, || {
        sequential![Linear::new(3, 5), ReLU::new(), Linear::new(5, 2)]
    });
    let network = network.unwrap();
    network.modules()[1].bfloat16().unwrap();
    let mut optimizer = Optimizer::new(network.parameters(), AdamW::new()).unwrap();
    optimizer.keep_master_weights().unwrap();
    let options = Scaling::new().init_scale(256.0).growth_interval(2i64);
    let mut scaler = GradScaler::with(options).unwrap();
    let specs = (
        Spec::new(DType::F32, ("batch", 3)),
        Spec::new(DType::I64, "batch"),
        Spec::new(DType::F32, ()),
    );
    let step = compile(specs, |(x, y, by)| {
        optimizer.zero_grad();
        let loss = autocast(DType::BF16, || network.call(x).cross_entropy(&y)) * by;
        scaler.scale(&loss).backward()?;
        scaler.step(&mut optimizer)?;
        scaler.update()?;
        kiln_tensor::Result::Ok(loss.detach())
    })
    .unwrap();
    let archive = Builder::new()
        .module("", &network)
        .optimizer("optimizer", &optimizer)
        .scaler("scaler", &scaler)
        .entry("train_step", &step)
        .inputs(["rows", "labels", "by"])
        .outputs(["loss"])
        .to_bytes()
        .unwrap();
    let guarded = step.plan().run.iter().filter(|s| s.guard.is_some());
    assert!(guarded.count() > 0, "{}", step.explain());
    let package = Package::from_bytes(&archive).unwrap();
    let entry = package.entry("train_step").unwrap();
    let mut scales = Vec::new();
    for (i, by) in [1.0f32, 1.0, f32::INFINITY, 1.0, f32::NAN]
        .into_iter()
        .enumerate()
    {
        let (x, y) = batch(i as u64, 4 + i);
        let wanted = step.run((&x, &y, Tensor::from(by))).unwrap();
        let by = Buffer::from_slice(&[by], &[]).unwrap();
        let found = entry
            .run([("rows", buffer(&x)), ("labels", buffer(&y)), ("by", by)])
            .unwrap();
        assert_eq!(
            found.get("loss").unwrap().to_bytes().unwrap(),
            wanted.to_bytes().unwrap()
        );
        scales.push(
            package
                .get("scaler.scale")
                .unwrap()
                .to_vec::<f32>()
                .unwrap()[0],
        );
    }
    assert_eq!(scales, [256.0, 512.0, 256.0, 256.0, 128.0]);
    let own = optimizer
        .named_state()
        .into_iter()
        .map(|s| (format!("optimizer.{}", s.name), s.var));
    let scaler = scaler
        .named_state()
        .into_iter()
        .map(|s| (format!("scaler.{}", s.name), s.var));
    let mut masters = 0;
    for (name, var) in network
        .named_parameters()
        .into_iter()
        .chain(own)
        .chain(scaler)
    {
        let found = package.get(&name).unwrap().to_bytes().unwrap();
        assert_eq!(found, var.get().to_bytes().unwrap(), "{name}");
        masters += usize::from(name.contains("master_param"));
    }
    assert_eq!(masters, 2);
}

/// Narrow copies of weights are stored under the weights' names, and follow a weight that is set.
#[test]
fn copies_follow_weights_that_are_set() {
    let network = with_seed(3, || Linear::new(3, 5)).unwrap();
    let mut optimizer = Optimizer::new(network.parameters(), AdamW::new()).unwrap();
    let specs = (Spec::new(DType::F32, (4, 3)), Spec::new(DType::I64, 4));
    let step = compile(specs, |(x, y)| {
        optimizer.zero_grad();
        let loss = autocast(DType::BF16, || network.call(x).cross_entropy(&y));
        loss.backward()?;
        optimizer.step()?;
        kiln_tensor::Result::Ok(loss.detach())
    })
    .unwrap();
    let archive = Builder::new()
        .module("layer", &network)
        .optimizer("optimizer", &optimizer)
        .entry("train_step", &step)
        .inputs(["rows", "labels"])
        .outputs(["loss"])
        .to_bytes()
        .unwrap();
    let package = Package::from_bytes(&archive).unwrap();
    let new = with_seed(9, || Tensor::randn([5, 3], DType::F32));
    package.set("layer.weight", buffer(&new)).unwrap();
    network.weight.assign(&new).unwrap();
    let copy = new.to_dtype(DType::BF16).to_bytes().unwrap();
    assert_eq!(
        package
            .get("layer.weight.bf16")
            .unwrap()
            .to_bytes()
            .unwrap(),
        copy
    );
    let entry = package.entry("train_step").unwrap();
    for seed in 0..3 {
        let (x, y) = batch(seed, 4);
        let wanted = step.run((&x, &y)).unwrap().to_bytes().unwrap();
        let found = entry
            .run([("rows", buffer(&x)), ("labels", buffer(&y))])
            .unwrap();
        assert_eq!(found.get("loss").unwrap().to_bytes().unwrap(), wanted);
    }
    let weight = network.weight.get().to_bytes().unwrap();
    assert_eq!(
        package.get("layer.weight").unwrap().to_bytes().unwrap(),
        weight
    );
}

//! Training steps with loss scaling, and the training step of the digits, emitted as C and compared with the runtime.

use crate::cc::{self, Library};
use crate::training::{bytes, floats, shims};
use kiln::nn::amp::{GradScaler, Scaling};
use kiln::nn::optim::{AdamW, OneCycleLR, Optimizer, Scheduler};
use kiln::nn::{Forward, Linear, Module, ReLU, sequential};
use kiln::package::{Buffer, Builder, Package};
use kiln::{CrossEntropy, DType, Spec, Tensor, compile, with_seed};
use kiln_c99::{Export, Weights};

#[path = "../../../digits/src/network.rs"]
mod network;

const ROWS: usize = 6;

/// Returns a training step whose loss is multiplied by a factor. It also returns the scale.
fn package() -> Package {
    let network = sequential![Linear::new(3, 8), ReLU::new(), Linear::new(8, 2)].unwrap();
    let mut optimizer = Optimizer::new(network.parameters(), AdamW::new().lr(1e-2)).unwrap();
    let options = Scaling::new().init_scale(256.0).growth_interval(2i64);
    let mut scaler = GradScaler::with(options).unwrap();
    let specs = (
        Spec::new(DType::F32, [ROWS, 3]),
        Spec::new(DType::I64, [ROWS]),
        Spec::new(DType::F32, ()),
    );
    let step = compile(specs, |(x, y, factor)| {
        optimizer.zero_grad();
        let loss = network.call(x).cross_entropy(&y) * factor;
        scaler.scale(&loss).backward()?;
        scaler.step(&mut optimizer)?;
        scaler.update()?;
        kiln::Result::Ok((loss.detach(), scaler.scale_tensor()))
    })
    .unwrap();
    let guarded = step.plan().run.iter().filter(|s| s.guard.is_some());
    assert!(guarded.count() > 0, "{}", step.explain());
    let bytes = Builder::new()
        .module("", &network)
        .optimizer("optimizer", &optimizer)
        .scaler("scaler", &scaler)
        .entry("train_step", &step)
        .inputs(["rows", "labels", "factor"])
        .outputs(["loss", "scale"])
        .to_bytes();
    Package::from_bytes(&bytes.unwrap()).unwrap()
}

/// Checks that C and the runtime skip the same steps, which change nothing.
fn check_skipped_steps(weights: Weights) {
    let package = package();
    let export = Export::new("model").entry("train_step").weights(weights);
    let sources = export.sources(&package).unwrap();
    let in_file = sources.files.iter().any(|(n, _)| n.ends_with(".bin"));
    let library = Library::new(
        &sources,
        "model",
        "-O2",
        &shims(in_file, &[("train_step", 6)]),
    );
    library.call("begin", &[], &[]).unwrap();
    let x = bytes(&Tensor::randn([ROWS, 3], DType::F32));
    let y = bytes(&Tensor::randint(0, 2, [ROWS]));
    let step = package.entry("train_step").unwrap();
    let (mut losses, mut scales) = (Vec::new(), Vec::new());
    for factor in [1.0f32, 1.0, f32::INFINITY, 1.0, f32::NAN, 1.0, 1.0, 1.0] {
        let arguments = [
            Buffer::from_bytes(DType::F32, &[ROWS as i64, 3], &x).unwrap(),
            Buffer::from_bytes(DType::I64, &[ROWS as i64], &y).unwrap(),
            Buffer::from_slice(&[factor], &[]).unwrap(),
        ];
        let expected = step.run(arguments).unwrap();
        let number = |i: usize| expected[i].to_vec::<f32>().unwrap()[0];
        let inputs = [x.clone(), y.clone(), factor.to_le_bytes().to_vec()];
        let actual = library.call("train_step", &inputs, &[4, 4]).unwrap();
        let (loss, scale) = (floats(&actual[0])[0], floats(&actual[1])[0]);
        match factor.is_finite() {
            true => assert!(
                (loss - number(0)).abs() <= 1e-5 * number(0).abs(),
                "{loss} {}",
                number(0)
            ),
            false => assert!(!loss.is_finite() && !number(0).is_finite()),
        }
        assert_eq!(scale, number(1));
        losses.push(loss);
        scales.push(scale);
    }
    assert_eq!(
        scales,
        [256.0, 512.0, 256.0, 256.0, 128.0, 128.0, 256.0, 256.0]
    );
    // Skipped steps don't change the model, others do.
    assert!(
        losses[1] != losses[0] && losses[7] < losses[0],
        "{losses:?}"
    );
    assert_ne!(losses[3], losses[1]);
    let repeated = library.call("begin", &[], &[]).and_then(|_| {
        let inputs = |factor: f32| [x.clone(), y.clone(), factor.to_le_bytes().to_vec()];
        library.call("train_step", &inputs(f32::INFINITY), &[4, 4])?;
        library.call("train_step", &inputs(1.0), &[4, 4])
    });
    assert_eq!(floats(&repeated.unwrap()[0])[0], losses[0]);
}

#[test]
fn steps_that_overflow_are_skipped() {
    if cc::is_there() {
        with_seed(11, || {
            [Weights::Arrays, Weights::File].map(check_skipped_steps)
        });
    }
}

/// The digits' network with its optimiser, schedule and loss, as in the program that trains it.
#[test]
fn the_digits_train_in_c() {
    const BATCH: usize = 64;
    if !cc::is_there() {
        return;
    }
    let (package, data) = with_seed(13, || {
        let network = network::Network::new().unwrap();
        let mut optimizer = Optimizer::new(network.parameters(), AdamW::new()).unwrap();
        Scheduler::new(&mut optimizer, OneCycleLR::new(1e-2, 100)).unwrap();
        let images = Spec::new(DType::F32, [BATCH, 1, 8, 8]);
        let step = compile((images, Spec::new(DType::I64, [BATCH])), |(x, y)| {
            optimizer.zero_grad();
            let scores = network.call(&x);
            let loss = scores.cross_entropy_with(&y, CrossEntropy::new().label_smoothing(0.05));
            loss.backward()?;
            optimizer.step()?;
            let right = scores.argmax(1).eq(&y).sum(());
            kiln::Result::Ok((loss, right))
        });
        let archive = Builder::new()
            .module("", &network)
            .optimizer("optimizer", &optimizer)
            .entry("train_step", &step.unwrap())
            .inputs(["images", "labels"])
            .outputs(["loss", "right"])
            .to_bytes();
        // An image is a noisy copy of its class's image.
        let classes = Tensor::rand([10, 1, 8, 8], DType::F32);
        let batch = |_| {
            let y = Tensor::randint(0, 10, [BATCH]);
            let x = classes.index_select(0, &y) + Tensor::randn([BATCH, 1, 8, 8], DType::F32) * 0.2;
            (bytes(&x), bytes(&y))
        };
        let data: Vec<_> = (0..6).map(batch).collect();
        (Package::from_bytes(&archive.unwrap()).unwrap(), data)
    });
    let export = Export::new("model")
        .entry("train_step")
        .weights(Weights::File);
    let sources = export.sources(&package).unwrap();
    let library = Library::new(&sources, "model", "-O2", &shims(true, &[("train_step", 5)]));
    library.call("begin", &[], &[]).unwrap();
    let step = package.entry("train_step").unwrap();
    let mut correct_counts = Vec::new();
    for (x, y) in data.iter().cycle().take(18) {
        let arguments = [
            Buffer::from_bytes(DType::F32, &[BATCH as i64, 1, 8, 8], x).unwrap(),
            Buffer::from_bytes(DType::I64, &[BATCH as i64], y).unwrap(),
        ];
        let expected = step.run(arguments).unwrap();
        let (loss, correct) = (
            expected[0].to_vec::<f32>().unwrap()[0],
            expected[1].to_vec::<i64>().unwrap()[0],
        );
        let actual = library
            .call("train_step", &[x.clone(), y.clone()], &[4, 8])
            .unwrap();
        let c_loss = floats(&actual[0])[0];
        assert!((c_loss - loss).abs() < 1e-3 * loss, "{c_loss} {loss}");
        let c_correct = i64::from_le_bytes(actual[1][..].try_into().unwrap());
        assert!((c_correct - correct).abs() <= 1, "{c_correct} {correct}");
        correct_counts.push(c_correct);
    }
    assert!(
        correct_counts[17] > 2 * correct_counts[0].max(8),
        "it doesn't learn: {correct_counts:?}"
    );
}

//! Training steps emitted as C and compared with the runtime.

use crate::cc::{self, Library};
use kiln::nn::optim::{AdamW, Optimizer};
use kiln::nn::{
    BatchNorm2d, Conv2d, Dropout, Flatten, Forward, Kernel, Linear, MaxPool2d, Module, ReLU,
    sequential,
};
use kiln::package::{Buffer, Builder, Package};
use kiln::{DType, Spec, Tensor, compile, with_seed};
use kiln_c99::{Export, Weights};
use std::fmt::Write as _;

const BATCH: usize = 5;
const SIDE: usize = 9;
const BOTH: &[(&str, usize)] = &[("forward", 3), ("train_step", 4)];

/// A small network for images with its classifier and its training step.
fn package() -> Package {
    let model = sequential![
        Conv2d::new(2, 6, Kernel::new(3).padding(1)),
        BatchNorm2d::new(6),
        ReLU::new(),
        MaxPool2d::new(2),
        Conv2d::new(6, 9, Kernel::new(3).stride(2)),
        ReLU::new(),
        Flatten::new(),
        Linear::new(9, 4)
    ]
    .unwrap();
    let mut optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(1e-2)).unwrap();
    let images = Spec::new(DType::F32, [BATCH, 2, SIDE, SIDE]);
    let labels = Spec::new(DType::I64, [BATCH]);
    let step = compile((images.clone(), labels), |(x, y)| {
        optimizer.zero_grad();
        let loss = model.call(&x).cross_entropy(&y);
        loss.backward()?;
        optimizer.step()?;
        kiln::Result::Ok(loss)
    });
    let step = step.unwrap();
    model.eval();
    let forward = compile(images, |x| model.call(&x)).unwrap();
    let bytes = Builder::new()
        .module("", &model)
        .optimizer("optimizer", &optimizer)
        .entry("forward", &forward)
        .inputs(["x"])
        .outputs(["scores"])
        .entry("train_step", &step)
        .inputs(["x", "y"])
        .outputs(["loss"])
        .to_bytes();
    Package::from_bytes(&bytes.unwrap()).unwrap()
}

/// Wrappers of entries with these numbers of parameters. They share a state, which `call_begin` fills.
pub fn shims(in_file: bool, entries: &[(&str, usize)]) -> String {
    let weights = if in_file { "p[0], " } else { "" };
    let at = |i: usize| format!("p[{}]", i + usize::from(in_file));
    let mut text = String::from(
        "static model_state state;\nint call_begin(void **p);\nlong arena_begin(void);\n",
    );
    let _ = writeln!(
        text,
        "int call_begin(void **p) {{ (void)p; model_begin({weights}&state); return 0; }}\n\
         long arena_begin(void) {{ return 64; }}"
    );
    for (name, params) in entries {
        let args: Vec<String> = (0..*params).map(at).collect();
        let _ = writeln!(
            text,
            "int call_{name}(void **p);\nlong arena_{name}(void);\n\
             int call_{name}(void **p) {{ return model_{name}({weights}&state, {}); }}\n\
             long arena_{name}(void) {{ return MODEL_{}_ARENA; }}",
            args.join(", "),
            name.to_ascii_uppercase()
        );
    }
    text
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0;
    words.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

pub fn bytes(t: &Tensor) -> Vec<u8> {
    t.to_bytes().unwrap()
}

/// Trains in C and by the runtime: losses differ no more than sums in another order do.
fn trained(weights: Weights) {
    let package = package();
    let export = Export::new("model").entry("train_step").entry("forward");
    let sources = export.weights(weights).sources(&package).unwrap();
    let in_file = sources.files.iter().any(|(n, _)| n.ends_with(".bin"));
    let library = Library::new(&sources, "model", "-O2", &shims(in_file, BOTH));
    let (step, forward) = (
        package.entry("train_step").unwrap(),
        package.entry("forward").unwrap(),
    );
    let shape = [BATCH as i64, 2, SIDE as i64, SIDE as i64];
    let data: Vec<(Vec<u8>, Vec<u8>)> = (0..4)
        .map(|_| {
            let x = Tensor::randn([BATCH, 2, SIDE, SIDE], DType::F32);
            let y = Tensor::randint(0, 4, [BATCH]);
            (bytes(&x), bytes(&y))
        })
        .collect();
    let given = |(x, y): &(Vec<u8>, Vec<u8>)| {
        let y = Buffer::from_bytes(DType::I64, &[BATCH as i64], y);
        (
            Buffer::from_bytes(DType::F32, &shape, x).unwrap(),
            y.unwrap(),
        )
    };
    let mut first = Vec::new();
    for round in 0..2 {
        library.call("begin", &[], &[]).unwrap();
        package.reset().unwrap();
        let mut losses = Vec::new();
        for batch in data.iter().cycle().take(16) {
            let (x, y) = given(batch);
            let wanted = step.run([x, y]).unwrap()[0].to_vec::<f32>().unwrap()[0];
            let inputs = [batch.0.clone(), batch.1.clone()];
            let found = floats(&library.call("train_step", &inputs, &[4]).unwrap()[0])[0];
            assert!(
                (found - wanted).abs() < 1e-4 * wanted.abs().max(0.1),
                "{found} {wanted}"
            );
            losses.push(found);
        }
        let total = |part: &[f32]| part.iter().sum::<f32>();
        let (early, late) = (total(&losses[..4]), total(&losses[12..]));
        assert!(late < 0.9 * early, "it learns: {losses:?}");
        // The classifier reads the trained weights.
        let (x, _) = given(&data[0]);
        let wanted = forward.run([x]).unwrap()[0].to_vec::<f32>().unwrap();
        let found = library.call("forward", &[data[0].0.clone()], &[BATCH * 16]);
        for (a, b) in floats(&found.unwrap()[0]).iter().zip(&wanted) {
            assert!((a - b).abs() < 1e-3 * b.abs().max(1.0), "{a} {b}");
        }
        // A second training from the start gives the same losses, to the bit.
        match round {
            0 => first = losses,
            _ => assert_eq!(first, losses),
        }
    }
}

#[test]
fn a_training_step_goes_on_in_c() {
    if cc::is_there() {
        with_seed(5, || [Weights::Arrays, Weights::File].map(trained));
    }
}

#[test]
fn an_error_leaves_the_state_as_it_was() {
    if !cc::is_there() {
        return;
    }
    with_seed(6, || {
        let package = package();
        let export = Export::new("model").entry("train_step").entry("forward");
        let sources = export.weights(Weights::Arrays).sources(&package).unwrap();
        let library = Library::new(&sources, "model", "-O1", &shims(false, BOTH));
        library.call("begin", &[], &[]).unwrap();
        let x = bytes(&Tensor::randn([BATCH, 2, SIDE, SIDE], DType::F32));
        let scores = || library.call("forward", std::slice::from_ref(&x), &[BATCH * 16]);
        let before = scores().unwrap();
        let labels: Vec<u8> = [0i64, 1, 2, 3, 9]
            .iter()
            .flat_map(|y| y.to_le_bytes())
            .collect();
        let error = library.call("train_step", &[x.clone(), labels], &[4]);
        let error = error.unwrap_err();
        assert!(error.contains("out of range"), "{error}");
        assert_eq!(scores().unwrap(), before);
    });
}

/// Noise, and a training step with dropout: the numbers are the runtime's. They go on from call to call, begin anew
/// with the state, and do not advance when a call fails.
#[test]
fn random_numbers_are_those_of_the_runtime() {
    if !cc::is_there() {
        return;
    }
    const ROWS: usize = 7;
    let (package, x) = with_seed(7, || {
        let model = sequential![
            Linear::new(5, 33),
            ReLU::new(),
            Dropout::new(0.4),
            Linear::new(33, 3)
        ];
        let model = model.unwrap();
        let mut optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(1e-2)).unwrap();
        let noise = compile(Spec::new(DType::F32, [3, 5]), |x: Tensor| {
            let (noise, bits) = (
                Tensor::randn([3, 5], DType::F32),
                Tensor::randint(0, 1000, [9]),
            );
            (x + noise, bits)
        });
        let specs = (
            Spec::new(DType::F32, [ROWS, 5]),
            Spec::new(DType::I64, [ROWS]),
        );
        let step = compile(specs, |(x, y)| {
            optimizer.zero_grad();
            let loss = model.call(&x).cross_entropy(&y);
            loss.backward()?;
            optimizer.step()?;
            kiln::Result::Ok(loss)
        });
        let archive = Builder::new()
            .module("", &model)
            .optimizer("optimizer", &optimizer)
            .entry("noise", &noise.unwrap())
            .inputs(["x"])
            .outputs(["y", "bits"])
            .entry("train_step", &step.unwrap())
            .inputs(["x", "y"])
            .outputs(["loss"])
            .to_bytes();
        let x = bytes(&Tensor::randn([ROWS, 5], DType::F32));
        (Package::from_bytes(&archive.unwrap()).unwrap(), x)
    });
    let export = Export::new("model").entry("noise").entry("train_step");
    let sources = export.weights(Weights::Arrays).sources(&package).unwrap();
    let shims = shims(false, &[("noise", 4), ("train_step", 4)]);
    let library = Library::new(&sources, "model", "-O2", &shims);
    library.call("begin", &[], &[]).unwrap();
    let labels = |y: [i64; ROWS]| y.iter().flat_map(|y| y.to_le_bytes()).collect::<Vec<u8>>();
    let right = labels([0, 2, 1, 1, 0, 2, 2]);
    let (noise, step) = (
        package.entry("noise").unwrap(),
        package.entry("train_step").unwrap(),
    );
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for round in 0..6 {
        let given = Buffer::from_bytes(DType::F32, &[3, 5], &x[..60]).unwrap();
        let wanted = noise.run([given]).unwrap();
        let found = library
            .call("noise", &[x[..60].to_vec()], &[60, 72])
            .unwrap();
        assert_eq!(found[1], wanted[1].to_bytes().unwrap(), "round {round}");
        for (a, b) in floats(&found[0])
            .iter()
            .zip(wanted[0].to_vec::<f32>().unwrap())
        {
            assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{a} {b}");
        }
        assert!(!seen.contains(&found[1]));
        seen.push(found[1].clone());
        // A call that fails draws nothing.
        let wrong = [x.clone(), labels([0, 2, 1, 1, 0, 2, 3])];
        assert!(library.call("train_step", &wrong, &[4]).is_err());
        let given = [
            Buffer::from_bytes(DType::F32, &[ROWS as i64, 5], &x).unwrap(),
            Buffer::from_bytes(DType::I64, &[ROWS as i64], &right).unwrap(),
        ];
        let wanted = step.run(given).unwrap()[0].to_vec::<f32>().unwrap()[0];
        let found = library
            .call("train_step", &[x.clone(), right.clone()], &[4])
            .unwrap();
        let found = floats(&found[0])[0];
        assert!(
            (found - wanted).abs() < 1e-4 * wanted.abs(),
            "{found} {wanted}"
        );
    }
    library.call("begin", &[], &[]).unwrap();
    let again = library
        .call("noise", &[x[..60].to_vec()], &[60, 72])
        .unwrap();
    assert_eq!(again[1], seen[0]);
}

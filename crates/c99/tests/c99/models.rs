//! Networks as packages, emitted as C and compared with the reference evaluation of the packages' graphs.

use crate::cc::{self, Library};
use kiln::nn::{
    BatchNorm1d, BatchNorm2d, Conv2d, Forward, Kernel, LSTM, Linear, MaxPool2d, Module, ReLU,
    Sequential, sequential,
};
use kiln::package::{Builder, Package};
use kiln::{Compiled, DType, Spec, Tensor, compile, with_seed};
use kiln_c99::{Error, Export, Weights};
use kiln_ir::Graph;
use kiln_ir::eval::Array;
use kiln_models::{MobileNetV3, ResNet, TransformerConfig};
use kiln_testkit::oracle::Oracle;

/// A package with one function of one tensor, `forward`, which takes `x` and returns `y`.
fn package<I, O>(model: &dyn Module, forward: &Compiled<I, O>) -> Package {
    let builder = Builder::new().module("", model);
    let builder = builder.entry("forward", forward).inputs(["x"]);
    Package::from_bytes(&builder.outputs(["y"]).to_bytes().unwrap()).unwrap()
}

/// Updates running statistics, whose initial values are trivial.
fn update_statistics(model: &impl Forward<Tensor, Tensor>, x: Tensor) {
    for _ in 0..3 {
        model.call(&x).realize().unwrap();
    }
}

fn array(t: &Tensor) -> Array {
    Array::from_bytes(t.dtype(), &t.shape().unwrap(), &t.to_bytes().unwrap()).unwrap()
}

/// Emits and compiles a package, and compares its results for `x` with the reference.
fn check(package: &Package, sizes: &[(&str, i64)], x: &Tensor, weights: Weights) {
    if !cc::is_there() {
        return;
    }
    let mut export = Export::new("model").weights(weights);
    for (name, n) in sizes {
        export = export.size(*name, *n);
    }
    let sources = export.sources(package).unwrap();
    let in_file = sources.files.iter().any(|(n, _)| n.ends_with(".bin"));
    let shim = cc::shim("model", "forward", 3 + usize::from(in_file));
    let library = Library::new(&sources, "model", "-O3", &shim);

    let entry = package.entry("forward").unwrap();
    let (compiled, symbols) = entry.compiled(sizes).unwrap();
    let output = &compiled.plan.outputs[0];
    let shape = output.shape.iter().map(|d| d.eval(&symbols) as usize);
    let shape: Vec<usize> = shape.collect();
    let bytes = shape.iter().product::<usize>() * output.dtype.size();
    let input_bytes = [x.to_bytes().unwrap()];
    let actual = library.call("forward", &input_bytes, &[bytes]).unwrap();
    // A second call has the same result.
    let repeated = library.call("forward", &input_bytes, &[bytes]).unwrap();
    assert_eq!(repeated, actual);

    let graph = Graph::parse(package.graph("forward").unwrap()).unwrap();
    let mut inputs: Vec<Option<Array>> = vec![None; compiled.plan.inputs.len()];
    inputs[compiled.signature.arguments[0].at as usize] = Some(array(x));
    for state in &compiled.signature.states {
        let value = package.get(&state.name).unwrap();
        let shape: Vec<usize> = value.shape().iter().map(|d| *d as usize).collect();
        let value = Array::from_bytes(value.dtype(), &shape, &value.to_bytes().unwrap());
        inputs[state.input.unwrap() as usize] = Some(value.unwrap());
    }
    // The graph's batch is at least two, so a batch of one is compared as two equal images.
    let mut shape = shape;
    let mut bytes = actual[0].clone();
    if sizes.iter().any(|(_, n)| *n == 1) {
        shape[0] = 2;
        bytes.extend(actual[0].clone());
        let pair = kiln::cat([x, x], 0);
        inputs[compiled.signature.arguments[0].at as usize] = Some(array(&pair));
    }
    let inputs = inputs.into_iter().map(|i| i.expect("an input")).collect();
    let oracle = Oracle::new(&graph, inputs);
    let actual = Array::from_bytes(output.dtype, &shape, &bytes).unwrap();
    oracle.check_arrays(&[Some(actual)]).unwrap();
}

fn images(n: usize, side: usize) -> Tensor {
    let x = Tensor::randn([n, 3, side, side], DType::F32);
    x.realize().unwrap();
    x
}

/// Returns an image network with updated statistics as a package for any batch.
fn classifier(model: &impl Forward<Tensor, Tensor>, side: usize) -> Package {
    model.train();
    update_statistics(model, images(4, side));
    model.eval();
    let spec = Spec::new(DType::F32, ("batch", 3, side, side));
    let forward = compile(spec, |x| model.call(x)).unwrap();
    package(model, &forward)
}

fn mlp() -> Sequential {
    sequential![
        Linear::new(20, 33),
        BatchNorm1d::new(33),
        ReLU::new(),
        Linear::new(33, 7)
    ]
    .unwrap()
}

#[test]
fn a_perceptron_for_two_batch_sizes() {
    with_seed(1, || {
        let model = mlp();
        update_statistics(&model, Tensor::randn([8, 20], DType::F32));
        model.eval();
        let rows = Spec::new(DType::F32, ("batch", 20));
        let forward = compile(rows, |x| model.call(x).softmax(1)).unwrap();
        let package = package(&model, &forward);
        for n in [1, 5] {
            let x = Tensor::randn([n, 20], DType::F32);
            x.realize().unwrap();
            check(&package, &[("batch", n as i64)], &x, Weights::Auto);
        }
    });
}

#[test]
fn a_convolutional_network() {
    with_seed(2, || {
        let model = sequential![
            Conv2d::new(3, 20, Kernel::new(3).padding(1)),
            BatchNorm2d::new(20),
            ReLU::new(),
            MaxPool2d::new(2),
            Conv2d::new(20, 37, Kernel::new(3).stride(2)),
            BatchNorm2d::new(37),
            ReLU::new()
        ]
        .unwrap();
        let package = classifier(&model, 17);
        check(&package, &[("batch", 2)], &images(2, 17), Weights::File);
    });
}

#[test]
fn torchvisions_networks() {
    with_seed(3, || {
        let package = classifier(&ResNet::resnet18(10).unwrap(), 40);
        check(&package, &[("batch", 1)], &images(1, 40), Weights::Auto);
        let package = classifier(&MobileNetV3::small(10).unwrap(), 40);
        check(&package, &[("batch", 1)], &images(1, 40), Weights::Auto);
    });
}

#[test]
fn a_recurrent_network() {
    with_seed(4, || {
        let model = LSTM::new(9, 24).unwrap();
        let spec = Spec::new(DType::F32, (6, 2, 9));
        let forward = compile(spec, |x| model.call(x).0).unwrap();
        let x = Tensor::randn([6, 2, 9], DType::F32);
        x.realize().unwrap();
        check(&package(&model, &forward), &[], &x, Weights::Auto);
    });
}

#[test]
fn an_encoder() {
    with_seed(5, || {
        let config = TransformerConfig {
            width: 48,
            heads: 3,
            hidden: 96,
            ..TransformerConfig::default()
        };
        let model = config.encoder_block().unwrap();
        model.eval();
        let spec = Spec::new(DType::F32, (2, 37, 48));
        let forward = compile(spec, |x| model.call(x)).unwrap();
        let x = Tensor::randn([2, 37, 48], DType::F32);
        x.realize().unwrap();
        check(&package(&model, &forward), &[], &x, Weights::Auto);
    });
}

#[test]
fn data_errors_have_numbers_and_texts() {
    if !cc::is_there() {
        return;
    }
    let model = with_seed(6, mlp);
    let table = model.parameters()[0].clone();
    let forward = compile(Spec::new(DType::I64, 3), |i| table.index_select(0, i)).unwrap();
    let sources = Export::new("model")
        .sources(&package(&model, &forward))
        .unwrap();
    let library = Library::new(&sources, "model", "-O1", &cc::shim("model", "forward", 3));
    let indices = |i: [i64; 3]| [i.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>()];
    let actual = library
        .call("forward", &indices([0, 32, 5]), &[3 * 20 * 4])
        .unwrap();
    let expected = forward.run(&Tensor::from([0i64, 32, 5])).unwrap();
    assert_eq!(actual[0], expected.to_bytes().unwrap());
    for index in [33, -1, i64::MIN] {
        let error = library.call("forward", &indices([0, index, 5]), &[3 * 20 * 4]);
        let error = error.unwrap_err();
        assert!(error.contains("index is out of range"), "{error}");
    }
}

#[test]
fn entries_that_c_cannot_express_are_refused() {
    let model = with_seed(7, mlp);
    model.train();
    let rows = Spec::new(DType::F32, (4, 20));
    let forward = compile(rows, |x| model.call(x)).unwrap();
    let e = Export::new("model").sources(&package(&model, &forward));
    let text = e.unwrap_err().to_string();
    assert_eq!(
        text,
        "entry `forward` can't be emitted as C: it changes states or draws random numbers, so it is emitted \
         only where it is named"
    );
    model.eval();
    let forward = compile(Spec::new(DType::F32, (4, 20)), |x| model.call(x).i0()).unwrap();
    let e = Export::new("model").sources(&package(&model, &forward));
    match e.unwrap_err() {
        Error::Kernel { kernel, why } => {
            assert!(!kernel.is_empty());
            assert_eq!(why, "libm has no function i0");
        }
        other => panic!("{other}"),
    }
    let package = package(&model, &forward);
    let e = Export::new("model").size("length", 3).sources(&package);
    assert!(e.unwrap_err().to_string().contains("no size `length`"));
    let e = Export::new("model").entry("backward").sources(&package);
    assert!(e.unwrap_err().to_string().contains("no entry `backward`"));
}

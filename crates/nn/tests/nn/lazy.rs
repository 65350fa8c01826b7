//! Layers that take their number of input features from their first input.

use crate::support::*;
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::*;
use kiln_tensor::{DType, Result, Spec, Tensor, compile, with_seed};

const WAITING: &str = "is made at its first input: call the model once before";

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32)
}

fn model() -> Result<Sequential> {
    sequential![
        LazyConv2d::new(4, Kernel::new(3).padding(1)),
        LazyBatchNorm2d::new(),
        Flatten::new(),
        LazyLinear::new(5),
    ]
}

#[test]
fn each_becomes_the_layer_of_its_input() {
    #[track_caller]
    fn becomes<L: Forward + std::fmt::Display>(
        layer: Result<Lazy<L>>,
        shape: &[usize],
        wanted: &str,
    ) {
        let layer = layer.unwrap();
        let name = wanted.split('(').next().unwrap();
        assert_eq!(layer.to_string(), format!("Lazy{name}()"));
        assert!(layer.get().is_err_and(|e| e.to_string().contains(WAITING)));
        layer.call(zeros(shape)).realize().unwrap();
        assert_eq!(layer.to_string(), wanted);
        assert_eq!(layer.get().unwrap().to_string(), wanted);
    }
    becomes(
        LazyLinear::new(2),
        &[4, 3],
        "Linear(in_features=3, out_features=2, bias=True)",
    );
    becomes(
        LazyLinear::with(2, LinearOptions::new().bias(false)),
        &[3],
        "Linear(in_features=3, out_features=2, bias=False)",
    );
    becomes(
        LazyConv1d::new(4, 3),
        &[2, 9],
        "Conv1d(2, 4, kernel_size=(3,), stride=(1,))",
    );
    becomes(
        LazyConv2d::new(4, Kernel::new(3).groups(2)),
        &[1, 6, 9, 9],
        "Conv2d(6, 4, kernel_size=(3, 3), stride=(1, 1), groups=2)",
    );
    becomes(
        LazyConv3d::new(4, 1),
        &[1, 2, 3, 3, 3],
        "Conv3d(2, 4, kernel_size=(1, 1, 1), stride=(1, 1, 1))",
    );
    becomes(
        LazyConvTranspose1d::new(4, 3),
        &[1, 2, 9],
        "ConvTranspose1d(2, 4, kernel_size=(3,), stride=(1,))",
    );
    becomes(
        LazyConvTranspose2d::new(4, 3),
        &[2, 9, 9],
        "ConvTranspose2d(2, 4, kernel_size=(3, 3), stride=(1, 1))",
    );
    becomes(
        LazyConvTranspose3d::new(4, 1),
        &[1, 2, 3, 3, 3],
        "ConvTranspose3d(2, 4, kernel_size=(1, 1, 1), stride=(1, 1, 1))",
    );
    let norm = |name: &str, c: i64| {
        format!("{name}({c}, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)")
    };
    becomes(LazyBatchNorm1d::new(), &[4, 3], &norm("BatchNorm1d", 3));
    becomes(
        LazyBatchNorm2d::new(),
        &[2, 3, 4, 5],
        &norm("BatchNorm2d", 3),
    );
    becomes(
        LazyBatchNorm3d::new(),
        &[2, 3, 4, 5, 6],
        &norm("BatchNorm3d", 3),
    );
    let options = InstanceNorm::new().affine(true).track_running_stats(true);
    becomes(
        LazyInstanceNorm1d::with(options.clone()),
        &[3, 7],
        &norm("InstanceNorm1d", 3),
    );
    becomes(
        LazyInstanceNorm2d::with(options.clone()),
        &[2, 3, 4, 5],
        &norm("InstanceNorm2d", 3),
    );
    becomes(
        LazyInstanceNorm3d::with(options),
        &[2, 3, 4, 5, 6],
        &norm("InstanceNorm3d", 3),
    );
}

#[test]
fn it_is_then_as_if_it_had_been_made_so() {
    let lazy = model().unwrap();
    let x = random([2, 3, 6, 6]).to_dtype(DType::F32);
    let y = with_seed(4, || values(&lazy.call(&x)));
    let made = with_seed(4, || {
        sequential![
            Conv2d::new(3, 4, Kernel::new(3).padding(1)),
            BatchNorm2d::new(4),
            Flatten::new(),
            Linear::new(144, 5),
        ]
    });
    let made = made.unwrap();
    assert_eq!(y, values(&made.call(&x)));
    assert_eq!(names(&lazy), names(&made));
    assert_eq!(lazy.to_string(), made.to_string());
    // Later inputs must fit.
    assert!(
        lazy.call(zeros(&[1, 2, 6, 6]))
            .error()
            .unwrap()
            .to_string()
            .contains("in Conv2d(3, 4")
    );
    // Lookups of layers by type find them; copies and states are those of the layers.
    assert_eq!(lazy.get_as::<Linear>(3).unwrap().in_features(), 144);
    lazy.load_state_dict(&made.state_dict(), true).unwrap();
    let copy = lazy.deep_copy().unwrap();
    lazy.eval();
    copy.eval();
    assert_eq!(values(&copy.call(&x)), values(&lazy.call(&x)));
    lazy[0].register_forward_hook(|_, _, _| ()).unwrap();
    let f = compile(Spec::new(DType::F32, ("n", 3, 6, 6)), |x| lazy.call(x)).unwrap();
    assert_close(&values(&f.run(&x).unwrap()), &values(&lazy.call(&x)), 1e-6);
    let mut sgd = Optimizer::new(lazy.parameters(), SGD::new().lr(0.1)).unwrap();
    lazy.call(&x).sum(()).backward().unwrap();
    sgd.step().unwrap();
}

#[test]
fn before_it_has_no_parameters_and_says_so() {
    let model = model().unwrap();
    #[track_caller]
    fn says<T>(found: Result<T>, layer: &str) {
        let e = found.err().unwrap().to_string();
        assert!(e.contains(layer) && e.contains(WAITING), "{e}");
    }
    says(
        Optimizer::new(model.parameters(), SGD::new().lr(0.1)),
        "LazyConv2d",
    );
    says(model.deep_copy(), "LazyConv2d");
    says(
        model
            .state_dict()
            .save(std::env::temp_dir().join("kiln-lazy-never-written")),
        "LazyConv2d",
    );
    let made = sequential![Conv2d::new(3, 4, 3), BatchNorm2d::new(4)].unwrap();
    says(model.load_state_dict(&made.state_dict(), false), "0.weight");
    let e = model[0]
        .register_forward_hook(|_, _, _| ())
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("LazyConv2d") && e.contains("a lazy one its first input"),
        "{e}"
    );
    let f = compile(Spec::new(DType::F32, (2, 3, 6, 6)), |x| model.call(x));
    says(f.and_then(|f| f.run(&zeros(&[2, 3, 6, 6]))), "LazyConv2d");
    // An input that fits no layer makes none.
    let linear = LazyLinear::new(2).unwrap();
    let e = linear.call(zeros(&[])).error().unwrap().to_string();
    assert!(
        e.contains("in LazyLinear()") && e.contains("can't be made for an input of f32[]"),
        "{e}"
    );
    assert!(linear.call(zeros(&[2, 3])).error().is_none());
    let conv = LazyConv2d::new(4, Kernel::new(3).groups(2)).unwrap();
    let e = conv.call(zeros(&[1, 3, 5, 5])).error().unwrap().to_string();
    assert!(
        e.contains("3 input and 4 output channels do not divide into 2 groups"),
        "{e}"
    );
}

#[test]
fn a_wrong_description_is_an_error_at_once() {
    let text = |e: Option<kiln_tensor::Error>| e.unwrap().to_string();
    assert!(text(LazyConv2d::new(4, 0).err()).contains("the kernel size must be at least 1"));
    assert!(
        text(LazyConv2d::new(4, Kernel::new(3).groups(3)).err())
            .contains("do not divide into 3 groups")
    );
    let kernel = TransposedKernel::new(3).output_padding(1);
    assert!(
        text(LazyConvTranspose2d::new(4, kernel).err()).contains("the output padding must be less")
    );
    assert!(text(LazyLinear::new(-1).err()).contains("a size can't be negative"));
}

#[test]
fn what_was_set_before_holds_afterwards() {
    let model = model().unwrap();
    model.eval();
    model[3].requires_grad_(false).unwrap();
    model[1].freeze();
    model.call(zeros(&[1, 3, 6, 6])).realize().unwrap();
    assert!(!model.is_training());
    let frozen: Vec<(String, bool)> = model
        .named_parameters()
        .into_iter()
        .map(|(name, p)| (name, p.requires_grad()))
        .collect();
    let wanted = [
        ("0.weight", true),
        ("0.bias", true),
        ("1.weight", false),
        ("1.bias", false),
        ("3.weight", false),
        ("3.bias", false),
    ];
    assert_eq!(
        frozen,
        wanted.map(|(name, trains)| (name.to_string(), trains))
    );
    model.train();
    assert!(!model[1].is_training(), "frozen");
}

#[test]
fn threads_that_call_it_first_share_one_layer() {
    let layer = LazyLinear::new(2).unwrap();
    let x = random([4, 3]).to_dtype(DType::F32);
    let results: Vec<Vec<f64>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4)
            .map(|_| s.spawn(|| values(&layer.call(&x))))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

//! Layers and work of torchvision's models, as torchinfo, fvcore and PyTorch's `FlopCounterMode` count them.
//! `flops.txt` is written by `flops.py` with these libraries.

use kiln::nn::{Forward, Module};
use kiln::observe::Summary;
use kiln::{Conv, Convention, DType, Pool, RunningStats, Spec, Tensor, flops, summary};
use kiln_models::{
    AlexNet, ConvNeXt, DenseNet, EfficientNet, GoogLeNet, GoogLeNetConfig, Inception3,
    Inception3Config, MobileNetV2, MobileNetV3, ResNet, ShuffleNetV2, SqueezeNet, Vgg,
    VisionTransformer,
};

fn golden() -> (&'static str, &'static str) {
    include_str!("flops.txt")
        .split_once("\n\n")
        .expect("two tables")
}

fn counted(model: kiln::Result<impl Forward>, size: usize) -> Summary {
    let model = model.expect("a model");
    model.eval();
    summary(&model, Spec::new(DType::F32, [2, 3, size, size])).expect("figures")
}

fn of(name: &str) -> Summary {
    match name {
        "alexnet" => counted(AlexNet::new(1000), 224),
        "vgg11_bn" => counted(Vgg::vgg11_bn(1000), 224),
        "resnet18" => counted(ResNet::resnet18(1000), 224),
        "resnet50" => counted(ResNet::resnet50(1000), 224),
        "resnext50_32x4d" => counted(ResNet::resnext50_32x4d(1000), 224),
        "densenet121" => counted(DenseNet::densenet121(1000), 224),
        "squeezenet1_1" => counted(SqueezeNet::squeezenet1_1(1000), 224),
        "mobilenet_v2" => counted(MobileNetV2::new(1000), 224),
        "mobilenet_v3_small" => counted(MobileNetV3::small(1000), 224),
        "efficientnet_b0" => counted(EfficientNet::efficientnet_b0(1000), 224),
        "shufflenet_v2_x1_0" => counted(ShuffleNetV2::shufflenet_v2_x1_0(1000), 224),
        "convnext_tiny" => counted(ConvNeXt::convnext_tiny(1000), 224),
        "googlenet" => counted(GoogLeNet::new(GoogLeNetConfig::default()), 224),
        "inception_v3" => counted(Inception3::new(Inception3Config::default()), 299),
        "vit_b_16" => counted(VisionTransformer::vit_b_16(1000), 224),
        other => panic!("no model {other}"),
    }
}

#[test]
fn figures_are_those_of_torchinfo_fvcore_and_flop_counter_mode() {
    let (models, _) = golden();
    let mut wrong = Vec::new();
    for line in models.lines().skip(1) {
        let mut words = line.split(' ');
        let name = words.next().expect("a name");
        let golden: Vec<u64> = words.map(|w| w.parse().expect("a number")).collect();
        let table = of(name);
        let mut seen = [
            table.total_params() as u64,
            table.total(Convention::Torchinfo),
            table.output_bytes(),
            table.total(Convention::Fvcore),
            table.total(Convention::FlopCounterMode),
        ];
        match name {
            // A pool to the size that there is records nothing; fvcore counts its input.
            "alexnet" => seen[3] += 2 * 256 * 6 * 6,
            "vgg11_bn" => seen[3] += 2 * 512 * 7 * 7,
            // PyTorch's attention does not call its output projection as a module, so torchinfo misses it.
            "vit_b_16" => {
                seen[1] -= 12 * 2 * 768 * 769;
                seen[2] -= 12 * 2 * (2 * 197 * 768 * 4);
            }
            _ => {}
        }
        if seen[..] != golden {
            wrong.push(format!("{name}: {seen:?}, not {golden:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn layers_are_those_of_torchinfo() {
    let model = ResNet::resnet18(1000).expect("a model");
    model.eval();
    let table = summary(&model, Spec::new(DType::F32, [2, 3, 64, 64])).expect("figures");
    let layers = table
        .layers()
        .iter()
        .filter(|l| l.is_leaf && l.num_params > 0);
    let seen = layers.map(|l| {
        let shape: Vec<String> = l.outputs[0].shape.iter().map(|d| d.to_string()).collect();
        let flops = table.of_layer(l, Convention::Torchinfo);
        format!("{} {} {} {flops}", l.name, shape.join("x"), l.num_params)
    });
    // torchvision's blocks hold a ReLU as a module.
    let (_, layers) = golden();
    let with_parameters = layers
        .lines()
        .skip(1)
        .filter(|line| !line.ends_with(" 0 0"));
    assert_eq!(
        seen.collect::<Vec<_>>(),
        with_parameters.collect::<Vec<_>>()
    );
}

#[test]
fn a_function_without_modules_has_the_same_figures() {
    let model = ResNet::resnet18(10).expect("a model");
    model.eval();
    let spec = Spec::new(DType::F32, [2, 3, 64, 64]);
    let table = summary(&model, spec.clone()).expect("figures");
    let weights = |name: &str| model.get_parameter(name).expect("a parameter");
    let buffers = model.named_buffers();
    let buffer = |name: String| {
        &buffers
            .iter()
            .find(|(n, _)| *n == name)
            .expect("a buffer")
            .1
    };
    let norm = |x: Tensor, name: &str| {
        let stats = RunningStats::new()
            .running_mean(buffer(format!("{name}.running_mean")))
            .running_var(buffer(format!("{name}.running_var")))
            .weight(weights(&format!("{name}.weight")))
            .bias(weights(&format!("{name}.bias")));
        x.batch_norm_with(stats)
    };
    let conv = |x: &Tensor, name: &str, conv: Conv| {
        x.conv2d_with(weights(&format!("{name}.weight")), conv)
    };
    let counted = flops(spec, |images| {
        let x = norm(
            conv(&images, "conv1", Conv::new().stride(2).padding(3)),
            "bn1",
        )
        .relu();
        let mut x = x.max_pool2d(Pool::new(3).stride(2).padding(1));
        for block in (1..=4).flat_map(|i| [format!("layer{i}.0"), format!("layer{i}.1")]) {
            let stride = if block.ends_with('0') && !block.starts_with("layer1") {
                2
            } else {
                1
            };
            let y = conv(
                &x,
                &format!("{block}.conv1"),
                Conv::new().stride(stride).padding(1),
            );
            let y = norm(y, &format!("{block}.bn1")).relu();
            let y = conv(&y, &format!("{block}.conv2"), Conv::new().padding(1));
            let y = norm(y, &format!("{block}.bn2"));
            if stride == 2 {
                let short = conv(&x, &format!("{block}.downsample.0"), Conv::new().stride(2));
                x = norm(short, &format!("{block}.downsample.1"));
            }
            x = (y + x).relu();
        }
        let x = x.adaptive_avg_pool2d(1).flatten(1);
        x.linear_with(weights("fc.weight"), weights("fc.bias"))
    });
    let counted = counted.expect("figures");
    let all = [
        Convention::MultAdds,
        Convention::Arithmetic,
        Convention::Torchinfo,
        Convention::Fvcore,
        Convention::FlopCounterMode,
    ];
    for by in all {
        assert_eq!(counted.total(by), table.total(by), "{by:?}");
    }
}

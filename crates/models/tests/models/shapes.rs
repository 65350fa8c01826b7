//! The networks have torchvision's parameters under torchvision's names, and results of the right shapes.

use kiln::nn::optim::{Optimizer, SGD};
use kiln::nn::{Forward, Module, StateDict};
use kiln::{CompileOptions, DType, Result, Spec, Tensor, compile, no_grad};
use kiln_models::workloads::{self, Setup, WORKLOADS};
use kiln_models::{
    AlexNet, Gpt, GptConfig, MobileNetV3, ResNet, ResNetBlock, ResNetConfig, TransformerConfig,
    UNet, UNetConfig, Vgg,
};
use std::collections::BTreeSet;

#[test]
fn parameters_are_as_many_as_torchvisions() -> Result<()> {
    let resnets = [
        (ResNet::resnet18(1000)?, 11_689_512),
        (ResNet::resnet34(1000)?, 21_797_672),
        (ResNet::resnet50(1000)?, 25_557_032),
        (ResNet::resnet101(1000)?, 44_549_160),
        (ResNet::resnet152(1000)?, 60_192_808),
    ];
    for (i, (model, parameters)) in resnets.iter().enumerate() {
        assert_eq!(model.num_parameters(), *parameters, "ResNet {i}");
    }
    type Make = fn(usize) -> Result<ResNet>;
    let wider: [(Make, usize); 5] = [
        (ResNet::resnext50_32x4d, 25_028_904),
        (ResNet::resnext101_32x8d, 88_791_336),
        (ResNet::resnext101_64x4d, 83_455_272),
        (ResNet::wide_resnet50_2, 68_883_240),
        (ResNet::wide_resnet101_2, 126_886_696),
    ];
    for (i, (make, parameters)) in wider.iter().enumerate() {
        assert_eq!(
            make(1000)?.num_parameters(),
            *parameters,
            "wider ResNet {i}"
        );
    }
    type MakeVgg = fn(usize) -> Result<Vgg>;
    let vggs: [(MakeVgg, usize); 4] = [
        (Vgg::vgg11, 132_863_336),
        (Vgg::vgg13_bn, 133_053_736),
        (Vgg::vgg16, 138_357_544),
        (Vgg::vgg19_bn, 143_678_248),
    ];
    for (i, (make, parameters)) in vggs.iter().enumerate() {
        assert_eq!(make(1000)?.num_parameters(), *parameters, "VGG {i}");
    }
    assert_eq!(AlexNet::new(1000)?.num_parameters(), 61_100_840);
    assert_eq!(MobileNetV3::small(1000)?.num_parameters(), 2_542_856);
    assert_eq!(MobileNetV3::large(1000)?.num_parameters(), 5_483_032);
    Ok(())
}

#[test]
fn gpt_has_the_parameters_of_gpt_2() -> Result<()> {
    let gpt = Gpt::new(GptConfig::default())?;
    assert_eq!(gpt.num_parameters(), 124_439_808);
    Ok(())
}

/// Returns torchvision's names for a batch norm.
fn norm(name: &str) -> Vec<String> {
    let parts = "weight bias running_mean running_var num_batches_tracked";
    parts.split(' ').map(|p| format!("{name}.{p}")).collect()
}

fn linear(name: &str) -> Vec<String> {
    vec![format!("{name}.weight"), format!("{name}.bias")]
}

/// Returns torchvision's names for a ResNet with `convs` convolutions per block. `shortcuts` are the layers whose first
/// block has a convolution in its shortcut.
fn resnet_names(blocks: [usize; 4], convs: usize, shortcuts: &[usize]) -> BTreeSet<String> {
    let mut names = vec!["conv1.weight".to_string()];
    names.extend(norm("bn1"));
    for (layer, blocks) in (1..).zip(blocks) {
        for block in 0..blocks {
            let name = format!("layer{layer}.{block}");
            for conv in 1..=convs {
                names.push(format!("{name}.conv{conv}.weight"));
                names.extend(norm(&format!("{name}.bn{conv}")));
            }
            if block == 0 && shortcuts.contains(&layer) {
                names.push(format!("{name}.downsample.0.weight"));
                names.extend(norm(&format!("{name}.downsample.1")));
            }
        }
    }
    names.extend(linear("fc"));
    names.into_iter().collect()
}

fn names(state: &StateDict) -> BTreeSet<String> {
    state.names().map(str::to_string).collect()
}

#[test]
fn resnets_have_torchvisions_names() -> Result<()> {
    let basic = ResNet::resnet18(1000)?.state_dict();
    assert_eq!(names(&basic), resnet_names([2, 2, 2, 2], 2, &[2, 3, 4]));
    let bottleneck = ResNet::resnet50(1000)?.state_dict();
    let wanted = resnet_names([3, 4, 6, 3], 3, &[1, 2, 3, 4]);
    assert_eq!(names(&bottleneck), wanted);
    // The numbers are those of torchvision's files.
    assert_eq!((basic.len(), bottleneck.len()), (122, 320));
    for (name, shape) in [
        ("conv1.weight", &[64, 3, 7, 7][..]),
        ("layer1.0.downsample.0.weight", &[256, 64, 1, 1]),
        ("layer2.0.conv2.weight", &[128, 128, 3, 3]),
        ("layer3.5.bn3.running_var", &[1024]),
        ("layer4.2.conv1.weight", &[512, 2048, 1, 1]),
        ("fc.weight", &[1000, 2048]),
    ] {
        assert_eq!(bottleneck.get(name).unwrap().shape()?, shape, "{name}");
    }
    Ok(())
}

/// Returns torchvision's names for a MobileNetV3. Each block is given by two bools: true if it expands, and true if it
/// has squeeze-and-excitation.
fn mobilenet_names(blocks: &[(bool, bool)]) -> BTreeSet<String> {
    let conv_norm = |name: String| {
        let mut names = norm(&format!("{name}.1"));
        names.push(format!("{name}.0.weight"));
        names
    };
    let mut names = conv_norm("features.0".into());
    for (i, (expands, weighs)) in (1..).zip(blocks) {
        // In order: expansion, depthwise convolution, squeeze-and-excitation, projection.
        let parts = [
            (*expands, false),
            (true, false),
            (*weighs, true),
            (true, false),
        ];
        let parts = parts.iter().filter(|(there, _)| *there).enumerate();
        for (part, (_, weighing)) in parts {
            let name = format!("features.{i}.block.{part}");
            match weighing {
                true => ["fc1", "fc2"]
                    .iter()
                    .for_each(|fc| names.extend(linear(&format!("{name}.{fc}")))),
                false => names.extend(conv_norm(name)),
            }
        }
    }
    names.extend(conv_norm(format!("features.{}", blocks.len() + 1)));
    names.extend(linear("classifier.0"));
    names.extend(linear("classifier.3"));
    names.into_iter().collect()
}

#[test]
fn mobilenets_have_torchvisions_names() -> Result<()> {
    let small = MobileNetV3::small(1000)?.state_dict();
    let blocks = (0..11).map(|i| (i != 0, ![1, 2].contains(&i)));
    let blocks: Vec<(bool, bool)> = blocks.collect();
    assert_eq!(names(&small), mobilenet_names(&blocks));
    let large = MobileNetV3::large(1000)?.state_dict();
    let blocks = (0..15).map(|i| (i != 0, i >= 10 || (3..6).contains(&i)));
    let blocks: Vec<(bool, bool)> = blocks.collect();
    assert_eq!(names(&large), mobilenet_names(&blocks));
    // The numbers are those of torchvision's files.
    assert_eq!((small.len(), large.len()), (244, 312));
    for (state, name, shape) in [
        (&small, "features.1.block.1.fc1.weight", &[8, 16, 1, 1][..]),
        (&small, "features.4.block.1.0.weight", &[96, 1, 5, 5]),
        (&small, "features.12.0.weight", &[576, 96, 1, 1]),
        (&large, "features.4.block.2.fc1.weight", &[24, 72, 1, 1]),
        (&large, "features.13.block.1.0.weight", &[672, 1, 5, 5]),
        (&large, "features.16.1.running_mean", &[960]),
        (&large, "classifier.0.weight", &[1280, 960]),
        (&large, "classifier.3.bias", &[1000]),
    ] {
        assert_eq!(state.get(name).unwrap().shape()?, shape, "{name}");
    }
    Ok(())
}

#[test]
fn plain_networks_have_torchvisions_names() -> Result<()> {
    let layers = |part: &str, places: &[usize]| -> Vec<String> {
        places
            .iter()
            .flat_map(|i| linear(&format!("{part}.{i}")))
            .collect()
    };
    let alexnet = AlexNet::new(7)?.state_dict();
    let wanted = [
        layers("features", &[0, 3, 6, 8, 10]),
        layers("classifier", &[1, 4, 6]),
    ]
    .concat();
    assert_eq!(alexnet.names().collect::<Vec<_>>(), wanted);
    let vgg = Vgg::vgg11(7)?.state_dict();
    let wanted = [
        layers("features", &[0, 3, 6, 8, 11, 13, 16, 18]),
        layers("classifier", &[0, 3, 6]),
    ];
    assert_eq!(vgg.names().collect::<Vec<_>>(), wanted.concat());
    let vgg = names(&Vgg::vgg16_bn(7)?.state_dict());
    // The last convolution and its batch norm.
    assert!(
        linear("features.40")
            .iter()
            .chain(&norm("features.41"))
            .all(|n| vgg.contains(n))
    );
    assert_eq!(vgg.len(), 13 * 7 + 3 * 2);
    Ok(())
}

#[test]
fn a_trained_body_gets_a_new_head() -> Result<()> {
    let small = |classes| {
        let (block, blocks) = (ResNetBlock::Basic, [1, 1, 0, 0]);
        ResNet::new(ResNetConfig {
            block,
            blocks,
            classes,
            ..ResNetConfig::default()
        })
    };
    let path = std::env::temp_dir().join(format!("kiln-head-{}.safetensors", std::process::id()));
    let trained = small(1000)?;
    trained.save_state_dict(&path)?;
    let model = small(5)?;
    let report = model.load_matching(&StateDict::load(&path)?)?;
    std::fs::remove_file(path).expect("it was written");
    assert_eq!(report.mismatched, ["fc.weight", "fc.bias"]);
    assert!(report.missing.is_empty() && report.unexpected.is_empty());
    model.freeze_where(&|name| !name.starts_with("fc."));
    let head: Vec<_> = model
        .parameters()
        .into_iter()
        .filter(|p| p.requires_grad())
        .collect();
    let mut optimizer = Optimizer::new(head, SGD::new().lr(0.1))?;
    let (images, labels) = (
        Tensor::rand([4, 3, 16, 16], DType::F32),
        Tensor::from([0i64, 1, 2, 3]),
    );
    model.call(&images).cross_entropy(&labels).backward()?;
    optimizer.step()?;
    let (before, after) = (trained.state_dict(), model.state_dict());
    for (name, value) in before.iter().filter(|(name, _)| !name.starts_with("fc.")) {
        let same = after.get(name).expect("it is there").to_bytes()? == value.to_bytes()?;
        assert!(same, "{name} has changed");
    }
    Ok(())
}

#[test]
fn results_have_their_shapes() -> Result<()> {
    let images = Tensor::rand([2, 3, 45, 33], DType::F32);
    for model in [ResNet::resnet34(7)?, ResNet::resnet101(7)?] {
        assert_eq!(model.call(&images).shape()?, [2, 7]);
    }
    let narrow = ResNet::new(ResNetConfig {
        blocks: [1, 1, 1, 1],
        classes: 7,
        groups: 8,
        width_per_group: 4,
        ..ResNetConfig::default()
    })?;
    assert_eq!(narrow.call(&images).shape()?, [2, 7]);
    let larger = Tensor::rand([1, 3, 67, 70], DType::F32);
    assert_eq!(AlexNet::new(7)?.call(&larger).shape()?, [1, 7]);
    assert_eq!(Vgg::vgg11_bn(7)?.call(&larger).shape()?, [1, 7]);
    for model in [MobileNetV3::small(7)?, MobileNetV3::large(7)?] {
        assert_eq!(model.call(&images).shape()?, [2, 7]);
    }
    // Layers without blocks change nothing, and images may have other channels.
    let short = ResNet::new(ResNetConfig {
        block: ResNetBlock::Basic,
        blocks: [1, 1, 0, 0],
        channels: 1,
        classes: 5,
        ..ResNetConfig::default()
    })?;
    let gray = Tensor::rand([1, 1, 32, 32], DType::F32);
    assert_eq!(short.call(&gray).shape()?, [1, 5]);
    let unet = UNet::new(UNetConfig {
        levels: 2,
        classes: 3,
        width: 4,
        ..UNetConfig::default()
    })?;
    assert_eq!(unet.call(&gray).shape()?, [1, 3, 32, 32]);
    Ok(())
}

#[test]
fn heads_divide_the_width() {
    let odd = TransformerConfig {
        heads: 5,
        ..TransformerConfig::default()
    };
    assert!(odd.encoder_block().is_err() && odd.decoder_block().is_err());
}

fn small_gpt() -> Result<Gpt> {
    let mut config = GptConfig {
        vocabulary: 13,
        context: 8,
        layers: 2,
        ..GptConfig::default()
    };
    (config.block.width, config.block.heads, config.block.hidden) = (12, 3, 20);
    let gpt = Gpt::new(config)?;
    gpt.eval();
    Ok(gpt)
}

#[test]
fn gpt_is_compiled_for_any_batch_and_length() -> Result<()> {
    let gpt = small_gpt()?;
    let spec = Spec::new(DType::I64, ["batch", "length"]);
    let compiled = compile(spec, |x| no_grad(|| gpt.call(&x)))?;
    for shape in [[2, 5], [3, 8]] {
        let tokens = Tensor::randint(0, 13, shape);
        let found = compiled.run(&tokens)?;
        let (found, wanted) = (found.to_vec::<f32>()?, gpt.call(&tokens).to_vec()?);
        assert_eq!(found.len(), shape[0] * shape[1] * 13);
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5;
        assert!(found.iter().zip(&wanted).all(near), "{shape:?}");
    }
    Ok(())
}

#[test]
fn a_token_changes_no_score_before_it() -> Result<()> {
    let gpt = small_gpt()?;
    let scores = |tokens: [i64; 5]| -> Result<Vec<f32>> {
        let tokens = Tensor::from_slice(&tokens, [1, 5]);
        no_grad(|| gpt.call(&tokens)).to_vec()
    };
    let (a, b) = (scores([1, 2, 3, 4, 5])?, scores([1, 2, 3, 12, 5])?);
    let near = |x: &f32, y: &f32| (x - y).abs() <= 1e-5;
    let (before, behind) = (0..3 * 13, 3 * 13..5 * 13);
    assert!(before.into_iter().all(|i| near(&a[i], &b[i])));
    assert!(behind.into_iter().any(|i| !near(&a[i], &b[i])));
    // The same token has other scores at another position.
    let same = scores([7; 5])?;
    assert!((0..13).any(|i| !near(&same[i], &same[4 * 13 + i])));
    // In a text longer than the context, tokens lack positions.
    let long = Tensor::zeros([1, 9], DType::I64);
    assert!(gpt.call(&long).to_vec::<f32>().is_err());
    Ok(())
}

#[test]
fn workloads_are_found_by_name() -> Result<()> {
    let names: BTreeSet<&str> = workloads::names().map(|(name, _)| name).collect();
    assert_eq!(names.len(), WORKLOADS.len());
    let options = CompileOptions::default();
    let lstm = workloads::make("lstm", (&options).into())?;
    let inputs: Vec<&Tensor> = lstm.inputs.iter().collect();
    assert_eq!(lstm.program.run(&inputs)?[0].shape()?, [4, 256]);
    let error = workloads::make("lstmm", (&options).into()).err().unwrap();
    assert!(error.to_string().contains("there is no workload lstmm"));
    Ok(())
}

#[test]
fn workloads_are_of_a_dtype() -> Result<()> {
    let options = CompileOptions::default();
    let of = |dtype: DType| {
        let wide: Setup = (&options).into();
        workloads::make("lstm-step", Setup { dtype, ..wide })
    };
    // A step in bf16 has weights of f32.
    for (dtype, weights) in [(DType::F64, DType::F64), (DType::BF16, DType::F32)] {
        let step = of(dtype)?;
        let all = step.model.parameters();
        assert!(all.iter().all(|w| w.dtype() == weights), "{dtype}");
        let inputs: Vec<&Tensor> = step.inputs.iter().collect();
        assert!(
            step.program.run(&inputs)?[0]
                .to_dtype(DType::F64)
                .item::<f64>()?
                > 0.0
        );
    }
    let error = of(DType::I64).err().unwrap().to_string();
    assert!(
        error.contains("lstm-step computes in floats, not in i64"),
        "{error}"
    );
    Ok(())
}

//! Whole networks, exported with the newest version, loaded again and run by onnxruntime.
//!
//! `KILN_FULL_SWEEP=1 cargo test -p kiln-onnx -- networks --nocapture` takes all of the models crate and prints their
//! numbers of kernels, before and after.

use crate::peers::Cases;
use crate::results::{folders, models, numbered, tensor};
use kiln_goldens::Folder;
use kiln_models::*;
use kiln_nn::{Forward, Module};
use kiln_onnx::{Export, load};
use kiln_tensor::{Compiled, DType, Spec, Tensor, compile, no_grad};
use kiln_testkit::sweep::Sweep;
use std::path::PathBuf;

type Checked = std::result::Result<(), Box<dyn std::error::Error>>;
type Made<T> = kiln_tensor::Result<T>;

/// The newest version.
const OPSET: i64 = 28;

/// Exports a network, compares its results, and prints the numbers of kernels of its runs and those of the loaded model.
fn add<I, O>(
    cases: &Cases,
    name: &str,
    f: &Compiled<I, O>,
    specs: Vec<Spec>,
    sets: &[&[Tensor]],
) -> Checked {
    let path = cases.add(name, f, sets, Export::new().opset(OPSET))?;
    let loaded = load(path)?.compile(specs)?;
    println!("| {name} | {} | {} |", kernels(f), kernels(&loaded));
    Ok(())
}

/// The number of kernels of a run, without those that prepare weights.
fn kernels<I, O>(f: &Compiled<I, O>) -> usize {
    let kernels = &f.explain().kernels;
    kernels.iter().filter(|k| !k.prepared).count()
}

/// A network of images `[batch, channels, side, side]`.
fn image<M: Forward + Module>(
    cases: &Cases,
    name: &str,
    [channels, side]: [i64; 2],
    model: Made<M>,
) -> Checked {
    let model = model?;
    model.eval();
    model.named_parameters();
    let images = |n: i64| {
        Tensor::randn([n, channels, side, side], DType::F32)
            .realize()
            .cloned()
    };
    let spec = Spec::new(DType::F32, ("batch", channels, side, side));
    let f = no_grad(|| compile(spec.clone(), |x| model.call(x)))?;
    let sets: [&[Tensor]; 2] = [&[images(1)?], &[images(3)?]];
    add(cases, name, &f, vec![spec], &sets)
}

#[test]
fn networks_of_images() -> Checked {
    let cases = Cases::new("images", [1e-3, 1e-4]);
    image(&cases, "resnet18", [3, 64], ResNet::resnet18(10))?;
    image(
        &cases,
        "mobilenet_v3_small",
        [3, 64],
        MobileNetV3::small(10),
    )?;
    if Sweep::wanted().is_some() {
        let unet = UNetConfig {
            width: 8,
            ..UNetConfig::default()
        };
        let vit = VisionTransformerConfig {
            image_size: 64,
            num_layers: 2,
            hidden_dim: 48,
            num_heads: 3,
            mlp_dim: 96,
            classes: 10,
            ..VisionTransformerConfig::default()
        };
        let googlenet = GoogLeNetConfig {
            classes: 10,
            ..GoogLeNetConfig::default()
        };
        let inception = Inception3Config {
            classes: 10,
            ..Inception3Config::default()
        };
        image(&cases, "alexnet", [3, 64], AlexNet::new(10))?;
        image(
            &cases,
            "convnext",
            [3, 64],
            ConvNeXt::new([16, 24, 32, 48], [1, 1, 2, 1], 0.1, 10),
        )?;
        image(
            &cases,
            "densenet",
            [3, 64],
            DenseNet::new(8, [2, 3, 2, 2], 16, 10),
        )?;
        image(
            &cases,
            "efficientnet_b0",
            [3, 64],
            EfficientNet::efficientnet_b0(10),
        )?;
        image(&cases, "googlenet", [3, 64], GoogLeNet::new(googlenet))?;
        image(&cases, "inception_v3", [3, 96], Inception3::new(inception))?;
        image(&cases, "mobilenet_v2", [3, 64], MobileNetV2::new(10))?;
        image(
            &cases,
            "mobilenet_v3_large",
            [3, 64],
            MobileNetV3::large(10),
        )?;
        image(&cases, "resnet50", [3, 64], ResNet::resnet50(10))?;
        image(
            &cases,
            "shufflenet_v2",
            [3, 64],
            ShuffleNetV2::shufflenet_v2_x0_5(10),
        )?;
        image(
            &cases,
            "squeezenet1_0",
            [3, 64],
            SqueezeNet::squeezenet1_0(10),
        )?;
        image(
            &cases,
            "squeezenet1_1",
            [3, 64],
            SqueezeNet::squeezenet1_1(10),
        )?;
        image(&cases, "unet", [1, 64], UNet::new(unet))?;
        image(&cases, "vgg11", [3, 32], Vgg::vgg11(10))?;
        image(&cases, "vgg11_bn", [3, 32], Vgg::vgg11_bn(10))?;
        image(&cases, "vit", [3, 64], VisionTransformer::new(vit))?;
    }
    cases.beside_onnxruntime();
    Ok(())
}

/// Models that PyTorch exported, loaded and exported again.
#[test]
fn loaded_networks() -> Checked {
    let cases = Cases::new("loaded", [1e-3, 1e-4]);
    let folder = Folder::onnx_models("networks")?;
    for case in models(&folder) {
        let model = load(case.join("model.onnx"))?;
        let specs = model.specs(&[])?;
        let f = model.compile(specs.clone())?;
        let inputs = |set: &PathBuf| -> Vec<Tensor> {
            let files = numbered(set, "input");
            files.iter().map(|f| tensor(f)).collect()
        };
        let sets: Vec<_> = folders(&case).iter().map(inputs).collect();
        let sets: Vec<_> = sets.iter().map(Vec::as_slice).collect();
        let name = case.file_name().unwrap_or_default().to_string_lossy();
        add(&cases, &name, &f, specs, &sets)?;
    }
    cases.beside_onnxruntime();
    Ok(())
}

/// A network of tokens `[batch, length]`.
fn text<M: Module>(
    cases: &Cases,
    name: &str,
    model: Made<M>,
    call: impl Fn(&M, Tensor) -> Tensor,
) -> Checked {
    let model = model?;
    model.eval();
    model.named_parameters();
    let tokens = |n: i64, len: i64| Tensor::randint(0, 61, [n, len]).realize().cloned();
    let spec = Spec::new(DType::I64, ("batch", "length"));
    let f = no_grad(|| compile(spec.clone(), |x| call(&model, x)))?;
    let sets: [&[Tensor]; 2] = [&[tokens(2, 7)?], &[tokens(1, 3)?]];
    add(cases, name, &f, vec![spec], &sets)
}

#[test]
fn networks_of_text() -> Checked {
    let cases = Cases::new("text", [1e-3, 1e-4]);
    let gpt2 = GPT2Config {
        vocab_size: 61,
        n_positions: 16,
        n_embd: 24,
        n_layer: 2,
        n_head: 3,
        ..GPT2Config::default()
    };
    let bert = BertConfig {
        vocab_size: 61,
        hidden_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 3,
        intermediate_size: 48,
        max_position_embeddings: 16,
        ..BertConfig::default()
    };
    let masked = |x: Tensor| {
        let mask = x.ne(0).to_dtype(DType::I64);
        BertInputs::new(x).attention_mask(mask)
    };
    text(
        &cases,
        "gpt2",
        GPT2LMHeadModel::new(gpt2.clone()),
        |m, x| m.call(x),
    )?;
    text(&cases, "bert", BertModel::new(bert.clone()), |m, x| {
        m.call(masked(x)).0
    })?;
    if Sweep::wanted().is_some() {
        let block = TransformerConfig {
            width: 24,
            heads: 3,
            hidden: 48,
            ..TransformerConfig::default()
        };
        let gpt = GptConfig {
            vocabulary: 61,
            context: 16,
            layers: 2,
            block,
        };
        text(&cases, "gpt", Gpt::new(gpt), |m, x| m.call(x))?;
        text(
            &cases,
            "gpt2_heads",
            GPT2DoubleHeadsModel::new(gpt2),
            |m, x| m.call(x.unsqueeze(1)).1,
        )?;
        text(
            &cases,
            "bert_mlm",
            BertForMaskedLM::new(bert.clone()),
            |m, x| m.call(masked(x)),
        )?;
        let classifier = BertForSequenceClassification::new(bert, 4);
        text(&cases, "bert_classifier", classifier, |m, x| {
            m.call(masked(x))
        })?;
        parts(&cases, block)?;
    }
    cases.beside_onnxruntime();
    Ok(())
}

/// Blocks of transformers and a step of an LSTM.
fn parts(cases: &Cases, config: TransformerConfig) -> Checked {
    let randn = |shape: &[i64]| Tensor::randn(shape, DType::F32).realize().cloned();
    let (encoder, decoder) = (config.encoder_block()?, config.decoder_block()?);
    let (cached, cell) = (CachedBlock::new(24, 3, 48)?, LstmCell::new(8, 16)?);
    encoder.eval();
    decoder.eval();
    let tokens = |length: &str| Spec::new(DType::F32, ("batch", length, 24));
    let x = [randn(&[2, 5, 24])?];
    let f = compile(tokens("length"), |x| encoder.call(&x))?;
    add(cases, "encoder_block", &f, vec![tokens("length")], &[&x])?;
    let specs = [tokens("length"), tokens("seen")];
    let f = compile(specs.clone(), |[x, seen]| decoder.call((&x, &seen)))?;
    let pair = [randn(&[2, 5, 24])?, randn(&[2, 3, 24])?];
    add(cases, "decoder_block", &f, specs.to_vec(), &[&pair])?;
    // Its sizes are known.
    let all = [
        randn(&[2, 1, 24])?,
        randn(&[2, 3, 4, 8])?,
        randn(&[2, 3, 4, 8])?,
    ];
    let specs = [&all[0], &all[1], &all[2]].map(Spec::like);
    let specs = specs.into_iter().collect::<Made<Vec<Spec>>>()?;
    let f = compile(specs.clone(), |t: Vec<Tensor>| {
        cached.call((&t[0], &t[1], &t[2])).to_vec()
    })?;
    add(cases, "cached_block", &f, specs, &[&all])?;
    let state = || Spec::new(DType::F32, ("batch", 16));
    let specs = [Spec::new(DType::F32, ("batch", 8)), state(), state()];
    let f = compile(specs.clone(), |[x, h, c]| cell.call((&x, &h, &c)).to_vec())?;
    let all = [randn(&[3, 8])?, randn(&[3, 16])?, randn(&[3, 16])?];
    add(cases, "lstm_cell", &f, specs.to_vec(), &[&all])
}

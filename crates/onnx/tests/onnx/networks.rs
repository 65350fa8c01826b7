//! Whole networks, exported.

use crate::peers::Cases;
use kiln_models::{
    BertConfig, BertInputs, BertModel, GPT2Config, GPT2LMHeadModel, MobileNetV3, ResNet,
};
use kiln_nn::{Forward, Module};
use kiln_onnx::Export;
use kiln_tensor::{DType, Spec, Tensor, compile, no_grad};

type Checked = std::result::Result<(), Box<dyn std::error::Error>>;

fn images(n: i64) -> Tensor {
    Tensor::randn([n, 3, 64, 64], DType::F32)
        .realize()
        .unwrap()
        .clone()
}

#[test]
fn networks_of_images() -> Checked {
    let cases = Cases::new("images", [1e-3, 1e-4]);
    let spec = || Spec::new(DType::F32, ("batch", 3, 64, 64));
    let sets: [&[Tensor]; 2] = [&[images(1)], &[images(3)]];
    let resnet = ResNet::resnet18(10)?;
    let mobilenet = MobileNetV3::small(10)?;
    resnet.eval();
    mobilenet.eval();
    let f = no_grad(|| compile(spec(), |x| resnet.call(x)))?;
    cases.add("resnet18", &f, &sets, Export::new())?;
    let f = no_grad(|| compile(spec(), |x| mobilenet.call(x)))?;
    cases.add("mobilenet_v3_small", &f, &sets, Export::new())?;
    cases.beside_onnxruntime();
    Ok(())
}

#[test]
fn networks_of_text() -> Checked {
    let cases = Cases::new("text", [1e-3, 1e-4]);
    let spec = || Spec::new(DType::I64, ("batch", "length"));
    let tokens = |n: i64, len: i64| Tensor::randint(0, 61, [n, len]).realize().unwrap().clone();
    let sets: [&[Tensor]; 2] = [&[tokens(2, 7)], &[tokens(1, 3)]];
    let gpt = GPT2LMHeadModel::new(GPT2Config {
        vocab_size: 61,
        n_positions: 16,
        n_embd: 24,
        n_layer: 2,
        n_head: 3,
        ..GPT2Config::default()
    })?;
    let bert = BertModel::new(BertConfig {
        vocab_size: 61,
        hidden_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 3,
        intermediate_size: 48,
        max_position_embeddings: 16,
        ..BertConfig::default()
    })?;
    gpt.eval();
    bert.eval();
    let f = no_grad(|| compile(spec(), |x| gpt.call(x)))?;
    cases.add("gpt2", &f, &sets, Export::new())?;
    let masked = |x: Tensor| {
        let mask = x.ne(0).to_dtype(DType::I64);
        bert.call(BertInputs::new(x).attention_mask(mask)).0
    };
    let f = no_grad(|| compile(spec(), masked))?;
    cases.add("bert", &f, &sets, Export::new())?;
    cases.beside_onnxruntime();
    Ok(())
}

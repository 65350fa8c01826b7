//! Text models, and their folders.

use crate::made::{small_bert, small_gpt2};
use kiln::formats::Pretrained;
use kiln::nn::optim::{AdamW, Optimizer};
use kiln::nn::{Forward, Module, StateDict};
use kiln::{DType, Result, Tensor, no_grad};
use kiln_models::{
    BertConfig, BertForMaskedLM, BertForSequenceClassification, BertInputs, BertModel, GPT2Config,
    GPT2DoubleHeadsModel, GPT2LMHeadModel, GPT2Model,
};
use std::path::PathBuf;

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kiln-text-{name}-{}", std::process::id()))
}

fn tokens() -> Tensor {
    Tensor::randint(0, 61, [2, 7])
}

#[track_caller]
fn same(a: &Tensor, b: &Tensor) -> Result<()> {
    assert_eq!(a.to_bytes()?, b.to_bytes()?);
    Ok(())
}

#[test]
fn gpt2_is_read_with_and_without_its_prefix() -> Result<()> {
    let whole = GPT2LMHeadModel::new(small_gpt2())?;
    whole.eval();
    let state = whole.state_dict();
    assert!(state.get("lm_head.weight").is_some());
    // The published files have no prefix, no head, and masks that are not weights.
    let mut bare = state.part("transformer.");
    bare.insert("h.0.attn.bias", Tensor::ones([1, 1, 16, 16], DType::F32));
    bare.insert("h.0.attn.masked_bias", Tensor::scalar(-1e4f32));
    let x = tokens();
    let wanted = no_grad(|| whole.call(&x));
    for file in [&state, &bare] {
        let model = GPT2LMHeadModel::new(small_gpt2())?;
        let report = model.load_transformers(file)?;
        assert!(
            report.missing.is_empty() && report.unexpected.is_empty(),
            "{report:?}"
        );
        model.eval();
        same(&no_grad(|| model.call(&x)), &wanted)?;
        let body = GPT2Model::new(small_gpt2())?;
        let report = body.load_transformers(file)?;
        assert!(
            report.missing.is_empty() && report.unexpected.is_empty(),
            "{report:?}"
        );
    }
    let larger = GPT2Config {
        n_embd: 39,
        ..small_gpt2()
    };
    assert!(
        GPT2LMHeadModel::new(larger)?
            .load_transformers(&state)
            .is_err()
    );
    Ok(())
}

#[test]
fn double_heads_score_texts_and_choices() -> Result<()> {
    let model = GPT2DoubleHeadsModel::new(small_gpt2())?;
    model.eval();
    let names: Vec<String> = model.state_dict().names().map(String::from).collect();
    assert!(names.ends_with(&[
        "multiple_choice_head.summary.weight".into(),
        "multiple_choice_head.summary.bias".into()
    ]));
    // The weights of the tokens' scores are those of the model with this head alone.
    let single = GPT2LMHeadModel::new(small_gpt2())?;
    let report = single.load_transformers(&model.state_dict())?;
    assert_eq!((report.missing.len(), report.unexpected.len()), (0, 2));
    single.eval();
    let tokens = Tensor::randint(0, 61, [2, 3, 7]);
    let places = [[6i64, 3, 5], [0, 6, 1]];
    let mut mask = Tensor::ones([2, 3, 7], DType::I64);
    mask = mask.set((0, 1, 4..), 0);
    let labels = tokens.set((1, 0, ..3), -100);
    let right = Tensor::from([2i64, 0]);
    let input = (&tokens, &mask, &Tensor::from(places));
    let (loss, mc_loss, scores, mc_scores) = no_grad(|| model.with_labels(input, &labels, &right));
    let flat = (tokens.flatten((0, 1)), mask.flatten((0, 1)));
    let (wanted, found) = no_grad(|| single.with_labels(&flat, labels.flatten((0, 1))));
    same(&scores.flatten((0, 1)), &found)?;
    same(&loss, &wanted)?;
    // The choices' scores, by the numbers themselves.
    let body = GPT2Model::new(small_gpt2())?;
    body.load_transformers(&model.state_dict())?;
    body.eval();
    let states = no_grad(|| body.call(&flat));
    let weight = model
        .get_parameter("multiple_choice_head.summary.weight")?
        .get();
    let bias = model
        .get_parameter("multiple_choice_head.summary.bias")?
        .get()
        .item::<f32>()?;
    let mut wanted_scores = Vec::new();
    for (i, place) in places.iter().flatten().enumerate() {
        let state = states.i((i as i64, *place)).to_vec::<f32>()?;
        let products = state
            .iter()
            .zip(weight.to_vec::<f32>()?)
            .map(|(x, w)| f64::from(x * w));
        wanted_scores.push(products.sum::<f64>() + f64::from(bias));
    }
    let found = mc_scores.to_vec::<f32>()?;
    assert!(
        found
            .iter()
            .zip(&wanted_scores)
            .all(|(x, y)| (f64::from(*x) - y).abs() < 1e-5)
    );
    let log = |row: &[f64], i: usize| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[i];
    let wanted = (log(&wanted_scores[..3], 2) + log(&wanted_scores[3..], 0)) / 2.0;
    assert!((f64::from(mc_loss.item::<f32>()?) - wanted).abs() < 1e-5);
    // Without places, the last tokens; both losses train the body.
    let last = Tensor::full([2, 3], 6, DType::I64);
    let (_, alone) = no_grad(|| model.call(&tokens));
    same(&alone, &no_grad(|| model.call((&tokens, &last))).1)?;
    let (loss, mc_loss, ..) = model.with_labels((&tokens, &last), &labels, &right);
    (loss + mc_loss).backward()?;
    assert!(model.parameters().iter().all(|p| p.grad().is_some()));
    let wrong = GPT2Config {
        summary_type: "mean".into(),
        ..small_gpt2()
    };
    let e = GPT2DoubleHeadsModel::new(wrong)
        .err()
        .expect("it is refused")
        .to_string();
    assert!(e.contains("summary_type must be \"cls_index\""), "{e}");
    Ok(())
}

#[test]
fn tied_weights_are_one() -> Result<()> {
    let model = GPT2LMHeadModel::new(small_gpt2())?;
    let untied = GPT2LMHeadModel::new(GPT2Config {
        tie_word_embeddings: false,
        ..small_gpt2()
    })?;
    assert_eq!(untied.num_parameters() - model.num_parameters(), 61 * 36);
    // Tied weights stay tied through a training step, and in a copy.
    let mut optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(0.01))?;
    let x = tokens();
    let scores = model.call(&x).flatten((0, 1));
    scores.cross_entropy(x.flatten((0, 1))).backward()?;
    optimizer.step()?;
    for model in [&model, &model.deep_copy()?] {
        let state = model.state_dict();
        let of = |name: &str| state.get(name).expect("it is there").clone();
        same(&of("lm_head.weight"), &of("transformer.wte.weight"))?;
    }
    assert_eq!(model.deep_copy()?.num_parameters(), model.num_parameters());
    let masked = BertForMaskedLM::new(small_bert())?;
    let names: Vec<String> = masked
        .named_parameters()
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    assert!(names.iter().any(|n| n == "cls.predictions.bias"));
    assert!(
        !names
            .iter()
            .any(|n| n.starts_with("cls.predictions.decoder."))
    );
    Ok(())
}

#[test]
fn folders_are_written_and_read() -> Result<()> {
    // The folders are kept if the library `transformers` is to read them: `reference.py --folders FOLDER`.
    let kept = std::env::var_os("KILN_FOLDERS").map(PathBuf::from);
    let parent = kept.clone().unwrap_or_else(|| folder("saved"));
    let (path, bert_path) = (parent.join("gpt2"), parent.join("bert"));
    let model = GPT2LMHeadModel::new(GPT2Config {
        n_layer: 2,
        ..small_gpt2()
    })?;
    model.save_pretrained(&path)?;
    // Shared weights are written once.
    let written = Pretrained::load(&path)?;
    assert!(written.state.get("lm_head.weight").is_none());
    let (again, report) = GPT2LMHeadModel::from_pretrained(&path)?;
    assert!(report.missing.is_empty() && report.unexpected.is_empty());
    assert_eq!(again.config(), model.config());
    let x = tokens();
    model.eval();
    again.eval();
    same(&no_grad(|| again.call(&x)), &no_grad(|| model.call(&x)))?;
    // A classifier made from another task's weights has a new head.
    let bert = BertForMaskedLM::new(small_bert())?;
    bert.save_pretrained(&bert_path)?;
    let (_, report) = BertForMaskedLM::from_pretrained(&bert_path)?;
    assert!(report.missing.is_empty() && report.unexpected.is_empty());
    let (classifier, report) = BertForSequenceClassification::from_pretrained(&bert_path)?;
    let new = [
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    ];
    assert_eq!(report.missing, new);
    assert!(report.unexpected.iter().all(|n| n.starts_with("cls.")));
    assert_eq!(classifier.call(&x).shape()?, [2, 2]);
    if kept.is_none() {
        std::fs::remove_dir_all(parent).expect("it was written");
    }
    Ok(())
}

#[test]
fn bert_is_read_in_each_form() -> Result<()> {
    let whole = BertModel::new(small_bert())?;
    whole.eval();
    let x = tokens();
    let wanted = no_grad(|| whole.call(&x).0);
    let state = whole.state_dict();
    // The first files have other names for norms, and hold positions and other tasks' heads.
    let old = |name: &str| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
        Some(format!(
            "bert.{}",
            name.replace("LayerNorm.bias", "LayerNorm.beta")
        ))
    };
    let mut old = state.rename(old);
    old.insert("bert.embeddings.position_ids", Tensor::arange(0, 16, 1));
    old.insert(
        "cls.seq_relationship.weight",
        Tensor::zeros([2, 36], DType::F32),
    );
    for file in [&state, &old] {
        let model = BertModel::new(small_bert())?;
        let report = model.load_transformers(file)?;
        assert!(
            report.missing.is_empty() && report.unexpected.is_empty(),
            "{report:?}"
        );
        model.eval();
        same(&no_grad(|| model.call(&x).0), &wanted)?;
    }
    Ok(())
}

#[test]
fn what_is_masked_changes_nothing() -> Result<()> {
    let near = |a: Tensor, b: Tensor| -> Result<()> {
        let (a, b) = (a.to_vec::<f32>()?, b.to_vec::<f32>()?);
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5));
        Ok(())
    };
    let x = tokens();
    let short = x.narrow(1, 0, 5);
    let mask = Tensor::from_slice(&[1i64, 1, 1, 1, 1, 0, 0].repeat(2), [2, 7]);
    let bert = BertModel::new(small_bert())?;
    bert.eval();
    let masked = bert
        .call(BertInputs::new(x.clone()).attention_mask(mask.clone()))
        .0;
    near(masked.narrow(1, 0, 5), bert.call(&short).0)?;
    let gpt = GPT2Model::new(small_gpt2())?;
    gpt.eval();
    near(gpt.call((&x, &mask)).narrow(1, 0, 5), gpt.call(&short))?;
    Ok(())
}

#[test]
fn configurations_are_checked() {
    let heads = GPT2Config {
        n_head: 5,
        ..small_gpt2()
    };
    assert!(
        GPT2Model::new(heads)
            .err()
            .unwrap()
            .to_string()
            .contains("5 heads")
    );
    let activation = BertConfig {
        hidden_act: "geglu".into(),
        ..small_bert()
    };
    let e = BertModel::new(activation).err().unwrap().to_string();
    assert!(e.contains("geglu") && e.contains("gelu_new"), "{e}");
    let long = Tensor::zeros([1, 17], DType::I64);
    let model = GPT2Model::new(small_gpt2()).expect("a model");
    assert!(model.call(&long).to_vec::<f32>().is_err());
    let state: StateDict = [("x".to_string(), Tensor::scalar(1.0f32))]
        .into_iter()
        .collect();
    let report = model
        .load_transformers(&state)
        .expect("shapes don't differ");
    assert_eq!(report.unexpected, ["x"]);
}

/// The mean cross-entropy of rows of scores with labels, of which negative ones are left out.
fn cross_entropy(scores: &Tensor, labels: &[i64]) -> Result<f64> {
    let scores = scores.to_vec::<f32>()?;
    let width = scores.len() / labels.len();
    let rows = scores.chunks(width).zip(labels);
    let losses = rows.filter(|(_, label)| **label >= 0).map(|(row, label)| {
        let sum: f64 = row.iter().map(|s| f64::from(*s).exp()).sum();
        sum.ln() - f64::from(row[*label as usize])
    });
    let losses: Vec<f64> = losses.collect();
    Ok(losses.iter().sum::<f64>() / losses.len() as f64)
}

#[test]
fn labels_give_the_loss_too() -> Result<()> {
    let near = |loss: Tensor, wanted: f64| {
        let loss = f64::from(loss.item::<f32>().unwrap());
        assert!(
            (loss - wanted).abs() < 1e-5 * wanted.max(1.0),
            "{loss}, not {wanted}"
        );
    };
    let x = tokens();
    let mut ids = x.to_vec::<i64>()?;
    ids[3] = -100;
    let labels = Tensor::from_slice(&ids, [2, 7]);

    let gpt = GPT2LMHeadModel::new(small_gpt2())?;
    gpt.eval();
    let (loss, scores) = no_grad(|| gpt.with_labels(&x, &labels));
    let behind = [&ids[1..7], &ids[8..14]].concat();
    near(loss, cross_entropy(&scores.i((.., ..6)), &behind)?);

    let bert = BertForMaskedLM::new(small_bert())?;
    bert.eval();
    let (loss, scores) = no_grad(|| bert.with_labels(&x, &labels));
    near(loss, cross_entropy(&scores, &ids)?);

    for classes in [1, 3] {
        let model = BertForSequenceClassification::new(small_bert(), classes)?;
        model.eval();
        let scores = no_grad(|| model.call(&x)).to_vec::<f32>()?;
        let targets = Tensor::ones([2, classes], DType::F32);
        let (loss, _) = no_grad(|| model.with_labels(&x, &targets));
        let each = scores.iter().map(|s| match classes {
            1 => (f64::from(*s) - 1.0).powi(2),
            _ => (-f64::from(*s)).exp().ln_1p(),
        });
        near(loss, each.sum::<f64>() / scores.len() as f64);
    }
    let model = BertForSequenceClassification::new(small_bert(), 3)?;
    model.eval();
    let (loss, scores) = no_grad(|| model.with_labels(&x, Tensor::from([2i64, 0])));
    near(loss, cross_entropy(&scores, &[2, 0])?);
    Ok(())
}

//! Results, losses, gradients and statistics compared with PyTorch's.

use crate::made::{Inputs, Network, small};
use crate::reference::{fill, row, uniform};
use kiln::{DType, Result, Tensor, no_grad};
use serde_json::Value as Json;

fn numbers<'a>(list: &'a Json) -> impl Iterator<Item = f64> + 'a {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|x| x.as_f64().expect("a number"))
}

/// The images or tokens of a stored case.
pub fn inputs(case: &Json) -> Inputs {
    let shape: Vec<usize> = numbers(&case["input"]).map(|n| n as usize).collect();
    let count = shape.iter().product();
    let key = case["key"].as_str().expect("a name");
    let x = if shape.len() == 4 {
        let values: Vec<f32> = uniform(key, count).map(|u| u as f32).collect();
        Tensor::from_slice(&values, &shape[..])
    } else {
        let token = |u: f64| ((u + 1.0) * f64::from(1 << 23)) as i64 % 61;
        let values: Vec<i64> = uniform(key, count).map(token).collect();
        Tensor::from_slice(&values, &shape[..])
    };
    let by_place = |f: &dyn Fn(usize, usize) -> bool| {
        let values: Vec<i64> = (0..22).map(|i| f(i / 11, i % 11).into()).collect();
        Tensor::from_slice(&values, [2, 11])
    };
    Inputs {
        x,
        mask: by_place(&|text, place| text == 0 || place < 7),
        kinds: by_place(&|_, place| place > 4),
    }
}

/// Compares the stored elements. PyTorch in f32 is off by `error` in its own order of summation. Another order is
/// allowed eight times that, and eight roundings of the largest element. In f64 all this is smaller by the ratio of the
/// roundings, but the file has ten digits.
fn compare(what: &str, found: &Tensor, stored: &Json, dtype: DType) -> Result<()> {
    let shape: Vec<usize> = numbers(&stored["shape"]).map(|n| n as usize).collect();
    let shape_found = if found.ndim() == 0 {
        vec![1]
    } else {
        found.shape()?
    };
    assert_eq!(shape_found, shape, "{what}");
    let found = found.to_dtype(DType::F64).to_vec::<f64>()?;
    let number = |key: &str| stored[key].as_f64().expect("a number");
    let single = f64::from(f32::EPSILON) / 2.0;
    let bound = 8.0 * number("error").max(single * number("largest"));
    let bound = match dtype {
        DType::F64 => bound * (f64::EPSILON / 2.0 / single),
        _ => bound,
    };
    for (at, wanted) in numbers(&stored["at"]).zip(numbers(&stored["values"])) {
        let found = found[at as usize];
        assert!(
            (found - wanted).abs() <= bound + 1e-9 * wanted.abs(),
            "{what}, element {at}: {found}, not {wanted} within {bound:e}"
        );
    }
    Ok(())
}

fn check(model: &str) -> Result<()> {
    let case = row("cases", model);
    let network = small(model)?;
    let gain = case["gain"].as_f64().expect("a number");
    fill(network.module(), gain)?;
    let mut inputs = inputs(case);
    network.module().eval();
    let results = no_grad(|| network.results(&inputs))?;
    let stored = case["eval"].as_object().expect("results");
    assert_eq!(results.len(), stored.len(), "{model}");
    for (name, found) in &results {
        compare(
            &format!("{model}, {name}"),
            found,
            &stored[*name],
            DType::F32,
        )?;
    }
    let Some(step) = case["step"].as_object() else {
        return Ok(());
    };
    if case["step_in_f64"] == true {
        inputs.x = inputs.x.to_dtype(DType::F64);
        return check_step(model, network.in_f64()?.as_ref(), &inputs, step);
    }
    check_step(model, network.as_ref(), &inputs, step)
}

/// Compares a training step without dropout, whose random numbers differ.
fn check_step(
    model: &str,
    network: &dyn Network,
    inputs: &Inputs,
    step: &serde_json::Map<String, Json>,
) -> Result<()> {
    let (module, dtype) = (network.module(), inputs.x.dtype());
    module.train();
    for layer in module.modules() {
        if ["Dropout", "StochasticDepth"].contains(&layer.name()) {
            layer.eval();
        }
    }
    let mut loss = Tensor::scalar(0.0f32);
    for (name, scores) in network.results(inputs)? {
        let scores = match scores.ndim() {
            3 => scores.flatten((0, 1)),
            4 => scores.permute([0, 2, 3, 1]).flatten((0, 2)),
            _ => scores,
        };
        let [rows, classes] = scores.size()?;
        let labels: Vec<i64> = (0..rows as i64).map(|i| i * 7 % classes as i64).collect();
        let part = scores.cross_entropy(Tensor::from_slice(&labels, [rows]));
        loss += if name == "logits" { part } else { part * 0.3 };
    }
    loss.backward()?;
    for (name, stored) in step {
        let what = format!("{model}, step, {name}");
        if name == "loss" {
            compare(&what, &loss, stored, dtype)?;
        } else if let Some((_, buffer)) = module.named_buffers().iter().find(|(n, _)| n == name) {
            compare(&what, &buffer.get(), stored, dtype)?;
        } else {
            let gradient = module.get_parameter(name)?.grad();
            compare(&what, &gradient.expect("it has a gradient"), stored, dtype)?;
        }
    }
    Ok(())
}

/// Models behind `+` differ from those in front by sizes alone, which their state dicts have too (`keys`). They are
/// compared with KILN_FULL_SWEEP=1.
macro_rules! checked {
    ($($test:ident: $($model:literal)* $(+ $($larger:literal)*)?;)*) => {$(
        #[test]
        fn $test() -> Result<()> {
            $(check($model)?;)*
            $(if std::env::var_os("KILN_FULL_SWEEP").is_some() {
                $(check($larger)?;)*
            })?
            Ok(())
        }
    )*

        /// Checks that everything stored is compared.
        #[test]
        fn nothing_is_left_out() {
            let compared = [$($($model,)* $($($larger,)*)?)*];
            let stored = crate::reference::stored()["cases"].as_array().expect("a list");
            let missed = stored.iter().filter(|case| !compared.iter().any(|m| case["model"] == *m));
            assert_eq!(missed.count(), 0);
        }
    };
}
checked! {
    resnets: "resnet18" "resnet50" + "resnet34" "resnet101" "resnet152";
    wider_resnets: "resnext50_32x4d" + "resnext101_64x4d" "wide_resnet50_2";
    plain_networks: "alexnet" "vgg19_bn" + "vgg11";
    squeezenets: "squeezenet1_0" "squeezenet1_1";
    mobilenets: "mobilenet_v2" "mobilenet_v3_small" "mobilenet_v3_large";
    efficientnets: "efficientnet_b0" + "efficientnet_b1" "efficientnet_b5";
    densenets: "densenet121" + "densenet161" "densenet169" "densenet201";
    googlenet: "googlenet";
    inception: "inception_v3";
    shufflenets: "shufflenet_v2_x0_5" + "shufflenet_v2_x1_0" "shufflenet_v2_x1_5" "shufflenet_v2_x2_0";
    vision_transformers: "vit" "vit_b_16" + "vit_b_32";
    convnexts: "convnext_tiny" + "convnext_small";
    own_networks: "unet" "gpt";
    gpt2: "GPT2Model" "GPT2LMHeadModel";
    bert: "BertModel" "BertForMaskedLM" "BertForSequenceClassification";
}

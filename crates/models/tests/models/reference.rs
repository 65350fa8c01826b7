//! The results that `reference.py` stored, and the formula that it shares with these tests.

use kiln::nn::{Module, StateDict};
use kiln::{Result, Tensor};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The stored file.
pub fn stored() -> &'static Json {
    static STORED: OnceLock<Json> = OnceLock::new();
    STORED.get_or_init(|| serde_json::from_str(include_str!("reference.json")).expect("it is JSON"))
}

/// Returns the entry of a model.
pub fn row(part: &str, model: &str) -> &'static Json {
    let rows = stored()[part].as_array().expect("a list");
    rows.iter()
        .find(|row| row["model"] == model)
        .unwrap_or_else(|| panic!("nothing is stored of {model}"))
}

/// The 64 bits of FNV-1a.
pub fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3)
    })
}

/// Numbers in [-1, 1) of 24 bits.
pub fn uniform(key: &str, count: usize) -> impl Iterator<Item = f64> {
    let seed = fnv(key);
    (1..=count as u64).map(move |i| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 40) as f64 / f64::from(1 << 23) - 1.0
    })
}

fn weight(key: &str, shape: &[usize], gain: f64) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers = uniform(key, count);
    let values: Vec<f32> = if key.ends_with("running_var") {
        numbers.map(|u| (1.0 + u / 4.0) as f32).collect()
    } else if shape.len() < 2 {
        let middle = if key.ends_with("weight") { 1.0 } else { 0.0 };
        numbers.map(|u| (u / 8.0 + middle) as f32).collect()
    } else {
        let scale = (3.0 * gain * shape[0] as f64 / count as f64).sqrt();
        numbers.map(|u| (u * scale) as f32).collect()
    };
    Tensor::from_slice(&values, shape)
}

/// Gives a model the weights of the formula; a weight with several names takes the value of the first.
pub fn fill(model: &dyn Module, gain: f64) -> Result<()> {
    let own: BTreeSet<String> = model
        .named_parameters()
        .into_iter()
        .chain(model.named_buffers())
        .filter(|(_, var)| var.dtype().is_float())
        .map(|(name, _)| name)
        .collect();
    let mut state = StateDict::new();
    for (name, value) in model
        .state_dict()
        .iter()
        .filter(|(name, _)| own.contains(*name))
    {
        state.insert(name, weight(name, &value.shape()?, gain));
    }
    let report = model.load_state_dict(&state, false)?;
    assert!(report.unexpected.is_empty());
    Ok(())
}

//! The health of a training run, and its profile.

use crate::{files, read};
use kiln_nn::{Forward, Linear, ReLU, sequential};
use kiln_observe::Health;
use kiln_tensor::{DType, Result, Tensor, profiler};
use kiln_tensorboard::*;
use serde_json::Value;
use std::path::PathBuf;

#[test]
fn health_is_scalars_by_layer() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let model = sequential!["fc": Linear::new(3, 4), "act": ReLU::new()]?;
    let health = Health::watch(&model)?;
    model
        .call(Tensor::ones([2, 3], DType::F32))
        .sum(())
        .backward()?;
    let report = health.report()?;
    let writer = SummaryWriter::new(folder.path())?;
    writer.add_health(&report, 7)?;
    drop(writer);
    let Some(all) = read(folder.path()) else {
        return Ok(());
    };
    let scalars = &all["runs"]["."]["scalars"];
    for (tag, value) in report.scalars().filter(|(_, value)| value.is_finite()) {
        let read = &scalars[&tag][0];
        assert_eq!(read[0], 7, "{tag}");
        assert_eq!(
            read[1].as_f64().map(|x| x as f32),
            Some(value as f32),
            "{tag}"
        );
    }
    Ok(())
}

#[test]
fn a_profile_has_numbers_texts_and_a_trace() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (out, profile) = profiler::profile(|| {
        let x = Tensor::from([0.25f32, 0.5, 0.75]);
        (x.atanh() * 7.0).cumsum(0).to_vec::<f32>()
    });
    out?;
    let writer = SummaryWriter::new(folder.path())?;
    writer.add_profile("epoch", &profile, 3)?;
    writer.close()?;
    let is_trace = |p: &&PathBuf| p.to_string_lossy().ends_with(".pt.trace.json");
    let files = files(&folder);
    let traces: Vec<&PathBuf> = files.iter().filter(is_trace).collect();
    assert_eq!(traces.len(), 1, "{files:?}");
    let trace: Value = serde_json::from_slice(&std::fs::read(traces[0]).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans = |tid: u64| {
        events
            .iter()
            .filter(move |e| e["ph"] == "X" && e["tid"] == tid)
    };
    assert_eq!(spans(0).count(), profile.runs().len());
    assert_eq!(spans(1).count(), profile.events().len());
    assert_eq!(spans(2).count(), profile.compilations().len());
    let Some(all) = read(folder.path()) else {
        return Ok(());
    };
    let run = &all["runs"]["."];
    let scalar = |name: &str| run["scalars"][format!("epoch/{name}")][0][1].as_f64();
    assert_eq!(
        scalar("compilations"),
        Some(profile.compilations().len() as f64)
    );
    let wall = profile.wall_time().as_secs_f64() * 1e3;
    assert!(scalar("wall_ms").is_some_and(|ms| (ms - wall).abs() <= 1e-6 * wall));
    assert_eq!(scalar("data_wait_ms"), Some(0.0));
    let text = |name: &str| {
        let text = &run["tensors"][format!("epoch/{name}/text_summary")][0]["values"][0];
        text.as_str().unwrap_or_default().to_string()
    };
    assert!(
        text("kernels").contains("tests/tensorboard/training.rs:"),
        "{run}"
    );
    for c in profile.compilations() {
        assert!(text("compiled").contains(&c.reason), "{run}");
    }
    Ok(())
}

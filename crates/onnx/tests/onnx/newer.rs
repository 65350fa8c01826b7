//! The standard's tests of release 1.23.2 that release 1.19.1 lacks or has other models of.

use crate::results::{folders, tensor, wrong_on};
use kiln_goldens::Folder;
use kiln_onnx::load;
use kiln_tensor::{DType, Device, Tensor};
use std::path::PathBuf;

const CAPPED: &str =
    "before version 25, release 1.19.1 is followed, which caps scores with their mask";
const UNKNOWN: &str = "vision has no decoder of this format";
const DRAWN: &str = "numbers are drawn, see below";
const NEAR: &str = "pixels of another decoder, see below";
/// The tests that don't give the standard's results, with the reasons.
const OTHERS: [(&str, &str); 20] = [
    (
        "attention_3d_with_past_and_present_qk_matmul_softcap",
        CAPPED,
    ),
    ("attention_4d_softcap_neginf_mask", CAPPED),
    ("attention_4d_softcap_neginf_mask_poison", CAPPED),
    ("attention_4d_with_qk_matmul_softcap", CAPPED),
    ("bernoulli", DRAWN),
    ("bernoulli_double", DRAWN),
    ("bernoulli_double_expanded", DRAWN),
    ("bernoulli_expanded", DRAWN),
    ("bernoulli_seed", DRAWN),
    ("bernoulli_seed_expanded", DRAWN),
    ("image_decoder_decode_jpeg2k_rgb", UNKNOWN),
    ("image_decoder_decode_jpeg_bgr", NEAR),
    ("image_decoder_decode_jpeg_grayscale", NEAR),
    ("image_decoder_decode_jpeg_rgb", NEAR),
    ("image_decoder_decode_pnm_rgb", UNKNOWN),
    ("image_decoder_decode_tiff_rgb", UNKNOWN),
    ("training_dropout", DRAWN),
    ("training_dropout_default", DRAWN),
    ("training_dropout_default_mask", DRAWN),
    ("training_dropout_mask", DRAWN),
];

/// Of the 840 tests, those named above are wrong and no other. `KILN_ONNX_CASE` is a part of the names of those that
/// run.
#[test]
fn the_newer_tests_pass() {
    let folder = Folder::onnx_newer("newer").unwrap();
    let cases = folders(folder.path());
    assert_eq!(cases.len(), 840);
    let wanted = std::env::var("KILN_ONNX_CASE").unwrap_or_default();
    let chosen = |case: &PathBuf| case.to_string_lossy().contains(&wanted);
    let cases: Vec<PathBuf> = cases.into_iter().filter(chosen).collect();
    let wrong = wrong_on(Device::Cpu, &cases);
    // Drawn numbers may be right by chance.
    let is_named = |line: &&String| {
        let name = line.trim_start_matches("test_").split(':').next();
        OTHERS.iter().any(|(other, _)| Some(*other) == name)
    };
    let (named, unnamed): (Vec<_>, Vec<_>) = wrong.iter().partition(is_named);
    assert!(
        unnamed.is_empty(),
        "{} are wrong: {unnamed:#?}",
        unnamed.len()
    );
    assert!(!wanted.is_empty() || named.len() > 15, "{named:#?}");
}

/// Operators of the host are listed with version and node.
#[test]
fn what_the_host_evaluates() {
    let folder = Folder::onnx_newer("host").unwrap();
    let model = load(folder.path().join("test_string_concat/model.onnx")).unwrap();
    assert_eq!(
        model.on_host(),
        ["ai.onnx StringConcat, version 20: StringConcat, which gives \"result\""]
    );
    assert_eq!(model.inputs()[0].to_string(), "text");
}

/// The inputs and outputs of a test.
struct Case {
    model: kiln_onnx::Model,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Case {
    fn new(folder: &Folder, name: &str) -> Case {
        let case = folder.path().join(format!("test_{name}"));
        let model = load(case.join("model.onnx")).unwrap();
        let set = case.join("test_data_set_0");
        let read = |kind: &str, n: usize| -> Vec<Tensor> {
            (0..n)
                .map(|i| tensor(&set.join(format!("{kind}_{i}.pb"))))
                .collect()
        };
        Case {
            inputs: read("input", model.inputs().len()),
            outputs: read("output", model.outputs().len()),
            model,
        }
    }

    /// Runs the model and checks dtypes and shapes.
    fn run(&self) -> Vec<Tensor> {
        let names = self.model.inputs().iter().map(|i| &i.name[..]);
        let found = self.model.run(names.zip(&self.inputs)).unwrap();
        let names = self.model.outputs().iter();
        let found: Vec<Tensor> = names.map(|o| found.get(&o.name).unwrap().clone()).collect();
        for (got, want) in found.iter().zip(&self.outputs) {
            assert_eq!(got.dtype(), want.dtype());
            assert_eq!(got.shape().unwrap(), want.shape().unwrap());
        }
        found
    }
}

fn floats(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).to_vec().unwrap()
}

/// Bernoulli draws ones as often as their chances say, and with a seed the same each time.
#[test]
fn drawn_numbers_have_their_chances() {
    let folder = Folder::onnx_newer("drawn").unwrap();
    for (name, _) in OTHERS
        .iter()
        .filter(|(name, _)| name.starts_with("bernoulli"))
    {
        let case = Case::new(&folder, name);
        let chances = floats(&case.inputs[0]);
        let runs = if name.contains("seed") { 3 } else { 200 };
        let drawn: Vec<Vec<f64>> = (0..runs).map(|_| floats(&case.run()[0])).collect();
        assert!(drawn.iter().flatten().all(|x| *x == 0.0 || *x == 1.0));
        if name.contains("seed") {
            assert!(drawn.iter().all(|row| *row == drawn[0]), "{name}");
            continue;
        }
        for (i, p) in chances.iter().enumerate() {
            // The body that the standard gives the function draws zeros as often.
            let p = &if name.ends_with("expanded") {
                1.0 - p
            } else {
                *p
            };
            let mean = drawn.iter().map(|row| row[i]).sum::<f64>() / f64::from(runs);
            let error = (p * (1.0 - p) / f64::from(runs)).sqrt();
            assert!(
                (mean - p).abs() <= 5.0 * error + 1e-9,
                "{name}: {mean} for {p}"
            );
        }
    }
}

/// Dropout keeps an element times 1 / (1 − ratio) or gives 0, as its mask says.
#[test]
fn dropout_keeps_or_drops() {
    let folder = Folder::onnx_newer("dropout").unwrap();
    for (name, _) in OTHERS.iter().filter(|(name, _)| name.contains("dropout")) {
        let case = Case::new(&folder, name);
        let x = floats(&case.inputs[0]);
        let ratio = match name.contains("default") {
            true => 0.5,
            false => floats(&case.inputs[1])[0],
        };
        let mut kept = 0;
        for _ in 0..20 {
            let found = case.run();
            let mask = found.get(1).map(floats);
            for (i, y) in floats(&found[0]).into_iter().enumerate() {
                let is_kept = (y - x[i] / (1.0 - ratio)).abs() <= 1e-5 * y.abs();
                assert!(is_kept || y == 0.0, "{name}: {y} of {}", x[i]);
                assert!(mask.as_ref().is_none_or(|mask| (mask[i] != 0.0) == is_kept));
                kept += u32::from(is_kept);
            }
        }
        let share = f64::from(kept) / (20.0 * x.len() as f64);
        let error = (ratio * (1.0 - ratio) / (20.0 * x.len() as f64)).sqrt();
        assert!(
            (share - (1.0 - ratio)).abs() < 5.0 * error,
            "{name}: {share} kept"
        );
    }
}

/// Pixels of JPEG files differ by little from those of libjpeg.
#[test]
fn pixels_of_jpeg_are_near() {
    let folder = Folder::onnx_newer("jpeg").unwrap();
    for (name, _) in OTHERS.iter().filter(|(_, why)| *why == NEAR) {
        let case = Case::new(&folder, name);
        let found = floats(&case.run()[0]);
        let pairs = found.into_iter().zip(floats(&case.outputs[0]));
        let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(most <= 3.0, "{name}: {most}");
    }
}

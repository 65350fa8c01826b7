//! Files of published weights.

use kiln::nn::{Forward, Module, StateDict};
use kiln::{DType, Result, Tensor};
use kiln_models::weights::{ALL, ResNet18_Weights, Weights};
use kiln_models::{DenseNet, GoogLeNet, GoogLeNetConfig, ResNet, ShuffleNetV2};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use tempfile::TempDir;

/// Writes a checkpoint under a name that ends with its checksum.
fn publish(folder: &TempDir, name: &str, state: &StateDict) -> Result<Weights> {
    let path = folder.path().join("new.pth");
    kiln::save(state, &path)?;
    let sum = Sha256::digest(fs::read(&path).expect("it was written"));
    let sum: String = sum.iter().map(|b| format!("{b:02x}")).collect();
    let file: &str = Box::leak(format!("{name}-{}.pth", &sum[..8]).into_boxed_str());
    fs::rename(path, folder.path().join(file)).expect("a new name");
    Ok(Weights::new("Test_Weights.V1", file))
}

#[test]
fn the_table_is_sound() {
    let files: BTreeSet<&str> = ALL.iter().map(|(_, weights)| weights.file_name()).collect();
    assert_eq!(files.len(), ALL.len());
    for (model, weights) in ALL {
        let hash = weights.sha256_prefix();
        assert!(
            hash.len() >= 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
            "{weights:?}"
        );
        let start: String = model.chars().filter(|c| *c != '_').take(3).collect();
        assert!(
            weights.file_name().starts_with(&start),
            "{model}: {weights:?}"
        );
        crate::made::published(model, 1000).expect("a network");
    }
    let default = ResNet18_Weights::DEFAULT;
    assert_eq!(default.name(), "ResNet18_Weights.IMAGENET1K_V1");
    assert_eq!(
        default.url(),
        "https://download.pytorch.org/models/resnet18-f37072fd.pth"
    );
}

#[test]
fn a_file_that_is_not_there_can_be_got() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let model = ResNet::resnet18(1000)?;
    let e = ResNet18_Weights::DEFAULT
        .load(&model, folder.path())
        .unwrap_err()
        .to_string();
    let url = "https://download.pytorch.org/models/resnet18-f37072fd.pth";
    assert!(
        e.contains("ResNet18_Weights.IMAGENET1K_V1 are not in") && e.contains(url),
        "{e}"
    );
    // A file of that name with other contents is refused.
    fs::write(folder.path().join("resnet18-f37072fd.pth"), b"no weights").expect("a file");
    let e = ResNet18_Weights::DEFAULT
        .load(&model, folder.path())
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("its SHA-256 begins with") && e.contains("f37072fd"),
        "{e}"
    );
    Ok(())
}

fn bytes(state: &StateDict, name: &str) -> Result<Vec<u8>> {
    state.get(name).expect("it is there").to_bytes()
}

#[test]
fn a_model_gets_what_is_published() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let trained = ShuffleNetV2::shufflenet_v2_x0_5(11)?;
    // Old files have no batch counts.
    let state = trained.state_dict();
    let old = state.filter(|name| !name.ends_with("num_batches_tracked"));
    let weights = publish(&folder, "shufflenet", &old)?;
    let model = ShuffleNetV2::shufflenet_v2_x0_5(11)?;
    let report = weights.load(&model, folder.path())?;
    assert!(report.unexpected.is_empty() && report.mismatched.is_empty());
    let loaded = model.state_dict();
    for name in state.names() {
        assert_eq!(bytes(&loaded, name)?, bytes(&state, name)?, "{name}");
    }
    // Another number of classes needs a head of its own.
    let other = ShuffleNetV2::shufflenet_v2_x0_5(5)?;
    let e = weights.load(&other, folder.path()).unwrap_err().to_string();
    assert!(e.contains("fc.weight"), "{e}");
    let report = other.load_matching(&weights.state_dict(folder.path())?)?;
    assert_eq!(report.mismatched, ["fc.weight", "fc.bias"]);
    // Another model has none of these names.
    let e = weights
        .load(&ResNet::resnet18(11)?, folder.path())
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("conv1.weight: missing") && e.contains("conv1.0.weight: unexpected"),
        "{e}"
    );
    Ok(())
}

#[test]
fn old_names_and_auxiliary_heads_are_known() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let trained = DenseNet::new(4, [2, 1, 1, 1], 8, 3)?;
    let old = |name: &str| {
        let name = name
            .replace(".norm1.", ".norm.1.")
            .replace(".norm2.", ".norm.2.");
        Some(
            name.replace(".conv1.", ".conv.1.")
                .replace(".conv2.", ".conv.2."),
        )
    };
    let weights = publish(&folder, "densenet", &trained.state_dict().rename(old))?;
    let model = DenseNet::new(4, [2, 1, 1, 1], 8, 3)?;
    weights.load(&model, folder.path())?;
    trained.eval();
    model.eval();
    let images = Tensor::rand([1, 3, 32, 32], DType::F32);
    let [a, b] = [&trained, &model].map(|m| m.call(&images).to_vec::<f32>());
    assert_eq!(a?, b?);
    let googlenet = |aux_logits| {
        let classes = 3;
        GoogLeNet::new(GoogLeNetConfig {
            classes,
            aux_logits,
            ..GoogLeNetConfig::default()
        })
    };
    let weights = publish(&folder, "googlenet", &googlenet(true)?.state_dict())?;
    let report = weights.load(&googlenet(false)?, folder.path())?;
    assert!(report.unexpected.iter().all(|n| n.starts_with("aux")));
    assert!(!report.unexpected.is_empty());
    Ok(())
}

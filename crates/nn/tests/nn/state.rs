//! Saving and loading.

use crate::support::{held, values};
use kiln_nn::*;
use kiln_tensor::{DType, ErrorKind, Tensor};
use std::path::PathBuf;

fn model(out: usize) -> Sequential {
    sequential!["body": Linear::new(3, 4), "norm": BatchNorm1d::new(4), "head": Linear::new(4, out)]
        .unwrap()
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("kiln-nn-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[track_caller]
fn assert_same(a: &StateDict, b: &StateDict) {
    let names = |s: &StateDict| {
        let mut names: Vec<String> = s.names().map(str::to_string).collect();
        names.sort();
        names
    };
    assert_eq!(names(a), names(b));
    for (name, value) in a.iter() {
        let other = b.get(name).unwrap();
        assert_eq!(value.dtype(), other.dtype(), "{name}");
        assert_eq!(value.shape().unwrap(), other.shape().unwrap(), "{name}");
        assert_eq!(
            value.to_bytes().unwrap(),
            other.to_bytes().unwrap(),
            "{name}"
        );
    }
}

#[test]
fn a_model_survives_a_file() {
    let dir = folder("roundtrip");
    let path = dir.join("model.safetensors");
    let m = model(2);
    m.call(Tensor::rand([5, 3], DType::F32)).realize().unwrap();
    m.save_state_dict(&path).unwrap();
    let loaded = StateDict::load(&path).unwrap();
    assert_same(&m.state_dict(), &loaded);
    assert_eq!(
        loaded.get("norm.num_batches_tracked").unwrap().dtype(),
        DType::I64
    );
    let other = model(2);
    let report = other.load_state_dict(&loaded, true).unwrap();
    assert_eq!(report, LoadReport::default());
    assert_same(&m.state_dict(), &other.state_dict());
    assert!(other.parameters().iter().all(|p| p.requires_grad()));
    let left: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["model.safetensors"], "no temporary file stays");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn every_dtype_and_the_empty_tensor_survive_a_file() {
    let dir = folder("dtypes");
    let path = dir.join("all.safetensors");
    let mut state = StateDict::new();
    for dtype in DType::ALL {
        state.insert(format!("{dtype}"), Tensor::arange(0, 7, 1).to_dtype(dtype));
    }
    state.insert("empty", Tensor::zeros([2, 0], DType::F32));
    state.insert("scalar", Tensor::full((), f64::NEG_INFINITY, DType::F64));
    state.save(&path).unwrap();
    assert_same(&state, &StateDict::load(&path).unwrap());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn unreadable_and_damaged_files_are_named() {
    let dir = folder("damaged");
    let path = dir.join("model.safetensors");
    let e = StateDict::load(&path).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Io);
    assert!(
        e.to_string().contains("model.safetensors") && e.to_string().contains("state.rs"),
        "{e}"
    );
    model(2).save_state_dict(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for cut in [0, 7, 100, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(StateDict::load(&path).is_err(), "{cut} bytes");
    }
    let nowhere = dir.join("absent").join("model.safetensors");
    assert_eq!(
        model(2).save_state_dict(nowhere).unwrap_err().kind(),
        ErrorKind::Io
    );
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_failed_save_leaves_the_old_file() {
    let dir = folder("old");
    let path = dir.join("model.safetensors");
    model(2).save_state_dict(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let mut state = StateDict::new();
    state.insert("bad", Tensor::zeros([2], DType::F32).reshape([3]));
    assert!(state.save(&path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn loading_is_all_or_nothing_and_lists_everything_that_is_wrong() {
    let m = model(2);
    let before = m.state_dict();
    let mut state = model(3).state_dict();
    state.remove("body.bias");
    state.insert("extra", Tensor::zeros([1], DType::F32));
    let e = m.load_state_dict(&state, true).unwrap_err();
    let text = e.to_string();
    for part in [
        "head.weight: the module's shape is [2, 4], the given one [3, 4]",
        "head.bias: the module's shape is [2], the given one [3]",
        "body.bias: missing",
        "extra: unexpected",
        "state.rs",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_same(&before, &m.state_dict());
    let e = m.load_state_dict(&state, false).unwrap_err();
    assert!(
        !e.to_string().contains("missing") && e.to_string().contains("head.bias"),
        "{e}"
    );
    assert_same(&before, &m.state_dict());
}

#[test]
fn a_value_that_fails_when_it_is_computed_loads_nothing() {
    let m = model(2);
    let before = m.state_dict();
    let mut state = model(2).state_dict();
    // An index out of range is only found when the values are computed.
    let bad = Tensor::zeros([2, 2], DType::F32).embedding(Tensor::from_slice(&[5i64], [1]));
    state.insert("head.bias", bad.reshape([2]));
    assert!(m.load_state_dict(&state, true).is_err());
    assert_same(&before, &m.state_dict());
}

#[test]
fn loading_without_strictness_reports_what_differs() {
    let m = model(2);
    let body = held(&m.get_parameter("body.weight").unwrap());
    let other = model(2);
    let mut state = other.state_dict().filter(|name| name.starts_with("head."));
    state.insert("unknown", Tensor::zeros([1], DType::F32));
    let report = m.load_state_dict(&state, false).unwrap();
    assert_eq!(report.unexpected, ["unknown"]);
    assert_eq!(report.missing.len(), 2 + 5);
    assert_eq!(held(&m.get_parameter("body.weight").unwrap()), body);
    let head = |m: &Sequential| held(&m.get_parameter("head.weight").unwrap());
    assert_eq!(head(&m), head(&other));
}

#[test]
fn prefixes_are_stripped_and_parts_are_taken() {
    let m = model(2);
    let wrapped = m.state_dict().rename(|name| Some(format!("module.{name}")));
    assert!(model(2).load_state_dict(&wrapped, true).is_err());
    let other = model(2);
    other
        .load_state_dict(&wrapped.strip_prefix("module."), true)
        .unwrap();
    assert_same(&m.state_dict(), &other.state_dict());
    let body = Linear::new(3, 4).unwrap();
    body.load_state_dict(&m.state_dict().part("body."), true)
        .unwrap();
    assert_eq!(
        held(&body.weight),
        held(&m.get_parameter("body.weight").unwrap())
    );
}

#[test]
fn values_are_cast_to_what_the_module_holds() {
    let m = Linear::new(2, 1).unwrap();
    let mut state = StateDict::new();
    state.insert("weight", Tensor::from_slice(&[1.5f64, -2.0], [1, 2]));
    state.insert("bias", Tensor::from_slice(&[3i64], [1]));
    m.load_state_dict(&state, true).unwrap();
    assert_eq!(m.weight.get().to_vec::<f32>().unwrap(), [1.5, -2.0]);
    assert_eq!(
        m.bias.as_ref().unwrap().get().to_vec::<f32>().unwrap(),
        [3.0]
    );
}

#[test]
fn a_state_is_a_snapshot_without_gradients() {
    let m = Linear::new(2, 1).unwrap();
    let state = m.state_dict();
    let before = values(state.get("weight").unwrap());
    init::zeros_(&m.weight).unwrap();
    assert_eq!(values(state.get("weight").unwrap()), before);
    assert!(state.iter().all(|(_, t)| !t.requires_grad()));
}

#[test]
fn the_last_value_of_a_name_counts() {
    let one = |x: f32| Tensor::from_slice(&[x], [1]);
    let named = [("a", 1.0), ("b", 2.0), ("a", 3.0)];
    let mut state: StateDict = named
        .iter()
        .map(|(n, x)| (n.to_string(), one(*x)))
        .collect();
    assert_eq!(state.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(values(state.get("a").unwrap()), [3.0]);
    state.insert("a", one(4.0));
    assert_eq!(
        (state.len(), values(state.get("a").unwrap())),
        (2, vec![4.0])
    );
    assert!(state.remove("a").is_some() && state.remove("a").is_none());
    assert!(!state.is_empty() && StateDict::new().is_empty());
}

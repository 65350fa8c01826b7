//! PyTorch's checkpoints, read and written. The files come from `fixtures.py`.

use crate::{fixture, message};
use kiln_formats::{StateDict, Value, load, read_safetensors, save};
use kiln_tensor::{DType, Index, Result, Tensor};

#[track_caller]
fn assert_same(found: &StateDict, wanted: &StateDict) -> Result<()> {
    let names = |s: &StateDict| {
        let mut names: Vec<String> = s.names().map(str::to_string).collect();
        names.sort();
        names
    };
    assert_eq!(names(found), names(wanted));
    for (name, t) in wanted.iter() {
        let found = found.get(name).expect("it is there");
        assert_eq!(
            (found.dtype(), found.shape()?),
            (t.dtype(), t.shape()?),
            "{name}"
        );
        assert_eq!(found.to_bytes()?, t.to_bytes()?, "{name}");
    }
    Ok(())
}

#[test]
fn every_form_holds_what_pytorch_saved() -> Result<()> {
    for name in [
        "zip",
        "legacy",
        "protocol4",
        "tensor",
        "no_checksum",
        "big_endian",
        "compressed",
        "tar",
    ] {
        let found = load(fixture(&format!("{name}.pt")))?.tensors()?;
        let wanted = read_safetensors(fixture(&format!("{name}.safetensors")))?.0;
        assert!(!wanted.is_empty());
        assert_same(&found, &wanted)?;
    }
    Ok(())
}

#[test]
fn what_is_no_tensor_is_read_too() -> Result<()> {
    for name in ["zip.pt", "legacy.pt", "protocol4.pt"] {
        let found = load(fixture(name))?;
        assert_eq!(
            (found.get("epoch")?.int()?, found.get("loss")?.float()?),
            (7, 0.1)
        );
        assert_eq!(format!("{:?}", found.get("seed")?), u64::MAX.to_string());
        assert_eq!(found.get("negative")?.int()?, -(1 << 40));
        assert!(found.get("flag")?.bool()? && matches!(found.get("none")?, Value::None));
        assert_eq!(found.get("text")?.str()?, "Grüße \\ \n'");
        assert!(matches!(found.get("bytes")?, Value::Bytes(b) if **b == [0, 255]));
        assert_eq!(format!("{:?}", found.get("size")?), "(2, 3)");
        assert_eq!(found.get("dtype")?.str()?, "torch.bfloat16");
        assert_eq!(found.get("device")?.str()?, "cuda:1");
        assert_eq!(format!("{:?}", found.get("milestones")?), "{30: 1, 80: 1}");
        assert_eq!(found.get(5)?.str()?, "five");
        assert_eq!(format!("{:?}", found.get("list")?), "[1, [2, (3,)]]");
        let names = found.get("model")?.state_dict()?;
        assert_eq!(names.names().collect::<Vec<_>>(), ["weight", "bias"]);

        let text = message(found.state_dict());
        assert!(
            text.contains("not a dict of tensors; take one of [\"dtypes\", \"model\""),
            "{text}"
        );
        let text = message(found.get("modell"));
        assert!(
            text.contains("there is no \"modell\" in a dict of \"dtypes\""),
            "{text}"
        );
        assert!(message(found.get("loss")?.int()).contains("no integer of 64 bits but 0.1"));
    }
    Ok(())
}

#[test]
fn floats_of_8_bits_are_their_bytes() -> Result<()> {
    let file = load(fixture("float8.pt"))?;
    let found = file.get("model")?.get("x")?.tensor()?;
    assert_eq!((found.dtype(), found.shape()?), (DType::F8E4M3, vec![2]));
    assert_eq!(found.to_bytes()?, [0x38, 0x38]);
    assert_eq!(found.to_dtype(DType::F32).to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn a_state_dict_loads_from_any_file() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let state = load(fixture("zip.pt"))?.get("model")?.state_dict()?;
    let (torch, safe) = (folder.path().join("a.bin"), folder.path().join("b.bin"));
    save(&state, &torch)?;
    state.save(&safe)?;
    assert_same(&StateDict::load(torch)?, &state)?;
    assert_same(&StateDict::load(safe)?, &state)
}

#[test]
fn what_is_written_is_read() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.pt");
    for name in ["zip", "legacy", "tar", "tensor"] {
        let value = load(fixture(&format!("{name}.pt")))?;
        save(&value, &path)?;
        let again = load(&path)?;
        assert_eq!(format!("{again:?}"), format!("{value:?}"));
        assert_same(&again.tensors()?, &value.tensors()?)?;
    }
    // In the form before 1.6, too: shared storages once, and storages of bytes.
    let x = Tensor::arange(0, 7, 1);
    let parts = [
        ("x", x.clone()),
        ("again", x),
        ("u16", Tensor::from([1u16, 500])),
        ("one", Tensor::scalar(2.5f64)),
    ];
    let many = (0..12).map(|i| Tensor::full([2], i, DType::F32));
    let parts = [
        ("parts", Value::dict(parts)),
        ("many", many.collect::<Vec<_>>().into()),
    ];
    let value = Value::dict(parts);
    kiln_formats::save_legacy(&value, &path)?;
    assert!(
        !std::fs::read(&path)
            .expect("it was written")
            .starts_with(b"PK")
    );
    let again = load(&path)?;
    assert_eq!(format!("{again:?}"), format!("{value:?}"));
    assert_same(&again.tensors()?, &value.tensors()?)?;
    // All dtypes, and a list without tensors.
    let all = DType::ALL.map(|d| (d.name(), Tensor::arange(0, 5, 1).to_dtype(d)));
    save(Value::dict(all.clone()), &path)?;
    assert_same(
        &load(&path)?.tensors()?,
        &all.map(|(n, t)| (n.to_string(), t)).into_iter().collect(),
    )?;
    save(vec![Some(-1), None, Some(i32::MAX)], &path)?;
    assert_eq!(format!("{:?}", load(&path)?), "[-1, None, 2147483647]");
    assert_eq!(crate::names(&folder), ["all.pt"]);

    let bad = Tensor::zeros([2], DType::F32).reshape([3]);
    assert!(save(bad, &path).is_err());
    assert!(load(&path).is_ok(), "the old file stays");
    assert!(message(save(1, folder.path().join("none/x.pt"))).contains("x.pt"));
    Ok(())
}

#[test]
fn parts_share_the_storage_of_their_whole() -> Result<()> {
    // None of them is computed yet.
    let parts = || {
        let x = Tensor::arange(0, 1 << 16, 1).to_dtype(DType::F32);
        let square = x.reshape([256, 256]);
        let step = Index::Slice {
            start: Some(3),
            end: None,
            step: 2,
        };
        [
            ("head", x.narrow(0, 0, 5)),
            ("every_other", square.i((step, -1))),
            ("block", square.t().narrow(0, 7, 3).narrow(1, 250, 4)),
            ("copied", square.t().reshape([1 << 16]).narrow(0, 1, 2)),
            ("none", x.narrow(0, 9, 0)),
            ("expanded", x.narrow(0, 4, 1).expand([3])),
            ("square", square),
            ("x", x),
        ]
    };
    let wanted = parts()
        .map(|(name, t)| (name.to_string(), t))
        .into_iter()
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    for legacy in [false, true] {
        match legacy {
            false => save(Value::dict(parts()), &path)?,
            true => kiln_formats::save_legacy(Value::dict(parts()), &path)?,
        }
        let bytes = std::fs::metadata(&path).expect("it was written").len();
        assert!((1 << 18..270_000).contains(&bytes), "{bytes}");
        assert_same(&load(&path)?.tensors()?, &wanted)?;
    }
    // More views than a reader takes for honest.
    let x = Tensor::arange(0, 1 << 18, 1);
    let many = (0..40)
        .map(|i| x.narrow(0, i, (1 << 18) - i))
        .collect::<Vec<_>>();
    save(many, &path)?;
    assert_eq!(load(&path)?.list()?.len(), 40);
    // Each whole has its own parts, however many there are.
    let wholes = (0..20).map(|i| Tensor::arange(i, i + (1 << 12), 1));
    let pairs = wholes.flat_map(|x| [x.narrow(0, 1, 4000), x]);
    save(pairs.collect::<Vec<_>>(), &path)?;
    let bytes = std::fs::metadata(&path).expect("it was written").len();
    assert!(bytes < 20 * (1 << 15) + 40_000, "{bytes}");
    Ok(())
}

#[test]
fn what_kiln_lacks_is_refused_by_name() {
    for (name, part) in [
        (
            "complex",
            "model.x: a complex tensor (`torch.ComplexFloatStorage`), which Kiln does not have",
        ),
        ("complex_half", "a complex tensor"),
        ("conj", "model.x: a view of conjugates"),
        ("neg", "model.x: a view of conjugates or of negatives"),
        (
            "quantised",
            "a quantised tensor (`torch._utils._rebuild_qtensor`)",
        ),
        (
            "sparse",
            "a sparse tensor (`torch._utils._rebuild_sparse_tensor`)",
        ),
        ("csr", "in PyTorch, save x.to_dense()"),
        ("nested", "a nested tensor"),
        ("meta", "a tensor without values"),
        ("numpy", "a value of NumPy's"),
        (
            "module",
            "the pickle names `torch.nn.modules.linear.Linear`, and loading that would run code",
        ),
        ("storage", "a storage by itself"),
        ("torchscript", "this is a TorchScript program"),
    ] {
        let text = message(load(fixture(&format!("refused/{name}.pt"))));
        assert!(text.contains(part), "{name}: {text}");
        assert!(
            text.contains(&format!("{name}.pt: ")) && text.contains("checkpoints.rs"),
            "{text}"
        );
    }
}

#[test]
fn files_of_other_kinds_are_named() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.pt");
    for (bytes, part) in [
        (&b""[..], "the file is empty"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "git lfs pull",
        ),
        (b"<!DOCTYPE html>", "a web page"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x80\x02K\x01.", "not one of torch.save's"),
        (b"{\"a\": 1}", "not an index of safetensors files"),
        (
            b"neither",
            "neither a checkpoint of PyTorch's nor a safetensors file",
        ),
        (b"PK\x03\x04", "x.pt: "),
    ] {
        std::fs::write(&path, bytes).expect("it can be written");
        let text = message(load(&path));
        assert!(text.contains(part), "{text}");
    }
    kiln_formats::write_npz(&path, [("x", &Tensor::from([1.0f32]))])?;
    assert!(message(load(&path)).contains("read_npz"));
    Ok(())
}

#[test]
fn what_is_shared_is_written_once() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (weight, other) = (
        Tensor::rand([300, 100], DType::F32),
        Tensor::rand([4], DType::F64),
    );
    let tied = [
        ("tokens", weight.clone()),
        ("other", other.clone()),
        ("scores", weight.detach()),
    ];
    let state: StateDict = tied.into_iter().map(|(n, t)| (n.to_string(), t)).collect();
    let path = folder.path().join("tied.pt");
    save(&state, &path)?;
    let once = weight.nbytes()? as u64;
    let size = std::fs::metadata(&path).expect("it was written").len();
    assert!((once..once + 4000).contains(&size), "{size}");
    assert_same(&load(&path)?.state_dict()?, &state)?;
    // Equal but separate tensors stay separate; so do results computed from shared ones.
    let apart = vec![&weight + 0.0, &weight + 0.0, weight.transpose(0, 1)];
    save(apart.clone(), &path)?;
    let size = std::fs::metadata(&path).expect("it was written").len();
    assert!(size > 3 * once, "{size}");
    for (found, wanted) in load(&path)?.list()?.iter().zip(&apart) {
        assert_eq!(found.tensor()?.to_bytes()?, wanted.to_bytes()?);
    }
    Ok(())
}

//! safetensors files in one piece and in several, and models' folders.

use crate::message;
use kiln_formats::{Pretrained, SavePretrained, StateDict, Value, load, save, write_safetensors};
use kiln_tensor::{DType, Result, Tensor};
use std::collections::BTreeMap;
use std::fs;

fn state() -> StateDict {
    let named = (0..5i64).map(|i| (format!("layer{i}.weight"), Tensor::arange(0, 4 + i, 1)));
    named.collect()
}

fn values(state: &StateDict) -> Result<BTreeMap<String, Vec<i64>>> {
    let named = state
        .iter()
        .map(|(name, t)| Ok((name.to_string(), t.to_vec()?)));
    named.collect()
}

#[test]
fn a_folder_is_written_whole_or_in_parts() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let config = BTreeMap::from([("hidden_size", 7), ("layers", 5)]);
    let model = Pretrained::new(&config, state())?;
    let read = || -> Result<()> {
        let again = Pretrained::load(folder.path())?;
        assert_eq!(values(&again.state)?, values(&state())?);
        assert_eq!(again.config::<BTreeMap<String, i32>>()?["hidden_size"], 7);
        assert!(message(again.config::<Vec<i32>>()).contains("config.json: "));
        Ok(())
    };
    model.save(folder.path())?;
    assert_eq!(crate::names(&folder), ["config.json", "model.safetensors"]);
    read()?;
    model.save_with(folder.path(), SavePretrained::new().max_shard_size(110u64))?;
    let shard = |i| format!("model-0000{i}-of-00003.safetensors");
    let names = [
        "config.json".to_string(),
        shard(1),
        shard(2),
        shard(3),
        "model.safetensors.index.json".to_string(),
    ];
    assert_eq!(crate::names(&folder), names);
    read()?;
    let index = folder.path().join("model.safetensors.index.json");
    assert_eq!(values(&StateDict::load(&index)?)?, values(&state())?);
    let text = fs::read_to_string(&index).expect("the index");
    assert!(text.contains("\"total_size\": 240"), "{text}");
    model.save(folder.path())?;
    assert_eq!(crate::names(&folder), ["config.json", "model.safetensors"]);

    fs::remove_file(folder.path().join("model.safetensors")).expect("it was there");
    assert!(message(Pretrained::load(folder.path())).contains("there are no weights"));
    save(state(), folder.path().join("pytorch_model.bin"))?;
    read()?;
    fs::remove_file(folder.path().join("config.json")).expect("it was there");
    assert!(message(Pretrained::load(folder.path())).contains("config.json: "));
    Ok(())
}

#[test]
fn an_index_names_files_beside_it() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("x.json");
    let try_one = |map: &str| {
        fs::write(&index, format!("{{\"weight_map\": {{{map}}}}}")).expect("it can be written");
        message(load(&index))
    };
    state().save(folder.path().join("a.safetensors"))?;
    for (map, part) in [
        ("\"w\": \"none.safetensors\"", "none.safetensors: "),
        ("\"w\": \"a.safetensors\"", "a.safetensors: it holds no w"),
        (
            "\"w\": \"../index/a.safetensors\"",
            "files in its own folder",
        ),
        ("\"w\": \"/etc/passwd\"", "files in its own folder"),
        ("\"w\": \"..\"", "files in its own folder"),
        ("\"w\": \"x.json\"", "no other index"),
        ("\"w\": 5", "not an index of safetensors files"),
    ] {
        let text = try_one(map);
        assert!(text.contains(part), "{map}: {text}");
    }
    // Shards that are PyTorch checkpoints, as in `pytorch_model.bin.index.json`.
    save(state(), folder.path().join("b.bin"))?;
    fs::write(&index, "{\"weight_map\": {\"layer2.weight\": \"b.bin\"}}")
        .expect("it can be written");
    assert_eq!(values(&StateDict::load(&index)?)?["layer2.weight"].len(), 6);
    Ok(())
}

#[test]
fn damaged_safetensors_files_take_no_memory() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let file = |length: u64, header: &str, values: usize| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + values, 0);
        fs::write(&path, bytes).expect("it can be written");
        message(load(&path))
    };
    let huge =
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[1099511627776],\"data_offsets\":[0,4398046511104]}}";
    assert!(
        file(huge.len() as u64, huge, 8)
            .contains("its tensors take 4398046511104 bytes, and it has 8")
    );
    assert!(file(1 << 40, huge, 8).contains("its header can't be"));
    let hole = "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    assert!(file(hole.len() as u64, hole, 8).contains("damaged"));
    let wrong = "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}";
    assert!(file(wrong.len() as u64, wrong, 4).contains("damaged"));
    let scale = "{\"x\":{\"dtype\":\"F8_E8M0\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    assert!(file(scale.len() as u64, scale, 4).contains("x: there is no dtype F8_E8M0"));
    let one = "\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":";
    let twice = format!("{{{one}[0,4]}},{one}[4,8]}}}}");
    let text = file(twice.len() as u64, &twice, 8);
    assert!(text.contains("two tensors are called \"x\""), "{text}");
    Ok(())
}

#[test]
fn a_checkpoint_and_a_safetensors_file_are_one_value() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let texts = std::collections::HashMap::from([("format".to_string(), "pt".to_string())]);
    write_safetensors(&path, &state(), Some(texts))?;
    let found = load(&path)?;
    assert_eq!(format!("{found:?}"), format!("{:?}", Value::from(state())));
    assert_eq!(found.get("layer1.weight")?.tensor()?.dtype(), DType::I64);
    Ok(())
}

#[test]
fn a_header_of_any_length_is_recognised() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    // The first byte of a header's length may be that of a pickle.
    let mut first = std::collections::BTreeSet::new();
    for name in (1..300).map(|n| "w".repeat(n)) {
        let mut state = StateDict::new();
        state.insert(&name, Tensor::arange(0, 2, 1));
        state.save(&path)?;
        first.insert(std::fs::read(&path).expect("it was written")[0]);
        assert_eq!(StateDict::load(&path)?.len(), 1);
    }
    assert!(first.contains(&0x80));
    Ok(())
}

//! Tensors in several files, with an index of each tensor's file: `model.safetensors.index.json`.

use crate::StateDict;
use crate::fault::Fault;
use crate::load;
use kiln_tensor::memory::Budget;
use kiln_tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

/// The contents of an index file.
#[derive(Serialize, Deserialize)]
pub(crate) struct Index {
    /// `total_size` in bytes, and any other metadata.
    #[serde(default)]
    pub metadata: Map<String, Json>,
    /// The file of each name, in the index's folder.
    pub weight_map: BTreeMap<String, String>,
}

/// Reads all files that an index names, one after another.
pub(crate) fn read(path: &Path, file: File, device: Device) -> Result<StateDict, Fault> {
    /// The maximum size of an index: that of millions of tensors.
    const MAX_INDEX_BYTES: u64 = 1 << 28;
    let text = Budget::new().read_to_end(&mut file.take(MAX_INDEX_BYTES), "the index")?;
    let index: Index = serde_json::from_slice(&text).map_err(|e| {
        Fault::unsupported(format!("this is not an index of safetensors files: {e}"))
    })?;
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, file) in &index.weight_map {
        by_file.entry(file).or_default().push(name);
    }
    let mut tensors: HashMap<&str, Tensor> = HashMap::new();
    for (file, names) in by_file {
        let shard = shard(path, file, device).map_err(|e| e.within(file))?;
        let mut shard: HashMap<String, Tensor> = shard.into_iter().collect();
        for name in names {
            let missing =
                || Fault::from(format!("{file}: it holds no {name}, which the index says"));
            tensors.insert(name, shard.remove(name).ok_or_else(missing)?);
        }
    }
    // The index's map has the names in order.
    let names = index.weight_map.keys();
    let entries = names.filter_map(|name| Some((name.clone(), tensors.remove(name.as_str())?)));
    Ok(entries.collect())
}

fn shard(index: &Path, file: &str, device: Device) -> Result<StateDict, Fault> {
    let mut parts = Path::new(file).components();
    let (Some(Component::Normal(_)), None) = (parts.next(), parts.next()) else {
        return Err("an index names files in its own folder".into());
    };
    if file.ends_with(".json") {
        return Err("an index names no other index".into());
    }
    let path = index.with_file_name(file);
    Ok(load::read(&path, device)?.state_dict()?)
}

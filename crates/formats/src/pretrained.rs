//! A model's folder: its weights and its configuration, as `save_pretrained` lays them out.

use crate::fault::Fault;
use crate::shards::Index;
use crate::{StateDict, load, write_safetensors};
use kiln_tensor::memory::read_file;
use kiln_tensor::{Device, Error, Result, Tensor, options};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::panic::Location;
use std::path::Path;

/// The contents of a model's folder: `config.json`, and the weights in `model.safetensors`, or in several files with
/// an index. The library `transformers` writes and reads the same folders.
///
/// ```
/// use kiln_formats::{Pretrained, StateDict};
/// use kiln_tensor::Tensor;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Config {
///     hidden_size: usize,
/// }
///
/// # let folder = std::env::temp_dir().join(format!("kiln-pretrained-{}", std::process::id()));
/// let mut state = StateDict::new();
/// state.insert("weight", Tensor::from([1.0f32, 2.0]));
/// Pretrained::new(&Config { hidden_size: 2 }, state)?.save(&folder)?;
///
/// let model = Pretrained::load(&folder)?;
/// assert_eq!(model.config::<Config>()?.hidden_size, 2);
/// assert_eq!(model.state.get("weight").unwrap().to_vec::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub struct Pretrained {
    config: Json,
    /// The weights by name.
    pub state: StateDict,
}

options! {
    /// Options of [`Pretrained::save_with`].
    SavePretrained () {
        /// The maximum number of bytes of a file of weights; a tensor that is larger gets a file of its own.
        max_shard_size: u64 = 5_000_000_000u64,
    }
}

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The files that can hold weights; the first that exists is read.
const READ: [&str; 4] = [
    WEIGHTS,
    INDEX,
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

impl Pretrained {
    /// A model of weights and a configuration.
    ///
    /// # Errors
    /// If the configuration can't be written as JSON.
    #[track_caller]
    pub fn new(config: &impl Serialize, state: StateDict) -> Result<Pretrained> {
        match serde_json::to_value(config) {
            Ok(config) => Ok(Pretrained { config, state }),
            Err(e) => Err(Error::invalid(
                "Pretrained",
                format!("the configuration: {e}"),
            )),
        }
    }

    /// The configuration.
    ///
    /// # Errors
    /// If it is of another type; the message names the field.
    #[track_caller]
    pub fn config<T: DeserializeOwned>(&self) -> Result<T> {
        let config = T::deserialize(&self.config);
        match config {
            Ok(config) => Ok(config),
            Err(e) => Err(Error::invalid("Pretrained", format!("{CONFIG}: {e}"))),
        }
    }

    /// Reads a folder. The weights may also be a PyTorch checkpoint, `pytorch_model.bin`, in one file or several.
    ///
    /// # Errors
    /// If a file is missing or can't be read.
    #[track_caller]
    pub fn load(folder: impl AsRef<Path>) -> Result<Pretrained> {
        let (folder, loc) = (folder.as_ref(), Location::caller());
        let contents = read(folder);
        contents.map_err(|fault| fault.in_file("Pretrained", folder, loc))
    }

    /// Writes a folder, which is created if it does not exist, and replaces the weights in it.
    ///
    /// # Errors
    /// If a value can't be computed or a file can't be written.
    #[track_caller]
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.save_with(folder, SavePretrained::new())
    }

    /// [`Pretrained::save`] with options.
    ///
    /// # Errors
    /// As [`Pretrained::save`].
    #[track_caller]
    pub fn save_with(&self, folder: impl AsRef<Path>, options: SavePretrained) -> Result<()> {
        let (folder, loc) = (folder.as_ref(), Location::caller());
        let written = self.write(folder, options.max_shard_size);
        written.map_err(|fault| fault.in_file("Pretrained", folder, loc))
    }

    fn write(&self, folder: &Path, shard_bytes: u64) -> Result<(), Fault> {
        fs::create_dir_all(folder)?;
        let shards = self.shards(shard_bytes)?;
        let name = |i: usize| match shards.len() {
            1 => WEIGHTS.to_string(),
            count => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        let mut index = Index {
            metadata: Default::default(),
            weight_map: BTreeMap::new(),
        };
        let mut total = 0;
        for (i, shard) in shards.iter().enumerate() {
            // `transformers` requires this entry.
            let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
            write_safetensors(folder.join(name(i)), shard, Some(metadata))?;
            for (tensor, value) in shard.iter() {
                index.weight_map.insert(tensor.to_string(), name(i));
                total += value.nbytes()?;
            }
        }
        let mut written: BTreeSet<String> = (0..shards.len()).map(name).collect();
        if shards.len() > 1 {
            index.metadata.insert("total_size".into(), total.into());
            write_json(&folder.join(INDEX), &index)?;
            written.insert(INDEX.to_string());
        }
        write_json(&folder.join(CONFIG), &self.config)?;
        remove_others(folder, &written)
    }

    /// Splits the weights, in order, into parts of at most `max_bytes` bytes; a larger tensor is a part by itself.
    fn shards(&self, max_bytes: u64) -> Result<Vec<StateDict>, Fault> {
        let mut shards: Vec<Vec<(String, Tensor)>> = vec![Vec::new()];
        let mut bytes = 0;
        for (name, value) in self.state.iter() {
            let size = value.nbytes()? as u64;
            if bytes > 0 && size > max_bytes.saturating_sub(bytes) {
                shards.push(Vec::new());
                bytes = 0;
            }
            bytes += size;
            if let Some(shard) = shards.last_mut() {
                shard.push((name.to_string(), value.clone()));
            }
        }
        Ok(shards
            .into_iter()
            .map(|shard| shard.into_iter().collect())
            .collect())
    }
}

fn read(folder: &Path) -> Result<Pretrained, Fault> {
    let config = read_file(folder.join(CONFIG)).map_err(|e| Fault::from(e).within(CONFIG))?;
    let config = serde_json::from_slice(&config).map_err(|e| format!("{CONFIG}: {e}"))?;
    let weights = READ.into_iter().find(|name| folder.join(name).is_file());
    let weights =
        weights.ok_or_else(|| format!("there are no weights, which are in one of {READ:?}"))?;
    let state =
        load::read(&folder.join(weights), Device::Cpu).and_then(|value| Ok(value.state_dict()?));
    let state = state.map_err(|e| e.within(weights))?;
    Ok(Pretrained { config, state })
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Fault> {
    let text = serde_json::to_vec_pretty(value).map_err(|e| e.to_string())?;
    kiln_base::file::replace(path, |file| Ok(file.write_all(&text)?))
}

/// Removes the weights of an older model from the folder.
fn remove_others(folder: &Path, written: &BTreeSet<String>) -> Result<(), Fault> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let shard =
            name.starts_with("model-") && name.ends_with(".safetensors") && name.contains("-of-");
        if (shard || name == WEIGHTS || name == INDEX) && !written.contains(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

//! The state that the handles to a package and to its entries share.

use crate::buffers;
use crate::error::{Result, damaged};
use crate::manifest::{EntryInfo, Manifest, ProgramInfo, Requires};
use crate::map::Map;
use crate::program::Program;
use crate::state::States;
use crate::tensors::TensorRange;
use kiln_base::DType;
use kiln_runtime::memory::Lender;
use kiln_runtime::{Buffer, cuda};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The state that all handles to a package share.
pub(crate) struct Shared {
    pub map: Arc<Map>,
    pub manifest: Manifest,
    /// The range of each file.
    pub files: BTreeMap<String, Range<usize>>,
    pub weights: Range<usize>,
    /// The tensors of the weights, with their ranges in the package.
    pub tensors: BTreeMap<String, TensorRange>,
    pub states: States,
    /// The GPU that it runs on, with the compiled kernels that this GPU takes.
    pub loader: Option<Arc<cuda::Loader>>,
    /// The name of the machine that it runs on, as in tuned programs.
    pub machine: Option<String>,
    /// Tensors that programs have captured, loaded on first use.
    pub constants: Mutex<HashMap<String, Buffer>>,
    pub entries: Mutex<HashMap<usize, Arc<Loaded>>>,
}

/// The state of an entry that is loaded once.
pub(crate) struct Loaded {
    pub general: Arc<Program>,
    /// Programs for certain sizes, loaded on first use.
    pub cases: Mutex<BTreeMap<Sizes, Arc<Program>>>,
    pub inputs: Vec<String>,
    pub outputs: Arc<[String]>,
}

/// Values of symbols.
pub(crate) type Sizes = BTreeMap<String, i64>;

impl Shared {
    /// The GPU that it runs on.
    pub fn gpu(&self) -> Option<&Arc<cuda::Device>> {
        self.loader.as_ref().map(|l| l.device())
    }

    /// The contents of a file; empty if there is no such file.
    pub fn file(&self, name: &str) -> &[u8] {
        let range = self.files.get(name).cloned().unwrap_or(0..0);
        &self.map.bytes()[range]
    }

    /// The dtype and shape of a tensor of the weights.
    pub fn tensor_type(&self, name: &str) -> Option<(DType, Vec<i64>)> {
        let tensor = self.tensors.get(name)?;
        Some((tensor.dtype, tensor.shape.clone()))
    }

    /// The requirement of the programs that run on this package's device.
    pub fn requires(&self) -> Requires {
        match self.loader {
            None => Requires::Cpu,
            Some(_) => Requires::Cuda,
        }
    }

    /// The program of these sizes that was tuned for this machine, else the one for any machine.
    pub fn program<'e>(&self, entry: &'e EntryInfo, sizes: &Sizes) -> Option<&'e ProgramInfo> {
        let (requires, machine) = (self.requires(), self.machine.as_deref());
        let fits = |p: &&ProgramInfo| p.requires == requires && p.sizes == *sizes;
        let mut tuned = entry.programs.iter().filter(fits);
        let tuned = tuned.find(|p| p.machine.is_some() && p.machine.as_deref() == machine);
        let mut general = entry.programs.iter().filter(fits);
        tuned.or_else(|| general.find(|p| p.machine.is_none()))
    }

    /// A constant tensor, loaded on first use.
    pub fn constant(&self, name: &str) -> Result<Buffer> {
        let mut constants = self.constants.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(found) = constants.get(name) {
            return Ok(found.clone());
        }
        let range = self.tensors.get(name);
        let range = range.ok_or_else(|| damaged!("tensor `{name}` is not among the weights"))?;
        let tensor =
            buffers::on_device(&buffers::tensor(&self.map, name, range)?, name, self.gpu())?;
        constants.insert(name.into(), tensor.clone());
        Ok(tensor)
    }
}

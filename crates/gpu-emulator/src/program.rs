//! Loaded programs: a PTX text, decoded, with its global variables in memory.

use crate::code::{Constant, Inst, Origin};
use crate::decode;
use crate::lanes::Slot;
use crate::memory::Memory;
use crate::ptx::{self, Space, SyntaxError};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The reason why a text can't be loaded: it is not PTX, or it has an instruction that is not emulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The text is not PTX.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// An instruction is not emulated, or not in this form.
    #[error("PTX line {line}: {why} in `{text}`")]
    Unsupported {
        /// The line, counted from 1.
        line: u32,
        /// The unsupported part.
        why: String,
        /// The line's text.
        text: String,
    },
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Bytes from the start of all parameters.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}

/// The text of a program, for messages.
#[derive(Debug)]
pub(crate) struct Text {
    ptx: String,
    files: HashMap<u32, String>,
}

impl Text {
    /// The text of a line, counted from 1.
    pub fn line(&self, line: u32) -> String {
        let text = self
            .ptx
            .lines()
            .nth(line.saturating_sub(1) as usize)
            .unwrap_or("");
        text.trim().replace('\t', " ")
    }

    /// File and line of the CUDA source.
    pub fn source(&self, origin: Origin) -> Option<(String, u32)> {
        let file = self.files.get(&origin.source.file)?;
        (origin.source.line != 0).then(|| (file.clone(), origin.source.line))
    }
}

/// A kernel of a [`Program`].
#[derive(Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    pub(crate) origins: Vec<Origin>,
    /// Words of registers, per warp.
    pub(crate) words: u32,
    pub(crate) predicates: u32,
    /// Registers that hold constants.
    pub(crate) constants: Vec<(Slot, bool, Constant)>,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) parameter_bytes: usize,
    /// The end of static shared memory, from [`SHARED_START`] on.
    pub(crate) shared_end: usize,
    pub(crate) dynamic_align: usize,
    pub(crate) local_bytes: usize,
    pub(crate) max_threads: Option<u32>,
    /// Blocks of a cluster in x, y and z.
    pub(crate) cluster: [u32; 3],
    /// The smallest access to shared memory, in bytes.
    pub(crate) shared_granule: usize,
    pub(crate) has_global_atomics: bool,
    pub(crate) text: Arc<Text>,
}

/// The first address of shared memory; the addresses below are reserved for the system.
pub(crate) const SHARED_START: usize = 1024;

impl Kernel {
    /// The origin of the instruction at `pc`.
    pub(crate) fn origin(&self, pc: u32) -> Origin {
        self.origins[self.code[pc as usize].origin as usize]
    }

    /// The kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Bytes of all parameters.
    pub fn parameter_bytes(&self) -> usize {
        self.parameter_bytes
    }

    /// Bytes of static shared memory.
    pub fn static_shared(&self) -> usize {
        self.shared_end - SHARED_START
    }

    /// Bytes of local memory a thread.
    pub fn local_bytes(&self) -> usize {
        self.local_bytes
    }

    /// The maximum number of threads of a block, if the kernel declares it (`__launch_bounds__`).
    pub fn max_threads(&self) -> Option<u32> {
        self.max_threads
    }

    /// Blocks of a cluster in x, y and z (`__cluster_dims__`).
    pub fn cluster(&self) -> [u32; 3] {
        self.cluster
    }

    /// The number of instructions of its code, including the functions that it calls.
    pub fn instructions(&self) -> usize {
        self.code.len()
    }
}

/// A global variable of a [`Program`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its address.
    pub address: u64,
    /// Its size in bytes.
    pub size: usize,
}

/// A loaded PTX text.
#[derive(Debug)]
pub struct Program {
    kernels: BTreeMap<String, Arc<Kernel>>,
    globals: BTreeMap<String, Global>,
    memory: Arc<Memory>,
}

impl Program {
    /// Parses and decodes `source`, and puts its global variables into `memory` until the program is dropped.
    ///
    /// # Errors
    /// If the text is not PTX, or has an instruction that is not emulated.
    pub fn load(source: &str, memory: &Arc<Memory>) -> Result<Program, LoadError> {
        let module = ptx::parse(source)?;
        let mut program = Program {
            kernels: BTreeMap::new(),
            globals: BTreeMap::new(),
            memory: memory.clone(),
        };
        let locals = module.functions.iter().flat_map(|f| &f.variables);
        for variable in module.variables.iter().chain(locals) {
            if variable.space == Space::Global {
                let address = memory.allocate(variable.size);
                let mut bytes = variable.init.clone();
                bytes.resize(variable.size, 0);
                memory
                    .write(address, &bytes)
                    .expect("it was just allocated");
                let global = Global {
                    address,
                    size: variable.size,
                };
                program.globals.insert(variable.name.clone(), global);
            }
        }
        let text = Arc::new(Text {
            ptx: source.to_string(),
            files: module.files.clone(),
        });
        for function in module.functions.iter().filter(|f| f.is_entry) {
            let kernel = decode::kernel(&module, function, &program.globals, &text)?;
            program
                .kernels
                .insert(function.name.clone(), Arc::new(kernel));
        }
        Ok(program)
    }

    /// The kernel called `name`.
    pub fn kernel(&self, name: &str) -> Option<&Arc<Kernel>> {
        self.kernels.get(name)
    }

    /// All kernels by name.
    pub fn kernels(&self) -> impl Iterator<Item = &Arc<Kernel>> {
        self.kernels.values()
    }

    /// The global variable called `name`.
    pub fn global(&self, name: &str) -> Option<Global> {
        self.globals.get(name).copied()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for global in self.globals.values() {
            self.memory.free(global.address);
        }
    }
}

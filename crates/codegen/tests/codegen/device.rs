//! Runs kernels in CUDA C++: compiled by NVRTC, executed by the emulator.

use kiln_base::{DType, Dim, Gpu};
use kiln_codegen::{Launch, Sequence};
use kiln_gpu_emulator as emulator;
use kiln_ir::eval::{Array, Data};
use kiln_plan::Kernel;
use kiln_plan::cuda::{Boxes, CudaKernel, ErrorRecord, PRELUDE, Path, TensorMap};
use kiln_runtime::cuda::{Code, Nvrtc};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, Once};

/// Returns the compiler; `None`, with a message, if it is not installed.
pub fn nvrtc() -> Option<&'static Nvrtc> {
    static SKIPPED: Once = Once::new();
    match Nvrtc::get() {
        Ok(nvrtc) => Some(nvrtc),
        Err(e) => {
            SKIPPED.call_once(|| eprintln!("skipped: CUDA C++ is not compiled here: {e}"));
            None
        }
    }
}

/// Returns the compute capabilities that machine code is checked for, with a GPU of each.
pub fn architectures() -> [(u32, Gpu); 2] {
    let ampere = Gpu {
        arch: (8, 0),
        ..Gpu::H100
    };
    [(80, ampere), (90, Gpu::H100)]
}

/// Returns the kernels of launches as one translation unit.
pub fn unit(sequence: &Sequence) -> String {
    let mut text = String::from(PRELUDE);
    let mut entries = HashSet::new();
    for l in &sequence.launches {
        if let Kernel::Cuda(k) = &*l.kernel
            && entries.insert(&k.entry)
        {
            text += "\n";
            text += &k.source();
        }
    }
    text
}

/// The kernels of a program on the emulated device.
pub struct Compiled {
    program: emulator::Program,
    memory: Arc<emulator::Memory>,
    /// True if traffic is counted.
    pub counts_traffic: bool,
    /// The counts of all launches so far.
    pub statistics: Mutex<emulator::Statistics>,
}

/// Compiles the kernels of launches together.
pub fn compile(sequence: &Sequence) -> Compiled {
    let text = unit(sequence);
    let nvrtc = nvrtc().expect("the caller checked for a compiler");
    let compiled = nvrtc
        .compile(&text, Code::Ptx(90))
        .unwrap_or_else(|e| panic!("{e}\n{}", &text[PRELUDE.len()..]));
    let ptx = String::from_utf8(compiled.image).expect("PTX is text");
    let memory = Arc::new(emulator::Memory::new(true));
    let loaded = emulator::Program::load(ptx.trim_end_matches('\0'), &memory);
    let program = loaded.unwrap_or_else(|e| panic!("{e}\n{}", &text[PRELUDE.len()..]));
    Compiled {
        program,
        memory,
        counts_traffic: false,
        statistics: Mutex::default(),
    }
}

impl Compiled {
    /// Runs a launch, with results in place wherever that is legal. Returns the state of its error record.
    pub fn run(
        &self,
        launch: &Launch,
        dtypes: &[DType],
        memory: &mut [Data],
        symbols: &[i64],
    ) -> u32 {
        let Kernel::Cuda(kernel) = &*launch.kernel else {
            panic!("{} is not for a GPU", launch.kernel.name());
        };
        let args: Vec<usize> = launch.args.iter().map(|a| a.0 as usize).collect();
        let mut buffer_of: Vec<usize> = (0..args.len()).collect();
        let mut taken = Vec::new();
        for (r, w) in &launch.in_place {
            if !taken.contains(r) && buffer_of[*w] == *w {
                taken.push(*r);
                buffer_of[*w] = *r;
            }
        }
        let len = |d: &Data| match d {
            Data::Float(v) => v.len(),
            Data::Int(v) => v.len(),
        };
        let array = |a: usize, memory: &[Data]| {
            let shape = [len(&memory[a])];
            Array::new(dtypes[a], &shape, memory[a].clone()).expect("as long as its shape says")
        };
        let addresses: Vec<u64> = (args.iter().zip(&launch.written))
            .map(|(a, written)| {
                let bytes = array(*a, memory).to_bytes();
                let address = self.memory.allocate(bytes.len());
                if !written {
                    self.memory.write(address, &bytes).expect("it fits");
                }
                address
            })
            .collect();
        let pointers: Vec<u64> = buffer_of.iter().map(|a| addresses[*a]).collect();
        let errors = self.memory.allocate(size_of::<ErrorRecord>());
        let zeros = [0; size_of::<ErrorRecord>()];
        self.memory.write(errors, &zeros).expect("it fits");
        self.execute(kernel, &pointers, symbols, errors);
        let mut state = [0; 4];
        self.memory
            .read(errors, &mut state)
            .expect("it was written");
        for (i, a) in args.iter().enumerate().filter(|(i, _)| launch.written[*i]) {
            let mut bytes = vec![0; array(*a, memory).to_bytes().len()];
            if let Some(offset) = self.memory.first_unwritten(pointers[i], bytes.len()) {
                panic!(
                    "argument {i} is not written at {offset}\n{}",
                    kernel.source()
                );
            }
            self.memory
                .read(pointers[i], &mut bytes)
                .expect("it was written");
            let shape = [len(&memory[*a])];
            let result = Array::from_bytes(dtypes[*a], &shape, &bytes).expect("as many bytes");
            memory[*a] = result.data().clone();
        }
        addresses
            .iter()
            .chain([&errors])
            .for_each(|a| assert!(self.memory.free(*a)));
        u32::from_le_bytes(state)
    }

    fn execute(&self, kernel: &CudaKernel, pointers: &[u64], symbols: &[i64], errors: u64) {
        let grid = [0, 1, 2].map(|i| kernel.grid[i].count(symbols) as u32);
        if grid.contains(&0) {
            return;
        }
        let mut parameters: Vec<u8> = Vec::new();
        let words = pointers.iter().copied();
        let scalars = kernel.scalars.iter().map(|s| s.eval(symbols) as u64);
        words
            .chain(scalars)
            .for_each(|w| parameters.extend(w.to_le_bytes()));
        (0..kernel.sites).for_each(|s| parameters.extend(s.to_le_bytes()));
        parameters.resize(parameters.len().next_multiple_of(8), 0);
        parameters.extend(errors.to_le_bytes());
        parameters.extend(0i32.to_le_bytes());
        let entry = self.program.kernel(&kernel.entry).expect("it was compiled");
        let first_map = entry.parameters().len() - kernel.maps.len();
        for (map, parameter) in kernel.maps.iter().zip(&entry.parameters()[first_map..]) {
            parameters.resize(parameter.offset, 0);
            parameters.extend(encode_map(map, kernel, pointers, symbols).to_bytes());
        }
        let launch = emulator::Launch {
            kernel: entry,
            grid,
            block: kernel.block,
            dynamic_shared: kernel.shared,
            parameters: &parameters,
            options: emulator::Options {
                traffic: self.counts_traffic,
                ..emulator::Options::default()
            },
        };
        let result = launch.run(&self.memory);
        let statistics = result.unwrap_or_else(|fault| panic!("{fault}\n{}", kernel.source()));
        self.statistics.lock().unwrap().add(&statistics);
    }
}

/// Returns a tensor map as the driver encodes it.
fn encode_map(
    map: &TensorMap,
    kernel: &CudaKernel,
    pointers: &[u64],
    symbols: &[i64],
) -> emulator::TensorMap {
    let arg = usize::from(map.arg);
    let size = kernel.args[arg].dtype.size() as u64;
    let number = |d: &Dim| d.eval(symbols) as u64;
    let sizes: Vec<u64> = map.extents.iter().map(|d| number(d).max(1)).collect();
    let strides: Vec<u64> = map.strides.iter().map(|d| number(d) * size).collect();
    let base = pointers[arg] + number(&map.offset) * size;
    let element = size as usize;
    let encoded = match &map.boxes {
        Boxes::Tiled(boxes) => {
            let boxes: Vec<u32> = boxes.iter().map(|n| u32::from(*n)).collect();
            emulator::TensorMap::new(base, element, &sizes, &strides, &boxes, 3)
        }
        Boxes::Im2col(im2col) => {
            let corners = |corner: fn(&Path) -> i16| -> Vec<i32> {
                im2col.paths.iter().map(|p| i32::from(corner(p))).collect()
            };
            let steps: Vec<u32> = im2col.paths.iter().map(|p| p.step.into()).collect();
            let pixels = emulator::Pixels {
                lower: &corners(|p| p.lower),
                upper: &corners(|p| p.upper),
                counts: [im2col.channels.into(), im2col.pixels.into()],
                steps: &steps,
            };
            emulator::TensorMap::im2col(base, element, &sizes, &strides, pixels, 3)
        }
    };
    let encoded = encoded.expect("hardware allows it");
    match map.rounds_to_tf32 {
        true => encoded.rounding_to_tf32(),
        false => encoded,
    }
}

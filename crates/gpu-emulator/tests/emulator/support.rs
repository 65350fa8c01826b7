//! Loading fixtures and running them on arrays.

use kiln_gpu_emulator::{Fault, Launch, Memory, Options, Program, Statistics};
use std::path::PathBuf;
use std::sync::Arc;

/// The path of a fixture.
pub fn fixture_path(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

/// The text of a fixture.
pub fn fixture(path: &str) -> String {
    let path = fixture_path(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A generator of the same random numbers in every run.
pub struct Random(u64);

impl Random {
    pub fn new() -> Random {
        Random(0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 20
    }

    /// `n` numbers in (−scale, scale).
    pub fn floats(&mut self, n: usize, scale: f32) -> Vec<f32> {
        let mut one = || (self.next() & 0xff_ffff) as f32 / (1 << 23) as f32 - 1.0;
        (0..n).map(|_| one() * scale).collect()
    }

    /// `n` integers below `bound`.
    pub fn integers(&mut self, n: usize, bound: u64) -> Vec<i32> {
        (0..n).map(|_| (self.next() % bound) as i32).collect()
    }
}

/// A loaded fixture and its memory.
pub struct Gpu {
    pub memory: Arc<Memory>,
    program: Program,
    parameters: Vec<u8>,
    pub options: Options,
}

impl Gpu {
    pub fn load(path: &str) -> Gpu {
        Gpu::from_text(&fixture(path))
    }

    pub fn from_text(ptx: &str) -> Gpu {
        let memory = Arc::new(Memory::default());
        let program = Program::load(ptx, &memory).unwrap_or_else(|e| panic!("{e}"));
        Gpu {
            memory,
            program,
            parameters: Vec::new(),
            options: Options::default(),
        }
    }

    /// Adds a parameter.
    pub fn number<const N: usize>(&mut self, bytes: [u8; N]) -> &mut Gpu {
        self.bytes(&bytes, N)
    }

    /// Adds a parameter with an alignment.
    pub fn bytes(&mut self, bytes: &[u8], align: usize) -> &mut Gpu {
        let start = self.parameters.len().next_multiple_of(align);
        self.parameters.resize(start, 0);
        self.parameters.extend_from_slice(bytes);
        self
    }

    /// Adds an array and returns its address.
    pub fn array<T: Copy>(&mut self, values: &[T]) -> u64 {
        let bytes = size_of_val(values);
        let address = self.memory.allocate(bytes);
        // SAFETY: plain numbers without padding.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr() as *const u8, bytes) };
        self.memory.write(address, bytes).unwrap();
        self.number(address.to_le_bytes());
        address
    }

    /// Adds an uninitialised array and returns its address.
    pub fn empty<T>(&mut self, n: usize) -> u64 {
        let address = self.memory.allocate(n * size_of::<T>());
        self.number(address.to_le_bytes());
        address
    }

    /// Runs a kernel with the parameters so far.
    pub fn run(
        &mut self,
        kernel: &str,
        grid: [u32; 3],
        block: u32,
        dynamic_shared: u32,
    ) -> Result<Statistics, Box<Fault>> {
        let launch = Launch {
            kernel: self
                .program
                .kernel(kernel)
                .unwrap_or_else(|| panic!("no kernel {kernel}")),
            grid,
            block: [block, 1, 1],
            dynamic_shared,
            parameters: &std::mem::take(&mut self.parameters),
            options: self.options,
        };
        launch.run(&self.memory)
    }

    /// Reads `n` values back. All of them must have been written.
    pub fn read<T: Copy + Default>(&self, address: u64, n: usize) -> Vec<T> {
        let mut values = vec![T::default(); n];
        assert_eq!(
            self.memory.first_unwritten(address, n * size_of::<T>()),
            None
        );
        // SAFETY: plain numbers, for which every bit pattern is a value.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(values.as_mut_ptr() as *mut u8, n * size_of::<T>())
        };
        self.memory.read(address, bytes).unwrap();
        values
    }
}

/// Asserts that every number is within `absolute + relative·|want|`.
pub fn assert_close(got: &[f32], want: &[f64], absolute: f64, relative: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let difference = (got as f64 - want).abs();
        assert!(
            difference <= absolute + relative * want.abs(),
            "[{i}]: {got}, not {want}"
        );
    }
}

//! Conformance vectors: kernels with inputs, whose outputs on hardware prove the emulator right or wrong.

use crate::{Fault, Launch, Memory, Options, Program};
use std::sync::Arc;

/// An argument of a [`Vector`]'s kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// The bytes of a number.
    Number(Vec<u8>),
    /// The address of an array; an output is compared afterwards.
    Array {
        /// Its bytes before the launch.
        bytes: Vec<u8>,
        /// The comparison of its elements after the launch; `None`: it is an input.
        output: Option<Elements>,
    },
}

/// The comparison of an output's elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Bit for bit.
    Bits,
    /// f32, within the tolerance for approximations and the order of sums.
    Floats,
}

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub struct Vector {
    /// A name that is also a valid file name.
    pub name: String,
    /// The text to load.
    pub ptx: &'static str,
    /// The architecture that the text is for. Machines of that architecture run it, and for `sm_80` any later one.
    pub architecture: &'static str,
    /// The kernel.
    pub kernel: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The arguments, in order.
    pub arguments: Vec<Argument>,
}

const EXPRESSIONS: &str = include_str!("../tests/fixtures/expressions.sm_80.ptx");
const SOFTMAX: &str = include_str!("../tests/fixtures/kernels/softmax.ptx");
const MATMUL: &str = include_str!("../tests/fixtures/kernels/matmul_smem.ptx");
const MMA: &str = include_str!("../tests/fixtures/kernels/mma_bf16.ptx");
const MISC: &str = include_str!("../tests/fixtures/kernels/misc.ptx");

/// Every vector: the functions of CUDA's library on 256 arguments each, and sample kernels.
pub fn vectors() -> Vec<Vector> {
    let memory = Arc::new(Memory::default());
    let functions = Program::load(EXPRESSIONS, &memory).expect("the emulator's tests load it");
    let mut vectors: Vec<Vector> = functions.kernels().map(|k| function(k.name())).collect();
    vectors.extend([softmax(), matmul(), mma(), misc()]);
    vectors
}

fn number(value: i32) -> Argument {
    Argument::Number(value.to_le_bytes().to_vec())
}

fn input(values: impl Iterator<Item = f32>) -> Argument {
    Argument::Array {
        bytes: values.flat_map(f32::to_le_bytes).collect(),
        output: None,
    }
}

fn output(bytes: usize, elements: Elements) -> Argument {
    Argument::Array {
        bytes: vec![0; bytes],
        output: Some(elements),
    }
}

/// Numbers between −1 and 1 in no pattern.
fn pseudo_random(i: usize) -> f32 {
    let x = (i as u32).wrapping_mul(0x9e37_79b9);
    ((x ^ x >> 15) & 0xffff) as f32 / 32768.0 - 1.0
}

fn function(kernel: &str) -> Vector {
    let n = 256;
    Vector {
        name: format!("function_{kernel}"),
        ptx: EXPRESSIONS,
        architecture: "sm_80",
        kernel: kernel.to_string(),
        grid: [1, 1, 1],
        block: n as u32,
        dynamic_shared: 0,
        arguments: vec![
            input((0..n).map(|i| (i as f32 - 128.0) / 12.8 + 0.001)),
            output(4 * n, Elements::Floats),
            number(n as i32),
        ],
    }
}

fn sample(
    kernel: &str,
    ptx: &'static str,
    grid: [u32; 3],
    block: u32,
    dynamic_shared: u32,
    arguments: Vec<Argument>,
) -> Vector {
    let (name, kernel) = (kernel.to_string(), kernel.to_string());
    Vector {
        name,
        ptx,
        architecture: "sm_90a",
        kernel,
        grid,
        block,
        dynamic_shared,
        arguments,
    }
}

fn softmax() -> Vector {
    let n = 4 * 301;
    let arguments = vec![
        input((0..n).map(|i| 5.0 * pseudo_random(i))),
        output(4 * n, Elements::Floats),
        number(301),
    ];
    sample("softmax", SOFTMAX, [4, 1, 1], 256, 0, arguments)
}

fn matmul() -> Vector {
    let [m, n, k] = [70, 65, 40];
    let mut arguments = vec![
        input((0..m * k).map(pseudo_random)),
        input((m * k..m * k + k * n).map(pseudo_random)),
        output(4 * m * n, Elements::Floats),
    ];
    arguments.extend([m, n, k].map(|size| number(size as i32)));
    sample("matmul_smem", MATMUL, [2, 2, 1], 256, 0, arguments)
}

fn mma() -> Vector {
    let [m, n, k] = [64, 64, 96];
    let halves = |from: usize, count: usize| Argument::Array {
        // The upper half of an f32 is a bf16.
        bytes: (from..from + count)
            .flat_map(|i| ((pseudo_random(i).to_bits() >> 16) as u16).to_le_bytes())
            .collect(),
        output: None,
    };
    let mut arguments = vec![
        halves(0, m * k),
        halves(m * k, k * n),
        output(4 * m * n, Elements::Floats),
    ];
    arguments.extend([m, n, k].map(|size| number(size as i32)));
    sample("mma_bf16", MMA, [1, 1, 1], 128, 19456, arguments)
}

fn misc() -> Vector {
    let n = 300;
    let numbers = (0..n)
        .flat_map(|i| ((1000.0 * pseudo_random(i).abs()) as i32).to_le_bytes())
        .collect();
    let arguments = vec![
        Argument::Array {
            bytes: numbers,
            output: None,
        },
        number(n as i32),
        output(64 * 4, Elements::Bits),
        output(4, Elements::Floats),
        output(8, Elements::Bits),
        output(8, Elements::Bits),
        output(4, Elements::Bits),
        output(n, Elements::Bits),
        output(4 * n, Elements::Bits),
    ];
    sample("misc", MISC, [2, 1, 1], 256, 0, arguments)
}

impl Vector {
    /// Runs the kernel in the emulator and returns the bytes of its outputs, concatenated.
    ///
    /// # Errors
    /// A fault of the kernel.
    pub fn emulate(&self) -> Result<Vec<u8>, Box<Fault>> {
        let memory = Arc::new(Memory::default());
        let program = Program::load(self.ptx, &memory).expect("the emulator's tests load it");
        let kernel = program
            .kernel(&self.kernel)
            .expect("the vector names a kernel of its text");
        let mut parameters = vec![0; kernel.parameter_bytes()];
        let mut outputs = Vec::new();
        for (argument, parameter) in self.arguments.iter().zip(kernel.parameters()) {
            let value = match argument {
                Argument::Number(bytes) => bytes.clone(),
                Argument::Array { bytes, output } => {
                    let address = memory.allocate(bytes.len());
                    memory.write(address, bytes).expect("it was just allocated");
                    if output.is_some() {
                        outputs.push((address, bytes.len()));
                    }
                    address.to_le_bytes().to_vec()
                }
            };
            parameters[parameter.offset..parameter.offset + value.len()].copy_from_slice(&value);
        }
        let launch = Launch {
            kernel,
            grid: self.grid,
            block: [self.block, 1, 1],
            dynamic_shared: self.dynamic_shared,
            parameters: &parameters,
            options: Options::default(),
        };
        launch.run(&memory)?;
        let mut output_bytes = Vec::new();
        for (address, len) in outputs {
            let mut bytes = vec![0; len];
            memory
                .read(address, &mut bytes)
                .expect("it was allocated above");
            output_bytes.extend(bytes);
        }
        Ok(output_bytes)
    }

    /// Compares outputs with those of hardware; the error names the first difference.
    ///
    /// # Errors
    /// If they differ by more than the elements allow.
    pub fn compare(&self, ours: &[u8], hardware: &[u8]) -> Result<(), String> {
        if ours.len() != hardware.len() {
            return Err(format!(
                "{}: {} bytes, not {}",
                self.name,
                ours.len(),
                hardware.len()
            ));
        }
        let mut start = 0;
        for argument in &self.arguments {
            let Argument::Array {
                bytes,
                output: Some(elements),
            } = argument
            else {
                continue;
            };
            let (end, width) = (
                start + bytes.len(),
                if *elements == Elements::Floats { 4 } else { 1 },
            );
            let pairs = ours[start..end]
                .chunks(width)
                .zip(hardware[start..end].chunks(width));
            for (i, (a, b)) in pairs.enumerate() {
                let same = match elements {
                    Elements::Bits => a == b,
                    Elements::Floats => is_near(float(a), float(b)),
                };
                if !same {
                    return Err(format!(
                        "{}: element {i} is {a:?}, on hardware {b:?}",
                        self.name
                    ));
                }
            }
            start = end;
        }
        Ok(())
    }
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn is_near(a: f32, b: f32) -> bool {
    a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 + 1e-5 * b.abs()
}

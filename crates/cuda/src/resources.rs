//! The resources of a multiprocessor that compiled kernels use.

use super::nvrtc::Compiled;

/// The resources of a multiprocessor that a kernel uses while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// The name of the function.
    pub entry: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread: arrays that are indexed at run time, and spilled registers.
    pub stack: u32,
    /// Bytes that a thread stores and loads for spilled registers.
    pub spilled: u32,
    /// Bytes of static shared memory per block.
    pub shared: u32,
}

impl Compiled {
    /// The resources of each kernel of the unit, in the compiler's order; empty for PTX.
    pub fn resources(&self) -> Vec<Resources> {
        let mut kernels: Vec<Resources> = Vec::new();
        for line in self.log.lines() {
            if let Some(after) = line.split("Compiling entry function '").nth(1) {
                let entry = after.split('\'').next().unwrap_or_default().to_string();
                kernels.push(Resources {
                    entry,
                    ..Resources::default()
                });
            }
            let Some(kernel) = kernels.last_mut() else {
                continue;
            };
            // Called functions have separate lines.
            kernel.stack += number_before(line, " bytes stack frame");
            kernel.spilled += number_before(line, " bytes spill stores");
            kernel.spilled += number_before(line, " bytes spill loads");
            kernel.registers = kernel.registers.max(number_before(line, " registers"));
            kernel.shared = kernel.shared.max(number_before(line, " bytes smem"));
        }
        kernels
    }
}

/// The number before `unit`; 0 if the line has none.
fn number_before(line: &str, unit: &str) -> u32 {
    let Some(position) = line.find(unit) else {
        return 0;
    };
    let digits = line[..position].rsplit(|c: char| !c.is_ascii_digit());
    digits
        .map(str::parse)
        .next()
        .and_then(Result::ok)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_from_the_log() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'kiln_a' for 'sm_90a'
ptxas info    : Function properties for kiln_a
    40 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 40 bytes cumulative stack size, 8448 bytes smem
ptxas info    : Compiling entry function 'kiln_b' for 'sm_90a'
ptxas info    : Function properties for kiln_b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers";
        let compiled = Compiled {
            image: Vec::new(),
            log: log.into(),
        };
        let kernel = |entry: &str, [registers, stack, spilled, shared]: [u32; 4]| Resources {
            entry: entry.into(),
            registers,
            stack,
            spilled,
            shared,
        };
        let expected = [
            kernel("kiln_a", [128, 40, 20, 8448]),
            kernel("kiln_b", [16, 0, 0, 0]),
        ];
        assert_eq!(compiled.resources(), expected);
    }
}

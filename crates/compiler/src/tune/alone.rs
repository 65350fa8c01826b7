//! A kernel as a separate program, and operands to run it on.

use super::key::bytes;
use kiln_base::prim::{SPLIT_MIX_STEP, split_mix};
use kiln_base::{DType, Dim};
pub(super) use kiln_codegen::Arg;
use kiln_ir::eval::Array;
use kiln_plan::{
    Allocation, Buffer as PlanBuffer, BufferId, Input, Kernel, Output, Plan, Role, Site, SiteKind,
    Step, Symbol,
};
use kiln_runtime::{Buffer, Error, Executable, cuda};
use std::sync::Arc;
use std::time::Duration;

/// A kernel of such a program.
pub(super) struct IsolatedKernel {
    pub kernel: Arc<Kernel>,
    /// Its arguments: positions among those of the whole, and after these, of memory of the program's own.
    pub args: Vec<usize>,
    /// Its sites among those of the whole.
    pub sites: Vec<u32>,
}

/// Returns the program that runs a kernel alone. Its inputs are a tensor for each symbol, which defines it, and the
/// arguments that are read; its outputs are those that are written.
pub(super) fn plan(kernel: Kernel, args: &[Arg], symbols: usize) -> Plan {
    let part = IsolatedKernel {
        args: (0..args.len()).collect(),
        sites: (0..kernel.contract().map_or(0, |c| c.sites)).collect(),
        kernel: Arc::new(kernel),
    };
    plan_of(vec![part], args, Vec::new(), symbols)
}

/// Returns a program that runs several kernels in order, with temporaries between them.
pub(super) fn plan_of(
    kernels: Vec<IsolatedKernel>,
    args: &[Arg],
    scratch: Vec<(DType, Dim)>,
    symbols: usize,
) -> Plan {
    let mut plan = Plan::default();
    let buffer = |plan: &mut Plan, dtype, len: &Dim, allocation| {
        plan.buffers.push(PlanBuffer {
            dtype,
            len: len.clone(),
            allocation,
        });
        BufferId(plan.buffers.len() as u32 - 1)
    };
    let input = |plan: &mut Plan, dtype, len: &Dim, role| {
        let buffer = buffer(plan, dtype, len, Allocation::Input);
        plan.inputs.push(Input {
            dtype,
            shape: vec![len.clone()],
            role,
            buffer,
        });
        buffer
    };
    for s in 0..symbols {
        input(&mut plan, DType::U8, &Plan::symbol(s), Role::Data);
        plan.symbols.push(Symbol {
            name: format!("s{s}"),
            min: 2,
            input: s as u32,
            axis: 0,
        });
    }
    let mut ids = Vec::new();
    for arg in args {
        ids.push(match arg.written {
            false => {
                let role = match arg.fixed {
                    true => Role::Parameter,
                    false => Role::Data,
                };
                input(&mut plan, arg.dtype, &arg.len, role)
            }
            true => {
                let buffer = buffer(&mut plan, arg.dtype, &arg.len, Allocation::Output);
                plan.outputs.push(Output {
                    dtype: arg.dtype,
                    shape: vec![arg.len.clone()],
                    buffer,
                    donor: None,
                });
                buffer
            }
        });
    }
    for (dtype, len) in scratch {
        ids.push(buffer(&mut plan, dtype, &len, Allocation::Temporary));
    }
    plan.commit = kernels.len() as u32;
    for part in kernels {
        let sites = part.sites.iter().map(|s| *s as usize + 1).max();
        let site = Site {
            op: part.kernel.name().to_string(),
            kind: match *part.kernel {
                Kernel::Custom(_) => SiteKind::Custom,
                _ => SiteKind::IndexOutOfRange,
            },
            node: 0,
        };
        let sites = sites.unwrap_or(0).max(plan.sites.len());
        plan.sites.resize(sites, site);
        plan.run.push(Step {
            kernel: plan.kernels.len() as u32,
            args: part.args.into_iter().map(|a| ids[a]).collect(),
            sites: part.sites,
            concurrent: false,
            guard: None,
        });
        plan.kernels.push(part.kernel);
    }
    plan
}

/// The inputs of a plan, then its outputs.
pub(super) fn args(plan: &Plan) -> Vec<Arg> {
    let arg = |id: BufferId, fixed, written| {
        let buffer = &plan.buffers[id.0 as usize];
        Arg {
            dtype: buffer.dtype,
            len: buffer.len.clone(),
            written,
            fixed,
        }
    };
    let inputs = plan.inputs.iter().map(|i| {
        let fixed = i.role == Role::Parameter;
        arg(i.buffer, fixed, false)
    });
    let outputs = plan.outputs.iter().map(|o| arg(o.buffer, false, true));
    inputs.chain(outputs).collect()
}

/// The program, ready to run.
pub(super) fn load(plan: Plan, gpu: Option<&Arc<cuda::Device>>) -> Result<Executable, Error> {
    match gpu {
        None => Executable::new(plan),
        Some(device) => Executable::on_gpu(plan, device),
    }
}

/// The time that the kernel of such a program takes on these inputs, on the CPU. They are cold if the caches can be
/// flushed. The results are written to the same memory as in the last call.
pub(super) fn time(executable: &Executable, inputs: &[Buffer]) -> Result<Duration, Error> {
    executable.evict(inputs)?;
    executable.record_events(true);
    let ran = executable.run_shared(inputs);
    let events = executable.take_events();
    executable.record_events(false);
    // The next run takes the same memory.
    executable.evict(&ran?)?;
    Ok(events.iter().map(|e| e.time).sum())
}

/// A generator of operands: the same sequence of numbers every time.
pub(super) struct Numbers(pub u64);

impl Numbers {
    /// A random number in 0..1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(SPLIT_MIX_STEP);
        (split_mix(self.0) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// 1 or -1.
    pub fn sign(&mut self) -> f64 {
        if self.next() < 0.5 { -1.0 } else { 1.0 }
    }

    /// Elements of an argument: floats of size 1/2 to 1, of either sign if `signed`. Integers are from 1 to 3, which
    /// are valid divisors, or, if they may be `indices`, zeros, which are valid indices.
    pub fn elements(
        &mut self,
        dtype: DType,
        len: i64,
        signed: bool,
        indices: bool,
    ) -> Result<Buffer, Error> {
        let mut draw = || match dtype.is_float() {
            true if signed && self.next() < 0.5 => -1.0 + self.next() / 2.0,
            true => 1.0 - self.next() / 2.0,
            false if dtype == DType::Bool => f64::from(self.next() < 0.5),
            false if indices => 0.0,
            false => 1.0 + (3.0 * self.next()).floor(),
        };
        let values: Vec<f64> = (0..len).map(|_| draw()).collect();
        buffer(dtype, &values)
    }
}

/// Returns a tensor of these numbers, rounded to the dtype.
pub(super) fn buffer(dtype: DType, values: &[f64]) -> Result<Buffer, Error> {
    let fail = |e: String| Error::Buffer(e);
    let array = match dtype.is_float() {
        true => Array::from_f64(dtype, &[values.len()], values),
        false => {
            let integers: Vec<i64> = values.iter().map(|v| *v as i64).collect();
            Array::from_i64(dtype, &[values.len()], &integers)
        }
    };
    let array = array.map_err(|e| fail(e.to_string()))?;
    Buffer::from_bytes(dtype, &[values.len() as i64], &array.to_bytes())
}

/// The elements of a tensor on the host.
pub(super) fn numbers(buffer: &Buffer) -> Result<Vec<f64>, Error> {
    let array = Array::from_bytes(buffer.dtype(), &[buffer.len()], buffer.bytes()?);
    Ok(array.map_err(|e| Error::Buffer(e.to_string()))?.to_f64())
}

/// The inputs that give symbols their values.
pub(super) fn symbol_inputs(values: &[i64]) -> Result<Vec<Buffer>, Error> {
    let zeros = |v: &i64| Buffer::from_bytes(DType::U8, &[*v], &vec![0; bytes(DType::U8, *v)]);
    values.iter().map(zeros).collect()
}

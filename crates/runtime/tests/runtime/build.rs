//! Builders for programs and plans, and runs at every level.

use kiln_base::prim::{Binary, Reduction, Unary};
use kiln_base::{Compute, DType, Dim, Scalar};
use kiln_plan::tile::*;
use kiln_plan::{Allocation, BufferId, Input, Kernel, MatMul, Matrix, Output, Plan, Role, Step};
use kiln_runtime::{Buffer, Executable, Features, Result};
use std::sync::Mutex;

/// A tile program under construction.
pub struct Program(pub TileProgram);

impl Program {
    pub fn new(schedule: Schedule, axes: &[i64], inner: &[i64]) -> Program {
        let dims = |d: &[i64]| d.iter().map(|d| Dim::Const(*d)).collect();
        Program(TileProgram {
            name: "test".into(),
            axes: dims(axes),
            inner: dims(inner),
            schedule,
            registers: vec![],
            stages: vec![],
            ..TileProgram::default()
        })
    }

    pub fn lanes(axes: &[i64]) -> Program {
        let mut p = Program::new(Schedule::Lanes, axes, &[]);
        p.stage(false);
        p
    }

    pub fn stage(&mut self, over_inner: bool) {
        self.0.stages.push(Stage {
            over_inner,
            code: vec![],
            ..Stage::default()
        });
    }

    pub fn arg(&mut self, dtype: DType, written: bool) -> u16 {
        self.0.args.push(Arg { dtype, written });
        self.0.args.len() as u16 - 1
    }

    pub fn reg(&mut self, ty: Compute) -> Reg {
        self.0.registers.push(ty);
        Reg(self.0.registers.len() as u16 - 1)
    }

    pub fn constant(&mut self, ty: Compute, value: impl Into<Scalar>) -> Reg {
        let r = self.reg(ty);
        self.0.constants.push((r, value.into()));
        r
    }

    pub fn access(&mut self, arg: u16, offset: i64, strides: &[i64]) -> u16 {
        self.0.accesses.push(Access {
            arg,
            offset: offset.into(),
            strides: strides.iter().map(|s| Dim::Const(*s)).collect(),
            bounds: vec![],
            fill: Scalar::Float(0.0),
        });
        self.0.accesses.len() as u16 - 1
    }

    pub fn bound(&mut self, access: u16, offset: i64, strides: &[i64], extent: i64) {
        self.0.accesses[access as usize].bounds.push(Bound {
            offset: offset.into(),
            strides: strides.iter().map(|s| Dim::Const(*s)).collect(),
            extent: extent.into(),
        });
    }

    /// The row-major strides over axes and inner.
    pub fn dense(&self) -> Vec<i64> {
        let extents: Vec<i64> = (self.0.axes.iter().chain(&self.0.inner))
            .map(|d| d.as_const().unwrap())
            .collect();
        let mut strides = vec![1; extents.len()];
        for i in (1..extents.len()).rev() {
            strides[i - 1] = strides[i] * extents[i].max(1);
        }
        strides
    }

    pub fn push(&mut self, inst: Inst) {
        self.0.stages.last_mut().unwrap().code.push(inst);
    }

    pub fn load(&mut self, access: u16) -> Reg {
        let arg = self.0.accesses[access as usize].arg;
        let dst = self.reg(self.0.args[arg as usize].dtype.compute());
        self.push(Inst::Load { dst, access });
        dst
    }

    /// A new argument, read densely.
    pub fn input(&mut self, dtype: DType) -> Reg {
        let arg = self.arg(dtype, false);
        let access = self.access(arg, 0, &self.dense());
        self.load(access)
    }

    pub fn store(&mut self, access: u16, src: Reg) {
        self.push(Inst::Store { access, src });
    }

    /// A new argument, written densely.
    pub fn output(&mut self, dtype: DType, src: Reg) {
        let arg = self.arg(dtype, true);
        let access = self.access(arg, 0, &self.dense());
        self.store(access, src);
    }

    pub fn ty(&self, r: Reg) -> Compute {
        self.0.registers[r.0 as usize]
    }

    pub fn unary(&mut self, op: Unary, a: Reg) -> Reg {
        let ty = if op.gives_mask() {
            Compute::Mask
        } else {
            self.ty(a)
        };
        let dst = self.reg(ty);
        self.push(Inst::Unary { op, dst, a });
        dst
    }

    pub fn binary(&mut self, op: Binary, a: Reg, b: Reg) -> Reg {
        let ty = if op.gives_mask() {
            Compute::Mask
        } else {
            self.ty(a)
        };
        let dst = self.reg(ty);
        if op.divides() && !ty.is_float() {
            self.0.sites += 1;
        }
        let site = self.0.sites.saturating_sub(1);
        self.push(Inst::Binary {
            op,
            dst,
            a,
            b,
            site,
        });
        dst
    }

    pub fn reduce(&mut self, op: Reduction, a: Reg) -> Reg {
        let acc = self.reg(self.ty(a));
        self.push(Inst::Reduce { op, acc, a });
        acc
    }

    pub fn convert(&mut self, a: Reg, from: DType, to: DType) -> Reg {
        let dst = self.reg(to.compute());
        self.push(Inst::Convert { dst, a, from, to });
        dst
    }
}

/// A plan of one kernel: the read-only arguments are the inputs, the written ones the outputs.
pub fn plan_of(mut kernel: Kernel, args: &[(DType, i64, bool)]) -> Plan {
    if kernel.decision().is_none() {
        let decision = kernel.by_default(true, true);
        kernel = kernel.by(decision);
    }
    let sites = kernel.contract().map_or(0, |c| c.sites);
    let mut plan = empty();
    for (dtype, len, written) in args {
        let allocation = if *written {
            Allocation::Output
        } else {
            Allocation::Input
        };
        let buffer = add_buffer(&mut plan, *dtype, *len, allocation);
        let shape = vec![Dim::Const(*len)];
        if *written {
            plan.outputs.push(Output {
                dtype: *dtype,
                shape,
                buffer,
                donor: None,
            });
        } else {
            plan.inputs.push(Input {
                dtype: *dtype,
                shape,
                role: Role::Data,
                buffer,
            });
        }
    }
    plan.sites = (0..sites)
        .map(|s| kiln_plan::Site {
            op: format!("op{s}"),
            kind: kiln_plan::SiteKind::IndexOutOfRange,
            node: 10 + s,
        })
        .collect();
    plan.run.push(Step {
        kernel: 0,
        args: (0..args.len() as u32).map(BufferId).collect(),
        sites: (0..sites).collect(),
        concurrent: false,
        guard: None,
    });
    plan.kernels.push(kernel.into());
    plan.commit = 1;
    plan
}

pub fn empty() -> Plan {
    Plan {
        symbols: vec![],
        inputs: vec![],
        outputs: vec![],
        constants: vec![],
        buffers: vec![],
        kernels: vec![],
        prepare: vec![],
        run: vec![],
        commit: 0,
        sites: vec![],
        needs: vec![],
    }
}

pub fn add_buffer(plan: &mut Plan, dtype: DType, len: i64, allocation: Allocation) -> BufferId {
    plan.buffers.push(kiln_plan::Buffer {
        dtype,
        len: len.into(),
        allocation,
    });
    BufferId(plan.buffers.len() as u32 - 1)
}

pub fn levels() -> Vec<Features> {
    Features::WIDTHS
        .into_iter()
        .filter(|l| l.is_supported())
        .collect()
}

/// The plan at a level.
pub fn executable(plan: &Plan, level: Features) -> Result<Executable> {
    static FORCE: Mutex<()> = Mutex::new(());
    let _guard = FORCE.lock().unwrap_or_else(|e| e.into_inner());
    Features::force(Some(level)).unwrap();
    let exe = Executable::new(plan.clone());
    Features::force(None).unwrap();
    exe
}

/// Runs at every level and returns each level's results.
pub fn run(plan: &Plan, inputs: &[Buffer]) -> Vec<Result<Vec<Buffer>>> {
    let run = |l| executable(plan, l).and_then(|e| e.run_shared(inputs));
    let has = |dtypes: &[DType]| inputs.iter().any(|x| dtypes.contains(&x.dtype()));
    let whole = has(&[DType::U8, DType::I8, DType::I16]);
    let more = [
        (Features::AMX_FP16, has(&[DType::F16])),
        (Features::AMX, whole || has(&[DType::BF16])),
        (Features::AVX512_BF16, has(&[DType::BF16])),
        (Features::AVX512_VNNI, whole),
        (Features::AVX2_VNNI, whole),
    ];
    let more = more
        .into_iter()
        .filter(|(l, is_other)| *is_other && l.is_supported());
    levels()
        .into_iter()
        .chain(more.map(|(l, _)| l))
        .map(run)
        .collect()
}

/// A small generator of test data.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
    pub fn float(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0
    }
}

/// Elements of `dtype` from floats.
pub fn buffer(dtype: DType, data: &[f64]) -> Buffer {
    let n = [data.len() as i64];
    let made = match dtype {
        DType::F32 => Buffer::from_slice(&data.iter().map(|x| *x as f32).collect::<Vec<_>>(), &n),
        DType::F64 => Buffer::from_slice(data, &n),
        DType::I32 => Buffer::from_slice(&data.iter().map(|x| *x as i32).collect::<Vec<_>>(), &n),
        DType::I64 => Buffer::from_slice(&data.iter().map(|x| *x as i64).collect::<Vec<_>>(), &n),
        DType::Bool => Buffer::from_slice(&data.iter().map(|x| *x > 0.0).collect::<Vec<_>>(), &n),
        other => {
            let mut bytes = Vec::new();
            for x in data {
                match other {
                    DType::F16 => bytes.extend(half::f16::from_f64(*x).to_ne_bytes()),
                    DType::BF16 => bytes.extend(half::bf16::from_f64(*x).to_ne_bytes()),
                    int => {
                        let v = kiln_base::float_to_int(*x, int).to_ne_bytes();
                        bytes.extend(&v[..int.size()]);
                    }
                }
            }
            Buffer::from_bytes(other, &n, &bytes)
        }
    };
    made.unwrap()
}

/// `x[m, k] · y[k, n]` of f32, contiguous, by the default algorithm.
pub fn product(m: i64, k: i64, n: i64) -> MatMul {
    let matrix = |arg, row: i64| Matrix {
        arg,
        offset: Dim::ZERO,
        batch_strides: vec![],
        row: row.into(),
        col: Dim::ONE,
    };
    MatMul {
        dtypes: [DType::F32; 2],
        reduce_range: false,
        batch: vec![],
        m: m.into(),
        k: k.into(),
        n: n.into(),
        lhs: matrix(0, k),
        rhs: matrix(1, n),
        out: 2,
        prologues: [None, None],
        epilogue: None,
        algorithm: Default::default(),
    }
}

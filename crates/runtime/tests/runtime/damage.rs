//! Damaged plans are refused or give wrong numbers, but never panic or reach outside a buffer.

use super::bodies::{branched, repeated};
use super::build::*;
use super::executor::model;
use super::reductions::{rows_and_columns, softmax};
use kiln_base::{Compute, DType, Dim};
use kiln_plan::tile::*;
use kiln_plan::*;
use kiln_runtime::{Buffer as Tensor, Cancel, Error, Executable};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn tensors(plan: &Plan) -> Vec<Tensor> {
    let of = |i: &Input| {
        let shape: Option<Vec<i64>> = i.shape.iter().map(|d| d.eval_checked(&[6, 6])).collect();
        let shape = shape.filter(|s| s.iter().all(|d| (0..5000).contains(d)));
        let shape = shape
            .filter(|s| s.iter().product::<i64>() < 1 << 20)
            .unwrap_or_default();
        Tensor::zeros(i.dtype, &shape).unwrap()
    };
    plan.inputs.iter().map(of).collect()
}

/// Loads and runs a plan; any result but a panic or an internal error is accepted.
fn survive(plan: Plan) {
    let mut given = tensors(&plan);
    let donate = vec![true; given.len()];
    let result = Executable::new(plan).and_then(|exe| exe.run(&mut given, &donate));
    if let Err(e @ Error::Internal(_)) = result {
        panic!("{e}");
    }
}

fn refused(plan: Plan, what: &str) {
    match Executable::new(plan) {
        // A damaged size may ask for more memory than there is.
        Err(Error::Plan(_) | Error::OutOfMemory { .. }) => {}
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn truncated_or_flipped_bytes_are_noticed() {
    let bytes = model(&Plan::symbol(0), false).to_bytes();
    for cut in 0..bytes.len() {
        assert!(Plan::from_bytes(&bytes[..cut]).is_err());
    }
    for i in 0..bytes.len() {
        let mut b = bytes.clone();
        b[i] ^= 1 << (i % 8);
        assert!(Plan::from_bytes(&b).is_err());
    }
}

/// The bytes of a plan with a corrected checksum, so that damage is not found by the checksum.
fn mended(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = bytes[20..].iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ *b as u64).wrapping_mul(0x0100_0000_01b3)
    });
    bytes[12..20].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Plans of every kind of kernel.
fn plans() -> Vec<Plan> {
    let softmax = {
        let p = softmax(Schedule::Rows, 5, 70).0;
        plan_of(
            Kernel::Tile(p),
            &[(DType::F32, 350, false), (DType::F32, 350, true)],
        )
    };
    let sums = plan_of(
        Kernel::Tile(rows_and_columns(DType::F32, 5, 7, 70).0),
        &[
            (DType::F32, 2450, false),
            (DType::F32, 2450, true),
            (DType::F32, 350, true),
        ],
    );
    let mut plans = vec![
        model(&Plan::symbol(0), false),
        model(&4i64.into(), true),
        softmax,
        sums,
        super::products::made_product(),
        super::algorithms::made_convolution(),
    ];
    plans.extend(super::ordered::plans());
    plans.extend(super::guards::plans());
    let alone = super::hostile::alone();
    plans.extend(alone.iter().flat_map(|p| [repeated(p), branched(p)]));
    plans.push(super::hostile::nested(3, 2, 2));
    plans.extend(super::algorithms::convolutions().into_iter().step_by(3));
    plans
}

/// Cancels damaged plans that compute for too long.
struct Watch(std::sync::Arc<std::sync::Mutex<Option<(Instant, Cancel)>>>);

impl Watch {
    const PATIENCE: Duration = Duration::from_millis(300);

    fn new() -> Watch {
        let at = std::sync::Arc::new(std::sync::Mutex::new(None::<(Instant, Cancel)>));
        let seen = std::sync::Arc::downgrade(&at);
        std::thread::spawn(move || {
            while let Some(at) = seen.upgrade() {
                if let Some((since, cancel)) = &*at.lock().unwrap()
                    && since.elapsed() > Watch::PATIENCE
                {
                    cancel.cancel();
                }
                drop(at);
                std::thread::sleep(Watch::PATIENCE / 8);
            }
        });
        Watch(at)
    }

    fn run(&self, f: impl FnOnce()) {
        let cancel = Cancel::new();
        *self.0.lock().unwrap() = Some((Instant::now(), cancel.clone()));
        cancel.watch(f);
        *self.0.lock().unwrap() = None;
    }
}

/// The number of mutants of each plan, and the seed of the first. `KILN_PLAN_MUTANTS` and `KILN_PLAN_SEED` change
/// them.
fn mutants() -> (u64, u64) {
    let given = |name| std::env::var(name).ok().and_then(|s| s.parse().ok());
    let count = given("KILN_PLAN_MUTANTS").unwrap_or(200);
    (given("KILN_PLAN_SEED").unwrap_or(1), count)
}

#[test]
fn damage_behind_the_checksum_never_panics() {
    let (seed, count) = mutants();
    kiln_runtime::memory::set_limit(Some(1 << 30));
    let watch = Watch::new();
    for (at, plan) in plans().iter().enumerate() {
        let bytes = plan.to_bytes();
        let mut r = Random(seed.wrapping_mul(0x9e37_79b9).wrapping_add(at as u64) | 1);
        for round in 0..count {
            let mut b = bytes.clone();
            if round % 8 == 7 {
                b.truncate(20 + r.below(b.len() as u64 - 20) as usize);
            }
            for _ in 0..(1 + round % 3).min(b.len() as u64 - 20) {
                let at = 20 + r.below(b.len() as u64 - 20) as usize;
                b[at] = match r.below(3) {
                    0 => r.next() as u8,
                    1 => b[at] ^ 1 << r.below(8),
                    _ => b[at].wrapping_add(1),
                };
            }
            let Ok(plan) = Plan::from_bytes(&mended(b)) else {
                continue;
            };
            // If this process crashes, the last line names the mutant.
            if std::env::var_os("KILN_PLAN_TRACE").is_some() {
                println!("plan {at}, seed {seed}, round {round}");
            }
            watch.run(|| survive(plan));
        }
    }
    kiln_runtime::memory::set_limit(None);
}

#[test]
fn contradictions_between_steps_and_buffers_are_refused() {
    let good = model(&4i64.into(), true);
    Executable::new(good.clone()).unwrap();
    let damaged = |what: &str, f: &dyn Fn(&mut Plan)| {
        let mut plan = good.clone();
        f(&mut plan);
        refused(plan, what);
    };
    damaged("kernel", &|p| p.run[0].kernel = 9);
    damaged("buffer", &|p| p.run[0].args[0] = BufferId(99));
    damaged("argument count", &|p| {
        let _ = p.run[0].args.pop();
    });
    damaged("unwritten", &|p| {
        let _ = p.run.remove(0);
    });
    damaged("write to input", &|p| p.run[0].args[2] = BufferId(0));
    damaged("write to constant", &|p| p.run[0].args[2] = BufferId(8));
    damaged("write to prepared in run", &|p| {
        p.run[0].args[2] = BufferId(3)
    });
    damaged("data in prepare", &|p| p.prepare[0].args[0] = BufferId(0));
    damaged("output in prepare", &|p| p.prepare[0].args[2] = BufferId(6));
    damaged("cycle", &|p| {
        p.buffers[4].allocation = Allocation::InPlace(BufferId(5))
    });
    damaged("in place of an input", &|p| {
        p.buffers[5].allocation = Allocation::InPlace(BufferId(0))
    });
    damaged("commit", &|p| p.commit = 9);
    damaged("dtype", &|p| p.buffers[4].dtype = DType::F64);
    damaged("short buffer", &|p| p.buffers[4].len = Dim::Const(3));
    damaged("negative buffer", &|p| p.buffers[4].len = Dim::Const(-1));
    damaged("huge buffer", &|p| p.buffers[4].len = Dim::Const(i64::MAX));
    damaged("constant size", &|p| {
        let _ = p.constants[0].bytes.pop();
    });
    damaged("output shape", &|p| {
        p.outputs[0].shape = vec![Dim::Const(5)]
    });
    damaged("output place", &|p| p.outputs[0].buffer = BufferId(4));
    damaged("symbol", &|p| {
        p.symbols.push(Symbol {
            name: "n".into(),
            min: 2,
            input: 0,
            axis: 0,
        });
    });
    damaged("site", &|p| p.run[0].sites.push(3));
    damaged("unknown symbol", &|p| p.buffers[4].len = Plan::symbol(7));
}

#[test]
fn contradictions_in_programs_are_refused() {
    let good = softmax(Schedule::Rows, 5, 70).0;
    let plan = |p: TileProgram| {
        plan_of(
            Kernel::Tile(p),
            &[(DType::F32, 350, false), (DType::F32, 350, true)],
        )
    };
    Executable::new(plan(good.clone())).unwrap();
    let damaged = |what: &str, f: &dyn Fn(&mut TileProgram)| {
        let mut p = good.clone();
        f(&mut p);
        refused(plan(p), what);
    };
    damaged("register", &|p| {
        p.stages[0].code[0] = Inst::Load {
            dst: Reg(99),
            access: 0,
        }
    });
    damaged("register type", &|p| p.registers[0] = Compute::I32);
    damaged("access", &|p| {
        p.stages[0].code[0] = Inst::Load {
            dst: Reg(0),
            access: 9,
        }
    });
    damaged("argument", &|p| p.accesses[0].arg = 7);
    damaged("argument dtype", &|p| p.args[0].dtype = DType::F64);
    damaged("slot", &|p| p.slots.clear());
    damaged("slot type", &|p| p.slots[0] = Compute::F64);
    damaged("strides", &|p| {
        let _ = p.accesses[0].strides.pop();
    });
    damaged("store to input", &|p| p.accesses[1].arg = 0);
    damaged("outside", &|p| p.accesses[0].offset = Dim::Const(1));
    damaged("before", &|p| p.accesses[0].offset = Dim::Const(-1));
    damaged("extent", &|p| p.axes[0] = Dim::Const(6));
    damaged("negative extent", &|p| p.axes[0] = Dim::Const(-6));
    damaged("huge extent", &|p| p.axes[0] = Dim::Const(i64::MAX));
    damaged("order", &|p| p.stages.reverse());
    damaged("reduction outside", &|p| p.stages[0].over_inner = false);
    damaged("constant", &|p| p.constants.push((Reg(0), 1.0.into())));
    damaged("read", &|p| {
        let _ = p.stages[0].code.remove(0);
    });
}

#[test]
fn contradictions_in_prologues_are_refused() {
    let plan = super::products::made_product();
    assert!(Executable::new(plan.clone()).is_ok());
    let changed = |what: &str, change: &dyn Fn(&mut MatMul)| {
        let mut plan = plan.clone();
        match Arc::make_mut(&mut plan.kernels[0]) {
            Kernel::MatMul(product) => change(product),
            _ => panic!("a product"),
        }
        refused(plan, what);
    };
    let program = |m: &mut MatMul| m.prologues[0].clone().unwrap().program;
    let with = |change: fn(&mut TileProgram)| {
        move |m: &mut MatMul| {
            let mut p = program(m);
            change(&mut p);
            m.prologues[0] = Some(Box::new(Prologue { program: p }));
        }
    };
    changed("it makes nothing", &with(|p| p.stages[0].code.truncate(1)));
    changed(
        "it reads what it makes",
        &with(|p| p.args[4].written = false),
    );
    changed("it writes an argument", &with(|p| p.args[3].written = true));
    changed("it reports errors", &with(|p| p.sites = 1));
    changed("it makes less", &with(|p| p.axes[0] = Dim::Const(29)));
    changed(
        "it makes every second element",
        &with(|p| {
            for access in p.accesses.iter_mut().filter(|a| a.arg == 4) {
                access.strides[0] = Dim::Const(2);
            }
        }),
    );
    let plan = super::algorithms::made_convolution();
    assert!(Executable::new(plan.clone()).is_ok());
    let convolution = |what: &str, change: &dyn Fn(&mut Conv)| {
        let mut plan = plan.clone();
        match Arc::make_mut(&mut plan.kernels[0]) {
            Kernel::Conv(conv) => change(conv),
            _ => panic!("a convolution"),
        }
        refused(plan, what);
    };
    convolution("its images are turned", &|c| {
        c.images = Images::ToChannelsLast
    });
    convolution("its images are transformed", &|c| {
        c.algorithm = Algorithm::Winograd2.into()
    });
    convolution("its images are more", &|c| c.batch = Dim::Const(77));
    convolution("a gradient", &|c| {
        (c.role, c.operands) = (ConvRole::Weight, [0, 1])
    });
    changed("its rows and columns are apart", &|m| {
        m.lhs.col = Dim::Const(2)
    });
    changed("a vector of it", &|m| m.algorithm = Algorithm::Small.into());
}

#[test]
fn overlapping_stores_and_reads_run_without_harm() {
    // All points write to the same location, and an in-place kernel reads its neighbours.
    let mut p = Program::lanes(&[50_000]);
    let x = p.input(DType::F32);
    let arg = p.arg(DType::F32, true);
    let one = p.access(arg, 0, &[0]);
    p.store(one, x);
    survive(plan_of(
        Kernel::Tile(p.0),
        &[(DType::F32, 50_000, false), (DType::F32, 1, true)],
    ));

    let mut plan = model(&6i64.into(), false);
    if let Kernel::Tile(p) = Arc::make_mut(&mut plan.kernels[0]) {
        p.accesses[0].offset = Dim::Const(5);
        p.accesses[0].strides[0] = Dim::Const(-1);
    }
    survive(plan);
}

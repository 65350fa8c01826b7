//! Plans that no compiler would emit. They are refused, or they run within their own memory to an end or until they
//! are cancelled.

use super::bodies::{branched, repeated, with_some_weights};
use super::build::*;
use kiln_base::{Compute, DType, Dim};
use kiln_plan::tile::*;
use kiln_plan::*;
use kiln_runtime::{Buffer as Tensor, Cancel, Error, Executable};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[track_caller]
fn refused(plan: &Plan, why: &str) {
    match Executable::new(plan.clone()) {
        Err(Error::Plan(text)) if text.contains(why) => {}
        other => panic!("{other:?}"),
    }
}

/// Runs a plan that would run for years.
#[track_caller]
fn cancelled(plan: &Plan, inputs: &[Tensor]) {
    let exe = Executable::new(plan.clone()).unwrap();
    let (cancel, start) = (Cancel::new(), Instant::now());
    let switch = cancel.clone();
    let thrower = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        switch.cancel();
    });
    let result = cancel.watch(|| exe.run_shared(inputs));
    assert_eq!(result.unwrap_err(), Error::Cancelled);
    assert!(start.elapsed() < Duration::from_secs(20));
    thrower.join().unwrap();
}

/// `x + 1` of `n` f32.
fn plus_one(n: i64) -> Plan {
    let mut p = Program::lanes(&[n]);
    let x = p.input(DType::F32);
    let one = p.constant(Compute::F32, 1.0);
    let y = p.binary(kiln_base::prim::Binary::Add, x, one);
    p.output(DType::F32, y);
    plan_of(
        Kernel::Tile(p.0),
        &[(DType::F32, n, false), (DType::F32, n, true)],
    )
}

/// Following each chain to its end would take minutes.
#[test]
fn long_chains_of_buffers_in_place_are_followed_once() {
    let mut p = plus_one(1);
    let first = p.buffers.len() as u32;
    for i in 0..100_000 {
        let next = Allocation::InPlace(BufferId(first + i + 1));
        add_buffer(&mut p, DType::F32, 1, next);
    }
    let last = add_buffer(&mut p, DType::F32, 1, Allocation::Temporary);
    let exe = Executable::new(p.clone()).unwrap();
    let y = exe.run_shared(&[floats(&[1.0])]).unwrap();
    assert_eq!(y[0].to_vec::<f32>().unwrap(), [2.0]);
    p.buffers[last.0 as usize].allocation = Allocation::InPlace(BufferId(0));
    refused(&p, "in place of one at Input");
    p.buffers[last.0 as usize].allocation = Allocation::InPlace(BufferId(first));
    refused(&p, "in place of each other");
}

/// A plan that calls a loop over `body` `calls` times; the loop carries one value of `n` f32.
fn carrying(mut body: Plan, n: i64, trips: i64, calls: usize) -> Plan {
    let number = add_buffer(&mut body, DType::I64, 1, Allocation::Input);
    body.inputs.insert(
        0,
        Input {
            dtype: DType::I64,
            shape: vec![],
            role: Role::Data,
            buffer: number,
        },
    );
    let kernel = Kernel::Loop(Loop {
        trips: trips.into(),
        reverse: false,
        conditional: false,
        first: vec![0],
        scanned: vec![],
        alike: vec![],
        last: vec![1],
        stacked: vec![],
        body: Box::new(body),
    });
    let mut plan = plan_of(kernel, &[(DType::F32, n, false), (DType::F32, n, true)]);
    let mut from = BufferId(0);
    for _ in 1..calls {
        let to = add_buffer(&mut plan, DType::F32, n, Allocation::Temporary);
        let last = plan.run.len() - 1;
        let args = vec![from, to];
        plan.run.insert(
            last,
            Step {
                args,
                ..plan.run[last].clone()
            },
        );
        from = to;
    }
    if let Some(last) = plan.run.last_mut() {
        last.args[0] = from;
    }
    plan.commit = plan.run.len() as u32;
    plan
}

/// Plans of one operand and one result, to be bodies.
pub fn alone() -> Vec<Plan> {
    let mut r = Random(5);
    let weighed = super::algorithms::convolutions().into_iter().step_by(4);
    let mut all: Vec<Plan> = weighed.map(|p| with_some_weights(p, &mut r)).collect();
    let args = [
        (DType::F32, 15, false),
        (DType::F32, 120, false),
        (DType::F32, 200, true),
    ];
    let product = plan_of(Kernel::MatMul(product(5, 3, 40)), &args);
    all.push(with_some_weights(product, &mut r));
    all.extend([plus_one(7), one_of_copied(9)]);
    all
}

/// Loops nested `depth` deep.
pub fn nested(depth: usize, trips: i64, calls: usize) -> Plan {
    (0..depth).fold(plus_one(3), |body, _| carrying(body, 3, trips, calls))
}

fn floats(x: &[f32]) -> Tensor {
    Tensor::from_slice(x, &[x.len() as i64]).unwrap()
}

#[test]
fn bodies_lie_in_each_other_to_a_depth() {
    // With the default stack of a Rust thread, the smallest that plans must run on.
    let run = || {
        let plan = Plan::from_bytes(&nested(MAX_DEPTH, 1, 1).to_bytes()).unwrap();
        let exe = Executable::new(plan).unwrap();
        let y = exe.run_shared(&[floats(&[1.0, 2.0, 3.0])]).unwrap();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0]);
        refused(&nested(MAX_DEPTH + 1, 1, 1), "nested more than");
    };
    let least = std::thread::Builder::new().stack_size(2 << 20);
    least.spawn(run).unwrap().join().unwrap();
    let made = std::thread::Builder::new().stack_size(1 << 28);
    let deep = made.spawn(|| nested(3000, 1, 1).to_bytes()).unwrap();
    let deep = deep.join().unwrap();
    assert!(matches!(
        Plan::from_bytes(&deep),
        Err(DecodeError::Damaged(_))
    ));
}

#[test]
fn kernels_that_are_called_twice_are_looked_at_once() {
    let start = Instant::now();
    let plan = nested(40, 1, 2);
    Executable::new(plan.clone()).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20));
    cancelled(&plan, &[floats(&[0.0; 3])]);
    // An argument that distinguishes calls and has no effect.
    let mut plan = nested(1, 1, 1);
    let other = add_buffer(&mut plan, DType::F32, 5, Allocation::Temporary);
    plan.run[0].args.push(other);
    refused(&plan, "other arguments");
}

#[test]
fn endless_runs_are_cancelled() {
    cancelled(&nested(1, 1 << 59, 1), &[floats(&[0.0; 3])]);
    // A kernel of one row that reads one element over and over.
    let mut p = Program::new(Schedule::Rows, &[1], &[1 << 58]);
    p.stage(true);
    let x = p.arg(DType::F32, false);
    let x = p.access(x, 0, &[0, 0]);
    let x = p.load(x);
    let sum = p.reduce(kiln_base::prim::Reduction::Sum, x);
    p.stage(false);
    let y = p.arg(DType::F32, true);
    let y = p.access(y, 0, &[0, 0]);
    p.store(y, sum);
    let args = [(DType::F32, 1, false), (DType::F32, 1, true)];
    cancelled(&plan_of(Kernel::Tile(p.0), &args), &[floats(&[1.0])]);
    // A kernel that many threads share, with a number of parts that overflows.
    let mut p = Program::new(Schedule::Rows, &[1 << 59], &[]);
    p.stage(false);
    p.0.sizes.parts = Some(255);
    let x = p.arg(DType::F32, false);
    let x = p.access(x, 0, &[0]);
    p.load(x);
    let args = [(DType::F32, 1, false)];
    cancelled(&plan_of(Kernel::Tile(p.0), &args), &[floats(&[1.0])]);
    // A kernel of lanes.
    let mut p = Program::lanes(&[1 << 59]);
    let x = p.arg(DType::F32, false);
    let x = p.access(x, 0, &[0]);
    p.load(x);
    cancelled(&plan_of(Kernel::Tile(p.0), &args), &[floats(&[1.0])]);
}

#[test]
fn a_run_that_was_not_cancelled_ends_as_ever() {
    let (one, other) = (Cancel::new(), Cancel::new());
    other.cancel();
    let exe = Executable::new(plus_one(2)).unwrap();
    let x = [floats(&[1.0, 2.0])];
    let y = one.watch(|| exe.run_shared(&x)).unwrap();
    assert_eq!(y[0].to_vec::<f32>().unwrap(), [2.0, 3.0]);
    assert_eq!(
        other.watch(|| exe.run_shared(&x)).unwrap_err(),
        Error::Cancelled
    );
    assert!(exe.run_shared(&x).is_ok());
}

#[test]
fn a_cancelled_run_leaves_donated_memory_alone() {
    let mut plan = plus_one(4);
    plan.outputs[0].donor = Some(0);
    plan.commit = 0;
    let exe = Executable::new(plan).unwrap();
    let cancel = Cancel::new();
    cancel.cancel();
    let mut x = [floats(&[1.0; 4])];
    let result = cancel.watch(|| exe.run(&mut x, &[true]));
    assert_eq!(result.unwrap_err(), Error::Cancelled);
    assert_eq!(x[0].to_vec::<f32>().unwrap(), [1.0; 4]);
}

/// A plan that writes one element of `n`.
fn one_of(n: i64) -> Plan {
    let mut p = Program::lanes(&[1]);
    let x = p.input(DType::F32);
    let y = p.arg(DType::F32, true);
    let y = p.access(y, 0, &[0]);
    p.store(y, x);
    plan_of(
        Kernel::Tile(p.0),
        &[(DType::F32, 1, false), (DType::F32, n, true)],
    )
}

/// The same with a step that copies all of them.
fn one_of_copied(n: i64) -> Plan {
    let mut plan = one_of(n);
    let whole = plus_one(n).kernels.remove(0);
    let temporary = add_buffer(&mut plan, DType::F32, n, Allocation::Temporary);
    let out = std::mem::replace(&mut plan.run[0].args[1], temporary);
    plan.kernels.push(whole);
    plan.run.push(Step {
        kernel: 1,
        args: vec![temporary, out],
        sites: vec![],
        concurrent: false,
        guard: None,
    });
    plan.commit = 2;
    plan
}

#[test]
fn what_is_not_written_is_zero() {
    let n = 40_000usize;
    for (plan, rest) in [
        (one_of(n as i64), 0.0),
        (one_of_copied(n as i64), 1.0),
        (branched(&one_of(n as i64)), 0.0),
        (branched(&one_of_copied(n as i64)), 1.0),
        (repeated(&one_of(n as i64)), 0.0),
    ] {
        let exe = Executable::new(plan.clone()).unwrap();
        assert!(exe.memory(&[]).unwrap().cleared >= 4 * n);
        for _ in 0..4 {
            // Leaves used memory for the run to allocate.
            for times in [1, 1, 1, 2, 2] {
                drop(floats(&vec![7.0; times * n]));
            }
            let mut inputs = vec![floats(&[5.0])];
            if plan.inputs.len() > 1 {
                inputs.push(Tensor::from_slice(&[true], &[1]).unwrap());
            }
            let y = exe.run_shared(&inputs).unwrap()[0].to_vec::<f32>().unwrap();
            for part in y.chunks(n) {
                assert_eq!(part[0], 5.0 + rest);
                assert!(part[1..].iter().all(|y| *y == rest), "{plan:?}");
            }
        }
    }
    // A donor's memory is not taken for an output that is not written whole.
    let mut plan = one_of(1);
    plan.inputs[0].shape = vec![4i64.into()];
    plan.buffers[0].len = 4i64.into();
    plan.outputs[0].shape = vec![4i64.into()];
    plan.buffers[1].len = 4i64.into();
    (plan.outputs[0].donor, plan.commit) = (Some(0), 0);
    let exe = Executable::new(plan).unwrap();
    let y = exe
        .run(&mut [floats(&[1.0, 2.0, 3.0, 4.0])], &[true])
        .unwrap();
    assert_eq!(y[0].to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn an_epilogue_reads_its_own_results_alone() {
    let (m, n) = (4, 1);
    let mut p = Program::lanes(&[m * n]);
    for _ in 0..3 {
        p.arg(DType::F32, false);
    }
    let index = p.arg(DType::I64, false);
    let index = p.access(index, 0, &[1]);
    let index = p.load(index);
    let out = p.arg(DType::F32, true);
    let raw = p.arg(DType::F32, false);
    let access = p.access(raw, 0, &[1]);
    let dst = p.reg(Compute::F32);
    p.0.sites = 1;
    p.push(Inst::LoadAt {
        dst,
        access,
        dynamic: vec![Dynamic {
            index,
            stride: 1_000_000i64.into(),
            extent: 2i64.into(),
            site: 0,
        }],
    });
    let out = p.access(out, 0, &[1]);
    p.store(out, dst);
    let product = MatMul {
        epilogue: Some(Epilogue { program: p.0 }),
        ..product(m, 3, n)
    };
    let args = [
        (DType::F32, 12, false),
        (DType::F32, 3, false),
        (DType::F32, 4, false),
        (DType::I64, 4, false),
        (DType::F32, 4, true),
    ];
    refused(&plan_of(Kernel::MatMul(product), &args), "");
}

#[test]
fn bodies_without_what_they_need_are_refused() {
    let body = |change: &dyn Fn(&mut Plan)| {
        let mut plan = nested(1, 2, 1);
        change(&mut Arc::make_mut(&mut plan.kernels[0]).bodies_mut()[0]);
        plan
    };
    Executable::new(body(&|_| {})).unwrap();
    refused(&body(&|b| b.inputs[1].role = Role::Parameter), "parameters");
    let out = |b: &mut Plan| {
        add_buffer(b, DType::F32, 3, Allocation::Output);
    };
    refused(&body(&out), "is not an input");
    let prepared = |b: &mut Plan| {
        add_buffer(b, DType::F32, 3, Allocation::Prepared);
    };
    refused(&body(&prepared), "parameters");
}

#[test]
fn slots_are_kept_before_they_are_read() {
    let mut p = Program::new(Schedule::Rows, &[3], &[5]);
    p.stage(true);
    p.0.slots.push(Compute::F32);
    let dst = p.reg(Compute::F32);
    p.push(Inst::Kept { dst, slot: 0 });
    p.output(DType::F32, dst);
    let plan = |p: &Program| plan_of(Kernel::Tile(p.0.clone()), &[(DType::F32, 15, true)]);
    refused(&plan(&p), "slot 0 is read before");
    // A write at the last of the serial rows is too late for the rows before it.
    let mut p = Program::new(Schedule::Rows, &[3], &[5]);
    p.0.serial = 1;
    p.0.slots.push(Compute::F32);
    let one = p.constant(Compute::F32, 1.0);
    p.stage(true);
    p.push(Inst::Keep { slot: 0, src: one });
    p.0.stages[0].serial_points = SerialPoints::Last;
    p.stage(true);
    let dst = p.reg(Compute::F32);
    p.push(Inst::Kept { dst, slot: 0 });
    p.output(DType::F32, dst);
    refused(&plan(&p), "slot 0 is read before");
    p.0.stages[0].serial_points = SerialPoints::First;
    Executable::new(plan(&p)).unwrap();
}

#[test]
fn sizes_that_overflow_are_no_small_sizes() {
    let n = Plan::symbol(0);
    let mut p = Program::lanes(&[1]);
    p.0.axes = vec![n.clone()];
    let x = p.arg(DType::F32, false);
    let x = p.access(x, 0, &[1]);
    let x = p.load(x);
    let y = p.arg(DType::F32, true);
    let y = p.access(y, 0, &[1]);
    // An offset that is 0 for n = 4, modulo 2^64.
    p.0.accesses[y as usize].offset = &n * &Dim::Const(1 << 62);
    p.store(y, x);
    let mut plan = plan_of(
        Kernel::Tile(p.0),
        &[(DType::F32, 1, false), (DType::F32, 1, true)],
    );
    plan.symbols.push(Symbol {
        name: "n".into(),
        min: 2,
        input: 0,
        axis: 0,
    });
    for b in &mut plan.buffers {
        b.len = n.clone();
    }
    plan.inputs[0].shape = vec![n.clone()];
    plan.outputs[0].shape = vec![n];
    let exe = Executable::new(plan).unwrap();
    let result = exe.run_shared(&[floats(&[1.0; 4])]);
    assert!(matches!(result, Err(Error::Plan(_))), "{result:?}");
}

#[test]
fn filters_without_taps_sum_nothing() {
    for mut plan in super::algorithms::convolutions() {
        let Kernel::Conv(conv) = Arc::make_mut(&mut plan.kernels[0]) else {
            panic!("a convolution");
        };
        conv.kernel[0] = Dim::ZERO;
        if conv.algorithm.one() != Some(Algorithm::Direct.into()) {
            continue;
        }
        let len = |i: usize| plan.inputs[i].shape[0].as_const().unwrap() as usize;
        let inputs = [0, 1].map(|i| floats(&vec![1.0; len(i)]));
        let results = Executable::new(plan).unwrap().run_shared(&inputs).unwrap();
        let results = results[0].to_vec::<f32>().unwrap();
        assert!(!results.is_empty() && results.iter().all(|y| *y == 0.0));
    }
}

//! Guards: steps that are skipped if a number is set, on the CPU and on a GPU.

use super::build::{add_buffer, empty, plan_of};
use super::executor::binary;
use super::gpu::{device, kernel};
use kiln_base::DType;
use kiln_base::prim::Binary;
use kiln_plan::*;
use kiln_runtime::cuda::Device;
use kiln_runtime::{Buffer as Tensor, Error, Executable, Result};
use std::sync::Arc;

const F: DType = DType::F32;

/// The device that plans run on: a GPU, or the CPU.
struct Engine(Option<Arc<Device>>);

impl Engine {
    fn all() -> Vec<Engine> {
        let gpu = device().map(|d| Engine(Some(d)));
        [Engine(None)].into_iter().chain(gpu).collect()
    }

    /// `x2 = x0 + x1` of n elements.
    fn add(&self, dtype: DType, n: i64) -> Arc<Kernel> {
        let text = "x2[i] = x0[i] + x1[i];";
        match self.0 {
            None => Kernel::Tile(binary(Binary::Add, dtype, &n.into())).into(),
            Some(_) => kernel(&format!("add_{dtype}"), text, &[dtype; 3], &n.into(), 0),
        }
    }

    /// `x2 = x0 / x1` of n elements of i64; a zero in x1 is a data error.
    fn divide(&self, n: i64) -> Arc<Kernel> {
        let text = "if (x1[i]) x2[i] = x0[i] / x1[i]; else kiln_report(errors, site0, x0[i], 0);";
        match self.0 {
            None => Kernel::Tile(binary(Binary::Div, DType::I64, &n.into())).into(),
            Some(_) => kernel("divide", text, &[DType::I64; 3], &n.into(), 1),
        }
    }

    fn executable(&self, plan: &Plan) -> Result<Executable> {
        match &self.0 {
            None => Executable::new(plan.clone()),
            Some(device) => Executable::on_gpu(plan.clone(), device),
        }
    }

    fn tensor<T: kiln_base::Element>(&self, values: &[T], shape: &[i64]) -> Tensor {
        let made = Tensor::from_slice(values, shape).unwrap();
        match &self.0 {
            None => made,
            Some(device) => made.to_gpu(device).unwrap(),
        }
    }

    fn numbers(&self, values: &[f32]) -> Tensor {
        self.tensor(values, &[values.len() as i64])
    }
}

fn numbers(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().unwrap()
}

fn input(plan: &mut Plan, dtype: DType, n: i64) -> BufferId {
    let buffer = add_buffer(plan, dtype, n, Allocation::Input);
    plan.inputs.push(Input {
        dtype,
        shape: vec![n.into()],
        role: Role::Data,
        buffer,
    });
    buffer
}

fn output(plan: &mut Plan, dtype: DType, n: i64, donor: Option<u32>) -> BufferId {
    let buffer = add_buffer(plan, dtype, n, Allocation::Output);
    plan.outputs.push(Output {
        dtype,
        shape: vec![n.into()],
        buffer,
        donor,
    });
    buffer
}

fn step(plan: &mut Plan, kernel: Arc<Kernel>, args: [BufferId; 3], guard: Option<BufferId>) {
    let known = plan.kernels.iter().position(|k| *k == kernel);
    let kernel = known.unwrap_or_else(|| {
        plan.kernels.push(kernel);
        plan.kernels.len() - 1
    });
    plan.run.push(Step {
        kernel: kernel as u32,
        args: args.to_vec(),
        sites: vec![],
        concurrent: false,
        guard,
    });
}

/// Of x, g and a guard: g + g, and x + g in x's memory unless the guard is set.
fn update(engine: &Engine, n: i64, guard: DType) -> Plan {
    let mut p = empty();
    let (x, g) = (input(&mut p, F, n), input(&mut p, F, n));
    let guard = input(&mut p, guard, 1);
    let next = output(&mut p, F, n, Some(0));
    let twice = output(&mut p, F, n, None);
    step(&mut p, engine.add(F, n), [g, g, twice], None);
    step(&mut p, engine.add(F, n), [x, g, next], Some(guard));
    p.commit = 1;
    p
}

/// Plans with guards for the CPU.
pub fn plans() -> Vec<Plan> {
    let engine = Engine(None);
    vec![update(&engine, 5, DType::I32), repeated(&engine, 5, 2)]
}

#[test]
fn a_guarded_step_writes_unless_its_guard_is_set_whether_its_memory_is_donated_or_not() {
    for engine in Engine::all() {
        for n in [1, 7, 130] {
            let bools = [false, true].map(|b| engine.tensor(&[b], &[1]));
            let integers = [0, 1, -1, 256, i32::MIN].map(|i| engine.tensor(&[i], &[1]));
            for guards in [&bools[..], &integers] {
                let exe = engine.executable(&update(&engine, n, guards[0].dtype()));
                let exe = exe.unwrap();
                for (i, guard) in guards.iter().chain(guards).enumerate() {
                    let x: Vec<f32> = (0..n).map(|j| (j + i as i64) as f32).collect();
                    let g: Vec<f32> = (0..n).map(|j| 0.5 - j as f32).collect();
                    let sum: Vec<f32> = x.iter().zip(&g).map(|(x, g)| x + g).collect();
                    let want = if i % guards.len() == 0 { &sum } else { &x };
                    for donated in [true, false] {
                        let mut inputs = [engine.numbers(&x), engine.numbers(&g), guard.clone()];
                        let out = exe.run(&mut inputs, &[donated]).unwrap();
                        assert_eq!(numbers(&out[0]), *want, "{n} {i} {donated}");
                        let twice: Vec<f32> = g.iter().map(|g| g + g).collect();
                        assert_eq!(numbers(&out[1]), twice);
                        assert_eq!(inputs[0].is_empty(), donated);
                        if !donated {
                            assert_eq!(numbers(&inputs[0]), x);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_guard_that_the_plan_computes_lives_until_the_step() {
    for engine in Engine::all() {
        let mut p = empty();
        let (x, i) = (input(&mut p, F, 1), input(&mut p, DType::I32, 1));
        let [guard, u, v] =
            [DType::I32, F, F].map(|dtype| add_buffer(&mut p, dtype, 1, Allocation::Temporary));
        let first = output(&mut p, F, 1, Some(0));
        let last = output(&mut p, F, 1, None);
        step(&mut p, engine.add(DType::I32, 1), [i, i, guard], None);
        step(&mut p, engine.add(F, 1), [x, x, u], None);
        step(&mut p, engine.add(F, 1), [u, u, v], None);
        step(&mut p, engine.add(F, 1), [v, u, last], None);
        step(&mut p, engine.add(F, 1), [x, v, first], Some(guard));
        p.commit = 4;
        assert_eq!(Plan::from_bytes(&p.to_bytes()).unwrap(), p);
        let exe = engine.executable(&p).unwrap();
        for (i, want) in [(0, 5.0), (3, 1.0), (0, 5.0), (-3, 1.0)] {
            let mut inputs = [engine.numbers(&[1.0]), engine.tensor(&[i], &[1])];
            let out = exe.run(&mut inputs, &[true]).unwrap();
            assert_eq!(
                (numbers(&out[0]), numbers(&out[1])),
                (vec![want], vec![6.0])
            );
        }
    }
}

/// A body with the number of its step, x, a guard and g: x + g, or x if the guard is set.
fn body(engine: &Engine, n: i64, numbered: bool) -> Plan {
    let mut p = empty();
    if numbered {
        input(&mut p, DType::I64, 1);
        p.inputs[0].shape.clear();
    }
    let donor = p.inputs.len() as u32;
    let (x, guard, g) = (
        input(&mut p, F, n),
        input(&mut p, DType::I32, 1),
        input(&mut p, F, n),
    );
    let next = output(&mut p, F, n, Some(donor));
    step(&mut p, engine.add(F, n), [x, g, next], Some(guard));
    p.commit = 1;
    p
}

fn repeated(engine: &Engine, n: i64, trips: i64) -> Plan {
    let kernel = Kernel::Loop(Loop {
        trips: trips.into(),
        reverse: false,
        conditional: false,
        first: vec![0],
        scanned: vec![1],
        alike: vec![2],
        last: vec![3],
        stacked: vec![],
        body: Box::new(body(engine, n, true)),
    });
    let args = [
        (F, n, false),
        (DType::I32, trips, false),
        (F, n, false),
        (F, n, true),
    ];
    plan_of(kernel, &args)
}

#[test]
fn a_guarded_step_of_a_loop_carries_what_there_was() {
    for engine in Engine::all() {
        for trips in [0, 1, 2, 5] {
            let exe = engine.executable(&repeated(&engine, 9, trips)).unwrap();
            for round in 0..3 {
                let guards: Vec<i32> = (0..trips as i32).map(|i| (i + round) % 2).collect();
                let inputs = [
                    engine.numbers(&[1.0; 9]),
                    engine.tensor(&guards, &[trips]),
                    engine.numbers(&[2.0; 9]),
                ];
                let out = exe.run_shared(&inputs).unwrap();
                let added = guards.iter().filter(|g| **g == 0).count();
                assert_eq!(
                    numbers(&out[0]),
                    [1.0 + 2.0 * added as f32; 9],
                    "{guards:?}"
                );
            }
        }
    }
}

#[test]
fn a_loop_can_have_a_guard_and_so_can_the_sides_of_a_branch() {
    for engine in Engine::all() {
        let mut guarded = repeated(&engine, 9, 3);
        let guard = input(&mut guarded, DType::I32, 1);
        (guarded.run[0].guard, guarded.outputs[0].donor) = (Some(guard), Some(0));
        let exe = engine.executable(&guarded).unwrap();
        for (guard, want) in [(0, 5.0), (7, 1.0), (0, 5.0), (7, 1.0)] {
            let mut inputs = [
                engine.numbers(&[1.0; 9]),
                engine.tensor(&[0, 1, 0], &[3]),
                engine.numbers(&[2.0; 9]),
                engine.tensor(&[guard], &[1]),
            ];
            for donated in [false, true] {
                let out = exe.run(&mut inputs, &[donated]).unwrap();
                assert_eq!(numbers(&out[0]), [want; 9], "{guard} {donated}");
            }
        }
        let side = body(&engine, 9, false);
        let mut other = side.clone();
        // The other side: no guard, and x + x.
        (other.run[0].guard, other.outputs[0].donor) = (None, None);
        other.run[0].args[1] = other.run[0].args[0];
        let kernel = Kernel::If(If {
            condition: 4,
            inputs: vec![0, 1, 2],
            outputs: vec![3],
            branches: Box::new([side, other]),
        });
        let args = [
            (F, 9, false),
            (DType::I32, 1, false),
            (F, 9, false),
            (F, 9, true),
            (DType::Bool, 1, false),
        ];
        let exe = engine.executable(&plan_of(kernel, &args)).unwrap();
        for _ in 0..3 {
            for (condition, guard, want) in [
                (true, 0, 4.0),
                (true, 1, 1.0),
                (false, 0, 2.0),
                (false, 1, 2.0),
            ] {
                let inputs = [
                    engine.numbers(&[1.0; 9]),
                    engine.tensor(&[guard], &[1]),
                    engine.numbers(&[3.0; 9]),
                    engine.tensor(&[condition], &[1]),
                ];
                let out = exe.run_shared(&inputs).unwrap();
                assert_eq!(numbers(&out[0]), [want; 9], "{condition} {guard}");
            }
        }
    }
}

#[test]
fn steps_that_start_together_have_guards_of_their_own() {
    let engine = Engine(None);
    let mut p = empty();
    let xs = [7, 8, 9].map(|n| input(&mut p, F, n));
    let guards = [0, 1].map(|_| input(&mut p, DType::Bool, 1));
    let guards = [Some(guards[0]), Some(guards[1]), None];
    for (i, (x, guard)) in xs.into_iter().zip(guards).enumerate() {
        let n = 7 + i as i64;
        let next = output(&mut p, F, n, Some(i as u32));
        step(&mut p, engine.add(F, n), [x, x, next], guard);
        p.run[i].concurrent = i > 0;
    }
    let exe = engine.executable(&p).unwrap();
    for set in [[false, false], [false, true], [true, false], [true, true]] {
        for donated in [false, true] {
            let mut inputs = [7, 8, 9].map(|n| engine.numbers(&vec![1.0; n])).to_vec();
            inputs.extend(set.map(|set| engine.tensor(&[set], &[1])));
            let out = exe.run(&mut inputs, &[donated; 3]).unwrap();
            let want = [set[0], set[1], false].map(|set| if set { 1.0 } else { 2.0 });
            for (out, want) in out.iter().zip(want) {
                assert!(numbers(out).iter().all(|x| *x == want), "{set:?} {donated}");
            }
        }
    }
    // A guard that one of them writes.
    let flag = output(&mut p, DType::Bool, 1, None);
    p.run[2].args[2] = flag;
    p.run[1].guard = Some(flag);
    assert!(engine.executable(&p).is_err());
}

#[test]
fn after_a_data_error_a_guarded_step_leaves_donated_memory_alone_whatever_its_guard_says() {
    for engine in Engine::all() {
        let mut p = update(&engine, 5, DType::I32);
        let (a, b) = (input(&mut p, DType::I64, 2), input(&mut p, DType::I64, 2));
        let quotient = output(&mut p, DType::I64, 2, None);
        p.sites.push(Site {
            op: "div".into(),
            kind: SiteKind::DivisionByZero,
            node: 5,
        });
        step(&mut p, engine.divide(2), [a, b, quotient], None);
        p.run[2].sites.push(0);
        p.run.swap(1, 2);
        p.commit = 2;
        let exe = engine.executable(&p).unwrap();
        for (divisor, guard, want) in [
            (0, 0, None),
            (0, 1, None),
            (2, 0, Some(3.0)),
            (2, 1, Some(1.0)),
            (0, 0, None),
            (2, 0, Some(3.0)),
        ] {
            let mut inputs = [
                engine.numbers(&[1.0; 5]),
                engine.numbers(&[2.0; 5]),
                engine.tensor(&[guard], &[1]),
                engine.tensor(&[8i64, 6], &[2]),
                engine.tensor(&[1i64, divisor], &[2]),
            ];
            let ran = exe.run(&mut inputs, &[true]);
            let found = ran.clone().and_then(|out| out[0].to_vec::<f32>());
            match want {
                Some(want) => assert_eq!(found.unwrap(), [want; 5]),
                None => {
                    assert!(
                        matches!(found, Err(Error::Data { site: 0, .. })),
                        "{found:?}"
                    );
                    // On a GPU the output has taken the memory already.
                    let kept = ran.map_or(inputs[0].clone(), |out| out[0].clone().after_failure());
                    assert_eq!(numbers(&kept), [1.0; 5]);
                }
            }
        }
    }
}

#[test]
fn a_data_error_of_a_branch_is_told_of_whatever_else_the_side_computes() {
    for engine in Engine::all() {
        let mut side = empty();
        let [a, b] = [0, 1].map(|_| input(&mut side, DType::I64, 2));
        let x = input(&mut side, F, 9);
        let quotient = output(&mut side, DType::I64, 2, None);
        let twice = output(&mut side, F, 9, None);
        side.sites.push(Site {
            op: "div".into(),
            kind: SiteKind::DivisionByZero,
            node: 5,
        });
        step(&mut side, engine.divide(2), [a, b, quotient], None);
        step(&mut side, engine.add(F, 9), [x, x, twice], None);
        side.run[0].sites.push(0);
        side.commit = 2;
        let kernel = Kernel::If(If {
            condition: 5,
            inputs: vec![0, 1, 2],
            outputs: vec![3, 4],
            branches: Box::new([side.clone(), side]),
        });
        let args = [
            (DType::I64, 2, false),
            (DType::I64, 2, false),
            (F, 9, false),
            (DType::I64, 2, true),
            (F, 9, true),
            (DType::Bool, 1, false),
        ];
        let exe = engine.executable(&plan_of(kernel, &args)).unwrap();
        for (divisor, side) in [(0, true), (2, true), (0, false), (2, false), (0, true)] {
            let inputs = [
                engine.tensor(&[8i64, 6], &[2]),
                engine.tensor(&[1i64, divisor], &[2]),
                engine.numbers(&[1.0; 9]),
                engine.tensor(&[side], &[1]),
            ];
            let ran = exe.run_shared(&inputs);
            let found = ran.and_then(|out| Ok((out[0].to_vec::<i64>()?, numbers(&out[1]))));
            match divisor {
                0 => assert!(
                    matches!(found, Err(Error::Data { site, .. }) if site == u32::from(!side)),
                    "{found:?}"
                ),
                _ => assert_eq!(found.unwrap(), (vec![8, 3], vec![2.0; 9])),
            }
        }
    }
}

#[test]
fn what_a_guard_may_not_do_is_refused() {
    let engine = Engine(None);
    let plan = || update(&engine, 7, DType::I32);
    let refused = |plan: &Plan, why: &str| {
        let error = engine.executable(plan).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    assert!(engine.executable(&plan()).is_ok());
    for dtype in [DType::U8, DType::I64, DType::F32] {
        refused(&update(&engine, 7, dtype), "is not a bool or i32");
    }
    let mut p = plan();
    p.run[1].guard = Some(BufferId(99));
    refused(&p, "no buffer 99");
    let mut p = plan();
    let several = input(&mut p, DType::I32, 2);
    p.run[1].guard = Some(several);
    refused(&p, "is not a bool or i32");
    let mut p = plan();
    let late = add_buffer(&mut p, DType::I32, 1, Allocation::Temporary);
    p.run[1].guard = Some(late);
    refused(&p, "before it is written");
    let mut p = plan();
    p.outputs[0].donor = None;
    refused(&p, "writes what holds nothing before");
    let mut p = plan();
    p.outputs[0].donor = Some(2);
    refused(&p, "writes what holds nothing before");
    let mut p = plan();
    p.outputs[1] = Output {
        donor: Some(1),
        ..p.outputs[0].clone()
    };
    refused(&p, "");
    let mut p = plan();
    let temporary = add_buffer(&mut p, F, 7, Allocation::Temporary);
    p.run[1].args[2] = temporary;
    refused(&p, "writes what holds nothing before");
    let mut p = plan();
    p.sites.push(Site {
        op: "div".into(),
        kind: SiteKind::DivisionByZero,
        node: 5,
    });
    p.run[1].sites.push(0);
    refused(&p, "may report a data error");
}

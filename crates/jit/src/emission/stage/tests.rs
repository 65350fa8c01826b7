//! Tests of emitted steps, interpreted at every level: only the operands are accessed.

use super::{Body, Kind, emit};
use crate::emission::Target;
use crate::emission::lines::Key;
use kiln_base::prim::{Binary, Reduction};
use kiln_base::{Compute, DType};
use kiln_plan::tile::{Inst, Reg};
use kiln_x86_interpreter::Machine;

/// Returns the body of the maximum of `x · weight` over steps, whose terms are stored too: lines of `x`, one weight per
/// step.
fn greatest() -> Body {
    let [x, weight, term, acc] = [0, 1, 2, 3].map(Reg);
    Body {
        registers: vec![Compute::F32; 4],
        dtypes: vec![DType::F32, DType::F32, DType::F64],
        code: vec![
            Inst::Load { dst: x, access: 0 },
            Inst::Load {
                dst: weight,
                access: 1,
            },
            Inst::Binary {
                op: Binary::Mul,
                dst: term,
                a: x,
                b: weight,
                site: 0,
            },
            Inst::Reduce {
                op: Reduction::Max,
                acc,
                a: term,
            },
            Inst::Store {
                access: 2,
                src: term,
            },
        ],
        operands: vec![
            (Key::Access(0), Kind::Line),
            (Key::Access(1), Kind::SplatOfRow),
            (Key::Accumulator(acc), Kind::Line),
            (Key::Access(2), Kind::Line),
        ],
        steps: true,
        ..Body::default()
    }
}

#[test]
fn steps_touch_nothing_but_their_operands() {
    for evex in [false, true] {
        let code = emit(&greatest(), Target { evex }).unwrap();
        for (n, steps) in [(1, 1), (7, 3), (8, 2), (16, 5), (33, 1), (64, 4), (100, 3)] {
            let number = |i: usize| (i * 37 % 23) as f32 - 11.0;
            let x: Vec<f32> = (0..n * steps).map(number).collect();
            let weights: Vec<f32> = (0..steps).map(|s| number(s + 5)).collect();
            let mut sums = vec![-50.0f32; n];
            let mut terms = vec![0.0f64; n * steps];
            let table: Vec<u64> = (0..steps)
                .flat_map(|s| {
                    [
                        x[s * n..].as_ptr() as u64,
                        weights[s..].as_ptr() as u64,
                        sums.as_ptr() as u64,
                        terms[s * n..].as_ptr() as u64,
                    ]
                })
                .collect();
            let at = table.as_ptr() as u64;
            let mut machine = Machine::new()
                .readable(&table)
                .readable(&x)
                .readable(&weights)
                .writable(&mut sums)
                .writable(&mut terms);
            machine.call(&code, &[at, n as u64, steps as u64]).unwrap();
            drop(machine);
            for i in 0..n {
                let term = |s: usize| x[s * n + i] * weights[s];
                let greatest = (0..steps).map(term).fold(-50.0, f32::max);
                assert_eq!(sums[i], greatest, "lane {i} of {n}, {steps} steps");
                for step in 0..steps {
                    let found = terms[step * n + i];
                    let what = format!("lane {i} of {n}, step {step} of {steps}, {evex}");
                    assert_eq!(found, f64::from(term(step)), "{what}");
                }
            }
        }
    }
}

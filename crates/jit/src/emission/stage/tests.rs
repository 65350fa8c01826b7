//! Tests of emitted steps, interpreted at every level: only the operands are accessed.

use super::{Body, Kind, emit};
use crate::emission::Target;
use crate::emission::lines::Key;
use kiln_base::prim::{Binary, Reduction};
use kiln_base::{Compute, DType};
use kiln_plan::tile::{Inst, Reg};
use kiln_x86_interpreter::Machine;

/// Returns a body that computes the maximum of `x · weight` over steps, and stores each product. There is one weight
/// per step.
fn max_of_products() -> Body {
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
            (Key::Access(0), Kind::Lanes),
            (Key::Access(1), Kind::RowSplat),
            (Key::Accumulator(acc), Kind::Lanes),
            (Key::Access(2), Kind::Lanes),
        ],
        steps: true,
        ..Body::default()
    }
}

#[test]
fn steps_access_only_their_operands() {
    for evex in [false, true] {
        let code = emit(&max_of_products(), Target { evex }).unwrap();
        for (n, steps) in [(1, 1), (7, 3), (8, 2), (16, 5), (33, 1), (64, 4), (100, 3)] {
            let number = |i: usize| (i * 37 % 23) as f32 - 11.0;
            let x: Vec<f32> = (0..n * steps).map(number).collect();
            let weights: Vec<f32> = (0..steps).map(|s| number(s + 5)).collect();
            let mut maxima = vec![-50.0f32; n];
            let mut terms = vec![0.0f64; n * steps];
            let table: Vec<u64> = (0..steps)
                .flat_map(|s| {
                    [
                        x[s * n..].as_ptr() as u64,
                        weights[s..].as_ptr() as u64,
                        maxima.as_ptr() as u64,
                        terms[s * n..].as_ptr() as u64,
                    ]
                })
                .collect();
            let rows = table.as_ptr() as u64;
            let mut machine = Machine::new()
                .readable(&table)
                .readable(&x)
                .readable(&weights)
                .writable(&mut maxima)
                .writable(&mut terms);
            machine
                .call(&code, &[rows, n as u64, steps as u64])
                .unwrap();
            drop(machine);
            for i in 0..n {
                let term = |s: usize| x[s * n + i] * weights[s];
                let expected = (0..steps).map(term).fold(-50.0, f32::max);
                assert_eq!(maxima[i], expected, "lane {i} of {n}, {steps} steps");
                for step in 0..steps {
                    let actual = terms[step * n + i];
                    let label = format!("lane {i} of {n}, step {step} of {steps}, {evex}");
                    assert_eq!(actual, f64::from(term(step)), "{label}");
                }
            }
        }
    }
}

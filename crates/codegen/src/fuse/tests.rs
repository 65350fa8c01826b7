//! Seeded bugs: changes of groups that a bug of fusion could make. An invariant of programs or a wrong result must
//! catch each.

use super::{Group, group};
use crate::absorbed;
use crate::affine::{Affine, Map};
use crate::flow::{self, Flow};
use crate::run::{Engine, check_invariants, decompose, run};
use crate::{Hints, Options, Program, assemble, layout};
use kiln_base::Dim;
use kiln_ir::Graph;
use kiln_ir::eval::{Array, symbol_values};
use kiln_ir::fuzz::{Config, random_inputs};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A change of groups. Returns false, without a change, if it does not apply.
type Bug = fn(&Flow, &mut [Group]) -> bool;

const BUGS: &[(&str, Bug)] = &[
    (
        "a result is stored under a map that misses an axis",
        |flow, groups| {
            change_root(flow, groups, |shape, map| {
                let axis = shape
                    .iter()
                    .position(|d| d.as_const().is_some_and(|n| n > 1));
                axis.is_some_and(|axis| {
                    map[axis] = Affine::zero();
                    true
                })
            })
        },
    ),
    ("a group loses an output", |_, groups| {
        let several = groups.iter_mut().find(|g| g.roots.len() > 1);
        several.is_some_and(|g| g.roots.pop().is_some())
    }),
    (
        "a reduction reads one element again and again",
        |_, groups| change_reduction(groups, |map| map[0] = Affine::zero()),
    ),
    ("a reduction starts an element later", |_, groups| {
        change_reduction(groups, |map| map[0] = map[0].clone().plus(&Dim::ONE))
    }),
    ("a reduction runs over other extents", |_, groups| {
        let reduces = |g: &&mut Group| !g.space.inner.is_empty() && !g.space.axes.is_empty();
        let reduction = groups.iter_mut().find(reduces);
        reduction.is_some_and(|g| {
            let (rows, inner) = (&mut g.space.axes, &mut g.space.inner);
            std::mem::swap(&mut rows[0], &mut inner[0]);
            true
        })
    }),
    ("a reduction in order is walked in parallel", |_, groups| {
        let transposed = groups.iter_mut().find(|g| !g.space.ordered.is_empty());
        transposed.is_some_and(|g| {
            g.space.ordered.clear();
            true
        })
    }),
    ("a group does not wait for what it reads", |_, groups| {
        let waits = groups.iter().any(|g| !g.deps.is_empty());
        groups.iter_mut().for_each(|g| g.deps.clear());
        groups.reverse();
        waits
    }),
    ("two groups wait for each other", |_, groups| {
        let waits = groups.iter().position(|g| !g.deps.is_empty());
        waits.is_some_and(|g| {
            let dependency = groups[g].deps[0];
            groups[dependency].deps.push(g);
            true
        })
    }),
    ("a value is read that no group stores", |_, groups| {
        let stored: Vec<usize> = groups.iter().flat_map(|g| &g.roots).map(|r| r.0).collect();
        groups.iter_mut().any(|g| {
            let unstored = g.members.iter().find(|m| !stored.contains(m)).copied();
            unstored.is_some_and(|m| g.loaded.insert(m))
        })
    }),
    ("a product reads its operand transposed", |_, groups| {
        change_operand(groups, |strides| {
            let n = strides.len();
            let differs = n > 1 && strides[n - 1] != strides[n - 2];
            if differs {
                strides.swap(n - 1, n - 2);
            }
            differs
        })
    }),
    ("a product reads one row again and again", |_, groups| {
        change_operand(groups, |strides| {
            let n = strides.len();
            n > 1 && !std::mem::replace(&mut strides[n - 2], Dim::ZERO).is(0)
        })
    }),
    (
        "an operand is made of one element again and again",
        |flow, groups| {
            let prologues = groups.iter_mut().flat_map(|g| &mut g.prologues);
            let mut roots = prologues.flat_map(|b| &mut b.group.roots);
            roots.any(|(v, map)| {
                let is_long = |d: &Dim| d.as_const().is_some_and(|n| n > 1);
                let axis = flow.nodes[*v].shape.iter().rposition(is_long);
                axis.is_some_and(|axis| {
                    map[axis] = Affine::zero();
                    true
                })
            })
        },
    ),
    ("an operand is made for the other side", |_, groups| {
        let prologue = groups.iter_mut().flat_map(|g| &mut g.prologues).next();
        prologue.is_some_and(|b| {
            b.side = 1 - b.side;
            true
        })
    }),
    (
        "a library kernel reads its operand an element off",
        |_, groups| {
            let anchors = groups.iter_mut().filter_map(|g| g.anchor.as_mut());
            let mut operands = anchors.flat_map(|a| &mut a.operands);
            let strided = operands.find(|o| o.strides.iter().any(|s| !s.is(0)));
            strided.is_some_and(|o| {
                o.offset = &o.offset + &Dim::ONE;
                true
            })
        },
    ),
];

fn change_root(
    flow: &Flow,
    groups: &mut [Group],
    change: impl Fn(&[Dim], &mut Map) -> bool,
) -> bool {
    // A group of a library kernel alone has no map.
    let with_maps = groups.iter_mut().filter(|g| g.anchor.is_none());
    let mut roots = with_maps.flat_map(|g| &mut g.roots);
    roots.any(|(v, map)| !map.is_empty() && change(&flow.nodes[*v].shape, map))
}

fn change_reduction(groups: &mut [Group], change: impl Fn(&mut Map)) -> bool {
    let mut maps = groups.iter_mut().flat_map(|g| g.reduced.values_mut());
    let varies = |map: &&mut Map| map.first().is_some_and(|e| !e.terms.is_empty());
    maps.find(varies).map(change).is_some()
}

fn change_operand(groups: &mut [Group], change: impl Fn(&mut Vec<Dim>) -> bool) -> bool {
    let anchors = groups.iter_mut().filter_map(|g| g.anchor.as_mut());
    let mut operands = anchors.flat_map(|a| &mut a.operands);
    operands.any(|o| change(&mut o.strides))
}

/// Lowers a graph with a bug in its groups; `None` if the bug does not apply.
fn lower_changed(graph: &Graph, bug: Bug) -> Option<Result<Program, crate::LowerError>> {
    let options = Options::default();
    let mut flow = flow::build(graph, &options, &Hints::default()).expect("a graph that lowers");
    let mut groups = group(&flow, &options);
    let layout = layout::assign(&mut flow, &mut groups, &options);
    let mut groups = absorbed(&flow, groups, &options);
    bug(&flow, &mut groups).then(|| {
        assemble::assemble(
            &flow,
            &groups,
            &options,
            layout,
            assemble::Keeps::Parameters,
        )
    })
}

/// True if the results of a program are as expected.
fn is_right(graph: &Graph, program: &Program, inputs: &[Array], want: &[Option<Array>]) -> bool {
    let symbols = symbol_values(graph, inputs).expect("symbols of inputs");
    check_invariants(graph, program);
    let Some(actual) = run(program, inputs, &symbols, Engine::Points) else {
        return false;
    };
    actual.iter().zip(want).all(|pair| match pair {
        (Some(a), Some(b)) => are_close(&a.to_f64(), &b.to_f64()),
        (None, None) => true,
        _ => false,
    })
}

fn are_close(a: &[f64], b: &[f64]) -> bool {
    let finite = b.iter().filter(|x| x.is_finite());
    let size = finite.fold(1.0f64, |m, x| m.max(x.abs()));
    let is_close =
        |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-2 * size;
    a.len() == b.len() && a.iter().zip(b).all(is_close)
}

#[test]
fn wrong_groups_are_caught() {
    let config = Config {
        control_flow: false,
        empty: false,
        ..Config::default()
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut planted = vec![0; BUGS.len()];
    let mut caught = vec![0; BUGS.len()];
    for seed in 0..240 {
        let graph = decompose(&config.graph(seed));
        let inputs = random_inputs(&graph, seed);
        let symbols = symbol_values(&graph, &inputs).expect("symbols of inputs");
        let program = crate::lower(&graph, &Options::default()).expect("a graph that lowers");
        let want = run(&program, &inputs, &symbols, Engine::Points).expect("no data errors");
        assert!(is_right(&graph, &program, &inputs, &want), "seed {seed}");
        for (i, (_, bug)) in BUGS.iter().enumerate() {
            let outcome = catch_unwind(AssertUnwindSafe(|| match lower_changed(&graph, *bug) {
                None => None,
                Some(Err(_)) => Some(false),
                Some(Ok(program)) => Some(is_right(&graph, &program, &inputs, &want)),
            }));
            // A panic counts as caught.
            let Some(is_right) = outcome.unwrap_or(Some(false)) else {
                continue;
            };
            planted[i] += 1;
            caught[i] += !is_right as u64;
        }
    }
    std::panic::set_hook(hook);
    for (i, (name, _)) in BUGS.iter().enumerate() {
        println!("{name}: planted {} times, caught {}", planted[i], caught[i]);
    }
    // A bug has no effect in a program that does not read the changed value.
    let missed: Vec<&str> = (0..BUGS.len())
        .filter(|i| caught[*i] == 0)
        .map(|i| BUGS[i].0)
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

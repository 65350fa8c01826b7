//! Seeded bugs: groups made wrong in ways that a bug of fusion could. Each is caught, either by an invariant of every
//! program, or because results differ.

use super::{Group, group};
use crate::absorbed;
use crate::affine::{Affine, Map};
use crate::flow::{self, Flow};
use crate::run::{Engine, checked, decomposed, run};
use crate::{Hints, Options, Program, assemble, layout};
use kiln_base::Dim;
use kiln_ir::Graph;
use kiln_ir::eval::{Array, symbol_values};
use kiln_ir::fuzz::{Config, random_inputs};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A change of groups; false, with the groups left alone, if it does not apply.
type Bug = fn(&Flow, &mut [Group]) -> bool;

const BUGS: &[(&str, Bug)] = &[
    (
        "a result is stored under a map that misses an axis",
        |flow, groups| {
            change_root(flow, groups, |shape, map| {
                let at = shape
                    .iter()
                    .position(|d| d.as_const().is_some_and(|n| n > 1));
                at.is_some_and(|at| {
                    map[at] = Affine::zero();
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
        let found = groups.iter_mut().find(reduces);
        found.is_some_and(|g| {
            let (rows, inner) = (&mut g.space.axes, &mut g.space.inner);
            std::mem::swap(&mut rows[0], &mut inner[0]);
            true
        })
    }),
    (
        "what is combined in order is not walked in order",
        |_, groups| {
            let transposed = groups.iter_mut().find(|g| !g.space.ordered.is_empty());
            transposed.is_some_and(|g| {
                g.space.ordered.clear();
                true
            })
        },
    ),
    ("a group does not wait for what it reads", |_, groups| {
        let waits = groups.iter().any(|g| !g.deps.is_empty());
        groups.iter_mut().for_each(|g| g.deps.clear());
        groups.reverse();
        waits
    }),
    ("two groups wait for each other", |_, groups| {
        let waits = groups.iter().position(|g| !g.deps.is_empty());
        waits.is_some_and(|g| {
            let before = groups[g].deps[0];
            groups[before].deps.push(g);
            true
        })
    }),
    ("a value is read that no group stores", |_, groups| {
        let stored: Vec<usize> = groups.iter().flat_map(|g| &g.roots).map(|r| r.0).collect();
        groups.iter_mut().any(|g| {
            let inside = g.members.iter().find(|m| !stored.contains(m)).copied();
            inside.is_some_and(|m| g.loaded.insert(m))
        })
    }),
    ("a product reads its operand turned", |_, groups| {
        change_operand(groups, |strides| {
            let n = strides.len();
            let swaps = n > 1 && strides[n - 1] != strides[n - 2];
            if swaps {
                strides.swap(n - 1, n - 2);
            }
            swaps
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
                let long = |d: &Dim| d.as_const().is_some_and(|n| n > 1);
                let at = flow.nodes[*v].shape.iter().rposition(long);
                at.is_some_and(|at| {
                    map[at] = Affine::zero();
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
    // A library kernel alone has no map of its own.
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

/// Lowers a graph with a change of its groups; `None` if the change does not apply.
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

/// True if a program gives the right results.
fn is_right(graph: &Graph, program: &Program, inputs: &[Array], right: &[Option<Array>]) -> bool {
    let symbols = symbol_values(graph, inputs).expect("symbols of inputs");
    checked(graph, program);
    let Some(found) = run(program, inputs, &symbols, Engine::Points) else {
        return false;
    };
    found.iter().zip(right).all(|pair| match pair {
        (Some(a), Some(b)) => same(&a.to_f64(), &b.to_f64()),
        (None, None) => true,
        _ => false,
    })
}

fn same(a: &[f64], b: &[f64]) -> bool {
    let finite = b.iter().filter(|x| x.is_finite());
    let size = finite.fold(1.0f64, |m, x| m.max(x.abs()));
    let near =
        |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-2 * size;
    a.len() == b.len() && a.iter().zip(b).all(near)
}

#[test]
fn wrong_groups_are_caught() {
    let config = Config {
        control_flow: false,
        empty: false,
        ..Config::default()
    };
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut planted = vec![0; BUGS.len()];
    let mut caught = vec![0; BUGS.len()];
    for seed in 0..240 {
        let graph = decomposed(&config.graph(seed));
        let inputs = random_inputs(&graph, seed);
        let symbols = symbol_values(&graph, &inputs).expect("symbols of inputs");
        let program = crate::lower(&graph, &Options::default()).expect("a graph that lowers");
        let right = run(&program, &inputs, &symbols, Engine::Points).expect("no data errors");
        assert!(is_right(&graph, &program, &inputs, &right), "seed {seed}");
        for (i, (_, bug)) in BUGS.iter().enumerate() {
            let passes = catch_unwind(AssertUnwindSafe(|| match lower_changed(&graph, *bug) {
                None => None,
                Some(Err(_)) => Some(false),
                Some(Ok(program)) => Some(is_right(&graph, &program, &inputs, &right)),
            }));
            // A panic is how these suites fail.
            let Some(right) = passes.unwrap_or(Some(false)) else {
                continue;
            };
            planted[i] += 1;
            caught[i] += !right as u64;
        }
    }
    std::panic::set_hook(quiet);
    for (i, (name, _)) in BUGS.iter().enumerate() {
        println!("{name}: planted {} times, caught {}", planted[i], caught[i]);
    }
    // Some are without effect in a program: nothing reads what they change.
    let missed: Vec<&str> = (0..BUGS.len())
        .filter(|i| caught[*i] == 0)
        .map(|i| BUGS[i].0)
        .collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

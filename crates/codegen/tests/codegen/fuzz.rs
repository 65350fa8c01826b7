//! Random programs: fused, unfused and the reference agree.

use crate::run::{Engine, decompose, lower_checked, run};
use kiln_base::DType;
use kiln_codegen::{Layout, Options};
use kiln_ir::Graph;
use kiln_ir::eval::{Array, Mode, evaluate, symbol_values};
use kiln_ir::fuzz::{Config, random_inputs};

/// Returns the number in an environment variable, or a default.
pub fn env_number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Returns the number of random programs.
fn program_count() -> u64 {
    env_number("KILN_FUZZ", 300)
}

pub fn config() -> Config {
    Config {
        control_flow: false,
        empty: false,
        ..Config::default()
    }
}

/// Returns the machine epsilon of a dtype.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / 1024.0,
        DType::BF16 => 1.0 / 128.0,
        DType::F32 => f32::EPSILON as f64,
        _ => f64::EPSILON,
    }
}

/// Returns the largest machine epsilon of the float dtypes in a graph.
pub fn max_epsilon(graph: &Graph) -> f64 {
    let facts = graph.iter().flat_map(|(_, n)| &n.facts);
    let floats = facts.filter(|f| f.dtype.is_float());
    floats.map(|f| epsilon(f.dtype)).fold(0.0, f64::max)
}

/// Returns a description of the first wrong element of `got`. The tolerance is 16 times the error of the references that
/// round to every node's dtype, before and after decomposition, and 64 `eps` of the largest element.
pub fn difference(
    got: &Array,
    rounded: &Array,
    decomposed: &Array,
    exact: &Array,
    eps: f64,
) -> Option<String> {
    assert_eq!(
        (got.dtype(), got.shape()),
        (rounded.dtype(), rounded.shape())
    );
    if !got.dtype().is_float() {
        let (g, w) = (got.ints().unwrap(), rounded.ints().unwrap());
        let at = (0..g.len()).find(|i| g[*i] != w[*i])?;
        return Some(format!("element {at} is {}, expected {}", g[at], w[at]));
    }
    let (g, r, e) = (got.to_f64(), rounded.to_f64(), exact.to_f64());
    let d = decomposed.to_f64();
    let scale = e
        .iter()
        .chain(&r)
        .filter(|x| x.is_finite())
        .fold(0f64, |a, x| a.max(x.abs()));
    let at = (0..g.len()).find(|&i| {
        let rounding = (r[i] - e[i]).abs().max((d[i] - e[i]).abs());
        let limit = 16.0 * rounding + 64.0 * eps * (scale + 1.0);
        let same = |w: f64| g[i] == w || (g[i].is_nan() && w.is_nan()) || (g[i] - w).abs() <= limit;
        !same(r[i]) && !same(e[i])
    })?;
    Some(format!(
        "element {at} is {}, expected {} (in f64 {})",
        g[at], r[at], e[at]
    ))
}

pub fn show(graph: &Graph, program: &kiln_codegen::Program) {
    println!("{graph}");
    for t in &program.tasks {
        println!("{:?} {:?} {}", t.args, t.nodes, t.work.name());
        t.work.kernels().for_each(|k| println!("{k}"));
    }
}

fn check(seed: u64) -> Result<(), String> {
    let graph = config().graph(seed);
    let inputs = random_inputs(&graph, seed);
    agrees(&graph, &inputs)
}

/// Checks that the interpreters of Kernel IR and of tile programs agree with the reference, for some pairs of fusion and
/// layout.
pub fn agrees(graph: &Graph, inputs: &[Array]) -> Result<(), String> {
    let symbols = symbol_values(graph, inputs).unwrap();
    let rounded = evaluate(graph, inputs, &symbols, Mode::Rounded);
    let exact = evaluate(graph, inputs, &symbols, Mode::Exact);
    let (Ok(rounded), Ok(exact)) = (rounded, exact) else {
        return Err("the reference fails".into());
    };
    let decomposed = decompose(graph);
    let eps = max_epsilon(&decomposed);
    let steps =
        evaluate(&decomposed, inputs, &symbols, Mode::Rounded).map_err(|e| e.to_string())?;
    for (fuse, layout) in [
        (true, Layout::Auto),
        (true, Layout::ChannelsLast),
        (false, Layout::ChannelsLast),
    ] {
        let options = Options {
            fuse,
            layout,
            ..Options::default()
        };
        let program = lower_checked(&decomposed, &options);
        if std::env::var("KILN_SHOW").is_ok_and(|s| s == "all") {
            show(&decomposed, &program);
        }
        for engine in [Engine::Points, Engine::Tiles] {
            let got = run(&program, inputs, &symbols, engine);
            let got = got.ok_or("a false data error")?;
            for (o, g) in got.iter().enumerate() {
                let Some(g) = g else { continue };
                if let Some(d) = difference(g, &rounded[o], &steps[o], &exact[o], eps) {
                    if std::env::var("KILN_SHOW").is_ok() {
                        show(&decomposed, &program);
                    }
                    return Err(format!(
                        "fuse {fuse}, {layout:?}, {engine:?}, output {o}: {d}"
                    ));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn random_programs() {
    let first = env_number("KILN_SEED", 0);
    let mut failures = Vec::new();
    for seed in first..first + program_count() {
        let result = std::panic::catch_unwind(|| check(seed));
        let text = match result {
            Ok(Ok(())) => continue,
            Ok(Err(text)) => text,
            Err(p) => {
                let text = p.downcast_ref::<String>().cloned();
                format!("panic: {}", text.unwrap_or_else(|| "?".into()))
            }
        };
        failures.push(format!("seed {seed}: {text}"));
    }
    let shown: Vec<&str> = failures.iter().take(10).map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} fail\n{}",
        failures.len(),
        shown.join("\n")
    );
}

/// The random programs have every kind of kernel counted here.
#[test]
fn random_programs_cover_the_rules() {
    use kiln_plan::Kernel;
    use kiln_plan::tile::{Inst, Schedule, TileProgram};
    let mut counts = std::collections::BTreeMap::new();
    for seed in 0..program_count() {
        let program = lower_checked(&decompose(&config().graph(seed)), &Options::default());
        for l in &program.sequence().launches {
            let work = &program.tasks[l.tasks[0]].work;
            let prologues = work.prologues().iter().flatten().count();
            let mut count = |name: &'static str, holds: bool| {
                *counts.entry(name).or_insert(0) += holds as u32;
            };
            let tile = l.kernel.program();
            let is_not_tile = !matches!(*l.kernel, Kernel::Tile(_));
            count("epilogue", is_not_tile && tile.is_some());
            count("prologue", prologues > 0);
            let rows = |p: &TileProgram| p.schedule == Schedule::Rows;
            count("epilogue of rows", is_not_tile && tile.is_some_and(rows));
            count("scan", matches!(*l.kernel, Kernel::Scan(_)));
            count("arg_sort", matches!(*l.kernel, Kernel::ArgSort(_)));
            if let Kernel::Scatter(s) = &*l.kernel {
                count("scatter", true);
                count("scatter in place", !l.in_place.is_empty());
                count("scatter by a view", s.index.strides.iter().any(|d| d.is(0)));
            }
            let has_serial_axes = work.kernels().any(|k| k.serial > 0);
            count("serial axes", has_serial_axes);
            count("in place", !l.in_place.is_empty());
            count(
                "several results",
                l.written.iter().filter(|w| **w).count() > 1,
            );
            let Some(p) = tile else { continue };
            count("rows", p.schedule == Schedule::Rows);
            count(
                "lanes over inner",
                p.schedule == Schedule::Lanes && !p.inner.is_empty(),
            );
            count(
                "several inner loops",
                p.stages.iter().filter(|s| s.over_inner).count() > 1,
            );
            count("row slot", !p.slots.is_empty());
            count("bounds", p.accesses.iter().any(|a| !a.bounds.is_empty()));
            for inst in p.stages.iter().flat_map(|s| &s.code) {
                count("dynamic", matches!(inst, Inst::LoadAt { .. }));
                count("random", matches!(inst, Inst::Random { .. }));
                count("arg", matches!(inst, Inst::ArgReduce { .. }));
            }
        }
    }
    for (name, times) in &counts {
        assert!(*times > 0, "{name} never happens: {counts:?}");
    }
}

//! The tolerance of an engine's results against the reference.
//!
//! The tolerance of an element is derived, not chosen. It is a small multiple of two errors, plus the rounding of one
//! result. The first is the error of rounding each op to its dtype (there, and at most anywhere in the tensor). The
//! second is the effect of one rounding of every input, which bounds how far sums that the reference carries exactly
//! may drift. Errors that cancel where every op rounds to the nearest need not cancel in an engine, which adds in
//! another order and keeps f16 and bf16 wider between some ops; so programs are rounded stochastically too. An op
//! that only moves values (a cast to a wider type, a view) has the rounding of its operand.
//!
//! Where floats become discrete (rounded to integers, compared, sorted), a float within its own tolerance of an
//! [edge](edges) may fall on either side of it. Two more runs move those floats by their tolerance, one to each side.
//! A result may be as far off as it is in these runs. Integers that no run changes must be equal.

use super::{Array, Data, EvalError, Mode, edges, eval_node, find, stochastic, symbol_values};
use crate::{Fact, Graph, Node, Op, Pw, Value};
use kiln_base::prim::SPLIT_MIX_STEP;
use kiln_base::{DType, Float, round_float};
use smallvec::SmallVec;
use std::borrow::Cow;

/// The reference's results for a graph with some inputs.
pub struct Oracle {
    outputs: Vec<Expected>,
}

/// The results of the reference's runs for a value.
struct Expected {
    rounded: Array,
    exact: Array,
    /// Runs in which each op rounds up or down at random.
    noisy: Vec<Array>,
    /// Runs with nudged inputs.
    nudged: Vec<Array>,
    /// Runs in which floats near edges fall on the other side.
    crossed: Vec<Array>,
    /// The rounding of the narrowest type that the value was computed in.
    compute: f64,
    /// The magnitude of the values that it was computed from.
    scale: f64,
    /// The rounding of one result.
    unit: f64,
    /// True if it depends on positions in an order. An error of one position there is as large as any other.
    ordered: bool,
}

/// A run of the reference.
struct Run<'a> {
    kind: Kind,
    inputs: Cow<'a, [Array]>,
    /// The values of every node.
    values: Vec<Vec<Array>>,
    /// True if the run met a data error, because data at an edge crossed it. The run is then ignored.
    failed: bool,
}

#[derive(Copy, Clone, PartialEq)]
enum Kind {
    Exact,
    Rounded,
    Strewn(u64),
    Nudged,
    /// True to cross edges upwards.
    Crossed(bool),
}

/// The distance of a result from the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deviation {
    /// The largest absolute difference.
    pub max_abs: f64,
    /// The largest relative difference, where the reference isn't 0.
    pub max_rel: f64,
    /// The largest difference in units of the last place of the result's dtype.
    pub max_ulp: f64,
    /// The largest ratio of a difference to its tolerance; results are right up to 1.
    pub ratio: f64,
    /// The row-major position, the value and the reference's value of the element with the largest ratio; `None` for
    /// an empty tensor.
    pub worst: Option<(usize, f64, f64)>,
}

impl Deviation {
    /// True if the result is within the tolerance.
    pub fn is_right(&self) -> bool {
        self.ratio <= 1.0
    }

    /// Returns the maximum of both deviations, for each measure.
    pub fn max(self, other: Deviation) -> Deviation {
        let worst = match other.ratio > self.ratio {
            true => other.worst,
            false => self.worst,
        };
        Deviation {
            max_abs: self.max_abs.max(other.max_abs),
            max_rel: self.max_rel.max(other.max_rel),
            max_ulp: self.max_ulp.max(other.max_ulp),
            ratio: self.ratio.max(other.ratio),
            worst,
        }
    }
}

impl Oracle {
    /// Evaluates a graph. Values smaller than `min_scale` in magnitude count as sums of values of magnitude `min_scale`
    /// that cancelled.
    ///
    /// # Errors
    /// If the graph doesn't take these inputs, is too large for the reference, or on a data error.
    pub fn new(graph: &Graph, inputs: &[Array], min_scale: f64) -> Result<Oracle, EvalError> {
        let symbols = symbol_values(graph, inputs)?;
        Oracle::with_symbols(graph, inputs, &symbols, min_scale)
    }

    /// [`Oracle::new`] for symbols that the inputs alone don't give.
    ///
    /// # Errors
    /// As for [`Oracle::new`].
    pub fn with_symbols(
        graph: &Graph,
        inputs: &[Array],
        symbols: &[i64],
        min_scale: f64,
    ) -> Result<Oracle, EvalError> {
        super::check_inputs(graph, inputs, symbols)?;
        let mut uses = super::count_uses(graph)?;
        let exact = edges::exact(graph);
        let (compute, ordered) = (coarsest(graph), ordered(graph));
        let units = units(graph);
        let crosses = |node: &Node| {
            edges::has_edges(&node.op) && !node.inputs.iter().all(|v| exact[v.node.index()])
        };
        let mut runs = runs(graph, inputs, graph.iter().any(|(_, n)| crosses(n)));
        // The magnitudes of the values that each node's were selected from, which may be larger than its own.
        let mut scales = vec![min_scale; graph.len()];
        let expected = |runs: &[Run], scales: &[f64], v: Value| {
            let i = v.node.index();
            Expected::new(runs, v, compute[i], scales[i], units[i], ordered[i])
        };
        for (id, node) in graph.iter() {
            if uses[id.index()] == 0 {
                continue;
            }
            let mut off = Vec::new();
            if crosses(node) {
                for v in &node.inputs {
                    let inexact = !exact[v.node.index()] && graph.fact(*v).dtype.is_float();
                    off.push(match inexact {
                        true => Some(expected(&runs, &scales, *v)?.uncertain()),
                        false => None,
                    });
                }
                settle_equals(&runs, node, &mut off)?;
            }
            for run in runs.iter_mut().filter(|r| !r.failed) {
                match (run.step(node, symbols, &off), run.kind) {
                    (Ok(values), _) => run.values[id.index()] = values,
                    (Err(e), Kind::Exact | Kind::Rounded) => return Err(e.at(id)),
                    (Err(_), _) => run.failed = true,
                }
            }
            if selects(&node.op) {
                for v in &node.inputs {
                    let operand = largest(find(&runs[0].values, *v)?, scales[v.node.index()]);
                    scales[id.index()] = scales[id.index()].max(operand);
                }
            }
            for v in &node.inputs {
                let reads = &mut uses[v.node.index()];
                *reads -= 1;
                if *reads == 0 {
                    runs.iter_mut()
                        .for_each(|r| r.values[v.node.index()] = vec![]);
                }
            }
        }
        let outputs = graph
            .outputs
            .iter()
            .map(|o| expected(&runs, &scales, o.value));
        Ok(Oracle {
            outputs: outputs.collect::<Result<_, _>>()?,
        })
    }

    /// The number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// The deviation of an engine's output `i` from the reference.
    ///
    /// # Errors
    /// If its dtype or shape differs.
    pub fn compare(&self, i: usize, got: &Array) -> Result<Deviation, String> {
        let expected = &self.outputs[i];
        let (shape, dtype) = (expected.rounded.shape(), expected.rounded.dtype());
        if got.shape() != shape || got.dtype() != dtype {
            let got = format!("{}{:?}", got.dtype(), got.shape());
            return Err(format!("{got} instead of {dtype}{shape:?}"));
        }
        Ok(match (got.ints(), expected.rounded.ints()) {
            (Some(got), Some(want)) => expected.integers(got, want),
            _ => expected.floats(&got.to_f64()),
        })
    }
}

/// The runs of a graph: the exact one and the rounded one, then those that show how far off a right result may be.
fn runs<'a>(graph: &Graph, inputs: &'a [Array], crosses: bool) -> Vec<Run<'a>> {
    let narrow = |f: &Fact| f.dtype.is_float() && f.dtype != DType::F64;
    let mut kinds = vec![Kind::Exact, Kind::Rounded];
    if graph.iter().any(|(_, n)| n.facts.iter().any(narrow)) {
        kinds.extend((0..3).map(Kind::Strewn));
    }
    kinds.extend([Kind::Nudged; 3]);
    if crosses {
        kinds.extend([true, false].map(Kind::Crossed));
    }
    let mut seed = 1;
    let run = |kind| Run {
        kind,
        inputs: match kind {
            Kind::Nudged => nudge(inputs, &mut seed).into(),
            _ => inputs.into(),
        },
        values: vec![vec![]; graph.len()],
        failed: false,
    };
    kinds.into_iter().map(run).collect()
}

impl Run<'_> {
    /// Computes the outputs of a node. If this run crosses edges, floats that are within `off` of an edge cross it.
    fn step(
        &self,
        node: &Node,
        symbols: &[i64],
        off: &[Option<Vec<f64>>],
    ) -> Result<Vec<Array>, EvalError> {
        let mode = match self.kind {
            Kind::Exact | Kind::Nudged | Kind::Crossed(_) => Mode::Exact,
            Kind::Rounded => Mode::Rounded,
            Kind::Strewn(seed) => Mode::Stochastic { seed },
        };
        let operands = node.inputs.iter().map(|v| find(&self.values, *v));
        let operands = operands.collect::<Result<SmallVec<[&Array; 3]>, EvalError>>()?;
        let eval = |operands: &[&Array]| eval_node(node, &self.inputs, operands, symbols, mode);
        let (Kind::Crossed(up), false) = (self.kind, off.is_empty()) else {
            return eval(&operands);
        };
        let shifted = edges::crossing(&node.op, &operands, off, up);
        let shifted: SmallVec<[&Array; 3]> = shifted.iter().collect();
        let mut crossed = eval(&shifted)?;
        if edges::is_remainder(&node.op) && node.fact().dtype.is_float() {
            crossed[0] = edges::jumped(&eval(&operands)?[0], &crossed[0], operands[1]);
        }
        Ok(crossed)
    }
}

/// Two operands that are equal in every run are the same float, which an engine compares with itself.
fn settle_equals(runs: &[Run], node: &Node, off: &mut [Option<Vec<f64>>]) -> Result<(), EvalError> {
    let (Op::Pointwise(_), [a, b]) = (&node.op, &node.inputs[..]) else {
        return Ok(());
    };
    let mut equal: Vec<bool> = Vec::new();
    for run in runs.iter().filter(|r| !r.failed) {
        let [a, b] = [
            find(&run.values, *a)?.to_f64(),
            find(&run.values, *b)?.to_f64(),
        ];
        equal.resize(a.len(), true);
        let pairs = equal.iter_mut().zip(a.iter().zip(&b));
        pairs.for_each(|(equal, (a, b))| *equal &= a == b);
    }
    for off in off.iter_mut().flatten() {
        let equal = off.iter_mut().zip(&equal).filter(|(_, equal)| **equal);
        equal.for_each(|(off, _)| *off = 0.0);
    }
    Ok(())
}

impl Expected {
    fn new(
        runs: &[Run],
        v: Value,
        compute: f64,
        min_scale: f64,
        unit_of_values: f64,
        ordered: bool,
    ) -> Result<Expected, EvalError> {
        let values_of = |kind: &dyn Fn(Kind) -> bool| -> Result<Vec<Array>, EvalError> {
            let runs = runs.iter().filter(|r| kind(r.kind) && !r.failed);
            runs.map(|r| find(&r.values, v).cloned()).collect()
        };
        let exact = values_of(&|k| k == Kind::Exact)?.remove(0);
        Ok(Expected {
            scale: largest(&exact, min_scale),
            unit: unit(exact.dtype()).max(unit_of_values),
            compute,
            ordered,
            rounded: values_of(&|k| k == Kind::Rounded)?.remove(0),
            noisy: values_of(&|k| matches!(k, Kind::Strewn(_)))?,
            nudged: values_of(&|k| k == Kind::Nudged)?,
            crossed: values_of(&|k| matches!(k, Kind::Crossed(_)))?,
            exact,
        })
    }

    fn integers(&self, got: &[i64], want: &[i64]) -> Deviation {
        let runs = self.nudged.iter().chain(&self.noisy).chain(&self.crossed);
        let runs = runs.chain([&self.exact]).filter_map(Array::ints);
        let mut errors = vec![0.0f64; want.len()];
        for run in runs {
            for (errors, (o, w)) in errors.iter_mut().zip(run.iter().zip(want)) {
                *errors = errors.max((*o as f64 - *w as f64).abs());
            }
        }
        let max_error = errors.iter().fold(0.0, |m: f64, x| m.max(*x));
        let mut deviation = Deviation::default();
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let error = (*g as f64 - *w as f64).abs();
            let ratio = match errors[i] > 0.0 {
                _ if g == w => 0.0,
                true if self.ordered => 0.0,
                true => error / (2.0 * max_error),
                false => f64::INFINITY,
            };
            deviation.add(i, *g as f64, *w as f64, error, ratio);
            deviation.max_ulp = deviation.max_ulp.max(error);
        }
        deviation
    }

    fn floats(&self, got: &[f64]) -> Deviation {
        let (rounded, exact) = (self.rounded.to_f64(), self.exact.to_f64());
        let unit = unit(self.rounded.dtype());
        let tolerances = self.tolerances();
        let mut deviation = Deviation::default();
        for (i, ((g, r), e)) in got.iter().zip(&rounded).zip(&exact).enumerate() {
            let stored = round_float(*e, self.rounded.dtype());
            if !r.is_finite() || !stored.is_finite() {
                // Where rounding alone overflows or changes the sign, any answer is right.
                let is_same = |x: f64, y: f64| x == y || x.is_nan() && y.is_nan();
                let other_runs = self.noisy.iter().chain(&self.nudged);
                let mut other_runs = other_runs.map(|run| run.floats().unwrap_or(&[])[i]);
                let is_right = is_same(*g, *r)
                    || is_same(*g, stored)
                    || r.is_finite() != stored.is_finite()
                    || other_runs.any(|x| !is_same(x, *r));
                let error = if is_right { 0.0 } else { f64::INFINITY };
                deviation.add(i, *g, *e, error, error);
                continue;
            }
            let error = (g - e).abs();
            let error = if error.is_nan() { f64::INFINITY } else { error };
            deviation.add(i, *g, *e, error, error / tolerances[i]);
            let ulp = e.abs().max(f64::MIN_POSITIVE).log2().floor().exp2() * unit;
            deviation.max_ulp = deviation.max_ulp.max(error / ulp);
        }
        deviation
    }

    /// The tolerance of each float.
    fn tolerances(&self) -> Vec<f64> {
        let exact = self.exact.to_f64();
        let errors = |runs: &[&Array]| -> Vec<f64> {
            let mut errors = vec![0.0f64; exact.len()];
            for run in runs {
                let pairs = errors.iter_mut().zip(run.to_f64()).zip(&exact);
                pairs.for_each(|((errors, x), e)| *errors = errors.max(finite((x - e).abs())));
            }
            errors
        };
        let rounded: Vec<&Array> = self.noisy.iter().chain([&self.rounded]).collect();
        let rounded = errors(&rounded);
        let nudged = errors(&self.nudged.iter().collect::<Vec<_>>());
        let crossed = errors(&self.crossed.iter().collect::<Vec<_>>());
        // Errors of floats that crossed an edge do not count here.
        let smooth = rounded.iter().zip(&crossed).filter(|(_, c)| **c == 0.0);
        let max_smooth = smooth.fold(0.0, |m: f64, (x, _)| m.max(*x));
        let max_crossed = crossed.iter().fold(0.0, |m: f64, x| m.max(*x));
        let tolerance = |i: usize| {
            let floor = self.unit * exact[i].abs() + 32.0 * self.compute * self.scale;
            // In these runs all floats at edges cross them; in an engine, some do.
            let crossed = if crossed[i] > 0.0 {
                2.0 * max_crossed
            } else {
                0.0
            };
            8.0 * (rounded[i] + nudged[i]) + 4.0 * max_smooth + crossed + floor + 1e-30
        };
        (0..exact.len()).map(tolerance).collect()
    }

    /// The tolerance of each float, 0 for those that are the same in every run.
    fn uncertain(&self) -> Vec<f64> {
        let runs = self.nudged.iter().chain(&self.noisy).chain(&self.crossed);
        let runs: Vec<Vec<f64>> = runs.chain([&self.rounded]).map(Array::to_f64).collect();
        let exact = self.exact.to_f64();
        let mut tolerances = self.tolerances();
        for (i, tolerance) in tolerances.iter_mut().enumerate() {
            if runs.iter().all(|o| o[i] == exact[i]) || !exact[i].is_finite() {
                *tolerance = 0.0;
            }
        }
        tolerances
    }
}

impl Deviation {
    fn add(&mut self, i: usize, got: f64, want: f64, error: f64, ratio: f64) {
        self.max_abs = self.max_abs.max(error);
        if want != 0.0 && want.is_finite() {
            self.max_rel = self.max_rel.max(error / want.abs());
        }
        if self.worst.is_none() || ratio > self.ratio {
            self.worst = Some((i, got, want));
        }
        self.ratio = self.ratio.max(ratio);
    }
}

/// The coarsest rounding among the floats that the values of each node depend on.
fn coarsest(graph: &Graph) -> Vec<f64> {
    let mut coarsest = vec![f64::EPSILON; graph.len()];
    for (id, node) in graph.iter() {
        let floats = node.facts.iter().filter(|f| f.dtype.is_float());
        let own_units = floats.map(|f| compute_unit(f.dtype));
        let operand_units = node.inputs.iter().map(|v| coarsest[v.node.index()]);
        coarsest[id.index()] = own_units.chain(operand_units).fold(f64::EPSILON, f64::max);
    }
    coarsest
}

/// The rounding of the results of each node; 0 where the node holds or moves values that nothing computed.
fn units(graph: &Graph) -> Vec<f64> {
    let mut units = vec![0.0; graph.len()];
    for (id, node) in graph.iter() {
        let floats = node.facts.iter().filter(|f| f.dtype.is_float());
        units[id.index()] = match &node.op {
            Op::Input(_) | Op::Constant(_) | Op::Full(_) | Op::Iota(_) => 0.0,
            op if selects(op) || matches!(op, Op::Cast(_)) => {
                let from = node.inputs.iter().map(|v| units[v.node.index()]);
                match from.fold(0.0, f64::max) {
                    0.0 => 0.0,
                    moved => floats.map(|f| unit(f.dtype)).fold(moved, f64::max),
                }
            }
            _ => floats.map(|f| unit(f.dtype)).fold(0.0, f64::max),
        };
    }
    units
}

/// For each node, true if its values depend on positions in an order.
fn ordered(graph: &Graph) -> Vec<bool> {
    let mut ordered = vec![false; graph.len()];
    for (id, node) in graph.iter() {
        let orders = matches!(node.op, Op::ArgReduce(_) | Op::ArgSort(_));
        ordered[id.index()] = orders || node.inputs.iter().any(|v| ordered[v.node.index()]);
    }
    ordered
}

/// True if the results of an op are some of its operands' values.
fn selects(op: &Op) -> bool {
    match op {
        Op::Pointwise(row) => matches!(row.0, Pw::Clamp | Pw::Minimum | Pw::Maximum),
        Op::Broadcast(_) | Op::Permute(_) | Op::Reshape(_) | Op::Slice(_) => true,
        _ => false,
    }
}

/// The magnitude of the largest finite float, at least `min`.
fn largest(values: &Array, min: f64) -> f64 {
    let values = values.floats().unwrap_or(&[]);
    values.iter().fold(min, |m, x| m.max(finite(x.abs())))
}

fn finite(x: f64) -> f64 {
    if x.is_finite() { x } else { 0.0 }
}

/// The distance from 1 to the next number.
fn unit(dtype: DType) -> f64 {
    dtype.float().map_or(f64::EPSILON, Float::epsilon)
}

/// The distance from 1 to the next number in the type that kernels compute in.
fn compute_unit(dtype: DType) -> f64 {
    unit(if dtype == DType::F64 {
        DType::F64
    } else {
        DType::F32
    })
}

/// The inputs with every float off by up to two roundings of its compute type.
fn nudge(inputs: &[Array], seed: &mut u64) -> Vec<Array> {
    let mut random = || {
        *seed = seed.wrapping_add(SPLIT_MIX_STEP);
        stochastic::random(seed.wrapping_sub(SPLIT_MIX_STEP))
    };
    let mut moved = |array: &Array| {
        let size = 2.0 * compute_unit(array.dtype());
        let floats = array.floats()?.iter();
        let data = floats.map(|x| x * (1.0 + size * (2.0 * random() - 1.0)));
        Array::new(array.dtype(), array.shape(), Data::Float(data.collect())).ok()
    };
    let moved = inputs.iter().map(|a| moved(a).unwrap_or_else(|| a.clone()));
    moved.collect()
}

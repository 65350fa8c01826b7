//! How far an engine's results may lie from the reference.
//!
//! The tolerance of an element is derived, not chosen: a small multiple of the error that rounding each
//! op to its dtype makes (there, and at most anywhere in the tensor) and of what one rounding of every
//! input does to it (which bounds how far sums that the reference carries exactly may drift), plus the
//! rounding of one result. Engines keep f16 and bf16 wider between some ops, so that errors which cancel
//! where every op rounds to the nearest don't cancel in theirs; so programs with these are rounded
//! stochastically too. Integers must be equal, but for those that such roundings change too: the
//! index of a maximum among two near-equal values, the truncation of a float next to an integer.

use super::{Array, Data, EvalError, Mode, evaluate, symbol_values};
use crate::{Fact, Graph, Value};
use kiln_base::DType;

/// What the reference says of a graph with some inputs.
pub struct Oracle {
    outputs: Vec<Expected>,
}

struct Expected {
    rounded: Array,
    exact: Array,
    /// The outputs where each op rounds up or down at random.
    strewn: Vec<Array>,
    /// The outputs for nudged inputs.
    nudged: Vec<Array>,
    /// The rounding of the narrowest type that it was computed in.
    compute: f64,
    /// The size of the values that it was computed from.
    scale: f64,
}

/// How far a result is from the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deviation {
    /// The largest absolute difference.
    pub max_abs: f64,
    /// The largest difference as a part of the reference's value, where that isn't 0.
    pub max_rel: f64,
    /// The largest difference in units of the last place of the result's dtype.
    pub max_ulp: f64,
    /// The largest difference as a part of its tolerance: the result is right up to 1.
    pub ratio: f64,
    /// The row-major position of the element that is furthest out of its tolerance, what was found
    /// there, and what the reference says; `None` for an empty tensor.
    pub worst: Option<(usize, f64, f64)>,
}

impl Deviation {
    /// Whether the result is within the tolerance.
    pub fn is_right(&self) -> bool {
        self.ratio <= 1.0
    }

    /// The deviation of both together.
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
    /// Evaluates a graph. Values below `least` in size count as made of some of size `least`, which
    /// cancelled.
    ///
    /// # Errors
    /// If the graph doesn't take these inputs, is too large for the reference, or on a data error.
    pub fn new(graph: &Graph, inputs: &[Array], least: f64) -> Result<Oracle, EvalError> {
        let symbols = symbol_values(graph, inputs)?;
        Oracle::with_symbols(graph, inputs, &symbols, least)
    }

    /// [`Oracle::new`] for symbols that the inputs alone don't give.
    ///
    /// # Errors
    /// As for [`Oracle::new`].
    pub fn with_symbols(
        graph: &Graph,
        inputs: &[Array],
        symbols: &[i64],
        least: f64,
    ) -> Result<Oracle, EvalError> {
        let eval = |inputs: &[Array], mode| evaluate(graph, inputs, symbols, mode);
        let exact = eval(inputs, Mode::Exact)?;
        let rounded = eval(inputs, Mode::Rounded)?;
        let mut strewn: Vec<Vec<Array>> = vec![Vec::new(); exact.len()];
        let narrow = |f: &Fact| matches!(f.dtype, DType::F16 | DType::BF16);
        let seeds = match graph.iter().any(|(_, n)| n.facts.iter().any(narrow)) {
            true => 0..3,
            false => 0..0,
        };
        for seed in seeds {
            // Other indices may be data errors.
            if let Ok(outputs) = eval(inputs, Mode::Stochastic { seed }) {
                for (list, output) in strewn.iter_mut().zip(outputs) {
                    list.push(output);
                }
            }
        }
        let mut random = Random(1);
        let mut nudged: Vec<Vec<Array>> = vec![Vec::new(); exact.len()];
        for _ in 0..3 {
            // A nudge may make a data error of data that is right at an edge.
            if let Ok(outputs) = eval(&nudge(inputs, &mut random), Mode::Exact) {
                for (list, output) in nudged.iter_mut().zip(outputs) {
                    list.push(output);
                }
            }
        }
        let parts = exact
            .into_iter()
            .zip(rounded)
            .zip(strewn.into_iter().zip(nudged));
        let expected =
            parts
                .zip(&graph.outputs)
                .map(|(((exact, rounded), (strewn, nudged)), o)| {
                    let values = exact.floats().unwrap_or(&[]);
                    Expected {
                        scale: values.iter().fold(least, |m, x| m.max(finite(x.abs()))),
                        compute: coarsest(graph, o.value),
                        rounded,
                        exact,
                        strewn,
                        nudged,
                    }
                });
        Ok(Oracle {
            outputs: expected.collect(),
        })
    }

    /// How many outputs there are.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// How far an engine's output `i` is from the reference.
    ///
    /// # Errors
    /// If its dtype or shape is another.
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

impl Expected {
    fn integers(&self, got: &[i64], want: &[i64]) -> Deviation {
        let mut found = Deviation::default();
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let settled = |other: &Array| other.ints().is_some_and(|o| o[i] == *w);
            let right = g == w
                || !self
                    .nudged
                    .iter()
                    .chain(&self.strewn)
                    .chain([&self.exact])
                    .all(settled);
            let error = (*g as f64 - *w as f64).abs();
            found.add(
                i,
                *g as f64,
                *w as f64,
                error,
                if right { 0.0 } else { f64::INFINITY },
            );
            found.max_ulp = found.max_ulp.max(error);
        }
        found
    }

    fn floats(&self, got: &[f64]) -> Deviation {
        let (rounded, exact) = (self.rounded.to_f64(), self.exact.to_f64());
        let nudged: Vec<Vec<f64>> = self.nudged.iter().map(Array::to_f64).collect();
        let strewn: Vec<Vec<f64>> = self.strewn.iter().map(Array::to_f64).collect();
        let roundings = |i: usize| {
            let of = |x: f64| finite((x - exact[i]).abs());
            strewn.iter().fold(of(rounded[i]), |m, s| m.max(of(s[i])))
        };
        let worst = (0..exact.len()).fold(0.0, |m: f64, i| m.max(roundings(i)));
        let unit = unit(self.rounded.dtype());
        let mut found = Deviation::default();
        for (i, ((g, r), e)) in got.iter().zip(&rounded).zip(&exact).enumerate() {
            if !r.is_finite() || !e.is_finite() {
                // Where rounding alone overflows, either answer is right.
                let is = |x: f64| *g == x || g.is_nan() && x.is_nan();
                let right = is(*r) || is(*e) || r.is_finite() != e.is_finite();
                let error = if right { 0.0 } else { f64::INFINITY };
                found.add(i, *g, *e, error, error);
                continue;
            }
            let moved = nudged
                .iter()
                .fold(0.0, |m: f64, n| m.max(finite((n[i] - e).abs())));
            let floor = unit * e.abs() + 32.0 * self.compute * self.scale;
            let tolerance = 8.0 * (roundings(i) + moved) + 4.0 * worst + floor + 1e-30;
            let error = (g - e).abs();
            let error = if error.is_nan() { f64::INFINITY } else { error };
            found.add(i, *g, *e, error, error / tolerance);
            let place = e.abs().max(f64::MIN_POSITIVE).log2().floor().exp2() * unit;
            found.max_ulp = found.max_ulp.max(error / place);
        }
        found
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

/// The coarsest rounding among the floats that a value depends on.
fn coarsest(graph: &Graph, value: Value) -> f64 {
    let mut needed = vec![false; graph.len()];
    needed[value.node.index()] = true;
    let mut coarsest = f64::EPSILON;
    let upto = graph.iter().rev();
    for (id, node) in upto.filter(|(id, _)| id.index() <= value.node.index()) {
        if needed[id.index()] {
            let inputs = node.inputs.iter();
            inputs.for_each(|v| needed[v.node.index()] = true);
            let floats = node.facts.iter().filter(|f| f.dtype.is_float());
            coarsest = floats.fold(coarsest, |c, f| c.max(compute_unit(f.dtype)));
        }
    }
    coarsest
}

fn finite(x: f64) -> f64 {
    if x.is_finite() { x } else { 0.0 }
}

/// The distance from 1 to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F32 => f32::EPSILON as f64,
        _ => f64::EPSILON,
    }
}

/// The same of the type that kernels compute in.
fn compute_unit(dtype: DType) -> f64 {
    unit(if dtype == DType::F64 {
        DType::F64
    } else {
        DType::F32
    })
}

/// The inputs with every float off by up to two roundings of its compute type.
fn nudge(inputs: &[Array], random: &mut Random) -> Vec<Array> {
    let mut moved = |array: &Array| {
        let size = 2.0 * compute_unit(array.dtype());
        let floats = array.floats()?.iter();
        let data = floats.map(|x| x * (1.0 + size * (2.0 * random.unit() - 1.0)));
        Array::new(array.dtype(), array.shape(), Data::Float(data.collect())).ok()
    };
    let moved = inputs.iter().map(|a| moved(a).unwrap_or_else(|| a.clone()));
    moved.collect()
}

/// A stream of numbers that is the same every time (SplitMix64: Steele et al., 2014).
struct Random(u64);

impl Random {
    /// A number from 0 up to but not including 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

//! Random numbers, inputs and other helpers that all tests share.

use kiln_ir::eval::{Array, Data};
use kiln_ir::{Graph, Loc, Value};

/// SplitMix64 (Steele et al., 2014).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn coin(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// A number in [-2, 2), sometimes one of the numbers that identities often overlook.
    pub fn float(&mut self) -> f64 {
        const SPECIAL: [f64; 7] = [
            0.0,
            -0.0,
            1.0,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e30,
        ];
        if self.coin(15) {
            return self.pick(&SPECIAL);
        }
        self.plain()
    }

    /// A number in [-2, 2).
    pub fn plain(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 51) as f64 - 2.0
    }
}

pub fn loc(line: u32) -> Loc {
    Loc::new("user.rs", line, 5)
}

pub fn shape_of(graph: &Graph, v: Value) -> Vec<usize> {
    (graph.fact(v).shape.iter())
        .map(|d| d.as_const().unwrap_or(2) as usize)
        .collect()
}

/// Values for the inputs of a graph without symbols.
pub fn random_inputs(graph: &Graph, rng: &mut Rng) -> Vec<Array> {
    (graph.inputs().into_iter())
        .map(|id| {
            let fact = graph.node(id).fact();
            let shape = shape_of(graph, id.value());
            let n = shape.iter().product();
            let data = if fact.dtype.is_float() {
                Data::Float((0..n).map(|_| rng.float() as f32 as f64).collect())
            } else {
                Data::Int((0..n).map(|_| rng.below(7) as i64 - 2).collect())
            };
            Array::new(fact.dtype, &shape, data).unwrap()
        })
        .collect()
}

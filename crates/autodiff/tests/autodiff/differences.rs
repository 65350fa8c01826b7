//! Central differences of a program in f64.

use kiln_autodiff::gradients;
use kiln_base::{DType, Dim};
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, OpError, Pw, Role, Shape, Value};

/// An operand of a program under test.
#[derive(Clone)]
pub struct Operand {
    pub array: Array,
}

impl Operand {
    pub fn floats(shape: &[usize], values: &[f64]) -> Operand {
        let array = Array::from_f64(DType::F64, shape, values).unwrap();
        Operand { array }
    }

    pub fn ints(shape: &[usize], values: &[i64]) -> Operand {
        let array = Array::from_i64(DType::I64, shape, values).unwrap();
        Operand { array }
    }

    pub fn random(rng: &mut Rng, shape: &[usize], low: f64, high: f64) -> Operand {
        let n = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|_| low + rng.unit() * (high - low)).collect();
        Operand::floats(shape, &values)
    }

    fn is_float(&self) -> bool {
        self.array.dtype().is_float()
    }
}

/// A program `Σ cotangent · f(operands)` and the gradients of its float operands.
struct Program {
    graph: Graph,
    inputs: Vec<Value>,
    total: Value,
}

fn weighted(b: &mut GraphBuilder<'_>, rng: &mut Rng, values: &[Value]) -> Result<Value, OpError> {
    let mut total = b.full(0.0, DType::F64, &[])?;
    for v in values {
        let shape: Shape = b.fact(v).shape;
        let sizes: Vec<usize> = shape
            .iter()
            .map(|d| d.as_const().unwrap() as usize)
            .collect();
        let n: usize = sizes.iter().product();
        let weights: Vec<f64> = (0..n).map(|_| rng.unit() * 2.0 - 1.0).collect();
        let op = kiln_ir::ops::Constant {
            dtype: DType::F64,
            shape: sizes,
            bytes: weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
        };
        let weights = b.op(op, &[])?;
        let product = b.pointwise(Pw::Mul, &[*v, weights])?;
        let axes: Vec<usize> = (0..shape.len()).collect();
        let sum = b.sum(&product, &axes)?;
        total = b.pointwise(Pw::Add, &[total, sum])?;
    }
    Ok(total)
}

impl Program {
    fn new(
        operands: &[Operand],
        rng: &mut Rng,
        f: impl FnOnce(&mut GraphBuilder<'_>, &[Value]) -> Result<Value, OpError>,
    ) -> Program {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let fact = |o: &Operand| Fact::new(o.array.dtype(), o.array.shape().iter().copied());
        let inputs: Vec<Value> = operands
            .iter()
            .map(|o| b.input(fact(o), Role::Data))
            .collect();
        let y = f(&mut b, &inputs).unwrap();
        let total = weighted(&mut b, rng, &[y]).unwrap();
        Program {
            graph,
            inputs,
            total,
        }
    }

    /// The gradients of the float operands, in order.
    fn differentiate(&mut self, operands: &[Operand]) -> Vec<(usize, Value)> {
        let floats: Vec<usize> = (0..operands.len())
            .filter(|i| operands[*i].is_float())
            .collect();
        let wanted: Vec<Value> = floats.iter().map(|i| self.inputs[*i]).collect();
        let mut b = GraphBuilder::new(&mut self.graph, Loc::UNKNOWN);
        let one = b.full(1.0, DType::F64, &[]).unwrap();
        let found = gradients(&mut self.graph, &[(self.total, one)], &wanted).unwrap();
        let pairs = floats.into_iter().zip(found);
        pairs.filter_map(|(i, g)| Some((i, g?))).collect()
    }

    fn value(&self, of: Value, operands: &[Operand]) -> Vec<f64> {
        let mut graph = self.graph.clone();
        graph.outputs.clear();
        graph.add_output(of);
        let arrays: Vec<Array> = operands.iter().map(|o| o.array.clone()).collect();
        let out = evaluate(&graph, &arrays, &[], Mode::Exact).unwrap();
        out[0].to_f64()
    }

    /// Checks the gradients of `total` against central differences.
    fn check(&self, what: &str, operands: &[Operand], found: &[(usize, Value)]) {
        for (i, g) in found {
            let got = self.value(*g, operands);
            let fact = self.graph.fact(*g);
            let sizes: Vec<Dim> = operands[*i]
                .array
                .shape()
                .iter()
                .map(|n| Dim::from(*n))
                .collect();
            assert_eq!(fact.shape[..], sizes[..], "{what}: gradient {i}");
            let x = operands[*i].array.to_f64();
            for at in 0..x.len() {
                let step = 1e-5 * x[at].abs().max(1.0);
                let moved = |by: f64| {
                    let mut values = x.clone();
                    values[at] += by;
                    let mut operands = operands.to_vec();
                    operands[*i] = Operand::floats(operands[*i].array.shape(), &values);
                    self.value(self.total, &operands)[0]
                };
                let wanted = (moved(step) - moved(-step)) / (2.0 * step);
                assert!(
                    (got[at] - wanted).abs() <= 1e-5 * (1.0 + wanted.abs()),
                    "{what}: gradient {i} at {at} is {}, differences give {wanted}",
                    got[at]
                );
            }
        }
    }
}

/// Checks the first and, with `twice`, the second derivatives of a program.
pub fn check(
    what: &str,
    operands: &[Operand],
    twice: bool,
    f: impl FnOnce(&mut GraphBuilder<'_>, &[Value]) -> Result<Value, OpError>,
) {
    check_orders(what, operands, 1 + usize::from(twice), f);
}

/// Checks the derivatives of a program up to an order.
pub fn check_orders(
    what: &str,
    operands: &[Operand],
    orders: usize,
    f: impl FnOnce(&mut GraphBuilder<'_>, &[Value]) -> Result<Value, OpError>,
) {
    let mut rng = Rng::new(what.len() as u64 + 17);
    let mut program = Program::new(operands, &mut rng, f);
    for order in 1..=orders {
        let found = program.differentiate(operands);
        program.check(&format!("{what}, order {order}"), operands, &found);
        if found.is_empty() {
            break;
        }
        let values: Vec<Value> = found.iter().map(|(_, g)| *g).collect();
        let mut b = GraphBuilder::new(&mut program.graph, Loc::UNKNOWN);
        program.total = weighted(&mut b, &mut rng, &values).unwrap();
    }
}

/// [`check`] for a single op.
pub fn check_op(what: &str, op: impl Into<Op>, operands: &[Operand]) {
    let op = op.into();
    check(what, operands, true, |b, x| b.op(op, x));
}

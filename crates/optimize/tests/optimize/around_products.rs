//! Planted products with a transposition, a reshape, biases and factors around them.

use crate::generate::Generator;
use crate::rng::shape_of;
use kiln_ir::ops::MatMul;
use kiln_ir::{Builder, DType, Dim, Fact, Pw, Role, Value};

/// A new parameter.
pub fn parameter(g: &mut Generator, shape: &[usize]) -> Value {
    let fact = Fact::new(DType::F32, shape.iter().copied());
    g.b().input(fact, Role::Parameter)
}

/// An f32 value as rows of up to three numbers, `[n, k]`.
pub fn rows(g: &mut Generator) -> Option<(Value, usize, usize)> {
    let x = g.any_of(DType::F32);
    let count = shape_of(&g.graph, x).iter().product::<usize>();
    let k = g.rng.pick(&[3, 2, 3, 1]);
    if count == 0 || count > 36 || !count.is_multiple_of(k) {
        return None;
    }
    let n = count / k;
    let shape = [Dim::from(n), Dim::from(k)];
    Some((g.b().reshape(&x, &shape).ok()?, n, k))
}

/// A product with a parameter, `[n, c]`.
pub fn product(g: &mut Generator) -> Option<(Value, usize, usize)> {
    let (x, n, k) = rows(g)?;
    let c = 1 + g.rng.below(4);
    let w = parameter(g, &[k, c]);
    Some((g.emit(MatMul {}, &[x, w])?, n, c))
}

/// permute(a · b).
pub fn transposed(g: &mut Generator) -> Option<Value> {
    let (y, ..) = product(g)?;
    g.b().permute(&y, &[1, 0]).ok()
}

/// One of the operations by which biases and factors are applied, in either order.
pub fn beside(g: &mut Generator, y: Value, c: Value) -> Option<Value> {
    let op = g.rng.pick(&[Pw::Add, Pw::Mul, Pw::Sub, Pw::Div, Pw::Add]);
    let operands = match op == Pw::Div || g.rng.coin(60) {
        true => [y, c],
        false => [c, y],
    };
    g.b().pointwise(op, &operands).ok()
}

/// reshape(a · b) + bias, with factors.
pub fn biased(g: &mut Generator) -> Option<Value> {
    let (y, n, c) = product(g)?;
    let mut y = g.b().reshape(&y, &[1, n, c].map(Dim::from)).ok()?;
    for _ in 0..1 + g.rng.below(3) {
        let bias = parameter(g, &[c]);
        y = beside(g, y, bias)?;
    }
    Some(y)
}

/// cast(reshape(a · b + bias)).
pub fn cast(g: &mut Generator) -> Option<Value> {
    let (mut y, n, c) = product(g)?;
    if g.rng.coin(50) {
        let bias = parameter(g, &[c]);
        y = beside(g, y, bias)?;
    }
    let y = g.b().reshape(&y, &[n, 1, c].map(Dim::from)).ok()?;
    let dtype = g.rng.pick(&[DType::F64, DType::I64]);
    g.b().cast(&y, dtype).ok()
}

//! Casts to and from floats of 8 bits.

use crate::eval::{Array, Data};
use crate::{Builder, Fact, Graph, GraphBuilder, Loc, Role, ops};
use kiln_base::DType;

/// Returns the casts of f32 numbers of every exponent to a float dtype of 8 bits, and of all its floats to f32, with
/// the inputs and the results. The f32 numbers have fractions around those of all these floats and of their midpoints.
pub fn float8_casts(dtype: DType) -> (Graph, [Array; 2], [Array; 2]) {
    let near_fractions =
        |high: u32| [0, 1, 0x7_ffff].map(|low| f32::from_bits(high << 19 | low).into());
    let singles: Vec<f64> = (0..1 << 13).flat_map(near_fractions).collect();
    let codes: Vec<u8> = (0..=255).collect();
    let narrow = |bytes: &[u8]| Array::from_bytes(dtype, &[bytes.len()], bytes).expect("its bytes");
    let wide = |numbers: Vec<f64>| {
        Array::new(DType::F32, &[numbers.len()], Data::Float(numbers)).expect("floats")
    };
    let results = [
        narrow(&dtype.float_bytes(&singles)),
        wide(dtype.floats(&codes)),
    ];
    let inputs = [wide(singles), narrow(&codes)];
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let casts = [0, 1].map(|i| {
        let fact = Fact::new(inputs[i].dtype(), [inputs[i].shape()[0]]);
        let x = b.input(fact, Role::Data);
        let cast = ops::Cast::to(results[i].dtype());
        b.op(cast, &[x]).expect("a cast")
    });
    casts.into_iter().for_each(|y| graph.add_output(y));
    (graph, inputs, results)
}

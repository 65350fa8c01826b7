use crate::{Launch, Layout, Options, lower};
use kiln_base::{Cpu, DType, Features, Machine, Scalar};
use kiln_ir::{Builder, Dim, Fact, Graph, GraphBuilder, Loc, OpError, Pw, Role, Shape, Value, ops};
use kiln_plan::{Algorithm, Kernel};

/// True if any of several chained convolutions with filters of 3×3 is transformed.
fn transforms(dtype: DType, level: Features) -> bool {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let mut y = b.input(Fact::new(dtype, [1, 64, 56, 56]), Role::Data);
    let w = b.input(Fact::new(dtype, [64, 64, 3, 3]), Role::Parameter);
    let conv = ops::Conv {
        stride: [1; 2].into_iter().collect(),
        padding: vec![(1, 1); 2],
        dilation: [1; 2].into_iter().collect(),
        groups: 1,
    };
    for _ in 0..3 {
        y = b.op(conv.clone(), &[y, w]).expect("fits");
    }
    graph.add_output(y);
    let options = Options {
        machine: Machine::Cpu(Cpu {
            level,
            ..Cpu::default()
        }),
        layout: Layout::ChannelsLast,
        ..Options::default()
    };
    let program = lower(&graph, &options).expect("is lowered").sequence();
    let by = |l: &Launch| l.kernel.computed_by(&[]);
    (program.launches.iter()).any(|l| by(l) == Some(Algorithm::Winograd2))
}

/// True if a convolution of bytes, which `make` computes from an input, knows that none is above 127.
fn has_seven_bits(
    of: DType,
    make: impl FnOnce(&mut GraphBuilder<'_>, Value) -> Result<Value, OpError>,
) -> bool {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(of, [1, 8, 9, 9]), Role::Data);
    let w = b.input(Fact::new(DType::I8, [8, 8, 3, 3]), Role::Parameter);
    let bytes = make(&mut b, x).expect("fits");
    let [x, w] = [bytes, w].map(|v| b.cast(&v, DType::I32).expect("fits"));
    let conv = ops::Conv {
        stride: [1; 2].into_iter().collect(),
        padding: vec![(0, 0); 2],
        dilation: [1; 2].into_iter().collect(),
        groups: 1,
    };
    let y = b.op(conv, &[x, w]).expect("fits");
    graph.add_output(y);
    let program = lower(&graph, &Options::default())
        .expect("is lowered")
        .sequence();
    let mut convs = program.launches.iter().filter_map(|l| match &*l.kernel {
        Kernel::Conv(c) => Some(c.reduce_range),
        _ => None,
    });
    convs.next().expect("a convolution")
}

#[test]
fn bytes_of_seven_bits_are_known() {
    let quantized = |most: f64| {
        move |b: &mut GraphBuilder<'_>, x: Value| {
            let x = b.with(Pw::Maximum, &x, 0.0)?;
            let x = b.with(Pw::Minimum, &x, most)?;
            b.cast(&x, DType::U8)
        }
    };
    let clipped = |most: f64| {
        move |b: &mut GraphBuilder<'_>, x: Value| {
            let [least, most] = [0.0, most].map(|n| b.scalar_like(n, &x).expect("a number"));
            let x = b.pointwise(Pw::Clip, &[x, least, most])?;
            b.cast(&x, DType::U8)
        }
    };
    let padded = |byte: i64| {
        move |b: &mut GraphBuilder<'_>, x: Value| {
            let x = quantized(127.0)(b, x)?;
            let one: Shape = [0, 0, 1, 1].map(Dim::from).into_iter().collect();
            let (low, high, value) = (one.clone(), one, Scalar::Int(byte));
            b.op(ops::Pad { low, high, value }, &[x])
        }
    };
    assert!(has_seven_bits(DType::F32, quantized(127.0)));
    assert!(has_seven_bits(DType::F32, clipped(127.0)));
    assert!(!has_seven_bits(DType::F32, clipped(127.5)));
    assert!(has_seven_bits(DType::BF16, quantized(100.0)));
    assert!(has_seven_bits(DType::U8, |b, x| b.with(
        Pw::Minimum,
        &x,
        127i64
    )));
    assert!(has_seven_bits(DType::F32, padded(127)));
    assert!(!has_seven_bits(DType::F32, padded(128)));
    assert!(!has_seven_bits(DType::F32, quantized(128.0)));
    assert!(!has_seven_bits(DType::I32, quantized(127.0)));
    assert!(!has_seven_bits(DType::U8, |_, x| Ok(x)));
    assert!(!has_seven_bits(DType::U8, |b, x| b.with(
        Pw::Maximum,
        &x,
        9i64
    )));
}

#[test]
fn bf16_is_not_transformed_where_there_are_tiles_for_it() {
    for level in [Features::AVX2, Features::AVX512_FP16] {
        assert!(transforms(DType::BF16, level), "{level:?}");
    }
    assert!(!transforms(DType::BF16, Features::AMX));
    assert!(transforms(DType::F32, Features::AMX));
}

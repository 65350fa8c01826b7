//! Every primitive and every cast, element by element.

use crate::cc::{self, Library};
use crate::random::Case;
use kiln_base::{DType, Dim, wrap_int};
use kiln_c99::{Error, Program, Weights, emit};
use kiln_ir::eval::{Array, Data, Mode, evaluate};
use kiln_ir::fuzz::{Rng, bits, extremes, float8_casts};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Pw, Role, Value, ops};
use kiln_testkit::programs::plain;
use std::collections::BTreeSet;

/// Returns the results of a graph, which is compiled without rewrites, by its C code.
fn run_in_c(graph: &Graph, inputs: &[Array]) -> Vec<Array> {
    let case = Case::new("f".into(), graph, inputs.to_vec(), &plain());
    let sources = emit("alone", &[case.program()], Weights::Arrays).unwrap();
    let shims = cc::shims("alone", &[case.program()], false);
    let library = Library::new(&sources, "alone", "-O1", &shims);
    let outputs = case.outputs(&library).unwrap().into_iter();
    outputs.map(Option::unwrap).collect()
}

/// Returns an array of numbers rounded to a dtype.
fn round(dtype: DType, data: Data) -> Array {
    let shape = [data_len(&data)];
    let array = Array::new(dtype, &shape, data).unwrap();
    Array::from_bytes(dtype, &shape, &array.to_bytes()).unwrap()
}

fn data_len(data: &Data) -> usize {
    match data {
        Data::Float(x) => x.len(),
        Data::Int(x) => x.len(),
    }
}

/// Every cast, exactly. Casts through f32 would round some numbers twice.
#[test]
fn every_cast() {
    if !cc::is_there() {
        return;
    }
    let tie = |bits: i32| 1.0 + 0.5f64.powi(bits) + 0.5f64.powi(40);
    #[rustfmt::skip]
    let floats = [
        0.0, -0.0, 0.3, -0.7, 1.5, 2.5, -2.5, 127.4, 128.6, 255.9, 256.0, -129.0, 32767.9, 65535.5, 65520.0,
        1e-8, 3.1e-5, 70000.0, 2147483520.0, 2147483648.0, -2147483648.0, -3e9, 4294967295.0, 5e9, 9.3e18,
        -9.3e18, 1.9e19, 1e30, 1e300, -1e39, 1e-300, -1e-40, tie(11), -tie(11), tie(8), tie(8) * 1e-38,
        tie(11) * 0.5f64.powi(15), f64::NAN, f64::INFINITY, f64::NEG_INFINITY,
    ];
    #[rustfmt::skip]
    let ints = [
        0, 1, -1, 2, 127, 128, 255, 256, -128, -129, 32767, 32768, 65535, 65536, 2049, 4097, 257, 16777217,
        i32::MAX as i64, i32::MIN as i64, u32::MAX as i64, 1 << 33, (1 << 53) + 1, i64::MAX, i64::MIN,
        (1 << 25) + (1 << 17) + 1, -(1 << 25) - (1 << 17) - 1, (1 << 40) + (1 << 32) + 1,
    ];
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let (mut inputs, mut results) = (Vec::new(), Vec::new());
    for from in DType::ALL {
        let data = match from.is_float() {
            true => Data::Float(floats.to_vec()),
            false => Data::Int(ints.iter().map(|i| wrap_int(*i, from)).collect()),
        };
        let x = b.input(Fact::new(from, [data_len(&data)]), Role::Data);
        inputs.push(round(from, data));
        for to in DType::ALL.into_iter().filter(|to| *to != from) {
            let input = inputs.len() - 1;
            results.push((input, from, to, b.op(ops::Cast::to(to), &[x]).unwrap()));
        }
    }
    results.iter().for_each(|r| graph.add_output(r.3));
    let expected = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
    let got = run_in_c(&graph, &inputs);
    let mut wrong = Vec::new();
    for (o, (input, from, to, _)) in results.iter().enumerate() {
        let [x, g, e] = [&inputs[*input], &got[o], &expected[o]].map(Array::to_f64);
        let bits = |x: f64| if x.is_nan() { u64::MAX } else { x.to_bits() };
        let ints = got[o].ints().zip(expected[o].ints());
        for i in 0..x.len() {
            let same = match ints {
                Some((g, e)) => g[i] == e[i],
                None => bits(g[i]) == bits(e[i]),
            };
            if !same {
                let (x, g, e) = (x[i], g[i], e[i]);
                wrong.push(format!("{from} to {to}: {x:e} gives {g:e} and not {e:e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Casts between 8-bit floats and f32.
#[test]
fn floats_of_8_bits() {
    if !cc::is_there() {
        return;
    }
    for dtype in DType::ALL.into_iter().filter(|d| d.float8().is_some()) {
        let (graph, inputs, results) = float8_casts(dtype);
        let got = run_in_c(&graph, &inputs);
        for (got, want) in got.into_iter().zip(&results) {
            assert!(bits(&got) == bits(want), "{dtype}");
        }
    }
}

/// Returns a pointwise op on random numbers of a dtype. Integer divisors are not 0.
fn random_case(op: Pw, dtype: DType, rng: &mut Rng) -> (Graph, Vec<Array>) {
    const SIZE: usize = 61;
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0];
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let mut inputs = Vec::new();
    let operands = (0..op.row().arity).map(|i| {
        let is_mask = op == Pw::Select && i == 0;
        let dtype = if is_mask { DType::Bool } else { dtype };
        let float = |rng: &mut Rng| match rng.below(12) {
            0 => rng.one(special),
            1 => (rng.unit() - 0.5) * 60.0,
            _ => (rng.unit() - 0.5) * 6.0,
        };
        let int = |rng: &mut Rng| match (rng.range(-5, 6), i) {
            (0, 1) => 3,
            (x, _) => wrap_int(x, dtype),
        };
        let data = match dtype.is_float() {
            true => Data::Float((0..SIZE).map(|_| float(rng)).collect()),
            false => Data::Int((0..SIZE).map(|_| int(rng)).collect()),
        };
        inputs.push(round(dtype, data));
        b.input(Fact::new(dtype, [SIZE]), Role::Data)
    });
    let operands: Vec<Value> = operands.collect();
    let result = b.op(ops::Pointwise(op), &operands).unwrap();
    graph.add_output(result);
    (graph, inputs)
}

/// Every pointwise op, at every dtype. Ops without a function in C are refused.
#[test]
fn every_primitive() {
    let emit_case = |case: &Case| emit("rows", &[case.program()], Weights::Arrays);
    let mut rng = Rng::new(1);
    let mut refused = BTreeSet::new();
    for dtype in DType::ALL {
        let mut cases = Vec::new();
        for r in Pw::ALL.iter().filter(|r| r.takes(dtype)) {
            let (graph, inputs) = random_case(*r, dtype, &mut rng);
            let case = Case::new(r.name().into(), &graph, inputs, &plain());
            match emit_case(&case) {
                Ok(_) => cases.push(case),
                Err(Error::Kernel { why, .. }) => drop(refused.insert(why)),
                Err(e) => panic!("{} of {dtype}: {e}", r.name()),
            }
        }
        if !cc::is_there() {
            continue;
        }
        let programs: Vec<Program<'_>> = cases.iter().map(Case::program).collect();
        let sources = emit("rows", &programs, Weights::Arrays).unwrap();
        let library = Library::new(
            &sources,
            "rows",
            "-O1",
            &cc::shims("rows", &programs, false),
        );
        for case in &cases {
            case.check(&library)
                .unwrap_or_else(|e| panic!("{} of {dtype}: {e}", case.name));
        }
    }
    let missing = [
        "digamma", "erfinv", "i0", "i0e", "i1", "i1e", "log_ndtr", "ndtri", "zeta",
    ];
    assert_eq!(
        refused,
        missing.map(|f| format!("libm has no function {f}")).into()
    );
}

/// Returns a loop that counts down to 0. Its results are the counter and the number of iterations.
fn countdown(trips: Dim) -> Graph {
    let number = || Fact::new(DType::I64, [0i64; 0]);
    let mut body = Graph::default();
    let mut b = GraphBuilder::new(&mut body, Loc::UNKNOWN);
    let [step, _, x, _] = [
        number(),
        Fact::new(DType::Bool, [0i64; 0]),
        number(),
        number(),
    ]
    .map(|fact| b.input(fact, Role::Data));
    let x = b.with(Pw::Sub, &x, 1i64).unwrap();
    let outputs = [
        b.with(Pw::Gt, &x, 0i64).unwrap(),
        x,
        b.with(Pw::Add, &step, 1i64).unwrap(),
    ];
    outputs.into_iter().for_each(|v| body.add_output(v));
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(number(), Role::Data);
    let condition = b.with(Pw::Gt, &x, 0i64).unwrap();
    let zero = b.with(Pw::Mul, &x, 0i64).unwrap();
    let op = ops::Loop {
        conditional: true,
        ..ops::Loop::repeat(trips, body)
    };
    let outputs = b.emit(op.into(), &[condition, x, zero]).unwrap();
    outputs[1..].iter().for_each(|v| graph.add_output(*v));
    graph
}

#[test]
fn loops_end_with_their_condition() {
    if !cc::is_there() {
        return;
    }
    for trips in [Dim::Const(3), ops::Loop::UNBOUNDED] {
        for start in -1..6 {
            let x = Array::from_i64(DType::I64, &[], &[start]).unwrap();
            let got = run_in_c(&countdown(trips.clone()), &[x]);
            let steps = start.max(0).min(trips.as_const().unwrap());
            let want = [start - steps, steps];
            assert_eq!([&got[0], &got[1]].map(|a| a.ints().unwrap()[0]), want);
        }
    }
}

/// Maxima, minima and clamps have the reference's signs of zeros.
#[test]
fn signs_of_zeros() {
    if !cc::is_there() {
        return;
    }
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let (graph, inputs, rows) = extremes(dtype);
        let expected = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
        for (o, (got, want)) in run_in_c(&graph, &inputs).iter().zip(&expected).enumerate() {
            assert_eq!(
                bits(got),
                bits(want),
                "result {o}, {:?} of {dtype}",
                rows[o]
            );
        }
    }
}

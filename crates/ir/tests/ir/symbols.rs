//! Sizes that depend on symbols.

use kiln_ir::eval::{Array, Mode, eval_op, evaluate};
use kiln_ir::{DType, Dim, Fact, Graph, GraphBuilder, Loc, Op, Role, Shape, Sym, SymbolInfo, ops};

#[test]
fn what_symbols_decide_is_listed_and_printed() {
    let text = "graph {
  symbols s0 >= 2 \"h\"
  %0: f32[1, 2, s0] = input(index: 0, role: Data)
  %1: f32[3, 2, 5] = input(index: 1, role: Parameter)
  %2: f32[1, 3, (s0+1)//2-2] = conv(stride: [2], padding: [(0, 0)], dilation: [1], groups: 1) %0, %1
  %3: f32[1, 3, (s0+1)//6] = slice(axes: [(start: 0, len: 1, step: 1), (start: 0, len: 3, step: 1), \
(start: \"(s0+1)//2-3\", len: \"(s0+1)//6\", step: -3)]) %2
  %4: f32[1, 2, s0] = loop(trips: 3) %0 {
    symbols s0 >= 2 \"h\"
    %0: f32[1, 2, s0] = input(index: 0, role: Data)
    %1: f32[1, 2, s0-7] = window_reduce(kind: Sum, kernel: [8], stride: [1], padding: [(0, 0)], dilation: [1]) %0
    return %0
  }
  return %3
}
";
    let graph = Graph::parse(text).unwrap();
    assert_eq!(graph.to_string(), text);
    let needs: Vec<String> = (graph.needs().iter())
        .map(|n| format!("{} {}", n.node.op.name(), n.size))
        .collect();
    // If the windows fit, the slices are inside their axes.
    let windows = [
        "conv s0-5",
        "conv (s0+1)//2-2",
        "window_reduce s0-8",
        "window_reduce s0-7",
    ];
    assert_eq!(needs, windows);
}

/// The number of elements that the stride leaves out at the end is unknown here.
#[test]
fn transposed_convolutions_of_any_size_are_convolutions() {
    let h = Dim::symbol(Sym(0));
    for (kernel, stride, padding, dilation) in [
        (3, 2, (1, 1), 1),
        (2, 3, (0, 1), 2),
        (5, 2, (0, 0), 1),
        (1, 3, (2, 2), 1),
        (2, 4, (3, 5), 1),
        (3, 1, (2, 0), 2),
    ] {
        let conv = ops::Conv {
            stride: [stride].into_iter().collect(),
            padding: vec![padding],
            dilation: [dilation].into_iter().collect(),
            groups: 1,
        };
        let w = Array::from_f64(DType::F64, &[2, 3, kernel], &sines(6 * kernel)).unwrap();
        let out = ops::window_extent(&h, &kernel.into(), stride, padding, dilation).unwrap();
        let mut graph = Graph::default();
        graph.symbols.push(SymbolInfo {
            name: "h".into(),
            min: 2,
        });
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let y = b.input(
            Fact::new(DType::F64, [1.into(), 2.into(), out.clone()]),
            Role::Data,
        );
        let weight = b.input(Fact::new(DType::F64, [2, 3, kernel]), Role::Data);
        let transpose = |input: Dim| ops::ConvTranspose {
            conv: conv.clone(),
            input: Shape::from_iter([input]),
        };
        let x = Op::from(transpose(h.clone())).decompose(&mut b, &[y, weight]);
        let x = x.unwrap().unwrap();
        graph.add_output(x);
        assert_eq!(graph.fact(x).shape[2], h);
        for size in 2..20 {
            let windows = out.eval(&[size]);
            if windows < 1 {
                continue;
            }
            let y = Array::from_f64(
                DType::F64,
                &[1, 2, windows as usize],
                &sines(2 * windows as usize),
            );
            let y = y.unwrap();
            let got = evaluate(&graph, &[y.clone(), w.clone()], &[size], Mode::Exact).unwrap();
            let op = Op::from(transpose(size.into()));
            let want = eval_op(&op, &[&y, &w], &[], Mode::Exact).unwrap();
            assert_eq!(got[0].shape(), want[0].shape());
            for (a, b) in got[0].to_f64().iter().zip(want[0].to_f64()) {
                assert!(
                    (a - b).abs() < 1e-12,
                    "{kernel}, {stride}, {padding:?}, {dilation} of {size}"
                );
            }
        }
    }
}

fn sines(n: usize) -> Vec<f64> {
    (0..n).map(|i| (i as f64 * 1.3).sin()).collect()
}

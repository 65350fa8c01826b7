//! Convolution + batch norm: every form that folds is right to within the bound that the pass states,
//! and every form that must not fold is left alone.

use crate::random::seeds;
use crate::rng::{Rng, loc, shape_of};
use kiln_base::{Cpu, Features, Machine, Scalar};
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::ops::{BatchNorm, Conv, MatMul};
use kiln_ir::{
    Builder, DType, Dim, Fact, Graph, GraphBuilder, OpError, Output, Pw, Role, Target, Value,
};
use kiln_optimize::{Fired, Options, Pass, Report, optimize, optimize_with, passes};

/// The way in which the bias is added, if it is.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Bias {
    None,
    /// `conv + broadcast(reshape(b, [c, 1, ..]))`.
    Stretched,
    /// The same with `b` in front.
    InFront,
    /// The same for f16 and bf16 computed as f32, where the sum is rounded, as layers record it.
    Wide,
    /// One number for all channels.
    Scalar,
    /// A `full` of the whole shape.
    Full,
    /// Differs along the last axis: must not fold.
    PerColumn,
}

/// The parameters of a case.
#[derive(Clone, Debug)]
pub struct Case {
    pub dtype: DType,
    pub batch: usize,
    pub spatial: usize,
    pub groups: usize,
    pub group_in: usize,
    pub group_out: usize,
    pub kernel: usize,
    pub bias: Bias,
    pub affine: bool,
    pub eps: f64,
    /// Roles of the weight and of the statistics.
    pub weight: Role,
    pub statistics: Role,
    /// Another output of the graph: the convolution, or nothing.
    pub keeps_conv: bool,
}

impl Case {
    pub fn random(rng: &mut Rng) -> Case {
        let biases = [
            Bias::None,
            Bias::Stretched,
            Bias::InFront,
            Bias::Wide,
            Bias::Scalar,
            Bias::Full,
        ];
        Case {
            dtype: rng.pick(&[DType::F32, DType::F64, DType::BF16]),
            batch: 1 + rng.below(2),
            spatial: rng.below(4),
            groups: 1 + rng.below(3),
            group_in: 1 + rng.below(3),
            group_out: 1 + rng.below(3),
            kernel: 1 + rng.below(3),
            bias: rng.pick(&biases),
            affine: rng.coin(60),
            eps: rng.pick(&[1e-5, 1e-3]),
            weight: Role::Parameter,
            statistics: Role::Parameter,
            keeps_conv: false,
        }
    }

    fn channels(&self) -> usize {
        self.groups * self.group_out
    }

    /// The dtype that the convolution is computed in.
    fn wide(&self) -> DType {
        match self.bias {
            Bias::Wide if self.dtype.is_half() => DType::F32,
            _ => self.dtype,
        }
    }

    fn out_shape(&self) -> Vec<Dim> {
        let mut shape = vec![Dim::from(self.batch), self.channels().into()];
        shape.extend(vec![Dim::from(4 + 2 - self.kernel + 1); self.spatial]);
        shape
    }

    /// Inputs x, w, mean, variance, weight, shift, bias.
    fn facts(&self) -> Vec<(Fact, Role)> {
        let mut x = vec![self.batch, self.groups * self.group_in];
        x.extend(vec![4; self.spatial]);
        let mut w = vec![self.channels(), self.group_in];
        w.extend(vec![self.kernel; self.spatial]);
        let c = vec![self.channels()];
        let bias = match self.bias {
            Bias::Scalar => vec![],
            Bias::PerColumn => {
                let last = self.out_shape().pop();
                vec![last.and_then(|d| d.as_const()).unwrap_or(1) as usize]
            }
            _ => c.clone(),
        };
        let fact = |shape: &[usize]| Fact::new(self.dtype, shape.iter().copied());
        let mut facts = vec![(fact(&x), Role::Data), (fact(&w), self.weight)];
        facts.extend((0..4).map(|_| (fact(&c), self.statistics)));
        facts.push((fact(&bias), Role::Parameter));
        facts
    }

    /// The program. With `bound`, `Σ|x·w|·|s| + (|bias| + |mean|)·|s| + |shift|` instead.
    pub fn graph(&self, bound: bool) -> Graph {
        let mut graph = Graph::default();
        let values = self.build(&mut graph, bound).expect("a legal case");
        graph.add_output(values[0]);
        if self.keeps_conv {
            graph.outputs.push(Output {
                value: values[1],
                target: Target::Kept,
            });
        }
        graph
    }

    fn build(&self, graph: &mut Graph, bound: bool) -> Result<Vec<Value>, OpError> {
        let mut b = GraphBuilder::new(graph, loc(7));
        let mut v: Vec<Value> = vec![];
        for (fact, role) in self.facts() {
            let input = b.input(fact, role);
            v.push(input);
        }
        // A variance is not negative.
        let variance = b.pointwise(Pw::Square, &[v[3]])?;
        if bound {
            for x in &mut v {
                *x = b.pointwise(Pw::Abs, &[*x])?;
            }
        }
        let conv = Conv {
            stride: vec![1; self.spatial].into(),
            padding: vec![(1, 1); self.spatial],
            dilation: vec![1; self.spatial].into(),
            groups: self.groups,
        };
        let wide = self.wide();
        let operands = [b.cast(&v[0], wide)?, b.cast(&v[1], wide)?];
        let conv = b.op(conv, &operands)?;
        let biased = self.add_bias(&mut b, conv, v[6])?;
        let y = if bound {
            let mut column = vec![Dim::ONE; self.spatial + 1];
            column[0] = self.channels().into();
            let eps = b.full(self.eps, self.dtype, &[])?;
            let spread = b.pointwise(Pw::Add, &[variance, eps])?;
            let scale = b.pointwise(Pw::Rsqrt, &[spread])?;
            let [mean, scale, weight, shift] =
                [v[2], scale, v[4], v[5]].map(|x| b.reshape(&x, &column).expect("a column"));
            let sum = b.pointwise(Pw::Add, &[biased, mean])?;
            let sum = b.pointwise(Pw::Mul, &[sum, scale])?;
            if self.affine {
                let scaled = b.pointwise(Pw::Mul, &[sum, weight])?;
                b.pointwise(Pw::Add, &[scaled, shift])?
            } else {
                sum
            }
        } else {
            let norm = BatchNorm {
                eps: Scalar::Float(self.eps),
                affine: self.affine,
            };
            let operands = [biased, v[2], variance, v[4], v[5]];
            b.op(norm, &operands[..if self.affine { 5 } else { 3 }])?
        };
        Ok(vec![y, conv])
    }

    fn add_bias(
        &self,
        b: &mut GraphBuilder<'_>,
        conv: Value,
        bias: Value,
    ) -> Result<Value, OpError> {
        match self.bias {
            Bias::None => Ok(conv),
            Bias::Stretched | Bias::InFront | Bias::Wide => {
                let mut column = vec![Dim::ONE; self.spatial + 1];
                column[0] = self.channels().into();
                let bias = b.reshape(&bias, &column)?;
                match self.bias {
                    Bias::InFront => b.pointwise(Pw::Add, &[bias, conv]),
                    Bias::Wide => {
                        let bias = b.cast(&bias, self.wide())?;
                        let sum = b.pointwise(Pw::Add, &[conv, bias])?;
                        b.cast(&sum, self.dtype)
                    }
                    _ => b.pointwise(Pw::Add, &[conv, bias]),
                }
            }
            Bias::Scalar | Bias::PerColumn => b.pointwise(Pw::Add, &[conv, bias]),
            Bias::Full => {
                let full = b.full(0.75, self.dtype, &self.out_shape())?;
                b.pointwise(Pw::Add, &[conv, full])
            }
        }
    }

    pub fn inputs(&self, rng: &mut Rng) -> Vec<Array> {
        let graph = self.graph(false);
        (graph.inputs().into_iter())
            .map(|id| {
                let shape = shape_of(&graph, id.value());
                let n: usize = shape.iter().product();
                let values: Vec<f64> = (0..n).map(|_| rng.plain()).collect();
                Array::from_f64(self.dtype, &shape, &values).expect("as many as the shape has")
            })
            .collect()
    }

    /// The error of passes beyond the bound that `conv_batch_norm` states, with K = 0, since the reference
    /// accumulates in f64.
    pub fn flaw(&self, list: &[Pass], options: &Options, rng: &mut Rng) -> Result<Report, String> {
        let before = self.graph(false);
        let (after, report) =
            optimize_with(before.clone(), list, options).map_err(|e| e.to_string())?;
        let inputs = self.inputs(rng);
        let run = |g: &Graph, mode| evaluate(g, &inputs, &[], mode).map_err(|e| e.to_string());
        let old = run(&before, Mode::Rounded)?;
        let new = run(&after, Mode::Rounded)?;
        let size = run(&self.graph(true), Mode::Exact)?[0].to_f64();
        let roundoff = match self.dtype {
            DType::F64 => f64::EPSILON / 2.0,
            // The old program rounds its steps to bf16.
            DType::BF16 => 1.0 / 256.0,
            _ => f32::EPSILON as f64 / 2.0,
        };
        for (i, (a, b)) in old[0].to_f64().into_iter().zip(new[0].to_f64()).enumerate() {
            let tolerance = 13.0 * roundoff * size[i];
            // A NaN is not within any bound.
            let within = (a - b).abs() <= tolerance;
            if !within {
                return Err(format!(
                    "element {i} was {a} and is {b} (+-{tolerance})\n{report}"
                ));
            }
        }
        if self.keeps_conv && old[1] != new[1] {
            return Err("the kept convolution differs".into());
        }
        Ok(report)
    }
}

fn only_norms() -> Options {
    Options {
        passes: Some(vec!["folding"]),
        verify: true,
        ..Options::default()
    }
}

#[test]
fn every_form_folds_within_the_bound() {
    let mut rng = Rng::new(1);
    for i in 0..seeds() {
        let case = Case::random(&mut rng);
        let options = if i % 2 == 0 {
            only_norms()
        } else {
            Options::default()
        };
        let report = (case.flaw(passes(), &options, &mut rng))
            .unwrap_or_else(|e| panic!("case {i}, {case:?}: {e}"));
        assert_eq!(report.count("conv_batch_norm"), 1, "{case:?}");
    }
}

#[test]
fn what_must_not_fold_does_not() {
    let mut rng = Rng::new(2);
    type Change = fn(&mut Case);
    let refused: [(&str, Change); 6] = [
        ("another reader", |c| c.keeps_conv = true),
        ("statistics of this batch", |c| c.statistics = Role::Data),
        ("a computed weight", |c| c.weight = Role::Data),
        ("a narrow dtype", |c| c.dtype = DType::BF16),
        ("no eps", |c| c.eps = 0.0),
        ("a bias per column", |c| {
            (c.bias, c.spatial, c.group_out) = (Bias::PerColumn, 2, 3);
        }),
    ];
    for (what, change) in refused {
        for _ in 0..50 {
            let mut case = Case::random(&mut rng);
            change(&mut case);
            // This level multiplies bf16.
            let level = match what {
                "a narrow dtype" => Features::AVX512_BF16,
                _ => Features::BASELINE,
            };
            let options = Options {
                machine: Machine::Cpu(Cpu {
                    level,
                    ..Cpu::default()
                }),
                ..only_norms()
            };
            let (_, report) = optimize(case.graph(false), &options).unwrap();
            // A norm of f16 or bf16 becomes one scale and one shift after the product.
            let into_weight = |f: &&Fired| f.rule != "norm_of_scaled" || case.dtype != DType::BF16;
            let fired: Vec<&Fired> = report.fired.iter().filter(into_weight).collect();
            assert!(fired.is_empty(), "{what}: {case:?}: {fired:?}");
        }
    }
}

#[test]
fn exact_leaves_it_out() {
    let case = Case::random(&mut Rng::new(3));
    let options = Options {
        exact: true,
        ..Options::default()
    };
    let (_, report) = optimize(case.graph(false), &options).unwrap();
    assert_eq!(report.count("conv_batch_norm"), 0);
}

#[test]
fn a_weight_that_the_graph_assigns_is_not_folded() {
    let case = Case::random(&mut Rng::new(4));
    let mut graph = case.graph(false);
    let weight = graph.inputs()[1].value();
    let mut b = GraphBuilder::new(&mut graph, loc(9));
    let next = b.pointwise(Pw::Neg, &[weight]).unwrap();
    graph.outputs.push(Output {
        value: next,
        target: Target::Assign(1),
    });
    let (_, report) = optimize(graph, &only_norms()).unwrap();
    assert_eq!(report.fired, []);
}

#[test]
fn the_new_weight_is_prepared() {
    let case = Case::random(&mut Rng::new(5));
    let (graph, _) = optimize(case.graph(false), &Options::default()).unwrap();
    let data = graph.inputs()[0];
    let mut depends = vec![false; graph.len()];
    depends[data.index()] = true;
    for (id, node) in graph.iter().filter(|(id, _)| *id != data) {
        depends[id.index()] = node.inputs.iter().any(|v| depends[v.node.index()]);
    }
    let run: Vec<&str> = (graph.iter())
        .filter(|(id, _)| depends[id.index()])
        .map(|(_, n)| n.op.name())
        .collect();
    assert_eq!(run, ["input", "conv", "add"]);
}

/// A matrix is read once, and takes half the memory in f16 or bf16: it is not replaced by an f32 weight.
#[test]
fn a_linear_layer_of_halves_keeps_its_weight() {
    let folds = |dtype: DType| {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, loc(8));
        let mut input =
            |shape: &[usize], role: Role| b.input(Fact::new(dtype, shape.iter().copied()), role);
        let x = input(&[5, 3], Role::Data);
        let w = input(&[3, 4], Role::Parameter);
        let [bias, mean, variance] = [(); 3].map(|()| input(&[4], Role::Parameter));
        let [x, w, bias] = [x, w, bias].map(|v| b.cast(&v, DType::F32).unwrap());
        let y = b.op(MatMul {}, &[x, w]).unwrap();
        let y = b.pointwise(Pw::Add, &[y, bias]).unwrap();
        let y = b.cast(&y, dtype).unwrap();
        let norm = BatchNorm {
            eps: Scalar::Float(1e-3),
            affine: false,
        };
        let y = b.op(norm, &[y, mean, variance]).unwrap();
        graph.add_output(y);
        optimize(graph, &only_norms())
            .unwrap()
            .1
            .count("linear_batch_norm")
    };
    assert_eq!((folds(DType::F32), folds(DType::BF16)), (1, 0));
}

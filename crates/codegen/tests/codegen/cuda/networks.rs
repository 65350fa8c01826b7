//! Convolutions of networks on a GPU: operands whose channels are multiples of eight are copied 16 bytes at a time.

use super::layouts::lowered_for;
use crate::device;
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim};
use kiln_codegen::Layout;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, Pw, Role, Value, ops};
use kiln_plan::Kernel;

/// A network under construction.
struct Network {
    graph: Graph,
    dtype: DType,
}

impl Network {
    fn builder(&mut self) -> GraphBuilder<'_> {
        GraphBuilder::new(&mut self.graph, Loc::UNKNOWN)
    }

    fn op(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Value {
        self.builder().op(op, inputs).unwrap()
    }

    fn input(&mut self, shape: &[usize], role: Role) -> Value {
        let shape: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
        let fact = Fact::new(self.dtype, shape);
        self.builder().input(fact, role)
    }

    fn image(&mut self, shape: [usize; 4]) -> Value {
        self.input(&shape, Role::Data)
    }

    fn channels(&self, x: Value) -> usize {
        let channels = self.graph.fact(x).shape[1].as_const();
        channels.unwrap() as usize
    }

    fn relu(&mut self, x: Value) -> Value {
        self.builder().pointwise(Pw::Relu, &[x]).unwrap()
    }

    fn binary(&mut self, op: Pw, x: Value, y: Value) -> Value {
        self.builder().pointwise(op, &[x, y]).unwrap()
    }

    /// Appends a convolution with an odd filter and "same" padding, and a bias.
    fn conv(&mut self, x: Value, outs: usize, [kernel, stride, groups]: [usize; 3]) -> Value {
        let ins = self.channels(x) / groups;
        let w = self.input(&[outs, ins, kernel, kernel], Role::Parameter);
        let y = self.op(conv(kernel / 2, stride, groups), &[x, w]);
        self.add_bias(y)
    }

    /// Adds a bias per channel.
    fn add_bias(&mut self, y: Value) -> Value {
        let shape = self.graph.fact(y).shape.to_vec();
        let bias = self.input(&[self.channels(y), 1, 1], Role::Parameter);
        let bias = self.builder().broadcast_to(&bias, &shape).unwrap();
        self.binary(Pw::Add, y, bias)
    }

    fn max_pool(&mut self, x: Value, kernel: usize, padding: usize) -> Value {
        let pool = ops::WindowReduce {
            kind: Reduction::Max,
            kernel: [kernel; 2].into_iter().collect(),
            stride: [2; 2].into_iter().collect(),
            padding: vec![(padding, padding); 2],
            dilation: [1; 2].into_iter().collect(),
        };
        self.op(pool, &[x])
    }

    /// Doubles the size of an image, and halves its channels.
    fn upsample(&mut self, x: Value, size: usize) -> Value {
        let ins = self.channels(x);
        let w = self.input(&[ins, ins / 2, 2, 2], Role::Parameter);
        let up = ops::ConvTranspose {
            conv: conv(0, 2, 1),
            input: [size; 2].into_iter().map(Dim::from).collect(),
        };
        let y = self.op(up, &[x, w]);
        self.add_bias(y)
    }
}

fn conv(padding: usize, stride: usize, groups: usize) -> ops::Conv {
    ops::Conv {
        stride: [stride; 2].into_iter().collect(),
        padding: [(padding, padding); 2].into_iter().collect(),
        dilation: [1; 2].into_iter().collect(),
        groups,
    }
}

fn network(dtype: DType, results: impl Fn(&mut Network) -> Vec<Value>) -> Graph {
    let mut network = Network {
        graph: Graph::default(),
        dtype,
    };
    let results = results(&mut network);
    results.iter().for_each(|r| network.graph.add_output(*r));
    network.graph
}

/// ResNet-50, up to its last layer.
fn resnet50(net: &mut Network) -> Vec<Value> {
    let x = net.image([8, 3, 224, 224]);
    let y = net.conv(x, 64, [7, 2, 1]);
    let y = net.relu(y);
    let mut y = net.max_pool(y, 3, 1);
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        for block in 0..blocks {
            let width = 64 << stage;
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            let inner = net.conv(y, width, [1, 1, 1]);
            let inner = net.relu(inner);
            let inner = net.conv(inner, width, [3, stride, 1]);
            let inner = net.relu(inner);
            let inner = net.conv(inner, 4 * width, [1, 1, 1]);
            if block == 0 {
                y = net.conv(y, 4 * width, [1, stride, 1]);
            }
            let sum = net.binary(Pw::Add, inner, y);
            y = net.relu(sum);
        }
    }
    vec![net.builder().sum(&y, &[2, 3]).unwrap()]
}

/// A U-Net, whose result is an image.
fn unet(net: &mut Network) -> Vec<Value> {
    let mut y = net.image([8, 16, 64, 64]);
    let mut skips = Vec::new();
    for level in 0..3 {
        for _ in 0..2 {
            y = net.conv(y, 32 << level, [3, 1, 1]);
            y = net.relu(y);
        }
        if level < 2 {
            skips.push(y);
            y = net.max_pool(y, 2, 0);
        }
    }
    for (level, skip) in skips.into_iter().enumerate().rev() {
        y = net.upsample(y, 64 >> level);
        y = net.op(ops::Concat { axis: 1 }, &[skip, y]);
        y = net.conv(y, 32 << level, [3, 1, 1]);
        y = net.relu(y);
    }
    vec![net.conv(y, 8, [1, 1, 1])]
}

/// Blocks of depthwise and pointwise convolutions, whose result is an image.
fn separable(net: &mut Network) -> Vec<Value> {
    let x = net.image([8, 3, 112, 112]);
    let mut y = net.conv(x, 32, [3, 2, 1]);
    for (channels, stride) in [(32, 1), (64, 2), (64, 1)] {
        let ins = net.channels(y);
        y = net.conv(y, ins, [3, stride, ins]);
        y = net.relu(y);
        y = net.conv(y, channels, [1, 1, 1]);
        y = net.relu(y);
    }
    vec![y]
}

/// One convolution of images with channels first, and its gradients.
fn single_convolution(net: &mut Network) -> Vec<Value> {
    let conv = conv(1, 1, 1);
    let (x, dy) = (net.image([32, 64, 56, 56]), net.image([32, 64, 56, 56]));
    let w = net.input(&[64, 64, 3, 3], Role::Parameter);
    let y = net.op(conv.clone(), &[x, w]);
    let (dx, dw) = gradients(net, conv, [x, w, dy]);
    vec![y, dx, dw]
}

/// A training step of a small network of digits, which also returns an image and gradients.
fn digits_step(net: &mut Network) -> Vec<Value> {
    let conv = conv(1, 1, 1);
    let mut y = net.image([64, 1, 8, 8]);
    let mut layers = Vec::new();
    for [ins, outs] in [[1, 16], [16, 32], [32, 32]] {
        let w = net.input(&[outs, ins, 3, 3], Role::Parameter);
        let x = y;
        y = net.op(conv.clone(), &[x, w]);
        y = net.relu(y);
        layers.push([x, w]);
    }
    let mut results = vec![y];
    let (mut dy, mut above) = (y, y);
    for [x, w] in layers.into_iter().rev() {
        dy = net.binary(Pw::Mul, dy, above);
        let (dx, dw) = gradients(net, conv.clone(), [x, w, dy]);
        results.push(dw);
        (dy, above) = (dx, x);
    }
    results
}

fn gradients(net: &mut Network, conv: ops::Conv, [x, w, dy]: [Value; 3]) -> (Value, Value) {
    let input = net.graph.fact(x).shape[2..].iter().cloned().collect();
    let dw = ops::ConvWeight {
        conv: conv.clone(),
        kernel: [3; 2].into_iter().collect(),
    };
    let dx = net.op(ops::ConvTranspose { conv, input }, &[dy, w]);
    (dx, net.op(dw, &[x, dy]))
}

/// Only images of one or three channels are read element by element.
#[test]
fn operands_are_copied_16_bytes_at_a_time() {
    type Results = fn(&mut Network) -> Vec<Value>;
    let networks: [(&str, Results, [usize; 2]); 5] = [
        ("resnet50", resnet50, [53, 1]),
        ("unet", unet, [11, 0]),
        ("separable", separable, [7, 1]),
        ("single_convolution", single_convolution, [3, 0]),
        // The image is read by the first convolution, and by the gradient of its filters.
        ("digits_step", digits_step, [8, 2]),
    ];
    for dtype in [DType::F16, DType::BF16] {
        for (name, results, [convolutions, gathers]) in &networks {
            let graph = network(dtype, results);
            for (capability, gpu) in device::architectures() {
                let program = lowered_for(gpu, &graph, Layout::Auto, false);
                let what = format!("{name} in {dtype} on sm_{capability}: {}", program.layout);
                assert_eq!(program.layout.convolutions, *convolutions, "{what}");
                let sequence = program.sequence();
                let gathering = sequence.launches.iter().filter(|l| {
                    let Kernel::Cuda(k) = &*l.kernel else {
                        return false;
                    };
                    k.text.scope.contains("_VECTOR = false")
                });
                let names: Vec<&str> = gathering.map(|l| l.kernel.name()).collect();
                assert_eq!(names.len(), *gathers, "{what}: {names:?}");
            }
        }
    }
}

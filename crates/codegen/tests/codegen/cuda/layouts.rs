//! Convolutions with channels last: their results, copies of 16 bytes, and the choice of layouts.

use super::candidates::{every, share, together};
use super::families::{Case, FLOATS, case_count, finite, with_infinities};
use super::{Expected, parsed, sources};
use crate::device;
use crate::run::run_compiled;
use kiln_base::{DType, Dim, Gpu, Machine};
use kiln_codegen::{Launch, Layout, LayoutReport, Options, Program, lower};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, Pw, Role, Value, ops};
use kiln_runtime::cuda::Code;

pub fn lowered(graph: &Graph, layout: Layout, candidates: bool) -> Program {
    lowered_for(Gpu::H100, graph, layout, candidates)
}

pub fn lowered_for(gpu: Gpu, graph: &Graph, layout: Layout, candidates: bool) -> Program {
    let options = Options {
        machine: Machine::Gpu(gpu),
        layout,
        candidates,
        ..Options::default()
    };
    lower(graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

type Numbers = fn(DType, &[usize], &mut Rng) -> Array;

/// A convolution of an image of shape `[batch, channels, spatial..]`.
struct Conv {
    groups: usize,
    outs: usize,
    kernel: Vec<usize>,
    conv: ops::Conv,
    output: Vec<usize>,
}

impl Conv {
    /// Returns a random convolution of an image.
    fn random(image: &[usize], outs: usize, rng: &mut Rng) -> Conv {
        let axes = image.len() - 2;
        let divides = |n: &usize| image[1].is_multiple_of(*n) && outs.is_multiple_of(*n);
        let groups: Vec<usize> = [1, 1, 1, 2, 3, image[1]]
            .into_iter()
            .filter(divides)
            .collect();
        let groups = groups[rng.below(groups.len())];
        let pointwise = rng.chance(0.25);
        let mut draw = |choices: [usize; 3]| -> Vec<usize> {
            let choices = if pointwise { [choices[0]; 3] } else { choices };
            (0..axes).map(|_| rng.one(choices)).collect()
        };
        let (kernel, stride, dilation) = (draw([1, 2, 3]), draw([1, 2, 3]), draw([1, 1, 2]));
        let padding: Vec<(usize, usize)> =
            (draw([0, 1, 2]).into_iter()).zip(draw([0, 2, 1])).collect();
        let kernel_extent = |a: usize| dilation[a] * (kernel[a] - 1) + 1;
        let padded_extent = |a: usize| image[2 + a] + padding[a].0 + padding[a].1;
        if (0..axes).any(|a| padded_extent(a) < kernel_extent(a)) {
            return Conv::random(image, outs, rng);
        }
        Conv {
            groups,
            outs,
            output: (0..axes)
                .map(|a| (padded_extent(a) - kernel_extent(a)) / stride[a] + 1)
                .collect(),
            kernel,
            conv: ops::Conv {
                stride: stride.into_iter().collect(),
                padding: padding.into_iter().collect(),
                dilation: dilation.into_iter().collect(),
                groups,
            },
        }
    }

    fn filters(&self, ins: usize) -> Vec<usize> {
        [&[self.outs, ins / self.groups], &self.kernel[..]].concat()
    }

    fn result(&self, batch: usize) -> Vec<usize> {
        [&[batch, self.outs], &self.output[..]].concat()
    }
}

impl Case {
    pub fn parameter(&mut self, x: Array) -> Value {
        let shape: Vec<Dim> = x.shape().iter().map(|d| Dim::from(*d)).collect();
        let fact = Fact::new(x.dtype(), shape);
        self.inputs.push(x);
        self.builder().input(fact, Role::Parameter)
    }

    /// Adds a bias for each channel, perhaps a residual, and an activation.
    fn append_epilogue(&mut self, y: Value, shape: &[usize], rng: &mut Rng) -> Value {
        let dtype = self.graph.fact(y).dtype;
        let mut bias = vec![1; shape.len() - 1];
        bias[0] = shape[1];
        let bias = self.input(finite(dtype, &bias, rng));
        let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
        let residual = rng
            .chance(0.5)
            .then(|| self.input(finite(dtype, shape, rng)));
        let mut b = self.builder();
        let bias = b.broadcast_to(&bias, &dims).unwrap();
        let mut sum = b.pointwise(Pw::Add, &[y, bias]).unwrap();
        if let Some(residual) = residual {
            sum = b.pointwise(Pw::Add, &[sum, residual]).unwrap();
        }
        b.pointwise(Pw::Relu, &[sum]).unwrap()
    }
}

/// Checks two convolutions, the second of which reads the result of the first. With `gradients`, also checks the
/// gradients of both. Returns the layouts and the emitted kernels.
fn check_two_convolutions(
    dtype: DType,
    axes: usize,
    numbers: Numbers,
    [gradients, candidates]: [bool; 2],
    rng: &mut Rng,
) -> (LayoutReport, String) {
    let mut size = || rng.one([2, 5, if axes == 1 { 33 } else { 8 }]);
    let spatial: Vec<usize> = (0..axes).map(|_| size()).collect();
    let channels = [1, 3, 6, 7, 8, 16, 17, 24];
    let (batch, ins, outs) = (rng.one([1, 2, 3]), rng.one(channels), rng.one(channels));
    let mut shape = [&[batch, ins], &spatial[..]].concat();
    let mut case = Case::default();
    let mut y = case.input(numbers(dtype, &shape, rng));
    let mut label = format!("{dtype} {shape:?}");
    if rng.chance(0.3) {
        // A prologue of the first convolution.
        y = case.builder().pointwise(Pw::Tanh, &[y]).unwrap();
        label += " tanh";
    }
    for outs in [outs, rng.one(channels)] {
        let conv = Conv::random(&shape, outs, rng);
        let w = numbers(dtype, &conv.filters(shape[1]), rng);
        let w = match rng.chance(0.5) {
            true => case.parameter(w),
            false => case.input(w),
        };
        label += &format!(" -> {:?} {:?}", conv.conv, conv.kernel);
        let (x, input) = (y, std::mem::replace(&mut shape, conv.result(batch)));
        y = case.op(conv.conv.clone(), &[x, w]);
        if gradients || rng.chance(0.5) {
            y = case.append_epilogue(y, &shape, rng);
        }
        if gradients {
            let input_dy = case.input(numbers(dtype, &shape, rng));
            for dy in [y, input_dy] {
                let kernel = conv.kernel.iter().copied().collect();
                let conv = conv.conv.clone();
                let w = case.op(ops::ConvWeight { conv, kernel }, &[x, dy]);
                case.graph.add_output(w);
            }
            for dy in [y, input_dy] {
                let conv = conv.conv.clone();
                let sizes = input[2..].iter().map(|d| Dim::from(*d)).collect();
                let dx = case.op(ops::ConvTranspose { conv, input: sizes }, &[dy, w]);
                let dx = case.append_epilogue(dx, &input, rng);
                case.graph.add_output(dx);
            }
        }
    }
    case.graph.add_output(y);
    let expected = Expected::of(&case.graph, &case.inputs).unwrap();
    let program = lowered(&expected.lowered, Layout::ChannelsLast, false);
    let mut sequences = vec![("default".to_string(), program.sequence())];
    if candidates {
        let candidates = every(&lowered(&expected.lowered, Layout::ChannelsLast, true));
        let exact = candidates.into_iter().filter(|(_, a, _)| a.is_none());
        sequences.extend(exact.map(|(name, _, p)| (name, p)));
    }
    let compiled = device::compile(&together(sequences.iter().map(|(_, s)| s)));
    for (candidate, sequence) in &sequences {
        let got = run_compiled(sequence, &case.inputs, &expected.symbols, &compiled);
        let got = got.unwrap_or_else(|| panic!("{label}: a false data error"));
        if let Err(e) = expected.compare(&got) {
            panic!(
                "{label} by {candidate}: {e}\n{}\n{}",
                case.graph,
                sources(sequence)
            );
        }
    }
    (program.layout.clone(), sources(&program.sequence()))
}

#[test]
fn convolutions_are_right() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(71);
    let (mut channels_last, mut vector_copies) = (0, 0);
    for i in 0..4 * case_count() {
        let (report, text) = check_two_convolutions(
            FLOATS[i % 4],
            1 + i / 4 % 3,
            finite,
            [false, i % 8 == 0],
            &mut rng,
        );
        channels_last += report.channels_last;
        vector_copies += text.matches("A_VECTOR = true").count();
    }
    assert!(
        channels_last >= 7 * case_count() && vector_copies > 0,
        "{channels_last} {vector_copies}"
    );
}

#[test]
fn gradients_are_right() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(73);
    let mut images = [0; 3];
    for i in 0..case_count() {
        let axes = 1 + i / 4 % 3;
        let (_, text) =
            check_two_convolutions(FLOATS[i % 4], axes, finite, [true, i % 8 == 1], &mut rng);
        let count = |class: &str| text.matches(class).count();
        images[0] += count("sum_inside(shared, a, b");
        images[1] += count("decltype(b_line)");
        images[2] += count("B_VECTOR = true");
    }
    assert!(images.iter().all(|n| *n > 0), "{images:?}");
}

/// Infinities are multiplied by zeros of the padding, and by no other zeros.
#[test]
fn convolutions_of_infinities() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(72);
    for i in 0..2 * case_count() {
        check_two_convolutions(
            FLOATS[i % 4],
            1 + i / 4 % 3,
            with_infinities,
            [i % 3 == 0, false],
            &mut rng,
        );
    }
}

/// Inputs that a convolution and its gradients read are copied with channels last. Results have channels first.
#[test]
fn copied_images_are_right() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(74);
    let mut count = 0;
    for (i, numbers) in [finite, with_infinities, finite, with_infinities]
        .into_iter()
        .enumerate()
    {
        let dtype = [DType::F16, DType::BF16][i % 2];
        let (batch, ins, outs) = (1 + i % 3, 32, [48, 16][i % 2]);
        let image = [batch, ins, 61, 37];
        let conv = loop {
            let conv = Conv::random(&image, outs, &mut rng);
            let [taps, steps] = [&conv.kernel[..], &conv.conv.stride[..]];
            // Elements are read often enough to amortise copies.
            if taps.iter().product::<usize>() >= 6 * steps.iter().product::<usize>() {
                break conv;
            }
        };
        let label = format!("{dtype} {image:?} {:?} {:?}", conv.conv, conv.kernel);
        let mut case = Case::default();
        let x = case.input(numbers(dtype, &image, &mut rng));
        let w = case.parameter(numbers(dtype, &conv.filters(ins), &mut rng));
        let dy = case.input(numbers(dtype, &conv.result(batch), &mut rng));
        let dw = ops::ConvWeight {
            conv: conv.conv.clone(),
            kernel: conv.kernel.iter().copied().collect(),
        };
        let dx = ops::ConvTranspose {
            conv: conv.conv.clone(),
            input: image[2..].iter().map(|d| Dim::from(*d)).collect(),
        };
        let results = [
            case.op(conv.conv, &[x, w]),
            case.op(dw, &[x, dy]),
            case.op(dx, &[dy, w]),
        ];
        results.iter().for_each(|r| case.graph.add_output(*r));
        let expected = Expected::of(&case.graph, &case.inputs).unwrap();
        let program = lowered(&expected.lowered, Layout::Auto, false);
        let sequence = program.sequence();
        let compiled = device::compile(&sequence);
        let got = run_compiled(&sequence, &case.inputs, &[], &compiled).unwrap();
        let text = sources(&sequence);
        if let Err(e) = expected.compare(&got) {
            panic!("{label}: {e}\n{text}");
        }
        let copied = program.layout.conversions.iter().filter(|c| c.copied);
        let copied = copied.count();
        let copies = text.matches("struct Shared { unsigned short tile").count();
        assert_eq!(copied, copies, "{label}: {}", program.layout);
        assert!(copies < 2 || !text.contains("_VECTOR = false"), "{label}");
        count += copies;
    }
    assert!(count >= 4, "{count}");
}

/// Returns a residual block of `channels` channels, whose 3x3 convolution has a fourth as many.
fn residual_block(dtype: &str, channels: usize, size: usize) -> Graph {
    let c = channels / 4;
    let outer = format!("{dtype}[8, {channels}, {size}, {size}]");
    let inner = format!("{dtype}[8, {c}, {size}, {size}]");
    let conv = |padding: usize| {
        format!(
            "conv(stride: [1, 1], padding: [({padding}, {padding}), ({padding}, {padding})], dilation: [1, 1], groups: 1)"
        )
    };
    let (conv_1x1, conv_3x3) = (conv(0), conv(1));
    parsed(&format!(
        "%0: {outer} = input(index: 0, role: Data)
         %1: {dtype}[{c}, {channels}, 1, 1] = input(index: 1, role: Parameter)
         %2: {dtype}[{c}, {c}, 3, 3] = input(index: 2, role: Parameter)
         %3: {dtype}[{channels}, {c}, 1, 1] = input(index: 3, role: Parameter)
         %4: {dtype}[{channels}, {channels}, 3, 3] = input(index: 4, role: Parameter)
         %5: {outer} = {conv_3x3} %0, %4
         %6: {inner} = {conv_1x1} %5, %1
         %7: {inner} = relu %6
         %8: {inner} = {conv_3x3} %7, %2
         %9: {inner} = relu %8
         %10: {outer} = {conv_1x1} %9, %3
         %11: {outer} = add %10, %5
         %12: {dtype}[8, {channels}] = reduce(kind: Sum, axes: [2, 3]) %11
         return %12"
    ))
}

/// Tensor cores' operands are copied by 16 bytes, so channels that are multiples of eight come last.
#[test]
fn sixteen_bit_images_have_channels_last() {
    let channels_last = |dtype: &str, channels: usize, layout: Layout| {
        let report = lowered(&residual_block(dtype, channels, 14), layout, false).layout;
        assert!(
            report.cost <= report.first_cost.min(report.last_cost),
            "{report}"
        );
        assert_eq!(report.convolutions, 4);
        report.channels_last
    };
    for dtype in ["f16", "bf16"] {
        assert_eq!(channels_last(dtype, 64, Layout::Auto), 4, "{dtype}");
        assert_eq!(
            channels_last(dtype, 64, Layout::ChannelsFirst),
            0,
            "{dtype}"
        );
        assert_eq!(channels_last(dtype, 36, Layout::Auto), 0, "{dtype}");
    }
    for dtype in ["f32", "f64"] {
        assert_eq!(channels_last(dtype, 64, Layout::Auto), 0, "{dtype}");
        assert_eq!(channels_last(dtype, 64, Layout::ChannelsLast), 4, "{dtype}");
    }
}

/// The last convolution reads channels last and writes channels first. On a CPU, only convolutions that write channels
/// last are counted.
#[test]
fn intermediate_images_have_channels_last() {
    let conv = "conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1)";
    let graph = parsed(&format!(
        "%0: f32[2, 8, 6, 6] = input(index: 0, role: Data)
         %1: f32[8, 8, 3, 3] = input(index: 1, role: Data)
         %2: f32[2, 8, 6, 6] = {conv} %0, %1
         %3: f32[2, 8, 6, 6] = {conv} %2, %1
         %4: f32[2, 8, 6, 6] = {conv} %3, %1
         return %4"
    ));
    for (machine, last) in [(Machine::default(), 2), (Machine::Gpu(Gpu::H100), 3)] {
        let options = Options {
            machine,
            layout: Layout::ChannelsLast,
            ..Options::default()
        };
        let report = lower(&graph, &options).unwrap().layout;
        assert_eq!(report.channels_last, last, "{machine:?}: {report}");
    }
}

/// Filters have the layout of images: *prepare* copies them. Runs copy the input image.
#[test]
fn filters_are_copied_once() {
    let graph = residual_block("f16", 64, 14);
    let count = |layout: Layout| {
        let program = lowered(&graph, layout, false).sequence();
        let written = |l: &Launch| l.args.iter().zip(&l.written).find(|a| *a.1).map(|a| *a.0);
        let prepared =
            |l: &&Launch| written(l).is_some_and(|b| program.buffers[b.0 as usize].parameter_only);
        let before = program.launches.iter().filter(prepared).count();
        (before, program.launches.len() - before)
    };
    let (before, run) = count(Layout::ChannelsFirst);
    // Both layouts of 1x1 filters are equal.
    assert_eq!(count(Layout::ChannelsLast), (before + 2, run + 1));
}

/// Registers suffice on both architectures by every candidate, and images of f16 are copied 16 bytes at a time.
#[test]
fn machine_code() {
    let Some(nvrtc) = device::nvrtc() else { return };
    let grouped = |dtype: &str| {
        parsed(&format!(
            "%0: {dtype}[8, 96, 28, 28] = input(index: 0, role: Data)
             %1: {dtype}[96, 1, 3, 3] = input(index: 1, role: Parameter)
             %2: {dtype}[96, 24, 3, 3] = input(index: 2, role: Parameter)
             %3: {dtype}[8, 96, 28, 28] = conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 96) %0, %1
             %4: {dtype}[8, 96, 28, 28] = tanh %3
             %5: {dtype}[8, 96, 14, 14] = conv(stride: [2, 2], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 4) %4, %2
             %6: {dtype}[8, 96, 14, 14] = relu %5
             return %6"
        ))
    };
    let gradients = |dtype: &str| {
        let conv = "stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1";
        let image = format!("{dtype}[8, 64, 28, 28]");
        let filters = format!("{dtype}[64, 64, 3, 3]");
        parsed(&format!(
            "%0: {image} = input(index: 0, role: Data)
             %1: {filters} = input(index: 1, role: Parameter)
             %2: {image} = conv({conv}) %0, %1
             %3: {image} = relu %2
             %4: {image} = conv({conv}) %3, %1
             %5: {image} = relu %4
             %6: {image} = conv_transpose(conv: ({conv}), input: [28, 28]) %5, %1
             %7: {image} = relu %6
             %8: {filters} = conv_weight(conv: ({conv}), kernel: [3, 3]) %3, %5
             %9: {filters} = conv_weight(conv: ({conv}), kernel: [3, 3]) %0, %5
             return %7, %8, %9"
        ))
    };
    for (i, dtype) in ["f32", "f64", "f16", "bf16"].into_iter().enumerate() {
        let graphs = [
            residual_block(dtype, 256, 28),
            grouped(dtype),
            gradients(dtype),
        ];
        for (j, graph) in graphs.into_iter().enumerate() {
            for (k, (capability, gpu)) in device::architectures().into_iter().enumerate() {
                let program = lowered_for(gpu, &graph, Layout::ChannelsLast, true);
                let candidates = share(every(&program), i + j + k);
                let text = device::unit(&together(candidates.iter().map(|(.., p)| p)));
                let compiled = nvrtc.compile(&text, Code::Cubin(capability)).unwrap();
                for r in compiled.resources() {
                    assert!(r.spilled == 0 && r.stack == 0, "{dtype}: {r:?}");
                }
            }
        }
        let [(_, ampere), _] = device::architectures();
        let program = lowered_for(
            ampere,
            &residual_block(dtype, 64, 28),
            Layout::ChannelsLast,
            false,
        );
        let ptx = nvrtc
            .compile(&device::unit(&program.sequence()), Code::Ptx(80))
            .unwrap();
        let ptx = String::from_utf8_lossy(&ptx.image).into_owned();
        let kernels = ptx.split(".entry").skip(1);
        let products: Vec<&str> = kernels.filter(|k| k.contains("mma.sync")).collect();
        let loads_16_bits =
            |k: &&&str| k.contains("ld.global.u16") || k.contains("ld.global.nc.u16");
        assert!(
            products
                .iter()
                .all(|k| k.contains("cp.async.cg.shared.global"))
        );
        let narrow = products.iter().filter(loads_16_bits).count();
        let expected = match dtype {
            "f16" | "bf16" => (4, 0),
            _ => (0, 0),
        };
        assert_eq!((products.len(), narrow), expected, "{dtype}");
    }
}

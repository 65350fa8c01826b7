//! Convolutions by warpgroups: im2col copies bring what a filter meets at each of its positions.

use super::families::{Case, cases, finite};
use super::{Expected, parsed, sources};
use crate::device;
use crate::fuzz::number;
use crate::run::run_compiled;
use kiln_base::{DType, Dim, Gpu, Machine};
use kiln_codegen::{Layout, Options, Program, Schedule, Sequence, Task, lower};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Graph, Pw, Value, ops};
use kiln_plan::Kernel;
use kiln_plan::cuda::{Boxes, CudaKernel};
use kiln_plan::schedule;
use kiln_runtime::cuda::Code;

/// A convolution.
#[derive(Clone, Debug)]
struct Conv {
    dtype: DType,
    batch: usize,
    channels: [usize; 2],
    input: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<(usize, usize)>,
    dilation: Vec<usize>,
}

impl Conv {
    /// Returns a random one over so many axes.
    fn drawn(dtype: DType, axes: usize, rng: &mut Rng) -> Conv {
        let each = 16 / dtype.size();
        let mut axis =
            |of: &[usize]| -> Vec<usize> { (0..axes).map(|_| of[rng.below(of.len())]).collect() };
        let kernel = axis(&[1, 2, 3, 3, 4]);
        let (stride, dilation) = (axis(&[1, 1, 2, 3]), axis(&[1, 1, 2, 3]));
        let (before, after) = (axis(&[0, 1, 2]), axis(&[0, 1, 3]));
        let input = match axes {
            1 => axis(&[1, 2, 67, 131]),
            2 => axis(&[1, 2, 5, 13, 17]),
            _ => axis(&[1, 2, 3, 5]),
        };
        let conv = Conv {
            dtype,
            batch: rng.one([1, 2, 3]),
            channels: [each * rng.one([1, 3, 8, 9]), rng.one([3, 8, 24, 72])],
            input,
            kernel,
            stride,
            padding: before.into_iter().zip(after).collect(),
            dilation,
        };
        // The filter fits, and the convolution is no matrix product. Images of one position have both layouts.
        let fits =
            conv.input.iter().any(|n| *n > 1) && (0..axes).all(|a| conv.padded(a) >= conv.reach(a));
        // Nor are there so few rows, columns or terms that TF32 gains nothing.
        let many = || {
            let [batch, columns, positions @ ..] = &conv.shape(1)[..] else {
                return false;
            };
            let terms = conv.channels[0] * conv.kernel.iter().product::<usize>();
            batch * positions.iter().product::<usize>() > 8 && *columns > 8 && terms > 31
        };
        let fits = fits && (dtype != DType::F32 || many());
        match fits && conv.kernel.iter().any(|n| *n > 1) {
            true => conv,
            false => Conv::drawn(dtype, axes, rng),
        }
    }

    /// Makes it one whose gradient of images is by im2col.
    fn gradient_of_image(&mut self, rng: &mut Rng) {
        self.stride.fill(1);
        self.channels = [8 * rng.one([1, 3, 9]), 8 * rng.one([1, 3, 9])];
    }

    fn reach(&self, axis: usize) -> usize {
        self.dilation[axis] * (self.kernel[axis] - 1) + 1
    }

    fn padded(&self, axis: usize) -> usize {
        self.input[axis] + self.padding[axis].0 + self.padding[axis].1
    }

    fn shape(&self, side: usize) -> Vec<usize> {
        let output = |a: usize| (self.padded(a) - self.reach(a)) / self.stride[a] + 1;
        let spatial: Vec<usize> = match side {
            0 => self.input.clone(),
            _ => (0..self.input.len()).map(output).collect(),
        };
        [&[self.batch, self.channels[side]], &spatial[..]].concat()
    }

    /// Returns the convolution of an image that a kernel stores with channels last, with an epilogue; or, with
    /// `gradient`, the gradient of that image. The first filter has the number `first`.
    fn case(&self, gradient: bool, first: Option<f64>, rng: &mut Rng) -> Case {
        let mut case = Case::default();
        let side = usize::from(gradient);
        let image = case.input(numbers(self.dtype, &self.shape(side), rng));
        let shape = [&[self.channels[1], self.channels[0]], &self.kernel[..]].concat();
        let mut filters = numbers(self.dtype, &shape, rng);
        if let Some(first) = first {
            let mut all = filters.to_f64();
            all[0] = first;
            filters = Array::from_f64(self.dtype, &shape, &all).unwrap();
        }
        let filters = case.input(filters);
        let y = self.of(&mut case, gradient, image, filters);
        let y = self.activated(&mut case, y, &self.shape(1 - side), rng);
        case.graph.add_output(y);
        case
    }

    /// Returns the gradient of filters, of copies of an image and of the result's gradient.
    fn gradient_of_filters(&self, rng: &mut Rng) -> Case {
        let mut case = Case::default();
        let operands = [0, 1].map(|side| {
            let x = case.input(numbers(self.dtype, &self.shape(side), rng));
            self.copied(&mut case, x, self.channels[side])
        });
        let op = ops::ConvWeight {
            conv: self.op(),
            kernel: self.kernel.iter().copied().collect(),
        };
        let y = case.op(op, &operands);
        case.graph.add_output(y);
        case
    }

    fn op(&self) -> ops::Conv {
        ops::Conv {
            stride: self.stride.iter().copied().collect(),
            padding: self.padding.to_vec(),
            dilation: self.dilation.iter().copied().collect(),
            groups: 1,
        }
    }

    /// Returns a copy of an image.
    fn copied(&self, case: &mut Case, image: Value, ins: usize) -> Value {
        let axes = self.input.len();
        let one: Vec<f64> = (0..ins * ins)
            .map(|i| f64::from(i / ins == i % ins))
            .collect();
        let shape = [&[ins, ins], &vec![1; axes][..]].concat();
        let one = case.input(Array::from_f64(self.dtype, &shape, &one).unwrap());
        let plain = ops::Conv {
            stride: (0..axes).map(|_| 1).collect(),
            padding: (0..axes).map(|_| (0, 0)).collect(),
            dilation: (0..axes).map(|_| 1).collect(),
            groups: 1,
        };
        let (x, one) = (self.wide(case, image), self.wide(case, one));
        let x = case.op(plain, &[x, one]);
        case.builder().cast(&x, self.dtype).unwrap()
    }

    fn wide(&self, case: &mut Case, x: Value) -> Value {
        match self.dtype.is_byte() {
            true => case.builder().cast(&x, DType::I32).unwrap(),
            false => x,
        }
    }

    fn of(&self, case: &mut Case, gradient: bool, image: Value, filters: Value) -> Value {
        let x = self.copied(case, image, self.channels[usize::from(gradient)]);
        let conv = self.op();
        let (x, filters) = (self.wide(case, x), self.wide(case, filters));
        match gradient {
            false => case.op(conv, &[x, filters]),
            true => {
                let input = self.input.iter().map(|d| Dim::from(*d)).collect();
                case.op(ops::ConvTranspose { conv, input }, &[x, filters])
            }
        }
    }

    /// Appends a bias or a residual, and an activation.
    fn activated(&self, case: &mut Case, y: Value, shape: &[usize], rng: &mut Rng) -> Value {
        let dtype = case.graph.fact(y).dtype;
        let mut bias = vec![1; shape.len() - 1];
        bias[0] = shape[1];
        let other = match rng.below(3) {
            0 => return case.builder().pointwise(Pw::Relu, &[y]).unwrap(),
            1 => shape.to_vec(),
            _ => bias,
        };
        let other = match dtype {
            DType::I32 => Array::from_f64(dtype, &other, &vec![-7.0; other.iter().product()]),
            _ => Ok(numbers(dtype, &other, rng)),
        };
        let other = case.input(other.unwrap());
        let whole: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
        let mut b = case.builder();
        let other = b.broadcast_to(&other, &whole).unwrap();
        let sum = b.pointwise(Pw::Add, &[y, other]).unwrap();
        b.pointwise(Pw::Relu, &[sum]).unwrap()
    }
}

/// Returns random numbers that TF32 represents, too.
fn numbers(dtype: DType, shape: &[usize], rng: &mut Rng) -> Array {
    if dtype.is_byte() {
        let count = shape.iter().product();
        let bytes: Vec<u8> = (0..count).map(|_| rng.bits() as u8).collect();
        return Array::from_bytes(dtype, shape, &bytes).unwrap();
    }
    let half = finite(DType::F16, shape, rng).to_f64();
    Array::from_f64(dtype, shape, &half).unwrap()
}

/// Returns the schedules of a dtype: of whole sums and of parts, of one block and of clusters.
fn schedules(dtype: DType) -> [schedule::Gpu; 4] {
    let (multiply, depth) = match dtype {
        DType::F32 => ("wgmma_tf32", 32),
        dtype => ("wgmma", 128 / dtype.size()),
    };
    let schedule = |tile: &str, rest: &str| {
        let text = format!("{multiply} tile={}", tile.replace("D", &depth.to_string()));
        format!("{text} {rest}").parse().unwrap()
    };
    // Each block of a cluster brings boxes of 128 bytes of columns.
    let shared = match dtype.is_byte() {
        true => "128x256xD part=64x256",
        false => "128x128xD part=64x128",
    };
    [
        schedule("128x64xD part=64x64", "stages=3 raster=1 parts=1"),
        schedule("128x64xD part=64x64", "stages=2 raster=1 parts=2"),
        schedule(shared, "stages=3 raster=4 parts=1 cluster=2"),
        schedule("256x128xD part=128x128", "stages=2 raster=1 parts=1"),
    ]
}

fn lowered_for(
    gpu: Gpu,
    graph: &Graph,
    layout: Layout,
    schedule: Option<schedule::Gpu>,
) -> Program {
    let options = Options {
        machine: Machine::Gpu(gpu),
        candidates: true,
        layout,
        schedule,
        ..Options::default()
    };
    lower(graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

/// Returns the program by a schedule, and the number of its contractions that follow it.
fn scheduled(graph: &Graph, schedule: schedule::Gpu) -> (Sequence, usize) {
    let mut program = lowered_for(Gpu::H100, graph, Layout::ChannelsLast, Some(schedule));
    let mut followed = 0;
    for task in &mut program.tasks {
        let mut candidates = task.candidates.iter();
        let at = candidates.position(|c| c.schedule == Schedule::Gpu(schedule));
        followed += usize::from(at.is_some());
        task.chosen = at.unwrap_or(task.chosen);
    }
    (program.sequence(), followed)
}

fn is_im2col(kernel: &Kernel) -> bool {
    let copies = |k: &CudaKernel| k.maps.iter().any(|m| matches!(m.boxes, Boxes::Im2col(_)));
    matches!(kernel, Kernel::Cuda(k) if copies(k))
}

/// Returns the number of kernels with im2col copies.
fn copies(sequence: &Sequence) -> usize {
    let all = sequence.launches.iter();
    all.filter(|l| is_im2col(&l.kernel)).count()
}

#[track_caller]
fn check((Case { graph, inputs }, conv): (&Case, &Conv), schedule: schedule::Gpu, what: &str) {
    let expected = Expected::of(graph, inputs).unwrap();
    let (sequence, _) = scheduled(&expected.lowered, schedule);
    // Along an axis of one position, an image may lie as with channels first.
    let is_image = [0, 1]
        .iter()
        .all(|side| conv.shape(*side)[2..].iter().all(|n| *n > 1));
    assert!(
        copies(&sequence) == 1 || !is_image,
        "{what} by {schedule}\n{graph}"
    );
    let compiled = device::compile(&sequence);
    let got = run_compiled(&sequence, inputs, &expected.symbols, &compiled);
    let got = got.unwrap_or_else(|| panic!("{what}: a false data error"));
    if let Err(e) = expected.compare(&got) {
        panic!("{what} by {schedule}: {e}\n{graph}\n{}", sources(&sequence));
    }
}

#[test]
fn convolutions_are_right() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(81);
    let dtypes = [DType::BF16, DType::F16, DType::F32, DType::I8];
    for i in 0..2 * cases() {
        let dtype = dtypes[i % 4];
        let conv = Conv::drawn(dtype, 1 + i / 4 % 3, &mut rng);
        let case = conv.case(false, None, &mut rng);
        check(
            (&case, &conv),
            rng.one(schedules(dtype)),
            &format!("{conv:?}"),
        );
    }
}

/// Filters of one tap that step over positions or over the edge, filters side by side, and one as large as the image.
#[test]
fn filters_of_other_forms() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(85);
    for (input, kernel, stride, padding) in [
        ([17, 13], 1, 2, 0),
        ([18, 14], 1, 3, 0),
        ([9, 11], 1, 1, 1),
        ([16, 12], 4, 4, 0),
        ([11, 9], 3, 1, 0),
        ([3, 4], 3, 1, 0),
    ] {
        let conv = Conv {
            dtype: DType::F16,
            batch: 3,
            channels: [24, 40],
            input: input.to_vec(),
            kernel: vec![kernel; 2],
            stride: vec![stride; 2],
            padding: vec![(padding, padding); 2],
            dilation: vec![1; 2],
        };
        let case = conv.case(false, None, &mut rng);
        check(
            (&case, &conv),
            schedules(conv.dtype)[0],
            &format!("{conv:?}"),
        );
    }
}

/// Zeros outside of images meet infinities and NaN of filters as in the reference: as zeros in a convolution, not at all
/// in a gradient of its image.
#[test]
fn filters_that_are_not_finite() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(82);
    for i in 0..cases() {
        let dtype = [DType::BF16, DType::F16][i % 2];
        let mut conv = Conv::drawn(dtype, 1 + i / 2 % 3, &mut rng);
        let gradient = i % 4 > 1;
        if gradient {
            conv.gradient_of_image(&mut rng);
        }
        let first = [f64::INFINITY, f64::NAN][i / 4 % 2];
        let case = conv.case(gradient, Some(first), &mut rng);
        check(
            (&case, &conv),
            rng.one(schedules(dtype)),
            &format!("{gradient} {conv:?}"),
        );
    }
}

/// The number of images is known at run time only.
#[test]
fn batches_of_any_size() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(84);
    for axes in 1..4 {
        let mut conv = Conv::drawn(DType::BF16, axes, &mut rng);
        conv.batch = 5;
        let mut case = Case::default();
        let mut shape: Vec<Dim> = conv.shape(0).into_iter().map(Dim::from).collect();
        shape[0] = case.symbol();
        let image = case.shaped(numbers(conv.dtype, &conv.shape(0), &mut rng), shape);
        let filters = [&[conv.channels[1], conv.channels[0]], &conv.kernel[..]].concat();
        let filters = case.input(numbers(conv.dtype, &filters, &mut rng));
        let y = conv.of(&mut case, false, image, filters);
        let y = case.builder().pointwise(Pw::Relu, &[y]).unwrap();
        case.graph.add_output(y);
        let [schedule, _, cluster, _] = schedules(conv.dtype);
        for schedule in [schedule, cluster] {
            check((&case, &conv), schedule, &format!("{conv:?}"));
        }
    }
}

#[test]
fn gradients_of_images_are_right() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(83);
    for i in 0..cases() {
        let dtype = [DType::BF16, DType::F16][i % 2];
        let mut conv = Conv::drawn(dtype, 1 + i / 2 % 3, &mut rng);
        conv.gradient_of_image(&mut rng);
        let case = conv.case(true, None, &mut rng);
        check(
            (&case, &conv),
            rng.one(schedules(dtype)),
            &format!("gradient {conv:?}"),
        );
    }
}

/// The terms of gradients of filters are positions, along which neither operand is contiguous.
#[test]
fn gradients_of_filters_are_right() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(87 + number("KILN_SEED", 0));
    for i in 0..cases() {
        let dtype = [DType::BF16, DType::F16][i % 2];
        let mut conv = Conv::drawn(dtype, 1 + i / 2 % 3, &mut rng);
        conv.channels = [64 * rng.one([1, 2]), 8 * rng.one([1, 3, 9])];
        let case = conv.gradient_of_filters(&mut rng);
        check(
            (&case, &conv),
            rng.one(schedules(dtype)),
            &format!("filters {conv:?}"),
        );
    }
}

/// Registers suffice, also for sums that are computed again.
#[test]
fn nothing_spills() {
    let Some(nvrtc) = device::nvrtc() else { return };
    let mut rng = Rng::new(86);
    for gradient in [Some(false), Some(true), None] {
        let conv = Conv {
            dtype: DType::BF16,
            batch: 2,
            channels: [gradient.map_or(128, |_| 136), 136],
            input: vec![13, 17],
            kernel: vec![3, 3],
            stride: vec![1, 1],
            padding: vec![(1, 1), (1, 1)],
            dilation: vec![1, 1],
        };
        let Case { graph, inputs } = match gradient {
            Some(gradient) => conv.case(gradient, None, &mut rng),
            None => conv.gradient_of_filters(&mut rng),
        };
        let expected = Expected::of(&graph, &inputs).unwrap();
        for schedule in schedules(conv.dtype) {
            let (mut sequence, _) = scheduled(&expected.lowered, schedule);
            sequence.launches.retain(|l| is_im2col(&l.kernel));
            let compiled = nvrtc.compile(&device::unit(&sequence), Code::Cubin(90));
            let resources = compiled.unwrap().resources();
            assert!(!resources.is_empty());
            for r in resources {
                assert!(
                    r.spilled == 0 && r.stack == 0,
                    "{gradient:?} {schedule}: {r:?}"
                );
            }
        }
    }
}

/// The 3x3 convolutions of ResNet-50: channels, rows of the image, stride.
pub const RESNET: [[usize; 3]; 7] = [
    [64, 56, 1],
    [128, 56, 2],
    [128, 28, 1],
    [256, 28, 2],
    [256, 14, 1],
    [512, 14, 2],
    [512, 7, 1],
];

/// Returns such a convolution of 64 images between those beside it in its network.
pub fn bottleneck(dtype: &str, [channels, rows, stride]: [usize; 3]) -> Graph {
    let (wide, after) = (4 * channels, rows / stride + rows % stride);
    let conv = |stride: usize, padding: usize| {
        format!(
            "conv(stride: [{stride}, {stride}], padding: [({padding}, {padding}), ({padding}, {padding})], dilation: [1, 1], groups: 1)"
        )
    };
    let (plain, moved) = (conv(1, 0), conv(stride, 1));
    let image = |channels: usize, rows: usize| format!("{dtype}[64, {channels}, {rows}, {rows}]");
    let [first, inner] = [image(wide, rows), image(channels, rows)];
    let [result, last] = [image(channels, after), image(wide, after)];
    parsed(&format!(
        "%0: {first} = input(index: 0, role: Data)
         %1: {dtype}[{channels}, {wide}, 1, 1] = input(index: 1, role: Parameter)
         %2: {dtype}[{channels}, {channels}, 3, 3] = input(index: 2, role: Parameter)
         %3: {dtype}[{wide}, {channels}, 1, 1] = input(index: 3, role: Parameter)
         %4: {inner} = {plain} %0, %1
         %5: {inner} = relu %4
         %6: {result} = {moved} %5, %2
         %7: {result} = relu %6
         %8: {last} = {plain} %7, %3
         %9: {last} = relu %8
         %10: {dtype}[64, {wide}] = reduce(kind: Sum, axes: [2, 3]) %9
         return %10"
    ))
}

/// Returns the gradient of the filters of such a convolution, of images that convolutions store.
pub fn gradient_of_filters(dtype: &str, [channels, rows, stride]: [usize; 3]) -> Graph {
    let after = rows / stride + rows % stride;
    let image = |rows: usize| format!("{dtype}[64, {channels}, {rows}, {rows}]");
    let [before, after] = [rows, after].map(image);
    let copied = "conv(stride: [1, 1], padding: [(0, 0), (0, 0)], dilation: [1, 1], groups: 1)";
    parsed(&format!(
        "%0: {before} = input(index: 0, role: Data)
         %1: {after} = input(index: 1, role: Data)
         %2: {dtype}[{channels}, {channels}, 1, 1] = input(index: 2, role: Parameter)
         %3: {before} = {copied} %0, %2
         %4: {after} = {copied} %1, %2
         %5: {dtype}[{channels}, {channels}, 3, 3] = conv_weight(conv: (stride: [{stride}, {stride}], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1), kernel: [3, 3]) %3, %4
         return %5"
    ))
}

/// Returns the kernels with im2col copies of a program.
pub fn of_convolutions(program: &Program) -> Sequence {
    let mut sequence = program.sequence();
    sequence.launches.retain(|l| is_im2col(&l.kernel));
    sequence
}

/// The model prefers im2col copies for the 3x3 convolutions of ResNet-50 and the gradients of their filters, and predicts
/// fewer cycles than by `mma.sync`.
#[test]
fn the_model_prefers_im2col() {
    let ampere = Gpu {
        arch: (8, 0),
        ..Gpu::H100
    };
    let gradients = RESNET.map(|shape| (shape, gradient_of_filters("bf16", shape)));
    let results = RESNET.map(|shape| (shape, bottleneck("bf16", shape)));
    for (shape, graph) in results.into_iter().chain(gradients) {
        let [mine, other] =
            [Gpu::H100, ampere].map(|gpu| lowered_for(gpu, &graph, Layout::Auto, None));
        assert_eq!(copies(&mine.sequence()), 1, "{shape:?}");
        let copies = |task: &Task| {
            let steps = &task.candidate().calls.steps;
            steps.iter().any(|step| is_im2col(&step.kernel))
        };
        let at = mine.tasks.iter().position(copies).unwrap();
        let [mine, other] = [&mine, &other].map(|program| program.tasks[at].candidate());
        let [cycles, more] = [mine, other].map(|c| c.predicted.unwrap());
        let names = [mine.name(), other.name()];
        println!(
            "{shape:?}: {cycles:.0} by {}, {more:.0} by {}",
            names[0], names[1]
        );
        assert!(names[1].starts_with("mma ") && cycles < more, "{shape:?}");
    }
}

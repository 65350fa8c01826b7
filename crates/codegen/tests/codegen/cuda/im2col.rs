//! Convolutions by warpgroups, whose images im2col copies load.

use super::families::{Case, case_count, finite};
use super::{Expected, parsed, sources};
use crate::device;
use crate::fuzz::env_number;
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
    /// Returns a random convolution over a number of axes.
    fn random(dtype: DType, axes: usize, rng: &mut Rng) -> Conv {
        let vector = 16 / dtype.size();
        let mut draw = |choices: &[usize]| -> Vec<usize> {
            let draw_one = |_| choices[rng.below(choices.len())];
            (0..axes).map(draw_one).collect()
        };
        let kernel = draw(&[1, 2, 3, 3, 4]);
        let (stride, dilation) = (draw(&[1, 1, 2, 3]), draw(&[1, 1, 2, 3]));
        let (before, after) = (draw(&[0, 1, 2]), draw(&[0, 1, 3]));
        let input = match axes {
            1 => draw(&[1, 2, 67, 131]),
            2 => draw(&[1, 2, 5, 13, 17]),
            _ => draw(&[1, 2, 3, 5]),
        };
        let conv = Conv {
            dtype,
            batch: rng.one([1, 2, 3]),
            channels: [vector * rng.one([1, 3, 8, 9]), rng.one([3, 8, 24, 72])],
            input,
            kernel,
            stride,
            padding: before.into_iter().zip(after).collect(),
            dilation,
        };
        // The filter fits. The layout of an image of one position is ambiguous.
        let fits = conv.input.iter().any(|n| *n > 1)
            && (0..axes).all(|a| conv.padded_extent(a) >= conv.kernel_extent(a));
        // Small convolutions gain nothing from TF32.
        let is_large = || {
            let [batch, columns, positions @ ..] = &conv.shape(1)[..] else {
                return false;
            };
            let terms = conv.channels[0] * conv.kernel.iter().product::<usize>();
            batch * positions.iter().product::<usize>() > 8 && *columns > 8 && terms > 31
        };
        let fits = fits && (dtype != DType::F32 || is_large());
        match fits && conv.kernel.iter().any(|n| *n > 1) {
            true => conv,
            false => Conv::random(dtype, axes, rng),
        }
    }

    /// Changes the sizes so that im2col copies can compute the gradient of the image.
    fn allow_image_gradient(&mut self, rng: &mut Rng) {
        self.stride.fill(1);
        self.channels = [8 * rng.one([1, 3, 9]), 8 * rng.one([1, 3, 9])];
    }

    fn kernel_extent(&self, axis: usize) -> usize {
        self.dilation[axis] * (self.kernel[axis] - 1) + 1
    }

    fn padded_extent(&self, axis: usize) -> usize {
        self.input[axis] + self.padding[axis].0 + self.padding[axis].1
    }

    /// Returns the shape of the image, or with `side` 1 of the result.
    fn shape(&self, side: usize) -> Vec<usize> {
        let output =
            |a: usize| (self.padded_extent(a) - self.kernel_extent(a)) / self.stride[a] + 1;
        let spatial: Vec<usize> = match side {
            0 => self.input.clone(),
            _ => (0..self.input.len()).map(output).collect(),
        };
        [&[self.batch, self.channels[side]], &spatial[..]].concat()
    }

    /// Returns the convolution of an image with channels last, or with `gradient` the image gradient, and an epilogue.
    /// `first_weight` replaces the first element of the filters.
    fn case(&self, gradient: bool, first_weight: Option<f64>, rng: &mut Rng) -> Case {
        let mut case = Case::default();
        let side = usize::from(gradient);
        let image = case.input(random_array(self.dtype, &self.shape(side), rng));
        let shape = [&[self.channels[1], self.channels[0]], &self.kernel[..]].concat();
        let mut filters = random_array(self.dtype, &shape, rng);
        if let Some(weight) = first_weight {
            let mut weights = filters.to_f64();
            weights[0] = weight;
            filters = Array::from_f64(self.dtype, &shape, &weights).unwrap();
        }
        let filters = case.input(filters);
        let y = self.append(&mut case, gradient, image, filters);
        let y = self.append_epilogue(&mut case, y, &self.shape(1 - side), rng);
        case.graph.add_output(y);
        case
    }

    /// Returns the gradient of filters, of copies of an image and of the result's gradient.
    fn gradient_of_filters(&self, rng: &mut Rng) -> Case {
        let mut case = Case::default();
        let operands = [0, 1].map(|side| {
            let x = case.input(random_array(self.dtype, &self.shape(side), rng));
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

    fn append(&self, case: &mut Case, gradient: bool, image: Value, filters: Value) -> Value {
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
    fn append_epilogue(&self, case: &mut Case, y: Value, shape: &[usize], rng: &mut Rng) -> Value {
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
            _ => Ok(random_array(dtype, &other, rng)),
        };
        let other = case.input(other.unwrap());
        let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
        let mut b = case.builder();
        let other = b.broadcast_to(&other, &dims).unwrap();
        let sum = b.pointwise(Pw::Add, &[y, other]).unwrap();
        b.pointwise(Pw::Relu, &[sum]).unwrap()
    }
}

/// Returns random numbers that TF32 represents exactly.
fn random_array(dtype: DType, shape: &[usize], rng: &mut Rng) -> Array {
    if dtype.is_byte() {
        let count = shape.iter().product();
        let bytes: Vec<u8> = (0..count).map(|_| rng.bits() as u8).collect();
        return Array::from_bytes(dtype, shape, &bytes).unwrap();
    }
    let half = finite(DType::F16, shape, rng).to_f64();
    Array::from_f64(dtype, shape, &half).unwrap()
}

/// Returns schedules of a dtype, with and without split K and clusters.
fn schedules(dtype: DType) -> [schedule::Gpu; 4] {
    let (multiply, depth) = match dtype {
        DType::F32 => ("wgmma_tf32", 32),
        dtype => ("wgmma", 128 / dtype.size()),
    };
    let schedule = |tile: &str, options: &str| {
        let text = format!("{multiply} tile={}", tile.replace("D", &depth.to_string()));
        format!("{text} {options}").parse().unwrap()
    };
    // Each block of a cluster loads boxes of 128 bytes of columns.
    let cluster_tile = match dtype.is_byte() {
        true => "128x256xD part=64x256",
        false => "128x128xD part=64x128",
    };
    [
        schedule("128x64xD part=64x64", "stages=3 raster=1 parts=1"),
        schedule("128x64xD part=64x64", "stages=2 raster=1 parts=2"),
        schedule(cluster_tile, "stages=3 raster=4 parts=1 cluster=2"),
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

/// Returns the program with a schedule, and the number of contractions that it applies to.
fn lower_with_schedule(graph: &Graph, schedule: schedule::Gpu) -> (Sequence, usize) {
    let mut program = lowered_for(Gpu::H100, graph, Layout::ChannelsLast, Some(schedule));
    let mut count = 0;
    for task in &mut program.tasks {
        let mut candidates = task.candidates.iter();
        let index = candidates.position(|c| c.schedule == Schedule::Gpu(schedule));
        count += usize::from(index.is_some());
        task.chosen = index.unwrap_or(task.chosen);
    }
    (program.sequence(), count)
}

fn is_im2col(kernel: &Kernel) -> bool {
    let copies = |k: &CudaKernel| k.maps.iter().any(|m| matches!(m.boxes, Boxes::Im2col(_)));
    matches!(kernel, Kernel::Cuda(k) if copies(k))
}

/// Counts the kernels with im2col copies.
fn count_im2col(sequence: &Sequence) -> usize {
    let launches = sequence.launches.iter();
    launches.filter(|l| is_im2col(&l.kernel)).count()
}

#[track_caller]
fn check((Case { graph, inputs }, conv): (&Case, &Conv), schedule: schedule::Gpu, label: &str) {
    let expected = Expected::of(graph, inputs).unwrap();
    let (sequence, _) = lower_with_schedule(&expected.lowered, schedule);
    // The layout of an image of one position is ambiguous.
    let is_image = [0, 1]
        .iter()
        .all(|side| conv.shape(*side)[2..].iter().all(|n| *n > 1));
    assert!(
        count_im2col(&sequence) == 1 || !is_image,
        "{label} by {schedule}\n{graph}"
    );
    let compiled = device::compile(&sequence);
    let got = run_compiled(&sequence, inputs, &expected.symbols, &compiled);
    let got = got.unwrap_or_else(|| panic!("{label}: a false data error"));
    if let Err(e) = expected.compare(&got) {
        panic!(
            "{label} by {schedule}: {e}\n{graph}\n{}",
            sources(&sequence)
        );
    }
}

#[test]
fn convolutions_are_right() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(81);
    let dtypes = [DType::BF16, DType::F16, DType::F32, DType::I8];
    for i in 0..2 * case_count() {
        let dtype = dtypes[i % 4];
        let conv = Conv::random(dtype, 1 + i / 4 % 3, &mut rng);
        let case = conv.case(false, None, &mut rng);
        check(
            (&case, &conv),
            rng.one(schedules(dtype)),
            &format!("{conv:?}"),
        );
    }
}

/// Strided and padded 1x1 filters, disjoint filters, and one as large as the image.
#[test]
fn unusual_filters() {
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

/// A convolution multiplies infinities and NaN of filters by zeros of the padding. The image gradient doesn't.
#[test]
fn filters_that_are_not_finite() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(82);
    for i in 0..case_count() {
        let dtype = [DType::BF16, DType::F16][i % 2];
        let mut conv = Conv::random(dtype, 1 + i / 2 % 3, &mut rng);
        let gradient = i % 4 > 1;
        if gradient {
            conv.allow_image_gradient(&mut rng);
        }
        let weight = [f64::INFINITY, f64::NAN][i / 4 % 2];
        let case = conv.case(gradient, Some(weight), &mut rng);
        check(
            (&case, &conv),
            rng.one(schedules(dtype)),
            &format!("{gradient} {conv:?}"),
        );
    }
}

/// The number of images is a symbol.
#[test]
fn batches_of_any_size() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(84);
    for axes in 1..4 {
        let mut conv = Conv::random(DType::BF16, axes, &mut rng);
        conv.batch = 5;
        let mut case = Case::default();
        let mut shape: Vec<Dim> = conv.shape(0).into_iter().map(Dim::from).collect();
        shape[0] = case.symbol();
        let image = case.shaped(random_array(conv.dtype, &conv.shape(0), &mut rng), shape);
        let filters = [&[conv.channels[1], conv.channels[0]], &conv.kernel[..]].concat();
        let filters = case.input(random_array(conv.dtype, &filters, &mut rng));
        let y = conv.append(&mut case, false, image, filters);
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
    for i in 0..case_count() {
        let dtype = [DType::BF16, DType::F16][i % 2];
        let mut conv = Conv::random(dtype, 1 + i / 2 % 3, &mut rng);
        conv.allow_image_gradient(&mut rng);
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
    let mut rng = Rng::new(87 + env_number("KILN_SEED", 0));
    for i in 0..case_count() {
        let dtype = [DType::BF16, DType::F16][i % 2];
        let mut conv = Conv::random(dtype, 1 + i / 2 % 3, &mut rng);
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
            let (mut sequence, _) = lower_with_schedule(&expected.lowered, schedule);
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

/// Returns a bottleneck block with such a convolution, of 64 images.
pub fn bottleneck(dtype: &str, [channels, rows, stride]: [usize; 3]) -> Graph {
    let (wide, result_rows) = (4 * channels, rows / stride + rows % stride);
    let conv = |stride: usize, padding: usize| {
        format!(
            "conv(stride: [{stride}, {stride}], padding: [({padding}, {padding}), ({padding}, {padding})], dilation: [1, 1], groups: 1)"
        )
    };
    let (conv_1x1, conv_3x3) = (conv(1, 0), conv(stride, 1));
    let image = |channels: usize, rows: usize| format!("{dtype}[64, {channels}, {rows}, {rows}]");
    let [input, inner] = [image(wide, rows), image(channels, rows)];
    let [strided, output] = [image(channels, result_rows), image(wide, result_rows)];
    parsed(&format!(
        "%0: {input} = input(index: 0, role: Data)
         %1: {dtype}[{channels}, {wide}, 1, 1] = input(index: 1, role: Parameter)
         %2: {dtype}[{channels}, {channels}, 3, 3] = input(index: 2, role: Parameter)
         %3: {dtype}[{wide}, {channels}, 1, 1] = input(index: 3, role: Parameter)
         %4: {inner} = {conv_1x1} %0, %1
         %5: {inner} = relu %4
         %6: {strided} = {conv_3x3} %5, %2
         %7: {strided} = relu %6
         %8: {output} = {conv_1x1} %7, %3
         %9: {output} = relu %8
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
        let [hopper, older] =
            [Gpu::H100, ampere].map(|gpu| lowered_for(gpu, &graph, Layout::Auto, None));
        assert_eq!(count_im2col(&hopper.sequence()), 1, "{shape:?}");
        let copies = |task: &Task| {
            let steps = &task.candidate().calls.steps;
            steps.iter().any(|step| is_im2col(&step.kernel))
        };
        let index = hopper.tasks.iter().position(copies).unwrap();
        let candidates = [&hopper, &older].map(|program| program.tasks[index].candidate());
        let [cycles, other_cycles] = candidates.map(|c| c.predicted.unwrap());
        let names = candidates.map(|c| c.name());
        println!(
            "{shape:?}: {cycles:.0} by {}, {other_cycles:.0} by {}",
            names[0], names[1]
        );
        assert!(
            names[1].starts_with("mma ") && cycles < other_cycles,
            "{shape:?}"
        );
    }
}

//! Runs lowered programs: kernels by an interpreter, library kernels by plain loops.

use crate::{points, tiles};
use kiln_base::{DType, Dim, round_float, wrap_int};
use kiln_codegen::{Launch, Options, Origin, Program, Sequence, Task, Work, kir, lower};
use kiln_ir::eval::{Array, Data, Mode, evaluate};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, Role, Target, Value, ops};
use kiln_plan::{Conv, ConvRole, Images, Kernel, MatMul};

/// The engine that runs the kernels.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Engine {
    /// Kernel IR, point by point.
    Points,
    /// Tile programs, with results in place wherever that is legal.
    Tiles,
    /// CUDA C++ on an emulated device, with results in place wherever that is legal.
    Device,
}

/// Returns the graph with composites decomposed.
pub fn decompose(graph: &Graph) -> Graph {
    decompose_ops(graph, |op| {
        matches!(
            op,
            Op::Softmax(_) | Op::BatchNorm(_) | Op::Attention(_) | Op::AttentionGrad(_)
        )
    })
}

/// Returns the graph with composites decomposed that have no CUDA kernel.
pub fn decompose_for_cuda(graph: &Graph) -> Graph {
    decompose_ops(graph, |op| {
        matches!(op, Op::Softmax(_) | Op::BatchNorm(_) | Op::AttentionGrad(_))
    })
}

/// Decomposes ops until none satisfies `is_composite`.
fn decompose_ops(graph: &Graph, is_composite: fn(&Op) -> bool) -> Graph {
    let mut graph = decompose_once(graph, is_composite);
    while graph.iter().any(|(_, n)| is_composite(&n.op)) {
        graph = decompose_once(&graph, is_composite);
    }
    graph
}

fn decompose_once(graph: &Graph, is_composite: fn(&Op) -> bool) -> Graph {
    let mut out = Graph::default();
    out.symbols.clone_from(&graph.symbols);
    let mut map: Vec<Vec<Value>> = Vec::new();
    for (_, node) in graph.iter() {
        let inputs: Vec<Value> = node
            .inputs
            .iter()
            .map(|v| map[v.node.index()][v.output as usize])
            .collect();
        let mut b = GraphBuilder::new(&mut out, Loc::UNKNOWN);
        let expanded = match &node.op {
            op if is_composite(op) => op.decompose(&mut b, &inputs),
            _ => None,
        };
        map.push(match expanded {
            Some(v) => vec![v.unwrap()],
            None => b.emit(node.op.clone(), &inputs).unwrap().to_vec(),
        });
    }
    for o in &graph.outputs {
        let mut o = *o;
        o.value = map[o.value.node.index()][o.value.output as usize];
        out.outputs.push(o);
    }
    out
}

/// Lowers a graph, and checks the invariants of every program.
pub fn lower_checked(graph: &Graph, options: &Options) -> Program {
    let program = lower(graph, options).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    check_invariants(graph, &program);
    program
}

/// Asserts the invariants of every program of a graph.
pub fn check_invariants(graph: &Graph, program: &Program) {
    let mut written = vec![false; program.buffers.len()];
    for (i, b) in program.buffers.iter().enumerate() {
        written[i] = matches!(b.origin, Origin::Input(_) | Origin::Constant(_));
    }
    for task in &program.tasks {
        for k in task.work.kernels() {
            assert_eq!(k.verify(), Vec::<String>::new(), "{k}\n{graph}");
        }
        for (b, a) in task.args.iter().zip(&task.work.args) {
            assert!(a.written || written[b.0 as usize], "read before written");
        }
        let mut parameter_only: Vec<bool> = Vec::new();
        for a in task.written() {
            assert!(!written[a.0 as usize], "written twice");
            written[a.0 as usize] = true;
            parameter_only.push(program.buffers[a.0 as usize].parameter_only);
        }
        parameter_only.dedup();
        assert_eq!(parameter_only.len(), 1, "prepare and run work in one task");
    }
    for (o, b) in graph.outputs.iter().zip(&program.outputs) {
        assert!(b.is_some() || o.target == Target::Kept);
    }
    let mut outputs: Vec<_> = program.outputs.iter().flatten().collect();
    outputs.sort();
    let count = outputs.len();
    outputs.dedup();
    assert_eq!(count, outputs.len(), "two outputs share a buffer");
}

/// Returns the outputs of a program; `None` on a data error.
pub fn run(
    program: &Program,
    inputs: &[Array],
    symbols: &[i64],
    engine: Engine,
) -> Option<Vec<Option<Array>>> {
    let sequence = program.sequence();
    let compiled = (engine == Engine::Device).then(|| crate::device::compile(&sequence));
    let device = compiled.as_ref();
    run_sequence(&program.tasks, &sequence, inputs, symbols, engine, device)
}

/// Returns the outputs of launches whose kernels are compiled for the device; `None` on a data error.
pub fn run_compiled(
    sequence: &Sequence,
    inputs: &[Array],
    symbols: &[i64],
    compiled: &crate::device::Compiled,
) -> Option<Vec<Option<Array>>> {
    let device = Some(compiled);
    run_sequence(&[], sequence, inputs, symbols, Engine::Device, device)
}

fn run_sequence(
    tasks: &[Task],
    program: &Sequence,
    inputs: &[Array],
    symbols: &[i64],
    engine: Engine,
    compiled: Option<&crate::device::Compiled>,
) -> Option<Vec<Option<Array>>> {
    let mut memory: Vec<Data> = Vec::new();
    let shape = |i: usize| -> Vec<usize> {
        let dims = program.buffers[i].shape.iter();
        dims.map(|d| d.eval(symbols) as usize).collect()
    };
    for (i, b) in program.buffers.iter().enumerate() {
        let n: usize = shape(i).iter().product();
        memory.push(match &b.origin {
            Origin::Input(i) => inputs[*i as usize].data().clone(),
            Origin::Constant(bytes) => Array::from_bytes(b.dtype, &shape(i), bytes)
                .unwrap()
                .data()
                .clone(),
            _ if b.dtype.is_float() => Data::Float(vec![777.25; n]),
            _ => Data::Int(vec![77; n]),
        });
    }
    let mut ok = true;
    let dtypes: Vec<DType> = program.buffers.iter().map(|b| b.dtype).collect();
    for launch in &program.launches {
        let mut args: Vec<usize> = launch.args.iter().map(|a| a.0 as usize).collect();
        if let Kernel::Cuda(_) | Kernel::Attention(_) = &*launch.kernel {
            let compiled = compiled.expect("compiled for the device");
            ok &= compiled.run(launch, &dtypes, &mut memory, symbols) == 0;
            continue;
        }
        let work = &tasks[launch.tasks[0]].work;
        let kernel = compute_operands((launch, work), &mut memory, &mut args, symbols, engine);
        let arg_count = launch.args.len();
        match &kernel {
            Kernel::Tile(p) => match engine {
                Engine::Points => ok &= points(result_kernel(work), &mut memory, &args, symbols),
                _ => ok &= tiles::run(p, &mut memory, &args, &launch.in_place, symbols),
            },
            Kernel::MatMul(m) => {
                let raw = matmul(m, &memory, &args, symbols);
                ok &= with_epilogue(
                    (launch, work),
                    raw,
                    m.out,
                    m.epilogue.as_ref(),
                    &mut memory,
                    &args[..arg_count],
                    symbols,
                    engine,
                );
            }
            Kernel::Cuda(_)
            | Kernel::Attention(_)
            | Kernel::AttentionGrad(_)
            | Kernel::Loop(_)
            | Kernel::Collective(_)
            | Kernel::Library(_)
            | Kernel::If(_) => {
                panic!("{} is not lowered to a launch", launch.kernel.name())
            }
            Kernel::Scan(_) | Kernel::ArgSort(_) | Kernel::Scatter(_) | Kernel::Custom(_) => {
                ok &= run_by_reference(&launch.kernel, program, &mut memory, launch, symbols);
            }
            Kernel::Conv(c) => {
                let raw = conv(c, &memory, &args, symbols);
                ok &= with_epilogue(
                    (launch, work),
                    raw,
                    c.out,
                    c.epilogue.as_ref(),
                    &mut memory,
                    &args[..arg_count],
                    symbols,
                    engine,
                );
            }
        }
    }
    let outputs = program.outputs.iter().map(|b| {
        let b = b.as_ref()?.0 as usize;
        let data = memory[b].clone();
        Some(Array::new(program.buffers[b].dtype, &shape(b), data).unwrap())
    });
    ok.then(|| outputs.collect())
}

/// Runs a kernel without epilogue by the reference evaluation of its op.
fn run_by_reference(
    kernel: &Kernel,
    program: &Sequence,
    memory: &mut [Data],
    launch: &Launch,
    symbols: &[i64],
) -> bool {
    let buffer = |arg: u16| launch.args[arg as usize].0 as usize;
    let number = |d: &Dim| d.eval(symbols) as usize;
    let array = |arg: u16, shape: &[usize]| {
        let dtype = program.buffers[buffer(arg)].dtype;
        Array::new(dtype, shape, memory[buffer(arg)].clone()).unwrap()
    };
    let (op, out, inputs): (Op, u16, Vec<Array>) = match kernel {
        Kernel::Scan(s) => {
            let op = ops::Scan {
                kind: s.kind,
                axis: 1,
                reverse: s.reverse,
            };
            let shape = [&s.outer, &s.len, &s.inner].map(number);
            (op.into(), s.out, vec![array(s.x, &shape)])
        }
        Kernel::ArgSort(s) => {
            let op = ops::ArgSort {
                axis: 1,
                descending: s.descending,
                first: Some(Dim::from(number(&s.kept))),
            };
            let shape = [&s.lanes, &s.len].map(number);
            (op.into(), s.out, vec![array(s.x, &shape)])
        }
        Kernel::Custom(c) => {
            let shape = |a: &kiln_plan::Array| a.shape.iter().map(number).collect::<Vec<usize>>();
            let output = shape(&c.out).into_iter().map(Dim::from);
            let op = ops::Custom {
                name: c.name.as_str().into(),
                output: Fact::new(c.out.dtype, output),
            };
            let inputs = c.operands.iter().map(|a| array(a.arg, &shape(a)));
            (op.into(), c.out.arg, inputs.collect())
        }
        Kernel::Scatter(s) => {
            let strided = |x: &kiln_plan::Strided| {
                let strides = eval_dims(&x.strides, symbols);
                let extents = eval_dims(&s.index_shape, symbols);
                let mut offsets = Vec::new();
                each_point(&extents, |point| {
                    let steps = strides.iter().zip(point).map(|(s, i)| s * i);
                    offsets.push((x.offset.eval(symbols) + steps.sum::<i64>()) as usize);
                });
                let shape: Vec<usize> = s.index_shape.iter().map(number).collect();
                let data = match &memory[buffer(x.arg)] {
                    Data::Float(v) => Data::Float(offsets.iter().map(|i| v[*i]).collect()),
                    Data::Int(v) => Data::Int(offsets.iter().map(|i| v[*i]).collect()),
                };
                Array::new(program.buffers[buffer(x.arg)].dtype, &shape, data).unwrap()
            };
            let op = ops::Scatter {
                axis: s.axis as usize,
                kind: s.kind,
            };
            let shape: Vec<usize> = s.shape.iter().map(number).collect();
            let inputs = vec![array(s.x, &shape), strided(&s.index), strided(&s.src)];
            (op.into(), s.out, inputs)
        }
        _ => unreachable!("the caller matches the kernels above"),
    };
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let fact = |a: &Array| Fact::new(a.dtype(), a.shape().iter().copied());
    let operands: Vec<Value> = inputs
        .iter()
        .map(|a| b.input(fact(a), Role::Data))
        .collect();
    let result = b.emit(op, &operands).unwrap()[0];
    graph.add_output(result);
    match evaluate(&graph, &inputs, &[], Mode::Rounded) {
        Ok(results) => memory[buffer(out)] = results[0].data().clone(),
        Err(_) => return false,
    }
    true
}

/// Stores the result of a product or convolution, after its epilogue if it has one.
#[allow(clippy::too_many_arguments)]
fn with_epilogue(
    (launch, work): (&Launch, &Work),
    raw: Data,
    out: u16,
    epilogue: Option<&kiln_plan::Epilogue>,
    memory: &mut Vec<Data>,
    args: &[usize],
    symbols: &[i64],
    engine: Engine,
) -> bool {
    let Some(epilogue) = epilogue else {
        memory[args[out as usize]] = raw;
        return true;
    };
    memory.push(raw);
    let mut args = args.to_vec();
    args.push(memory.len() - 1);
    let ok = match engine {
        Engine::Points => points(result_kernel(work), memory, &args, symbols),
        _ => tiles::run(&epilogue.program, memory, &args, &launch.in_place, symbols),
    };
    memory.pop();
    ok
}

fn points(kernel: &kir::Kernel, memory: &mut [Data], args: &[usize], symbols: &[i64]) -> bool {
    let mut data: Vec<Data> = args.iter().map(|a| memory[*a].clone()).collect();
    let ok = points::interpret(kernel, &mut data, symbols).is_ok();
    for (i, a) in args.iter().enumerate() {
        if kernel.args[i].written {
            memory[*a] = data[i].clone();
        }
    }
    ok
}

/// Returns the Kernel IR that computes the result.
fn result_kernel(work: &Work) -> &kir::Kernel {
    work.kernels().last().expect("fused work has a kernel")
}

fn eval_dims(dims: &[Dim], symbols: &[i64]) -> Vec<i64> {
    dims.iter().map(|d| d.eval(symbols)).collect()
}

/// Calls `f` with every point of a space, in row-major order.
pub fn each_point(extents: &[i64], mut f: impl FnMut(&[i64])) {
    let total: i64 = extents.iter().product();
    for mut n in 0..total {
        let mut point = vec![0; extents.len()];
        for k in (0..extents.len()).rev() {
            point[k] = n % extents[k];
            n /= extents[k];
        }
        f(&point);
    }
}

/// Computes prologues. Returns the kernel with their results as further arguments.
fn compute_operands(
    (launch, work): (&Launch, &Work),
    memory: &mut Vec<Data>,
    args: &mut Vec<usize>,
    symbols: &[i64],
    engine: Engine,
) -> Kernel {
    let mut kernel_with_operands = (*launch.kernel).clone();
    let prologues = launch.kernel.prologues().iter().zip(work.prologues());
    for (side, (prologue, kernel)) in prologues.enumerate() {
        let (Some(prologue), Some(kernel)) = (prologue, kernel) else {
            assert!(prologue.is_none() && kernel.is_none());
            continue;
        };
        assert_eq!(kernel.verify(), Vec::<String>::new(), "{kernel}");
        let len: i64 = eval_dims(&prologue.program.axes, symbols).iter().product();
        let written = prologue.program.args.iter().rfind(|a| a.written);
        memory.push(match written.is_some_and(|a| a.dtype.is_float()) {
            true => Data::Float(vec![777.25; len as usize]),
            false => Data::Int(vec![77; len as usize]),
        });
        let prologue_args: Vec<usize> = args[..launch.args.len()]
            .iter()
            .copied()
            .chain([memory.len() - 1])
            .collect();
        let ok = match engine {
            Engine::Points => points(kernel, memory, &prologue_args, symbols),
            _ => tiles::run(&prologue.program, memory, &prologue_args, &[], symbols),
        };
        assert!(ok, "a prologue reports no error");
        let arg = args.len() as u16;
        match &mut kernel_with_operands {
            Kernel::MatMul(m) => [&mut m.lhs, &mut m.rhs][side].arg = arg,
            Kernel::Conv(c) => c.operands[side] = arg,
            other => panic!("{} has no prologues", other.name()),
        }
        args.push(memory.len() - 1);
    }
    kernel_with_operands
}

fn matmul(m: &MatMul, memory: &[Data], args: &[usize], symbols: &[i64]) -> Data {
    let mut extents = eval_dims(&m.batch, symbols);
    let batch = extents.len();
    extents.extend(eval_dims(&[m.m.clone(), m.n.clone()], symbols));
    let k = m.k.eval(symbols);
    let operand = |x: &kiln_plan::Matrix, at: &[i64], row: i64, col: i64| {
        let strides = eval_dims(&x.batch_strides, symbols);
        let mut address =
            x.offset.eval(symbols) + row * x.row.eval(symbols) + col * x.col.eval(symbols);
        for (s, i) in strides.iter().zip(at) {
            address += s * i;
        }
        address as usize
    };
    let [a, b] = [&m.lhs, &m.rhs].map(|x| &memory[args[x.arg as usize]]);
    let mut terms = Vec::new();
    each_point(&extents, |at| {
        let (i, j) = (at[batch], at[batch + 1]);
        let pairs = (0..k).map(|p| (operand(&m.lhs, at, i, p), operand(&m.rhs, at, p, j)));
        terms.push(pairs.collect::<Vec<_>>());
    });
    match (a, b) {
        (Data::Float(a), Data::Float(b)) => {
            let sum = |t: &Vec<_>| t.iter().map(|(x, y): &(usize, usize)| a[*x] * b[*y]).sum();
            Data::Float(
                terms
                    .iter()
                    .map(|t| round_float(sum(t), m.dtype()))
                    .collect(),
            )
        }
        (Data::Int(a), Data::Int(b)) => {
            let add =
                |sum: i64, (x, y): &(usize, usize)| sum.wrapping_add(a[*x].wrapping_mul(b[*y]));
            let sums = terms.iter().map(|t| t.iter().fold(0, add));
            Data::Int(sums.map(|s| wrap_int(s, m.sums())).collect())
        }
        _ => panic!("a product of floats and integers"),
    }
}

fn conv(c: &Conv, memory: &[Data], args: &[usize], symbols: &[i64]) -> Data {
    let [a, b] = c.operands.map(|o| &memory[args[o as usize]]);
    match (a, b) {
        (Data::Float(a), Data::Float(b)) => {
            let sums = convolve(c, (a, b), symbols, 0.0, |sum, x, y| sum + x * y);
            Data::Float(sums.iter().map(|s| round_float(*s, c.dtype())).collect())
        }
        (Data::Int(a), Data::Int(b)) => {
            let add = |sum: i64, x: i64, y| sum.wrapping_add(x.wrapping_mul(y));
            let sums = convolve(c, (a, b), symbols, 0, add);
            Data::Int(sums.iter().map(|s| wrap_int(*s, c.sums())).collect())
        }
        _ => panic!("a convolution of floats and integers"),
    }
}

/// Returns the result of a convolution or of a gradient of one.
fn convolve<T: Copy>(
    c: &Conv,
    (a, b): (&[T], &[T]),
    symbols: &[i64],
    zero: T,
    add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let e = |d: &Dim| d.eval(symbols);
    let channels = |each: &Dim| (e(&c.groups) * e(each)) as usize;
    let a = &match c.images {
        // Moving channels to the end and moving positions back is the same transposition.
        Images::ChannelsLast => {
            transpose(a, e(&c.batch), a.len() / channels(&c.in_channels).max(1))
        }
        _ => a.to_vec(),
    };
    let (input, output, kernel) = (
        eval_dims(&c.input, symbols),
        eval_dims(&c.output, symbols),
        eval_dims(&c.kernel, symbols),
    );
    let (stride, padding, dilation) = (
        eval_dims(&c.stride, symbols),
        eval_dims(&c.padding, symbols),
        eval_dims(&c.dilation, symbols),
    );
    let (groups, ins, outs) = (e(&c.groups), e(&c.in_channels), e(&c.out_channels));
    let size = |n: i64, extents: &[i64]| n * groups * extents.iter().product::<i64>();
    let mut sums = match c.role {
        ConvRole::Result => vec![zero; size(e(&c.batch) * outs, &output) as usize],
        ConvRole::Input => vec![zero; size(e(&c.batch) * ins, &input) as usize],
        ConvRole::Weight => vec![zero; size(outs * ins, &kernel) as usize],
    };
    let mut extents = vec![e(&c.batch), groups, outs];
    extents.extend(&output);
    let mut taps = vec![ins];
    taps.extend(&kernel);
    each_point(&extents, |at| {
        let (n, g, o) = (at[0], at[1], at[2]);
        let y = at.iter().zip(&extents).fold(0, |y, (i, n)| y * n + i) as usize;
        each_point(&taps, |tap| {
            let mut x = (n * groups + g) * ins + tap[0];
            let mut w = (g * outs + o) * ins + tap[0];
            let mut inside = true;
            for a in 0..input.len() {
                let i = at[3 + a] * stride[a] + tap[1 + a] * dilation[a] - padding[a];
                inside &= (0..input[a]).contains(&i);
                x = x * input[a] + i;
                w = w * kernel[a] + tap[1 + a];
            }
            // Zeros of the padding are multiplied: infinities meet them.
            let (x, w) = (x as usize, w as usize);
            match c.role {
                ConvRole::Result => {
                    sums[y] = add(sums[y], if inside { a[x] } else { zero }, b[w]);
                }
                ConvRole::Weight => {
                    sums[w] = add(sums[w], if inside { a[x] } else { zero }, b[y]);
                }
                ConvRole::Input if inside => sums[x] = add(sums[x], a[y], b[w]),
                ConvRole::Input => {}
            }
        });
    });
    if c.images != Images::ChannelsFirst {
        sums = transpose(
            &sums,
            e(&c.batch),
            channels(&c.out_channels) * e(&c.batch) as usize,
        );
    }
    sums
}

/// Transposes each of `batch` matrices, which have `rows` rows in total.
fn transpose<T: Copy>(x: &[T], batch: i64, rows: usize) -> Vec<T> {
    let matrix = (x.len() / batch.max(1) as usize).max(1);
    let rows = rows / batch.max(1) as usize;
    let columns = matrix / rows.max(1);
    let transpose_matrix = |m: &[T]| -> Vec<T> {
        (0..m.len())
            .map(|i| m[i % rows * columns + i / rows])
            .collect()
    };
    x.chunks(matrix).flat_map(transpose_matrix).collect()
}

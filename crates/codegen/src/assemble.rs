//! Groups as launches over buffers.

mod control;
mod order;

pub(crate) use order::peak;

use crate::affine::estimate;
use crate::emit::{ArgOf, Emitted, emit, emit_prologue};
use crate::flow::{Flow, Nid, Op};
use crate::fuse::{Anchor, Group, Operand};
use crate::{
    BufId, BufferInfo, Cost, GroupReport, Launch, LayoutReport, LowerError, Options, Origin,
    Program, Target, cuda, kir, tile,
};
use hashbrown::HashSet;
use kiln_base::{DType, Dim, custom, numel};
use kiln_ir::NodeId;
use kiln_plan::{self as plan, Epilogue, Kernel, Matrix, Prologue};
use order::order;

/// The program of a grouped flow.
///
/// # Errors
/// If a group can't be expressed; that would be a bug.
pub(crate) fn assemble(
    flow: &Flow,
    groups: &[Group],
    options: &Options,
    layout: LayoutReport,
) -> Result<Program, LowerError> {
    let mut a = Assembler {
        flow,
        options,
        program: Program {
            buffers: Vec::new(),
            launches: Vec::new(),
            outputs: Vec::new(),
            groups: Vec::new(),
            layout,
        },
        buffer: vec![None; flow.nodes.len()],
    };
    a.leaves(groups);
    for g in order(flow, groups) {
        a.launch(&groups[g])?;
    }
    a.outputs();
    Ok(a.program)
}

struct Assembler<'a> {
    flow: &'a Flow,
    options: &'a Options,
    program: Program,
    buffer: Vec<Option<BufId>>,
}

impl Assembler<'_> {
    fn add_buffer(&mut self, n: Nid, origin: Origin) -> BufId {
        let node = &self.flow.nodes[n];
        self.program.buffers.push(BufferInfo {
            dtype: node.dtype,
            shape: node.shape.to_vec(),
            origin,
            parameter_only: node.parameter_only,
            channels_last: node.channels_last,
        });
        let id = BufId(self.program.buffers.len() as u32 - 1);
        self.buffer[n] = Some(id);
        id
    }

    fn leaves(&mut self, groups: &[Group]) {
        let mut inputs: Vec<(u32, Nid)> = Vec::new();
        let mut constants: Vec<Nid> = Vec::new();
        let mut is_loaded = vec![false; self.flow.nodes.len()];
        groups
            .iter()
            .flat_map(|g| &g.loaded)
            .for_each(|n| is_loaded[*n] = true);
        for (n, node) in self.flow.nodes.iter().enumerate() {
            match &node.op {
                Op::Input(i) => inputs.push((*i, n)),
                Op::Data(_) if is_loaded[n] => constants.push(n),
                _ => {}
            }
        }
        inputs.sort();
        for (i, n) in inputs {
            self.add_buffer(n, Origin::Input(i));
        }
        for n in constants {
            if let Op::Data(bytes) = &self.flow.nodes[n].op {
                self.add_buffer(n, Origin::Constant(bytes.clone()));
            }
        }
    }

    fn outputs(&mut self) {
        let mut taken: HashSet<BufId> = HashSet::new();
        let required = self.flow.outputs.iter().filter(|o| o.required);
        let required: HashSet<Nid> = required.map(|o| o.node).collect();
        let mut outputs = Vec::with_capacity(self.flow.outputs.len());
        for o in &self.flow.outputs {
            let mut buffer = self.buffer[o.node];
            if !o.required {
                let free = |b: &BufId| {
                    let asked = taken.contains(b) || required.contains(&o.node);
                    !asked && !self.flow.nodes[o.node].is_leaf()
                };
                buffer = buffer.filter(free);
            }
            taken.extend(buffer);
            outputs.push(buffer);
        }
        self.program.outputs = outputs;
    }

    fn launch(&mut self, group: &Group) -> Result<(), LowerError> {
        for (n, _) in &group.roots {
            let node = &self.flow.nodes[*n];
            let origin = match node.helper {
                true => Origin::Derived(node.source),
                false => Origin::Value(node.source),
            };
            self.add_buffer(*n, origin);
        }
        let alone = |a: &Anchor| {
            let node = &self.flow.nodes[a.node];
            let one = group.members == [a.node] && group.roots.len() == 1;
            // Results of another dtype than the operands pass through an epilogue.
            one && (!node.is_product() || self.multiplied(a) == node.dtype)
        };
        let mut launch = match &group.anchor {
            Some(anchor) if matches!(self.flow.nodes[anchor.node].op, Op::Control(_)) => {
                self.control(group, anchor)?
            }
            Some(anchor) if alone(anchor) => self.plain_library(group, anchor)?,
            _ => self.tiled(group)?,
        };
        let before = group.before.iter().flat_map(|b| &b.group.members);
        let members = group.members.iter().chain(before);
        launch.nodes = members.map(|m| self.flow.nodes[*m].source.node).collect();
        launch.nodes.sort();
        launch.nodes.dedup();
        match self.options.target {
            Target::Cpu => self.push(group, launch),
            Target::Cuda => self.on_cuda(group, launch)?,
        }
        Ok(())
    }

    fn push(&mut self, group: &Group, launch: Launch) {
        self.program.groups.push(GroupReport {
            name: launch.kernel.name().to_string(),
            nodes: launch.nodes.clone(),
            why_not: group.why_not.clone(),
        });
        self.program.launches.push(launch);
    }

    /// Adds a launch as it is on a GPU.
    fn on_cuda(&mut self, group: &Group, launch: Launch) -> Result<(), LowerError> {
        let value = self.flow.nodes[group.roots[0].0].source;
        let fail = |text| LowerError::new(value.node, text);
        match &launch.kernel {
            // Their bodies are on the GPU already.
            Kernel::Loop(_) | Kernel::If(_) => {
                self.push(group, launch);
                return Ok(());
            }
            // What it brings along is looked for by name when sizes are known.
            Kernel::Custom(c) => {
                let kernels = custom::find(&c.name).map_err(fail)?;
                kernels.cuda(c.kernel.as_deref()).map_err(fail)?;
                self.push(group, launch);
                return Ok(());
            }
            _ => {}
        }
        let list = cuda::print(&launch, self.options.ways).map_err(fail)?;
        let ways = (list.len() > 1).then(|| cuda::Ways {
            launch: launch.clone(),
            list: list.clone(),
        });
        let Some(default) = list.into_iter().next() else {
            return Err(fail("no kernel was printed".into()));
        };
        let mut launches = self.program.expand(&launch, default.printed);
        if let Some(first) = launches.first_mut() {
            first.ways = ways.map(Box::new);
        }
        for launch in launches {
            self.push(group, launch);
        }
        Ok(())
    }

    fn buffer(&self, mut n: Nid) -> BufId {
        // What lies behind a barrier lies where it lay before.
        while self.buffer[n].is_none() && matches!(self.flow.nodes[n].op, Op::After | Op::Reshape) {
            n = self.flow.nodes[n].inputs[0];
        }
        self.buffer[n].expect("buffers are written before they are read")
    }

    /// A library kernel that writes its result itself.
    fn plain_library(&self, group: &Group, anchor: &Anchor) -> Result<Launch, LowerError> {
        let (mut nodes, made) = self.operands(group, anchor)?;
        let out = nodes.len() as u16;
        nodes.push(group.roots[0].0);
        let position = |n: Nid| nodes.iter().position(|x| *x == n).unwrap_or(0) as u16;
        let kernel = self.library(anchor, &position, out, None);
        let mut launch = self.empty(kernel);
        launch.args = nodes.iter().map(|n| self.buffer(*n)).collect();
        launch.written = (0..nodes.len()).map(|i| i == out as usize).collect();
        self.alone(anchor, &nodes, &mut launch);
        self.prologues(&mut launch, made, &nodes);
        launch.cost = self.cost(&launch, None, Some(anchor));
        Ok(launch)
    }

    /// What a library kernel reads: its operands, or what these are made of, and what makes them.
    fn operands(
        &self,
        group: &Group,
        anchor: &Anchor,
    ) -> Result<(Vec<Nid>, Vec<Made>), LowerError> {
        let mut made = Vec::with_capacity(group.before.len());
        for before in &group.before {
            let emitted = emit_prologue(self.flow, &before.group, anchor.node)?;
            made.push((before.side, emitted));
        }
        let is_made = |i: &usize| made.iter().any(|m| m.0 == *i);
        let plain = (0..anchor.operands.len()).filter(|i| !is_made(i));
        let held = plain.map(|i| anchor.operands[i].held);
        let read = made.iter().flat_map(|(_, e)| buffers(&e.args));
        let mut nodes: Vec<Nid> = Vec::new();
        for n in held.chain(read) {
            if !nodes.contains(&n) {
                nodes.push(n);
            }
        }
        Ok((nodes, made))
    }

    /// Gives a product or convolution what makes its operands, of these arguments of the launch.
    fn prologues(&self, launch: &mut Launch, made: Vec<Made>, nodes: &[Nid]) {
        for (side, Emitted { builder, args }) in made {
            let mut kernel = builder.kernel;
            let place = |of: &ArgOf| match of {
                ArgOf::Buffer(n) => nodes.iter().position(|x| x == n),
                ArgOf::Raw => Some(nodes.len()),
            };
            for access in &mut kernel.accesses {
                let arg = place(&args[access.arg as usize]);
                access.arg = arg.expect("launches take what their prologues read") as u16;
            }
            let read = nodes.iter().map(|n| kir::Arg {
                dtype: self.flow.nodes[*n].dtype,
                written: false,
            });
            let whole = kernel.args.pop().expect("what is made comes last");
            kernel.args = read.chain([whole]).collect();
            let mut program = tile::print(&kernel).program;
            program.cut.stream = Some(false);
            let (operand, prologue) = match &mut launch.kernel {
                Kernel::MatMul(m) => {
                    let x = if side == 0 { &mut m.lhs } else { &mut m.rhs };
                    (&mut x.arg, &mut m.prologues[side])
                }
                Kernel::Conv(c) => (&mut c.operands[side], &mut c.prologue),
                _ => continue,
            };
            *operand = u16::MAX;
            *prologue = Some(Box::new(Prologue { program }));
            launch.made.push(kernel);
        }
    }

    /// What kernels of their own add to their launch: where the result may lie, and what can go wrong.
    fn alone(&self, anchor: &Anchor, nodes: &[Nid], launch: &mut Launch) {
        let node = &self.flow.nodes[anchor.node];
        // Several nodes may lie in one buffer.
        let same = |a: &Nid, b: Nid| self.buffer(*a) == self.buffer(b);
        let read = |n: Nid| {
            nodes[..nodes.len() - 1]
                .iter()
                .filter(|x| same(x, n))
                .count()
        };
        if matches!(node.op, Op::Scan { .. } | Op::Scatter(..))
            && read(nodes[0]) == 1
            && anchor.operands[1..].iter().all(|o| o.held != nodes[0])
        {
            launch.in_place.push((0, nodes.len() - 1));
        }
        let (op, kind) = match &node.op {
            Op::Scatter(..) => ("scatter", plan::SiteKind::IndexOutOfRange),
            Op::Custom(name) => (&**name, plan::SiteKind::Custom),
            _ => return,
        };
        launch.sites.push(plan::Site {
            op: op.into(),
            kind,
            node: node.source.node.0,
        });
    }

    fn tiled(&self, group: &Group) -> Result<Launch, LowerError> {
        let (operands, made) = match &group.anchor {
            Some(anchor) => self.operands(group, anchor)?,
            None => Default::default(),
        };
        let Emitted { builder, args } = emit(self.flow, group, &operands)?;
        let printed = match &group.anchor {
            None => tile::print(&builder.kernel),
            Some(_) => tile::print_epilogue(&builder.kernel),
        };
        let nodes: Vec<Nid> = buffers(&args).collect();
        let mut in_place = printed.in_place;
        let kernel = match &group.anchor {
            None => Kernel::Tile(printed.program),
            Some(anchor) => {
                let position = |n: Nid| nodes.iter().position(|x| *x == n).unwrap_or(0) as u16;
                // Operands come first.
                in_place.retain(|p| args[p.0] != ArgOf::Raw && p.0 >= operands.len());
                let epilogue = Epilogue {
                    program: printed.program,
                };
                self.library(anchor, &position, u16::MAX, Some(epilogue))
            }
        };
        let readers = |n: Nid| {
            nodes
                .iter()
                .filter(|o| self.buffer(**o) == self.buffer(n))
                .count()
        };
        in_place.retain(|p| readers(nodes[p.0]) == 1);
        in_place.retain(|p| self.flow.numel(nodes[p.0]) == self.flow.numel(nodes[p.1]));
        let mut launch = self.empty(kernel);
        launch.args = nodes.iter().map(|n| self.buffer(*n)).collect();
        launch.written = builder.kernel.args[..nodes.len()]
            .iter()
            .map(|a| a.written)
            .collect();
        launch.sites = builder.sites;
        launch.in_place = in_place;
        self.prologues(&mut launch, made, &nodes);
        launch.cost = self.cost(&launch, Some(&builder.kernel), group.anchor.as_ref());
        launch.variants = self.variants(&launch, &builder.kernel);
        launch.kir = Some(builder.kernel);
        Ok(launch)
    }

    /// Other ways to run the launch of a kernel on the CPU, where these are asked for.
    fn variants(&self, launch: &Launch, kernel: &kir::Kernel) -> Vec<(String, Kernel)> {
        let Kernel::Tile(program) = &launch.kernel else {
            return Vec::new();
        };
        if !self.options.ways || self.options.target != Target::Cpu {
            return Vec::new();
        }
        let written = launch.args.iter().zip(&launch.written).filter(|a| *a.1);
        let result = written.map(|(b, _)| {
            let buffer = &self.program.buffers[b.0 as usize];
            estimate(&numel(&buffer.shape)).saturating_mul(buffer.dtype.size() as i64)
        });
        let result = result.max().unwrap_or(0);
        let bytes = estimate(&launch.cost.bytes);
        let all = tile::variants(kernel, program, &launch.in_place, bytes, result);
        let kernels = all.into_iter().map(|(name, p)| (name, Kernel::Tile(p)));
        kernels.collect()
    }

    fn empty(&self, kernel: Kernel) -> Launch {
        Launch {
            kernel,
            variants: Vec::new(),
            kir: None,
            made: Vec::new(),
            args: Vec::new(),
            written: Vec::new(),
            bodies: Vec::new(),
            sites: Vec::new(),
            nodes: Vec::<NodeId>::new(),
            in_place: Vec::new(),
            cost: Cost::default(),
            ways: None,
        }
    }

    /// The dtype of the elements that a product multiplies.
    fn multiplied(&self, anchor: &Anchor) -> DType {
        self.flow.nodes[anchor.operands[0].held].dtype
    }

    fn library(
        &self,
        anchor: &Anchor,
        position: &dyn Fn(Nid) -> u16,
        out: u16,
        epilogue: Option<Epilogue>,
    ) -> Kernel {
        let node = &self.flow.nodes[anchor.node];
        let shape = &node.shape;
        let operand = |i: usize| &self.flow.nodes[node.inputs[i]].shape;
        let whole = |i: usize| position(anchor.operands[i].held);
        let strided = |i: usize| plan::Strided {
            arg: whole(i),
            offset: anchor.operands[i].offset.clone(),
            strides: anchor.operands[i].strides.clone(),
        };
        match &node.op {
            Op::Scan {
                kind,
                axis,
                reverse,
            } => Kernel::Scan(plan::Scan {
                dtype: node.dtype,
                kind: *kind,
                reverse: *reverse,
                outer: numel(&shape[..*axis]),
                len: shape[*axis].clone(),
                inner: numel(&shape[axis + 1..]),
                x: whole(0),
                out,
            }),
            Op::ArgSort { descending } => Kernel::ArgSort(plan::ArgSort {
                dtype: self.flow.nodes[node.inputs[0]].dtype,
                descending: *descending,
                lanes: numel(&shape[..shape.len() - 1]),
                len: operand(0)[shape.len() - 1].clone(),
                kept: shape[shape.len() - 1].clone(),
                x: whole(0),
                out,
            }),
            Op::Scatter(kind, axis) => Kernel::Scatter(plan::Scatter {
                dtype: node.dtype,
                kind: *kind,
                axis: *axis as u16,
                shape: shape.to_vec(),
                index_shape: operand(1).to_vec(),
                x: whole(0),
                index: strided(1),
                src: strided(2),
                out,
            }),
            Op::Custom(name) => {
                let array = |n: Nid, arg: u16| plan::Array {
                    arg,
                    dtype: self.flow.nodes[n].dtype,
                    shape: self.flow.nodes[n].shape.to_vec(),
                };
                let operands = node.inputs.iter().enumerate();
                Kernel::Custom(plan::Custom {
                    name: name.to_string(),
                    kernel: None,
                    operands: operands.map(|(i, n)| array(*n, whole(i))).collect(),
                    out: array(anchor.node, out),
                })
            }
            Op::Conv(c) => Kernel::Conv(plan::Conv {
                dtype: self.multiplied(anchor),
                role: c.role,
                batch: c.batch.clone(),
                groups: Dim::from(c.groups),
                in_channels: c.in_channels.clone(),
                out_channels: c.out_channels.clone(),
                input: c.input.clone(),
                output: c.output.clone(),
                kernel: c.kernel.clone(),
                stride: c.stride.iter().map(|s| Dim::from(*s)).collect(),
                padding: c.padding.iter().map(|s| Dim::from(*s)).collect(),
                dilation: c.dilation.iter().map(|s| Dim::from(*s)).collect(),
                operands: [whole(0), whole(1)],
                out,
                prologue: None,
                epilogue,
                algorithm: Default::default(),
                images: c.images,
            }),
            Op::Attention { scale, causal } => {
                let batch = shape.len() - 2;
                let matrix = |i: usize| matrix(&anchor.operands[i], position);
                let mask = node.inputs.get(3).map(|n| self.flow.nodes[*n].dtype);
                Kernel::Attention(Box::new(plan::Attention {
                    dtype: node.dtype,
                    scale: scale.as_f64(),
                    causal: *causal,
                    batch: shape[..batch].to_vec(),
                    length: shape[batch].clone(),
                    keys: operand(1)[batch].clone(),
                    width: operand(1)[batch + 1].clone(),
                    columns: shape[batch + 1].clone(),
                    query: matrix(0),
                    key: matrix(1),
                    value: matrix(2),
                    mask: mask.map(|dtype| (matrix(3), dtype)),
                    out,
                    epilogue,
                }))
            }
            _ => {
                let batch = shape.len() - 2;
                Kernel::MatMul(plan::MatMul {
                    dtype: self.multiplied(anchor),
                    batch: shape[..batch].to_vec(),
                    m: shape[batch].clone(),
                    k: operand(0)[batch + 1].clone(),
                    n: shape[batch + 1].clone(),
                    lhs: matrix(&anchor.operands[0], position),
                    rhs: matrix(&anchor.operands[1], position),
                    out,
                    prologues: [None, None],
                    epilogue,
                    algorithm: Default::default(),
                })
            }
        }
    }

    fn cost(&self, launch: &Launch, kernel: Option<&kir::Kernel>, anchor: Option<&Anchor>) -> Cost {
        let mut flops = Dim::ZERO;
        if let Some(anchor) = anchor {
            let node = &self.flow.nodes[anchor.node];
            let x = &self.flow.nodes[node.inputs[0]].shape;
            let sums = |len: Dim| &(&numel(&node.shape) * &len) * &Dim::Const(2);
            flops = match &node.op {
                Op::Conv(c) => {
                    let channels = [Dim::from(2 * c.groups), c.in_channels.clone()];
                    let sizes = [&numel(&c.output), &numel(&c.kernel), &c.batch];
                    let products = &c.out_channels * &numel(&channels);
                    sizes.iter().fold(products, |n, s| &n * *s)
                }
                Op::MatMul => sums(x[x.len() - 1].clone()),
                Op::Attention { .. } => {
                    let keys = &self.flow.nodes[node.inputs[1]].shape;
                    let (s, e) = (&keys[keys.len() - 2], &keys[keys.len() - 1]);
                    let scores = &numel(&x[..x.len() - 1]) * s;
                    &sums(s.clone()) + &(&scores * &(e * &Dim::Const(2)))
                }
                Op::Scatter(..) => self.flow.numel(node.inputs[2]),
                _ => numel(x),
            };
        }
        for k in launch.made.iter().chain(kernel) {
            flops = &flops + &kir::flops(k);
        }
        let bytes = self.bytes(launch);
        Cost { flops, bytes }
    }

    /// Bytes of the buffers touched.
    fn bytes(&self, launch: &Launch) -> Dim {
        launch.args.iter().fold(Dim::ZERO, |sum, b| {
            let info = &self.program.buffers[b.0 as usize];
            &sum + &(&numel(&info.shape) * &Dim::from(info.dtype.size()))
        })
    }
}

/// What makes an operand of a product, and which.
type Made = (usize, Emitted);

/// The nodes among the arguments of a kernel.
fn buffers(args: &[ArgOf]) -> impl Iterator<Item = Nid> {
    args.iter().filter_map(|a| match a {
        ArgOf::Buffer(n) => Some(*n),
        ArgOf::Raw => None,
    })
}

/// An operand whose last two axes are a matrix's.
fn matrix(operand: &Operand, position: &dyn Fn(Nid) -> u16) -> Matrix {
    let Operand {
        held,
        offset,
        strides,
    } = operand;
    let batch = strides.len() - 2;
    Matrix {
        arg: position(*held),
        offset: offset.clone(),
        batch_strides: strides[..batch].to_vec(),
        row: strides[batch].clone(),
        col: strides[batch + 1].clone(),
    }
}

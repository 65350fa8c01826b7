//! Lowering of groups to tasks over buffers.

mod control;
mod order;

pub(crate) use order::order;

use crate::emit::{ArgOf, Emitted, emit, emit_prologue};
use crate::flow::{Flow, LibraryCall, Nid, Op, scores};
use crate::fuse::{Anchor, Group, LibraryOperand};
use crate::work::{Arg, Body, Work};
use crate::{
    BufId, BufferInfo, LayoutReport, LowerError, Options, Origin, Program, Task, engine, kir, tile,
};
use hashbrown::HashSet;
use kiln_base::{DType, numel};
use kiln_ir::NodeId;
use kiln_plan::{self as plan, Matrix, schedule};

/// The maximum number of ops that are searched for an upper bound of a product's operand.
const MAX_BOUND_DEPTH: u32 = 12;

/// The data that is the same in all runs of a program, whose packed panels can be kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// Parameters, and values computed only from them.
    Parameters,
    /// The inputs from this index on, which are the same in all steps of a loop.
    Inputs(u32),
    /// Nothing, in a branch.
    Nothing,
}

/// Returns the program of a grouped flow.
///
/// # Errors
/// If an engine does not support some work, or a group is inconsistent, which is a bug.
pub(crate) fn assemble(
    flow: &Flow,
    groups: &[Group],
    options: &Options,
    layout: LayoutReport,
    keeps: Keeps,
) -> Result<Program, LowerError> {
    let mut a = Assembler::new(flow, options, layout, keeps);
    a.add_leaves(groups);
    for g in order(flow, groups).groups {
        a.add_task(&groups[g])?;
    }
    a.set_outputs();
    Ok(a.program)
}

struct Assembler<'a> {
    flow: &'a Flow,
    options: &'a Options,
    keeps: Keeps,
    program: Program,
    buffer: Vec<Option<BufId>>,
}

/// Returns the default schedule of the product or convolution of a group, and its cycles by the machine's model; `None`
/// if the machine has none, or sizes are unknown.
pub(crate) fn preferred(
    flow: &Flow,
    group: &Group,
    options: &Options,
) -> Option<(schedule::Gpu, f64)> {
    let layout = LayoutReport::default();
    let mut a = Assembler::new(flow, options, layout, Keeps::Nothing);
    let roots = group.roots.iter().map(|(n, _)| n);
    for n in group.loaded.iter().chain(roots) {
        a.add_buffer(*n, Origin::Value(flow.nodes[*n].source));
    }
    let (work, ..) = a.lowered(group).ok()?;
    engine::preferred(&work, options)
}

impl<'a> Assembler<'a> {
    fn new(
        flow: &'a Flow,
        options: &'a Options,
        layout: LayoutReport,
        keeps: Keeps,
    ) -> Assembler<'a> {
        Assembler {
            flow,
            options,
            keeps,
            program: Program {
                machine: options.machine,
                buffers: Vec::new(),
                tasks: Vec::new(),
                outputs: Vec::new(),
                layout,
            },
            buffer: vec![None; flow.nodes.len()],
        }
    }

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

    fn add_leaves(&mut self, groups: &[Group]) {
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

    fn set_outputs(&mut self) {
        let mut returned: HashSet<BufId> = HashSet::new();
        let required = self.flow.outputs.iter().filter(|o| o.required);
        let required: HashSet<Nid> = required.map(|o| o.node).collect();
        let mut outputs = Vec::with_capacity(self.flow.outputs.len());
        for o in &self.flow.outputs {
            let mut buffer = self.buffer[o.node];
            if !o.required {
                let is_available = |b: &BufId| {
                    let is_taken = returned.contains(b) || required.contains(&o.node);
                    !is_taken && !self.flow.nodes[o.node].is_leaf()
                };
                buffer = buffer.filter(is_available);
            }
            returned.extend(buffer);
            outputs.push(buffer);
        }
        self.program.outputs = outputs;
    }

    fn add_task(&mut self, group: &Group) -> Result<(), LowerError> {
        for (n, _) in &group.roots {
            let node = &self.flow.nodes[*n];
            let origin = match node.helper {
                true => Origin::Derived(node.source),
                false => Origin::Value(node.source),
            };
            self.add_buffer(*n, origin);
        }
        let (work, args, sites) = self.lowered(group)?;
        let prologues = group.prologues.iter().flat_map(|b| &b.group.members);
        let members = group.members.iter().chain(prologues);
        let mut nodes: Vec<NodeId> = (members.map(|m| self.flow.nodes[*m].source.node)).collect();
        nodes.sort();
        nodes.dedup();
        let value = self.flow.nodes[group.roots[0].0].source;
        let candidates = engine::candidates(&work, self.options);
        self.program.tasks.push(Task {
            candidates: candidates.map_err(|text| LowerError::new(value.node, text))?,
            chosen: 0,
            args: args.into_iter().map(|n| self.buffer(n)).collect(),
            work,
            sites,
            nodes,
            why_not: group.why_not.clone(),
        });
        Ok(())
    }

    /// Makes the work of a group whose values have buffers.
    fn lowered(&self, group: &Group) -> Result<WorkParts, LowerError> {
        let is_alone = |a: &Anchor| {
            let node = &self.flow.nodes[a.node];
            let is_only_node = group.members == [a.node] && group.roots.len() == 1;
            // Results of another dtype than the operands pass through an epilogue.
            is_only_node && (!node.is_product() || self.operand_dtypes(a)[0] == node.dtype)
        };
        match &group.anchor {
            Some(anchor) if matches!(self.flow.nodes[anchor.node].op, Op::Control(_)) => {
                self.control(group, anchor)
            }
            Some(anchor) if is_alone(anchor) => self.library_work(group, anchor),
            _ => self.fused_work(group),
        }
    }

    fn buffer(&self, mut n: Nid) -> BufId {
        // A value after a barrier or reshape is in the buffer of its input.
        while self.buffer[n].is_none() && matches!(self.flow.nodes[n].op, Op::After | Op::Reshape) {
            n = self.flow.nodes[n].inputs[0];
        }
        self.buffer[n].expect("buffers are written before they are read")
    }

    /// Returns the work of a library kernel that writes the group's result.
    fn library_work(&self, group: &Group, anchor: &Anchor) -> Result<WorkParts, LowerError> {
        let (mut nodes, materialised) = self.operands(group, anchor)?;
        let out = nodes.len() as u16;
        nodes.push(group.roots[0].0);
        let body = self.body(anchor, &nodes, out);
        let args = self.args(&nodes, |index| index == usize::from(out));
        let mut work = self.work(body, args, materialised, &nodes);
        let node = &self.flow.nodes[anchor.node];
        let is_sole_reader = self.count_in_buffer(&nodes[..nodes.len() - 1], nodes[0]) == 1;
        if work.body.reads_first()
            && is_sole_reader
            && anchor.operands[1..].iter().all(|o| o.held != nodes[0])
        {
            work.in_place.push((0, nodes.len() - 1));
        }
        let site = match &node.op {
            Op::Library(_, op) => op.site(),
            _ => None,
        };
        let site = site.map(|(op, kind)| plan::Site {
            op: op.into(),
            kind,
            node: node.source.node.0,
        });
        let sites = site.into_iter().collect();
        Ok((work, nodes, sites))
    }

    /// Returns work without an epilogue.
    fn work(
        &self,
        body: Body,
        args: Vec<Arg>,
        materialised: Vec<Materialised>,
        nodes: &[Nid],
    ) -> Work {
        let mut work = Work {
            body,
            prologues: [None, None],
            epilogue: None,
            args,
            in_place: Vec::new(),
        };
        for (side, emitted) in materialised {
            work.prologues[side] = Some(Box::new(self.with_work_args(emitted, nodes)));
            match &mut work.body {
                Body::MatMul(m) => [&mut m.lhs, &mut m.rhs][side].arg = u16::MAX,
                Body::Conv(c) => c.operands[side] = u16::MAX,
                _ => unreachable!("only operands of products are materialised"),
            }
        }
        work
    }

    fn args(&self, nodes: &[Nid], written: impl Fn(usize) -> bool) -> Vec<Arg> {
        let flow = self.flow;
        let is_output = |b: BufId| flow.outputs.iter().any(|o| self.buffer[o.node] == Some(b));
        let is_kept = |n: Nid| match self.keeps {
            Keeps::Parameters => {
                let node = &flow.nodes[n];
                node.parameter_only && (node.is_leaf() || !is_output(self.buffer(n)))
            }
            Keeps::Inputs(from) => {
                matches!(flow.nodes[n].op, Op::Input(i) if i >= from) && !is_output(self.buffer(n))
            }
            Keeps::Nothing => false,
        };
        // Work whose results are all kept runs once, so panels of its arguments need not be.
        let mut results = (nodes.iter().enumerate()).filter(|(index, _)| written(*index));
        let runs_again = !results.all(|(_, n)| is_kept(*n));
        let arg = |(index, n): (usize, &Nid)| {
            let buffer = &self.program.buffers[self.buffer(*n).0 as usize];
            Arg {
                dtype: buffer.dtype,
                len: numel(&buffer.shape),
                written: written(index),
                fixed: runs_again && !written(index) && is_kept(*n),
            }
        };
        nodes.iter().enumerate().map(arg).collect()
    }

    /// Returns the number of these nodes in the same buffer as `n`.
    fn count_in_buffer(&self, nodes: &[Nid], n: Nid) -> usize {
        let is_same_buffer = |x: &&Nid| self.buffer(**x) == self.buffer(n);
        nodes.iter().filter(is_same_buffer).count()
    }

    /// Returns the nodes that an anchor reads (its operands, or the inputs of their prologues), and the prologues.
    fn operands(
        &self,
        group: &Group,
        anchor: &Anchor,
    ) -> Result<(Vec<Nid>, Vec<Materialised>), LowerError> {
        let mut materialised = Vec::with_capacity(group.prologues.len());
        for prologue in &group.prologues {
            let emitted = emit_prologue(self.flow, &prologue.group, anchor.node)?;
            materialised.push((prologue.side, emitted));
        }
        let is_materialised = |i: &usize| materialised.iter().any(|m| m.0 == *i);
        let direct = (0..anchor.operands.len()).filter(|i| !is_materialised(i));
        let stored = direct.map(|i| anchor.operands[i].held);
        let read = materialised.iter().flat_map(|(_, e)| buffers(&e.args));
        let mut nodes: Vec<Nid> = Vec::new();
        for n in stored.chain(read) {
            if !nodes.contains(&n) {
                nodes.push(n);
            }
        }
        Ok((nodes, materialised))
    }

    /// Returns the prologue of an operand, with the argument numbers of the work.
    fn with_work_args(&self, Emitted { builder, args }: Emitted, nodes: &[Nid]) -> kir::Kernel {
        let mut kernel = builder.kernel;
        let arg_of = |origin: &ArgOf| match origin {
            ArgOf::Buffer(n) => nodes.iter().position(|x| x == n),
            ArgOf::Raw => Some(nodes.len()),
        };
        for access in &mut kernel.accesses {
            let arg = arg_of(&args[access.arg as usize]);
            access.arg = arg.expect("prologues read arguments of the work") as u16;
        }
        let read = nodes.iter().map(|n| kir::Arg {
            dtype: self.flow.nodes[*n].dtype,
            written: false,
        });
        let result = kernel.args.pop().expect("the result comes last");
        kernel.args = read.chain([result]).collect();
        kernel
    }

    /// Returns the work of a group with Kernel IR: its body, or the epilogue of its library kernel.
    fn fused_work(&self, group: &Group) -> Result<WorkParts, LowerError> {
        let (operands, materialised) = match &group.anchor {
            Some(anchor) => self.operands(group, anchor)?,
            None => Default::default(),
        };
        let Emitted { builder, args } = emit(self.flow, group, &operands)?;
        let kernel = builder.kernel;
        let nodes: Vec<Nid> = buffers(&args).collect();
        let mut in_place = match &group.anchor {
            None => tile::in_place(&kernel),
            Some(_) => tile::in_place_epilogue(&kernel),
        };
        // Operands come first, and the body's result last.
        in_place.retain(|p| (operands.len()..nodes.len()).contains(&p.0));
        in_place.retain(|p| self.count_in_buffer(&nodes, nodes[p.0]) == 1);
        in_place.retain(|p| self.flow.numel(nodes[p.0]) == self.flow.numel(nodes[p.1]));
        let args = self.args(&nodes, |index| kernel.args[index].written);
        let (body, epilogue) = match &group.anchor {
            None => (Body::Fused(kernel), None),
            Some(anchor) => (self.body(anchor, &nodes, u16::MAX), Some(kernel)),
        };
        let work = Work {
            epilogue,
            in_place,
            ..self.work(body, args, materialised, &nodes)
        };
        Ok((work, nodes, builder.sites))
    }

    /// Returns the dtypes of a product's operands.
    fn operand_dtypes(&self, anchor: &Anchor) -> [DType; 2] {
        [0, 1].map(|i| self.flow.nodes[anchor.operands[i].held].dtype)
    }

    /// True if no element of a product's first operand, of bytes, exceeds 127.
    fn has_reduced_range(&self, anchor: &Anchor) -> bool {
        let operand = anchor.operands[0].held;
        let is_u8 = self.flow.nodes[operand].dtype == DType::U8;
        is_u8 && self.flow.is_at_most(operand, 127.0, MAX_BOUND_DEPTH)
    }

    /// Returns the body of a library kernel on these nodes, with its result in argument `out`.
    fn body(&self, anchor: &Anchor, nodes: &[Nid], out: u16) -> Body {
        let node = &self.flow.nodes[anchor.node];
        let shape = &node.shape;
        let position = |n: Nid| nodes.iter().position(|x| *x == n).unwrap_or(0) as u16;
        let operand = |i: usize| &self.flow.nodes[node.inputs[i]].shape;
        let arg_of = |i: usize| position(anchor.operands[i].held);
        let strided = |i: usize| plan::Strided {
            arg: arg_of(i),
            offset: anchor.operands[i].offset.clone(),
            strides: anchor.operands[i].strides.clone(),
        };
        let matrix = |i: usize| matrix(&anchor.operands[i], arg_of(i));
        let call = || {
            let array = |n: Nid, arg: u16| plan::Array {
                arg,
                dtype: self.flow.nodes[n].dtype,
                shape: self.flow.nodes[n].shape.to_vec(),
            };
            let operands = node.inputs.iter().enumerate();
            LibraryCall {
                operands: operands.map(|(i, n)| array(*n, arg_of(i))).collect(),
                strided: (0..node.inputs.len()).map(strided).collect(),
                out: array(anchor.node, out),
            }
        };
        match &node.op {
            Op::Library(_, op) => Body::Library(op.kernel(&call())),
            Op::Conv(c) => Body::Conv(plan::Conv {
                dtypes: self.operand_dtypes(anchor),
                reduce_range: self.has_reduced_range(anchor),
                operands: [arg_of(0), arg_of(1)],
                out,
                ..(**c).clone()
            }),
            Op::Attention(attention) => {
                let extra_inputs: Vec<usize> = (3..node.inputs.len()).collect();
                Body::Attention(Box::new(plan::Attention {
                    scores: scores(attention, &call(), &extra_inputs),
                    columns: shape[shape.len() - 1].clone(),
                    value: matrix(2),
                    out,
                    epilogue: None,
                }))
            }
            _ => {
                let batch = shape.len() - 2;
                Body::MatMul(plan::MatMul {
                    dtypes: self.operand_dtypes(anchor),
                    reduce_range: self.has_reduced_range(anchor),
                    batch: shape[..batch].to_vec(),
                    m: shape[batch].clone(),
                    k: operand(0)[batch + 1].clone(),
                    n: shape[batch + 1].clone(),
                    lhs: matrix(0),
                    rhs: matrix(1),
                    out,
                    prologues: [None, None],
                    epilogue: None,
                    algorithm: Default::default(),
                })
            }
        }
    }
}

/// Some work, the nodes that are its arguments, and its error sites.
type WorkParts = (Work, Vec<Nid>, Vec<plan::Site>);

/// The index of an operand of a product, and its prologue.
type Materialised = (usize, Emitted);

/// Returns the nodes among the arguments of a kernel.
fn buffers(args: &[ArgOf]) -> impl Iterator<Item = Nid> {
    args.iter().filter_map(|a| match a {
        ArgOf::Buffer(n) => Some(*n),
        ArgOf::Raw => None,
    })
}

/// Returns an operand as a matrix of its last two axes.
fn matrix(operand: &LibraryOperand, arg: u16) -> Matrix {
    let LibraryOperand {
        held: _,
        offset,
        strides,
    } = operand;
    let batch = strides.len() - 2;
    Matrix {
        arg,
        offset: offset.clone(),
        batch_strides: strides[..batch].to_vec(),
        row: strides[batch].clone(),
        col: strides[batch + 1].clone(),
    }
}

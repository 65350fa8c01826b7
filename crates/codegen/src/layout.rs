//! The choice of memory layout: the images whose channels come last in memory (NHWC).
//!
//! In the graph an image is `[batch, channels, spatial..]`, whatever its layout. Views are index maps, and a kernel
//! reads and writes either layout through strides. So a layout is an attribute of stored values, and no kernel is added
//! for one. It is chosen once the kernels are known.
//!
//! Each launch gets one of two labels, channels first or last: the order of its loops and of the values that it stores.
//! A convolution also reads its image in that order. The labels minimise the cost:
//!
//! * a convolution costs the time of its kernel in that layout, by measurement if it was measured, else by
//!   a formula of the engine ([`cpu`], [`gpu`]);
//! * a launch that reads or writes an image of the other layout strides through memory;
//! * a convolution with channels last also reads an image with channels first, at a cost, and the other way round.
//!
//! On a GPU, a convolution reads an image in one layout and writes its result in another at no cost. So an image that
//! convolutions read has a label of its own: they read it as it is stored, or as a copy with channels last.
//!
//! Each cost depends on at most two labels, so the labels with the minimum cost are a minimum cut between the launches
//! with channels first and those with channels last. A value keeps channels first if it is a result, or is read by a
//! reshape or by a library kernel other than a convolution. On a GPU, filters have the layout of images ([`filters`]).

use crate::affine::estimate;
use crate::cpu::must_be_direct;
use crate::flow::{Flow, Nid, Op};
use crate::fuse::Group;
use crate::program::NEVER;
use crate::{Conversion, Layout, LayoutReport, Options};
use hashbrown::{HashMap, HashSet};
use kiln_base::{Dim, Machine};
use kiln_plan::{Conv, ConvRole, Images};
use petgraph::algo::maximum_flow::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

mod cpu;
mod filters;
mod gpu;

/// The cost of an impossible label. It exceeds the total cost of labels that contradict the options.
const IMPOSSIBLE: u64 = NEVER << 6;

/// Chooses layouts and writes them into the flow and the groups' spaces.
pub(crate) fn assign(flow: &mut Flow, groups: &mut Vec<Group>, options: &Options) -> LayoutReport {
    let convs: Vec<Option<Conv>> = groups.iter().map(|g| image_conv(flow, g)).collect();
    let mut report = LayoutReport {
        convolutions: convs.iter().flatten().count(),
        ..LayoutReport::default()
    };
    if options.layout == Layout::ChannelsFirst || report.convolutions == 0 {
        return report;
    }
    let network = Network::new(flow, groups, convs, options);
    let last = network.min_cost_labels();
    report.conversions = network.conversions(flow, groups, &last);
    report.cost = network.cost(&last);
    report.first_cost = network.cost(&vec![false; network.label_costs.len()]);
    report.last_cost = network.cost(&network.all_last());
    let stored = |n: &Nid| network.writers.get(n).is_some_and(|g| last[*g]);
    for n in network.free.iter().filter(|n| stored(n)) {
        flow.nodes[*n].channels_last = true;
    }
    let images = network.images.iter().zip(&last[groups.len()..]);
    let copied = images.filter(|(image, last)| **last && !flow.nodes[image.value].channels_last);
    for image in copied.map(|c| c.0).collect::<Vec<_>>() {
        filters::read_copy(flow, groups, image);
    }
    let on_gpu = options.machine.gpu().is_some();
    let mut reads_last = reads_filters(&network.convs);
    let launches = groups.iter_mut().take(reads_last.len());
    for (g, group) in launches.enumerate() {
        if let (Some(_), Some(anchor)) = (&network.convs[g], &group.anchor) {
            let inputs = &flow.nodes[anchor.node].inputs;
            let operands = anchor.operands.iter().zip(inputs);
            let is_either = |n: Nid| last[g] && !differs(flow, n);
            // The stored value may not be an image: it may be a vector that is reshaped.
            let is_last = operands.map(|(o, n)| flow.nodes[o.held].channels_last || is_either(*n));
            let is_last: Vec<bool> = is_last.collect();
            // A result of one position has only channels.
            let is_position = flow.nodes[anchor.node].shape[2..].iter().all(|d| d.is(1));
            let writes_last = last[g] || on_gpu && is_last[0] && is_position;
            if let Op::Conv(spec) = &mut flow.nodes[anchor.node].op {
                spec.images = Images::of(match spec.role {
                    ConvRole::Result => [is_last[0], writes_last],
                    ConvRole::Input => [writes_last, is_last[0]],
                    ConvRole::Weight => [is_last[0], is_last[1]],
                });
                reads_last[g] &= spec.reads_channels_last();
                let last = (last[g] || on_gpu) && spec.images != Images::ChannelsFirst;
                report.channels_last += usize::from(last);
            }
        }
        if last[g] {
            sort_axes(flow, group);
        }
    }
    if on_gpu {
        filters::store_channels_last(flow, groups, &reads_last);
    }
    report
}

/// Sorts a group's axes into the order in which it writes: that of its convolution's result, else of the first value
/// with channels last.
fn sort_axes(flow: &Flow, group: &mut Group) {
    let flat = match &group.anchor {
        Some(anchor) => {
            let map = group.space.resolve_map(&anchor.map);
            flow.nodes[anchor.node].raw_address(&map)
        }
        None => {
            let mut roots = group
                .roots
                .iter()
                .filter(|(n, _)| flow.nodes[*n].channels_last);
            let Some((n, map)) = roots.next() else { return };
            flow.nodes[*n].address(&group.space.resolve_map(map))
        }
    };
    let mut space = group.space.clone();
    space.sort_axes(&flat);
    if space.axes.len() == group.space.axes.len() {
        group.space = space;
    }
}

/// Returns the convolution of a launch, unless it depends on parameters only.
fn image_conv(flow: &Flow, group: &Group) -> Option<Conv> {
    let node = &flow.nodes[group.anchor.as_ref()?.node];
    let Op::Conv(spec) = &node.op else {
        return None;
    };
    (!group.parameter_only).then(|| (**spec).clone())
}

/// For each launch, true if it is a convolution that reads filters, as operand 1.
fn reads_filters(convs: &[Option<Conv>]) -> Vec<bool> {
    let reads = |c: &Conv| c.role != ConvRole::Weight;
    convs
        .iter()
        .map(|c| c.as_ref().is_some_and(reads))
        .collect()
}

/// The launches, and the costs of labels.
struct Network {
    machine: Machine,
    /// True if convolutions must not be transformed.
    exact: bool,
    /// The launch that stores a value.
    writers: HashMap<Nid, usize>,
    /// The values that may have channels last.
    free: HashSet<Nid>,
    convs: Vec<Option<Conv>>,
    /// The images that convolutions of a GPU read.
    images: Vec<Image>,
    /// The costs of channels first, and last, of each launch, then of each of the images.
    label_costs: Vec<(u64, u64)>,
    /// The images that one launch reads and another writes.
    pairs: Vec<Pair>,
    /// The values that keep channels first, each with a reader.
    pinned: Vec<(Nid, usize)>,
}

/// An image that convolutions of a GPU read.
struct Image {
    value: Nid,
    /// The launches that read it, each with the operand that it is.
    readers: Vec<(usize, usize)>,
}

/// An image that one launch writes and another reads.
struct Pair {
    value: Nid,
    writer: usize,
    reader: usize,
    /// The cost if the writer has channels first and the reader has channels last.
    to_last: u64,
    /// The cost if the writer has channels last and the reader has channels first.
    to_first: u64,
}

impl Network {
    fn new(flow: &Flow, groups: &[Group], convs: Vec<Option<Conv>>, options: &Options) -> Network {
        let roots = groups.iter().enumerate();
        let writers: HashMap<Nid, usize> = roots
            .flat_map(|(g, group)| group.roots.iter().map(move |(n, _)| (*n, g)))
            .collect();
        let filters = filters::Filters::of(flow, groups, &reads_filters(&convs));
        let mut network = Network {
            machine: options.machine,
            exact: options.exact,
            free: free_values(flow, groups, &convs),
            writers,
            images: Vec::new(),
            label_costs: vec![(0, 0); groups.len()],
            pairs: Vec::new(),
            pinned: Vec::new(),
            convs,
        };
        for (g, group) in groups.iter().enumerate() {
            network.label_costs[g] = network.launch_cost(flow, group, g, options.layout);
            let conv = network.convs[g].clone().zip(group.anchor.as_ref());
            // In a gradient of filters, no operand counts as an image.
            let reads_images = !matches!(&conv, Some((c, _)) if c.role == ConvRole::Weight);
            for n in strided_reads(group).filter(|_| reads_images) {
                network.add_read(flow, group, g, n);
            }
            if let Some((conv, anchor)) = conv {
                let inputs = &flow.nodes[anchor.node].inputs;
                let images = conv.image_operands().iter();
                for i in images.filter(|i| differs(flow, inputs[**i])) {
                    match options.machine {
                        Machine::Cpu(_) => {
                            network.add_image(flow, g, &conv, anchor.operands[*i].held);
                        }
                        Machine::Gpu(_) => {
                            network.add_gpu_image(flow, group, g, *i, (options.layout, &filters));
                        }
                    }
                }
            }
        }
        network
    }

    /// Returns the costs of a launch with channels first, and last, without those of reads.
    fn launch_cost(&self, flow: &Flow, group: &Group, g: usize, layout: Layout) -> (u64, u64) {
        let pinned = group.roots.iter().map(|(n, _)| *n);
        let pinned = pinned.filter(|n| differs(flow, *n) && !self.free.contains(n));
        let pinned: u64 = pinned
            .map(|n| elements(flow, n) * self.strided_cost(flow, n))
            .sum();
        let Some(conv) = &self.convs[g] else {
            let is_free =
                group.anchor.is_none() && group.roots.iter().any(|(n, _)| self.free.contains(n));
            let (first, last) = match self.machine {
                Machine::Cpu(_) => (
                    window_reads(flow, group) * cpu::WINDOW,
                    pinned + concat_cost(flow, group),
                ),
                Machine::Gpu(_) => (0, pinned),
            };
            return (first, if is_free { last } else { IMPOSSIBLE });
        };
        let writes_filters = conv.role == ConvRole::Weight;
        // A result without an epilogue is written by the convolution itself, in its own layout.
        let writes_pinned = group.members.len() == 1 && pinned > 0;
        if self.machine.gpu().is_some() {
            let is_free = group.roots.iter().any(|(n, _)| self.free.contains(n));
            let forced = is_free && layout == Layout::ChannelsLast;
            let first = if forced { NEVER } else { 0 };
            return match writes_filters || writes_pinned {
                true => (0, IMPOSSIBLE),
                false => (first, gpu::write_cost(conv) + pinned),
            };
        }
        let must_be_direct = must_be_direct(self.exact, conv, &self.machine);
        let packs = self.packs_weights(flow, group) && !must_be_direct;
        let [mut first, mut last] = cpu::conv_cost(conv, packs);
        let measured = (group.anchor.as_ref()).and_then(|a| flow.nodes[a.node].measured);
        if let Some((by_first, by_last)) = measured {
            last = first / 1000 * u64::from(by_last);
            first = first / 1000 * u64::from(by_first);
        } else if !writes_filters && !self.packs_weights(flow, group) {
            // Its weights are packed in each run.
            let weights = group.anchor.iter().map(|a| a.operands[1].held);
            last += weights
                .map(|w| elements(flow, w) * cpu::PACKED)
                .sum::<u64>();
        }
        match layout {
            _ if writes_filters && layout == Layout::Auto => (first, last),
            _ if writes_filters => (NEVER, last),
            _ if writes_pinned => (first, IMPOSSIBLE),
            Layout::ChannelsLast => (NEVER, last),
            _ => (first, last + pinned),
        }
    }

    /// True if a launch's convolution has weights that depend on parameters only, so they are packed once.
    fn packs_weights(&self, flow: &Flow, group: &Group) -> bool {
        let anchor = group.anchor.as_ref();
        anchor.is_some_and(|a| flow.nodes[a.operands[1].held].parameter_only)
    }

    /// Returns the cost of reading or writing an element of a value in the other order.
    fn strided_cost(&self, flow: &Flow, n: Nid) -> u64 {
        match self.machine {
            Machine::Cpu(_) => cpu::STRIDED,
            Machine::Gpu(_) => gpu::strided_cost(flow.nodes[n].dtype.size()),
        }
    }

    /// Adds the cost of a launch for a value that it reads through strides.
    fn add_read(&mut self, flow: &Flow, group: &Group, g: usize, n: Nid) {
        // A reduction of whole images costs the same in both orders.
        if differs(flow, n) && group.roots.iter().any(|(r, _)| differs(flow, *r)) {
            let points = group.space.points().clamp(0, 1 << 32) as u64;
            let cost_per_point = match group.anchor.is_none() && group.space.inner.is_empty() {
                true if self.machine.gpu().is_some() => gpu::TRANSPOSE * 1000,
                _ => self.strided_cost(flow, n),
            };
            let cost = points.max(elements(flow, n)) * cost_per_point;
            self.add_difference(n, g, cost, cost);
        }
    }

    /// Adds the cost of a convolution of the CPU for its image.
    fn add_image(&mut self, flow: &Flow, g: usize, conv: &Conv, n: Nid) {
        let to_last = elements(flow, n) * cpu::TO_CHANNELS_LAST;
        self.add_difference(n, g, to_last, cpu::channels_last_read_cost(conv));
    }

    /// Adds the costs of a read by a launch of the other layout than the value's.
    fn add_difference(&mut self, n: Nid, reader: usize, to_last: u64, to_first: u64) {
        match self.writers.get(&n).filter(|_| self.free.contains(&n)) {
            Some(g) if *g != reader => self.pairs.push(Pair {
                value: n,
                writer: *g,
                reader,
                to_last,
                to_first,
            }),
            Some(_) => {}
            None => {
                let last = &mut self.label_costs[reader].1;
                *last = (*last + to_last).min(IMPOSSIBLE);
                self.pinned.push((n, reader));
            }
        }
    }

    /// Returns the labels with the minimum cost: for each launch and image, true for channels last.
    fn min_cost_labels(&self) -> Vec<bool> {
        let mut graph: DiGraph<(), u64> = DiGraph::new();
        let nodes = self.label_costs.iter().map(|_| graph.add_node(()));
        let nodes: Vec<NodeIndex> = nodes.collect();
        let (first, last) = (graph.add_node(()), graph.add_node(()));
        for (node, cost) in nodes.iter().zip(&self.label_costs) {
            graph.add_edge(first, *node, cost.1);
            graph.add_edge(*node, last, cost.0);
        }
        for p in &self.pairs {
            let (writer, reader) = (nodes[p.writer], nodes[p.reader]);
            graph.add_edge(writer, reader, p.to_last);
            graph.add_edge(reader, writer, p.to_first);
        }
        let (_, flows) = dinics(&graph, first, last);
        // The launches that reach `last` in the residual graph have channels last; ties have channels first.
        let mut reached = vec![false; graph.node_count()];
        let mut stack = vec![last];
        reached[last.index()] = true;
        while let Some(n) = stack.pop() {
            let mut visit = |n: NodeIndex| {
                if !std::mem::replace(&mut reached[n.index()], true) {
                    stack.push(n);
                }
            };
            for e in graph.edges_directed(n, petgraph::Direction::Incoming) {
                if flows[e.id().index()] < *e.weight() {
                    visit(e.source());
                }
            }
            for e in graph.edges(n).filter(|e| flows[e.id().index()] > 0) {
                visit(e.target());
            }
        }
        nodes.iter().map(|n| reached[n.index()]).collect()
    }

    /// Returns the labels with as many channels last as possible.
    fn all_last(&self) -> Vec<bool> {
        self.label_costs.iter().map(|cost| cost.1 < NEVER).collect()
    }

    /// Returns the images that launches of the other layout read.
    fn conversions(&self, flow: &Flow, groups: &[Group], last: &[bool]) -> Vec<Conversion> {
        let conversion = |value: Nid, reader: usize, kept: bool| {
            let image = reader.checked_sub(groups.len());
            let launch = image.map_or(reader, |i| self.images[i].readers[0].0);
            let anchor = groups[launch].anchor.as_ref();
            let anchor = anchor.filter(|_| self.convs[launch].is_some());
            let transposes = self.machine.gpu().is_none();
            Conversion {
                value: flow.nodes[value].source,
                reader: flow.nodes[groups[launch].roots[0].0].source,
                channels_last: last[reader],
                kept,
                copied: image.is_some()
                    || transposes && anchor.is_some_and(|a| a.operands[0].held == value),
                bytes: &flow.numel(value) * &Dim::from(flow.nodes[value].dtype.size()),
            }
        };
        let pairs = self.pairs.iter();
        let pairs = pairs.filter(|p| last[p.writer] != last[p.reader]);
        let pairs = pairs.map(|p| conversion(p.value, p.reader, false));
        let pinned = self.pinned.iter().filter(|(_, reader)| last[*reader]);
        let pinned = pinned.map(|(value, reader)| conversion(*value, *reader, true));
        pairs.chain(pinned).collect()
    }

    /// Returns the cost of labels.
    fn cost(&self, last: &[bool]) -> u64 {
        let labels = self.label_costs.iter().zip(last);
        let labels = labels.map(|((f, l), last)| if *last { *l } else { *f });
        let pairs = self
            .pairs
            .iter()
            .map(|p| match (last[p.writer], last[p.reader]) {
                (false, true) => p.to_last,
                (true, false) => p.to_first,
                _ => 0,
            });
        labels.chain(pairs).fold(0, u64::saturating_add)
    }
}

/// Returns the values that may have channels last.
fn free_values(flow: &Flow, groups: &[Group], convs: &[Option<Conv>]) -> HashSet<Nid> {
    let mut pinned = pinned_values(flow);
    for (group, conv) in groups.iter().zip(convs) {
        if let Some(anchor) = &group.anchor {
            let images = conv.as_ref().map_or(&[][..], Conv::image_operands);
            let operands = anchor.operands.iter().enumerate();
            let operands = operands.filter(|(i, _)| !images.contains(i));
            pinned.extend(operands.map(|(_, o)| o.held));
            if conv.as_ref().is_none_or(|c| c.role == ConvRole::Weight) {
                pinned.extend(group.roots.iter().map(|(n, _)| *n));
            }
        }
    }
    let roots = groups.iter().filter(|g| !g.parameter_only);
    let roots = roots.flat_map(|g| g.roots.iter().map(|(n, _)| *n));
    roots
        .filter(|n| differs(flow, *n) && !pinned.contains(n))
        .collect()
}

/// Returns the values that keep channels first in any grouping: results, and operands of reshapes. A reshape that only
/// adds axes of size 1 to an operand of a reduction, as in pooling, accepts any layout.
fn pinned_values(flow: &Flow) -> HashSet<Nid> {
    let mut pinned: HashSet<Nid> = flow.outputs.iter().map(|o| o.node).collect();
    let mut read: HashSet<Nid> = pinned.clone();
    for node in flow
        .nodes
        .iter()
        .filter(|n| !matches!(n.op, Op::Reduce { .. }))
    {
        read.extend(&node.inputs);
    }
    for (n, node) in flow.nodes.iter().enumerate() {
        let sizes = |n: Nid| flow.nodes[n].shape.iter().filter(|d| !d.is(1));
        let adds_ones = |i: &Nid| !read.contains(&n) && sizes(*i).eq(sizes(n));
        if matches!(node.op, Op::After)
            || matches!(node.op, Op::Reshape) && !node.inputs.iter().all(adds_ones)
        {
            pinned.extend(&node.inputs);
        }
    }
    pinned
}

/// True if channels last is another memory layout of a value than channels first.
fn differs(flow: &Flow, n: Nid) -> bool {
    let shape = &flow.nodes[n].shape;
    shape.len() >= 3 && !shape[1].is(1) && shape[2..].iter().any(|d| !d.is(1))
}

/// Returns the number of elements that a launch reads through overlapping windows.
fn window_reads(flow: &Flow, group: &Group) -> u64 {
    let slides = |m: &Nid| match &flow.nodes[*m].op {
        Op::View(view) => view.index.iter().any(|i| i.terms.len() > 1),
        _ => false,
    };
    match !group.space.inner.is_empty() && group.members.iter().any(slides) {
        true => group.space.points().clamp(0, 1 << 32) as u64,
        false => 0,
    }
}

/// Returns the cost of concatenating the channels of several values with channels last: each value is walked
/// separately.
fn concat_cost(flow: &Flow, group: &Group) -> u64 {
    let costs = group.members.iter().filter_map(|m| {
        let node = &flow.nodes[*m];
        let parts = node
            .inputs
            .iter()
            .map(|n| flow.nodes[*n].shape.get(1).map(estimate));
        let smallest = parts.flatten().min().unwrap_or(1).max(1) as u64;
        let runs = elements(flow, *m) / smallest * node.inputs.len() as u64;
        matches!(node.op, Op::Concat(1)).then_some(runs * cpu::RUN)
    });
    costs.sum()
}

/// Returns the values that a launch reads through strides.
fn strided_reads(group: &Group) -> impl Iterator<Item = Nid> {
    let is_operand = |n: &Nid| {
        group
            .anchor
            .iter()
            .flat_map(|a| &a.operands)
            .any(|o| o.held == *n)
    };
    group.loaded.iter().copied().filter(move |n| !is_operand(n))
}

fn elements(flow: &Flow, n: Nid) -> u64 {
    estimate(&flow.numel(n)).clamp(0, 1 << 32) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns pseudo-random numbers.
    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % below
        }
    }

    #[test]
    fn labels_cost_least_and_have_channels_first_on_a_tie() {
        for seed in 0..300 {
            let mut r = numbers(seed);
            let n = 1 + r(8) as usize;
            let mut cost = || match r(6) {
                0 => NEVER,
                1 => 0,
                _ => r(40),
            };
            let label_costs = (0..n).map(|_| (cost().min(1000), cost())).collect();
            let pairs = (0..2 * n).map(|i| Pair {
                value: 0,
                writer: i % n,
                reader: (i * 7 + 1) % n,
                to_last: cost(),
                to_first: cost(),
            });
            let network = Network {
                machine: Machine::default(),
                exact: false,
                writers: HashMap::new(),
                free: HashSet::new(),
                convs: Vec::new(),
                images: Vec::new(),
                label_costs,
                pairs: pairs.filter(|p| p.writer != p.reader).collect(),
                pinned: Vec::new(),
            };
            let labelings = (0..1u32 << n).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect());
            let labelings: Vec<Vec<bool>> = labelings.collect();
            let min_cost = labelings.iter().map(|l| network.cost(l)).min().unwrap();
            let labels = network.min_cost_labels();
            assert_eq!(network.cost(&labels), min_cost, "seed {seed}");
            let count = |l: &[bool]| l.iter().filter(|l| **l).count();
            let optimal = labelings.iter().filter(|l| network.cost(l) == min_cost);
            assert_eq!(
                optimal.map(|l| count(l)).min(),
                Some(count(&labels)),
                "seed {seed}"
            );
        }
    }
}

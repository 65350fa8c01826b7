//! The nodes of a graph while it is rewritten.
//!
//! A patch appends nodes and redirects the readers of the values it replaces, then drops nodes without readers.
//! Between passes the nodes are put back into a topological order in which new nodes take the position of the node
//! that they replace.

use hashbrown::{HashMap, HashSet};
use kiln_ir::{Dim, Graph, Loc, Node, NodeId, Op, Role, Target, Value, ops};
use smallvec::SmallVec;

/// Slots of one operand, ascending.
type Slots = SmallVec<[usize; 1]>;

/// For nodes with more operands than this, a map finds the slots of an operand.
const MAX_SCANNED: usize = 32;

/// The nodes and their derived properties.
#[derive(Clone)]
pub(crate) struct Arena {
    pub(crate) graph: Graph,
    /// Readers, once for each operand slot.
    pub(crate) users: Vec<SmallVec<[NodeId; 2]>>,
    /// The outputs of the graph that read the node.
    outputs: HashMap<NodeId, Vec<usize>>,
    /// The inputs that outputs are assigned to.
    assigned: HashSet<u32>,
    /// True if the node depends on parameters and constants only.
    pub(crate) prepared: Vec<bool>,
    dead: Vec<bool>,
    /// The position in program order. New nodes of a patch take that of the node that the rule looked at.
    position: Vec<u32>,
    /// For nodes with many operands that a patch has redirected, the slots of each operand.
    slots: HashMap<NodeId, HashMap<Value, Slots>>,
    is_body: bool,
    /// True if a patch was applied.
    changed: bool,
}

impl Arena {
    pub(crate) fn new(graph: Graph, is_body: bool) -> Arena {
        let n = graph.len();
        let mut arena = Arena {
            users: graph.users(),
            outputs: HashMap::new(),
            assigned: HashSet::new(),
            prepared: Vec::with_capacity(n),
            dead: vec![false; n],
            position: (0..n as u32).collect(),
            graph,
            slots: HashMap::new(),
            is_body,
            changed: false,
        };
        for (output, o) in arena.graph.outputs.iter().enumerate() {
            arena.outputs.entry(o.value.node).or_default().push(output);
            if let Target::Assign(input) = o.target {
                arena.assigned.insert(input);
            }
        }
        for id in arena.graph.ids() {
            let prepared = arena.infer_prepared(id);
            arena.prepared.push(prepared);
        }
        arena
    }

    fn infer_prepared(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        match &node.op {
            Op::Input(input) => {
                input.role == Role::Parameter
                    && !self.is_body
                    && !self.assigned.contains(&input.index)
            }
            _ => node.inputs.iter().all(|v| self.prepared[v.node.index()]),
        }
    }

    /// The number of the graph's outputs that read the node.
    pub(crate) fn output_uses(&self, id: NodeId) -> usize {
        self.outputs.get(&id).map_or(0, Vec::len)
    }

    /// True if the node may be removed: nothing reads it, and it is not an input.
    pub(crate) fn unused(&self, id: NodeId) -> bool {
        self.users[id.index()].is_empty()
            && self.output_uses(id) == 0
            && !matches!(self.graph.node(id).op, Op::Input(_))
    }

    /// True if a node has not been removed.
    pub(crate) fn is_there(&self, id: NodeId) -> bool {
        !self.dead[id.index()]
    }

    /// The node's position in program order.
    pub(crate) fn position(&self, id: NodeId) -> u32 {
        self.position[id.index()]
    }

    /// True if a value exists and has not been removed.
    pub(crate) fn is_live(&self, v: Value) -> bool {
        let i = v.node.index();
        i < self.graph.len()
            && !self.dead[i]
            && (v.output as usize) < self.graph.node(v.node).facts.len()
    }

    /// Drops a node without readers and, after it, operands that have no readers any more. Returns the operands that
    /// lost a reader and stay.
    pub(crate) fn drop_unused(&mut self, id: NodeId) -> Vec<NodeId> {
        let mut survivors = Vec::new();
        let mut stack = vec![id];
        while let Some(id) = stack.pop() {
            if self.dead[id.index()] || !self.unused(id) {
                continue;
            }
            self.dead[id.index()] = true;
            self.changed = true;
            let inputs = self.graph.node(id).inputs.clone();
            for v in inputs {
                self.remove_user(v.node, id);
                survivors.push(v.node);
                stack.push(v.node);
            }
        }
        survivors.retain(|n| !self.dead[n.index()]);
        survivors
    }

    fn remove_user(&mut self, node: NodeId, user: NodeId) {
        let users = &mut self.users[node.index()];
        if let Some(slot) = users.iter().rposition(|u| *u == user) {
            users.swap_remove(slot);
        }
    }

    /// Adds a node at a position in program order.
    pub(crate) fn append(&mut self, node: Node, position: u32) -> NodeId {
        let id = NodeId(self.graph.len() as u32);
        self.changed = true;
        for v in &node.inputs {
            self.users[v.node.index()].push(id);
        }
        self.graph.push(node);
        self.users.push(SmallVec::new());
        self.dead.push(false);
        self.position.push(position);
        let prepared = self.infer_prepared(id);
        self.prepared.push(prepared);
        id
    }

    /// Redirects the readers of the replaced values. Returns the readers whose operands changed.
    pub(crate) fn redirect(
        &mut self,
        readers: &[NodeId],
        replacements: &[(Value, Value)],
    ) -> Vec<NodeId> {
        self.changed = true;
        let target = |v: Value| replacements.iter().find(|(old, _)| *old == v).map(|r| r.1);
        let mut touched = Vec::new();
        for &reader in readers {
            for slot in self.slots_of(reader, replacements) {
                let v = self.graph.node(reader).inputs[slot];
                let Some(new) = target(v) else { continue };
                self.graph.node_mut(reader).inputs[slot] = new;
                if let Some(slots) = self.slots.get_mut(&reader) {
                    slots.entry(new).or_default().push(slot);
                }
                self.remove_user(v.node, reader);
                self.users[new.node.index()].push(reader);
                touched.push(reader);
            }
        }
        let replaced = replacements.iter();
        let outputs = replaced.filter_map(|(old, _)| self.outputs.remove(&old.node));
        for output in outputs.flatten().collect::<Vec<usize>>() {
            let o = &mut self.graph.outputs[output];
            o.value = target(o.value).unwrap_or(o.value);
            self.outputs.entry(o.value.node).or_default().push(output);
        }
        touched
    }

    /// Takes the slots of a node that may read a replaced value out of the map. They are ascending.
    fn slots_of(&mut self, reader: NodeId, replacements: &[(Value, Value)]) -> Slots {
        let inputs = &self.graph.node(reader).inputs;
        if inputs.len() <= MAX_SCANNED {
            return (0..inputs.len()).collect();
        }
        let known = self.slots.entry(reader).or_insert_with(|| {
            let mut slots: HashMap<Value, Slots> = HashMap::new();
            for (slot, v) in inputs.iter().enumerate() {
                slots.entry(*v).or_default().push(slot);
            }
            slots
        });
        let replaced = replacements.iter().filter_map(|(old, _)| known.remove(old));
        let mut slots_found: Slots = replaced.flatten().collect();
        slots_found.sort();
        slots_found
    }

    /// The live nodes in topological order, as near to program order as that allows; `None` where
    /// they form a cycle.
    pub(crate) fn linear_order(&self) -> Option<Vec<NodeId>> {
        #[derive(Copy, Clone, PartialEq)]
        enum VisitState {
            New,
            Open,
            Done,
        }
        if !self.changed {
            return Some(self.graph.ids().collect());
        }
        let mut roots: Vec<NodeId> = (self.graph.ids())
            .filter(|id| !self.dead[id.index()])
            .collect();
        roots.sort_by_key(|id| (self.position[id.index()], *id));
        let mut state = vec![VisitState::New; self.graph.len()];
        let mut order = Vec::with_capacity(roots.len());
        let mut stack: Vec<(NodeId, usize)> = Vec::new();
        for root in roots {
            stack.push((root, 0));
            while let Some((id, slot)) = stack.pop() {
                match (state[id.index()], slot) {
                    (VisitState::Done, _) => continue,
                    (VisitState::Open, 0) => return None,
                    _ => state[id.index()] = VisitState::Open,
                }
                match self.graph.node(id).inputs.get(slot) {
                    Some(v) => {
                        stack.push((id, slot + 1));
                        stack.push((v.node, 0));
                    }
                    None => {
                        state[id.index()] = VisitState::Done;
                        order.push(id);
                    }
                }
            }
        }
        Some(order)
    }

    /// The live nodes in topological order, as a new arena; `None` where they form a cycle.
    pub(crate) fn tidied(self) -> Option<Arena> {
        if !self.changed {
            return Some(self);
        }
        let is_body = self.is_body;
        Some(Arena::new(self.into_graph()?, is_body))
    }

    /// The live nodes as a graph in topological order; `None` where they form a cycle.
    pub(crate) fn into_graph(mut self) -> Option<Graph> {
        let order = self.linear_order()?;
        let mut map = vec![NodeId(u32::MAX); self.graph.len()];
        let mut out = Graph::default();
        for id in order {
            let mut node = std::mem::replace(self.graph.node_mut(id), placeholder());
            for v in &mut node.inputs {
                v.node = map[v.node.index()];
            }
            map[id.index()] = out.push(node);
        }
        out.symbols = std::mem::take(&mut self.graph.symbols);
        out.outputs = std::mem::take(&mut self.graph.outputs);
        for o in &mut out.outputs {
            o.value.node = map[o.value.node.index()];
        }
        Some(out)
    }
}

fn placeholder() -> Node {
    Node {
        op: ops::Iota { len: Dim::ZERO }.into(),
        inputs: SmallVec::new(),
        facts: SmallVec::new(),
        loc: Loc::UNKNOWN,
    }
}
